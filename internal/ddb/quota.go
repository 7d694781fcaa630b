package ddb

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// The count of a tenant's sandboxes: an item that moves only together with a ledger row,
// in one transaction, so that it is neither raced past nor left behind.
const (
	pkQuota = "quota#" // and the tenant
	skQuota = "quota"
	counted = "live"
)

func quotaKey(tenant core.TenantID) item { return key(pkQuota+core.KeyToken(string(tenant)), skQuota) }

// count is the part of a transaction that moves a tenant's count by one, up to most.
func (s *Sandboxes) count(tenant core.TenantID, by, most int) (types.TransactWriteItem, error) {
	c, live := newUpsert(), expression.Name(counted)
	if by > 0 {
		c.need(gone(counted).Or(live.LessThan(expression.Value(most))))
	}
	c.update = c.update.Add(live, expression.Value(by))
	return c.part(s.table, quotaKey(tenant))
}

// The actions of a counted write, by index.
const (
	quotaRow = iota
	quotaCount
)

// putCounted puts a row and counts it.
func (s *Sandboxes) putCounted(ctx context.Context, row core.LedgerRow, it item) (core.LedgerRow, error) {
	count, err := s.count(row.Tenant, 1, row.Quota)
	if err != nil {
		return core.LedgerRow{}, fmt.Errorf("put intent %s: %w", row.Instance, err)
	}
	_, err = send(ctx, s.client.TransactWriteItems, &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{
		quotaRow: {Put: &types.Put{
			TableName: &s.table, Item: it, ConditionExpression: new(absent),
			ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
		}},
		quotaCount: count,
	}})
	images, cancelled := reasons(err)
	switch image, there := images[quotaRow]; {
	case there: // put before, and counted then
		row, err = decodeLedger(image)
	case cancelled:
		return core.LedgerRow{}, &core.RefusedError{Op: "put intent", Record: "tenant " + string(row.Tenant), Why: "quota"}
	}
	if err != nil {
		return core.LedgerRow{}, fmt.Errorf("put intent %s: %w", row.Instance, err)
	}
	return row, nil
}

// closeCounted closes a row, and counts it no more.
func (s *Sandboxes) closeCounted(ctx context.Context, id core.InstanceID, c *change, t core.CloseRow) (core.LedgerRow, error) {
	row, err := c.part(s.table, key(rowPK(id), skRow))
	if err != nil {
		return core.LedgerRow{}, fmt.Errorf("close ledger row %s: %w", id, err)
	}
	count, err := s.count(t.Tenant, -1, 0)
	if err != nil {
		return core.LedgerRow{}, fmt.Errorf("close ledger row %s: %w", id, err)
	}
	_, err = send(ctx, s.client.TransactWriteItems, &dynamodb.TransactWriteItemsInput{TransactItems: []types.TransactWriteItem{quotaRow: row, quotaCount: count}})
	if images, cancelled := reasons(err); cancelled {
		err = judged(images[quotaRow], decodeLedger, t.Apply, t.Landed)
	}
	if err != nil {
		return core.LedgerRow{}, wrapUnlessRefused(err, "%s ledger row %s", t.Name(), id)
	}
	return s.Row(ctx, id)
}
