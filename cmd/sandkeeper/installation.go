package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/cloudformation"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"
	"golang.org/x/sync/errgroup"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/lambdaprobe"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/s3blob"
	"github.com/sandkeeper/sandkeeper/internal/spokes"
	"github.com/sandkeeper/sandkeeper/internal/sqsout"
)

// installation is a deployed stack, as the operator's tool reaches it.
type installation struct {
	globals *globals
	cfg     aws.Config
	out     map[names.Output]string
	limits  core.Limits // what the installation chose of them
	places  core.Places // where its sandboxes may be

	runs   *ddb.Runs
	boxes  *ddb.Sandboxes
	reader *ddb.Reader
	blobs  *s3blob.Blobs
	tasks  *ecstask.Tasks
	ecs    *ecs.Client   // of the installation's own account and Region
	fleet  *spokes.Fleet // and of its spokes
	queues *sqs.Client
	lambda *lambda.Client
	probe  core.RemoteProber
}

const (
	// askWithin bounds one small call, with the SDK's own retries.
	askWithin = 15 * time.Second
	// reapSlack is for the way to the reap function and back.
	reapSlack = 10 * time.Second
)

// needed are the outputs that the commands read.
var needed = []names.Output{
	names.OutRunsTable, names.OutSandboxesTable, names.OutBucket, names.OutReclaimQueue, names.OutDeadLetterQueue,
	names.OutShardQueue, names.OutShardDead, names.OutEventDead, names.OutCluster, names.OutReapFunction, names.OutProbeFunction,
	names.OutReclaimFunction, names.OutCheckpoint, names.OutCheckpoints, names.OutInstall, names.OutMode,
}

// open finds the stack and makes its clients.
func open(ctx context.Context, g *globals) (*installation, error) {
	cfg, err := g.config(ctx)
	if err != nil {
		return nil, err
	}
	in := &installation{globals: g, cfg: cfg}
	if in.out, err = g.outputs(ctx, cfg); err != nil {
		return nil, err
	}
	if in.limits, err = core.ReadLimits(cmp.Or(in.out[names.OutLimits], "{}")); err != nil {
		return nil, fmt.Errorf("output %s: %w", names.OutLimits, err)
	}
	if text := in.out[names.OutPlaces]; text != "" {
		if in.places, err = core.ReadPlaces(text); err != nil {
			return nil, fmt.Errorf("output %s: %w", names.OutPlaces, err)
		}
	}
	db := dynamodb.NewFromConfig(cfg)
	in.ecs, in.queues, in.lambda = ecs.NewFromConfig(cfg), sqs.NewFromConfig(cfg), lambda.NewFromConfig(cfg)
	in.runs = ddb.NewRuns(db, in.out[names.OutRunsTable])
	in.boxes = ddb.NewSandboxes(db, in.out[names.OutSandboxesTable])
	in.reader = ddb.NewReader(db, in.out[names.OutRunsTable], in.out[names.OutSandboxesTable])
	in.blobs = s3blob.New(s3.NewFromConfig(cfg, pathStyle), in.out[names.OutBucket])
	in.fleet = spokes.New(cfg, in.places, names.Operator)
	in.tasks = &ecstask.Tasks{ECS: in.fleet}
	in.probe = core.RemoteProber{Caller: &lambdaprobe.Caller{
		Lambda: in.lambda, Function: in.out[names.OutProbeFunction], Timeout: core.DefaultLimits.ProbeTimeout,
	}}
	return in, nil
}

// pathStyle names a bucket in the path where the endpoint is this machine, whose
// subdomains nobody resolves.
func pathStyle(o *s3.Options) {
	o.UsePathStyle = o.BaseEndpoint != nil && engine.Loopback(*o.BaseEndpoint)
}

// config loads the AWS configuration as flags and environment say.
func (g *globals) config(ctx context.Context) (aws.Config, error) {
	if g.Local {
		return g.localConfig()
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	options := []func(*config.LoadOptions) error{config.WithAppID(names.Stack), config.WithLogger(logging.Nop{})}
	if g.EndpointURL != "" {
		options = append(options, config.WithBaseEndpoint(g.EndpointURL))
	}
	if g.Region != "" {
		options = append(options, config.WithRegion(g.Region))
	}
	if g.Profile != "" {
		options = append(options, config.WithSharedConfigProfile(g.Profile))
	}
	cfg, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return aws.Config{}, badInput("load AWS configuration: %v", err)
	}
	if cfg.Region == "" {
		return aws.Config{}, badInput("no Region: say --region or set AWS_REGION")
	}
	// Before the first call, whose error would be about that call.
	if _, err := cfg.Credentials.Retrieve(ctx); err != nil && ctx.Err() != context.Canceled {
		return aws.Config{}, badInput("no AWS credentials: say --profile or set AWS_PROFILE, and sign in (aws sso login): %v", err)
	}
	return cfg, nil
}

// localConfig takes nothing but endpoints and the Region from the environment, and
// reads no file: no profile, role or token of the caller's gets in.
func (g *globals) localConfig() (aws.Config, error) {
	if err := guard(g, os.Environ()); err != nil {
		return aws.Config{}, err
	}
	env, err := config.NewEnvConfig()
	if err != nil {
		return aws.Config{}, badInput("read environment: %v", err)
	}
	return aws.Config{
		Region:        cmp.Or(g.Region, env.Region, engine.Region),
		BaseEndpoint:  new(cmp.Or(g.EndpointURL, env.BaseEndpoint)),
		Credentials:   credentials.NewStaticCredentialsProvider("test", "test", ""),
		HTTPClient:    awshttp.NewBuildableClient().WithTransportOptions(engine.HereAlone),
		ConfigSources: []any{env}, // the endpoints of single services
		Logger:        logging.Nop{},
		AppID:         names.Stack,
	}, nil
}

// guard refuses what is not this machine: the same guard as for every local command.
// It looks at the endpoints that the caller's environment and flags name; credentials
// and files are replaced in any case.
func guard(g *globals, environ []string) error {
	env := []string{
		"AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test", "AWS_EC2_METADATA_DISABLED=true",
		"AWS_CONFIG_FILE=" + os.DevNull, "AWS_SHARED_CREDENTIALS_FILE=" + os.DevNull,
	}
	for _, entry := range environ {
		if strings.HasPrefix(entry, "AWS_ENDPOINT_URL") || strings.HasPrefix(entry, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=") {
			env = append(env, entry)
		}
	}
	if g.EndpointURL != "" {
		env = append(env, "AWS_ENDPOINT_URL="+g.EndpointURL)
	}
	if g.Profile != "" {
		env = append(env, "AWS_PROFILE="+g.Profile)
	}
	if err := engine.Guard(env); err != nil {
		text := strings.ReplaceAll(err.Error(), "\n", "; ")
		if g.EndpointURL != "" {
			text = strings.ReplaceAll(text, "AWS_ENDPOINT_URL is", "--endpoint-url is")
		}
		return &refusedError{text: text}
	}
	return nil
}

// outputs are the stack's, those of the flag first; CloudFormation is asked only for
// what is missing.
func (g *globals) outputs(ctx context.Context, cfg aws.Config) (map[names.Output]string, error) {
	out := map[names.Output]string{}
	for key, value := range g.Output {
		out[names.Output(key)] = value
	}
	if len(missing(out)) == 0 {
		return out, nil
	}
	stack, err := g.describeStack(ctx, cfg)
	if err != nil {
		return nil, err
	}
	for key, value := range stack.outputs {
		if out[key] == "" {
			out[key] = value
		}
	}
	if left := missing(out); len(left) > 0 {
		return nil, badInput("stack %s has no output %s: is it a sandkeeper stack, and of this version?", g.Stack, strings.Join(left, ", "))
	}
	return out, nil
}

func missing(out map[names.Output]string) []string {
	var left []string
	for _, key := range needed {
		if out[key] == "" {
			left = append(left, string(key))
		}
	}
	slices.Sort(left)
	return left
}

// stack is what CloudFormation says of it.
type stack struct {
	status  string
	outputs map[names.Output]string
}

func (g *globals) describeStack(ctx context.Context, cfg aws.Config) (stack, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	answer, err := cloudformation.NewFromConfig(cfg).DescribeStacks(ctx, &cloudformation.DescribeStacksInput{StackName: &g.Stack})
	absent := fmt.Errorf("stack %s in %s: %w: name it with --stack, its Region with --region", g.Stack, cfg.Region, core.ErrNotFound)
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		switch api.ErrorCode() {
		case "ValidationError":
			return stack{}, absent
		case "ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch":
			return stack{}, fmt.Errorf("describe stack %s: these AWS credentials are not taken: sign in again, or say another --profile: %s", g.Stack, api.ErrorMessage())
		case "AccessDenied", "AccessDeniedException":
			return stack{}, fmt.Errorf("describe stack %s: %s (--output names outputs without asking)", g.Stack, api.ErrorMessage())
		}
	}
	if err != nil {
		return stack{}, fmt.Errorf("describe stack %s: %w", g.Stack, err)
	}
	if len(answer.Stacks) != 1 {
		return stack{}, absent
	}
	s := stack{status: string(answer.Stacks[0].StackStatus), outputs: map[names.Output]string{}}
	for _, o := range answer.Stacks[0].Outputs {
		s.outputs[names.Output(aws.ToString(o.OutputKey))] = aws.ToString(o.OutputValue)
	}
	return s, nil
}

// reap asks the deployed function, once: it decides, and its code is what runs.
func (in *installation) reap(ctx context.Context, request core.SweepRequest) (core.SweepReport, error) {
	if err := request.Validate(); err != nil {
		return core.SweepReport{}, badInput("%v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, core.DefaultLimits.SweepTimeout+reapSlack)
	defer cancel()
	function := in.out[names.OutReapFunction]
	payload, err := json.Marshal(request)
	if err != nil {
		return core.SweepReport{}, fmt.Errorf("ask %s: %w", function, err)
	}
	answer, err := in.lambda.Invoke(ctx, &lambda.InvokeInput{FunctionName: &function, Payload: payload}, once)
	if err != nil {
		return core.SweepReport{}, unwaited(ctx, function, fmt.Errorf("ask %s: %w", function, err))
	}
	if answer.FunctionError != nil {
		return core.SweepReport{}, fmt.Errorf("ask %s: %s", function, functionError(answer.Payload))
	}
	var report core.SweepReport
	if err := json.Unmarshal(answer.Payload, &report); err != nil {
		return core.SweepReport{}, fmt.Errorf("ask %s: read answer: %w", function, err)
	}
	return report, nil
}

// leftError tells that nobody waits for a function any more that was asked for something.
type leftError struct{ function string }

func (e *leftError) Error() string {
	return "interrupted: " + e.function + " goes on with what it was asked for"
}

func (e *leftError) Unwrap() error { return context.Canceled }

// unwaited says so of a call that Ctrl-C cut off; any other error stays.
func unwaited(ctx context.Context, function string, err error) error {
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return &leftError{function}
	}
	return err
}

// once: a sweep whose answer was lost is still under way.
func once(o *lambda.Options) { o.RetryMaxAttempts = 1 }

// functionError is the message of a function that failed.
func functionError(payload []byte) string {
	var failed struct {
		ErrorMessage string `json:"errorMessage"`
	}
	if json.Unmarshal(payload, &failed) != nil || failed.ErrorMessage == "" {
		return fmt.Sprintf("it failed: %.300s", payload)
	}
	return failed.ErrorMessage
}

// operator is the use case of the acts; a rehearsal of it where nothing is to be
// written.
func (in *installation) operator(dry bool) (*core.Operator, *core.Rehearsal) {
	o := core.Operator{
		Runs: in.runs, Sandboxes: in.boxes, Ledger: in.boxes, Due: in.boxes, Controls: in.boxes, Audit: in.boxes,
		Queue: sqsout.New(in.queues, in.out[names.OutReclaimQueue]), Limits: in.limits,
	}
	if !dry {
		return &o, nil
	}
	r := core.Rehearse(o, in.boxes)
	return &r.Operator, r
}

// controls are the settings, with the stack's mode where nobody has set one.
func (in *installation) controls() core.Controls {
	return core.ModeDefault{Controls: in.boxes, Mode: core.Mode(in.out[names.OutMode])}
}

// history lists the runs of threads.
func (in *installation) history() *ddb.History {
	return ddb.NewHistory(dynamodb.NewFromConfig(in.cfg), in.out[names.OutRunsTable])
}

// by is who acts and why: --as, or the caller's AWS identity.
func (in *installation) by(ctx context.Context, why whyText) (core.By, error) {
	if in.globals.As != "" {
		return core.By{Who: in.globals.As, Why: string(why)}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	who, err := sts.NewFromConfig(in.cfg).GetCallerIdentity(ctx, nil)
	if err != nil {
		return core.By{}, fmt.Errorf("ask who acts (--as names it without asking): %w", err)
	}
	return core.By{Who: aws.ToString(who.Arn), Why: string(why)}, nil
}

// farAhead lists every due row, whenever it is due.
const farAhead = core.Millis(1) << 52

// indexed are the runs that an index shows: what has not ended, or still owes.
func (in *installation) indexed(ctx context.Context) ([]core.Run, []core.Unreadable, error) {
	detached, due := make([][]core.IndexEntry, core.Shards), make([][]core.IndexEntry, core.Shards)
	asking, asked := errgroup.WithContext(ctx)
	for shard := range core.Shards {
		asking.Go(func() (err error) { detached[shard], err = in.runs.Detached(asked, shard); return err })
		asking.Go(func() (err error) { due[shard], err = in.runs.Due(asked, shard, farAhead); return err })
	}
	if err := asking.Wait(); err != nil {
		return nil, nil, err
	}
	var keys []core.RunKey
	for _, e := range slices.Concat(slices.Concat(detached...), slices.Concat(due...)) {
		keys = append(keys, e.RunKey)
	}
	return in.load(ctx, keys)
}

func (in *installation) load(ctx context.Context, keys []core.RunKey) ([]core.Run, []core.Unreadable, error) {
	if len(keys) == 0 {
		return nil, nil, nil
	}
	return in.runs.Load(ctx, keys)
}
