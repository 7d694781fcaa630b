// Package inprocess is the session API in the host's own process: the code of the
// session function over the same stores, with the host's own credentials. Its rule: it
// writes the stores' time, not this machine's, and does nothing while the two are further
// apart than can be corrected.
package inprocess

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"

	"github.com/sandkeeper/sandkeeper/client"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/wiring"
)

// Options say what a host reaches, and how.
type Options struct {
	// AWS is the host's configuration. Its role must be allowed what the session function's
	// is: the stack's outputs name the resources, infra/sandkeeper/roles.go the actions.
	AWS aws.Config
	// ECS is where ECS is, if it is elsewhere than AWS says; nil: there.
	ECS *string
	// Outputs are the stack's, by key.
	Outputs map[string]string
	// HostFunctions are the functions that definitions may name as tools and hooks: the
	// stack's context hostFunctions.
	HostFunctions []string
	// SandboxesPerTenant is the stack's context of that name; zero: no limit.
	SandboxesPerTenant int
	// TenantQuotas are what the stack's context tenants says of single tenants.
	TenantQuotas map[client.TenantID]int
	Logger       *slog.Logger // nil: nothing is logged
}

// needed are the outputs that it reads.
var needed = []names.Output{
	names.OutRunsTable, names.OutSandboxesTable, names.OutCheckpoints, names.OutBucket, names.OutReclaimQueue, names.OutEventBus,
	names.OutCluster, names.OutCheckpoint, names.OutTools, names.OutReapFunction, names.OutInstall, names.OutLimits, names.OutPlaces,
}

// Open wires the session API to an installation, and looks at the clock. The tenant of a
// request is the host's own word: who has the credentials acts for every tenant.
func Open(ctx context.Context, o Options) (client.API, error) {
	for _, key := range needed {
		if o.Outputs[string(key)] == "" {
			return nil, fmt.Errorf("open session: want the stack's output %s", key)
		}
	}
	limits, err := core.ReadLimits(o.Outputs[string(names.OutLimits)])
	if err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	h := &host{}
	places, err := core.ReadPlaces(o.Outputs[string(names.OutPlaces)])
	if err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	h.session = o.session(&h.clock, limits, places)
	return h, h.ready(ctx)
}

// session is the session function's, under the host's clock.
func (o Options) session(c *clock, limits core.Limits, places core.Places) *core.Session {
	out := func(key names.Output) string { return o.Outputs[string(key)] }
	atECS := o.AWS.Copy()
	if o.ECS != nil {
		atECS.BaseEndpoint = o.ECS
	}
	return wiring.Installation{
		AWS: o.AWS, ECS: atECS, Places: places,
		RunsTable: out(names.OutRunsTable), SandboxesTable: out(names.OutSandboxesTable), CheckpointsTable: out(names.OutCheckpoints),
		LogBucket: out(names.OutBucket), ReclaimQueue: out(names.OutReclaimQueue), EventBus: out(names.OutEventBus),
		CheckpointFunction: out(names.OutCheckpoint), ToolsFunction: out(names.OutTools), ReapFunction: out(names.OutReapFunction),
		Cluster: out(names.OutCluster), Install: out(names.OutInstall), HostFunctions: o.HostFunctions,
		Quota: core.Quota{Each: o.SandboxesPerTenant, Of: o.TenantQuotas}, Limits: limits, Logger: o.Logger, Holds: true,
		DynamoDB: func(d *dynamodb.Options) { d.APIOptions = append(d.APIOptions, c.watch) },
		S3:       func(s *s3.Options) { s.UsePathStyle = o.AWS.BaseEndpoint != nil },
	}.Session()
}

const (
	// mostSkew is how far this machine's clock may be from the stores'.
	mostSkew = 30 * time.Second
	// leastSkew is what the Date header cannot tell: it has whole seconds.
	leastSkew = 2 * time.Second
)

// SkewError says that this machine's clock is too wrong to be corrected. Nothing was done.
type SkewError struct {
	Ahead time.Duration // of the stores'; negative: behind
}

func (e *SkewError) Error() string {
	return fmt.Sprintf("clock: want at most %s from the stores' time, and this machine's is ahead by %s", mostSkew, e.Ahead)
}

// clock knows by how much this machine's clock is ahead, as the stores' last answer told.
type clock struct {
	ahead atomic.Int64 // nanoseconds
	known atomic.Bool
}

// watch has every answer's Date header looked at.
func (c *clock) watch(stack *middleware.Stack) error {
	return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("SandkeeperClock", func(
		ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler,
	) (middleware.InitializeOutput, middleware.Metadata, error) {
		out, metadata, err := next.HandleInitialize(ctx, in)
		stores, told := awsmiddleware.GetServerTime(metadata)
		here, at := awsmiddleware.GetResponseAt(metadata)
		if told && at && !stores.IsZero() {
			c.ahead.Store(int64(here.Sub(stores.Add(time.Second / 2)))) // within the second that it names
			c.known.Store(true)
		}
		return out, metadata, err
	}), middleware.Before)
}

// check corrects the clock, or says that it cannot be.
func (c *clock) check() error {
	ahead := time.Duration(c.ahead.Load())
	switch {
	case ahead.Abs() > mostSkew:
		return &SkewError{Ahead: ahead}
	case ahead.Abs() < leastSkew:
		ahead = 0
	}
	core.CorrectClock(ahead)
	return nil
}

// host is the session under the host's clock. Its refusals are those of the function.
type host struct {
	session *core.Session
	clock   clock
}

// ready holds the clock against the stores' last answer. Where there was none, or it was
// too far off, it asks for one: the clock may have been put right.
func (h *host) ready(ctx context.Context) error {
	if h.clock.known.Load() && h.clock.check() == nil {
		return nil
	}
	if _, err := h.session.Controls.Control(ctx); err != nil {
		return fmt.Errorf("look at the stores' time: %w", err)
	}
	return h.clock.check()
}

// do carries out an operation, and words its refusal as the function does.
func do[Q, A any](ctx context.Context, h *host, name string, q Q, op func(*core.Session, context.Context, Q) (A, error)) (A, error) {
	var none A
	if err := h.ready(ctx); err != nil {
		return none, fmt.Errorf("%s: %w", name, err)
	}
	answer, err := op(h.session, ctx, q)
	if code := client.CodeOf(err); code != "" {
		return none, &client.RefusedError{Operation: name, Code: code, Message: strings.TrimPrefix(err.Error(), string(code)+": ")}
	}
	return answer, err
}

func (h *host) Start(ctx context.Context, q client.StartRequest) (client.StartReport, error) {
	return do(ctx, h, "start", q, (*core.Session).Start)
}

func (h *host) Adopt(ctx context.Context, q client.AdoptRequest) (client.StartReport, error) {
	return do(ctx, h, "adopt", q, (*core.Session).Adopt)
}

func (h *host) Attach(ctx context.Context, q client.AttachRequest) (client.RenewReport, error) {
	return do(ctx, h, "attach", q, (*core.Session).Attach)
}

func (h *host) Renew(ctx context.Context, q client.HostRequest) (client.RenewReport, error) {
	return do(ctx, h, "renew", q, (*core.Session).Renew)
}

func (h *host) Tail(ctx context.Context, q client.TailRequest) (client.TailReport, error) {
	return do(ctx, h, "tail", q, (*core.Session).Tail)
}

func (h *host) Segments(ctx context.Context, q client.SegmentsRequest) (client.SegmentsReport, error) {
	return do(ctx, h, "segments", q, (*core.Session).Segments)
}

func (h *host) Detach(ctx context.Context, q client.HostRequest) (client.RenewReport, error) {
	return do(ctx, h, "detach", q, (*core.Session).Detach)
}

func (h *host) Interrupt(ctx context.Context, q client.HostRequest) (client.RenewReport, error) {
	return do(ctx, h, "interrupt", q, (*core.Session).Interrupt)
}

func (h *host) Cancel(ctx context.Context, q client.CancelRequest) (client.EndReport, error) {
	return do(ctx, h, "cancel", q, (*core.Session).Cancel)
}

func (h *host) Finish(ctx context.Context, q client.FinishRequest) (client.FinishReport, error) {
	return do(ctx, h, "finish", q, (*core.Session).Finish)
}

func (h *host) Fail(ctx context.Context, q client.FailRequest) (client.EndReport, error) {
	return do(ctx, h, "fail", q, (*core.Session).Fail)
}

func (h *host) Get(ctx context.Context, q client.GetRequest) (client.RunView, error) {
	return do(ctx, h, "get", q, (*core.Session).Get)
}

func (h *host) List(ctx context.Context, q client.ListRunsRequest) (client.ListRunsReport, error) {
	return do(ctx, h, "list", q, (*core.Session).List)
}
