// Package e2e_test runs the whole installation: the stack as CDK deploys it, on
// the local engine, with real processes as agents in local Fargate. Its rule: a
// test acts only as somebody outside could, by the functions' triggers, a host's
// calls and the services' own APIs, and looks at what the stores and ECS say. One
// installation serves the whole test process; tests run one after another and
// leave nothing behind that a later sweep could meet.
package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/scheduler"
	"github.com/aws/aws-sdk-go-v2/service/scheduler/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/engine/enginetest"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/s3blob"
	"github.com/sandkeeper/sandkeeper/internal/sqsout"
)

func TestMain(m *testing.M) {
	localfargate.MaybeInit()
	code := m.Run()
	if err := closeInstallation(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// installation is the deployed stack, local Fargate, and a host's side of both.
type installation struct {
	dir     string
	engine  *engine.Engine
	fargate *localfargate.Server
	gate    *gate
	out     engine.Outputs

	db        *dynamodb.Client
	functions *lambda.Client
	queues    *sqs.Client
	schedules *scheduler.Client

	runs  *ddb.Runs
	boxes *ddb.Sandboxes
	blobs *s3blob.Blobs
	queue *sqsout.Queue
	host  core.Launcher
}

var shared struct {
	once sync.Once
	at   *installation
	err  error
}

// installed returns the installation of this test process. The first test that
// asks deploys it. Where it cannot be, the test skips and says so, except under CI.
func installed(t *testing.T) *installation {
	t.Helper()
	e := enginetest.Shared(t)
	shared.once.Do(func() { shared.err = install(e) })
	if errors.Is(shared.err, fs.ErrNotExist) && os.Getenv("CI") == "" {
		t.Skip(shared.err)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.at
}

// install brings everything up. Not under a test's context: what it starts outlives
// the test that asked first.
func install(e *engine.Engine) error {
	dir, err := os.MkdirTemp("", "sandkeeper-e2e-")
	if err != nil {
		return err
	}
	in := &installation{dir: dir, engine: e}
	shared.at = in // what is begun is closed, whatever fails behind it
	if err := in.startFargate(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if in.out, err = e.Deploy(ctx, engine.Deployment{ECSEndpoint: in.gate.url()}); err != nil {
		return err
	}
	in.connect()
	return in.setSchedule(ctx, types.ScheduleStateDisabled)
}

// startFargate serves ECS behind a gate; its events go to the engine.
func (in *installation) startFargate() error {
	if err := os.Chmod(in.dir, 0o755); err != nil { // containers may have other users
		return err
	}
	sender, err := localfargate.NewSender(in.engine.Endpoint, engine.Region, "")
	if err != nil {
		return err
	}
	agent, err := installAgent(in.dir)
	if err != nil {
		return err
	}
	in.fargate, err = localfargate.New(localfargate.Options{
		Dir: filepath.Join(in.dir, "fargate"), Visible: []string{in.dir}, Events: sender.Send,
		Habits: localfargate.QuickHabits(), Env: []string{core.AgentVariable + "=" + agent},
	})
	if err != nil {
		return err
	}
	if err := in.fargate.Start(); err != nil {
		return err
	}
	in.gate, err = openGate(in.fargate.URL())
	return err
}

// connect makes the host's side: the same adapters as in the functions. A host's
// own calls do not pass the gate.
func (in *installation) connect() {
	cfg := in.engine.Config()
	atECS := cfg.Copy()
	atECS.BaseEndpoint = new(in.fargate.URL())
	in.db, in.functions, in.queues = dynamodb.NewFromConfig(cfg), lambda.NewFromConfig(cfg), sqs.NewFromConfig(cfg)
	in.schedules = scheduler.NewFromConfig(cfg)
	in.runs = ddb.NewRuns(in.db, in.out[names.OutRunsTable])
	in.boxes = ddb.NewSandboxes(in.db, in.out[names.OutSandboxesTable])
	in.blobs = s3blob.New(s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = true }), in.out[names.OutBucket])
	in.queue = sqsout.New(in.queues, in.out[names.OutReclaimQueue])
	tasks := &ecstask.Tasks{ECS: in.engine.ECS(in.fargate.URL())}
	in.host = core.Launcher{
		Runs: in.runs, Sandboxes: in.boxes, Ledger: in.boxes,
		Transactions: ddb.NewTransactions(in.db, in.out[names.OutRunsTable], in.out[names.OutSandboxesTable]),
		Tasks:        tasks, Describer: tasks,
		Agents: core.JournalStarter{Exec: ecsexec.New(atECS), Format: core.DefaultJournal},
		Queue:  in.queue, Limits: core.DefaultLimits, Install: in.out[names.OutInstall],
	}
}

// spec is the task that every run gets.
func (in *installation) spec() core.TaskSpec {
	return core.TaskSpec{
		Cluster: in.out[names.OutCluster], TaskDefinition: in.out[names.OutTaskDefinition], Container: names.AgentContainer,
		Subnets: strings.Split(in.out[names.OutSubnets], ","), SecurityGroups: []string{in.out[names.OutSecurityGroup]},
		AssignPublicIP: true,
	}
}

// setSchedule lets the deployed schedule tick, or not, and changes nothing else of
// it. Only one test is about the clock; it would disturb all others.
func (in *installation) setSchedule(ctx context.Context, state types.ScheduleState) error {
	name := in.out[names.OutInstall] + "-" + names.TickSchedule
	s, err := in.schedules.GetSchedule(ctx, &scheduler.GetScheduleInput{Name: &name})
	if err != nil {
		return fmt.Errorf("read schedule %s: %w", name, err)
	}
	_, err = in.schedules.UpdateSchedule(ctx, &scheduler.UpdateScheduleInput{
		Name: &name, Description: s.Description, ScheduleExpression: s.ScheduleExpression,
		FlexibleTimeWindow: s.FlexibleTimeWindow, Target: s.Target, State: state,
	})
	if err != nil {
		return fmt.Errorf("set schedule %s: %w", name, err)
	}
	return nil
}

// closeInstallation ends what was begun. The engine ends with the process.
func closeInstallation() error {
	in := shared.at
	if in == nil {
		return nil
	}
	var errs []error
	if in.gate != nil {
		in.gate.close()
	}
	if in.fargate != nil {
		errs = append(errs, in.fargate.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(in.dir))...)
}
