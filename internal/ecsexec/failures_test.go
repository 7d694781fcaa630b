package ecsexec_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/ecs/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
)

// trouble is one of the failures that users of ECS Exec report, by its number in the
// survey that the client was written from.
type trouble struct {
	number  int
	symptom string
	cases   []trial
}

// trial is a way to bring the trouble about, and what must come of it. Whatever
// happens, an answer that comes is the right one.
type trial struct {
	name  string
	scene scene
	steps []step
}

type step func(b *sandbox)

// text has what terminals, splitters, templates and the agent damage.
const text = "it's \"$((1+1))\" `x` \\ {{ssm:x}} {{ y }} # ; | é 漢字 🙂 \xef\xbf\xbd \xe6\xbc \r\n\x00\x01\x7f\x03\nend"

// answers asks for the text by way of quotes and escapes, and for a status.
func answers(b *sandbox) {
	b.Helper()
	var octal strings.Builder
	for _, c := range []byte(text) {
		fmt.Fprintf(&octal, "\\%03o", c)
	}
	got, err := b.exec.Exec(b.Context(), b.target, "# {{ssm:x}}\nprintf '"+octal.String()+"'; exit 7\n", nil)
	if err != nil {
		b.Fatalf("%v; want an answer", err)
	}
	if string(got.Stdout) != text || got.Exit != 7 {
		b.Errorf("got %q, exit %d; want %q, exit 7", got.Stdout, got.Exit, text)
	}
}

// fails asks, and wants no answer but this diagnosis.
func fails(class core.Healing, reason string) step {
	return func(b *sandbox) {
		b.Helper()
		diagnosed(b, b.refused("echo wrong"), class, reason)
	}
}

const gone core.Healing = "gone"

func diagnosed(b *sandbox, e *core.ExecError, class core.Healing, reason string) {
	b.Helper()
	d := b.diagnose(e)
	got := d.Healing
	if d.Gone {
		got = gone
	}
	if got != class || d.Reason != reason {
		b.Errorf("%v is diagnosed as %s, %s (%s); want %s, %s", e, got, d.Reason, d.Detail, class, reason)
	}
}

// later judges what follows as if the agent had been there for so long.
func later(d time.Duration) step { return func(b *sandbox) { b.now = d } }

func limits(l ecsexec.Limits) step { return func(b *sandbox) { b.exec.Limits = l } }

func faulty(f localfargate.Faults) step {
	return func(b *sandbox) {
		b.Helper()
		if err := b.server.SetFaults(b.target.TaskARN, f); err != nil {
			b.Fatal(err)
		}
	}
}

var healthy = faulty(localfargate.Faults{})

func unconnectedForEver(s scene) trial {
	return trial{scene: s, steps: []step{
		fails(core.Retry, "target-not-connected"), later(core.AgentGrace), fails(core.Configuration, "agent-unreachable"),
	}}
}

func inMain(alter func(*types.ContainerDefinition)) func(*ecs.RegisterTaskDefinitionInput) {
	return func(in *ecs.RegisterTaskDefinitionInput) { alter(&in.ContainerDefinitions[0]) }
}

func twoContainers(in *ecs.RegisterTaskDefinitionInput) {
	second := in.ContainerDefinitions[0]
	second.Name = new("proxy")
	in.ContainerDefinitions = append(in.ContainerDefinitions, second)
}

func container(name string) step { return func(b *sandbox) { b.target.Container = name } }

func channel(alter func(*localfargate.Options)) scene { return scene{options: alter} }

func closes(text, reason string) trial {
	return trial{name: reason, scene: scene{faults: localfargate.Faults{CloseText: text}}, steps: []step{
		fails(core.Configuration, reason), healthy, answers,
	}}
}

// soon is how long a first output is waited for that does not come: long enough for all
// that comes before it, on a busy machine too.
const soon = 4 * time.Second

var troubles = []trouble{
	{1, "not connected just after RUNNING", []trial{{
		scene: scene{faults: localfargate.Faults{ExecError: "TargetNotConnectedException", ExecErrors: 2}},
		steps: []step{fails(core.Retry, "target-not-connected"), fails(core.Retry, "target-not-connected"), answers},
	}}},
	{2, "not connected for ever: the task role lacks the actions", []trial{
		unconnectedForEver(scene{faults: localfargate.Faults{NeverConnects: true}}),
	}},
	{3, "not connected for ever: no route to the service", []trial{
		// The gateway is out of reach: ECS knows the agent only from hearsay.
		unconnectedForEver(scene{faults: localfargate.Faults{ExecError: "TargetNotConnectedException"}}),
	}},
	{4, "not connected for ever: the container's own credentials", []trial{
		unconnectedForEver(scene{define: inMain(func(c *types.ContainerDefinition) {
			c.Environment = []types.KeyValuePair{{Name: new("AWS_ACCESS_KEY_ID"), Value: new("test")}}
		})}),
	}},
	{5, "read-only root file system", []trial{{
		scene: scene{hidden: true, define: inMain(func(c *types.ContainerDefinition) { c.ReadonlyRootFilesystem = new(true) })},
		steps: []step{fails(core.Configuration, "agent-stopped"), func(b *sandbox) {
			if d := b.diagnose(b.refused("echo wrong")); !strings.Contains(d.Detail, "read-only file system") {
				b.Errorf("diagnosed as %+v, want the managed agent's reason", d)
			}
		}},
	}, {
		name: "an agent that stops later", scene: scene{},
		steps: []step{answers, faulty(localfargate.Faults{AgentStopped: "Received Container Stopped event"}), fails(core.Configuration, "agent-stopped")},
	}}},
	{6, "one PID namespace for two containers", []trial{{
		scene: scene{define: func(in *ecs.RegisterTaskDefinitionInput) { twoContainers(in); in.PidMode = types.PidModeTask }},
		steps: []step{answers, container("proxy"), later(core.AgentGrace), fails(core.Configuration, "agent-unreachable")},
	}}},
	{7, "the container was restarted and the agent was not", []trial{{
		scene: scene{define: inMain(func(c *types.ContainerDefinition) {
			c.RestartPolicy = &types.ContainerRestartPolicy{Enabled: new(true)}
		})},
		steps: []step{
			answers, restart, fails(core.Retry, "target-not-connected"),
			later(core.AgentGrace), fails(core.Configuration, "agent-unreachable"),
			func(b *sandbox) { b.launch(scene{}) }, answers, // until the task is replaced
		},
	}}},
	{8, "exec not enabled, or its agent not running", []trial{{
		name: "not enabled", scene: scene{run: func(in *ecs.RunTaskInput) { in.EnableExecuteCommand = false }},
		steps: []step{fails(core.Configuration, core.ReasonExecRefused)},
	}, {
		name: "pending", scene: scene{hidden: true, faults: localfargate.Faults{AgentPending: true}},
		steps: []step{fails(core.Retry, "agent-pending"), healthy, func(b *sandbox) {
			b.until("the agent runs", func() bool { return *b.describe().Containers[0].ManagedAgents[0].LastStatus == "RUNNING" })
		}, answers},
	}}},
	{9, "exec on a task that stops", []trial{{
		name: "stopping", scene: scene{define: inMain(func(c *types.ContainerDefinition) {
			c.Command, c.StopTimeout = []string{"sh", "-c", `trap "" TERM; touch deaf; while :; do sleep 1; done`}, new(int32(60))
		})},
		steps: []step{func(b *sandbox) { b.until("the task heeds nothing", func() bool { return b.exists("deaf") }) }, stop, fails(core.Retry, "task-leaving")},
	}, {
		name:  "stopped",
		steps: []step{stop, awaitStopped, fails(gone, "task-gone")},
	}}},
	{10, "the task dies under a session", []trial{{
		steps: []step{limits(ecsexec.Limits{Whole: 20 * time.Second}), dieUnderASession},
	}}},
	{11, "the exit status is always 0", []trial{{steps: []step{func(b *sandbox) {
		for _, status := range []int{0, 1, 7, 126, 127, 137, 255} {
			got, err := b.exec.Exec(b.Context(), b.target, fmt.Sprintf("exit %d", status), nil)
			if err != nil || got.Exit != status {
				b.Errorf("got exit %d, %v; want %d", got.Exit, err, status)
			}
		}
	}}}}},
	{12, "a command with much output hangs", []trial{{steps: []step{func(b *sandbox) {
		b.unattended("head -c 300000 /dev/zero; touch unattended")
		got, err := b.exec.Exec(b.Context(), b.target, "head -c 300000 /dev/zero", nil)
		if err != nil || !bytes.Equal(got.Stdout, make([]byte, 300_000)) {
			b.Errorf("got %d bytes, %v; want all 300000", len(got.Stdout), err)
		}
		if b.exists("unattended") {
			b.Error("the command that nobody read went on: the trouble was not there")
		}
	}}}}},
	{13, "the last of the output is missing", []trial{{
		name: "all of it", scene: channel(func(o *localfargate.Options) { o.Habits.Channel.Drain = 50 * time.Millisecond }),
		steps: []step{
			faulty(localfargate.Faults{LossToClient: 1}), limits(ecsexec.Limits{FirstOutput: 20 * time.Second, Linger: time.Second, Whole: 21 * time.Second}),
			func(b *sandbox) { diagnosed(b, b.refused("echo wrong"), core.Retry, "closed-without-trailer") },
			healthy, answers,
		},
	}, {
		name: "a tenth of the messages",
		scene: scene{faults: localfargate.Faults{
			LossToClient: 0.1, LossToAgent: 0.1, DuplicateToClient: 0.1, DuplicateToAgent: 0.1, ReorderToClient: 0.1, ReorderToAgent: 0.1, Seed: 11,
		}},
		steps: []step{answersInTheEnd},
	}}},
	{14, "the session is frozen from the start", []trial{{
		name: "input before the agent joined is lost", scene: scene{faults: localfargate.Faults{LoseFirst: 6}},
		steps: []step{func(b *sandbox) {
			input := bytes.Repeat([]byte(text), 100)
			got, err := b.exec.Exec(b.Context(), b.target, "cat", input)
			if err != nil || !bytes.Equal(got.Stdout, input) {
				b.Errorf("got %d bytes, %v; want the %d that were typed", len(got.Stdout), err, len(input))
			}
		}},
	}, {
		name: "nothing passes", scene: scene{
			options: func(o *localfargate.Options) { o.Habits.Channel.Drain = time.Hour }, faults: localfargate.Faults{LossToClient: 1, LossToAgent: 1},
		},
		steps: []step{
			limits(ecsexec.Limits{FirstOutput: soon, Linger: time.Second}), fails(core.Retry, "no-first-output"),
			limits(ecsexec.Limits{}), healthy, answers,
		},
	}, {
		name: "the agent never joins", scene: scene{faults: localfargate.Faults{NeverJoins: true}},
		steps: []step{limits(ecsexec.Limits{FirstOutput: soon}), fails(core.Retry, "agent-absent")},
	}}},
	{15, "closed after 20 minutes without a word", []trial{{
		scene: channel(func(o *localfargate.Options) { o.Habits.Channel.Idle = 300 * time.Millisecond }),
		steps: []step{func(b *sandbox) {
			diagnosed(b, b.refused("sleep 20; echo wrong"), core.Retry, "session-timed-out")
		}},
	}}},
	{16, "leaked sessions hold every slot", []trial{{
		scene: channel(func(o *localfargate.Options) { o.Habits.Channel.Idle = 3 * soon }),
		steps: []step{func(b *sandbox) {
			for range 2 {
				b.unattended("true")
			}
			b.exec.Limits = ecsexec.Limits{FirstOutput: soon}
			diagnosed(b, b.refused("echo wrong"), core.Retry, "agent-absent")
			b.exec.Limits = ecsexec.Limits{} // the idle limit ends the leaked ones
		}, answersInTheEnd},
	}, {
		name: "ours are none of them", steps: slices.Repeat([]step{answers, failsInside}, 3),
	}}},
	{17, "plugin not found", []trial{
		closes("Plugin with name InteractiveCommands not found. Step name: InteractiveCommands", "agent-broken"),
	}},
	{18, "no shell, or no encoder, in the image", []trial{{
		name: "no shell", scene: scene{faults: localfargate.Faults{NoShell: true}},
		steps: []step{fails(core.Configuration, "no-shell")},
	}, lacking("base64", "no-encoder"), lacking("head", "no-head"), lacking("sleep", "no-sleep")}},
	{19, "the data key belongs to another target", []trial{
		closes("Encountered error while initiating handshake. Fetching data key failed: Unable to retrieve data key, "+
			"Error when decrypting data key InvalidCiphertextException: ", "kms-data-key"),
	}},
	{20, "the client cannot make a data key", []trial{{
		scene: scene{faults: localfargate.Faults{KMS: true}},
		steps: []step{fails(core.Configuration, "kms-unsupported"), healthy, answers},
	}}},
	{21, "the session is refused for its logging", []trial{
		closes("We couldn't start the session because encryption is not set up on the selected CloudWatch Logs log group. "+
			"Either encrypt the log group or choose an option to enable logging without encryption.", "logging-refused"),
		closes("We couldn't start the session because we are unable to validate encryption on your Amazon S3 bucket. "+
			"Error: AccessDenied: Access Denied status code: 403", "logging-refused"),
	}},
	{22, "the image has no script(1): the result fails after the output", []trial{{
		scene: scene{faults: localfargate.Faults{EndText: `exec: "script": executable file not found in $PATH`}},
		steps: []step{answers, answers},
	}}},
	{23, "the command is mangled by quotes", []trial{{steps: []step{answers, func(b *sandbox) {
		script := strings.Repeat("# 'quotes' \"and\" {{ssm:name}} \\ and $dollars, é\n", 400) + "printf done"
		got, err := b.exec.Exec(b.Context(), b.target, script, nil) // too long for a command: typed
		if err != nil || string(got.Stdout) != "done" {
			b.Errorf("a script of %d bytes: %q, %v", len(script), got.Stdout, err)
		}
	}}}}},
	{24, "carriage returns, prompts and chatter in the output", []trial{{
		scene: scene{faults: localfargate.Faults{Banner: "\r\nThis session is encrypted using AWS KMS.\r\nroot@sandbox:/# \x1b[0m\r\nQUJD\r\n"}},
		steps: []step{answers},
	}}},
	{25, "the plugin reads stdin and meets its end", []trial{{steps: []step{func(b *sandbox) {
		old := os.Stdin
		r, w, err := os.Pipe()
		if err != nil {
			b.Fatal(err)
		}
		io.WriteString(w, "for somebody else")
		w.Close()
		os.Stdin = r
		defer func() { os.Stdin = old; r.Close() }()
		answers(b)
		if left, err := io.ReadAll(r); err != nil || string(left) != "for somebody else" {
			b.Errorf("%q is left of stdin, %v; want all of it", left, err)
		}
	}}}}},
	{26, "only interactive sessions are allowed", []trial{{steps: []step{func(b *sandbox) {
		_, err := b.ecs.ExecuteCommand(b.Context(), &ecs.ExecuteCommandInput{Task: &b.target.TaskARN, Command: new("true")})
		if err == nil || !strings.Contains(err.Error(), "InvalidParameterException") {
			b.Errorf("a call that asks for less: %v; want it refused", err)
		}
	}, answers}}}},
	{27, "the wrong container, or none named", []trial{{
		scene: scene{define: twoContainers},
		steps: []step{
			answers, container("missing"), fails(core.Configuration, "container-unknown"),
			container(""), fails(core.Configuration, "no-target"),
			container("proxy"), func(b *sandbox) {
				got, err := b.exec.Exec(b.Context(), b.target, "pwd", nil)
				if err != nil || !strings.Contains(string(got.Stdout), "/proxy/") {
					b.Errorf("ran in %q, %v; want the container asked for", got.Stdout, err)
				}
			},
		},
	}}},
	{28, "access denied", []trial{{
		scene: scene{faults: localfargate.Faults{ExecError: "AccessDeniedException"}},
		steps: []step{fails(core.Configuration, "access-denied"), called(1)},
	}}},
	{29, "service unavailable", []trial{{
		scene: scene{faults: localfargate.Faults{ExecError: "ServerException", ExecErrors: 1}},
		// A call that failed may have started the command all the same.
		steps: []step{fails(core.Retry, "server-error"), called(1), answers},
	}}},
	{30, "throttled, by a code that is not in the SDK's model", []trial{{
		name: "for a moment", scene: scene{faults: localfargate.Faults{ExecError: "ThrottlingException", ExecErrors: 1}},
		steps: []step{answers, called(2)},
	}, {
		name: "for longer", scene: scene{faults: localfargate.Faults{ExecError: "ThrottlingException"}},
		steps: []step{fails(core.Retry, "throttled"), healthy, answers},
	}}},
	{31, "MISSING right after RunTask", []trial{{
		scene: scene{hidden: true, options: func(o *localfargate.Options) { o.Habits.Visible, o.Habits.AgentStart = time.Hour, time.Hour }},
		steps: []step{fails(core.Retry, "task-missing")},
	}}},
	{32, "a malformed task id", []trial{{steps: []step{func(b *sandbox) {
		for _, id := range []string{"123", "arn:aws:ecs:us-east-1:000000000000:task/default/123", b.target.TaskARN + "0"} {
			target := b.target
			target.TaskARN = id
			_, err := b.exec.Exec(b.Context(), target, "echo wrong", nil)
			if d := b.diagnose(execError(b.T, err)); d.Gone || d.Healing != core.Configuration {
				b.Errorf("task %q: %v is diagnosed as %+v; want configuration", id, err, d)
			}
			tasks, err := b.tasks.Describe(b.Context(), cluster, []string{b.target.TaskARN, id, b.target.TaskARN})
			if err != nil || tasks[0].Life != core.TaskLives || tasks[1].Life != core.TaskUnknown || tasks[1].Reason == "" || tasks[2].Life != core.TaskLives {
				b.Errorf("task %q among others: %+v, %v; want the others answered", id, tasks, err)
			}
		}
	}}}}},
	{33, "a resumed session says nothing", []trial{{
		scene: scene{faults: localfargate.Faults{CutAfterBytes: 3000}},
		steps: []step{func(b *sandbox) {
			// The gateway would take the client again; whoever comes back is not answered from the start.
			diagnosed(b, b.refused("head -c 20000 /dev/zero"), core.Retry, "channel-cut")
		}, called(1), healthy, answers, called(2)},
	}}},
	{34, "the container ended, the task is not STOPPED", []trial{{
		scene: scene{faults: localfargate.Faults{StaysRunning: true}},
		steps: []step{answers, kill, func(b *sandbox) {
			b.until("the container has ended", func() bool { return b.state().Containers[0].ExitCode != nil })
			if status := *b.describe().LastStatus; status != "RUNNING" {
				b.Errorf("the task is %s: the trouble was not there", status)
			}
		}, fails(gone, "task-gone")},
	}}},
	{35, "what is not ASCII comes back garbled", []trial{{steps: []step{answers, func(b *sandbox) {
		every := make([]byte, 0, 1024)
		for i := range 1024 {
			every = append(every, byte(i), byte(i*7>>3))
		}
		got, err := b.exec.Exec(b.Context(), b.target, "cat; printf '\\357\\277\\275\\346\\274'", every)
		if want := append(every, "\xef\xbf\xbd\xe6\xbc"...); err != nil || !bytes.Equal(got.Stdout, want) {
			b.Errorf("got %q, %v; want every byte as it was", got.Stdout, err)
		}
	}}}}},
}

// failsInside is a session whose script does not end in time.
func failsInside(b *sandbox) {
	b.Helper()
	b.exec.Limits = ecsexec.Limits{Whole: 12 * time.Second, Linger: 3 * time.Second}
	diagnosed(b, b.refused("sleep 1000; echo wrong"), core.Retry, "script-unfinished")
	b.exec.Limits = ecsexec.Limits{}
}

func stop(b *sandbox) {
	b.Helper()
	if _, err := b.tasks.Stop(b.Context(), cluster, b.target.TaskARN, "test"); err != nil {
		b.Fatal(err)
	}
}

func awaitStopped(b *sandbox) {
	b.Helper()
	b.until("the task is stopped", func() bool { return b.state().LastStatus == "STOPPED" })
}

func kill(b *sandbox) {
	b.Helper()
	if err := b.server.KillTask(b.target.TaskARN); err != nil {
		b.Fatal(err)
	}
}

func restart(b *sandbox) {
	b.Helper()
	before := *b.describe().Containers[0].RuntimeId
	if err := b.server.RestartContainer(b.target.TaskARN, "main"); err != nil {
		b.Fatal(err)
	}
	b.until("the container has another runtime id", func() bool { return *b.describe().Containers[0].RuntimeId != before })
}

func called(n int) step {
	return func(b *sandbox) {
		b.Helper()
		if got := b.calls(); got != n {
			b.Errorf("ExecuteCommand was called %d times, want %d", got, n)
		}
	}
}

// lacking is an image without a program: the task that is asked finds only what is
// in a directory of its own.
func lacking(program, reason string) trial {
	return trial{name: "no " + program, scene: scene{options: func(o *localfargate.Options) { o.Visible = []string{o.Dir} }}, steps: []step{func(b *sandbox) {
		bin := b.path("bin")
		b.define(inMain(func(c *types.ContainerDefinition) {
			c.Command = []string{"/usr/bin/env", "-i", "PATH=" + os.Getenv("PATH"), "sleep", "2147483647"}
			c.Environment = []types.KeyValuePair{{Name: new("PATH"), Value: &bin}}
		}))
		if err := os.Mkdir(bin, 0o755); err != nil {
			b.Fatal(err)
		}
		for _, name := range []string{"sleep", "head", "base64", "stty", "cat"} {
			real, err := exec.LookPath(name)
			if err != nil {
				b.Fatal(err)
			}
			if name == program {
				continue
			}
			if err := os.Symlink(real, filepath.Join(bin, name)); err != nil {
				b.Fatal(err)
			}
		}
		b.launch(scene{})
	}, fails(core.Configuration, reason)}}
}

func dieUnderASession(b *sandbox) {
	failed := make(chan *core.ExecError, 1)
	go func() { failed <- b.refused("touch on; sleep 1000; echo wrong") }()
	b.until("the script runs", func() bool { return b.exists("on") })
	kill(b)
	e := <-failed
	if e.Healing != core.Retry || e.Reason != "agent-absent" {
		b.Errorf("got %v, want agent-absent", e)
	}
	awaitStopped(b)
	diagnosed(b, e, gone, "task-gone")
}

// answersInTheEnd allows that a session is lost, never that it lies.
func answersInTheEnd(b *sandbox) {
	want := bytes.Repeat([]byte(text), 64<<10/len(text))
	for range 3 {
		got, err := b.exec.Exec(b.Context(), b.target, "cat", want)
		if err != nil {
			diagnosed(b, execError(b.T, err), core.Retry, execError(b.T, err).Reason)
			continue
		}
		if !bytes.Equal(got.Stdout, want) || got.Exit != 0 {
			b.Fatalf("a wrong answer of %d bytes, exit %d", len(got.Stdout), got.Exit)
		}
		return
	}
	b.Error("no answer in three tries")
}

func TestKnownTroubles(t *testing.T) {
	for _, row := range troubles {
		t.Run(fmt.Sprintf("%02d %s", row.number, row.symptom), func(t *testing.T) {
			t.Parallel()
			for _, c := range row.cases {
				t.Run(c.name, func(t *testing.T) {
					b := newSandbox(t, c.scene)
					for _, s := range c.steps {
						s(b)
					}
				})
			}
		})
	}
}

func TestEveryKnownTroubleIsTried(t *testing.T) {
	var numbers []int
	for _, row := range troubles {
		numbers = append(numbers, row.number)
		tried := 0
		for _, c := range row.cases {
			tried += len(c.steps)
		}
		if tried == 0 {
			t.Errorf("trouble %d, %s: nothing is tried", row.number, row.symptom)
		}
	}
	for want := 1; want <= 35; want++ {
		if n := len(numbers) - len(slices.DeleteFunc(slices.Clone(numbers), func(n int) bool { return n == want })); n != 1 {
			t.Errorf("trouble %d is there %d times, want once", want, n)
		}
	}
	if len(numbers) != 35 {
		t.Errorf("got %d troubles, want 35", len(numbers))
	}
}
