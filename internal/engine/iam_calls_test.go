package engine_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	dynamotypes "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	lambdatypes "github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// caller is somebody with a role's credentials.
type caller struct {
	db        *dynamodb.Client
	objects   *s3.Client
	queues    *sqs.Client
	functions *lambda.Client
	identity  *iam.Client
	out       engine.Outputs
}

func newCaller(cfg aws.Config, out engine.Outputs) caller {
	return caller{
		db:      dynamodb.NewFromConfig(cfg),
		objects: s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = true }),
		queues:  sqs.NewFromConfig(cfg), functions: lambda.NewFromConfig(cfg), identity: iam.NewFromConfig(cfg),
		out: out,
	}
}

// isDenied tells a refusal for want of permission from every other answer.
func isDenied(err error) bool {
	if e, ok := errors.AsType[smithy.APIError](err); ok {
		return slices.Contains([]string{"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}, e.ErrorCode())
	}
	response, ok := errors.AsType[*awshttp.ResponseError](err)
	return ok && response.HTTPStatusCode() == http.StatusForbidden
}

// call says how an action is tried on a resource, an ARN. Its answer matters only as
// far as it is a refusal: what is not there, or not so, is an answer of one who may.
type call struct {
	// do is nil where the engine cannot judge: it compares another resource than IAM
	// does, or lacks the condition's key, or the API.
	do func(ctx context.Context, c caller, resource string) error
	// foreign are resources beside those of the roles.
	foreign func(engine.Outputs) []string
	// never marks what no role may.
	never bool
}

// calls has a row for every action of every role.
var calls = map[string]call{
	"dynamodb:BatchGetItem":       {do: batchGet, foreign: tables},
	"dynamodb:ConditionCheckItem": {do: conditionCheck, foreign: tables},
	"dynamodb:DeleteItem":         {do: deleteItem, foreign: tables},
	"dynamodb:GetItem":            {do: getItem, foreign: tables},
	"dynamodb:PutItem":            {do: putItem, foreign: tables},
	"dynamodb:Query":              {do: query, foreign: tables},
	"dynamodb:UpdateItem":         {do: updateItem, foreign: tables},
	"dynamodb:Scan":               {do: scan, foreign: tables, never: true},
	"dynamodb:DeleteTable":        {do: deleteTable, foreign: tables, never: true},

	"s3:GetObject":           {do: getObject, foreign: objects},
	"s3:GetObjectVersion":    {do: getVersion, foreign: objects},
	"s3:PutObject":           {do: putObject, foreign: objects},
	"s3:PutObjectTagging":    {do: putTagging, foreign: objects},
	"s3:DeleteObjectVersion": {do: deleteVersion, foreign: objects},
	"s3:DeleteObject":        {do: deleteObject, foreign: objects, never: true},
	"s3:ListBucket":          {do: listBucket},
	"s3:ListBucketVersions":  {do: listVersions},

	"sqs:ChangeMessageVisibility": {do: changeVisibility, foreign: queues},
	"sqs:DeleteMessage":           {do: deleteMessage, foreign: queues},
	"sqs:GetQueueAttributes":      {do: queueAttributes, foreign: queues},
	"sqs:ReceiveMessage":          {do: receive, foreign: queues},
	"sqs:SendMessage":             {do: send, foreign: queues},
	"sqs:PurgeQueue":              {do: purge, foreign: queues, never: true},

	"lambda:InvokeFunction":       {do: dryInvoke, foreign: functions},
	"lambda:GetFunctionUrlConfig": {do: functionURL, foreign: functions},
	"lambda:UpdateFunctionCode":   {do: updateCode, foreign: functions, never: true},

	"iam:CreateRole": {do: createRole, foreign: func(engine.Outputs) []string { return []string{"arn:aws:iam::" + engine.Account + ":role/own"} }, never: true},

	// The engine compares the cluster where IAM compares the task, and has no keys of
	// ECS and EventBridge.
	"ecs:DescribeTasks":  {foreign: tasks},
	"ecs:ExecuteCommand": {foreign: tasks},
	"ecs:ListTasks":      {},
	"ecs:RunTask":        {},
	"ecs:StopTask":       {foreign: tasks},
	"ecs:TagResource":    {foreign: tasks},
	"events:PutEvents":   {},
	"iam:PassRole":       {},
	// What Lambda's runtime and the agent of ECS Exec do; no client of ours calls it.
	"logs:CreateLogStream":             {},
	"logs:PutLogEvents":                {},
	"ssmmessages:CreateControlChannel": {},
	"ssmmessages:CreateDataChannel":    {},
	"ssmmessages:OpenControlChannel":   {},
	"ssmmessages:OpenDataChannel":      {},
}

// conditionRow has values of a condition key with which the conditions of roles hold,
// and with which they do not.
type conditionRow struct{ holds, fails []string }

var conditioned = map[string]conditionRow{
	"dynamodb:LeadingKeys": {[]string{names.SandboxKeys + "0"}, []string{"task#0", "control", "audit#0"}},
	"ecs:cluster": {
		[]string{"arn:aws:ecs:" + engine.Region + ":" + engine.Account + ":cluster/" + names.Stack},
		[]string{"arn:aws:ecs:" + engine.Region + ":" + engine.Account + ":cluster/other"},
	},
	"ecs:CreateAction":    {[]string{"RunTask"}, []string{"CreateService"}},
	"events:source":       {[]string{names.SourceOwn}, []string{names.SourceECS, "other"}},
	"s3:prefix":           {[]string{"acme/spool/r/"}, []string{"", "acme/logs/r/", foreignPrefix}},
	"iam:PassedToService": {[]string{"ecs-tasks.amazonaws.com"}, []string{"lambda.amazonaws.com", "ec2.amazonaws.com"}},
}

// rule is something that no role may, but for some.
type rule struct {
	name      string
	action    string
	resources []string
	context   map[string][]string // nil: none that matters
	but       []string
	// do tries it with that context at the engine; nil: as the action's row says, where
	// there is none.
	do func(ctx context.Context, c caller, resource string) error
}

// never are the rules of the design's table of functions and of its invariants.
func never(out engine.Outputs) []rule {
	runs, boxes, checkpoints := tables(out)[0], tables(out)[1], tables(out)[2]
	task := []string{tasks(out)[0]}
	own := "arn:aws:ecs:" + engine.Region + ":" + engine.Account + ":"
	leading := func(key string) map[string][]string { return map[string][]string{"dynamodb:LeadingKeys": {key}} }
	return []rule{
		{name: "no table is read from end to end", action: "dynamodb:Scan", resources: tables(out)},
		{name: "no table is deleted", action: "dynamodb:DeleteTable", resources: tables(out)},
		{name: "no run is deleted", action: "dynamodb:DeleteItem", resources: []string{runs}},
		{name: "no ledger row is deleted", action: "dynamodb:DeleteItem", resources: []string{boxes}, context: leading("task#x")},
		{name: "no setting is deleted", action: "dynamodb:DeleteItem", resources: []string{boxes}, context: leading("control")},
		{name: "only the collection deletes checkpoints", action: "dynamodb:DeleteItem", resources: []string{checkpoints}, context: leading("-#t"), but: []string{"checkpoint-role"}},
		{name: "only reclaim stops tasks", action: "ecs:StopTask", resources: task, but: []string{"reclaim-role"}},
		{name: "only session starts tasks", action: "ecs:RunTask", resources: []string{own + "task-definition/sample:1"}, context: holding(), but: []string{"session-role"}},
		{name: "nobody starts tasks in another cluster", action: "ecs:RunTask", resources: []string{own + "task-definition/sample:1"},
			context: map[string][]string{"ecs:cluster": {own + "cluster/other"}}},
		{name: "nobody stops another cluster's tasks", action: "ecs:StopTask", resources: []string{own + "task/other/0"}},
		{name: "nobody enters another cluster's tasks", action: "ecs:ExecuteCommand", resources: []string{own + "task/other/0"}},
		{name: "reap and reclaim enter no sandbox", action: "ecs:ExecuteCommand", resources: task, but: []string{"probe-role", "checkpoint-role", "session-role"}},
		{name: "no object is hidden under a marker", action: "s3:DeleteObject", resources: objects(out)},
		{name: "only the collection deletes objects", action: "s3:DeleteObjectVersion", resources: objects(out), but: []string{"checkpoint-role"}},
		{name: "logs are deleted by nobody", action: "s3:DeleteObjectVersion", resources: objects(out)[:1]},
		{name: "workspaces are read by the checkpoint function alone", action: "s3:GetObject", resources: objects(out)[1:2], but: []string{"checkpoint-role"}},
		{name: "only the checkpoint function lists more than what runs have spooled", action: "s3:ListBucket", resources: []string{"arn:aws:s3:::" + out[names.OutBucket]},
			context: map[string][]string{"s3:prefix": {foreignPrefix}}, do: listForeign, but: []string{"checkpoint-role"}},
		{name: "no queue is emptied", action: "sqs:PurgeQueue", resources: queues(out)},
		{name: "nobody changes code", action: "lambda:UpdateFunctionCode", resources: functions(out)},
		{name: "nobody makes roles", action: "iam:CreateRole", resources: []string{"arn:aws:iam::" + engine.Account + ":role/own"}},
		{name: "no event passes for ECS's", action: "events:PutEvents", resources: []string{"arn:aws:events:" + engine.Region + ":" + engine.Account + ":event-bus/default"},
			context: map[string][]string{"events:source": {names.SourceECS}}},
		{name: "no role is passed to a function", action: "iam:PassRole", resources: []string{"arn:aws:iam::" + engine.Account + ":role/sample"},
			context: map[string][]string{"iam:PassedToService": {"lambda.amazonaws.com"}}},
	}
}

func tables(out engine.Outputs) []string {
	var all []string
	for _, o := range []names.Output{names.OutRunsTable, names.OutSandboxesTable, names.OutCheckpoints} {
		all = append(all, "arn:aws:dynamodb:"+engine.Region+":"+engine.Account+":table/"+out[o])
	}
	return all
}

// objects are a log, a pack, and what is neither.
func objects(out engine.Outputs) []string {
	bucket := "arn:aws:s3:::" + out[names.OutBucket] + "/"
	return []string{
		bucket + "sample/" + names.LogsPrefix + "/sample", bucket + "sample/" + names.ThreadsPrefix + "/sample", bucket + "sample/other/sample",
	}
}

func queues(out engine.Outputs) []string {
	var all []string
	for _, o := range []names.Output{names.OutReclaimQueue, names.OutDeadLetterQueue, names.OutShardQueue, names.OutShardDead, names.OutEventDead} {
		all = append(all, "arn:aws:sqs:"+engine.Region+":"+engine.Account+":"+last(out[o], "/"))
	}
	return all
}

func functions(out engine.Outputs) []string {
	var all []string
	for _, o := range []names.Output{names.OutReapFunction, names.OutProbeFunction, names.OutReclaimFunction, names.OutCheckpoint, names.OutTools, names.OutSession} {
		all = append(all, "arn:aws:lambda:"+engine.Region+":"+engine.Account+":function:"+out[o])
	}
	return all
}

// tasks are one of the installation's cluster and one of another.
func tasks(out engine.Outputs) []string {
	return []string{
		strings.Replace(out[names.OutCluster], ":cluster/", ":task/", 1) + "/sample",
		"arn:aws:ecs:" + engine.Region + ":" + engine.Account + ":task/other/sample",
	}
}

// last is what stands behind the last separator.
func last(text, separator string) string { return text[strings.LastIndex(text, separator)+1:] }

// prepare puts there what S3 would otherwise deny to those who may not list.
func (c caller) prepare(t *testing.T) {
	t.Helper()
	for _, object := range objects(c.out) {
		if err := putObject(t.Context(), c, object); err != nil {
			t.Fatal(err)
		}
	}
}

func (c caller) invoke(ctx context.Context, function string, payload []byte) (*lambda.InvokeOutput, error) {
	return c.functions.Invoke(ctx, &lambda.InvokeInput{FunctionName: &function, Payload: payload})
}

// tableOf splits a table's or an index's ARN.
func tableOf(resource string) (table, index string) {
	table, index, _ = strings.Cut(last(resource, ":table/")[len("table/"):], "/index/")
	return table, index
}

type attributes = map[string]dynamotypes.AttributeValue

// key is of an instance record, which is all that some may delete.
func key() attributes {
	return attributes{
		names.PK.Name: &dynamotypes.AttributeValueMemberS{Value: names.SandboxKeys + "iam"},
		names.SK.Name: &dynamotypes.AttributeValueMemberS{Value: "iam"},
	}
}

func batchGet(ctx context.Context, c caller, resource string) error {
	table, _ := tableOf(resource)
	_, err := c.db.BatchGetItem(ctx, &dynamodb.BatchGetItemInput{RequestItems: map[string]dynamotypes.KeysAndAttributes{table: {Keys: []attributes{key()}}}})
	return err
}

func conditionCheck(ctx context.Context, c caller, resource string) error {
	table, _ := tableOf(resource)
	_, err := c.db.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{TransactItems: []dynamotypes.TransactWriteItem{{
		ConditionCheck: &dynamotypes.ConditionCheck{TableName: &table, Key: key(), ConditionExpression: new("attribute_not_exists(nothing)")},
	}}})
	return err
}

func deleteItem(ctx context.Context, c caller, resource string) error {
	table, _ := tableOf(resource)
	_, err := c.db.DeleteItem(ctx, &dynamodb.DeleteItemInput{TableName: &table, Key: key()})
	return err
}

func getItem(ctx context.Context, c caller, resource string) error {
	table, _ := tableOf(resource)
	_, err := c.db.GetItem(ctx, &dynamodb.GetItemInput{TableName: &table, Key: key()})
	return err
}

func putItem(ctx context.Context, c caller, resource string) error {
	table, _ := tableOf(resource)
	_, err := c.db.PutItem(ctx, &dynamodb.PutItemInput{TableName: &table, Item: key()})
	return err
}

func updateItem(ctx context.Context, c caller, resource string) error {
	table, _ := tableOf(resource)
	_, err := c.db.UpdateItem(ctx, &dynamodb.UpdateItemInput{TableName: &table, Key: key()})
	return err
}

func query(ctx context.Context, c caller, resource string) error {
	table, index := tableOf(resource)
	in := &dynamodb.QueryInput{
		TableName: &table, KeyConditionExpression: new("#k = :k"), ExpressionAttributeNames: map[string]string{"#k": names.PK.Name},
		ExpressionAttributeValues: attributes{":k": &dynamotypes.AttributeValueMemberS{Value: "iam"}},
	}
	if index != "" {
		in.IndexName = &index
	}
	_, err := c.db.Query(ctx, in)
	return err
}

func scan(ctx context.Context, c caller, resource string) error {
	table, _ := tableOf(resource)
	_, err := c.db.Scan(ctx, &dynamodb.ScanInput{TableName: &table})
	return err
}

func deleteTable(ctx context.Context, c caller, resource string) error {
	table, _ := tableOf(resource)
	_, err := c.db.DeleteTable(ctx, &dynamodb.DeleteTableInput{TableName: &table})
	return err
}

// objectOf splits an object's or a bucket's ARN.
func objectOf(resource string) (bucket, object string) {
	bucket, object, _ = strings.Cut(strings.TrimPrefix(resource, "arn:aws:s3:::"), "/")
	return bucket, object
}

func getObject(ctx context.Context, c caller, resource string) error {
	bucket, object := objectOf(resource)
	out, err := c.objects.GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &object})
	if err == nil {
		_ = out.Body.Close()
	}
	return err
}

func getVersion(ctx context.Context, c caller, resource string) error {
	bucket, object := objectOf(resource)
	out, err := c.objects.GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &object, VersionId: new("none")})
	if err == nil {
		_ = out.Body.Close()
	}
	return err
}

func putObject(ctx context.Context, c caller, resource string) error {
	bucket, object := objectOf(resource)
	_, err := c.objects.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &object, Body: strings.NewReader("x")})
	return err
}

func putTagging(ctx context.Context, c caller, resource string) error {
	bucket, object := objectOf(resource)
	_, err := c.objects.PutObjectTagging(ctx, &s3.PutObjectTaggingInput{
		Bucket: &bucket, Key: &object, Tagging: &s3types.Tagging{TagSet: []s3types.Tag{{Key: new(names.TagKind), Value: new(names.KindLog)}}},
	})
	return err
}

func deleteVersion(ctx context.Context, c caller, resource string) error {
	bucket, object := objectOf(resource)
	_, err := c.objects.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &bucket, Key: &object, VersionId: new("none")})
	return err
}

func deleteObject(ctx context.Context, c caller, resource string) error {
	bucket, object := objectOf(resource)
	_, err := c.objects.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &bucket, Key: &object})
	return err
}

func listBucket(ctx context.Context, c caller, resource string) error {
	bucket, _ := objectOf(resource)
	_, err := c.objects.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &bucket, Prefix: &conditioned["s3:prefix"].holds[0]})
	return err
}

// foreignPrefix is of what no role lists: it stands in the fails of its condition too.
const foreignPrefix = "acme/threads/t/"

func listForeign(ctx context.Context, c caller, resource string) error {
	bucket, _ := objectOf(resource)
	_, err := c.objects.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &bucket, Prefix: new(foreignPrefix)})
	return err
}

func listVersions(ctx context.Context, c caller, resource string) error {
	bucket, _ := objectOf(resource)
	_, err := c.objects.ListObjectVersions(ctx, &s3.ListObjectVersionsInput{Bucket: &bucket})
	return err
}

// queueURL is the URL of the queue of an ARN.
func (c caller) queueURL(resource string) *string {
	for _, o := range []names.Output{names.OutReclaimQueue, names.OutDeadLetterQueue, names.OutShardQueue, names.OutShardDead, names.OutEventDead} {
		if last(c.out[o], "/") == last(resource, ":") {
			return new(c.out[o])
		}
	}
	return new("no-queue-of-" + resource)
}

func changeVisibility(ctx context.Context, c caller, resource string) error {
	_, err := c.queues.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{QueueUrl: c.queueURL(resource), ReceiptHandle: new("none"), VisibilityTimeout: 1})
	return err
}

func deleteMessage(ctx context.Context, c caller, resource string) error {
	_, err := c.queues.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: c.queueURL(resource), ReceiptHandle: new("none")})
	return err
}

func queueAttributes(ctx context.Context, c caller, resource string) error {
	_, err := c.queues.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: c.queueURL(resource), AttributeNames: []sqstypes.QueueAttributeName{"All"}})
	return err
}

func receive(ctx context.Context, c caller, resource string) error {
	_, err := c.queues.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: c.queueURL(resource)})
	return err
}

func send(ctx context.Context, c caller, resource string) error {
	_, err := c.queues.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: c.queueURL(resource), MessageBody: new("{}")})
	return err
}

func purge(ctx context.Context, c caller, resource string) error {
	_, err := c.queues.PurgeQueue(ctx, &sqs.PurgeQueueInput{QueueUrl: c.queueURL(resource)})
	return err
}

func dryInvoke(ctx context.Context, c caller, resource string) error {
	_, err := c.functions.Invoke(ctx, &lambda.InvokeInput{FunctionName: &resource, InvocationType: lambdatypes.InvocationTypeDryRun})
	return err
}

func functionURL(ctx context.Context, c caller, resource string) error {
	_, err := c.functions.GetFunctionUrlConfig(ctx, &lambda.GetFunctionUrlConfigInput{FunctionName: &resource})
	return err
}

func updateCode(ctx context.Context, c caller, resource string) error {
	_, err := c.functions.UpdateFunctionCode(ctx, &lambda.UpdateFunctionCodeInput{FunctionName: &resource, ZipFile: []byte("none")})
	return err
}

func createRole(ctx context.Context, c caller, resource string) error {
	_, err := c.identity.CreateRole(ctx, &iam.CreateRoleInput{RoleName: new(last(resource, "/")), AssumeRolePolicyDocument: new("{}")})
	return err
}
