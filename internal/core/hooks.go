package core

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Hook names what a hook function is told of.
type Hook string

// The hooks. Ready is waited for; the others are told some time later: twice where a step
// is repeated, and not at all where Lambda does not take the call, which is logged, or where
// the process that was to tell has ended.
const (
	HookReady     Hook = "ready"     // a sandbox is ready for its run's agent
	HookError     Hook = "error"     // a host gave a run up, or its start failed
	HookDestroyed Hook = "destroyed" // a sandbox's task has ended
	HookFile      Hook = "file"      // files of a workspace have changed
)

// HookEvent is what a hook function gets.
type HookEvent struct {
	Hook       Hook       `json:"hook"`
	Tenant     TenantID   `json:"tenant"`
	Run        RunID      `json:"run"`
	Thread     ThreadID   `json:"thread"`
	SandboxKey SandboxKey `json:"sandboxKey,omitempty"`
	Detail     any        `json:"detail"`
}

// The details of hooks.
type (
	// ReadyDetail tells of the sandbox that is ready.
	ReadyDetail struct {
		Ensured      Ensured      `json:"ensured"`
		RestoredFrom CheckpointID `json:"restoredFrom,omitempty"`
		Instance     InstanceID   `json:"instance"`
		TaskARN      string       `json:"taskArn"`
	}
	// ErrorDetail tells why a run ended.
	ErrorDetail struct {
		Code    string `json:"code"`
		Message string `json:"message,omitempty"`
	}
	// FileDetail tells what changed, in the order in which it was seen; From is where the
	// first of Events stands in the run's side journal, by which a repeat is known.
	FileDetail struct {
		From   int64             `json:"from"`
		Events []json.RawMessage `json:"events"`
	}
	// DestroyedDetail tells of the task that has ended.
	DestroyedDetail struct {
		Instance InstanceID `json:"instance"`
		TaskARN  string     `json:"taskArn"`
		Why      string     `json:"why,omitempty"`
	}
)

func hookOf(hook Hook, r Run, detail any) ([]byte, error) {
	return json.Marshal(HookEvent{Hook: hook, Tenant: r.Tenant, Run: r.RunKey.Run, Thread: r.Thread, SandboxKey: r.SandboxKey, Detail: detail})
}

// hookWithin bounds a hook that is waited for, and handing over one that is not.
const hookWithin = 15 * time.Second

// hookTeller tells hooks that nobody waits for.
type hookTeller struct {
	functions Functions    // nil: none is told
	log       *slog.Logger // may be nil
}

// tell has a run's hook told. That it cannot be is no reason for anything: it is logged.
func (h hookTeller) tell(ctx context.Context, hook Hook, r Run, detail any) {
	function := r.Hooks.function(hook)
	if function == "" || h.functions == nil {
		return
	}
	payload, err := hookOf(hook, r, detail)
	if err == nil {
		until, cancel := context.WithTimeout(context.WithoutCancel(ctx), hookWithin)
		defer cancel()
		err = h.functions.InvokeAsync(until, function, payload)
	}
	h.failed(ctx, hook, r.RunKey, err)
}

func (h hookTeller) failed(ctx context.Context, hook Hook, key RunKey, err error) {
	if err != nil && h.log != nil {
		h.log.WarnContext(ctx, "tell hook", "hook", string(hook), "run", key.String(), "err", err)
	}
}

// function is the one that hears of a hook; empty: none.
func (p HookPlan) function(hook Hook) string {
	return map[Hook]string{HookReady: p.Ready, HookError: p.Error, HookDestroyed: p.Destroyed, HookFile: p.File}[hook]
}

// readyHook tells the definition's ready hook that the agent may begin, and waits for its
// word. One that fails, fails the start; one that is not heard of is told again.
func (s *Session) readyHook(ctx context.Context, st *starting) (waiting string, err error) {
	r, function := st.run, st.run.Hooks.Ready
	if function == "" || r.Start.HookedAt != 0 || r.Start.AskedAt != 0 {
		return "", nil
	}
	if s.Functions == nil {
		return "", &startError{"hook-failed", errors.New("this session calls no functions")}
	}
	payload, err := hookOf(HookReady, r, ReadyDetail{st.ensured(), r.Start.Restored, r.Instance, r.TaskARN})
	if err != nil {
		return "", err
	}
	until, cancel := context.WithTimeout(ctx, hookWithin)
	defer cancel()
	_, err = s.Functions.Invoke(until, function, payload)
	_, failed := errors.AsType[*FunctionError](err)
	switch {
	case failed, errors.Is(err, ErrNotAllowed), errors.Is(err, ErrNotFound):
		return "", &startError{"hook-failed", err}
	case err != nil:
		s.log().WarnContext(ctx, "ready hook", "run", r.RunKey.String(), "err", err)
		return "ready-hook", ctx.Err()
	}
	start := r.Start
	start.HookedAt = nowMillis()
	return "", s.note(ctx, st, start)
}

// listed refuses a definition that names a function which this installation lets nobody
// call: later it would fail half-way.
func (s *Session) listed(d Definition) error {
	named := []string{d.Hooks.Ready, d.Hooks.Error, d.Hooks.Destroyed, d.Hooks.File}
	for _, t := range d.Tools {
		named = append(named, t.Function)
	}
	for _, function := range named {
		if function != "" && !slices.Contains(s.HostFunctions, function) {
			return invalid("invalid-definition", "function %.200q: want one that the installation lists as a host function", function)
		}
	}
	return nil
}

// secretsOf finds the values of the definition's secrets, once in a start. They are kept in
// memory for this call alone.
func (s *Session) secretsOf(ctx context.Context, st *starting) (map[string]string, error) {
	if st.secrets != nil {
		return st.secrets, nil
	}
	values := map[string]string{}
	together := 0
	for _, secret := range st.definition.Secrets {
		if secret.From == "" {
			continue // the container has it
		}
		if s.Secrets == nil {
			return nil, &startError{"secret-unavailable", fmt.Errorf("secret %s: %w", secret.Name, ErrNotAllowed)}
		}
		value, err := s.Secrets.Resolve(ctx, secret.From)
		if errors.Is(err, ErrNotFound) || errors.Is(err, ErrNotAllowed) {
			return nil, &startError{"secret-unavailable", fmt.Errorf("secret %s: %w", secret.Name, err)}
		}
		if err != nil {
			return nil, err
		}
		size, err := carried(value)
		if together += size; err == nil && together > maxSecretValues {
			err = fmt.Errorf("want at most %d bytes of all secrets together, as JSON", maxSecretValues)
		}
		if err != nil {
			return nil, &startError{"secret-unavailable", fmt.Errorf("secret %s: %w", secret.Name, err)}
		}
		values[secret.Name] = value
	}
	st.secrets = values
	return values, nil
}

// The longest value of a secret, bytes, and of all that a definition has, as JSON: they
// travel with the rest of a start in one line, and stand in one environment.
const (
	maxSecretValue  = 64 << 10
	maxSecretValues = 384 << 10
)

// carried is how long a value is on its way. What no variable of an environment can hold,
// or no JSON, is refused: it would come to be another value.
func carried(value string) (int, error) {
	switch {
	case len(value) > maxSecretValue:
		return 0, fmt.Errorf("want at most %d bytes, got %d", maxSecretValue, len(value))
	case strings.ContainsRune(value, 0) || !utf8.ValidString(value):
		return 0, errors.New("want a text in UTF-8 without a NUL byte")
	}
	text, err := json.Marshal(value)
	return len(text), err
}
