package e2e_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/s3blob"
)

// spoken are lines of so many bytes in all.
func spoken(what string, size int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "%s %d: %s\n", what, i, rand.Text())
	}
	return b.Bytes()
}

// inParts is an agent that says parts, each once a file by its name is there, and ends
// once the last file is; say lets it go on.
func (in *installation) inParts(t *testing.T, parts ...[]byte) (shell string, say func()) {
	t.Helper()
	dir := filepath.Join(in.dir, rand.Text())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for i, part := range append(parts, nil) {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("part-", i)), part, 0o644); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "while [ ! -e %s/go-%d ]; do sleep 0.2; done; cat %[1]s/part-%[2]d; ", dir, i)
	}
	said := 0
	return b.String() + "exit 3", func() {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("go-", said)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		said++
	}
}

// spooled is what the bucket has of a run's journal from its beginning on, without a gap.
func (in *installation) spooled(t *testing.T, key core.RunKey) []byte {
	t.Helper()
	client := s3.NewFromConfig(in.engine.Config(), func(o *s3.Options) { o.UsePathStyle = true })
	objects := s3blob.NewObjects(client, in.out[names.OutBucket])
	pieces, more, err := objects.Pieces(t.Context(), key, 0)
	if err != nil || more {
		t.Fatalf("pieces of %s: more %v, %v", key, more, err)
	}
	var all []byte
	for _, p := range pieces {
		if p.From > int64(len(all)) {
			break
		}
		data, err := objects.Piece(t.Context(), key, p)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all[:p.From], data...)
	}
	return all
}

// journal is a run's journal as it lies in its sandbox.
func (in *installation) journal(t *testing.T, r core.RunView) []byte {
	t.Helper()
	task, err := in.fargate.Task(r.TaskARN)
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(filepath.Join(task.Containers[0].JournalDir, "*"+core.DefaultJournal.Ext))
	if err != nil || len(paths) != 1 {
		t.Fatalf("journals %q, %v", paths, err)
	}
	data, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// follow tails a run from a position until so much of its output is there, but for the
// last line's newline, which may come with what follows.
func (c caller) follow(t *testing.T, run core.RunID, from, to int) []byte {
	t.Helper()
	var all []byte
	await(t, fmt.Sprintf("output of %s up to %d", run, to), func() bool {
		var report core.TailReport
		c.must(t, "tail", map[string]any{"run": run, "host": c.host, "from": from + len(all), "waitSeconds": 5, "stallSeconds": 60}, &report)
		all = append(all, report.Data...)
		return from+len(all) >= to-1
	})
	return all
}

// fetched is a run's output as a viewer gets it who knows nothing but HTTP: where it lies
// is told, and early says how much of it the log does not have yet.
func (c caller) fetched(t *testing.T, run core.RunID) (all []byte, early int, report core.SegmentsReport) {
	t.Helper()
	for {
		c.must(t, "segments", map[string]any{"run": run, "from": len(all)}, &report)
		for _, s := range report.Segments {
			data := s.Data
			if s.URL != "" {
				data = get(t, s.URL, s.Headers)
			}
			sum := sha256.Sum256(data)
			if int64(len(data)) != s.End-s.From || hex.EncodeToString(sum[:]) != s.SHA256 || s.From > int64(len(all)) {
				t.Fatalf("behind byte %d: got %d bytes of segment %+v", len(all), len(data), s)
			}
			if s.Early {
				early += int(s.End) - len(all)
			}
			all = append(all[:s.From], data...)
		}
		if len(report.Segments) == 0 || report.End {
			return all, early, report
		}
		report = core.SegmentsReport{}
	}
}

func get(t *testing.T, url string, headers map[string]string) []byte {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range headers {
		q.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v: %.300s", response.StatusCode, err, data)
	}
	return data
}

// TestOutputComesFromTheSpoolAndTheEndFromTheSandbox (I1, I5): what a tail gives out, and
// what the end of the run saves, the sandbox has sent by itself. Nobody enters it while
// its agent works; then it takes one look at how the agent ended, and one at the end of
// the journal.
func TestOutputComesFromTheSpoolAndTheEndFromTheSandbox(t *testing.T) {
	in := installed(t)
	in.needAgent(t)
	c := in.caller()
	run := core.RunID("spool-" + rand.Text())
	key := core.RunKey{Tenant: "-", Run: run}
	first, second, third := spoken("first", 5<<19), spoken("second", 200<<10), spoken("third", 5<<19)
	shell, say := in.inParts(t, first, second, third)
	spec := in.Spec()
	begun := c.start(t, run, shell, map[string]any{"definition": map[string]any{
		"name": "spool", "version": 1, "checkpoint": "none", "destroyOnComplete": true, "task": map[string]any{
			"taskDefinition": spec.TaskDefinition, "container": spec.Container, "subnets": spec.Subnets, "assignPublicIp": true,
		},
	}})
	execs := func() int { return in.gate.count("ExecuteCommand", begun.Run.TaskARN) }
	started := execs()
	if started == 0 {
		t.Fatal("the start entered the sandbox without a call that is counted")
	}

	say()
	await(t, "spool", func() bool { return len(in.spooled(t, key)) == len(first) })
	if got, early, report := c.fetched(t, run); !bytes.Equal(got, first) || early != len(first) || report.End {
		t.Errorf("a viewer got %d bytes, %d of them early, end %v; the agent wrote %d", len(got), early, report.End, len(first))
	}
	got := c.follow(t, run, 0, len(first))
	say()
	got = append(got, c.follow(t, run, len(got), len(first)+len(second))...)
	wrote := append(bytes.Clone(first), second...)
	if n := len(wrote) - len(got); n > 1 || !bytes.HasPrefix(wrote, got) {
		t.Errorf("the tail gave %d bytes, the agent wrote %d", len(got), len(wrote))
	}

	var left core.RenewReport
	c.must(t, "detach", map[string]any{"run": run, "host": c.host}, &left)
	say()
	wrote = append(wrote, third...)
	// Nobody watches any more: what is less than the longest piece waits for the end.
	await(t, "spool", func() bool { return len(in.spooled(t, key)) > len(wrote)-core.MaxSpoolPiece })
	if journal := in.journal(t, begun.Run); !bytes.HasPrefix(journal, in.spooled(t, key)) || !bytes.Equal(journal, wrote) {
		t.Errorf("spool and journal of %d bytes differ, or %d were written", len(journal), len(wrote))
	}
	if n := execs() - started; n != 0 {
		t.Errorf("the sandbox was entered %d times while its agent worked", n)
	}

	logged := in.run(t, key).LogEnd
	say()
	r := in.settle(t, key)
	in.checkTranscript(t, r, wrote)
	if journal, spooled := in.journal(t, begun.Run), in.spooled(t, key); !bytes.Equal(spooled, wrote) || !bytes.HasPrefix(journal, wrote) {
		t.Errorf("the spool has %d bytes and the journal %d, of %d that were written", len(spooled), len(journal), len(wrote))
	}
	if r.ExitCode == nil || *r.ExitCode != 3 || logged > int64(len(first)+len(second)) {
		t.Errorf("the agent ended with %v, and the log had %d bytes before", r.ExitCode, logged)
	}
	if n := execs() - started; n != 2 {
		t.Errorf("the end entered the sandbox %d times, want 2", n)
	}
	if got, early, report := c.fetched(t, run); !bytes.Equal(got, wrote) || early != 0 || !report.End {
		t.Errorf("in the end a viewer got %d bytes, %d of them early, end %v", len(got), early, report.End)
	}
}
