package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// planFile is a saved plan: what a sweep would have done, and of which installation.
type planFile struct {
	V       int              `json:"v"`
	Install string           `json:"install"`
	Region  string           `json:"region"`
	MadeAt  stamp            `json:"madeAt"`
	Entries []core.PlanEntry `json:"entries"` // what would be ended
}

const planVersion = 1

// planCommand asks the deployed function for a plan.
type planCommand struct {
	Runs []string `arg:"" name:"run" optional:"" help:"Only these runs, as TENANT/RUN."`
	Out  string   `short:"o" type:"path" help:"Save the plan, for apply. A file that is there is not overwritten." placeholder:"FILE"`
	All  bool     `help:"Show the runs that would be left alone too."`
	// What takes an exec session is paced by the account's bucket; the rest is not.
	NoProbe bool `help:"Read no journal: a run that would be asked is unexamined. Quick, however many there are."`
}

// Run prints the plan.
func (c *planCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	keys, err := parseRuns(c.Runs)
	if err != nil {
		return err
	}
	bar := out.Bar(0, "asking %s for a plan", in.out[names.OutReapFunction])
	report, err := in.reap(ctx, core.SweepRequest{Mode: core.ModePlan, Runs: keys, NoProbe: c.NoProbe})
	bar.Done()
	if err != nil {
		return err
	}
	plan := planFile{
		V: planVersion, Install: in.out[names.OutInstall], Region: in.cfg.Region,
		MadeAt: stamp(core.MillisOf(time.Now())), Entries: report.Plan(),
	}
	if c.Out != "" {
		if err := plan.save(c.Out); err != nil {
			return err
		}
	}
	return out.Print(map[string]any{"plan": plan, "report": report}, func(w *console.Writer) {
		printReport(w, report, c.All)
		if c.Out != "" {
			w.Line("saved to %s: sandkeeper apply %s", c.Out, c.Out)
		}
	})
}

func parseRuns(texts []string) ([]core.RunKey, error) {
	var keys []core.RunKey
	for _, text := range texts {
		k, err := oneRun{Run: text}.key()
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, nil
}

// save writes a plan to a file that must not be there.
func (p planFile) save(path string) error {
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return fmt.Errorf("save plan: %w", err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return badInput("save plan: %s is there already", path)
	}
	if err != nil {
		return badInput("save plan: %v", err)
	}
	_, err = file.Write(append(text, '\n'))
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("save plan %s: %w", path, err)
	}
	return nil
}

// printReport shows what a sweep did or would do, and how many of which outcome.
func printReport(w *console.Writer, report core.SweepReport, all bool) {
	var rows [][]string
	for _, e := range report.Runs {
		if !all && !e.Planned && slices.Contains(leftAlone, e.Outcome) {
			continue
		}
		what := string(e.Outcome)
		if e.Planned {
			what = "would be " + what
		}
		rows = append(rows, []string{e.RunKey.String(), what, string(e.Status), epochText(e), firstOf(e.Error, e.Reason), core.Advice(e.Reason)})
	}
	w.Table([]string{"RUN", "OUTCOME", "STATUS", "EPOCH", "EVIDENCE", ""}, rows, "nothing to do")
	w.Line("%s", counts(report))
	for _, text := range report.Errors {
		w.Line("error: %s", text)
	}
}

// leftAlone are the outcomes of runs about which there is nothing to say.
var leftAlone = []core.Outcome{core.Producing}

func epochText(e core.RunReport) string {
	if e.Epoch == 0 {
		return ""
	}
	return strconv.FormatInt(e.Epoch, 10)
}

func firstOf(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

// counts sums a report up in a line.
func counts(report core.SweepReport) string {
	parts := []string{fmt.Sprintf("%d runs looked at, %d probed", report.Considered, report.Probed)}
	for _, o := range core.Outcomes {
		if n := report.Outcomes[o]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, o))
		}
	}
	if n := report.FannedOut; n > 0 {
		parts = append(parts, fmt.Sprintf("%d shards handed to sweeps of their own", n))
	}
	return strings.Join(parts, ", ")
}

// applyCommand carries out a saved plan.
type applyCommand struct {
	Plan string `arg:"" help:"File of plan --out; - is stdin."`
	sure
	rehearsal
}

// Run applies the entries that are decided the same again.
func (c *applyCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	plan, err := readPlan(c.Plan, out.In)
	if err != nil {
		return err
	}
	if install, region := in.out[names.OutInstall], in.cfg.Region; plan.Install != install || plan.Region != region {
		return &refusedError{text: fmt.Sprintf("plan %s is of installation %s in %s, this is %s in %s", c.Plan, plan.Install, plan.Region, install, region)}
	}
	if len(plan.Entries) == 0 {
		nothing := core.SweepReport{Outcomes: map[core.Outcome]int{}, Runs: []core.RunReport{}}
		return out.Print(map[string]any{"report": nothing}, func(w *console.Writer) { w.Line("the plan has no entries: nothing to do") })
	}
	if c.DryRun {
		return c.rehearse(ctx, in, plan, out)
	}
	if !c.Yes {
		question := fmt.Sprintf("end %d runs as the plan of %s says?", len(plan.Entries), plan.MadeAt)
		if err := out.Confirm(ctx, question); err != nil {
			return err
		}
	}
	bar := out.Bar(0, "applying %d entries", len(plan.Entries))
	report, err := in.reap(ctx, core.SweepRequest{Mode: core.ModeApply, Plan: plan.Entries})
	bar.Done()
	if err != nil {
		return err
	}
	return printSweep(out, report)
}

// rehearse decides the entries again and says which are as the plan has them.
func (c *applyCommand) rehearse(ctx context.Context, in *installation, plan planFile, out *console.Console) error {
	keys := make([]core.RunKey, len(plan.Entries))
	for i, e := range plan.Entries {
		keys[i] = e.RunKey
	}
	report, err := in.reap(ctx, core.SweepRequest{Mode: core.ModePlan, Runs: keys})
	if err != nil {
		return err
	}
	for i, e := range report.Runs {
		now := core.PlanEntry{RunKey: e.RunKey, Outcome: e.Outcome, Epoch: e.Epoch}
		if e.Planned && !slices.Contains(plan.Entries, now) {
			report.Runs[i] = core.RunReport{RunKey: e.RunKey, Outcome: core.NotClaimed, Reason: "changed since the plan"}
			report.Outcomes[e.Outcome]--
			report.Outcomes[core.NotClaimed]++
		}
	}
	return out.Print(map[string]any{"dryRun": true, "report": report}, func(w *console.Writer) { printReport(w, report, true) })
}

// readPlan reads a saved plan; members that it does not know are refused.
func readPlan(path string, stdin io.Reader) (planFile, error) {
	var data []byte
	var err error
	if path == "-" {
		data, err = io.ReadAll(stdin)
	} else {
		data, err = os.ReadFile(path)
	}
	if err != nil {
		return planFile{}, badInput("read plan: %v", err)
	}
	var plan planFile
	if err := core.DecodeStrict(bytes.TrimSpace(data), &plan); err != nil {
		return planFile{}, badInput("read plan %s: want what plan --out saves: %v", path, err)
	}
	if plan.V != planVersion {
		return planFile{}, badInput("read plan %s: want version %d, got %d", path, planVersion, plan.V)
	}
	if len(plan.Entries) > 0 {
		if err := (core.SweepRequest{Mode: core.ModeApply, Plan: plan.Entries}).Validate(); err != nil {
			return planFile{}, badInput("read plan %s: %v", path, err)
		}
	}
	return plan, nil
}

// sweepCommand sweeps as the schedule does.
type sweepCommand struct {
	Runs  []string `arg:"" name:"run" optional:"" help:"Only these runs, as TENANT/RUN."`
	Shard []int    `help:"Only these shards." placeholder:"N"`
	sure
	rehearsal
}

// Run prints what the sweep did.
func (c *sweepCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	keys, err := parseRuns(c.Runs)
	if err != nil {
		return err
	}
	request := core.SweepRequest{Mode: core.ModeSweep, Runs: keys, Shards: c.Shard}
	if c.DryRun {
		request.Mode = core.ModePlan
	}
	if err := request.Validate(); err != nil {
		return badInput("%v", err)
	}
	if !c.Yes && !c.DryRun {
		if err := out.Confirm(ctx, "sweep now, and end what has ended?"); err != nil {
			return err
		}
	}
	bar := out.Bar(0, "sweeping")
	report, err := in.reap(ctx, request)
	bar.Done()
	if err != nil {
		return err
	}
	if c.DryRun {
		return out.Print(map[string]any{"dryRun": true, "report": report}, func(w *console.Writer) { printReport(w, report, false) })
	}
	return printSweep(out, report)
}

// printSweep shows what was done, and fails where it was not done.
func printSweep(out *console.Console, report core.SweepReport) error {
	if err := out.Print(map[string]any{"report": report}, func(w *console.Writer) { printReport(w, report, true) }); err != nil {
		return err
	}
	planned := len(report.Plan())
	failed := report.Outcomes[core.FailedSweep] + report.Outcomes[core.ReclaimFailed] + len(report.Errors)
	switch {
	case planned > 0:
		return &refusedError{text: fmt.Sprintf("the installation observes: %d runs were left as they were; sandkeeper mode enforce lets it act", planned)}
	case failed > 0:
		return fmt.Errorf("sweep: %d of what was to be done failed", failed)
	}
	return nil
}
