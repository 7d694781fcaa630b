package main

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

func testBinary(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// reported is what a command prints that has the function report.
type reported struct {
	DryRun bool             `json:"dryRun"`
	Plan   planFile         `json:"plan"`
	Report core.SweepReport `json:"report"`
}

func (r reported) of(key core.RunKey) core.RunReport {
	for _, e := range r.Report.Runs {
		if e.RunKey == key {
			return e
		}
	}
	return core.RunReport{}
}

func TestAPlanIsAppliedAsItWasMade(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{run: "planned", shell: "echo done"})
	w.exited(t, r)
	file := filepath.Join(t.TempDir(), "plan.json")

	w.unchanged(t, func() {
		plan := read[reported](t, exitDone, "plan", "--out", file)
		want := core.PlanEntry{RunKey: r.RunKey, Outcome: core.Finalized, Epoch: r.Epoch}
		if !slices.Contains(plan.Plan.Entries, want) || plan.Plan.Install != w.out[names.OutInstall] {
			t.Errorf("plan %+v lacks %+v", plan.Plan, want)
		}
		if dry := read[reported](t, exitDone, "apply", file, "--dry-run"); !dry.DryRun || dry.of(r.RunKey).Outcome != core.Finalized {
			t.Errorf("dry run %+v", dry)
		}
		a := sandkeeper(t, "apply", file).wants(t, exitRefused)
		if !strings.Contains(a.err, "--yes") {
			t.Errorf("without anybody to ask: %q", a.err)
		}
		if a := sandkeeper(t, "plan", "--out", file).wants(t, exitUsage); !strings.Contains(a.err, "is there already") {
			t.Errorf("a file that is there: %q", a.err)
		}
	})

	applied := read[reported](t, exitDone, "apply", file, "--yes")
	if e := applied.of(r.RunKey); e.Outcome != core.Finalized || e.Status != core.Completed {
		t.Errorf("applied %+v", e)
	}
	if got := w.read(t, r.RunKey); got.Status != core.Completed {
		t.Errorf("the run is %s", got.Status)
	}
	again := read[reported](t, exitDone, "apply", file, "--yes")
	if e := again.of(r.RunKey); e.Outcome != core.NotClaimed {
		t.Errorf("applied again %+v", e)
	}
}

func TestAPlanThatIsNoneOrNotOursIsRefused(t *testing.T) {
	w := installed(t)
	dir := t.TempDir()
	entry := `{"tenant":"a","run":"b","outcome":"finalized","epoch":1}`
	for name, row := range map[string]struct {
		text string
		code int
		says string
	}{
		"no JSON":              {`plan`, exitUsage, "want what plan --out saves"},
		"another member":       {`{"v":1,"force":true}`, exitUsage, "force"},
		"another version":      {`{"v":2,"install":"sandkeeper","region":"us-east-1","madeAt":"2026-11-30T00:00:00Z","entries":[]}`, exitUsage, "want version 1, got 2"},
		"another outcome":      {`{"v":1,"install":"sandkeeper","region":"us-east-1","madeAt":"2026-11-30T00:00:00Z","entries":[{"tenant":"a","run":"b","outcome":"destroyed","epoch":1}]}`, exitUsage, "want an outcome"},
		"a time that is none":  {`{"v":1,"install":"sandkeeper","region":"us-east-1","madeAt":"today","entries":[]}`, exitUsage, "want a time"},
		"another installation": {`{"v":1,"install":"other","region":"us-east-1","madeAt":"2026-11-30T00:00:00Z","entries":[` + entry + `]}`, exitRefused, "is of installation other"},
		"another Region":       {`{"v":1,"install":"` + w.out[names.OutInstall] + `","region":"eu-west-1","madeAt":"2026-11-30T00:00:00Z","entries":[` + entry + `]}`, exitRefused, "eu-west-1"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			if err := os.WriteFile(file, []byte(row.text), 0o600); err != nil {
				t.Fatal(err)
			}
			a := sandkeeper(t, "apply", file, "--yes").wants(t, row.code)
			if !strings.Contains(a.err, row.says) {
				t.Errorf("said %q, want %q", a.err, row.says)
			}
		})
	}
	sandkeeper(t, "apply", filepath.Join(dir, "absent"), "--yes").wants(t, exitUsage)
}

func TestSweepEndsWhatHasEnded(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{run: "swept", shell: "echo done; exit 3"})
	w.exited(t, r)
	name := r.RunKey.String()
	w.unchanged(t, func() {
		if dry := read[reported](t, exitDone, "sweep", name, "--dry-run"); dry.of(r.RunKey).Outcome != core.Finalized || !dry.of(r.RunKey).Planned {
			t.Errorf("dry run %+v", dry)
		}
		sandkeeper(t, "sweep", name).wants(t, exitRefused)
		sandkeeper(t, "sweep", "--yes", "--shard", "8").wants(t, exitUsage)
		sandkeeper(t, "sweep", "--yes", "--shard", "1", name).wants(t, exitUsage)
	})
	done := read[reported](t, exitDone, "sweep", name, "--yes")
	if e := done.of(r.RunKey); e.Outcome != core.Finalized || e.Status != core.Failed || e.ExitCode == nil || *e.ExitCode != 3 {
		t.Errorf("swept %+v", e)
	}
	unknown := read[reported](t, exitDone, "sweep", "nobody/nothing", "--yes")
	if len(unknown.Report.Runs) != 1 || unknown.Report.Runs[0].Reason != "unknown-run" {
		t.Errorf("an unknown run: %+v", unknown.Report.Runs)
	}
}

func TestRunsAreListedShownAndFiltered(t *testing.T) {
	w := installed(t)
	live := w.begin(t, agent{run: "listed", shell: lives})
	host := w.begin(t, agent{tenant: live.Tenant, run: "listed-host", shell: lives, stays: true})
	type listing struct {
		Runs []runView `json:"runs"`
	}
	of := func(args ...string) []string {
		var got []string
		for _, r := range read[listing](t, exitDone, append([]string{"runs", "--tenant", string(live.Tenant)}, args...)...).Runs {
			got = append(got, string(r.RunKey.Run))
		}
		slices.Sort(got)
		return got
	}
	for name, row := range map[string]struct {
		args []string
		want []string
	}{
		"all that an index shows": {nil, []string{"listed", "listed-host"}},
		"by standing":             {[]string{"--standing", "attached"}, []string{"listed-host"}},
		"by status":               {[]string{"--status", "interrupted"}, nil},
		"by scan":                 {[]string{"--all"}, []string{"listed", "listed-host"}},
		"of a thread":             {[]string{"--thread", string(live.Thread)}, []string{"listed"}},
		"no more than one":        {[]string{"--limit", "1", "--standing", "detached"}, []string{"listed"}},
		"in another order":        {[]string{"--limit", "1", "--sort", "run"}, []string{"listed"}},
		"the first to expire":     {[]string{"--limit", "1", "--sort", "expires"}, []string{"listed"}},
		"of the last hours":       {[]string{"--since", "2h"}, []string{"listed", "listed-host"}},
		"of no time at all":       {[]string{"--since", "1ns"}, nil},
		"of a thread by its name": {[]string{"--tenant=", "--thread", string(live.Tenant) + "/" + string(live.Thread)}, []string{"listed"}},
	} {
		if got := of(row.args...); !slices.Equal(got, row.want) {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}
	shown := read[runView](t, exitDone, "show", live.RunKey.String())
	if shown.TaskARN != live.TaskARN || shown.Standing != core.StandingDetached || shown.Epoch != live.Epoch || shown.ExpiresAt == 0 {
		t.Errorf("shown %+v of %+v", shown, live)
	}
	text := sandkeeper(t, "show", host.RunKey.String()).wants(t, exitDone)
	if !strings.Contains(text.out, "attached until") || strings.Contains(text.out, host.Nonce) {
		t.Errorf("shown as text:\n%s", text.out)
	}
	if wide := sandkeeper(t, "runs", "--wide", "--tenant", string(live.Tenant)).wants(t, exitDone); !strings.Contains(wide.out, taskID(live.TaskARN)) {
		t.Errorf("wide:\n%s", wide.out)
	}
	if a := sandkeeper(t, "show", "nobody/listed-host").wants(t, exitNotFound); !strings.Contains(a.err, "did you mean "+host.RunKey.String()) {
		t.Errorf("a run of another tenant: %q", a.err)
	}
	if a := sandkeeper(t, "explain", string(live.Tenant)+"/none-such").wants(t, exitNotFound); !strings.Contains(a.err, "sandkeeper runs lists") {
		t.Errorf("a run that nothing is like: %q", a.err)
	}
	sandkeeper(t, "runs", "--standing", "asleep").wants(t, exitUsage)
	sandkeeper(t, "runs", "--all", "--thread", "x").wants(t, exitUsage)
	sandkeeper(t, "runs", "--limit", "-1").wants(t, exitUsage)
	if a := sandkeeper(t, "runs", "--stack", "absent").wants(t, exitNotFound); !strings.Contains(a.err, "--region") {
		t.Errorf("a stack that is not there: %q", a.err)
	}
}

// TestWhatTheToolPrintsItTakes: the command that explain prints for a run without a tenant
// is one, and completion knows the run and its thread.
func TestWhatTheToolPrintsItTakes(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{tenant: noTenant, run: core.RunID("printed-" + rand.Text()), shell: lives})
	said := point(read[explanation](t, exitDone, "explain", r.RunKey.String(), "--no-probe").Ends, "cancelled").Says
	_, line, ok := strings.Cut(said, ": ")
	if !ok {
		t.Fatalf("explain says %q", said)
	}
	sandkeeper(t, append(typed(t, t.TempDir(), line), "--why", "tried", "--dry-run")...).wants(t, exitDone)

	for name, words := range map[string][]string{
		string(r.RunKey.Run): {"show", "printed-"},
		r.RunKey.String():    {"kill", "--why", "x", "-/printed-"},
		string(r.Thread):     {"checkpoints", "list", "printed-"},
	} {
		a := tool(t, "", append([]string{"__complete", "--local"}, words...)...).wants(t, exitDone)
		if !slices.Contains(strings.Fields(a.out), name) {
			t.Errorf("%q is completed by %q, want %s", words, a.out, name)
		}
	}
	if a := tool(t, "", "__complete", "--local", "--stack", "absent", "show", "printed-").wants(t, exitDone); a.out != "" || a.err != "" {
		t.Errorf("of a stack that is not there: %q, %q", a.out, a.err)
	}
}

// point finds a statement.
func point(points []pointView, what string) pointView {
	for _, p := range points {
		if p.What == what {
			return p
		}
	}
	return pointView{}
}

func TestExplainSaysWhyARunIsWhereItIs(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{run: "explained", shell: lives})
	w.wrote(t, r, "begun")
	name := r.RunKey.String()
	sandkeeper(t, "hold", name, "--for", "1h", "--why", "to look at it").wants(t, exitDone)
	var e explanation
	w.unchanged(t, func() { e = read[explanation](t, exitDone, "explain", name) })
	if e.Standing != core.StandingDetached || e.Epoch != r.Epoch {
		t.Errorf("it is %s under epoch %d", e.Standing, e.Epoch)
	}
	if p := point(e.Evidence, "verdict"); !strings.Contains(p.Says, "no-sentinel") {
		t.Errorf("verdict %q", p.Says)
	}
	if p := point(e.Evidence, "task"); !strings.Contains(p.Says, "lives; exec agent RUNNING") {
		t.Errorf("task %q", p.Says)
	}
	if p := point(e.Ends, "expired"); p.At != stamp(r.DetachedSince.Add(core.DefaultLimits.RunTTL)) {
		t.Errorf("expires at %s", p.At)
	}
	if p := point(e.Blocked, "held"); !strings.Contains(p.Says, "by tester: to look at it") {
		t.Errorf("blocked %+v", e.Blocked)
	}
	if point(e.Next, "sweep").At == 0 {
		t.Errorf("next %+v", e.Next)
	}
	quiet := read[explanation](t, exitDone, "explain", name, "--no-probe")
	if p := point(quiet.Evidence, "verdict"); p.Says != "" {
		t.Errorf("not probed, and the verdict is %q", p.Says)
	}
	sandkeeper(t, "explain", "nobody/nothing").wants(t, exitNotFound)
	if a := sandkeeper(t, "explain", name).wants(t, exitDone); !strings.Contains(a.out, "keeps it from that") {
		t.Errorf("as text:\n%s", a.out)
	}
}

// TestExplainTakesFiveCalls, the one that finds the stack included.
func TestExplainTakesFiveCalls(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{run: "counted", shell: lives})
	w.wrote(t, r, "begun")
	var calls atomic.Int32
	counting := func(target string) string {
		to, err := url.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		proxy := httputil.NewSingleHostReverseProxy(to)
		server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
			calls.Add(1)
			proxy.ServeHTTP(out, request)
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	t.Setenv("AWS_ENDPOINT_URL", counting(w.engine.Endpoint))
	t.Setenv("AWS_ENDPOINT_URL_ECS", counting(w.fargate.URL()))
	e := read[explanation](t, exitDone, "explain", r.RunKey.String())
	if n := calls.Load(); n > 5 || point(e.Evidence, "verdict").Says == "" || point(e.Evidence, "ledger").Says == "" || point(e.Evidence, "task").Says == "" {
		t.Errorf("%d calls for %+v", n, e.Evidence)
	}
}

func TestHoldExtendAndReleaseAreRecorded(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{run: "held", shell: lives})
	name := r.RunKey.String()
	w.unchanged(t, func() {
		if dry := read[act](t, exitDone, "hold", name, "--for", "2h", "--why", "x", "--dry-run"); !dry.DryRun || dry.Run.Hold == nil {
			t.Errorf("dry hold %+v", dry)
		}
		if dry := read[act](t, exitDone, "extend", name, "--ttl", "12h", "--why", "x", "--dry-run"); dry.Run.TTLSeconds != 12*3600 {
			t.Errorf("dry extend %+v", dry)
		}
		if dry := read[act](t, exitDone, "kill", name, "--why", "x", "--dry-run"); dry.Run.CancelRequested == 0 {
			t.Errorf("dry kill %+v", dry)
		}
		sandkeeper(t, "kill", name, "--why", "x").wants(t, exitRefused)
		sandkeeper(t, "release", name, "--why", "x").wants(t, exitRefused)
		sandkeeper(t, "hold", name, "--until", "2020-01-01T00:00:00Z", "--why", "x").wants(t, exitUsage)
		sandkeeper(t, "hold", name, "--for", "31d", "--why", "x").wants(t, exitUsage)
		sandkeeper(t, "hold", "nobody/nothing", "--for", "1h", "--why", "x", "--dry-run").wants(t, exitNotFound)
		sandkeeper(t, "hold", "nobody/nothing", "--for", "1h", "--why", "x").wants(t, exitNotFound)
		sandkeeper(t, "kill", "nobody/nothing", "--why", "x", "--yes").wants(t, exitNotFound)
	})
	if done := read[act](t, exitDone, "hold", name, "--for", "2h", "--why", "the customer asks"); done.Run.Hold == nil || done.Run.Hold.By != "tester" {
		t.Errorf("held %+v", done)
	}
	if got := w.read(t, r.RunKey).Hold; got.By != "tester" || got.Why != "the customer asks" || !got.Live(core.MillisOf(time.Now())) {
		t.Errorf("hold %+v", got)
	}
	read[act](t, exitDone, "extend", name, "--by", "1h", "--why", "a long build")
	if got := w.read(t, r.RunKey).TTLSeconds; got != int64((core.DefaultLimits.RunTTL + time.Hour).Seconds()) {
		t.Errorf("ttl %d", got)
	}
	for _, most := range []string{"0", "-1", "1000001"} {
		sandkeeper(t, "extend", name, "--spend-cap="+most, "--why", "x").wants(t, exitUsage)
	}
	if dry := read[act](t, exitDone, "extend", name, "--spend-cap", "1.25", "--why", "x", "--dry-run"); dry.Run.SpendCapUSD != 1.25 || w.read(t, r.RunKey).SpendCap != 0 {
		t.Errorf("dry extend %+v", dry)
	}
	read[act](t, exitDone, "release", name, "--why", "done looking", "--yes")
	if got := w.read(t, r.RunKey).Hold; got.Until != 0 {
		t.Errorf("still held %+v", got)
	}
	trail := read[struct {
		Acts []actView `json:"acts"`
	}](t, exitDone, "audit", "trail", "--subject", name)
	var ops []string
	for _, a := range trail.Acts {
		ops = append(ops, a.Op+" "+a.By+" "+a.Why)
	}
	if want := []string{"release tester done looking", "extend tester a long build", "hold tester the customer asks"}; !slices.Equal(ops, want) {
		t.Errorf("recorded %q, want %q", ops, want)
	}
}

// TestOneCommandActsOnSeveralRuns, each of which is answered by itself: one that there is
// not, or that is refused, keeps no other from it.
func TestOneCommandActsOnSeveralRuns(t *testing.T) {
	w := installed(t)
	first := w.begin(t, agent{run: "several-1", shell: lives})
	last := w.begin(t, agent{tenant: first.Tenant, run: "several-2", shell: lives})
	for _, r := range []core.Run{first, last} {
		w.wrote(t, r, "begun")
	}
	absent := string(first.Tenant) + "/absent"
	names := []string{first.RunKey.String(), absent, last.RunKey.String()}
	check := func(t *testing.T, got act, words ...string) {
		t.Helper()
		if len(got.Runs) != len(names) || got.By != "tester" || got.Why != "tonight" {
			t.Fatalf("answered %+v", got)
		}
		for i, one := range got.Runs {
			if one.RunKey.String() != names[i] || one.Code != words[i] || (one.Error == "") != (words[i] == "") || (one.State != nil) != (words[i] == "") {
				t.Errorf("%s: %+v, want the word %q", names[i], one, words[i])
			}
		}
	}
	args := func(op string, more ...string) []string {
		return slices.Concat([]string{op}, names, []string{names[0], "--why", "tonight"}, more)
	}
	holds := func() (held []bool) {
		for _, r := range []core.Run{first, last} {
			held = append(held, w.read(t, r.RunKey).Hold.Until != 0)
		}
		return held
	}
	w.unchanged(t, func() {
		check(t, read[act](t, exitNotFound, args("hold", "--for", "1h", "--dry-run")...), "", "not-found", "")
		if a := sandkeeper(t, args("release")...).wants(t, exitRefused); !strings.Contains(a.err, "--yes") {
			t.Errorf("with nobody to ask: %q", a.err)
		}
	})
	check(t, read[act](t, exitNotFound, args("hold", "--for", "1h")...), "", "not-found", "")
	if got := holds(); !slices.Equal(got, []bool{true, true}) {
		t.Errorf("held: %v", got)
	}
	a := sandkeeper(t, args("release", "--yes")...).wants(t, exitNotFound)
	if !strings.Contains(a.err, "not done to 1 of 3 runs") || !strings.Contains(a.out, "not-found") || strings.Count(a.out, "done") != 2 {
		t.Errorf("as text: %q, %q", a.out, a.err)
	}
	if got := holds(); !slices.Equal(got, []bool{false, false}) {
		t.Errorf("held once released: %v", got)
	}
	check(t, read[act](t, exitNotFound, args("extend", "--by", "1h")...), "", "not-found", "")
	if got := w.read(t, first.RunKey).TTLSeconds; got != int64((core.DefaultLimits.RunTTL + time.Hour).Seconds()) {
		t.Errorf("named twice, it may stay %d s", got)
	}
	sandkeeper(t, "kill", names[0], "--why", "tonight", "--yes", "--now").wants(t, exitDone)
	done := read[act](t, exitFailed, args("kill", "--yes", "--now")...)
	check(t, done, "refused", "not-found", "")
	if done.Runs[0].Reason != "terminal" || done.Report == nil || len(done.Report.Runs) != 1 || done.Report.Runs[0].RunKey != last.RunKey || !w.read(t, last.RunKey).Status.Terminal() {
		t.Errorf("killed %+v", done)
	}
	acts := read[struct {
		Acts []actView `json:"acts"`
	}](t, exitDone, "audit", "trail", "--subject", absent).Acts
	if len(acts) != 0 {
		t.Errorf("of what there is not it is recorded: %+v", acts)
	}
}

func TestKillEndsARunAtOnce(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{run: "killed", shell: lives})
	w.wrote(t, r, "begun")
	done := read[reported](t, exitDone, "kill", r.RunKey.String(), "--why", "it loops", "--yes", "--now")
	if e := done.of(r.RunKey); e.Outcome != core.Cancelled {
		t.Errorf("killed %+v", e)
	}
	if got := w.read(t, r.RunKey); !got.Status.Terminal() || got.CancelRequested == 0 {
		t.Errorf("the run is %s", got.Status)
	}
	sandkeeper(t, "kill", r.RunKey.String(), "--why", "again", "--yes").wants(t, exitRefused)
	sandkeeper(t, "extend", r.RunKey.String(), "--ttl", "1h", "--why", "too late").wants(t, exitRefused)
}

func TestFreezeThawAndModeAreRecorded(t *testing.T) {
	w := installed(t)
	w.unchanged(t, func() {
		if dry := read[settled](t, exitDone, "freeze", "--why", "x", "--dry-run"); dry.Control.Frozen == nil || dry.Control.Mode != core.Enforce {
			t.Errorf("dry freeze %+v", dry)
		}
		if dry := read[settled](t, exitDone, "mode", "observe", "--why", "x", "--dry-run"); dry.Control.Mode != core.Observe {
			t.Errorf("dry mode %+v", dry)
		}
		sandkeeper(t, "thaw", "--why", "x").wants(t, exitRefused)
		sandkeeper(t, "mode", "enforce", "--why", "x").wants(t, exitRefused)
		sandkeeper(t, "mode", "observe").wants(t, exitUsage)
	})
	if done := read[settled](t, exitDone, "freeze", "--why", "an incident"); done.Control.Frozen == nil || done.Control.Frozen.By != "tester" {
		t.Errorf("frozen %+v", done)
	}
	if c, err := w.boxes.Control(t.Context()); err != nil || !c.Frozen || c.FrozenWhy != "an incident" {
		t.Errorf("control %+v: %v", c, err)
	}
	if done := read[settled](t, exitDone, "thaw", "--why", "over", "--yes"); done.Control.Frozen != nil || done.Control.QuietUntil == 0 {
		t.Errorf("thawed %+v", done)
	}
	read[settled](t, exitDone, "mode", "observe", "--why", "an upgrade")
	t.Cleanup(func() { read[settled](t, exitDone, "mode", "enforce", "--why", "upgraded", "--yes") })
	if shown := read[settled](t, exitDone, "mode"); shown.Control.Mode != core.Observe {
		t.Errorf("mode %+v", shown)
	}
	r := w.begin(t, agent{run: "observed", shell: "echo done"})
	w.exited(t, r)
	a := sandkeeper(t, "sweep", r.RunKey.String(), "--yes").wants(t, exitRefused)
	if !strings.Contains(a.err, "observes") || w.read(t, r.RunKey).Status != core.Running {
		t.Errorf("a sweep that observes said %q", a.err)
	}
	e := read[explanation](t, exitDone, "explain", r.RunKey.String())
	if point(e.Blocked, "observe").Says == "" {
		t.Errorf("blocked %+v", e.Blocked)
	}
	read[settled](t, exitDone, "mode", "enforce", "--why", "upgraded", "--yes")
	acts := read[struct {
		Acts []actView `json:"acts"`
	}](t, exitDone, "audit", "trail", "--days", "0", "--subject", "installation").Acts
	if len(acts) < 4 || acts[0].Op != "mode" || acts[0].Detail != "enforce" || acts[0].By != "tester" {
		t.Errorf("recorded %+v", acts)
	}
}

// TestOutputsThatAreGivenDoWithoutCloudFormation, by flag or environment; what is missing
// is asked for.
func TestOutputsThatAreGivenDoWithoutCloudFormation(t *testing.T) {
	w := installed(t)
	var given []string
	for _, key := range needed {
		given = append(given, string(key)+"="+w.out[key])
	}
	sandkeeper(t, "runs", "--stack", "absent", "--output", strings.Join(given, ",")).wants(t, exitDone)
	sandkeeper(t, "runs", "--stack", "absent", "--output", given[0]).wants(t, exitNotFound)
	t.Setenv("SANDKEEPER_OUTPUTS", strings.Join(given, ","))
	sandkeeper(t, "runs", "--stack", "absent").wants(t, exitDone)
}

// TestLocalLetsNothingOfTheCallersIn: neither a profile, nor a session, nor what a
// configuration file says.
func TestLocalLetsNothingOfTheCallersIn(t *testing.T) {
	installed(t)
	file := filepath.Join(t.TempDir(), "config")
	text := "[profile prod]\nregion = eu-west-1\nendpoint_url = https://example.test\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"AWS_CONFIG_FILE": file, "AWS_PROFILE": "prod", "AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "session",
	} {
		t.Setenv(name, value)
	}
	cfg, err := (&globals{Local: true}).config(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	keys, err := cfg.Credentials.Retrieve(t.Context())
	if err != nil || keys.AccessKeyID != "test" || keys.SecretAccessKey != "test" || keys.SessionToken != "" || cfg.Region != engine.Region {
		t.Errorf("credentials of %s in %s: %v", keys.AccessKeyID, cfg.Region, err)
	}
	sandkeeper(t, "runs").wants(t, exitDone)
}

func TestWhoActsIsTheCallersIdentityUnlessNamed(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{run: "by-identity", shell: lives})
	a := tool(t, "", "hold", r.RunKey.String(), "--for", "1h", "--why", "x", "--local", "--json").wants(t, exitDone)
	var done act
	if err := json.Unmarshal([]byte(a.out), &done); err != nil || !strings.HasPrefix(done.By, "arn:aws:") {
		t.Errorf("by %q: %v", done.By, err)
	}
	if got := w.read(t, r.RunKey).Hold.By; got != done.By {
		t.Errorf("recorded %q", got)
	}
}

// TestARunEndsAtItsSpendCap, which a plan shows, a hold puts off, and a sweep carries out.
func TestARunEndsAtItsSpendCap(t *testing.T) {
	w := installed(t)
	r := w.begin(t, agent{run: "spent", shell: lives})
	w.wrote(t, r, "begun")
	name := r.RunKey.String()
	sandkeeper(t, "extend", name, "--spend-cap", "0.000001", "--why", "to see it end").wants(t, exitDone)
	var planned core.RunReport
	eventually(t, "the cap is reached", func() bool {
		planned = read[reported](t, exitDone, "plan", name).of(r.RunKey)
		return planned.Outcome == core.Expired
	})
	if !planned.Planned || planned.Reason != string(core.EndSpendCap) {
		t.Errorf("planned %+v", planned)
	}
	if p := point(read[explanation](t, exitDone, "explain", name).Ends, "spend-cap"); p.At == 0 || !strings.Contains(p.Says, "an hour") {
		t.Errorf("explained %+v", p)
	}
	sandkeeper(t, "hold", name, "--for", "1h", "--why", "look").wants(t, exitDone)
	if e := read[reported](t, exitDone, "sweep", name, "--yes").of(r.RunKey); e.Outcome != core.Held {
		t.Errorf("held, and swept as %+v", e)
	}
	sandkeeper(t, "release", name, "--why", "done", "--yes").wants(t, exitDone)
	if e := read[reported](t, exitDone, "sweep", name, "--yes").of(r.RunKey); e.Outcome != core.Expired || e.Reason != string(core.EndSpendCap) {
		t.Errorf("swept as %+v", e)
	}
	if got := w.read(t, r.RunKey); !got.Status.Terminal() || got.Ending == nil || got.Ending.Reason != core.EndSpendCap {
		t.Errorf("it is %s, for %+v", got.Status, got.Ending)
	}
}
