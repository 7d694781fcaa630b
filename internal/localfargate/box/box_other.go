//go:build !linux

package box

import (
	"os"
	"syscall"
)

// MaybeInit does nothing: there are no boxes here.
func MaybeInit() {}

// Scan is the machine's process tree, empty here.
type Scan struct{}

// ScanProcesses returns an empty scan.
func ScanProcesses() Scan { return Scan{} }

// InNamespaceOf is empty.
func (Scan) InNamespaceOf(int) []Process { return nil }

// Box is a running process tree; there is none here.
type Box struct{}

// Session is one process on a terminal; there is none here.
type Session struct{}

// Best returns [ErrUnsupported].
func Best(string) (Isolation, error) { return "", ErrUnsupported }

// Try returns [ErrUnsupported].
func Try(Isolation, string) error { return ErrUnsupported }

// Start returns [ErrUnsupported].
func Start(Spec) (*Box, error) { return nil, ErrUnsupported }

// Exec returns [ErrUnsupported].
func (*Box) Exec([]string, []string, *os.File) (*Session, error) { return nil, ErrUnsupported }

// Ping returns [ErrUnsupported].
func (*Box) Ping() error { return ErrUnsupported }

// Signal returns [ErrUnsupported].
func (*Box) Signal(syscall.Signal) error { return ErrUnsupported }

// Kill does nothing.
func (*Box) Kill() {}

// Done is nil: no box ever ends.
func (*Box) Done() <-chan struct{} { return nil }

// ExitStatus is 0.
func (*Box) ExitStatus() int { return 0 }

// Processes is empty.
func (*Box) Processes(Scan) []Process { return nil }

// Dir is empty.
func (*Box) Dir() string { return "" }

// Done is nil.
func (*Session) Done() <-chan struct{} { return nil }

// Kill does nothing.
func (*Session) Kill() {}
