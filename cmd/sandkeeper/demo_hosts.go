package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/sandkeeper/sandkeeper/client"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// turns is how many there are of [turnsThread].
const turns = 3

// warmFor is how long a sandbox without a turn is kept, seconds: until the breaker is
// thawed, which puts the end of an idle sandbox off.
const warmFor = 60

// sightings is what the hosts saw.
type sightings struct {
	mu        sync.Mutex
	cancelled []float64 // seconds from the request to the agent's end
}

// request is how a scenario's run is begun.
func (d *demo) request(s scenario) (client.StartRequest, error) {
	exe, err := os.Executable()
	if err != nil {
		return client.StartRequest{}, fmt.Errorf("demo: %w", err)
	}
	argv := []string{exe, "demo-agent", "--copy=" + d.copyOf(s.run)}
	if !s.later {
		argv = append(argv, "--work="+string(s.run))
	}
	return client.StartRequest{
		RunKey: s.key(), Thread: s.ownThread(), Host: client.NewHost(), Definition: d.definition(s),
		Agent: client.AgentPlan{Argv: append(argv, s.flags...)},
	}, nil
}

func (s scenario) ownThread() core.ThreadID { return cmp.Or(s.thread, core.ThreadID("thread-"+s.run)) }

func (d *demo) definition(s scenario) *client.Definition {
	return &client.Definition{
		Name: "demo", Version: 1, Task: d.task(), Checkpoint: core.CheckpointFinished, RunTTLSeconds: s.ttl,
		DestroyOnComplete: !s.warm(), IdleTTLSeconds: warmFor,
		Tools: []core.ToolPlan{{
			Name: "lookup", Description: "Tells the value of a key.", Function: d.exampleTool(),
			InputSchema: json.RawMessage(`{"type":"object","properties":{"key":{"type":"string"}},"required":["key"]}`),
		}},
	}
}

// exampleTool is the function of the host's tools.
func (d *demo) exampleTool() string { return d.out[names.OutInstall] + "-example-tool" }

// start begins a run up to its agent.
func (d *demo) start(ctx context.Context, s scenario) (*client.Attachment, error) {
	q, err := d.request(s)
	if err != nil {
		return nil, err
	}
	a, _, err := client.Start(ctx, d.hosts, q)
	return a, err
}

// host does what a run's host does once the agent works.
func (d *demo) host(ctx context.Context, s scenario, a *client.Attachment) error {
	switch s.manner {
	case hostVanishes:
		a.Close()
		return nil
	case hostStays:
		return d.follow(ctx, s, a)
	case hostReturns:
		return d.comeBack(ctx, s, a)
	case hostCancels:
		return d.timed(ctx, s, func() error {
			_, err := a.Cancel(ctx)
			return err
		})
	}
	return a.Detach(ctx)
}

// follow reads a run's output to its end, and finishes the run. What it has read must be
// what the agent wrote.
func (d *demo) follow(ctx context.Context, s scenario, a *client.Attachment) error {
	var read bytes.Buffer
	for line, err := range a.Output(ctx, 0) {
		if err != nil {
			return fmt.Errorf("follow %s: %w", s.run, err)
		}
		read.Write(line.Text)
		read.WriteByte('\n')
	}
	wrote, err := os.ReadFile(d.copyOf(s.run))
	if err != nil {
		return fmt.Errorf("follow %s: %w", s.run, err)
	}
	if !bytes.Equal(read.Bytes(), wrote) {
		return fmt.Errorf("follow %s: read %d bytes that are not the %d that its agent wrote", s.run, read.Len(), len(wrote))
	}
	if _, err := a.Finish(ctx, nil); err != nil {
		return fmt.Errorf("finish %s: %w", s.run, err)
	}
	d.say(fmt.Sprintf("the viewer of %s read it to its end, and finished it", s.run))
	if s.run == "turn-1" {
		return d.nextTurns(ctx)
	}
	return nil
}

// comeBack leaves, and attaches again as another host.
func (d *demo) comeBack(ctx context.Context, s scenario, a *client.Attachment) error {
	if err := a.Detach(ctx); err != nil {
		return err
	}
	a, _, err := client.Attach(ctx, d.hosts, client.AttachRequest{RunKey: s.key(), Host: client.NewHost()})
	if err != nil {
		return err
	}
	d.say("the viewer of " + string(s.run) + " left, and is back")
	return d.follow(ctx, s, a)
}

// timed has a run cancelled, and notes when its agent had ended.
func (d *demo) timed(ctx context.Context, s scenario, cancel func() error) error {
	asked := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- d.until(ctx, func() (bool, error) { return d.exited(s.run) }) }()
	if err := cancel(); err != nil {
		return fmt.Errorf("cancel %s: %w", s.run, err)
	}
	if err := <-ended; err != nil {
		return fmt.Errorf("cancel %s: %w", s.run, err)
	}
	took := time.Since(asked).Seconds()
	d.say(fmt.Sprintf("%s: its agent ended %.1f s after the cancel", s.run, took))
	d.seen.mu.Lock()
	defer d.seen.mu.Unlock()
	d.seen.cancelled = append(d.seen.cancelled, took)
	return nil
}

// cancelLeft has somebody who is not its host cancel a run that nobody is attached to.
func (d *demo) cancelLeft(ctx context.Context) error {
	s := named("left-cancelled")
	return d.timed(ctx, s, func() error {
		_, err := d.hosts.Cancel(ctx, client.CancelRequest{RunKey: s.key()})
		return err
	})
}

// nextTurns goes on in the first turn's thread: in its warm sandbox, and, when that has
// died, in a new one, into which the workspace is brought back.
func (d *demo) nextTurns(ctx context.Context) error {
	if err := d.turn(ctx, named("turn-2"), core.EnsuredResumed, ""); err != nil {
		return err
	}
	second, err := d.run(ctx, "turn-2")
	if err != nil {
		return err
	}
	if err := d.fargate.KillTask(second.TaskARN); err != nil {
		return err
	}
	err = d.until(ctx, func() (bool, error) {
		task, err := d.fargate.Task(second.TaskARN)
		return task.LastStatus == "STOPPED", err
	})
	if err != nil {
		return err
	}
	return d.turn(ctx, named("turn-3"), core.EnsuredCreated, core.CheckpointOf("turn-2"))
}

// turn does a turn that finds its sandbox as it is said here.
func (d *demo) turn(ctx context.Context, s scenario, how core.Ensured, from core.CheckpointID) error {
	q, err := d.request(s)
	if err != nil {
		return err
	}
	a, report, err := client.Start(ctx, d.hosts, q)
	if err != nil {
		return fmt.Errorf("start %s: %w", s.run, err)
	}
	if report.Ensured != how || report.RestoredFrom != from {
		return errors.Join(fmt.Errorf("start %s: its sandbox was %s from %q, want %s from %q", s.run, report.Ensured, report.RestoredFrom, how, from), a.Detach(ctx))
	}
	if from != "" {
		d.say(fmt.Sprintf("%s: its sandbox was %s, and the workspace brought back from %s", s.run, how, from))
	} else {
		d.say(fmt.Sprintf("%s: its sandbox was %s", s.run, how))
	}
	return d.host(ctx, s, a)
}

// found reports whether a turn's agent read what the thread's first had written.
func (d *demo) found(s scenario) bool { return !s.later || d.wrote(s, turnsFile+" of turn-1") }

// wrote reports whether a text is in what a run's agent wrote.
func (d *demo) wrote(s scenario, text string) bool {
	wrote, err := os.ReadFile(d.copyOf(s.run))
	return err == nil && bytes.Contains(wrote, []byte(text))
}

// named is the scenario of a run.
func named(run core.RunID) scenario {
	for _, s := range scenarios {
		if s.run == run {
			return s
		}
	}
	panic("demo: no run " + run)
}
