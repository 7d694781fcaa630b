package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/transfer"
)

// recorder notes what is asked of the keeper, and answers all of it alike.
type recorder struct {
	asked []any
	err   error
	fail  map[core.ThreadID]error
	keys  []core.ThreadKey
	data  []byte

	withheld string                  // why nothing is removed
	unused   map[core.ThreadID]error // of a deletion

	report  core.StepReport // of a save, a restore or a relay; zero: as each sees fit
	relayed []core.RelayedRequest
	answers []core.RelayedAnswer
	begun   []any
}

func (r *recorder) ask(asked ...any) error {
	r.asked = append(r.asked, asked...)
	return r.err
}

func (r *recorder) Save(_ context.Context, q core.SaveRequest) (core.StepReport, error) {
	if r.report.State != "" {
		return r.report, r.ask("save", q)
	}
	return core.StepReport{ID: q.ID, Kind: core.StepCapture, State: core.StepWorking}, r.ask("save", q)
}

func (r *recorder) Restore(_ context.Context, q core.RestoreRequest) (core.StepReport, error) {
	return core.StepReport{ID: q.ID, Kind: core.StepRestore, State: core.StepDone}, r.ask("restore", q)
}

func (r *recorder) Head(_ context.Context, key core.ThreadKey) (core.ListedCheckpoint, error) {
	return core.ListedCheckpoint{ID: "c", Head: true}, r.ask("head", key)
}

func (r *recorder) Show(_ context.Context, key core.ThreadKey, id core.CheckpointID) (core.ListedCheckpoint, error) {
	return core.ListedCheckpoint{ID: id}, r.ask("show", key, id)
}

func (r *recorder) List(_ context.Context, key core.ThreadKey) ([]core.ListedCheckpoint, error) {
	return []core.ListedCheckpoint{{ID: "c"}}, r.ask("list", key)
}

func (r *recorder) Diff(_ context.Context, key core.ThreadKey, from, to core.CheckpointID, limit int) ([]core.TreeChange, bool, error) {
	return []core.TreeChange{{Path: "a", Kind: "added", To: 3}}, true, r.ask("diff", key, from, to, limit)
}

func (r *recorder) ReadArtifact(_ context.Context, key core.ThreadKey, id core.CheckpointID, artifact string) (core.Artifact, []byte, error) {
	return core.Artifact{Run: "r", ID: artifact, Object: core.ObjectRef{Key: "hidden", Size: 4, SHA256: "ab"}}, r.data, r.ask("artifact", key, id, artifact)
}

func (r *recorder) PutArtifact(_ context.Context, key core.ThreadKey, a core.Artifact, data []byte) (core.Artifact, error) {
	return a, r.ask("putArtifact", key, a, data)
}

func (r *recorder) Conversation(_ context.Context, key core.ThreadKey) (core.Conversation, []byte, error) {
	return core.Conversation{Version: 3}, r.data, r.ask("conversation", key)
}

func (r *recorder) PutConversation(_ context.Context, key core.ThreadKey, seen int64, data []byte, folded []core.RunID) (core.Conversation, error) {
	return core.Conversation{Version: seen + 1}, r.ask("putConversation", key, seen, data, folded)
}

func (r *recorder) Fork(_ context.Context, q core.ForkRequest) ([]core.ListedCheckpoint, error) {
	return []core.ListedCheckpoint{{ID: "f"}}, r.ask("fork", q)
}

func (r *recorder) DeleteHead(_ context.Context, key core.ThreadKey, id core.CheckpointID) (core.CheckpointID, error) {
	return "before", r.ask("deleteHead", key, id)
}

func (r *recorder) Collect(_ context.Context, q core.CollectRequest) (core.CollectReport, error) {
	err := r.ask("gc", q)
	if fail := r.fail[q.Thread]; fail != nil {
		err = fail
	}
	if r.withheld != "" {
		return core.CollectReport{Garbage: 2, Reclaimed: 10, Withheld: r.withheld}, err
	}
	return core.CollectReport{Deleted: 2, Reclaimed: 10, Missing: 1}, err
}

func (r *recorder) Verify(_ context.Context, key core.ThreadKey, id core.CheckpointID, sample int) (core.VerifyReport, error) {
	return core.VerifyReport{Checkpoint: id, Packs: 5}, r.ask("verify", key, id, sample)
}

func (r *recorder) Keep(_ context.Context, q core.KeepRequest) ([]core.CheckpointID, error) {
	err := r.ask("keep", q)
	if fail := r.fail[q.Thread]; fail != nil {
		return nil, fail
	}
	if r.withheld != "" {
		return nil, &core.RefusedError{Op: "keep", Why: r.withheld}
	}
	return []core.CheckpointID{"old"}, err
}

func (r *recorder) Relay(ctx context.Context, q core.RelayRequest, by core.Relay) (core.StepReport, error) {
	err := r.ask("relay", q)
	for _, request := range r.relayed {
		r.answers = append(r.answers, by.Serve(ctx, request))
	}
	return r.report, err
}

func (r *recorder) Begin(_ context.Context, operation string, request any) error {
	r.begun = append(r.begun, operation, request)
	return nil
}

func (r *recorder) ThreadKeys(context.Context) ([]core.ThreadKey, error) {
	return slices.Clone(r.keys), r.ask("threads")
}

func (r *recorder) DeleteThread(_ context.Context, q core.DeleteThreadRequest) (core.DeleteThreadReport, error) {
	err := r.ask("deleteThread", q)
	if fail := r.unused[q.Thread]; fail != nil {
		err = fail
	}
	if q.Thread == "gone" {
		return core.DeleteThreadReport{Already: true}, err
	}
	return core.DeleteThreadReport{Checkpoints: 3, Deleted: 4}, err
}

func (r *recorder) Grant(_ context.Context, token string, packs []core.PackRef) ([]core.PackGrant, core.Millis, error) {
	granted := make([]core.PackGrant, len(packs))
	for i, p := range packs {
		p.Fence = 7
		granted[i] = core.PackGrant{Pack: p, Grant: core.Grant{URL: "https://s3/put", Header: map[string]string{"If-None-Match": "*"}}}
	}
	return granted, 1796031782000, r.ask("grant", token, packs)
}

func (r *recorder) Has(_ context.Context, token string, packs []core.PackRef) ([]bool, error) {
	return make([]bool, len(packs)), r.ask("has", token, packs)
}

func (r *recorder) Parent(_ context.Context, token string) ([]byte, error) {
	return []byte("root"), r.ask("parent", token)
}

func (r *recorder) Fetch(_ context.Context, token string, packs []core.PackRef) ([]core.Grant, error) {
	return slices.Repeat([]core.Grant{{URL: "https://s3/get"}}, len(packs)), r.ask("fetch", token, packs)
}

func (r *recorder) Renew(_ context.Context, token string, files, bytes int64) (core.Millis, error) {
	return 5, r.ask("renew", token, files, bytes)
}

func (r *recorder) Fail(_ context.Context, token, code, message string) error {
	return r.ask("fail", token, code, message)
}

func (r *recorder) CommitRoot(_ context.Context, token string, root []byte) (core.CheckpointID, error) {
	return "c", r.ask("commit", token, root)
}

func sample(t testing.TB, name string) json.RawMessage {
	t.Helper()
	data, err := os.ReadFile("../../events/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// quiet is a handler whose log nobody reads.
func quiet(r *recorder) handler {
	return handler{keeper: r, log: slog.New(slog.DiscardHandler), self: r}
}

// answered is the answer as its receiver reads it.
func answered(t testing.TB, answer any) string {
	t.Helper()
	text, err := json.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const (
	token  = "acme.thread-19.7.c2VjcmV0LW9mLXR3ZW50eS1mb3VyLWI"
	secret = "c2VjcmV0LW9mLXR3ZW50eS1mb3VyLWI"
	sum    = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
)

var key = core.ThreadKey{Tenant: "acme", Thread: "t"}

func TestTheSampleRequestIsUnderstood(t *testing.T) {
	var r recorder
	answer, err := quiet(&r).handle(t.Context(), sample(t, "checkpoint-grant.json"))
	if err != nil {
		t.Fatal(err)
	}
	if want := []any{"grant", token, []core.PackRef{{SHA256: sum, Size: 8 << 20}}}; !reflect.DeepEqual(r.asked, want) {
		t.Errorf("asked %+v, want %+v", r.asked, want)
	}
	got, ok := answer.(events.LambdaFunctionURLResponse)
	if !ok || got.StatusCode != 200 || got.Headers["Content-Type"] != "application/json" {
		t.Fatalf("answered %+v", answer)
	}
	want := `{"grants":[{"sha256":"` + sum + `","fence":7,"url":"https://s3/put","headers":{"If-None-Match":"*"}}],"until":1796031782000}`
	if got.Body != want {
		t.Errorf("answered %s, want %s", got.Body, want)
	}
}

func TestTheSampleSaveIsUnderstood(t *testing.T) {
	var r recorder
	answer, err := quiet(&r).handle(t.Context(), sample(t, "checkpoint-save.json"))
	if err != nil {
		t.Fatal(err)
	}
	want := core.SaveRequest{
		ThreadKey: core.ThreadKey{Tenant: "acme", Thread: "thread-19"}, ID: "checkpoint-run-7f3a", Reason: core.ReasonAutomatic,
		Run: "run-7f3a", Owner: "reclaim:run-7f3a",
		Key: "4b1f6ac2a8f8a1c5d5b9e0a3f2c7d6e41b0a9f8e7d6c5b4a39281706f5e4d3c2", Instance: "5HQZJ4KVTN2WYD7RC3MXB6AFGE",
		JobOptions: core.JobOptions{Dir: "/workspace", Secrets: []string{"GITHUB_TOKEN"}, DeadlineSeconds: 600},
	}
	want.Job = &core.ReclaimJob{Tenant: "acme", Run: "run-7f3a", Key: want.Key, Instance: want.Instance, Kind: core.JobEnd}
	if !reflect.DeepEqual(r.asked, []any{"save", want}) {
		t.Errorf("asked %+v, want %+v", r.asked, want)
	}
	if got := answered(t, answer); !strings.HasPrefix(got, `{"save":{"id":"checkpoint-run-7f3a","kind":"capture","state":"working"`) {
		t.Errorf("answered %s", got)
	}
}

func TestEachCallReachesTheKeeper(t *testing.T) {
	const about = `"tenant":"acme","thread":"t"`
	tests := []struct {
		call string
		want []any
		says string
	}{
		{`{"restore":{` + about + `,"id":"x","checkpoint":"c","key":"k","instance":"i"}}`,
			[]any{"restore", core.RestoreRequest{ThreadKey: key, ID: "x", Checkpoint: "c", Key: "k", Instance: "i"}}, `"state":"done"`},
		{`{"head":{` + about + `}}`, []any{"head", key}, `{"head":{"id":"c"`},
		{`{"list":{` + about + `}}`, []any{"list", key}, `{"list":[{"id":"c"`},
		{`{"show":{` + about + `,"id":"c"}}`, []any{"show", key, core.CheckpointID("c")}, `{"show":{"id":"c"`},
		{`{"diff":{` + about + `,"from":"a","to":"b"}}`, []any{"diff", key, core.CheckpointID("a"), core.CheckpointID("b"), diffLimit},
			`{"diff":{"changes":[{"path":"a","kind":"added","from":0,"to":3}],"more":true}}`},
		{`{"diff":{` + about + `,"from":"a","to":"b","limit":5}}`, []any{"diff", key, core.CheckpointID("a"), core.CheckpointID("b"), 5}, `"more":true`},
		{`{"artifact":{` + about + `,"id":"c","artifact":"a"}}`, []any{"artifact", key, core.CheckpointID("c"), "a"},
			`{"artifact":{"run":"r","id":"a","name":"","mime":"","createdAt":0,"size":4,"sha256":"ab","data":"ZGF0YQ=="}}`},
		{`{"putArtifact":{` + about + `,"run":"r","id":"a","name":"n","mime":"text/plain","createdAt":5,"data":"ZGF0YQ=="}}`,
			[]any{"putArtifact", key, core.Artifact{Run: "r", ID: "a", Name: "n", MIME: "text/plain", CreatedAt: 5}, []byte("data")}, `"id":"a"`},
		{`{"conversation":{` + about + `}}`, []any{"conversation", key}, `{"conversation":{"version":3,"data":"ZGF0YQ=="}}`},
		{`{"putConversation":{` + about + `,"seen":3,"data":"ZGF0YQ==","runs":["r"]}}`,
			[]any{"putConversation", key, int64(3), []byte("data"), []core.RunID{"r"}}, `{"putConversation":{"version":4}}`},
		{`{"fork":{"source":{` + about + `},"checkpoint":"c","branches":[{"thread":"u","id":"f"}]}}`,
			[]any{"fork", core.ForkRequest{Source: key, Checkpoint: "c", Branches: []core.ForkBranch{{Thread: "u", ID: "f"}}}}, `{"fork":[{"id":"f"`},
		{`{"deleteHead":{` + about + `,"id":"c"}}`, []any{"deleteHead", key, core.CheckpointID("c")}, `{"deleteHead":{"head":"before"}}`},
		{`{"gc":{` + about + `,"apply":true,"most":9}}`, []any{"gc", core.CollectRequest{ThreadKey: key, Apply: true, Most: 9}}, `"reclaimed":10`},
		{`{"deleteThread":{` + about + `,"apply":true}}`, []any{"deleteThread", core.DeleteThreadRequest{ThreadKey: key, Apply: true}}, `"checkpoints":3`},
		{`{"threads":{"tenant":"a"}}`, []any{"threads"}, `{"threads":`},
		{`{"verify":{` + about + `,"id":"c","sample":2}}`, []any{"verify", key, core.CheckpointID("c"), 2}, `{"verify":{"checkpoint":"c","packs":5`},
		{`{"keep":{` + about + `,"newest":3}}`, []any{"keep", core.KeepRequest{ThreadKey: key, Newest: 3}}, `{"keep":["old"]}`},
		{`{"tool":{` + about + `,"run":"r","id":"f","branch":"u","tool":"fork_sandbox_snapshot","args":{"checkpointId":"c"}}}`,
			[]any{"fork", core.ForkRequest{Source: key, Checkpoint: "c", Branches: []core.ForkBranch{{Thread: "u", ID: "f"}}}},
			`{"tool":{"checkpointId":"f","destinationThreadId":"u"}}`},
		{`{"tool":{` + about + `,"run":"r","tool":"read_sandbox_snapshot_artifact","args":{"checkpointId":"c","artifactId":"a"}}}`,
			[]any{"artifact", key, core.CheckpointID("c"), "a"}, `{"tool":{"artifactId":"a"`},
		{`{"relay":{` + about + `,"id":"x","kind":"capture","key":"k","instance":"i"}}`,
			[]any{"relay", core.RelayRequest{ThreadKey: key, ID: "x", Kind: core.StepCapture, Key: "k", Instance: "i"}}, `{"relay":{`},
		{`{"agent":{"path":"/renew","token":"` + token + `","body":{"files":1,"bytes":2}}}`, []any{"renew", token, int64(1), int64(2)}, `{"agent":{"until":5}}`},
	}
	seen := map[string]bool{"save": true}
	for _, tt := range tests {
		name := strings.Split(tt.call, `"`)[1]
		seen[name] = true
		t.Run(name, func(t *testing.T) {
			r := recorder{data: []byte("data")}
			answer, err := quiet(&r).handle(t.Context(), json.RawMessage(tt.call))
			if err != nil || !reflect.DeepEqual(r.asked, tt.want) {
				t.Errorf("asked %+v, want %+v (%v)", r.asked, tt.want, err)
			}
			if got := answered(t, answer); !strings.Contains(got, tt.says) {
				t.Errorf("answered %s, want %s", got, tt.says)
			}
		})
	}
	for name := range operations {
		if !seen[name] {
			t.Errorf("%s is not tested", name)
		}
	}
}

func TestEachPathReachesTheKeeper(t *testing.T) {
	packs := []core.PackRef{{Fence: 3, SHA256: sum, Owner: "u"}}
	const named = `{"packs":[{"fence":3,"sha256":"` + sum + `","owner":"u"}]}`
	tests := map[string]struct {
		body string
		want []any
		says string
	}{
		transfer.PathGrant:  {`{"packs":[{"sha256":"` + sum + `","size":5}]}`, []any{"grant", token, []core.PackRef{{SHA256: sum, Size: 5}}}, `"fence":7`},
		transfer.PathHas:    {named, []any{"has", token, packs}, `{"present":[false]}`},
		transfer.PathParent: {`{}`, []any{"parent", token}, `{"root":"cm9vdA=="}`},
		transfer.PathFetch:  {named, []any{"fetch", token, packs}, `{"grants":[{"sha256":"` + sum + `","fence":3,"url":"https://s3/get"}]}`},
		transfer.PathRenew:  {`{"files":4,"bytes":5}`, []any{"renew", token, int64(4), int64(5)}, `{"until":5}`},
		transfer.PathFail:   {`{"code":"time-limit","message":"late"}`, []any{"fail", token, "time-limit", "late"}, `{}`},
		transfer.PathCommit: {`{"root":"cm9vdA=="}`, []any{"commit", token, []byte("root")}, `{"id":"c"}`},
	}
	if got, want := slices.Sorted(maps.Keys(routes)), slices.Sorted(maps.Keys(tests)); !slices.Equal(got, want) {
		t.Errorf("paths %q, tested are %q", got, want)
	}
	for path, tt := range tests {
		t.Run(path, func(t *testing.T) {
			var r recorder
			status, body := send(t, quiet(&r), request{path: path, body: tt.body})
			if status != 200 || !strings.Contains(body, tt.says) || !reflect.DeepEqual(r.asked, tt.want) {
				t.Errorf("answered %d %s after %+v, want %s after %+v", status, body, r.asked, tt.says, tt.want)
			}
		})
	}
}

// request is one to the function's URL. Method and bearer are right where they are
// empty.
type request struct {
	method, path, bearer, body string
	base64                     bool
}

func (q request) event(t testing.TB) json.RawMessage {
	t.Helper()
	if q.method == "" {
		q.method = "POST"
	}
	e := events.LambdaFunctionURLRequest{Version: "2.0", RawPath: q.path, Body: q.body, IsBase64Encoded: q.base64, Headers: map[string]string{}}
	e.RequestContext.HTTP.Method, e.RequestContext.HTTP.Path = q.method, q.path
	switch q.bearer {
	case "":
		e.Headers["authorization"] = "Bearer " + token
	case "none":
	default:
		e.Headers["authorization"] = q.bearer
	}
	event, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return event
}

func send(t testing.TB, h handler, q request) (int, string) {
	t.Helper()
	answer, err := h.handle(t.Context(), q.event(t))
	if err != nil {
		t.Fatal(err)
	}
	r, ok := answer.(events.LambdaFunctionURLResponse)
	if !ok {
		t.Fatalf("answered %+v", answer)
	}
	return r.StatusCode, r.Body
}

var malformedRequests = map[string]struct {
	request
	status int
	code   string
	says   string
}{
	"no token":                {request{bearer: "none"}, 401, "token-dead", "want the job's token"},
	"an empty token":          {request{bearer: "Bearer "}, 401, "token-dead", "want the job's token"},
	"another scheme":          {request{bearer: "Basic " + token}, 401, "token-dead", "want the job's token"},
	"another method":          {request{method: "GET"}, 405, "bad-method", "want POST"},
	"another path":            {request{path: "/admin"}, 404, "no-such-path", "/admin"},
	"a call":                  {request{path: "/", body: `{"deleteHead":{}}`}, 404, "no-such-path", "want a path"},
	"no body":                 {request{body: " "}, 400, "bad-request", "decode JSON"},
	"no object":               {request{body: `[]`}, 400, "bad-request", "decode JSON"},
	"an unknown member":       {request{body: `{"packs":[],"force":true}`}, 400, "bad-request", `unknown field \"force\"`},
	"more behind it":          {request{body: `{"packs":[]} {}`}, 400, "bad-request", "want one value"},
	"no packs":                {request{body: `{}`}, 400, "bad-request", "want 1 to 256, got 0"},
	"a pack without a size":   {request{body: `{"packs":[{"sha256":"` + sum + `"}]}`}, 400, "bad-request", "packs[0]: size"},
	"a key instead of a hash": {request{body: `{"packs":[{"sha256":"other/threads/t/packs/1-x","size":1}]}`}, 400, "bad-request", "packs[0]: sha256"},
	"no base64":               {request{body: `{"packs":[]}`, base64: true}, 400, "bad-request", "want base64"},
	"a long body":             {request{body: `"` + strings.Repeat("x", transfer.MaxBody) + `"`}, 413, "too-large", "want a body of at most"},
	"a long root": {request{path: transfer.PathCommit, body: `{"root":"` + strings.Repeat("AAAA", transfer.MaxRoot/3+1) + `"}`},
		413, "too-large", "root: want at most"},
	"negative progress": {request{path: transfer.PathRenew, body: `{"files":-1,"bytes":0}`}, 400, "bad-request", "from 0 on"},
}

func TestAMalformedRequestIsOneClearErrorAndAsksNobody(t *testing.T) {
	for name, tt := range malformedRequests {
		t.Run(name, func(t *testing.T) {
			if tt.path == "" {
				tt.path = transfer.PathGrant
			}
			var r recorder
			status, body := send(t, quiet(&r), tt.request)
			if status != tt.status || !strings.Contains(body, `{"error":{"code":"`+tt.code+`","message":"`) || !strings.Contains(body, tt.says) || strings.Contains(body, "\n") {
				t.Errorf("answered %d %.300s, want %d %s %s", status, body, tt.status, tt.code, tt.says)
			}
			if len(r.asked) != 0 {
				t.Errorf("asked %+v", r.asked)
			}
		})
	}
}

func TestABodyInBase64IsRead(t *testing.T) {
	var r recorder
	if status, body := send(t, quiet(&r), request{path: transfer.PathParent, body: "e30=", base64: true}); status != 200 {
		t.Errorf("answered %d %s", status, body)
	}
}

var malformedCalls = map[string]struct{ call, says string }{
	"no operation":                 {`{}`, "want exactly one of agent, artifact, "},
	"two operations":               {`{"head":{},"list":{}}`, "got 2 members"},
	"unknown operation":            {`{"destroy":{}}`, `got \"destroy\"`},
	"unknown member":               {`{"head":{"tenant":"a","thread":"t","force":true}}`, `unknown field \"force\"`},
	"another kind":                 {`{"save":[1]}`, "decode JSON"},
	"a negative limit":             {`{"diff":{"tenant":"a","thread":"t","from":"a","to":"b","limit":-1}}`, "limit: want 1 to"},
	"a huge limit":                 {`{"diff":{"tenant":"a","thread":"t","from":"a","to":"b","limit":100000}}`, "limit: want 1 to"},
	"an agent's path that is none": {`{"agent":{"path":"/x","token":"t","body":{}}}`, "want a path of agents"},
	"an agent's body that is none": {`{"agent":{"path":"/grant","token":"t","body":{"x":1}}}`, "unknown field"},
}

func TestAMalformedCallIsOneClearErrorAndAsksNobody(t *testing.T) {
	for name, tt := range malformedCalls {
		t.Run(name, func(t *testing.T) {
			var r recorder
			answer, err := quiet(&r).handle(t.Context(), json.RawMessage(tt.call))
			got := answered(t, answer)
			if err != nil || !strings.HasPrefix(got, `{"error":{"code":"`) || !strings.Contains(got, tt.says) || len(r.asked) != 0 {
				t.Errorf("answered %s, %v after %+v, want %s", got, err, r.asked, tt.says)
			}
		})
	}
}

func TestAnEventThatIsNoneIsAnError(t *testing.T) {
	for event, want := range map[string]string{
		`[]`: "want a JSON object",
		``:   "want a JSON object",
		`{"source":"aws.ecs","detail-type":"ECS Task State Change"}`: `got source "aws.ecs"`,
		`{"source":"sandkeeper.schedule","detail-type":"Tick"}`:      `"Tick"`,
		`{"head":{"tenant":"a"}} {}`:                                 "after top-level value",
		`{"requestContext":{"http":[]}}`:                             "read request",
	} {
		var r recorder
		if answer, err := quiet(&r).handle(t.Context(), json.RawMessage(event)); err == nil || !strings.Contains(err.Error(), want) || len(r.asked) != 0 {
			t.Errorf("%s: answered %v, %v after %v", event, answer, err, r.asked)
		}
	}
}

func TestWhatTheKeeperRefuses(t *testing.T) {
	tests := []struct {
		name   string
		err    error
		status int
		code   string
		hidden string
	}{
		{"input", &core.InvalidError{Code: "invalid-id", Detail: "want an id"}, 400, "invalid-id", ""},
		{"a dead token", core.ErrToken, 401, "token-dead", ""},
		{"too much", &core.InvalidError{Code: "too-large", Detail: "want less"}, 413, "too-large", ""},
		{"a state", fmt.Errorf("commit: %w", &core.RefusedError{Op: "commit", Record: "checkpoint c", Why: "stale-head"}), 409, "stale-head", ""},
		{"absence", fmt.Errorf("checkpoint c: %w", core.ErrNotFound), 404, "not-found", ""},
		{"a fault", errors.New("get item from arn:aws:dynamodb:hidden: throttled"), 503, "unavailable", "arn:aws"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := recorder{err: tt.err}
			status, body := send(t, quiet(&r), request{path: transfer.PathParent, body: `{}`})
			if status != tt.status || !strings.Contains(body, `"code":"`+tt.code+`"`) || tt.hidden != "" && strings.Contains(body, tt.hidden) {
				t.Errorf("an agent gets %d %s, want %d %s", status, body, tt.status, tt.code)
			}
			answer, err := quiet(&r).handle(t.Context(), json.RawMessage(`{"head":{"tenant":"acme","thread":"t"}}`))
			if fault := tt.status == 503; fault != (err != nil) || fault && !errors.Is(err, tt.err) {
				t.Errorf("a caller gets %v, %v", answer, err)
			}
			if err == nil && !strings.Contains(answered(t, answer), `{"error":{"code":"`+tt.code+`"`) {
				t.Errorf("a caller gets %s, want %s", answered(t, answer), tt.code)
			}
		})
	}
}

func TestWhatAnAnswerCannotCarryIsRefused(t *testing.T) {
	for _, call := range []string{`{"artifact":{"tenant":"a","thread":"t","id":"c","artifact":"x"}}`, `{"conversation":{"tenant":"a","thread":"t"}}`} {
		r := recorder{data: make([]byte, dataMost+1)}
		answer, err := quiet(&r).handle(t.Context(), json.RawMessage(call))
		if got := answered(t, answer); err != nil || !strings.Contains(got, `"code":"too-large"`) {
			t.Errorf("%s: answered %.200s, %v", call, got, err)
		}
	}
}

func TestNoTokenIsLogged(t *testing.T) {
	var log bytes.Buffer
	for _, err := range []error{nil, core.ErrToken, errors.New("fault")} {
		r := recorder{err: err, data: []byte("data")}
		h := handler{keeper: &r, log: slog.New(slog.NewTextHandler(&log, nil)), self: &r}
		for path := range routes {
			for _, body := range []string{`{}`, `{"packs":[{"sha256":"` + sum + `","size":5}]}`, token} {
				send(t, h, request{path: path, body: body})
			}
		}
		send(t, h, request{path: "/" + token, bearer: "Basic " + token})
		send(t, h, request{path: "/" + token})
		_, _ = h.handle(t.Context(), json.RawMessage(`{"agent":{"path":"/renew","token":"`+token+`","body":{"files":1,"bytes":2}}}`))
		_, _ = h.handle(t.Context(), json.RawMessage(`{"agent":{"path":"/renew","token":"`+token+`","body":{"`+token+`":1}}}`))
	}
	if text := log.String(); strings.Contains(text, secret) || !strings.Contains(text, "path=/renew") {
		t.Errorf("logged %.2000s", text)
	}
}

func TestTheScheduleCollectsEveryThread(t *testing.T) {
	r := recorder{
		keys: []core.ThreadKey{{Tenant: "a", Thread: "1"}, {Tenant: "a", Thread: "busy"}, {Tenant: "b", Thread: "2"}},
		fail: map[core.ThreadID]error{"busy": &core.RefusedError{Op: "acquire lease", Why: "writer-conflict"}},
	}
	answer, err := quiet(&r).handle(t.Context(), sample(t, "checkpoint-collect.json"))
	want := core.CollectAllReport{Threads: 3, Collected: 2, Busy: 1, Deleted: 4, Reclaimed: 20, Missing: 2}
	if err != nil || answer != want {
		t.Errorf("answered %+v, %v, want %+v", answer, err, want)
	}
	got := map[core.ThreadKey]bool{}
	for _, asked := range r.asked {
		if q, ok := asked.(core.CollectRequest); ok && q.Apply {
			got[q.ThreadKey] = true
		}
	}
	if len(got) != 3 {
		t.Errorf("collected %v", got)
	}
	r.fail["1"] = errors.New("throttled")
	if answer, err := quiet(&r).handle(t.Context(), sample(t, "checkpoint-collect.json")); err == nil || answer.(core.CollectAllReport).Collected != 1 {
		t.Errorf("a failed one: answered %+v, %v", answer, err)
	}
}

// TestTheScheduleLetsOldCheckpointsGo before it collects what only they needed. A thread
// that cannot be asked is left alone.
func TestTheScheduleLetsOldCheckpointsGo(t *testing.T) {
	busy := core.ThreadKey{Tenant: "a", Thread: "busy"}
	r := recorder{
		keys: []core.ThreadKey{key, busy},
		fail: map[core.ThreadID]error{"busy": &core.RefusedError{Op: "acquire lease", Why: "writer-conflict"}},
	}
	h := quiet(&r)
	h.keep = 3
	answer, err := h.handle(t.Context(), sample(t, "checkpoint-collect.json"))
	if want := (core.CollectAllReport{Threads: 2, Collected: 1, Busy: 1, Removed: 1, Deleted: 2, Reclaimed: 10, Missing: 1}); err != nil || answer != want {
		t.Errorf("answered %+v, %v, want %+v", answer, err, want)
	}
	var mine []any
	for _, asked := range r.asked {
		switch q := asked.(type) {
		case core.KeepRequest:
			if q.ThreadKey == key {
				mine = append(mine, q)
			}
		case core.CollectRequest:
			if q.ThreadKey == busy {
				t.Errorf("collected %v, whose checkpoints were not to be had", q)
			}
			mine = append(mine, q)
		}
	}
	want := []any{core.KeepRequest{ThreadKey: key, Newest: 3}, core.CollectRequest{ThreadKey: key, Apply: true}}
	if !reflect.DeepEqual(mine, want) {
		t.Errorf("asked for %+v, want %+v", mine, want)
	}
}

// TestWhatAnOperatorKeepsBackIsOnlyCounted: a first deploy observes, and its daily
// collection removes nothing and is no failure.
func TestWhatAnOperatorKeepsBackIsOnlyCounted(t *testing.T) {
	for _, why := range []string{core.WithheldObserve, core.WithheldFrozen, core.WithheldHeld} {
		r := recorder{keys: []core.ThreadKey{{Tenant: "a", Thread: "1"}}, withheld: why}
		h := quiet(&r)
		h.keep = 3
		answer, err := h.handle(t.Context(), sample(t, "checkpoint-collect.json"))
		if want := (core.CollectAllReport{Threads: 1, Collected: 1, Withheld: 1}); err != nil || answer != want {
			t.Errorf("%s: answered %+v, %v; want %+v", why, answer, err, want)
		}
	}
}

// TestTheScheduleDeletesThreadsThatNobodyUses, and collects the others as ever. One that
// it has deleted before counts on no other day.
func TestTheScheduleDeletesThreadsThatNobodyUses(t *testing.T) {
	r := recorder{
		keys:   []core.ThreadKey{{Tenant: "a", Thread: "old"}, {Tenant: "a", Thread: "used"}, {Tenant: "a", Thread: "lives"}, {Tenant: "a", Thread: "gone"}},
		unused: map[core.ThreadID]error{"used": &core.RefusedError{Op: "delete", Why: "used"}, "lives": &core.RefusedError{Op: "delete", Why: "live-run"}},
	}
	h := quiet(&r)
	h.unused = 30 * 24 * time.Hour
	before := time.Now().Add(-h.unused)
	answer, err := h.handle(t.Context(), sample(t, "checkpoint-collect.json"))
	if want := (core.CollectAllReport{Threads: 4, Collected: 2, Gone: 1, Deleted: 8, Reclaimed: 20, Missing: 2}); err != nil || answer != want {
		t.Errorf("answered %+v, %v; want %+v", answer, err, want)
	}
	for _, asked := range r.asked {
		if q, ok := asked.(core.DeleteThreadRequest); ok && (!q.Apply || q.UnusedSince < core.MillisOf(before) || q.UnusedSince > core.MillisOf(time.Now().Add(-h.unused))) {
			t.Errorf("asked %+v", q)
		}
	}
	r.unused["old"] = errors.New("throttled")
	if answer, err := h.handle(t.Context(), sample(t, "checkpoint-collect.json")); err == nil || answer.(core.CollectAllReport).Failed != 1 {
		t.Errorf("answered %+v, %v, and a thread failed", answer, err)
	}
}

func TestWhatIsNoNumberOfCheckpointsIsRefused(t *testing.T) {
	for _, text := range []string{"", "-1", "all", "2.5", " 3", "99999999999"} {
		if _, err := parseKeep(text); err == nil || !strings.Contains(err.Error(), "want a whole number of at least 0") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if n, err := parseKeep("12"); n != 12 || err != nil {
		t.Errorf("12: %d, %v", n, err)
	}
}

func TestACallWithoutAThreadPlansThemAll(t *testing.T) {
	r := recorder{keys: []core.ThreadKey{key}}
	answer, err := quiet(&r).handle(t.Context(), json.RawMessage(`{"gc":{}}`))
	if err != nil || !reflect.DeepEqual(r.asked, []any{"threads", "gc", core.CollectRequest{ThreadKey: key}}) {
		t.Errorf("answered %+v, %v after %+v", answer, err, r.asked)
	}
}

func TestACollectionWithoutTimeStops(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), collectReserve/2)
	defer cancel()
	r := recorder{keys: []core.ThreadKey{key}}
	answer, err := quiet(&r).handle(ctx, sample(t, "checkpoint-collect.json"))
	if want := (core.CollectAllReport{Threads: 1, More: true}); err != nil || answer != want {
		t.Errorf("answered %+v, %v", answer, err)
	}
}

// Whatever an agent sends is answered, and reaches the keeper only as valid packs.
func FuzzRequest(f *testing.F) {
	for path := range routes {
		f.Add("POST", path, "Bearer "+token, `{"packs":[{"sha256":"`+sum+`","size":5}]}`, false)
	}
	for _, q := range malformedRequests {
		if len(q.body) < 1000 {
			f.Add(q.method, q.path, q.bearer, q.body, q.base64)
		}
	}
	f.Fuzz(func(t *testing.T, method, path, bearer, body string, base64 bool) {
		var r recorder
		status, answer := send(t, quiet(&r), request{method, path, bearer, body, base64})
		if (status == 200) != (len(r.asked) > 0) || !json.Valid([]byte(answer)) || status != 200 && !strings.HasPrefix(answer, `{"error":{"code":"`) {
			t.Errorf("answered %d %s after %+v", status, answer, r.asked)
		}
		for _, asked := range r.asked {
			packs, _ := asked.([]core.PackRef)
			for _, p := range packs {
				if len(p.SHA256) != 64 || strings.Trim(p.SHA256, "0123456789abcdef") != "" || p.Fence < 0 {
					t.Errorf("asked for %+v", p)
				}
			}
		}
	})
}

// Whatever a call holds, it is answered or fails as one line, and asks at most once.
func FuzzCall(f *testing.F) {
	for _, c := range malformedCalls {
		f.Add([]byte(c.call))
	}
	f.Add([]byte(`{"save":{"tenant":"a","thread":"t","id":"c"}}`))
	f.Fuzz(func(t *testing.T, event []byte) {
		r := recorder{keys: []core.ThreadKey{key}}
		answer, err := quiet(&r).handle(t.Context(), event)
		if err == nil && !json.Valid([]byte(answered(t, answer))) {
			t.Errorf("answered %+v", answer)
		}
		if err != nil && len(r.asked) > 0 {
			t.Errorf("failed with %v after %+v", err, r.asked)
		}
	})
}

func TestAStepWithoutARouteIsRelayed(t *testing.T) {
	now := core.MillisOf(time.Now())
	tests := []struct {
		name   string
		relay  bool
		report core.StepReport
		begins bool
	}{
		{"one that has just begun", true, core.StepReport{State: core.StepWorking, SeenAt: now, Began: true}, true},
		{"one that is served", true, core.StepReport{State: core.StepWorking, SeenAt: now}, false},
		{"one that is silent", true, core.StepReport{State: core.StepWorking, SeenAt: now.Add(-time.Minute)}, true},
		{"one that has ended", true, core.StepReport{State: core.StepDone, SeenAt: now}, false},
		{"one with a route", false, core.StepReport{State: core.StepWorking, SeenAt: now, Began: true}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.report.Kind = core.StepCapture
			r := recorder{report: tt.report}
			call := fmt.Sprintf(`{"save":{"tenant":"acme","thread":"t","id":"x","key":"k","instance":"i","relay":%t}}`, tt.relay)
			if _, err := quiet(&r).handle(t.Context(), json.RawMessage(call)); err != nil {
				t.Fatal(err)
			}
			want := []any{"relay", core.RelayRequest{ThreadKey: key, ID: "x", Kind: core.StepCapture, Key: "k", Instance: "i"}}
			if tt.begins != (len(r.begun) > 0) || tt.begins && !reflect.DeepEqual(r.begun, want) {
				t.Errorf("began %+v, want %t", r.begun, tt.begins)
			}
		})
	}
}

func TestARelayAnswersAsTheURLDoes(t *testing.T) {
	r := recorder{
		report: core.StepReport{State: core.StepWorking, SeenAt: core.MillisOf(time.Now())},
		relayed: []core.RelayedRequest{
			{Name: "A", Path: transfer.PathRenew, Token: token, Body: []byte(`{"files":1,"bytes":2}`)},
			{Name: "B", Path: "/admin", Token: token, Body: []byte(`{}`)},
		},
	}
	if _, err := quiet(&r).handle(t.Context(), json.RawMessage(`{"relay":{"tenant":"acme","thread":"t","id":"x","kind":"capture","key":"k","instance":"i"}}`)); err != nil {
		t.Fatal(err)
	}
	if len(r.answers) != 2 || r.answers[0].Status != 200 || string(r.answers[0].Body) != `{"until":5}` || r.answers[1].Status != 404 || r.answers[1].Name != "B" {
		t.Errorf("answered %+v", r.answers)
	}
	if len(r.begun) != 2 || r.begun[0] != "relay" {
		t.Errorf("a step that goes on: began %+v", r.begun)
	}
}
