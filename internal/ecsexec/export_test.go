package ecsexec

import "time"

// Command returns the command string and the typed lines for a script.
func Command(mark, script string, input []byte, limits Limits, left time.Duration) (string, [][]byte) {
	j := prepare(assignment{mark, script, input, limits.orDefaults(), left})
	return j.command, j.typed
}
