package localfargate_test

import (
	"context"
	"errors"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/smithy-go"

	"github.com/sandkeeper/sandkeeper/internal/localfargate"
)

// TestWhoSignedSaysWhoseECSIsAsked: one endpoint, an account and a region a server.
func TestWhoSignedSaysWhoseECSIsAsked(t *testing.T) {
	start := func(o localfargate.Options) *localfargate.Server {
		t.Helper()
		s, err := localfargate.New(o)
		if err == nil {
			err = s.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	accounts := map[string]string{"HOME": "000000000000", "SPOKE": "111122223333"}
	spoke := start(localfargate.Options{Account: "111122223333", Region: "eu-west-1"})
	home := start(localfargate.Options{Peers: []*localfargate.Server{spoke}, AccountOf: func(_ context.Context, key string) (string, error) {
		if accounts[key] == "" {
			return "", errors.New("nobody's")
		}
		return accounts[key], nil
	}})
	for _, c := range []struct{ key, region, cluster, code string }{
		{"HOME", "us-east-1", "arn:aws:ecs:us-east-1:000000000000:cluster/a", ""},
		{"SPOKE", "eu-west-1", "arn:aws:ecs:eu-west-1:111122223333:cluster/a", ""},
		{"HOME", "us-east-1", "arn:aws:ecs:eu-west-1:111122223333:cluster/a", "InvalidParameterException"},
		{"SPOKE", "eu-west-1", "arn:aws:ecs:us-east-1:000000000000:cluster/a", "InvalidParameterException"},
		{"SPOKE", "us-east-1", "a", "AccessDeniedException"},
		{"OTHER", "us-east-1", "a", "UnrecognizedClientException"},
	} {
		client := ecs.NewFromConfig(aws.Config{
			Region: c.region, BaseEndpoint: new(home.URL()), Credentials: credentials.NewStaticCredentialsProvider(c.key, "s", ""),
		})
		_, err := client.ListTasks(t.Context(), &ecs.ListTasksInput{Cluster: &c.cluster})
		code := ""
		if api, ok := errors.AsType[smithy.APIError](err); ok {
			code = api.ErrorCode()
		}
		if code != c.code || (err != nil) != (c.code != "") {
			t.Errorf("%s in %s of %s: %v, want %q", c.key, c.region, c.cluster, err, c.code)
		}
	}
}
