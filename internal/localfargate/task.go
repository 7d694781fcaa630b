package localfargate

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/localfargate/box"
	"github.com/sandkeeper/sandkeeper/internal/localfargate/datachannel"
)

// Statuses of tasks, containers and managed agents.
const (
	statusProvisioning   = "PROVISIONING"
	statusPending        = "PENDING"
	statusRunning        = "RUNNING"
	statusStopping       = "STOPPING"
	statusDeprovisioning = "DEPROVISIONING"
	statusStopped        = "STOPPED"
)

// idleCommand is what a container without a command runs: an image's own command
// that stays until it is told to stop.
var idleCommand = []string{"sleep", "2147483647"}

// task is one task. Fields after the blank line are guarded by the server's lock.
type task struct {
	server     *Server
	id, arn    string
	cluster    string
	number     int64 // by start
	definition *definition
	input      runTaskInput
	overrides  map[string]containerOverride
	faults     atomic.Pointer[Faults]
	createdAt  time.Time
	containers []*container
	stopAsked  chan struct{}
	reclaimed  chan struct{} // its capacity is taken back
	exited     chan struct{} // an essential container ended
	done       chan struct{} // closed when nothing of it runs and it is STOPPED
	toldAt     time.Time     // of a notice, by whoever runs the task before it ends its containers

	tags          []tag
	lastStatus    string
	desiredStatus string
	version       int64
	startedAt     time.Time
	pullStartedAt time.Time
	pullStoppedAt time.Time
	stoppingAt    time.Time
	execStoppedAt time.Time
	stoppedAt     time.Time
	stopCode      string
	stoppedReason string
	refused       int // ExecuteCommand, on purpose
}

// container is one container of a task, guarded like it.
type container struct {
	definition containerDefinition
	id, arn    string
	runtimeID  string
	box        atomic.Pointer[body] // the present one
	agent      *datachannel.Agent
	ended      chan struct{} // closed when the end of the last box is recorded

	lastStatus     string
	exitCode       *int
	reason         string
	agentStatus    string // of the managed agent; "" without ECS Exec
	agentReason    string
	agentStartedAt time.Time
	agentConnected bool
	restart        bool // the box was killed to be started again
	restarts       int
}

func (c *container) essential() bool { return c.definition.Essential == nil || *c.definition.Essential }

// change alters the task under the lock and reports it as one event.
func (t *task) change(alter func()) {
	t.server.mu.Lock()
	defer t.server.mu.Unlock()
	alter()
	t.version++
	t.report()
}

// report sends the present state to the event sink. Call with the lock held.
func (t *task) report() {
	now := time.Now()
	detail, err := json.Marshal(t.view(viewEvent))
	if err != nil {
		t.server.log.Error("encode task event", "task", t.arn, "err", err)
		return
	}
	t.server.events.add(Event{
		Time: now, TaskARN: t.arn, LastStatus: t.lastStatus, DesiredStatus: t.desiredStatus, Version: t.version, Detail: detail,
	})
}

// run takes the task through its life. It ends early with the server.
func (t *task) run(ctx context.Context) {
	defer close(t.done)
	if t.provision(ctx) {
		select {
		case <-t.stopAsked:
		case <-t.exited:
			t.change(func() { t.markStopping("EssentialContainerExited", "Essential container in task exited") })
		case <-t.reclaimed:
			t.warn(ctx)
		case <-ctx.Done():
		}
	}
	t.stopContainers(ctx)
	if ctx.Err() != nil {
		return
	}
	t.change(func() {
		t.lastStatus = statusDeprovisioning
		t.execStoppedAt = time.Now()
	})
	sleep(ctx, t.server.opts.Habits.Deprovision)
	t.change(func() {
		t.lastStatus, t.desiredStatus = statusStopped, statusStopped
		t.stoppedAt = time.Now()
	})
}

// warn tells everybody that the task's capacity is taken back, as Fargate Spot does: by an
// event while it is RUNNING, and by SIGTERM. A container has until its stop timeout then,
// and at most the notice's time; the task goes on to end with its first essential one.
func (t *task) warn(ctx context.Context) {
	t.change(func() { t.markStopping("TerminationNotice", "Your Spot Task was interrupted.") })
	t.toldAt = time.Now()
	var wg sync.WaitGroup
	for _, c := range t.containers {
		wg.Go(func() { t.endContainer(ctx, c) })
	}
	dead := make(chan struct{})
	t.server.wg.Go(func() { wg.Wait(); close(dead) })
	select {
	case <-t.exited:
	case <-dead:
	case <-ctx.Done():
	}
}

// provision brings the containers up; false means that the task is to end.
func (t *task) provision(ctx context.Context) bool {
	wait := time.NewTimer(t.server.opts.Habits.Provision)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-t.stopAsked:
		return false
	case <-ctx.Done():
		return false
	}
	t.change(func() {
		t.lastStatus = statusPending
		t.pullStartedAt = time.Now()
		t.pullStoppedAt = time.Now()
	})
	for _, c := range t.containers {
		if err := t.startContainer(ctx, c); err != nil {
			t.failedToStart(c, err)
			return false
		}
	}
	t.change(func() {
		t.lastStatus = statusRunning
		t.startedAt = time.Now()
	})
	for _, c := range t.containers {
		if c.agent != nil {
			t.server.wg.Go(func() { t.startAgent(ctx, c) })
		}
	}
	return true
}

func (t *task) startContainer(ctx context.Context, c *container) error {
	b, err := t.startBox(c)
	if err != nil {
		return err
	}
	t.server.mu.Lock()
	c.box.Store(b)
	c.runtimeID = t.runtimeID(c)
	c.lastStatus = statusRunning
	if t.input.EnableExecuteCommand {
		c.agentStatus, c.agentReason = agentBegin(c.definition)
		runner := boxRunner{body: b, env: agentEnv(t.environment(c)), faults: func() Faults { return *t.faults.Load() }}
		c.agent = datachannel.NewAgent(runner, t.server.opts.Habits.Channel)
	}
	t.server.mu.Unlock()
	t.server.wg.Go(func() { t.watch(ctx, c) })
	return nil
}

func (t *task) startBox(c *container) (*body, error) {
	return t.server.start(c.limits(t), box.Spec{
		ID: c.id, Isolation: t.server.isolation, Dir: t.containerDir(c),
		Argv: t.command(c), Env: t.environment(c),
		WorkDir: c.definition.WorkingDirectory, User: c.definition.User, Visible: t.server.opts.Visible,
	})
}

// watch records the end of a container, whoever ended it.
func (t *task) watch(ctx context.Context, c *container) {
	defer close(c.ended)
	<-c.box.Load().Done()
	for t.again(ctx, c) {
		<-c.box.Load().Done()
	}
	if c.agent != nil {
		c.agent.Stop()
	}
	if ctx.Err() != nil {
		return
	}
	t.change(func() {
		c.lastStatus = statusStopped
		c.exitCode = new(c.box.Load().ExitStatus())
		c.reason = c.box.Load().Reason()
		if c.agentStatus != "" {
			c.agentStatus, c.agentConnected = statusStopped, false
		}
	})
	if c.essential() && !t.faults.Load().StaysRunning {
		select {
		case t.exited <- struct{}{}:
		default:
		}
	}
}

// startAgent lets the managed agent come up, and then be reachable.
func (t *task) startAgent(ctx context.Context, c *container) {
	if !t.pause(ctx, t.server.opts.Habits.AgentStart, c) {
		return
	}
	t.change(func() {
		if c.agentStatus == statusPending {
			c.agentStatus, c.agentStartedAt = statusRunning, time.Now()
			c.agentConnected = t.server.opts.Habits.AgentConnect <= 0
		}
	})
	if !t.pause(ctx, t.server.opts.Habits.AgentConnect, c) {
		return
	}
	t.server.mu.Lock()
	defer t.server.mu.Unlock()
	c.agentConnected = c.agentStatus == statusRunning
}

// pause waits for d; false means that the container or the server ended.
func (t *task) pause(ctx context.Context, d time.Duration, c *container) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.box.Load().Done():
	case <-ctx.Done():
	}
	return false
}

func (t *task) failedToStart(c *container, cause error) {
	t.change(func() {
		c.lastStatus = statusStopped
		c.reason = startReasonCode(cause) + cause.Error()
		t.markStopping("TaskFailedToStart", c.reason)
	})
}

// markStopping sets why the task ends; the first reason stays. Call with the lock
// held.
func (t *task) markStopping(code, reason string) {
	if t.stopCode != "" {
		return
	}
	t.desiredStatus = statusStopped
	t.stopCode, t.stoppedReason, t.stoppingAt = code, reason, time.Now()
}

// stopContainers sends SIGTERM, unless a notice came with it, waits for each container's
// stop timeout, and kills what is left. With the server's end nothing is waited for.
func (t *task) stopContainers(ctx context.Context) {
	var live []*container
	t.server.mu.Lock()
	for _, c := range t.containers {
		if c.box.Load() != nil {
			live = append(live, c)
		}
	}
	t.server.mu.Unlock()
	if len(live) > 0 && ctx.Err() == nil {
		t.change(func() { t.lastStatus = statusStopping })
	}
	var wg sync.WaitGroup
	for _, c := range live {
		wg.Go(func() { t.stopContainer(ctx, c) })
	}
	wg.Wait()
}

func (t *task) stopContainer(ctx context.Context, c *container) {
	if t.toldAt.IsZero() { // else it had its signal with the notice, and its time runs
		t.endContainer(ctx, c)
	}
	<-c.ended
}

// endContainer sends SIGTERM, and SIGKILL when the container's time is over.
func (t *task) endContainer(ctx context.Context, c *container) {
	_ = c.box.Load().Signal(syscall.SIGTERM)
	t.pause(ctx, t.grace(c), c)
	c.box.Load().Kill()
}

// grace is how long a container has from SIGTERM to SIGKILL.
func (t *task) grace(c *container) time.Duration {
	habits := t.server.opts.Habits
	limit := habits.StopTimeout
	if c.definition.StopTimeout != nil {
		limit = time.Duration(*c.definition.StopTimeout) * time.Second
	}
	if t.toldAt.IsZero() {
		return limit
	}
	return min(limit, habits.Notice)
}

func (t *task) containerDir(c *container) string {
	return filepath.Join(t.server.dir, tasksDir, t.id, c.definition.Name)
}

func (t *task) command(c *container) []string {
	argv := c.definition.Command
	if o, ok := t.overrides[c.definition.Name]; ok && len(o.Command) > 0 {
		argv = o.Command
	}
	argv = append(slices.Clone(c.definition.EntryPoint), argv...)
	if len(argv) == 0 {
		return idleCommand
	}
	return argv
}

func (t *task) environment(c *container) []string {
	s := t.server
	env := append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + box.WorkDir(t.containerDir(c)),
		"AWS_EXECUTION_ENV=AWS_ECS_FARGATE", "AWS_REGION=" + s.opts.Region, "AWS_DEFAULT_REGION=" + s.opts.Region,
	}, s.opts.Env...)
	for _, kv := range c.definition.Environment {
		env = append(env, kv.Name+"="+kv.Value)
	}
	for _, kv := range t.overrides[c.definition.Name].Environment {
		env = append(env, kv.Name+"="+kv.Value)
	}
	return env
}

// boxRunner runs the sessions of ECS Exec in a container.
type boxRunner struct {
	body   *body
	env    []string // what the agent adds
	faults func() Faults
}

// Run implements [datachannel.Runner].
func (r boxRunner) Run(argv []string, tty *os.File) (datachannel.Process, error) {
	if argv[0] == "/bin/sh" && r.faults().NoShell {
		return nil, &os.PathError{Op: "fork/exec", Path: argv[0], Err: syscall.ENOENT}
	}
	s, err := r.body.exec(argv, r.env, tty)
	if err != nil {
		return nil, startReason(err)
	}
	return s, nil
}

// Alive implements [datachannel.Runner].
func (r boxRunner) Alive() bool { return r.body.Ping() == nil }

// agentEnv is what the agent adds to a container's environment for its sessions.
func agentEnv(env []string) []string {
	added := []string{"TERM=xterm-256color"}
	if !slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, "LANG=") }) {
		added = append(added, "LANG=C.UTF-8")
	}
	return added
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
