// Package terminal opens pseudo-terminals. Its rule: the master end never blocks a
// thread, so that closing it ends a read under way; the libraries for this put it
// into blocking mode.
package terminal

import "errors"

// ErrUnsupported means that this operating system is not known here.
var ErrUnsupported = errors.New("open terminal: needs linux")
