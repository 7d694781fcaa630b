package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/charmbracelet/x/vt"

	"github.com/sandkeeper/sandkeeper/internal/localfargate/terminal"
)

// screen is a terminal with a command before it, as a person has it: an emulator draws what
// the command writes and answers what it asks, and keys and sizes reach the command as those
// of its controlling terminal.
type screen struct {
	t      *testing.T
	master *os.File

	mu   sync.Mutex
	draw *vt.Emulator
	told bytes.Buffer // every byte that was written
}

// onScreen starts a command on a screen of so many cells. It skips where there is no
// pseudo-terminal.
func onScreen(t *testing.T, command *exec.Cmd, width, height uint16) *screen {
	t.Helper()
	master, slave, err := terminal.Open()
	if err != nil {
		t.Skip(err)
	}
	s := &screen{t: t, master: master, draw: vt.NewEmulator(int(width), int(height))}
	s.resize(width, height)
	command.Stdin, command.Stdout, command.Stderr = slave, slave, slave
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = command.Start()
	slave.Close()
	if err != nil {
		t.Fatal(err)
	}
	var ends sync.WaitGroup
	ends.Go(s.show)
	ends.Go(func() { _, _ = io.Copy(master, s.draw) }) // what an emulator reads as are answers
	t.Cleanup(func() {
		_ = command.Process.Kill() // which a command that has ended survives
		master.Close()
		_ = s.draw.InputPipe().(io.Closer).Close()
		ends.Wait()
	})
	return s
}

// show draws until nobody writes any more.
func (s *screen) show() {
	buffer := make([]byte, 4096)
	for {
		n, err := s.master.Read(buffer)
		s.mu.Lock()
		s.told.Write(buffer[:n])
		_, _ = s.draw.Write(buffer[:n]) // it fails only when it is closed
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (s *screen) resize(width, height uint16) {
	s.t.Helper()
	s.mu.Lock()
	s.draw.Resize(int(width), int(height))
	s.mu.Unlock()
	if err := terminal.Resize(s.master, width, height); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) press(keys string) {
	s.t.Helper()
	if _, err := s.master.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// text is what stands on the screen now.
func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.TrimSpace(s.draw.String())
}

// shows waits until all texts stand on the screen at once.
func (s *screen) shows(what string, texts ...string) {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			s.t.Logf("the screen shows\n%s", s.text())
		}
	}()
	eventually(s.t, what, func() bool {
		now := s.text()
		for _, text := range texts {
			if !strings.Contains(now, text) {
				return false
			}
		}
		return true
	})
}

// wasTold reports whether the terminal was ever told a sequence.
func (s *screen) wasTold(sequence string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Contains(s.told.Bytes(), []byte(sequence))
}
