package ecsexec_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/ecs/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
)

func TestMain(m *testing.M) {
	localfargate.MaybeInit()
	os.Exit(m.Run())
}

// scene is what a sandbox is made from; its zero value is a task with one
// container that does nothing and can be reached.
type scene struct {
	options func(*localfargate.Options)
	define  func(*ecs.RegisterTaskDefinitionInput)
	run     func(*ecs.RunTaskInput)
	faults  localfargate.Faults
	hidden  bool // ECS may not show the task, or not let it be reached
}

// sandbox is a task of a local Fargate, with the clients that the functions have.
type sandbox struct {
	*testing.T
	server *localfargate.Server
	ecs    *ecs.Client
	exec   *ecsexec.Executor
	tasks  *ecstask.Tasks
	target core.ExecTarget
	now    time.Duration // how much later than now a failure is judged
}

const cluster = "default"

func newSandbox(t *testing.T, s scene) *sandbox {
	t.Helper()
	opts := localfargate.Options{
		Dir: t.TempDir(), Habits: localfargate.QuickHabits(), Throttle: localfargate.Throttle{Off: true}, Faults: s.faults,
	}
	if s.options != nil {
		s.options(&opts)
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
	keys := credentials.NewStaticCredentialsProvider("test", "test", "")
	client := ecs.New(ecs.Options{BaseEndpoint: new(server.URL()), Region: "us-east-1", Credentials: keys})
	b := &sandbox{
		T: t, server: server, ecs: client, tasks: &ecstask.Tasks{ECS: client},
		exec: &ecsexec.Executor{ECS: client, Credentials: keys, Region: "us-east-1"},
	}
	b.define(s.define)
	b.launch(s)
	return b
}

func (b *sandbox) define(alter func(*ecs.RegisterTaskDefinitionInput)) {
	b.Helper()
	in := &ecs.RegisterTaskDefinitionInput{
		Family: new("sandbox"), ContainerDefinitions: []types.ContainerDefinition{{
			Name: new("main"), Command: []string{"sleep", "2147483647"},
		}},
	}
	if alter != nil {
		alter(in)
	}
	if _, err := b.ecs.RegisterTaskDefinition(b.Context(), in); err != nil {
		b.Fatal(err)
	}
}

// launch runs a task, which becomes the target, and waits until it can be reached.
func (b *sandbox) launch(s scene) {
	b.Helper()
	in := &ecs.RunTaskInput{TaskDefinition: new("sandbox"), EnableExecuteCommand: true}
	if s.run != nil {
		s.run(in)
	}
	out, err := b.ecs.RunTask(b.Context(), in)
	if err != nil {
		b.Fatal(err)
	}
	b.target = core.ExecTarget{Cluster: cluster, TaskARN: *out.Tasks[0].TaskArn, Container: "main"}
	b.until("the task runs", func() bool { return b.state().LastStatus == "RUNNING" })
	if in.EnableExecuteCommand && !s.hidden {
		b.until("the agents run", func() bool {
			return !slices.ContainsFunc(b.describe().Containers, func(c types.Container) bool {
				return *c.ManagedAgents[0].LastStatus != "RUNNING"
			})
		})
	}
}

func (b *sandbox) state() localfargate.TaskState {
	b.Helper()
	state, err := b.server.Task(b.target.TaskARN)
	if err != nil {
		b.Fatal(err)
	}
	return state
}

func (b *sandbox) describe() types.Task {
	b.Helper()
	out, err := b.ecs.DescribeTasks(b.Context(), &ecs.DescribeTasksInput{Tasks: []string{b.target.TaskARN}})
	if err != nil || len(out.Tasks) != 1 {
		b.Fatalf("describe: %+v, %v", out, err)
	}
	return out.Tasks[0]
}

// until waits, but not for ever.
func (b *sandbox) until(what string, holds func() bool) {
	b.Helper()
	late, pace := time.After(2*time.Minute), time.NewTicker(20*time.Millisecond)
	defer pace.Stop()
	for !holds() {
		select {
		case <-pace.C:
		case <-late:
			b.Fatalf("waited in vain until %s", what)
		}
	}
}

// path is a file of the container's work directory, as the host sees it.
func (b *sandbox) path(name string) string {
	return filepath.Join(b.state().Containers[0].WorkDir, name)
}

func (b *sandbox) exists(name string) bool {
	_, err := os.Lstat(b.path(name))
	return err == nil
}

// unattended starts a command that no client meets.
func (b *sandbox) unattended(script string) {
	b.Helper()
	_, err := b.ecs.ExecuteCommand(b.Context(), &ecs.ExecuteCommandInput{
		Task: &b.target.TaskARN, Container: &b.target.Container, Interactive: true,
		Command: new("/bin/sh -c '" + strings.ReplaceAll(script, "'", `'"'"'`) + "'"),
	})
	if err != nil {
		b.Fatal(err)
	}
}

// calls is how often ExecuteCommand was called.
func (b *sandbox) calls() int { return b.server.Metrics().Calls["ExecuteCommand"] }

// diagnose asks ECS about the task and says what a failure means.
func (b *sandbox) diagnose(e *core.ExecError) core.Diagnosis {
	var task core.Task
	if tasks, err := b.tasks.Describe(b.Context(), cluster, []string{e.Target.TaskARN}); err == nil {
		task = tasks[0]
	}
	return core.Diagnose(task, e.Target.Container, core.ProbeFailure{Healing: e.Healing, Reason: e.Reason}, core.MillisOf(time.Now().Add(b.now)))
}

// refused runs a script that must get no answer.
func (b *sandbox) refused(script string) *core.ExecError {
	b.Helper()
	got, err := b.exec.Exec(b.Context(), b.target, script, nil)
	if err == nil {
		b.Fatalf("got an answer: %q, exit %d; want none", got.Stdout, got.Exit)
	}
	e, ok := errors.AsType[*core.ExecError](err)
	if !ok {
		b.Fatalf("got %v, want an ExecError", err)
	}
	return e
}
