package ddb

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/attributevalue"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

func (s *Threads) SeedThread(ctx context.Context, th core.Thread) error {
	it, err := encodeThread(th)
	return seed(ctx, s.client, s.table, it, err)
}

func (s *Threads) SeedCheckpoint(ctx context.Context, c core.Checkpoint) error {
	it, err := encodeCheckpoint(c)
	if err := seed(ctx, s.client, s.table, it, err); err != nil {
		return err
	}
	it, err = encodeName(c.Tenant, core.NameOf(c))
	return seed(ctx, s.client, s.table, it, err)
}

func encodeThread(th core.Thread) (item, error) {
	row := threadRow{
		head: head{threadPK(th.ThreadKey), skHead, version}, Tenant: th.Tenant, Thread: th.Thread, Head: th.Head, Fence: th.Fence,
		LeaseOwner: th.Lease.Owner, LeaseUntil: th.Lease.Until, Floor: th.Floor, Conversation: conversationOf(th.Conversation),
		PendingRuns: th.PendingRuns, WorkspaceLost: (*lossRow)(th.WorkspaceLost), Step: stepOf(th.Step), FirstRun: th.FirstRun, BegunAt: th.BegunAt,
		Artifacts: th.Artifacts, UpdatedAt: th.UpdatedAt,
	}
	if f := th.Fork; f != nil {
		row.Fork, row.ForkOwners = &forkRow{f.From, f.Checkpoint, objectRow(f.Manifest)}, f.Owners
	}
	return attributevalue.MarshalMap(row)
}
