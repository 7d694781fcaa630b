package core_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// uploads is a sandbox's agent that moves pieces of a journal into the blobs, and may be
// spoilt.
type uploads struct {
	p       *mem.Process
	journal string
	spoil   func(q core.UploadRequest, data []byte, reply *core.PushReply) []byte
	asked   int
}

func (u *uploads) Upload(ctx context.Context, q core.UploadRequest) (core.PushReply, error) {
	u.asked++
	data := []byte(u.journal)[q.From:min(q.From+q.Max, int64(len(u.journal)))]
	data = data[:core.DefaultJournal.Cut(q.Nonce, data, core.EdgeMore).Append]
	sum := sha256.Sum256(data)
	reply := core.PushReply{
		Size: int64(len(data)), SHA256: hex.EncodeToString(sum[:]), Stored: true, Overlap: []byte(u.journal[max(0, q.From-core.JournalOverlap):q.From]),
	}
	if u.spoil != nil {
		if data = u.spoil(q, data, &reply); data == nil {
			return core.PushReply{}, &core.JournalError{Op: "push", Healing: core.Configuration, Reason: core.ReasonAgentMissing}
		}
	}
	return reply, u.p.PutBlob(ctx, q.Key, data)
}

// big is a journal of many pages of the world's size.
var big = strings.Repeat("{\"type\":\"text\",\"text\":\"many pages\"}\n", 400)

// pushing is a world of small pages in which run r has ended with a big journal.
func pushing(t *testing.T) *world {
	w := newWorld(t)
	w.fleet.PageBytes, w.fleet.RestBytes, w.limits.Page = 500, 0, 500
	w.limits.UploadAbove, w.limits.UploadPiece = 1000, 3000
	w.begin("r", nil)
	w.fleet.Write("r", big)
	w.fleet.Exit("r", 0)
	w.detach("r")
	return w
}

func (w *world) pushed() int {
	n := 0
	for key := range w.store.State().Blobs {
		if strings.HasSuffix(key, "-pushed") {
			n++
		}
	}
	return n
}

// TestABigJournalGoesPastTheTerminal: the same bytes at the same positions, whatever the
// agent does; what cannot be used comes by pages.
func TestABigJournalGoesPastTheTerminal(t *testing.T) {
	for what, c := range map[string]struct {
		spoil func(q core.UploadRequest, data []byte, reply *core.PushReply) []byte
		used  bool
	}{
		"an agent that does":        {nil, true},
		"an image without an agent": {func(core.UploadRequest, []byte, *core.PushReply) []byte { return nil }, false},
		"an agent that stores other bytes": {func(_ core.UploadRequest, data []byte, _ *core.PushReply) []byte {
			return append(slices.Clone(data), 'x')
		}, false},
		"an agent that measures wrongly": {func(_ core.UploadRequest, data []byte, r *core.PushReply) []byte { r.Size++; return data }, false},
		"a journal that was rewritten meanwhile": {func(_ core.UploadRequest, data []byte, r *core.PushReply) []byte {
			r.Overlap = []byte(strings.Repeat("?", core.JournalOverlap))
			return data
		}, false},
		"an agent that goes over the sentinel": {func(q core.UploadRequest, _ []byte, r *core.PushReply) []byte {
			data := []byte("text\n" + core.DefaultJournal.Sentinel(q.Nonce, 0) + "\nmore\n")
			sum := sha256.Sum256(data)
			r.Size, r.SHA256 = int64(len(data)), hex.EncodeToString(sum[:])
			return data
		}, false},
		"an agent that stores more than was asked": {func(q core.UploadRequest, _ []byte, r *core.PushReply) []byte {
			data := []byte(big)[q.From : q.From+q.Max+10]
			sum := sha256.Sum256(data)
			r.Size, r.SHA256 = int64(len(data)), hex.EncodeToString(sum[:])
			return data
		}, false},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := pushing(t)
				s, u := w.sweep(w.store.Process), &uploads{p: w.store.Process, journal: big, spoil: c.spoil}
				s.Uploader = u
				if _, err := s.Run(t.Context(), core.SweepRequest{}); err != nil {
					t.Fatal(err)
				}
				w.drainQueue(w.store.Process)
				w.ended("r", core.Completed, big)
				if c.used && (w.pushed() < 4 || u.asked != w.pushed()) || !c.used && u.asked != 1 {
					t.Errorf("asked %d times, %d pieces stored", u.asked, w.pushed())
				}
				w.check()
			})
		})
	}
}

// TestAPushedTranscriptThatIsTooLongKeepsHeadAndTail as one by pages does.
func TestAPushedTranscriptThatIsTooLongKeepsHeadAndTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := pushing(t)
		w.limits.TranscriptCap = 8000
		s := w.sweep(w.store.Process)
		s.Uploader = &uploads{p: w.store.Process, journal: big}
		if _, err := s.Run(t.Context(), core.SweepRequest{}); err != nil {
			t.Fatal(err)
		}
		r, saved := w.run("r"), w.transcript("r")
		if r.Status != core.Completed || r.Transcript.Complete || r.Transcript.Omitted == 0 {
			t.Fatalf("%s, transcript %+v", r.Status, r.Transcript)
		}
		for head := 4000; head <= 4000+w.limits.Page; head++ {
			if rest := head + int(r.Transcript.Omitted); rest < len(big) && saved == big[:head]+big[rest:] {
				return
			}
		}
		t.Errorf("kept %d bytes, and they are not how it begins and ends", len(saved))
	})
}

// TestPushCrashMatrix stops a sweep that moves a big journal at every call, in every way;
// the next ones go on, and the transcript is whole (I5).
func TestPushCrashMatrix(t *testing.T) {
	calls := 0
	synctest.Test(t, func(t *testing.T) {
		w := pushing(t)
		p := w.store.NewProcess(mem.Faults{})
		s := w.sweep(p)
		s.Uploader = &uploads{p: p, journal: big}
		_, _ = s.Run(t.Context(), core.SweepRequest{})
		calls = len(p.Calls())
	})
	if calls < 30 {
		t.Fatalf("a sweep makes %d calls: it has shrunk", calls)
	}
	for n := 1; n <= calls; n++ {
		for _, fault := range []mem.Fault{mem.NotLanded, mem.AnswerLost, mem.StopBefore, mem.StopAfter} {
			synctest.Test(t, func(t *testing.T) {
				w := pushing(t)
				p := w.store.NewProcess(mem.At(n, fault))
				for range 4 {
					s := w.sweep(p)
					s.Uploader = &uploads{p: p, journal: big}
					_, _ = s.Run(t.Context(), core.SweepRequest{})
					w.drainQueue(w.store.Process)
					p = w.store.Process
					time.Sleep(2 * time.Minute)
				}
				w.ended("r", core.Completed, big)
				w.check()
			})
		}
	}
}

// granted is a store that grants, and keeps what it granted.
type granted struct{ key, sha256 string }

func (g *granted) GrantPut(_ context.Context, key, sha256 string, _ int64, _ time.Duration) (core.Grant, error) {
	g.key, g.sha256 = key, sha256
	return core.Grant{URL: "http://127.0.0.1/" + key, Header: map[string]string{"If-None-Match": "*"}}, nil
}

// pusher answers a measurement and then a store.
type pusher struct {
	asked   []core.PushRequest
	replies []core.PushReply
}

func (p *pusher) Push(_ context.Context, q core.PushRequest) (core.PushReply, error) {
	p.asked = append(p.asked, q)
	return p.replies[len(p.asked)-1], nil
}

// TestAnUploadIsGrantedForWhatWasMeasured, and counts only if that was stored.
func TestAnUploadIsGrantedForWhatWasMeasured(t *testing.T) {
	measured := core.PushReply{Size: 7, SHA256: strings.Repeat("a", 64)}
	stored := measured
	stored.Stored = true
	other := stored
	other.SHA256 = strings.Repeat("b", 64)
	q := core.UploadRequest{RunKey: key("r"), Nonce: strings.Repeat("0", 32), From: 5, Max: 9, Key: "k"}
	for what, c := range map[string]struct {
		replies []core.PushReply
		ok      bool
	}{
		"measured and stored":      {[]core.PushReply{measured, stored}, true},
		"only measured twice":      {[]core.PushReply{measured, measured}, false},
		"stored as something else": {[]core.PushReply{measured, other}, false},
		"nothing there":            {[]core.PushReply{{}}, false},
	} {
		grants, p := &granted{}, &pusher{replies: c.replies}
		got, err := core.GrantedUploader{Pusher: p, Grants: grants}.Upload(t.Context(), q)
		if (err == nil) != c.ok || c.ok && got.SHA256 != measured.SHA256 {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
		if c.ok && (grants.key != "k" || grants.sha256 != measured.SHA256 || p.asked[1].URL == "" || p.asked[1].Size != 7) {
			t.Errorf("%s: granted %+v, asked %+v", what, grants, p.asked)
		}
	}
}

// TestPushScript runs the script against programs in the agent's place.
func TestPushScript(t *testing.T) {
	sum := strings.Repeat("0f", 32)
	q := core.PushRequest{RunKey: key("r"), Nonce: strings.Repeat("0", 32), From: 3, Max: 100, URL: "http://127.0.0.1/x?secret=1", Size: 9, SHA256: sum}
	for what, c := range map[string]struct {
		agent, reason string
	}{
		"it stores":                      {"read -r line; case $line in *secret*) echo stored 9 " + sum + " 616263 ;; esac", ""},
		"it refuses":                     {"echo refused journal-short", "journal-short"},
		"it says nothing":                {":", "agent-failed"},
		"it fails":                       {"exit 1", "agent-failed"},
		"it does not know how":           {"exit 2", "agent-unusable"},
		"it measures in other words":     {"echo measured nine " + sum + " 616263", "answer-incomplete"},
		"it tells an overlap of another": {"echo stored 9 " + sum + " 6162", "answer-incomplete"},
		"it goes over what was asked":    {"echo stored 900 " + sum + " 616263", "answer-incomplete"},
		"there is none":                  {"", core.ReasonAgentMissing},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, core.AgentName)
		if c.agent != "" {
			if err := os.WriteFile(path, []byte("#!/bin/sh\n"+c.agent+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		input, err := core.PushInput(q)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-c", core.DefaultJournal.PushScript())
		cmd.Env = append(os.Environ(), core.AgentVariable+"="+path, core.JournalDirVariable+"="+dir)
		cmd.Stdin = strings.NewReader(string(input))
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		reply, err := core.ParsePush(q, out)
		e, failed := errors.AsType[*core.JournalError](err)
		switch {
		case c.reason == "" && (err != nil || !reply.Stored || reply.Size != 9 || string(reply.Overlap) != "abc"):
			t.Errorf("%s: %+v, %v", what, reply, err)
		case c.reason != "" && (!failed || e.Reason != c.reason):
			t.Errorf("%s: %v, want %s", what, err, c.reason)
		}
		if strings.Contains(core.DefaultJournal.PushScript(), "secret") {
			t.Error("the right to write is in the script")
		}
	}
}

// TestPushCallsAreChecked: a call that lacks something asks no sandbox.
func TestPushCallsAreChecked(t *testing.T) {
	good := core.PushRequest{RunKey: key("r"), Target: core.ExecTarget{TaskARN: "arn", Container: "c"}, Nonce: strings.Repeat("0", 32), Max: 10}
	for what, change := range map[string]func(q *core.PushRequest){
		"no nonce":             func(q *core.PushRequest) { q.Nonce = "" },
		"no length":            func(q *core.PushRequest) { q.Max = 0 },
		"no task":              func(q *core.PushRequest) { q.Target.TaskARN = "" },
		"a URL for no measure": func(q *core.PushRequest) { q.URL = "http://127.0.0.1/x" },
	} {
		q := good
		if change(&q); (core.ProbeCall{Push: &q}).Validate() == nil {
			t.Errorf("%s: accepted", what)
		}
	}
	if err := (core.ProbeCall{Push: &good}).Validate(); err != nil {
		t.Error(err)
	}
}
