package ddb

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// Control reads the operator's settings.
func (s *Sandboxes) Control(ctx context.Context) (core.Control, error) {
	it, err := get(ctx, s.client, s.table, key(pkControl, skControl))
	if err != nil {
		return core.Control{}, fmt.Errorf("read control: %w", err)
	}
	c, err := decodeControl(it)
	if err != nil {
		return core.Control{}, fmt.Errorf("read control: %w", err)
	}
	return c, nil
}

// UpdateControl carries out one transition of the settings in one request.
func (s *Sandboxes) UpdateControl(ctx context.Context, t core.ControlTransition) (core.Control, error) {
	change, err := controlChange(t)
	if err != nil {
		return core.Control{}, fmt.Errorf("update control: %w", err)
	}
	c, err := transit(ctx, place[core.Control]{s.client, s.table, key(pkControl, skControl), decodeControl}, change, t)
	return c, wrapUnlessRefused(err, "%s control", t.Name())
}

// Record appends an audit entry: an item of its own, under the day.
func (s *Sandboxes) Record(ctx context.Context, e core.AuditEntry) error {
	it, err := encodeAudit(e, rand.Text())
	if err != nil {
		return fmt.Errorf("record %s %s: %w", e.Op, e.Subject, err)
	}
	// The key is this call's alone: an item that is there is its own, repeated.
	if _, _, err := put(ctx, s.client, s.table, it); err != nil {
		return fmt.Errorf("record %s %s: %w", e.Op, e.Subject, err)
	}
	return nil
}

// Audit lists what was recorded on a day, in UTC, oldest first.
func (s *Sandboxes) Audit(ctx context.Context, day time.Time) ([]core.AuditEntry, error) {
	condition := expression.Key(names.PK.Name).Equal(expression.Value(auditPK(day)))
	entries, err := query(ctx, s.client, &dynamodb.QueryInput{TableName: &s.table, ConsistentRead: new(true)}, condition, decodeAudit)
	if err != nil {
		return nil, fmt.Errorf("list audit of %s: %w", day.UTC().Format(time.DateOnly), err)
	}
	return entries, nil
}
