package ddb

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// skSpool is the sort key of the count of what a run has spooled. It is an item of its
// own: a run's record is larger, and what is written to it waits for transactions.
const skSpool = "spool"

var _ core.SpoolQuotas = (*Runs)(nil)

// SpendSpool counts what a run has been given leave to spool, in one request whose
// condition is that it is not too much. A request whose answer was lost may count twice.
func (r *Runs) SpendSpool(ctx context.Context, k core.RunKey, spend core.SpoolSpend) error {
	if spend.Pieces > spend.MostPieces || spend.Bytes > spend.MostBytes {
		return spoolFull(k)
	}
	c := newUpsert()
	for name, most := range map[string]int64{"pieces": spend.MostPieces - spend.Pieces, "bytes": spend.MostBytes - spend.Bytes} {
		c.need(gone(name).Or(expression.Name(name).LessThanEqual(expression.Value(most))))
	}
	c.update = c.update.Add(expression.Name("pieces"), expression.Value(spend.Pieces)).Add(expression.Name("bytes"), expression.Value(spend.Bytes))
	c.set(names.TTL, ttl(spend.ExpiresAt))
	input, err := c.input(r.table, key(runPK(k), skSpool))
	if err == nil {
		_, err = send(ctx, r.client.UpdateItem, input)
	}
	if _, ok := errors.AsType[*types.ConditionalCheckFailedException](err); ok {
		return spoolFull(k)
	}
	return wrap(err, "count spool of run %s", k)
}

func spoolFull(k core.RunKey) error {
	return &core.RefusedError{Op: "spool", Record: fmt.Sprint("run ", k), Why: core.SpoolFull}
}
