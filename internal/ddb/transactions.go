package ddb

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// Transactions are the writes over both tables.
type Transactions struct {
	client          client
	runs, sandboxes string
}

var _ core.SandboxTransactions = (*Transactions)(nil)

// NewTransactions returns the transactions over a runs and a sandboxes table.
func NewTransactions(client client, runs, sandboxes string) *Transactions {
	return &Transactions{client, runs, sandboxes}
}

// Launch makes a task a sandbox, in one transaction.
func (s *Transactions) Launch(ctx context.Context, t core.Launched) error {
	items, err := s.launchItems(t)
	if err == nil {
		err = s.transact(ctx, items, func(images map[int]item) error { return judgeLaunch(images, t) })
	}
	return wrapUnlessRefused(err, "launch instance %s", t.Sandbox.Instance)
}

// The actions of a launch, by index.
const (
	launchRow = iota
	launchRun
	launchBox
)

func (s *Transactions) launchItems(t core.Launched) ([]types.TransactWriteItem, error) {
	ledger := newChange(rowPK(t.Sandbox.Instance))
	ledger.need(is("state", core.LedgerIntent))
	ledger.set("state", core.LedgerRunning)
	ledger.set("taskArn", t.Sandbox.TaskARN)
	ledger.set("cluster", t.Sandbox.Cluster)
	ledger.set("updatedAt", t.Now)
	ledger.dueAt(0)
	row, err := ledger.part(s.sandboxes, key(rowPK(t.Sandbox.Instance), skRow))
	if err != nil {
		return nil, err
	}
	bound := newChange(runPK(t.Run))
	bound.need(is("status", core.Running), is("driverEpoch", t.Epoch), gone("ending"), is("instanceId", t.Sandbox.Instance), gone("taskArn"))
	bound.set("taskArn", t.Sandbox.TaskARN)
	bound.set("cluster", t.Sandbox.Cluster)
	bound.set("container", t.Sandbox.Container)
	run, err := bound.part(s.runs, key(runPK(t.Run), skRun))
	if err != nil {
		return nil, err
	}
	box, err := encodeSandbox(t.Sandbox)
	if err != nil {
		return nil, err
	}
	return []types.TransactWriteItem{
		launchRow: row, launchRun: run,
		launchBox: {Put: &types.Put{TableName: &s.sandboxes, Item: box, ConditionExpression: new(absent)}},
	}, nil
}

// judgeLaunch tells what a cancelled launch means. The row comes first: it alone
// shows that this very launch has landed.
func judgeLaunch(images map[int]item, t core.Launched) error {
	if image, ok := images[launchRow]; ok {
		return judged(image, decodeLedger, t.ApplyRow, t.Landed)
	}
	if image, ok := images[launchRun]; ok {
		return judged(image, decodeRun, t.ApplyRun, nil)
	}
	return &core.RefusedError{Op: t.Name(), Record: "sandbox " + string(t.Sandbox.Key), Why: "exists"}
}

// judged tells what the image says of a record whose condition failed in a cancelled
// transaction: nothing is wrong if it shows that the very transaction has landed, where
// it is one that can; else apply says what is.
func judged[R any](image item, decode func(item) (R, error), apply func(R) (R, error), landed func(R) bool) error {
	r, err := decode(image)
	switch {
	case err != nil:
		return err
	case landed != nil && landed(r):
		return nil
	}
	_, err = apply(r)
	return wrongly(err)
}

// errAllowed is the disagreement that a refusal without a reason is.
var errAllowed = fmt.Errorf("%w: a write that the records allow", errDisagree)

// wrongly is err, or the disagreement that no error is.
func wrongly(err error) error {
	if err != nil {
		return err
	}
	return errAllowed
}

// Condemn makes a task unfindable before it is stopped, in one transaction.
func (s *Transactions) Condemn(ctx context.Context, t core.Condemn) error {
	items, err := s.condemnItems(t)
	if err == nil {
		err = s.transact(ctx, items, func(images map[int]item) error { return judgeCondemn(images, t) })
	}
	return wrapUnlessRefused(err, "condemn instance %s", t.Instance)
}

// The actions of a condemnation, by index.
const (
	condemnRow = iota
	condemnBox
)

func (s *Transactions) condemnItems(t core.Condemn) ([]types.TransactWriteItem, error) {
	ledger := newChange(rowPK(t.Instance))
	ledger.need(expression.Name("state").In(expression.Value(core.LedgerIntent), expression.Value(core.LedgerRunning)), gone("owed"))
	stopRow(ledger, t.Why, t.Now, t.DueAt)
	ledger.set("unsealed", t.Unsealed)
	row, err := ledger.part(s.sandboxes, key(rowPK(t.Instance), skRow))
	if err != nil {
		return nil, err
	}
	mine := known().And(is("instanceId", t.Instance), is("reclaiming", t.By))
	notMine := gone(names.PK.Name).Or(known().And(is("instanceId", t.Instance).Not()))
	condition := mine
	if t.By == "" {
		condition = notMine
	}
	e, err := expression.NewBuilder().WithCondition(condition).Build()
	if err != nil {
		return nil, fmt.Errorf("build expression: %w", err)
	}
	box := key(sandboxPK(t.Key), skSandbox)
	onFailure := types.ReturnValuesOnConditionCheckFailureAllOld
	if t.By == "" {
		return []types.TransactWriteItem{condemnRow: row, condemnBox: {ConditionCheck: &types.ConditionCheck{
			TableName: &s.sandboxes, Key: box, ConditionExpression: e.Condition(), ExpressionAttributeNames: e.Names(),
			ExpressionAttributeValues: e.Values(), ReturnValuesOnConditionCheckFailure: onFailure,
		}}}, nil
	}
	return []types.TransactWriteItem{condemnRow: row, condemnBox: {Delete: &types.Delete{
		TableName: &s.sandboxes, Key: box, ConditionExpression: e.Condition(), ExpressionAttributeNames: e.Names(),
		ExpressionAttributeValues: e.Values(), ReturnValuesOnConditionCheckFailure: onFailure,
	}}}, nil
}

func judgeCondemn(images map[int]item, t core.Condemn) error {
	if image, ok := images[condemnRow]; ok {
		return judged(image, decodeLedger, t.ApplyRow, t.Landed)
	}
	var box *core.Sandbox
	if image := images[condemnBox]; len(image) > 0 {
		decoded, err := decodeSandbox(image)
		if err != nil {
			return err
		}
		box = &decoded
	}
	return wrongly(t.CheckSandbox(box))
}

// MoveDebt lets the ledger row owe what the run owed, in one transaction.
func (s *Transactions) MoveDebt(ctx context.Context, t core.MoveDebt) error {
	items, err := s.debtItems(t)
	if err == nil {
		err = s.transact(ctx, items, func(images map[int]item) error { return judgeDebt(images, t) })
	}
	return wrapUnlessRefused(err, "move debt of run %s", t.Run)
}

// The actions of a debt's move, by index.
const (
	debtRun = iota
	debtRow
)

func (s *Transactions) debtItems(t core.MoveDebt) ([]types.TransactWriteItem, error) {
	owing := newChange(runPK(t.Run))
	owing.need(over(), stands(core.RowReclaim), is("instanceId", t.Instance), owes())
	owing.set("reclaimOutcome", t.Outcome)
	owing.set("checkpoint.state", core.CheckpointMoved)
	owing.set("checkpoint.older", t.Older)
	owing.settle()
	owing.keep(t.ExpiresAt)
	run, err := owing.part(s.runs, key(runPK(t.Run), skRun))
	if err != nil {
		return nil, err
	}
	ledger := newChange(rowPK(t.Instance))
	ledger.need(is("state", core.LedgerRunning), is("owed", t.Older))
	ledger.set("owed", t.Run.Run)
	ledger.set("updatedAt", t.Now)
	row, err := ledger.part(s.sandboxes, key(rowPK(t.Instance), skRow))
	return []types.TransactWriteItem{debtRun: run, debtRow: row}, err
}

// judgeDebt tells what a cancelled move means. The run comes first: it alone shows
// that this very move has landed.
func judgeDebt(images map[int]item, t core.MoveDebt) error {
	if image, ok := images[debtRun]; ok {
		return judged(image, decodeRun, t.ApplyRun, t.Landed)
	}
	return judged(images[debtRow], decodeLedger, t.ApplyRow, nil)
}

// transact sends a transaction; judge tells what its failed conditions mean.
func (s *Transactions) transact(ctx context.Context, items []types.TransactWriteItem, judge func(images map[int]item) error) error {
	_, err := send(ctx, s.client.TransactWriteItems, &dynamodb.TransactWriteItemsInput{TransactItems: items})
	if images, ok := reasons(err); ok {
		return judge(images)
	}
	return err
}
