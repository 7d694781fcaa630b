package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	dynamotypes "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	ecstypes "github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/roles"
)

// redriven is what redrive prints.
type redriven struct {
	DryRun  bool           `json:"dryRun"`
	Counts  map[string]int `json:"counts"`
	Letters []letter       `json:"letters"`
}

func (r redriven) state(body string) string {
	for _, l := range r.Letters {
		if l.Body == body {
			return l.State
		}
	}
	return ""
}

func TestRedriveSendsWhatIsOwedAndLeavesWhatIsInvalid(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{run: "owed", shell: "echo done"})
	w.exited(t, r)
	w.deliver(t, false)
	sandkeeper(t, "sweep", r.RunKey.String(), "--yes").wants(t, exitDone)
	w.drain(t, w.out[names.OutReclaimQueue])
	job := core.ReclaimJob{Tenant: r.Tenant, Run: r.RunKey.Run, Key: r.SandboxKey, Instance: r.Instance, Kind: core.JobEnd}
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	owed, settled := string(text), `{"instance":"NOBODYKNOWSTHISONE","kind":"ledger"}`
	invalid := []string{`{"tenant":`, `{"instance":"x","kind":"nuke"}`, `{"instance":"x","kind":"ledger","force":true}`}
	dead := w.out[names.OutDeadLetterQueue]
	w.send(t, dead, append([]string{owed, settled}, invalid...)...)
	t.Cleanup(func() { w.drain(t, dead) })

	w.unchanged(t, func() {
		dry := read[redriven](t, exitFindings, "redrive", "--dry-run")
		if dry.state(owed) != letterSent || dry.state(settled) != letterSettled || dry.Counts[letterInvalid] != len(invalid) {
			t.Errorf("dry run %+v", dry)
		}
		sandkeeper(t, "redrive").wants(t, exitRefused)
	})
	done := read[redriven](t, exitFindings, "redrive", "--yes")
	if done.state(owed) != letterSent || done.state(settled) != letterSettled || done.Counts[letterInvalid] != len(invalid) {
		t.Errorf("redriven %+v", done)
	}
	if got := w.take(t, w.out[names.OutReclaimQueue]); !slices.Equal(got, []string{owed}) {
		t.Errorf("sent %q, want %q", got, owed)
	}
	left := w.take(t, dead)
	slices.Sort(left)
	if want := slices.Sorted(slices.Values(invalid)); !slices.Equal(left, want) {
		t.Errorf("left %q, want %q", left, want)
	}
	if empty := read[redriven](t, exitDone, "redrive", "--yes"); len(empty.Letters) != 0 {
		t.Errorf("an empty queue: %+v", empty)
	}

	w.send(t, w.out[names.OutReclaimQueue], owed)
	w.deliver(t, true)
	eventually(t, "reclaim stops the task", func() bool { return w.read(t, r.RunKey).Row == core.RowNone })
}

func TestRedriveOfShardsChecksThem(t *testing.T) {
	w := installed(t)
	dead := w.out[names.OutShardDead]
	t.Cleanup(func() { w.drain(t, dead) })
	w.send(t, dead, `{"shards":[9]}`)
	done := read[redriven](t, exitFindings, "redrive", "--queue", "shards", "--yes")
	if done.state(`{"shards":[9]}`) != letterInvalid {
		t.Errorf("redriven %+v", done)
	}
}

// TestRedriveOfEventsChecksThem: of what a function failed for, that is sent again which
// the records have not made up for.
func TestRedriveOfEventsChecksThem(t *testing.T) {
	w := installed(t)
	dead := w.out[names.OutEventDead]
	w.drain(t, dead)
	t.Cleanup(func() { w.drain(t, dead) })
	r := w.begin(t, agent{run: "nudged", shell: "exec sleep 3600"})
	now := time.Now().UTC().Format(time.RFC3339)
	task := func(state, instance, arn string) string {
		return fmt.Sprintf(`{"source":"local.ecs","detail-type":"ECS Task State Change","detail":{"taskArn":%q,"startedBy":%q,"lastStatus":%q}}`,
			arn, w.out[names.OutInstall]+"/"+instance, state)
	}
	want := map[string]string{
		`{"source":"sandkeeper.schedule","detail-type":"Tick","scheduledTime":"` + now + `"}`:           letterSettled,
		`{"source":"sandkeeper.schedule","detail-type":"Audit","scheduledTime":"` + now + `"}`:          letterSettled,
		`{"source":"sandkeeper.schedule","detail-type":"Daily","scheduledTime":"` + now + `"}`:          letterSent,
		`{"source":"sandkeeper.schedule","detail-type":"Collect","scheduledTime":"` + now + `"}`:        letterSent,
		`{"source":"sandkeeper.schedule","detail-type":"Daily","scheduledTime":"2026-01-01T04:17:00Z"}`: letterSettled,
		`{"source":"sandkeeper.schedule","detail-type":"Weekly"}`:                                       letterInvalid,
		task("STOPPED", string(r.Instance), r.TaskARN):                                                  letterSent,
		task("STOPPED", string(r.Instance), "arn:another"):                                              letterSettled,
		task("STOPPED", "NOBODYKNOWSTHISONE", "arn:nobody"):                                             letterSettled,
		`{"source":"local.ecs","detail-type":"ECS Task State Change","detail":{"startedBy":"x"}}`:       letterInvalid,
		`{"source":"sandkeeper.nudge","detail":{"tenant":"` + string(r.Tenant) + `","run":"nudged"}}`:   letterSent,
		`{"source":"sandkeeper.nudge","detail":{"tenant":"` + string(r.Tenant) + `","run":"nobody"}}`:   letterSettled,
		`{"source":"sandkeeper.nudge","detail":{}}`:                                                     letterInvalid,
		`{"relay":{"tenant":"-","thread":"t"}}`:                                                         letterSettled,
		`{"source":"aws.s3","detail-type":"Object Created"}`:                                            letterInvalid,
		`not JSON`: letterInvalid,
	}
	var left []string
	counts := map[string]int{}
	for body, state := range want {
		w.send(t, dead, body)
		counts[state]++
		if state == letterInvalid {
			left = append(left, body)
		}
	}
	w.unchanged(t, func() {
		dry := read[redriven](t, exitFindings, "redrive", "--queue", "events", "--dry-run")
		for body, state := range want {
			if got := dry.state(body); got != state {
				t.Errorf("dry run: %s is %q, want %q", body, got, state)
			}
		}
	})
	done := read[redriven](t, exitFindings, "redrive", "--yes") // all queues
	for body, state := range want {
		if got := done.state(body); got != state {
			t.Errorf("%s is %q, want %q", body, got, state)
		}
	}
	if !maps.Equal(done.Counts, map[string]int{letterSent: counts[letterSent], letterSettled: counts[letterSettled], letterInvalid: counts[letterInvalid], letterFailed: 0}) {
		t.Errorf("counted %v, want %v", done.Counts, counts)
	}
	got := w.take(t, dead)
	slices.Sort(got)
	slices.Sort(left)
	if !slices.Equal(got, left) {
		t.Errorf("left %q, want %q", got, left)
	}
	eventually(t, "reap hears of the task again", func() bool { return w.read(t, r.RunKey).TaskStoppedAt != 0 })
}

// deliver lets the reclaim queue reach its function, or not.
func (w *world) deliver(t *testing.T, enabled bool) {
	t.Helper()
	ctx, name := context.WithoutCancel(t.Context()), w.out[names.OutReclaimFunction]
	sources, err := w.lambda.ListEventSourceMappings(ctx, &lambda.ListEventSourceMappingsInput{FunctionName: &name})
	if err != nil || len(sources.EventSourceMappings) != 1 {
		t.Fatalf("sources of %s: %+v, %v", name, sources, err)
	}
	_, err = w.lambda.UpdateEventSourceMapping(ctx, &lambda.UpdateEventSourceMappingInput{UUID: sources.EventSourceMappings[0].UUID, Enabled: &enabled})
	if err != nil {
		t.Fatal(err)
	}
	if !enabled {
		t.Cleanup(func() { w.deliver(t, true) })
	}
}

func (w *world) send(t *testing.T, url string, bodies ...string) {
	t.Helper()
	for _, body := range bodies {
		if _, err := w.queues.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body}); err != nil {
			t.Fatal(err)
		}
	}
}

// take takes what is in a queue.
func (w *world) take(t *testing.T, url string) []string {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var bodies []string
	for {
		out, err := w.queues.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &url, MaxNumberOfMessages: 10})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range out.Messages {
			bodies = append(bodies, *m.Body)
			if _, err := w.queues.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &url, ReceiptHandle: m.ReceiptHandle}); err != nil {
				t.Fatal(err)
			}
		}
		if len(out.Messages) == 0 {
			return bodies
		}
	}
}

func (w *world) drain(t *testing.T, url string) {
	t.Helper()
	w.take(t, url)
}

func TestAuditComparesBothSides(t *testing.T) {
	w := installed(t)
	rogue := w.rogue(t)
	live := w.begin(t, agent{run: "task-dies", shell: lives, stays: true})
	if err := w.fargate.KillTask(live.TaskARN); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the event of its end has come", func() bool { return w.read(t, live.RunKey).TaskStoppedAt != 0 })
	var v auditView
	w.unchanged(t, func() { v = read[auditView](t, exitFindings, "audit", "--grace", "1ms") })
	of := func(arn string) findingView {
		for _, f := range v.Findings {
			if f.TaskARN == arn {
				return f
			}
		}
		return findingView{}
	}
	if f := of(rogue); f.Kind != core.AuditLeaked || f.Settles || f.Why != "no ledger row" || f.Cure == "" {
		t.Errorf("a task without a row: %+v", f)
	}
	if f := of(live.TaskARN); f.Kind != core.AuditLost || !f.Settles || f.Run != live.RunKey.Run {
		t.Errorf("a run without its task: %+v", f)
	}
	if young := read[auditView](t, exitDone, "audit"); len(young.Findings) != 1 {
		t.Errorf("within the grace: %+v", young.Findings)
	}
	sandkeeper(t, "audit", "--grace", "soon").wants(t, exitUsage)
	sandkeeper(t, "audit", "trail", "--days", "-1").wants(t, exitUsage)
	// What leaks costs.
	c := read[costView](t, exitDone, "cost", "--indexed")
	if c.Leaked.Tasks != 0 {
		t.Errorf("a young task counts as leaked: %+v", c.Leaked)
	}
}

// rogue starts a task in the installation's name that no row knows.
func (w *world) rogue(t *testing.T) string {
	t.Helper()
	client := w.engine.ECS(w.fargate.URL())
	out, err := client.RunTask(t.Context(), &ecs.RunTaskInput{
		Cluster: new(w.out[names.OutCluster]), TaskDefinition: new(w.out[names.OutTaskDefinition]), LaunchType: ecstypes.LaunchTypeFargate,
		StartedBy: new(core.StartedBy(w.out[names.OutInstall], core.InstanceID(rand.Text()))),
		NetworkConfiguration: &ecstypes.NetworkConfiguration{AwsvpcConfiguration: &ecstypes.AwsVpcConfiguration{
			Subnets: strings.Split(w.out[names.OutSubnets], ","),
		}},
	})
	if err != nil || len(out.Tasks) != 1 {
		t.Fatalf("run task: %+v, %v", out, err)
	}
	arn := *out.Tasks[0].TaskArn
	t.Cleanup(func() {
		if err := w.fargate.KillTask(arn); err != nil {
			t.Error(err)
		}
	})
	return arn
}

func TestLogsGiveTheExactBytesFromAnyPosition(t *testing.T) {
	w := installed(t)
	long := strings.Repeat("a line of an agent's output, with \xff and \x1b[31m in it\n", 600) // above what is kept inline
	data := w.file(t, long)
	r := w.begin(t, agent{run: "logged", shell: "cat " + data})
	w.exited(t, r)
	name := r.RunKey.String()
	if a := sandkeeper(t, "logs", name).wants(t, exitDone); a.out != "" {
		t.Errorf("before anything is saved: %q", a.out)
	}
	if a := sandkeeper(t, "logs", name, "--live").wants(t, exitDone); a.out != long {
		t.Errorf("from the sandbox: %d bytes, want %d", len(a.out), len(long))
	}
	sandkeeper(t, "sweep", name, "--yes").wants(t, exitDone)
	if a := sandkeeper(t, "logs", name, "--follow").wants(t, exitDone); a.out != long {
		t.Errorf("saved: %d bytes, want %d", len(a.out), len(long))
	}
	if a := sandkeeper(t, "logs", name, "--from", "12345").wants(t, exitDone); a.out != long[12345:] {
		t.Errorf("from byte 12345: %d bytes, want %d", len(a.out), len(long)-12345)
	}
	if a := sandkeeper(t, "logs", name, "--from", "99999999").wants(t, exitDone); a.out != "" {
		t.Errorf("from behind the end: %q", a.out)
	}
	var got []byte
	at := int64(0)
	for line := range strings.Lines(sandkeeper(t, "logs", name, "--json").wants(t, exitDone).out) {
		var p pieceView
		if err := json.Unmarshal([]byte(line), &p); err != nil || p.From != at {
			t.Fatalf("piece %q: %v", line, err)
		}
		got, at = append(got, p.Data...), p.End
	}
	if string(got) != long {
		t.Errorf("as JSON: %d bytes, want %d", len(got), len(long))
	}
	sandkeeper(t, "logs", name, "--from", "-1").wants(t, exitUsage)
	sandkeeper(t, "logs", "nobody/nothing").wants(t, exitNotFound)
}

// TestLogsLeavesABusySandboxAlone: one exec session at a time, whoever asks for it.
func TestLogsLeavesABusySandboxAlone(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{run: "busy", shell: lives})
	w.wrote(t, r, "begun")
	busy := func(until core.Millis) {
		_, err := w.db.UpdateItem(t.Context(), &dynamodb.UpdateItemInput{
			TableName: new(w.out[names.OutSandboxesTable]), Key: item{
				names.PK.Name: &dynamotypes.AttributeValueMemberS{Value: names.SandboxKeys + string(r.SandboxKey)},
				names.SK.Name: &dynamotypes.AttributeValueMemberS{Value: "sandbox"},
			},
			UpdateExpression: new("SET execUntil = :until"), ConditionExpression: new("attribute_exists(pk)"),
			ExpressionAttributeValues: item{":until": &dynamotypes.AttributeValueMemberN{Value: strconv.FormatInt(int64(until), 10)}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	busy(core.MillisOf(time.Now().Add(time.Hour)))
	execs := w.fargate.Metrics().Calls["ExecuteCommand"]
	a := sandkeeper(t, "logs", r.RunKey.String(), "--live").wants(t, exitFailed)
	if a.out != "" || !strings.Contains(a.err, "busy") || w.fargate.Metrics().Calls["ExecuteCommand"] != execs {
		t.Errorf("stdout %q, stderr %q", a.out, a.err)
	}
	busy(1)
	if a := sandkeeper(t, "logs", r.RunKey.String(), "--live").wants(t, exitDone); a.out != "begun" {
		t.Errorf("free again: stdout %q, stderr %q", a.out, a.err)
	}
}

// TestLogsSayWhatIsMissing of the transcript of a run whose task died.
func TestLogsSayWhatIsMissing(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{run: "bereft", shell: lives})
	w.wrote(t, r, "begun")
	if err := w.fargate.KillTask(r.TaskARN); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the run is lost", func() bool {
		sandkeeper(t, "sweep", r.RunKey.String(), "--yes").wants(t, exitDone)
		return w.read(t, r.RunKey).Status.Terminal()
	})
	if a := sandkeeper(t, "logs", r.RunKey.String()).wants(t, exitDone); !strings.Contains(a.err, "its transcript is incomplete") {
		t.Errorf("stdout %q, stderr %q", a.out, a.err)
	}
}

// TestLogsSayWhyASandboxCannotBeAsked in ECS's terms: it refuses a session with one error
// for tasks that are not up yet, that were started without ECS Exec, and whose agent stopped.
func TestLogsSayWhyASandboxCannotBeAsked(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{run: "unasked", shell: lives})
	w.wrote(t, r, "begun")
	if err := w.fargate.SetFaults(r.TaskARN, localfargate.Faults{AgentStopped: "no memory"}); err != nil {
		t.Fatal(err)
	}
	a := sandkeeper(t, "logs", r.RunKey.String(), "--live").wants(t, exitFailed)
	found := read[diagnosed](t, exitFindings, "doctor", "--sandboxes", "100").of("sandboxes")
	if err := w.fargate.SetFaults(r.TaskARN, localfargate.Faults{}); err != nil { // it can be ended
		t.Fatal(err)
	}
	if !strings.Contains(a.err, "agent-stopped") || strings.Contains(a.err, "without ECS Exec") {
		t.Errorf("stderr %q", a.err)
	}
	// doctor says the same, with the same cure: it does not pass by itself.
	same := func(c checked) bool {
		return c.State == stateFail && strings.Contains(c.Says, r.RunKey.String()) && strings.Contains(c.Says, "agent-stopped") && c.Cure == core.Advice("agent-stopped")
	}
	if !slices.ContainsFunc(found, same) {
		t.Errorf("doctor found %+v", found)
	}
}

func (w *world) file(t *testing.T, text string) string {
	t.Helper()
	path := w.dir + "/" + rand.Text()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestLogsFollowsALiveRun follows a run whose bytes come in two parts, the second once
// the first was seen, up to its end.
func TestLogsFollowsALiveRun(t *testing.T) {
	w := installed(t)
	gate := w.dir + "/" + rand.Text()
	r := w.begin(t, agent{run: "followed", shell: "echo first; while [ ! -e " + gate + " ]; do sleep 0.1; done; echo second"})
	w.wrote(t, r, "first")
	if a := sandkeeper(t, "logs", r.RunKey.String()).wants(t, exitDone); a.out != "" || !strings.Contains(a.err, "--live") {
		t.Errorf("before anything is saved: %q, %q", a.out, a.err)
	}
	command := w.command(t, "logs", r.RunKey.String(), "--follow", "--live", "--every", "200ms")
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	// A line's end stays back until more comes: the sentinel begins with one.
	first := make([]byte, len("first"))
	if _, err := io.ReadFull(stdout, first); err != nil || string(first) != "first" {
		t.Fatalf("followed %q: %v", first, err)
	}
	if err := os.WriteFile(gate, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(stdout); err != nil || string(rest) != "\nsecond\n" {
		t.Errorf("followed %q: %v", rest, err)
	}
	if err := command.Wait(); err != nil {
		t.Errorf("the end of the run: %v", err)
	}
}

// command is the tool as a process of its own.
func (w *world) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	command := exec.CommandContext(ctx, testBinary(t), append([]string{"--local", "--as", "tester"}, args...)...)
	command.Env = append(os.Environ(), asMain+"=1")
	command.Stderr = os.Stderr
	return command
}

func TestCostSumsUpByRunThreadAndTenant(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{run: "priced", shell: "echo done"})
	w.exited(t, r)
	sandkeeper(t, "sweep", r.RunKey.String(), "--yes").wants(t, exitDone)
	r = w.read(t, r.RunKey)
	tenant := string(r.Tenant)
	for by, key := range map[string]string{"run": r.RunKey.String(), "thread": tenant + "/" + string(r.Thread), "tenant": tenant} {
		v := read[costView](t, exitDone, "cost", "--tenant", tenant, "--by", by, "--vcpu", "2", "--memory-gb", "4", "--no-public-ipv4")
		if len(v.Groups) != 1 || v.Groups[0].Key != key || v.Groups[0].Runs != 1 || v.Groups[0].Living != 0 {
			t.Fatalf("by %s: %+v", by, v.Groups)
		}
		size := core.TaskSize{VCPU: 2, GB: 4}
		if want := size.Cost(r.FinishedAt.Sub(r.StartedAt)); v.Groups[0].Cost != want {
			t.Errorf("by %s: cost %g, want %g", by, v.Groups[0].Cost, want)
		}
		if most, got := size.Cost(core.DefaultLimits.RunTTL), v.Groups[0].Saved; got > most || got < 0.99*most {
			t.Errorf("by %s: saved %g, want a little less than %g", by, got, most)
		}
	}
	sample := read[costView](t, exitDone, "cost", "--tenant", tenant)
	if sample.Assumed.VCPU != 0.25 || sample.Assumed.GB != 0.5 || !strings.Contains(sample.Source, "aws.amazon.com/fargate/pricing") {
		t.Errorf("assumed %+v from %s", sample.Assumed, sample.Source)
	}
	if none := read[costView](t, exitDone, "cost", "--tenant", "nobody"); len(none.Groups) != 0 || none.Total.Cost != 0 {
		t.Errorf("of nobody: %+v", none)
	}
	sandkeeper(t, "cost", "--vcpu", "2").wants(t, exitUsage)
}

// diagnosed is what doctor prints.
type diagnosed struct {
	Version string         `json:"version"`
	Counts  map[string]int `json:"counts"`
	Checks  []checked      `json:"checks"`
}

func (d diagnosed) of(check string) []checked {
	return slices.DeleteFunc(slices.Clone(d.Checks), func(c checked) bool { return c.Check != check })
}

func TestDoctorFindsWhatIsWrongAndSaysTheCure(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{run: "examined", shell: lives})
	w.wrote(t, r, "begun")
	dies := w.begin(t, agent{run: "dies", shell: lives, stays: true})
	if err := w.fargate.KillTask(dies.TaskARN); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the event of its end has come", func() bool { return w.read(t, dies.RunKey).TaskStoppedAt != 0 })
	dead := w.out[names.OutDeadLetterQueue]
	w.send(t, dead, `{"instance":"x","kind":"nuke"}`)
	t.Cleanup(func() { w.drain(t, dead) })
	var d diagnosed
	w.unchanged(t, func() { d = read[diagnosed](t, exitFindings, "doctor") })
	for _, check := range []string{"identity", "clock", "endpoints", "stack", "settings", "bucket", "functions", "sources", "versions", "definition"} {
		found := d.of(check)
		if len(found) == 0 {
			t.Errorf("%s was not checked", check)
		}
		for _, c := range found {
			if c.State != stateOK {
				t.Errorf("%s: %+v", check, c)
			}
		}
	}
	states := func(check, state string) (found []checked) {
		for _, c := range d.of(check) {
			if c.State == state {
				found = append(found, c)
			}
		}
		return found
	}
	// The tests' world has stopped the schedule: nothing would be swept.
	if found := states("schedules", stateFail); len(found) != 1 || !strings.Contains(found[0].Says, names.TickSchedule) || found[0].Cure == "" {
		t.Errorf("schedules: %+v", d.of("schedules"))
	}
	for _, last := range names.Schedules {
		if !slices.ContainsFunc(d.of("schedules"), func(c checked) bool { return strings.Contains(c.Says, "-"+last+" ") }) {
			t.Errorf("schedule %s was not looked at: %+v", last, d.of("schedules"))
		}
	}
	for _, output := range []names.Output{names.OutRunsTable, names.OutSandboxesTable, names.OutCheckpoints} {
		if !slices.ContainsFunc(d.of("tables"), func(c checked) bool { return strings.Contains(c.Says, w.out[output]) }) {
			t.Errorf("table %s was not looked at: %+v", output, d.of("tables"))
		}
	}
	if found := states("queues", stateWarn); len(found) != 1 || !strings.Contains(found[0].Cure, "redrive") {
		t.Errorf("queues: %+v", d.of("queues"))
	}
	if found := states("sandboxes", stateWarn); len(found) == 0 || !strings.Contains(found[0].Says, core.AgentName) {
		t.Errorf("sandboxes: %+v", d.of("sandboxes"))
	}
	if found := states("endings", stateWarn); !slices.ContainsFunc(found, func(c checked) bool { return strings.Contains(c.Says, taskID(dies.TaskARN)) }) {
		t.Errorf("endings: %+v", d.of("endings"))
	}
	// No emulator knows quotas; what is not known is never fine.
	if found := states("quotas", stateUnknown); len(found) != len(quotas) {
		t.Errorf("quotas: %+v", d.of("quotas"))
	}
	if len(d.of("permissions")) == 0 || len(d.of("tasks")) == 0 || len(d.of("tables")) == 0 {
		t.Errorf("not everything was checked: %+v", d.Checks)
	}
	for _, c := range d.Checks {
		if c.State != stateOK && c.Cure == "" {
			t.Errorf("no cure for %+v", c)
		}
	}
}

// TestDoctorCatchesAMissingPermission: without StopTask every sandbox leaks, and
// nothing else says so before the bill.
func TestDoctorCatchesAMissingPermission(t *testing.T) {
	w := installed(t)
	c, err := w.lambda.GetFunctionConfiguration(t.Context(), &lambda.GetFunctionConfigurationInput{FunctionName: new(w.out[names.OutReclaimFunction])})
	if err != nil {
		t.Fatal(err)
	}
	client, role := iam.NewFromConfig(w.engine.Config()), taskID(*c.Role)
	_, err = client.PutRolePolicy(t.Context(), &iam.PutRolePolicyInput{
		RoleName: &role, PolicyName: new("boundary"),
		PolicyDocument: new(`{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Action":"ecs:StopTask","Resource":"*"}]}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := client.DeleteRolePolicy(context.WithoutCancel(t.Context()), &iam.DeleteRolePolicyInput{RoleName: &role, PolicyName: new("boundary")}); err != nil {
			t.Error(err)
		}
	})
	d := read[diagnosed](t, exitFindings, "doctor", "--sandboxes", "0")
	var failed []string
	for _, c := range d.of("permissions") {
		if c.State == stateFail {
			failed = append(failed, c.Says)
		}
	}
	for _, row := range roles.Table {
		if !slices.ContainsFunc(d.of("permissions"), func(c checked) bool {
			return c.State == stateOK && strings.HasPrefix(c.Says, row.Name+": ")
		}) {
			t.Errorf("%s was not simulated: %+v", row.Name, d.of("permissions"))
		}
	}
	if len(failed) != 1 || !strings.HasPrefix(failed[0], "reclaim may not ecs:StopTask on ") {
		t.Errorf("permissions that fail: %q", failed)
	}
}

func TestWatchStreamsSnapshotsWhereThereIsNoTerminal(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{run: "watched", shell: lives})
	lines := strings.Split(strings.TrimSpace(sandkeeper(t, "watch", "--count", "2", "--every", "1ms").wants(t, exitDone).out), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines, want 2", len(lines))
	}
	var s snapshot
	if err := json.Unmarshal([]byte(lines[1]), &s); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(s.Runs, func(v runView) bool { return v.RunKey == r.RunKey }) || s.Control.Mode != core.Enforce {
		t.Errorf("snapshot %+v", s)
	}
	sandkeeper(t, "watch", "--count", "-1").wants(t, exitUsage)
}

// TestWatchOpensHoldsAndKillsInATerminal drives the live view as a person does: by keys,
// in a terminal.
func TestWatchOpensHoldsAndKillsInATerminal(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{run: "pressed", shell: "printf 'hello from the agent\\n'; exec sleep 3600"})
	w.wrote(t, r, "hello")
	command := w.command(t, "watch", "--live", "--every", "200ms")
	command.Env = append(command.Env, "TERM=xterm-256color", "NO_COLOR=1")
	s := onScreen(t, command, 100, 40)
	s.shows("the view shows runs", "STANDING", "? keys")
	s.press("/" + r.RunKey.String())
	s.shows("the filter is told", "show runs with: "+r.RunKey.String()+"_", "1 of ")
	s.press("\r")
	s.shows("the prompt is left", "pressed", "? keys")
	s.press("\r")
	s.shows("its transcript is shown", "hello from the agent")
	s.press("q")
	s.shows("the list is shown again", "STANDING", "? keys")
	s.press("e")
	s.shows("it is explained", "no-sentinel")
	s.press("q")
	s.press("h")
	s.shows("a reason is asked for", "hold "+r.RunKey.String(), "why? _")
	s.press("\r")
	s.shows("an empty one is refused", "wants a reason")
	s.press("look into it")
	s.shows("what is typed is shown", "why? look into it_")
	s.press("\r")
	eventually(t, "the run is held", func() bool { return w.read(t, r.RunKey).Hold.Why == "look into it" })
	s.press("x")
	s.shows("a reason is asked for", "kill "+r.RunKey.String(), "why? _")
	s.press("it loops\r")
	eventually(t, "its end is asked for", func() bool { return w.read(t, r.RunKey).CancelRequested != 0 })
	s.press("?")
	s.shows("the keys are told", "Of the list")
	s.press("q")
	s.shows("the list is shown again", "STANDING")
	if strings.Contains(s.text(), "TASK") {
		t.Errorf("every column fits a window of 100:\n%s", s.text())
	}
	s.resize(20, 4)
	s.resize(1, 1)
	s.resize(240, 60)
	s.shows("the wide window has every column", "STANDING", "TASK")
	s.press("/\x1b")
	s.shows("every run is shown", "runs  ", "? keys")
	s.press("q")
	if err := command.Wait(); err != nil {
		t.Errorf("q: %v", err)
	}
	if s.wasTold("\x1b[31m") || s.wasTold("\x1b[38;") {
		t.Error("it is coloured, although NO_COLOR is set")
	}
}

// TestWatchDrawsNothingOnATerminalThatCannotBeDrawnOn: it writes what it writes to a pipe.
func TestWatchDrawsNothingOnATerminalThatCannotBeDrawnOn(t *testing.T) {
	w := installed(t)
	command := w.command(t, "watch", "--count", "1")
	command.Env = append(command.Env, "TERM=dumb")
	s := onScreen(t, command, 150, 40)
	if err := command.Wait(); err != nil {
		t.Error(err)
	}
	eventually(t, "a look is written", func() bool { return s.wasTold(`"control"`) })
	if s.wasTold("\x1b[?") {
		t.Error("the terminal is driven")
	}
}

// TestCtrlCIsAnAnswerToAQuestion: the command ends at once, and nothing is done.
func TestCtrlCIsAnAnswerToAQuestion(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{run: "spared", shell: lives})
	command := w.command(t, "kill", r.RunKey.String(), "--why", "in haste")
	s := onScreen(t, command, 150, 40)
	s.shows("the question is asked", "[y/N]")
	s.press("\x03")
	if err := command.Wait(); command.ProcessState.ExitCode() != exitInterrupted {
		t.Errorf("%v, want exit code %d", err, exitInterrupted)
	}
	if w.read(t, r.RunKey).CancelRequested != 0 {
		t.Error("the run is to end")
	}
}
