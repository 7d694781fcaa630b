package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/lambda"
	lambdatypes "github.com/aws/aws-sdk-go-v2/service/lambda/types"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// eventLetter is an event for which a function failed, or that could not be delivered to it.
type eventLetter struct {
	Source     string `json:"source"`
	DetailType string `json:"detail-type"`
	Scheduled  string `json:"scheduledTime"`
	Detail     struct {
		Tenant    core.TenantID `json:"tenant"`
		Run       core.RunID    `json:"run"`
		TaskARN   string        `json:"taskArn"`
		StartedBy string        `json:"startedBy"`
	} `json:"detail"`
	Relay json.RawMessage `json:"relay"`
}

// eventDebts tells whether an event is still worth something, by the records.
type eventDebts struct {
	runs    core.Runs
	ledger  core.Ledger
	install string
	now     time.Time
}

// dayOld is when a daily event has been made up for: the next day's has come.
const dayOld = 24 * time.Hour

// check is the state of a letter, why, and the function that it is for: one that is sent.
func (d eventDebts) check(ctx context.Context, body string) (state, why string, to names.Output) {
	var e eventLetter
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		return letterInvalid, "want a JSON object: " + err.Error(), ""
	}
	switch {
	case e.Source == names.SourceSchedule:
		return d.scheduled(e)
	case e.DetailType == names.DetailTaskState && (e.Source == names.SourceECS || e.Source == names.SourceLocalECS):
		state, why = d.task(ctx, e)
		return state, why, names.OutReapFunction
	case e.Source == names.SourceNudge:
		state, why = d.nudge(ctx, e)
		return state, why, names.OutReapFunction
	case e.Source == "" && e.Relay != nil:
		return letterSettled, "who waits for a relay asks again", ""
	}
	return letterInvalid, fmt.Sprintf("want a tick, a day, a collection, a task's end or a nudge, got source %.80q with %.80q", e.Source, e.DetailType), ""
}

func (d eventDebts) scheduled(e eventLetter) (state, why string, to names.Output) {
	switch {
	case e.DetailType == names.DetailScheduleTick:
		return letterSettled, "every later tick sees what it would have seen", ""
	case e.DetailType == names.DetailScheduleAudit:
		return letterSettled, "every later audit sees what it would have seen", ""
	case e.DetailType != names.DetailScheduleDaily && e.DetailType != names.DetailScheduleCollect:
		return letterInvalid, fmt.Sprintf("want a tick, an audit, a day or a collection, got %.80q", e.DetailType), ""
	}
	if at, err := time.Parse(time.RFC3339, e.Scheduled); err == nil && d.now.Sub(at) > dayOld {
		return letterSettled, "the next day's has come", ""
	}
	if e.DetailType == names.DetailScheduleDaily {
		return letterSent, "today's audit", names.OutReapFunction
	}
	return letterSent, "today's collection", names.OutCheckpoint
}

// task looks whether the end of a task is known already.
func (d eventDebts) task(ctx context.Context, e eventLetter) (state, why string) {
	id, ours := strings.CutPrefix(e.Detail.StartedBy, d.install+"/")
	if e.Detail.TaskARN == "" {
		return letterInvalid, "want a task's ARN"
	}
	if !ours {
		return letterSettled, "the task is not this installation's"
	}
	row, err := d.ledger.Row(ctx, core.InstanceID(id))
	switch {
	case errors.Is(err, core.ErrNotFound):
		return letterSettled, "nothing is known of instance " + id
	case err != nil:
		return letterFailed, err.Error()
	case row.TaskARN != "" && row.TaskARN != e.Detail.TaskARN:
		return letterSettled, "the ledger row of instance " + id + " names another task"
	case row.State == core.LedgerClosed:
		return letterSettled, "the ledger row of instance " + id + " is closed"
	}
	return letterSent, fmt.Sprintf("the ledger row of instance %s is %s", id, row.State)
}

func (d eventDebts) nudge(ctx context.Context, e eventLetter) (state, why string) {
	key := core.RunKey{Tenant: e.Detail.Tenant, Run: e.Detail.Run}
	if key.Tenant == "" || key.Run == "" {
		return letterInvalid, "want a tenant and a run"
	}
	r, err := d.runs.Run(ctx, key)
	switch {
	case errors.Is(err, core.ErrNotFound):
		return letterSettled, "there is no run " + key.String()
	case err != nil:
		return letterFailed, err.Error()
	case r.Status.Terminal():
		return letterSettled, "run " + key.String() + " has ended"
	}
	return letterSent, "run " + key.String() + " is " + string(r.Status)
}

// wireEvents chooses the letters of events. What is sent goes to its function as it came,
// and nobody waits for it.
func (r *redrive) wireEvents() {
	debts := eventDebts{runs: r.in.runs, ledger: r.in.boxes, install: r.in.out[names.OutInstall], now: time.Now()}
	r.dead = r.in.out[names.OutEventDead]
	r.check = func(ctx context.Context, body string) (string, string) {
		state, why, _ := debts.check(ctx, body)
		return state, why
	}
	r.send = func(ctx context.Context, body string) error {
		_, _, to := debts.check(ctx, body)
		if to == "" {
			return errors.New("send event: it is settled since")
		}
		ctx, cancel := context.WithTimeout(ctx, askWithin)
		defer cancel()
		function := r.in.out[to]
		if _, err := r.in.lambda.Invoke(ctx, &lambda.InvokeInput{
			FunctionName: &function, Payload: []byte(body), InvocationType: lambdatypes.InvocationTypeEvent,
		}); err != nil {
			return fmt.Errorf("invoke %s: %w", function, err)
		}
		return nil
	}
}
