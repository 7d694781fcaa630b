package localfargate_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/ecs/types"

	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/localfargate/box"
)

func TestMain(m *testing.M) {
	localfargate.MaybeInit()
	os.Exit(m.Run())
}

// world is a running server with the genuine client, and the events so far.
type world struct {
	*ecs.Client
	t      *testing.T
	server *localfargate.Server

	mu     sync.Mutex
	events []localfargate.Event
	news   chan struct{}
}

func begin(t *testing.T, alter func(*localfargate.Options)) *world {
	t.Helper()
	w := &world{t: t, news: make(chan struct{}, 1)}
	opts := localfargate.Options{
		Dir: t.TempDir(), Isolation: box.Isolation(os.Getenv("SANDKEEPER_TEST_ISOLATION")), Habits: localfargate.QuickHabits(), Throttle: localfargate.Throttle{Off: true},
		Events: func(_ context.Context, e localfargate.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, e)
			select {
			case w.news <- struct{}{}:
			default:
			}
		},
	}
	if os.Getenv(driverVariable) == string(localfargate.DriverDocker) {
		opts.Driver, opts.Image = localfargate.DriverDocker, baseImage(t)
	}
	if alter != nil {
		alter(&opts)
	}
	server, err := localfargate.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	w.server = server
	w.Client = client(server.URL())
	return w
}

func client(url string) *ecs.Client {
	return ecs.New(ecs.Options{
		BaseEndpoint: &url, Region: "us-east-1", Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
		Retryer: aws.NopRetryer{},
	})
}

// await blocks until an event satisfies the condition.
func (w *world) await(what string, condition func(localfargate.Event) bool) localfargate.Event {
	w.t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		w.mu.Lock()
		for _, e := range w.events {
			if condition(e) {
				w.mu.Unlock()
				return e
			}
		}
		w.mu.Unlock()
		select {
		case <-w.news:
		case <-deadline:
			w.t.Fatalf("no event %s", what)
		}
	}
}

func (w *world) awaitStatus(arn, status string) {
	w.t.Helper()
	w.await(status, func(e localfargate.Event) bool { return e.TaskARN == arn && e.LastStatus == status })
}

// awaitAgent blocks until the task can be asked by ECS Exec.
func (w *world) awaitAgent(arn string) {
	w.t.Helper()
	w.await("with a running agent", func(e localfargate.Event) bool {
		return e.TaskARN == arn && strings.Contains(string(e.Detail), `"name":"ExecuteCommandAgent","lastStatus":"RUNNING"`)
	})
}

func (w *world) register(c types.ContainerDefinition) {
	w.t.Helper()
	if c.Name == nil {
		c.Name = new("agent")
	}
	_, err := w.RegisterTaskDefinition(w.t.Context(), &ecs.RegisterTaskDefinitionInput{
		Family: new("sandbox"), ContainerDefinitions: []types.ContainerDefinition{c},
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// run starts a task of the family sandbox and waits until it runs and, if it has
// an agent, until that can be reached.
func (w *world) run(alter func(*ecs.RunTaskInput)) string {
	w.t.Helper()
	in := &ecs.RunTaskInput{TaskDefinition: new("sandbox"), EnableExecuteCommand: true}
	if alter != nil {
		alter(in)
	}
	out, err := w.RunTask(w.t.Context(), in)
	if err != nil {
		w.t.Fatal(err)
	}
	arn := *out.Tasks[0].TaskArn
	w.awaitStatus(arn, "RUNNING")
	if in.EnableExecuteCommand {
		w.awaitAgent(arn)
	}
	return arn
}

// exec opens a session; the agent may need a moment to be connected.
func (w *world) exec(arn, command string) *types.Session {
	w.t.Helper()
	out, err := w.ExecuteCommand(w.t.Context(), &ecs.ExecuteCommandInput{Task: &arn, Command: &command, Interactive: true})
	if err != nil {
		w.t.Fatal(err)
	}
	return out.Session
}

// file reads a file of the task's first container's work directory; "" if absent.
func (w *world) file(arn, name string) string {
	w.t.Helper()
	state, err := w.server.Task(arn)
	if err != nil {
		w.t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(state.Containers[0].WorkDir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.t.Fatal(err)
	}
	return string(data)
}

func (w *world) describe(arn string) types.Task {
	w.t.Helper()
	out, err := w.DescribeTasks(w.t.Context(), &ecs.DescribeTasksInput{Tasks: []string{arn}, Include: []types.TaskField{types.TaskFieldTags}})
	if err != nil {
		w.t.Fatal(err)
	}
	if len(out.Tasks) != 1 {
		w.t.Fatalf("described tasks: %+v, failures %+v", out.Tasks, out.Failures)
	}
	return out.Tasks[0]
}

// until looks again at every event and at a steady pace in between.
func (w *world) until(what string, condition func() bool) {
	w.t.Helper()
	deadline := time.After(2 * time.Minute)
	pace := time.NewTicker(20 * time.Millisecond)
	defer pace.Stop()
	for !condition() {
		select {
		case <-w.news:
		case <-pace.C:
		case <-deadline:
			w.t.Fatalf("it does not come about that %s", what)
		}
	}
}

func TestTaskRunsExecsAndStopsInEveryIsolation(t *testing.T) {
	for _, kind := range []box.Isolation{box.Namespaces, box.UserNamespaces, box.Directory} {
		t.Run(string(kind), func(t *testing.T) {
			if err := box.Try(kind, t.TempDir()); err != nil && kind != box.Directory {
				t.Skipf("the kernel refuses it: %v", err)
			}
			w := begin(t, func(o *localfargate.Options) { o.Isolation = kind })
			w.register(types.ContainerDefinition{})
			arn := w.run(nil)
			got := attach(t, w.exec(arn, "echo hello")).follow(nil)
			if got.output != "hello\r\n" || !got.ended || got.closed != "" {
				t.Errorf("session: %+v, want hello, a terminal's line end and an ordinary end", got)
			}
			if _, err := w.StopTask(t.Context(), &ecs.StopTaskInput{Task: &arn, Reason: new("the run ended")}); err != nil {
				t.Fatal(err)
			}
			w.awaitStatus(arn, "STOPPED")
			task := w.describe(arn)
			if task.StopCode != types.TaskStopCodeUserInitiated || *task.StoppedReason != "the run ended" || *task.Containers[0].ExitCode != 143 {
				t.Errorf("stopped task: %+v", task)
			}
		})
	}
}
