package e2e_test

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/scheduler/types"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Parallel, so that it runs when all others are done: the schedule's first minute
// is then over, and nobody is disturbed.
func TestTheDeployedScheduleSweeps(t *testing.T) {
	t.Parallel()
	in := installed(t)
	r := in.begin(t, agent{run: "scheduled", shell: "echo done"})
	t.Cleanup(func() {
		if err := in.SetSchedule(contextOf(t), types.ScheduleStateDisabled); err != nil {
			t.Error(err)
		}
	})
	if err := in.SetSchedule(t.Context(), types.ScheduleStateEnabled); err != nil {
		t.Fatal(err)
	}
	await(t, "a tick", func() bool { return in.run(t, r.RunKey).Status.Terminal() })
	r = in.settle(t, r.RunKey)
	in.checkTranscript(t, r, []byte("done\n"))
	if r.Status != core.Completed {
		t.Errorf("ended as %s", r.Status)
	}
}
