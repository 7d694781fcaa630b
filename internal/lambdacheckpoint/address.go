package lambdacheckpoint

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

type urlClient interface {
	GetFunctionUrlConfig(context.Context, *lambda.GetFunctionUrlConfigInput, ...func(*lambda.Options)) (*lambda.GetFunctionUrlConfigOutput, error)
}

// Address finds the URL of a function. The function asks for its own once it runs: in
// its environment the URL would make the stack a circle, for a URL is made after its
// function. An answer is kept, a failure is not.
type Address struct {
	Lambda   urlClient
	Function string // name or ARN
	// Dial is where every service is reached, if they are all at one place as an engine's
	// on loopback are: the function's URL then only says which host to name. It is the
	// SDK's base endpoint; nil on AWS.
	Dial *string

	mu        sync.Mutex
	url, host string
}

var (
	_ urlClient     = (*lambda.Client)(nil)
	_ core.AgentURL = (*Address)(nil)
)

const addressTimeout = 10 * time.Second

// AgentURL returns the URL to dial, without a path, and the host to name if it is
// another.
func (a *Address) AgentURL(ctx context.Context) (dial, host string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.url != "" {
		return a.url, a.host, nil
	}
	ctx, cancel := context.WithTimeout(ctx, addressTimeout)
	defer cancel()
	out, err := a.Lambda.GetFunctionUrlConfig(ctx, &lambda.GetFunctionUrlConfigInput{FunctionName: &a.Function})
	if err != nil {
		return "", "", fmt.Errorf("find URL of %s: %w", a.Function, err)
	}
	u, err := url.Parse(aws.ToString(out.FunctionUrl))
	if err != nil || u.Scheme == "" || u.Host == "" {
		return "", "", fmt.Errorf("find URL of %s: want a URL, got %q", a.Function, aws.ToString(out.FunctionUrl))
	}
	a.url = u.Scheme + "://" + u.Host
	if a.Dial != nil {
		a.url, a.host = strings.TrimSuffix(*a.Dial, "/"), u.Host
	}
	return a.url, a.host, nil
}
