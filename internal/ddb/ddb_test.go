package ddb_test

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/core/coretest"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/draw"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/engine/enginetest"
	"github.com/sandkeeper/sandkeeper/internal/mem"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// tables are the two tables of one test.
type tables struct {
	config aws.Config
	suffix string
}

// newTables makes tables of the test's own on the engine.
func newTables(t *testing.T) tables {
	tables := tables{config: enginetest.Shared(t).Config(), suffix: "-" + strings.ToLower(rand.Text())}
	client := dynamodb.NewFromConfig(tables.config)
	for _, table := range []names.Table{names.Runs, names.Sandboxes} {
		if err := engine.CreateTable(t.Context(), client, table.Name+tables.suffix, table); err != nil {
			t.Fatal(err)
		}
	}
	return tables
}

// stores are the adapters over client, blobs and queue in memory.
func (v tables) stores(t *testing.T, client *dynamodb.Client) coretest.Stores {
	runsTable, boxesTable := names.Runs.Name+v.suffix, names.Sandboxes.Name+v.suffix
	runs, boxes := ddb.NewRuns(client, runsTable), ddb.NewSandboxes(client, boxesTable)
	return coretest.Stores{
		Runs: runs, Log: runs, Index: runs, Sandboxes: boxes, Ledger: boxes, Transactions: ddb.NewTransactions(client, runsTable, boxesTable), Due: boxes,
		Controls: boxes, Settings: boxes, Audit: boxes, Notes: runs, Meters: boxes, Cursors: boxes, Budget: boxes, SpoolQuotas: runs, Blobs: mem.New(t),
		Seed: coretest.Seed{
			Run: runs.SeedRun, Sandbox: boxes.SeedSandbox, Row: boxes.SeedRow, Control: boxes.SeedControl,
			Audited: func(ctx context.Context, at core.Millis) ([]core.AuditEntry, error) {
				return boxes.Audit(ctx, at.Time())
			},
		},
	}
}

func open(t *testing.T) coretest.Stores {
	v := newTables(t)
	return v.stores(t, dynamodb.NewFromConfig(v.config))
}

func TestContract(t *testing.T) {
	t.Run("Runs", func(t *testing.T) { coretest.Runs(t, open) })
	t.Run("RunLog", func(t *testing.T) { coretest.RunLog(t, open) })
	t.Run("RunIndex", func(t *testing.T) { coretest.RunIndex(t, open) })
	t.Run("Sandboxes", func(t *testing.T) { coretest.Sandboxes(t, open) })
	t.Run("Ledger", func(t *testing.T) { coretest.Ledger(t, open) })
	t.Run("Quota", func(t *testing.T) { coretest.Quota(t, open) })
	t.Run("Meters", func(t *testing.T) { coretest.Meters(t, open) })
	t.Run("SandboxIndex", func(t *testing.T) { coretest.SandboxIndex(t, open) })
	t.Run("Transactions", func(t *testing.T) { coretest.Transactions(t, open) })
	t.Run("Audit", func(t *testing.T) { coretest.Audit(t, open) })
	t.Run("Notes", func(t *testing.T) { coretest.Notes(t, open) })
	t.Run("Warnings", func(t *testing.T) { coretest.Warnings(t, open) })
	t.Run("Cursors", func(t *testing.T) { coretest.Cursors(t, open) })
	t.Run("Budget", func(t *testing.T) { coretest.Budget(t, open) })
	t.Run("SpoolQuotas", func(t *testing.T) { coretest.SpoolQuotas(t, open) })
	t.Run("Controls", func(t *testing.T) { coretest.Controls(t, open) })
}

func TestRandomRecords(t *testing.T) {
	draw.Runs(t, 60) // fewer than in memory
	t.Run("runs", func(t *testing.T) { coretest.RunTransitions(t, open) })
	t.Run("sandboxes", func(t *testing.T) { coretest.SandboxTransitions(t, open) })
	t.Run("ledger", func(t *testing.T) { coretest.LedgerTransitions(t, open) })
	t.Run("control", func(t *testing.T) { coretest.ControlTransitions(t, open) })
	t.Run("transactions", func(t *testing.T) { coretest.RandomTransactions(t, open) })
	t.Run("session transactions", func(t *testing.T) { coretest.SessionTransactions(t, open) })
}

// breaking fails the first request that writes, in one of two ways.
type breaking struct {
	next  aws.HTTPClient
	fault coretest.Fault
	used  atomic.Bool
}

var errCut = errors.New("connection cut")

func (b *breaking) Do(request *http.Request) (*http.Response, error) {
	target := request.Header.Get("X-Amz-Target")
	if !strings.HasSuffix(target, "Item") && !strings.HasSuffix(target, "Items") ||
		strings.Contains(target, "Get") || b.used.Swap(true) {
		return b.next.Do(request)
	}
	if b.fault == coretest.AnswerLost {
		answer, err := b.next.Do(request)
		if err != nil {
			return nil, err
		}
		_ = answer.Body.Close() // it is lost
	}
	return nil, errCut
}

func TestFaultsOfBothKinds(t *testing.T) {
	coretest.Faults(t, func(t *testing.T, f coretest.Fault) (sound, broken coretest.Stores) {
		v := newTables(t)
		sound = v.stores(t, dynamodb.NewFromConfig(v.config))
		broken = v.stores(t, dynamodb.NewFromConfig(v.config, func(o *dynamodb.Options) {
			o.HTTPClient = &breaking{next: v.config.HTTPClient, fault: f}
			o.Retryer = aws.NopRetryer{}
		}))
		blobs := mem.New(t)
		sound.Blobs = blobs
		fault := map[coretest.Fault]mem.Fault{coretest.NotLanded: mem.NotLanded, coretest.AnswerLost: mem.AnswerLost}[f]
		broken.Blobs = blobs.NewProcess(mem.At(1, fault)) // not what this test is about
		return sound, broken
	})
}

// TestTheSDKsOwnRetry pins what happens in life: the answer is lost, the SDK sends
// the request again, and the condition meets the first one's write.
func TestTheSDKsOwnRetry(t *testing.T) {
	v := newTables(t)
	sound := v.stores(t, dynamodb.NewFromConfig(v.config))
	r := core.Run{RunKey: core.RunKey{Tenant: "acme", Run: "r"}, Status: core.Running, Epoch: 1, ClaimNonce: "host", Row: core.RowDetached, DetachedSince: 5}
	if err := sound.Seed.Run(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	cut := &breaking{next: v.config.HTTPClient, fault: coretest.AnswerLost}
	retried := v.stores(t, dynamodb.NewFromConfig(v.config, func(o *dynamodb.Options) { o.HTTPClient = cut }))
	got, err := retried.Runs.Update(t.Context(), r.RunKey, core.Claim{Seen: 1, Since: 5, Nonce: "mine", Now: 6, Until: 7})
	if err != nil || got.ClaimNonce != "mine" || got.Epoch != 2 {
		t.Errorf("claim = %+v, %v; want my own success", got.ClaimNonce, err)
	}
	if !cut.used.Load() {
		t.Error("nothing was cut")
	}
}

// TestABrokenMeterIsMissingAlone: the others are told, beside the error that names it.
func TestABrokenMeterIsMissingAlone(t *testing.T) {
	v := newTables(t)
	client := dynamodb.NewFromConfig(v.config)
	boxes := v.stores(t, client).Meters
	table := names.Sandboxes.Name + v.suffix
	put := func(tenant, used string, value types.AttributeValue) {
		_, err := client.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: &table, Item: map[string]types.AttributeValue{
			"pk": &types.AttributeValueMemberS{Value: "quota#" + tenant}, "sk": &types.AttributeValueMemberS{Value: "meter"}, used: value,
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	put("acme", "used 2026-11", &types.AttributeValueMemberN{Value: "3600000000"})
	put("umbra", "used 2026-11", &types.AttributeValueMemberS{Value: "much"})
	at := core.MillisOf(time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC))
	all, err := boxes.Spent(t.Context(), []core.TenantID{"umbra", "acme"}, at)
	if want := map[core.TenantID]core.Spending{"acme": {Spent: 1000}}; !maps.Equal(all, want) || err == nil || !strings.Contains(err.Error(), "tenant umbra") {
		t.Errorf("told %v, %v, want %v", all, err, want)
	}
}
