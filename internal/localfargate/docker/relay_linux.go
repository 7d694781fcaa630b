package docker

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// rawCopy opens a terminal once more, as one that changes no byte: the one in the
// container edits, echoes and signals.
func rawCopy(tty *os.File) (*os.File, error) {
	if _, err := term.MakeRaw(int(tty.Fd())); err != nil {
		return nil, fmt.Errorf("make terminal raw: %w", err)
	}
	// By its name, so that reads of it end when it is closed.
	fd, err := unix.Open(tty.Name(), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open terminal %s: %w", tty.Name(), err)
	}
	return os.NewFile(uintptr(fd), tty.Name()), nil
}
