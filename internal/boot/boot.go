// Package boot is what each function does before it serves: it reads exactly the
// environment that internal/names lists for the function, loads the AWS
// configuration, and makes the logger. Its rule: a function that is not wholly
// configured does not start.
package boot

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-lambda-go/lambdacontext"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// configWithin bounds loading the configuration; it reads no network in Lambda.
const configWithin = 5 * time.Second

// Boot is what a function starts from. It does not change after [New].
type Boot struct {
	AWS aws.Config
	// Log writes to stdout, as JSON where Lambda asks for it, and adds the
	// request id of the context that it is given.
	Log *slog.Logger
	// Meter writes to stdout too. What ECS turned away is counted by AWS itself.
	Meter *metrics.Meter

	// Limits are the installation's, where the function reads them; else the defaults.
	Limits core.Limits
	// Places are where ECS is asked, where the function reads them.
	Places core.Places

	throttles *throttles
	env       Env
}

// New reads the environment of f and loads the AWS configuration. When anything
// is missing it says all of it in one line on stderr and exits with status 1.
func New(f names.Function) *Boot {
	b, err := load(f, os.LookupEnv)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	limitMemory()
	return b
}

// limitMemory has garbage collected before a function has used up what Lambda gives it:
// one that has is killed, with all that it was doing. GOMEMLIMIT goes before it.
func limitMemory() {
	if mb := lambdacontext.MemoryLimitInMB; mb > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(mb) << 20 / 8 * 7)
	}
}

func load(f names.Function, lookup func(string) (string, bool)) (*Boot, error) {
	env, err := ReadEnv(f, lookup)
	if err != nil {
		return nil, err
	}
	limits := core.DefaultLimits
	if slices.Contains(names.Env[f], names.Limits) {
		if limits, err = core.ReadLimits(env.Get(names.Limits)); err != nil {
			return nil, fmt.Errorf("boot %s: %s: %w", f, names.Limits, err)
		}
	}
	var places core.Places
	if slices.Contains(names.Env[f], names.Places) {
		if places, err = core.ReadPlaces(env.Get(names.Places)); err != nil {
			return nil, fmt.Errorf("boot %s: %s: %w", f, names.Places, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), configWithin)
	defer cancel()
	loaded, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, fmt.Errorf("boot %s: load aws configuration: %w", f, err)
	}
	turned := new(throttles)
	loaded.APIOptions = append(loaded.APIOptions, turned.watch)
	return &Boot{
		AWS: loaded, Log: slog.New(lambdacontext.NewLogHandler()), env: env, Limits: limits, Places: places, throttles: turned,
		Meter: &metrics.Meter{Out: os.Stdout, Install: env.Get(names.Install), Function: f},
	}, nil
}

// Get returns the value of a variable that internal/names lists for this
// function, and panics on any other: that is a mistake in its main.
func (b *Boot) Get(key names.Key) string { return b.env.Get(key) }

// Env is the environment of one function: every variable listed, none empty.
type Env struct {
	function names.Function
	values   map[names.Key]string
}

// ReadEnv reads what internal/names lists for f. lookup is as [os.LookupEnv]. The
// error names, in one line, every variable that is missing or empty, or that is
// none of the values that internal/names lists for it.
func ReadEnv(f names.Function, lookup func(string) (string, bool)) (Env, error) {
	keys, ok := names.Env[f]
	if !ok {
		return Env{}, fmt.Errorf("boot %s: no such function", f)
	}
	env := Env{function: f, values: make(map[names.Key]string, len(keys))}
	var missing, wrong []string
	for _, key := range keys {
		value, _ := lookup(string(key))
		allowed := names.Values[key]
		switch {
		case value == "":
			missing = append(missing, string(key))
		case allowed != nil && !slices.Contains(allowed, value):
			wrong = append(wrong, fmt.Sprintf("%s: want %s, got %q", key, strings.Join(allowed, " or "), value))
		}
		env.values[key] = value
	}
	if len(missing) > 0 {
		wrong = append([]string{"missing environment: " + strings.Join(missing, ", ")}, wrong...)
	}
	if len(wrong) > 0 {
		return Env{}, fmt.Errorf("boot %s: %s", f, strings.Join(wrong, "; "))
	}
	return env, nil
}

// Get is [Boot.Get].
func (e Env) Get(key names.Key) string {
	value, ok := e.values[key]
	if !ok {
		panic(fmt.Sprintf("boot %s: %s is not in its list of names.Env", e.function, key))
	}
	return value
}
