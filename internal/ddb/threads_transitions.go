package ddb

import (
	"fmt"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// newThreadChange is a change of a thread's item, which it makes if there is none.
func newThreadChange(k core.ThreadKey, now core.Millis) *change {
	c := newUpsert()
	c.set("tenant", k.Tenant)
	c.set("thread", k.Thread)
	if now != 0 {
		c.set("updatedAt", now)
	}
	return c
}

// writes is the condition that a writer holds the live lease.
func writes(owner string, fence int64, now core.Millis) expression.ConditionBuilder {
	return is("fence", fence).And(is("leaseOwner", owner), there("leaseOwner"), leaseLives(now))
}

func leaseLives(now core.Millis) expression.ConditionBuilder {
	return expression.Name("leaseUntil").GreaterThan(expression.Value(now)).And(there("leaseOwner"))
}

// above is the condition that nothing of that fence is being collected.
func above(fence int64) expression.ConditionBuilder {
	return gone("floor").Or(expression.Name("floor").LessThanEqual(expression.Value(fence)))
}

// works is the condition that a step with that token is under way.
func works(token string) expression.ConditionBuilder {
	return same("step.token", token).And(same("step.state", core.StepWorking))
}

// setAny gives an attribute a value, zero too.
func (c *change) setAny(name string, value any) {
	c.update = c.update.Set(expression.Name(name), expression.Value(value))
}

// grant counts bytes that a step gets leave to store, where so many are left.
func (c *change) grant(n int64) {
	if n == 0 {
		return
	}
	had := expression.Name("step.granted")
	c.need(gone("step.granted").Or(had.LessThanEqual(expression.Value(core.MaxGranted - n))))
	c.update = c.update.Set(had, expression.Plus(expression.IfNotExists(had, expression.Value(0)), expression.Value(n)))
}

func (c *change) releaseLease() { c.remove("leaseOwner", "leaseUntil") }

// set of texts, as DynamoDB has them.
func textSet[T ~string](of []T) *types.AttributeValueMemberSS {
	set := &types.AttributeValueMemberSS{}
	for _, text := range of {
		set.Value = append(set.Value, string(text))
	}
	return set
}

// threadChange says each transition of a thread in DynamoDB's words, but for the taking
// of a lease, which needs two.
func threadChange(k core.ThreadKey, t core.ThreadTransition) (*change, error) {
	switch t := t.(type) {
	case core.RenewLease:
		c := newThreadChange(k, t.Now)
		c.need(writes(t.Owner, t.Fence, t.Now))
		c.set("leaseUntil", t.Until)
		return c, nil
	case core.ReleaseLease:
		c := newThreadChange(k, 0)
		c.need(is("leaseOwner", t.Owner))
		if t.Fence != 0 {
			c.need(is("fence", t.Fence))
		}
		if t.Seen != nil {
			c.needStep(*t.Seen)
		}
		c.releaseLease()
		return c, nil
	case core.BeginStep:
		return beginStep(k, t), nil
	case core.NoteStep:
		c := newThreadChange(k, t.Now)
		c.need(is("fence", t.Fence), leaseLives(t.Now), works(t.Token))
		c.set("leaseUntil", t.Until)
		c.setAny("step.seenAt", t.Now)
		c.setAny("step.files", t.Files)
		c.setAny("step.bytes", t.Bytes)
		c.remove("step.why")
		c.grant(t.Grant)
		return c, nil
	case core.DoubtStep:
		c := newThreadChange(k, t.Now)
		c.need(is("fence", t.Fence), works(t.Token), same("step.seenAt", t.SeenAt))
		c.setAny("step.why", t.Why)
		c.setAny("step.seenAt", t.Now)
		return c, nil
	case core.EndStep:
		return endStep(k, t), nil
	case core.RaiseFloor:
		c := newThreadChange(k, t.Now)
		c.need(writes(t.Owner, t.Fence, t.Now))
		c.set("floor", t.Fence)
		return c, nil
	case core.ForgetThread:
		c := newThreadChange(k, t.Now)
		c.need(writes(t.Owner, t.Fence, t.Now), is("conversation.version", t.Seen.Version), is("headId", t.Head), is("begunAt", t.BegunAt))
		c.set("floor", t.Fence)
		c.remove("headId", "pendingRuns", "workspaceLost", "step")
		if next := t.Next(); next.Version != 0 {
			c.setAny("conversation", conversationOf(next))
		}
		return c, nil
	default:
		return threadFacts(k, t)
	}
}

// threadFacts says the transitions that need no lease.
func threadFacts(k core.ThreadKey, t core.ThreadTransition) (*change, error) {
	switch t := t.(type) {
	case core.PutConversation:
		c := newThreadChange(k, t.Now)
		c.need(is("conversation.version", t.Seen.Version), above(t.Fence))
		c.setAny("conversation", conversationOf(t.Next()))
		if len(t.Runs) > 0 {
			c.update = c.update.Delete(expression.Name("pendingRuns"), expression.Value(textSet(t.Runs)))
		}
		return c, nil
	case core.AddPending:
		c := newThreadChange(k, t.Now)
		pending := expression.Name("pendingRuns")
		c.need(
			gone("conversation.runs").Or(expression.Name("conversation.runs").Contains(string(t.Run)).Not()),
			gone("pendingRuns").Or(pending.Contains(string(t.Run)), expression.Size(pending).LessThan(expression.Value(core.MaxFolded))),
		)
		c.update = c.update.Add(pending, expression.Value(textSet([]core.RunID{t.Run})))
		return c, nil
	case core.LoseWorkspace:
		c := newThreadChange(k, t.Now)
		c.need(is("headId", t.Head), is("fence", t.Fence))
		c.setAny("workspaceLost", lossRow{t.Run, t.Why, t.Now})
		return c, nil
	case core.NoteRun:
		c := newThreadChange(k, t.Now)
		c.setOnce("firstRun", t.Run)
		c.set("begunAt", t.Now)
		return c, nil
	}
	return nil, fmt.Errorf("no conditional write for transition %T", t)
}

func beginStep(k core.ThreadKey, t core.BeginStep) *change {
	c := newThreadChange(k, t.Now)
	c.need(writes(t.Owner, t.Step.Fence, t.Now))
	c.needStep(t.Seen)
	c.setAny("step", stepOf(&t.Step))
	c.set("leaseUntil", t.Until)
	return c
}

// needStep requires the step as it was read.
func (c *change) needStep(seen core.StepSeen) {
	if seen == (core.StepSeen{}) {
		c.need(gone("step"))
	} else {
		c.need(same("step.id", seen.ID), same("step.token", seen.Token))
	}
}

func endStep(k core.ThreadKey, t core.EndStep) *change {
	c := newThreadChange(k, t.Now)
	c.need(is("fence", t.Fence), works(t.Token))
	c.setAny("step.state", t.State)
	c.setAny("step.seenAt", t.Now)
	if t.Why == "" {
		c.remove("step.why")
	} else {
		c.setAny("step.why", t.Why)
	}
	if t.Release {
		c.releaseLease()
	}
	return c
}

// takeLease takes a lease that nobody holds.
func takeLease(k core.ThreadKey, t core.AcquireLease) *change {
	c := newThreadChange(k, t.Now)
	c.need(gone("leaseOwner").Or(atMost("leaseUntil", t.Now)))
	c.update = c.update.Add(expression.Name("fence"), expression.Value(1))
	c.set("leaseOwner", t.Owner)
	c.set("leaseUntil", t.Until)
	return c
}

// keepLease renews the owner's own, under whatever fence it has.
func keepLease(k core.ThreadKey, t core.AcquireLease) *change {
	c := newThreadChange(k, t.Now)
	c.need(is("leaseOwner", t.Owner), leaseLives(t.Now))
	c.set("leaseUntil", t.Until)
	return c
}
