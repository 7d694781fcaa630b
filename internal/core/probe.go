package core

import (
	"context"
	"time"
)

// ProbeState is what a probe found out about a run's agent. The zero value is
// "could not tell" and never leads to anything (I1).
type ProbeState string

// The states.
const (
	ProbeUnknown   ProbeState = ""
	ProbeProducing ProbeState = "producing"
	ProbeFinished  ProbeState = "finished"
)

// ProbeRequest asks whether a run's agent has ended.
type ProbeRequest struct {
	RunKey
	Target     ExecTarget `json:"target"`
	SandboxKey SandboxKey `json:"sandboxKey"`
	Nonce      string     `json:"nonce"`
	LogEnd     int64      `json:"logEnd"`  // bytes of the journal that the log has
	LogTail    []byte     `json:"logTail"` // the last of them, as the record has them
	// Holder is who has the container for a longer use than this question; zero: nobody.
	Holder ExecHolder `json:"holder,omitzero"`
}

// ProbeReply is the answer. Reason and Healing tell why the state is unknown.
type ProbeReply struct {
	RunKey
	State   ProbeState `json:"state"`
	Exit    int        `json:"exit"` // of a finished agent
	Size    int64      `json:"size"` // of the journal, bytes
	Healing Healing    `json:"healing,omitempty"`
	Reason  string     `json:"reason,omitempty"`
	Dead    Dead       `json:"dead,omitempty"`    // of a producing state: nobody is there to end it
	Unasked bool       `json:"unasked,omitempty"` // no question reached the sandbox
	Stderr  string     `json:"stderr,omitempty"`  // its end, of a finished agent
	// Rewritten says that the finished journal does not go on from LogEnd.
	Rewritten bool `json:"rewritten,omitempty"`
	// Rest holds the journal from LogEnd up to the agent's last byte, if Whole.
	Rest  []byte `json:"rest,omitempty"`
	Whole bool   `json:"whole,omitempty"`
}

// PageRequest asks for a piece of a run's journal.
type PageRequest struct {
	RunKey
	Target ExecTarget `json:"target"`
	Nonce  string     `json:"nonce"`
	From   int64      `json:"from"`
	Last   []byte     `json:"last"` // the journal's bytes before From, as the record has them
	// Final says that nothing will be written any more: what might be the beginning
	// of a sentinel is output after all.
	Final bool `json:"final,omitempty"`
	// WaitSeconds is how long the sandbox waits for the journal to be longer than Beyond,
	// at most [MaxPageWait]; the sentinel too makes it longer.
	WaitSeconds int64 `json:"waitSeconds,omitempty"`
	Beyond      int64 `json:"beyond,omitempty"`
	// Follow says that somebody follows the journal: its copy in the spool keeps up.
	Follow bool `json:"follow,omitempty"`
	// Files asks for the side journal, which tells what changed in the workspace: whole
	// lines, and no sentinel.
	Files bool `json:"files,omitempty"`
}

// MaxPageWait is the longest wait of one page: with its transfer it fits into one exec.
const MaxPageWait = 25 * time.Second

// PageReply is a piece of the agent's stdout, at most [Limits.Page] bytes from
// the position asked for. Exit is set when the sentinel follows it directly.
type PageReply struct {
	Data []byte `json:"data"`
	Exit *int   `json:"exit,omitempty"`
	End  bool   `json:"end,omitempty"` // nothing more was in the journal
	Size int64  `json:"size"`          // of the whole journal then, bytes
	// Stderr is the end of the agent's stderr, when Exit is set.
	Stderr string `json:"stderr,omitempty"`
}

// PageSession is a session with one container in which pages are asked for, one at a time.
// A page that is not answered whole ends it: every later one fails.
type PageSession interface {
	Page(ctx context.Context, request PageRequest) (PageReply, error)
	Close()
}

// PageHolder opens sessions that are held.
type PageHolder interface {
	HoldPages(ctx context.Context, target ExecTarget) (PageSession, error)
}

// TerminateRequest asks that a run's agent and all its descendants end.
type TerminateRequest struct {
	RunKey
	Target ExecTarget `json:"target"`
	Nonce  string     `json:"nonce"`
}

// TerminateReply tells what the termination met.
type TerminateReply struct {
	Started bool `json:"started"` // the agent had been started before
}

// Prober asks and acts inside sandboxes.
type Prober interface {
	// Probe answers each request, in order. It never fails: what could not be asked is
	// unknown, with a reason. rate is how many exec calls a second it may start.
	Probe(ctx context.Context, rate float64, requests []ProbeRequest) []ProbeReply
	// Page reads a piece of a journal. An incomplete answer is an error.
	Page(ctx context.Context, request PageRequest) (PageReply, error)
	// Terminate takes the start marker, so that no agent may begin any more, ends
	// the agent with SIGTERM, and after [Limits.StopGrace] with SIGKILL. When it
	// returns nil no process of the run is left. Doing it again does no harm.
	Terminate(ctx context.Context, request TerminateRequest) (TerminateReply, error)
}
