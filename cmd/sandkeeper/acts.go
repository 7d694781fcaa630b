package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// act is what a command about one run, or several, prints.
type act struct {
	Op     string            `json:"op"`
	Run    *runView          `json:"run,omitempty"`  // as it is then; of one run
	Runs   []actOfMany       `json:"runs,omitempty"` // of several, in the order in which they were named
	By     string            `json:"by"`
	Why    string            `json:"why"`
	DryRun bool              `json:"dryRun"`
	Sent   []core.ReclaimJob `json:"sent,omitempty"`   // of a dry run of one: the messages that would have been
	Report *core.SweepReport `json:"report,omitempty"` // of kill with --now
}

// actOfMany is what became of one of several runs: how it stands then, or why it was not done
// to it, as the error of a command about that run alone has it.
type actOfMany struct {
	core.RunKey
	State  *runView          `json:"state,omitempty"` // as it is then, where it was done
	Sent   []core.ReclaimJob `json:"sent,omitempty"`  // of a dry run: the messages that would have been
	Error  string            `json:"error,omitempty"` // why it was not done
	Code   string            `json:"code,omitempty"`
	Reason string            `json:"reason,omitempty"`
}

// acted is what became of one run.
type acted struct {
	key  core.RunKey
	run  runView
	sent []core.ReclaimJob
	err  error
}

// question is what is asked before an act, about one run and about several.
type question struct{ one, all string }

// acting is one command about some runs.
type acting struct {
	op     string
	runs   someRuns
	why    whyText
	dryRun bool
	ask    question // or nothing
	do     func(o *core.Operator, key core.RunKey, by core.By) error
	then   func(done []core.RunKey) (*core.SweepReport, error) // with those that were done, if any; or nil
}

// askedMost is how many runs a question names.
const askedMost = 10

// about is the question about these runs.
func (q question) about(keys []core.RunKey) string {
	if len(keys) == 1 {
		return fmt.Sprintf(q.one, keys[0])
	}
	var named []string
	for _, k := range keys[:min(len(keys), askedMost)] {
		named = append(named, k.String())
	}
	text := strings.Join(named, ", ")
	if more := len(keys) - len(named); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf(q.all, fmt.Sprintf("%d runs, %s", len(keys), text))
}

// answered is what a command came to.
type answered struct {
	by     core.By
	each   []acted
	report *core.SweepReport
	late   error // why what comes after the acts was not done
}

// Run does it to each run, whatever became of those before, and prints how they stand then.
func (a acting) Run(ctx context.Context, in *installation, out *console.Console) error {
	keys, err := a.runs.keys()
	if err != nil {
		return err
	}
	by, err := in.by(ctx, a.why)
	if err != nil {
		return err
	}
	if a.ask.one != "" && !a.dryRun {
		if err := out.Confirm(ctx, a.ask.about(keys)); err != nil {
			return err
		}
	}
	all := answered{by: by}
	var done []core.RunKey
	for _, key := range keys {
		one := a.carryOut(ctx, in, key, by)
		if all.each = append(all.each, one); one.err == nil {
			done = append(done, key)
		}
	}
	if a.then != nil && len(done) > 0 {
		all.report, all.late = a.then(done)
	}
	if len(all.each) == 1 {
		return a.tell(out, all)
	}
	return a.tellAll(out, all)
}

// carryOut does it to a run, unless somebody has ended the command.
func (a acting) carryOut(ctx context.Context, in *installation, key core.RunKey, by core.By) acted {
	done := acted{key: key}
	if done.err = ctx.Err(); done.err != nil {
		return done
	}
	operator, rehearsed := in.operator(a.dryRun)
	if done.err = a.do(operator, key, by); done.err != nil {
		return done
	}
	r, err := operator.Runs.Run(ctx, key)
	if done.err = err; err != nil {
		return done
	}
	done.run = viewRun(r, core.MillisOf(time.Now()), in.limits)
	if rehearsed != nil {
		done.sent = rehearsed.Sent
	}
	return done
}

// tell prints what became of a run that was the only one.
func (a acting) tell(out *console.Console, all answered) error {
	one := all.each[0]
	if err := cmp.Or(one.err, all.late); err != nil {
		return err
	}
	v := act{Op: a.op, Run: &one.run, By: all.by.Who, Why: all.by.Why, DryRun: a.dryRun, Sent: one.sent, Report: all.report}
	return out.Print(v, func(w *console.Writer) {
		if v.Report != nil {
			printReport(w, *v.Report, true)
			return
		}
		if v.DryRun {
			w.Line("dry run: nothing is written; %s would leave it so:", v.Op)
		}
		w.Pairs(v.Run.pairs())
		printSent(w, v.Sent)
	})
}

func printSent(w *console.Writer, sent []core.ReclaimJob) {
	for _, job := range sent {
		w.Line("a message would be sent: %s of instance %s", job.Kind, job.Instance)
	}
}

// tellAll prints what became of each run, and fails where it was not done to all of them.
func (a acting) tellAll(out *console.Console, all answered) error {
	v := act{Op: a.op, By: all.by.Who, Why: all.by.Why, DryRun: a.dryRun, Report: all.report}
	var failed []error
	for _, one := range all.each {
		if one.err == nil {
			v.Runs = append(v.Runs, actOfMany{RunKey: one.key, State: &one.run, Sent: one.sent})
			continue
		}
		failed = append(failed, one.err)
		text, reason := worded(one.err)
		v.Runs = append(v.Runs, actOfMany{RunKey: one.key, Error: text, Code: codes[codeOf(one.err)], Reason: reason})
	}
	err := out.Print(v, v.printAll)
	if err = cmp.Or(err, all.late); err == nil && len(failed) > 0 {
		err = &partlyError{failed, len(all.each)}
	}
	return err
}

func (v act) printAll(w *console.Writer) {
	if v.DryRun {
		w.Line("dry run: nothing is written; %s would leave them so:", v.Op)
	}
	var rows [][]string
	for _, one := range v.Runs {
		row := []string{one.RunKey.String(), one.Code, "", "", "", one.Error}
		if one.State != nil {
			held := ""
			if h := one.State.Hold; h != nil {
				held = h.Until.String()
			}
			row = []string{one.RunKey.String(), "done", one.State.Standing, one.State.ExpiresAt.String(), held, ""}
		}
		rows = append(rows, row)
	}
	w.Table([]string{"RUN", "ANSWER", "STANDING", "EXPIRES", "HELD UNTIL", "WHY NOT"}, rows, "")
	for _, one := range v.Runs {
		printSent(w, one.Sent)
	}
	if v.Report != nil {
		printReport(w, *v.Report, true)
	}
}

// partlyError tells that something was not done to all of several runs. Which and why is
// printed already.
type partlyError struct {
	failed []error
	of     int
}

func (e *partlyError) Error() string {
	return fmt.Sprintf("not done to %d of %d runs", len(e.failed), e.of)
}

// code is the exit code of those that failed, where they have the same one.
func (e *partlyError) code() int {
	code := codeOf(e.failed[0])
	for _, err := range e.failed[1:] {
		if codeOf(err) != code {
			return exitFailed
		}
	}
	return code
}
