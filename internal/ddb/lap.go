package ddb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/attributevalue"
	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

const (
	skNote   = "note"
	skCursor = "cursor"
	skBudget = "budget"

	pkCursor = "cursor#" // and the shard
	pkBudget = "budget#" // and the minute

	// budgetKept is how long a minute's budget stays: it is of no use afterwards.
	budgetKept = time.Hour
)

var (
	_ core.Notes   = (*Runs)(nil)
	_ core.Cursors = (*Sandboxes)(nil)
	_ core.Budget  = (*Sandboxes)(nil)
)

// wrap says what was being done when err came about; nil stays nil.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// Note reads a run's note; none is the zero note.
func (r *Runs) Note(ctx context.Context, k core.RunKey) (core.Note, error) {
	it, err := get(ctx, r.client, r.table, key(runPK(k), skNote))
	if err != nil || len(it) == 0 {
		return core.Note{}, wrap(err, "read note of run %s", k)
	}
	var row noteRow
	if err := attributevalue.UnmarshalMap(it, &row); err != nil {
		return core.Note{}, fmt.Errorf("read note of run %s: %w", k, err)
	}
	return row.note(), wrap(row.check(), "read note of run %s", k)
}

// PutNote replaces a run's note. It has no condition: a note decides nothing alone.
func (r *Runs) PutNote(ctx context.Context, k core.RunKey, n core.Note) error {
	it, err := attributevalue.MarshalMap(newNoteRow(k, n))
	if err == nil {
		_, err = send(ctx, r.client.PutItem, &dynamodb.PutItemInput{TableName: &r.table, Item: it})
	}
	return wrap(err, "write note of run %s", k)
}

// MarkWarned sets a note's mark, on the condition that it is as read. A mark that is there
// already is this very one.
func (r *Runs) MarkWarned(ctx context.Context, k core.RunKey, was, end core.Millis) error {
	change := newUpsert()
	change.need(is("warned", was).Or(is("warned", end)))
	change.set("warned", end)
	change.set("expiresAt", ttl(core.MillisOf(time.Now()).Add(noteKept)))
	input, err := change.input(r.table, key(runPK(k), skNote))
	if err != nil {
		return wrap(err, "mark run %s as warned", k)
	}
	_, err = send(ctx, r.client.UpdateItem, input)
	if _, ok := errors.AsType[*types.ConditionalCheckFailedException](err); ok {
		return &core.RefusedError{Op: "mark warned", Record: "note of run " + k.String(), Why: "warned"}
	}
	return wrap(err, "mark run %s as warned", k)
}

// Cursor reads a shard's cursor; none is one at the beginning.
func (s *Sandboxes) Cursor(ctx context.Context, shard int) (core.Cursor, error) {
	it, err := get(ctx, s.client, s.table, key(cursorPK(shard), skCursor))
	if err != nil {
		return core.Cursor{Shard: shard}, fmt.Errorf("read cursor %d: %w", shard, err)
	}
	return decodeCursor(shard, it)
}

func cursorPK(shard int) string { return fmt.Sprint(pkCursor, shard) }

// MoveCursor replaces a cursor in one request, on the condition that it is as read.
func (s *Sandboxes) MoveCursor(ctx context.Context, old, next core.Cursor) error {
	change := newUpsert()
	change.need(is("afterSince", old.AfterSince), is("afterRun", old.AfterRun), is("lapStarted", old.LapStarted))
	change.set("afterSince", next.AfterSince)
	change.set("afterRun", next.AfterRun)
	change.set("lapStarted", next.LapStarted)
	decode := func(it item) (core.Cursor, error) { return decodeCursor(next.Shard, it) }
	_, err := transit(ctx, place[core.Cursor]{s.client, s.table, key(cursorPK(next.Shard), skCursor), decode}, change, moveCursor{old, next})
	return wrapUnlessRefused(err, "move cursor %d", next.Shard)
}

// moveCursor is the move as a transition, for the judgement of a refusal.
type moveCursor struct{ old, next core.Cursor }

func (moveCursor) Name() string { return "move cursor" }

func (m moveCursor) Apply(c core.Cursor) (core.Cursor, error) {
	if c != m.old {
		return core.Cursor{}, &core.RefusedError{Op: m.Name(), Record: fmt.Sprint("cursor ", m.next.Shard), Why: "cursor"}
	}
	return m.next, nil
}

func (m moveCursor) Landed(c core.Cursor) bool { return c == m.next }

// Take takes tokens of a minute's budget: what is wanted, or what is left. Each try
// is one conditional request.
func (s *Sandboxes) Take(ctx context.Context, minute core.Millis, want, most int) (int, error) {
	k := key(fmt.Sprint(pkBudget, minute), skBudget)
	for range conflictTries {
		it, err := get(ctx, s.client, s.table, k)
		if err != nil {
			return 0, fmt.Errorf("take budget: %w", err)
		}
		var row budgetRow
		if err := attributevalue.UnmarshalMap(it, &row); err != nil {
			return 0, fmt.Errorf("take budget: %w", err)
		}
		got := max(0, min(want, most-row.Taken))
		if got == 0 {
			return 0, nil
		}
		switch err := s.spend(ctx, minute, row.Taken, got); {
		case err == nil:
			return got, nil
		case !core.Refused(err):
			return 0, fmt.Errorf("take budget: %w", err)
		}
	}
	return 0, nil // too many sweeps at once: none for this one
}

// spend adds to what was taken, if that is as read.
func (s *Sandboxes) spend(ctx context.Context, minute core.Millis, taken, got int) error {
	change := newUpsert()
	change.need(is("taken", taken))
	change.set("taken", taken+got)
	change.update = change.update.Set(expression.Name("expiresAt"), expression.Value(minute.Time().Add(budgetKept).Unix()))
	input, err := change.input(s.table, key(fmt.Sprint(pkBudget, minute), skBudget))
	if err != nil {
		return err
	}
	_, err = send(ctx, s.client.UpdateItem, input)
	if _, ok := errors.AsType[*types.ConditionalCheckFailedException](err); ok {
		return &core.RefusedError{Op: "take budget", Record: minute.Time().Format(time.TimeOnly), Why: "taken"}
	}
	return err
}
