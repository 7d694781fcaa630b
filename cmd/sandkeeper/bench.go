package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// benchCommand measures an installation from where the operator sits. It reads, unless it
// is told to sweep, which it does on this machine only.
type benchCommand struct {
	Samples int  `default:"20" help:"How often each kind of call is made, one after another."`
	Probes  int  `default:"20" help:"Ask at most this many sandboxes by ECS Exec; 0 asks none."`
	Sweep   bool `help:"Sweep for good too, and count what ends. With --local only."`
}

// The bounds of what one bench asks for.
const (
	mostSamples = 1000
	mostProbes  = 200
)

// latencyView is what calls of one kind took, milliseconds.
type latencyView struct {
	Call string  `json:"call"`
	N    int     `json:"n"` // how often
	P50  float64 `json:"p50Ms"`
	P90  float64 `json:"p90Ms"`
	Max  float64 `json:"maxMs"`
}

// rateView is how much of something there was in a time.
type rateView struct {
	What    string  `json:"what"`
	N       int     `json:"n"` // how many
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"perSecond"`
}

// benchView is what bench prints.
type benchView struct {
	Latencies []latencyView `json:"latencies"`
	Rates     []rateView    `json:"rates"`
}

// Run measures and prints.
func (c *benchCommand) Run(ctx context.Context, in *installation, out *console.Console) error {
	switch {
	case c.Samples < 1 || c.Samples > mostSamples:
		return badInput("samples: want 1 to %d, got %d", mostSamples, c.Samples)
	case c.Probes < 0 || c.Probes > mostProbes:
		return badInput("probes: want 0 to %d, got %d", mostProbes, c.Probes)
	case c.Sweep && !in.globals.Local:
		return &refusedError{text: "bench --sweep ends runs: it is for an installation on this machine, with --local"}
	}
	defer out.Done()
	v := benchView{Latencies: []latencyView{}, Rates: []rateView{}}
	for _, call := range in.benchCalls() {
		out.Progress("%s, %d times", call.name, c.Samples)
		took, err := sampled(ctx, c.Samples, call.do)
		if err != nil {
			return fmt.Errorf("bench %s: %w", call.name, err)
		}
		v.Latencies = append(v.Latencies, summed(call.name, took))
	}
	rates, err := c.rates(ctx, in, out)
	if err != nil {
		return err
	}
	v.Rates = append(v.Rates, rates...)
	out.Done()
	return out.Print(v, v.print)
}

// benchCall is one kind of call; none of them changes anything.
type benchCall struct {
	name string
	do   func(ctx context.Context) error
}

// nobody is a run that there is none of.
var nobody = core.RunKey{Tenant: noTenant, Run: "sandkeeper-bench"}

// benchCalls are the kinds of call that the tool and the functions live by.
func (in *installation) benchCalls() []benchCall {
	absent := func(err error) error {
		if errors.Is(err, core.ErrNotFound) {
			return nil
		}
		return err
	}
	return []benchCall{
		{"CloudFormation DescribeStacks", func(ctx context.Context) error { _, err := in.globals.describeStack(ctx, in.cfg); return absent(err) }},
		{"DynamoDB GetItem", func(ctx context.Context) error { _, err := in.boxes.Control(ctx); return err }},
		{"DynamoDB Query, a shard", func(ctx context.Context) error { _, err := in.runs.Detached(ctx, 0); return err }},
		{"DynamoDB BatchGetItem", func(ctx context.Context) error { _, err := in.reader.Known(ctx, core.Run{RunKey: nobody}); return err }},
		{"S3 GetObject, absent", func(ctx context.Context) error {
			_, err := in.blobs.Blob(ctx, string(noTenant)+"/"+names.LogsPrefix+"/sandkeeper-bench")
			if api, answered := errors.AsType[smithy.APIError](err); answered && slices.Contains(denied, api.ErrorCode()) {
				return nil // who may not list is told "denied" of what is not there
			}
			return absent(err)
		}},
		{"SQS GetQueueAttributes", func(ctx context.Context) error {
			_, err := in.queues.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: new(in.out[names.OutReclaimQueue])})
			return err
		}},
		{"ECS ListTasks", func(ctx context.Context) error {
			_, err := in.tasks.StartedBy(ctx, in.out[names.OutCluster], core.StartedBy(in.out[names.OutInstall], "sandkeeper-bench"))
			return err
		}},
		{"Lambda Invoke, a plan of no run", func(ctx context.Context) error {
			_, err := in.reap(ctx, core.SweepRequest{Mode: core.ModePlan, Runs: []core.RunKey{nobody}, NoProbe: true})
			return err
		}},
	}
}

// sampled times n calls, one after another.
func sampled(ctx context.Context, n int, do func(ctx context.Context) error) ([]time.Duration, error) {
	took := make([]time.Duration, n)
	for i := range took {
		began := time.Now()
		if err := do(ctx); err != nil {
			return nil, err
		}
		took[i] = time.Since(began)
	}
	return took, nil
}

func summed(call string, took []time.Duration) latencyView {
	slices.Sort(took)
	at := func(share float64) float64 {
		return float64(took[int(share*float64(len(took)-1))].Microseconds()) / 1000
	}
	return latencyView{Call: call, N: len(took), P50: at(0.5), P90: at(0.9), Max: at(1)}
}

// rates are of plans, of probes and, where it is asked for, of a sweep.
func (c *benchCommand) rates(ctx context.Context, in *installation, out *console.Console) ([]rateView, error) {
	out.Progress("planning without probes")
	began := time.Now()
	report, err := in.reap(ctx, core.SweepRequest{Mode: core.ModePlan, NoProbe: true})
	if err != nil {
		return nil, err
	}
	rates := []rateView{rateOf("runs that a plan looks at", report.Considered, time.Since(began))}
	if asked := asking(report, c.Probes); len(asked) > 0 {
		out.Progress("asking %d sandboxes", len(asked))
		began = time.Now()
		if report, err = in.reap(ctx, core.SweepRequest{Mode: core.ModePlan, Runs: asked}); err != nil {
			return nil, err
		}
		rates = append(rates, rateOf("sandboxes that answer", report.Probed-unheard(report), time.Since(began)))
	}
	if c.Sweep {
		out.Progress("sweeping")
		began = time.Now()
		if report, err = in.reap(ctx, core.SweepRequest{Mode: core.ModeSweep}); err != nil {
			return nil, err
		}
		rates = append(rates, rateOf("runs that a sweep ends", closed(report), time.Since(began)))
	}
	return rates, nil
}

// asking are the runs, n at most, whose sandbox a sweep would ask.
func asking(report core.SweepReport, n int) []core.RunKey {
	var keys []core.RunKey
	for _, e := range report.Runs {
		if e.Reason == core.ReasonUnexamined && len(keys) < n {
			keys = append(keys, e.RunKey)
		}
	}
	return keys
}

// unheard counts the probes that brought no answer.
func unheard(report core.SweepReport) (n int) {
	for _, e := range report.Runs {
		if e.Outcome == core.Unknown && e.Reason != core.ReasonUnexamined {
			n++
		}
	}
	return n
}

// closed counts the runs that a sweep ended.
func closed(report core.SweepReport) (n int) {
	for _, e := range report.Runs {
		if e.Status.Terminal() {
			n++
		}
	}
	return n
}

func rateOf(what string, n int, took time.Duration) rateView {
	seconds := took.Seconds()
	return rateView{What: what, N: n, Seconds: seconds, Rate: float64(n) / cmp.Or(seconds, 1)}
}

func (v benchView) print(w *console.Writer) {
	var rows [][]string
	for _, l := range v.Latencies {
		rows = append(rows, []string{l.Call, fmt.Sprint(l.N), milliseconds(l.P50), milliseconds(l.P90), milliseconds(l.Max)})
	}
	w.Table([]string{"CALL", "N", "P50", "P90", "MAX"}, rows, "")
	w.Line("")
	rows = nil
	for _, r := range v.Rates {
		rows = append(rows, []string{r.What, fmt.Sprint(r.N), fmt.Sprintf("%.2f s", r.Seconds), fmt.Sprintf("%.1f/s", r.Rate)})
	}
	w.Table([]string{"RATE", "N", "IN", ""}, rows, "")
}

func milliseconds(ms float64) string { return fmt.Sprintf("%.1f ms", ms) }
