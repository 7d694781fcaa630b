package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"github.com/sandkeeper/sandkeeper/client"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/s3blob"
	"github.com/sandkeeper/sandkeeper/internal/sqsout"
)

// demoCommand does the main job on this machine: the stack deployed to the local
// engine, real processes as agents in local Fargate, viewers who leave, and the
// scheduled sweep that does the rest.
type demoCommand struct {
	Within   time.Duration `default:"5m" help:"Give up after this long."`
	Assembly string        `type:"path" help:"Synthesized local variant of the stack; what make leaves otherwise."`
	Agent    string        `default:"dist/local/agent/sandkeeper-agent" help:"The sandboxes' agent, built for this machine."`
	Tool     string        `default:"dist/local/example-tool/bootstrap" help:"The host's tools, built for this machine."`
	Keep     bool          `help:"Keep the directory with the engine's log and what the agents wrote."`
}

// Run prints the runs while it works, and one JSON object last. It fails unless
// every transcript and every restored workspace is identical, each turn of the
// thread found the first's work, the agent that calls a tool was answered, nothing alive was stopped and nothing leaked.
func (c *demoCommand) Run(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Within, fmt.Errorf("the demo has not ended within %s", c.Within))
	defer cancel()
	d, err := openDemo(ctx, c)
	if err != nil {
		return errors.Join(err, cutOff(ctx))
	}
	defer d.close()
	if c.Keep {
		d.say("keeping " + d.dir)
		d.keep = true
	}
	if err := d.begin(ctx); err != nil {
		return errors.Join(err, cutOff(ctx))
	}
	if err := d.watch(ctx); err != nil {
		return errors.Join(err, cutOff(ctx))
	}
	result, err := d.result(ctx)
	if err != nil {
		return errors.Join(err, cutOff(ctx))
	}
	if result.Checkpoints, result.TreesIdentical, err = d.restoreAll(ctx); err != nil {
		return errors.Join(err, cutOff(ctx))
	}
	result.Seconds = math.Round(time.Since(d.started).Seconds())
	text, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	fmt.Println(string(text))
	if !result.whole() {
		return errors.New("demo: the result above is not what it should be")
	}
	return nil
}

// whole reports whether everything was kept, nothing alive was stopped, nothing leaked, and
// a cancelled agent was dead within a minute and a quarter, whoever cancelled it.
func (r demoResult) whole() bool {
	kept := r.TranscriptsIdentical && r.TreesIdentical && r.Turns == turns && r.ToolCalls == 1
	return kept && r.StoppedLive == 0 && r.Leaked == 0 && r.CancelledP99 > 0 && r.CancelledP99 < 75
}

// demo is an installation on this machine, and the hosts that start runs in it.
type demo struct {
	dir     string
	agent   string // what an image would bring
	fargate *localfargate.Server
	engine  *engine.Engine
	out     engine.Outputs
	runs    *ddb.Runs
	boxes   *ddb.Sandboxes
	blobs   *s3blob.Blobs
	hosts   client.API  // the deployed session function
	sweep   *core.Sweep // one of our own, beside the deployed one
	lambda  *lambda.Client
	seen    sightings
	hosting errgroup.Group

	operator *core.Operator
	table    *table
	started  time.Time
	keep     bool
}

// openDemo starts local Fargate and the engine and deploys the stack. What it has
// begun when it fails is ended.
func openDemo(ctx context.Context, c *demoCommand) (d *demo, err error) {
	d = &demo{started: time.Now(), agent: c.Agent}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.dir, err = os.MkdirTemp("", "sandkeeper-demo-"); err != nil {
		return d, fmt.Errorf("demo: %w", err)
	}
	d.table = newTable(os.Stdout, term.IsTerminal(int(os.Stdout.Fd())))
	d.say("starting the engine and local Fargate")
	if d.engine, err = engine.Start(ctx, engine.Options{Dir: filepath.Join(d.dir, "engine")}); err != nil {
		return d, err
	}
	if err := engine.Guard(d.engine.Env()); err != nil {
		return d, err
	}
	if err := d.startFargate(); err != nil {
		return d, err
	}
	d.say("deploying the stack")
	if d.out, err = d.engine.Deploy(ctx, engine.Deployment{Assembly: c.Assembly, ECSEndpoint: d.fargate.URL()}); err != nil {
		return d, err
	}
	d.connect()
	return d, engine.PutFunction(ctx, d.lambda, d.exampleTool(), c.Tool)
}

// startFargate serves ECS; its events go to the engine.
func (d *demo) startFargate() error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	agent, err := filepath.Abs(d.agent)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if _, err := os.Stat(agent); err != nil {
		return fmt.Errorf("demo: want the agent as make build-local leaves it: %w", err)
	}
	sender, err := localfargate.NewSender(d.engine.Endpoint, engine.Region, "")
	if err != nil {
		return err
	}
	d.fargate, err = localfargate.New(localfargate.Options{
		Dir: filepath.Join(d.dir, "fargate"), Visible: []string{exe, agent, d.dir}, Events: sender.Send,
		Env: []string{core.AgentVariable + "=" + agent},
	})
	if err != nil {
		return err
	}
	return d.fargate.Start()
}

// connect makes the hosts' side, and what looks into the stores: the same adapters as in
// the functions.
func (d *demo) connect() {
	cfg := d.engine.Config()
	atECS := cfg.Copy()
	atECS.BaseEndpoint = new(d.fargate.URL())
	db := dynamodb.NewFromConfig(cfg)
	d.runs = ddb.NewRuns(db, d.out[names.OutRunsTable])
	d.boxes = ddb.NewSandboxes(db, d.out[names.OutSandboxesTable])
	d.blobs = s3blob.New(s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = true }), d.out[names.OutBucket])
	tasks := &ecstask.Tasks{ECS: ecs.NewFromConfig(atECS)}
	queue := sqsout.New(sqs.NewFromConfig(cfg), d.out[names.OutReclaimQueue])
	d.lambda = lambda.NewFromConfig(cfg)
	d.hosts = client.NewFunction(cfg, d.out[names.OutSession])
	d.operator = &core.Operator{
		Runs: d.runs, Sandboxes: d.boxes, Ledger: d.boxes, Due: d.boxes, Controls: d.boxes, Audit: d.boxes, Queue: queue, Limits: core.DefaultLimits,
	}
	prober := &core.JournalProber{Exec: ecsexec.New(atECS), Sandboxes: d.boxes, Format: core.DefaultJournal, Limits: core.DefaultLimits}
	d.sweep = &core.Sweep{
		Runs: d.runs, Index: d.runs, Log: &core.LogWriter{Log: d.runs, Blobs: d.blobs, Inline: core.DefaultLimits.InlineSegment},
		Sandboxes: d.boxes, Ledger: d.boxes, Due: d.boxes, Tasks: tasks, Prober: prober, Journals: prober, Queue: queue,
		Controls: d.boxes, Breaker: d.boxes, Notes: d.runs, Cursors: d.boxes, Budget: d.boxes,
		Checkpoint: core.CheckpointFinished, Limits: core.DefaultLimits, Install: d.out[names.OutInstall], Logger: quiet(),
	}
}

// close ends whatever was started, and removes what it left.
func (d *demo) close() {
	if d.fargate != nil {
		if err := d.fargate.Close(); err != nil {
			slog.Error("close local fargate", "err", err)
		}
	}
	if d.engine != nil {
		if err := d.engine.Stop(); err != nil {
			slog.Error("stop engine", "err", err)
		}
	}
	if d.dir != "" && !d.keep {
		os.RemoveAll(d.dir)
	}
}

func (d *demo) say(text string) {
	fmt.Printf("%5.1fs %s\n", time.Since(d.started).Seconds(), text)
}

// task is what every sandbox of the demo is.
func (d *demo) task() core.TaskTemplate {
	return core.TaskTemplate{
		Cluster: d.out[names.OutCluster], TaskDefinition: d.out[names.OutTaskDefinition], Container: names.AgentContainer,
		Subnets: strings.Split(d.out[names.OutSubnets], ","), SecurityGroups: []string{d.out[names.OutSecurityGroup]},
		AssignPublicIP: true, Tags: map[string]string{"sandkeeper:demo": "true"},
	}
}

// copyOf is what the agent of a run wrote.
func (d *demo) copyOf(run core.RunID) string { return filepath.Join(d.dir, "wrote", string(run)) }

// saved reads the transcript of a run from the stores.
func (d *demo) saved(ctx context.Context, key core.RunKey) ([]byte, error) {
	return core.ReadLog(ctx, d.runs, d.blobs, key)
}

// table draws the runs: in place on a terminal, as lines of what changed elsewhere.
type table struct {
	out   io.Writer
	live  bool
	drawn int
	last  map[core.RunID]string
	said  time.Duration // when the last line was written that tells of something new
}

func newTable(out io.Writer, live bool) *table {
	return &table{out: out, live: live, last: map[core.RunID]string{}}
}

// row is one run as the table shows it.
type row struct {
	run     core.RunID
	what    string
	state   string
	outcome string
	task    string
	age     time.Duration
	saved   int64
	// workspace is how the checkpoint stands that the run's end owes.
	workspace string
}

// quietMost is how long the demo says nothing before it says what it waits for.
const quietMost = 10 * time.Second

// waitsMost is how many things the demo says at most that it waits for.
const waitsMost = 4

// waits says what is waited for, where nothing else was said for a while. A terminal shows
// the table's ages move.
func (t *table) waits(since time.Duration, what []string) {
	if t.live || len(what) == 0 || since-t.said < quietMost {
		return
	}
	t.said = since
	text := strings.Join(what[:min(len(what), waitsMost)], ", ")
	if more := len(what) - waitsMost; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	fmt.Fprintf(t.out, "%5.1fs waiting for %s\n", since.Seconds(), text)
}

func (t *table) draw(since time.Duration, rows []row) {
	if !t.live {
		for _, r := range rows {
			line := fmt.Sprintf("%-12s %-12s task %-14s saved %-8d", r.state, r.outcome, r.task, r.saved)
			if r.workspace != "" {
				line += " workspace " + r.workspace
			}
			if t.last[r.run] != line {
				fmt.Fprintf(t.out, "%5.1fs %-14s %s\n", since.Seconds(), r.run, line)
				t.last[r.run], t.said = line, since
			}
		}
		return
	}
	if t.drawn > 0 {
		fmt.Fprintf(t.out, "\x1b[%dA", t.drawn)
	}
	fmt.Fprintf(t.out, "\x1b[K%-14s %-34s %-12s %-12s %-15s %6s %9s %s\n", "RUN", "AGENT", "STATE", "OUTCOME", "TASK", "AGE", "SAVED", "WORKSPACE")
	for _, r := range rows {
		fmt.Fprintf(t.out, "\x1b[K%-14s %-34s %-12s %-12s %-15s %5.0fs %9d %s\n",
			r.run, r.what, r.state, r.outcome, r.task, r.age.Seconds(), r.saved, r.workspace)
	}
	t.drawn = len(rows) + 1
}
