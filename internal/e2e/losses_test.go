package e2e_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// TestALostWorkspaceIsAlarmed: of a task that no record names any more nobody stores the
// workspace that was to be stored. The deployed reclaim measures that as the alarm reads it,
// and logs whose it was (I5).
func TestALostWorkspaceIsAlarmed(t *testing.T) {
	begun := time.Now()
	in := installed(t)
	r := in.begin(t, agent{run: "loses-its-workspace", shell: lives, checkpoint: core.CheckpointAlways})
	box := boxItem(in, r)
	if _, err := in.db.DeleteItem(contextOf(t), &dynamodb.DeleteItemInput{TableName: &box.table, Key: box.key()}); err != nil {
		t.Fatal(err)
	}
	if err := in.fargate.KillTask(r.TaskARN); err != nil {
		t.Fatal(err)
	}
	in.sweepUntil(t, "settle "+r.RunKey.String(), func(core.SweepReport) bool { return in.settled(t, r.RunKey) })
	if c := in.run(t, r.RunKey).Checkpoint; c.State != core.CheckpointLost {
		t.Fatalf("the run's checkpoint is %+v", c)
	}
	metric, log := false, false
	await(t, "alarm", func() bool {
		for _, line := range in.logged(t, in.out[names.OutReclaimFunction], begun) {
			// The engine asks for lines of text where Lambda asks for JSON.
			log = log || strings.Contains(line, "message=loss run="+r.RunKey.String()+" ") && strings.Contains(line, " kind=workspace ")
			var members map[string]any
			if json.Unmarshal([]byte(line), &members) == nil && members[string(metrics.WorkspacesLost)] == 1.0 {
				metric = metric || strings.Contains(line, `{"Name":"`+string(metrics.CheckpointFailures)+`","Unit":"Count"}`)
			}
		}
		return metric && log
	})
}
