// Package roles says what each role of the stack may do, as a table of phrases that people
// read and as the actions on resources that they stand for. Its rule: it is the only place
// where that is written by hand. The stack's roles, their tests, the operator's doctor and
// ARCHITECTURE.md are held against it.
package roles

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sandkeeper/sandkeeper/internal/names"
)

// Row is what one role may do.
type Row struct {
	Name     string // a function's, or who else acts
	Trigger  string
	Touches  []Phrase
	ErrsOnly string // when it fails
}

// Phrase is something to touch, and how: "runs: read, update".
type Phrase struct {
	Of  string
	How []string
}

func (p Phrase) String() string {
	if len(p.How) == 0 {
		return p.Of
	}
	return p.Of + ": " + strings.Join(p.How, ", ")
}

// touch is a phrase.
func touch(of string, how ...string) Phrase { return Phrase{of, how} }

// Table lists every role of the stack. Each function's also writes its own log.
var Table = []Row{{
	"reap", "schedule, ECS task state change, nudge, operator", []Phrase{
		touch("runs", "read", "read many", "check", "put", "update", "by detached", "by due"),
		touch("sandboxes", "read", "read many", "check", "put", "update", "by due"),
		touch("log objects", "read", "write"), touch("spool objects", "read"),
		touch("ECS", "DescribeTasks", "ListTasks"), touch("invokes", "probe"),
		touch("sends to", names.ReclaimJobs, names.SweepShards, names.EventDead), touch("consumes", names.SweepShards),
		touch("tells other systems"), touch("host functions"), touch("spokes"),
	}, "it cannot list",
}, {
	"probe", "`reap`, operator", []Phrase{
		touch("sandboxes", "read"), touch("ECS", "ExecuteCommand"), touch("spokes"),
	}, "never: `unknown` is an answer",
}, {
	"reclaim", "SQS, batch of 10, partial failures", []Phrase{
		touch("runs", "read", "check", "update"), touch("sandboxes", "read", "check", "update", "delete records"),
		touch("checkpoints", "read", "update"), touch("ECS", "DescribeTasks", "StopTask"), touch("invokes", "checkpoint"),
		touch("consumes", names.ReclaimJobs), touch("tells other systems"), touch("host functions"), touch("spokes"),
	}, "per item",
}, {
	"checkpoint", "`reclaim`, the host, operator, its URL, daily collection", []Phrase{
		touch("checkpoints", "read", "check", "put", "update", "delete", "query"), touch("runs", "read", "by thread"), touch("sandboxes", "read", "update records"),
		touch("thread objects", "read", "write", "delete", "list all"), touch("ECS", "ExecuteCommand"),
		touch("own function", "address", "invoke"), touch("sends to", names.ReclaimJobs, names.EventDead), touch("spokes"),
	}, "the caller must know",
}, {
	"session", "the host (orchestrator)", []Phrase{
		touch("runs", "read", "put", "update", "query", "by thread"), touch("sandboxes", "read", "put", "update", "delete records"),
		touch("checkpoints", "read", "update"), touch("log objects", "read", "write"), touch("spool objects", "read"),
		touch("ECS", "DescribeTasks", "ExecuteCommand", "RunTask"), touch("address of", "tools"), touch("invokes", "checkpoint", "reap"),
		touch("sends to", names.ReclaimJobs), touch("tells other systems"), touch("secrets that are listed"), touch("host functions"), touch("spokes"),
	}, "the caller must know",
}, {
	"tools", "the sandbox, by function URL", []Phrase{
		touch("runs", "read", "update"), touch("spool objects", "write"), touch("invokes", "reap"), touch("host functions"),
	}, "HTTP status",
}, {
	"schedule", "the clock", []Phrase{
		touch("invokes", "checkpoint", "reap"), touch("sends to", names.EventDead),
	}, "Scheduler says",
}, {
	"sandbox", "a sandbox's own exec agent", []Phrase{touch("exec channels")}, "ECS says",
}}

// Of lists, for each role by its name in the stack, what it may do where nothing was
// chosen, sorted: an action, a resource and its conditions a line, as "ecs:ListTasks * if
// ArnEquals ecs:cluster cluster.Arn". Resources are named as the stack's code names them.
// Secrets, host functions and spokes are there only where an installation lists some.
var Of = func() map[string][]string {
	all := map[string][]string{}
	for _, row := range Table {
		lines, err := row.lines()
		if err != nil {
			panic(err) // a mistake in the table
		}
		all[row.Name+"-role"] = lines
	}
	return all
}()

// Has reports whether a row has a phrase about something.
func (r Row) Has(of string) bool {
	return slices.ContainsFunc(r.Touches, func(p Phrase) bool { return p.Of == of })
}

func (r Row) lines() ([]string, error) {
	var all []string
	if slices.Contains(names.Functions, names.Function(r.Name)) {
		all = []string{"logs:CreateLogStream " + r.Name + "logs.Arn", "logs:PutLogEvents " + r.Name + "logs.Arn"}
	}
	for _, p := range r.Touches {
		lines, err := r.phrase(p)
		if err != nil {
			return nil, fmt.Errorf("row %s: %w", r.Name, err)
		}
		all = append(all, lines...)
	}
	slices.Sort(all)
	return all, nil
}

// phrase is what one phrase stands for.
func (r Row) phrase(p Phrase) ([]string, error) {
	if lines, ok := plain[p.Of]; ok && len(p.How) == 0 {
		return lines, nil
	}
	means, ok := vocabulary[p.Of]
	if !ok || len(p.How) == 0 {
		return nil, fmt.Errorf("%q: no such phrase", p)
	}
	var all []string
	for _, how := range p.How {
		lines := means(r.Name, p.Of, how)
		if lines == nil {
			return nil, fmt.Errorf("%q: %q means nothing", p, how)
		}
		all = append(all, lines...)
	}
	return all, nil
}

const (
	own       = "arn:AWS::Partition:%s:AWS::Region:AWS::AccountId:%s"
	ofCluster = " if ArnEquals ecs:cluster cluster.Arn"
)

func arn(service, resource string) string { return fmt.Sprintf(own, service, resource) }

var allTasks = arn("ecs", "task/cluster/*")

// plain are phrases without a how.
var plain = map[string][]string{
	"tells other systems": {"events:PutEvents " + arn("events", "event-bus/default") + " if StringEquals events:source " + names.SourceOwn},
	"exec channels": {
		"ssmmessages:CreateControlChannel *", "ssmmessages:CreateDataChannel *", "ssmmessages:OpenControlChannel *", "ssmmessages:OpenDataChannel *",
	},
	"secrets that are listed": {}, "host functions": {}, "spokes": {},
}

// vocabulary are phrases with a how: what it means for a role.
var vocabulary = map[string]func(role, of, how string) []string{
	"runs": table, "sandboxes": table, "checkpoints": table,
	"log objects": objects, "spool objects": objects, "thread objects": objects,
	"ECS": ecs,
	"invokes": func(_, _, f string) []string {
		return []string{"lambda:InvokeFunction " + f + ".Arn"}
	},
	"own function": func(role, _, how string) []string {
		return ownFunction[how](role)
	},
	"address of": func(_, _, f string) []string {
		return []string{"lambda:GetFunctionUrlConfig " + arn("lambda", "function:keeper-"+f)}
	},
	"sends to": func(_, _, queue string) []string {
		return []string{"sqs:SendMessage " + readable(queue) + ".Arn"}
	},
	"consumes": func(_, _, queue string) []string {
		return each(readable(queue)+".Arn", "sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage")
	},
}

// ownFunction is by name: its ARN would make a circle of function and role.
var ownFunction = map[string]func(role string) []string{
	"address": func(f string) []string {
		return []string{"lambda:GetFunctionUrlConfig " + arn("lambda", "function:keeper-"+f)}
	},
	"invoke": func(f string) []string {
		return []string{"lambda:InvokeFunction " + arn("lambda", "function:keeper-"+f)}
	},
}

// readable is a logical id without what no logical id has.
func readable(id string) string { return strings.ReplaceAll(id, "-", "") }

func each(resource string, actions ...string) []string {
	out := make([]string, len(actions))
	for i, a := range actions {
		out[i] = a + " " + resource
	}
	return out
}

var tableActions = map[string]string{
	"read": "GetItem", "read many": "BatchGetItem", "check": "ConditionCheckItem", "put": "PutItem",
	"update": "UpdateItem", "delete": "DeleteItem", "query": "Query",
}

func table(_, of, how string) []string {
	if index, ok := strings.CutPrefix(how, "by "); ok {
		return []string{"dynamodb:Query " + of + ".Arn/index/" + index}
	}
	if verb, records := strings.CutSuffix(how, " records"); records && tableActions[verb] != "" {
		return []string{"dynamodb:" + tableActions[verb] + " " + of + ".Arn if ForAllValues:StringLike dynamodb:LeadingKeys " + names.SandboxKeys + "*"}
	}
	if action := tableActions[how]; action != "" {
		return []string{"dynamodb:" + action + " " + of + ".Arn"}
	}
	return nil
}

// objects of the bucket, of one kind below each tenant's prefix. Those of threads have no
// tag by which they would go.
func objects(_, of, how string) []string {
	prefix := map[string]string{"log objects": names.LogsPrefix, "spool objects": names.SpoolPrefix, "thread objects": names.ThreadsPrefix}[of]
	all := "logs.Arn/*/" + prefix + "/*"
	switch {
	case how == "list all":
		return each("logs.Arn", "s3:ListBucket", "s3:ListBucketVersions")
	case how == "delete":
		return each(all, "s3:DeleteObjectVersion")
	case how == "write" && of == "thread objects":
		return each(all, "s3:PutObject")
	case how == "write":
		return each(all, "s3:PutObject", "s3:PutObjectTagging")
	case how == "read" && of == "spool objects":
		return []string{"s3:GetObject " + all, "s3:ListBucket logs.Arn if StringLike s3:prefix */" + prefix + "/*"}
	case how == "read":
		return each(all, "s3:GetObject", "s3:GetObjectVersion")
	}
	return nil
}

func ecs(_, _, how string) []string {
	switch how {
	case "DescribeTasks":
		// No tags: of a task that ECS has forgotten there are none to ask for.
		return []string{"ecs:DescribeTasks " + allTasks + ofCluster}
	case "ListTasks":
		return []string{"ecs:ListTasks *" + ofCluster}
	case "StopTask":
		return []string{"ecs:StopTask " + allTasks}
	case "ExecuteCommand":
		return []string{
			"ecs:ExecuteCommand " + allTasks, "ecs:ExecuteCommand cluster.Arn",
			"ssmmessages:OpenDataChannel " + arn("ssm", "session/ecs-execute-command-*"),
		}
	case "RunTask":
		return []string{
			"ecs:RunTask " + arn("ecs", "task-definition/*") + ofCluster,
			"ecs:TagResource " + allTasks + " if StringEquals ecs:CreateAction RunTask",
			"iam:PassRole sandboxrole.Arn if StringEquals iam:PassedToService ecs-tasks.amazonaws.com",
		}
	}
	return nil
}

// Markdown is the table as documents show it.
func Markdown() string {
	var out strings.Builder
	out.WriteString("| role | trigger | may touch | errs only when |\n| --- | --- | --- | --- |\n")
	for _, r := range Table {
		phrases := make([]string, len(r.Touches))
		for i, p := range r.Touches {
			phrases[i] = p.String()
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", r.Name, r.Trigger, strings.Join(phrases, "; "), r.ErrsOnly)
	}
	return out.String()
}
