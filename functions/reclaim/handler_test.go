package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/boot/boottest"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// script answers each instance as told, and notes who came.
type script struct {
	fail map[core.InstanceID]bool
	jobs []core.ReclaimJob
}

func (s *script) Do(_ context.Context, job core.ReclaimJob) (core.ReclaimOutcome, error) {
	if err := job.Validate(); err != nil {
		return core.ReclaimDestroyFailed, err
	}
	s.jobs = append(s.jobs, job)
	if s.fail[job.Instance] {
		return core.ReclaimDestroyFailed, errors.New("throttled")
	}
	return core.ReclaimDestroyed, nil
}

func message(id, body string) events.SQSMessage { return events.SQSMessage{MessageId: id, Body: body} }

func failed(r events.SQSEventResponse) []string {
	var ids []string
	for _, f := range r.BatchItemFailures {
		ids = append(ids, f.ItemIdentifier)
	}
	return ids
}

func TestOnlyWhatFailedComesAgain(t *testing.T) {
	s := &script{fail: map[core.InstanceID]bool{"i2": true}}
	h := handler{s, slog.New(slog.DiscardHandler), nil}
	out, err := h.handle(t.Context(), events.SQSEvent{Records: []events.SQSMessage{
		message("m1", `{"tenant":"a","run":"r1","key":"k","instance":"i1","kind":"end"}`),
		message("m2", `{"tenant":"a","run":"r2","key":"k","instance":"i2","kind":"end"}`),
		message("m3", `{"instance":"i3","kind":"ledger"}`),
		message("poison", `{"tenant":`),
		message("unknown kind", `{"instance":"i4","kind":"nuke"}`),
		message("unknown member", `{"instance":"i5","kind":"ledger","force":true}`),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"m2", "poison", "unknown kind", "unknown member"}; !slices.Equal(failed(out), want) {
		t.Errorf("failed %v, want %v", failed(out), want)
	}
	if len(s.jobs) != 3 {
		t.Errorf("did %+v", s.jobs)
	}
}

// TestAFailureSaysWhoseItIs: run, instance and kind are members of its line, not only part
// of its text.
func TestAFailureSaysWhoseItIs(t *testing.T) {
	var log bytes.Buffer
	h := handler{&script{fail: map[core.InstanceID]bool{"i2": true}}, slog.New(slog.NewJSONHandler(&log, nil)), nil}
	if _, err := h.handle(t.Context(), events.SQSEvent{Records: []events.SQSMessage{message("m2", `{"tenant":"a","run":"r2","key":"k","instance":"i2","kind":"end"}`)}}); err != nil {
		t.Fatal(err)
	}
	var told map[string]any
	if err := json.Unmarshal(log.Bytes(), &told); err != nil {
		t.Fatal(err)
	}
	for member, want := range map[string]string{"level": "ERROR", "run": "a/r2", "instance": "i2", "kind": "end", "outcome": "destroy-failed", "messageId": "m2"} {
		if told[member] != want {
			t.Errorf("%s: told %v, want %s", member, told[member], want)
		}
	}
}

func TestAnEventWithoutRecordsIsOneClearError(t *testing.T) {
	s := &script{}
	var batch events.SQSEvent
	if err := json.Unmarshal([]byte(`{"instance":"i1","kind":"ledger"}`), &batch); err != nil {
		t.Fatal(err)
	}
	out, err := handler{s, slog.New(slog.DiscardHandler), nil}.handle(t.Context(), batch)
	if err == nil || err.Error() != "reclaim: want records of SQS, got none" || len(s.jobs) != 0 {
		t.Errorf("answered %v, %v after %+v", failed(out), err, s.jobs)
	}
}

func TestAMessageWithoutTimeGoesBackUntouched(t *testing.T) {
	s := &script{}
	ctx, cancel := context.WithTimeout(t.Context(), jobReserve/2)
	defer cancel()
	out, err := handler{s, slog.New(slog.DiscardHandler), nil}.handle(ctx, events.SQSEvent{Records: []events.SQSMessage{
		message("m1", `{"instance":"i3","kind":"ledger"}`),
	}})
	if err != nil || !slices.Equal(failed(out), []string{"m1"}) || len(s.jobs) != 0 {
		t.Errorf("answered %v, %v after %+v", failed(out), err, s.jobs)
	}
}

func TestTheSampleBatchIsUnderstood(t *testing.T) {
	data, err := os.ReadFile("../../events/reclaim.json")
	if err != nil {
		t.Fatal(err)
	}
	var batch events.SQSEvent
	if err := json.Unmarshal(data, &batch); err != nil {
		t.Fatal(err)
	}
	s := &script{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := handler{s, slog.New(slog.DiscardHandler), nil}.handle(ctx, batch)
	if err != nil || len(out.BatchItemFailures) != 0 || len(s.jobs) != len(batch.Records) || len(s.jobs) == 0 {
		t.Errorf("answered %v, %v after %+v", failed(out), err, s.jobs)
	}
}

// Whatever the stack may say of a failed checkpoint, the use case is told the same.
func TestTheStackChoosesWhatAFailedCheckpointDoes(t *testing.T) {
	boottest.Environment(t, names.Reclaim)
	wants := map[string]core.OnFailure{"hold": core.HoldOnFailure, "release": core.ReleaseOnFailure}
	for _, value := range names.Values[names.OnFailure] {
		want, known := wants[value]
		t.Setenv(string(names.OnFailure), value)
		if got := wire(boot.New(names.Reclaim)).OnFailure; !known || got != want {
			t.Errorf("%s: got %q, want %q", value, got, want)
		}
	}
	if len(wants) != len(names.Values[names.OnFailure]) {
		t.Errorf("values %q, want those of %v", names.Values[names.OnFailure], wants)
	}
}

// abroad is a use case that meets another provider's sandbox.
type abroad struct{}

func (abroad) Do(context.Context, core.ReclaimJob) (core.ReclaimOutcome, error) {
	return core.ReclaimProviderMismatch, nil
}

// TestASandboxThatIsLeftAloneForGoodIsAWarning: its mark is gone, and until the next audit
// nothing else tells of it.
func TestASandboxThatIsLeftAloneForGoodIsAWarning(t *testing.T) {
	var log bytes.Buffer
	h := handler{abroad{}, slog.New(slog.NewJSONHandler(&log, nil)), nil}
	body := `{"tenant":"a","run":"r","key":"k","instance":"i","kind":"end"}`
	if out, err := h.handle(t.Context(), events.SQSEvent{Records: []events.SQSMessage{message("m", body)}}); err != nil || len(out.BatchItemFailures) != 0 {
		t.Fatalf("answered %+v, %v", out, err)
	}
	if !strings.Contains(log.String(), `"level":"WARN","msg":"reclaim","run":"a/r"`) || !strings.Contains(log.String(), `"outcome":"provider-mismatch"`) {
		t.Errorf("told %s", &log)
	}
}
