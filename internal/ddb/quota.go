package ddb

import (
	"context"
	"errors"
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

// counters are the parts of a transaction that a transition of a row moves its tenant's
// counters by: how many sandboxes it has, and what they cost.
func (s *Sandboxes) counters(t core.LedgerTransition) ([]types.TransactWriteItem, error) {
	var parts []types.TransactWriteItem
	var err error
	add := func(part types.TransactWriteItem, otherErr error) {
		parts, err = append(parts, part), errors.Join(err, otherErr)
	}
	switch t := t.(type) {
	case core.StartMeter:
		add(s.meter(t.Tenant, t.Opened()))
	case core.CloseRow:
		if t.Quota > 0 {
			add(s.count(t.Tenant, -1, 0))
		}
		if t.Metered != (core.Metering{}) {
			add(s.meter(t.Tenant, t.Metered.Closed(t.Now)...))
		}
	}
	return parts, err
}

// updateCounted moves a row and its tenant's counters in one transaction.
func (s *Sandboxes) updateCounted(ctx context.Context, id core.InstanceID, c *change, t core.LedgerTransition, parts []types.TransactWriteItem) (core.LedgerRow, error) {
	row, err := c.part(s.table, key(rowPK(id), skRow))
	if err != nil {
		return core.LedgerRow{}, fmt.Errorf("%s ledger row %s: %w", t.Name(), id, err)
	}
	items := append([]types.TransactWriteItem{quotaRow: row}, parts...)
	_, err = send(ctx, s.client.TransactWriteItems, &dynamodb.TransactWriteItemsInput{TransactItems: items})
	if images, cancelled := reasons(err); cancelled {
		err = judged(images[quotaRow], decodeLedger, t.Apply, t.Landed)
	}
	if err != nil {
		return core.LedgerRow{}, wrapUnlessRefused(err, "%s ledger row %s", t.Name(), id)
	}
	return s.Row(ctx, id)
}
