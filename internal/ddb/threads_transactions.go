package ddb

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/attributevalue"
	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// bundle is a transaction being put together, and what the failed condition of each
// action means.
type bundle struct {
	table string
	items []types.TransactWriteItem
	err   error
}

const allOld = types.ReturnValuesOnConditionCheckFailureAllOld

func (b *bundle) add(it types.TransactWriteItem, err error) {
	if b.err == nil {
		b.err = err
	}
	b.items = append(b.items, it)
}

// change adds a change of an item.
func (b *bundle) change(c *change, k item) { b.add(c.part(b.table, k)) }

// put adds an item, which must be absent where absent is asked for.
func (b *bundle) put(it item, err error, mustBeAbsent bool) {
	p := &types.Put{TableName: &b.table, Item: it, ReturnValuesOnConditionCheckFailure: allOld}
	if mustBeAbsent {
		p.ConditionExpression = new(absent)
	}
	b.add(types.TransactWriteItem{Put: p}, err)
}

// remove adds the removal of an item, which must be there where that is asked for.
func (b *bundle) remove(k item, mustBeThere bool) {
	d := &types.Delete{TableName: &b.table, Key: k, ReturnValuesOnConditionCheckFailure: allOld}
	if mustBeThere {
		d.ConditionExpression = new(present)
	}
	b.add(types.TransactWriteItem{Delete: d}, nil)
}

// present is the condition that there is an item.
const present = "attribute_exists(pk)"

// check adds a condition on an item that stays as it is.
func (b *bundle) check(k item, condition expression.ConditionBuilder) {
	e, err := expression.NewBuilder().WithCondition(condition).Build()
	b.add(types.TransactWriteItem{ConditionCheck: &types.ConditionCheck{
		TableName: &b.table, Key: k, ConditionExpression: e.Condition(), ExpressionAttributeNames: e.Names(),
		ExpressionAttributeValues: e.Values(), ReturnValuesOnConditionCheckFailure: allOld,
	}}, err)
}

// carry sends a bundle; judge tells what its failed conditions mean, by the index of the
// action: nil is own success.
func (s *Threads) carry(ctx context.Context, b *bundle, judge func(images map[int]item) error) error {
	if b.err != nil {
		return b.err
	}
	_, err := send(ctx, s.client.TransactWriteItems, &dynamodb.TransactWriteItemsInput{TransactItems: b.items})
	if images, ok := reasons(err); ok {
		return judge(images)
	}
	return err
}

func (s *Threads) bundle() *bundle { return &bundle{table: s.table} }

func threadItem(k core.ThreadKey) item { return key(threadPK(k), skHead) }

func checkpointItem(c core.Checkpoint) item {
	return key(threadPK(c.ThreadKey), checkpointSK(c.CreatedAt, c.ID))
}

func nameItem(c core.Checkpoint) item { return key(namesPK(c.Tenant), nameSK(c.ID)) }

// publish adds a checkpoint and its name.
func (b *bundle) publish(c core.Checkpoint) {
	made, err := encodeCheckpoint(c)
	b.put(made, err, true)
	name, err := encodeName(c.Tenant, core.NameOf(c))
	b.put(name, err, true)
}

// The actions of a commit, by index.
const (
	commitThread = iota
	commitCheckpoint
	commitName
)

// Commit publishes a checkpoint in one transaction.
func (s *Threads) Commit(ctx context.Context, t core.Commit) error {
	c := newThreadChange(t.Writer.ThreadKey, t.Now)
	c.need(writes(t.Writer.Owner, t.Writer.Fence, t.Now), is("headId", t.Expected))
	if t.Checkpoint.Parent != t.Expected {
		c.never()
	}
	c.set("headId", t.Checkpoint.ID)
	c.remove("workspaceLost")
	if t.Token != "" {
		c.need(works(t.Token))
		c.setAny("step.state", core.StepDone)
		c.setAny("step.seenAt", t.Now)
		c.setAny("step.files", t.Checkpoint.Files)
		c.setAny("step.bytes", t.Checkpoint.Bytes)
		c.remove("step.why")
	}
	if t.Release {
		c.releaseLease()
	}
	b := s.bundle()
	b.change(c, threadItem(t.Writer.ThreadKey))
	b.publish(t.Checkpoint)
	err := s.carry(ctx, b, func(images map[int]item) error { return judgeCommit(images, t) })
	return wrapUnlessRefused(err, "commit checkpoint %s", t.Checkpoint.ID)
}

func judgeCommit(images map[int]item, t core.Commit) error {
	th, err := failedThread(images, commitThread, t.Writer.ThreadKey)
	if err != nil {
		return err
	}
	var taken *core.CheckpointName
	if image, ok := images[commitName]; ok {
		name, err := decodeName(image)
		if err != nil {
			return err
		}
		taken = &name
	}
	if th == nil && taken == nil {
		return errAllowed // a checkpoint without a name
	}
	return t.Judge(th, taken)
}

// failedThread is the thread whose condition failed, if it did.
func failedThread(images map[int]item, index int, k core.ThreadKey) (*core.Thread, error) {
	image, ok := images[index]
	if !ok {
		return nil, nil
	}
	th, err := threadDecoder(k)(image)
	return &th, err
}

// The actions of a head's deletion, by index.
const (
	deleteThread = iota
	deleteCheckpoint
	deleteName
	deleteNext
)

// DeleteHead takes the newest checkpoint away in one transaction.
func (s *Threads) DeleteHead(ctx context.Context, t core.DeleteHead) error {
	c := newThreadChange(t.Writer.ThreadKey, t.Now)
	c.need(writes(t.Writer.Owner, t.Writer.Fence, t.Now), is("headId", t.Checkpoint.ID), there("headId"))
	b := s.bundle()
	if t.Next == nil {
		c.remove("headId")
	} else {
		c.set("headId", t.Next.ID)
	}
	b.change(c, threadItem(t.Writer.ThreadKey))
	b.remove(checkpointItem(t.Checkpoint), true)
	b.remove(nameItem(t.Checkpoint), false)
	if t.Next != nil {
		b.check(checkpointItem(*t.Next), there("pk"))
	}
	err := s.carry(ctx, b, func(images map[int]item) error { return judgeDelete(images, t) })
	return wrapUnlessRefused(err, "delete head %s", t.Checkpoint.ID)
}

func judgeDelete(images map[int]item, t core.DeleteHead) error {
	th, err := failedThread(images, deleteThread, t.Writer.ThreadKey)
	if err != nil {
		return err
	}
	_, gone := images[deleteCheckpoint]
	if th != nil {
		if t.Landed(*th, gone) {
			return nil
		}
		_, err := t.ApplyThread(*th)
		return wrongly(err)
	}
	if _, ok := images[deleteNext]; ok {
		return &core.RefusedError{Op: t.Name(), Record: "checkpoint " + string(t.Next.ID), Why: "next"}
	}
	return errAllowed // a head without its checkpoint
}

// Trim takes old checkpoints away in one transaction.
func (s *Threads) Trim(ctx context.Context, t core.Trim) error {
	condition := writes(t.Writer.Owner, t.Writer.Fence, t.Now).And(known())
	b := s.bundle()
	for _, c := range t.Checkpoints {
		condition = condition.And(is("headId", c.ID).Not())
		b.remove(checkpointItem(c), false)
		b.remove(nameItem(c), false)
	}
	for _, a := range t.Artifacts {
		b.remove(key(threadPK(t.Writer.ThreadKey), artifactSK(a.Run, a.ID)), false)
	}
	b.check(threadItem(t.Writer.ThreadKey), condition)
	err := s.carry(ctx, b, func(images map[int]item) error {
		th, err := failedThread(images, len(b.items)-1, t.Writer.ThreadKey)
		if err != nil || th == nil {
			return wrongly(err)
		}
		_, err = t.ApplyThread(*th)
		return wrongly(err)
	})
	return wrapUnlessRefused(err, "trim thread %s", t.Writer.ThreadKey)
}

// Fork begins threads from a checkpoint in one transaction.
func (s *Threads) Fork(ctx context.Context, t core.Fork) error {
	b := s.bundle()
	b.check(checkpointItem(t.Source), there("pk"))
	for _, branch := range t.Branches {
		s.addBranch(b, t, branch)
	}
	err := s.carry(ctx, b, func(images map[int]item) error { return judgeFork(images, t) })
	return wrapUnlessRefused(err, "fork checkpoint %s", t.Source.ID)
}

// addBranch adds a branch: its thread, root and name, in this order, then its pins.
func (s *Threads) addBranch(b *bundle, t core.Fork, branch core.Branch) {
	c := newThreadChange(branch.Writer.ThreadKey, t.Now)
	c.need(
		writes(branch.Writer.Owner, branch.Writer.Fence, t.Now), gone("headId"), gone("conversation"), gone("pendingRuns"), gone("firstRun"),
		gone("artifacts"), gone("fork"), gone("workspaceLost"),
	)
	root := branch.Root(t.Source)
	c.set("headId", branch.Checkpoint.ID)
	if branch.Checkpoint.Conversation.Version > 0 {
		c.setAny("conversation", conversationOf(branch.Checkpoint.Conversation))
	}
	if len(branch.Checkpoint.PendingRuns) > 0 {
		c.setAny("pendingRuns", textSet(branch.Checkpoint.PendingRuns))
	}
	c.setAny("fork", forkRow{root.From, root.Checkpoint, objectRow(root.Manifest)})
	if len(root.Owners) > 0 {
		c.setAny("forkOwners", textSet(root.Owners))
	}
	if t.Release {
		c.releaseLease()
	}
	b.change(c, threadItem(branch.Writer.ThreadKey))
	b.publish(branch.Checkpoint)
	for _, p := range branch.Pins {
		it, err := encodePin(p)
		b.put(it, err, false)
	}
}

// judgeFork tells what a cancelled fork means. A root that is there comes first: it alone
// shows that this very fork has landed.
func judgeFork(images map[int]item, t core.Fork) error {
	taken := map[int]bool{}
	for i, at := range branchesAt(t) {
		image, ok := images[at+commitName]
		if !ok {
			continue
		}
		name, err := decodeName(image)
		if err != nil || t.Landed(t.Branches[i], name) {
			return err
		}
		taken[i] = true
	}
	if _, ok := images[0]; ok {
		return &core.RefusedError{Op: t.Name(), Record: "checkpoint " + string(t.Source.ID), Why: "fork-source-not-found"}
	}
	for i, at := range branchesAt(t) {
		branch := t.Branches[i]
		th, err := failedThread(images, at, branch.Writer.ThreadKey)
		if err != nil {
			return err
		}
		if th != nil {
			if _, err := t.ApplyThread(branch, *th); err != nil {
				return err
			}
		}
		if taken[i] {
			return t.Refused(branch, "fork-destination-not-empty")
		}
	}
	return errAllowed
}

// branchesAt are the indexes of the branches' first actions.
func branchesAt(t core.Fork) []int {
	at, out := 1, make([]int, len(t.Branches))
	for i, b := range t.Branches {
		out[i] = at
		at += 3 + len(b.Pins)
	}
	return out
}

// Unpin lets a fork's pin go in one transaction.
func (s *Threads) Unpin(ctx context.Context, t core.Unpin) error {
	c := newThreadChange(t.Writer.ThreadKey, t.Now)
	c.need(writes(t.Writer.Owner, t.Writer.Fence, t.Now))
	c.update = c.update.Delete(expression.Name("forkOwners"), expression.Value(textSet([]core.ThreadID{t.Owner})))
	b := s.bundle()
	b.change(c, threadItem(t.Writer.ThreadKey))
	owner := core.ThreadKey{Tenant: t.Writer.Tenant, Thread: t.Owner}
	b.remove(key(threadPK(owner), pinSK(t.Writer.Thread, t.Root)), false)
	err := s.carry(ctx, b, func(images map[int]item) error {
		th, err := failedThread(images, 0, t.Writer.ThreadKey)
		if err != nil || th == nil {
			return wrongly(err)
		}
		_, err = t.ApplyThread(*th)
		return wrongly(err)
	})
	return wrapUnlessRefused(err, "unpin thread %s", owner)
}

// PutArtifact adds an artifact to a thread in one transaction.
func (s *Threads) PutArtifact(ctx context.Context, t core.PutArtifact) error {
	c := newThreadChange(t.Thread, t.Now)
	c.need(above(t.Fence))
	c.set("artifacts", true)
	b := s.bundle()
	b.change(c, threadItem(t.Thread))
	sk := artifactSK(t.Artifact.Run, t.Artifact.ID)
	it, err := attributevalue.MarshalMap(artifactItem{head{threadPK(t.Thread), sk, version}, artifactOf(t.Artifact)})
	b.put(it, err, false)
	err = s.carry(ctx, b, func(images map[int]item) error {
		th, err := failedThread(images, 0, t.Thread)
		if err != nil || th == nil {
			return wrongly(err)
		}
		_, err = t.ApplyThread(*th)
		return wrongly(err)
	})
	return wrapUnlessRefused(err, "put artifact %s of thread %s", t.Artifact.ID, t.Thread)
}
