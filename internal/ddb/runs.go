package ddb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/attributevalue"
	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	smithytime "github.com/aws/smithy-go/time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// Runs keeps run records and their logs in the runs table.
type Runs struct {
	client client
	table  string
}

// NewRuns returns the runs of a table.
func NewRuns(client client, table string) *Runs { return &Runs{client, table} }

var (
	_ core.Runs     = (*Runs)(nil)
	_ core.RunLog   = (*Runs)(nil)
	_ core.RunIndex = (*Runs)(nil)
)

// Run reads a record.
func (s *Runs) Run(ctx context.Context, k core.RunKey) (core.Run, error) {
	it, err := get(ctx, s.client, s.table, key(runPK(k), skRun))
	if err != nil {
		return core.Run{}, fmt.Errorf("read run %s: %w", k, err)
	}
	r, err := decodeRun(it)
	if err != nil {
		return core.Run{}, fmt.Errorf("read run %s: %w", k, err)
	}
	return r, nil
}

// Create puts a record that must be absent, or recognises the host's own start.
func (s *Runs) Create(ctx context.Context, r core.Run) (core.Run, error) {
	have, err := s.create(ctx, r)
	if err != nil {
		return core.Run{}, fmt.Errorf("create run %s: %w", r.RunKey, err)
	}
	if have == nil {
		return r, nil
	}
	if err := core.Created(r, *have); err != nil {
		return core.Run{}, err
	}
	return *have, nil
}

// create returns the record that is there already, nil if it put r.
func (s *Runs) create(ctx context.Context, r core.Run) (*core.Run, error) {
	it, err := encodeRun(r)
	if err != nil {
		return nil, err
	}
	image, there, err := put(ctx, s.client, s.table, it)
	if err != nil || !there {
		return nil, err
	}
	have, err := decodeRun(image)
	if err != nil {
		return nil, err
	}
	return &have, nil
}

// Update carries out one transition in one request. An [core.Append] with bytes
// needs its segment; see [Runs.Append].
func (s *Runs) Update(ctx context.Context, k core.RunKey, t core.Transition) (core.Run, error) {
	if a, ok := t.(core.Append); ok && a.End != a.From {
		return core.Run{}, fmt.Errorf("append run %s: want a segment for its bytes", k)
	}
	c, err := runChange(k, t)
	if err != nil {
		return core.Run{}, fmt.Errorf("update run %s: %w", k, err)
	}
	r, err := transit(ctx, place[core.Run]{s.client, s.table, key(runPK(k), skRun), decodeRun}, c, t)
	return r, wrapUnlessRefused(err, "%s run %s", t.Name(), k)
}

// wrapUnlessRefused adds what was being done, which a refusal says itself.
func wrapUnlessRefused(err error, format string, args ...any) error {
	if err == nil || core.Refused(err) {
		return err
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}

// Append puts a segment and moves the log's end in one transaction.
//
// A transaction returns no images, so the record is read after it. Where that shows
// that the claim has passed on meanwhile, the answer is the refusal that the next
// append would meet: the caller must not go on under an epoch that is not its own.
func (s *Runs) Append(ctx context.Context, k core.RunKey, a core.Append, segment core.Segment) (core.Run, error) {
	if a.End == a.From {
		return s.Update(ctx, k, a)
	}
	r, err := s.append(ctx, k, a, segment)
	return r, wrapUnlessRefused(err, "append run %s", k)
}

func (s *Runs) append(ctx context.Context, k core.RunKey, a core.Append, segment core.Segment) (core.Run, error) {
	if segment.From != a.From || segment.End != a.End || segment.Epoch != a.Epoch {
		return core.Run{}, fmt.Errorf("segment %d to %d under epoch %d does not match its append", segment.From, segment.End, segment.Epoch)
	}
	input, err := s.appendInput(k, a, segment)
	if err != nil {
		return core.Run{}, err
	}
	_, err = send(ctx, s.client.TransactWriteItems, input)
	images, refused := reasons(err)
	if !refused {
		if err != nil {
			return core.Run{}, err
		}
		return s.afterAppend(ctx, k, a)
	}
	image, ofRun := images[1]
	if !ofRun {
		return core.Run{}, fmt.Errorf("segment at %d is there, although the log ends there", a.From)
	}
	r, again, err := judge(image, decodeRun, core.Transition(a))
	if again {
		return core.Run{}, fmt.Errorf("%w: a write that the record allows", errDisagree)
	}
	return r, err
}

func (s *Runs) appendInput(k core.RunKey, a core.Append, segment core.Segment) (*dynamodb.TransactWriteItemsInput, error) {
	it, err := encodeSegment(k, segment)
	if err != nil {
		return nil, err
	}
	c, err := runChange(k, a)
	if err != nil {
		return nil, err
	}
	update, err := c.part(s.table, key(runPK(k), skRun))
	if err != nil {
		return nil, err
	}
	return &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
		{Put: &types.Put{TableName: &s.table, Item: it, ConditionExpression: new(absent)}},
		update,
	}}, nil
}

func (s *Runs) afterAppend(ctx context.Context, k core.RunKey, a core.Append) (core.Run, error) {
	r, err := s.Run(ctx, k)
	if err != nil || a.Landed(r) {
		return r, err
	}
	_, err = a.Apply(r)
	return core.Run{}, err
}

// Segments lists a run's log in order.
func (s *Runs) Segments(ctx context.Context, k core.RunKey) ([]core.Segment, error) {
	condition := expression.Key(names.PK.Name).Equal(expression.Value(runPK(k))).
		And(expression.Key(names.SK.Name).BeginsWith(skSegment))
	segments, err := query(ctx, s.client, &dynamodb.QueryInput{TableName: &s.table, ConsistentRead: new(true)}, condition, decodeSegment)
	if err != nil {
		return nil, fmt.Errorf("list segments of run %s: %w", k, err)
	}
	return segments, nil
}

// query lists every page of what condition selects, in the order of the sort key.
func query[R any](ctx context.Context, c client, in *dynamodb.QueryInput, condition expression.KeyConditionBuilder, decode func(item) (R, error)) ([]R, error) {
	e, err := expression.NewBuilder().WithKeyCondition(condition).Build()
	if err != nil {
		return nil, fmt.Errorf("build expression: %w", err)
	}
	in.KeyConditionExpression = e.KeyCondition()
	in.ExpressionAttributeNames, in.ExpressionAttributeValues = e.Names(), e.Values()
	var out []R
	for {
		page, err := send(ctx, c.Query, in)
		if err != nil {
			return nil, err
		}
		for _, it := range page.Items {
			r, err := decode(it)
			if err != nil {
				return nil, err
			}
			out = append(out, r)
		}
		// A page may be empty and still not be the last.
		if len(page.LastEvaluatedKey) == 0 {
			return out, nil
		}
		in.ExclusiveStartKey = page.LastEvaluatedKey
	}
}

// Detached lists a shard's detached runs, oldest first.
func (s *Runs) Detached(ctx context.Context, shard int) ([]core.IndexEntry, error) {
	condition := expression.Key(names.DetachedShard).Equal(expression.Value(shard))
	in := &dynamodb.QueryInput{TableName: &s.table, IndexName: &names.DetachedIndex.Name}
	entries, err := query(ctx, s.client, in, condition, func(it item) (core.IndexEntry, error) {
		row, key, err := decodeIndex(it)
		return core.IndexEntry{RunKey: key, Row: core.RowDetached, At: row.DetachedSince}, err
	})
	if err != nil {
		return nil, fmt.Errorf("list detached runs of shard %d: %w", shard, err)
	}
	return entries, nil
}

// Due lists a shard's due runs, oldest first.
func (s *Runs) Due(ctx context.Context, shard int, until core.Millis) ([]core.IndexEntry, error) {
	in := &dynamodb.QueryInput{TableName: &s.table, IndexName: &names.DueIndex.Name}
	entries, err := query(ctx, s.client, in, dueBy(shard, until), func(it item) (core.IndexEntry, error) {
		row, key, err := decodeIndex(it)
		return core.IndexEntry{RunKey: key, Row: row.DueKind, At: row.DueAt}, err
	})
	if err != nil {
		return nil, fmt.Errorf("list due runs of shard %d: %w", shard, err)
	}
	return entries, nil
}

// dueBy selects what is due in a shard of either table.
func dueBy(shard int, until core.Millis) expression.KeyConditionBuilder {
	return expression.Key(names.DueShard).Equal(expression.Value(shard)).
		And(expression.Key(names.DueAt).LessThanEqual(expression.Value(until)))
}

func decodeIndex(it item) (indexRow, core.RunKey, error) {
	var row indexRow
	if err := attributevalue.UnmarshalMap(it, &row); err != nil {
		return indexRow{}, core.RunKey{}, fmt.Errorf("parse index row: %w", err)
	}
	k, err := parseRunPK(row.PK)
	return row, k, err
}

// batch is the most that one BatchGetItem may ask for.
const batch = 100

// batchWidth is how many of them are under way at a time.
const batchWidth = 8

// Load reads records, absent ones left out. One that does not parse comes back apart.
func (s *Runs) Load(ctx context.Context, keys []core.RunKey) ([]core.Run, []core.Unreadable, error) {
	chunks := slices.Collect(slices.Chunk(distinct(keys), batch))
	// A record is large and a sweep reads thousands: each is held once, here, while more
	// of them come.
	all := loaded{runs: make([]core.Run, 0, len(keys))}
	errs := make([]error, len(chunks))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(batchWidth, len(chunks)) {
		wg.Go(func() {
			for i := range next {
				errs[i] = s.load(ctx, chunks[i], &all)
			}
		})
	}
	for i := range chunks {
		next <- i
	}
	close(next)
	wg.Wait()
	if err := cmp.Or(errs...); err != nil {
		return nil, nil, fmt.Errorf("load %d runs: %w", len(keys), err)
	}
	return all.runs, all.bad, nil
}

// distinct are the partition keys of records, each once: DynamoDB refuses a key asked for
// twice.
func distinct(keys []core.RunKey) []string {
	seen, pks := make(map[string]bool, len(keys)), make([]string, 0, len(keys))
	for _, k := range keys {
		if pk := runPK(k); !seen[pk] {
			seen[pk] = true
			pks = append(pks, pk)
		}
	}
	return pks
}

// loaded is what all batches brought so far.
type loaded struct {
	mu   sync.Mutex
	runs []core.Run
	bad  []core.Unreadable
}

// errUnprocessed tells that a batch did not get through, however often it was sent.
var errUnprocessed = errors.New("keys left unprocessed")

func (s *Runs) load(ctx context.Context, pks []string, into *loaded) error {
	keys := make([]item, len(pks))
	for i, pk := range pks {
		keys[i] = key(pk, skRun)
	}
	for try := range conflictTries {
		request := map[string]types.KeysAndAttributes{s.table: {Keys: keys, ConsistentRead: new(true)}}
		answer, err := send(ctx, s.client.BatchGetItem, &dynamodb.BatchGetItemInput{RequestItems: request})
		if err != nil {
			return err
		}
		for _, it := range answer.Responses[s.table] {
			if err := into.add(it); err != nil {
				return err
			}
		}
		if keys = answer.UnprocessedKeys[s.table].Keys; len(keys) == 0 {
			return nil
		}
		if err := smithytime.SleepWithContext(ctx, backoff(try)); err != nil {
			return err
		}
	}
	return fmt.Errorf("%d %w", len(keys), errUnprocessed)
}

// add takes a record. Only one whose key does not say whose it is fails the batch.
func (l *loaded) add(it item) error {
	r, err := decodeRun(it)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.runs = append(l.runs, r)
		return nil
	}
	var h head
	if unmarshal := attributevalue.UnmarshalMap(it, &h); unmarshal != nil {
		return errors.Join(err, unmarshal)
	}
	k, parse := parseRunPK(h.PK)
	if parse != nil {
		return errors.Join(err, parse)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bad = append(l.bad, core.Unreadable{RunKey: k, Err: err})
	return nil
}
