package core_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// kept runs a test in a bubble, in an installation with the sandbox of thread t.
func kept(t *testing.T, do func(w *keeping)) {
	t.Helper()
	if err := outsideOfBubbles(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		w := newKeeping(t)
		w.box("t")
		do(w)
	})
}

func (w *keeping) ctx() context.Context { return w.t.Context() }

var (
	first  = tree{"a.txt": "A", "b.sh": "#!/bin/sh\n"}
	second = tree{"a.txt": "A", "b.sh": "#!/bin/sh\n", "größer.txt": "ü"}
	third  = tree{"c.txt": "C"}
)

func TestSaveIsOneStepThatGoesOnWhenAskedAgain(t *testing.T) {
	kept(t, func(w *keeping) {
		k := w.keeper(w.store.Process)
		for range 2 {
			report, err := k.Save(w.ctx(), saveOf("t", "c1"))
			w.must(err)
			if report.State != core.StepWorking || report.Attempts != 1 || report.Fence != 1 {
				t.Fatalf("report = %+v, want the first attempt at work", report)
			}
			time.Sleep(core.LeaseRenew)
		}
		token := w.jobs["t"].Token
		until, err := k.Renew(w.ctx(), token, 3, 4)
		w.must(err)
		if got := until.Time(); got != time.Now().Add(core.LeaseLife).UTC() {
			t.Errorf("lease until %v, want its whole life from now", got)
		}
		report, err := k.Save(w.ctx(), saveOf("t", "c1"))
		w.must(err)
		if report.Files != 3 || report.Bytes != 4 {
			t.Errorf("report = %+v, want the agent's counts", report)
		}
		w.must(w.capture(w.ctx(), w.store.Process, "t", first))
		report, err = k.Save(w.ctx(), saveOf("t", "c1"))
		w.must(err)
		if report.State != core.StepDone || report.Checkpoint != "c1" || report.Files != 2 {
			t.Errorf("report = %+v, want done", report)
		}
		head, err := k.Head(w.ctx(), thread("t"))
		w.must(err)
		if head.ID != "c1" || head.Reason != core.ReasonAutomatic || head.Parent != "" {
			t.Errorf("head = %+v", head)
		}
		th, err := w.store.Thread(w.ctx(), thread("t"))
		w.must(err)
		if th.Lease != (core.Lease{}) {
			t.Errorf("lease = %+v after the save of its own owner, want none", th.Lease)
		}
		w.check("t")
	})
}

func TestSaveBeginsASilentAgentAnewThreeTimes(t *testing.T) {
	kept(t, func(w *keeping) {
		k := w.keeper(w.store.Process)
		var tokens []string
		for attempt := 1; attempt <= 3; attempt++ {
			report, err := k.Save(w.ctx(), saveOf("t", "c1"))
			w.must(err)
			if report.State != core.StepWorking || report.Attempts != attempt {
				t.Fatalf("report = %+v, want attempt %d", report, attempt)
			}
			tokens = append(tokens, w.jobs["t"].Token)
			time.Sleep(core.LeaseLife)
		}
		report, err := k.Save(w.ctx(), saveOf("t", "c1"))
		w.must(err)
		if report.State != core.StepFailed || report.Why != "agent-silent" {
			t.Errorf("report = %+v, want failed", report)
		}
		for _, token := range tokens {
			_, err := k.Renew(w.ctx(), token, 0, 0)
			w.coded(err, "token-dead")
		}
		again := saveOf("t", "c1")
		again.Again = true
		report, err = k.Save(w.ctx(), again)
		w.must(err)
		if report.State != core.StepWorking || report.Attempts != 1 {
			t.Errorf("report = %+v, want a new beginning", report)
		}
		w.must(w.capture(w.ctx(), w.store.Process, "t", first))
		w.check("t")
	})
}

func TestSaveIsOfWhatExists(t *testing.T) {
	tests := map[string]struct {
		code   string
		change func(w *keeping, q *core.SaveRequest)
	}{
		"no sandbox named":         {"missing-sandbox", func(_ *keeping, q *core.SaveRequest) { q.Key = "" }},
		"a sandbox that is gone":   {"missing-reusable-sandbox", func(_ *keeping, q *core.SaveRequest) { q.Key = "key-gone" }},
		"another instance":         {"missing-reusable-sandbox", func(_ *keeping, q *core.SaveRequest) { q.Instance = "i-old" }},
		"another thread's sandbox": {"missing-reusable-sandbox", func(w *keeping, q *core.SaveRequest) { w.box("u"); q.Key, q.Instance = "key-u", "i-u" }},
		"another tenant":           {"missing-reusable-sandbox", func(_ *keeping, q *core.SaveRequest) { q.Tenant = "beta" }},
		"no id":                    {"invalid-id", func(_ *keeping, q *core.SaveRequest) { q.ID = "" }},
		"a thread without a name":  {"invalid-id", func(_ *keeping, q *core.SaveRequest) { q.Thread = "" }},
		"an id that no key holds":  {"invalid-id", func(_ *keeping, q *core.SaveRequest) { q.ID = core.CheckpointID(strings.Repeat("ü", 400)) }},
		"a fork's reason":          {"invalid-reason", func(_ *keeping, q *core.SaveRequest) { q.Reason = core.ReasonForkRoot }},
		"a relative directory":     {"invalid-dir", func(_ *keeping, q *core.SaveRequest) { q.Dir = "workspace" }},
		"an id of another thread": {"duplicate-id", func(w *keeping, q *core.SaveRequest) {
			w.store.SeedCheckpoint(core.Checkpoint{ThreadKey: thread("u"), ID: "c1"})
		}},
		"a named save of a run's own sandbox": {"reuse-none", func(w *keeping, q *core.SaveRequest) {
			w.store.SeedSandbox(core.Sandbox{Key: "own", Instance: "i-t", Material: core.KeyMaterial{Tenant: "acme", Thread: "t", Run: "r"}})
			q.Key, q.Reason = "own", core.ReasonNamed
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			kept(t, func(w *keeping) {
				q := saveOf("t", "c1")
				tt.change(w, &q)
				_, err := w.keeper(w.store.Process).Save(w.ctx(), q)
				w.coded(err, tt.code)
				th, err := w.store.Thread(w.ctx(), thread("t"))
				w.must(err)
				if th.Lease != (core.Lease{}) || th.Step != nil {
					t.Errorf("thread = %+v, want no lease and no step", th)
				}
			})
		})
	}
}

func TestSaveMeetsAnotherWriter(t *testing.T) {
	kept(t, func(w *keeping) {
		k := w.keeper(w.store.Process)
		now := core.MillisOf(time.Now())
		_, err := w.store.UpdateThread(w.ctx(), thread("t"), core.AcquireLease{Owner: "run", Now: now, Until: now.Add(core.LeaseLife)})
		w.must(err)
		_, err = k.Save(w.ctx(), saveOf("t", "c1"))
		w.coded(err, "writer-conflict")
		q := saveOf("t", "c1")
		q.Owner = "run" // the host's own finish
		_, err = k.Save(w.ctx(), q)
		w.must(err)
		w.must(w.capture(w.ctx(), w.store.Process, "t", first))
		th, err := w.store.Thread(w.ctx(), thread("t"))
		w.must(err)
		if th.Lease.Owner != "run" || th.Fence != 1 {
			t.Errorf("lease = %+v, fence %d; want the run's own kept", th.Lease, th.Fence)
		}
	})
}

func TestAnAgentThatCannotBeStartedEndsTheStep(t *testing.T) {
	kept(t, func(w *keeping) {
		w.began = core.AgentMissing
		report, err := w.keeper(w.store.Process).Save(w.ctx(), saveOf("t", "c1"))
		w.must(err)
		if report.State != core.StepFailed || report.Why != "agent-missing" {
			t.Errorf("report = %+v, want agent-missing", report)
		}
		th, err := w.store.Thread(w.ctx(), thread("t"))
		w.must(err)
		if th.Lease != (core.Lease{}) {
			t.Errorf("lease = %+v, want none", th.Lease)
		}
	})
}

func TestAnOwnersNextStepWaitsForTheOneUnderWay(t *testing.T) {
	kept(t, func(w *keeping) {
		k := w.keeper(w.store.Process)
		of := func(id core.CheckpointID) core.SaveRequest {
			q := saveOf("t", id)
			q.Owner = "run:r"
			return q
		}
		_, err := k.Save(w.ctx(), of("c1"))
		w.must(err)
		token := w.jobs["t"].Token
		_, err = k.Save(w.ctx(), of("c2"))
		refusedFor(t, "second save", err, "step-busy")
		_, err = k.Restore(w.ctx(), core.RestoreRequest{ThreadKey: thread("t"), ID: "c1", Owner: "run:r", Key: "key-t", Instance: "i-t"})
		refusedFor(t, "restore of the same id", err, "step-busy")
		if w.jobs["t"].Token != token {
			t.Fatal("another agent was started")
		}
		w.must(w.capture(w.ctx(), w.store.Process, "t", first))
		report, err := k.Save(w.ctx(), of("c2"))
		w.must(err)
		if !report.Began {
			t.Errorf("report = %+v, want it begun", report)
		}
		time.Sleep(core.LeaseLife) // its agent is not heard of
		if report, err = k.Save(w.ctx(), of("c3")); err != nil || !report.Began {
			t.Errorf("report = %+v, %v; want it begun", report, err)
		}
	})
}

func TestAStepThatEndsWhileItsLeaseIsTakenIsNotBegunAnew(t *testing.T) {
	kept(t, func(w *keeping) {
		q := saveOf("t", "c1")
		q.Owner = "run:r"
		_, err := w.keeper(w.store.Process).Save(w.ctx(), q)
		w.must(err)
		token := w.jobs["t"].Token
		// The host keeps its lease; the agent is slow, and hands in at the last moment.
		for range 3 {
			time.Sleep(core.LeaseRenew)
			now := core.MillisOf(time.Now())
			_, err = w.store.UpdateThread(w.ctx(), thread("t"), core.AcquireLease{Owner: q.Owner, Now: now, Until: now.Add(core.LeaseLife)})
			w.must(err)
		}
		handedIn := false
		p := w.store.NewProcess(mem.Faults{Before: func(ctx context.Context, name string) {
			if strings.HasPrefix(name, "acquire lease") && !handedIn {
				handedIn = true
				w.must(w.capture(ctx, w.store.Process, "t", first))
			}
		}})
		report, err := w.keeper(p).Save(w.ctx(), q)
		w.must(err)
		if !handedIn || report.State != core.StepDone || w.jobs["t"].Token != token {
			t.Errorf("report = %+v, handed in %t; want it done by the first agent", report, handedIn)
		}
		w.check("t")
	})
}

func execFault(reason string, healing core.Healing) error {
	return &core.ExecError{Reason: reason, Healing: healing}
}

func TestAStartThatGaveNoAnswerIsMadeAgainSoon(t *testing.T) {
	kept(t, func(w *keeping) {
		k := w.keeper(w.store.Process)
		w.fault = execFault("target-not-connected", core.Retry)
		report, err := k.Save(w.ctx(), saveOf("t", "c1"))
		w.must(err)
		if report.State != core.StepWorking || report.Why != "target-not-connected" {
			t.Fatalf("report = %+v, want it at work, in doubt", report)
		}
		begun := time.Now()
		old := w.jobs["t"].Token
		for asked := range 5 {
			time.Sleep(time.Second)
			if w.jobs["t"].Token != old {
				t.Fatalf("begun anew after %v", time.Since(begun))
			}
			if report, err = k.Save(w.ctx(), saveOf("t", "c1")); err != nil || report.State != core.StepWorking {
				t.Fatalf("asked %d times: %+v, %v", asked, report, err)
			}
		}
		if w.jobs["t"].Token == old || report.Attempts != 1 {
			t.Fatalf("report = %+v, want a beginning that does not count", report)
		}
		w.fault = nil
		time.Sleep(5 * time.Second)
		report, err = k.Save(w.ctx(), saveOf("t", "c1"))
		w.must(err)
		if report.State != core.StepWorking || report.Why != "" || report.Attempts != 1 || !report.Began {
			t.Fatalf("report = %+v, want no doubt", report)
		}
		time.Sleep(time.Minute)
		report.Began = false // not by the next call
		if again, err := k.Save(w.ctx(), saveOf("t", "c1")); err != nil || again != report {
			t.Errorf("report = %+v, %v; want %+v", again, err, report)
		}
		w.must(w.capture(w.ctx(), w.store.Process, "t", first))
		w.check("t")
	})
}

func TestAnAgentThatIsHeardOfHasBegun(t *testing.T) {
	kept(t, func(w *keeping) {
		k := w.keeper(w.store.Process)
		w.fault = execFault("answer-incomplete", core.Retry)
		_, err := k.Save(w.ctx(), saveOf("t", "c1"))
		w.must(err)
		token := w.jobs["t"].Token
		time.Sleep(time.Second)
		_, err = k.Parent(w.ctx(), token) // it had begun, and asks for what all ask first
		w.must(err)
		time.Sleep(core.LeaseRenew)
		report, err := k.Save(w.ctx(), saveOf("t", "c1"))
		w.must(err)
		if report.Why != "" || w.jobs["t"].Token != token {
			t.Errorf("report = %+v, want the first beginning", report)
		}
		w.must(w.capture(w.ctx(), w.store.Process, "t", first))
		w.check("t")
	})
}

// askUntilFailed asks for a save every few seconds until it has failed, and tells how
// long that took.
func (w *keeping) askUntilFailed() (core.StepReport, time.Duration) {
	w.t.Helper()
	begun := time.Now()
	for range 1000 {
		report, err := w.keeper(w.store.Process).Save(w.ctx(), saveOf("t", "c1"))
		w.must(err)
		if report.State == core.StepFailed {
			return report, time.Since(begun)
		}
		time.Sleep(3 * time.Second)
	}
	w.t.Fatal("it never fails")
	return core.StepReport{}, 0
}

func TestAStartThatNeverAnswersFails(t *testing.T) {
	tests := map[string]struct {
		began   core.AgentStarted
		fault   error
		created time.Duration // before the first ask
		why     string
		within  time.Duration
	}{
		"one that may heal":                     {"", execFault("throttled", core.Retry), time.Hour, "throttled", 4 * time.Minute},
		"an exec that an old sandbox refuses":   {"", execFault("exec-not-enabled", core.Configuration), time.Hour, "exec-not-enabled", 0},
		"an exec that a young sandbox refuses":  {"", execFault("exec-not-enabled", core.Configuration), 0, "exec-not-enabled", 3 * time.Minute},
		"an agent of an earlier beginning":      {core.AgentRuns, nil, time.Hour, "agent-busy", 4 * time.Minute},
		"an agent that refuses":                 {core.AgentRefused, &core.JournalError{Reason: "job-invalid"}, 0, "agent-refused: job-invalid", 0},
		"a sandbox without an agent, young too": {core.AgentMissing, nil, 0, "agent-missing", 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			kept(t, func(w *keeping) {
				box, err := w.store.Sandbox(w.ctx(), "key-t")
				w.must(err)
				box.CreatedAt = core.MillisOf(time.Now().Add(-tt.created))
				w.store.SeedSandbox(box)
				w.began, w.fault = tt.began, tt.fault
				report, took := w.askUntilFailed()
				if report.Why != tt.why || took > tt.within || tt.within > 0 && took < time.Minute {
					t.Errorf("failed as %q after %v, want %q within %v", report.Why, took, tt.why, tt.within)
				}
				th, err := w.store.Thread(w.ctx(), thread("t"))
				w.must(err)
				if th.Lease != (core.Lease{}) {
					t.Errorf("lease = %+v, want none", th.Lease)
				}
			})
		})
	}
}

func packOf(text string) core.PackRef {
	sum := sha256.Sum256([]byte(text))
	return core.PackRef{SHA256: hex.EncodeToString(sum[:]), Size: int64(len(text))}
}

func TestGrantsAreForOneObjectUnderTheLiveFence(t *testing.T) {
	kept(t, func(w *keeping) {
		k, p := w.keeper(w.store.Process), w.store.Process
		_, err := k.Save(w.ctx(), saveOf("t", "c1"))
		w.must(err)
		token := w.jobs["t"].Token
		grants, _, err := k.Grant(w.ctx(), token, []core.PackRef{packOf("one"), packOf("two")})
		w.must(err)
		want := "acme/threads/t/packs/1-" + packOf("one").SHA256
		if !strings.HasSuffix(grants[0].Grant.URL, want) {
			t.Errorf("grant for %s, want the key %s", grants[0].Grant.URL, want)
		}
		for _, body := range []string{"two", "on", "one and more", ""} {
			if err := p.Upload(w.ctx(), grants[0].Grant, []byte(body)); err == nil {
				t.Errorf("the grant took %q", body)
			}
		}
		w.must(p.Upload(w.ctx(), grants[0].Grant, []byte("one")))
		grants, _, err = k.Grant(w.ctx(), token, []core.PackRef{packOf("one"), packOf("two")})
		w.must(err)
		if !grants[0].Present || grants[1].Present {
			t.Errorf("present = %t, %t; want the first only", grants[0].Present, grants[1].Present)
		}
		for _, bad := range []core.PackRef{
			{SHA256: packOf("x").SHA256}, {SHA256: packOf("x").SHA256, Size: core.MaxPack + 1}, {SHA256: "../../other", Size: 1},
			{SHA256: strings.ToUpper(packOf("x").SHA256), Size: 1}, {SHA256: packOf("x").SHA256, Size: 1, Fence: -1},
		} {
			_, _, err := k.Grant(w.ctx(), token, []core.PackRef{bad})
			w.coded(err, "invalid-pack")
		}
		_, _, err = k.Grant(w.ctx(), token, nil)
		w.coded(err, "invalid-pack")
		time.Sleep(core.GrantLife)
		if err := p.Upload(w.ctx(), grants[1].Grant, []byte("two")); err == nil {
			t.Error("a grant outlived its time")
		}
	})
}

func TestAStepMayStoreOnlySoMuch(t *testing.T) {
	kept(t, func(w *keeping) {
		k := w.keeper(w.store.Process)
		_, err := k.Save(w.ctx(), saveOf("t", "c1"))
		w.must(err)
		token := w.jobs["t"].Token
		w.must(w.store.Process.Upload(w.ctx(), w.granted(k, token, packOf("one")), []byte("one")))
		var asked int64 = 3
		ask := make([]core.PackRef, core.MaxPacksAsked)
		for n := 0; err == nil && n < 8; n++ {
			for i := range ask {
				ask[i] = packOf(fmt.Sprint(n, i))
				ask[i].Size = core.MaxPack
			}
			if _, _, err = k.Grant(w.ctx(), token, ask); err == nil {
				asked += int64(len(ask)) * core.MaxPack
			}
		}
		w.coded(err, "too-large")
		if left := core.MaxGranted - asked; left < 0 || left >= int64(len(ask))*core.MaxPack {
			t.Errorf("a step may store %d bytes, want at most %d", asked, int64(core.MaxGranted))
		}
		grants, _, err := k.Grant(w.ctx(), token, []core.PackRef{packOf("one"), packOf("another")})
		w.must(err)
		if !grants[0].Present || grants[1].Grant.URL == "" {
			t.Errorf("granted %+v, want what still fits", grants)
		}
		th, err := w.store.Thread(w.ctx(), thread("t"))
		w.must(err)
		if want := asked + packOf("another").Size; th.Step.Granted != want {
			t.Errorf("%d bytes are noted, want %d: nothing for what is there or was refused", th.Step.Granted, want)
		}
	})
}

// granted is the leave to store one pack.
func (w *keeping) granted(k *core.Keeper, token string, p core.PackRef) core.Grant {
	grants, _, err := k.Grant(w.ctx(), token, []core.PackRef{p})
	w.must(err)
	return grants[0].Grant
}

func TestWhatACutCaptureStoredIsNotSentAgain(t *testing.T) {
	kept(t, func(w *keeping) {
		k := w.keeper(w.store.Process)
		// begin has the capture begun, and tells which of the packs are stored, by fence.
		begin := func(id core.CheckpointID, packs ...string) (fences []int64, grants []core.PackGrant) {
			t.Helper()
			report, err := k.Save(w.ctx(), saveOf("t", id))
			w.must(err)
			if !report.Began {
				t.Fatalf("report = %+v, want it begun", report)
			}
			for _, text := range packs {
				g, _, err := k.Grant(w.ctx(), w.jobs["t"].Token, []core.PackRef{packOf(text)})
				w.must(err)
				if grants = append(grants, g[0]); g[0].Present {
					fences = append(fences, g[0].Pack.Fence)
				} else {
					fences = append(fences, 0)
				}
			}
			return fences, grants
		}
		expect := func(got []int64, want ...int64) {
			t.Helper()
			if !slices.Equal(got, want) {
				t.Errorf("stored under the fences %v, want %v", got, want)
			}
		}
		fences, grants := begin("c1", "one")
		expect(fences, 0)
		w.must(w.store.Upload(w.ctx(), grants[0].Grant, []byte("one")))
		time.Sleep(core.LeaseLife) // the agent is killed
		fences, grants = begin("c1", "one", "two")
		expect(fences, 1, 0)
		if grants[1].Pack.Fence != 2 {
			t.Errorf("what is not stored is granted under fence %d, want 2", grants[1].Pack.Fence)
		}
		w.must(w.store.Upload(w.ctx(), grants[1].Grant, []byte("two")))
		time.Sleep(core.LeaseLife)
		fences, _ = begin("another", "one", "two", "three")
		expect(fences, 1, 2, 0)
		time.Sleep(core.LeaseLife)
		_, err := k.Collect(w.ctx(), core.CollectRequest{ThreadKey: thread("t"), Apply: true})
		w.must(err)
		// They are there, and somebody may be about to remove them.
		fences, _ = begin("c1", "one", "two")
		expect(fences, 0, 0)
		w.must(w.capture(w.ctx(), w.store.Process, "t", first))
		w.check("t")
	})
}

func TestTokensDieWithTheirFence(t *testing.T) {
	kept(t, func(w *keeping) {
		k := w.keeper(w.store.Process)
		_, err := k.Save(w.ctx(), saveOf("t", "c1"))
		w.must(err)
		token := w.jobs["t"].Token
		parts := strings.Split(token, ".")
		for name, bad := range map[string]string{
			"empty": "", "another secret": strings.Join(append(slices.Clone(parts[:3]), strings.Repeat("A", 32)), "."), "no secret": strings.Join(parts[:3], ".") + ".",
			"another thread": strings.Replace(token, ".t.", ".u.", 1), "another tenant": strings.Replace(token, "acme.", "beta.", 1),
			"another fence": strings.Replace(token, ".1.", ".2.", 1), "a fence written otherwise": strings.Replace(token, ".1.", ".+1.", 1),
			"an id written otherwise": strings.Replace(token, ".t.", "._74.", 1), "more": token + ".x",
		} {
			if _, err := k.Has(w.ctx(), bad, []core.PackRef{packOf("x")}); code(err) != "token-dead" {
				t.Errorf("%s: %v, want a dead token", name, err)
			}
		}
		_, err = k.Has(w.ctx(), token, []core.PackRef{packOf("x")})
		w.must(err)
		time.Sleep(core.LeaseLife) // dead at its very end, though nobody took it
		for name, call := range map[string]func() error{
			"grant":  func() error { _, _, err := k.Grant(w.ctx(), token, []core.PackRef{packOf("x")}); return err },
			"has":    func() error { _, err := k.Has(w.ctx(), token, []core.PackRef{packOf("x")}); return err },
			"fetch":  func() error { _, err := k.Fetch(w.ctx(), token, []core.PackRef{packOf("x")}); return err },
			"parent": func() error { _, err := k.Parent(w.ctx(), token); return err },
			"renew":  func() error { _, err := k.Renew(w.ctx(), token, 0, 0); return err },
			"fail":   func() error { return k.Fail(w.ctx(), token, "x", "y") },
			"commit": func() error { _, err := k.CommitRoot(w.ctx(), token, nil); return err },
		} {
			if err := call(); code(err) != "token-dead" {
				t.Errorf("%s: %v, want a dead token", name, err)
			}
		}
	})
}

func TestAFailedStepWakesWhoWaits(t *testing.T) {
	kept(t, func(w *keeping) {
		k := w.keeper(w.store.Process)
		q := saveOf("t", "c1")
		q.Job = &core.ReclaimJob{Key: "key-t", Tenant: "acme", Instance: "i-t", Kind: core.JobDue}
		_, err := k.Save(w.ctx(), q)
		w.must(err)
		for range 2 {
			w.must(k.Fail(w.ctx(), w.jobs["t"].Token, "limit-exceeded", strings.Repeat("ü", 2000)))
		}
		report, err := k.Save(w.ctx(), q)
		w.must(err)
		if report.State != core.StepFailed || !strings.HasPrefix(report.Why, "limit-exceeded: ü") || len(report.Why) > core.MaxStepWhy {
			t.Errorf("report = %+v", report)
		}
		if jobs := w.store.TakeJobs(); len(jobs) != 2 || jobs[0] != *q.Job {
			t.Errorf("jobs = %+v, want the one that waits, each time", jobs)
		}
		_, err = k.CommitRoot(w.ctx(), w.jobs["t"].Token, []byte("x"))
		w.coded(err, "failed")
	})
}

func TestCommitAgainIsSuccess(t *testing.T) {
	kept(t, func(w *keeping) {
		k, p := w.keeper(w.store.Process), w.store.Process
		q := saveOf("t", "c1")
		q.Job = &core.ReclaimJob{Key: "key-t", Tenant: "acme", Instance: "i-t", Kind: core.JobDue}
		_, err := k.Save(w.ctx(), q)
		w.must(err)
		w.trees["c1"] = first
		root, err := w.pack(w.ctx(), p, "t", first)
		w.must(err)
		other, err := w.pack(w.ctx(), p, "t", second)
		w.must(err)
		token := w.jobs["t"].Token
		for range 3 {
			id, err := k.CommitRoot(w.ctx(), token, root)
			w.must(err)
			if id != "c1" {
				t.Errorf("id = %s", id)
			}
			time.Sleep(time.Hour)
		}
		_, err = k.CommitRoot(w.ctx(), token, other)
		w.coded(err, "duplicate-id")
		if jobs := w.store.TakeJobs(); len(jobs) != 3 {
			t.Errorf("%d messages, want one each time", len(jobs))
		}
		w.must(w.save(w.ctx(), p, "t", "c2", second))
		_, err = k.CommitRoot(w.ctx(), token, root)
		w.coded(err, "token-dead") // another step has begun
		w.check("t")
	})
}

func TestHistory(t *testing.T) {
	kept(t, func(w *keeping) {
		k, p := w.keeper(w.store.Process), w.store.Process
		for i, files := range []tree{first, second, third} {
			time.Sleep(time.Second)
			w.must(w.save(w.ctx(), p, "t", core.CheckpointID("c"+string(rune('1'+i))), files))
		}
		w.check("t")
		list, err := k.List(w.ctx(), thread("t"))
		w.must(err)
		if len(list) != 3 || !list[2].Head || list[2].Parent != "c2" || list[1].Head {
			t.Errorf("list = %+v", list)
		}
		changes, more, err := k.Diff(w.ctx(), thread("t"), "c2", "c3", 10)
		w.must(err)
		if got, want := changes, []core.TreeChange{
			{Path: "a.txt", Kind: "removed", From: 1}, {Path: "b.sh", Kind: "removed", From: 10},
			{Path: "c.txt", Kind: "added", To: 1}, {Path: "größer.txt", Kind: "removed", From: 2},
		}; !slices.Equal(got, want) || more {
			t.Errorf("changes = %+v, %t", got, more)
		}
		if _, more, _ = k.Diff(w.ctx(), thread("t"), "c2", "c3", 3); !more {
			t.Error("a fourth change is not told of")
		}
		report, err := k.Verify(w.ctx(), thread("t"), "", 0)
		w.must(err)
		if report.Checkpoint != "c3" || report.Packs < 2 || report.Read != report.Packs || len(report.Broken) != 0 {
			t.Errorf("report = %+v", report)
		}
		_, err = k.DeleteHead(w.ctx(), thread("t"), "c2")
		w.coded(err, "not-head")
		head, err := k.DeleteHead(w.ctx(), thread("t"), "c3")
		w.must(err)
		if head != "c2" {
			t.Errorf("head = %s, want c2", head)
		}
		w.must(w.save(w.ctx(), p, "t", "c3", first)) // the id is free again
		w.check("t")
	})
}

func TestVerifyTellsWhatIsBroken(t *testing.T) {
	kept(t, func(w *keeping) {
		k, p := w.keeper(w.store.Process), w.store.Process
		w.must(w.save(w.ctx(), p, "t", "c1", first))
		packs, err := p.Objects(w.ctx(), "acme/threads/t/packs/")
		w.must(err)
		w.store.Damage(packs[0].Key, []byte("other"))
		w.must(p.Delete(w.ctx(), packs[1].Key, packs[1].Version))
		report, err := k.Verify(w.ctx(), thread("t"), "c1", 1)
		w.must(err)
		slices.Sort(report.Broken)
		if want := []string{packs[0].Key, packs[1].Key}; !slices.Equal(report.Broken, want) {
			t.Errorf("broken = %v, want %v", report.Broken, want)
		}
	})
}

func TestKeepLeavesTheNewestAndTheNamed(t *testing.T) {
	kept(t, func(w *keeping) {
		k, p := w.keeper(w.store.Process), w.store.Process
		for i := range 5 {
			time.Sleep(time.Second)
			id := core.CheckpointID("c" + string(rune('1'+i)))
			q := saveOf("t", id)
			if i == 1 {
				q.Reason, q.Label = core.ReasonNamed, new("")
			}
			_, err := k.Save(w.ctx(), q)
			w.must(err)
			w.must(w.capture(w.ctx(), p, "t", tree{"n": string(id), "same": "s"}))
		}
		removed, err := k.Keep(w.ctx(), core.KeepRequest{ThreadKey: thread("t"), Newest: 2})
		w.must(err)
		if want := []core.CheckpointID{"c1", "c3"}; !slices.Equal(removed, want) {
			t.Errorf("removed %v, want %v", removed, want)
		}
		time.Sleep(core.CollectAge)
		report, err := k.Collect(w.ctx(), core.CollectRequest{ThreadKey: thread("t"), Apply: true})
		w.must(err)
		if report.Deleted == 0 || report.Missing != 0 {
			t.Errorf("report = %+v, want something removed", report)
		}
		w.check("t")
		// The head's parents are gone one by one; the newest that is left follows.
		for _, want := range []core.CheckpointID{"c4", "c2", ""} {
			head, err := k.Head(w.ctx(), thread("t"))
			w.must(err)
			next, err := k.DeleteHead(w.ctx(), thread("t"), head.ID)
			w.must(err)
			if next != want {
				t.Errorf("head after %s = %q, want %q", head.ID, next, want)
			}
		}
		_, err = k.Keep(w.ctx(), core.KeepRequest{ThreadKey: thread("t")})
		w.coded(err, "invalid-newest")
	})
}

func TestRestoreIsAStepOnACheckpoint(t *testing.T) {
	kept(t, func(w *keeping) {
		k, p := w.keeper(w.store.Process), w.store.Process
		q := core.RestoreRequest{ThreadKey: thread("t"), ID: "restore-1", Key: "key-t", Instance: "i-t"}
		_, err := k.Restore(w.ctx(), q)
		w.coded(err, "checkpoint-not-found")
		w.must(w.save(w.ctx(), p, "t", "c1", first))
		w.must(w.save(w.ctx(), p, "t", "c2", third))
		q.Checkpoint = "c1"
		report, err := k.Restore(w.ctx(), q)
		w.must(err)
		job := w.jobs["t"]
		if report.State != core.StepWorking || job.Kind != core.StepRestore || job.Checkpoint != "c1" {
			t.Fatalf("report = %+v, job = %+v", report, job)
		}
		a := &capturer{w: w, ctx: w.ctx(), p: p, k: k, id: "t", token: job.Token}
		_, _, err = k.Grant(w.ctx(), job.Token, []core.PackRef{packOf("x")})
		w.coded(err, "no-capture")
		_, err = k.Fetch(w.ctx(), job.Token, []core.PackRef{packOf("C")})
		w.coded(err, "unknown-pack")
		root, err := k.Parent(w.ctx(), job.Token)
		w.must(err)
		entries, err := a.entriesOf(root)
		w.must(err)
		if len(entries) != len(first) {
			t.Errorf("%d entries, want %d", len(entries), len(first))
		}
		_, err = k.CommitRoot(w.ctx(), job.Token, root)
		w.coded(err, "invalid-entry")
		for range 2 {
			_, err = k.CommitRoot(w.ctx(), job.Token, nil)
			w.must(err)
		}
		report, err = k.Restore(w.ctx(), q)
		w.must(err)
		if report.State != core.StepDone || report.Checkpoint != "c1" {
			t.Errorf("report = %+v, want done", report)
		}
		th, err := w.store.Thread(w.ctx(), thread("t"))
		w.must(err)
		if th.Head != "c2" || th.Lease != (core.Lease{}) {
			t.Errorf("thread = %+v, want head and lease as they were", th)
		}
	})
}

func TestConversationMovesByVersion(t *testing.T) {
	kept(t, func(w *keeping) {
		k, p := w.keeper(w.store.Process), w.store.Process
		_, _, err := k.Conversation(w.ctx(), thread("t"))
		if code(err) != "other: not found" {
			t.Errorf("error = %v, want not found", err)
		}
		q := saveOf("t", "checkpoint-r1")
		q.Run = "r1"
		_, err = k.Save(w.ctx(), q)
		w.must(err)
		w.must(w.capture(w.ctx(), p, "t", first))
		head, err := k.Head(w.ctx(), thread("t"))
		w.must(err)
		if want := []core.RunID{"r1"}; !slices.Equal(head.PendingRuns, want) {
			t.Errorf("pending = %v, want %v", head.PendingRuns, want)
		}
		for range 2 { // a repeat has succeeded
			c, err := k.PutConversation(w.ctx(), thread("t"), 0, []byte("hello"), []core.RunID{"r1"})
			w.must(err)
			if c.Version != 1 {
				t.Errorf("version %d, want 1", c.Version)
			}
		}
		_, err = k.PutConversation(w.ctx(), thread("t"), 0, []byte("other"), nil)
		w.coded(err, "stale-conversation")
		_, err = k.PutConversation(w.ctx(), thread("t"), 1, nil, nil) // an empty one is one
		w.must(err)
		q = saveOf("t", "checkpoint-r1b")
		q.Run = "r1" // folded already
		_, err = k.Save(w.ctx(), q)
		w.must(err)
		w.must(w.capture(w.ctx(), p, "t", second))
		if head, err = k.Head(w.ctx(), thread("t")); err != nil || len(head.PendingRuns) != 0 {
			t.Errorf("pending = %v, %v; want none", head.PendingRuns, err)
		}
		c, data, err := k.Conversation(w.ctx(), thread("t"))
		w.must(err)
		if c.Version != 2 || len(data) != 0 {
			t.Errorf("conversation %+v of %d bytes", c, len(data))
		}
		w.check("t")
	})
}

func TestACheckpointHasRoomForAllArtifacts(t *testing.T) {
	kept(t, func(w *keeping) {
		k, p := w.keeper(w.store.Process), w.store.Process
		longest := func(i int) core.Artifact {
			text := fmt.Sprintf("%0*d", core.MaxIDs, i)
			return core.Artifact{Run: core.RunID(text[core.MaxIDs/2:]), ID: text[core.MaxIDs/2:], Name: text, MIME: text}
		}
		var err error
		n := 0
		for ; err == nil && n < core.MaxArtifacts; n++ {
			_, err = k.PutArtifact(w.ctx(), thread("t"), longest(n), []byte("art"))
		}
		w.coded(err, "too-large")
		have, err := p.Artifacts(w.ctx(), thread("t"))
		w.must(err)
		if len(have) != n-1 || n < 50 {
			t.Errorf("%d artifacts, want the %d that were taken", len(have), n-1)
		}
		_, err = k.PutArtifact(w.ctx(), thread("t"), longest(0), []byte("in its place"))
		w.must(err)
		w.must(w.save(w.ctx(), p, "t", "c1", first))
		c, err := p.FindCheckpoint(w.ctx(), "acme", "c1")
		w.must(err)
		text, err := json.Marshal(c)
		w.must(err)
		// 64 runs each, folded and pending, are what else may be long.
		if room := 400<<10 - 2*core.MaxFolded*core.MaxIDs; len(text) > room || len(c.Artifacts) != n-1 {
			t.Errorf("a checkpoint of %d artifacts has %d bytes, want %d at most", len(c.Artifacts), len(text), room)
		}
	})
}

func TestForkBeginsBranchesThatOutliveTheirSource(t *testing.T) {
	kept(t, func(w *keeping) {
		k, p := w.keeper(w.store.Process), w.store.Process
		_, err := k.PutConversation(w.ctx(), thread("t"), 0, []byte("said"), nil)
		w.must(err)
		_, err = k.PutArtifact(w.ctx(), thread("t"), core.Artifact{Run: "r", ID: "a", Name: "n", MIME: "m"}, []byte("art"))
		w.must(err)
		w.must(w.save(w.ctx(), p, "t", "c1", first))
		w.must(w.save(w.ctx(), p, "t", "c2", second))
		fork := core.ForkRequest{Source: thread("t"), Checkpoint: "c1", Branches: []core.ForkBranch{{Thread: "u", ID: "u1"}, {Thread: "v", ID: "v1"}}}
		for range 2 {
			made, err := k.Fork(w.ctx(), fork)
			w.must(err)
			if len(made) != 2 || made[0].Reason != core.ReasonForkRoot || made[0].ForkOf != "c1" || made[0].Parent != "" || made[0].Label != nil {
				t.Errorf("made %+v", made)
			}
		}
		w.check("t", "u", "v")
		// A branch goes on, and a branch is forked again.
		w.box("u")
		w.must(w.save(w.ctx(), p, "u", "u2", tree{"a.txt": "A", "new": "N"}))
		_, err = k.Fork(w.ctx(), core.ForkRequest{Source: thread("u"), Branches: []core.ForkBranch{{Thread: "x", ID: "x1"}}})
		w.must(err)
		w.trees["x1"] = w.trees["u2"]
		w.check("t", "u", "v", "x")
		// The source and the first branch lose everything.
		for _, id := range []core.ThreadID{"t", "u"} {
			w.emptyOut(id)
		}
		if w.collectTwice("t", "u", "v", "x") == 0 {
			t.Error("nothing was collected")
		}
		_, data, err := k.ReadArtifact(w.ctx(), thread("v"), "v1", "a")
		w.must(err)
		if string(data) != "art" {
			t.Errorf("artifact %q", data)
		}
		_, data, err = k.Conversation(w.ctx(), thread("v"))
		w.must(err)
		if string(data) != "said" {
			t.Errorf("conversation %q", data)
		}
		// With the last branch everything goes.
		for _, id := range []core.ThreadID{"v", "x"} {
			w.emptyOut(id)
		}
		w.collectTwice("x", "v", "u", "t")
		for _, id := range []core.ThreadID{"t", "u", "v", "x"} {
			objects, err := p.Objects(w.ctx(), core.ThreadPrefix(thread(id))+"packs/")
			w.must(err)
			if len(objects) != 0 {
				t.Errorf("packs of %s are left that nothing needs: %v", id, objects)
			}
		}
	})
}

// emptyOut deletes one head of a thread after the other.
func (w *keeping) emptyOut(id core.ThreadID) {
	w.t.Helper()
	for w.head(id) != "" {
		_, err := w.keeper(w.store.Process).DeleteHead(w.ctx(), thread(id), w.head(id))
		w.must(err)
	}
}

// collectTwice collects the threads in turn, checks after each, and tells how many objects
// went.
func (w *keeping) collectTwice(threads ...core.ThreadID) (deleted int) {
	w.t.Helper()
	for range 2 {
		time.Sleep(core.CollectAge)
		for _, id := range threads {
			report, err := w.keeper(w.store.Process).Collect(w.ctx(), core.CollectRequest{ThreadKey: thread(id), Apply: true})
			w.must(err)
			deleted += report.Deleted
			w.check(threads...)
		}
	}
	return deleted
}

func TestForkIsBounded(t *testing.T) {
	kept(t, func(w *keeping) {
		k, p := w.keeper(w.store.Process), w.store.Process
		w.must(w.save(w.ctx(), p, "t", "c1", first))
		fork := core.ForkRequest{Source: thread("t")}
		for i := range 30 {
			id := string(rune('A' + i))
			fork.Branches = append(fork.Branches, core.ForkBranch{Thread: core.ThreadID("u" + id), ID: core.CheckpointID("u" + id)})
		}
		_, err := k.Fork(w.ctx(), fork)
		w.coded(err, "too-many-branches")
		th, err := w.store.Thread(w.ctx(), thread("uA"))
		w.must(err)
		if !th.Empty() || th.Lease != (core.Lease{}) {
			t.Errorf("thread = %+v, want it untouched", th)
		}
		fork.Branches = fork.Branches[:24]
		_, err = k.Fork(w.ctx(), fork)
		w.must(err)
		fork.Branches = []core.ForkBranch{{Thread: "w", ID: "w1"}, {Thread: "w", ID: "w2"}}
		_, err = k.Fork(w.ctx(), fork)
		w.coded(err, "invalid-branches")
		_, err = k.Fork(w.ctx(), core.ForkRequest{Source: thread("t")})
		w.coded(err, "invalid-branches")
	})
}

func TestCollectPlansWithoutTouchingAnything(t *testing.T) {
	kept(t, func(w *keeping) {
		k := w.keeper(w.store.Process)
		w.must(w.save(w.ctx(), w.store.Process, "t", "c1", first))
		w.must(w.save(w.ctx(), w.store.Process, "t", "c2", third))
		_, err := k.DeleteHead(w.ctx(), thread("t"), "c2")
		w.must(err)
		young, err := k.Collect(w.ctx(), core.CollectRequest{ThreadKey: thread("t")})
		w.must(err)
		if young.Garbage != 0 || young.Young != 3 || young.Needed != 3 {
			t.Errorf("report = %+v, want nothing that is old enough", young)
		}
		time.Sleep(core.CollectAge)
		p := w.store.NewProcess(mem.Faults{})
		plan, err := w.keeper(p).Collect(w.ctx(), core.CollectRequest{ThreadKey: thread("t")})
		w.must(err)
		if plan.Garbage != 3 || plan.Reclaimed == 0 || plan.Deleted != 0 || len(p.Writes()) != 0 {
			t.Errorf("report = %+v after writes %v", plan, p.Writes())
		}
		some, err := k.Collect(w.ctx(), core.CollectRequest{ThreadKey: thread("t"), Apply: true, Most: 2})
		w.must(err)
		if some.Deleted != 2 || !some.More {
			t.Errorf("report = %+v, want two and more", some)
		}
		rest, err := k.Collect(w.ctx(), core.CollectRequest{ThreadKey: thread("t"), Apply: true})
		w.must(err)
		if rest.Deleted != 1 || rest.Needed != 3 || rest.Objects != 4 {
			t.Errorf("report = %+v, want the last", rest)
		}
		keys, err := k.ThreadKeys(w.ctx())
		w.must(err)
		if want := []core.ThreadKey{thread("t")}; !slices.Equal(keys, want) {
			t.Errorf("threads = %v", keys)
		}
		w.check("t")
	})
}

func TestAForksPinsOutliveItsRoot(t *testing.T) {
	kept(t, func(w *keeping) {
		k, p := w.keeper(w.store.Process), w.store.Process
		w.box("u")
		w.must(w.save(w.ctx(), p, "t", "c1", first))
		_, err := k.Fork(w.ctx(), core.ForkRequest{Source: thread("t"), Branches: []core.ForkBranch{{Thread: "u", ID: "u1"}}})
		w.must(err)
		time.Sleep(time.Second)
		w.must(w.save(w.ctx(), p, "u", "u2", second)) // of the source's packs, and more
		_, err = k.Keep(w.ctx(), core.KeepRequest{ThreadKey: thread("u"), Newest: 1})
		w.must(err)
		_, err = k.DeleteHead(w.ctx(), thread("t"), "c1")
		w.must(err)
		for range 3 {
			time.Sleep(core.CollectAge)
			for _, id := range []core.ThreadID{"u", "t"} {
				_, err := w.keeper(w.store.NewProcess(mem.Faults{})).Collect(w.ctx(), core.CollectRequest{ThreadKey: thread(id), Apply: true})
				w.must(err)
				w.check("t", "u")
			}
		}
	})
}
