package metrics

import (
	"context"
	"log/slog"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Losses tells what it is given, and measures and logs what of it is work that is lost: who
// operates an installation hears of that by an alarm, whoever listens on the bus.
type Losses struct {
	To    core.Announcer
	Meter *Meter       // nil: nothing is measured
	Log   *slog.Logger // nil: nothing is logged
}

var _ core.Announcer = Losses{}

// Announce returns To's error. What is lost is measured in any case.
func (l Losses) Announce(ctx context.Context, notices []core.Notice) error {
	workspaces, transcripts := 0, 0
	for _, n := range notices {
		switch {
		case n.Type == core.NoticeCheckpointFailed && n.Checkpoint == core.CheckpointLost:
			workspaces++
			l.log(ctx, "workspace", n)
		case n.Incomplete:
			transcripts++
			l.log(ctx, "transcript", n)
		}
	}
	if workspaces+transcripts > 0 {
		l.Meter.Emit(Values{
			CheckpointFailures: float64(workspaces + transcripts), WorkspacesLost: float64(workspaces), TranscriptsIncomplete: float64(transcripts),
		})
	}
	return l.To.Announce(ctx, notices)
}

func (l Losses) log(ctx context.Context, kind string, n core.Notice) {
	if l.Log != nil {
		l.Log.WarnContext(ctx, "loss", "run", n.RunKey.String(), "thread", string(n.Thread), "kind", kind, "status", n.Status, "reason", n.Reason, "task", n.TaskARN)
	}
}
