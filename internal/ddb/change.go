package ddb

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// change is one conditional write of one item that exists, being put together: the
// condition and the update of one request.
type change struct {
	shard     int
	condition expression.ConditionBuilder
	update    expression.UpdateBuilder
	err       error
}

// newChange is a change of the item with that partition key. Its condition is that
// the item exists and is of a version that this code reads. Writing the version
// again makes an update of one that has nothing else to write.
func newChange(pk string) *change {
	c := &change{shard: shard(pk), condition: known()}
	c.set("v", version)
	return c
}

// newUpsert is a change of an item that it makes if there is none.
func newUpsert() *change {
	c := &change{condition: gone("pk").Or(known())}
	c.set("v", version)
	return c
}

// need adds conditions.
func (c *change) need(conditions ...expression.ConditionBuilder) {
	for _, condition := range conditions {
		c.condition = c.condition.And(condition)
	}
}

// set gives an attribute a value; zero, and empty bytes, remove it.
func (c *change) set(name string, value any) {
	v := reflect.ValueOf(value)
	if v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0 {
		c.remove(name)
		return
	}
	c.update = c.update.Set(expression.Name(name), expression.Value(value))
}

// setOnce gives an attribute a value that is not zero, unless it has one.
func (c *change) setOnce(name string, value any) {
	n := expression.Name(name)
	c.update = c.update.Set(n, n.IfNotExists(expression.Value(value)))
}

func (c *change) remove(attributes ...string) {
	for _, name := range attributes {
		c.update = c.update.Remove(expression.Name(name))
	}
}

// never adds a condition that does not hold, so that the answer is the record.
func (c *change) never() {
	c.need(gone("pk"), there("pk"))
}

// detach puts a run into the detached index, and out of the other.
func (c *change) detach(since core.Millis) {
	c.err = errors.Join(c.err, checkPlace(core.RowDetached, 0, since))
	c.set("detachedSince", since)
	c.update = c.update.Set(expression.Name("detachedShard"), expression.Value(c.shard))
	c.remove("dueShard", "dueAt", "dueKind")
}

// due puts a run into the due index, and out of the other.
func (c *change) due(row core.Row, at core.Millis) {
	c.err = errors.Join(c.err, checkPlace(row, at, 0))
	c.dueAt(at)
	c.set("dueKind", row)
	c.remove("detachedShard")
}

// dueAt puts an item of either table into its due index, or takes it out if at is
// zero.
func (c *change) dueAt(at core.Millis) {
	if at == 0 {
		c.remove("dueShard", "dueAt")
		return
	}
	c.set("dueAt", at)
	c.update = c.update.Set(expression.Name("dueShard"), expression.Value(c.shard)) // shard 0 is a shard
}

// keep says until when retention leaves an item alone; zero is for ever.
func (c *change) keep(until core.Millis) {
	c.set("keepUntil", until)
	c.set(names.TTL, ttl(until))
}

// settle takes a run out of both indexes.
func (c *change) settle() { c.remove("detachedShard", "dueShard", "dueAt", "dueKind") }

// build returns the finished expression.
func (c *change) build() (expression.Expression, error) {
	if c.err != nil {
		return expression.Expression{}, c.err
	}
	e, err := expression.NewBuilder().WithCondition(c.condition).WithUpdate(c.update).Build()
	if err != nil {
		return expression.Expression{}, fmt.Errorf("build expression: %w", err)
	}
	return e, nil
}

// input is the change as a request of its own.
func (c *change) input(table string, key item) (*dynamodb.UpdateItemInput, error) {
	e, err := c.build()
	if err != nil {
		return nil, err
	}
	return &dynamodb.UpdateItemInput{
		TableName: &table, Key: key, ConditionExpression: e.Condition(), UpdateExpression: e.Update(),
		ExpressionAttributeNames: e.Names(), ExpressionAttributeValues: e.Values(),
		ReturnValues:                        types.ReturnValueAllNew,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}, nil
}

// part is the change as a part of a transaction.
func (c *change) part(table string, key item) (types.TransactWriteItem, error) {
	e, err := c.build()
	if err != nil {
		return types.TransactWriteItem{}, err
	}
	return types.TransactWriteItem{Update: &types.Update{
		TableName: &table, Key: key, ConditionExpression: e.Condition(), UpdateExpression: e.Update(),
		ExpressionAttributeNames: e.Names(), ExpressionAttributeValues: e.Values(),
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}}, nil
}

// is the condition that an attribute has a value; zero is never stored.
func is(name string, value any) expression.ConditionBuilder {
	n := expression.Name(name)
	if reflect.ValueOf(value).IsZero() {
		return expression.AttributeNotExists(n)
	}
	return n.Equal(expression.Value(value))
}

// same is the condition that an attribute that is always written equals value.
func same(name string, value any) expression.ConditionBuilder {
	return expression.Name(name).Equal(expression.Value(value))
}

// there is the condition that an attribute has any value.
func there(name string) expression.ConditionBuilder {
	return expression.AttributeExists(expression.Name(name))
}

// gone is the condition that an attribute has none.
func gone(name string) expression.ConditionBuilder {
	return expression.AttributeNotExists(expression.Name(name))
}

// atMost is the condition that a time, absent being zero, is not after t.
func atMost(name string, t core.Millis) expression.ConditionBuilder {
	return gone(name).Or(expression.Name(name).LessThanEqual(expression.Value(t)))
}

// open is the condition that a run has not ended. It names what that is, so that a
// status of another version is not taken for it.
func open() expression.ConditionBuilder {
	return expression.Name("status").In(expression.Value(core.Running), expression.Value(core.Interrupted))
}

// over is the condition that a run has ended.
func over() expression.ConditionBuilder {
	return expression.Name("status").In(expression.Value(core.Completed), expression.Value(core.Failed), expression.Value(core.Aborted))
}

// stands is the condition that a run stands in that row.
func stands(row core.Row) expression.ConditionBuilder {
	switch {
	case row == core.RowDetached:
		return there("detachedShard")
	case row.Due():
		return is("dueKind", row)
	default:
		return gone("detachedShard").And(gone("dueShard"))
	}
}
