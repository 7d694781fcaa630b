package bench_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/ecs"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
)

// operatorLatency is what a call takes from where the operator sits, and from where the
// function does.
const operatorLatency = 20 * time.Millisecond

// slowly serves requests in this process, each after a while of the bubble's clock: no
// socket, so that nothing but calls and waits is timed.
type slowly struct {
	http.Handler
	each *time.Duration
}

// Do is the SDK's way of sending a request.
func (s slowly) Do(request *http.Request) (*http.Response, error) {
	time.Sleep(*s.each)
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, request)
	return answer.Result(), nil
}

// planning times a plan of 10,000 detached runs, and counts the calls of its function.
func planning(t *testing.T, scale int) []figure {
	runs := 10_000 / scale
	took, calls, report := planned(t, runs)
	if report.Considered != runs || report.Probed == 0 || len(report.Errors) > 0 {
		t.Errorf("considered %d, probed %d, errors %v", report.Considered, report.Probed, report.Errors)
	}
	goal := 3 / float64(scale)
	return []figure{
		{Name: "sandkeeper plan, 10,000 detached runs, 20 ms a call", Value: took.Seconds(), Unit: "s", Goal: fmt.Sprintf("<= %g", max(goal, 1)),
			how: "bubble's clock; DynamoDB and ECS by the SDK; probes answer at once; the tool's own two calls among them"},
		{Name: "calls of its function, a thousand detached runs", Value: float64(calls) * 1000 / float64(runs), Unit: "calls"},
	}
}

// planned has a sweep plan that many runs, over the adapters of the deployed function.
func planned(t *testing.T, runs int) (took time.Duration, calls int, report core.SweepReport) {
	a := newAccount(t, nil)
	synctest.Test(t, func(t *testing.T) {
		each := time.Duration(0) // while the runs are put
		client := slowly{a.Config.Handler, &each}
		cfg := aws.Config{
			Region: "us-east-1", BaseEndpoint: new("http://account.invalid"), HTTPClient: client,
			Credentials: aws.NewCredentialsCache(credentials.NewStaticCredentialsProvider("test", "test", "")),
		}
		db := dynamodb.NewFromConfig(cfg)
		store, boxes := ddb.NewRuns(db, "bench"), ddb.NewSandboxes(db, "bench")
		for i := range runs {
			if _, err := store.Create(t.Context(), benchRun(i, core.MillisOf(time.Now()), "0123456789abcdef0123456789abcdef")); err != nil {
				t.Fatal(err)
			}
		}
		limits := core.DefaultLimits
		limits.ProbeBatch = runs // the pace is the account's bucket's, and no part of this
		tasks := &ecstask.Tasks{ECS: ecs.NewFromConfig(cfg)}
		sweep := &core.Sweep{
			Runs: store, Index: store, Notes: store, Sandboxes: boxes, Ledger: boxes, Due: boxes, Breaker: boxes, Cursors: boxes, Budget: boxes,
			Controls: boxes, Tasks: tasks, Prober: stubbed{}, Install: "bench", Provider: ecstask.Provider, Cluster: clusterName,
			Limits: limits, Logger: slog.New(slog.DiscardHandler),
		}
		before := a.total()
		each = operatorLatency
		began := time.Now()
		time.Sleep(2 * operatorLatency) // the stack's outputs, and the function itself
		var err error
		if report, err = sweep.Run(t.Context(), core.SweepRequest{Mode: core.ModePlan}); err != nil {
			t.Fatal(err)
		}
		took, calls = time.Since(began), a.total()-before
	})
	return took, calls, report
}

func (a *account) total() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, calls := range a.calls {
		n += calls
	}
	return n
}

// stubbed answers every probe at once: the agent works.
type stubbed struct{ core.Prober }

func (stubbed) Probe(_ context.Context, _ float64, requests []core.ProbeRequest) []core.ProbeReply {
	replies := make([]core.ProbeReply, len(requests))
	for i, q := range requests {
		replies[i] = producingReply(q)
	}
	return replies
}
