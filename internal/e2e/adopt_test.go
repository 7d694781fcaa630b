package e2e_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/ecs"
	ecstypes "github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// ownJournals is where a host's own tasks keep their journals.
const ownJournals = "/tmp/it's ours/journals"

// ownTask is a task that a host starts itself, and an agent that it begins in it under the
// wrapper, by a session of its own.
func (in *installation) ownTask(t *testing.T, run core.RunID, nonce, shell string) string {
	t.Helper()
	client, spec := in.engine.ECS(in.fargate.URL()), in.Spec()
	out, err := client.RunTask(t.Context(), &ecs.RunTaskInput{
		Cluster: &spec.Cluster, TaskDefinition: &spec.TaskDefinition, LaunchType: ecstypes.LaunchTypeFargate, EnableExecuteCommand: true, StartedBy: new("a-host/of-its-own"),
		NetworkConfiguration: &ecstypes.NetworkConfiguration{AwsvpcConfiguration: &ecstypes.AwsVpcConfiguration{Subnets: spec.Subnets}},
	})
	if err != nil || len(out.Tasks) != 1 {
		t.Fatalf("run task: %+v, %v", out, err)
	}
	arn := *out.Tasks[0].TaskArn
	job, err := json.Marshal(map[string]any{"run": run, "nonce": nonce, "shell": shell})
	if err != nil {
		t.Fatal(err)
	}
	cfg := in.engine.Config()
	cfg.BaseEndpoint = new(in.fargate.URL())
	exec, target := ecsexec.New(cfg), core.ExecTarget{Cluster: spec.Cluster, TaskARN: arn, Container: spec.Container}
	script := fmt.Sprintf(`export SANDKEEPER_JOURNAL_DIR="%s"; mkdir -p "$SANDKEEPER_JOURNAL_DIR"; exec "$%s" run`, ownJournals, core.AgentVariable)
	await(t, "own agent of "+string(run), func() bool {
		begun, err := exec.Exec(t.Context(), target, script, append(job, '\n'))
		if err == nil && begun.Exit != 0 {
			t.Fatalf("begun with %d: %s", begun.Exit, begun.Stdout)
		}
		return err == nil && strings.Contains(string(begun.Stdout), "result=started")
	})
	return arn
}

// TestATaskOfAHostsOwnIsAdopted: its run is ended by its journal, wherever that is, with the
// transcript whole, its workspace stored, and its task stopped, or kept as the host says.
func TestATaskOfAHostsOwnIsAdopted(t *testing.T) {
	in := installed(t)
	in.needAgent(t)
	for name, keep := range map[string]bool{"and stopped": false, "and kept": true} {
		t.Run(name, func(t *testing.T) {
			c := in.caller()
			run := core.RunID("adopted-" + rand.Text())
			key := core.RunKey{Tenant: "-", Run: run}
			wrote := spoken("own", 100<<10) // more than a probe carries
			nonce := fmt.Sprintf("%032x", len(wrote))
			shell, say := in.inParts(t, wrote)
			arn := in.ownTask(t, run, nonce, "echo kept >file; "+shell)
			adopt := map[string]any{
				"run": run, "thread": c.thread, "host": c.host, "taskArn": arn, "container": names.AgentContainer, "journal": nonce, "journalDir": ownJournals,
				"keep": keep, "checkpoint": "finished",
			}
			t.Cleanup(func() {
				var report core.EndReport
				_ = c.ask(t, "cancel", map[string]any{"run": run, "host": c.host}, &report) // it may have ended
			})
			var report core.StartReport
			await(t, "adopt "+string(run), func() bool {
				c.must(t, "adopt", adopt, &report)
				return report.State == core.Ready
			})
			say()
			if got := c.follow(t, run, 0, 1000); !strings.HasPrefix(string(wrote), string(got)) {
				t.Errorf("its host hears %.80q", got)
			}
			var left core.RenewReport
			c.must(t, "detach", map[string]any{"run": run, "host": c.host}, &left)
			if e := in.seen(t, key); e.Outcome != core.Producing {
				t.Errorf("while its agent works the sweep says %+v", e)
			}
			say()
			in.sweepUntil(t, "end of "+key.String(), func(core.SweepReport) bool { return in.run(t, key).Status.Terminal() })
			await(t, "reclaim of "+key.String(), func() bool { return in.run(t, key).Row == core.RowNone })
			r := in.run(t, key)
			if r.Status != core.Failed || r.ExitCode == nil || *r.ExitCode != 3 || r.Checkpoint.State != core.CheckpointDone || c.headOf(t) != core.CheckpointOf(run) {
				t.Errorf("ended as %s with %v, checkpoint %+v", r.Status, r.ExitCode, r.Checkpoint)
			}
			in.checkTranscript(t, r, wrote)
			if !keep {
				in.settle(t, key)
				return
			}
			task, err := in.fargate.Task(arn)
			if box, read := in.boxes.Sandbox(t.Context(), r.SandboxKey); err != nil || read != nil || task.LastStatus != "RUNNING" || box.IdleSince == 0 {
				t.Errorf("its task is %s, its sandbox %+v, %v, %v", task.LastStatus, box, err, read)
			}
			in.hasten(t, boxItem(in, r)) // its idle time is over
			in.sweepUntil(t, "settle "+key.String(), func(core.SweepReport) bool { return in.settled(t, key) })
		})
	}
}
