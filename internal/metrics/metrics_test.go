package metrics_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

// line is what CloudWatch reads of one.
type line struct {
	AWS struct {
		Timestamp         int64
		CloudWatchMetrics []struct {
			Namespace  string
			Dimensions [][]string
			Metrics    []struct{ Name, Unit string }
		}
	} `json:"_aws"`
	Install, Function string
}

func emitted(t *testing.T, f names.Function, v metrics.Values) (line, map[string]any) {
	t.Helper()
	var out bytes.Buffer
	meter := metrics.Meter{Out: &out, Install: "keeper", Function: f}
	meter.Emit(v)
	if n := bytes.Count(out.Bytes(), []byte("\n")); n != 1 {
		t.Fatalf("wrote %d lines: %s", n, out.Bytes())
	}
	var l line
	if err := json.Unmarshal(out.Bytes(), &l); err != nil {
		t.Fatal(err)
	}
	return l, membersOf(t, out.Bytes())
}

func membersOf(t *testing.T, line []byte) map[string]any {
	t.Helper()
	members := map[string]any{}
	if err := json.Unmarshal(line, &members); err != nil {
		t.Fatal(err)
	}
	return members
}

func TestALineIsEmbeddedMetricFormat(t *testing.T) {
	began := time.Now().UnixMilli()
	l, members := emitted(t, names.Reap, metrics.OfSweep(core.SweepReport{}, true, time.Now()))
	if l.AWS.Timestamp < began || l.AWS.Timestamp > time.Now().UnixMilli() {
		t.Errorf("timestamp %d", l.AWS.Timestamp)
	}
	if len(l.AWS.CloudWatchMetrics) != 1 {
		t.Fatalf("%d directives", len(l.AWS.CloudWatchMetrics))
	}
	d := l.AWS.CloudWatchMetrics[0]
	if d.Namespace != names.MetricsSpace || len(d.Dimensions) != 1 || !slices.Equal(d.Dimensions[0], []string{"Install"}) || l.Install != "keeper" {
		t.Errorf("namespace %q, dimensions %v of %q", d.Namespace, d.Dimensions, l.Install)
	}
	for _, m := range d.Metrics {
		if _, ok := members[m.Name].(float64); !ok {
			t.Errorf("%s is %v", m.Name, members[m.Name])
		}
		if found, ok := metrics.Find(metrics.Name(m.Name)); !ok || !found.Charged || string(found.Unit) != m.Unit {
			t.Errorf("%s is charged, in %s: the list says %+v", m.Name, m.Unit, found)
		}
	}
}

// TestASweepTellsZeros: a silent metric is one that nobody measures.
func TestASweepTellsZeros(t *testing.T) {
	v := metrics.OfSweep(core.SweepReport{}, true, time.Now())
	for _, m := range metrics.All {
		value, ok := v[m.Name]
		if (m.Steady || m.Name == metrics.FenceRefusals) && slices.Contains(m.From, names.Reap) && (!ok || value != 0) {
			t.Errorf("an idle sweep tells %v of %s", value, m.Name)
		}
	}
	if _, ok := v[metrics.UnknownRatio]; ok {
		t.Error("a sweep that examined nothing tells a ratio")
	}
}

// TestASparseZeroIsNoMetric: the line has it, and CloudWatch charges nothing for it.
func TestASparseZeroIsNoMetric(t *testing.T) {
	for value, charged := range map[float64]bool{0: false, 2: true} {
		l, members := emitted(t, names.Reap, metrics.Values{metrics.SandboxesLeaked: value, metrics.NotActing: 0})
		listed := slices.ContainsFunc(l.AWS.CloudWatchMetrics[0].Metrics, func(m struct{ Name, Unit string }) bool { return m.Name == string(metrics.SandboxesLeaked) })
		if listed != charged || members[string(metrics.SandboxesLeaked)] != value || len(l.AWS.CloudWatchMetrics[0].Metrics) == 0 {
			t.Errorf("%v: the line is %v", value, members)
		}
	}
}

// TestASweepTellsWhatKeepsEndsBack: a freeze, a tripped breaker and a forgotten observe are
// seen, and not only by who asks.
func TestASweepTellsWhatKeepsEndsBack(t *testing.T) {
	for c, want := range map[core.Control]float64{
		{}: 0, {Mode: core.Enforce}: 0, {Mode: core.Observe}: 1, {Mode: core.Observe, Frozen: true}: 1, {Frozen: true}: 2,
		{Frozen: true, Breaker: core.Breaker{TrippedAt: 1}}: 2, {Breaker: core.Breaker{TrippedAt: 1}}: 3,
	} {
		if v := metrics.OfSweep(core.SweepReport{Standing: c.Standing()}, true, time.Now()); v[metrics.NotActing] != want {
			t.Errorf("%+v: tells %v, want %v", c, v[metrics.NotActing], want)
		}
	}
}

func TestASweepIsCounted(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	r := core.SweepReport{Considered: 7, Probed: 4, OldestLap: core.MillisOf(now.Add(-90 * time.Second)), Runs: []core.RunReport{
		{Outcome: core.Finalized, SavedUSD: 0.25}, {Outcome: core.Finalized, SavedUSD: 0.5}, {Outcome: core.Expired, Planned: true},
		{Outcome: core.Unknown, Reason: "no-route"}, {Outcome: core.Unknown, Reason: core.ReasonUnexamined},
		{Outcome: core.NotClaimed, Refused: true}, {Outcome: core.NotClaimed, Reason: "claimed"},
	}, Stopped: &core.Stopped{AgentEnded: 2_000, At: 14_500}}
	v := metrics.OfSweep(r, true, now)
	for name, want := range map[metrics.Name]float64{
		"RunsFinalized": 2, "RunsExpired": 0, "RunsNotClaimed": 2, metrics.RunsPlanned: 1, metrics.FenceRefusals: 1, metrics.SavedUSD: 0.75,
		metrics.RunsUnexamined: 1, metrics.UnknownRatio: 100.0 / 6, metrics.OldestUnexaminedSeconds: 90, metrics.ExitToStoppedSeconds: 12.5,
	} {
		if v[name] != want {
			t.Errorf("%s is %v, want %v", name, v[name], want)
		}
	}
	if _, ok := metrics.OfSweep(r, false, now)[metrics.OldestUnexaminedSeconds]; ok {
		t.Error("a look at one run passes for a sweep")
	}
}

func TestABatchOfReclaimsIsCounted(t *testing.T) {
	v := metrics.Reclaims()
	v.AddReclaim(core.ReclaimDestroyed, false)
	v.AddReclaim(core.ReclaimDestroyFailed, true)
	v.AddReclaim(core.ReclaimUncaptured, false)
	v.AddReclaim("", true)
	for name, want := range map[metrics.Name]float64{
		"ReclaimsDestroyed": 1, "ReclaimsDestroyFailed": 1, "ReclaimsCheckpointFailed": 1, "ReclaimsHeld": 0,
		metrics.ReclaimFailures: 1, metrics.CheckpointFailures: 1, metrics.ReclaimsUnreadable: 1,
	} {
		if got, ok := v[name]; !ok || got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if _, members := emitted(t, names.Reclaim, v); members["ReclaimsHeld"] != 0.0 {
		t.Errorf("no zero in %v", members)
	}
}

// TestEveryOutcomeHasAProperty: one that the core gains later must be in the list.
func TestEveryOutcomeHasAProperty(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "core", "reclaim.go"))
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^\tReclaim\w+ +ReclaimOutcome = "([a-z-]+)"`).FindAllSubmatch(data, -1)
	v := metrics.Reclaims()
	for _, d := range declared {
		before := len(v)
		if v.AddReclaim(core.ReclaimOutcome(d[1]), false); len(v) != before {
			t.Errorf("the outcome %s has no property", d[1])
		}
	}
	if len(declared) < 10 {
		t.Errorf("%d outcomes found in the core", len(declared))
	}
}

func TestOnlyLostFencesAreRefusals(t *testing.T) {
	if metrics.OfRefusal("unknown-run") != nil || metrics.OfRefusal("claim-lost")[metrics.FenceRefusals] != 1 {
		t.Error("want lost claims counted and nothing else")
	}
}

func TestTheListIsSound(t *testing.T) {
	seen := map[metrics.Name]bool{}
	for i, m := range metrics.All {
		if seen[m.Name] || m.About == "" || len(m.From) == 0 || m.Charged != (i < len(metrics.Charged())) {
			t.Errorf("entry %d: %+v", i, m)
		}
		seen[m.Name] = true
		for _, f := range m.From {
			if !slices.Contains(names.Functions, f) {
				t.Errorf("%s comes from %s", m.Name, f)
			}
		}
	}
	if n := len(metrics.Charged()); n > 10 {
		t.Errorf("%d charged metrics, want at most 10", n)
	}
}

func TestEveryAlarmReadsAChargedMetric(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range metrics.Alarms {
		m, ok := metrics.Find(a.Metric)
		if a.Metric != "" && (!ok || !m.Charged) {
			t.Errorf("%s reads %q, which is no charged metric", a.Name, a.Metric)
		}
		if a.Missing == metrics.Breaching && !m.Steady {
			t.Errorf("%s rings for silence of %s, which is not steady", a.Name, a.Metric)
		}
		if seen[a.Name] || a.Periods < 1 || a.About == "" || a.Period > 24*time.Hour {
			t.Errorf("%+v", a)
		}
		seen[a.Name] = true
	}
}

// words are those of the query language, and @timestamp.
var words = strings.Fields("fields filter sort stats limit desc asc by and or in like as count sum bin ispresent m @timestamp")

// TestAQueryReadsWhatItsLinesHave: each member that a query names stands on one of the kinds
// of line that it is about, or its filter would let nothing through. What members stand on
// which line is held against lines that were really logged, end to end.
func TestAQueryReadsWhatItsLinesHave(t *testing.T) {
	identifier := regexp.MustCompile(`"[^"]*"|@?[A-Za-z]+`)
	for _, q := range metrics.Queries {
		known := []string{"message", "level"}
		for _, l := range q.Lines {
			known = append(known, l.Members...)
			if l.Message != "" && q.ID != "errors" && q.ID != "run" && q.ID != "refusals" && !strings.Contains(q.Text, `message = "`+l.Message+`"`) {
				t.Errorf("%s is about lines %q, and does not ask for them", q.Name, l.Message)
			}
		}
		made := regexp.MustCompile(` as (\w+)`).FindAllStringSubmatch(q.Text, -1)
		for _, m := range made {
			known = append(known, m[1])
		}
		for line := range strings.Lines(q.Text) {
			if strings.HasPrefix(line, "#") {
				continue
			}
			optional := strings.HasPrefix(line, "fields") // shows what there is
			for _, word := range identifier.FindAllString(line, -1) {
				inLog := slices.ContainsFunc(metrics.LogKeys, func(k metrics.LogKey) bool { return k.Name == word })
				if word[0] != '"' && !slices.Contains(words, word) && !slices.Contains(known, word) && !(optional && inLog) {
					t.Errorf("%s reads %s, which none of its lines has", q.Name, word)
				}
			}
		}
	}
}

func TestWhatIsNotListedPanics(t *testing.T) {
	for f, v := range map[names.Function]metrics.Values{
		names.Reap: {"Nonsense": 1}, names.Probe: {metrics.SandboxesLeaked: 1},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s wrote %v", f, v)
				}
			}()
			emitted(t, f, v)
		}()
	}
	var none *metrics.Meter
	none.Emit(metrics.Values{"Nonsense": 1}) // nobody listens
}

// TestThePageIsMadeFromTheList: go test ./internal/metrics -update writes it.
func TestThePageIsMadeFromTheList(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "metrics.md")
	if *update {
		if err := os.WriteFile(path, []byte(metrics.Page()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, want := strings.Split(string(data), "\n"), strings.Split(metrics.Page(), "\n")
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("line %d of docs/metrics.md is not what the list says; go test ./internal/metrics -update writes it", i+1)
		}
	}
}
