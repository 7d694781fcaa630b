package sandkeeper

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awslambda"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// tools makes the function and its URL, at which agents call tools of the host, say that
// they have ended, and ask for leave to spool. The URL takes everybody's requests: whoever
// has the bearer of a run that has not ended is answered, others are not.
func (k *Keeper) tools(reap awslambda.Function) (awslambda.Function, *string) {
	f := k.function(functionSpec{
		name:     names.Tools,
		about:    "Calls tools of the host for agents in sandboxes, and hears that they have ended",
		timeout:  core.ToolsTimeout,
		memoryMB: 512,
		env: map[names.Key]*string{
			names.RunsTable:     k.runs.TableName(),
			names.LogBucket:     k.bucket.BucketName(),
			names.ReapFunction:  reap.FunctionName(),
			names.HostFunctions: new(strings.Join(k.hostFunctions(), ",")),
			names.Install:       &k.props.Install,
		},
		local:    k.endpoints,
		grants:   k.toolsGrants(reap),
		reserved: concurrency("toolsConcurrency", k.props.ToolsConcurrency),
	})
	url := f.AddFunctionUrl(&awslambda.FunctionUrlOptions{AuthType: awslambda.FunctionUrlAuthType_NONE})
	return f, url.Url()
}

func (k *Keeper) toolsGrants(reap awslambda.Function) []grant {
	return append(k.invokesHost(), grant{
		// Reads, the hint that an agent has ended, and the count of what it spooled. Not by
		// dynamodb:Attributes: AWS pairs it with answers of changed attributes alone, and these
		// updates answer with the whole record, done or refused, by which own success is told.
		actions: []string{"dynamodb:GetItem", "dynamodb:UpdateItem"}, resources: []*string{k.runs.TableArn()},
	}, grant{
		actions: []string{"lambda:InvokeFunction"}, resources: []*string{reap.FunctionArn()},
	}, grant{
		// What a grant lets a sandbox do is also the function's own to do.
		actions:   []string{"s3:PutObject", "s3:PutObjectTagging"},
		resources: []*string{k.bucket.ArnForObjects(join("*/", names.SpoolPrefix, "/*"))},
	})
}

// hostFunction is a function as definitions name it: its name or ARN, with a version or an
// alias or without.
var hostFunction = regexp.MustCompile(`^(arn:aws[a-z-]*:lambda:[a-z0-9-]+:[0-9]{12}:function:)?[A-Za-z0-9_-]{1,64}(:[A-Za-z0-9_$-]{1,128})?$`)

// hostFunctions lists the functions that may be tools and hooks, or [names.None]. It
// panics, and so fails the synthesis, for what is no function: a pattern would be a grant
// on more than is listed. So would be a function of the installation itself: an agent
// that may call session as a tool is a host, and one that may call probe is root everywhere.
func (k *Keeper) hostFunctions() []string {
	if k.props.HostFunctions == "" {
		return []string{names.None}
	}
	all := strings.Split(k.props.HostFunctions, ",")
	for i := range all {
		if all[i] = strings.TrimSpace(all[i]); !hostFunction.MatchString(all[i]) {
			panic(fmt.Errorf("context hostFunctions: want names or ARNs of functions between commas, got %q", all[i]))
		}
		if k.isOwn(all[i]) {
			panic(fmt.Errorf("context hostFunctions: want functions of the host, got %q, which is the installation's own", all[i]))
		}
	}
	return all
}

// isOwn reports whether a function, as definitions name it, is one of the installation's.
func (k *Keeper) isOwn(f string) bool {
	_, name, found := strings.Cut(f, ":function:")
	if !found {
		name = f
	}
	name, _, _ = strings.Cut(name, ":")
	return slices.ContainsFunc(names.Functions, func(own names.Function) bool { return name == deployedName(k.props, own) })
}

// invokesHost is calling the functions of the host that are listed, and no other.
func (k *Keeper) invokesHost() []grant {
	var resources []*string
	for _, f := range k.hostFunctions() {
		switch {
		case f == names.None:
			return nil
		case strings.HasPrefix(f, "arn:"):
			resources = append(resources, &f)
		default:
			resources = append(resources, k.functionNamed(f))
		}
	}
	return []grant{{actions: []string{"lambda:InvokeFunction"}, resources: resources}}
}

// functionNamed is a function of this account by its name, which makes no circle of a
// function and its role.
func (k *Keeper) functionNamed(name string) *string {
	return k.stack.FormatArn(&awscdk.ArnComponents{
		Service: new("lambda"), Resource: new("function"), ArnFormat: awscdk.ArnFormat_COLON_RESOURCE_NAME, ResourceName: &name,
	})
}
