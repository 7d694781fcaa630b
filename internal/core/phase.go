package core

// phase is what a host's part in a run, or the run itself, ends as. What fails beside an end
// is logged with it.
type phase string

// The phases: the closed set.
const (
	phaseDisconnect phase = "disconnect"
	phasePause      phase = "pause"
	phaseFinish     phase = "finish"
	phaseAbort      phase = "abort"
	phaseError      phase = "error"
)

// phaseOf is how a run ended, or is to end.
func phaseOf(r Run) phase {
	switch r.toEnd() {
	case "":
		return phaseFinish
	case EndFailed:
		return phaseError
	}
	return phaseAbort
}

// DestroyError is a sandbox that could not be ended. Its message comes again.
type DestroyError struct {
	Phase string // what its run ended as
	Err   error
}

func (e *DestroyError) Error() string { return e.Err.Error() }

// Unwrap returns what ECS said.
func (e *DestroyError) Unwrap() error { return e.Err }
