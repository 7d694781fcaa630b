package core_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

func TestRunStatusVectors(t *testing.T) {
	compareVectors(t, "run_status", func(t *testing.T, c vectorCase) error {
		var in struct{ Status wtf8 }
		type result struct{ Known, Terminal bool }
		var want result
		c.decode(t, &in, &want)
		_, err := core.ParseStatus(string(in.Status))
		return differ(result{err == nil, core.Status(in.Status).Terminal()}, want)
	})
}

var _ = exemptVectors(
	vectorExemption{
		file: "run_store", cases: unlessQuirk(recordScript.readsByThread),
		reason: "nothing here reads records by thread: the index `thread` (DESIGN 4.1) is read by the session operations (9)",
	},
	vectorExemption{
		file: "run_store", cases: unlessQuirk(recordScript.unwritten),
		reason: "a record is changed by the transitions of DESIGN 4.1 only: an ended run, an epoch, a cancel and a sandbox's " +
			"name are never taken back (I4, I9, I11), and a recorded cancel refuses what a host would write",
	},
)

// recordScript is a script of run_store.
type recordScript struct{ Steps []recordStep }

type recordStep struct {
	Op       string
	RunID    core.RunID
	ThreadID core.ThreadID
	Input    record
	Patch    record
	Now      core.Millis
	TTLMs    vectorNumber
}

// record is a run record as the vectors write it: integers are float64.
type record map[string]any

// readsByThread tells whether a script asks for a thread's runs.
func (s recordScript) readsByThread() bool {
	return slices.ContainsFunc(s.Steps, func(step recordStep) bool { return step.Op == "byThread" || step.Op == "active" })
}

// unwritten tells whether a script makes a change that no transition makes. It
// plays the original's store, which takes any patch.
func (s recordScript) unwritten() bool {
	if s.readsByThread() {
		return false
	}
	have := map[core.RunID]record{}
	for _, step := range s.Steps {
		switch step.Op {
		case "create":
			id := core.RunID(fmt.Sprint(step.Input["runId"]))
			if old, ok := have[id]; ok {
				if old.ended() {
					return true
				}
				continue
			}
			if have[id] = (record{"status": "running"}); noTransition(have[id], step.Input.beyondStart()) != "" {
				return true
			}
			maps.Copy(have[id], step.Input)
		case "update":
			old, ok := have[step.RunID]
			if ok && noTransition(old, step.Patch) != "" {
				return true
			}
			if ok {
				old.patch(step.Patch)
			}
		case "cancel":
			if old, ok := have[step.RunID]; ok {
				if old.ended() {
					return true
				}
				old["cancelRequested"] = true
			}
		}
	}
	return false
}

// beyondStart is what a record that is created has beside what a start gives it.
func (r record) beyondStart() record {
	rest := maps.Clone(r)
	for _, name := range []string{"runId", "threadId", "startedAt"} {
		delete(rest, name)
	}
	return rest
}

func (r record) patch(p record) {
	for name, value := range p {
		if r[name] = value; value == nil {
			delete(r, name)
		}
	}
}

func (r record) status() core.Status { s, _ := r["status"].(string); return core.Status(s) }

func (r record) ended() bool { return r.status().Terminal() }

// noTransition names the member of a patch for which DESIGN 4.1 has no transition
// from have, or "".
func noTransition(have, patch record) string {
	cancelled, paused := have["cancelRequested"] == true, have.status() == core.Interrupted
	for name, value := range patch {
		ok := true
		switch name {
		case "status":
			_, err := core.ParseStatus(fmt.Sprint(value))
			ok = value == have["status"] || err == nil && value != "running" && !(value == "interrupted" && cancelled)
		case "driverEpoch":
			held, _ := have[name].(float64)
			next, set := value.(float64)
			ok = set && next >= held && !(next > held && cancelled)
		case "cancelRequested":
			ok = value == true
		case "sandboxKey":
			ok = value != nil && !paused
		case "detachedSince":
			ok = !cancelled && !paused
		case "error", "finishedAt":
			s, _ := patch["status"].(string)
			ok = core.Status(s).Terminal()
		default:
			ok = false
		}
		if !ok || have.ended() {
			return name
		}
	}
	return ""
}

// TestRunStoreVectors plays the scripts of the original's store with our
// transitions, on a record that a host has started. An epoch there counts claims,
// here it begins with the host's own.
func TestRunStoreVectors(t *testing.T) {
	compareVectors(t, "run_store", func(t *testing.T, c vectorCase) error {
		var in recordScript
		var want struct{ Results []any }
		c.decode(t, &in, &want)
		return inBubble(t, func(t *testing.T) error {
			s := newScripted(t)
			for i, step := range in.Steps {
				if i >= len(want.Results) {
					return fmt.Errorf("%d steps, %d results", len(in.Steps), len(want.Results))
				}
				got := s.play(step)
				if err := sameResult(got, want.Results[i]); err != nil {
					return fmt.Errorf("step %d %s: %w", i+1, step.Op, err)
				}
			}
			return nil
		})
	})
}

// sameResult compares a step's result. A record that has ended carries its time
// here always; a paused one is not detached as well.
func sameResult(got, want any) error {
	have, ok := got.(record)
	wanted, isRecord := want.(map[string]any)
	if !ok || !isRecord {
		if reflect.DeepEqual(got, want) {
			return nil
		}
		return fmt.Errorf("got %v, want %v", got, want)
	}
	wanted = maps.Clone(wanted)
	if have.status() == core.Interrupted {
		delete(wanted, "detachedSince")
	}
	for _, name := range []string{"finishedAt", "error"} {
		if _, ok := wanted[name]; !ok {
			delete(have, name)
		}
	}
	return differ(map[string]any(have), wanted)
}

// scripted is a store in which scripts of the vectors are played. Its clock is the
// bubble's: the script's time 0 is the bubble's beginning.
type scripted struct {
	t     *testing.T
	store *mem.Store
	base  core.Millis
}

func newScripted(t *testing.T) *scripted {
	return &scripted{t: t, store: mem.New(t), base: now()}
}

// farOff is when nothing of a script is due any more.
const farOff = core.Millis(1) << 50

func (s *scripted) key(id core.RunID) core.RunKey { return key(string(id)) }

// play carries out one step and returns its result as the vectors write it.
func (s *scripted) play(step recordStep) any {
	switch step.Op {
	case "create":
		return s.create(step.Input)
	case "get":
		r, err := s.store.Run(s.t.Context(), s.key(step.RunID))
		if errors.Is(err, core.ErrNotFound) {
			return nil
		}
		return s.view(r)
	case "update":
		return s.late(s.update(step.RunID, step.Patch))
	case "cancel":
		return s.late(s.update(step.RunID, record{"cancelRequested": true}))
	case "wasCancelled":
		r, err := s.store.Run(s.t.Context(), s.key(step.RunID))
		return err == nil && r.CancelRequested != 0
	case "reclaimable":
		return s.expired(step.Now, step.TTLMs.milliseconds())
	}
	return "no operation " + step.Op
}

// late is what becomes of a write that comes when there is no record any more: it
// changes nothing, and its callers go on.
func (s *scripted) late(err error) any {
	if err == nil || errors.Is(err, core.ErrNotFound) {
		return "ok"
	}
	return err.Error()
}

// create starts a run as a host does, and brings it to the status asked for.
func (s *scripted) create(in record) any {
	id := core.RunID(fmt.Sprint(in["runId"]))
	_, err := s.store.Run(s.t.Context(), s.key(id))
	absent := errors.Is(err, core.ErrNotFound)
	r, err := s.store.Create(s.t.Context(), core.Run{
		RunKey: s.key(id), Thread: core.ThreadID(fmt.Sprint(in["threadId"])), Status: core.Running, StartedAt: s.at(in["startedAt"]),
		Row: core.RowLapse, DueAt: farOff, AttachedUntil: farOff, Epoch: 1, ClaimNonce: s.nonce(id), Nonce: core.NewJournalNonce(),
	})
	if err != nil {
		return err.Error()
	}
	if rest := in.beyondStart(); absent && len(rest) > 0 {
		if err := s.update(id, rest); err != nil {
			return err.Error()
		}
		if r, err = s.store.Run(s.t.Context(), r.RunKey); err != nil {
			return err.Error()
		}
	}
	return s.view(r)
}

// nonce is that of the claim that a run has: the host that has it repeats itself.
func (s *scripted) nonce(id core.RunID) string {
	if r, ok := s.store.State().Runs[s.key(id)]; ok {
		return r.ClaimNonce
	}
	return "host"
}

func (s *scripted) at(v any) core.Millis {
	n, _ := v.(float64)
	return s.base + core.Millis(n)
}

// update carries out a patch by the transitions that write its members.
func (s *scripted) update(id core.RunID, patch record) error {
	r, err := s.store.Run(s.t.Context(), s.key(id))
	if err != nil {
		return err
	}
	have := s.view(r)
	if name := noTransition(have, patch); name != "" {
		return fmt.Errorf("no transition writes %s = %v over %v", name, patch[name], have)
	}
	for _, name := range []string{"sandboxKey", "driverEpoch", "detachedSince", "cancelRequested", "status"} {
		value, ok := patch[name]
		if !ok {
			continue
		}
		if err := s.write(id, name, value, patch); err != nil {
			return err
		}
	}
	return nil
}

// write carries out the transition that writes one member.
func (s *scripted) write(id core.RunID, name string, value any, patch record) error {
	key := s.key(id)
	r, err := s.store.Run(s.t.Context(), key)
	if err != nil {
		return err
	}
	var t core.Transition
	switch name {
	case "sandboxKey":
		t = core.NameInstance{Epoch: r.Epoch, Old: r.Instance, Instance: core.InstanceID("i-" + id), Key: core.SandboxKey(fmt.Sprint(value))}
	case "driverEpoch":
		return s.claimUpTo(key, int64(value.(float64))+1)
	case "detachedSince":
		t = core.Renew{Epoch: r.Epoch, Until: farOff}
		if value != nil {
			t = core.Detach{Epoch: r.Epoch, Now: s.at(value)}
		}
	case "cancelRequested":
		t = core.RequestCancel{Now: now(), Row: r.Row}
	case "status":
		if t, err = s.statusWrite(r, value, patch); t == nil {
			return err
		}
	}
	_, err = s.store.Update(s.t.Context(), key, t)
	return err
}

// statusWrite is the transition that leads to a status; nil if r has it.
func (s *scripted) statusWrite(r core.Run, value any, patch record) (core.Transition, error) {
	status := core.Status(fmt.Sprint(value))
	switch {
	case status == r.Status:
		return nil, nil
	case status == core.Interrupted:
		return core.Interrupt{Epoch: r.Epoch, Now: now(), Until: farOff}, nil
	}
	sum, err := core.LogSHA256(r)
	if err != nil {
		return nil, err
	}
	f := core.Finish{
		Epoch: r.Epoch, Nonce: r.ClaimNonce, Now: now(), Status: status,
		Transcript: core.Transcript{Bytes: r.LogEnd, SHA256: sum, Complete: true},
	}
	if at, ok := patch["finishedAt"]; ok {
		f.Now = s.at(at)
	}
	if e, ok := patch["error"].(map[string]any); ok {
		code, _ := e["code"].(string)
		f.Error = &core.RunError{Message: fmt.Sprint(e["message"]), Code: code}
	}
	return f, nil
}

// claimUpTo has other hosts take the run over until its epoch is that.
func (s *scripted) claimUpTo(key core.RunKey, epoch int64) error {
	for {
		r, err := s.store.Run(s.t.Context(), key)
		if err != nil || r.Epoch >= epoch {
			return err
		}
		if _, err := s.takeOver(r, fmt.Sprintf("driver-%d", r.Epoch+1)); err != nil {
			return err
		}
	}
}

// takeOver is another driver's claim, which leaves the run where it stands: a
// sweep's if the run is detached or paused, else a host's.
func (s *scripted) takeOver(r core.Run, nonce string) (core.Run, error) {
	ctx := s.t.Context()
	if r.Row == core.RowCancel && r.Status == core.Running {
		var err error
		if r, err = s.store.Update(ctx, r.RunKey, core.CancelDue{DueAt: r.DueAt}); err != nil {
			return core.Run{}, err
		}
	}
	free := max(now(), r.ClaimUntil) // once the lease of whoever has it is over
	var t core.Transition = core.Attach{Seen: r.Epoch, Nonce: nonce, Now: free, Until: farOff, Takeover: true}
	if r.Status == core.Interrupted {
		t = core.Claim{Seen: r.Epoch, Since: r.InterruptedSince, Nonce: nonce, Now: free, Until: free}
	} else if r.Row == core.RowDetached {
		t = core.Claim{Seen: r.Epoch, Since: r.DetachedSince, Nonce: nonce, Now: free, Until: free}
	}
	return s.store.Update(ctx, r.RunKey, t)
}

// view writes a record as the vectors do.
func (s *scripted) view(r core.Run) record {
	out := record{
		"runId": string(r.RunKey.Run), "threadId": string(r.Thread), "status": string(r.Status),
		"startedAt": float64(r.StartedAt - s.base),
	}
	if r.SandboxKey != "" {
		out["sandboxKey"] = string(r.SandboxKey)
	}
	if r.DetachedSince != 0 {
		out["detachedSince"] = float64(r.DetachedSince - s.base)
	}
	if r.CancelRequested != 0 {
		out["cancelRequested"] = true
	}
	if r.Epoch > 1 {
		out["driverEpoch"] = float64(r.Epoch - 1)
	}
	if r.FinishedAt != 0 {
		out["finishedAt"] = float64(r.FinishedAt - s.base)
	}
	if r.Error != nil {
		e := map[string]any{"message": r.Error.Message}
		if r.Error.Code != "" {
			e["code"] = r.Error.Code
		}
		out["error"] = e
	}
	return out
}

// expired lists, by name, the runs that a sweep at that time would end for their
// age: observing, so that nothing changes.
func (s *scripted) expired(at core.Millis, ttl time.Duration) any {
	time.Sleep(time.Until((s.base + at).Time()))
	w := &world{t: s.t, store: s.store, fleet: mem.NewFleet(s.store), limits: core.DefaultLimits}
	w.limits.RunTTL = ttl
	s.store.SetControl(core.Control{Mode: core.Observe})
	report, err := w.sweep(s.store.Process).Run(s.t.Context(), core.SweepRequest{})
	if err != nil {
		return err.Error()
	}
	out := []any{}
	for _, e := range report.Runs {
		if e.Outcome == core.Expired {
			out = append(out, string(e.RunKey.Run))
		}
	}
	slices.SortFunc(out, func(a, b any) int { return compareText(a, b) })
	return out
}

func compareText(a, b any) int {
	switch x, y := fmt.Sprint(a), fmt.Sprint(b); {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

var _ = exemptVectors(
	vectorExemption{
		file: "run_identity", cases: unlessQuirk(identity.madeUp),
		reason: "ids are the host's, who repeats its operations with them (DESIGN 9); none is made up",
	},
	vectorExemption{
		file: "run_identity", cases: unlessQuirk(identity.notDurable),
		reason: "every run has a record, a journal and a log (DESIGN 4.1, 7): there is no wiring without",
	},
	vectorExemption{
		file: "run_identity", cases: unlessQuirk(func(in identity) bool { return in.What == "readStrategy" }),
		reason: "a sandbox is reached by ECS Exec alone (DESIGN 7), whose sessions end with their caller: how a tail reads " +
			"depends on its caller, who holds a session or polls (9), not on the provider",
	},
)

// identity is a question of run_identity.
type identity struct {
	What                      string
	Value                     string
	Durable, Attaching        bool
	Runs, Durability, Attach  bool
	BackgroundProcesses, Kill bool
}

func (in identity) madeUp() bool {
	return in.Value == "" && (in.What == "runId" && !in.Durable || in.What == "threadId" && !(in.Durable && in.Attaching))
}

func (in identity) notDurable() bool { return in.What == "wiring" && !(in.Runs && in.Durability) }

// TestRunIdentityVectors has a host start a run with the ids given.
func TestRunIdentityVectors(t *testing.T) {
	compareVectors(t, "run_identity", func(t *testing.T, c vectorCase) error {
		var in identity
		var want map[string]any
		c.decode(t, &in, &want)
		return inBubble(t, func(t *testing.T) error {
			w := newWorld(t)
			q := core.RunRequest{RunKey: key("a run"), Thread: "a thread", HostNonce: "host"}
			switch in.What {
			case "runId":
				q.Run = core.RunID(in.Value)
			case "threadId":
				q.Thread = core.ThreadID(in.Value)
			case "wiring":
				return w.compareWiring(want)
			default:
				return fmt.Errorf("nothing here chooses a %s", in.What)
			}
			got := map[string]any{"error": true}
			if r, err := w.launcher(w.store.Process).Start(t.Context(), q); err == nil {
				got = map[string]any{"id": map[string]string{"runId": string(r.RunKey.Run), "threadId": string(r.Thread)}[in.What]}
			}
			return differ(got, want)
		})
	})
}

// compareWiring begins a run and says what of it outlives its viewer. Whether
// somebody attaches is the host's choice, not the run's.
func (w *world) compareWiring(want map[string]any) error {
	r := w.left("r", "text\n")
	page, err := w.fleet.View(w.store.Process).Probe(w.t.Context(), 0, []core.ProbeRequest{{
		RunKey: r.RunKey, Target: core.ExecTarget{TaskARN: r.TaskARN}, Nonce: r.Nonce,
	}}), error(nil)
	got := map[string]any{
		"durable":            w.run("r").Status == core.Running,
		"journaled":          err == nil && page[0].State == core.ProbeProducing && page[0].Size > 0,
		"detachOnDisconnect": w.run("r").Row == core.RowDetached,
	}
	wanted := map[string]any{"detachOnDisconnect": false}
	for name := range got {
		if value, ok := want[name]; ok {
			wanted[name] = value
		}
	}
	return differ(got, wanted)
}

// keyInput is what the original makes a sandbox's key from.
type keyInput struct {
	ThreadID     wtf8
	SandboxID    wtf8
	ProviderName wtf8
	Tenant       any
	Workspace    map[string]any
}

// hash is the key that is made here, and the hash of the workspace.
func (m keyInput) hash(t *testing.T) (core.SandboxKey, string) {
	t.Helper()
	tenant := []byte("-")
	if m.Tenant != nil {
		var err error
		if tenant, err = json.Marshal(m.Tenant); err != nil {
			t.Fatal(err)
		}
	}
	workspace, err := core.WorkspaceHash(m.Workspace)
	if err != nil {
		t.Fatal(err)
	}
	return core.KeyMaterial{
		Provider: string(m.ProviderName), Definition: string(m.SandboxID), Tenant: core.TenantID(tenant),
		Thread: core.ThreadID(m.ThreadID), WorkspaceHash: workspace,
	}.Key(), workspace
}

// TestSandboxKeyVectors holds any two of the original's keys against each other: the hash is
// another here, and what is told apart is the same.
func TestSandboxKeyVectors(t *testing.T) {
	type keyed struct{ Key, WorkspaceHash string }
	var first []keyed // of the cases before, there and here
	var here []keyed
	compareVectors(t, "sandbox_key", func(t *testing.T, c vectorCase) error {
		var in keyInput
		var want keyed
		c.decode(t, &in, &want)
		key, workspace := in.hash(t)
		got := keyed{string(key), workspace}
		defer func() { first, here = append(first, want), append(here, got) }()
		for i := range first {
			if (first[i].Key == want.Key) != (here[i].Key == got.Key) || (first[i].WorkspaceHash == want.WorkspaceHash) != (here[i].WorkspaceHash == got.WorkspaceHash) {
				return fmt.Errorf("with case %d: %+v and %+v, where the original has %+v and %+v", i+1, here[i], got, first[i], want)
			}
		}
		return nil
	})
}

func TestSandboxKeyRelationsVectors(t *testing.T) {
	compareVectors(t, "sandbox_key_relations", func(t *testing.T, c vectorCase) error {
		var in struct{ A, B keyInput }
		type result struct{ SameKey, SameWorkspaceHash bool }
		var want result
		c.decode(t, &in, &want)
		keyA, workspaceA := in.A.hash(t)
		keyB, workspaceB := in.B.hash(t)
		return differ(result{keyA == keyB, workspaceA == workspaceB}, want)
	})
}

// instanceRecord is a sandbox's record as the vectors write it. The copy that a provider
// keeps is recorded by a write of its own, and not compared here.
type instanceRecord struct {
	Key               core.SandboxKey
	Provider          string
	ProviderSandboxID string
	ThreadID          core.ThreadID
	UpdatedAt         core.Millis
	LatestRunID       core.RunID
}

// TestInstanceStoreVectors puts records by launches and deletes them by reclaims.
func TestInstanceStoreVectors(t *testing.T) {
	compareVectors(t, "instance_store", func(t *testing.T, c vectorCase) error {
		var in struct {
			Steps []struct {
				Op     string
				Key    core.SandboxKey
				Record instanceRecord
			}
		}
		var want struct{ Results []json.RawMessage }
		c.decode(t, &in, &want)
		return inBubble(t, func(t *testing.T) error {
			s := &instances{world: newWorld(t), base: now(), runs: map[core.SandboxKey]core.RunKey{}}
			for i, step := range in.Steps {
				var err error
				switch step.Op {
				case "upsert":
					err = errors.Join(s.remove(step.Record.Key), s.put(step.Record))
				case "delete":
					err = s.remove(step.Key)
				case "get":
					err = s.compare(step.Key, want.Results[i])
				default:
					err = fmt.Errorf("no operation %s", step.Op)
				}
				if err != nil {
					return fmt.Errorf("step %d %s: %w", i+1, step.Op, err)
				}
			}
			return nil
		})
	})
}

// instances plays scripts of instance records in a world.
type instances struct {
	*world
	base core.Millis
	runs map[core.SandboxKey]core.RunKey // the run that has the sandbox
	n    int
}

// put launches a run's task under the record's key.
func (s *instances) put(rec instanceRecord) error {
	ctx, p := s.t.Context(), s.store.Process
	s.n++
	run, id := core.RunID(fmt.Sprint("run-", s.n)), core.InstanceID(fmt.Sprint("i-", s.n))
	latest := rec.LatestRunID
	if latest == "" {
		latest = run
	}
	r, err := p.Create(ctx, core.Run{
		RunKey: key(string(run)), Thread: rec.ThreadID, Status: core.Running, StartedAt: now(), Row: core.RowLapse, DueAt: farOff,
		AttachedUntil: farOff, Epoch: 1, ClaimNonce: "host", Nonce: core.NewJournalNonce(), Reclaim: core.ReclaimEnd,
	})
	if err != nil {
		return err
	}
	s.runs[rec.Key] = r.RunKey
	if _, err = p.Update(ctx, r.RunKey, core.NameInstance{Epoch: 1, Instance: id, Key: rec.Key, Provider: rec.Provider}); err != nil {
		return err
	}
	if _, err = p.PutIntent(ctx, core.LedgerRow{
		Instance: id, Key: rec.Key, Provider: rec.Provider, Tenant: "acme", Run: run, State: core.LedgerIntent, LaunchUntil: farOff, DueAt: farOff,
	}); err != nil {
		return err
	}
	return p.Launch(ctx, core.Launched{Run: r.RunKey, Epoch: 1, Now: now(), Sandbox: core.Sandbox{
		Key: rec.Key, Instance: id, TaskARN: rec.ProviderSandboxID, LatestRun: latest, UpdatedAt: s.base + rec.UpdatedAt,
		Material: core.KeyMaterial{Provider: rec.Provider, Tenant: "acme", Thread: rec.ThreadID},
	}})
}

// remove ends the run that has the sandbox and has it reclaimed; without one
// there is nothing to remove.
func (s *instances) remove(sandbox core.SandboxKey) error {
	ctx, p := s.t.Context(), s.store.Process
	job := core.ReclaimJob{Tenant: "acme", Run: "none", Key: sandbox, Instance: "none", Kind: core.JobEnd}
	c := s.reclaimer(p)
	if run, ok := s.runs[sandbox]; ok {
		r, err := p.Run(ctx, run)
		if err != nil {
			return err
		}
		sum, err := core.LogSHA256(r)
		if err != nil {
			return err
		}
		if _, err := p.Update(ctx, run, core.Finish{
			Epoch: r.Epoch, Nonce: r.ClaimNonce, Now: now(), Status: core.Completed, Reclaim: core.ReclaimEnd, NotBefore: now(),
			Transcript: core.Transcript{SHA256: sum},
		}); err != nil {
			return err
		}
		job.Run, job.Instance, c.Provider = run.Run, r.Instance, r.Provider
		box, err := p.Sandbox(ctx, sandbox)
		if err != nil {
			return err
		}
		box.LatestRun = run.Run // whatever name the case gave it
		s.store.SeedSandbox(box)
	}
	_, err := c.Do(ctx, job)
	delete(s.runs, sandbox)
	return err
}

func (s *instances) compare(sandbox core.SandboxKey, want json.RawMessage) error {
	var wanted *instanceRecord
	if err := json.Unmarshal(want, &wanted); err != nil {
		return err
	}
	box, err := s.store.Sandbox(s.t.Context(), sandbox)
	if errors.Is(err, core.ErrNotFound) {
		return differ(nil, wanted)
	}
	if wanted == nil || wanted.LatestRunID == "" {
		box.LatestRun = "" // a sandbox here always says which run it serves
	}
	return differ(&instanceRecord{
		box.Key, box.Material.Provider, box.TaskARN, box.Material.Thread, box.UpdatedAt - s.base, box.LatestRun,
	}, wanted)
}
