package main

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// runsCommand lists runs.
type runsCommand struct {
	selection
	Since span   `help:"Only runs that began within this time, like 2h or 7d." placeholder:"DURATION"`
	Sort  string `help:"By what: ${enum}." enum:"started,expires,saved,run" default:"started"`
	Limit int    `help:"Show no more than this many, the first; 0 is all." default:"0"`
	Wide  bool   `short:"w" help:"With epoch, definition and task."`
}

// selection says which runs a command is about.
type selection struct {
	Tenant   string   `help:"Only this tenant's." placeholder:"ID"`
	Thread   string   `help:"The runs of a thread, TENANT/THREAD, ended ones too." placeholder:"NAME"`
	Status   []string `help:"Only those with a status: running, interrupted, completed, failed, aborted." enum:"running,interrupted,completed,failed,aborted"`
	Standing []string `help:"Only those with a standing, such as detached or ended-owing." placeholder:"NAME"`
	All      bool     `help:"All runs that there are, by a scan of the table."`
}

// standings are the values of --standing.
var standings = []string{
	core.StandingAttached, core.StandingLapsed, core.StandingDetached, core.StandingPaused, core.StandingCancelled,
	core.StandingEnding, core.StandingOwing, core.StandingWarm, core.StandingEnded, core.StandingLost,
}

// sorted puts runs in the order that was asked for.
func (c *runsCommand) sorted(runs []core.Run, l core.Limits) {
	before := map[string]func(a, b core.Run) int{
		"started": func(a, b core.Run) int { return cmp.Compare(b.StartedAt, a.StartedAt) },
		"saved":   func(a, b core.Run) int { return cmp.Compare(b.LogEnd, a.LogEnd) },
		"expires": func(a, b core.Run) int { return cmp.Compare(uint64(expiry(a, l))-1, uint64(expiry(b, l))-1) }, // none comes last
		"run":     func(core.Run, core.Run) int { return 0 },
	}[c.Sort]
	slices.SortFunc(runs, func(a, b core.Run) int {
		return cmp.Or(before(a, b), strings.Compare(a.RunKey.String(), b.RunKey.String()))
	})
}

// Run prints the runs, the newest first where nothing else is asked for.
func (c *runsCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	if c.Limit < 0 {
		return badInput("limit: want a number from 0 on, got %d", c.Limit)
	}
	runs, bad, err := c.read(ctx, in, out)
	if err != nil {
		return err
	}
	now := core.MillisOf(time.Now())
	if c.Since != 0 {
		runs = slices.DeleteFunc(runs, func(r core.Run) bool { return now.Sub(r.StartedAt) > c.Since.duration() })
	}
	c.sorted(runs, in.limits)
	if c.Limit > 0 && len(runs) > c.Limit {
		runs = runs[:c.Limit]
	}
	views := []runView{}
	for _, r := range runs {
		views = append(views, viewRun(r, now, in.limits))
	}
	return out.Print(map[string]any{"runs": views, "unreadable": viewUnreadable(bad)}, func(w *console.Writer) {
		printRuns(w, views, now, c.Wide)
		for _, b := range bad {
			w.Line("unreadable: %s: %v", b.RunKey, b.Err)
		}
	})
}

func printRuns(w *console.Writer, views []runView, now core.Millis, wide bool) {
	header := []string{"RUN", "THREAD", "STATUS", "STANDING", "AGE", "SAVED", "EXPIRES", "HELD"}
	if wide {
		header = append(header, "EPOCH", "DEFINITION", "TASK")
	}
	var rows [][]string
	for _, v := range views {
		held := ""
		if v.Hold != nil && core.Millis(v.Hold.Until) > now {
			held = "until " + v.Hold.Until.String()
		}
		row := []string{
			v.RunKey.String(), string(v.Thread), string(v.Status), v.Standing, ago(core.Millis(v.StartedAt), now),
			size(v.LogEnd), v.ExpiresAt.String(), held,
		}
		if wide {
			row = append(row, strconv.FormatInt(v.Epoch, 10), v.Definition, taskID(v.TaskARN))
		}
		rows = append(rows, row)
	}
	w.Table(header, rows, "no runs")
}

// read finds the selected runs, the newest first.
func (s selection) read(ctx context.Context, in *installation, out *console.Console) ([]core.Run, []core.Unreadable, error) {
	for _, name := range s.Standing {
		if !slices.Contains(standings, name) {
			return nil, nil, badInput("standing: want one of %v, got %q", standings, name)
		}
	}
	if s.All && s.Thread != "" {
		return nil, nil, badInput("want --thread or --all, got both")
	}
	runs, bad, err := s.list(ctx, in, out)
	if err != nil {
		return nil, nil, err
	}
	now := core.MillisOf(time.Now())
	runs = slices.DeleteFunc(runs, func(r core.Run) bool {
		return s.Tenant != "" && string(r.Tenant) != s.Tenant ||
			len(s.Status) > 0 && !slices.Contains(s.Status, string(r.Status)) ||
			len(s.Standing) > 0 && !slices.Contains(s.Standing, core.StandingOf(r, now))
	})
	byStart(runs)
	return runs, bad, nil
}

func (s selection) list(ctx context.Context, in *installation, out *console.Console) ([]core.Run, []core.Unreadable, error) {
	switch {
	case s.Thread != "":
		thread, err := oneThread{s.Thread, s.Tenant}.key()
		if err != nil {
			return nil, nil, err
		}
		keys, err := in.reader.Thread(ctx, thread.Tenant, thread.Thread)
		if err != nil {
			return nil, nil, err
		}
		return in.load(ctx, keys)
	case s.All:
		return scan(ctx, in, out)
	}
	return in.indexed(ctx)
}

// scan reads every record.
func scan(ctx context.Context, in *installation, out *console.Console) (runs []core.Run, bad []core.Unreadable, err error) {
	defer out.Done()
	for one, err := range in.reader.AllRuns(ctx) {
		switch {
		case err != nil:
			return nil, nil, err
		case one.Bad != nil:
			bad = append(bad, *one.Bad)
		default:
			runs = append(runs, one.Run)
		}
		if n := len(runs) + len(bad); n%500 == 0 {
			out.Progress("%d runs read", n)
		}
	}
	return runs, bad, nil
}

// showCommand prints a record.
type showCommand struct{ oneRun }

// Run prints it whole.
func (c *showCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	key, err := c.key()
	if err != nil {
		return err
	}
	r, err := in.runs.Run(ctx, key)
	if err != nil {
		return err
	}
	v := viewRun(r, core.MillisOf(time.Now()), in.limits)
	return out.Print(v, func(w *console.Writer) { w.Pairs(v.pairs()) })
}

// explainCommand says why a run is where it is.
type explainCommand struct {
	oneRun
	NoProbe bool `help:"Do not ask the sandbox: no exec session."`
}

// pointView is one statement of an explanation.
type pointView struct {
	What string `json:"what"`
	Says string `json:"says"`
	At   stamp  `json:"at,omitzero"` // when it was said, or is to be
}

// explanation is what explain prints.
type explanation struct {
	core.RunKey
	Standing string      `json:"standing"`
	Since    stamp       `json:"since,omitzero"`
	Epoch    int64       `json:"epoch"`
	Evidence []pointView `json:"evidence"` // what records and ECS say
	Next     []pointView `json:"next"`     // when somebody looks by itself
	Ends     []pointView `json:"ends"`     // each way in which it can end
	Blocked  []pointView `json:"blocked"`  // what keeps it from that
}

// Run reads the record, what is kept beside it, ECS's word, and what the deployed
// sweep would do with it: four calls, beside the one for the stack.
func (c *explainCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	key, err := c.key()
	if err != nil {
		return err
	}
	e, err := in.explain(ctx, key, !c.NoProbe)
	if err != nil {
		return err
	}
	return out.Print(e, func(w *console.Writer) { e.print(w) })
}

func (in *installation) explain(ctx context.Context, key core.RunKey, probe bool) (explanation, error) {
	r, err := in.runs.Run(ctx, key)
	if err != nil {
		return explanation{}, err
	}
	known, err := in.reader.Known(ctx, r)
	if err != nil {
		return explanation{}, err
	}
	if known.Control.Mode == "" {
		known.Control.Mode = core.Mode(in.out[names.OutMode])
	}
	known.Task = in.describe(ctx, r)
	if probe && !r.Status.Terminal() {
		known.Verdict = in.verdict(ctx, key)
	}
	return view(core.Explain(known, core.MillisOf(time.Now()), in.limits), r), nil
}

// describe is what ECS says of the run's task. An answer that did not come leaves the
// explanation without it: it is about the rest as well.
func (in *installation) describe(ctx context.Context, r core.Run) *core.Task {
	if r.TaskARN == "" {
		return nil
	}
	tasks, err := in.tasks.Describe(ctx, r.Cluster, []string{r.TaskARN})
	if err != nil {
		return &core.Task{ARN: r.TaskARN, Life: core.TaskUnknown, Reason: err.Error()}
	}
	return &tasks[0]
}

// verdict is what a sweep would do with the run now.
func (in *installation) verdict(ctx context.Context, key core.RunKey) *core.RunReport {
	report, err := in.reap(ctx, core.SweepRequest{Mode: core.ModePlan, Runs: []core.RunKey{key}})
	if err != nil {
		return &core.RunReport{RunKey: key, Outcome: core.Unknown, Error: err.Error()}
	}
	for _, e := range report.Runs {
		if e.RunKey == key {
			return &e
		}
	}
	return nil
}

func view(e core.Explanation, r core.Run) explanation {
	points := func(from []core.Point) []pointView {
		out := []pointView{}
		for _, p := range from {
			out = append(out, pointView{p.What, p.Says, stamp(p.At)})
		}
		return out
	}
	return explanation{
		RunKey: r.RunKey, Standing: e.Standing, Since: stamp(e.Since), Epoch: r.Epoch,
		Evidence: points(e.Evidence), Next: points(e.Next), Ends: points(e.Ends), Blocked: points(e.Blocked),
	}
}

func (e explanation) print(w *console.Writer) {
	since := ""
	if e.Since != 0 {
		since = " since " + e.Since.String()
	}
	w.Line("%s is %s%s, epoch %d", e.RunKey, e.Standing, since, e.Epoch)
	for _, part := range []struct {
		title  string
		points []pointView
	}{{"evidence", e.Evidence}, {"looked at next", e.Next}, {"would end it", e.Ends}, {"keeps it from that", e.Blocked}} {
		if len(part.points) == 0 {
			continue
		}
		w.Line("")
		var rows [][]string
		for _, p := range part.points {
			rows = append(rows, []string{"  " + p.What, p.At.String(), p.Says})
		}
		w.Table([]string{part.title, "", ""}, rows, "")
	}
}
