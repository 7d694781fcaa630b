package terminal_test

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/localfargate/terminal"
)

func TestCloseEndsAReadUnderWay(t *testing.T) {
	master, slave, err := terminal.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	read := make(chan error)
	go func() {
		_, err := master.Read(make([]byte, 1))
		read <- err
	}()
	if err := master.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-read; !errors.Is(err, os.ErrClosed) {
		t.Errorf("read: %v, want ErrClosed", err)
	}
}

func TestReadFailsWithEIOAtTheEnd(t *testing.T) {
	master, slave, err := terminal.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	if err := terminal.Resize(master, 132, 43); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("stty", "size")
	cmd.Stdin, cmd.Stdout = slave, slave
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	buf := make([]byte, 100)
	n, err := master.Read(buf)
	if err != nil || string(buf[:n]) != "43 132\r\n" {
		t.Errorf("read: %q, %v", buf[:n], err)
	}
	if _, err := master.Read(buf); !errors.Is(err, syscall.EIO) {
		t.Errorf("read at the end: %v, want EIO", err)
	}
}
