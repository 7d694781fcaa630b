package ddb_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
)

// wire is a server that speaks DynamoDB's protocol: it keeps what it is asked and
// answers as told.
type wire struct {
	mu       sync.Mutex
	requests []request
	answer   func(n int, op string, w http.ResponseWriter)
}

// request is one request, as it was on the wire.
type request struct {
	Op   string
	Body action
}

// action is a request's body, or one action of a transaction.
type action struct {
	TableName, IndexName, ConditionExpression, UpdateExpression, KeyConditionExpression string
	ReturnValues, ReturnValuesOnConditionCheckFailure                                   string
	ConsistentRead                                                                      bool
	Key, Item, ExclusiveStartKey                                                        map[string]map[string]any
	ExpressionAttributeNames                                                            map[string]string
	ExpressionAttributeValues                                                           map[string]map[string]any
	TransactItems                                                                       []map[string]action
	RequestItems                                                                        map[string]struct {
		Keys           []map[string]map[string]any
		ConsistentRead bool
	}
}

func (v *wire) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	_, op, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	req := request{Op: op}
	if err == nil {
		err = json.Unmarshal(body, &req.Body)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	v.mu.Lock()
	v.requests = append(v.requests, req)
	n := len(v.requests)
	v.mu.Unlock()
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	v.answer(n, op, w)
}

// dial returns a client of a wire that answers so, without the SDK's retries.
func dial(t *testing.T, answer func(n int, op string, w http.ResponseWriter)) (*dynamodb.Client, *wire) {
	v := &wire{answer: answer}
	server := httptest.NewServer(v)
	t.Cleanup(server.Close)
	return dynamodb.New(dynamodb.Options{
		BaseEndpoint: &server.URL, Region: "us-east-1", Retryer: aws.NopRetryer{},
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	}), v
}

// fails answers every request with an error of that type; more is put into its body.
func fails(kind, more string) func(int, string, http.ResponseWriter) {
	return func(_ int, _ string, w http.ResponseWriter) { failWith(w, kind, more) }
}

func failWith(w http.ResponseWriter, kind, more string) {
	w.WriteHeader(http.StatusBadRequest)
	_, _ = fmt.Fprintf(w, `{"__type":"com.amazonaws.dynamodb.v20120810#%s","message":"m"%s}`, kind, more)
}

// says answers every request with that body.
func says(body string) func(int, string, http.ResponseWriter) {
	return func(_ int, _ string, w http.ResponseWriter) { _, _ = io.WriteString(w, body) }
}

var placeholder = regexp.MustCompile(`[#:][0-9]+`)

// plain is an expression with its names and values written in.
func (a action) plain(expression string) string {
	return placeholder.ReplaceAllStringFunc(expression, func(p string) string {
		if name, ok := a.ExpressionAttributeNames[p]; ok {
			return name
		}
		for _, value := range a.ExpressionAttributeValues[p] {
			return fmt.Sprint(value)
		}
		return p
	})
}

// TestEveryTransitionIsOneConditionalRequest pins each condition as it goes over
// the wire, in the very request that writes.
func TestEveryTransitionIsOneConditionalRequest(t *testing.T) {
	live := "(status = running) AND (driverEpoch = 4) AND (attribute_not_exists (cancelRequested))"
	open := "(status IN (running, interrupted))"
	over := "(status IN (completed, failed, aborted)) AND (dueKind = reclaim) AND (instanceId = i)"
	row := "(attribute_not_exists (detachedShard)) AND (attribute_not_exists (dueShard))"
	tests := []struct {
		t    core.Transition
		want string
	}{
		{core.Renew{Epoch: 4, Until: 9}, live},
		{core.Detach{Epoch: 4, Now: 9}, live},
		{core.Interrupt{Epoch: 4, Now: 8, Until: 9}, live},
		{core.Lapse{DueAt: 9}, "(status = running) AND (dueKind = lapse) AND (dueAt = 9)"},
		{core.CancelDue{DueAt: 9}, "(status = running) AND (dueKind = cancel) AND (dueAt = 9)"},
		{core.Attach{Seen: 4, Nonce: "n", Now: 8, Until: 9}, "(status = running) AND (attribute_not_exists (ending)) AND (attribute_not_exists (cancelRequested)) AND (driverEpoch = 4)" +
			" AND ((attribute_exists (detachedShard)) OR ((dueKind = lapse) AND ((attribute_not_exists (dueAt)) OR (dueAt <= 8))))"},
		{core.Attach{Seen: 4, Nonce: "n", Now: 8, Until: 9, Takeover: true}, "(status = running) AND (attribute_not_exists (ending)) AND (attribute_not_exists (cancelRequested)) AND (driverEpoch = 4)"},
		{core.Claim{Seen: 4, Since: 7, Nonce: "n", Now: 8, Until: 9}, claimable},
		{core.Claim{Seen: 4, Paused: true, Since: 7, Nonce: "n", Now: 8, Until: 9}, strings.Replace(claimable, "(status = running) AND (attribute_exists (detachedShard)) AND (detachedSince = 7)", "(status = interrupted) AND (interruptedSince = 7)", 1)},
		{core.Claim{Seen: 4, Since: 7, Nonce: "n", Now: 8, Until: 9, Ending: core.EndExpired, TTLSeconds: 60}, claimable +
			" AND (attribute_not_exists (ending)) AND (ttlSeconds = 60) AND ((attribute_not_exists (hold.until)) OR (hold.until <= 8))"},
		{core.Claim{Seen: 4, Since: 7, Nonce: "n", Now: 8, Until: 9, Ending: core.EndCancelled}, claimable +
			" AND (attribute_not_exists (ending)) AND (attribute_exists (cancelRequested))"},
		{core.Claim{Seen: 4, Since: 7, Nonce: "n", Now: 8, Until: 9, Ending: core.EndNeverStarted, AboutTask: true, Instance: "i"}, claimable +
			" AND (instanceId = i) AND (attribute_not_exists (taskArn)) AND (attribute_not_exists (ending))"},
		{core.Release{Epoch: 4}, open + " AND (driverEpoch = 4)"},
		{core.Append{Epoch: 4, From: 5, End: 5}, open + " AND (driverEpoch = 4) AND (attribute_not_exists (sealed)) AND (logEnd = 5)"},
		{core.Finish{Epoch: 4, Nonce: "n", Now: 8, Status: core.Completed, Transcript: core.Transcript{Bytes: 5}}, open + " AND (driverEpoch = 4) AND (logEnd = 5)"},
		{core.Finish{Epoch: 4, Now: 8, Status: core.Completed, Owes: true, Reclaim: core.ReclaimEnd, NotBefore: 9}, open + " AND (driverEpoch = 4) AND (attribute_not_exists (logEnd))"},
		{core.RequestCancel{Now: 9, Row: core.RowDetached}, open + " AND (attribute_exists (detachedShard))"},
		{core.Hint{TaskARN: "a", TaskStoppedAt: 8, Row: core.RowLapse, DueAt: 9, Lapse: 8}, open + " AND (taskArn = a) AND (dueKind = lapse) AND (dueAt = 9)"},
		{core.Hint{ExitedAt: 8, First: true, TaskARN: "a", Row: core.RowDetached}, open + " AND (taskArn = a) AND (attribute_exists (detachedShard)) AND (attribute_not_exists (dueAt)) AND (attribute_not_exists (exitedAt))"},
		{core.Hint{ExitedAt: 8, Row: core.RowNone}, open + " AND (attribute_not_exists (taskArn)) AND (" + row + ") AND (attribute_not_exists (dueAt))"},
		{core.ReclaimDone{Instance: "i", Outcome: core.ReclaimDestroyed}, over + " AND NOT (checkpoint.state IN (owed, failed))"},
		{core.NoteCheckpoint{From: core.CheckpointMoved, Checkpoint: core.RunCheckpoint{State: core.CheckpointDone}},
			"(status IN (completed, failed, aborted)) AND (checkpoint.state = moved) AND ((checkpoint.state IN (owed, failed)) OR (checkpoint.state = moved))"},
		{core.ReclaimLater{Instance: "i", NotBefore: 9}, over},
		{core.NameInstance{Epoch: 4, Old: "o", Instance: "i", Key: "k"}, "(status = running) AND (driverEpoch = 4) AND (attribute_not_exists (ending)) AND (attribute_not_exists (taskArn)) AND (instanceId = o)"},
		{core.SetHold{Hold: core.Hold{Until: 9}}, "(" + open + " OR (attribute_exists (detachedShard)) OR (attribute_exists (dueShard)) OR (reclaimOutcome = idle))"},
		{core.SetHold{Was: &core.Hold{Until: 9, By: "b"}}, "(" + open + " OR (attribute_exists (detachedShard)) OR (attribute_exists (dueShard)) OR (reclaimOutcome = idle)) AND (hold.until = 9) AND (hold.by = b) AND (hold.why = ) AND (hold.id = )"},
		{core.SetHold{Was: new(core.Hold)}, "(" + open + " OR (attribute_exists (detachedShard)) OR (attribute_exists (dueShard)) OR (reclaimOutcome = idle)) AND (attribute_not_exists (hold))"},
		{core.Claim{Seen: 4, Since: 7, Nonce: "n", Now: 8, Until: 9, Ending: core.EndSpendCap, SpendCap: 60}, claimable +
			" AND (attribute_not_exists (ending)) AND (spendCap = 60) AND ((attribute_not_exists (hold.until)) OR (hold.until <= 8))"},
		{core.SetSpendCap{Cap: 9}, "(status = running) AND (attribute_not_exists (ending))"},
		{core.NotePrice{Epoch: 4, TaskARN: "a", Price: 9}, "(status = running) AND (driverEpoch = 4) AND (taskArn = a)"},
		{core.SetTTL{Seconds: 9}, "(status = running) AND (attribute_not_exists (ending))"},
		{core.SetTTL{Seconds: 9, Was: new(int64(7))}, "(status = running) AND (attribute_not_exists (ending)) AND (ttlSeconds = 7)"},
	}
	for _, tt := range tests {
		client, v := dial(t, says(`{}`))
		_, _ = ddb.NewRuns(client, "runs").Update(t.Context(), core.RunKey{Tenant: "a/b", Run: "r"}, tt.t) // the answer is empty
		pinned(t, v, fmt.Sprintf("%s %+v", tt.t.Name(), tt.t), `a_2fb#r`, "(v = 1) AND "+tt.want)
	}
}

// claimable is what every claim needs.
const claimable = "(status = running) AND (attribute_exists (detachedShard)) AND (detachedSince = 7)" +
	" AND (driverEpoch = 4) AND ((attribute_not_exists (claimUntil)) OR (claimUntil <= 8))"

// flat leaves an expression's parentheses out: the builder nests each AND.
func flat(expression string) string {
	return strings.Join(strings.FieldsFunc(expression, func(r rune) bool { return r == '(' || r == ')' || r == ' ' }), " ")
}

// pinned fails the test unless exactly one request was made, an update of that item
// under that condition, which asks for both images.
func pinned(t *testing.T, v *wire, what, pk, condition string) {
	t.Helper()
	if len(v.requests) != 1 || v.requests[0].Op != "UpdateItem" {
		t.Fatalf("%s: %d requests, want one UpdateItem", what, len(v.requests))
	}
	a := v.requests[0].Body
	if got := a.plain(a.ConditionExpression); flat(got) != flat(condition) {
		t.Errorf("%s:\ncondition %s\n     want %s", what, flat(got), flat(condition))
	}
	if got := a.Key["pk"]["S"]; got != pk {
		t.Errorf("%s: item %v, want %s", what, got, pk)
	}
	if a.ReturnValues != "ALL_NEW" || a.ReturnValuesOnConditionCheckFailure != "ALL_OLD" {
		t.Errorf("%s: asks for %q and %q", what, a.ReturnValues, a.ReturnValuesOnConditionCheckFailure)
	}
}

func TestEveryWriteOfASandboxIsOneConditionalRequest(t *testing.T) {
	mine := "(v = 1) AND (instanceId = i) AND (reclaiming = a)"
	tests := []struct {
		name, pk, want string
		do             func(ctx context.Context, s *ddb.Sandboxes)
	}{
		{"mark reclaiming", "key#k", "(v = 1) AND (instanceId = i) AND (latestRun = r)", sandboxWrite(core.MarkReclaiming{Instance: "i", LatestRun: "r", By: "a"})},
		{"mark reclaiming, idle", "key#k", "(v = 1) AND (instanceId = i) AND (latestRun = r) AND (attribute_exists (dueShard))", sandboxWrite(core.MarkReclaiming{Instance: "i", LatestRun: "r", By: "a", Idle: true})},
		{"unmark", "key#k", mine, sandboxWrite(core.Unmark{Instance: "i", By: "a"})},
		{"unmark, due later", "key#k", mine + " AND (attribute_exists (dueShard))", sandboxWrite(core.Unmark{Instance: "i", By: "a", DueAt: 9})},
		{"mark idle", "key#k", mine, sandboxWrite(core.MarkIdle{Instance: "i", By: "a", Since: 8, DueAt: 9})},
		{"note snapshot", "key#k", "(v = 1) AND (instanceId = i) AND (latestRun = r) AND (attribute_not_exists (reclaiming))", sandboxWrite(core.NoteSnapshot{Instance: "i", Run: "r", Snapshot: "s"})},
		{"stop launch", "task#i", "(v = 1) AND (state = intent)", rowWrite(core.StopLaunch{DueAt: 9})},
		{"close row", "task#i", "(v = 1) AND (state = stopping) AND (taskArn = t) AND (attribute_not_exists (owed)) AND (attribute_not_exists (quota)) AND (attribute_not_exists (price)) AND (attribute_not_exists (pricedSince))", rowWrite(core.CloseRow{From: core.LedgerStopping, TaskARN: "t"})},
		{"settle debt", "task#i", "(v = 1) AND (attribute_exists (owed)) AND (owed = r) AND (state <> closed)", rowWrite(core.SettleDebt{Owed: "r"})},
		{"close a row that never had a task", "task#i", "(v = 1) AND (state = intent) AND (attribute_not_exists (taskArn)) AND (attribute_not_exists (owed)) AND (attribute_not_exists (quota)) AND (attribute_not_exists (price)) AND (attribute_not_exists (pricedSince))", rowWrite(core.CloseRow{From: core.LedgerIntent})},
		{"name task", "task#i", "(v = 1) AND (state = stopping) AND (attribute_not_exists (taskArn))", rowWrite(core.NameTask{TaskARN: "t"})},
		{"postpone", "task#i", "(v = 1) AND (state = intent) AND (attempts = 2)", rowWrite(core.Postpone{State: core.LedgerIntent, Attempts: 2, DueAt: 9})},
		{"count ends", "control", "((attribute_not_exists (pk)) OR (v = 1)) AND (windowStart = 7) AND (count = 2) AND (attribute_not_exists (trippedAt)) AND (attribute_not_exists (quietUntil))",
			func(ctx context.Context, s *ddb.Sandboxes) {
				_, _ = s.UpdateControl(ctx, core.CountEnds{Seen: core.Breaker{WindowStart: 7, Count: 2}, N: 1, Now: 8, Most: 9})
			}},
		{"move cursor", "cursor#3", "((attribute_not_exists (pk)) OR (v = 1)) AND (afterSince = 7) AND (afterRun = a/r) AND (attribute_not_exists (lapStarted))",
			func(ctx context.Context, s *ddb.Sandboxes) {
				_ = s.MoveCursor(ctx, core.Cursor{Shard: 3, AfterSince: 7, AfterRun: "a/r"}, core.Cursor{Shard: 3, AfterSince: 8})
			}},
	}
	for _, tt := range tests {
		client, v := dial(t, says(`{}`))
		tt.do(t.Context(), ddb.NewSandboxes(client, "sandboxes"))
		pinned(t, v, tt.name, tt.pk, tt.want)
	}
}

// sandboxWrite and rowWrite carry out a transition; the answer is empty.
func sandboxWrite(t core.SandboxTransition) func(context.Context, *ddb.Sandboxes) {
	return func(ctx context.Context, s *ddb.Sandboxes) { _, _ = s.UpdateSandbox(ctx, "k", t) }
}

func rowWrite(t core.LedgerTransition) func(context.Context, *ddb.Sandboxes) {
	return func(ctx context.Context, s *ddb.Sandboxes) { _, _ = s.UpdateRow(ctx, "i", t) }
}

func TestEveryPutIsOfAnAbsentItem(t *testing.T) {
	tests := map[string]func(ctx context.Context, c *dynamodb.Client) error{
		"create": func(ctx context.Context, c *dynamodb.Client) error {
			_, err := ddb.NewRuns(c, "runs").Create(ctx, core.Run{RunKey: core.RunKey{Tenant: "a", Run: "r"}, Status: core.Running, Row: core.RowLapse, DueAt: 9})
			return err
		},
		"put intent": func(ctx context.Context, c *dynamodb.Client) error {
			_, err := ddb.NewSandboxes(c, "sandboxes").PutIntent(ctx, core.LedgerRow{Instance: "i", State: core.LedgerIntent, DueAt: 9})
			return err
		},
		"record": func(ctx context.Context, c *dynamodb.Client) error {
			return ddb.NewSandboxes(c, "sandboxes").Record(ctx, core.AuditEntry{At: 9, By: "ops", Op: "freeze"})
		},
	}
	for name, do := range tests {
		client, v := dial(t, says(`{}`))
		if err := do(t.Context(), client); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(v.requests) != 1 {
			t.Fatalf("%s: %d requests", name, len(v.requests))
		}
		a := v.requests[0].Body
		if v.requests[0].Op != "PutItem" || a.ConditionExpression != "attribute_not_exists(pk)" || a.ReturnValuesOnConditionCheckFailure != "ALL_OLD" {
			t.Errorf("%s: %s under %q, asking for %q", name, v.requests[0].Op, a.ConditionExpression, a.ReturnValuesOnConditionCheckFailure)
		}
		if a.Item["v"]["N"] != "1" {
			t.Errorf("%s: schema version %v", name, a.Item["v"])
		}
	}
}

func TestTransactionsCarryTheirConditions(t *testing.T) {
	bound := "v = 1 AND status = running AND driverEpoch = 4 AND attribute_not_exists ending AND instanceId = i AND attribute_not_exists taskArn"
	tests := []struct {
		name string
		do   func(ctx context.Context, c *dynamodb.Client) error
		want []string // "<action> <table> <pk>: <condition>"
	}{
		{"append", func(ctx context.Context, c *dynamodb.Client) error {
			_, err := ddb.NewRuns(c, "runs").Append(ctx, core.RunKey{Tenant: "a", Run: "r"}, core.Append{Epoch: 4, From: 5, End: 6}, core.Segment{From: 5, End: 6, Epoch: 4, Inline: []byte("x")})
			return err
		}, []string{
			"Put runs a#r seg#0000000000000005: attribute_not_exists pk",
			"Update runs a#r run: v = 1 AND status IN running, interrupted AND driverEpoch = 4 AND attribute_not_exists sealed AND logEnd = 5",
		}},
		{"launch", func(ctx context.Context, c *dynamodb.Client) error {
			return ddb.NewTransactions(c, "runs", "sandboxes").Launch(ctx, core.Launched{
				Run: core.RunKey{Tenant: "a", Run: "r"}, Epoch: 4, Sandbox: core.Sandbox{Key: "k", Instance: "i", TaskARN: "t"},
			})
		}, []string{
			"Update sandboxes task#i row: v = 1 AND state = intent",
			"Update runs a#r run: " + bound,
			"Put sandboxes key#k sandbox: attribute_not_exists pk",
		}},
		{"condemn, marked", func(ctx context.Context, c *dynamodb.Client) error {
			return ddb.NewTransactions(c, "runs", "sandboxes").Condemn(ctx, core.Condemn{Instance: "i", Key: "k", By: "a", DueAt: 9})
		}, []string{
			"Update sandboxes task#i row: v = 1 AND state IN intent, running AND attribute_not_exists owed",
			"Delete sandboxes key#k sandbox: v = 1 AND instanceId = i AND reclaiming = a",
		}},
		{"move debt", func(ctx context.Context, c *dynamodb.Client) error {
			return ddb.NewTransactions(c, "runs", "sandboxes").MoveDebt(ctx, core.MoveDebt{Run: core.RunKey{Tenant: "a", Run: "r"}, Instance: "i"})
		}, []string{
			"Update runs a#r run: v = 1 AND status IN completed, failed, aborted AND dueKind = reclaim AND instanceId = i AND checkpoint.state IN owed, failed",
			"Update sandboxes task#i row: v = 1 AND state = running AND attribute_not_exists owed",
		}},
		{"condemn, no record", func(ctx context.Context, c *dynamodb.Client) error {
			return ddb.NewTransactions(c, "runs", "sandboxes").Condemn(ctx, core.Condemn{Instance: "i", Key: "k", DueAt: 9})
		}, []string{
			"Update sandboxes task#i row: v = 1 AND state IN intent, running AND attribute_not_exists owed",
			"ConditionCheck sandboxes key#k sandbox: attribute_not_exists pk OR v = 1 AND NOT instanceId = i",
		}},
	}
	for _, tt := range tests {
		client, v := dial(t, func(_ int, op string, w http.ResponseWriter) {
			if op == "TransactWriteItems" {
				_, _ = io.WriteString(w, `{}`)
				return
			}
			failWith(w, "ResourceNotFoundException", "") // nothing else is told here
		})
		_ = tt.do(t.Context(), client)
		if len(v.requests) == 0 || v.requests[0].Op != "TransactWriteItems" {
			t.Fatalf("%s: requests %v", tt.name, v.requests)
		}
		if got := actions(v.requests[0].Body); !slices.Equal(got, tt.want) {
			t.Errorf("%s:\n got %q\nwant %q", tt.name, got, tt.want)
		}
	}
}

// actions writes a transaction's actions in words.
func actions(transaction action) []string {
	var out []string
	for _, entry := range transaction.TransactItems {
		for kind, a := range entry {
			where := a.Key
			if where == nil {
				where = a.Item
			}
			out = append(out, fmt.Sprintf("%s %s %v %v: %s", kind, a.TableName, where["pk"]["S"], where["sk"]["S"], flat(a.plain(a.ConditionExpression))))
		}
	}
	return out
}

func TestAListingIsEveryPageOrAnError(t *testing.T) {
	page := func(last bool, items string) string {
		if last {
			return `{"Items":[` + items + `]}`
		}
		return `{"Items":[` + items + `],"LastEvaluatedKey":{"pk":{"S":"a#r"},"sk":{"S":"run"}}}`
	}
	item := `{"pk":{"S":"a#r"},"sk":{"S":"run"},"detachedSince":{"N":"7"}}`
	pages := func(n int, _ string, w http.ResponseWriter) {
		_, _ = io.WriteString(w, page(n == 3, map[int]string{1: item, 3: item}[n])) // the second is empty
	}
	client, v := dial(t, pages)
	got, err := ddb.NewRuns(client, "runs").Detached(t.Context(), 5)
	if err != nil || len(got) != 2 || len(v.requests) != 3 {
		t.Fatalf("Detached = %v, %v after %d requests, want both entries of three pages", got, err, len(v.requests))
	}
	if a := v.requests[2].Body; a.IndexName != "detached" || a.ExclusiveStartKey["pk"]["S"] != "a#r" || flat(a.plain(a.KeyConditionExpression)) != "detachedShard = 5" {
		t.Errorf("third request: %+v", a)
	}
	for failing := 1; failing <= 3; failing++ {
		client, _ := dial(t, func(n int, op string, w http.ResponseWriter) {
			if n == failing {
				failWith(w, "InternalServerError", "")
				return
			}
			pages(n, op, w)
		})
		if got, err := ddb.NewRuns(client, "runs").Detached(t.Context(), 5); err == nil || got != nil {
			t.Errorf("page %d fails: Detached = %v, %v; want an error alone", failing, got, err)
		}
	}
}

func TestAListingWithARowThatDoesNotParseIsAnError(t *testing.T) {
	for name, item := range map[string]string{
		"a key without a run":    `{"pk":{"S":"acme"},"sk":{"S":"run"}}`,
		"a key not as we write":  `{"pk":{"S":"a_2D#r"},"sk":{"S":"run"}}`,
		"a time that is no time": `{"pk":{"S":"a#r"},"sk":{"S":"run"},"detachedSince":{"S":"today"}}`,
	} {
		client, _ := dial(t, says(`{"Items":[`+item+`]}`))
		if got, err := ddb.NewRuns(client, "runs").Detached(t.Context(), 0); err == nil {
			t.Errorf("%s: Detached = %v", name, got)
		}
	}
	client, _ := dial(t, says(`{"Items":[{"pk":{"S":"budget#7"},"sk":{"S":"budget"},"dueAt":{"N":"7"}}]}`))
	if got, err := ddb.NewSandboxes(client, "sandboxes").DueSandboxes(t.Context(), 0, 9); err == nil {
		t.Errorf("DueSandboxes = %v for a row that is neither", got)
	}
}

func TestLoadAsksAgainForWhatWasLeft(t *testing.T) {
	item := `{"pk":{"S":"a#r"},"sk":{"S":"run"},"v":{"N":"1"},"tenant":{"S":"a"},"run":{"S":"r"},"status":{"S":"running"}}`
	client, v := dial(t, func(n int, _ string, w http.ResponseWriter) {
		if n == 1 {
			_, _ = io.WriteString(w, `{"Responses":{},"UnprocessedKeys":{"runs":{"Keys":[{"pk":{"S":"a#r"},"sk":{"S":"run"}}],"ConsistentRead":true}}}`)
			return
		}
		_, _ = io.WriteString(w, `{"Responses":{"runs":[`+item+`]}}`)
	})
	k := core.RunKey{Tenant: "a", Run: "r"}
	got, _, err := ddb.NewRuns(client, "runs").Load(t.Context(), []core.RunKey{k, k})
	if err != nil || len(got) != 1 || got[0].RunKey != k {
		t.Fatalf("Load = %v, %v", got, err)
	}
	if keys := v.requests[0].Body.RequestItems["runs"]; len(keys.Keys) != 1 || !keys.ConsistentRead {
		t.Errorf("first request: %+v, want each key once, consistently", keys)
	}
	client, _ = dial(t, says(`{"Responses":{},"UnprocessedKeys":{"runs":{"Keys":[{"pk":{"S":"a#r"},"sk":{"S":"run"}}]}}}`))
	if got, _, err := ddb.NewRuns(client, "runs").Load(t.Context(), []core.RunKey{k}); err == nil {
		t.Errorf("Load = %v for keys that are never processed", got)
	}
}

// TestLoadHoldsEachRecordOnce, however many there are: they come by batches side by side,
// each in two requests, and there is room from the beginning for those that are asked for.
func TestLoadHoldsEachRecordOnce(t *testing.T) {
	var v *wire
	client, v := dial(t, func(n int, _ string, w http.ResponseWriter) {
		v.mu.Lock()
		keys := v.requests[n-1].Body.RequestItems["runs"].Keys
		v.mu.Unlock()
		left := keys[:0:0]
		if len(keys) == 100 {
			keys, left = keys[:70], keys[70:]
		}
		var items []string
		for _, k := range keys {
			run := strings.TrimPrefix(fmt.Sprint(k["pk"]["S"]), "a#")
			items = append(items, fmt.Sprintf(`{"pk":{"S":"a#%s"},"sk":{"S":"run"},"v":{"N":"1"},"tenant":{"S":"a"},"run":{"S":"%s"},"status":{"S":"running"}}`, run, run))
		}
		unprocessed := map[string]any{}
		if len(left) > 0 {
			unprocessed["runs"] = map[string]any{"Keys": left}
		}
		text, err := json.Marshal(unprocessed)
		if err != nil {
			t.Error(err)
		}
		_, _ = fmt.Fprintf(w, `{"Responses":{"runs":[%s]},"UnprocessedKeys":%s}`, strings.Join(items, ","), text)
	})
	want := map[core.RunKey]bool{}
	var keys []core.RunKey
	for i := range 1234 {
		k := core.RunKey{Tenant: "a", Run: core.RunID(fmt.Sprint("r", i))}
		want[k], keys = true, append(keys, k)
	}
	got, apart, err := ddb.NewRuns(client, "runs").Load(t.Context(), keys)
	if err != nil || len(apart) > 0 || cap(got) != len(keys) {
		t.Fatalf("Load brings %d runs in room for %d, %d apart, %v; want room for %d", len(got), cap(got), len(apart), err, len(keys))
	}
	for _, r := range got {
		if !want[r.RunKey] {
			t.Errorf("run %s came twice, or was not asked for", r.RunKey)
		}
		delete(want, r.RunKey)
	}
	if len(want) > 0 || len(v.requests) != 12*2+1 {
		t.Errorf("%d runs did not come, in %d requests", len(want), len(v.requests))
	}
}

func TestARecordThatDoesNotParseComesBackApart(t *testing.T) {
	good := `{"pk":{"S":"a#r"},"sk":{"S":"run"},"v":{"N":"1"},"tenant":{"S":"a"},"run":{"S":"r"},"status":{"S":"running"}}`
	bad := `{"pk":{"S":"a#bad"},"sk":{"S":"run"},"v":{"N":"9"},"tenant":{"S":"a"},"run":{"S":"bad"},"status":{"S":"running"}}`
	client, _ := dial(t, says(`{"Responses":{"runs":[`+bad+`,`+good+`]}}`))
	runs, apart, err := ddb.NewRuns(client, "runs").Load(t.Context(), []core.RunKey{{Tenant: "a", Run: "r"}, {Tenant: "a", Run: "bad"}})
	if err != nil || len(runs) != 1 || runs[0].RunKey.Run != "r" {
		t.Errorf("Load = %v, %v", runs, err)
	}
	if len(apart) != 1 || apart[0].RunKey != (core.RunKey{Tenant: "a", Run: "bad"}) || apart[0].Err == nil {
		t.Errorf("apart: %+v", apart)
	}
}

// TestALeaseIsAskedForByWhatIsKnown: its owner renews it in one request, which leaves the
// fence as it is; where what was known is wrong, the refusal says what to ask for next.
func TestALeaseIsAskedForByWhatIsKnown(t *testing.T) {
	k := core.ThreadKey{Tenant: "a", Thread: "t"}
	image := func(owner string, until int) string {
		return fmt.Sprintf(`{"pk":{"S":"a#t"},"sk":{"S":"head"},"v":{"N":"1"},"tenant":{"S":"a"},"thread":{"S":"t"},"fence":{"N":"4"},"leaseOwner":{"S":%q},"leaseUntil":{"N":"%d"}}`, owner, until)
	}
	const (
		take = "attribute_not_exists leaseOwner OR attribute_not_exists leaseUntil OR leaseUntil <= 50"
		keep = "leaseOwner = me AND leaseUntil > 50 AND attribute_exists leaseOwner"
	)
	for _, tt := range []struct {
		name  string
		held  bool
		there []string // of each refusal
		want  []string // conditions
		fails bool
	}{
		{"it is held, as was known", true, nil, []string{keep}, false},
		{"it is free, as was known", false, nil, []string{take}, false},
		{"it is held after all", false, []string{image("me", 90)}, []string{take, keep}, false},
		{"it has lapsed", true, []string{image("me", 50)}, []string{keep, take}, false},
		{"there is no thread yet", true, []string{""}, []string{keep, take}, false},
		{"another had it, and gave it back", true, []string{image("you", 20)}, []string{keep, take}, false},
		{"it lapses and is taken again", true, []string{image("me", 50), image("me", 99)}, []string{keep, take, keep}, false},
		{"another has it", true, []string{image("you", 90)}, []string{keep}, true},
		{"another has it, and nobody knew", false, []string{image("you", 90)}, []string{take}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client, v := dial(t, func(n int, _ string, w http.ResponseWriter) {
				if n > len(tt.there) {
					_, _ = fmt.Fprintf(w, `{"Attributes":%s}`, image("me", 100))
					return
				}
				more := ""
				if it := tt.there[n-1]; it != "" {
					more = `,"Item":` + it
				}
				failWith(w, "ConditionalCheckFailedException", more)
			})
			_, err := ddb.NewThreads(client, "checkpoints").UpdateThread(t.Context(), k, core.AcquireLease{Owner: "me", Now: 50, Until: 100, Held: tt.held})
			if core.Refused(err) != tt.fails || !tt.fails && err != nil {
				t.Errorf("got %v", err)
			}
			if len(v.requests) != len(tt.want) {
				t.Fatalf("%d requests, want %d", len(v.requests), len(tt.want))
			}
			for i, q := range v.requests {
				condition := flat(q.Body.plain(q.Body.ConditionExpression))
				if !strings.Contains(condition, tt.want[i]) || strings.Contains(q.Body.plain(q.Body.UpdateExpression), "fence") != (tt.want[i] == take) {
					t.Errorf("request %d: %s with %s, want %s", i+1, q.Body.plain(q.Body.UpdateExpression), condition, tt.want[i])
				}
			}
		})
	}
}

func TestAConflictIsNoRefusal(t *testing.T) {
	k := core.RunKey{Tenant: "a", Run: "r"}
	append1 := func(c *dynamodb.Client) error {
		_, err := ddb.NewRuns(c, "runs").Append(t.Context(), k, core.Append{Epoch: 1, End: 1}, core.Segment{End: 1, Epoch: 1})
		return err
	}
	detach := func(c *dynamodb.Client) error {
		_, err := ddb.NewRuns(c, "runs").Update(t.Context(), k, core.Detach{Epoch: 1, Now: 9})
		return err
	}
	canceled := `,"CancellationReasons":[{"Code":"ConditionalCheckFailed"},{"Code":"TransactionConflict"}]`
	tests := map[string]struct {
		do   func(c *dynamodb.Client) error
		fail func(int, string, http.ResponseWriter)
	}{
		"a plain update": {detach, fails("TransactionConflictException", "")},
		"a transaction":  {append1, fails("TransactionCanceledException", canceled)},
	}
	for name, tt := range tests {
		client, v := dial(t, tt.fail)
		if err := tt.do(client); err == nil || core.Refused(err) {
			t.Errorf("%s that never gets through: %v, want an error that is no refusal", name, err)
		}
		if len(v.requests) < 3 {
			t.Errorf("%s was sent %d times", name, len(v.requests))
		}
		client, v = dial(t, func(n int, op string, w http.ResponseWriter) {
			if n < 3 {
				tt.fail(n, op, w)
				return
			}
			_, _ = io.WriteString(w, `{}`)
		})
		_ = tt.do(client) // the answer is empty
		if len(v.requests) < 3 {
			t.Errorf("%s was given up after %d conflicts", name, len(v.requests))
		}
	}
}

// TestAppendAfterWhichTheClaimPassedOnIsRefused: whoever appends must not learn the
// next driver's epoch as its own.
func TestAppendAfterWhichTheClaimPassedOnIsRefused(t *testing.T) {
	item := `{"pk":{"S":"a#r"},"sk":{"S":"run"},"v":{"N":"1"},"tenant":{"S":"a"},"run":{"S":"r"},"status":{"S":"running"},"driverEpoch":{"N":"2"},"logEnd":{"N":"1"}}`
	client, v := dial(t, func(_ int, op string, w http.ResponseWriter) {
		if op == "GetItem" {
			_, _ = io.WriteString(w, `{"Item":`+item+`}`)
			return
		}
		_, _ = io.WriteString(w, `{}`)
	})
	k := core.RunKey{Tenant: "a", Run: "r"}
	r, err := ddb.NewRuns(client, "runs").Append(t.Context(), k, core.Append{Epoch: 1, End: 1}, core.Segment{End: 1, Epoch: 1, Inline: []byte("x")})
	if e, ok := errors.AsType[*core.RefusedError](err); !ok || e.Why != "epoch" {
		t.Errorf("Append = %+v, %v; want a refusal for the epoch", r.Epoch, err)
	}
	if len(v.requests) != 2 || !v.requests[1].Body.ConsistentRead {
		t.Errorf("%d requests, want the transaction and a consistent read", len(v.requests))
	}
}

// TestRowsOfThisReleaseParse holds the stored shape: old items must parse with new
// code, for as long as there may be any.
func TestRowsOfThisReleaseParse(t *testing.T) {
	item := `{"pk":{"S":"acme#r_5f1"},"sk":{"S":"run"},"v":{"N":"1"},"tenant":{"S":"acme"},"run":{"S":"r_1"},"thread":{"S":"t"},
	"status":{"S":"failed"},"startedAt":{"N":"1"},"finishedAt":{"N":"2"},"error":{"M":{"code":{"S":"agent-exit"},"message":{"S":"m"}}},
	"exitCode":{"N":"0"},"driverEpoch":{"N":"3"},"claimNonce":{"S":"n"},"detachedSince":{"N":"4"},"ending":{"M":{"reason":{"S":"expired"},"at":{"N":"5"}}},
	"sealed":{"M":{"exitCode":{"N":"0"},"at":{"N":"6"},"stderr":{"S":""}}},"logEnd":{"N":"7"},"logHash":{"B":"AAE="},
	"transcript":{"M":{"bytes":{"N":"7"},"sha256":{"S":"00"},"complete":{"BOOL":true}}},"hold":{"M":{"until":{"N":"8"},"by":{"S":"ops"},"why":{"S":"w"}}},
	"reclaimKind":{"S":"end"},"reclaimSince":{"N":"2"},"dueShard":{"N":"0"},"dueAt":{"N":"9"},"dueKind":{"S":"reclaim"},"addedLater":{"S":"?"}}`
	want := core.Run{
		RunKey: core.RunKey{Tenant: "acme", Run: "r_1"}, Thread: "t", Status: core.Failed, StartedAt: 1, FinishedAt: 2,
		Error: &core.RunError{Code: "agent-exit", Message: "m"}, ExitCode: new(0), Epoch: 3, ClaimNonce: "n", DetachedSince: 4,
		Ending: &core.Ending{Reason: core.EndExpired, At: 5}, Sealed: &core.Sealed{At: 6}, LogEnd: 7, LogHash: []byte{0, 1},
		Transcript: &core.Transcript{Bytes: 7, SHA256: "00", Complete: true}, Hold: core.Hold{Until: 8, By: "ops", Why: "w"},
		Reclaim: core.ReclaimEnd, ReclaimSince: 2, Row: core.RowReclaim, DueAt: 9,
	}
	client, v := dial(t, says(`{"Item":`+item+`}`))
	got, err := ddb.NewRuns(client, "runs").Run(t.Context(), want.RunKey)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := json.Marshal(got)
	b, _ := json.Marshal(want)
	if !bytes.Equal(a, b) {
		t.Errorf("parsed\n%s, want\n%s", a, b)
	}
	if !v.requests[0].Body.ConsistentRead {
		t.Error("the read is not consistent")
	}
}

func TestARecordThatDoesNotParseIsAnError(t *testing.T) {
	base := map[string]string{
		"pk": `{"S":"a#r"}`, "sk": `{"S":"run"}`, "v": `{"N":"1"}`, "tenant": `{"S":"a"}`, "run": `{"S":"r"}`, "status": `{"S":"running"}`,
	}
	tests := map[string]map[string]string{
		"an unknown status":           {"status": `{"S":"paused"}`},
		"no status":                   {"status": ""},
		"another schema version":      {"v": `{"N":"2"}`},
		"no schema version":           {"v": ""},
		"another run's":               {"run": `{"S":"r2"}`},
		"another tenant's":            {"tenant": `{"S":"b"}`},
		"a number that is text":       {"logEnd": `{"S":"many"}`},
		"two index rows":              {"detachedShard": `{"N":"0"}`, "detachedSince": `{"N":"5"}`, "dueShard": `{"N":"0"}`, "dueAt": `{"N":"5"}`, "dueKind": `{"S":"lapse"}`},
		"an unknown due row":          {"dueShard": `{"N":"0"}`, "dueAt": `{"N":"5"}`, "dueKind": `{"S":"later"}`},
		"a due row without a time":    {"dueShard": `{"N":"0"}`, "dueKind": `{"S":"lapse"}`},
		"a due time without a shard":  {"dueAt": `{"N":"5"}`, "dueKind": `{"S":"lapse"}`},
		"a detached row without when": {"detachedShard": `{"N":"0"}`},
	}
	for name, changed := range tests {
		t.Run(name, func(t *testing.T) {
			var members []string
			for attribute, value := range base {
				if _, ok := changed[attribute]; !ok {
					members = append(members, fmt.Sprintf("%q:%s", attribute, value))
				}
			}
			for attribute, value := range changed {
				if value != "" {
					members = append(members, fmt.Sprintf("%q:%s", attribute, value))
				}
			}
			item := "{" + strings.Join(members, ",") + "}"
			k := core.RunKey{Tenant: "a", Run: "r"}
			client, _ := dial(t, says(`{"Item":`+item+`}`))
			if r, err := ddb.NewRuns(client, "runs").Run(t.Context(), k); err == nil {
				t.Errorf("Run = %+v", r)
			}
			client, _ = dial(t, fails("ConditionalCheckFailedException", `,"Item":`+item))
			_, err := ddb.NewRuns(client, "runs").Update(t.Context(), k, core.Detach{Epoch: 1, Now: 9})
			if err == nil || core.Refused(err) {
				t.Errorf("Update = %v, want an error that is no refusal", err)
			}
		})
	}
}

func TestAnOutageIsNeitherAbsenceNorRefusal(t *testing.T) {
	client, _ := dial(t, fails("InternalServerError", ""))
	runs, boxes := ddb.NewRuns(client, "runs"), ddb.NewSandboxes(client, "sandboxes")
	k := core.RunKey{Tenant: "a", Run: "r"}
	_, err1 := runs.Run(t.Context(), k)
	_, err2 := runs.Update(t.Context(), k, core.Release{Epoch: 1})
	_, err3 := boxes.Control(t.Context())
	_, err4 := boxes.Row(t.Context(), "i")
	for i, err := range []error{err1, err2, err3, err4} {
		if err == nil || core.Refused(err) || strings.Contains(err.Error(), core.ErrNotFound.Error()) {
			t.Errorf("call %d: %v, want an error that says neither", i+1, err)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	for _, seed := range []string{"a", "", "a_2fb", "_2F", "_", "_0", "a#b", "_5f"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if id, err := ddb.ParseToken(text); err == nil && core.KeyToken(id) != text {
			t.Errorf("ParseToken(%q) = %q, which is written %q", text, id, core.KeyToken(id))
		}
		if id, err := ddb.ParseToken(core.KeyToken(text)); err != nil || id != text {
			t.Errorf("ParseToken of %q's token = %q, %v", text, id, err)
		}
	})
}
