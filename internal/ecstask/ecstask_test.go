package ecstask_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/aws/smithy-go"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
)

func TestMain(m *testing.M) {
	localfargate.MaybeInit()
	os.Exit(m.Run())
}

const cluster = "sandboxes"

// absent is a well-formed ARN of a task that never was, malformed one that ECS
// refuses to read.
const (
	absent    = "arn:aws:ecs:us-east-1:000000000000:task/" + cluster + "/0123456789abcdef0123456789abcdef"
	malformed = "arn:aws:ecs:us-east-1:000000000000:task/" + cluster + "/short"
)

func client(url string) *ecs.Client {
	return ecs.New(ecs.Options{
		BaseEndpoint: &url, Region: "us-east-1", Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
		Retryer: aws.NopRetryer{},
	})
}

// fargate is a local Fargate that knows one task definition.
func fargate(t *testing.T, habits localfargate.Habits, containers ...types.ContainerDefinition) (*localfargate.Server, *ecstask.Tasks, core.TaskSpec) {
	t.Helper()
	server, err := localfargate.New(localfargate.Options{Dir: t.TempDir(), Habits: habits})
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
	if len(containers) == 0 {
		containers = []types.ContainerDefinition{container("agent", true, stays)}
	}
	c := client(server.URL())
	made, err := c.RegisterTaskDefinition(t.Context(), &ecs.RegisterTaskDefinitionInput{
		Family: new("sandbox"), NetworkMode: types.NetworkModeAwsvpc, ContainerDefinitions: containers,
	})
	if err != nil {
		t.Fatal(err)
	}
	return server, &ecstask.Tasks{ECS: c}, core.TaskSpec{
		Cluster: cluster, TaskDefinition: *made.TaskDefinition.TaskDefinitionArn, Container: "agent", Subnets: []string{"subnet-1"},
	}
}

const stays = "trap 'exit 9' TERM; while :; do sleep 0.1; done"

func container(name string, essential bool, shell string) types.ContainerDefinition {
	return types.ContainerDefinition{Name: &name, Image: new("image"), Essential: &essential, Command: []string{"sh", "-c", shell}}
}

// launch starts a task under a token of its own.
func launch(t *testing.T, tasks *ecstask.Tasks, spec core.TaskSpec) string {
	t.Helper()
	spec.Token = rand.Text()
	arn, err := tasks.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return arn
}

// await describes the task until it is as wanted.
func await(t *testing.T, tasks *ecstask.Tasks, arn, what string, is func(core.Task) bool) core.Task {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		all, err := tasks.Describe(t.Context(), cluster, []string{arn})
		if err != nil {
			t.Fatal(err)
		}
		if is(all[0]) {
			return all[0]
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("task is never %s: %+v", what, all[0])
		}
	}
}

func reachable(task core.Task) bool { return task.Agents["agent"].Status == "RUNNING" }

func TestATaskIsReadInCoresTerms(t *testing.T) {
	_, tasks, spec := fargate(t, localfargate.QuickHabits(),
		container("agent", true, stays), container("sidecar", false, "exit 3"))
	spec.StartedBy = "install/instance"
	arn := launch(t, tasks, spec)
	lives := await(t, tasks, arn, "without its sidecar", func(task core.Task) bool { return reachable(task) && len(task.Exits) > 0 })
	if lives.Life != core.TaskLives || lives.StopCode != "" || lives.Reason != "" || !lives.ExecEnabled || lives.Agents["agent"].Since == 0 {
		t.Errorf("a living task reads %+v", lives)
	}
	if want := map[string]int{"sidecar": 3}; !maps.Equal(lives.Exits, want) {
		t.Errorf("exits %v, want %v: a sidecar's end is not the agent's", lives.Exits, want)
	}
	if _, err := tasks.Stop(t.Context(), cluster, arn, "run ended"); err != nil {
		t.Fatal(err)
	}
	gone := await(t, tasks, arn, "gone", func(task core.Task) bool { return task.Life == core.TaskGone })
	if gone.StopCode != "UserInitiated" || gone.Reason != "run ended" || !maps.Equal(gone.Exits, map[string]int{"agent": 9, "sidecar": 3}) {
		t.Errorf("a stopped task reads %+v", gone)
	}
}

func TestDescribeAnswersForEveryTask(t *testing.T) {
	_, tasks, spec := fargate(t, localfargate.QuickHabits())
	first, second := launch(t, tasks, spec), launch(t, tasks, spec)
	cases := map[string]struct {
		arns []string
		want []core.TaskLife
	}{
		"one that is missing":   {[]string{first, absent, second}, []core.TaskLife{core.TaskLives, core.TaskMissing, core.TaskLives}},
		"all missing":           {[]string{absent}, []core.TaskLife{core.TaskMissing}},
		"one that is malformed": {[]string{malformed, second, absent, first}, []core.TaskLife{core.TaskUnknown, core.TaskLives, core.TaskMissing, core.TaskLives}},
		"malformed alone":       {[]string{malformed}, []core.TaskLife{core.TaskUnknown}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			all, err := tasks.Describe(t.Context(), cluster, c.arns)
			if err != nil {
				t.Fatal(err)
			}
			var arns []string
			var lives []core.TaskLife
			for _, task := range all {
				arns, lives = append(arns, task.ARN), append(lives, task.Life)
				if task.Life == core.TaskUnknown && !strings.Contains(task.Reason, "length") {
					t.Errorf("ECS's reason is lost: %+v", task)
				}
			}
			if !slices.Equal(arns, c.arns) || !slices.Equal(lives, c.want) {
				t.Errorf("answered %q for %q, want %q", lives, arns, c.want)
			}
		})
	}
}

// TestATaskThatMayNotBeReadTakesNoOtherAlong: a policy that asks for a tag refuses the
// whole call for one foreign task that lacks it.
func TestATaskThatMayNotBeReadTakesNoOtherAlong(t *testing.T) {
	_, tasks, spec := fargate(t, localfargate.QuickHabits())
	foreign := launch(t, tasks, spec)
	spec.Tags = map[string]string{"team": "agents"}
	var ours []string
	for range 6 {
		ours = append(ours, launch(t, tasks, spec))
	}
	bound := &ecstask.Tasks{ECS: &tagBound{Client: tasks.ECS.(*ecs.Client), tag: "team"}}
	asked := slices.Insert(slices.Clone(ours), 2, foreign)
	all, err := bound.Describe(t.Context(), cluster, asked)
	if err != nil {
		t.Fatalf("one untagged neighbour refuses the others: %v", err)
	}
	for i, task := range all {
		switch {
		case task.ARN != asked[i]:
			t.Errorf("task %d is %s, want %s", i, task.ARN, asked[i])
		case task.ARN == foreign && (task.Life != core.TaskUnknown || !strings.Contains(task.Reason, "not authorized")):
			t.Errorf("the foreign task reads %+v", task)
		case task.ARN != foreign && task.Life != core.TaskLives:
			t.Errorf("ours reads %+v", task)
		}
	}
	// Who may read none of them learns that, not that all are unknown.
	for _, arns := range [][]string{{foreign}, {foreign, foreign}} {
		if all, err := bound.Describe(t.Context(), cluster, arns); err == nil || !strings.Contains(err.Error(), "AccessDenied") {
			t.Errorf("%d tasks, all refused: %+v, %v", len(arns), all, err)
		}
	}
}

// tagBound is ECS under a policy that lets nobody describe a task without a tag.
type tagBound struct {
	*ecs.Client
	tag string
}

func (b *tagBound) DescribeTasks(ctx context.Context, in *ecs.DescribeTasksInput, o ...func(*ecs.Options)) (*ecs.DescribeTasksOutput, error) {
	asked := *in
	asked.Include = []types.TaskField{types.TaskFieldTags}
	out, err := b.Client.DescribeTasks(ctx, &asked, o...)
	if err != nil {
		return nil, err
	}
	for _, task := range out.Tasks {
		if !slices.ContainsFunc(task.Tags, func(tag types.Tag) bool { return *tag.Key == b.tag }) {
			return nil, &smithy.GenericAPIError{Code: "AccessDeniedException", Message: "User is not authorized to perform: ecs:DescribeTasks"}
		}
	}
	return out, nil
}

func TestATaskIsMissingAtFirst(t *testing.T) {
	habits := localfargate.QuickHabits()
	habits.Visible = time.Hour
	_, tasks, spec := fargate(t, habits)
	spec.StartedBy = "install/instance"
	arn := launch(t, tasks, spec)
	all, err := tasks.Describe(t.Context(), cluster, []string{arn})
	if err != nil || all[0].Life != core.TaskMissing {
		t.Errorf("described as %+v, %v", all, err)
	}
	if arns, err := tasks.StartedBy(t.Context(), cluster, spec.StartedBy); err != nil || len(arns) != 0 {
		t.Errorf("listed %q, %v", arns, err)
	}
}

func TestAStopIsToldApart(t *testing.T) {
	server, tasks, spec := fargate(t, localfargate.QuickHabits())
	arn := launch(t, tasks, spec)
	await(t, tasks, arn, "reachable", reachable)

	long := strings.Repeat("ä", 300)
	task, err := tasks.Stop(t.Context(), cluster, arn, long)
	if err != nil || task.ARN != arn || task.Life != core.TaskLeaving && task.Life != core.TaskGone {
		t.Errorf("a living task: %+v, %v", task, err)
	}
	await(t, tasks, arn, "gone", func(task core.Task) bool { return task.Life == core.TaskGone })
	if task, err = tasks.Stop(t.Context(), cluster, arn, "again"); err != nil || task.Life != core.TaskGone {
		t.Errorf("a stopped task: %+v, %v", task, err)
	}
	if state, err := server.Task(arn); err != nil || state.StoppedReason != strings.Repeat("ä", 255) {
		t.Errorf("ECS got the reason %q, %v", state.StoppedReason, err)
	}
	if task, err = tasks.Stop(t.Context(), cluster, absent, "r"); err != nil || task.Life != core.TaskMissing || task.ARN != absent {
		t.Errorf("an unknown task: %+v, %v", task, err)
	}
	if task, err = tasks.Stop(t.Context(), cluster, malformed, "r"); err == nil {
		t.Errorf("a malformed id: %+v, no error", task)
	}
	if _, ok := errors.AsType[*types.InvalidParameterException](err); !ok {
		t.Errorf("a malformed id: %v", err)
	}
}

func TestAStartRepeatedIsTheSameTask(t *testing.T) {
	server, tasks, spec := fargate(t, localfargate.QuickHabits())
	spec.Token, spec.StartedBy = rand.Text(), "install/instance"
	spec.Tags = map[string]string{"b": "2", "a": "1", "d": "4", "c": "3"} // in whatever order
	arn, err := tasks.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		again, err := tasks.Start(t.Context(), spec)
		if err != nil || again != arn {
			t.Fatalf("a repeated start: %q, %v, want %q", again, err, arn)
		}
	}
	spec.StartedBy = "install/other"
	if again, err := tasks.Start(t.Context(), spec); err == nil {
		t.Errorf("another start under the same token: %q", again)
	} else if refused, ok := errors.AsType[*core.TaskRefusedError](err); !ok || refused.Code != "ConflictException" {
		t.Errorf("another start under the same token: %v", err)
	}
	if n := len(server.Tasks()); n != 1 {
		t.Errorf("%d tasks", n)
	}
}

func TestListingsAreWhole(t *testing.T) {
	habits := localfargate.QuickHabits()
	habits.Provision = time.Hour // a task that is only asked for is listed too
	_, tasks, spec := fargate(t, habits)
	spec.StartedBy = "install/others"
	other := launch(t, tasks, spec)
	spec.StartedBy = "install/ours"
	want := []string{launch(t, tasks, spec), launch(t, tasks, spec), launch(t, tasks, spec)}
	paged := &ecstask.Tasks{ECS: twoAPage{tasks.ECS.(*ecs.Client)}}
	arns, err := paged.StartedBy(t.Context(), cluster, "install/ours")
	if err != nil || !sameSet(arns, want) {
		t.Errorf("listed %q, %v, want %q", arns, err, want)
	}
	if arns, err = paged.Living(t.Context(), cluster); err != nil || !sameSet(arns, append(want, other)) {
		t.Errorf("living are %q, %v", arns, err)
	}
	if arns, err = tasks.StartedBy(t.Context(), cluster, "install/nobody"); err != nil || len(arns) != 0 {
		t.Errorf("listed %q, %v, want none", arns, err)
	}
	if _, err := tasks.Stop(t.Context(), cluster, want[0], "r"); err != nil {
		t.Fatal(err)
	}
	if arns, err = tasks.StartedBy(t.Context(), cluster, "install/ours"); err != nil || !sameSet(arns, want[1:]) {
		t.Errorf("a task that is to stop is listed: %q, %v", arns, err)
	}
}

// twoAPage is ECS with pages of two tasks.
type twoAPage struct{ *ecs.Client }

func (p twoAPage) ListTasks(ctx context.Context, in *ecs.ListTasksInput, o ...func(*ecs.Options)) (*ecs.ListTasksOutput, error) {
	asked := *in
	asked.MaxResults = new(int32(2))
	return p.Client.ListTasks(ctx, &asked, o...)
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// answers is an ECS that says what it is told, one answer a call; the last for all
// that follow.
func answers(t *testing.T, bodies ...string) *ecstask.Tasks {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		body := bodies[0]
		if len(bodies) > 1 {
			bodies = bodies[1:]
		}
		rw.Header().Set("Content-Type", "application/x-amz-json-1.1")
		if strings.Contains(body, "__type") {
			rw.WriteHeader(http.StatusBadRequest)
		}
		fmt.Fprint(rw, body)
	}))
	t.Cleanup(server.Close)
	return &ecstask.Tasks{ECS: client(server.URL)}
}

func TestWhatIsNoWholeAnswerIsAnError(t *testing.T) {
	cases := map[string]struct {
		bodies []string
		ask    func(context.Context, *ecstask.Tasks) (any, error)
		want   string
	}{
		"a task is left out": {
			[]string{`{"tasks":[{"taskArn":"a","lastStatus":"RUNNING"}],"failures":[]}`}, describe("a", "b"),
			"describe task b: ECS answers neither with it nor that it is missing",
		},
		"an empty description": {[]string{`{}`}, describe("a"), "ECS answers neither"},
		"a failure that is not MISSING": {
			[]string{`{"failures":[{"arn":"a","reason":"ACCESS","detail":"not yours"}]}`}, describe("a"),
			"describe task a: ACCESS not yours",
		},
		"a failure without an ARN": {[]string{`{"failures":[{"reason":"MISSING"}]}`}, describe("a"), "ECS answers neither"},
		"another cluster": {
			[]string{`{"__type":"ClusterNotFoundException","message":"Cluster not found."}`}, describe("a"), "describe 1 tasks in sandboxes",
		},
		"a second half that fails": {
			[]string{`{"__type":"InvalidParameterException","message":"bad id"}`,
				`{"tasks":[{"taskArn":"a","lastStatus":"RUNNING"}]}`, `{"__type":"ServerException","message":"no"}`},
			describe("a", "b"), "describe 1 tasks in sandboxes",
		},
		"a second page that fails": {
			[]string{`{"taskArns":["a"],"nextToken":"more"}`, `{"__type":"ServerException","message":"no"}`}, list,
			"list tasks started by install/i in sandboxes",
		},
		"no task, and why": {
			[]string{`{"tasks":[],"failures":[{"arn":"c","reason":"RESOURCE:ENI","detail":"none left"},{"reason":"AGENT"}]}`}, start,
			"run task of definition: ECS started no task: RESOURCE:ENI none left: AGENT",
		},
		"no task, and no reason": {[]string{`{}`}, start, "run task of definition: ECS started no task"},
		"a task without a name":  {[]string{`{"tasks":[{}]}`}, start, "run task of definition: "},
		"a stop without a task":  {[]string{`{}`}, stop, "stop task a: "},
		"a stop that is refused, and a description too": {
			[]string{`{"__type":"InvalidParameterException","message":"not found"}`, `{"__type":"ServerException","message":"no"}`}, stop,
			"stop task a: ",
		},
		"a stop that is refused for a task that lives": {
			[]string{`{"__type":"InvalidParameterException","message":"not found"}`, `{"tasks":[{"taskArn":"a","lastStatus":"RUNNING"}]}`}, stop,
			"stop task a: ",
		},
		"a stop that is throttled": {[]string{`{"__type":"ThrottlingException","message":"Rate exceeded"}`}, stop, "stop task a: "},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := c.ask(t.Context(), answers(t, c.bodies...))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("answered %+v, %v, want an error with %q", got, err, c.want)
			}
			if !reflect.ValueOf(got).IsZero() {
				t.Errorf("answered %+v beside the error", got)
			}
		})
	}
}

func describe(arns ...string) func(context.Context, *ecstask.Tasks) (any, error) {
	return func(ctx context.Context, t *ecstask.Tasks) (any, error) { return t.Describe(ctx, cluster, arns) }
}

func list(ctx context.Context, t *ecstask.Tasks) (any, error) {
	return t.StartedBy(ctx, cluster, "install/i")
}

func start(ctx context.Context, t *ecstask.Tasks) (any, error) {
	return t.Start(ctx, core.TaskSpec{
		Cluster: cluster, TaskDefinition: "definition", Token: "token", Subnets: []string{"subnet-1"},
	})
}

func stop(ctx context.Context, t *ecstask.Tasks) (any, error) { return t.Stop(ctx, cluster, "a", "r") }

func TestStatusesOfATask(t *testing.T) {
	cases := map[string]struct {
		task string
		want core.Task
	}{
		"pending":        {`"lastStatus":"PENDING","desiredStatus":"RUNNING"`, core.Task{Life: core.TaskLives}},
		"to be stopped":  {`"lastStatus":"RUNNING","desiredStatus":"STOPPED"`, core.Task{Life: core.TaskLeaving}},
		"deprovisioning": {`"lastStatus":"DEPROVISIONING"`, core.Task{Life: core.TaskLeaving}},
		"stopped":        {`"lastStatus":"STOPPED","stopCode":"UserInitiated"`, core.Task{Life: core.TaskGone, StopCode: "UserInitiated"}},
		"deleted":        {`"lastStatus":"DELETED"`, core.Task{Life: core.TaskGone}},
		"killed for memory, and not known as stopped yet": {
			`"lastStatus":"RUNNING","containers":[{"name":"agent","exitCode":137,"reason":"OutOfMemoryError"}]`,
			core.Task{Life: core.TaskLives, Reason: "OutOfMemoryError", Exits: map[string]int{"agent": 137}},
		},
		"killed for memory": {
			`"lastStatus":"STOPPED","stoppedReason":"Essential container in task exited","containers":[{"name":"agent","exitCode":137,"reason":"OutOfMemoryError"}]`,
			core.Task{Life: core.TaskGone, Reason: "Essential container in task exited: OutOfMemoryError", Exits: map[string]int{"agent": 137}},
		},
		"never pulled": {
			`"lastStatus":"STOPPED","stopCode":"TaskFailedToStart","stoppedReason":"CannotPullContainerError: no such image","containers":[{"name":"agent"}]`,
			core.Task{Life: core.TaskGone, StopCode: "TaskFailedToStart", Reason: "CannotPullContainerError: no such image"},
		},
		"an exec agent that stopped": {
			`"lastStatus":"RUNNING","enableExecuteCommand":true,"containers":[{"name":"agent","managedAgents":[{"name":"Other"},
				{"name":"ExecuteCommandAgent","lastStatus":"STOPPED","reason":"read-only","lastStartedAt":1.5}]}]`,
			core.Task{Life: core.TaskLives, ExecEnabled: true,
				Agents: map[string]core.ExecAgent{"agent": {Status: "STOPPED", Reason: "read-only", Since: 1500}}},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			all, err := answers(t, `{"tasks":[{"taskArn":"a",`+c.task+`}]}`).Describe(t.Context(), cluster, []string{"a"})
			if err != nil {
				t.Fatal(err)
			}
			c.want.ARN = "a"
			if c.want.Agents == nil {
				all[0].Agents = nil
			}
			if !reflect.DeepEqual(all[0], c.want) {
				t.Errorf("read %+v, want %+v", all[0], c.want)
			}
		})
	}
}

// asked is an ECS that remembers what it was asked for.
type asked struct {
	*ecs.Client
	run *ecs.RunTaskInput
}

func (a *asked) RunTask(_ context.Context, in *ecs.RunTaskInput, _ ...func(*ecs.Options)) (*ecs.RunTaskOutput, error) {
	a.run = in
	return &ecs.RunTaskOutput{Tasks: []types.Task{{TaskArn: new("arn")}}}, nil
}

// TestATaskHasTheRoleOfItsDefinition, or that of its task definition.
func TestATaskHasTheRoleOfItsDefinition(t *testing.T) {
	for _, role := range []string{"", "arn:aws:iam::111122223333:role/coder"} {
		service := new(asked)
		if _, err := (&ecstask.Tasks{ECS: service}).Start(t.Context(), core.TaskSpec{TaskDefinition: "d", TaskRole: role}); err != nil {
			t.Fatal(err)
		}
		got := ""
		if o := service.run.Overrides; o != nil {
			got = *o.TaskRoleArn
		}
		if got != role {
			t.Errorf("asked for the role %q, want %q", got, role)
		}
	}
}

// silent is an ECS that never answers.
type silent struct{ *ecs.Client }

func (silent) RunTask(ctx context.Context, _ *ecs.RunTaskInput, _ ...func(*ecs.Options)) (*ecs.RunTaskOutput, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (silent) StopTask(ctx context.Context, _ *ecs.StopTaskInput, _ ...func(*ecs.Options)) (*ecs.StopTaskOutput, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (silent) DescribeTasks(ctx context.Context, _ *ecs.DescribeTasksInput, _ ...func(*ecs.Options)) (*ecs.DescribeTasksOutput, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (silent) ListTasks(ctx context.Context, _ *ecs.ListTasksInput, _ ...func(*ecs.Options)) (*ecs.ListTasksOutput, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestNoCallWaitsForEver(t *testing.T) {
	for name, ask := range map[string]func(context.Context, *ecstask.Tasks) (any, error){
		"describe": describe("a"), "list": list, "stop": stop, "start": start,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				_, err := ask(t.Context(), &ecstask.Tasks{ECS: silent{}})
				if waited := time.Since(begun); !errors.Is(err, context.DeadlineExceeded) || waited > time.Minute {
					t.Errorf("%v after %s", err, waited)
				}
			})
		})
	}
}

// TestAStopIsAskedOnce: the SDK repeats it never, however it fails, and what passes in
// seconds is told from what does not.
func TestAStopIsAskedOnce(t *testing.T) {
	for what, row := range map[string]struct {
		status int
		body   string
		passes bool
	}{
		"an empty bucket":     {http.StatusBadRequest, `{"__type":"ThrottlingException","message":"Rate exceeded"}`, true},
		"a busy server":       {http.StatusServiceUnavailable, `{"__type":"ServerException","message":"busy"}`, true},
		"what is not allowed": {http.StatusBadRequest, `{"__type":"AccessDeniedException","message":"no"}`, false},
		"no such cluster":     {http.StatusBadRequest, `{"__type":"ClusterNotFoundException","message":"no"}`, false},
	} {
		asked := 0
		server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			asked++
			_, _ = io.Copy(io.Discard, r.Body)
			rw.Header().Set("Content-Type", "application/x-amz-json-1.1")
			rw.WriteHeader(row.status)
			fmt.Fprint(rw, row.body)
		}))
		_, err := (&ecstask.Tasks{ECS: client(server.URL)}).Stop(t.Context(), cluster, "arn", "why")
		server.Close()
		if err == nil || errors.Is(err, core.ErrTurnedAway) != row.passes || asked != 1 {
			t.Errorf("%s: asked %d times, %v; want once, and that it passes: %t", what, asked, err, row.passes)
		}
	}
}
