// Package ddb keeps runs, their logs, instance records, ledger rows and settings
// in DynamoDB. Its rule: every write that states a fact carries its precondition in
// the same request, and nothing here reads, decides and then writes. A refused write
// is judged from the image that DynamoDB returns with the refusal, by core's own
// rules, so that own success after a lost answer is told from a loss.
package ddb

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	smithytime "github.com/aws/smithy-go/time"
)

// client is what this package uses of DynamoDB.
type client interface {
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
	PutItem(context.Context, *dynamodb.PutItemInput, ...func(*dynamodb.Options)) (*dynamodb.PutItemOutput, error)
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error)
	Query(context.Context, *dynamodb.QueryInput, ...func(*dynamodb.Options)) (*dynamodb.QueryOutput, error)
	BatchGetItem(context.Context, *dynamodb.BatchGetItemInput, ...func(*dynamodb.Options)) (*dynamodb.BatchGetItemOutput, error)
	TransactWriteItems(context.Context, *dynamodb.TransactWriteItemsInput, ...func(*dynamodb.Options)) (*dynamodb.TransactWriteItemsOutput, error)
}

var _ client = (*dynamodb.Client)(nil)

// item is an item, or a key, as DynamoDB speaks of it.
type item = map[string]types.AttributeValue

const (
	// callTimeout bounds one request with the SDK's own retries.
	callTimeout = 10 * time.Second
	// conflictTries is how often a request that met a transaction is sent.
	conflictTries = 6
	// conflictWait is the longest first pause; it doubles.
	conflictWait = 20 * time.Millisecond
)

// send makes one request. A conflict with a transaction says nothing about the
// condition, and the SDK does not retry it: send does, with jitter.
func send[In, Out any](ctx context.Context, call func(context.Context, *In, ...func(*dynamodb.Options)) (*Out, error), in *In) (*Out, error) {
	for try := 0; ; try++ {
		out, err := timed(ctx, call, in)
		if err == nil || !conflicted(err) || try == conflictTries-1 {
			return out, err
		}
		if err := smithytime.SleepWithContext(ctx, backoff(try)); err != nil {
			return nil, err
		}
	}
}

func timed[In, Out any](ctx context.Context, call func(context.Context, *In, ...func(*dynamodb.Options)) (*Out, error), in *In) (*Out, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return call(ctx, in)
}

// backoff is a random pause before the next try, longer the more there were.
func backoff(try int) time.Duration { return rand.N(conflictWait << try) }

// passing are the reasons of a cancelled transaction that may be gone the next time.
var passing = []string{"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"}

// conflicted reports whether a request was turned away although nothing is known
// to speak against it. Any such reason of a transaction comes before a condition
// that failed: the image that would tell own success is then missing.
func conflicted(err error) bool {
	if _, ok := errors.AsType[*types.TransactionConflictException](err); ok {
		return true
	}
	canceled, ok := errors.AsType[*types.TransactionCanceledException](err)
	return ok && slices.ContainsFunc(canceled.CancellationReasons, func(r types.CancellationReason) bool {
		return r.Code != nil && slices.Contains(passing, *r.Code)
	})
}

// get reads one item consistently; none is empty.
func get(ctx context.Context, c client, table string, key item) (item, error) {
	out, err := send(ctx, c.GetItem, &dynamodb.GetItemInput{TableName: &table, Key: key, ConsistentRead: new(true)})
	if err != nil {
		return nil, err
	}
	return out.Item, nil
}

// put puts an item that must be absent. If one is there, there is true and the image
// is that one.
func put(ctx context.Context, c client, table string, it item) (image item, there bool, err error) {
	_, err = send(ctx, c.PutItem, &dynamodb.PutItemInput{
		TableName: &table, Item: it, ConditionExpression: new(absent),
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	if failed, ok := errors.AsType[*types.ConditionalCheckFailedException](err); ok {
		return failed.Item, true, nil
	}
	return nil, false, err
}

// absent is the condition that there is no item.
const absent = "attribute_not_exists(pk)"

// transition is what core's kinds of transition have in common.
type transition[R any] interface {
	Name() string
	Apply(R) (R, error)
	Landed(R) bool
}

// place is where a record of a kind is, and how it is read.
type place[R any] struct {
	client client
	table  string
	key    item
	decode func(item) (R, error)
}

// transit carries out one transition as one conditional UpdateItem.
func transit[R any](ctx context.Context, at place[R], change *change, t transition[R]) (R, error) {
	var none R
	input, err := change.input(at.table, at.key)
	if err != nil {
		return none, err
	}
	// Once more if core allows what DynamoDB refused: the two disagree, or an
	// emulator returned the image of another moment.
	for range 2 {
		out, err := send(ctx, at.client.UpdateItem, input)
		failed, refused := errors.AsType[*types.ConditionalCheckFailedException](err)
		switch {
		case refused:
			r, again, err := judge(failed.Item, at.decode, t)
			if again {
				continue
			}
			return r, err
		case err != nil:
			return none, err
		default:
			return at.decode(out.Attributes)
		}
	}
	return none, fmt.Errorf("%w: a write that the record allows", errDisagree)
}

// errDisagree tells of a condition that says something else than core.
var errDisagree = errors.New("store refuses")

// judge tells what a refusal means from the image that came with it: no record, own
// success, or core's refusal; again if core would have accepted.
func judge[R any](image item, decode func(item) (R, error), t transition[R]) (r R, again bool, err error) {
	var none R
	if r, err = decode(image); err != nil {
		return none, false, err
	}
	_, refusal := t.Apply(r)
	switch {
	case refusal == nil:
		return none, true, nil
	case t.Landed(r):
		return r, false, nil
	default:
		return none, false, refusal
	}
}

// reasons gives the old image of every action whose condition failed, by the
// action's index; ok is false if err is not about conditions.
func reasons(err error) (images map[int]item, ok bool) {
	canceled, ok := errors.AsType[*types.TransactionCanceledException](err)
	if !ok {
		return nil, false
	}
	images = map[int]item{}
	for i, r := range canceled.CancellationReasons {
		if r.Code != nil && *r.Code == "ConditionalCheckFailed" {
			images[i] = r.Item
		}
	}
	return images, len(images) > 0
}
