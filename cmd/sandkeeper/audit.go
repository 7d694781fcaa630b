package main

import (
	"context"
	"slices"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// auditCommand compares ECS with the records, or lists what operators did.
type auditCommand struct {
	Tasks auditTasks `cmd:"" default:"withargs" help:"Compare ECS with the records, both ways."`
	Trail auditTrail `cmd:"" help:"List what operators did, and why."`
}

// auditTasks is the two-sided audit.
type auditTasks struct {
	Grace span `default:"1h" help:"Leave tasks alone that are younger." placeholder:"DURATION"`
}

// auditView is what it prints.
type auditView struct {
	Tasks    int           `json:"tasks"` // of the clusters, whoever started them
	Ours     int           `json:"ours"`  // of them, the installation's
	Runs     int           `json:"runs"`  // read from the indexes
	Rows     int           `json:"rows"`  // open ones of the ledger
	Findings []findingView `json:"findings"`
}

type findingView struct {
	Kind     core.AuditKind  `json:"kind"` // what differs
	Tenant   core.TenantID   `json:"tenant,omitempty"`
	Run      core.RunID      `json:"run,omitempty"`
	TaskARN  string          `json:"taskArn,omitempty"`
	Instance core.InstanceID `json:"instanceId,omitempty"`
	Since    stamp           `json:"since,omitzero"`
	Why      string          `json:"why"`
	Cure     string          `json:"cure"`
	Settles  bool            `json:"settles"` // the next sweeps put it right by themselves
}

// cures say what there is to do about a finding.
var cures = map[core.AuditKind]string{
	core.AuditLeaked:     "look whose it is; aws ecs stop-task ends it, or the hourly audit does with the choice leaks=stop",
	core.AuditUnwatched:  "look at its record with sandkeeper show; kill its run, or stop its task",
	core.AuditLost:       "nothing: the next sweep closes the run, unless the installation observes or is frozen",
	core.AuditIdleGone:   "nothing: reclaim drops the record when it is due, and a new turn gets a new task",
	core.AuditOverdue:    "look at reclaim's log and its dead letters: sandkeeper redrive --dry-run",
	core.AuditUnreadable: "the record is of another version: use the tool of that version",
}

// Run prints the findings, and exits with 5 where somebody has to act.
func (c *auditTasks) Run(ctx context.Context, in *installation, out *console.Console) error {
	bar := out.Bar(0, "comparing ECS with the records")
	report, err := in.audit(ctx, c.Grace.duration())
	bar.Done()
	if err != nil {
		return err
	}
	v := auditView{Tasks: report.Tasks, Ours: report.Ours, Runs: report.Runs, Rows: report.Rows, Findings: []findingView{}}
	open := 0
	for _, f := range report.Findings {
		v.Findings = append(v.Findings, findingView{
			Kind: f.Kind, Tenant: f.Tenant, Run: f.RunKey.Run, TaskARN: f.TaskARN, Instance: f.Instance,
			Since: stamp(f.Since), Why: f.Why, Cure: cures[f.Kind], Settles: f.Settles,
		})
		if !f.Settles {
			open++
		}
	}
	if err := out.Print(v, v.print); err != nil {
		return err
	}
	if open > 0 {
		return &findingsError{open}
	}
	return nil
}

func (v auditView) print(w *console.Writer) {
	var rows [][]string
	for _, f := range v.Findings {
		run := ""
		if f.Run != "" {
			run = core.RunKey{Tenant: f.Tenant, Run: f.Run}.String()
		}
		rows = append(rows, []string{string(f.Kind), run, taskID(f.TaskARN), f.Since.String(), f.Why, f.Cure})
	}
	w.Table([]string{"FINDING", "RUN", "TASK", "SINCE", "WHY", "CURE"}, rows, "ECS and the records agree")
	w.Line("%d tasks, %d of them ours; %d runs and %d rows in the indexes", v.Tasks, v.Ours, v.Runs, v.Rows)
}

// audit compares both sides.
func (in *installation) audit(ctx context.Context, grace time.Duration) (core.AuditReport, error) {
	limits := in.limits
	limits.LeakGrace = grace
	a := core.Auditor{
		Lister: in.tasks, Tasks: in.tasks, Runs: in.runs, Index: in.runs, Sandboxes: in.boxes, Ledger: in.boxes, Due: in.boxes,
		Install: in.out[names.OutInstall], Provider: ecstask.Provider, Cluster: in.out[names.OutCluster], Abroad: in.places.Abroad(), Limits: limits,
	}
	return a.Run(ctx)
}

// auditTrail lists acts.
type auditTrail struct {
	Days    int    `default:"7" help:"Today, in UTC, and so many days before it."`
	Subject string `help:"Only what was done to this: TENANT/RUN, or installation." placeholder:"NAME"`
}

// actView is one entry.
type actView struct {
	At      stamp  `json:"at"`
	By      string `json:"by"`
	Op      string `json:"op"`      // the command
	Subject string `json:"subject"` // the run or thread
	Why     string `json:"why"`
	Detail  string `json:"detail,omitempty"`
}

// Run prints the acts, the newest first.
func (c *auditTrail) Run(ctx context.Context, in *installation, out *console.Console) error {
	if c.Days < 0 || c.Days > 3650 {
		return badInput("days: want a number from 0 to 3650, got %d", c.Days)
	}
	acts := []actView{}
	for n := range c.Days + 1 {
		entries, err := in.boxes.Audit(ctx, time.Now().AddDate(0, 0, -n))
		if err != nil {
			return err
		}
		for _, e := range slices.Backward(entries) {
			if c.Subject == "" || c.Subject == e.Subject || parseRun("", c.Subject).String() == e.Subject {
				acts = append(acts, actView{stamp(e.At), e.By, e.Op, e.Subject, e.Why, e.Detail})
			}
		}
	}
	return out.Print(map[string]any{"acts": acts}, func(w *console.Writer) {
		var rows [][]string
		for _, a := range acts {
			rows = append(rows, []string{a.At.String(), a.Op, a.Subject, a.By, a.Why, a.Detail})
		}
		w.Table([]string{"AT", "ACT", "ON", "BY", "WHY", ""}, rows, "no acts")
	})
}
