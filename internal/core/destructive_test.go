package core_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// path is one way to destroy something: an agent, a task, a journal. attempt is what
// would do it, destroyed whether it was done.
type path struct {
	site      string // the call in core that destroys
	setUp     func(w *world)
	attempt   func(w *world)
	destroyed func(w *world) bool
	blockedBy []string // of observe, freeze, breaker, hold
}

const everything = "observe freeze breaker hold"

// destructive is every path on which something is destroyed, with what keeps it back
// (I13, DESIGN 5). A call that destroys and has no row here fails the test below.
var destructive = map[string]path{
	"an expired run's agent is ended": {
		site: "Sweep.end: Terminate", setUp: pastItsTime, attempt: sweepOnly,
		destroyed: func(w *world) bool { return !w.fleet.Alive("r") }, blockedBy: strings.Fields(everything),
	},
	"the agent of a run is ended whose spend cap is reached": {
		site: "Sweep.end: Terminate",
		setUp: func(w *world) {
			w.limits.RunSpendCap = hourly
			w.left("r", "works\n")
			time.Sleep(time.Hour)
		},
		attempt: sweepOnly, destroyed: func(w *world) bool { return !w.fleet.Alive("r") }, blockedBy: strings.Fields(everything),
	},
	"the agent of a run is ended whose tenant's spend cap is reached": {
		site: "Sweep.end: Terminate",
		setUp: func(w *world) {
			w.limits.TenantSpendCap = hourly
			w.begin("r", nil)
			session := &core.Session{Launcher: w.launcher(w.store.Process)}
			if _, err := session.Renew(w.t.Context(), core.HostRequest{RunKey: key("r"), Host: hostNonce("r")}); err != nil {
				w.t.Fatal(err)
			}
			w.detach("r")
			time.Sleep(time.Hour)
		},
		attempt: sweepOnly, destroyed: func(w *world) bool { return !w.fleet.Alive("r") }, blockedBy: strings.Fields(everything),
	},
	"a cancelled run's agent is ended": {
		site:  "Sweep.end: Terminate",
		setUp: cancelledRunLeft, attempt: sweepOnly, destroyed: func(w *world) bool { return !w.fleet.Alive("r") }, blockedBy: []string{"observe"},
	},
	"a run whose agent died is closed": {
		site: "Sweep.end: Terminate",
		setUp: func(w *world) {
			w.left("r", "half\n")
			w.fleet.Die("r")
			w.tick()
			time.Sleep(w.limits.DeadApart)
		},
		attempt: sweepOnly, destroyed: func(w *world) bool { return w.run("r").Status.Terminal() },
		blockedBy: []string{"observe", "freeze", "breaker"},
	},
	"a finished run's task is stopped": {
		site: "Reclaimer.stopTask: Stop", setUp: func(w *world) { closedBySweep(w, func() { w.fleet.Exit("r", 0) }) }, attempt: reclaimOnly,
		destroyed: noTask, blockedBy: []string{"observe", "freeze", "hold"},
	},
	"an expired run's task is stopped": {
		site: "Reclaimer.stopTask: Stop", setUp: func(w *world) { closedBySweep(w, func() { time.Sleep(w.limits.RunTTL) }) }, attempt: reclaimOnly,
		destroyed: noTask, blockedBy: strings.Fields(everything),
	},
	"the task of a run is stopped that was ended for its spend cap": {
		site: "Reclaimer.stopTask: Stop",
		setUp: func(w *world) {
			w.limits.RunSpendCap = hourly
			closedBySweep(w, func() { time.Sleep(time.Hour) })
		},
		attempt: reclaimOnly, destroyed: noTask, blockedBy: strings.Fields(everything),
	},
	"an idle sandbox's task is stopped": {
		site: "Reclaimer.condemn: Condemn",
		setUp: func(w *world) {
			keptWarm(w)
			time.Sleep(w.limits.IdleTTL)
		},
		attempt: func(w *world) { w.tick() }, destroyed: noTask, blockedBy: strings.Fields(everything),
	},
	"a late launch's task is stopped": {
		site: "Reclaimer.stopTask: Stop",
		setUp: func(w *world) {
			row := core.LedgerRow{Instance: "late", Provider: "fargate", State: core.LedgerIntent, LaunchUntil: now(), Cluster: "c", DueAt: now(), UpdatedAt: now()}
			if _, err := w.store.PutIntent(w.t.Context(), row); err != nil {
				w.t.Fatal(err)
			}
			w.fleet.RunStray("test/late")
			time.Sleep(w.limits.LaunchLag)
		},
		attempt: func(w *world) { w.tick(); w.tick() }, destroyed: noTask, blockedBy: []string{"observe", "freeze"},
	},
	"a leaked task is stopped": {
		site: "Reclaimer.stopTask: Stop",
		setUp: func(w *world) {
			w.stopLeaks = true
			w.fleet.RunStray("test/stray")
			time.Sleep(w.limits.LeakGrace)
		},
		attempt: dailyAndReclaim, destroyed: noTask, blockedBy: []string{"observe", "freeze", "breaker"},
	},
	"an idle sandbox's journals are removed": {
		site: "directoryRemover.Remove: Remove",
		setUp: func(w *world) {
			keptWarm(w)
			w.fleet.Litter("r")
		},
		attempt:   dailyAndReclaim,
		destroyed: func(w *world) bool { return w.fleet.Pruned("r") }, blockedBy: []string{"observe", "freeze", "hold"},
	},
	"the journal of a run is removed whose sandbox is kept": {
		site: "Sweep.tidy: Remove",
		setUp: func(w *world) {
			w.begin("r", func(q *core.RunRequest) { q.Reclaim = core.ReclaimIdle })
			w.fleet.Exit("r", 0)
			w.detach("r")
		},
		attempt: sweepOnly, destroyed: func(w *world) bool { return w.fleet.Pruned("r") }, blockedBy: []string{"observe", "freeze", "hold"},
	},
	"a sandbox whose task has gone is replaced": { // nothing lives in it
		site: "Launcher.replace: Condemn",
		setUp: func(w *world) {
			keptWarm(w)
			w.fleet.KillTask(w.run("r").TaskARN)
		},
		attempt: func(w *world) {
			l := w.launcher(w.store.Process)
			q := core.RunRequest{RunKey: key("next"), Thread: "thread-r", HostNonce: "h", Definition: "d"}
			r, err := l.Start(w.t.Context(), q)
			if err == nil {
				_, err = l.Launch(w.t.Context(), r, material("r"), core.TaskSpec{Cluster: "c", Container: "agent"})
			}
			if err != nil {
				w.t.Error(err)
			}
		},
		destroyed: func(w *world) bool { return w.run("next").TaskARN != "" },
	},
	"an object that nothing needs is removed": {
		site: "collection.remove: Delete", setUp: cutCapture,
		attempt: func(w *world) {
			_, _ = w.kept().keeper(w.store.Process).Collect(w.t.Context(), core.CollectRequest{ThreadKey: thread("thread-r"), Apply: true})
		},
		destroyed: func(w *world) bool { return len(w.objects("packs")) == 0 }, blockedBy: []string{"observe", "freeze", "hold"},
	},
	"a fork lets go of what its source keeps for it": {
		site: "collection.unpin: Unpin", setUp: forkedAway,
		attempt: func(w *world) {
			_, _ = w.kept().keeper(w.store.Process).Collect(w.t.Context(), core.CollectRequest{ThreadKey: thread("thread-r"), Apply: true})
		},
		destroyed: func(w *world) bool {
			pins, err := w.store.Pins(w.t.Context(), thread("source"))
			w.kept().must(err)
			return len(pins) == 0
		},
		blockedBy: []string{"observe", "freeze", "hold"},
	},
	"an old checkpoint is kept no longer": {
		site: "Keeper.trim: Trim", setUp: func(w *world) { checkpointed(w, "c1", "c2") },
		attempt: func(w *world) {
			_, _ = w.kept().keeper(w.store.Process).Keep(w.t.Context(), core.KeepRequest{ThreadKey: thread("thread-r"), Newest: 1})
		},
		destroyed: func(w *world) bool { return !w.kept().has("c1") }, blockedBy: []string{"observe", "freeze", "hold"},
	},
	"a thread's newest checkpoint is taken away": {
		site: "Keeper.DeleteHeadUnder: DeleteHead", setUp: func(w *world) { checkpointed(w, "c1", "c2") },
		attempt: func(w *world) {
			_, _ = w.kept().keeper(w.store.Process).DeleteHead(w.t.Context(), thread("thread-r"), "c2")
		},
		destroyed: func(w *world) bool { return !w.kept().has("c2") }, blockedBy: []string{"freeze", "hold"},
	},
	"what is in a sandbox is replaced by a checkpoint": {
		site: "Keeper.startHolding: Start", setUp: func(w *world) { checkpointed(w, "c1") },
		attempt: func(w *world) {
			_, _ = w.kept().keeper(w.store.Process).Restore(w.t.Context(), core.RestoreRequest{ThreadKey: thread("thread-r"), ID: "back", Key: "key-thread-r", Instance: "i-thread-r"})
		},
		destroyed: func(w *world) bool {
			th, err := w.store.Thread(w.t.Context(), thread("thread-r"))
			w.kept().must(err)
			return th.Step.Kind == core.StepRestore
		},
		blockedBy: []string{"freeze", "hold"},
	},
	"a thread is deleted": {
		site: "deletion.drop: Trim", setUp: func(w *world) {
			w.left("r", "x\n")
			w.fleet.Exit("r", 0)
			w.tick()
			w.kept().box("thread-r")
			w.kept().must(w.kept().save(w.t.Context(), w.store.Process, "thread-r", "c1", tree{"a": "1"}))
		},
		attempt: func(w *world) {
			_, _ = w.kept().keeper(w.store.Process).DeleteThread(w.t.Context(), core.DeleteThreadRequest{ThreadKey: thread("thread-r"), Apply: true})
		},
		destroyed: func(w *world) bool { return !w.kept().has("c1") }, blockedBy: []string{"observe", "freeze", "hold"},
	},
	"a thread's head is forgotten": {
		site: "deletion.forget: ForgetThread", setUp: func(w *world) {
			w.left("r", "x\n")
			w.fleet.Exit("r", 0)
			w.tick()
			w.kept().box("thread-r")
			w.kept().must(w.kept().save(w.t.Context(), w.store.Process, "thread-r", "c1", tree{"a": "1"}))
		},
		attempt: func(w *world) { // no record of a checkpoint goes
			p := w.failing("trim")
			_, _ = w.kept().keeper(p).DeleteThread(w.t.Context(), core.DeleteThreadRequest{ThreadKey: thread("thread-r"), Apply: true})
		},
		destroyed: func(w *world) bool {
			th, err := w.store.Thread(w.t.Context(), thread("thread-r"))
			w.kept().must(err)
			return th.Head == ""
		},
		blockedBy: []string{"observe", "freeze", "hold"},
	},
	"the copies of a sandbox that ends are dropped": {
		site: "Reclaimer.dropSnapshots: DropSnapshots", setUp: func(w *world) {
			w.copies = true
			w.left("r", "x\n")
			oldCopy(w)
			w.fleet.Exit("r", 0)
			sweepOnly(w)
		},
		attempt: reclaimOnly, destroyed: func(w *world) bool { return len(w.fleet.Snapshots()) == 0 }, blockedBy: []string{"observe", "freeze", "hold"},
	},
	"the older copies of a sandbox that is kept are dropped": {
		site: "Reclaimer.dropSnapshots: DropSnapshots", setUp: func(w *world) {
			w.copies = true
			w.begin("r", func(q *core.RunRequest) { q.Reclaim, q.Snapshots = core.ReclaimIdle, core.SnapshotsAfterRun })
			oldCopy(w)
			w.fleet.Exit("r", 0)
			w.detach("r")
			sweepOnly(w)
		},
		attempt: reclaimOnly, destroyed: func(w *world) bool { return !slices.ContainsFunc(w.fleet.Snapshots(), isOldCopy) }, blockedBy: []string{"observe", "freeze", "hold"},
	},
}

// oldCopy has the provider take a copy of the run's sandbox.
func oldCopy(w *world) {
	box, err := w.store.Sandbox(w.t.Context(), w.run("r").SandboxKey)
	if err == nil {
		_, err = w.fleet.View(w.store.Process).Snapshot(w.t.Context(), box, "old")
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func isOldCopy(id core.SnapshotID) bool { return strings.Contains(string(id), "old") }

// kept is what the world's keeper of checkpoints keeps.
func (w *world) kept() *keeping {
	if w.keeping == nil {
		w.keeping = newKeeping(w.t)
		w.keeping.store = w.store
	}
	return w.keeping
}

// objects are the keys of a kind of object of the run's thread.
func (w *world) objects(kind string) (keys []string) {
	all, err := w.store.Objects(w.t.Context(), core.ThreadPrefix(thread("thread-r"))+kind+"/")
	w.kept().must(err)
	for _, o := range all {
		keys = append(keys, o.Key)
	}
	return keys
}

// checkpointed is a thread with a run that was left alone, and checkpoints.
func checkpointed(w *world, ids ...core.CheckpointID) {
	w.left("r", "works\n")
	k := w.kept()
	k.box("thread-r")
	for _, id := range ids {
		time.Sleep(time.Second)
		k.must(k.save(k.ctx(), w.store.Process, "thread-r", id, tree{"a": string(id)}))
	}
}

// cutCapture leaves a pack that no checkpoint names.
func cutCapture(w *world) {
	checkpointed(w)
	k := w.kept()
	_, err := k.keeper(w.store.Process).Save(k.ctx(), saveOf("thread-r", "cut"))
	k.must(err)
	_, err = k.pack(k.ctx(), w.store.Process, "thread-r", tree{"a": "never named"})
	k.must(err)
	time.Sleep(core.CollectAge + core.LeaseLife)
}

// forkedAway is a fork that needs nothing of its source any more.
func forkedAway(w *world) {
	k := w.kept()
	k.box("source")
	k.must(k.save(k.ctx(), w.store.Process, "source", "s1", tree{"a": "of the source"}))
	_, err := k.keeper(w.store.Process).Fork(k.ctx(), core.ForkRequest{Source: thread("source"), Branches: []core.ForkBranch{{Thread: "thread-r", ID: "f1"}}})
	k.must(err)
	checkpointed(w)
	_, err = k.keeper(w.store.Process).DeleteHead(k.ctx(), thread("thread-r"), "f1")
	k.must(err)
}

func pastItsTime(w *world) {
	w.left("r", "works\n")
	time.Sleep(w.limits.RunTTL)
}

// closedBySweep is a run that a sweep has closed, and whose message waits.
func closedBySweep(w *world, end func()) {
	w.left("r", "x\n")
	end()
	sweepOnly(w)
	if !w.run("r").Status.Terminal() {
		w.t.Fatal("the run is not closed")
	}
}

func keptWarm(w *world) {
	w.begin("r", func(q *core.RunRequest) { q.Reclaim = core.ReclaimIdle })
	w.fleet.Exit("r", 0)
	w.detach("r")
	w.tick()
}

func sweepOnly(w *world) { _, _ = w.sweep(w.store.Process).Run(w.t.Context(), core.SweepRequest{}) }

func reclaimOnly(w *world) { w.drainQueue(w.store.Process) }

func dailyAndReclaim(w *world) {
	_, _ = w.sweep(w.store.Process).Daily(w.t.Context())
	w.drainQueue(w.store.Process)
}

func noTask(w *world) bool { return len(w.fleet.Running()) == 0 }

// TestEveryDestructivePathHonoursTheOperator tries each path with each control set,
// and with none.
func TestEveryDestructivePathHonoursTheOperator(t *testing.T) {
	if err := outsideOfBubbles(); err != nil {
		t.Fatal(err)
	}
	controls := map[string]func(w *world){
		"nothing": func(*world) {},
		"observe": func(w *world) { w.store.SetControl(core.Control{Mode: core.Observe}) },
		"freeze":  func(w *world) { w.store.SetControl(core.Control{Frozen: true}) },
		"breaker": func(w *world) { w.store.SetControl(core.Control{Breaker: core.Breaker{TrippedAt: now()}}) },
		"hold": func(w *world) {
			o := &core.Operator{Runs: w.store, Sandboxes: w.store, Ledger: w.store, Audit: w.store}
			err := o.Hold(w.t.Context(), key("r"), now().Add(24*time.Hour), core.By{Who: "ops", Why: "look"})
			if core.Refused(err) { // its sandbox has ended: one that was written before
				r := w.run("r")
				r.Hold = core.Hold{Until: now().Add(24 * time.Hour), By: "ops"}
				w.store.SeedRun(r)
				err = nil
			}
			if err != nil && !errors.Is(err, core.ErrNotFound) {
				w.t.Fatal(err)
			}
		},
	}
	for name, p := range destructive {
		for control, set := range controls {
			t.Run(name+" under "+control, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					p.setUp(w)
					set(w)
					p.attempt(w)
					if got, want := p.destroyed(w), !slices.Contains(p.blockedBy, control); got != want {
						t.Errorf("destroyed: %v, want %v", got, want)
					}
				})
			})
		}
	}
}

// TestNoDestructiveCallIsWithoutARow scans core for calls that destroy.
func TestNoDestructiveCallIsWithoutARow(t *testing.T) {
	want := map[string]bool{
		// Carriers and parts of one path, which decide nothing.
		"ServeProbe: Terminate": true, "ServeProbe: Remove": true, "PrunePlan.remove: Remove": true,
		"Reclaimer.condemn: Condemn": true, "deletion.forget: Trim": true,
	}
	for _, p := range destructive {
		want[p.site] = true
	}
	got := map[string]bool{}
	names, err := filepath.Glob("*.go")
	if err != nil || len(names) == 0 {
		t.Fatalf("sources %v, %v", names, err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				for _, callee := range destroyers(fn.Body) {
					got[functionName(fn)+": "+callee] = true
				}
			}
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("calls that destroy: %v\nrows: %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}

// destroyers lists the destroying methods that a body calls.
func destroyers(body *ast.BlockStmt) []string {
	var out []string
	ast.Inspect(body, func(n ast.Node) bool {
		if made, ok := n.(*ast.CompositeLit); ok { // a transition
			if id, ok := made.Type.(*ast.Ident); ok && slices.Contains(destroying, id.Name) {
				out = append(out, id.Name)
			}
		}
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 { // a timer's Stop takes nothing
			return true
		}
		s, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || fieldIs(s, "Trim") && isText(s.X) {
			return true
		}
		if slices.Contains(destroying, s.Sel.Name) || s.Sel.Name == "Start" && fieldIs(s.X, "Agents") {
			out = append(out, s.Sel.Name)
		}
		return true
	})
	return out
}

// destroying are the methods of ports that destroy: agents, tasks, journals, checkpoints,
// pins, objects, copies; and the transition that does. So does an agent that is started to
// restore.
var destroying = []string{"Stop", "Terminate", "Condemn", "Remove", "Delete", "Trim", "DeleteHead", "Unpin", "DropSnapshots", "ForgetThread"}

// sparing are the methods of ports that destroy nothing by themselves, and those of
// transitions: they read, add, or move a record on a condition.
var sparing = map[string]string{
	"AgentStarter": "StartAgent", "AgentURL": "AgentURL", "Announcer": "Announce", "ArtifactReader": "ReadArtifact", "AuditLog": "Record",
	"Blobs": "PutBlob Blob", "Budget": "Take", "Checkpointer": "Capture", "ControlWriter": "UpdateControl", "Controls": "Control",
	"Cursors": "Cursor MoveCursor", "Definitions": "Definition", "ExecDialer": "Dial", "ExecSession": "Exec Close", "Executor": "Exec",
	"Functions": "Invoke InvokeAsync", "GetGranter": "GrantGet", "JobStarter": "Start", "JournalDirectory": "List", "JournalPusher": "Push",
	"JournalSource": "Read Stderr", "JournalUploader": "Upload", "Ledger": "Row PutIntent UpdateRow", "ManifestReader": "Facts Seal Check Diff",
	"Meters": "Spent", "Notes": "Note PutNote MarkWarned", "Nudger": "Nudge", "Objects": "Stat Objects Prefixes GrantPut GrantGet",
	"PageHolder": "HoldPages", "PageSession": "Page Close", "ProbeCaller": "Call", "Prober": "Probe Page", "Provider": "Resume",
	"PruneStore": "Standing", "PutGranter": "GrantPut", "ReclaimQueue": "Send", "Relayer": "Exchange", "RunIndex": "Detached Due Load",
	"RunLog": "Append Segments", "Runs": "Run Create Update", "SandboxIndex": "DueSandboxes", "SandboxTransactions": "Launch MoveDebt",
	"Sandboxes": "Sandbox UpdateSandbox", "Secrets": "Resolve", "SessionTransactions": "Resume Continue", "Setups": "Setup", "ShardQueue": "SendShards",
	"SnapshotKeeper": "Save Fork ReadArtifact", "Snapshotter": "Snapshot Restore", "Spool": "Pieces Piece", "SpoolQuotas": "SpendSpool",
	"StepWitness": "StepEnded", "TaskDescriber": "Describe StartedBy", "TaskLister": "Living", "TaskRunner": "Start", "ThreadHistory": "ThreadRuns",
	"ThreadKeeper": "Save Restore PutConversation", "Threads": "Thread UpdateThread Checkpoint FindCheckpoint Checkpoints Pins Artifacts Commit Fork PutArtifact",
	"ControlTransition": "Name Apply Landed", "LedgerTransition": "Name Apply Landed", "SandboxTransition": "Name Apply Landed",
	"ThreadTransition": "Name Apply Landed", "Transition": "Name Apply Landed",
}

// moving are the transitions that destroy nothing by themselves.
var moving = strings.Fields(`AcquireLease AddBearer AddPending Append Attach BeginStep CancelDue Claim CloseRow Commit CountEnds Detach DoubtStep
	EndRun EndStep Finish Fork Freeze Hint HoldExec Interrupt Lapse Launched LoseWorkspace MarkIdle MarkReclaiming MoveDebt NameInstance NameTask
	NoteCheckpoint NoteFiles NotePrice NoteRun NoteSnapshot NoteStart NoteStep Postpone PutConversation RaiseFloor ReclaimDone ReclaimLater Release
	ReleaseLease Renew RenewLease RequestCancel Resumed SetHold SetMode SetSpendCap SetTTL SettleDebt StartMeter StopLaunch Thaw Unmark`)

// TestEveryWayToDestroyIsKnown: each method of a port, and each transition, is said to
// destroy or not, so that a new one cannot be used before somebody has thought of it.
func TestEveryWayToDestroyIsKnown(t *testing.T) {
	sources(t, ".", func(name string, f *ast.File) {
		if filepath.Dir(name) != "." {
			return
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == "Landed" {
				name, _, _ := strings.Cut(functionName(fn), ".")
				if slices.Contains(moving, name) == slices.Contains(destroying, name) {
					t.Errorf("transition %s: say whether it destroys: in destroying, with a row, or in moving", name)
				}
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			port, ok := spec.Type.(*ast.InterfaceType)
			if !ok {
				return true
			}
			known := strings.Fields(sparing[spec.Name.Name])
			for _, m := range port.Methods.List {
				for _, name := range m.Names { // those of an embedded port are known there
					if slices.Contains(known, name.Name) == slices.Contains(destroying, name.Name) {
						t.Errorf("method %s.%s: say whether it destroys: in destroying, with a row, or in sparing", spec.Name.Name, name.Name)
					}
				}
			}
			return true
		})
	})
}

// TestOnlyAdaptersDestroy: what destroys by the SDK stands behind a port of core, whose
// callers have their rows; a dead letter that was sent again is removed by the tool itself.
func TestOnlyAdaptersDestroy(t *testing.T) {
	want := []string{
		"cmd/sandkeeper redrive.one: DeleteMessageInput", "internal/ddb Transactions.condemnItems: Delete", "internal/ddb bundle.remove: Delete",
		"internal/ecstask Tasks.Stop: StopTaskInput", "internal/s3blob Objects.Delete: DeleteObjectInput",
	}
	verbs := regexp.MustCompile(`^(Delete|Stop|Terminate|Purge|Remove|BatchWrite|Deregister|Cancel|Abort|Disable|Empty)\w*Input$|^Delete$|^DeleteRequest$`)
	var got []string
	for _, root := range []string{"functions", "cmd/sandkeeper", "client", "internal"} {
		sources(t, filepath.Join("..", "..", root), func(name string, f *ast.File) {
			dir, err := filepath.Rel(filepath.Join("..", ".."), filepath.Dir(name))
			if err != nil || slices.Contains([]string{"internal/localfargate", "internal/engine", "internal/e2e", "internal/bench"}, dir) {
				return
			}
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok {
					continue
				}
				ast.Inspect(fn, func(n ast.Node) bool {
					if c, ok := n.(*ast.CompositeLit); ok {
						if s, ok := c.Type.(*ast.SelectorExpr); ok && verbs.MatchString(s.Sel.Name) {
							got = append(got, dir+" "+functionName(fn)+": "+s.Sel.Name)
						}
					}
					return true
				})
			}
		})
	}
	slices.Sort(got)
	if got = slices.Compact(got); !slices.Equal(got, want) {
		t.Errorf("requests that destroy: %q\nwant %q", got, want)
	}
}

// sources visits the files of a directory and those below, but tests.
func sources(t *testing.T, root string, visit func(name string, f *ast.File)) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err == nil {
			files++
			visit(name, f)
		}
		return err
	})
	if err != nil || files == 0 {
		t.Fatalf("%d sources in %s, %v", files, root, err)
	}
}

// isText reports whether an expression is the package that cuts texts.
func isText(x ast.Expr) bool {
	id, ok := x.(*ast.Ident)
	return ok && (id.Name == "strings" || id.Name == "bytes")
}

// fieldIs reports whether an expression is a field of that name.
func fieldIs(x ast.Expr, field string) bool {
	s, ok := x.(*ast.SelectorExpr)
	return ok && s.Sel.Name == field
}

func functionName(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	receiver := fn.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	return receiver.(*ast.Ident).Name + "." + fn.Name.Name
}

// TestAFreezeAmongDeletionsIsHonoured: it is heard between one object and the next (I13).
func TestAFreezeAmongDeletionsIsHonoured(t *testing.T) {
	kept(t, func(w *keeping) {
		_, err := w.keeper(w.store.Process).Save(w.ctx(), saveOf("t", "cut"))
		w.must(err)
		_, err = w.pack(w.ctx(), w.store.Process, "t", tree{"a": "never named"})
		w.must(err)
		time.Sleep(core.CollectAge + core.LeaseLife)
		p := w.store.NewProcess(mem.Faults{Before: func(_ context.Context, name string) {
			if strings.HasPrefix(name, "delete object") {
				w.store.SetControl(core.Control{Frozen: true})
			}
		}})
		report, err := w.keeper(p).Collect(w.ctx(), core.CollectRequest{ThreadKey: thread("t"), Apply: true})
		if err != nil || report.Garbage < 2 || report.Deleted != 1 || report.Withheld != core.WithheldFrozen {
			t.Errorf("%+v, %v after %v", report, err, p.Calls())
		}
		w.store.SetControl(core.Control{Mode: core.Observe})
		before := p.Calls()
		report, err = w.keeper(p).Collect(w.ctx(), core.CollectRequest{ThreadKey: thread("t"), Apply: true})
		if err != nil || report.Garbage != 1 || report.Deleted != 0 || report.Withheld != core.WithheldObserve || slices.Contains(p.Calls()[len(before):], "acquire lease") {
			t.Errorf("observing: %+v, %v after %v", report, err, p.Calls()[len(before):])
		}
	})
}

// TestWhatIsSetBetweenClaimAndEndIsHonoured: whoever destroys marks, then reads (I13).
func TestWhatIsSetBetweenClaimAndEndIsHonoured(t *testing.T) {
	for what, tt := range map[string]struct {
		setUp   func(w *world)
		control core.Control
		want    core.Outcome // of the sweep in which it is set; of the next, over
		over    core.Outcome
	}{
		"an expiry, frozen":   {pastItsTime, core.Control{Frozen: true}, core.Held, core.Expired},
		"an expiry, tripped":  {pastItsTime, core.Control{Breaker: core.Breaker{TrippedAt: 1}}, core.Held, core.Expired},
		"an expiry, observed": {pastItsTime, core.Control{Mode: core.Observe}, core.Held, core.Expired},
		"a cancel, observed":  {cancelledRunLeft, core.Control{Mode: core.Observe}, core.Held, core.Cancelled},
		"a cancel, frozen":    {cancelledRunLeft, core.Control{Frozen: true}, core.Cancelled, ""},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				tt.setUp(w)
				claimed := false
				p := w.store.NewProcess(mem.Faults{Before: func(_ context.Context, name string) {
					if claimed {
						w.store.SetControl(tt.control)
					}
					claimed = claimed || name == "claim"
				}})
				report, err := w.sweep(p).Run(t.Context(), core.SweepRequest{})
				if err != nil || outcomes(report)["r"] != tt.want || w.fleet.Alive("r") != (tt.want == core.Held) {
					t.Errorf("outcome %v, %v; the agent lives: %v", outcomes(report), err, w.fleet.Alive("r"))
				}
				w.store.SetControl(core.Control{})
				if got := outcomes(w.tick())["r"]; got != tt.over || w.fleet.Alive("r") {
					t.Errorf("taken back: outcome %s", got)
				}
			})
		})
	}
}

func cancelledRunLeft(w *world) {
	w.left("r", "works\n")
	if _, err := core.RequestCancelOf(w.t.Context(), w.store, key("r")); err != nil {
		w.t.Fatal(err)
	}
}
