package core_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// bridging is a run whose agent holds a bearer, and what is on the other side.
type bridging struct {
	*world
	bearer string
	agent  core.RunAgent
	invoke func(ctx context.Context, function string, payload []byte) ([]byte, error)
	nudged []core.RunKey
	keys   []string // of grants
}

func (b *bridging) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bridging) Invoke(ctx context.Context, function string, payload []byte) ([]byte, error) {
	return b.invoke(ctx, function, payload)
}

func (b *bridging) InvokeAsync(context.Context, string, []byte) error {
	return errors.New("no tool is called so")
}

func (b *bridging) Nudge(_ context.Context, key core.RunKey) error {
	b.nudged = append(b.nudged, key)
	return nil
}

func (b *bridging) GrantPut(_ context.Context, key, sum string, size int64, life time.Duration) (core.Grant, error) {
	b.keys = append(b.keys, key)
	return core.Grant{URL: "u", Until: now().Add(life)}, nil
}

func (b *bridging) bridge(p *mem.Process) *core.Bridge {
	return &core.Bridge{Runs: p, Functions: b, Nudger: b, Grants: b, Quotas: p, Limits: b.limits}
}

// newBridging has a run begun whose list has three tools.
func newBridging(t *testing.T) *bridging {
	t.Helper()
	b := &bridging{world: newWorld(t)}
	r := b.begin("r", func(q *core.RunRequest) {
		q.Tools = []core.ToolBinding{{Name: "slow", Function: "f"}, {Name: "short", Function: "g", TimeoutSeconds: 7}, {Name: "long", Function: "h", TimeoutSeconds: 100_000}}
	})
	var hash string
	b.bearer, hash = core.MintBearer(r.RunKey)
	if _, err := b.store.Update(t.Context(), r.RunKey, core.AddBearer{Epoch: r.Epoch, Bearer: hash}); err != nil {
		t.Fatal(err)
	}
	var err error
	if b.agent, err = b.bridge(b.store.Process).Admit(t.Context(), b.bearer); err != nil {
		t.Fatal(err)
	}
	return b
}

func codeOf(err error) string {
	if e, ok := errors.AsType[*core.ToolError](err); ok {
		return e.Code
	}
	if e, ok := errors.AsType[*core.InvalidError](err); ok {
		return e.Code
	}
	return fmt.Sprint(err)
}

// TestACallEndsWithItsRun: within 2 s of a recorded cancel, a decided end or the end, while
// what cannot be read ends nothing.
func TestACallEndsWithItsRun(t *testing.T) {
	tests := []struct {
		name string
		end  func(b *bridging)
		want string // "": the call goes on to its result
	}{
		{"a cancel", func(b *bridging) {
			_, err := core.RequestCancelOf(b.t.Context(), b.store, key("r"))
			b.must(err)
		}, core.ToolCancelled},
		{"an expiry", func(b *bridging) {
			b.detach("r")
			r := b.run("r")
			_, err := b.store.Update(b.t.Context(), r.RunKey, core.Claim{Seen: r.Epoch, Since: r.DetachedSince, Nonce: "sweep", Now: now(), Until: now().Add(time.Minute), Ending: core.EndExpired})
			b.must(err)
		}, core.ToolCancelled},
		{"its host's leave", func(b *bridging) { b.detach("r") }, ""},
		{"a store that cannot be read", func(*bridging) {}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBridging(t)
				b.invoke = func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
					select {
					case <-time.After(30 * time.Second):
						return []byte(`"late"`), nil
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				}
				at := make(chan time.Time, 1)
				go func() {
					time.Sleep(10 * time.Second)
					at <- time.Now()
					tt.end(b)
				}()
				p := b.store.NewProcess(mem.Faults{})
				if tt.name == "a store that cannot be read" {
					p = b.failing("read run")
				}
				result, err := b.bridge(p).Call(t.Context(), b.agent, "slow", nil)
				took := time.Since(<-at)
				switch {
				case tt.want == "" && (err != nil || string(result) != `"late"`):
					t.Errorf("result %s, %v", result, err)
				case tt.want != "" && (codeOf(err) != tt.want || took > 2*time.Second):
					t.Errorf("error %v, %s after the end", err, took)
				}
			})
		})
	}
}

// TestACallHasTheTimeOfItsTool: its own, the default one, the longest that there is, or
// what is left of the function's.
func TestACallHasTheTimeOfItsTool(t *testing.T) {
	tests := []struct {
		tool string
		left time.Duration // of the function; 0: enough
		want time.Duration
	}{
		{"slow", 0, core.DefaultToolTimeout}, {"short", 0, 7 * time.Second}, {"long", 0, core.MaxToolTimeout}, {"slow", 20 * time.Second, 17 * time.Second},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s of %s", tt.tool, tt.want), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBridging(t)
				b.invoke = func(ctx context.Context, _ string, _ []byte) ([]byte, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				ctx := t.Context()
				if tt.left > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.left)
					defer cancel()
				}
				begun := time.Now()
				_, err := b.bridge(b.store.Process).Call(ctx, b.agent, tt.tool, nil)
				if took := time.Since(begun); codeOf(err) != core.ToolTimeout || took != tt.want {
					t.Errorf("error %v after %s, want %s", err, took, tt.want)
				}
			})
		})
	}
}

// TestWhoCallsIsReadFromTheRecord: whatever the arguments say.
func TestWhoCallsIsReadFromTheRecord(t *testing.T) {
	b := newBridging(t)
	var got struct {
		Name    string
		Args    json.RawMessage
		Context map[string]string
	}
	b.invoke = func(_ context.Context, function string, payload []byte) ([]byte, error) {
		return []byte("\n {} "), json.Unmarshal(payload, &got)
	}
	result, err := b.bridge(b.store.Process).Call(t.Context(), b.agent, "slow", json.RawMessage(` {"context":{"tenant":"other"},"n":1e400} `))
	if err != nil || string(result) != "{}" {
		t.Errorf("result %s, %v", result, err)
	}
	if got.Name != "slow" || string(got.Args) != `{"context":{"tenant":"other"},"n":1e400}` || len(got.Context) != 3 ||
		got.Context["tenant"] != "acme" || got.Context["thread"] != "thread-r" || got.Context["run"] != "r" {
		t.Errorf("called with %+v %s", got, got.Args)
	}
}

// TestAFailureIsToldInPart: as long a message as a tool may have, in whole characters.
func TestAFailureIsToldInPart(t *testing.T) {
	b := newBridging(t)
	b.invoke = func(context.Context, string, []byte) ([]byte, error) {
		return nil, &core.FunctionError{Function: "f", Message: strings.Repeat("ü", 5000) + "\xff"}
	}
	_, err := b.bridge(b.store.Process).Call(t.Context(), b.agent, "slow", nil)
	if want := "tool-failed: tool slow: " + strings.Repeat("ü", 1000); err == nil || err.Error() != want {
		t.Errorf("error %.100v…", err)
	}
}

// TestAnEndIsHeardOnce: at every call that fails, what was heard stays heard, and one that
// was not may be said again.
func TestAnEndIsHeardOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBridging(t)
		for range 3 {
			b.must(b.bridge(b.store.Process).Ended(t.Context(), b.agent))
		}
		if r := b.run("r"); r.ExitedAt != now() || r.Row != core.RowLapse || r.DueAt != now().Add(b.limits.HintLapse) || r.Status != core.Running {
			t.Errorf("run %+v", r)
		}
		if !slices.Equal(b.nudged, []core.RunKey{key("r")}) {
			t.Errorf("nudged %v", b.nudged)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		b := newBridging(t)
		if err := b.bridge(b.store.NewProcess(mem.At(1, mem.NotLanded))).Ended(t.Context(), b.agent); err == nil || len(b.nudged) != 0 {
			t.Errorf("error %v, nudged %v", err, b.nudged)
		}
		b.detach("r") // the record moves, and is read again
		b.must(b.bridge(b.store.Process).Ended(t.Context(), b.agent))
		if r := b.run("r"); r.ExitedAt != now() || r.Row != core.RowDetached || len(b.nudged) != 1 {
			t.Errorf("run %+v, nudged %v", r, b.nudged)
		}
	})
}

// TestAFalseEndEndsNothing: an agent that says that it has ended and works on costs its run
// nothing while its host is there, whatever the definition does at a lapse, and whether the
// host's next renewal comes before the look or after it.
func TestAFalseEndEndsNothing(t *testing.T) {
	for _, onLapse := range []core.OnLapse{core.LapseDetaches, core.LapseCancels} {
		for _, silent := range []time.Duration{20 * time.Second, 80 * time.Second} {
			synctest.Test(t, func(t *testing.T) {
				b := &bridging{world: newWorld(t)}
				r := b.begin("r", func(q *core.RunRequest) { q.OnLapse = onLapse })
				var hash string
				b.bearer, hash = core.MintBearer(r.RunKey)
				r, err := b.store.Update(t.Context(), r.RunKey, core.AddBearer{Epoch: r.Epoch, Bearer: hash})
				b.must(err)
				b.agent, err = b.bridge(b.store.Process).Admit(t.Context(), b.bearer)
				b.must(err)
				for range 5 {
					b.must(b.bridge(b.store.Process).Ended(t.Context(), b.agent))
					_, err := b.sweep(b.store.Process).Nudged(t.Context(), r.RunKey) // what that brings about
					b.must(err)
					for left := silent; left > 0; left -= 10 * time.Second {
						b.tick()
						time.Sleep(10 * time.Second)
					}
					_, err = b.store.Update(t.Context(), r.RunKey, core.Renew{Epoch: r.Epoch, Until: now().Add(b.limits.Attachment)})
					b.must(err)
					b.tick()
					got := b.run("r")
					if got.Status != core.Running || got.Ending != nil || got.CancelRequested != 0 || got.Epoch != r.Epoch || got.ClaimNonce != r.ClaimNonce || got.Row != core.RowLapse || !b.fleet.Alive("r") {
						t.Fatalf("on lapse %q, silent for %s: %+v", onLapse, silent, got)
					}
				}
				if len(b.nudged) != 1 {
					t.Errorf("nudged %d times", len(b.nudged))
				}
				b.check()
			})
		}
	}
}

// TestAnEndOfAnEndedRunIsNoNews.
func TestAnEndOfAnEndedRunIsNoNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBridging(t)
		b.detach("r")
		b.fleet.Exit("r", 0)
		b.tick()
		b.must(b.bridge(b.store.Process).Ended(t.Context(), b.agent))
		if r := b.run("r"); r.Status != core.Completed || len(b.nudged) != 0 {
			t.Errorf("%s, nudged %v", r.Status, b.nudged)
		}
		if _, err := b.bridge(b.store.Process).Admit(t.Context(), b.bearer); !errors.Is(err, core.ErrBearer) {
			t.Errorf("an ended run's bearer: %v", err)
		}
	})
}

func TestSpoolGrantsAreForTheRunsOwnKeys(t *testing.T) {
	b := newBridging(t)
	sum := strings.Repeat("0f", 32)
	pieces := []core.SpoolPiece{{From: 0, End: 5, SHA256: sum}, {From: 5, End: 1<<20 + 5, SHA256: sum}}
	leave, err := b.bridge(b.store.Process).Spool(t.Context(), b.agent, pieces)
	if err != nil || len(leave.Grants) != 2 || !leave.Watched {
		t.Fatalf("leave %+v, %v", leave, err)
	}
	want := []string{"acme/spool/r/0000000000000000-0000000000000005-" + sum, "acme/spool/r/0000000000000005-0000000001048581-" + sum}
	if !slices.Equal(b.keys, want) {
		t.Errorf("keys %q, want %q", b.keys, want)
	}
	b.keys = nil
	for name, bad := range map[string]core.SpoolPiece{
		"too long": {From: 0, End: 1<<20 + 1, SHA256: sum}, "empty": {From: 3, End: 3, SHA256: sum}, "before the journal": {From: -1, End: 3, SHA256: sum},
		"of another name": {From: 0, End: 1, SHA256: "../" + sum[3:]},
	} {
		if _, err := b.bridge(b.store.Process).Spool(t.Context(), b.agent, []core.SpoolPiece{pieces[0], bad}); codeOf(err) != "bad-request" || len(b.keys) != 0 {
			t.Errorf("%s: %v, granted %q", name, err, b.keys)
		}
	}
	b.detach("r")
	if agent, err := b.bridge(b.store.Process).Admit(t.Context(), b.bearer); err != nil {
		t.Error(err)
	} else if leave, err := b.bridge(b.store.Process).Spool(t.Context(), agent, pieces[:1]); err != nil || leave.Watched {
		t.Errorf("of a run that nobody has: %+v, %v", leave, err)
	}
}

// starts records what agents are begun with.
type starts struct {
	core.Provider
	sides []*core.Side
	lose  int // so many answers
}

func (s *starts) StartAgent(ctx context.Context, target core.ExecTarget, agent core.JournalStart, input []byte) (core.JournalStarted, error) {
	s.sides = append(s.sides, agent.Side)
	out, err := s.Provider.StartAgent(ctx, target, agent, input)
	if s.lose > 0 {
		s.lose--
		return core.JournalStarted{}, errors.New("the answer was lost")
	}
	return out, err
}

type place struct{ url, host string }

func (p place) AgentURL(context.Context) (string, string, error) { return p.url, p.host, nil }

// TestEachAttemptAtAnAgentHasABearer: written before the exec, so that also an agent whose
// start nobody heard of is known; the list is bounded, and the oldest goes.
func TestEachAttemptAtAnAgentHasABearer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		s := h.self()
		begun := &starts{Provider: s.Launcher.Provider, lose: core.MaxBearers + 1}
		s.Launcher.Provider, s.ToolsURL = begun, place{"https://tools.test", "h"}
		q := startOf("r", "one")
		q.Definition.Tools = []core.ToolPlan{{Name: "look", Description: "d", InputSchema: json.RawMessage(`{"type":"object"}`), Function: "f"}, {Name: "other", Function: "f"}}
		q.Tools = []string{"look"}
		q.Definition.Policy.Default = core.VerdictDeny
		s.HostFunctions = []string{"f"}
		for range 40 {
			if report, err := s.Start(t.Context(), q); err == nil && report.State == core.Ready {
				break
			}
			time.Sleep(time.Second)
		}
		r := h.run("r")
		if len(begun.sides) != core.MaxBearers+2 || len(r.Bearers) != core.MaxBearers || r.Start.ReadyAt == 0 {
			t.Fatalf("%d attempts, %d bearers, ready at %d", len(begun.sides), len(r.Bearers), r.Start.ReadyAt)
		}
		bridge := core.Bridge{Runs: h.store}
		for i, side := range begun.sides {
			_, err := bridge.Admit(t.Context(), side.Bearer)
			if known := i >= 2; (err == nil) != known {
				t.Errorf("bearer of attempt %d: %v", i, err)
			}
			if side.URL != "https://tools.test" || side.Host != "h" || !side.Nudge || !side.Spool || side.Policy == nil || len(side.Tools) != 1 || side.Tools[0].Name != "look" {
				t.Errorf("attempt %d has %+v beside it", i, side)
			}
			if text, _ := json.Marshal(r); bytes.Contains(text, []byte(side.Bearer)) {
				t.Errorf("the record holds a bearer: %s", text)
			}
		}
	})
}

// TestAToolNeedsAToolsFunction: without one the run ends, and says why.
func TestAToolNeedsAToolsFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosting(t)
		s := h.self()
		q := startOf("r", "one")
		q.Definition.Tools, s.HostFunctions = []core.ToolPlan{{Name: "look", Function: "f"}}, []string{"f"}
		var err error
		for range 5 {
			if _, err = s.Start(t.Context(), q); err != nil {
				break
			}
			time.Sleep(time.Second)
		}
		if e, ok := errors.AsType[*core.RefusedError](err); !ok || e.Why != "tools-unavailable" {
			t.Errorf("error %v", err)
		}
		if r := h.run("r"); r.Status == core.Running && r.CancelRequested == 0 {
			t.Errorf("run %+v", r)
		}
	})
}

func FuzzBearer(f *testing.F) {
	f.Add("acme", "r")
	f.Add("a.b", "größe/ü")
	f.Add("-", "_2e")
	f.Fuzz(func(t *testing.T, tenant, run string) {
		k := core.RunKey{Tenant: core.TenantID(tenant), Run: core.RunID(run)}
		if tenant == "" || run == "" || len(core.KeyToken(tenant))+len(core.KeyToken(run)) > core.MaxIDs {
			return
		}
		bearer, hash := core.MintBearer(k)
		if len(hash) != 64 || strings.ContainsAny(bearer, " \t\r\n\x00") || strings.Count(bearer, ".") != 2 {
			t.Errorf("bearer %q, hash %q", bearer, hash)
		}
		s := mem.New(t)
		s.SeedRun(core.Run{RunKey: k, Status: core.Running, Epoch: 1, Row: core.RowLapse, DueAt: 9, AttachedUntil: 9, Bearers: []string{hash}})
		agent, err := (&core.Bridge{Runs: s}).Admit(t.Context(), bearer)
		if err != nil || agent.Key() != k {
			t.Errorf("run %v of %q, %v, want %v", agent.Key(), bearer, err, k)
		}
	})
}
