package ddb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// The meter of a tenant: one item, to which each month's changes are added under names of
// their own. It moves only together with a ledger row, in one transaction.
const (
	skMeter = "meter"
	burned  = "burn " // and the month
	used    = "used " // and the month
)

func meterKey(tenant core.TenantID) item { return key(pkQuota+core.KeyToken(string(tenant)), skMeter) }

// meter is the part of a transaction that adds to a tenant's meter.
func (s *Sandboxes) meter(tenant core.TenantID, changes ...core.MeterChange) (types.TransactWriteItem, error) {
	c := newUpsert()
	for _, change := range changes {
		c.update = c.update.
			Add(expression.Name(burned+string(change.Month)), expression.Value(change.Burn)).
			Add(expression.Name(used+string(change.Month)), expression.Value(change.Used))
	}
	return c.part(s.table, meterKey(tenant))
}

var _ core.Meters = (*Sandboxes)(nil)

// Spent reads the meters of tenants, one read each.
func (s *Sandboxes) Spent(ctx context.Context, tenants []core.TenantID, now core.Millis) (map[core.TenantID]core.Spending, error) {
	answers, errs := make([]core.Spending, len(tenants)), make([]error, len(tenants))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(batchWidth, len(tenants)) {
		wg.Go(func() {
			for i := range next {
				answers[i], errs[i] = s.spent(ctx, tenants[i], now)
			}
		})
	}
	for i := range tenants {
		next <- i
	}
	close(next)
	wg.Wait()
	all := make(map[core.TenantID]core.Spending, len(tenants))
	for i, tenant := range tenants {
		if errs[i] != nil {
			errs[i] = fmt.Errorf("read meter of tenant %s: %w", tenant, errs[i])
			continue
		}
		all[tenant] = answers[i]
	}
	return all, errors.Join(errs...)
}

func (s *Sandboxes) spent(ctx context.Context, tenant core.TenantID, now core.Millis) (core.Spending, error) {
	it, err := get(ctx, s.client, s.table, meterKey(tenant))
	if err != nil {
		return core.Spending{}, err
	}
	return decodeMeter(it, now)
}

// decodeMeter is what a meter's item, absent or not, tells at a time.
func decodeMeter(it item, now core.Millis) (core.Spending, error) {
	meter := map[core.Month]core.MeterSum{}
	for _, name := range slices.Sorted(maps.Keys(it)) {
		kind, month, ok := strings.Cut(name, " ")
		if !ok {
			continue
		}
		number, isNumber := it[name].(*types.AttributeValueMemberN)
		if !isNumber {
			return core.Spending{}, fmt.Errorf("parse %s: want a number", name)
		}
		sum := meter[core.Month(month)]
		var err error
		switch kind + " " {
		case burned:
			var burn int64
			burn, err = strconv.ParseInt(number.Value, 10, 64)
			sum.Burn = core.Dollars(burn)
		case used:
			sum.Used, err = strconv.ParseFloat(number.Value, 64)
		}
		if err != nil {
			return core.Spending{}, fmt.Errorf("parse %s: %w", name, err)
		}
		meter[core.Month(month)] = sum
	}
	return core.SpendingOf(meter, now), nil
}
