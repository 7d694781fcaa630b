package terminal

import (
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Open returns the two ends of a new terminal of size 0 by 0. A read from the
// master fails with EIO once nothing holds the slave any more.
func Open() (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	master = os.NewFile(uintptr(fd), "/dev/ptmx")
	slave, err = openSlave(fd)
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	return master, slave, nil
}

func openSlave(master int) (*os.File, error) {
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return nil, err
	}
	number, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return nil, err
	}
	return os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0)
}

// Resize sets the size of a terminal by its master.
func Resize(master *os.File, columns, rows uint16) error {
	conn, err := master.SyscallConn()
	if err != nil {
		return fmt.Errorf("resize terminal: %w", err)
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows})
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("resize terminal: %w", err)
	}
	return nil
}
