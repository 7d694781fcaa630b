package coretest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Blobs checks the contract of [core.Blobs].
func Blobs(t *testing.T, open Open) {
	t.Run("Blob of a key that does not exist is not found", func(t *testing.T) {
		_, err := open(t).Blobs.Blob(t.Context(), "none")
		notFound(t, err)
	})
	t.Run("PutBlob stores bytes, Blob returns them", func(t *testing.T) {
		s := open(t)
		for key, data := range map[string][]byte{
			"acme/logs/r/1-n-0000000000000000": []byte("text\n"), "empty": {}, "a b/ü+%2F": {0, 255}, "large": bytes.Repeat([]byte("0123456789abcdef"), 1<<16),
		} {
			must(t, s.Blobs.PutBlob(t.Context(), key, data))
			got, err := s.Blobs.Blob(t.Context(), key)
			must(t, err)
			if !bytes.Equal(got, data) {
				t.Errorf("blob %q has %d bytes, want the %d stored", key, len(got), len(data))
			}
		}
	})
	t.Run("PutBlob of the same bytes again is a success, of others a conflict", func(t *testing.T) {
		s := open(t)
		for range 2 {
			must(t, s.Blobs.PutBlob(t.Context(), "k", []byte("first")))
		}
		for _, other := range []string{"other", "first and more", ""} {
			err := s.Blobs.PutBlob(t.Context(), "k", []byte(other))
			if e, ok := errors.AsType[*core.BlobConflictError](err); !ok || e.Key != "k" {
				t.Errorf("PutBlob(%q) = %v, want a conflict", other, err)
			}
		}
		got, err := s.Blobs.Blob(t.Context(), "k")
		must(t, err)
		equal(t, "blob", string(got), "first")
	})
	t.Run("PutBlob by many at once keeps one's bytes", func(t *testing.T) {
		s := open(t)
		errs := together(6, func(i int) error { return s.Blobs.PutBlob(t.Context(), "k", []byte{byte(i)}) })
		won := slices.Index(errs, nil)
		got, err := s.Blobs.Blob(t.Context(), "k")
		must(t, err)
		if won < 0 || !bytes.Equal(got, []byte{byte(won)}) {
			t.Errorf("blob = %v after %v, want the winner's", got, errs)
		}
		for i, err := range errs {
			if _, conflict := errors.AsType[*core.BlobConflictError](err); i != won && !conflict {
				t.Errorf("contender %d: %v, want a conflict", i, err)
			}
		}
	})
}

// ReclaimQueue checks the contract of [core.ReclaimQueue].
func ReclaimQueue(t *testing.T, open Open) {
	t.Run("Send takes every job, more than one request holds", func(t *testing.T) {
		s := open(t)
		want := map[core.ReclaimJob]bool{}
		var jobs []core.ReclaimJob
		for i := range 23 {
			r := ended("acme/ü", core.RunID(fmt.Sprint("r", i)))
			r.Instance, r.SandboxKey = core.InstanceID(fmt.Sprint("i", i)), "k"
			must(t, s.Seed.Run(t.Context(), r))
			job := core.ReclaimJob{Tenant: r.Tenant, Run: r.RunKey.Run, Key: "k", Instance: r.Instance, Kind: core.JobEnd}
			jobs, want[job] = append(jobs, job), true
		}
		must(t, s.Queue.Send(t.Context(), jobs))
		got, err := s.Seed.Received(t.Context(), len(jobs))
		must(t, err)
		equal(t, "jobs", len(got), len(want))
		for _, job := range got {
			if !want[job] {
				t.Errorf("received %+v, which was not sent", job)
			}
		}
	})
	t.Run("Send keeps each kind of job as it is", func(t *testing.T) {
		s := open(t)
		r := ended("acme", "r")
		r.Instance = "i1"
		must(t, s.Seed.Run(t.Context(), r))
		must(t, s.Seed.Row(t.Context(), intent("i2")))
		for _, job := range []core.ReclaimJob{
			{Tenant: "acme", Run: "r", Instance: "i1", Kind: core.JobIdle},
			{Tenant: "acme", Key: "k", Instance: "i1", Kind: core.JobDue},
			{Instance: "i2", Kind: core.JobLedger},
		} {
			must(t, s.Queue.Send(t.Context(), []core.ReclaimJob{job}))
			got, err := s.Seed.Received(t.Context(), 1)
			must(t, err)
			equal(t, "received", got, []core.ReclaimJob{job})
		}
	})
	t.Run("Send of nothing is a success", func(t *testing.T) {
		must(t, open(t).Queue.Send(t.Context(), nil))
	})
}

// Audit checks the contract of [core.AuditLog].
func Audit(t *testing.T, open Open) {
	t.Run("Record appends, entries of one moment too", func(t *testing.T) {
		s := open(t)
		const day = 24 * 60 * 60 * 1000
		want := []core.AuditEntry{
			{At: 3 * day, By: "ops", Why: "a drill", Op: "freeze", Subject: "the installation"},
			{At: 3 * day, By: "ops", Why: "a drill", Op: "freeze", Subject: "the installation"},
			{At: 3*day + 1, By: "größer", Why: "over", Op: "hold", Subject: "acme/r", Detail: "until then"},
		}
		for _, e := range want {
			must(t, s.Audit.Record(t.Context(), e))
		}
		got, err := s.Seed.Audited(t.Context(), 3*day)
		must(t, err)
		equal(t, "entries", got, want)
	})
}

// Controls checks the contracts of [core.Controls] and [core.ControlWriter].
func Controls(t *testing.T, open Open) {
	t.Run("Control without settings is the zero value", func(t *testing.T) {
		got, err := open(t).Controls.Control(t.Context())
		must(t, err)
		equal(t, "control", got, core.Control{})
	})
	t.Run("UpdateControl without settings begins from the zero value", func(t *testing.T) {
		s := open(t)
		_, err := s.Settings.UpdateControl(t.Context(), core.CountEnds{Seen: core.Breaker{Count: 1}, N: 1, Now: 5, Most: 9})
		refusedAs(t, err, "breaker")
		_, err = s.Settings.UpdateControl(t.Context(), core.SetMode{Mode: "both"})
		refusedAs(t, err, "mode")
		got, err := s.Controls.Control(t.Context())
		must(t, err)
		equal(t, "control after refusals", got, core.Control{})
		count := core.CountEnds{N: 2, Now: 5, Window: 10, Most: 9}
		got, err = s.Settings.UpdateControl(t.Context(), count)
		must(t, err)
		equal(t, "the answer", got, core.Control{Breaker: count.Next()})
		got, err = s.Controls.Control(t.Context())
		must(t, err)
		equal(t, "control", got, core.Control{Breaker: count.Next()})
	})
	t.Run("UpdateControl by many counts at once loses none", func(t *testing.T) {
		s := open(t)
		errs := together(5, func(int) error { return countOne(t, s) })
		must(t, errors.Join(errs...))
		got, err := s.Controls.Control(t.Context())
		must(t, err)
		equal(t, "count", got.Breaker.Count, 5)
	})
	t.Run("Control reads what was set last", func(t *testing.T) {
		s := open(t)
		for _, want := range []core.Control{{Mode: core.Observe}, {Mode: core.Enforce, Frozen: true}, {Frozen: true}, {}} {
			must(t, s.Seed.Control(t.Context(), want))
			got, err := s.Controls.Control(t.Context())
			must(t, err)
			equal(t, "control", got, want)
		}
	})
}

// countOne counts one end, reading again for as long as others were first.
func countOne(t *testing.T, s Stores) error {
	for {
		c, err := s.Controls.Control(t.Context())
		if err != nil {
			return err
		}
		_, err = s.Settings.UpdateControl(t.Context(), core.CountEnds{Seen: c.Breaker, N: 1, Now: 5, Window: time.Hour, Most: 99})
		if !core.Refused(err) {
			return err
		}
	}
}

// Notes checks the contract of [core.Notes].
func Notes(t *testing.T, open Open) {
	k := core.RunKey{Tenant: "acme", Run: "r"}
	t.Run("Note of none is the zero note", func(t *testing.T) {
		got, err := open(t).Notes.Note(t.Context(), k)
		must(t, err)
		equal(t, "note", got, core.Note{})
	})
	t.Run("PutNote replaces it, and no other's, and not the record", func(t *testing.T) {
		s := open(t)
		must(t, s.Seed.Run(t.Context(), detached("acme", "r")))
		whole := core.Note{
			EndFailing: 60, EndTried: 65, HeldSince: 70, Warned: 80,
			At: 1, UnknownSince: 2, Reason: "target-not-connected", Healing: core.Retry, Count: 3,
			DeadSince: 4, DeadAs: core.DeadGone, Missing: 5,
		}
		for _, want := range []core.Note{whole, {At: 6}} {
			must(t, s.Notes.PutNote(t.Context(), k, want))
			got, err := s.Notes.Note(t.Context(), k)
			must(t, err)
			equal(t, "note", got, want)
		}
		got, err := s.Notes.Note(t.Context(), core.RunKey{Tenant: "beta", Run: "r"})
		must(t, err)
		equal(t, "another tenant's note", got, core.Note{})
		r, err := s.Runs.Run(t.Context(), k)
		must(t, err)
		equal(t, "the record", r, detached("acme", "r"))
		segments, err := s.Log.Segments(t.Context(), k)
		must(t, err)
		equal(t, "segments", len(segments), 0)
	})
}

// Warnings checks the mark of a warning, of [core.Notes].
func Warnings(t *testing.T, open Open) {
	k := core.RunKey{Tenant: "acme", Run: "r"}
	t.Run("MarkWarned marks a run that has no note, and keeps what a note has", func(t *testing.T) {
		s := open(t)
		must(t, s.Notes.MarkWarned(t.Context(), k, 0, 80))
		got, err := s.Notes.Note(t.Context(), k)
		must(t, err)
		equal(t, "note", got, core.Note{Warned: 80})
		got.HeldSince, got.At = 70, 1
		must(t, s.Notes.PutNote(t.Context(), k, got))
		must(t, s.Notes.MarkWarned(t.Context(), k, 80, 90))
		got, err = s.Notes.Note(t.Context(), k)
		must(t, err)
		equal(t, "note", got, core.Note{Warned: 90, HeldSince: 70, At: 1})
	})
	t.Run("MarkWarned is refused where it is not as read, and may be repeated", func(t *testing.T) {
		s := open(t)
		must(t, s.Notes.MarkWarned(t.Context(), k, 0, 80))
		must(t, s.Notes.MarkWarned(t.Context(), k, 0, 80))
		refusedAs(t, s.Notes.MarkWarned(t.Context(), k, 0, 90), "warned")
		got, err := s.Notes.Note(t.Context(), k)
		must(t, err)
		equal(t, "mark", got.Warned, core.Millis(80))
	})
}

// Cursors checks the contract of [core.Cursors].
func Cursors(t *testing.T, open Open) {
	first := core.Cursor{Shard: 3, AfterSince: 5, AfterRun: "acme/r", LapStarted: 7}
	t.Run("Cursor of none is at the beginning", func(t *testing.T) {
		got, err := open(t).Cursors.Cursor(t.Context(), 3)
		must(t, err)
		equal(t, "cursor", got, core.Cursor{Shard: 3})
	})
	t.Run("MoveCursor moves one that is as read, each shard's own", func(t *testing.T) {
		s := open(t)
		must(t, s.Cursors.MoveCursor(t.Context(), core.Cursor{Shard: 3}, first))
		must(t, s.Cursors.MoveCursor(t.Context(), core.Cursor{Shard: 3}, first)) // its own success
		next := core.Cursor{Shard: 3, AfterSince: 9, AfterRun: "acme/s"}
		must(t, s.Cursors.MoveCursor(t.Context(), first, next))
		got, err := s.Cursors.Cursor(t.Context(), 3)
		must(t, err)
		equal(t, "cursor", got, next)
		got, err = s.Cursors.Cursor(t.Context(), 4)
		must(t, err)
		equal(t, "another shard's", got, core.Cursor{Shard: 4})
	})
	t.Run("MoveCursor of one that moved meanwhile is refused", func(t *testing.T) {
		s := open(t)
		must(t, s.Cursors.MoveCursor(t.Context(), core.Cursor{Shard: 3}, first))
		refusedAs(t, s.Cursors.MoveCursor(t.Context(), core.Cursor{Shard: 3}, core.Cursor{Shard: 3, AfterSince: 9}), "cursor")
		got, err := s.Cursors.Cursor(t.Context(), 3)
		must(t, err)
		equal(t, "cursor", got, first)
	})
}

// Budget checks the contract of [core.Budget].
func Budget(t *testing.T, open Open) {
	t.Run("Take gives what is wanted, then what is left, then nothing", func(t *testing.T) {
		s := open(t)
		for _, want := range []int{4, 4, 2, 0} {
			got, err := s.Budget.Take(t.Context(), 60_000, 4, 10)
			must(t, err)
			equal(t, "tokens", got, want)
		}
		got, err := s.Budget.Take(t.Context(), 120_000, 4, 10)
		must(t, err)
		equal(t, "tokens of the next minute", got, 4)
	})
	t.Run("Take by many at once never gives more than there is", func(t *testing.T) {
		s := open(t)
		got := make([]int, 6)
		must(t, errors.Join(together(len(got), func(i int) (err error) {
			got[i], err = s.Budget.Take(t.Context(), 60_000, 3, 10)
			return err
		})...))
		sum := 0
		for _, n := range got {
			sum += n
		}
		if sum > 10 || sum == 0 {
			t.Errorf("took %v of 10", got)
		}
	})
}
