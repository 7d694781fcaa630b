package core

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
)

// JournalProber answers [Prober]'s questions by scripts that it runs in the
// sandboxes. It is the use case of the probe function.
type JournalProber struct {
	Exec      Executor
	Sandboxes Sandboxes
	Format    JournalFormat
	Limits    Limits
	Dialer    ExecDialer // nil: no sessions are held
}

// Probe asks each run's journal, at most ProbeWidth at a time and started no
// faster than rate a second.
func (p *JournalProber) Probe(ctx context.Context, rate float64, requests []ProbeRequest) []ProbeReply {
	replies := make([]ProbeReply, len(requests))
	begun := time.Now()
	pool(p.Limits.ProbeWidth, len(requests), func(i int) {
		replies[i] = unknownReply(requests[i], &JournalError{Op: "probe", Healing: Retry, Reason: "no-time-left"})
		replies[i].Unasked = true
		if waitUntil(ctx, begun.Add(paced(i, rate))) {
			replies[i] = p.probe(ctx, requests[i])
		}
	})
	return replies
}

// paced is when the nth call of rate a second may start.
func paced(n int, rate float64) time.Duration {
	if rate <= 0 {
		return 0
	}
	return time.Duration(float64(n) / rate * float64(time.Second))
}

func waitUntil(ctx context.Context, at time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Until(at)):
		return ctx.Err() == nil
	}
}

func (p *JournalProber) probe(ctx context.Context, q ProbeRequest) ProbeReply {
	if err := p.free(ctx, q.SandboxKey, q.Holder); err != nil {
		return unknownReply(q, err)
	}
	script, err := p.Format.ProbeScript(q.Run, q.Nonce, q.LogEnd)
	if err != nil {
		return unknownReply(q, err)
	}
	out, err := p.Exec.Exec(ctx, q.Target, q.Target.among(script), nil)
	if err != nil {
		return unknownReply(q, err)
	}
	return p.read(q, p.Format.ParseProbe(q.Nonce, out.Stdout))
}

// read turns the script's answer into the reply.
func (p *JournalProber) read(q ProbeRequest, answer JournalProbe) ProbeReply {
	reply := ProbeReply{
		RunKey: q.RunKey, State: ProbeState(answer.State), Exit: answer.Exit, Size: answer.Size,
		Healing: answer.Healing, Reason: answer.Reason,
	}
	if answer.State != JournalFinished {
		reply.Dead = deadOf(answer)
		return reply
	}
	reply.Stderr = ExitMessage(answer.Stderr)
	if page, ok := answer.Page(); ok {
		piece, ok := page.After(q.LogEnd, q.LogTail)
		reply.Rewritten = !ok
		if ok {
			if cut := p.Format.Cut(q.Nonce, piece, EdgeEnd); cut.Sealed {
				reply.Rest, reply.Whole, reply.Exit = piece[:cut.Append], true, cut.Exit
			}
		}
	}
	return reply
}

// deadOf reads how the sandbox shows that nobody can end the journal any more.
// Without a readable journal only a run that was never claimed counts.
func deadOf(answer JournalProbe) Dead {
	switch {
	case answer.State != JournalProducing:
	case answer.Wrapper == WrapperGone && answer.Present:
		return DeadGone
	case answer.Wrapper == WrapperAbsent && answer.Present:
		return DeadAbsent
	case answer.Wrapper == WrapperAbsent && !answer.Marker:
		return NeverBegan
	}
	return NotDead
}

// free refuses a container that another long user has: one exec session at a time, over
// all functions.
func (p *JournalProber) free(ctx context.Context, key SandboxKey, who ExecHolder) error {
	if key == "" {
		return nil
	}
	box, err := p.Sandboxes.Sandbox(ctx, key)
	switch {
	case isNotFound(err):
		return nil
	case err != nil:
		return &JournalError{Op: "probe", Healing: Retry, Reason: "sandbox-unreadable"}
	case box.Exec.Bars(who, box.LatestRun, nowMillis()):
		return &JournalError{Op: "probe", Healing: Retry, Reason: execBusy}
	}
	return nil
}

func unknownReply(q ProbeRequest, err error) ProbeReply {
	reason, healing := reasonFor(err)
	return ProbeReply{RunKey: q.RunKey, State: ProbeUnknown, Reason: reason, Healing: healing}
}

// reasonRewritten is why a page cannot be appended: the journal does not go on from
// where the log ends.
const reasonRewritten = "rewritten"

// reasonFor words why a question got no answer.
func reasonFor(err error) (string, Healing) {
	if e, ok := errors.AsType[*ExecError](err); ok {
		return e.Reason, e.Healing
	}
	if e, ok := errors.AsType[*JournalError](err); ok {
		return e.Reason, e.Healing
	}
	if e, ok := errors.AsType[*ProbeFailure](err); ok {
		return e.Reason, e.Healing
	}
	return err.Error(), Configuration
}

// Page reads a piece of a journal and cuts it where the agent's output ends.
func (p *JournalProber) Page(ctx context.Context, q PageRequest) (PageReply, error) {
	script, err := p.pageScript(q)
	if err != nil {
		return PageReply{}, err
	}
	out, err := p.Exec.Exec(ctx, q.Target, q.Target.among(script), nil)
	if err != nil {
		return PageReply{}, err
	}
	page, err := ParsePage(out.Stdout)
	if err != nil {
		return PageReply{}, err
	}
	return p.cut(q, page)
}

func (p *JournalProber) pageScript(q PageRequest) (string, error) {
	compose := p.Format.WaitingPageScript
	if q.Files {
		compose = p.Format.FilesScript
	}
	return compose(q.Run, q.From, p.Limits.Page, PageWait{time.Duration(q.WaitSeconds) * time.Second, q.Beyond, q.Follow})
}

// cut makes of a page what may be appended.
func (p *JournalProber) cut(q PageRequest, page JournalPage) (PageReply, error) {
	if !page.Present && q.From == 0 {
		return PageReply{End: true}, nil
	}
	piece, ok := page.After(q.From, q.Last)
	if !ok {
		return PageReply{}, &JournalError{Op: "page", Healing: Retry, Reason: reasonRewritten}
	}
	if q.Files {
		return PageReply{Data: bytes.Clone(piece), End: page.ToEnd(), Size: page.Size}, nil
	}
	edge := EdgeMore
	if page.ToEnd() {
		edge = EdgeEnd
		if q.Final {
			edge = EdgeFinal
		}
	}
	cut := p.Format.Cut(q.Nonce, piece, edge)
	reply := PageReply{Data: bytes.Clone(piece[:cut.Append]), End: page.ToEnd(), Size: page.Size}
	if cut.Sealed {
		reply.Exit = new(cut.Exit)
		reply.Stderr = ExitMessage(page.Stderr)
	}
	return reply, nil
}

// HoldPages opens a session in which pages are asked for.
func (p *JournalProber) HoldPages(ctx context.Context, target ExecTarget) (PageSession, error) {
	session, err := p.Dialer.Dial(ctx, target)
	if err != nil {
		return nil, err
	}
	return &heldPages{prober: p, session: session, inodes: map[bool]int64{}}, nil
}

// heldPages is a session in which pages are asked for. It knows the files that it has
// seen: what is another file is not what goes on.
type heldPages struct {
	prober  *JournalProber
	session ExecSession
	inodes  map[bool]int64 // of the journal, and of the side journal
}

func (h *heldPages) Page(ctx context.Context, q PageRequest) (PageReply, error) {
	script, err := h.prober.pageScript(q)
	if err != nil {
		return PageReply{}, err
	}
	out, err := h.session.Exec(ctx, q.Target.among(script))
	if err != nil {
		return PageReply{}, err
	}
	page, err := ParsePage(out.Stdout)
	if err != nil {
		return PageReply{}, err
	}
	if known := h.inodes[q.Files]; known != 0 && known != page.Inode {
		return PageReply{}, &JournalError{Op: "page", Healing: Retry, Reason: reasonRewritten}
	}
	h.inodes[q.Files] = page.Inode
	return h.prober.cut(q, page)
}

func (h *heldPages) Close() { h.session.Close() }

// List lists a sandbox's journal directory.
func (p *JournalProber) List(ctx context.Context, target ExecTarget) (JournalListing, error) {
	out, err := p.Exec.Exec(ctx, target, target.among(p.Format.ListScript()), nil)
	if err != nil {
		return JournalListing{}, err
	}
	return ParseListing(out.Stdout)
}

// Remove removes runs' journals from a sandbox.
func (p *JournalProber) Remove(ctx context.Context, target ExecTarget, runs []RunID) ([]bool, error) {
	script, err := p.Format.RemoveScript(runs)
	if err != nil {
		return nil, err
	}
	out, err := p.Exec.Exec(ctx, target, target.among(script), nil)
	if err != nil {
		return nil, err
	}
	return ParseRemove(out.Stdout, len(runs))
}

// Terminate ends a run's agent.
func (p *JournalProber) Terminate(ctx context.Context, q TerminateRequest) (TerminateReply, error) {
	script, err := p.Format.TerminateScript(q.Run, q.Nonce, p.Limits.StopGrace)
	if err != nil {
		return TerminateReply{}, err
	}
	out, err := p.Exec.Exec(ctx, q.Target, q.Target.among(script), nil)
	if err != nil {
		return TerminateReply{}, err
	}
	done, err := ParseTerminate(out.Stdout)
	if err != nil {
		return TerminateReply{}, fmt.Errorf("terminate run %s: %w", q.RunKey, err)
	}
	if done.Left > 0 {
		return TerminateReply{}, &JournalError{Op: "terminate", Healing: Retry, Reason: "processes-left"}
	}
	return TerminateReply{Started: !done.Prevented}, nil
}
