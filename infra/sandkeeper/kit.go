package sandkeeper

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsdynamodb"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslogs"
	"github.com/aws/constructs-go/constructs/v10"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// grant is one statement of a role: these actions on these resources.
type grant struct {
	actions    []string
	resources  []*string
	conditions map[string]any
}

// functionSpec is what distinguishes one function from another.
type functionSpec struct {
	name     names.Function
	about    string
	timeout  time.Duration
	memoryMB float64
	env      map[names.Key]*string // exactly names.Env[name]
	local    map[names.Key]*string // the local variant's endpoints, else nil
	grants   []grant
	// async is for what others invoke without waiting: what fails becomes a dead letter.
	async bool
	// dropLate makes an asynchronous invocation worth one try within a minute.
	dropLate bool
	// reserved is how many invocations there are at a time, at most; the account keeps as
	// many for the function alone. nil: as many as the account has left.
	reserved *float64
}

// function makes a function with its own log group and its own role. It panics,
// and so fails the synthesis, unless the environment is exactly names.Env's and
// the binary is there.
func (k *Keeper) function(spec functionSpec) awslambda.Function {
	scope, p := k.Construct, k.props
	if err := checkEnv(spec.name, spec.env); err != nil {
		panic(err)
	}
	id := string(spec.name)
	code := k.code(spec.name)
	name := deployedName(p, spec.name)
	logs := awslogs.NewLogGroup(scope, new(id+"-logs"), &awslogs.LogGroupProps{
		LogGroupName:  new("/aws/lambda/" + name),
		Retention:     k.logRetention(),
		LogGroupClass: k.logClass(),
		EncryptionKey: k.key,
		RemovalPolicy: awscdk.RemovalPolicy_DESTROY,
	})
	grants := slices.Concat(spec.grants, k.ciphers(), k.traces())
	grants = append(grants, grant{
		actions:   []string{"logs:CreateLogStream", "logs:PutLogEvents"},
		resources: []*string{logs.LogGroupArn()},
	})
	if spec.async {
		grants = append(grants, k.buries())
	}
	props := &awslambda.FunctionProps{
		FunctionName:  &name,
		Description:   &spec.about,
		Runtime:       awslambda.Runtime_PROVIDED_AL2023(),
		Architecture:  awslambda.Architecture_ARM_64(),
		Handler:       new("bootstrap"),
		Code:          code,
		Timeout:       duration(spec.timeout),
		MemorySize:    &spec.memoryMB,
		Environment:   environment(spec.env, spec.local),
		LogGroup:      logs,
		LoggingFormat: awslambda.LoggingFormat_JSON,
		Tracing:       k.tracing(),
		// Of the account's concurrency; nil reserves none.
		ReservedConcurrentExecutions: spec.reserved,
		// A role that constructs cannot widen: what it may do is spec.grants.
		Role: role(scope, id+"-role", "lambda.amazonaws.com", grants).WithoutPolicyUpdates(nil),
	}
	if spec.async {
		props.DeadLetterQueue = k.events
	}
	if spec.dropLate {
		props.RetryAttempts = new(0.0)
		props.MaxEventAge = duration(time.Minute)
	}
	k.logs[spec.name], k.functions[spec.name] = logs, awslambda.NewFunction(scope, &id, props)
	return k.functions[spec.name]
}

// deployedName is what a function is called in the account.
func deployedName(p Props, f names.Function) string { return p.Install + "-" + string(f) }

// checkEnv compares what the stack would give a function with what it reads.
func checkEnv(f names.Function, env map[names.Key]*string) error {
	want, ok := names.Env[f]
	if !ok {
		return fmt.Errorf("function %s: not listed in names.Env", f)
	}
	for _, key := range want {
		if env[key] == nil {
			return fmt.Errorf("function %s: no value for %s", f, key)
		}
		if allowed := names.Values[key]; allowed != nil && !slices.Contains(allowed, *env[key]) {
			return fmt.Errorf("function %s: %s: want %s, got %q", f, key, strings.Join(allowed, " or "), *env[key])
		}
	}
	bytes := 0
	for key, value := range env {
		if !slices.Contains(want, key) {
			return fmt.Errorf("function %s: %s is not in its list of names.Env", f, key)
		}
		bytes += len(key) + len(*value)
	}
	if bytes > mostEnv {
		return fmt.Errorf("function %s: its environment has %d bytes, Lambda takes %d: want fewer hostFunctions, tenants or spokes, or another installation for some", f, bytes, mostEnv)
	}
	return nil
}

// mostEnv is how many bytes Lambda takes of a function's variables in all. What only the
// deploy knows counts as less than it will have.
const mostEnv = 4096

func environment(sets ...map[names.Key]*string) *map[string]*string {
	all := map[string]*string{}
	for _, set := range sets {
		for key, value := range set {
			all[string(key)] = value
		}
	}
	return &all
}

// role makes a role for a service with one inline policy. Inline, so that it is
// complete before anything that assumes the role exists.
func role(scope constructs.Construct, id, service string, grants []grant) awsiam.Role {
	policy := awsiam.NewPolicyDocument(nil)
	for _, g := range grants {
		policy.AddStatements(statementOf(g))
	}
	return awsiam.NewRole(scope, &id, &awsiam.RoleProps{
		AssumedBy:      awsiam.NewServicePrincipal(&service, &awsiam.ServicePrincipalOpts{Conditions: actsFor(scope, service)}),
		InlinePolicies: &map[string]awsiam.PolicyDocument{"own": policy},
	})
}

// actsFor has a service assume a role for what is in this account alone, nobody else's
// schedule, rule or task. Lambda does not say for whom it does.
func actsFor(scope constructs.Construct, service string) *map[string]any {
	if service == "lambda.amazonaws.com" {
		return nil
	}
	return &map[string]any{"StringEquals": map[string]any{"aws:SourceAccount": awscdk.Stack_Of(scope).Account()}}
}

func statementOf(g grant) awsiam.PolicyStatement {
	statement := awsiam.NewPolicyStatement(&awsiam.PolicyStatementProps{Actions: texts(g.actions), Resources: &g.resources})
	for _, operator := range slices.Sorted(maps.Keys(g.conditions)) {
		statement.AddCondition(&operator, g.conditions[operator])
	}
	return statement
}

// table makes a table as internal/names describes it.
func (k *Keeper) table(t names.Table) awsdynamodb.TableV2 {
	indexes := make([]*awsdynamodb.GlobalSecondaryIndexPropsV2, 0, len(t.Indexes))
	for _, index := range t.Indexes {
		indexes = append(indexes, secondaryIndex(index))
	}
	return awsdynamodb.NewTableV2(k.Construct, &t.Name, &awsdynamodb.TablePropsV2{
		PartitionKey:           keyAttribute(names.PK),
		SortKey:                keyAttribute(names.SK),
		Billing:                awsdynamodb.Billing_OnDemand(nil),
		GlobalSecondaryIndexes: &indexes,
		TimeToLiveAttribute:    new(names.TTL),
		RemovalPolicy:          k.removal(),
		Encryption:             k.tableKey(),
		PointInTimeRecoverySpecification: &awsdynamodb.PointInTimeRecoverySpecification{
			PointInTimeRecoveryEnabled: new(true),
		},
	})
}

func secondaryIndex(index names.Index) *awsdynamodb.GlobalSecondaryIndexPropsV2 {
	props := &awsdynamodb.GlobalSecondaryIndexPropsV2{
		IndexName:      &index.Name,
		PartitionKey:   keyAttribute(index.PK),
		SortKey:        keyAttribute(index.SK),
		ProjectionType: awsdynamodb.ProjectionType_KEYS_ONLY,
	}
	if len(index.Include) > 0 {
		props.ProjectionType = awsdynamodb.ProjectionType_INCLUDE
		props.NonKeyAttributes = texts(index.Include)
	}
	return props
}

func keyAttribute(a names.Attribute) *awsdynamodb.Attribute {
	kind := awsdynamodb.AttributeType_STRING
	if a.Type == names.Number {
		kind = awsdynamodb.AttributeType_NUMBER
	}
	return &awsdynamodb.Attribute{Name: &a.Name, Type: kind}
}

// indexARN is the resource a Query on the index needs; the table's own ARN does
// not cover it.
func indexARN(t awsdynamodb.TableV2, index names.Index) *string {
	return join(*t.TableArn(), "/index/", index.Name)
}

func duration(d time.Duration) awscdk.Duration {
	return awscdk.Duration_Seconds(new(d.Seconds()))
}

// days is a duration in whole days, as retentions want it.
func days(d time.Duration) awscdk.Duration {
	return awscdk.Duration_Days(new(d.Hours() / 24))
}

func texts(values []string) *[]*string {
	out := make([]*string, len(values))
	for i := range values {
		out[i] = &values[i]
	}
	return &out
}

func join(parts ...string) *string { return new(strings.Join(parts, "")) }
