package ddb

import (
	"context"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/attributevalue"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// Sandboxes keeps instance records, ledger rows, settings and their record in the
// sandboxes table.
type Sandboxes struct {
	client client
	table  string
}

// NewSandboxes returns the sandboxes of a table.
func NewSandboxes(client client, table string) *Sandboxes { return &Sandboxes{client, table} }

var (
	_ core.Sandboxes     = (*Sandboxes)(nil)
	_ core.Ledger        = (*Sandboxes)(nil)
	_ core.SandboxIndex  = (*Sandboxes)(nil)
	_ core.Controls      = (*Sandboxes)(nil)
	_ core.ControlWriter = (*Sandboxes)(nil)
	_ core.AuditLog      = (*Sandboxes)(nil)
)

// Sandbox reads an instance record.
func (s *Sandboxes) Sandbox(ctx context.Context, k core.SandboxKey) (core.Sandbox, error) {
	it, err := get(ctx, s.client, s.table, key(sandboxPK(k), skSandbox))
	if err != nil {
		return core.Sandbox{}, fmt.Errorf("read sandbox %s: %w", k, err)
	}
	box, err := decodeSandbox(it)
	if err != nil {
		return core.Sandbox{}, fmt.Errorf("read sandbox %s: %w", k, err)
	}
	return box, nil
}

// UpdateSandbox carries out one transition of an instance record in one request.
func (s *Sandboxes) UpdateSandbox(ctx context.Context, k core.SandboxKey, t core.SandboxTransition) (core.Sandbox, error) {
	c, err := sandboxChange(k, t)
	if err != nil {
		return core.Sandbox{}, fmt.Errorf("update sandbox %s: %w", k, err)
	}
	box, err := transit(ctx, place[core.Sandbox]{s.client, s.table, key(sandboxPK(k), skSandbox), decodeSandbox}, c, t)
	return box, wrapUnlessRefused(err, "%s sandbox %s", t.Name(), k)
}

// Row reads a ledger row.
func (s *Sandboxes) Row(ctx context.Context, id core.InstanceID) (core.LedgerRow, error) {
	it, err := get(ctx, s.client, s.table, key(rowPK(id), skRow))
	if err != nil {
		return core.LedgerRow{}, fmt.Errorf("read ledger row %s: %w", id, err)
	}
	row, err := decodeLedger(it)
	if err != nil {
		return core.LedgerRow{}, fmt.Errorf("read ledger row %s: %w", id, err)
	}
	return row, nil
}

// PutIntent puts a row that must be absent, or returns the one that is there.
func (s *Sandboxes) PutIntent(ctx context.Context, row core.LedgerRow) (core.LedgerRow, error) {
	if row.State != core.LedgerIntent || row.DueAt == 0 {
		return core.LedgerRow{}, fmt.Errorf("put intent %s: want state %s and a due time, got %q and %d", row.Instance, core.LedgerIntent, row.State, row.DueAt)
	}
	it, err := encodeLedger(row)
	if err != nil {
		return core.LedgerRow{}, fmt.Errorf("put intent %s: %w", row.Instance, err)
	}
	if row.Quota > 0 {
		return s.putCounted(ctx, row, it)
	}
	image, there, err := put(ctx, s.client, s.table, it)
	if err != nil {
		return core.LedgerRow{}, fmt.Errorf("put intent %s: %w", row.Instance, err)
	}
	if !there {
		return row, nil
	}
	have, err := decodeLedger(image)
	if err != nil {
		return core.LedgerRow{}, fmt.Errorf("put intent %s: %w", row.Instance, err)
	}
	return have, nil
}

// UpdateRow carries out one transition of a ledger row in one request.
func (s *Sandboxes) UpdateRow(ctx context.Context, id core.InstanceID, t core.LedgerTransition) (core.LedgerRow, error) {
	c, err := ledgerChange(id, t)
	if err != nil {
		return core.LedgerRow{}, fmt.Errorf("update ledger row %s: %w", id, err)
	}
	if parts, err := s.counters(t); err != nil || len(parts) > 0 {
		if err != nil {
			return core.LedgerRow{}, fmt.Errorf("%s ledger row %s: %w", t.Name(), id, err)
		}
		return s.updateCounted(ctx, id, c, t, parts)
	}
	row, err := transit(ctx, place[core.LedgerRow]{s.client, s.table, key(rowPK(id), skRow), decodeLedger}, c, t)
	return row, wrapUnlessRefused(err, "%s ledger row %s", t.Name(), id)
}

// DueSandboxes lists a shard's idle sandboxes and open ledger rows that are due.
func (s *Sandboxes) DueSandboxes(ctx context.Context, shard int, until core.Millis) ([]core.DueSandbox, error) {
	in := &dynamodb.QueryInput{TableName: &s.table, IndexName: &names.SandboxesDueIndex.Name}
	entries, err := query(ctx, s.client, in, dueBy(shard, until), decodeDueSandbox)
	if err != nil {
		return nil, fmt.Errorf("list due sandboxes of shard %d: %w", shard, err)
	}
	return entries, nil
}

func decodeDueSandbox(it item) (core.DueSandbox, error) {
	var row indexRow
	if err := attributevalue.UnmarshalMap(it, &row); err != nil {
		return core.DueSandbox{}, fmt.Errorf("parse index row: %w", err)
	}
	if token, ok := strings.CutPrefix(row.PK, pkSandbox); ok {
		k, err := parseToken(token)
		return core.DueSandbox{Key: core.SandboxKey(k), At: row.DueAt}, err
	}
	if token, ok := strings.CutPrefix(row.PK, pkRow); ok {
		id, err := parseToken(token)
		return core.DueSandbox{Instance: core.InstanceID(id), At: row.DueAt}, err
	}
	return core.DueSandbox{}, fmt.Errorf("parse index row: key %q is neither a sandbox nor a ledger row", row.PK)
}
