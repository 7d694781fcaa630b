package core

import (
	"context"
	"time"
)

// Note is what probes could not tell about a run, kept beside its record. It is
// read by the rules for agents that died and tasks that ECS does not know, by
// explain, and by alarms; it is no fact about the run (I1).
type Note struct {
	At           Millis // when it was last written
	UnknownSince Millis // of the present reason
	Reason       string
	Healing      Healing
	Count        int // of unknown answers for this reason

	DeadSince Millis // when the agent was first seen dead, as DeadAs
	DeadAs    Dead
	Missing   Millis // since when, without a break, ECS does not know the task

	EndFailing Millis // since when, without a break, its end is tried and its journal cannot be read
	EndTried   Millis // when it was tried last

	HeldSince Millis // it would have ended, and is held
	// Warned is the end of which a warning was given: what [warning] names it by. A mark of
	// it for another end than a later one stands for is of no account.
	Warned Millis
}

// Dead is how a sandbox shows that no process of a run can still end its journal.
// The zero value shows nothing of the kind.
type Dead string

// The ways. Only the same way, seen again, counts: a wrapper may write its sentinel
// and be gone between two looks of one probe.
const (
	NotDead    Dead = ""
	DeadGone   Dead = "gone"   // the wrapper's process is no more
	DeadAbsent Dead = "absent" // the run was claimed, and no wrapper ever came
	NeverBegan Dead = "never"  // no start marker and no journal
)

// Notes is where they are kept.
type Notes interface {
	// Note reads a run's note; none is the zero Note.
	Note(ctx context.Context, key RunKey) (Note, error)
	// PutNote replaces it. The last writer wins: a note decides nothing alone.
	PutNote(ctx context.Context, key RunKey, n Note) error
	// MarkWarned sets Warned alone, in one conditional request: it must be as read, or it
	// is a [*RefusedError]: "warned".
	MarkWarned(ctx context.Context, key RunKey, was, end Millis) error
}

// sighting is what one sweep saw of a run.
type sighting struct {
	reply   *ProbeReply
	missing bool
	held    bool // decided: would end, is held
}

// after is the note once s was seen at now, and whether it must be written: a
// reason that lasts is only counted now and then.
func (n Note) after(s sighting, now Millis, l Limits) (Note, bool) {
	next := n
	next.At = now
	if !s.missing {
		next.Missing = 0
	} else if n.Missing == 0 || now >= n.At.Add(l.NoteGap) {
		next.Missing = now
	}
	next.HeldSince = since(s.held, n.HeldSince, now)
	dead, unknown := NotDead, false
	if s.reply != nil {
		dead, unknown = s.reply.Dead, s.reply.State == ProbeUnknown
	}
	if dead == NotDead {
		next.DeadSince, next.DeadAs = 0, NotDead
	} else if n.DeadAs != dead || now >= n.At.Add(l.DeadGap) {
		next.DeadSince, next.DeadAs = now, dead
	}
	switch {
	case !unknown:
		next.UnknownSince, next.Reason, next.Healing, next.Count = 0, "", "", 0
	case n.UnknownSince == 0 || n.Reason != s.reply.Reason:
		next.UnknownSince, next.Reason, next.Healing, next.Count = now, s.reply.Reason, s.reply.Healing, 1
	default:
		next.Count++
	}
	same := next
	same.At, same.Count = n.At, n.Count
	return next, same != n || s.missing || dead != NotDead || now >= n.At.Add(l.NoteEvery)
}

// failing is the note once an end has failed at now. It is no sighting: what was seen
// of task and agent grows as old as it is.
func (n Note) failing(now Millis, l Limits) Note {
	if n.EndFailing == 0 || now >= n.EndTried.Add(l.DeadGap) {
		n.EndFailing = now
	}
	n.EndTried = now
	if n.At == 0 {
		n.At = now
	}
	return n
}

// since is when a state began that holds now.
func since(holds bool, before, now Millis) Millis {
	switch {
	case !holds:
		return 0
	case before != 0:
		return before
	}
	return now
}

// worthNoting reports whether a sighting has anything for a note.
func (s sighting) worthNoting() bool {
	return s.missing || s.held || s.reply != nil && (s.reply.State == ProbeUnknown || s.reply.Dead != NotDead)
}

// sure reports whether an agent has been seen dead in this way for long enough.
func (n Note) sure(dead Dead, now Millis, l Limits) bool {
	return dead != NotDead && n.DeadAs == dead && n.DeadSince != 0 && now >= n.DeadSince.Add(l.DeadApart)
}

// missingFor is how long ECS has not known the task, without a break.
func (n Note) missingFor(now Millis) time.Duration {
	if n.Missing == 0 {
		return 0
	}
	return now.Sub(n.Missing)
}
