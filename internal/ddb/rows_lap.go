package ddb

import (
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/attributevalue"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

type noteRow struct {
	head
	At           core.Millis  `dynamodbav:"at,omitempty"`
	UnknownSince core.Millis  `dynamodbav:"unknownSince,omitempty"`
	Reason       string       `dynamodbav:"reason,omitempty"`
	Healing      core.Healing `dynamodbav:"healing,omitempty"`
	Count        int          `dynamodbav:"count,omitempty"`
	DeadSince    core.Millis  `dynamodbav:"wrapperGoneSince,omitempty"`
	DeadAs       core.Dead    `dynamodbav:"deadAs,omitempty"`
	Missing      core.Millis  `dynamodbav:"missingSince,omitempty"`
	EndFailing   core.Millis  `dynamodbav:"endFailingSince,omitempty"`
	EndTried     core.Millis  `dynamodbav:"endTriedAt,omitempty"`
	HeldSince    core.Millis  `dynamodbav:"heldSince,omitempty"`
	Warned       core.Millis  `dynamodbav:"warned,omitempty"`
	ExpiresAt    int64        `dynamodbav:"expiresAt,omitempty"`
}

// noteKept is how long a note stays that is not written again.
const noteKept = 30 * 24 * time.Hour

func newNoteRow(k core.RunKey, n core.Note) noteRow {
	return noteRow{
		head: head{runPK(k), skNote, version}, At: n.At, UnknownSince: n.UnknownSince, Reason: n.Reason,
		Healing: n.Healing, Count: n.Count, DeadSince: n.DeadSince, DeadAs: n.DeadAs, Missing: n.Missing,
		EndFailing: n.EndFailing, EndTried: n.EndTried, HeldSince: n.HeldSince, Warned: n.Warned, ExpiresAt: ttl(max(n.At, n.EndTried).Add(noteKept)),
	}
}

func (row noteRow) note() core.Note {
	return core.Note{
		At: row.At, UnknownSince: row.UnknownSince, Reason: row.Reason, Healing: row.Healing, Count: row.Count,
		DeadSince: row.DeadSince, DeadAs: row.DeadAs, Missing: row.Missing,
		EndFailing: row.EndFailing, EndTried: row.EndTried, HeldSince: row.HeldSince, Warned: row.Warned,
	}
}

type cursorRow struct {
	head
	AfterSince core.Millis `dynamodbav:"afterSince,omitempty"`
	AfterRun   string      `dynamodbav:"afterRun,omitempty"`
	LapStarted core.Millis `dynamodbav:"lapStarted,omitempty"`
}

func decodeCursor(shard int, it item) (core.Cursor, error) {
	c := core.Cursor{Shard: shard}
	if len(it) == 0 {
		return c, nil
	}
	var row cursorRow
	if err := attributevalue.UnmarshalMap(it, &row); err != nil {
		return c, fmt.Errorf("parse cursor %d: %w", shard, err)
	}
	c.AfterSince, c.AfterRun, c.LapStarted = row.AfterSince, row.AfterRun, row.LapStarted
	return c, row.check()
}

// budgetRow is a minute's budget; an absent one has not been touched.
type budgetRow struct {
	Taken int `dynamodbav:"taken,omitempty"`
}
