package engine_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/cloudformation"
	"github.com/aws/aws-sdk-go-v2/service/cloudformation/types"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/engine/enginetest"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// bundleDir holds the local variant's bundle, as make leaves it.
var bundleDir = filepath.Join("..", "..", "dist", "bundle-local")

// TestABundleDeploysWithoutCDK: zips into a bucket, template to CloudFormation, and the
// sweep runs.
func TestABundleDeploysWithoutCDK(t *testing.T) {
	zips, err := filepath.Glob(filepath.Join(bundleDir, "*.zip"))
	_, readErr := os.Stat(filepath.Join(bundleDir, "sandkeeper.template.json"))
	if errors.Is(readErr, fs.ErrNotExist) && os.Getenv("CI") == "" {
		t.Skip(readErr)
	}
	if err != nil || readErr != nil || len(zips) == 0 {
		t.Fatalf("no bundle: %v, %v, %d zips", err, readErr, len(zips))
	}
	e := enginetest.Own(t, engine.Options{})
	fargate, err := localfargate.New(localfargate.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := fargate.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fargate.Close(); err != nil {
			t.Error(err)
		}
	})
	put(t, e, append(zips, filepath.Join(bundleDir, "sandkeeper.template.json")), "code/")
	out := create(t, e, map[string]string{
		"CodeBucket": bundleBucket, "CodePrefix": "code/", names.ParamEndpoint: e.Endpoint, names.ParamEndpointECS: fargate.URL(),
	})
	tick, err := os.ReadFile(filepath.Join("..", "..", "events", "reap-tick.json"))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := lambda.NewFromConfig(e.Config()).Invoke(t.Context(), &lambda.InvokeInput{FunctionName: new(out[string(names.OutReapFunction)]), Payload: tick})
	if err != nil || answer.FunctionError != nil || !strings.Contains(string(answer.Payload), `"considered"`) {
		t.Errorf("the sweep answers %s, %v", answer.Payload, err)
	}
}

const bundleBucket = "bundles"

func put(t *testing.T, e *engine.Engine, files []string, prefix string) {
	t.Helper()
	objects := s3.NewFromConfig(e.Config(), func(o *s3.Options) { o.UsePathStyle = true })
	if _, err := objects.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: new(bundleBucket)}); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := objects.PutObject(t.Context(), &s3.PutObjectInput{
			Bucket: new(bundleBucket), Key: new(prefix + filepath.Base(file)), Body: bytes.NewReader(data),
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// create makes a stack and returns its outputs.
func create(t *testing.T, e *engine.Engine, parameters map[string]string) map[string]string {
	t.Helper()
	stacks := cloudformation.NewFromConfig(e.Config())
	in := &cloudformation.CreateStackInput{
		StackName: new("plain"), TemplateURL: new(e.Endpoint + "/" + bundleBucket + "/code/sandkeeper.template.json"),
		Capabilities: []types.Capability{types.CapabilityCapabilityIam},
	}
	for key, value := range parameters {
		in.Parameters = append(in.Parameters, types.Parameter{ParameterKey: new(key), ParameterValue: new(value)})
	}
	if _, err := stacks.CreateStack(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	waiter := cloudformation.NewStackCreateCompleteWaiter(stacks, func(o *cloudformation.StackCreateCompleteWaiterOptions) {
		o.MinDelay, o.MaxDelay = 200*time.Millisecond, time.Second
	})
	described, err := waiter.WaitForOutput(t.Context(), &cloudformation.DescribeStacksInput{StackName: in.StackName}, 2*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, o := range described.Stacks[0].Outputs {
		out[*o.OutputKey] = *o.OutputValue
	}
	return out
}
