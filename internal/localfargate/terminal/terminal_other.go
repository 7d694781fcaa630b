//go:build !linux

package terminal

import "os"

// Open returns [ErrUnsupported].
func Open() (master, slave *os.File, err error) { return nil, nil, ErrUnsupported }

// Resize returns [ErrUnsupported].
func Resize(*os.File, uint16, uint16) error { return ErrUnsupported }
