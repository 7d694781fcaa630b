package ddb

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/attributevalue"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// The seeds put a record as it is, which no port does.

func (s *Runs) SeedRun(ctx context.Context, r core.Run) error {
	it, err := encodeRun(r)
	return seed(ctx, s.client, s.table, it, err)
}

func (s *Sandboxes) SeedSandbox(ctx context.Context, box core.Sandbox) error {
	it, err := encodeSandbox(box)
	return seed(ctx, s.client, s.table, it, err)
}

func (s *Sandboxes) SeedRow(ctx context.Context, row core.LedgerRow) error {
	it, err := encodeLedger(row)
	return seed(ctx, s.client, s.table, it, err)
}

func (s *Sandboxes) SeedControl(ctx context.Context, c core.Control) error {
	it, err := encodeControl(c)
	return seed(ctx, s.client, s.table, it, err)
}

func encodeControl(c core.Control) (item, error) {
	return attributevalue.MarshalMap(controlRow{
		head: head{pkControl, skControl, version}, Mode: c.Mode,
		Frozen: c.Frozen, FrozenAt: c.FrozenAt, FrozenBy: c.FrozenBy, FrozenWhy: c.FrozenWhy,
		WindowStart: c.Breaker.WindowStart, Count: c.Breaker.Count, TrippedAt: c.Breaker.TrippedAt, QuietUntil: c.Breaker.QuietUntil,
	})
}

func seed(ctx context.Context, c client, table string, it item, err error) error {
	if err != nil {
		return err
	}
	_, err = c.PutItem(ctx, &dynamodb.PutItemInput{TableName: &table, Item: it})
	return err
}

// ParseToken is parseToken.
var ParseToken = parseToken
