package sandkeeper

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// List prices of us-east-1, dollars, as of November 2026:
// https://aws.amazon.com/cloudwatch/pricing/ , https://aws.amazon.com/lambda/pricing/ ,
// https://aws.amazon.com/sqs/pricing/ , https://aws.amazon.com/dynamodb/pricing/on-demand/ ,
// https://aws.amazon.com/eventbridge/pricing/
const (
	perAlarm     = 0.10 // a metric that an alarm reads, a month
	perDashboard = 3.00 // a month
	perMetric    = 0.30 // a month, by the hours in which it is written
	perGBLogs    = 0.50
	perPoll      = 0.40e-6 // a request to SQS
	perInvoke    = 0.20e-6
	perGBSecond  = 13.3334e-6 // arm64
	perRead      = 0.125e-6   // a read unit
	perTick      = 1.00e-6    // an invocation of Scheduler
)

// What is free each month, for every account and for good.
const (
	freeAlarms, freeDashboards, freeMetrics = 10, 3, 10
	freePolls, freeInvokes, freeTicks       = 1e6, 1e6, 14e6
	freeGBSeconds, freeGBLogs               = 400_000, 5.0
)

// What is not in the template: measured or, of the pollers, said by AWS.
const (
	month         = 730 * time.Hour
	sweepSeconds  = 0.3 // of an idle sweep, with its calls
	sweepLogKB    = 2.0 // of its lines, Lambda's own included
	pollers       = 5.0 // that Lambda keeps at a queue, each with a long poll of 20 s
	indexesAShard = 3.0 // that a sweep queries, half a read unit each while they are empty
	readsASweep   = 2.0 // consistent ones beside them
	auditSeconds  = 0.5 // of an idle audit: a page of tasks, and a description of none
)

// item is a line of the bill: how many, at what price, and how many of them are free.
type item struct {
	what            string
	count           float64
	unit            string
	price, freeUpTo float64
}

func (i item) list() float64 { return i.count * i.price }

func (i item) withFree() float64 { return max(0, i.count-i.freeUpTo) * i.price }

// bill is what an installation costs in a month in which nothing happens.
func bill(t *testing.T, of template) []item {
	t.Helper()
	ticks := month.Minutes()
	memory, _ := of.one(t, "AWS::Lambda::Function", string(names.Reap)).Properties["MemorySize"].(float64)
	return []item{
		{"alarms", float64(len(of.all(t, "AWS::CloudWatch::Alarm"))), "metrics", perAlarm, freeAlarms},
		{"dashboard", float64(len(of.all(t, "AWS::CloudWatch::Dashboard"))), "", perDashboard, freeDashboards},
		{"metrics", idleMetrics(t), "metric months", perMetric, freeMetrics},
		{"polling of queues", float64(len(of.all(t, "AWS::Lambda::EventSourceMapping"))) * pollers * month.Seconds() / 20, "requests", perPoll, freePolls},
		{"sweeps, duration", ticks * sweepSeconds * memory / 1024, "GB seconds", perGBSecond, freeGBSeconds},
		{"sweeps and audits", ticks + month.Hours(), "invocations", perInvoke, freeInvokes},
		{"sweeps, reads", ticks * (names.Shards*indexesAShard/2 + readsASweep), "read units", perRead, 0},
		{"sweeps, logs", ticks * sweepLogKB / (1 << 20), "GB", perGBLogs, freeGBLogs},
		{"audits, duration", month.Hours() * auditSeconds * memory / 1024, "GB seconds", perGBSecond, 0},
		{"schedule", ticks + month.Hours(), "invocations", perTick, freeTicks},
	}
}

// idleMetrics is how many metrics an idle installation writes: the steady ones. Zeros of
// the sparse ones are no metrics.
func idleMetrics(t *testing.T) float64 {
	n := 0.0
	for _, m := range metrics.Charged() {
		if m.Steady {
			n++
		}
		if (m.Name == metrics.SandboxesLeaked || m.Name == metrics.IdleBurn) && !m.Sparse {
			t.Errorf("the bill does not know that each audit writes %s", m.Name)
		}
	}
	return n
}

// free are the kinds of resource that cost nothing while nothing happens.
var free = []string{
	"AWS::DynamoDB::GlobalTable", "AWS::EC2::InternetGateway", "AWS::EC2::Route", "AWS::EC2::RouteTable", "AWS::EC2::SecurityGroup", "AWS::EC2::Subnet",
	"AWS::EC2::SubnetRouteTableAssociation", "AWS::EC2::VPC", "AWS::EC2::VPCGatewayAttachment", "AWS::ECS::Cluster", "AWS::ECS::TaskDefinition",
	"AWS::Events::Rule", "AWS::IAM::Role", "AWS::Lambda::EventInvokeConfig", "AWS::Lambda::Function", "AWS::Lambda::Permission", "AWS::Lambda::Url",
	"AWS::Logs::LogGroup", "AWS::Logs::QueryDefinition", "AWS::S3::Bucket", "AWS::S3::BucketPolicy", "AWS::SQS::Queue", "AWS::SQS::QueuePolicy",
	"AWS::Scheduler::Schedule", "AWS::Lambda::EventSourceMapping", "AWS::CloudWatch::Alarm", "AWS::CloudWatch::Dashboard",
}

// TestAnIdleInstallationCostsLittle: at list prices $6 a month at most, $3 with what every
// account has free, and the documents show the arithmetic as it is.
func TestAnIdleInstallationCostsLittle(t *testing.T) {
	for id, r := range production.Resources {
		if !strings.Contains(strings.Join(free, " ")+" ", r.Type+" ") {
			t.Errorf("%s: the bill does not know what a %s costs", id, r.Type)
		}
	}
	var list, withFree float64
	table := []string{"| what | how many a month | price | list | with the free tier |", "| --- | --- | --- | --- | --- |"}
	for _, i := range bill(t, production) {
		list, withFree = list+i.list(), withFree+i.withFree()
		table = append(table, fmt.Sprintf("| %s | %s | $%.4g | $%.2f | $%.2f |", i.what, strings.TrimSpace(fmt.Sprintf("%.6g %s", i.count, i.unit)), i.price, i.list(), i.withFree()))
	}
	table = append(table, fmt.Sprintf("| **together** | | | **$%.2f** | **$%.2f** |", list, withFree))
	if list > 6 || withFree > 3 {
		t.Errorf("$%.2f a month, $%.2f with the free tier: want at most $6 and $3", list, withFree)
	}
	for _, page := range []string{"README.md", filepath.Join("docs", "deploy.md")} {
		showsTable(t, filepath.Join("..", "..", page), table)
	}
}

// showsTable holds a document's table, which begins as the wanted one, against it. With
// UPDATE set it is written anew.
func showsTable(t *testing.T, file string, want []string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text, whole := string(data), strings.Join(want, "\n")
	if strings.Contains(text, whole+"\n\n") {
		return
	}
	before, rest, found := strings.Cut(text, want[0])
	if _, after, ends := strings.Cut(rest, "\n\n"); found && ends && os.Getenv("UPDATE") != "" {
		err = os.WriteFile(file, []byte(before+whole+"\n\n"+after), 0o644)
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s shows another table than\n%s\nUPDATE=1 writes it", file, whole)
}
