package bench_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ecs"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// explaining counts the calls of the operator's tool for one explanation, the one that
// finds the stack included.
func explaining(t *testing.T, _ int) []figure {
	binary := filepath.Join(t.TempDir(), "sandkeeper")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./cmd/sandkeeper")
	build.Dir = filepath.Join("..", "..")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the tool: %v\n%s", err, said)
	}
	s := newStandIn(t)
	if err := s.seed(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), binary, "--local", "explain", "acme/run-00000", "--json", "--endpoint-url", s.front.URL)
	var said, complaints bytes.Buffer
	command.Stdout, command.Stderr = &said, &complaints
	if err := command.Run(); err != nil {
		t.Fatalf("explain: %v: %s", err, complaints.Bytes())
	}
	if text := said.String(); !strings.Contains(text, "no-sentinel") || !strings.Contains(text, "detached") {
		t.Errorf("explained %s", text)
	}
	return []figure{{Name: "calls of sandkeeper explain", Value: float64(s.calls.Load()), Unit: "calls", Goal: "<= 5",
		how: "the built tool against loopback stand-ins: stack, record, what is kept beside it, the task, and the function's plan"}}
}

// standIn is an account with a stack and its reap function, which counts what the
// operator's tool asks.
type standIn struct {
	*account
	front *httptest.Server
	sweep *core.Sweep
	calls atomic.Int32
}

func newStandIn(t *testing.T) *standIn {
	s := &standIn{account: newAccount(t, nil)}
	boxes := ddb.NewSandboxes(s.dynamo(), "bench")
	runs := ddb.NewRuns(s.dynamo(), "bench")
	tasks := &ecstask.Tasks{ECS: ecs.New(ecs.Options{
		BaseEndpoint: &s.URL, Region: "us-east-1", Credentials: aws.NewCredentialsCache(credentials.NewStaticCredentialsProvider("test", "test", "")),
	})}
	s.sweep = &core.Sweep{
		Runs: runs, Index: runs, Notes: runs, Sandboxes: boxes, Ledger: boxes, Due: boxes, Breaker: boxes, Cursors: boxes, Budget: boxes,
		Controls: boxes, Tasks: tasks, Prober: stubbed{}, Install: "bench", Provider: ecstask.Provider, Cluster: clusterName,
		Limits: core.DefaultLimits, Logger: slog.New(slog.DiscardHandler),
	}
	s.front = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.front.Close)
	return s
}

func (s *standIn) serve(rw http.ResponseWriter, r *http.Request) {
	s.calls.Add(1)
	body, err := io.ReadAll(r.Body)
	switch {
	case err != nil:
		http.Error(rw, err.Error(), http.StatusBadRequest)
	case strings.Contains(string(body), "Action=DescribeStacks"):
		describeStacks(rw)
	case strings.HasSuffix(r.URL.Path, "/functions/reap/invocations"):
		s.reap(rw, r, body)
	default:
		r.Body = io.NopCloser(bytes.NewReader(body))
		s.Config.Handler.ServeHTTP(rw, r)
	}
}

// reap plans as the function does.
func (s *standIn) reap(rw http.ResponseWriter, r *http.Request, body []byte) {
	var request core.SweepRequest
	err := core.DecodeStrict(body, &request)
	var report core.SweepReport
	if err == nil {
		report, err = s.sweep.Run(r.Context(), request)
	}
	if err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	_ = json.NewEncoder(rw).Encode(report)
}

// describeStacks answers with a stack that has every output.
func describeStacks(rw http.ResponseWriter) {
	type output struct{ OutputKey, OutputValue string }
	var all []output
	for _, key := range []names.Output{
		names.OutRunsTable, names.OutSandboxesTable, names.OutCheckpoints, names.OutBucket, names.OutReclaimQueue, names.OutDeadLetterQueue,
		names.OutShardQueue, names.OutShardDead, names.OutEventDead, names.OutEventBus, names.OutCluster, names.OutTaskDefinition, names.OutProbeFunction,
		names.OutReclaimFunction, names.OutCheckpoint, names.OutSession, names.OutTools, names.OutToolsURL, names.OutCheckpointURL, names.OutSubnets,
		names.OutSecurityGroup, names.OutInstall,
	} {
		all = append(all, output{string(key), "bench"})
	}
	all = append(all, output{string(names.OutReapFunction), "reap"}, output{string(names.OutLimits), "{}"}, output{string(names.OutMode), names.ModeEnforce})
	members, err := xml.Marshal(struct {
		XMLName xml.Name `xml:"Outputs"`
		Members []output `xml:"member"`
	}{Members: all})
	if err != nil {
		http.Error(rw, err.Error(), http.StatusInternalServerError)
		return
	}
	rw.Header().Set("Content-Type", "text/xml")
	fmt.Fprintf(rw, `<DescribeStacksResponse xmlns="http://cloudformation.amazonaws.com/doc/2010-05-15/"><DescribeStacksResult><Stacks><member>`+
		`<StackName>sandkeeper</StackName><StackStatus>CREATE_COMPLETE</StackStatus><CreationTime>%s</CreationTime>%s</member></Stacks></DescribeStacksResult></DescribeStacksResponse>`,
		time.Now().UTC().Format(time.RFC3339), members)
}
