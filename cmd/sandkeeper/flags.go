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

// ownPrefix stands in arguments for the tenant "-" and its slash, which the tool prints and
// the parser takes for a flag.
const ownPrefix = "//"

// withoutTenant is a command line whose arguments may be as the tool prints them.
func withoutTenant(args []string) []string {
	out := slices.Clone(args)
	for i, arg := range out {
		if arg == "--" {
			break
		}
		if rest, found := strings.CutPrefix(arg, string(noTenant)+"/"); found {
			out[i] = ownPrefix + rest
		}
	}
	return out
}

// parseRun reads TENANT/RUN. A run's id may hold slashes, so that the first one
// counts.
func parseRun(tenant, text string) core.RunKey {
	if tenant != "" {
		return core.RunKey{Tenant: core.TenantID(tenant), Run: core.RunID(text)}
	}
	if run, found := strings.CutPrefix(text, ownPrefix); found {
		return core.RunKey{Tenant: noTenant, Run: core.RunID(run)}
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
