package ecstask_test

import (
	"errors"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
)

// TestATaskThatECSWillNeverStart is told from one that it starts when it is asked again.
func TestATaskThatECSWillNeverStart(t *testing.T) {
	failed := func(code, message string) string { return `{"__type":"` + code + `","message":"` + message + `"}` }
	cases := map[string]struct {
		body string
		code string // of the refusal; empty: it may be asked again
	}{
		"no such definition":        {failed("ClientException", "TaskDefinition not found."), "ClientException"},
		"no such subnet":            {failed("InvalidParameterException", "The subnet ID 'subnet-1' does not exist"), "InvalidParameterException"},
		"no such cluster":           {failed("ClusterNotFoundException", "Cluster not found."), "ClusterNotFoundException"},
		"not allowed":               {failed("AccessDeniedException", "is not authorized to perform: iam:PassRole"), "AccessDeniedException"},
		"another platform":          {failed("PlatformUnknownException", "no"), "PlatformUnknownException"},
		"not of this platform":      {failed("PlatformTaskDefinitionIncompatibilityException", "no"), "PlatformTaskDefinitionIncompatibilityException"},
		"not in this Region":        {failed("UnsupportedFeatureException", "no"), "UnsupportedFeatureException"},
		"an account that is closed": {failed("BlockedException", "Your account was blocked."), "BlockedException"},
		"another task's token":      {failed("ConflictException", "The client token was used."), "ConflictException"},
		"a cluster that is deleted": {`{"tasks":[],"failures":[{"arn":"c","reason":"INACTIVE"}]}`, "INACTIVE"},

		"throttled":                   {failed("ThrottlingException", "Rate exceeded"), ""},
		"throttled behind it":         {failed("InvalidParameterException", "Error retrieving security group information for [sg-1]: Request limit exceeded. (ErrorCode: RequestLimitExceeded)"), ""},
		"the account's limit":         {failed("ClientException", "You've reached the limit on the number of vCPUs you can run concurrently"), ""},
		"a limit, by its own code":    {failed("LimitExceededException", "no"), ""},
		"a fault of theirs":           {failed("ServerException", "Service Unavailable. Please try again later."), ""},
		"old credentials":             {failed("ExpiredTokenException", "no"), ""},
		"no capacity, as an error":    {failed("ClientException", "Capacity is unavailable at this time. Please try again later or in a different availability zone"), ""},
		"no capacity":                 {`{"failures":[{"reason":"Capacity is unavailable at this time."}]}`, ""},
		"no address left":             {`{"failures":[{"arn":"c","reason":"RESOURCE:ENI"}]}`, ""},
		"one reason lasts, one heals": {`{"failures":[{"arn":"c","reason":"INACTIVE"},{"reason":"AGENT"}]}`, ""},
		"no reason":                   {`{}`, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := start(t.Context(), answers(t, c.body))
			refused, is := errors.AsType[*core.TaskRefusedError](err)
			switch {
			case err == nil:
				t.Error("started")
			case is != (c.code != ""):
				t.Errorf("%v: for good: %t", err, is)
			case is && (refused.Code != c.code || refused.TaskDefinition != "definition" || refused.Cluster != cluster):
				t.Errorf("refused %+v", refused)
			}
		})
	}
}

// TestLocalFargateRefusesWhatDoesNotExist as ECS does.
func TestLocalFargateRefusesWhatDoesNotExist(t *testing.T) {
	_, tasks, spec := fargate(t, localfargate.Habits{})
	spec.Token, spec.TaskDefinition = "token", "other:7"
	if _, err := tasks.Start(t.Context(), spec); code(err) != "ClientException" {
		t.Errorf("another definition: %v", err)
	}
}

func code(err error) string {
	if refused, ok := errors.AsType[*core.TaskRefusedError](err); ok {
		return refused.Code
	}
	return ""
}

var _ core.TaskRunner = (*ecstask.Tasks)(nil)
