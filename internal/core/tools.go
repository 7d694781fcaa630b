package core

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Bridge is the use case of the agents in sandboxes: tools of the host, the word that an
// agent has ended, and leave to spool its journal (DESIGN 10). Whose agent it is, and so
// what it may do, is read from its bearer alone.
type Bridge struct {
	Runs      Runs
	Functions Functions
	Nudger    Nudger
	Grants    PutGranter
	Quotas    SpoolQuotas
	Limits    Limits
}

// Nudger has a run looked at now, by whoever sweeps.
type Nudger interface {
	Nudge(ctx context.Context, key RunKey) error
}

// The times and sizes of tools.
const (
	// DefaultToolTimeout is how long a tool may take whose binding does not say,
	// MaxToolTimeout the longest that one may say.
	DefaultToolTimeout = time.Minute
	MaxToolTimeout     = 5 * time.Minute
	// ToolsTimeout is the tools function's: the longest tool, and what comes before and
	// after it.
	ToolsTimeout = MaxToolTimeout + 20*time.Second
	// MaxToolResult is the longest result of a tool, bytes of JSON.
	MaxToolResult = 1_000_000
	// cancelLook is how often a call under way looks whether its run was cancelled: twice
	// within the 2 s after which the call must have ended.
	cancelLook = 750 * time.Millisecond
	// answerMargin is the time that a call leaves its function to answer in.
	answerMargin = 3 * time.Second
	maxToolFault = 1000 // characters of a failed tool's own message
)

// The codes of a [ToolError].
const (
	ToolUnknown   = "no-such-tool" // the run's list does not have it
	ToolCancelled = "cancelled"    // the run is to end
	ToolTooLarge  = "too-large"    // its result
	ToolFailed    = "tool-failed"
	ToolTimeout   = "tool-timeout"
)

// ToolError is why a call of a tool has no result, in one line that the agent may read.
type ToolError struct {
	Code    string
	Message string
	Cause   error // for the log; nil: the message says it all
}

func (e *ToolError) Error() string { return e.Code + ": " + e.Message }

// Unwrap returns the cause.
func (e *ToolError) Unwrap() error { return e.Cause }

func toolError(code, format string, args ...any) *ToolError {
	return &ToolError{Code: code, Message: fmt.Sprintf(format, args...)}
}

// RunAgent is an agent whose bearer was accepted. The zero value is nobody.
type RunAgent struct{ run Run }

// Key names its run.
func (a RunAgent) Key() RunKey { return a.run.RunKey }

// Admit finds the run whose agent holds a bearer, or is [ErrBearer].
func (b *Bridge) Admit(ctx context.Context, bearer string) (RunAgent, error) {
	key, ok := bearerRun(bearer)
	if !ok {
		return RunAgent{}, ErrBearer
	}
	r, err := b.Runs.Run(ctx, key)
	switch {
	case isNotFound(err):
		return RunAgent{}, ErrBearer
	case err != nil:
		return RunAgent{}, err
	case !r.accepts(bearer) || over(r):
		return RunAgent{}, ErrBearer
	}
	return RunAgent{r}, nil
}

// over reports whether nothing that a run's agent asks for is done any more.
func over(r Run) bool { return r.Status.Terminal() || r.Ending != nil }

// toolCall is what a tool's function is invoked with.
type toolCall struct {
	Name    string          `json:"name"`
	Args    json.RawMessage `json:"args"`
	Context toolContext     `json:"context"`
}

// toolContext says whose agent calls: from its record, not from what it says.
type toolContext struct {
	Tenant TenantID `json:"tenant"`
	Thread ThreadID `json:"thread"`
	Run    RunID    `json:"run"`
}

// Call calls a tool of the run's list and returns its result as JSON. Args are an object;
// absent or null is an empty one. Without a result it is an [*InvalidError] or a
// [*ToolError].
func (b *Bridge) Call(ctx context.Context, a RunAgent, name string, args json.RawMessage) (json.RawMessage, error) {
	args = bytes.TrimSpace(args)
	switch {
	case name == "":
		return nil, invalid("bad-request", "name: want the name of a tool")
	case len(args) == 0 || string(args) == "null":
		args = json.RawMessage("{}")
	case args[0] != '{':
		return nil, invalid("bad-request", "args: want an object, got %.80q", args)
	}
	tool, err := a.tool(name)
	if err != nil {
		return nil, err
	}
	if a.run.CancelRequested != 0 {
		return nil, errToolCancelled
	}
	payload, err := json.Marshal(toolCall{name, args, toolContext{a.run.Tenant, a.run.Thread, a.run.RunKey.Run}})
	if err != nil {
		return nil, invalid("bad-request", "args: %v", err)
	}
	result, err := b.invoke(ctx, a.run.RunKey, tool, payload)
	if err != nil {
		return nil, err
	}
	return checkedResult(tool, result)
}

func (a RunAgent) tool(name string) (ToolBinding, error) {
	i := slices.IndexFunc(a.run.Tools, func(t ToolBinding) bool { return t.Name == name })
	if i >= 0 {
		return a.run.Tools[i], nil
	}
	var known []string
	for _, t := range a.run.Tools {
		known = append(known, t.Name)
	}
	if known == nil {
		return ToolBinding{}, toolError(ToolUnknown, "tool %.80q: this run may call no tool", name)
	}
	return ToolBinding{}, toolError(ToolUnknown, "tool %.80q: this run may call %s", name, strings.Join(known, ", "))
}

var errToolCancelled = toolError(ToolCancelled, "the run was cancelled")

// invoke calls a tool's function, for as long as it may take and the run is not cancelled.
func (b *Bridge) invoke(ctx context.Context, key RunKey, tool ToolBinding, payload []byte) ([]byte, error) {
	within := min(cmp.Or(time.Duration(tool.TimeoutSeconds)*time.Second, DefaultToolTimeout), MaxToolTimeout)
	if deadline, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(deadline)-answerMargin)
	}
	late := toolError(ToolTimeout, "tool %s: no result within %s", tool.Name, within)
	until, cancelTime := context.WithTimeoutCause(ctx, within, late)
	defer cancelTime()
	until, cancel := context.WithCancelCause(until)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		b.watch(until, key, cancel)
	}()
	result, err := b.Functions.Invoke(until, tool.Function, payload)
	ended, _ := errors.AsType[*ToolError](context.Cause(until))
	cancel(nil)
	<-watched
	switch failed, isFailed := errors.AsType[*FunctionError](err); {
	case err == nil:
		return result, nil
	case ended != nil:
		return nil, ended
	case isFailed:
		return nil, toolError(ToolFailed, "tool %s: %s", tool.Name, shorten(failed.Message))
	case errors.Is(err, ErrNotAllowed):
		return nil, &ToolError{ToolFailed, "tool " + tool.Name + ": this installation lets nobody call its function", err}
	}
	return nil, &ToolError{ToolFailed, "tool " + tool.Name + ": its function could not be called", err}
}

func shorten(message string) string {
	text := []rune(strings.ToValidUTF8(message, "\uFFFD"))
	return string(text[:min(len(text), maxToolFault)])
}

// watch ends a call whose run is cancelled or ended meanwhile. What it cannot read ends
// nothing.
func (b *Bridge) watch(ctx context.Context, key RunKey, end context.CancelCauseFunc) {
	tick := time.NewTicker(cancelLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		look, cancel := context.WithTimeout(ctx, cancelLook)
		r, err := b.Runs.Run(look, key)
		cancel()
		if err == nil && (r.CancelRequested != 0 || over(r)) {
			end(errToolCancelled)
			return
		}
	}
}

// checkedResult is a result that an answer can carry.
func checkedResult(tool ToolBinding, result []byte) (json.RawMessage, error) {
	switch result = bytes.TrimSpace(result); {
	case len(result) == 0:
		return json.RawMessage("null"), nil
	case len(result) > MaxToolResult:
		return nil, toolError(ToolTooLarge, "tool %s: want a result of at most %d bytes, got %d", tool.Name, MaxToolResult, len(result))
	case !json.Valid(result):
		return nil, toolError(ToolFailed, "tool %s: want a result in JSON, got %.80q", tool.Name, result)
	}
	return result, nil
}

// Ended takes an agent's word that it has ended: once a run, it has somebody look now. It
// proves nothing (I3).
func (b *Bridge) Ended(ctx context.Context, a RunAgent) error {
	r := a.run
	for range rowTries {
		if over(r) || r.ExitedAt != 0 {
			return nil
		}
		h := Hint{ExitedAt: nowMillis(), First: true, TaskARN: r.TaskARN, Row: r.Row, DueAt: r.DueAt}
		h.Lapse = b.Limits.hintLapse(r, h)
		_, err := b.Runs.Update(ctx, r.RunKey, h)
		if err == nil {
			return b.Nudger.Nudge(ctx, r.RunKey)
		}
		if !Refused(err) {
			return err
		}
		if r, err = b.Runs.Run(ctx, r.RunKey); err != nil {
			return ignoreNotFound(err)
		}
	}
	return nil // a record that moves this often is being looked at
}
