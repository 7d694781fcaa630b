package sandkeeper

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/roles"
)

// TestTheDiagramOfTheStackIsTheTemplates: what fires a function is read from the template,
// what it touches from the table of roles, what the tables hold from their descriptions.
// With UPDATE set the document is written anew.
func TestTheDiagramOfTheStackIsTheTemplates(t *testing.T) {
	var text strings.Builder
	text.WriteString("# The stack\n\nWritten by the code: what fires a function is read from the synthesized template, what it touches from `internal/roles`, the tables from `internal/names`.\n" +
		"`cd infra && UPDATE=1 go test -run TestTheDiagramOfTheStack ./sandkeeper` writes this page anew. What each role may do, action by action, is in\n" +
		"[ARCHITECTURE.md](../../ARCHITECTURE.md#9-what-each-role-may-do).\n\n```mermaid\nflowchart LR\n")
	for _, edge := range slices.Concat(fires(t), touches()) {
		text.WriteString("    " + edge + "\n")
	}
	text.WriteString("```\n\n| table | index | holds, by | what else is in the index |\n| --- | --- | --- | --- |\n")
	for _, table := range names.Tables {
		fmt.Fprintf(&text, "| %s | | `%s`, `%s` | |\n", table.Name, names.PK.Name, names.SK.Name)
		for _, index := range table.Indexes {
			fmt.Fprintf(&text, "| %s | %s | `%s`, `%s` | %s |\n", table.Name, index.Name, index.PK.Name, index.SK.Name, strings.Join(index.Include, ", "))
		}
	}
	const file = "../../docs/architecture/stack.md"
	got, err := os.ReadFile(file)
	if err == nil && string(got) == text.String() {
		return
	}
	if os.Getenv("UPDATE") == "" {
		t.Fatalf("%s is not what the code says: UPDATE=1 writes it (%v)", file, err)
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// node is a name as mermaid takes it.
func node(shape, name string) string {
	id := strings.NewReplacer("-", "_", " ", "_", "'", "").Replace(name)
	switch shape {
	case "store":
		return id + `[("` + name + `")]`
	case "queue":
		return id + `[["` + name + `"]]`
	case "outside":
		return id + `(["` + name + `"])`
	}
	return id + "[" + name + "]"
}

// fires are the triggers that the template makes.
func fires(t *testing.T) []string {
	function := func(v any) string { return node("", strings.TrimSuffix(flat(v), ".Arn")) }
	var out []string
	for id, s := range production.all(t, "AWS::Scheduler::Schedule") {
		out = append(out, node("outside", "schedule "+readable(id))+` -->|"`+flat(s.Properties["ScheduleExpression"])+`"| `+function(at(s.Properties, "Target", "Arn")))
	}
	for _, r := range production.all(t, "AWS::Events::Rule") {
		for _, target := range r.Properties["Targets"].([]any) {
			out = append(out, node("outside", flat(at(r.Properties, "EventPattern", "detail-type")))+" --> "+function(at(target, "Arn")))
		}
	}
	queues := map[string]string{}
	for _, q := range []string{names.ReclaimJobs, names.SweepShards, names.EventDead, names.ReclaimDead, names.SweepDead} {
		queues[readable(q)+".Arn"] = q
	}
	for _, m := range production.all(t, "AWS::Lambda::EventSourceMapping") {
		out = append(out, fmt.Sprintf("%s -->|batches of %v| %s", node("queue", queues[flat(m.Properties["EventSourceArn"])]), m.Properties["BatchSize"], function(m.Properties["FunctionName"])))
	}
	for _, q := range production.all(t, "AWS::SQS::Queue") {
		if dead := flat(at(q.Properties, "RedrivePolicy", "deadLetterTargetArn")); queues[dead] != "" {
			from := map[string]string{names.ReclaimDead: names.ReclaimJobs, names.SweepDead: names.SweepShards}[queues[dead]]
			out = append(out, fmt.Sprintf("%s -->|after %v tries| %s", node("queue", from), at(q.Properties, "RedrivePolicy", "maxReceiveCount"), node("queue", queues[dead])))
		}
	}
	for _, u := range production.all(t, "AWS::Lambda::Url") {
		out = append(out, node("outside", "agents in sandboxes")+" -->|URL| "+function(u.Properties["TargetFunctionArn"]))
	}
	slices.Sort(out)
	return out
}

// touches are what the functions act on.
func touches() []string {
	kinds := map[string]map[string]string{
		"store": {"runs": "runs", "sandboxes": "sandboxes", "checkpoints": "checkpoints", "log objects": "bucket", "spool objects": "bucket", "thread objects": "bucket"},
	}
	edges := map[string][]string{}
	for _, row := range roles.Table {
		if !slices.Contains(names.Functions, names.Function(row.Name)) {
			continue
		}
		from := node("", row.Name)
		for _, p := range row.Touches {
			switch {
			case kinds["store"][p.Of] != "":
				edge := from + " --- " + node("store", kinds["store"][p.Of])
				edges[edge] = nil
			case p.Of == "ECS":
				edges[from+" -->|%s| "+node("outside", "ECS")] = p.How
			case p.Of == "invokes":
				for _, f := range p.How {
					edges[from+" --> "+node("", f)] = nil
				}
			case p.Of == "sends to":
				for _, q := range p.How {
					edges[from+" --> "+node("queue", q)] = nil
				}
			case p.Of == "host functions":
				edges[from+" --> "+node("outside", "the host's functions")] = nil
			case p.Of == "tells other systems":
				edges[from+" --> "+node("outside", "event bus")] = nil
			}
		}
	}
	var out []string
	for _, edge := range slices.Sorted(maps.Keys(edges)) {
		if how := edges[edge]; how != nil {
			edge = fmt.Sprintf(edge, strings.Join(how, ", "))
		}
		out = append(out, edge)
	}
	return out
}
