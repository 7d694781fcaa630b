package sandkeeper

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// TestEveryAlarmOfTheListIsMade, reads what the functions write, and leads to its part of
// the runbook.
func TestEveryAlarmOfTheListIsMade(t *testing.T) {
	runbook, err := os.ReadFile(filepath.Join("..", "..", "docs", "runbook.md"))
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for _, a := range metrics.Alarms {
		for _, queue := range queuesOf(a) {
			r := production.one(t, "AWS::CloudWatch::Alarm", "alarm-"+a.Name+queue.suffix)
			made++
			p := r.Properties
			same(t, a.Name+" name", p["AlarmName"], "keeper-"+a.Name+queue.suffix)
			same(t, a.Name+" threshold", p["Threshold"], a.Threshold)
			same(t, a.Name+" periods", p["EvaluationPeriods"], a.Periods)
			same(t, a.Name+" missing", p["TreatMissingData"], string(a.Missing))
			same(t, a.Name+" below", strings.HasPrefix(flat(p["ComparisonOperator"]), "LessThan"), a.Below)
			same(t, a.Name+" namespace", p["Namespace"], queue.namespace)
			same(t, a.Name+" dimension", flat(at(p["Dimensions"].([]any)[0], "Value")), queue.dimension)
			if a.Metric != "" {
				same(t, a.Name+" metric", p["MetricName"], string(a.Metric))
			}
			_, anchor, ok := strings.Cut(flat(p["AlarmDescription"]), "docs/runbook.md#")
			if !ok || !strings.Contains(string(runbook), "\n## "+anchor+"\n") {
				t.Errorf("%s leads to %q of the runbook", a.Name, anchor)
			}
			same(t, a.Name+" actions", p["AlarmActions"], nil)
		}
	}
	same(t, "alarms", len(production.all(t, "AWS::CloudWatch::Alarm")), made)
}

// alarmed is what an alarm is about.
type alarmed struct{ suffix, namespace, dimension string }

func queuesOf(a metrics.Alarm) []alarmed {
	if a.Metric != "" {
		return []alarmed{{"", names.MetricsSpace, "keeper"}}
	}
	return []alarmed{
		{"-reclaim", "AWS/SQS", "reclaimdeadletters.QueueName"}, {"-sweep", "AWS/SQS", "sweepdeadletters.QueueName"},
		{"-events", "AWS/SQS", "eventdeadletters.QueueName"},
	}
}

// TestSilenceRingsAsFastAsTheScheduleTicks.
func TestSilenceRingsAsFastAsTheScheduleTicks(t *testing.T) {
	slow := chosen(t, map[string]any{"scheduleMinutes": 3})
	for of, want := range map[*template]float64{&production: 60, &slow: 180} {
		a := of.one(t, "AWS::CloudWatch::Alarm", "alarm-reaper-silent").Properties
		same(t, "period", a["Period"], want)
		same(t, "statistic", a["Statistic"], "SampleCount")
	}
	same(t, "schedule", slow.one(t, "AWS::Scheduler::Schedule", names.TickSchedule).Properties["ScheduleExpression"], "rate(3 minutes)")
}

func TestAlarmsAreTold(t *testing.T) {
	const topic = "arn:aws:sns:eu-west-1:000000000000:pager"
	of := chosen(t, map[string]any{"alarmTopic": topic, "idleBurnUSD": "2.5", "runbook": "https://wiki.example/runbook"})
	for id, a := range of.all(t, "AWS::CloudWatch::Alarm") {
		same(t, id+" actions", a.Properties["AlarmActions"], []string{topic})
		same(t, id+" ok actions", a.Properties["OKActions"], []string{topic})
		if !strings.Contains(flat(a.Properties["AlarmDescription"]), " https://wiki.example/runbook#") {
			t.Errorf("%s: %v", id, a.Properties["AlarmDescription"])
		}
	}
	same(t, "threshold", of.one(t, "AWS::CloudWatch::Alarm", "alarm-idle-burn").Properties["Threshold"], 2.5)
}

// TestMonitoringCanBeLeftOut, and is in the local variant.
func TestMonitoringCanBeLeftOut(t *testing.T) {
	for name, of := range map[string]template{"local": local, "without": chosen(t, map[string]any{"monitoring": "false"})} {
		for id, r := range of.Resources {
			if strings.HasPrefix(r.Type, "AWS::CloudWatch::") || r.Type == "AWS::Logs::QueryDefinition" {
				t.Errorf("%s: %s is a %s", name, id, r.Type)
			}
		}
	}
}

// TestTheDashboardShowsEveryChargedMetric and every dead-letter queue.
func TestTheDashboardShowsEveryChargedMetric(t *testing.T) {
	boards := production.all(t, "AWS::CloudWatch::Dashboard")
	same(t, "dashboards", len(boards), 1)
	for _, board := range boards {
		same(t, "name", flat(board.Properties["DashboardName"]), "keeper-AWS::Region")
		body := flat(board.Properties["DashboardBody"])
		for _, m := range metrics.Charged() {
			if !strings.Contains(body, `"`+string(m.Name)+`"`) {
				t.Errorf("the dashboard does not show %s", m.Name)
			}
		}
		for _, queue := range queuesOf(metrics.Alarm{}) {
			if !strings.Contains(body, queue.dimension) {
				t.Errorf("the dashboard does not show %s", queue.dimension)
			}
		}
		if n := strings.Count(body, `"type"`); n > 20 {
			t.Errorf("%d widgets are no glance", n)
		}
	}
}

// TestTheRunbooksQueriesAreSaved, and read nothing that no function writes.
func TestTheRunbooksQueriesAreSaved(t *testing.T) {
	runbook, err := os.ReadFile(filepath.Join("..", "..", "docs", "runbook.md"))
	if err != nil {
		t.Fatal(err)
	}
	saved := map[string]bool{}
	for _, q := range production.all(t, "AWS::Logs::QueryDefinition") {
		name, own := strings.CutPrefix(flat(q.Properties["Name"]), "keeper/")
		if !own || len(q.Properties["LogGroupNames"].([]any)) == 0 {
			t.Errorf("query %v", q.Properties)
		}
		saved[name] = true
		checkFields(t, name, flat(q.Properties["QueryString"]))
	}
	same(t, "queries", len(saved), len(metrics.Queries))
	cited := regexp.MustCompile(`(?i)quer(?:y|ies) \*([^*]+)\*`).FindAllStringSubmatch(string(runbook), -1)
	for _, name := range cited {
		if !saved[name[1]] {
			t.Errorf("the runbook names the query %q, which is not saved", name[1])
		}
	}
	if len(cited) < 5 {
		t.Errorf("the runbook names %d queries", len(cited))
	}
}

// written are the members of lines of logs that queries read, beside metrics.
var written = []string{
	"message", "level", "run", "outcome", "status", "reason", "healing", "exitCode", "err", "operation", "code", "tenant", "thread", "id", "kind", "instance",
	"task", "startedBy", "since", "stopping", "missing",
}

var identifier = regexp.MustCompile(`"[^"]*"|@?[A-Za-z]+`)

// languageWords are those of the query language, and names that a query itself makes.
var languageWords = strings.Fields("fields filter sort stats limit desc asc by and or in like as count sum bin ispresent m runs function @timestamp")

func checkFields(t *testing.T, name, query string) {
	t.Helper()
	for line := range strings.Lines(query) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		line = regexp.MustCompile(` as \w+`).ReplaceAllString(line, "")
		for _, word := range identifier.FindAllString(line, -1) {
			_, metric := metrics.Find(metrics.Name(word))
			if !metric && word[0] != '"' && !slices.Contains(languageWords, word) && !slices.Contains(written, word) {
				t.Errorf("the query %s reads %s, which nobody writes", name, word)
			}
		}
	}
}

// TestWhatQueriesReadIsWritten: every key of their list stands in the code that logs.
func TestWhatQueriesReadIsWritten(t *testing.T) {
	var code strings.Builder
	for _, pattern := range []string{"../../internal/core/*.go", "../../functions/*/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(file, "_test.go") {
				code.Write(data)
			}
		}
	}
	for _, key := range written {
		if !slices.Contains([]string{"message", "level"}, key) && !strings.Contains(code.String(), fmt.Sprintf("%q, ", key)) {
			t.Errorf("nobody writes %s", key)
		}
	}
}

// TestWhatFailedIsKept: of the schedule's deliveries and of asynchronous invocations.
func TestWhatFailedIsKept(t *testing.T) {
	for id, s := range production.all(t, "AWS::Scheduler::Schedule") {
		same(t, id, flat(at(s.Properties, "Target", "DeadLetterConfig", "Arn")), "eventdeadletters.Arn")
	}
	for _, f := range []names.Function{names.Reap, names.Checkpoint} {
		r := production.one(t, "AWS::Lambda::Function", string(f))
		same(t, string(f), flat(at(r.Properties, "DeadLetterConfig", "TargetArn")), "eventdeadletters.Arn")
	}
}
