package coretest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// RunLog checks the contract of [core.RunLog], and of [core.LogWriter] over it.
func RunLog(t *testing.T, open Open) {
	checks := map[string]func(t *testing.T, s Stores){
		"Append puts the segment and moves the end":            logAppend,
		"Append without bytes writes the run only":             logSeal,
		"Append that has landed already is a success":          logLanded,
		"Append that is refused puts no segment":               logRefused,
		"Append to a run that does not exist is not found":     logMissing,
		"Append by many at once to one place has one winner":   logRace,
		"Append meets other writes and does not lose to them":  logConflict,
		"Segments lists the whole log in order, all pages":     logPages,
		"a piece that was omitted has no bytes":                logOmitted,
		"Segments of one run are no other's, and none is none": logApart,
		"A log written in pieces reads back whole":             logWhole,
	}
	for name, check := range checks {
		t.Run(name, func(t *testing.T) { check(t, open(t)) })
	}
}

// piece is an append of text at from, with its segment.
func piece(epoch, from int64, text string) (core.Append, core.Segment) {
	sum := sha256.Sum256([]byte(text))
	end := from + int64(len(text))
	a := core.Append{Epoch: epoch, From: from, End: end, Hash: fmt.Appendf(nil, "state at %d", end), Tail: []byte(text)}
	return a, core.Segment{From: from, End: end, Epoch: epoch, SHA256: hex.EncodeToString(sum[:]), Inline: []byte(text)}
}

func logAppend(t *testing.T, s Stores) {
	r := detached("acme", "r")
	must(t, s.Seed.Run(t.Context(), r))
	a, first := piece(1, 0, "first\n")
	got, err := s.Log.Append(t.Context(), r.RunKey, a, first)
	must(t, err)
	want, err := a.Apply(r)
	must(t, err)
	equal(t, "the answer", got, want)

	b, second := piece(1, 6, "second\n")
	b.Sealed = &core.Sealed{ExitCode: 3, At: 4000}
	want, err = b.Apply(want)
	must(t, err)
	got, err = s.Log.Append(t.Context(), r.RunKey, b, second)
	must(t, err)
	equal(t, "the second answer", got, want)
	stored, err := s.Runs.Run(t.Context(), r.RunKey)
	must(t, err)
	equal(t, "the record", stored, want)
	segments, err := s.Log.Segments(t.Context(), r.RunKey)
	must(t, err)
	equal(t, "the log", segments, []core.Segment{first, second})
}

func logSeal(t *testing.T, s Stores) {
	r := detached("acme", "r")
	must(t, s.Seed.Run(t.Context(), r))
	a := core.Append{Epoch: 1, Hash: []byte("state"), Sealed: &core.Sealed{At: 3000, Stderr: "why"}}
	got, err := s.Log.Append(t.Context(), r.RunKey, a, core.Segment{Epoch: 1})
	must(t, err)
	want, err := a.Apply(r)
	must(t, err)
	equal(t, "the answer", got, want)
	segments, err := s.Log.Segments(t.Context(), r.RunKey)
	must(t, err)
	equal(t, "segments", len(segments), 0)
}

func logLanded(t *testing.T, s Stores) {
	r := detached("acme", "r")
	must(t, s.Seed.Run(t.Context(), r))
	a, segment := piece(1, 0, "once\n")
	first, err := s.Log.Append(t.Context(), r.RunKey, a, segment)
	must(t, err)
	again, err := s.Log.Append(t.Context(), r.RunKey, a, segment)
	must(t, err)
	equal(t, "the second answer", again, first)
	segments, err := s.Log.Segments(t.Context(), r.RunKey)
	must(t, err)
	equal(t, "the log", segments, []core.Segment{segment})
}

func logRefused(t *testing.T, s Stores) {
	sealed := detached("acme", "sealed")
	sealed.Sealed = &core.Sealed{At: 1}
	further := detached("acme", "further")
	further.LogEnd = 5
	tests := []struct {
		run   core.Run
		epoch int64
		why   string
	}{
		{detached("acme", "epoch"), 2, "epoch"},
		{ended("acme", "ended"), 1, "terminal"},
		{sealed, 1, "sealed"},
		{further, 1, "log-end"},
	}
	for _, tt := range tests {
		must(t, s.Seed.Run(t.Context(), tt.run))
		a, segment := piece(tt.epoch, 0, "lost\n")
		if tt.why == "log-end" {
			a, segment = piece(tt.epoch, 0, "longer")
		}
		_, err := s.Log.Append(t.Context(), tt.run.RunKey, a, segment)
		refusedAs(t, err, tt.why)
		segments, err := s.Log.Segments(t.Context(), tt.run.RunKey)
		must(t, err)
		equal(t, "segments of "+tt.why, len(segments), 0)
		got, err := s.Runs.Run(t.Context(), tt.run.RunKey)
		must(t, err)
		equal(t, "the run of "+tt.why, got, tt.run)
	}
}

func logMissing(t *testing.T, s Stores) {
	key := core.RunKey{Tenant: "acme", Run: "none"}
	a, segment := piece(1, 0, "lost\n")
	_, err := s.Log.Append(t.Context(), key, a, segment)
	notFound(t, err)
	_, err = s.Log.Append(t.Context(), key, core.Append{Epoch: 1, Sealed: &core.Sealed{At: 1}}, core.Segment{})
	notFound(t, err)
	segments, err := s.Log.Segments(t.Context(), key)
	must(t, err)
	equal(t, "segments", len(segments), 0)
}

func logRace(t *testing.T, s Stores) {
	r := detached("acme", "r")
	must(t, s.Seed.Run(t.Context(), r))
	oneWins(t, together(6, func(i int) error {
		a, segment := piece(1, 0, "contender"[:3+i])
		_, err := s.Log.Append(t.Context(), r.RunKey, a, segment)
		return err
	}))
	segments, err := s.Log.Segments(t.Context(), r.RunKey)
	must(t, err)
	got, err := s.Runs.Run(t.Context(), r.RunKey)
	must(t, err)
	if len(segments) != 1 || segments[0].End != got.LogEnd {
		t.Errorf("log end %d with segments %v, want one that ends there", got.LogEnd, segments)
	}
}

func logConflict(t *testing.T, s Stores) {
	r := detached("acme", "r")
	r.TaskARN = "task"
	must(t, s.Seed.Run(t.Context(), r))
	errs := together(2, func(i int) error {
		for n := range int64(10) {
			if err := logEither(t, s, r.RunKey, i == 0, n); err != nil {
				return err
			}
		}
		return nil
	})
	for i, err := range errs {
		if err != nil {
			t.Errorf("writer %d: %v, want both to get through", i, err)
		}
	}
	got, err := s.Runs.Run(t.Context(), r.RunKey)
	must(t, err)
	if got.LogEnd != 10 || got.TaskStoppedAt == 0 {
		t.Errorf("log end %d, hint %d; want both writers' work", got.LogEnd, got.TaskStoppedAt)
	}
}

// logEither appends one byte or leaves a hint.
func logEither(t *testing.T, s Stores, key core.RunKey, appends bool, n int64) error {
	if appends {
		a, segment := piece(1, n, "x")
		_, err := s.Log.Append(t.Context(), key, a, segment)
		return err
	}
	_, err := s.Runs.Update(t.Context(), key, core.Hint{TaskARN: "task", TaskStoppedAt: core.Millis(n + 1), Row: core.RowDetached})
	return err
}

func logPages(t *testing.T, s Stores) {
	r := detached("acme", "r")
	must(t, s.Seed.Run(t.Context(), r))
	const size, count = 8 << 10, 140 // more than a megabyte, a store's largest page
	text := string(bytes.Repeat([]byte{'x'}, size))
	for i := range int64(count) {
		a, segment := piece(1, i*size, text)
		_, err := s.Log.Append(t.Context(), r.RunKey, a, segment)
		must(t, err)
	}
	segments, err := s.Log.Segments(t.Context(), r.RunKey)
	must(t, err)
	equal(t, "segments", len(segments), count)
	for i, segment := range segments {
		if segment.From != int64(i)*size {
			t.Fatalf("segment %d begins at %d", i, segment.From)
		}
	}
}

func logApart(t *testing.T, s Stores) {
	r, other := detached("acme", "r"), detached("acme", "r2")
	must(t, s.Seed.Run(t.Context(), r))
	must(t, s.Seed.Run(t.Context(), other))
	a, segment := piece(1, 0, "mine\n")
	_, err := s.Log.Append(t.Context(), r.RunKey, a, segment)
	must(t, err)
	for _, key := range []core.RunKey{other.RunKey, {Tenant: "beta", Run: "r"}} {
		segments, err := s.Log.Segments(t.Context(), key)
		must(t, err)
		equal(t, "segments of "+key.String(), len(segments), 0)
	}
}

func logWhole(t *testing.T, s Stores) {
	r := detached("acme", "r")
	must(t, s.Seed.Run(t.Context(), r))
	w := &core.LogWriter{Log: s.Log, Blobs: s.Blobs, Inline: 64}
	var want []byte
	var err error
	for i, size := range []int{1, 64, 65, 5000} {
		data := bytes.Repeat([]byte{byte('a' + i)}, size)
		want = append(want, data...)
		r, err = w.Append(t.Context(), r, data, nil)
		must(t, err)
	}
	r, err = w.Append(t.Context(), r, nil, &core.Sealed{ExitCode: 1, At: 9000})
	must(t, err)
	got, err := core.ReadLog(t.Context(), s.Log, s.Blobs, r.RunKey)
	must(t, err)
	sum := sha256.Sum256(want)
	digest, err := core.LogSHA256(r)
	must(t, err)
	if !bytes.Equal(got, want) || digest != hex.EncodeToString(sum[:]) {
		t.Errorf("read %d bytes with digest %s, want the %d written", len(got), digest, len(want))
	}
}

func logOmitted(t *testing.T, s Stores) {
	r := whole("acme", "r")
	r.Status, r.Sealed, r.Transcript, r.FinishedAt = core.Running, nil, nil, 0
	r.Row, r.DueAt, r.Reclaim, r.ReclaimSince = core.RowDetached, 0, core.ReclaimNone, 0
	must(t, s.Seed.Run(t.Context(), r))
	a := core.Append{Epoch: r.Epoch, From: r.LogEnd, End: r.LogEnd + 1000, Hash: r.LogHash, Omitted: 1000}
	segment := core.Segment{From: a.From, End: a.End, Epoch: r.Epoch, Omitted: true}
	after, err := s.Log.Append(t.Context(), r.RunKey, a, segment)
	must(t, err)
	equal(t, "log end", after.LogEnd, a.End)
	equal(t, "omitted", after.LogOmitted, int64(1000))
	segments, err := s.Log.Segments(t.Context(), r.RunKey)
	must(t, err)
	equal(t, "the log", segments, []core.Segment{segment})
}
