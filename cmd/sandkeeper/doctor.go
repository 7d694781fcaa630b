package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/smithy-go"

	"github.com/sandkeeper/sandkeeper/internal/console"
)

// doctorCommand checks an installation from outside.
type doctorCommand struct {
	Sandboxes int  `default:"3" help:"Ask this many living sandboxes by ECS Exec; 0 asks none." placeholder:"N"`
	Strict    bool `help:"Exit with 5 for warnings too."`
}

// The states of a check.
const (
	stateOK      = "ok"
	stateWarn    = "warn"    // it works, and is not as it should be
	stateFail    = "fail"    // it does not work
	stateUnknown = "unknown" // it could not be found out
)

// checked is what one check found.
type checked struct {
	Check string `json:"check"`
	State string `json:"state"` // ok, warn, fail or unknown
	Says  string `json:"says"`  // what was found
	Cure  string `json:"cure,omitempty"`
}

// doctor is one examination.
type doctor struct {
	in      *installation
	command *doctorCommand
	found   []checked
	check   string // the one under way
}

func (d *doctor) ok(format string, args ...any) { d.add(stateOK, "", format, args...) }

func (d *doctor) warn(cure, format string, args ...any) { d.add(stateWarn, cure, format, args...) }

func (d *doctor) fail(cure, format string, args ...any) { d.add(stateFail, cure, format, args...) }

func (d *doctor) add(state, cure, format string, args ...any) {
	d.found = append(d.found, checked{d.check, state, fmt.Sprintf(format, args...), cure})
}

// unknown is a check that got no answer.
func (d *doctor) unknown(err error) { d.unknownOf("", err) }

// unknownOf is one of several things that a check asks for. That a part of the installation
// is not there is an answer: it does not work.
func (d *doctor) unknownOf(what string, err error) {
	state, says, cure := stateUnknown, err.Error(), "ask again; it may pass"
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		says = api.ErrorCode() + ": " + api.ErrorMessage()
		switch {
		case slices.Contains(absent, api.ErrorCode()):
			state, cure = stateFail, "it was deleted beside CloudFormation, which does not make it again by itself: restore it under its name, a table from its backup"
		case slices.Contains(denied, api.ErrorCode()):
			cure = "let the caller do what the error names, or ask somebody who may"
		case slices.Contains(unserved, api.ErrorCode()):
			cure = "this endpoint does not serve it"
		}
	}
	if what != "" {
		says = what + ": " + says
	}
	d.add(state, cure, "%s", says)
}

// The codes by which services say that something is not there, that the caller may not, or
// that they do not know what was asked.
var (
	absent = []string{
		"ResourceNotFoundException", "NoSuchBucket", "AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "NoSuchEntity", "ClusterNotFoundException",
	}
	denied   = []string{"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthorizationError"}
	unserved = []string{"InvalidAction", "UnknownOperationException", "NotImplemented", "NotImplementedException", "UnsupportedOperation"}
)

// checks are all of them, in the order in which they explain one another.
var checks = []struct {
	name string
	do   func(d *doctor, ctx context.Context)
}{
	{"identity", (*doctor).identity},
	{"endpoints", (*doctor).endpoints},
	{"stack", (*doctor).stack},
	{"settings", (*doctor).settings},
	{"tables", (*doctor).tables},
	{"bucket", (*doctor).bucket},
	{"functions", (*doctor).functions},
	{"sources", (*doctor).sources},
	{"schedules", (*doctor).schedules},
	{"queues", (*doctor).queues},
	{"alarms", (*doctor).alarms},
	{"versions", (*doctor).versions},
	{"permissions", (*doctor).permissions},
	{"quotas", (*doctor).quotas},
	{"definition", (*doctor).definition},
	{"definitions", (*doctor).definitions},
	{"tasks", (*doctor).tasks},
	{"endings", (*doctor).endings},
	{"sandboxes", (*doctor).sandboxes},
}

// checkWithin bounds one check.
const checkWithin = time.Minute

// Run prints what every check found, and exits with 5 where one fails.
func (c *doctorCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	if c.Sandboxes < 0 {
		return badInput("sandboxes: want a number from 0 on, got %d", c.Sandboxes)
	}
	d := &doctor{in: in, command: c}
	bar := out.Bar(int64(len(checks)), "")
	defer bar.Done()
	for i, check := range checks {
		bar.Of(int64(i), "%s", check.name)
		d.check = check.name
		bounded, cancel := context.WithTimeout(ctx, checkWithin)
		check.do(d, bounded)
		cancel()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	bar.Done()
	return d.report(out)
}

func (d *doctor) report(out *console.Console) error {
	counted := map[string]int{stateOK: 0, stateWarn: 0, stateFail: 0, stateUnknown: 0}
	for _, f := range d.found {
		counted[f.State]++
	}
	err := out.Print(map[string]any{"version": version(), "counts": counted, "checks": d.found}, func(w *console.Writer) {
		var rows [][]string
		for _, f := range d.found {
			rows = append(rows, []string{f.State, f.Check, f.Says})
			if f.Cure != "" {
				rows = append(rows, []string{"", "", "  cure: " + f.Cure})
			}
		}
		w.Table([]string{"STATE", "CHECK", "FOUND"}, rows, "")
		w.Line("%d ok, %d warnings, %d failures, %d unknown", counted[stateOK], counted[stateWarn], counted[stateFail], counted[stateUnknown])
	})
	bad := counted[stateFail]
	if d.command.Strict {
		bad += counted[stateWarn]
	}
	if err == nil && bad > 0 {
		err = &findingsError{bad}
	}
	return err
}

// endpoints tells where the services are, and whether all of them are in one place.
func (d *doctor) endpoints(context.Context) {
	here, elsewhere := endpointsOf(d.in.globals)
	switch {
	case len(here)+len(elsewhere) == 0:
		d.ok("AWS's own, in %s", d.in.cfg.Region)
	case len(here) > 0 && len(elsewhere) > 0:
		d.fail("unset the variables of one of them, or say --local", "some are this machine and some are not: %s", strings.Join(slices.Concat(here, elsewhere), ", "))
	default:
		d.ok("%s", strings.Join(slices.Concat(here, elsewhere), ", "))
	}
}

// skewText words a difference of clocks.
func skewText(skew time.Duration) string {
	return strconv.FormatFloat(skew.Seconds(), 'f', 1, 64) + " s"
}
