// Package installtest brings a whole installation up for a test process: the stack
// as CDK deploys it, on an engine, with local Fargate behind it and a host's side of
// both. Its rule: what is begun is closed by [Installation.Close], whatever fails
// behind it, and nothing sweeps unless a test asks.
package installtest

import (
	"context"
	"errors"
	"fmt"
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

const installWithin = 6 * time.Minute

// Options say what is particular to a test process. The zero value is an
// installation as it is deployed.
type Options struct {
	// Agent puts the agent where tasks look for it, in a directory that they see,
	// and returns its path. nil: the path is [Installation.AgentPath], and a test may
	// put something there.
	Agent func(dir string) (path string, err error)
	// Front is what the functions take for ECS, in front of local Fargate at url; it
	// returns its own URL. nil: local Fargate itself. A host's calls do not pass it.
	Front func(url string) (string, error)
	// Fargate alters local Fargate's options.
	Fargate func(*localfargate.Options)
}

// Installation is the deployed stack, local Fargate, and a host's side of both: the
// same adapters as in the functions.
type Installation struct {
	// Dir goes with the installation; tasks see it.
	Dir     string
	Engine  *engine.Engine
	Fargate *localfargate.Server
	Out     engine.Outputs

	DB        *dynamodb.Client
	Functions *lambda.Client
	Queues    *sqs.Client
	Schedules *scheduler.Client

	Runs  *ddb.Runs
	Boxes *ddb.Sandboxes
	Blobs *s3blob.Blobs
	Queue *sqsout.Queue
	Host  core.Launcher
}

// Shared is the one installation of a test process. The zero value is ready.
type Shared struct {
	// Options are read by the first [Shared.Get].
	Options Options

	once sync.Once
	at   *Installation
	err  error
}

// Get returns the installation. The first test that asks deploys it. Where it
// cannot be, the test skips and says so, except under CI.
func (s *Shared) Get(t testing.TB) *Installation {
	t.Helper()
	e := enginetest.Shared(t)
	s.once.Do(func() {
		s.at = &Installation{Engine: e}
		s.err = s.at.install(s.Options)
	})
	enginetest.Require(t, s.err)
	return s.at
}

// Close ends what was begun, if anything was. The engine ends with the process.
func (s *Shared) Close() error {
	if s.at == nil {
		return nil
	}
	return s.at.Close()
}

// install brings everything up. Not under a test's context: what it starts outlives
// the test that asked first.
func (in *Installation) install(o Options) (err error) {
	if in.Dir, err = os.MkdirTemp("", "sandkeeper-install-"); err != nil {
		return err
	}
	if err := os.Chmod(in.Dir, 0o755); err != nil { // containers may have other users
		return err
	}
	if err := in.startFargate(o); err != nil {
		return err
	}
	front := in.Fargate.URL()
	if o.Front != nil {
		if front, err = o.Front(front); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), installWithin)
	defer cancel()
	if in.Out, err = in.Engine.Deploy(ctx, engine.Deployment{ECSEndpoint: front}); err != nil {
		return err
	}
	in.connect()
	return in.SetSchedule(ctx, types.ScheduleStateDisabled)
}

// Beside deploys another installation to the same engine and the same local Fargate, from
// its own assembly. What it serves ends with the first.
func (in *Installation) Beside(ctx context.Context, d engine.Deployment) (*Installation, error) {
	other := &Installation{Dir: in.Dir, Engine: in.Engine, Fargate: in.Fargate}
	ctx, cancel := context.WithTimeout(ctx, installWithin)
	defer cancel()
	d.ECSEndpoint = in.Fargate.URL()
	var err error
	if other.Out, err = in.Engine.Deploy(ctx, d); err != nil {
		return nil, err
	}
	other.connect()
	return other, other.SetSchedule(ctx, types.ScheduleStateDisabled)
}

// AgentPath is where tasks look for the agent unless [Options.Agent] says otherwise.
func (in *Installation) AgentPath() string { return filepath.Join(in.Dir, core.AgentName) }

// startFargate serves ECS; its events go to the engine.
func (in *Installation) startFargate(o Options) error {
	sender, err := localfargate.NewSender(in.Engine.Endpoint, engine.Region, "")
	if err != nil {
		return err
	}
	agent := in.AgentPath()
	if o.Agent != nil {
		if agent, err = o.Agent(in.Dir); err != nil {
			return err
		}
	}
	opts := localfargate.Options{
		Dir: filepath.Join(in.Dir, "fargate"), Visible: []string{in.Dir}, Events: sender.Send,
		Habits: localfargate.QuickHabits(), Env: []string{core.AgentVariable + "=" + agent},
	}
	if o.Fargate != nil {
		o.Fargate(&opts)
	}
	server, err := localfargate.New(opts)
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return err
	}
	in.Fargate = server
	return nil
}

func (in *Installation) connect() {
	cfg := in.Engine.Config()
	atECS := cfg.Copy()
	atECS.BaseEndpoint = new(in.Fargate.URL())
	in.DB, in.Functions, in.Queues = dynamodb.NewFromConfig(cfg), lambda.NewFromConfig(cfg), sqs.NewFromConfig(cfg)
	in.Schedules = scheduler.NewFromConfig(cfg)
	in.Runs = ddb.NewRuns(in.DB, in.Out[names.OutRunsTable])
	in.Boxes = ddb.NewSandboxes(in.DB, in.Out[names.OutSandboxesTable])
	in.Blobs = s3blob.New(s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = true }), in.Out[names.OutBucket])
	in.Queue = sqsout.New(in.Queues, in.Out[names.OutReclaimQueue])
	tasks := &ecstask.Tasks{ECS: in.Engine.ECS(in.Fargate.URL())}
	in.Host = core.Launcher{
		Runs: in.Runs, Sandboxes: in.Boxes, Ledger: in.Boxes,
		Transactions: ddb.NewTransactions(in.DB, in.Out[names.OutRunsTable], in.Out[names.OutSandboxesTable]),
		Describer:    tasks,
		Provider: core.TaskProvider{
			TaskAPI: tasks, AgentStarter: core.JournalStarter{Exec: ecsexec.New(atECS), Format: core.DefaultJournal},
		},
		Queue: in.Queue, Limits: core.DefaultLimits, Install: in.Out[names.OutInstall],
	}
}

// Spec is the task of the deployed sample definition.
func (in *Installation) Spec() core.TaskSpec {
	return core.TaskSpec{
		Cluster: in.Out[names.OutCluster], TaskDefinition: in.Out[names.OutTaskDefinition], Container: names.AgentContainer,
		Subnets: strings.Split(in.Out[names.OutSubnets], ","), SecurityGroups: []string{in.Out[names.OutSecurityGroup]},
		AssignPublicIP: true,
	}
}

// SetSchedule lets the deployed schedule tick, or not, and changes nothing else of
// it. Only a test about the clock wants it; it would disturb all others.
func (in *Installation) SetSchedule(ctx context.Context, state types.ScheduleState) error {
	name := in.Out[names.OutInstall] + "-" + names.TickSchedule
	s, err := in.Schedules.GetSchedule(ctx, &scheduler.GetScheduleInput{Name: &name})
	if err != nil {
		return fmt.Errorf("read schedule %s: %w", name, err)
	}
	_, err = in.Schedules.UpdateSchedule(ctx, &scheduler.UpdateScheduleInput{
		Name: &name, Description: s.Description, ScheduleExpression: s.ScheduleExpression,
		FlexibleTimeWindow: s.FlexibleTimeWindow, Target: s.Target, State: state,
	})
	if err != nil {
		return fmt.Errorf("set schedule %s: %w", name, err)
	}
	return nil
}

// Close ends local Fargate with all its tasks and removes the directory.
func (in *Installation) Close() error {
	var err error
	if in.Fargate != nil {
		err = in.Fargate.Close()
	}
	return errors.Join(err, os.RemoveAll(in.Dir))
}
