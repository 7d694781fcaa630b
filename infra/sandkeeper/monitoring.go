package sandkeeper

import (
	"cmp"
	"fmt"
	"time"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awscloudwatch"
	"github.com/aws/aws-cdk-go/awscdk/v2/awscloudwatchactions"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslogs"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssns"
	"github.com/aws/aws-cdk-go/awscdk/v2/awssqs"
	"github.com/aws/aws-cdk-go/awscdk/v2/interfaces/interfacesawscloudwatch"
	"github.com/sandkeeper/sandkeeper/internal/metrics"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// monitor makes alarms, dashboard and saved queries. The local variant has none: its
// engine raises no alarm and knows neither dashboards nor queries.
func (k *Keeper) monitor() {
	if k.props.Local || k.props.NoMonitoring {
		return
	}
	for _, a := range metrics.Alarms {
		k.alarm(a)
	}
	k.dashboard = k.newDashboard()
	k.queries()
}

// Metric is one of the installation's charged metrics, by its name in docs/metrics.md. It
// panics for a name that is not charged.
func (k *Keeper) Metric(name, statistic string, period time.Duration) awscloudwatch.Metric {
	m, ok := metrics.Find(metrics.Name(name))
	if !ok || !m.Charged {
		panic(fmt.Errorf("metric %q: want a charged one of docs/metrics.md", name))
	}
	return awscloudwatch.NewMetric(&awscloudwatch.MetricProps{
		Namespace:     new(names.MetricsSpace),
		MetricName:    &name,
		DimensionsMap: &map[string]*string{metrics.Dimension: &k.props.Install},
		Statistic:     &statistic,
		Period:        duration(period),
	})
}

// Alarms are the alarms of the installation, in the order of docs/metrics.md.
func (k *Keeper) Alarms() []awscloudwatch.Alarm { return k.alarms }

// Dashboard shows the installation; nil where monitoring was not asked for.
func (k *Keeper) Dashboard() awscloudwatch.Dashboard { return k.dashboard }

// alarm makes an alarm of the list; of the dead letters one a queue.
func (k *Keeper) alarm(a metrics.Alarm) {
	if a.Metric == "" {
		for _, dead := range k.deadLetters() {
			k.ring(a, a.Name+"-"+dead.id, depth(dead.queue, a.Period))
		}
		return
	}
	if a.Metric == metrics.IdleBurn {
		a.Threshold = cmp.Or(k.props.IdleBurnUSD, a.Threshold)
	}
	k.ring(a, a.Name, k.Metric(string(a.Metric), a.Statistic, cmp.Or(a.Period, k.scheduleRate())))
}

func (k *Keeper) ring(a metrics.Alarm, name string, metric awscloudwatch.Metric) {
	than := awscloudwatch.ComparisonOperator_GREATER_THAN_THRESHOLD
	if a.Below {
		than = awscloudwatch.ComparisonOperator_LESS_THAN_THRESHOLD
	}
	missing := map[metrics.Missing]awscloudwatch.TreatMissingData{
		metrics.Breaching:    awscloudwatch.TreatMissingData_BREACHING,
		metrics.NotBreaching: awscloudwatch.TreatMissingData_NOT_BREACHING,
		metrics.Ignore:       awscloudwatch.TreatMissingData_IGNORE,
	}
	alarm := awscloudwatch.NewAlarm(k.Construct, new("alarm-"+name), &awscloudwatch.AlarmProps{
		AlarmName:          join(k.props.Install, "-", name),
		AlarmDescription:   join(a.About, " ", k.props.Runbook, "#", a.Name),
		Metric:             metric,
		Threshold:          &a.Threshold,
		EvaluationPeriods:  new(float64(a.Periods)),
		ComparisonOperator: than,
		TreatMissingData:   missing[a.Missing],
	})
	if k.props.AlarmTopic != "" {
		action := awscloudwatchactions.NewSnsAction(k.topic())
		alarm.AddAlarmAction(action)
		alarm.AddOkAction(action)
	}
	k.alarms = append(k.alarms, alarm)
}

// topic is the topic that hears of alarms. It is not the installation's.
func (k *Keeper) topic() awssns.ITopic {
	if found := k.Node().TryFindChild(new("alarm-topic")); found != nil {
		return found.(awssns.ITopic)
	}
	return awssns.Topic_FromTopicArn(k.Construct, new("alarm-topic"), &k.props.AlarmTopic)
}

// deadLetter is a queue that should be empty.
type deadLetter struct {
	id    string
	queue awssqs.Queue
}

func (k *Keeper) deadLetters() []deadLetter {
	return []deadLetter{{"reclaim", k.jobs.dead}, {"sweep", k.shards.dead}, {"events", k.events}}
}

func depth(q awssqs.Queue, period time.Duration) awscloudwatch.Metric {
	return q.MetricApproximateNumberOfMessagesVisible(&awscloudwatch.MetricOptions{
		Statistic: new("Maximum"), Period: duration(period),
	})
}

// width is how wide a dashboard is, in units of its grid.
const width = 24

// newDashboard answers from the top down: is anything wrong, what is the cleaner doing, how
// well does it, and where is the trouble.
func (k *Keeper) newDashboard() awscloudwatch.Dashboard {
	alarms := make([]interfacesawscloudwatch.IAlarmRef, len(k.alarms))
	for i, a := range k.alarms {
		alarms[i] = a
	}
	return awscloudwatch.NewDashboard(k.Construct, new("dashboard"), &awscloudwatch.DashboardProps{
		// An account has its dashboards in all Regions at once.
		DashboardName:   join(k.props.Install, "-", *k.stack.Region()),
		DefaultInterval: awscdk.Duration_Hours(new(12.0)),
		Widgets: &[]*[]awscloudwatch.IWidget{
			{
				awscloudwatch.NewAlarmStatusWidget(&awscloudwatch.AlarmStatusWidgetProps{
					Title: new("Is anything wrong?"), Alarms: &alarms, Width: new(18.0), Height: new(4.0),
				}),
				awscloudwatch.NewTextWidget(&awscloudwatch.TextWidgetProps{
					Markdown: new(fmt.Sprintf("**%s**\n\nEach alarm has its part in the [runbook](%s). `sandkeeper freeze` stops all stopping.", k.props.Install, k.props.Runbook)),
					Width:    new(6.0), Height: new(4.0),
				}),
			},
			k.levels(), k.work(), k.looks(), k.quality(), k.trouble(),
			{awscloudwatch.NewLogQueryWidget(&awscloudwatch.LogQueryWidgetProps{
				Title: new("The last errors"), LogGroupNames: k.logGroups(names.Functions...),
				QueryString: new(metrics.FindQuery("errors").Text), Width: new(float64(width)), Height: new(6.0), View: awscloudwatch.LogQueryVisualizationType_TABLE,
			})},
		},
	})
}

// levels are single numbers that should be small.
func (k *Keeper) levels() *[]awscloudwatch.IWidget {
	const each = width / 5.0
	number := func(title string, metric awscloudwatch.IMetric) awscloudwatch.IWidget {
		return awscloudwatch.NewSingleValueWidget(&awscloudwatch.SingleValueWidgetProps{
			Title: &title, Metrics: &[]awscloudwatch.IMetric{metric}, Width: new(float64(each)), Height: new(3.0), Sparkline: new(true),
		})
	}
	return &[]awscloudwatch.IWidget{
		number("Keeps ends back: 0 nothing, 1 observe, 2 freeze, 3 breaker", k.Metric(string(metrics.NotActing), "Maximum", 5*time.Minute)),
		number("Oldest unexamined run, s", k.Metric(string(metrics.OldestUnexaminedSeconds), "Maximum", 5*time.Minute)),
		number("Runs that cannot be told, %", k.Metric(string(metrics.UnknownRatio), "Average", 5*time.Minute)),
		number("Leaked sandboxes", k.Metric(string(metrics.SandboxesLeaked), "Maximum", time.Hour)),
		number("Idle burn, $ an hour", k.Metric(string(metrics.IdleBurn), "Maximum", time.Hour)),
	}
}

// work is what the cleaner does.
func (k *Keeper) work() *[]awscloudwatch.IWidget {
	return &[]awscloudwatch.IWidget{
		k.logGraph("Runs by outcome", names.Reap, "outcomes"),
		k.logGraph("Sandboxes by outcome", names.Reclaim, "reclaims"),
	}
}

// looks is how far it comes round, and what that is worth.
func (k *Keeper) looks() *[]awscloudwatch.IWidget {
	return &[]awscloudwatch.IWidget{
		k.logGraph("Runs detached, probed, unexamined", names.Reap, "sweeps"),
		k.logGraph("Saved by ends before their time, $", names.Reap, "saved"),
	}
}

// quality is how well it does it.
func (k *Keeper) quality() *[]awscloudwatch.IWidget {
	took := func(statistic string) awscloudwatch.IMetric {
		return k.Metric(string(metrics.ExitToStoppedSeconds), statistic, 5*time.Minute)
	}
	return &[]awscloudwatch.IWidget{
		k.graph("From an agent's exit to its task stopped, s", took("p50"), took("p90"), took("Maximum")),
		k.logGraph("Workspaces stored", names.Checkpoint, "checkpoints"),
	}
}

// trouble is where to look when something rings.
func (k *Keeper) trouble() *[]awscloudwatch.IWidget {
	sum := func(name metrics.Name) awscloudwatch.IMetric { return k.Metric(string(name), "Sum", 5*time.Minute) }
	var depths, functions []awscloudwatch.IMetric
	for _, dead := range k.deadLetters() {
		depths = append(depths, depth(dead.queue, 5*time.Minute))
	}
	for _, f := range names.Functions {
		options := &awscloudwatch.MetricOptions{Statistic: new("Sum"), Period: duration(5 * time.Minute)}
		functions = append(functions, k.functions[f].MetricErrors(options), k.functions[f].MetricThrottles(options))
	}
	return &[]awscloudwatch.IWidget{
		k.graph("Failures and refusals", sum(metrics.ReclaimFailures), sum(metrics.CheckpointFailures), sum(metrics.FenceRefusals)),
		k.graph("Calls that ECS turned away", sum(metrics.ECSThrottled)),
		k.graph("Dead letters", depths...),
		k.graph("Functions: errors and throttles", functions...),
	}
}

func (k *Keeper) graph(title string, left ...awscloudwatch.IMetric) awscloudwatch.IWidget {
	return awscloudwatch.NewGraphWidget(&awscloudwatch.GraphWidgetProps{
		Title: &title, Left: &left, LeftYAxis: &awscloudwatch.YAxisProps{Min: new(0.0)}, Width: new(width / 4.0), Height: new(6.0),
	})
}

// logGraph draws what a saved query finds in a function's lines.
func (k *Keeper) logGraph(title string, f names.Function, query string) awscloudwatch.IWidget {
	return awscloudwatch.NewLogQueryWidget(&awscloudwatch.LogQueryWidgetProps{
		Title: &title, LogGroupNames: k.logGroups(f), QueryString: new(metrics.FindQuery(query).Text),
		Width: new(width / 2.0), Height: new(6.0), View: awscloudwatch.LogQueryVisualizationType_STACKEDAREA,
	})
}

func (k *Keeper) logGroups(functions ...names.Function) *[]*string {
	groups := make([]*string, len(functions))
	for i, f := range functions {
		groups[i] = k.logs[f].LogGroupName()
	}
	return &groups
}

// queries saves the queries of the list below the installation's name.
func (k *Keeper) queries() {
	for _, q := range metrics.Queries {
		var groups []any
		for _, name := range *k.logGroups(q.Of...) {
			groups = append(groups, name)
		}
		awslogs.NewCfnQueryDefinition(k.Construct, new("query-"+q.ID), &awslogs.CfnQueryDefinitionProps{
			Name:          join(k.props.Install, "/", q.Name),
			QueryString:   new(q.Text),
			LogGroupNames: &groups,
		})
	}
}
