package ddb

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

func noteStart(c *change, t core.NoteStart) {
	c.need(is("status", core.Running), is("driverEpoch", t.Epoch), gone("cancelRequested"), gone("ending"))
	c.need(started(t.Was))
	if t.Start == (core.RunStart{}) {
		c.remove("start")
		return
	}
	c.set("start", startRow(t.Start))
}

// started is the condition that the start of a run is as it was read.
func started(was core.RunStart) expression.ConditionBuilder {
	if was == (core.RunStart{}) {
		return gone("start")
	}
	return same("start.parent", was.Parent).And(
		same("start.resumed", was.Resumed), same("start.noted", was.Noted), same("start.head", was.Head), same("start.restored", was.Restored),
		same("start.lostRun", was.LostRun), same("start.lostWhy", was.LostWhy), same("start.askedAt", was.AskedAt), same("start.readyAt", was.ReadyAt),
		is("start.hosted", was.Hosted), is("start.native", was.Native), is("start.cloneAt", was.CloneAt), is("start.cloned", was.Cloned), is("start.setupAt", was.SetupAt), is("start.setUp", was.SetUp), is("start.hookedAt", was.HookedAt), is("start.owes", was.Owes), is("start.key", was.Key),
	)
}

func addBearer(c *change, t core.AddBearer) {
	c.need(is("status", core.Running), is("driverEpoch", t.Epoch), gone("cancelRequested"), gone("ending"))
	if len(t.Was) == 0 {
		c.need(gone("bearers"))
	} else {
		c.need(same("bearers", t.Was))
	}
	c.set("bearers", t.Bearers())
}

func noteFiles(c *change, t core.NoteFiles) {
	c.need(open(), is("driverEpoch", t.Epoch))
	c.update = c.update.Set(expression.Name("files"), expression.Value(filesRow(t.Files)))
}

func endRun(c *change, t core.EndRun) {
	c.need(open(), is("driverEpoch", t.Epoch), gone("sealed"), gone("ending"))
	if t.Reason == core.EndCancelled {
		c.need(there("cancelRequested"))
	}
	c.need(stands(t.Row))
	if t.Row == core.RowLapse {
		c.set("attachedUntil", t.Until)
		c.due(core.RowLapse, t.Until)
	}
	c.set("ending", endingRow{Reason: t.Reason, At: t.Now})
	c.set("error", (*errorRow)(t.Error))
}

var _ core.SessionTransactions = (*Transactions)(nil)

// Resume passes a sandbox to the next run of its thread, in one transaction.
func (s *Transactions) Resume(ctx context.Context, t core.Resumed) error {
	items, err := s.resumeItems(t)
	if err == nil {
		err = s.transact(ctx, items, func(images map[int]item) error { return judgeResume(images, t) })
	}
	return wrapUnlessRefused(err, "resume instance %s for run %s", t.Sandbox.Instance, t.Run)
}

// The actions of a resume, by index.
const (
	resumeRun = iota
	resumeBox
)

func (s *Transactions) resumeItems(t core.Resumed) ([]types.TransactWriteItem, error) {
	bind := newChange(runPK(t.Run))
	bind.need(is("status", core.Running), is("driverEpoch", t.Epoch), gone("taskArn"), is("instanceId", t.Instance), gone("cancelRequested"), gone("ending"), started(t.Was))
	start := startRow(t.Was)
	start.Resumed = true
	bind.set("start", start)
	bind.set("provider", t.Sandbox.Material.Provider)
	bind.set("sandboxKey", t.Sandbox.Key)
	bind.set("instanceId", t.Sandbox.Instance)
	bind.set("taskArn", t.Sandbox.TaskARN)
	bind.set("cluster", t.Sandbox.Cluster)
	bind.set("container", t.Sandbox.Container)
	run, err := bind.part(s.runs, key(runPK(t.Run), skRun))
	if err != nil {
		return nil, err
	}
	pass := newChange(sandboxPK(t.Sandbox.Key))
	passSandbox(pass, t.Sandbox, t.Run.Run, t.Now)
	box, err := pass.part(s.sandboxes, key(sandboxPK(t.Sandbox.Key), skSandbox))
	items := []types.TransactWriteItem{resumeRun: run, resumeBox: box}
	if err != nil || t.Debt == nil {
		return items, err
	}
	debt, err := s.debtItems(*t.Debt)
	return append(items, debt...), err
}

// passSandbox moves a sandbox to the next run of its thread.
func passSandbox(c *change, seen core.Sandbox, next core.RunID, now core.Millis) {
	c.need(is("instanceId", seen.Instance), is("latestRun", seen.LatestRun), gone("reclaiming"))
	c.set("latestRun", next)
	c.set("updatedAt", now)
	c.remove("idleSince")
	c.dueAt(0)
}

// judgeResume tells what a cancelled resume means. The run comes first: it alone shows
// that this very resume has landed.
func judgeResume(images map[int]item, t core.Resumed) error {
	if image, ok := images[resumeRun]; ok {
		return judged(image, decodeRun, t.ApplyRun, t.Landed)
	}
	if image, ok := images[resumeBox]; ok || t.Debt == nil {
		return judged(image, decodeSandbox, t.ApplySandbox, nil)
	}
	if image, ok := images[resumeBox+1+debtRun]; ok {
		return judged(image, decodeRun, t.Debt.ApplyRun, nil)
	}
	return judged(images[resumeBox+1+debtRow], decodeLedger, t.Debt.ApplyRow, nil)
}

// encodeCapture is what captures are told, as one text: nothing is decided from its
// parts.
func encodeCapture(o *core.JobOptions) (string, error) {
	if o == nil {
		return "", nil
	}
	text, err := json.Marshal(o)
	return string(text), err
}

func decodeCapture(text string) (*core.JobOptions, error) {
	if text == "" {
		return nil, nil
	}
	var o core.JobOptions
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	return &o, nil
}

// encodeReach is what a run may call, each as one text.
func encodeReach(r core.Run) (tools, hooks string, err error) {
	if len(r.Tools) > 0 {
		text, err := json.Marshal(r.Tools)
		if err != nil {
			return "", "", err
		}
		tools = string(text)
	}
	if r.Hooks != (core.HookPlan{}) {
		text, err := json.Marshal(r.Hooks)
		if err != nil {
			return "", "", err
		}
		hooks = string(text)
	}
	return tools, hooks, nil
}

func decodeReach(tools, hooks string) (list []core.ToolBinding, plan core.HookPlan, err error) {
	if tools != "" {
		if err := json.Unmarshal([]byte(tools), &list); err != nil {
			return nil, plan, fmt.Errorf("tools: %w", err)
		}
	}
	if hooks != "" {
		if err := json.Unmarshal([]byte(hooks), &plan); err != nil {
			return nil, plan, fmt.Errorf("hooks: %w", err)
		}
	}
	return list, plan, nil
}

// Continue ends a paused run and begins the one that goes on for it, in one transaction.
func (s *Transactions) Continue(ctx context.Context, t core.Continued) error {
	items, err := s.continueItems(t)
	if err == nil {
		err = s.transact(ctx, items, func(images map[int]item) error { return judgeContinue(images, t) })
	}
	return wrapUnlessRefused(err, "continue run %s as %s", t.Parent, t.Child.RunKey)
}

// The actions of a continuation, by index. The last is only there with a sandbox.
const (
	continueChild = iota
	continueParent
	continueBox
)

func (s *Transactions) continueItems(t core.Continued) ([]types.TransactWriteItem, error) {
	child, err := encodeRun(t.Child)
	if err != nil {
		return nil, err
	}
	over := newChange(runPK(t.Parent))
	over.need(is("status", core.Interrupted), gone("cancelRequested"), gone("ending"))
	finish(over, t.End)
	parent, err := over.part(s.runs, key(runPK(t.Parent), skRun))
	if err != nil {
		return nil, err
	}
	items := []types.TransactWriteItem{
		continueChild: {Put: &types.Put{
			TableName: &s.runs, Item: child, ConditionExpression: new(absent),
			ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
		}},
		continueParent: parent,
	}
	if t.Sandbox == nil {
		return items, nil
	}
	pass := newChange(sandboxPK(t.Sandbox.Key))
	passSandbox(pass, *t.Sandbox, t.Child.RunKey.Run, t.End.Now)
	box, err := pass.part(s.sandboxes, key(sandboxPK(t.Sandbox.Key), skSandbox))
	return append(items, box), err
}

// judgeContinue tells what a cancelled continuation means. The child comes first: it
// alone shows that this very one has landed.
func judgeContinue(images map[int]item, t core.Continued) error {
	if image, ok := images[continueChild]; ok {
		have, err := decodeRun(image)
		if err != nil {
			return err
		}
		return t.Met(have)
	}
	if image, ok := images[continueParent]; ok {
		return judged(image, decodeRun, t.ApplyParent, nil)
	}
	return judged(images[continueBox], decodeSandbox, t.ApplySandbox, nil)
}

// History lists the runs of threads.
type History struct {
	client client
	runs   string
}

var _ core.ThreadHistory = (*History)(nil)

// NewHistory returns the history in a runs table.
func NewHistory(client client, runs string) *History { return &History{client, runs} }

// ThreadRuns lists the runs of a thread, newest first, all pages.
func (s *History) ThreadRuns(ctx context.Context, k core.ThreadKey) ([]core.RunKey, error) {
	condition := expression.Key(names.ThreadKey).Equal(expression.Value(threadKey(k.Tenant, k.Thread)))
	in := &dynamodb.QueryInput{TableName: &s.runs, IndexName: &names.ThreadIndex.Name, ScanIndexForward: new(false)}
	keys, err := query(ctx, s.client, in, condition, func(it item) (core.RunKey, error) {
		_, key, err := decodeIndex(it)
		return key, err
	})
	if err != nil {
		return nil, fmt.Errorf("list runs of thread %s: %w", k, err)
	}
	return keys, nil
}
