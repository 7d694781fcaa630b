package mem

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

var (
	_ core.Setups      = View{}
	_ core.Functions   = View{}
	_ core.Secrets     = (*Process)(nil)
	_ core.Definitions = (*Process)(nil)
)

// fleetSetup is a set-up in a task: its worker, and what its directory says.
type fleetSetup struct {
	token string
	state core.SetupState
	begun int // how often a worker began
}

// Setup hands a set-up over, or asks for it: one that works is done by the next question,
// unless the test moves set-ups itself. It accuses a caller that hands one over under two
// tokens, or behind the agent that it is for.
func (v View) Setup(ctx context.Context, target core.ExecTarget, id string, job *core.SetupJob, _ time.Duration) (core.SetupState, error) {
	name := "ask setup"
	if job != nil {
		name = "begin setup"
	}
	var out core.SetupState
	err := v.call(ctx, name, func() error {
		t, err := v.reach(target.TaskARN)
		if err != nil {
			return err
		}
		s := t.setups[id]
		switch {
		case s == nil && job == nil:
			return nil
		case s == nil:
			s = &fleetSetup{token: job.Token}
			t.setups[id] = s
		case job == nil && s.state.Phase == core.SetupWorking && !v.SetupsByHand:
			s.state.Phase = core.SetupDone
		}
		if job != nil {
			v.hand(t, s, *job)
		}
		out = s.state
		return nil
	})
	return out, err
}

// hand begins the worker of a set-up, unless one works or has come to an end of its own.
func (v View) hand(t *fleetTask, s *fleetSetup, job core.SetupJob) {
	if s.token != job.Token {
		v.store.t.Errorf("fleet: set-up %s is handed over under two tokens (I14)", job.ID)
	}
	if s.state.Phase != core.SetupUnknown && s.state.Code != core.SetupAbandoned {
		return
	}
	for run, a := range t.agents {
		if a.begun && (job.ID == "setup-"+string(run) || job.ID == "clone-"+string(run)) {
			v.store.t.Errorf("fleet: set-up %s begins behind the agent of run %s (I14)", job.ID, run)
		}
	}
	s.begun++
	s.state = core.SetupState{Phase: core.SetupWorking, Step: "script"}
}

// unprepared names a set-up of a task that is not done.
func (t *fleetTask) unprepared() (string, bool) {
	for id, s := range t.setups {
		if s.state.Phase != core.SetupDone {
			return id, true
		}
	}
	return "", false
}

// SetupState is what a task says of a set-up, and how often its worker began.
func (f *Fleet) SetupState(arn, id string) (core.SetupState, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.tasks[arn]; t != nil && t.setups[id] != nil {
		return t.setups[id].state, t.setups[id].begun
	}
	return core.SetupState{}, 0
}

// EndSetup has the worker of a task's set-up come to an end, if one works there.
func (f *Fleet) EndSetup(arn string, state core.SetupState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.tasks[arn]; t != nil && t.up() {
		for _, s := range t.setups {
			if s.state.Phase == core.SetupWorking {
				s.state = state
			}
		}
	}
}

// KillStrays lets those tasks die that hosts have started and no ledger row names.
func (f *Fleet) KillStrays() {
	named := map[string]bool{}
	for _, row := range f.store.State().Rows {
		named[row.TaskARN] = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for arn, t := range f.tasks {
		if t.stray && !named[arn] {
			f.end(arn, "its host ended it")
			clear(t.agents)
		}
	}
}

// Told is one call of a hook's function that was carried out.
type Told struct {
	Function string
	Event    core.HookEvent
	Task     string // of a hook that tells of one
	Failed   bool
	At       core.Millis
}

// Invoke calls a function. It fails where [Fleet.FailsHook] says so.
func (v View) Invoke(ctx context.Context, function string, payload []byte) ([]byte, error) {
	err := v.call(ctx, "invoke "+function, func() error {
		if v.tell(function, payload) {
			return &core.FunctionError{Function: function, Message: "not today"}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return []byte("{}"), nil
}

// InvokeAsync has a function called.
func (v View) InvokeAsync(ctx context.Context, function string, payload []byte) error {
	return v.call(ctx, "tell "+function, func() error {
		v.tell(function, payload)
		return nil
	})
}

// tell notes what a function was told, and reports whether it fails. It accuses a caller
// that tells that a sandbox is ready behind its agent, or that one is destroyed that runs.
func (v View) tell(function string, payload []byte) (fails bool) {
	var e core.HookEvent
	var detail struct{ TaskARN string }
	told := Told{Function: function, At: core.MillisOf(time.Now())}
	err := json.Unmarshal(payload, &e)
	if raw, ok := e.Detail.(map[string]any); err == nil && ok {
		detail.TaskARN, _ = raw["taskArn"].(string)
	}
	told.Event, told.Task = e, detail.TaskARN
	t := v.tasks[detail.TaskARN]
	switch {
	case err != nil:
		v.store.t.Errorf("fleet: function %s is told %q: %v", function, payload, err)
	case e.Hook == core.HookReady && t != nil && t.agents[e.Run] != nil && t.agents[e.Run].begun && !v.toldReady(e.Run):
		v.store.t.Errorf("fleet: %s is told that the sandbox of run %s is ready, and its agent has begun", function, e.Run)
	case e.Hook == core.HookDestroyed && t != nil && t.life != core.TaskGone:
		v.store.t.Errorf("fleet: %s is told that task %s is destroyed, and it runs", function, detail.TaskARN)
	}
	if v.FailsHook != nil {
		told.Failed = v.FailsHook(e)
	}
	v.told = append(v.told, told)
	return told.Failed
}

// toldReady reports whether a run's ready hook was told before: a repeat may be late.
func (f *Fleet) toldReady(run core.RunID) bool {
	return slices.ContainsFunc(f.told, func(t Told) bool { return t.Event.Hook == core.HookReady && t.Event.Run == run && !t.Failed })
}

// Told lists what functions were told, in order.
func (f *Fleet) Told() []Told {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.told)
}

// Resolve reads a secret that [Store.SeedSecret] has put.
func (p *Process) Resolve(ctx context.Context, ref string) (string, error) {
	return get(ctx, p, "resolve secret", func(s *Store) (string, error) {
		value, ok := s.secrets[ref]
		if !ok {
			return "", fmt.Errorf("resolve secret %s: %w", ref, core.ErrNotFound)
		}
		return value, nil
	})
}

// SeedSecret puts the value of a secret.
func (s *Store) SeedSecret(ref, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secrets[ref] = value
}

// Definition reads a version of a definition, the newest for 0.
func (p *Process) Definition(ctx context.Context, name string, version int) (core.Definition, error) {
	return get(ctx, p, "read definition", func(s *Store) (core.Definition, error) {
		var out core.Definition
		for _, d := range s.definitions {
			if d.Name == name && (d.Version == version || version == 0 && d.Version > out.Version) {
				out = d
			}
		}
		if out.Version == 0 {
			return out, fmt.Errorf("read definition %s: %w", core.DefinitionRef(name, version), core.ErrNotFound)
		}
		return out, nil
	})
}

// SeedDefinition puts a version of a definition.
func (s *Store) SeedDefinition(d core.Definition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.definitions = append(s.definitions, d)
}
