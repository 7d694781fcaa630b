package wrapper

import (
	"errors"
	"syscall"
)

// ErrCannotBecome says that this process is root, the container's main process is not,
// and the rights to become its user are missing.
var ErrCannotBecome = errors.New("cannot become the container's user")

// InitCredential is the user, with all groups, of the container's main process; nil where
// this process is that user already.
func InitCredential() (*syscall.Credential, error) {
	m := findMain()
	switch {
	case m.uid == 0:
		return nil, nil
	case !mayBecome():
		return nil, ErrCannotBecome
	}
	return m.credential(), nil
}
