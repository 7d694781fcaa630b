package core

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// ProbeCall is one call of the probe function: exactly one of its members.
type ProbeCall struct {
	Probe     *ProbeBatch       `json:"probe,omitempty"`
	Page      *PageRequest      `json:"page,omitempty"`
	Terminate *TerminateRequest `json:"terminate,omitempty"`
	List      *ListRequest      `json:"list,omitempty"`
	Remove    *RemoveRequest    `json:"remove,omitempty"`
	Push      *PushRequest      `json:"push,omitempty"`
}

// ListRequest asks for the names in a sandbox's journal directory.
type ListRequest struct {
	Target ExecTarget `json:"target"`
}

// RemoveRequest asks that runs' journals go from a sandbox.
type RemoveRequest struct {
	Target ExecTarget `json:"target"`
	Runs   []RunID    `json:"runs"`
}

// ProbeBatch asks several runs at once.
type ProbeBatch struct {
	Rate     float64        `json:"rate"` // exec calls a second; zero: as fast as they go
	Requests []ProbeRequest `json:"requests"`
}

// ProbeAnswer answers a [ProbeCall] with the member of the same name, or with a
// failure.
type ProbeAnswer struct {
	Probe     []ProbeReply    `json:"probe,omitempty"`
	Page      *PageReply      `json:"page,omitempty"`
	Terminate *TerminateReply `json:"terminate,omitempty"`
	List      *JournalListing `json:"list,omitempty"`
	Removed   []bool          `json:"removed,omitempty"`
	Push      *PushReply      `json:"push,omitempty"`
	Failure   *ProbeFailure   `json:"failure,omitempty"`
}

// ProbeFailure is why a page or a termination gave no answer; it is unknown, as a
// probe's reason would be.
type ProbeFailure struct {
	Healing Healing `json:"healing"`
	Reason  string  `json:"reason"`
}

func (f *ProbeFailure) Error() string { return fmt.Sprintf("probe: %s (%s)", f.Reason, f.Healing) }

// DecodeProbeCall reads a call from JSON. Members that it does not know are refused.
func DecodeProbeCall(data []byte) (ProbeCall, error) {
	var call ProbeCall
	if err := DecodeStrict(data, &call); err != nil {
		return ProbeCall{}, fmt.Errorf("probe call: %w", err)
	}
	return call, call.Validate()
}

// DecodeStrict reads one JSON value into v and refuses unknown members and
// anything behind the value.
func DecodeStrict(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("decode JSON: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("decode JSON: want one value, got more behind it")
	}
	return nil
}

// Validate reports what is not as expected.
func (c ProbeCall) Validate() error {
	given := 0
	var requests []ProbeRequest
	if c.Probe != nil {
		given++
		requests = c.Probe.Requests
	}
	if c.Page != nil {
		given++
		requests = append(requests, ProbeRequest{RunKey: c.Page.RunKey, Target: c.Page.Target, LogEnd: c.Page.From})
	}
	if c.Terminate != nil {
		given++
		requests = append(requests, ProbeRequest{RunKey: c.Terminate.RunKey, Target: c.Terminate.Target})
	}
	if c.List != nil {
		given++
		requests = append(requests, named(c.List.Target))
	}
	if c.Remove != nil {
		given++
		requests = append(requests, named(c.Remove.Target))
	}
	if c.Push != nil {
		given++
		requests = append(requests, ProbeRequest{RunKey: c.Push.RunKey, Target: c.Push.Target, LogEnd: c.Push.From})
	}
	if given != 1 {
		return fmt.Errorf("probe call: want exactly one of probe, page, terminate, list, remove and push, got %d", given)
	}
	if c.Probe != nil && c.Probe.Rate < 0 {
		return fmt.Errorf("probe call: rate: want calls a second from 0 on, got %g", c.Probe.Rate)
	}
	if p := c.Page; p != nil && (p.Beyond < 0 || p.WaitSeconds < 0 || p.WaitSeconds > int64(MaxPageWait/time.Second)) {
		return fmt.Errorf("probe call: page: want a wait of 0 to %s beyond a position from 0 on, got %d s beyond %d", MaxPageWait, p.WaitSeconds, p.Beyond)
	}
	for _, q := range requests {
		if err := q.validate(); err != nil {
			return fmt.Errorf("probe call: %w", err)
		}
	}
	if c.Push != nil {
		if err := c.Push.Validate(); err != nil {
			return fmt.Errorf("probe call: %w", err)
		}
	}
	return nil
}

// named is a request about no run, for the check of its target.
func named(target ExecTarget) ProbeRequest {
	return ProbeRequest{RunKey: RunKey{Tenant: "-", Run: "-"}, Target: target}
}

func (q ProbeRequest) validate() error {
	switch {
	case q.Tenant == "" || q.Run == "":
		return fmt.Errorf("want a tenant and a run, got %q", q.RunKey.String())
	case q.Target.TaskARN == "" || q.Target.Container == "":
		return fmt.Errorf("run %s: target: want a task ARN and a container, got %q and %q", q.RunKey, q.Target.TaskARN, q.Target.Container)
	case q.LogEnd < 0:
		return fmt.Errorf("run %s: want a position from 0 on, got %d", q.RunKey, q.LogEnd)
	}
	return nil
}

// ServeProbe answers one call of the probe function. It fails only for a call that
// is malformed: unknown is an answer.
func ServeProbe(ctx context.Context, p interface {
	Prober
	JournalDirectory
}, call ProbeCall) (ProbeAnswer, error) {
	if err := call.Validate(); err != nil {
		return ProbeAnswer{}, err
	}
	switch {
	case call.Probe != nil:
		return ProbeAnswer{Probe: p.Probe(ctx, call.Probe.Rate, call.Probe.Requests)}, nil
	case call.Page != nil:
		page, err := p.Page(ctx, *call.Page)
		return ProbeAnswer{Page: &page, Failure: FailureOf(err)}, nil
	case call.List != nil:
		listing, err := p.List(ctx, call.List.Target)
		return ProbeAnswer{List: &listing, Failure: FailureOf(err)}, nil
	case call.Remove != nil:
		gone, err := p.Remove(ctx, call.Remove.Target, call.Remove.Runs)
		return ProbeAnswer{Removed: gone, Failure: FailureOf(err)}, nil
	}
	if call.Push != nil {
		return servePush(ctx, p, *call.Push), nil
	}
	done, err := p.Terminate(ctx, *call.Terminate)
	return ProbeAnswer{Terminate: &done, Failure: FailureOf(err)}, nil
}

func servePush(ctx context.Context, p any, q PushRequest) ProbeAnswer {
	pusher, ok := p.(JournalPusher)
	if !ok {
		return ProbeAnswer{Failure: &ProbeFailure{Healing: Configuration, Reason: "push-not-served"}}
	}
	reply, err := pusher.Push(ctx, q)
	return ProbeAnswer{Push: &reply, Failure: FailureOf(err)}
}

// FailureOf is why a sandbox could not be asked, by the error of the session; nil without one.
func FailureOf(err error) *ProbeFailure {
	if err == nil {
		return nil
	}
	reason, healing := reasonFor(err)
	return &ProbeFailure{Healing: healing, Reason: reason}
}

// ProbeCaller carries calls to the probe function.
type ProbeCaller interface {
	// Call returns the function's answer. An answer that did not come, or is not one,
	// is an error.
	Call(ctx context.Context, call ProbeCall) (ProbeAnswer, error)
}

// RemoteProber is a [Prober] that asks the probe function.
type RemoteProber struct{ Caller ProbeCaller }

// Probe asks one batch. A call that failed leaves all of it unknown, to be tried
// again.
func (p RemoteProber) Probe(ctx context.Context, rate float64, requests []ProbeRequest) []ProbeReply {
	answer, err := p.Caller.Call(ctx, ProbeCall{Probe: &ProbeBatch{Rate: rate, Requests: requests}})
	if err == nil && len(answer.Probe) == len(requests) {
		return answer.Probe
	}
	replies := make([]ProbeReply, len(requests))
	for i, q := range requests {
		replies[i] = unknownReply(q, &JournalError{Op: "probe", Healing: Retry, Reason: "probe-call-failed"})
		replies[i].Unasked = true
	}
	return replies
}

// Page reads a piece of a journal.
func (p RemoteProber) Page(ctx context.Context, q PageRequest) (PageReply, error) {
	answer, err := p.Caller.Call(ctx, ProbeCall{Page: &q})
	switch {
	case err != nil:
		return PageReply{}, fmt.Errorf("page of run %s: %w", q.RunKey, err)
	case answer.Failure != nil:
		return PageReply{}, fmt.Errorf("page of run %s: %w", q.RunKey, answer.Failure)
	case answer.Page == nil:
		return PageReply{}, errNoAnswer
	}
	return *answer.Page, nil
}

// Terminate ends a run's agent.
func (p RemoteProber) Terminate(ctx context.Context, q TerminateRequest) (TerminateReply, error) {
	answer, err := p.Caller.Call(ctx, ProbeCall{Terminate: &q})
	switch {
	case err != nil:
		return TerminateReply{}, fmt.Errorf("terminate run %s: %w", q.RunKey, err)
	case answer.Failure != nil:
		return TerminateReply{}, fmt.Errorf("terminate run %s: %w", q.RunKey, answer.Failure)
	case answer.Terminate == nil:
		return TerminateReply{}, errNoAnswer
	}
	return *answer.Terminate, nil
}

// List lists a sandbox's journal directory.
func (p RemoteProber) List(ctx context.Context, target ExecTarget) (JournalListing, error) {
	answer, err := p.Caller.Call(ctx, ProbeCall{List: &ListRequest{Target: target}})
	switch {
	case err != nil:
		return JournalListing{}, fmt.Errorf("list journals: %w", err)
	case answer.Failure != nil:
		return JournalListing{}, fmt.Errorf("list journals: %w", answer.Failure)
	case answer.List == nil:
		return JournalListing{}, errNoAnswer
	}
	return *answer.List, nil
}

// Remove removes runs' journals from a sandbox.
func (p RemoteProber) Remove(ctx context.Context, target ExecTarget, runs []RunID) ([]bool, error) {
	answer, err := p.Caller.Call(ctx, ProbeCall{Remove: &RemoveRequest{Target: target, Runs: runs}})
	switch {
	case err != nil:
		return nil, fmt.Errorf("remove journals: %w", err)
	case answer.Failure != nil:
		return nil, fmt.Errorf("remove journals: %w", answer.Failure)
	}
	return answer.Removed, nil
}

var errNoAnswer = errors.New("probe: the function's answer lacks what was asked for")
