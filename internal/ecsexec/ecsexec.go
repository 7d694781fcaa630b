// Package ecsexec runs shell scripts in Fargate tasks over the wire protocol of
// ECS Exec, and brings back their exact stdout and exit status. Its rule: only a
// complete, marked trailer is an answer; a closed channel, a deadline or the
// service's own "success" is none. It makes each attempt once and logs nothing,
// and no session id or token leaves it.
//
// The protocol's end of a session carries no exit status, its terminal rewrites
// line ends, its agent damages what is not UTF-8 and drops what is unacknowledged
// 2 s after the command ends. So the script travels as base64 inside a wrapper
// (wrap.go) whose answer is base64 between random marks (reply.go), and which stays
// until the client interrupts it. frame.go is the binary layout, stream.go the
// protocol without a socket, session.go the socket, faults.go the reasons.
package ecsexec

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/ecs"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

type client interface {
	ExecuteCommand(context.Context, *ecs.ExecuteCommandInput, ...func(*ecs.Options)) (*ecs.ExecuteCommandOutput, error)
}

var (
	_ client        = (*ecs.Client)(nil)
	_ core.Executor = (*Executor)(nil)
)

// Executor runs scripts by ECS Exec. Its methods may be called concurrently, but an
// agent has two slots for sessions: one at a time per container is the caller's rule.
type Executor struct {
	ECS         client                  // an *ecs.Client
	Credentials aws.CredentialsProvider // sign the socket's upgrade; nil leaves it unsigned
	Region      string
	// Signer, if not nil, says for a target's cluster what takes the place of Credentials
	// and Region: ECS is then several accounts.
	Signer func(cluster string) (aws.CredentialsProvider, string, error)
	Limits Limits
}

// New returns an Executor with the default limits.
func New(cfg aws.Config) *Executor {
	return &Executor{ECS: ecs.NewFromConfig(cfg), Credentials: cfg.Credentials, Region: cfg.Region}
}

// Fleet is the ECS of several accounts: it asks the one that a target's cluster is of.
type Fleet interface {
	client
	Signer(cluster string) (aws.CredentialsProvider, string, error)
}

// NewFleet returns an Executor for targets in several accounts, with the default limits.
func NewFleet(f Fleet) *Executor { return &Executor{ECS: f, Signer: f.Signer} }

// Exec runs script under /bin/sh in the target's container, as ECS Exec's agent
// runs it: as root, with the agent's environment, in a session of its own; stderr
// is discarded. stdin is input, or empty. Processes that the script leaves in the
// background hold the answer while they keep its stdout open, and end with the
// session unless they started one of their own.
//
// Every error is a [core.ExecError]; the script may have run in part or whole. The
// deadline is the caller's or Limits.Whole, whichever comes first, and the script
// is killed inside the container shortly before it.
func (e *Executor) Exec(ctx context.Context, target core.ExecTarget, script string, input []byte) (core.ExecResult, error) {
	limits := e.Limits.orDefaults()
	if f := check(target, script, input, limits); f != nil {
		return core.ExecResult{}, f.export(target)
	}
	ctx, cancel := context.WithTimeout(ctx, limits.Whole)
	defer cancel()
	deadline, _ := ctx.Deadline()
	work := prepare(assignment{
		mark:   newMark(),
		script: script,
		input:  input,
		limits: limits,
		left:   time.Until(deadline),
	})
	channel, f := e.start(ctx, target, work.command, limits.Start)
	if f != nil {
		return core.ExecResult{}, f.export(target)
	}
	result, f := e.attend(ctx, channel, work, limits)
	if f != nil {
		return core.ExecResult{}, f.export(target, channel.secrets()...)
	}
	return result, nil
}

// check refuses what can never work, before anything is started.
func check(target core.ExecTarget, script string, input []byte, limits Limits) *failure {
	switch {
	case target.TaskARN == "" || target.Container == "":
		return &failure{configuration("no-target"), fmt.Errorf("want a task and a container, got %+v", target)}
	case strings.ContainsRune(script, 0):
		return &failure{configuration("script-invalid"), fmt.Errorf("want text, got a NUL byte")}
	case len(script) > scriptLimit:
		return &failure{configuration("script-too-long"), fmt.Errorf("want at most %d bytes, got %d", scriptLimit, len(script))}
	case len(input) > limits.Input:
		return &failure{configuration("input-too-long"), fmt.Errorf("want at most %d bytes, got %d", limits.Input, len(input))}
	}
	return nil
}

// newMark returns 128 random bits as 32 hex digits.
func newMark() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: crypto/rand aborts the process instead
	return hex.EncodeToString(b[:])
}

// channel is where a started command is met.
type channel struct {
	id, url, token string
	cluster        string // of the target
}

// secrets are what no error may carry, the longest first, as one contains another.
func (c channel) secrets() []string { return []string{c.url, c.token, c.id} }

// start asks ECS to run the command. From here on it runs, attended or not.
func (e *Executor) start(ctx context.Context, target core.ExecTarget, command string, limit time.Duration) (channel, *failure) {
	call, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	in := &ecs.ExecuteCommandInput{
		Command:     &command,
		Container:   &target.Container,
		Interactive: true, // nothing else is allowed
		Task:        &target.TaskARN,
	}
	if target.Cluster != "" {
		in.Cluster = &target.Cluster
	}
	out, err := e.ECS.ExecuteCommand(call, in, retryThrottled)
	switch {
	case err != nil && call.Err() != nil:
		return channel{}, &failure{judgeContext(ctx, retryable("api-timeout")), err}
	case err != nil:
		return channel{}, &failure{judgeAPI(err), err}
	case out.Session == nil || aws.ToString(out.Session.StreamUrl) == "" || aws.ToString(out.Session.TokenValue) == "":
		return channel{}, &failure{retryable("no-session"), nil}
	}
	return channel{
		cluster: target.Cluster,

		id:    aws.ToString(out.Session.SessionId),
		url:   aws.ToString(out.Session.StreamUrl),
		token: aws.ToString(out.Session.TokenValue),
	}, nil
}

// retryThrottled lets the SDK repeat only what certainly did not start the command:
// every call that lands takes one of the agent's two slots.
func retryThrottled(o *ecs.Options) {
	o.Retryer = retry.NewStandard(func(s *retry.StandardOptions) {
		s.Retryables = []retry.IsErrorRetryable{retry.RetryableErrorCode{Codes: retry.DefaultThrottleErrorCodes}}
	})
}
