package coretest

import (
	"context"
	"fmt"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// StartAgent begins a launched run's agent, once, as a host does that has nothing but the
// run's record: a repeat only reports. While the task cannot be reached yet it tries again,
// until ctx ends. input, if not nil, is the agent's stdin.
//
// Order: the attachment first, and nothing after its end. A sweep that has seen that no
// agent began is refused while the host is attached, so none begins under its hands.
func StartAgent(ctx context.Context, l *core.Launcher, r core.Run, agent core.JournalStart, input []byte) (core.JournalStarted, error) {
	agent.Run, agent.Nonce = r.RunKey.Run, r.Nonce
	agent.Input, agent.InputBytes = input != nil, int64(len(input))
	until := time.Now().Add(l.Limits.Attachment)
	if _, err := l.Runs.Update(ctx, r.RunKey, core.Renew{Epoch: r.Epoch, Until: core.MillisOf(until)}); err != nil {
		return core.JournalStarted{}, fmt.Errorf("start agent of run %s: %w", r.RunKey, err)
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	target := core.ExecTarget{Cluster: r.Cluster, TaskARN: r.TaskARN, Container: r.Container, Journals: r.JournalDir}
	for wait := time.Second; ; wait = min(2*wait, 8*time.Second) {
		started, err := l.Provider.StartAgent(ctx, target, agent, input)
		if err == nil {
			return started, nil
		}
		d := diagnosed(ctx, l.Describer, r, err)
		if d.Gone || d.Healing != core.Retry || !rest(ctx, wait) {
			return core.JournalStarted{}, fmt.Errorf("start agent of run %s: %s %s: %w", r.RunKey, d.Reason, d.Detail, err)
		}
	}
}

// diagnosed tells what a failed exec means, as ECS has the task: a young one is to be
// waited for, one that was started without ECS Exec is not.
func diagnosed(ctx context.Context, tasks core.TaskDescriber, r core.Run, err error) core.Diagnosis {
	failure := *core.FailureOf(err)
	found, err := tasks.Describe(ctx, r.Cluster, []string{r.TaskARN})
	if err != nil {
		return core.Diagnosis{Reason: failure.Reason, Healing: failure.Healing}
	}
	return core.Diagnose(found[0], r.Container, failure, core.MillisOf(time.Now()))
}

// rest waits so long, and reports whether ctx lives on.
func rest(ctx context.Context, wait time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return ctx.Err() == nil
	}
}
