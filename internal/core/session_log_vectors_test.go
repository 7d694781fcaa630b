package core_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

var _ = exemptVectors(
	vectorExemption{
		file: "delivery_sink", name: "append fails at the marker",
		reason: "an append that fails costs nothing: what it did not bring is in the journal still, and the run does not end before it is in the log (I5)",
	},
	vectorExemption{
		file: "resume_driver", name: "interrupted",
		reason: "a paused run is gone on for by a run that names it as its parent (DESIGN 4.1); nobody attaches to it",
	},
	vectorExemption{
		file: "resume_driver", name: "unknown status",
		reason: "the statuses are a closed set; a record with another cannot be read",
	},
	vectorExemption{
		file: "resume_driver", cases: unlessQuirk(func(in resuming) bool { return in.RunIDQuery != nil || in.Header != "" }),
		reason: "no HTTP route serves the log: a run is named in the request (DESIGN 9)",
	},
	vectorExemption{
		file: "attach_preflight", cases: unlessQuirk(func(in preflight) bool { return in.Store == "throws" || in.NoStore }),
		reason: "every run has its record (DESIGN 4.1), and one that cannot be read is an error, which its host repeats",
	},
)

// delivering is a question of delivery_sink.
type delivering struct {
	Chunks   []string
	Abort    *struct{ Before int }
	Detached *bool
	Close    string
}

// delivered is what is left of it: the lines of the log, and whether it is closed for good.
type delivered struct {
	Appended []string
	Closed   bool
}

// chunkNames are the chunks of an agent as its lines.
var chunkNames = map[string]string{"started": "RUN_STARTED", "text": "TEXT_MESSAGE_CONTENT", "finished": "RUN_FINISHED", "toolEnd": "TOOL_CALL_END"}

// TestDeliverySinkVectors has an agent write chunks as lines, and its host finish or cancel
// the run: the log has every line that came before, in order, and is closed once, by the end
// of the run alone. What the original adds to the log of itself is no line of an agent's.
func TestDeliverySinkVectors(t *testing.T) {
	compareVectors(t, "delivery_sink", func(t *testing.T, c vectorCase) error {
		var in delivering
		var result struct {
			Appended []string
			Closes   int
		}
		c.decode(t, &in, &result)
		want := delivered{Closed: result.Closes == 1, Appended: []string{}}
		for _, name := range result.Appended {
			if name != "CUSTOM:run.accepted" && name != "RUN_ERROR" {
				want.Appended = append(want.Appended, name)
			}
		}
		return inBubble(t, func(t *testing.T) error { return differ(in.deliver(newHosting(t)), want) })
	})
}

func (in delivering) deliver(h *hosting) delivered {
	me := host{h, "r", "one"}
	h.ready(startOf("r", "one"))
	status := 0
	for i, chunk := range in.Chunks {
		if in.Abort != nil && i == in.Abort.Before {
			break
		}
		if chunk == "throw" {
			status = 1
			continue
		}
		h.fleet.Write("r", chunkNames[chunk]+"\n")
	}
	if in.Abort != nil && in.Abort.Before < len(in.Chunks) {
		_, err := me.cancel()
		h.must(err)
	} else {
		h.fleet.Exit("r", status)
		if in.Close != "" { // the end's write fails, and is made again
			_, _ = h.session(h.failing("finish")).Finish(h.t.Context(), core.FinishRequest{RunKey: key("r"), Host: hostOf("one")})
		}
		_, err := me.finish(nil)
		h.must(err)
	}
	r := h.run("r")
	_, again := (&core.LogWriter{Log: h.store, Blobs: h.store, Inline: 100}).Append(h.t.Context(), r, []byte("late\n"), nil)
	return delivered{append([]string{}, strings.Fields(h.transcript("r"))...), r.Status.Terminal() && core.Refused(again)}
}

// resuming is a question of resume_driver.
type resuming struct {
	Record *struct {
		Status          string
		CancelRequested bool
		DetachedSince   core.Millis
	}
	Claim, Header string
	RunIDQuery    *bool
}

// resumed is whether the run is driven, and whether it is detached then.
type resumed struct{ Driven, Detached bool }

// TestResumeDriverVectors has another host attach to a run that is as the case says. Its log
// is read in any case.
func TestResumeDriverVectors(t *testing.T) {
	compareVectors(t, "resume_driver", func(t *testing.T, c vectorCase) error {
		var in resuming
		var result struct {
			Order  []string
			Record *struct{ DetachedSince core.Millis }
		}
		c.decode(t, &in, &result)
		want := resumed{Driven: slices.Contains(result.Order, "pipe")}
		want.Detached = result.Record != nil && result.Record.DetachedSince != 0
		return inBubble(t, func(t *testing.T) error { return differ(in.resume(newHosting(t)), want) })
	})
}

func (in resuming) resume(h *hosting) resumed {
	me := host{h, "r", "two"}
	if in.Record == nil {
		_, err := me.attach(false)
		return resumed{Driven: err == nil}
	}
	h.ready(startOf("r", "one"))
	h.fleet.Write("r", "a line\n")
	if in.Record.DetachedSince != 0 || in.Record.Status == "" {
		h.detach("r")
	}
	switch core.Status(in.Record.Status) {
	case core.Failed:
		_, err := host{h, "r", "one"}.fail()
		h.must(err)
	case core.Aborted:
		_, err := host{h, "r", "one"}.cancel()
		h.must(err)
	case core.Interrupted:
		_, err := host{h, "r", "one"}.interrupt()
		h.must(err)
	case "", core.Running:
	default:
		return resumed{Driven: true} // nothing has such a status
	}
	if in.Record.CancelRequested {
		_, err := h.self().Cancel(h.t.Context(), core.CancelRequest{RunKey: key("r")})
		h.must(err)
	}
	if in.RunIDQuery != nil || in.Header != "" {
		return resumed{Driven: true}
	}
	s := h.self()
	if in.Claim == "refused" { // the claim's write does not land
		s = h.session(h.failing("attach"))
	}
	_, err := s.Attach(h.t.Context(), core.AttachRequest{RunKey: key("r"), Host: hostOf("two")})
	if _, readErr := h.self().Tail(h.t.Context(), core.TailRequest{RunKey: key("r")}); readErr != nil {
		h.t.Errorf("the log is not served: %v", readErr)
	}
	return resumed{err == nil, h.run("r").DetachedSince != 0 && !h.run("r").Status.Terminal()}
}

// preflight is a question of attach_preflight.
type preflight struct {
	Probes         []string // yes, no, error; the last repeats
	Record         *struct{ Status string }
	NoStore        bool
	Store          string
	Aborted        bool
	WaitMs, EachMs int64
}

// TestAttachPreflightVectors has a host attach to a run and read its journal from the
// beginning: it is there, comes while the host waits, or does not.
func TestAttachPreflightVectors(t *testing.T) {
	compareVectors(t, "attach_preflight", func(t *testing.T, c vectorCase) error {
		var in preflight
		var want struct{ Reason string }
		c.decode(t, &in, &want)
		if want.Reason == "journal-timeout" {
			want.Reason = "journal-stalled" // as it is called here
		}
		if in.Record == nil && !in.NoStore && in.Store == "" {
			h := newHosting(t)
			_, err := host{h, "r", "two"}.attach(false)
			return differ(reasonOfRefusal(err), want.Reason)
		}
		return inBubble(t, func(t *testing.T) error { return differ(in.attach(newHosting(t)), want.Reason) })
	})
}

func reasonOfRefusal(err error) string {
	if e, ok := errors.AsType[*core.RefusedError](err); ok {
		return e.Why
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return err.Error()
	}
	return ""
}

// attach lets the journal come as the probes say, three seconds a probe.
func (in preflight) attach(h *hosting) string {
	if in.NoStore || in.Store != "" {
		return "no such world"
	}
	h.ready(startOf("r", "one"))
	if in.Record.Status == "failed" {
		_, err := host{h, "r", "one"}.fail()
		h.must(err)
	} else {
		h.detach("r")
	}
	if _, err := (host{h, "r", "two"}).attach(false); err != nil {
		return reasonOfRefusal(err)
	}
	ctx, cancel := context.WithCancel(h.t.Context())
	defer cancel()
	asked := 0
	faults := mem.Faults{Choose: func(call string) mem.Fault {
		fails := call == "page" && in.Probes[min(asked, len(in.Probes)-1)] == "error"
		if asked++; in.Aborted && asked > 1 {
			cancel()
		}
		return map[bool]mem.Fault{true: mem.NotLanded}[fails]
	}}
	if n := slices.Index(in.Probes, "yes"); n >= 0 {
		time.AfterFunc(time.Duration(n)*3*time.Second, func() { h.fleet.Write("r", "a line\n") })
	}
	s := h.session(h.store.NewProcess(faults))
	waiting := ""
	for range 8 { // as long as a host has patience
		report, err := s.Tail(ctx, core.TailRequest{RunKey: key("r"), Host: hostOf("two"), WaitSeconds: 25, StallSeconds: 20})
		if waiting = report.Waiting; err != nil || len(report.Data) > 0 {
			return reasonOfRefusal(err)
		}
	}
	return "waits: " + waiting
}

// reading names a file of vectors where a test reads it.
var reading = regexp.MustCompile(`"([a-z0-9_]+)(?:\.json)?"`)

// TestEveryFileOfVectorsIsRead: each is compared case by case, here or in another package,
// or listed with the reason why there is nothing to compare.
func TestEveryFileOfVectorsIsRead(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(vectorDirectory(t), "*.json"))
	if err != nil || len(files) < 45 {
		t.Fatalf("found %d files of vectors, %v; want 45", len(files), err)
	}
	read := map[string]bool{}
	for _, pattern := range []string{"*_vectors_test.go", "../*/vectors_test.go", "../*/*_vectors_test.go", "../../functions/*/vectors_test.go"} {
		tests, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, test := range tests {
			text, err := os.ReadFile(test)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range reading.FindAllStringSubmatch(string(text), -1) {
				read[name[1]] = true
			}
		}
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		if _, listed := unmatchedVectors[name]; !read[name] && !listed {
			t.Errorf("no test reads %s, and it is not listed", name)
		}
	}
}
