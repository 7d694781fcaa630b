// Package wrapper is the journal wrapper as a program: it begins an agent, keeps its
// journal and closes it, and answers probes, as the scripts of internal/core do in a
// shell. Its rule: whoever reads the sandbox cannot tell which of the two wrote it.
// Beyond a shell it passes SIGTERM on and records it, has every descendant of the
// agent reparented to itself and ends those that are left when the agent has ended, and
// puts the journal on the disk before it says that it is whole.
package wrapper
