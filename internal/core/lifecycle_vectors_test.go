package core_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

var _ = exemptVectors(
	vectorExemption{
		file: "snapshot_lifecycle", name: "capture fails",
		reason: "a workspace that cannot be stored now is owed: the run ends, and reclaim tries again before the sandbox does (DESIGN 6, I5)",
	},
	vectorExemption{
		file: "snapshot_lifecycle", name: "capture fails with destroy on complete",
		reason: "as above: the sandbox ends after another try, or the loss is told",
	},
)

// lifecycle is what is left of a run's automatic checkpoint.
type lifecycle struct {
	Checkpoints string // each with its parent and run, the oldest first
	Rejected    int
	Restored    bool
	LeaseFree   bool
	Native      bool
	SetupFails  bool
}

// TestSnapshotLifecycleVectors has a run of a thread, with a head or without, start and end
// as the case says.
func TestSnapshotLifecycleVectors(t *testing.T) {
	if err := outsideOfBubbles(); err != nil {
		t.Fatal(err)
	}
	compareVectors(t, "snapshot_lifecycle", func(t *testing.T, c vectorCase) error {
		var in struct {
			Events            []string
			Head              any
			Executable        bool // what is in the workspace cannot be stored
			DestroyOnComplete bool
			NativeAfterRun    bool
			Instance          *struct{ LatestSnapshotID string }
		}
		var want struct {
			Calls          []string
			RejectedEvents []int
			Checkpoints    []struct{ ID, Parent, SourceRunID string }
			Restored       []string
			LeaseFree      bool
			SetupError     string
		}
		c.decode(t, &in, &want)
		wanted := lifecycle{
			Rejected: len(want.RejectedEvents), Restored: len(want.Restored) > 0, LeaseFree: want.LeaseFree,
			Native: strings.Contains(strings.Join(want.Calls, ";"), "native"), SetupFails: want.SetupError != "",
		}
		for _, cp := range want.Checkpoints {
			wanted.Checkpoints += cp.ID + "<" + cp.Parent + " of " + cp.SourceRunID + "; "
		}
		return inBubble(t, func(t *testing.T) error {
			h := keepingHosting(t)
			e := &ending{hosting: h, hooks: &hooked{}, q: startOf("r1", "one"), me: host{h, "r1", "one"}}
			e.q.Definition.DestroyOnComplete = in.DestroyOnComplete
			if h.copies = in.NativeAfterRun || in.Instance != nil; h.copies {
				e.q.Definition.Snapshots = core.SnapshotsAfterRun
			}
			if in.Head != nil {
				h.fleet.KillTask(e.before())
			}
			return differ(e.lifecycle(in.Events, in.Head == "missing-blob", in.Executable), wanted)
		})
	})
}

func (e *ending) lifecycle(events []string, missing, unstorable bool) lifecycle {
	var out lifecycle
	if missing {
		e.keep.began = core.AgentMissing
	}
	out.SetupFails = e.start() != nil
	if unstorable {
		e.keep.began = core.AgentMissing
	}
	for _, event := range events {
		if err := e.happens(event); err != nil {
			out.Rejected++
		}
	}
	e.settle()
	time.Sleep(time.Second)
	th, err := e.store.Thread(e.t.Context(), thread("t"))
	e.must(err)
	out.LeaseFree = !th.Lease.Live(now())
	out.Restored = e.run("r1").Start.Restored != ""
	out.Native = e.run("r1").Start.Native != "" || slices.ContainsFunc(e.fleet.Snapshots(), func(id core.SnapshotID) bool {
		return strings.HasSuffix(string(id), "-after-run-r1")
	})
	for _, id := range []core.CheckpointID{"checkpoint-r0", "checkpoint-r1"} {
		cp, err := e.store.Checkpoint(e.t.Context(), thread("t"), id)
		if err == nil {
			text := string(cp.ID) + "<" + string(cp.Parent) + " of " + string(cp.SourceRun) + "; "
			out.Checkpoints += strings.NewReplacer("checkpoint-r0", "cp-old", "of r0", "of ").Replace(text)
		}
	}
	return out
}

// happens is one end of the run, by its host.
func (e *ending) happens(event string) error {
	var err error
	switch event {
	case "finish":
		e.fleet.Exit("r1", 0)
		var report core.FinishReport
		if report, err = e.me.finish(nil); err == nil && report.Waiting == "checkpoint" {
			e.captured(tree{"a.txt": "A"})
			_, err = e.me.finish(nil)
		}
	case "abort":
		_, err = e.me.cancel()
	case "error":
		_, err = e.me.fail()
	case "interrupt":
		_, err = e.me.interrupt()
	default:
		e.t.Fatalf("unknown event %q", event)
	}
	return err
}
