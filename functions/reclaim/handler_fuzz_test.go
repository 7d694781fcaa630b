package main

import (
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/aws/aws-lambda-go/events"
)

// Whatever a message holds, it is either done as a valid job or comes again.
func FuzzMessage(f *testing.F) {
	f.Add(`{"tenant":"a","run":"r1","key":"k","instance":"i1","kind":"end"}`)
	f.Add(`{"instance":"i3","kind":"ledger"}`)
	f.Add(`null`)
	f.Add(`{"instance":"i3","kind":"ledger"} {}`)
	f.Fuzz(func(t *testing.T, body string) {
		s := &script{}
		h := handler{s, slog.New(slog.DiscardHandler), nil}
		out, err := h.handle(t.Context(), events.SQSEvent{Records: []events.SQSMessage{message("m", body), message("good", `{"instance":"i","kind":"ledger"}`)}})
		if err != nil {
			t.Fatal(err)
		}
		if len(s.jobs)+len(out.BatchItemFailures) != 2 || s.jobs[len(s.jobs)-1].Instance != "i" {
			t.Errorf("%d done, failed %v; want each in one of them, and the good one done", len(s.jobs), failed(out))
		}
		if _, err := json.Marshal(out); err != nil {
			t.Error(err)
		}
	})
}
