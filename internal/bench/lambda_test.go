package bench_test

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/boot/boottest"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// runtimeAPI is the part of Lambda's runtime API that a bootstrap speaks to: it hands
// out one event, takes the answer, and never has another event.
type runtimeAPI struct {
	*httptest.Server
	event    string
	mu       sync.Mutex
	handed   bool
	answered chan answer
}

// answer is what a bootstrap made of its event.
type answer struct {
	kind string // response or error
	body []byte
	at   time.Time
}

func newRuntimeAPI(t *testing.T, event string, within time.Duration) *runtimeAPI {
	t.Helper()
	api := &runtimeAPI{event: event, answered: make(chan answer, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /2018-06-01/runtime/invocation/next", func(rw http.ResponseWriter, r *http.Request) {
		if !api.hand() {
			<-r.Context().Done()
			return
		}
		rw.Header().Set("Lambda-Runtime-Aws-Request-Id", "00000000-0000-4000-8000-000000000000")
		rw.Header().Set("Lambda-Runtime-Deadline-Ms", strconv.FormatInt(time.Now().Add(within).UnixMilli(), 10))
		rw.Header().Set("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:us-east-1:000000000000:function:bench")
		_, _ = io.WriteString(rw, api.event)
	})
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/{kind}", func(rw http.ResponseWriter, r *http.Request) {
		at := time.Now()
		body, _ := io.ReadAll(r.Body)
		rw.WriteHeader(http.StatusAccepted)
		api.answered <- answer{r.PathValue("kind"), body, at}
	})
	api.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		api.CloseClientConnections()
		api.Close()
	})
	return api
}

func (api *runtimeAPI) hand() bool {
	api.mu.Lock()
	defer api.mu.Unlock()
	first := !api.handed
	api.handed = true
	return first
}

// bootstrap is a function's binary for this machine, as make build-local leaves it.
func bootstrap(t *testing.T, f names.Function) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "dist", "local", string(f), "bootstrap"))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("want what make build-local leaves: %v", err)
	}
	return path
}

// function runs a bootstrap with the environment that Lambda and the stack give it.
// Every endpoint of AWS is aws.
func function(ctx context.Context, t *testing.T, f names.Function, api *runtimeAPI, aws string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(ctx, bootstrap(t, f))
	c.Env = []string{
		"AWS_LAMBDA_RUNTIME_API=" + strings.TrimPrefix(api.URL, "http://"), "_HANDLER=bootstrap", "AWS_LAMBDA_FUNCTION_NAME=bench",
		"AWS_LAMBDA_FUNCTION_MEMORY_SIZE=512", "AWS_LAMBDA_LOG_FORMAT=JSON", "AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=test",
		"AWS_SECRET_ACCESS_KEY=test", "AWS_EC2_METADATA_DISABLED=true", "AWS_ENDPOINT_URL=" + aws, "GOMAXPROCS=2",
	}
	for _, key := range names.Env[f] {
		c.Env = append(c.Env, string(key)+"="+given(key, aws))
	}
	return c
}

// given is what a stack could give a function, the last of what has listed values: that a
// sweep acts.
func given(key names.Key, aws string) string {
	if allowed := names.Values[key]; len(allowed) > 0 {
		return allowed[len(allowed)-1]
	}
	if key == names.ReclaimQueue || key == names.ShardQueue {
		return aws + "/000000000000/bench"
	}
	return boottest.Value(key)
}

// nowhere is an endpoint that a function must not need.
const nowhere = "http://127.0.0.1:1"

// malformed are events that a function answers with an error before any call.
var malformed = map[names.Function]string{names.Reap: `[]`, names.Probe: `{}`, names.Reclaim: `{}`, names.Checkpoint: `[]`, names.Session: `{}`, names.Tools: `{}`}

// coldStart takes the time from a process's start until it has answered its first
// event, and the size of what is uploaded.
func coldStart(t *testing.T, _ int) []figure {
	const starts = 21
	var figures []figure
	for _, f := range names.Functions {
		var took []time.Duration
		for range starts {
			took = append(took, firstAnswer(t, f))
		}
		slices.Sort(took)
		figures = append(figures, figure{
			Name: fmt.Sprintf("cold start of %s, median", f), Value: took[starts/2].Seconds() * 1000, Unit: "ms", Goal: "<= 60",
			how: fmt.Sprintf("process start to first answer, %d starts on this machine, %.0f to %.0f ms", starts, took[0].Seconds()*1000, took[starts-1].Seconds()*1000),
		})
	}
	for _, f := range names.Functions {
		figures = append(figures, figure{Name: fmt.Sprintf("zip of %s, arm64", f), Value: float64(zipped(t, f)) / 1e6, Unit: "MB", Goal: "<= 6"})
	}
	return figures
}

// TestEveryFunctionStartsToBeMeasured: a variable that a function reads and [given] does not
// know would show in a whole run of the figures alone.
func TestEveryFunctionStartsToBeMeasured(t *testing.T) {
	for _, f := range names.Functions {
		t.Run(string(f), func(t *testing.T) { firstAnswer(t, f) })
	}
}

func firstAnswer(t *testing.T, f names.Function) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	api := newRuntimeAPI(t, malformed[f], time.Minute)
	c := function(ctx, t, f, api, nowhere)
	began := time.Now()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}()
	select {
	case a := <-api.answered:
		refused := a.kind == "error" || bytes.HasPrefix(a.body, []byte(`{"error":`))
		if !refused || !bytes.Contains(a.body, []byte("want")) {
			t.Fatalf("%s answered %s %s, want an error that says what it wants", f, a.kind, a.body)
		}
		return a.at.Sub(began)
	case <-ctx.Done():
		t.Fatalf("%s: no answer", f)
		return 0
	}
}

// zipped is the size of a function's asset: its one file, deflated as the CDK does.
func zipped(t *testing.T, f names.Function) int {
	t.Helper()
	binary, err := os.ReadFile(filepath.Join("..", "..", "dist", string(f), "bootstrap"))
	if err != nil {
		t.Fatalf("want what make build leaves: %v", err)
	}
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.DefaultCompression) })
	entry, err := z.Create("bootstrap")
	if err == nil {
		_, err = entry.Write(binary)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Len()
}
