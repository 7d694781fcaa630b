package metrics_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// bus takes notices, or refuses them.
type bus struct {
	told []core.Notice
	err  error
}

func (b *bus) Announce(_ context.Context, notices []core.Notice) error {
	b.told = append(b.told, notices...)
	return b.err
}

// TestWhatIsLostIsMeasuredAndLogged, whether the bus takes it or not: behind it finished work
// can be lost (I5).
func TestWhatIsLostIsMeasuredAndLogged(t *testing.T) {
	run := core.RunKey{Tenant: "acme", Run: "r"}
	lost := core.Notice{Type: core.NoticeCheckpointFailed, RunKey: run, Thread: "t", Checkpoint: core.CheckpointLost, Reason: "task-gone: OOM"}
	cut := core.Notice{Type: core.NoticeFinalized, RunKey: run, Thread: "t", Incomplete: true, Reason: "cancelled"}
	for name, c := range map[string]struct {
		told []core.Notice
		err  error
		want map[string]any
	}{
		"a workspace": {[]core.Notice{lost}, nil, map[string]any{"CheckpointFailures": 1.0, "WorkspacesLost": 1.0, "TranscriptsIncomplete": 0.0}},
		"both, on a bus that takes nothing": {[]core.Notice{cut, lost}, errors.New("throttled"),
			map[string]any{"CheckpointFailures": 2.0, "WorkspacesLost": 1.0, "TranscriptsIncomplete": 1.0}},
		"a workspace that is held, and tried again": {[]core.Notice{{Type: core.NoticeCheckpointFailed, Checkpoint: core.CheckpointFailed}}, nil, nil},
		"one that a newer one holds":                {[]core.Notice{{Type: core.NoticeCheckpointFailed, Checkpoint: core.CheckpointSuperseded}}, nil, nil},
		"an end as it should be":                    {[]core.Notice{{Type: core.NoticeFinalized, RunKey: run}}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, f := range []names.Function{names.Reap, names.Reclaim, names.Session} {
				var lines, log bytes.Buffer
				to := &bus{err: c.err}
				l := metrics.Losses{To: to, Meter: &metrics.Meter{Out: &lines, Function: f}, Log: slog.New(slog.NewJSONHandler(&log, nil))}
				if err := l.Announce(t.Context(), c.told); !errors.Is(err, c.err) || len(to.told) != len(c.told) {
					t.Errorf("%s: told %+v: %v", f, to.told, err)
				}
				if c.want == nil {
					if lines.Len()+log.Len() > 0 {
						t.Errorf("%s wrote %s and %s", f, &lines, &log)
					}
					continue
				}
				members := membersOf(t, lines.Bytes())
				for name, want := range c.want {
					if members[name] != want {
						t.Errorf("%s: %s is %v, want %v", f, name, members[name], want)
					}
				}
				if n := strings.Count(log.String(), `"level":"WARN","msg":"loss","run":"acme/r","thread":"t","kind":`); n != len(c.told) {
					t.Errorf("%s logged %s", f, &log)
				}
			}
		})
	}
	var quiet metrics.Losses
	quiet.To = &bus{}
	if err := quiet.Announce(t.Context(), []core.Notice{lost}); err != nil { // of a host in whose process the session is
		t.Error(err)
	}
}
