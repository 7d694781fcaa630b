package e2e_test

import (
	"bufio"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/cloudwatchlogs"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	lambdatypes "github.com/aws/aws-sdk-go-v2/service/lambda/types"

	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// deployed are the outputs that name the functions.
var deployed = map[names.Function]names.Output{
	names.Reap: names.OutReapFunction, names.Probe: names.OutProbeFunction, names.Reclaim: names.OutReclaimFunction,
	names.Checkpoint: names.OutCheckpoint, names.Session: names.OutSession, names.Tools: names.OutTools,
}

// signals is the installation and what its functions write from some time on.
type signals struct {
	*installation
	since time.Time
}

// measured is one line of metrics, as CloudWatch reads it.
type measured struct {
	AWS struct {
		Timestamp         int64 // milliseconds
		CloudWatchMetrics []struct {
			Namespace string
			Metrics   []struct{ Name, Unit string }
		}
	} `json:"_aws"`
	Install  string
	Function names.Function
}

// logged reads what a function has written since then.
func (in *installation) logged(t *testing.T, function string, since time.Time) []string {
	t.Helper()
	group := "/aws/lambda/" + function
	pages := cloudwatchlogs.NewFilterLogEventsPaginator(cloudwatchlogs.NewFromConfig(in.engine.Config()),
		&cloudwatchlogs.FilterLogEventsInput{LogGroupName: &group, StartTime: new(since.UnixMilli())})
	var lines []string
	for pages.HasMorePages() {
		page, err := pages.NextPage(contextOf(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Events {
			// What a function's standard streams hold is one text to the engine.
			scanner := bufio.NewScanner(strings.NewReader(*e.Message))
			scanner.Buffer(nil, 1<<20)
			for scanner.Scan() {
				lines = append(lines, scanner.Text())
			}
			if err := scanner.Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return lines
}

// lines are the lines of JSON that a function has written.
func (s *signals) lines(t *testing.T, f names.Function) []logLine {
	t.Helper()
	var all []logLine
	for _, text := range s.logged(t, s.out[deployed[f]], s.since) {
		l := logLine{}
		if json.Unmarshal([]byte(text), &l) != nil {
			continue // of the runtime
		}
		if l["_aws"] != nil {
			s.checkMeasured(t, f, text)
		}
		all = append(all, l)
	}
	return all
}

// checkMeasured holds a line of metrics against the list.
func (s *signals) checkMeasured(t *testing.T, f names.Function, text string) {
	t.Helper()
	var m measured
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatalf("%s wrote %s: %v", f, text, err)
	}
	if m.Function != f || m.Install != s.out[names.OutInstall] || len(m.AWS.CloudWatchMetrics) != 1 || m.AWS.CloudWatchMetrics[0].Namespace != names.MetricsSpace {
		t.Fatalf("%s wrote %s", f, text)
	}
	for _, d := range m.AWS.CloudWatchMetrics[0].Metrics {
		listed, ok := metrics.Find(metrics.Name(d.Name))
		if !ok || !listed.Charged || string(listed.Unit) != d.Unit || !slices.Contains(listed.From, f) {
			t.Errorf("%s wrote the metric %s in %s: the list says %+v", f, d.Name, d.Unit, listed)
		}
	}
}

// samples are the values of a metric, as CloudWatch makes it of the lines: a value that no
// directive names is a property, and no sample.
func (s *signals) samples(t *testing.T, name metrics.Name) []float64 {
	t.Helper()
	m, ok := metrics.Find(name)
	if !ok {
		t.Fatalf("no metric %s", name)
	}
	var all []float64
	for _, f := range m.From {
		for _, text := range s.logged(t, s.out[deployed[f]], s.since) {
			var line measured
			var members logLine
			if json.Unmarshal([]byte(text), &members) != nil || json.Unmarshal([]byte(text), &line) != nil || len(line.AWS.CloudWatchMetrics) == 0 {
				continue
			}
			if line.AWS.Timestamp < s.since.UnixMilli() {
				continue // the engine had it late, and takes it for what a later call wrote
			}
			for _, d := range line.AWS.CloudWatchMetrics[0].Metrics {
				if d.Name == string(name) {
					all = append(all, members[d.Name].(float64))
				}
			}
		}
	}
	return all
}

// statistic is what CloudWatch makes of a period's samples; false where there is nothing.
func statistic(t *testing.T, name string, samples []float64) (float64, bool) {
	t.Helper()
	sum := 0.0
	for _, v := range samples {
		sum += v
	}
	switch {
	case name == "SampleCount":
		return float64(len(samples)), len(samples) > 0
	case len(samples) == 0:
		return 0, false
	case name == "Sum":
		return sum, true
	case name == "Average":
		return sum / float64(len(samples)), true
	case name == "Maximum":
		return slices.Max(samples), true
	case name == "Minimum":
		return slices.Min(samples), true
	}
	t.Fatalf("no statistic %s", name)
	return 0, false
}

// rings reports whether an alarm counts a period with these samples as one of those that
// it rings after.
func rings(t *testing.T, a metrics.Alarm, samples []float64) (value float64, is bool) {
	t.Helper()
	value, measured := statistic(t, a.Statistic, samples)
	switch {
	case !measured:
		return 0, a.Missing == metrics.Breaching
	case a.Below:
		return value, value < a.Threshold
	}
	return value, value > a.Threshold
}

// configure changes the environment of a deployed function until the test's end, as an
// update of the stack with other choices does.
func (in *installation) configure(t *testing.T, output names.Output, change map[names.Key]string) {
	t.Helper()
	name := in.out[output]
	now, err := in.functions.GetFunctionConfiguration(t.Context(), &lambda.GetFunctionConfigurationInput{FunctionName: &name})
	if err != nil {
		t.Fatal(err)
	}
	put := func(variables map[string]string) {
		t.Helper()
		_, err := in.functions.UpdateFunctionConfiguration(contextOf(t), &lambda.UpdateFunctionConfigurationInput{
			FunctionName: &name, Environment: &lambdatypes.Environment{Variables: variables},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	changed := maps.Clone(now.Environment.Variables)
	for key, value := range change {
		changed[string(key)] = value
	}
	put(changed)
	t.Cleanup(func() { put(now.Environment.Variables) })
}

// logFormat is what Lambda tells a function whose stack asks for JSON. The engine does not.
const logFormat names.Key = "AWS_LAMBDA_LOG_FORMAT"

// TestEveryFailureRingsAndIsFound: whatever an alarm is for is brought about, and the
// deployed functions' own lines then make the alarm ring, by the true figure. The lines
// that are written meanwhile are what the saved queries find, each those that it is for.
func TestEveryFailureRingsAndIsFound(t *testing.T) {
	s := &signals{installed(t), time.Now()}
	for _, output := range deployed {
		s.configure(t, output, map[names.Key]string{logFormat: "JSON"})
	}
	for _, a := range metrics.Alarms {
		if !slices.ContainsFunc(failures, func(f failure) bool { return f.alarm == a.Name }) {
			t.Errorf("nothing is done to make %s ring", a.Name)
		}
	}
	for _, f := range failures {
		t.Run(f.alarm+": "+f.name, func(t *testing.T) {
			i := slices.IndexFunc(metrics.Alarms, func(a metrics.Alarm) bool { return a.Name == f.alarm })
			if i < 0 {
				t.Fatal("no such alarm")
			}
			s := &signals{s.installation, time.Now()}
			f.checkRings(t, s, metrics.Alarms[i])
		})
	}
	t.Run("the time from an end to its task's is told", func(t *testing.T) {
		s := &signals{s.installation, time.Now()}
		want := endOfAnAgent(t, s)
		if want <= 0 {
			t.Errorf("its task ended %v s after it", want)
		}
		await(t, "that measure", func() bool { return slices.Contains(s.samples(t, metrics.ExitToStoppedSeconds), want) })
	})
	t.Run("queries", func(t *testing.T) { checkQueries(t, s) })
}

// checkRings provokes and waits until the alarm's metric is where it rings.
func (f failure) checkRings(t *testing.T, s *signals, a metrics.Alarm) {
	t.Helper()
	want := f.provoke(t, s)
	if a.Metric == "" {
		return // SQS measures, and has been asked
	}
	var value float64
	await(t, a.Name+" rings", func() (is bool) {
		value, is = rings(t, a, s.samples(t, a.Metric))
		return is && value >= want.least // the engine has some lines late
	})
	if value > want.most {
		t.Errorf("%s of %s is %v, want %v to %v", a.Statistic, a.Metric, value, want.least, want.most)
	}
}

// checkQueries evaluates each saved query over the lines of the functions that it reads: it
// finds each kind of line that it is for, nothing else, and each field that it names stands,
// with something in it, on one of them.
func checkQueries(t *testing.T, s *signals) {
	t.Helper()
	all := map[names.Function][]logLine{}
	for f := range deployed {
		all[f] = s.lines(t, f)
	}
	checkKeys(t, all)
	for _, saved := range metrics.Queries {
		t.Run(saved.ID, func(t *testing.T) {
			q, err := readInsight(saved.Text)
			if err != nil {
				t.Fatal(err)
			}
			var found []logLine
			for _, f := range saved.Of {
				for _, l := range all[f] {
					if q.finds(l) {
						found = append(found, l)
					}
				}
			}
			for _, kind := range saved.Lines {
				if !slices.ContainsFunc(found, func(l logLine) bool { return l.is(kind) }) {
					t.Errorf("among %d lines it finds none as %+v", len(found), kind)
				}
			}
			checkFields(t, q, found)
			if saved.ID != "errors" && saved.ID != "run" { // which are about whatever has gone wrong, or a run
				for _, l := range found {
					if !slices.ContainsFunc(saved.Lines, func(kind metrics.Line) bool { return kind.Message == l.message() }) {
						t.Errorf("it finds %v", l)
					}
				}
			}
			if len(q.sums) > 0 && len(q.add(found)) == 0 {
				t.Error("it sums nothing up")
			}
		})
	}
}

func checkFields(t *testing.T, q insight, found []logLine) {
	t.Helper()
	for _, name := range q.fields {
		told := slices.ContainsFunc(found, func(l logLine) bool { return l[name] != nil && l[name] != "" })
		if name != "@timestamp" && !told {
			t.Errorf("none of %d lines says anything as %s", len(found), name)
		}
	}
}

// message is what a line of a log is about; "" for one of metrics.
func (l logLine) message() string { text, _ := l["message"].(string); return text }

// is reports whether a line is of a kind.
func (l logLine) is(kind metrics.Line) bool {
	without := func(name string) bool { _, there := l[name]; return !there }
	return l.message() == kind.Message && (kind.Level == "" || l["level"] == kind.Level) && !slices.ContainsFunc(kind.Members, without)
}

// checkKeys: whatever is logged is in the list of keys.
func checkKeys(t *testing.T, all map[names.Function][]logLine) {
	t.Helper()
	known := []string{"timestamp", "level", "message", "requestId"}
	for _, k := range metrics.LogKeys {
		known = append(known, k.Name)
	}
	for f, lines := range all {
		for _, l := range lines {
			for name := range l {
				if l["_aws"] == nil && l.message() != "" && !slices.Contains(known, name) {
					t.Errorf("%s logs the key %s, which the list does not have", f, name)
				}
			}
		}
	}
}

// TestNoZeroRings: an alarm that zeros made ring would prove nothing.
func TestNoZeroRings(t *testing.T) {
	for _, a := range metrics.Alarms {
		if a.Below { // it rings for silence, which a zero breaks
			if _, is := rings(t, a, nil); !is {
				t.Errorf("%s does not ring for silence", a.Name)
			}
		}
		if value, is := rings(t, a, []float64{0, 0}); is {
			t.Errorf("zeros make %s ring, by %v", a.Name, value)
		}
		if _, is := rings(t, a, []float64{a.Threshold + 1}); is == a.Below {
			t.Errorf("%s rings: %t", a.Name, is)
		}
	}
}
