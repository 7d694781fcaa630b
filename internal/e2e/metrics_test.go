package e2e_test

import (
	"bufio"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/cloudwatchlogs"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// measured is one line of metrics, as CloudWatch reads it.
type measured struct {
	AWS struct {
		CloudWatchMetrics []struct {
			Namespace string
			Metrics   []struct{ Name, Unit string }
		}
	} `json:"_aws"`
	Install  string
	Function names.Function
}

// logged reads all that a function has written so far.
func (in *installation) logged(t *testing.T, function string) []string {
	t.Helper()
	group := "/aws/lambda/" + function
	pages := cloudwatchlogs.NewFilterLogEventsPaginator(cloudwatchlogs.NewFromConfig(in.engine.Config()),
		&cloudwatchlogs.FilterLogEventsInput{LogGroupName: &group})
	var lines []string
	for pages.HasMorePages() {
		page, err := pages.NextPage(contextOf(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Events {
			// What a function's standard streams hold is one text to the engine.
			scanner := bufio.NewScanner(strings.NewReader(*e.Message))
			for scanner.Scan() {
				lines = append(lines, scanner.Text())
			}
		}
	}
	return lines
}

// metricsOf collects the metrics that a function has written, and checks each line
// against the list.
func (in *installation) metricsOf(t *testing.T, f names.Function, deployed string, into map[metrics.Name]int) {
	t.Helper()
	for _, line := range in.logged(t, deployed) {
		var m measured
		if !strings.Contains(line, `"_aws"`) || json.Unmarshal([]byte(line), &m) != nil {
			continue
		}
		if m.Function != f || m.Install != in.out[names.OutInstall] || len(m.AWS.CloudWatchMetrics) != 1 || m.AWS.CloudWatchMetrics[0].Namespace != names.MetricsSpace {
			t.Fatalf("%s wrote %s", f, line)
		}
		for _, d := range m.AWS.CloudWatchMetrics[0].Metrics {
			listed, ok := metrics.Find(metrics.Name(d.Name))
			if !ok || !listed.Charged || string(listed.Unit) != d.Unit || !slices.Contains(listed.From, f) {
				t.Errorf("%s wrote the metric %s in %s: the list says %+v", f, d.Name, d.Unit, listed)
			}
			into[listed.Name]++
		}
		var members map[metrics.Name]any
		if err := json.Unmarshal([]byte(line), &members); err != nil {
			t.Fatal(err)
		}
		for _, c := range metrics.Charged() {
			if _, written := members[c.Name]; written && c.Sparse && members[c.Name] == 0.0 {
				into[c.Name]++ // its zeros are properties
			}
		}
	}
}

// TestEveryAlarmsMetricIsEmitted by the deployed functions at a run's whole way, so that
// no alarm waits for what nobody writes. Every charged metric is.
func TestEveryAlarmsMetricIsEmitted(t *testing.T) {
	in := installed(t)
	r := in.begin(t, agent{run: "measured", shell: "echo done", checkpoint: core.CheckpointFinished})
	in.sweepUntil(t, "end", func(core.SweepReport) bool { return in.run(t, r.RunKey).Status.Terminal() })
	if _, err := in.invoke(in.out[names.OutReapFunction], event(t, "reap-daily.json")); err != nil {
		t.Fatal(err)
	}
	deployed := map[names.Function]string{
		names.Reap: in.out[names.OutReapFunction], names.Reclaim: in.out[names.OutReclaimFunction], names.Checkpoint: in.out[names.OutCheckpoint],
	}
	wanted := func() []metrics.Name {
		seen := map[metrics.Name]int{}
		for f, name := range deployed {
			in.metricsOf(t, f, name, seen)
		}
		var missing []metrics.Name
		for _, m := range metrics.Charged() {
			if seen[m.Name] == 0 {
				missing = append(missing, m.Name)
			}
		}
		return missing
	}
	await(t, "metrics", func() bool {
		if missing := wanted(); len(missing) > 0 {
			t.Logf("not written yet: %v", missing)
			return false
		}
		return true
	})
}
