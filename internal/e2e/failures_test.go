package e2e_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	ecstypes "github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	lambdatypes "github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// failure is one way to make an alarm ring.
type failure struct {
	alarm, name string
	// provoke brings it about and says what the alarm's statistic has to be.
	provoke func(t *testing.T, s *signals) figure
}

// figure is what a statistic may be.
type figure struct{ least, most float64 }

func exactly(value float64) figure { return figure{value, value} }

// anything is whatever makes the alarm ring.
var anything = figure{math.Inf(-1), math.Inf(1)}

// failures has a row at least for each alarm.
var failures = []failure{
	{"reaper-silent", "no sweep can list", sweepsThatCannotList},
	{"not-acting", "an operator freezes", freeze},
	{"not-acting", "the breaker trips", tripBreaker},
	{"sandboxes-leaked", "a task has no row", func(t *testing.T, s *signals) figure {
		s.leak(t, 2, nil)
		return exactly(2)
	}},
	{"dead-letters", "each queue's messages fail", deadLetters},
	{"reclaim-failures", "a task may not be stopped", refuseStops},
	{"checkpoint-failures", "an image has no agent", loseTheAgent},
	{"checkpoint-failures", "nobody can store a workspace any more", loseARecord},
	{"checkpoint-failures", "what a checkpoint needs is gone from the bucket", deletePacks},
	{"run-unexamined", "the minute's share of calls is used up", useUpTheShare},
	{"unknown-ratio", "sandboxes cannot be reached", cutSandboxesOff},
	{"fence-refusals", "two hosts drive one run", driveTwice},
	{"ecs-throttled", "a neighbour uses up the account's calls", throttle},
	{"idle-burn", "large tasks run for nobody", func(t *testing.T, s *signals) figure {
		const n = 5
		large := core.TaskSize{VCPU: 16, GB: 120}
		warm := 0.0 // what other tests have left warm, small as it is, and may go meanwhile
		for _, task := range s.fargate.Tasks() {
			if task.LastStatus == "RUNNING" {
				warm += core.TaskSize{VCPU: 2, GB: 4}.Hourly()
			}
		}
		s.leak(t, n, &large)
		return figure{n * large.Hourly() * 0.999, n*large.Hourly()*1.001 + warm}
	}},
	{"observing", "nobody lets it act", func(t *testing.T, s *signals) figure {
		s.setMode(t, core.Observe)
		s.tick(t, 2)
		return exactly(1)
	}},
}

// tick lets the schedule tick n times.
func (in *installation) tick(t *testing.T, n int) {
	t.Helper()
	for range n {
		in.reap(t, event(t, "reap-tick.json"))
	}
}

// sweepsThatCannotList: five ticks, and not one of them tells that somebody has swept.
func sweepsThatCannotList(t *testing.T, s *signals) figure {
	s.configure(t, names.OutReapFunction, map[names.Key]string{names.RunsTable: "nowhere"})
	for range 5 {
		if report, err := s.tryReap(s.out[names.OutReapFunction], event(t, "reap-tick.json")); err == nil {
			t.Fatalf("swept %+v", report)
		}
	}
	await(t, "what reap says of it", func() bool {
		n := 0
		for _, l := range s.lines(t, names.Reap) {
			if l.message() == "reap" && l["level"] == "ERROR" {
				n++
			}
		}
		return n == 5
	})
	return exactly(0)
}

// thaw takes back what keeps ends back, at the test's end at the latest.
func (in *installation) thaw(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if _, err := in.boxes.UpdateControl(contextOf(t), core.Thaw{}); err != nil {
			t.Error(err)
		}
	})
}

func freeze(t *testing.T, s *signals) figure {
	s.thaw(t)
	if _, err := s.boxes.UpdateControl(t.Context(), core.Freeze{Now: core.MillisOf(time.Now()), By: "tester", Why: "to see it ring"}); err != nil {
		t.Fatal(err)
	}
	s.tick(t, 2)
	return exactly(2)
}

// tripBreaker has more runs expire at once than the installation lets.
func tripBreaker(t *testing.T, s *signals) figure {
	runs := s.beginAll(t, []agent{
		{run: "expires-1", shell: lives, ttl: 60, left: time.Minute}, {run: "expires-2", shell: lives, ttl: 60, left: time.Minute},
	})
	s.thaw(t) // once it has its own limit again, or it trips anew
	s.configure(t, names.OutReapFunction, map[names.Key]string{names.Limits: `{"breakerMost":1}`})
	s.sweepUntil(t, "trip", func(r core.SweepReport) bool { return r.Standing == core.StandingTripped })
	s.since = time.Now()
	s.tick(t, 2)
	for _, r := range runs {
		if now := s.run(t, r.RunKey); now.Status != core.Running || now.Ending != nil {
			t.Errorf("run %s is %s, ending %+v", r.RunKey, now.Status, now.Ending)
		}
	}
	return exactly(3)
}

// leak starts n tasks in the installation's name that no row knows of, two hours ago, and
// has them audited.
func (s *signals) leak(t *testing.T, n int, size *core.TaskSize) {
	t.Helper()
	tasks, spec := s.engine.ECS(s.fargate.URL()), s.Spec()
	request := &ecs.RunTaskInput{
		Cluster: &spec.Cluster, TaskDefinition: &spec.TaskDefinition, Count: new(int32(n)), LaunchType: ecstypes.LaunchTypeFargate,
		StartedBy:            new(s.out[names.OutInstall] + "/" + rand.Text()),
		NetworkConfiguration: &ecstypes.NetworkConfiguration{AwsvpcConfiguration: &ecstypes.AwsVpcConfiguration{Subnets: spec.Subnets}},
	}
	if size != nil {
		request.Overrides = &ecstypes.TaskOverride{Cpu: new(fmt.Sprint(size.VCPU * 1024)), Memory: new(fmt.Sprint(size.GB * 1024))}
	}
	out, err := tasks.RunTask(t.Context(), request)
	if err != nil || len(out.Tasks) != n {
		t.Fatalf("%+v, %v", out, err)
	}
	for _, task := range out.Tasks {
		t.Cleanup(func() {
			if _, err := tasks.StopTask(contextOf(t), &ecs.StopTaskInput{Cluster: &spec.Cluster, Task: task.TaskArn}); err != nil {
				t.Error(err)
			}
			await(t, "end of "+*task.TaskArn, func() bool {
				now, err := s.fargate.Task(*task.TaskArn)
				return err == nil && now.LastStatus == "STOPPED"
			})
		})
		await(t, "begin of "+*task.TaskArn, func() bool {
			now, err := s.fargate.Task(*task.TaskArn)
			return err == nil && now.LastStatus == "RUNNING"
		})
		if err := s.fargate.AgeTask(*task.TaskArn, 2*time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.invoke(s.out[names.OutReapFunction], event(t, "reap-audit.json")); err != nil {
		t.Fatal(err)
	}
}

// deadLetters has what each queue holds fail as often as it is tried: a sandbox that cannot
// be ended, a shard that nobody can read, and news that is none.
func deadLetters(t *testing.T, s *signals) figure {
	for _, queue := range []names.Output{names.OutReclaimQueue, names.OutShardQueue} {
		s.visibilityOf(t, queue, 1)
	}
	s.keepsLetters(t)
	dead := []names.Output{names.OutDeadLetterQueue, names.OutShardDead, names.OutEventDead}
	for _, queue := range dead {
		s.take(t, s.out[queue]) // of what other tests have left
	}
	r := s.begin(t, agent{run: "denied-" + core.RunID(rand.Text()), shell: "echo done"})
	s.exited(t, r)
	s.gate.refuse("StopTask", r.TaskARN, "AccessDeniedException", 1000)
	t.Cleanup(func() { s.gate.refuse("StopTask", r.TaskARN, "", 0) })
	s.sendTo(t, names.OutShardQueue, `{"shards":[9]}`)
	news := fmt.Sprintf(`{"source":%q,"detail-type":%q,"detail":{"startedBy":"x"}}`, localfargate.Source, localfargate.DetailType)
	if _, err := s.functions.Invoke(t.Context(), &lambda.InvokeInput{
		FunctionName: new(s.out[names.OutReapFunction]), InvocationType: lambdatypes.InvocationTypeEvent, Payload: []byte(news),
	}); err != nil {
		t.Fatal(err)
	}
	s.finishAll(t, []core.Run{r})
	for _, queue := range dead {
		await(t, "a letter in "+string(queue), func() bool {
			return s.attributes(t, s.out[queue])["ApproximateNumberOfMessages"] == "1"
		})
	}
	for i, about := range []string{string(r.Instance), `{"shards":[9]}`, `"startedBy":"x"`} {
		letters := s.take(t, s.out[dead[i]])
		if len(letters) != 1 || !strings.Contains(strings.ReplaceAll(letters[0], " ", ""), about) {
			t.Errorf("%s: %q, want one about %s", dead[i], letters, about)
		}
	}
	return anything
}

// keepsLetters gives reap the queue of its dead events, which the template names and the
// engine leaves out.
func (s *signals) keepsLetters(t *testing.T) {
	t.Helper()
	arn := s.attributes(t, s.out[names.OutEventDead])["QueueArn"]
	if _, err := s.functions.UpdateFunctionConfiguration(t.Context(), &lambda.UpdateFunctionConfigurationInput{
		FunctionName: new(s.out[names.OutReapFunction]), DeadLetterConfig: &lambdatypes.DeadLetterConfig{TargetArn: &arn},
	}); err != nil {
		t.Fatal(err)
	}
}

func refuseStops(t *testing.T, s *signals) figure {
	const tries = 2
	s.visibility(t, oneTry)
	r := s.begin(t, agent{run: "kept-" + core.RunID(rand.Text()), shell: "echo done"})
	s.exited(t, r)
	s.gate.refuse("StopTask", r.TaskARN, "AccessDeniedException", tries)
	s.finishAll(t, []core.Run{r})
	s.settle(t, r.RunKey)
	return exactly(tries)
}

// loseTheAgent takes the agent, by which a workspace is stored, out of the image. With the
// cause gone the next try succeeds by itself.
func loseTheAgent(t *testing.T, s *signals) figure {
	s.needAgent(t)
	path := filepath.Join(s.dir, core.AgentName)
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	back := sync.OnceFunc(func() {
		if err := os.Rename(path+".away", path); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(back)
	r := s.begin(t, agent{run: "unsaved-" + core.RunID(rand.Text()), shell: "echo done", checkpoint: core.CheckpointFinished})
	s.exited(t, r)
	s.finishAll(t, []core.Run{r})
	await(t, "a capture that failed", func() bool { return len(s.samples(t, metrics.CheckpointFailures)) >= 2 })
	if row := s.ledger(t, r); row.State != core.LedgerRunning {
		t.Errorf("its task is %s", row.State)
	}
	back()
	s.sweepUntil(t, "try again", func(core.SweepReport) bool {
		s.hasten(t, runItem(s.installation, r.RunKey))
		return s.settled(t, r.RunKey)
	})
	if r = s.settle(t, r.RunKey); r.Checkpoint.State != core.CheckpointDone {
		t.Errorf("its checkpoint is %+v", r.Checkpoint)
	}
	return exactly(2) // of the step, and of the message that asked for it
}

// loseARecord ends a task that no instance record names any more: its workspace, which was
// to be stored, is lost (I5).
func loseARecord(t *testing.T, s *signals) figure {
	r := s.begin(t, agent{run: "loses-its-workspace-" + core.RunID(rand.Text()), shell: lives, checkpoint: core.CheckpointAlways})
	box := boxItem(s.installation, r)
	if _, err := s.db.DeleteItem(t.Context(), &dynamodb.DeleteItemInput{TableName: &box.table, Key: box.key()}); err != nil {
		t.Fatal(err)
	}
	if err := s.fargate.KillTask(r.TaskARN); err != nil {
		t.Fatal(err)
	}
	s.sweepUntil(t, "settle "+r.RunKey.String(), func(core.SweepReport) bool {
		s.hasten(t, runItem(s.installation, r.RunKey), rowItem(s.installation, r))
		return s.settled(t, r.RunKey)
	})
	if c := s.run(t, r.RunKey).Checkpoint; c.State != core.CheckpointLost {
		t.Errorf("its checkpoint is %+v", c)
	}
	return anything // a transcript that nobody can read to its end is another loss
}

// deletePacks removes what a workspace was stored as, as somebody with the bucket's keys may,
// and has the daily collection find that.
func deletePacks(t *testing.T, s *signals) figure {
	s.needAgent(t)
	r := s.begin(t, agent{run: "robbed-" + core.RunID(rand.Text()), shell: "echo work >file", checkpoint: core.CheckpointFinished})
	s.exited(t, r)
	s.finishAll(t, []core.Run{r})
	if r = s.settle(t, r.RunKey); r.Checkpoint.State != core.CheckpointDone {
		t.Fatalf("its checkpoint is %+v", r.Checkpoint)
	}
	objects := s3.NewFromConfig(s.engine.Config(), func(o *s3.Options) { o.UsePathStyle = true })
	bucket, packs := s.out[names.OutBucket], 0.0
	pages := s3.NewListObjectsV2Paginator(objects, &s3.ListObjectsV2Input{Bucket: &bucket, Prefix: new(core.KeyToken(string(r.Tenant)) + "/threads/")})
	for pages.HasMorePages() {
		page, err := pages.NextPage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Contents {
			if !strings.Contains(*o.Key, "/packs/") {
				continue
			}
			if _, err := objects.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: &bucket, Key: o.Key}); err != nil {
				t.Fatal(err)
			}
			packs++
		}
	}
	s.since = time.Now()
	if _, err := s.invoke(s.out[names.OutCheckpoint], event(t, "checkpoint-collect.json")); err != nil {
		t.Fatal(err)
	}
	return figure{packs, math.Inf(1)} // others may have left such threads
}

// useUpTheShare has somebody else's sweeps take the calls that this minute's may cause, and
// a run wait for twenty minutes.
func useUpTheShare(t *testing.T, s *signals) figure {
	const waited = 20 * time.Minute
	r := s.begin(t, agent{run: "waits-" + core.RunID(rand.Text()), shell: lives})
	s.takeShare(t)
	report := s.reap(t, event(t, "reap-tick.json"))
	if e := entry(report, r.RunKey); e == nil || e.Reason != core.ReasonUnexamined || e.Outcome != core.Unknown {
		t.Fatalf("the sweep says %+v", report)
	}
	for shard := range core.Shards {
		c, err := s.boxes.Cursor(t.Context(), shard)
		if err != nil {
			t.Fatal(err)
		}
		if c.LapStarted != 0 {
			older := c
			older.LapStarted = older.LapStarted.Add(-waited)
			if err := s.boxes.MoveCursor(t.Context(), c, older); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.tick(t, 1)
	return figure{waited.Seconds(), (waited + waitMost).Seconds()}
}

// takeShare takes this minute's calls and the next's, until the test's end.
func (s *signals) takeShare(t *testing.T) {
	t.Helper()
	most := int(core.DefaultLimits.ProbeRate * 60)
	minute := time.Now().Truncate(time.Minute)
	for range 2 {
		if _, err := s.boxes.Take(t.Context(), core.MillisOf(minute), most, most); err != nil {
			t.Fatal(err)
		}
		minute = minute.Add(time.Minute)
	}
	for p := range s.scan(t) {
		if !strings.HasPrefix(p.pk, "budget#") {
			continue
		}
		t.Cleanup(func() {
			if _, err := s.db.DeleteItem(contextOf(t), &dynamodb.DeleteItemInput{TableName: &p.table, Key: p.key()}); err != nil {
				t.Error(err)
			}
		})
	}
}

func cutSandboxesOff(t *testing.T, s *signals) figure {
	r := s.begin(t, agent{run: "cut-off-" + core.RunID(rand.Text()), shell: lives})
	s.set(t, r.TaskARN, localfargate.Faults{NeverConnects: true})
	s.tick(t, 2)
	s.set(t, r.TaskARN, localfargate.Faults{})
	return exactly(100)
}

// set changes what goes wrong in a task, until the test's end at the latest.
func (in *installation) set(t *testing.T, arn string, f localfargate.Faults) {
	t.Helper()
	if err := in.fargate.SetFaults(arn, f); err != nil {
		t.Fatal(err)
	}
}

// driveTwice has a host go on renewing what another has taken over, and a sweep meet a run
// that another sweep has claimed.
func driveTwice(t *testing.T, s *signals) figure {
	const times = 25
	first := s.caller()
	second := first
	second.host = "host-" + rand.Text()
	run := core.RunID("driven-twice-" + rand.Text())
	first.start(t, run, lives, nil)
	var report core.RenewReport
	second.must(t, "attach", map[string]any{"run": run, "host": second.host, "takeover": true}, &report)
	s.since = time.Now()
	for range times {
		if err := first.ask(t, "renew", map[string]any{"run": run, "host": first.host}, &report); err == nil || !strings.Contains(err.Error(), "claim-lost") {
			t.Fatalf("renewed as %+v, %v", report, err)
		}
	}
	var end core.EndReport
	await(t, "cancel", func() bool {
		second.must(t, "cancel", map[string]any{"run": run, "host": second.host}, &end)
		return end.Ended
	})
	claimed := s.begin(t, agent{run: "claimed-" + core.RunID(rand.Text()), shell: lives})
	now := core.MillisOf(time.Now())
	if _, err := s.runs.Update(t.Context(), claimed.RunKey, core.Claim{
		Seen: claimed.Epoch, Since: claimed.DetachedSince, Nonce: "another-sweep", Now: now, Until: now.Add(time.Hour),
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := s.runs.Update(contextOf(t), claimed.RunKey, core.Release{Epoch: claimed.Epoch + 1}); err != nil {
			t.Error(err)
		}
	})
	if e := entry(s.reap(t, event(t, "reap-tick.json")), claimed.RunKey); e == nil || e.Outcome != core.NotClaimed {
		t.Errorf("the sweep says %+v", e)
	}
	return exactly(times)
}

// throttle has a neighbour in the account make so many calls that ECS turns away those of
// the functions.
func throttle(t *testing.T, s *signals) figure {
	r := s.begin(t, agent{run: "beside-" + core.RunID(rand.Text()), shell: lives})
	ctx, cancel := context.WithCancel(t.Context())
	var neighbours sync.WaitGroup
	t.Cleanup(neighbours.Wait)
	t.Cleanup(cancel)
	for range 2 {
		neighbours.Go(func() {
			tasks := s.engine.ECS(s.fargate.URL())
			for ctx.Err() == nil {
				_, _ = tasks.StopTask(ctx, &ecs.StopTaskInput{Cluster: new(s.out[names.OutCluster]), Task: new("nobodys")}, func(o *ecs.Options) { o.Retryer = aws.NopRetryer{} })
			}
		})
	}
	var requests []core.ProbeRequest
	for i := range core.DefaultLimits.ProbeBatch {
		requests = append(requests, core.ProbeRequest{
			RunKey: core.RunKey{Tenant: r.Tenant, Run: core.RunID(fmt.Sprint("beside-", i))}, Nonce: r.Nonce,
			Target: core.ExecTarget{Cluster: r.Cluster, TaskARN: r.TaskARN, Container: r.Container},
		})
	}
	payload, err := json.Marshal(map[string]any{"probe": map[string]any{"rate": core.DefaultLimits.Pace(), "requests": requests}})
	if err != nil {
		t.Fatal(err)
	}
	before := s.gate.turnedAway()
	await(t, "enough calls to be turned away", func() bool {
		if _, err := s.invoke(s.out[names.OutProbeFunction], payload); err != nil {
			t.Fatal(err)
		}
		return s.gate.turnedAway()-before > 60
	})
	cancel()
	return exactly(float64(s.gate.turnedAway() - before))
}

// endOfAnAgent has a run end by itself, and says how long after its agent its task did.
func endOfAnAgent(t *testing.T, s *signals) float64 {
	r := s.begin(t, agent{run: "measured-" + core.RunID(rand.Text()), shell: "echo done"})
	s.exited(t, r)
	s.finishAll(t, []core.Run{r})
	r = s.settle(t, r.RunKey)
	task, err := s.fargate.Task(r.TaskARN)
	if err != nil || r.Sealed == nil {
		t.Fatalf("sealed %+v, %v", r.Sealed, err)
	}
	return core.MillisOf(task.StoppedAt).Sub(r.Sealed.At).Seconds()
}
