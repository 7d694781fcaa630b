package wrapper_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/side"
	"github.com/sandkeeper/sandkeeper/internal/toolwire"
	"github.com/sandkeeper/sandkeeper/internal/wrapper"
)

// TestMain is also the program that the tests run.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "run":
			os.Exit(wrapper.Start(os.Stdin, os.Stdout))
		case core.WrapperCommand:
			os.Exit(wrapper.Wrap())
		case wrapper.SideCommand:
			os.Exit(side.Main())
		case "call-tool":
			os.Exit(callTool())
		}
	}
	os.Exit(m.Run())
}

// callTool is an agent that calls a tool as its environment says, in the protocol's own
// words, and prints what comes back.
func callTool() int {
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"lookup","arguments":{"key":"k"}}}`
	request, err := http.NewRequest(http.MethodPost, os.Getenv(core.MCPURLVariable), strings.NewReader(body))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	request.Header.Set("Authorization", "Bearer "+os.Getenv(core.MCPTokenVariable))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, text/event-stream")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer answer.Body.Close()
	_, _ = io.Copy(os.Stdout, answer.Body)
	config, err := os.ReadFile(os.Getenv(core.MCPConfigVariable))
	if err != nil || !bytes.Contains(config, []byte(os.Getenv(core.MCPTokenVariable))) {
		fmt.Println("\nconfiguration:", err, string(config))
		return 1
	}
	return 0
}

const bearer = "acme.r.00112233445566778899aabbccddeeff0011223344556677"

// outside is the tools function and the store, as a sandbox reaches them.
type outside struct {
	*httptest.Server
	mu     sync.Mutex
	pieces map[int64][]byte
	ended  []int
	calls  int
	fail   int // so many requests of the function first
}

func newOutside(t *testing.T) *outside {
	o := &outside{pieces: map[int64][]byte{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /spool", o.spool)
	mux.HandleFunc("PUT /store/{from}/{sum}", o.store)
	mux.HandleFunc("POST /ended", func(w http.ResponseWriter, r *http.Request) {
		var q toolwire.EndedRequest
		if json.NewDecoder(r.Body).Decode(&q) == nil && r.Header.Get("Authorization") == "Bearer "+bearer {
			o.mu.Lock()
			o.ended = append(o.ended, q.ExitCode)
			o.mu.Unlock()
		}
		fmt.Fprint(w, "{}")
	})
	mux.HandleFunc("POST /{$}", func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		o.calls++
		o.mu.Unlock()
		fmt.Fprint(w, `{"result":"what the host knows"}`)
	})
	o.Server = httptest.NewServer(mux)
	t.Cleanup(o.Close)
	return o
}

func (o *outside) spool(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var q toolwire.SpoolRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.Check() != nil || r.Header.Get("Authorization") != "Bearer "+bearer {
		http.Error(w, "bad", http.StatusBadRequest)
		return
	}
	if o.fail > 0 {
		o.fail--
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	grants := []map[string]any{}
	for _, p := range q.Pieces {
		grants = append(grants, map[string]any{"from": p.From, "url": fmt.Sprintf("%s/store/%d/%s", o.URL, p.From, p.SHA256), "headers": map[string]string{"X-Signed": "yes"}})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"grants": grants, "watched": true})
}

func (o *outside) store(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(r.Body)
	sum := sha256.Sum256(data)
	var from int64
	fmt.Sscan(r.PathValue("from"), &from)
	if err != nil || hex.EncodeToString(sum[:]) != r.PathValue("sum") || r.Header.Get("X-Signed") != "yes" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.pieces[from]) < len(data) {
		o.pieces[from] = data
	}
}

// spooled is the journal as the pieces have it, up to the first gap.
func (o *outside) spooled() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []byte
	starts := []int64{}
	for from := range o.pieces {
		starts = append(starts, from)
	}
	slices.Sort(starts)
	for _, from := range starts {
		if end := from + int64(len(o.pieces[from])); from <= int64(len(out)) && end > int64(len(out)) {
			out = append(out, o.pieces[from][int64(len(out))-from:]...)
		}
	}
	return out
}

func (o *outside) nudges() []int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.ended)
}

// begun is a run under way.
type begun struct {
	t     *testing.T
	dir   string
	nonce string
}

// begin begins an agent as a start script does.
func begin(t *testing.T, dir string, job wrapper.Job) *begun {
	t.Helper()
	job.Run, job.Nonce = "r", core.NewJournalNonce() // by which runs are told apart in one process table
	line, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "run")
	cmd.Stdin = bytes.NewReader(append(line, '\n'))
	cmd.Env = append(os.Environ(), core.JournalDirVariable+"="+dir, core.JournalInitVariable+"=self", "GORACE=atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("result=started")) {
		t.Fatalf("start: %v %s", err, out)
	}
	return &begun{t, dir, job.Nonce}
}

func newDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "runs")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// over waits for the wrapper's own end and returns the agent's output, its exit status, and
// how long after the sentinel the wrapper ended.
func (b *begun) over() (output []byte, exit int, after time.Duration) {
	b.t.Helper()
	var sealed time.Time
	for deadline := time.Now().Add(3 * time.Minute); ; {
		journal, err := os.ReadFile(filepath.Join(b.dir, "r.ndjson"))
		if err != nil {
			b.t.Fatal(err)
		}
		cut := core.DefaultJournal.Cut(b.nonce, journal, core.EdgeFinal)
		if cut.Sealed && sealed.IsZero() {
			output, exit, sealed = journal[:cut.Append], cut.Exit, time.Now()
		}
		if !sealed.IsZero() && len(b.processes()) == 0 {
			return output, exit, time.Since(sealed)
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("not over: sealed %v, left %v, side says %s", cut.Sealed, b.processes(), b.said())
		}
		tick := time.NewTimer(20 * time.Millisecond)
		<-tick.C
	}
}

func (b *begun) said() string {
	data, _ := os.ReadFile(filepath.Join(b.dir, "r.started", "side.log"))
	return string(data)
}

// processes are those of the run: all that have its directory in their environment.
func (b *begun) processes() []string {
	all, _ := filepath.Glob("/proc/[0-9]*")
	var found []string
	for _, p := range all {
		env, _ := os.ReadFile(filepath.Join(p, "environ"))
		if bytes.Contains(env, []byte(core.JournalDirVariable+"="+b.dir+"\x00")) {
			cmdline, _ := os.ReadFile(filepath.Join(p, "cmdline"))
			found = append(found, filepath.Base(p)+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return found
}

// aSide asks for everything of a companion.
func aSide(o *outside) *core.Side {
	return &core.Side{URL: o.URL, Bearer: bearer, Spool: true, Nudge: true}
}

// findSide is shell that leaves the companion's process id in p.
const findSide = `p=
{ while [ -z "$p" ]; do
  for q in /proc/[0-9]*; do
    case $(tr '\000' ' ' <$q/cmdline 2>/dev/null) in "sandkeeper-agent side ") tr '\000' '\n' <$q/environ | grep -q -x "SANDKEEPER_JOURNAL_DIR=$SANDKEEPER_JOURNAL_DIR" && p=${q#/proc/} ;; esac
  done
done; } 2>/dev/null
`

// most is how long after its sentinel a wrapper ends, on a busy machine: far less than what
// hangs would take.
const most = side.Grace + 30*time.Second

// TestACompanionCopiesTheJournalAndSaysItsEnd.
func TestACompanionCopiesTheJournalAndSaysItsEnd(t *testing.T) {
	o := newOutside(t)
	o.fail = 1
	b := begin(t, newDir(t), wrapper.Job{Shell: `i=0; while [ $i -lt 40000 ]; do echo "line $i"; i=$((i+1)); done; echo late; exit 7`, Side: aSide(o)})
	output, exit, after := b.over()
	if exit != 7 || !bytes.HasSuffix(output, []byte("line 39999\nlate\n")) || after > most {
		t.Errorf("exit %d, output %d bytes, wrapper ended %s later", exit, len(output), after)
	}
	if got := o.spooled(); !bytes.HasPrefix(got, output) { // it may have the sentinel too
		t.Errorf("the spool has %d bytes, want %d; it says %s", len(got), len(output), b.said())
	}
	if got := o.nudges(); !slices.Equal(got, []int{7}) {
		t.Errorf("said to have ended: %v; it says %s", got, b.said())
	}
}

// TestNoFaultOfACompanionChangesARun: journal and exit status are the same, the end is no
// later than its grace, and nothing is left.
func TestNoFaultOfACompanionChangesARun(t *testing.T) {
	tests := []struct {
		name  string
		shell string
		alter func(*outside, *core.Side)
		heals bool // the spool is whole and the end said all the same
	}{
		{"killed", findSide + `echo one; kill -9 $p; echo two; sleep 1.5`, nil, true},
		{"killed at the very end", findSide + `echo one; echo two; kill -9 $p`, nil, true},
		{"killed again and again", `i=0; while [ $i -lt 3 ]; do ` + findSide + ` kill -9 $p; i=$((i+1)); sleep 0.2; done; echo one; echo two`, nil, true},
		{"hung", findSide + `echo one; kill -STOP $p; echo two`, nil, false},
		{"told to end", findSide + `echo one; kill -TERM $p; echo two`, nil, true},
		{"no route", `echo one; echo two`, func(o *outside, s *core.Side) { o.Close() }, false},
		{"a URL that is none", `echo one; echo two`, func(_ *outside, s *core.Side) { s.URL = "nowhere" }, false},
		{"a function that does not answer", `echo one; echo two`, func(o *outside, _ *core.Side) {
			o.Config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // only then the client's end is noticed
				<-r.Context().Done()
			})
		}, false},
		{"a bearer that is dead", `echo one; echo two`, func(o *outside, _ *core.Side) {
			o.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
		}, false},
		{"watching what is not there", `echo one; echo two`, func(_ *outside, s *core.Side) { s.Watch = &core.SideWatch{Root: "/nowhere/at/all"} }, true},
		{"tools that cannot be", `echo one; echo two`, func(_ *outside, s *core.Side) { s.Tools = []core.SideTool{{Name: ""}} }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := newOutside(t)
			s := aSide(o)
			if tt.alter != nil {
				tt.alter(o, s)
			}
			begun := time.Now()
			b := begin(t, newDir(t), wrapper.Job{Shell: tt.shell + "; exit 3", Side: s})
			output, exit, after := b.over()
			if string(output) != "one\ntwo\n" || exit != 3 {
				t.Errorf("output %q, exit %d", output, exit)
			}
			if after > most {
				t.Errorf("the wrapper ended %s after the sentinel, %s after the begin; it says %s", after, time.Since(begun), b.said())
			}
			if stderr, _ := os.ReadFile(filepath.Join(b.dir, "r.err")); len(stderr) != 0 {
				t.Errorf("stderr %q", stderr)
			}
			if tt.heals && (!bytes.HasPrefix(o.spooled(), output) || !slices.Contains(o.nudges(), 3)) {
				t.Errorf("spool %q, ends %v; it says %s", o.spooled(), o.nudges(), b.said())
			}
		})
	}
}

// TestAFullDiskKeepsTheCompanionFromNothingElse: the sentinel is written from the reserve,
// as without it.
func TestAFullDiskKeepsTheCompanionFromNothingElse(t *testing.T) {
	if os.Getuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("want root, for a file system of its own")
		}
		t.Skip("want root, for a file system of its own")
	}
	dir := newDir(t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k,mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	o := newOutside(t)
	b := begin(t, dir, wrapper.Job{Shell: `echo one; dd if=/dev/zero of="$SANDKEEPER_JOURNAL_DIR/fill" bs=1k 2>/dev/null; exit 4`, Side: aSide(o)})
	output, exit, after := b.over()
	if string(output) != "one\n" || exit != 4 || after > most || !slices.Equal(o.nudges(), []int{4}) || !bytes.HasPrefix(o.spooled(), output) {
		t.Errorf("output %q, exit %d, %s later; ends %v, spool %q", output, exit, after, o.nudges(), o.spooled())
	}
}

// TestAnAgentFindsItsTools before it begins; its secrets are nobody else's.
func TestAnAgentFindsItsTools(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // what is left there is this test's
	o := newOutside(t)
	s := aSide(o)
	s.Tools = []core.SideTool{{Name: "lookup", Description: "Looks up.", InputSchema: json.RawMessage(`{"type":"object"}`)}}
	s.Policy = &core.PolicyPlan{Default: core.VerdictDeny}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	shell := self + ` call-tool; echo " secret $TOKEN"
for p in $PPID $(cat /proc/$PPID/task/$PPID/children); do
  case $(tr '\000' ' ' </proc/$p/cmdline) in sandkeeper-agent*) cat /proc/$p/environ /proc/$p/cmdline | tr '\000' '\n' ;; esac
done | grep -c hunter2; ` + findSide + `kill -9 $p; until ` + self + ` call-tool; do sleep 0.2; done; echo`
	b := begin(t, newDir(t), wrapper.Job{Shell: shell, Side: s, Env: map[string]string{"TOKEN": "hunter2"}})
	output, exit, _ := b.over()
	text := string(output)
	if exit != 0 || strings.Count(text, "what the host knows") != 2 || !strings.Contains(text, "secret hunter2\n0\n") || o.calls != 2 {
		t.Errorf("exit %d, %d calls, output %s; it says %s", exit, o.calls, text, b.said())
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "sandkeeper-mcp-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	files := filepath.Join(b.dir, "r.started")
	err = filepath.WalkDir(files, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte("hunter2")) || bytes.Contains(data, []byte(bearer)) {
			err = errors.Join(err, fmt.Errorf("%s holds a secret", path))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
