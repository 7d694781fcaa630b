package datachannel

import (
	"fmt"
	"time"
)

// Habits are the waits of gateway and agent. The zero value waits for nothing
// and never ends an idle session; [RealHabits] are the real ones.
type Habits struct {
	FirstOutput  time.Duration // sleep before the terminal is read at all
	AfterRead    time.Duration // sleep after each message
	StartFailure time.Duration // until the reason of a program that cannot start is told
	Drain        time.Duration // most that unacknowledged output is waited for at the end
	Idle         time.Duration // until an idle session is closed; 0 is never
	PauseEvery   time.Duration // between repeated pause_publication messages; 0 is once
}

// RealHabits are what ECS Exec was seen, or is documented, to do. The interval of
// repeated pauses is not known and is ours.
func RealHabits() Habits {
	return Habits{
		FirstOutput:  time.Second,
		AfterRead:    time.Millisecond,
		StartFailure: 2 * time.Second,
		Drain:        2 * time.Second,
		Idle:         20 * time.Minute,
		PauseEvery:   5 * time.Second,
	}
}

// Faults are what goes wrong on purpose. They may be changed while sessions run.
// Rates are probabilities from 0 to 1 for each frame.
type Faults struct {
	// LossToClient and LossToAgent drop frames on their way, stream messages and
	// acknowledgements alike; the gateway's own messages always arrive.
	LossToClient float64 `json:"lossToClient,omitzero"`
	LossToAgent  float64 `json:"lossToAgent,omitzero"`
	// DuplicateToClient and DuplicateToAgent deliver a frame twice.
	DuplicateToClient float64 `json:"duplicateToClient,omitzero"`
	DuplicateToAgent  float64 `json:"duplicateToAgent,omitzero"`
	// ReorderToClient and ReorderToAgent let the next frame overtake.
	ReorderToClient float64 `json:"reorderToClient,omitzero"`
	ReorderToAgent  float64 `json:"reorderToAgent,omitzero"`
	// Seed begins the sequence of chances of each new session.
	Seed uint64 `json:"seed,omitzero"`

	// ExecError is a code with which ExecuteCommand refuses the task, such as
	// ThrottlingException; ExecErrors is how often, 0 is always.
	ExecError  string `json:"execError,omitzero"`
	ExecErrors int    `json:"execErrors,omitzero"`
	// AgentPending keeps the managed agents from RUNNING, and AgentStopped is the
	// reason why they are STOPPED; "" is that they are not.
	AgentPending bool   `json:"agentPending,omitzero"`
	AgentStopped string `json:"agentStopped,omitzero"`
	// NeverConnects: the container's agent is not connected, ExecuteCommand says so.
	NeverConnects bool `json:"neverConnects,omitzero"`
	// NeverJoins: sessions are made, but the agent's end never comes.
	NeverJoins bool `json:"neverJoins,omitzero"`
	// RefuseToken: the gateway takes no token.
	RefuseToken bool `json:"refuseToken,omitzero"`
	// CutAfterBytes cuts the client's socket, once a session, when that many bytes
	// of output were sent to it; 0 is never.
	CutAfterBytes int64 `json:"cutAfterBytes,omitzero"`
	// LoseFirst drops so many frames at a session's begin that its client sends: what
	// goes into the gap before both ends have joined.
	LoseFirst int `json:"loseFirst,omitzero"`

	// CloseText ends sessions with this text, and no command runs.
	CloseText string `json:"closeText,omitzero"`
	// EndText is said at the end of a command, as if something of the agent's own work
	// failed after it; "" is an ordinary end.
	EndText string `json:"endText,omitzero"`
	// Banner is output that comes before the command's own.
	Banner string `json:"banner,omitzero"`
	// NoShell: the image has no /bin/sh.
	NoShell bool `json:"noShell,omitzero"`
	// KMS asks every client for a data key before the command runs. There is no key
	// service here, so no answer satisfies the agent.
	KMS bool `json:"kms,omitzero"`

	// StaysRunning: a container that ends does not end its task.
	StaysRunning bool `json:"staysRunning,omitzero"`
}

// Check says which member is out of its range, or nil.
func (f Faults) Check() error {
	rates := []struct {
		name string
		rate float64
	}{
		{"lossToClient", f.LossToClient}, {"lossToAgent", f.LossToAgent},
		{"duplicateToClient", f.DuplicateToClient}, {"duplicateToAgent", f.DuplicateToAgent},
		{"reorderToClient", f.ReorderToClient}, {"reorderToAgent", f.ReorderToAgent},
	}
	for _, r := range rates {
		if !(r.rate >= 0 && r.rate <= 1) {
			return fmt.Errorf("check faults: %s is %v, want 0 to 1", r.name, r.rate)
		}
	}
	switch {
	case f.CutAfterBytes < 0:
		return fmt.Errorf("check faults: cutAfterBytes is %d, want 0 or more", f.CutAfterBytes)
	case f.LoseFirst < 0:
		return fmt.Errorf("check faults: loseFirst is %d, want 0 or more", f.LoseFirst)
	case f.ExecErrors < 0 || f.ExecErrors > 0 && f.ExecError == "":
		return fmt.Errorf("check faults: execErrors is %d, want 0 or more, and execError with it", f.ExecErrors)
	}
	return nil
}
