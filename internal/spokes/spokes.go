// Package spokes asks the ECS that a cluster belongs to: that of the installation's own
// account and Region under the caller's credentials, and that of a spoke under the
// spoke's role, assumed with its external id. Its rule: where a cluster is of no spoke
// nobody is asked, and the answer is core.ErrNoSpoke, never that a task is missing.
package spokes

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// renewAhead is how long before its end a session is replaced: longer than any call.
const renewAhead = 5 * time.Minute

// assumeWithin bounds one session's beginning, with the SDK's own retries.
const assumeWithin = 15 * time.Second

// Fleet is the ECS of all places of an installation: it has the methods of an
// [ecs.Client], and passes each call to the one that the input's cluster belongs to. Its
// methods may be called concurrently; sessions are kept until shortly before they end.
type Fleet struct {
	places core.Places
	home   *site
	spokes map[core.Place]*site
}

// site is one place.
type site struct {
	ecs         *ecs.Client
	credentials aws.CredentialsProvider
	region      string
}

// New returns the fleet of an installation. Home is asked as cfg says. A spoke's role is
// assumed with cfg's credentials in cfg's Region, under the name of the caller: a spoke's
// policy tells by it what the caller may. Nothing is asked before the first call.
func New(cfg aws.Config, places core.Places, caller string) *Fleet {
	f := &Fleet{places: places, home: newSite(cfg), spokes: map[core.Place]*site{}}
	var issuer *sts.Client
	for _, s := range places.Spokes {
		if issuer == nil {
			issuer = sts.NewFromConfig(cfg)
		}
		at := cfg.Copy()
		at.Region = s.Region
		role := stscreds.NewAssumeRoleProvider(issuer, s.Role, func(o *stscreds.AssumeRoleOptions) {
			o.ExternalID, o.RoleSessionName = &s.ExternalID, caller
		})
		at.Credentials = aws.NewCredentialsCache(bounded{role}, func(o *aws.CredentialsCacheOptions) { o.ExpiryWindow = renewAhead })
		f.spokes[s.Place()] = newSite(at)
	}
	return f
}

// bounded assumes a role within a time of its own. The cache around it asks once for all who
// wait, under none of their deadlines: an STS that never answered would keep every later
// call waiting for that one answer.
type bounded struct{ aws.CredentialsProvider }

// Retrieve is the provider's, within assumeWithin.
func (b bounded) Retrieve(ctx context.Context) (aws.Credentials, error) {
	ctx, cancel := context.WithTimeout(ctx, assumeWithin)
	defer cancel()
	return b.CredentialsProvider.Retrieve(ctx)
}

func newSite(cfg aws.Config) *site {
	return &site{ecs: ecs.NewFromConfig(cfg), credentials: cfg.Credentials, region: cfg.Region}
}

func (f *Fleet) at(cluster *string) (*site, error) {
	spoke, err := f.places.Spoke(aws.ToString(cluster))
	if err != nil {
		return nil, err
	}
	if spoke == nil {
		return f.home, nil
	}
	return f.spokes[spoke.Place()], nil
}

// Signer returns what signs requests about a cluster's tasks, and for which Region.
func (f *Fleet) Signer(cluster string) (aws.CredentialsProvider, string, error) {
	s, err := f.at(&cluster)
	if err != nil {
		return nil, "", err
	}
	return s.credentials, s.region, nil
}

// route carries out one call where its cluster is.
func route[A any](f *Fleet, cluster *string, call func(*ecs.Client) (*A, error)) (*A, error) {
	s, err := f.at(cluster)
	if err != nil {
		return nil, err
	}
	out, err := call(s.ecs)
	if err != nil && s != f.home {
		return nil, fmt.Errorf("at spoke of %s: %w", *cluster, err)
	}
	return out, err
}

// RunTask is [ecs.Client.RunTask] where the cluster is.
func (f *Fleet) RunTask(ctx context.Context, in *ecs.RunTaskInput, options ...func(*ecs.Options)) (*ecs.RunTaskOutput, error) {
	return route(f, in.Cluster, func(c *ecs.Client) (*ecs.RunTaskOutput, error) { return c.RunTask(ctx, in, options...) })
}

// StopTask is [ecs.Client.StopTask] where the cluster is.
func (f *Fleet) StopTask(ctx context.Context, in *ecs.StopTaskInput, options ...func(*ecs.Options)) (*ecs.StopTaskOutput, error) {
	return route(f, in.Cluster, func(c *ecs.Client) (*ecs.StopTaskOutput, error) { return c.StopTask(ctx, in, options...) })
}

// DescribeTasks is [ecs.Client.DescribeTasks] where the cluster is.
func (f *Fleet) DescribeTasks(ctx context.Context, in *ecs.DescribeTasksInput, options ...func(*ecs.Options)) (*ecs.DescribeTasksOutput, error) {
	return route(f, in.Cluster, func(c *ecs.Client) (*ecs.DescribeTasksOutput, error) { return c.DescribeTasks(ctx, in, options...) })
}

// ListTasks is [ecs.Client.ListTasks] where the cluster is.
func (f *Fleet) ListTasks(ctx context.Context, in *ecs.ListTasksInput, options ...func(*ecs.Options)) (*ecs.ListTasksOutput, error) {
	return route(f, in.Cluster, func(c *ecs.Client) (*ecs.ListTasksOutput, error) { return c.ListTasks(ctx, in, options...) })
}

// ExecuteCommand is [ecs.Client.ExecuteCommand] where the cluster is.
func (f *Fleet) ExecuteCommand(ctx context.Context, in *ecs.ExecuteCommandInput, options ...func(*ecs.Options)) (*ecs.ExecuteCommandOutput, error) {
	return route(f, in.Cluster, func(c *ecs.Client) (*ecs.ExecuteCommandOutput, error) { return c.ExecuteCommand(ctx, in, options...) })
}
