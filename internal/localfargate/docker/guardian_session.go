package docker

import "syscall"

// ownSession keeps a guardian out of reach of what ends its server's group.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
