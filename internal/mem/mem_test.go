package mem_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

var key = core.RunKey{Tenant: "acme", Run: "r1"}

// attached is a run as a host's start leaves it.
func attached() core.Run {
	return core.Run{
		RunKey: key, Thread: "t1", Status: core.Running, StartedAt: 1000, Epoch: 1, ClaimNonce: "host",
		AttachedUntil: 2000, Row: core.RowLapse, DueAt: 2000, Instance: "i1", TaskARN: "task/1", SandboxKey: "k1", Cluster: "c",
	}
}

// complaints is a testing.TB that keeps what it is told instead of failing.
type complaints struct {
	testing.TB
	mu   sync.Mutex
	text []string
}

func (c *complaints) Helper() {}

func (c *complaints) Errorf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text = append(c.text, fmt.Sprintf(format, args...))
}

func (c *complaints) about(rule string) bool {
	for _, line := range c.text {
		if strings.Contains(line, rule) {
			return true
		}
	}
	return false
}

func TestEachFaultDoesWhatItSays(t *testing.T) {
	detach := core.Detach{Epoch: 1, Now: 1500}
	tests := []struct {
		fault         mem.Fault
		landed, after bool // the write is there; later calls still work
		cause         error
	}{
		{mem.None, true, true, nil},
		{mem.NotLanded, false, true, mem.ErrInjected},
		{mem.AnswerLost, true, true, mem.ErrInjected},
		{mem.StopBefore, false, false, mem.ErrStopped},
		{mem.StopAfter, true, false, mem.ErrStopped},
	}
	for _, tt := range tests {
		t.Run(tt.fault.String(), func(t *testing.T) {
			s := mem.New(t)
			s.SeedLaunched(attached())
			p := s.NewProcess(mem.At(2, tt.fault))
			if _, err := p.Run(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			_, err := p.Update(t.Context(), key, detach)
			if !errors.Is(err, tt.cause) {
				t.Errorf("Update = %v, want %v", err, tt.cause)
			}
			if got := s.State().Runs[key].Row == core.RowDetached; got != tt.landed {
				t.Errorf("landed = %t, want %t", got, tt.landed)
			}
			if _, err := p.Run(t.Context(), key); (err == nil) != tt.after {
				t.Errorf("a later call = %v, want working: %t", err, tt.after)
			}
			if p.Stopped() == tt.after {
				t.Errorf("Stopped = %t", p.Stopped())
			}
			s.Check(t)
		})
	}
}

func TestAProcessOfItsOwnIsNotTouchedByAnothersPlan(t *testing.T) {
	s := mem.New(t)
	s.SeedLaunched(attached())
	dead := s.NewProcess(mem.At(1, mem.StopBefore))
	if _, err := dead.Run(t.Context(), key); !errors.Is(err, mem.ErrStopped) {
		t.Fatalf("Run = %v", err)
	}
	if _, err := s.Run(t.Context(), key); err != nil {
		t.Errorf("the other process: %v", err)
	}
}

func TestBeforeLetsAnotherProcessIn(t *testing.T) {
	s := mem.New(t)
	s.SeedLaunched(attached())
	host := s.NewProcess(mem.Faults{})
	p := s.NewProcess(mem.Faults{Before: func(ctx context.Context, name string) {
		if name != "lapse" {
			return
		}
		if _, err := host.Update(ctx, key, core.Renew{Epoch: 1, Until: 9000}); err != nil {
			t.Error(err)
		}
	}})
	if _, err := p.Update(t.Context(), key, core.Lapse{DueAt: 2000}); !core.Refused(err) {
		t.Errorf("Lapse = %v, want refused: the host renewed just before", err)
	}
	if got := p.Calls(); len(got) != 1 || got[0] != "lapse" {
		t.Errorf("Calls = %v", got)
	}
	if got := p.Writes(); len(got) != 0 {
		t.Errorf("Writes = %v, want none", got)
	}
}

func TestAnEndedContextReachesNothing(t *testing.T) {
	s := mem.New(t)
	s.SeedLaunched(attached())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Update(ctx, key, core.Detach{Epoch: 1, Now: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("Update = %v", err)
	}
	if len(s.Writes()) != 0 {
		t.Error("it wrote")
	}
}

func TestALaggingIndexShowsTheStateBefore(t *testing.T) {
	s := mem.New(t)
	s.SeedLaunched(attached())
	s.SeedRow(core.LedgerRow{Instance: "i2", State: core.LedgerStopping, DueAt: 500})
	if _, err := s.Update(t.Context(), key, core.Detach{Epoch: 1, Now: 1500}); err != nil {
		t.Fatal(err)
	}
	s.SetIndexLag(1)
	if d, due := list(t, s); len(d) != 0 || len(due) != 1 {
		t.Errorf("lagging: detached %v, due %v; want only the former row", d, due)
	}
	s.SetIndexLag(2)
	if got := listSandboxes(t, s); len(got) != 0 {
		t.Errorf("lagging: a row that is not yet there: %v", got)
	}
	s.SetIndexLag(0)
	if d, due := list(t, s); len(d) != 1 || d[0].At != 1500 || len(due) != 0 {
		t.Errorf("caught up: detached %v, due %v", d, due)
	}
	if got := listSandboxes(t, s); len(got) != 1 || got[0].Instance != "i2" {
		t.Errorf("caught up: due rows %v", got)
	}
}

func list(t *testing.T, s *mem.Store) (detached, due []core.IndexEntry) {
	t.Helper()
	for shard := range core.Shards {
		d, err := s.Detached(t.Context(), shard)
		if err != nil {
			t.Fatal(err)
		}
		u, err := s.Due(t.Context(), shard, 1<<40)
		if err != nil {
			t.Fatal(err)
		}
		detached, due = append(detached, d...), append(due, u...)
	}
	return detached, due
}

func listSandboxes(t *testing.T, s *mem.Store) []core.DueSandbox {
	t.Helper()
	var out []core.DueSandbox
	for shard := range core.Shards {
		d, err := s.DueSandboxes(t.Context(), shard, 1<<40)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, d...)
	}
	return out
}

// rogue is a transition that obeys no rule.
type rogue func(core.Run) core.Run

func (rogue) Name() string                         { return "rogue" }
func (f rogue) Apply(r core.Run) (core.Run, error) { return f(r), nil }
func (rogue) Landed(core.Run) bool                 { return false }

func TestItAccusesWhatNoErrorReports(t *testing.T) {
	ended := func() core.Run {
		r := attached()
		r.Status, r.FinishedAt, r.Transcript = core.Completed, 3000, &core.Transcript{}
		r.AttachedUntil, r.Row, r.DueAt, r.Reclaim, r.ReclaimSince = 0, core.RowReclaim, 3000, core.ReclaimEnd, 3000
		return r
	}
	tests := []struct {
		name string
		from core.Run
		do   rogue
		rule string
	}{
		{"an ended run changes its exit code", ended(), func(r core.Run) core.Run { r.ExitCode = new(3); return r }, "reclaim mark only"},
		{"an epoch goes back", attached(), func(r core.Run) core.Run { r.Epoch = 0; return r }, "epoch grows"},
		{"a claim keeps the nonce", attached(), func(r core.Run) core.Run { r.Epoch++; return r }, "own nonce"},
		{"a log's end goes back", attached(), func(r core.Run) core.Run { r.LogEnd = -1; return r }, "never goes back"},
		{"a run leaves its index", attached(), func(r core.Run) core.Run { r.Row, r.DueAt = "", 0; return r }, "stands in an index"},
		{"a due row loses its time", attached(), func(r core.Run) core.Run { r.DueAt = 0; return r }, "has a time"},
		{"a run changes its task", attached(), func(r core.Run) core.Run { r.TaskARN = "task/2"; return r }, "keeps it"},
		{"a sweep asks for a cancel", attached(), func(r core.Run) core.Run { r.CancelRequested = 1; return r }, "user's wish"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			told := &complaints{TB: t}
			s := mem.New(told)
			s.SeedLaunched(tt.from)
			if _, err := s.Update(t.Context(), key, tt.do); err != nil {
				t.Fatal(err)
			}
			if !told.about(tt.rule) {
				t.Errorf("no complaint about %q; told %q", tt.rule, told.text)
			}
		})
	}
}

func TestItAccusesAMessageBeforeTheEnd(t *testing.T) {
	told := &complaints{TB: t}
	s := mem.New(told)
	s.SeedLaunched(attached())
	job := core.ReclaimJob{Tenant: "acme", Run: "r1", Key: "k1", Instance: "i1", Kind: core.JobEnd}
	if err := s.Send(t.Context(), []core.ReclaimJob{job}); err != nil {
		t.Fatal(err)
	}
	if !told.about("reclaimed after it") {
		t.Errorf("told %q", told.text)
	}
	if got := s.TakeJobs(); len(got) != 1 || got[0] != job {
		t.Errorf("TakeJobs = %v", got)
	}
}

func TestItAccusesBytesWithoutASegment(t *testing.T) {
	told := &complaints{TB: t}
	s := mem.New(told)
	s.SeedLaunched(attached())
	if _, err := s.Update(t.Context(), key, core.Append{Epoch: 1, From: 0, End: 3}); err != nil {
		t.Fatal(err)
	}
	if !told.about("with their segment") {
		t.Errorf("told %q", told.text)
	}
}

func TestItAccusesASegmentWithoutItsBytes(t *testing.T) {
	told := &complaints{TB: t}
	s := mem.New(told)
	s.SeedLaunched(attached())
	a := core.Append{Epoch: 1, From: 0, End: 3, Hash: nil}
	if _, err := s.Append(t.Context(), key, a, core.Segment{From: 0, End: 3, Epoch: 1, SHA256: "00", Blob: "nowhere"}); err != nil {
		t.Fatal(err)
	}
	if !told.about("stored before") {
		t.Errorf("told %q", told.text)
	}
}

func TestCheckFindsABreach(t *testing.T) {
	tests := []struct {
		name string
		seed func(s *mem.Store)
		rule string
	}{
		{"a log with a gap", func(s *mem.Store) { r := attached(); r.LogEnd = 5; s.SeedLaunched(r) }, "(I3)"},
		{"an ended run without a transcript", func(s *mem.Store) { r := attached(); r.Status = core.Failed; s.SeedLaunched(r) }, "(I4)"},
		{"a task without a ledger row", func(s *mem.Store) { s.SeedRun(attached()) }, "(I6)"},
		{"a detached run that does not say since when", func(s *mem.Store) {
			r := attached()
			r.Row, r.DueAt = core.RowDetached, 0
			s.SeedLaunched(r)
		}, "(I9)"},
		{"a run in no index", func(s *mem.Store) { r := attached(); r.Row, r.DueAt = "", 0; s.SeedLaunched(r) }, "(I15)"},
		{"a sandbox nobody comes back to", func(s *mem.Store) {
			s.SeedLaunched(attached())
			r := attached()
			r.Status, r.Row, r.DueAt = core.Completed, "", 0
			s.SeedRun(r)
		}, "nothing leads to it"},
		{"a stopping row that is not due", func(s *mem.Store) { s.SeedRow(core.LedgerRow{Instance: "x", State: core.LedgerStopping}) }, "(I15)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := mem.New(t)
			tt.seed(s)
			told := &complaints{TB: t}
			s.Check(told)
			if !told.about(tt.rule) {
				t.Errorf("no complaint about %s; told %q", tt.rule, told.text)
			}
		})
	}
}

func TestCheckPassesASoundStore(t *testing.T) {
	s := mem.New(t)
	s.SeedLaunched(attached())
	s.Check(t)
}
