package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// byDemo is who acts in the demo.
func byDemo(why string) core.By { return core.By{Who: "demo", Why: why} }

// operate is the operator's part: observe first and enforce after, a breaker that
// trips and is thawed, a hold, a sweep that is ended in mid-finalisation, a sandbox
// that cannot be reached, and a cancel. Each step checks what came of it.
func (d *demo) operate(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		d.observe, d.tripBreaker, d.hold, d.endSweep, d.cancelLeft, d.awaitTick, d.release, d.thaw,
	} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
	}
	return nil
}

// observe has a sweep look at everything and write nothing, then lets them act.
func (d *demo) observe(ctx context.Context) error {
	if err := d.until(ctx, func() (bool, error) { return d.exited("ends-0", "two-mb", "held") }); err != nil {
		return err
	}
	before, err := d.run(ctx, "ends-0")
	if err != nil {
		return err
	}
	report, err := d.reap(ctx, map[string]any{"mode": core.ModeSweep})
	if err != nil {
		return err
	}
	after, err := d.run(ctx, "ends-0")
	if err != nil {
		return err
	}
	if len(report.Plan()) == 0 || after.Epoch != before.Epoch || after.Status != core.Running {
		return fmt.Errorf("a sweep that observes planned %d ends, and ends-0 went from epoch %d to %d", len(report.Plan()), before.Epoch, after.Epoch)
	}
	d.say(fmt.Sprintf("observed: a sweep would end %d runs, and wrote nothing; enforcing from now on", len(report.Plan())))
	return d.operator.SetMode(ctx, core.Enforce, byDemo("the plan is as expected"))
}

// tripBreaker lets the breaker see a mass end, as a fault elsewhere would cause one,
// and then a task die: the run it belongs to waits.
func (d *demo) tripBreaker(ctx context.Context) error {
	seen, err := d.boxes.Control(ctx)
	if err != nil {
		return err
	}
	l := core.DefaultLimits
	count := core.CountEnds{Seen: seen.Breaker, N: l.BreakerMost + 1, Now: core.MillisOf(time.Now()), Window: l.BreakerWindow, Most: l.BreakerMost}
	if _, err := d.boxes.UpdateControl(ctx, count); err != nil {
		return err
	}
	r, err := d.run(ctx, "task-dies")
	if err != nil {
		return err
	}
	d.say("the breaker has tripped: what did not end by itself waits; the task of task-dies dies now")
	return d.fargate.KillTask(r.TaskARN)
}

// hold keeps a finished run's sandbox, and cuts another off from ECS Exec.
func (d *demo) hold(ctx context.Context) error {
	if err := d.operator.Hold(ctx, named("held").key(), core.MillisOf(time.Now().Add(time.Hour)), byDemo("keep it to look at")); err != nil {
		return err
	}
	r, err := d.run(ctx, "no-exec")
	if err != nil {
		return err
	}
	return d.fargate.SetFaults(r.TaskARN, localfargate.Faults{NeverConnects: true})
}

// endSweep begins a sweep in this process and ends it, as Ctrl-C would, once it has
// saved the first part of a large journal.
func (d *demo) endSweep(ctx context.Context) error {
	sweepCtx, interrupt := context.WithCancel(ctx)
	defer interrupt()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = d.sweep.Run(sweepCtx, core.SweepRequest{Runs: []core.RunKey{named("two-mb").key()}})
	}()
	err := d.until(ctx, func() (bool, error) {
		r, err := d.run(ctx, "two-mb")
		return r.LogEnd > 0, err
	})
	if err != nil {
		return err
	}
	interrupt()
	<-ended
	r, err := d.run(ctx, "two-mb")
	if err != nil {
		return err
	}
	if r.Status != core.Running || r.LogEnd == 0 {
		return fmt.Errorf("two-mb is %s with %d bytes saved after its sweep was ended", r.Status, r.LogEnd)
	}
	d.say(fmt.Sprintf("a sweep was ended in mid-finalisation, with %d bytes of two-mb saved; the scheduled one goes on", r.LogEnd))
	return nil
}

// awaitTick waits for the scheduled sweep to save what has ended.
func (d *demo) awaitTick(ctx context.Context) error {
	return d.until(ctx, func() (bool, error) {
		for _, run := range []core.RunID{"ends-0", "ends-3", "host-dies", "open-end", "two-mb", "held", "left-cancelled"} {
			if r, err := d.run(ctx, run); err != nil || !r.Status.Terminal() {
				return false, err
			}
		}
		return true, nil
	})
}

// release checks that the held sandbox is still there, and lets it go.
func (d *demo) release(ctx context.Context) error {
	var r core.Run
	err := d.until(ctx, func() (bool, error) {
		var err error
		r, err = d.run(ctx, "held")
		return r.ReclaimOutcome == core.ReclaimHeld, err
	})
	if err != nil {
		return err
	}
	task, err := d.fargate.Task(r.TaskARN)
	if err != nil {
		return err
	}
	if task.DesiredStatus != "RUNNING" {
		return errors.New("the held sandbox is " + task.LastStatus)
	}
	d.say("held is saved and its sandbox still there; releasing it")
	return d.operator.Release(ctx, r.RunKey, byDemo("seen enough"))
}

// thaw checks that the breaker held back what did not end by itself, and lets go.
func (d *demo) thaw(ctx context.Context) error {
	keys := []core.RunKey{named("past-ttl").key(), named("task-dies").key()}
	for _, k := range keys {
		if r, err := d.run(ctx, k.Run); err != nil || r.Status != core.Running {
			return errors.Join(fmt.Errorf("run %s is %s although the breaker has tripped", k, r.Status), err)
		}
	}
	if err := d.operator.Thaw(ctx, byDemo("it was one task")); err != nil {
		return err
	}
	d.say("thawed: the expired run and the lost one end now")
	_, err := d.reap(ctx, map[string]any{"runs": keys})
	return err
}

func (d *demo) run(ctx context.Context, run core.RunID) (core.Run, error) {
	return d.runs.Run(ctx, scenario{run: run}.key())
}

// exited reports whether the agents of runs have ended by themselves.
func (d *demo) exited(runs ...core.RunID) (bool, error) {
	for _, run := range runs {
		r, err := d.run(context.Background(), run)
		if err != nil {
			return false, err
		}
		task, err := d.fargate.Task(r.TaskARN)
		if err != nil || d.agentLives(scenario{run: run}, task) {
			return false, err
		}
	}
	return true, nil
}

// until asks again and again, until it is so or ctx ends.
func (d *demo) until(ctx context.Context, so func() (bool, error)) error {
	for {
		if ok, err := so(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// reap invokes the deployed function, as an operator may at any time.
func (d *demo) reap(ctx context.Context, request map[string]any) (core.SweepReport, error) {
	payload, err := json.Marshal(request)
	if err != nil {
		return core.SweepReport{}, err
	}
	out, err := d.lambda.Invoke(ctx, &lambda.InvokeInput{FunctionName: new(d.out[names.OutReapFunction]), Payload: payload})
	if err != nil {
		return core.SweepReport{}, err
	}
	if out.FunctionError != nil {
		return core.SweepReport{}, fmt.Errorf("reap: %s", out.Payload)
	}
	var report core.SweepReport
	return report, json.Unmarshal(out.Payload, &report)
}

// quiet is a logger for a sweep in this process, whose report is what is looked at.
func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }
