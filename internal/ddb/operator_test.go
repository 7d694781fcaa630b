package ddb_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
)

// paged answers an operator's reads page by page; a nil page is one that failed.
type paged struct {
	pages   [][]map[string]types.AttributeValue
	asked   int
	batches []map[string]types.KeysAndAttributes
	refuse  int // the first so many batches come back unprocessed
}

var errPage = errors.New("page lost")

func (p *paged) next() ([]map[string]types.AttributeValue, map[string]types.AttributeValue, error) {
	page := p.pages[p.asked]
	p.asked++
	if page == nil {
		return nil, nil, errPage
	}
	if p.asked == len(p.pages) {
		return page, nil, nil
	}
	return page, map[string]types.AttributeValue{"pk": text("more")}, nil
}

func (p *paged) Scan(context.Context, *dynamodb.ScanInput, ...func(*dynamodb.Options)) (*dynamodb.ScanOutput, error) {
	items, last, err := p.next()
	return &dynamodb.ScanOutput{Items: items, LastEvaluatedKey: last}, err
}

func (p *paged) Query(context.Context, *dynamodb.QueryInput, ...func(*dynamodb.Options)) (*dynamodb.QueryOutput, error) {
	items, last, err := p.next()
	return &dynamodb.QueryOutput{Items: items, LastEvaluatedKey: last}, err
}

func (p *paged) BatchGetItem(_ context.Context, in *dynamodb.BatchGetItemInput, _ ...func(*dynamodb.Options)) (*dynamodb.BatchGetItemOutput, error) {
	p.batches = append(p.batches, in.RequestItems)
	if len(p.batches) <= p.refuse {
		return &dynamodb.BatchGetItemOutput{UnprocessedKeys: in.RequestItems}, nil
	}
	out := &dynamodb.BatchGetItemOutput{Responses: map[string][]map[string]types.AttributeValue{}}
	for _, keys := range in.RequestItems["boxes"].Keys {
		item := map[string]types.AttributeValue{"pk": keys["pk"], "sk": keys["sk"], "v": number("1")}
		switch keys["sk"].(*types.AttributeValueMemberS).Value {
		case "control":
			item["frozen"] = &types.AttributeValueMemberBOOL{Value: true}
		case "row":
			item["instanceId"], item["state"] = text("I"), text("stopping")
		default:
			continue // no instance record
		}
		out.Responses["boxes"] = append(out.Responses["boxes"], item)
	}
	return out, nil
}

func text(s string) types.AttributeValue   { return &types.AttributeValueMemberS{Value: s} }
func number(s string) types.AttributeValue { return &types.AttributeValueMemberN{Value: s} }

func runItem(run, version string) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{
		"pk": text("acme#" + run), "sk": text("run"), "v": number(version), "tenant": text("acme"), "run": text(run),
		"status": text("completed"), "startedAt": number("1"),
	}
}

type page = []map[string]types.AttributeValue

func TestAScanReadsEveryPageAndSetsBadRecordsApart(t *testing.T) {
	client := &paged{pages: []page{{runItem("a", "1")}, {}, {runItem("b", "9"), runItem("c", "1")}}}
	var good, bad []core.RunID
	for one, err := range ddb.NewReader(client, "runs", "boxes").AllRuns(t.Context()) {
		switch {
		case err != nil:
			t.Fatal(err)
		case one.Bad != nil:
			bad = append(bad, one.Bad.Run)
		default:
			good = append(good, one.Run.RunKey.Run)
		}
	}
	if !slices.Equal(good, []core.RunID{"a", "c"}) || !slices.Equal(bad, []core.RunID{"b"}) {
		t.Errorf("read %q, and %q apart", good, bad)
	}
}

// TestAReadThatFailedIsAnError, on whichever page (I10).
func TestAReadThatFailedIsAnError(t *testing.T) {
	pages := []page{{runItem("a", "1")}, nil}
	var last error
	for _, err := range ddb.NewReader(&paged{pages: pages}, "runs", "boxes").AllRuns(t.Context()) {
		last = err
	}
	if !errors.Is(last, errPage) {
		t.Errorf("scan: %v", last)
	}
	if keys, err := ddb.NewReader(&paged{pages: pages}, "runs", "boxes").Thread(t.Context(), "acme", "t"); !errors.Is(err, errPage) {
		t.Errorf("thread: %v, %v", keys, err)
	}
}

func TestAThreadIsEveryPageOfIt(t *testing.T) {
	client := &paged{pages: []page{{runItem("b", "1")}, {}, {runItem("a", "1")}}}
	keys, err := ddb.NewReader(client, "runs", "boxes").Thread(t.Context(), "acme", "t")
	if want := []core.RunKey{{Tenant: "acme", Run: "b"}, {Tenant: "acme", Run: "a"}}; err != nil || !slices.Equal(keys, want) {
		t.Errorf("thread %v: %v, want %v", keys, err, want)
	}
}

// TestWhatIsKnownOfARunIsOneRequest, sent again for what was left unprocessed.
func TestWhatIsKnownOfARunIsOneRequest(t *testing.T) {
	r := core.Run{RunKey: core.RunKey{Tenant: "acme", Run: "a"}, SandboxKey: "k", Instance: "I"}
	synctest.Test(t, func(t *testing.T) {
		client := &paged{refuse: 2}
		known, err := ddb.NewReader(client, "runs", "boxes").Known(t.Context(), r)
		if err != nil || !known.Control.Frozen || known.Row == nil || known.Row.State != core.LedgerStopping || known.Sandbox != nil || known.Note != (core.Note{}) {
			t.Errorf("known %+v: %v", known, err)
		}
		if len(client.batches) != 3 {
			t.Errorf("%d requests, want 3", len(client.batches))
		}
		for _, keys := range client.batches[0] {
			if !*keys.ConsistentRead {
				t.Error("a table is not read consistently")
			}
		}
		never := &paged{refuse: 1000}
		if known, err := ddb.NewReader(never, "runs", "boxes").Known(t.Context(), r); err == nil {
			t.Errorf("never answered, and known is %+v", known)
		}
	})
}
