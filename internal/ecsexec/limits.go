package ecsexec

import (
	"cmp"
	"time"
)

// Limits bounds one Exec. A zero field stands for the default.
type Limits struct {
	Start       time.Duration // ExecuteCommand; 5 s
	Connect     time.Duration // the socket's upgrade; 5 s
	Write       time.Duration // one message into a socket that takes nothing; 5 s
	FirstOutput time.Duration // from the upgrade to the first output; 15 s, of which the agent itself sleeps 1
	Whole       time.Duration // all of it, together with the caller's deadline; 45 s
	Ping        time.Duration // between pings of a session that lasts; 30 s

	// Linger is how long the shell stays after its trailer. The agent drops what is
	// unacknowledged 2 s after the command ends; while it lingers, lost messages are
	// still repaired. A long linger holds one of the agent's two slots when the
	// client vanishes; a client that is there ends it at once. 10 s.
	Linger time.Duration
	// Parting bounds the good-bye, once the answer is known or given up: until the
	// agent has closed the session. It takes a round trip, or up to the agent's own
	// 2 s where messages are lost; it can exceed the caller's deadline. 2 s.
	Parting time.Duration

	// Idle is how long the shell of a held session waits for the next script, or lets one
	// run: a client that has gone keeps one of the agent's slots so long. 90 s.
	Idle time.Duration

	Stdout int // largest answer in bytes; one byte more is an error, never a cut answer; 4 MiB
	Input  int // largest input in bytes; it is held in a shell variable; 1 MiB
}

// DefaultLimits fit a probe in a function that times out after 60 s.
func DefaultLimits() Limits {
	return Limits{
		Start:       5 * time.Second,
		Connect:     5 * time.Second,
		Write:       5 * time.Second,
		FirstOutput: 15 * time.Second,
		Whole:       45 * time.Second,
		Ping:        30 * time.Second,
		Linger:      10 * time.Second,
		Parting:     2 * time.Second,
		Idle:        90 * time.Second,
		Stdout:      4 << 20,
		Input:       1 << 20,
	}
}

func (l Limits) orDefaults() Limits {
	d := DefaultLimits()
	return Limits{
		Start:       cmp.Or(l.Start, d.Start),
		Connect:     cmp.Or(l.Connect, d.Connect),
		Write:       cmp.Or(l.Write, d.Write),
		FirstOutput: cmp.Or(l.FirstOutput, d.FirstOutput),
		Whole:       cmp.Or(l.Whole, d.Whole),
		Ping:        cmp.Or(l.Ping, d.Ping),
		Linger:      cmp.Or(l.Linger, d.Linger),
		Parting:     cmp.Or(l.Parting, d.Parting),
		Idle:        cmp.Or(l.Idle, d.Idle),
		Stdout:      cmp.Or(l.Stdout, d.Stdout),
		Input:       cmp.Or(l.Input, d.Input),
	}
}

// inside divides the time that is left between the script and the linger, both in
// whole seconds, because that is all every sleep understands. Together they never
// exceed what is left (but for the 1 s that each of them needs): the shell ends
// before its caller gives up, so it can say so.
func (l Limits) inside(left time.Duration) (script, linger int) {
	linger = max(1, int(min(l.Linger, left/4)/time.Second))
	return max(1, int(left/time.Second)-linger), linger
}
