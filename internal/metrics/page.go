package metrics

import (
	"fmt"
	"strings"
	"time"
)

// Page is docs/metrics.md.
func Page() string {
	var b strings.Builder
	fmt.Fprintf(&b, pageHead, len(charged))
	b.WriteString("| metric | unit | from | what it is |\n| --- | --- | --- | --- |\n")
	for _, m := range charged {
		b.WriteString(row(m))
	}
	b.WriteString(pageProperties)
	for _, m := range All[len(charged):] {
		b.WriteString(row(m))
	}
	b.WriteString(pageAlarms)
	for _, a := range Alarms {
		fmt.Fprintf(&b, "| [%s](runbook.md#%s) | %s | %s |\n", a.Name, a.Name, a.rule(), a.About)
	}
	b.WriteString(pageLogs)
	for _, k := range LogKeys {
		fmt.Fprintf(&b, "| `%s` | %s |\n", k.Name, k.About)
	}
	return b.String()
}

const pageLogs = `
## Logs

One line of JSON for each decision, with its evidence, under a fixed message: ` + "`run`, `sweep`, `reap`, `audit`, `daily`, `leak`, `breaker`, `reclaim`, `loss`, `broken`, `step`, `collect`, `checkpoint`, `agent`, `session`" + ` and what goes wrong on the way. Lambda adds
` + "`timestamp`, `level`, `message` and `requestId`" + `. Members have these names and no others; no line holds a token, a prompt or output.

| member | what it is |
| --- | --- |
`

const pageHead = `# Metrics

The functions write one line of JSON in CloudWatch's embedded metric format for each piece of work, beside their logs and with the zeros: a silent metric is one that
nobody measures. This page is made from the list in ` + "`internal/metrics`" + `; a test compares the two.

## Charged

%d metrics in the namespace ` + "`Sandkeeper`" + `, with the single dimension ` + "`Install`" + `, so that two installations in one account stay apart. CloudWatch charges each for the hours in
which it is written: *steady* ones are written by every sweep, *sparse* ones not where they are zero (the zero stands on the line as a property), the others when there is something to tell.

`

const pageProperties = `
## Properties

They stand on the same lines, cost nothing beside the line, and are read by queries (Logs Insights; the stack saves some).

| property | unit | from | what it is |
| --- | --- | --- | --- |
`

const pageAlarms = `
## Alarms

Each has its page in the [runbook](runbook.md). The depth of the dead-letter queues is SQS's own metric.

| alarm | rings when | what it means |
| --- | --- | --- |
`

func row(m Metric) string {
	from := make([]string, len(m.From))
	for i, f := range m.From {
		from[i] = "`" + string(f) + "`"
	}
	about := m.About
	if m.Charged && m.Steady {
		about += " Steady."
	}
	if m.Sparse {
		about += " Sparse."
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s |\n", m.Name, m.Unit, strings.Join(from, " "), about)
}

// rule says when an alarm rings, for people.
func (a Alarm) rule() string {
	metric, than, period := "`"+string(a.Metric)+"`", "above", shortly(a)
	if a.Metric == "" {
		metric = "a dead-letter queue's depth"
	}
	if a.Below {
		than = "below"
	}
	text := fmt.Sprintf("%s of %s %s %g in %s", a.Statistic, metric, than, a.Threshold, period)
	if a.Missing == Breaching {
		text += ", or nothing at all"
	}
	return text
}

func shortly(a Alarm) string {
	switch {
	case a.Period == 0:
		return fmt.Sprintf("%d ticks of the schedule", a.Periods)
	case a.Period == day && a.Periods == 1:
		return "a day"
	case a.Period == day:
		return fmt.Sprintf("each of %d days", a.Periods)
	case a.Period == time.Hour:
		return fmt.Sprintf("each of %d hours", a.Periods)
	case a.Periods == 1:
		return fmt.Sprintf("%d minutes", int(a.Period.Minutes()))
	}
	return fmt.Sprintf("each of %d periods of %d minutes", a.Periods, int(a.Period.Minutes()))
}
