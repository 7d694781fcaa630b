package localfargate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/aws/smithy-go"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/localfargate/box"
)

// code is the error code of an API error, and "" without error.
func code(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	e, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		t.Fatalf("error %v is no API error", err)
	}
	return e.ErrorCode()
}

func shell(script string) types.ContainerDefinition {
	return types.ContainerDefinition{Command: []string{"/bin/sh", "-c", script}}
}

// interrupt takes a task's capacity back, and waits for the news of it.
func interrupt(w *world, arn string) {
	w.t.Helper()
	if err := w.server.InterruptTask(arn); err != nil {
		w.t.Fatal(err)
	}
	w.await("about to end", func(e localfargate.Event) bool { return e.LastStatus == "RUNNING" && e.DesiredStatus == "STOPPED" })
	if err := w.server.InterruptTask(arn); !errors.Is(err, localfargate.ErrNotRunning) {
		w.t.Errorf("told once more: %v", err)
	}
}

func TestTaskEndsAsItsMainProcessEnds(t *testing.T) {
	const patient, soon = time.Hour, 300 * time.Millisecond
	cases := []struct {
		name, script string
		end          func(*world, string)
		time         time.Duration // from SIGTERM to SIGKILL
		exit         int32
		stopCode     types.TaskStopCode
		reason       string
	}{
		{"an exit with 0 stops the task", "exit 0", nil, patient, 0, types.TaskStopCodeEssentialContainerExited, "Essential container in task exited"},
		{"an exit with 3 stops the task", "exit 3", nil, patient, 3, types.TaskStopCodeEssentialContainerExited, "Essential container in task exited"},
		{"a task that dies shows 137", "exec sleep 1000", func(w *world, arn string) {
			if err := w.server.KillTask(arn); err != nil {
				w.t.Fatal(err)
			}
		}, patient, 137, types.TaskStopCodeEssentialContainerExited, "Essential container in task exited"},
		{"capacity that is taken back is told by SIGTERM", "exec sleep 1000", interrupt,
			patient, 143, types.TaskStopCodeTerminationNotice, "Your Spot Task was interrupted."},
		{"who heeds the notice ends as it likes", "trap 'exit 5' TERM; while :; do sleep 0.05; done", interruptLoop,
			patient, 5, types.TaskStopCodeTerminationNotice, "Your Spot Task was interrupted."},
		{"who ignores the notice is killed", "trap '' TERM; while :; do sleep 0.05; done", interruptLoop,
			soon, 137, types.TaskStopCodeTerminationNotice, "Your Spot Task was interrupted."},
		{"a stop is told by SIGTERM", "trap 'exit 9' TERM; while :; do sleep 0.05; done", stopWithoutReason,
			patient, 9, types.TaskStopCodeUserInitiated, "Task stopped by user"},
		{"who ignores SIGTERM is killed after the stop timeout", "trap '' TERM; while :; do sleep 0.05; done", stopWithoutReason,
			soon, 137, types.TaskStopCodeUserInitiated, "Task stopped by user"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := begin(t, func(o *localfargate.Options) {
				o.Habits.StopTimeout, o.Habits.Notice = c.time, c.time
			})
			w.register(shell(c.script))
			out, err := w.RunTask(t.Context(), &ecs.RunTaskInput{TaskDefinition: new("sandbox")})
			if err != nil {
				t.Fatal(err)
			}
			arn := *out.Tasks[0].TaskArn
			w.awaitStatus(arn, "RUNNING")
			if c.end != nil {
				c.end(w, arn)
			}
			w.awaitStatus(arn, "STOPPED")
			task := w.describe(arn)
			if *task.Containers[0].ExitCode != c.exit || task.StopCode != c.stopCode || *task.StoppedReason != c.reason ||
				*task.DesiredStatus != "STOPPED" || task.StoppedAt == nil {
				t.Errorf("stopped task: exit %d, %s, %q, desired %s", *task.Containers[0].ExitCode, task.StopCode, *task.StoppedReason, *task.DesiredStatus)
			}
		})
	}
}

func interruptLoop(w *world, arn string) {
	w.t.Helper()
	awaitLoop(w, arn)
	interrupt(w, arn)
}

func stopWithoutReason(w *world, arn string) {
	w.t.Helper()
	// A trap is set only once the shell got there.
	awaitLoop(w, arn)
	if _, err := w.StopTask(w.t.Context(), &ecs.StopTaskInput{Task: &arn}); err != nil {
		w.t.Fatal(err)
	}
}

// awaitLoop waits until the main shell has begun its loop.
func awaitLoop(w *world, arn string) {
	w.t.Helper()
	w.until("the main shell loops", func() bool {
		task, err := w.server.Task(arn)
		return err == nil && slices.ContainsFunc(task.Containers[0].Processes, func(p box.Process) bool { return strings.HasPrefix(p.Command, "sleep") })
	})
}

// deaf heeds no SIGTERM.
const deaf = "trap '' TERM; while :; do sleep 0.05; done"

// TestInItsNoticeATaskCanBeEntered: it is RUNNING, and told to be about to stop.
func TestInItsNoticeATaskCanBeEntered(t *testing.T) {
	w := begin(t, func(o *localfargate.Options) { o.Habits.StopTimeout, o.Habits.Notice = time.Hour, time.Hour })
	w.register(shell(deaf))
	arn := w.run(nil)
	interruptLoop(w, arn)
	told := w.describe(arn)
	if *told.LastStatus != "RUNNING" || *told.DesiredStatus != "STOPPED" || told.StopCode != types.TaskStopCodeTerminationNotice || told.StoppingAt == nil {
		t.Errorf("told: %s, desired %s, %s, stopping at %v", *told.LastStatus, *told.DesiredStatus, told.StopCode, told.StoppingAt)
	}
	if got := attach(t, w.exec(arn, "/bin/sh -c 'echo entered'")).follow(nil); got.output != "entered\r\n" {
		t.Errorf("the session showed %q", got.output)
	}
}

// TestANoticeLastsAsLongAsTheStopTimeout, and two minutes at most.
func TestANoticeLastsAsLongAsTheStopTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		stopTimeout int32
		notice      time.Duration
	}{
		"the container's own stop timeout": {2, time.Hour},
		"the notice where that is shorter": {100, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, func(o *localfargate.Options) { o.Habits.StopTimeout, o.Habits.Notice = time.Hour, c.notice })
			agent := shell(deaf)
			agent.StopTimeout = new(c.stopTimeout)
			w.register(agent)
			arn := w.run(nil)
			interruptLoop(w, arn)
			w.awaitStatus(arn, "STOPPED")
			stopped := w.describe(arn)
			if lasted := stopped.ExecutionStoppedAt.Sub(*stopped.StoppingAt); *stopped.Containers[0].ExitCode != 137 || lasted < 900*time.Millisecond {
				t.Errorf("exit %d after %s", *stopped.Containers[0].ExitCode, lasted)
			}
		})
	}
}

// TestANoticeEndsWithTheFirstEssentialContainer: what may go goes alone, and who is left
// keeps the rest of the time that the notice gave.
func TestANoticeEndsWithTheFirstEssentialContainer(t *testing.T) {
	w := begin(t, func(o *localfargate.Options) { o.Habits.StopTimeout, o.Habits.Notice = 10*time.Second, time.Hour })
	goes, stays := shell("trap 'exit 4' TERM; while :; do sleep 0.05; done"), shell(deaf)
	stays.Name, goes.Name, goes.Essential = new("stays"), new("goes"), new(false)
	_, err := w.RegisterTaskDefinition(t.Context(), &ecs.RegisterTaskDefinitionInput{
		Family: new("sandbox"), ContainerDefinitions: []types.ContainerDefinition{stays, goes},
	})
	if err != nil {
		t.Fatal(err)
	}
	arn := w.run(func(in *ecs.RunTaskInput) { in.EnableExecuteCommand = false })
	w.until("both loop", func() bool {
		task, err := w.server.Task(arn)
		return err == nil && !slices.ContainsFunc(task.Containers, func(c localfargate.ContainerState) bool { return len(c.Processes) < 2 })
	})
	interrupt(w, arn)
	w.await("goes has gone while the task runs", func(e localfargate.Event) bool {
		return e.LastStatus == "RUNNING" && e.DesiredStatus == "STOPPED" && strings.Contains(string(e.Detail), `"exitCode":4`)
	})
	w.awaitStatus(arn, "STOPPED")
	codes := map[string]int32{}
	for _, c := range w.describe(arn).Containers {
		codes[*c.Name] = *c.ExitCode
	}
	if codes["goes"] != 4 || codes["stays"] != 137 {
		t.Errorf("exit codes %v", codes)
	}
}

func TestTaskThatCannotStartSaysWhy(t *testing.T) {
	w := begin(t, nil)
	w.register(types.ContainerDefinition{Command: []string{"/no/such/agent"}})
	out, err := w.RunTask(t.Context(), &ecs.RunTaskInput{TaskDefinition: new("sandbox")})
	if err != nil {
		t.Fatal(err)
	}
	arn := *out.Tasks[0].TaskArn
	w.awaitStatus(arn, "STOPPED")
	task := w.describe(arn)
	if task.StopCode != types.TaskStopCodeTaskFailedToStart || !strings.Contains(*task.StoppedReason, "CannotStartContainerError") ||
		!strings.Contains(*task.StoppedReason, "/no/such/agent") || task.Containers[0].ExitCode != nil {
		t.Errorf("task: %s %q, exit code %v", task.StopCode, *task.StoppedReason, task.Containers[0].ExitCode)
	}
}

func TestStopEndsTheWholeTree(t *testing.T) {
	w := begin(t, nil)
	w.register(shell("exec sleep 1000"))
	arn := w.run(nil)
	leaves := `setsid sh -c 'trap "" TERM HUP INT; touch left; sleep 1000 & sleep 1001; :' </dev/null >/dev/null 2>&1 & until [ -e left ]; do sleep 0.02; done; echo left`
	if got := attach(t, w.exec(arn, sh(leaves))).follow(nil); got.output != "left\r\n" {
		t.Fatalf("session: %+v", got)
	}
	var tree []box.Process
	w.until("the main process and three in another session are left", func() bool {
		state, err := w.server.Task(arn)
		if err != nil {
			t.Fatal(err)
		}
		tree = state.Containers[0].Processes
		return len(tree) == 4
	})
	if _, err := w.StopTask(t.Context(), &ecs.StopTaskInput{Task: &arn}); err != nil {
		t.Fatal(err)
	}
	w.awaitStatus(arn, "STOPPED")
	for _, p := range tree {
		if alive(p.PID) {
			t.Errorf("process %d (%s) outlived its task", p.PID, p.Command)
		}
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	w := begin(t, nil)
	w.register(shell(deaf))
	arn := w.run(nil)
	state, err := w.server.Task(arn)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(state.Containers[0].WorkDir)
	if err := w.server.Close(); err != nil {
		t.Fatal(err)
	}
	for _, p := range state.Containers[0].Processes {
		if alive(p.PID) && strings.HasPrefix(p.Command, "/bin/sh") {
			t.Errorf("process %d (%s) outlived the server", p.PID, p.Command)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory of the task: %v, want gone", err)
	}
}

func alive(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestRunTaskIsIdempotentByToken(t *testing.T) {
	w := begin(t, nil)
	w.register(shell("exec sleep 1000"))
	in := func(token, by string) *ecs.RunTaskInput {
		return &ecs.RunTaskInput{TaskDefinition: new("sandbox"), ClientToken: &token, StartedBy: &by, Cluster: new("one")}
	}
	var wg sync.WaitGroup
	arns := make([]string, 8)
	for i := range arns {
		wg.Go(func() {
			out, err := w.RunTask(t.Context(), in("token-1", "install/a"))
			if err != nil {
				t.Error(err)
				return
			}
			arns[i] = *out.Tasks[0].TaskArn
		})
	}
	wg.Wait()
	if distinct := slices.Compact(slices.Sorted(slices.Values(arns))); len(distinct) != 1 {
		t.Fatalf("one token started %d tasks", len(distinct))
	}
	_, err := w.RunTask(t.Context(), in("token-1", "install/b"))
	conflict, ok := errors.AsType[*types.ConflictException](err)
	if !ok || !slices.Equal(conflict.ResourceIds, arns[:1]) {
		t.Errorf("other parameters: %v, want a conflict that names the task", err)
	}
	other := in("token-1", "install/a")
	other.Cluster = new("two")
	out, err := w.RunTask(t.Context(), other)
	if err != nil || *out.Tasks[0].TaskArn == arns[0] {
		t.Errorf("the token in another cluster: %v, %v, want a new task", out, err)
	}
	if tasks := w.server.Tasks(); len(tasks) != 2 {
		t.Errorf("tasks: %d, want 2", len(tasks))
	}
}

func TestRunTaskRefusesBadInput(t *testing.T) {
	w := begin(t, func(o *localfargate.Options) { o.Clusters = []string{"default"} })
	w.register(shell("exec sleep 1000"))
	_, err := w.RegisterTaskDefinition(t.Context(), &ecs.RegisterTaskDefinitionInput{
		Family: new("vpc"), NetworkMode: types.NetworkModeAwsvpc, ContainerDefinitions: []types.ContainerDefinition{{Name: new("agent")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name, code string
		alter      func(*ecs.RunTaskInput)
	}{
		{"an unknown definition", "ClientException", func(in *ecs.RunTaskInput) { in.TaskDefinition = new("other") }},
		{"an unknown revision", "ClientException", func(in *ecs.RunTaskInput) { in.TaskDefinition = new("sandbox:7") }},
		{"an unknown cluster", "ClusterNotFoundException", func(in *ecs.RunTaskInput) { in.Cluster = new("other") }},
		{"eleven tasks", "InvalidParameterException", func(in *ecs.RunTaskInput) { in.Count = new(int32(11)) }},
		{"no task", "InvalidParameterException", func(in *ecs.RunTaskInput) { in.Count = new(int32(0)) }},
		{"a long startedBy", "InvalidParameterException", func(in *ecs.RunTaskInput) { in.StartedBy = new(strings.Repeat("x", 129)) }},
		{"a startedBy with a colon", "InvalidParameterException", func(in *ecs.RunTaskInput) { in.StartedBy = new("a:b") }},
		{"a long token", "InvalidParameterException", func(in *ecs.RunTaskInput) { in.ClientToken = new(strings.Repeat("x", 65)) }},
		{"an override of no container", "InvalidParameterException", func(in *ecs.RunTaskInput) {
			in.Overrides = &types.TaskOverride{ContainerOverrides: []types.ContainerOverride{{Name: new("other")}}}
		}},
		{"overrides above 8192 characters", "InvalidParameterException", func(in *ecs.RunTaskInput) {
			in.Overrides = &types.TaskOverride{ContainerOverrides: []types.ContainerOverride{{Name: new("agent"), Command: []string{strings.Repeat("x", 8192)}}}}
		}},
		{"awsvpc without a network", "InvalidParameterException", func(in *ecs.RunTaskInput) { in.TaskDefinition = new("vpc") }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			in := &ecs.RunTaskInput{TaskDefinition: new("sandbox")}
			c.alter(in)
			_, err := w.RunTask(t.Context(), in)
			if got := code(t, err); got != c.code {
				t.Errorf("error %v, want %s", err, c.code)
			}
		})
	}
	if tasks := w.server.Tasks(); len(tasks) != 0 {
		t.Errorf("refused calls started %d tasks", len(tasks))
	}
}

func TestOverridesReachTheProcess(t *testing.T) {
	w := begin(t, nil)
	def := shell("echo not this one")
	def.Environment = []types.KeyValuePair{{Name: new("A"), Value: new("definition")}, {Name: new("B"), Value: new("definition")}}
	w.register(def)
	out, err := w.RunTask(t.Context(), &ecs.RunTaskInput{TaskDefinition: new("sandbox"), Overrides: &types.TaskOverride{
		ContainerOverrides: []types.ContainerOverride{{
			Name: new("agent"), Command: []string{"/bin/sh", "-c", `echo "$A $B $AWS_EXECUTION_ENV"`},
			Environment: []types.KeyValuePair{{Name: new("B"), Value: new("override")}},
		}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	w.awaitStatus(*out.Tasks[0].TaskArn, "STOPPED")
	state, err := w.server.Task(*out.Tasks[0].TaskArn)
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(state.Containers[0].Log)
	if err != nil || string(log) != "definition override AWS_ECS_FARGATE\n" {
		t.Errorf("log: %q, %v", log, err)
	}
}

func TestEssentialContainersDecide(t *testing.T) {
	w := begin(t, nil)
	_, err := w.RegisterTaskDefinition(t.Context(), &ecs.RegisterTaskDefinitionInput{
		Family: new("sandbox"), ContainerDefinitions: []types.ContainerDefinition{
			{Name: new("agent"), Command: []string{"sleep", "1000"}, Essential: new(true)},
			{Name: new("helper"), Command: []string{"/bin/sh", "-c", "exit 4"}, Essential: new(false)},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	arn := w.run(func(in *ecs.RunTaskInput) { in.EnableExecuteCommand = false })
	w.await("with the helper's exit", func(e localfargate.Event) bool { return strings.Contains(string(e.Detail), `"exitCode":4`) })
	if task := w.describe(arn); *task.LastStatus != "RUNNING" || *task.Containers[1].LastStatus != "STOPPED" {
		t.Errorf("task %s, helper %s, want a task that runs on", *task.LastStatus, *task.Containers[1].LastStatus)
	}
	if err := w.server.KillTask(arn); err == nil {
		w.awaitStatus(arn, "STOPPED")
	} else {
		t.Error(err)
	}
}

func TestNewTaskIsMissingAtFirst(t *testing.T) {
	w := begin(t, func(o *localfargate.Options) { o.Habits.Visible = time.Hour })
	w.register(shell("exec sleep 1000"))
	arn := w.run(nil)
	out, err := w.DescribeTasks(t.Context(), &ecs.DescribeTasksInput{Tasks: []string{arn}})
	if err != nil || len(out.Tasks) != 0 || len(out.Failures) != 1 || *out.Failures[0].Reason != "MISSING" || *out.Failures[0].Arn != arn {
		t.Errorf("describe: %+v, %v, want MISSING", out, err)
	}
	list, err := w.ListTasks(t.Context(), &ecs.ListTasksInput{})
	if err != nil || len(list.TaskArns) != 0 {
		t.Errorf("list: %+v, %v, want none", list, err)
	}
	if _, err := w.StopTask(t.Context(), &ecs.StopTaskInput{Task: &arn}); err != nil {
		t.Errorf("stop of a task that readers do not see yet: %v", err)
	}
}

func TestStoppedTaskStaysForAWhile(t *testing.T) {
	w := begin(t, nil)
	w.register(shell("exit 5"))
	out, err := w.RunTask(t.Context(), &ecs.RunTaskInput{TaskDefinition: new("sandbox")})
	if err != nil {
		t.Fatal(err)
	}
	arn := *out.Tasks[0].TaskArn
	w.awaitStatus(arn, "STOPPED")
	stopped, err := w.StopTask(t.Context(), &ecs.StopTaskInput{Task: &arn, Reason: new("too late")})
	if err != nil || *stopped.Task.LastStatus != "STOPPED" || stopped.Task.StopCode != types.TaskStopCodeEssentialContainerExited {
		t.Errorf("stop of a stopped task: %+v, %v, want the task as it was", stopped, err)
	}
}

func TestStoppedTaskIsForgottenInTheEnd(t *testing.T) {
	w := begin(t, func(o *localfargate.Options) { o.Habits.StoppedVisible = time.Nanosecond })
	w.register(shell("exit 5"))
	out, err := w.RunTask(t.Context(), &ecs.RunTaskInput{TaskDefinition: new("sandbox")})
	if err != nil {
		t.Fatal(err)
	}
	arn := *out.Tasks[0].TaskArn
	w.awaitStatus(arn, "STOPPED")
	described, err := w.DescribeTasks(t.Context(), &ecs.DescribeTasksInput{Tasks: []string{arn}})
	if err != nil || len(described.Failures) != 1 || *described.Failures[0].Reason != "MISSING" {
		t.Errorf("describe: %+v, %v, want MISSING", described, err)
	}
	_, err = w.StopTask(t.Context(), &ecs.StopTaskInput{Task: &arn})
	if code(t, err) != "InvalidParameterException" || !strings.Contains(err.Error(), "The referenced task was not found.") {
		t.Errorf("stop: %v", err)
	}
}

func TestTaskReferencesAreChecked(t *testing.T) {
	w := begin(t, nil)
	cases := []struct{ name, ref, code string }{
		{"a short id", "abc", "InvalidParameterException"},
		{"an ARN of another cluster", "arn:aws:ecs:us-east-1:000000000000:task/other/" + strings.Repeat("a", 32), "InvalidParameterException"},
		{"an ARN of another account", "arn:aws:ecs:us-east-1:000000000001:task/default/" + strings.Repeat("a", 32), "InvalidParameterException"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := w.DescribeTasks(t.Context(), &ecs.DescribeTasksInput{Tasks: []string{c.ref}})
			if got := code(t, err); got != c.code {
				t.Errorf("describe: %v, want %s", err, c.code)
			}
			_, err = w.StopTask(t.Context(), &ecs.StopTaskInput{Task: &c.ref})
			if got := code(t, err); got != c.code {
				t.Errorf("stop: %v, want %s", err, c.code)
			}
		})
	}
	_, err := w.DescribeTasks(t.Context(), &ecs.DescribeTasksInput{Tasks: slices.Repeat([]string{strings.Repeat("a", 32)}, 101)})
	if code(t, err) != "InvalidParameterException" {
		t.Errorf("describe of 101 tasks: %v", err)
	}
}

func TestListTasks(t *testing.T) {
	w := begin(t, nil)
	w.register(shell("exec sleep 1000"))
	var arns []string
	for i := range 5 {
		arns = append(arns, w.run(func(in *ecs.RunTaskInput) {
			in.StartedBy = new(fmt.Sprintf("install/%d", i%2))
			in.EnableExecuteCommand = false
		}))
	}
	if _, err := w.StopTask(t.Context(), &ecs.StopTaskInput{Task: &arns[0]}); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name string
		in   ecs.ListTasksInput
		want []string
	}{
		{"without a filter those that shall run", ecs.ListTasksInput{}, arns[1:]},
		{"by startedBy", ecs.ListTasksInput{StartedBy: new("install/0")}, []string{arns[2], arns[4]}},
		{"by family", ecs.ListTasksInput{Family: new("sandbox")}, arns[1:]},
		{"by another family", ecs.ListTasksInput{Family: new("other")}, nil},
		{"those to be stopped", ecs.ListTasksInput{DesiredStatus: types.DesiredStatusStopped}, arns[:1]},
		{"nothing is desired to be pending", ecs.ListTasksInput{DesiredStatus: types.DesiredStatusPending}, nil},
		{"of another cluster", ecs.ListTasksInput{Cluster: new("other")}, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, page := range []int32{1, 2, 100} {
				in := c.in
				in.MaxResults = &page
				var got []string
				for pages := ecs.NewListTasksPaginator(w.Client, &in); pages.HasMorePages(); {
					out, err := pages.NextPage(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					if len(out.TaskArns) > int(page) {
						t.Errorf("a page of %d has %d", page, len(out.TaskArns))
					}
					got = append(got, out.TaskArns...)
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("pages of %d: %v, want %v", page, got, c.want)
				}
			}
		})
	}
	_, err := w.Client.ListTasks(t.Context(), &ecs.ListTasksInput{StartedBy: new("install/0"), DesiredStatus: types.DesiredStatusStopped})
	if code(t, err) != "InvalidParameterException" {
		t.Errorf("startedBy with another filter: %v", err)
	}
	_, err = w.Client.ListTasks(t.Context(), &ecs.ListTasksInput{NextToken: new("bm9uc2Vuc2U=")})
	if code(t, err) != "InvalidParameterException" {
		t.Errorf("a made-up token: %v", err)
	}
}

func TestTags(t *testing.T) {
	w := begin(t, nil)
	w.register(shell("exec sleep 1000"))
	arn := w.run(func(in *ecs.RunTaskInput) {
		in.Tags = []types.Tag{{Key: new("a"), Value: new("1")}, {Key: new("b"), Value: new("2")}}
	})
	if _, err := w.TagResource(t.Context(), &ecs.TagResourceInput{ResourceArn: &arn, Tags: []types.Tag{{Key: new("b"), Value: new("3")}, {Key: new("c"), Value: new("4")}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.UntagResource(t.Context(), &ecs.UntagResourceInput{ResourceArn: &arn, TagKeys: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	listed, err := w.ListTagsForResource(t.Context(), &ecs.ListTagsForResourceInput{ResourceArn: &arn})
	if err != nil {
		t.Fatal(err)
	}
	for from, tags := range map[string][]types.Tag{"list": listed.Tags, "describe": w.describe(arn).Tags} {
		var got strings.Builder
		for _, g := range tags {
			got.WriteString(*g.Key + "=" + *g.Value + " ")
		}
		if got.String() != "b=3 c=4 " {
			t.Errorf("%s: %q", from, got.String())
		}
	}
	out, err := w.DescribeTasks(t.Context(), &ecs.DescribeTasksInput{Tasks: []string{arn}})
	if err != nil || out.Tasks[0].Tags != nil {
		t.Errorf("describe without include: %v, %v, want no tags", out, err)
	}
}

func TestBucketsAreShared(t *testing.T) {
	w := begin(t, func(o *localfargate.Options) { o.Throttle = localfargate.Throttle{Scale: 0.05} })
	w.register(shell("exec sleep 1000")) // one token of one
	absent := new(strings.Repeat("a", 32))
	calls := map[string]func(i int) error{
		"modify": func(i int) error {
			if i%2 == 0 {
				_, err := w.StopTask(t.Context(), &ecs.StopTaskInput{Task: absent})
				return err
			}
			_, err := w.ExecuteCommand(t.Context(), &ecs.ExecuteCommandInput{Task: absent, Command: new("true"), Interactive: true})
			return err
		},
		"read": func(i int) error {
			if i%2 == 0 {
				_, err := w.DescribeTasks(t.Context(), &ecs.DescribeTasksInput{Tasks: []string{*absent}})
				return err
			}
			_, err := w.ListTasks(t.Context(), &ecs.ListTasksInput{})
			return err
		},
	}
	for name, call := range calls {
		throttled := 0
		for i := range 20 { // bursts are five
			if err := call(i); err != nil && code(t, err) == "ThrottlingException" {
				throttled++
				if i < 5 {
					t.Errorf("%s: call %d of a burst of five is throttled", name, i)
				}
			}
		}
		if throttled == 0 {
			t.Errorf("%s: twenty calls at once pass a burst of five", name)
		}
	}
	m := w.server.Metrics()
	if m.Throttled["StopTask"]+m.Throttled["ExecuteCommand"] == 0 || m.Calls["StopTask"] != 10 || m.Calls["ListTasks"] != 10 {
		t.Errorf("metrics: %+v", m)
	}
}

func TestEventsTellEachChangeOnce(t *testing.T) {
	w := begin(t, nil)
	w.register(shell("exec sleep 1000"))
	arn := w.run(nil)
	if _, err := w.StopTask(t.Context(), &ecs.StopTaskInput{Task: &arn, Reason: new("enough")}); err != nil {
		t.Fatal(err)
	}
	w.awaitStatus(arn, "STOPPED")
	w.mu.Lock()
	defer w.mu.Unlock()
	var statuses []string
	for i, e := range w.events {
		if e.Version != int64(i)+1 || e.TaskARN != arn {
			t.Errorf("event %d has version %d of %s", i, e.Version, e.TaskARN)
		}
		statuses = append(statuses, e.DesiredStatus+"/"+e.LastStatus)
	}
	want := []string{
		"RUNNING/PROVISIONING", "RUNNING/PENDING", "RUNNING/RUNNING", "STOPPED/RUNNING", "STOPPED/STOPPING", "STOPPED/DEPROVISIONING", "STOPPED/STOPPED",
	}
	if got := slices.Compact(statuses); !slices.Equal(got, want) {
		t.Errorf("statuses: %v, want %v", got, want)
	}
	var detail struct {
		ClusterARN, TaskARN, Group, StopCode, StoppedReason string
		CreatedAt, StoppedAt, StoppingAt, StartedAt         time.Time
		Containers                                          []struct {
			Name     string
			ExitCode *int
		}
		Version int64
	}
	last := w.events[len(w.events)-1]
	if err := json.Unmarshal(last.Detail, &detail); err != nil {
		t.Fatal(err)
	}
	if detail.TaskARN != arn || detail.Group != "family:sandbox" || detail.StopCode != "UserInitiated" || detail.StoppedReason != "enough" ||
		*detail.Containers[0].ExitCode != 143 || detail.Version != last.Version || detail.StoppedAt.Before(detail.StartedAt) {
		t.Errorf("detail: %s", last.Detail)
	}
}

func TestTaskDefinitionComesBackAsRegistered(t *testing.T) {
	w := begin(t, nil)
	for range 2 {
		_, err := w.RegisterTaskDefinition(t.Context(), &ecs.RegisterTaskDefinitionInput{
			Family: new("sandbox"), Cpu: new("256"), Memory: new("512"), NetworkMode: types.NetworkModeAwsvpc,
			RequiresCompatibilities: []types.Compatibility{types.CompatibilityFargate},
			ContainerDefinitions: []types.ContainerDefinition{{
				Name: new("agent"), Image: new("example/agent:1"), StopTimeout: new(int32(7)), User: new("1000"),
				LinuxParameters: &types.LinuxParameters{InitProcessEnabled: new(true)},
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for ref, revision := range map[string]int32{"sandbox": 2, "sandbox:1": 1, "arn:aws:ecs:us-east-1:000000000000:task-definition/sandbox:2": 2} {
		out, err := w.DescribeTaskDefinition(t.Context(), &ecs.DescribeTaskDefinitionInput{TaskDefinition: &ref})
		if err != nil {
			t.Fatal(err)
		}
		d := out.TaskDefinition
		if d.Revision != revision || *d.Cpu != "256" || !*d.ContainerDefinitions[0].LinuxParameters.InitProcessEnabled || *d.ContainerDefinitions[0].StopTimeout != 7 {
			t.Errorf("%s: %+v", ref, d)
		}
	}
	_, err := w.RegisterTaskDefinition(t.Context(), &ecs.RegisterTaskDefinitionInput{
		Family: new("sandbox"), ContainerDefinitions: []types.ContainerDefinition{{Name: new("agent"), StopTimeout: new(int32(121))}},
	})
	if code(t, err) != "ClientException" {
		t.Errorf("a stop timeout of 121 s: %v", err)
	}
}

func TestContainerRunsAsItsUser(t *testing.T) {
	w := begin(t, nil)
	if w.server.Isolation() != "namespaces" {
		t.Skip("only root can become another user")
	}
	def := shell("id -u; id -g; touch here && echo wrote; exec sleep 1000")
	def.User = new("1234:1235")
	w.register(def)
	arn := w.run(nil)
	if got := attach(t, w.exec(arn, "id -u")).follow(nil); got.output != "0\r\n" {
		t.Errorf("a session runs as %q, want root whatever the container's user", got.output)
	}
	state, err := w.server.Task(arn)
	if err != nil {
		t.Fatal(err)
	}
	w.until("the container writes its user, group and a file", func() bool {
		log, err := os.ReadFile(state.Containers[0].Log)
		return err == nil && string(log) == "1234\n1235\nwrote\n"
	})
}

func TestOnlyLoopbackIsListenedOn(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:0", ":0", "example.com:80", "192.0.2.1:0", "[::]:0", "nonsense"} {
		if _, err := localfargate.New(localfargate.Options{Addr: addr}); err == nil {
			t.Errorf("address %q is accepted", addr)
		}
	}
	if _, err := localfargate.New(localfargate.Options{Addr: "0.0.0.0:0"}); !errors.Is(err, localfargate.ErrNotLoopback) {
		t.Errorf("error: %v, want ErrNotLoopback", err)
	}
}

func TestSenderDelivers(t *testing.T) {
	bus := newBus(t, 1)
	sender, err := localfargate.NewSender(bus.url, "", "")
	if err != nil {
		t.Fatal(err)
	}
	sender.Client = bus.client
	w := begin(t, func(o *localfargate.Options) {
		keep := o.Events
		o.Events = func(ctx context.Context, e localfargate.Event) {
			sender.Send(ctx, e)
			keep(ctx, e)
		}
	})
	w.register(shell("exit 0"))
	out, err := w.RunTask(t.Context(), &ecs.RunTaskInput{TaskDefinition: new("sandbox")})
	if err != nil {
		t.Fatal(err)
	}
	arn := *out.Tasks[0].TaskArn
	w.awaitStatus(arn, "STOPPED")
	entries := bus.received()
	last := entries[len(entries)-1]
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(entries) != len(w.events) {
		t.Errorf("delivered %d of %d events", len(entries), len(w.events))
	}
	if last.Source != "local.ecs" || last.DetailType != "ECS Task State Change" || !slices.Equal(last.Resources, []string{arn}) ||
		last.Detail != string(w.events[len(w.events)-1].Detail) {
		t.Errorf("entry: %+v", last)
	}
	if _, err := localfargate.NewSender("https://events.example.com", "", ""); err == nil {
		t.Error("an endpoint that is not loopback is accepted")
	}
}

// TestTheMainProcessOfASandbox goes at once when nothing is to be saved, and else stays
// until that is done, or its time is over.
func TestTheMainProcessOfASandbox(t *testing.T) {
	const works = `setsid sh -c 'touch at-work; until [ -e done ]; do sleep 0.1; done' sandkeeper-run </dev/null >/dev/null 2>&1 & until [ -e at-work ]; do sleep 0.02; done`
	for name, c := range map[string]struct {
		works, ends bool // an agent
		notice      time.Duration
		exit        int32
	}{
		"nothing is at work":     {notice: time.Hour},
		"an agent that is done":  {works: true, ends: true, notice: time.Hour},
		"an agent that works on": {works: true, notice: 3 * time.Second, exit: 137},
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, func(o *localfargate.Options) { o.Habits.Notice = c.notice })
			if c.works && w.server.Isolation() == box.Directory {
				t.Skip("a directory's /proc is the machine's")
			}
			main := shell(strings.Replace(core.MainProcess, "stay=20", "stay=1", 1))
			main.StopTimeout = new(int32(core.LongestStop / time.Second))
			w.register(main)
			arn := w.run(nil)
			awaitLoop(w, arn)
			if c.works {
				attach(t, w.exec(arn, sh(works))).follow(nil)
			}
			interrupt(w, arn)
			if c.ends {
				attach(t, w.exec(arn, "touch done")).follow(nil)
			}
			w.awaitStatus(arn, "STOPPED")
			stopped := w.describe(arn)
			lasted := stopped.ExecutionStoppedAt.Sub(*stopped.StoppingAt)
			if exit := *stopped.Containers[0].ExitCode; exit != c.exit || c.works && lasted < time.Second {
				t.Errorf("exit %d, want %d, after %s", exit, c.exit, lasted)
			}
		})
	}
}
