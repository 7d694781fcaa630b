package ddb

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/attributevalue"
	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	smithytime "github.com/aws/smithy-go/time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// readerClient is what an operator's reads need beside what the functions do. No
// function may scan.
type readerClient interface {
	BatchGetItem(context.Context, *dynamodb.BatchGetItemInput, ...func(*dynamodb.Options)) (*dynamodb.BatchGetItemOutput, error)
	Query(context.Context, *dynamodb.QueryInput, ...func(*dynamodb.Options)) (*dynamodb.QueryOutput, error)
	Scan(context.Context, *dynamodb.ScanInput, ...func(*dynamodb.Options)) (*dynamodb.ScanOutput, error)
}

var _ readerClient = (*dynamodb.Client)(nil)

// Reader answers what only an operator asks of the tables: everything beside a run's
// record in one request, the history of a thread, and all runs that there are.
type Reader struct {
	client          readerClient
	runs, sandboxes string
}

// NewReader returns the reader of an installation's tables.
func NewReader(client readerClient, runs, sandboxes string) *Reader {
	return &Reader{client, runs, sandboxes}
}

// Known reads what is kept beside a run's record, consistently and in one request:
// its note, the settings, its tenant's meter, its sandbox and its ledger row.
func (s *Reader) Known(ctx context.Context, r core.Run) (core.Known, error) {
	k, err := s.known(ctx, r)
	if err != nil {
		return core.Known{}, fmt.Errorf("read what is known of run %s: %w", r.RunKey, err)
	}
	return k, nil
}

func (s *Reader) known(ctx context.Context, r core.Run) (core.Known, error) {
	boxes := []item{key(pkControl, skControl), meterKey(r.Tenant)}
	if r.SandboxKey != "" {
		boxes = append(boxes, key(sandboxPK(r.SandboxKey), skSandbox))
	}
	if r.Instance != "" {
		boxes = append(boxes, key(rowPK(r.Instance), skRow))
	}
	items, err := s.batch(ctx, map[string]types.KeysAndAttributes{
		s.runs:      {Keys: []item{key(runPK(r.RunKey), skNote)}, ConsistentRead: new(true)},
		s.sandboxes: {Keys: boxes, ConsistentRead: new(true)},
	})
	if err != nil {
		return core.Known{}, err
	}
	known := core.Known{Run: r, Spending: new(core.Spending)}
	for _, it := range items {
		if err := into(&known, it); err != nil {
			return core.Known{}, err
		}
	}
	return known, nil
}

// into puts an item where it belongs.
func into(known *core.Known, it item) error {
	var h head
	err := attributevalue.UnmarshalMap(it, &h)
	switch {
	case err != nil:
	case h.SK == skNote:
		var row noteRow
		if err = attributevalue.UnmarshalMap(it, &row); err == nil {
			known.Note, err = row.note(), row.check()
		}
	case h.SK == skControl:
		known.Control, err = decodeControl(it)
	case h.SK == skMeter:
		*known.Spending, err = decodeMeter(it, core.MillisOf(time.Now()))
	case h.SK == skSandbox:
		var box core.Sandbox
		box, err = decodeSandbox(it)
		known.Sandbox = &box
	case h.SK == skRow:
		var row core.LedgerRow
		row, err = decodeLedger(it)
		known.Row = &row
	}
	return err
}

// batch reads items of both tables until all were answered.
func (s *Reader) batch(ctx context.Context, request map[string]types.KeysAndAttributes) ([]item, error) {
	var items []item
	for try := range conflictTries {
		answer, err := send(ctx, s.client.BatchGetItem, &dynamodb.BatchGetItemInput{RequestItems: request})
		if err != nil {
			return nil, err
		}
		for _, table := range answer.Responses {
			items = append(items, table...)
		}
		if request = answer.UnprocessedKeys; len(request) == 0 {
			return items, nil
		}
		if err := smithytime.SleepWithContext(ctx, backoff(try)); err != nil {
			return nil, err
		}
	}
	return nil, errUnprocessed
}

// Thread lists the runs of a thread, newest first.
func (s *Reader) Thread(ctx context.Context, tenant core.TenantID, thread core.ThreadID) ([]core.RunKey, error) {
	condition := expression.Key(names.ThreadKey).Equal(expression.Value(threadKey(tenant, thread)))
	in := &dynamodb.QueryInput{TableName: &s.runs, IndexName: &names.ThreadIndex.Name, ScanIndexForward: new(false)}
	e, err := expression.NewBuilder().WithKeyCondition(condition).Build()
	if err != nil {
		return nil, fmt.Errorf("list runs of thread %s/%s: %w", tenant, thread, err)
	}
	in.KeyConditionExpression, in.ExpressionAttributeNames, in.ExpressionAttributeValues = e.KeyCondition(), e.Names(), e.Values()
	var keys []core.RunKey
	for {
		page, err := send(ctx, s.client.Query, in)
		if err != nil {
			return nil, fmt.Errorf("list runs of thread %s/%s: %w", tenant, thread, err)
		}
		for _, it := range page.Items {
			_, k, err := decodeIndex(it)
			if err != nil {
				return nil, fmt.Errorf("list runs of thread %s/%s: %w", tenant, thread, err)
			}
			keys = append(keys, k)
		}
		if len(page.LastEvaluatedKey) == 0 {
			return keys, nil
		}
		in.ExclusiveStartKey = page.LastEvaluatedKey
	}
}

// AllRuns yields every run record that there is, in no order: a scan, which costs as
// much as the table is large. One that does not parse comes as a [core.Unreadable];
// a page that failed is an error and the last thing to come (I10).
func (s *Reader) AllRuns(ctx context.Context) iter.Seq2[Scanned, error] {
	return func(yield func(Scanned, error) bool) {
		in := &dynamodb.ScanInput{
			TableName: &s.runs, FilterExpression: new("sk = :run"),
			ExpressionAttributeValues: item{":run": &types.AttributeValueMemberS{Value: skRun}},
		}
		for {
			page, err := send(ctx, s.client.Scan, in)
			if err != nil {
				yield(Scanned{}, fmt.Errorf("scan runs: %w", err))
				return
			}
			if !yieldPage(page.Items, yield) || len(page.LastEvaluatedKey) == 0 {
				return
			}
			in.ExclusiveStartKey = page.LastEvaluatedKey
		}
	}
}

// Scanned is one record that a scan met: the run, or why it cannot be read.
type Scanned struct {
	Run core.Run
	Bad *core.Unreadable
}

func yieldPage(items []item, yield func(Scanned, error) bool) bool {
	for _, it := range items {
		var one loaded
		if err := one.add(it); err != nil {
			yield(Scanned{}, fmt.Errorf("scan runs: %w", err))
			return false
		}
		next := Scanned{}
		if len(one.bad) > 0 {
			next.Bad = &one.bad[0]
		} else {
			next.Run = one.runs[0]
		}
		if !yield(next, nil) {
			return false
		}
	}
	return true
}
