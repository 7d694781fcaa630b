package localfargate_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/coder/websocket"

	"github.com/sandkeeper/sandkeeper/internal/localfargate"
)

// sh is a command line that hands a script to a shell, quoted for the agent.
func sh(script string) string {
	return "/bin/sh -c '" + strings.ReplaceAll(script, "'", `'"'"'`) + "'"
}

// sandbox begins a server with one running task that does nothing.
func sandbox(t *testing.T, alter func(*localfargate.Options)) (*world, string) {
	t.Helper()
	w := begin(t, alter)
	w.register(shell("exec sleep 1000"))
	return w, w.run(nil)
}

func TestExecShowsWhatATerminalShows(t *testing.T) {
	w, arn := sandbox(t, nil)
	cases := []struct{ name, command, output string }{
		{"line ends are a terminal's", "echo hello", "hello\r\n"},
		{"stderr is merged", sh("echo a; echo b >&2"), "a\r\nb\r\n"},
		{"the exit status is nowhere", sh("echo a; exit 7"), "a\r\n"},
		{"no shell splits the command", "echo $HOME ; echo x > y", "$HOME ; echo x > y\r\n"},
		{"quotes, backslash and comment are the splitter's", `echo 'a  b' "c\"d" e\ f # g`, "a  b c\"d e f\r\n"},
		{"the environment is a terminal's", sh(`echo "$TERM $LANG"`), "xterm-256color C.UTF-8\r\n"},
		{"without a size the terminal has none", "stty size", "0 0\r\n"},
		{"multi-byte text passes", "echo größe 漢字 🙂", "größe 漢字 🙂\r\n"},
		{"a genuine replacement character becomes one byte", sh(`printf 'A\357\277\275B'`), "A\xefB"},
		{"an incomplete sequence at the end is dropped", sh(`printf 'A\346\274'`), "A"},
		{"other invalid bytes pass", sh(`printf 'A\377\300B'`), "A\xff\xc0B"},
		{"no output is an ordinary end", "true", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.command == "stty size" && os.Getenv(driverVariable) != "" {
				t.Skip("busybox takes no size for no terminal")
			}
			got := attach(t, w.exec(arn, c.command)).follow(nil)
			if got.output != c.output || !got.ended || got.closed != "" {
				t.Errorf("session: %q, ended %v, text %q, want %q", got.output, got.ended, got.closed, c.output)
			}
		})
	}
}

func TestExecFrames(t *testing.T) {
	w, arn := sandbox(t, nil)
	c := attach(t, w.exec(arn, sh("head -c 5000 /dev/zero | tr '\\0' x")))
	for name := ""; name != "start_publication"; { // a pause goes before if the client was faster
		m, err := c.read()
		if err != nil {
			t.Fatal(err)
		}
		name = m.name()
		if m.headerLength != 112 || m.kind != name+strings.Repeat("\x00", 32-len(name)) || string(m.payload) != name {
			t.Errorf("first frame: %+v, want a short header padded with NUL", m)
		}
	}
	got := c.follow(nil)
	if len(got.output) != 5000 {
		t.Errorf("output has %d bytes, want 5000", len(got.output))
	}
	for i, m := range got.messages {
		flags := map[bool]uint64{true: 1, false: 0}[i == 0]
		if m.headerLength != 116 || m.sequence != int64(i) || m.flags != flags || len(m.payload) > 1024 || !strings.HasSuffix(m.kind, " ") {
			t.Errorf("output %d: header %d, sequence %d, flags %d, %d bytes, type %q", i, m.headerLength, m.sequence, m.flags, len(m.payload), m.kind)
		}
	}
}

func TestFirstOutputComesLate(t *testing.T) {
	const wait = 300 * time.Millisecond
	w, arn := sandbox(t, func(o *localfargate.Options) { o.Habits.Channel.FirstOutput = wait })
	began := time.Now()
	got := attach(t, w.exec(arn, "echo hello")).follow(nil)
	if took := time.Since(began); got.output != "hello\r\n" || took < wait {
		t.Errorf("output %q after %v, want hello not before %v", got.output, took, wait)
	}
}

func TestProgramThatCannotStartIsToldAtTheEnd(t *testing.T) {
	w, arn := sandbox(t, nil)
	for command, want := range map[string]string{
		"/no/such/shell -c true": "/no/such/shell",
		"no-such-program":        "no-such-program",
		"echo 'unclosed":         "EOF",
	} {
		got := attach(t, w.exec(arn, command)).follow(nil)
		if got.output != "" || !got.ended || !strings.Contains(got.closed, "Unable to start command") || !strings.Contains(got.closed, want) {
			t.Errorf("%s: %+v, want the reason as closing text only", command, got)
		}
	}
}

func TestExecuteCommandRefuses(t *testing.T) {
	w, arn := sandbox(t, nil)
	plain := w.run(func(in *ecs.RunTaskInput) { in.EnableExecuteCommand = false })
	stopped := w.run(nil)
	if _, err := w.StopTask(t.Context(), &ecs.StopTaskInput{Task: &stopped}); err != nil {
		t.Fatal(err)
	}
	w.awaitStatus(stopped, "STOPPED")
	cut := w.run(nil)
	if err := w.server.SetFaults(cut, localfargate.Faults{NeverConnects: true}); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name string
		in   ecs.ExecuteCommandInput
		code string
		text string
	}{
		{"a session that is not interactive", ecs.ExecuteCommandInput{Task: &arn, Interactive: false}, "InvalidParameterException", "Interactive"},
		{"a task without ECS Exec", ecs.ExecuteCommandInput{Task: &plain, Interactive: true}, "InvalidParameterException", "not enabled"},
		{"a stopped task", ecs.ExecuteCommandInput{Task: &stopped, Interactive: true}, "InvalidParameterException", "agent"},
		{"an agent that is not connected", ecs.ExecuteCommandInput{Task: &cut, Interactive: true}, "TargetNotConnectedException", "internal error"},
		{"an unknown container", ecs.ExecuteCommandInput{Task: &arn, Interactive: true, Container: new("other")}, "InvalidParameterException", "other"},
		{"an unknown task", ecs.ExecuteCommandInput{Task: new(strings.Repeat("a", 32)), Interactive: true}, "InvalidParameterException", "not found"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.in.Command = new("true")
			_, err := w.ExecuteCommand(t.Context(), &c.in)
			if got := code(t, err); got != c.code || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want %s about %q", err, c.code, c.text)
			}
		})
	}
}

func TestManagedAgentComesAfterTheTask(t *testing.T) {
	w := begin(t, func(o *localfargate.Options) {
		o.Habits.AgentStart = time.Hour
	})
	w.register(shell("exec sleep 1000"))
	out, err := w.RunTask(t.Context(), &ecs.RunTaskInput{TaskDefinition: new("sandbox"), EnableExecuteCommand: true})
	if err != nil {
		t.Fatal(err)
	}
	arn := *out.Tasks[0].TaskArn
	w.awaitStatus(arn, "RUNNING")
	c := w.describe(arn).Containers[0]
	if c.RuntimeId == nil || len(c.ManagedAgents) != 1 || *c.ManagedAgents[0].LastStatus != "PENDING" {
		t.Errorf("container: %+v, want a runtime id and a pending agent", c)
	}
	_, err = w.ExecuteCommand(t.Context(), &ecs.ExecuteCommandInput{Task: &arn, Command: new("true"), Interactive: true})
	if code(t, err) != "InvalidParameterException" {
		t.Errorf("exec before the agent: %v", err)
	}
}

func TestThirdSessionWaitsForASlot(t *testing.T) {
	w, arn := sandbox(t, nil)
	var holders []*channel
	for range 2 {
		c := attach(t, w.exec(arn, sh("echo on; exec sleep 1000")))
		c.follow(func(tr transcript) bool { return tr.output == "on\r\n" })
		holders = append(holders, c)
	}
	third := attach(t, w.exec(arn, "echo third"))
	m, err := third.read()
	if err != nil || m.name() != "pause_publication" || m.headerLength != 112 || string(m.payload) != "pause_publication" {
		t.Fatalf("third session's first frame: %+v, %v, want a pause", m, err)
	}
	holders[0].typed("\x03")
	if end := holders[0].follow(nil); !end.ended {
		t.Errorf("interrupted session: %+v", end)
	}
	if got := third.follow(nil); got.output != "third\r\n" || got.seen[0] != "start_publication" {
		t.Errorf("third session: %+v, want a start and its output once a slot was free", got)
	}
}

func TestInterruptReachesTheForegroundGroup(t *testing.T) {
	w, arn := sandbox(t, nil)
	c := attach(t, w.exec(arn, sh(`trap 'echo caught; exit 0' INT; echo ready; while :; do sleep 0.05; done`)))
	c.follow(func(tr transcript) bool { return strings.HasSuffix(tr.output, "ready\r\n") })
	c.typed("\x03")
	if got := c.follow(nil); !strings.Contains(got.output, "caught\r\n") || !got.ended {
		t.Errorf("session: %+v", got)
	}
}

func TestTerminalSizeIsSet(t *testing.T) {
	w, arn := sandbox(t, nil)
	c := attach(t, w.exec(arn, sh("echo ready; read x; stty size")))
	c.follow(func(tr transcript) bool { return tr.output == "ready\r\n" })
	size := writeMessage("input_stream_data", 0, 3, []byte(`{"cols":132,"rows":43}`))
	if err := c.conn.Write(t.Context(), websocket.MessageBinary, size); err != nil {
		t.Fatal(err)
	}
	c.sent = 1
	c.typed("\r")
	if got := c.follow(nil); !strings.HasSuffix(got.output, "43 132\r\n") {
		t.Errorf("session: %q", got.output)
	}
}

func TestInputIsOrderedAndDuplicatesAreAcknowledged(t *testing.T) {
	w, arn := sandbox(t, nil)
	c := attach(t, w.exec(arn, sh("stty -echo; echo ready; read x; echo got $x")))
	c.follow(func(tr transcript) bool { return tr.output == "ready\r\n" })
	for _, m := range []struct {
		sequence int64
		text     string
	}{{1, "b"}, {0, "a"}, {0, "a"}, {1, "b"}, {2, "\r"}} {
		if err := c.conn.Write(t.Context(), websocket.MessageBinary, writeMessage("input_stream_data", m.sequence, 1, []byte(m.text))); err != nil {
			t.Fatal(err)
		}
	}
	got := c.follow(nil)
	acks := 0
	for _, name := range got.seen {
		if name == "acknowledge" {
			acks++
		}
	}
	if got.output != "got ab\r\n" || acks != 5 {
		t.Errorf("output %q with %d acknowledgements, want got ab and five", got.output, acks)
	}
}

func TestUnacknowledgedOutputIsRepairedOldestFirst(t *testing.T) {
	w, arn := sandbox(t, nil)
	c := attach(t, w.exec(arn, sh("head -c 3000 /dev/zero | tr '\\0' x; exec sleep 1000")))
	times := map[int64]int{}
	for times[0] < 4 {
		m, err := c.read()
		if err != nil {
			t.Fatal(err)
		}
		if m.name() == "output_stream_data" {
			times[m.sequence]++
		}
	}
	for sequence, n := range times {
		if sequence > 0 && n != 1 {
			t.Errorf("message %d came %d times, want only the oldest again", sequence, n)
		}
	}
	if len(times) < 3 {
		t.Errorf("messages: %v, want no window to hold them back", times)
	}
}

func TestUnacknowledgedOutputIsLostAfterTheDrain(t *testing.T) {
	w, arn := sandbox(t, func(o *localfargate.Options) { o.Habits.Channel.Drain = 300 * time.Millisecond })
	if err := w.server.SetFaults(arn, localfargate.Faults{LossToClient: 1}); err != nil {
		t.Fatal(err)
	}
	got := attach(t, w.exec(arn, "echo lost")).follow(nil)
	if got.output != "" || !got.ended || got.closed != "" {
		t.Errorf("session: %+v, want an ordinary end without the output", got)
	}
}

func TestLossyLinkIsRepairedWhileTheCommandLingers(t *testing.T) {
	w, arn := sandbox(t, nil)
	faults := localfargate.Faults{
		LossToClient: 0.1, LossToAgent: 0.1, DuplicateToClient: 0.1, DuplicateToAgent: 0.1, ReorderToClient: 0.1, ReorderToAgent: 0.1, Seed: 7,
	}
	if err := w.server.SetFaults(arn, faults); err != nil {
		t.Fatal(err)
	}
	c := attach(t, w.exec(arn, sh("seq 1 3000; echo end; exec sleep 1000")))
	got := c.follow(func(tr transcript) bool { return strings.HasSuffix(tr.output, "end\r\n") })
	var want strings.Builder
	for i := 1; i <= 3000; i++ {
		fmt.Fprintf(&want, "%d\r\n", i)
	}
	if got.output != want.String()+"end\r\n" {
		t.Errorf("output of %d bytes differs from the %d expected", len(got.output), len(want.String())+5)
	}
	if len(got.seen) <= len(got.messages) {
		t.Error("nothing came twice: the link was not lossy")
	}
}

func TestCommandRunsThoughNobodyAttaches(t *testing.T) {
	w, arn := sandbox(t, nil)
	w.exec(arn, sh("echo small; echo done > small"))
	w.exec(arn, sh("head -c 4000000 /dev/zero; echo done > large"))
	got := attach(t, w.exec(arn, sh("true"))) // waits: both slots are held by paused sessions
	if m, err := got.read(); err != nil || m.name() != "pause_publication" {
		t.Fatalf("third session: %+v, %v, want a pause", m, err)
	}
	w.until("the small one ends", func() bool { return w.file(arn, "small") == "done\n" })
	if text := w.file(arn, "large"); text != "" {
		t.Errorf("a command with much output ended without a reader: %q", text)
	}
}

func TestLargeOutputGoesOnWhenSomebodyAttaches(t *testing.T) {
	w, arn := sandbox(t, nil)
	session := w.exec(arn, sh("head -c 100000 /dev/zero | tr '\\0' x; echo done > large"))
	if got := attach(t, session).follow(nil); len(got.output) != 100000 || w.file(arn, "large") != "done\n" {
		t.Errorf("output of %d bytes, file %q", len(got.output), w.file(arn, "large"))
	}
}

func TestCommandOutlivesItsClient(t *testing.T) {
	w, arn := sandbox(t, nil)
	c := attach(t, w.exec(arn, sh("echo on; while [ ! -e go ]; do sleep 0.02; done; echo over > end")))
	c.follow(func(tr transcript) bool { return tr.output == "on\r\n" })
	c.conn.CloseNow()
	attach(t, w.exec(arn, sh("touch go"))).follow(nil)
	w.until("the abandoned command reaches its end", func() bool { return w.file(arn, "end") == "over\n" })
}

func TestBackgroundWorkOutlivesItsSession(t *testing.T) {
	w, arn := sandbox(t, nil)
	got := attach(t, w.exec(arn, sh("setsid sh -c 'touch on; sleep 0.3; echo late > late' </dev/null >/dev/null 2>&1 & until [ -e on ]; do sleep 0.02; done; echo left"))).follow(nil)
	if got.output != "left\r\n" {
		t.Fatalf("session: %+v", got)
	}
	w.until("the detached process writes", func() bool { return w.file(arn, "late") == "late\n" })
}

func TestTaskDeathLeavesTheClientInAPause(t *testing.T) {
	w, arn := sandbox(t, func(o *localfargate.Options) { o.Habits.Channel.PauseEvery = 50 * time.Millisecond })
	c := attach(t, w.exec(arn, sh("echo on; exec sleep 1000")))
	c.follow(func(tr transcript) bool { return tr.output == "on\r\n" })
	if err := w.server.KillTask(arn); err != nil {
		t.Fatal(err)
	}
	pauses := 0
	got := c.follow(func(tr transcript) bool {
		if tr.seen[len(tr.seen)-1] == "pause_publication" {
			pauses++
		}
		return pauses == 3
	})
	if got.ended || pauses != 3 {
		t.Errorf("session: %+v with %d pauses, want pauses and no end", got, pauses)
	}
}

func TestAgentThatNeverJoins(t *testing.T) {
	w, arn := sandbox(t, func(o *localfargate.Options) { o.Habits.Channel.PauseEvery = 50 * time.Millisecond })
	if err := w.server.SetFaults(arn, localfargate.Faults{NeverJoins: true}); err != nil {
		t.Fatal(err)
	}
	c := attach(t, w.exec(arn, sh("touch ran")))
	c.typed("dropped")
	got := c.follow(func(tr transcript) bool { return len(tr.seen) == 4 })
	if !slices.Equal(got.seen, slices.Repeat([]string{"pause_publication"}, 4)) {
		t.Errorf("frames: %v, want pauses only", got.seen)
	}
}

func TestSocketCutInMidOutput(t *testing.T) {
	w, arn := sandbox(t, nil)
	if err := w.server.SetFaults(arn, localfargate.Faults{CutAfterBytes: 3000}); err != nil {
		t.Fatal(err)
	}
	session := w.exec(arn, sh("head -c 20000 /dev/zero | tr '\\0' x; exec sleep 1000"))
	first := attach(t, session)
	got := first.follow(nil)
	if got.ended || len(got.output) >= 20000 {
		t.Fatalf("session: ended %v after %d bytes, want a cut", got.ended, len(got.output))
	}
	again := dial(t, session)
	again.next = first.next // the client that comes again knows what it has
	again.open(*session.TokenValue)
	rest := again.follow(func(tr transcript) bool { return len(got.output)+len(tr.output) >= 20000 })
	if len(got.output)+len(rest.output) != 20000 {
		t.Errorf("%d and then %d bytes, want 20000 in all", len(got.output), len(rest.output))
	}
}

func TestTokenIsChecked(t *testing.T) {
	w, arn := sandbox(t, nil)
	refused := func(name string, c *channel) {
		t.Helper()
		_, err := c.read()
		if closed, ok := errors.AsType[websocket.CloseError](err); !ok || closed.Code != websocket.StatusPolicyViolation {
			t.Errorf("%s: %v, want a policy violation", name, err)
		}
	}
	session := w.exec(arn, "echo hello")
	wrong := dial(t, session)
	wrong.open("wrong")
	refused("a wrong token", wrong)
	binary := dial(t, session)
	binary.typed("no token at all")
	refused("a binary first message", binary)
	if got := attach(t, session).follow(nil); got.output != "hello\r\n" {
		t.Errorf("the right token afterwards: %+v", got)
	}
	if err := w.server.SetFaults(arn, localfargate.Faults{RefuseToken: true}); err != nil {
		t.Fatal(err)
	}
	refused("a refused token", attach(t, w.exec(arn, "echo hello")))
}

func TestUpgradeIsChecked(t *testing.T) {
	w, arn := sandbox(t, nil)
	session := w.exec(arn, "echo hello")
	url := func(id string) string { return strings.Replace(*session.StreamUrl, *session.SessionId, id, 1) }
	scope := func(service string) http.Header {
		return http.Header{"Authorization": {"AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/" + service + "/aws4_request, SignedHeaders=host, Signature=0"}}
	}
	cases := []struct {
		name   string
		url    string
		header http.Header
		status int
	}{
		{"an unknown session", url("ecs-execute-command-0"), nil, http.StatusNotFound},
		{"a signature for another service", *session.StreamUrl, scope("ecs"), http.StatusForbidden},
		{"a signature for the gateway", *session.StreamUrl, scope("ssmmessages"), http.StatusSwitchingProtocols},
		{"a page of another site", *session.StreamUrl, http.Header{"Origin": {"https://example.com"}}, http.StatusForbidden},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			conn, response, err := websocket.Dial(t.Context(), c.url, &websocket.DialOptions{HTTPHeader: c.header})
			if err == nil {
				conn.CloseNow()
			}
			if response == nil || response.StatusCode != c.status {
				t.Errorf("upgrade: %v, %v, want status %d", response, err, c.status)
			}
		})
	}
}

func TestIdleSessionIsClosedAndItsChildrenLive(t *testing.T) {
	w, arn := sandbox(t, func(o *localfargate.Options) { o.Habits.Channel.Idle = 5 * time.Second })
	const leaves = "setsid sh -c 'touch on; exec sleep 1001' </dev/null >/dev/null 2>&1 & until [ -e on ]; do echo waits; sleep 0.02; done; exec sleep 1002"
	got := attach(t, w.exec(arn, sh(leaves))).follow(nil)
	if !got.ended || !strings.Contains(got.closed, "inactivity") {
		t.Errorf("session: %+v, want it closed for inactivity", got)
	}
	running := func(command string) bool {
		state, err := w.server.Task(arn)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range state.Containers[0].Processes {
			if p.Command == command {
				return true
			}
		}
		return false
	}
	w.until("the command itself is killed", func() bool { return !running("sleep 1002") })
	if !running("sleep 1001") {
		t.Error("what the command started was killed too")
	}
}

func TestFaultsAreSwitchedOverHTTP(t *testing.T) {
	w, arn := sandbox(t, nil)
	id := arn[strings.LastIndex(arn, "/")+1:]
	cases := []struct {
		name, path, contentType, body string
		status                        int
	}{
		{"a rate above one", "/_local/tasks/" + id + "/faults", "application/json", `{"lossToClient":1.5}`, http.StatusBadRequest},
		{"an unknown switch", "/_local/tasks/" + id + "/faults", "application/json", `{"loss":0.5}`, http.StatusBadRequest},
		{"an unknown task", "/_local/tasks/other/faults", "application/json", `{}`, http.StatusNotFound},
		{"a form, as a web page sends", "/_local/tasks/" + id + "/faults", "text/plain", `{"neverConnects":true}`, http.StatusUnsupportedMediaType},
		{"a known one", "/_local/tasks/" + id + "/faults", "application/json", `{"neverConnects":true,"seed":3}`, http.StatusOK},
		{"the default of new tasks", "/_local/faults", "application/json", `{"refuseToken":true}`, http.StatusOK},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, w.server.URL()+c.path, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Content-Type", c.contentType)
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if response.StatusCode != c.status {
				t.Errorf("status %d, want %d", response.StatusCode, c.status)
			}
		})
	}
	state, err := w.server.Task(id)
	if err != nil || state.Faults != (localfargate.Faults{NeverConnects: true, Seed: 3}) {
		t.Errorf("faults: %+v, %v", state.Faults, err)
	}
	if got := w.server.DefaultFaults(); got != (localfargate.Faults{RefuseToken: true}) {
		t.Errorf("default faults: %+v", got)
	}
}

// TestATaskIsAged, so that what waits for an hour can be seen at once.
func TestATaskIsAged(t *testing.T) {
	w, arn := sandbox(t, nil)
	id := arn[strings.LastIndex(arn, "/")+1:]
	before := w.describe(arn)
	age := func(id, body string, want int) {
		t.Helper()
		response, err := http.Post(w.server.URL()+"/_local/tasks/"+id+"/age", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: status %d, want %d", body, response.StatusCode, want)
		}
	}
	age(id, `{"by":"2h"}`, http.StatusOK)
	for _, body := range []string{`{}`, `{"by":"-1s"}`, `{"by":7}`, `{"for":"2h"}`} {
		age(id, body, http.StatusBadRequest)
	}
	age("other", `{"by":"2h"}`, http.StatusNotFound)
	after := w.describe(arn)
	if got := before.CreatedAt.Sub(*after.CreatedAt); got != 2*time.Hour {
		t.Errorf("created %s earlier", got)
	}
	if got := before.StartedAt.Sub(*after.StartedAt); got != 2*time.Hour {
		t.Errorf("started %s earlier", got)
	}
}

func TestCallsFromABrowserAreRefused(t *testing.T) {
	w, _ := sandbox(t, nil)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.server.URL(), strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	request.Host = "rebound.example.com"
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusForbidden {
		t.Errorf("a foreign host name: status %d, want 403", response.StatusCode)
	}
}

func TestSeveralContainersMustBeNamed(t *testing.T) {
	w := begin(t, nil)
	_, err := w.RegisterTaskDefinition(t.Context(), &ecs.RegisterTaskDefinitionInput{
		Family: new("sandbox"), ContainerDefinitions: []types.ContainerDefinition{{Name: new("one")}, {Name: new("two")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	arn := w.run(nil)
	w.until("both agents run", func() bool {
		containers := w.describe(arn).Containers
		return *containers[0].ManagedAgents[0].LastStatus == "RUNNING" && *containers[1].ManagedAgents[0].LastStatus == "RUNNING"
	})
	_, err = w.ExecuteCommand(t.Context(), &ecs.ExecuteCommandInput{Task: &arn, Command: new("true"), Interactive: true})
	if code(t, err) != "InvalidParameterException" {
		t.Errorf("exec without a name: %v", err)
	}
	out, err := w.ExecuteCommand(t.Context(), &ecs.ExecuteCommandInput{Task: &arn, Command: new("pwd"), Interactive: true, Container: new("two")})
	if err != nil {
		t.Fatal(err)
	}
	if got := attach(t, out.Session).follow(nil); !strings.Contains(got.output, "/two/work") || *out.ContainerName != "two" {
		t.Errorf("session in %s: %q", *out.ContainerName, got.output)
	}
}

// TestTasksAreShownInOneSpelling: every member of what GET /_local/tasks answers begins with a
// small letter.
func TestTasksAreShownInOneSpelling(t *testing.T) {
	w, _ := sandbox(t, nil)
	response, err := http.Get(w.server.URL() + "/_local/tasks")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var shown any
	if err := json.NewDecoder(response.Body).Decode(&shown); err != nil {
		t.Fatal(err)
	}
	seen := 0
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, one := range v {
				walk(one)
			}
		case map[string]any:
			for name, one := range v {
				seen++
				if name[0] < 'a' || name[0] > 'z' {
					t.Errorf("a member is called %s", name)
				}
				walk(one)
			}
		}
	}
	walk(shown)
	if seen < 15 {
		t.Errorf("read %d members, which are too few", seen)
	}
}
