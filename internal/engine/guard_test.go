package engine_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/engine"
)

func TestGuard(t *testing.T) {
	safe := (&engine.Engine{Endpoint: "http://127.0.0.1:4566", ECSEndpoint: "http://localhost:4567", Dir: t.TempDir()}).Env()
	tests := []struct {
		name string
		add  string // the last one counts
		want string // part of the error, empty if the environment is safe
	}{
		{"an engine's own environment is safe", "", ""},
		{"another loopback address is safe", "AWS_ENDPOINT_URL_S3=https://127.8.9.1:1", ""},
		{"version 6 loopback is safe", "AWS_ENDPOINT_URL_S3=http://[::1]:1", ""},
		{"an endpoint by name is refused", "AWS_ENDPOINT_URL_S3=http://s3.example.test", "AWS_ENDPOINT_URL_S3 is not a loopback URL"},
		{"a name that only begins like loopback is refused", "AWS_ENDPOINT_URL=http://127.0.0.1.example.test", "not a loopback URL"},
		{"a host in the user part is refused", "AWS_ENDPOINT_URL=http://127.0.0.1@example.test", "not a loopback URL"},
		{"a private address is refused", "AWS_ENDPOINT_URL_SQS=http://10.0.0.1", "not a loopback URL"},
		{"an endpoint without a scheme is refused", "AWS_ENDPOINT_URL=127.0.0.1:4566", "not a loopback URL"},
		{"no endpoint is refused", "AWS_ENDPOINT_URL=", "AWS_ENDPOINT_URL is not set"},
		{"real credentials are refused", "AWS_ACCESS_KEY_ID=AKIAEXAMPLE", `AWS_ACCESS_KEY_ID is not "test"`},
		{"a real secret is refused", "AWS_SECRET_ACCESS_KEY=hunter2", `AWS_SECRET_ACCESS_KEY is not "test"`},
		{"a profile is refused", "AWS_PROFILE=prod", "AWS_PROFILE is set"},
		{"a session token is refused", "AWS_SESSION_TOKEN=x", "AWS_SESSION_TOKEN is set"},
		{"a role is refused", "AWS_ROLE_ARN=arn:aws:iam::1:role/x", "AWS_ROLE_ARN is set"},
		{"container credentials are refused", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI=/x", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI is set"},
		{"ignored endpoints are refused", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=true", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS is set"},
		{"a configuration file is refused", "AWS_CONFIG_FILE=/etc/aws/config", "AWS_CONFIG_FILE is not"},
		{"a credentials file is refused", "AWS_SHARED_CREDENTIALS_FILE=", "AWS_SHARED_CREDENTIALS_FILE is not"},
		{"instance metadata is refused", "AWS_EC2_METADATA_DISABLED=false", "AWS_EC2_METADATA_DISABLED is not"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := engine.Guard(append(slices.Clone(safe), test.add))
			switch {
			case test.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case test.want != "" && err == nil:
				t.Error("let through")
			case test.want != "" && !strings.Contains(err.Error(), test.want):
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
}

func TestGuardNamesEverythingAndNoSecret(t *testing.T) {
	err := engine.Guard([]string{"AWS_PROFILE=prod", "AWS_SECRET_ACCESS_KEY=hunter2"})
	if err == nil {
		t.Fatal("let through")
	}
	for _, want := range []string{"AWS_ENDPOINT_URL is not set", "AWS_PROFILE is set", "AWS_CONFIG_FILE"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Error("the error holds a secret")
	}
}

func TestGuardContainerKnowsTheBridgeAndNothingElse(t *testing.T) {
	bridge := netip.MustParseAddr("172.17.0.1")
	for _, test := range []struct {
		name string
		env  map[string]string
		want string // part of the error; "" is none
	}{
		{"the bridge", map[string]string{"AWS_ENDPOINT_URL": "http://172.17.0.1:4566", "AWS_ENDPOINT_URL_ECS": "http://172.17.0.1:4570"}, ""},
		{"loopback", map[string]string{"AWS_ENDPOINT_URL": "http://127.0.0.1:4566"}, ""},
		{"no endpoint", map[string]string{"RUNS_TABLE": "runs"}, "AWS_ENDPOINT_URL is not set"},
		{"a neighbour on the bridge", map[string]string{"AWS_ENDPOINT_URL": "http://172.17.0.2:4566"}, "not a loopback URL"},
		{"an account", map[string]string{"AWS_ENDPOINT_URL": "http://172.17.0.1:4566", "AWS_ENDPOINT_URL_ECS": "https://ecs.us-east-1.example.test"}, "AWS_ENDPOINT_URL_ECS"},
		{"a name", map[string]string{"AWS_ENDPOINT_URL": "http://bridge:4566"}, "not a loopback URL"},
		{"a token", map[string]string{"AWS_ENDPOINT_URL": "http://172.17.0.1:4566", "AWS_SESSION_TOKEN": "x"}, "AWS_SESSION_TOKEN is set"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := engine.GuardContainer(test.env, bridge)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
