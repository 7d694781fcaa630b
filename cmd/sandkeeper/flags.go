package main

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

var spanType = reflect.TypeFor[span]()

// spanMapper reads 90m, 36h or 7d.
type spanMapper struct{}

// Decode reads one value.
func (spanMapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("duration", &text); err != nil {
		return err
	}
	d, err := parseSpan(text)
	if err != nil {
		return err
	}
	target.SetInt(int64(d))
	return nil
}

// timeMapper reads a time as RFC 3339 has it.
type timeMapper struct{}

// Decode reads one value.
func (timeMapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("time", &text); err != nil {
		return err
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return fmt.Errorf("want a time like 2030-01-31T18:00:00Z or 2030-01-31T18:00:00+01:00, got %q", text)
	}
	target.Set(reflect.ValueOf(at))
	return nil
}

const (
	day      = 24 * time.Hour
	mostDays = 36500
)

func parseSpan(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n float64
		if n, err = strconv.ParseFloat(days, 64); !(n > 0 && n <= mostDays) {
			n = 0 // none, or more than a duration holds
		}
		d = time.Duration(n * float64(day))
	}
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("want a duration above zero like 90m, 36h or 7d, got %q", text)
	}
	return d, nil
}

// noTenant is the tenant of an installation that has only one.
const noTenant = core.TenantID("-")

// untenanted begins the name of such an installation's run.
const untenanted = string(noTenant) + "/"

// shield begins an argument that begins as a flag does and is none: -/run-1, the run of
// an installation without tenants, as this tool itself prints it. No argument of a process
// holds a zero byte.
const shield = "\x00"

// shielded marks such arguments for the parser, which would take them for flags.
func shielded(args []string) []string {
	args = slices.Clone(args)
	for i, arg := range args {
		if arg == "--" {
			break
		}
		if strings.HasPrefix(arg, untenanted) {
			args[i] = shield + arg
		}
	}
	return args
}

// textMapper reads a text without its shield.
type textMapper struct{}

// Decode reads one value.
func (textMapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("string", &text); err != nil {
		return err
	}
	target.SetString(strings.TrimPrefix(text, shield))
	return nil
}

// oneRun is the argument of a command about one run.
type oneRun struct {
	Run    string `arg:"" name:"run" help:"TENANT/RUN, or RUN alone where there are no tenants."`
	Tenant string `help:"The tenant, where its id holds a slash; RUN is then the run's id alone." placeholder:"ID"`
}

// key is the run that is meant.
func (o oneRun) key() (core.RunKey, error) {
	k := parseRun(o.Tenant, o.Run)
	if k.Tenant == "" || k.Run == "" {
		return core.RunKey{}, badInput("run: want TENANT/RUN, or RUN alone, got %q", o.Run)
	}
	return k, nil
}

// someRuns is the argument of a command about one run or several.
type someRuns struct {
	Runs   []string `arg:"" name:"run" help:"TENANT/RUN, or RUN alone where there are no tenants; several are done one after another."`
	Tenant string   `help:"The tenant, where its id holds a slash; each RUN is then the run's id alone." placeholder:"ID"`
}

// keys are the runs that are meant, each once, in the order in which they were named.
func (s someRuns) keys() ([]core.RunKey, error) {
	var keys []core.RunKey
	for _, text := range s.Runs {
		k, err := oneRun{text, s.Tenant}.key()
		if err != nil {
			return nil, err
		}
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys, nil
}

// key is the run that is meant, where it is one.
func (s someRuns) key() (core.RunKey, error) {
	keys, err := s.keys()
	if err == nil && len(keys) != 1 {
		err = badInput("run: want one, got %d", len(keys))
	}
	if err != nil {
		return core.RunKey{}, err
	}
	return keys[0], nil
}

// parseRun reads TENANT/RUN. A run's id may hold slashes, so that the first one
// counts.
func parseRun(tenant, text string) core.RunKey {
	if tenant != "" {
		return core.RunKey{Tenant: core.TenantID(tenant), Run: core.RunID(text)}
	}
	before, after, found := strings.Cut(text, "/")
	if !found {
		return core.RunKey{Tenant: noTenant, Run: core.RunID(text)}
	}
	return core.RunKey{Tenant: core.TenantID(before), Run: core.RunID(after)}
}

// reason is why an operator does something. It is asked for, never made up.
type reason struct {
	Why whyText `required:"" help:"Why, for the record." placeholder:"TEXT"`
}

type whyText string

// Validate refuses a reason that says nothing.
func (w whyText) Validate() error {
	if strings.TrimSpace(string(w)) == "" {
		return fmt.Errorf("want a reason, got %q", string(w))
	}
	return nil
}

// rehearsal is the flag of a command that writes.
type rehearsal struct {
	DryRun bool `help:"Decide and answer by the same code, and write nothing."`
}

// sure is the flag of a command that asks first.
type sure struct {
	Yes bool `short:"y" help:"Do not ask."`
}
