package ecstask

import (
	"errors"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/aws/smithy-go"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// lasting are the codes with which ECS refuses a task that it will not start later either.
var lasting = []string{
	"ClientException", "InvalidParameterException", "ClusterNotFoundException", "AccessDeniedException", "ConflictException",
	"PlatformUnknownException", "PlatformTaskDefinitionIncompatibilityException", "UnsupportedFeatureException", "BlockedException",
}

// passing are words of a message that tells of a limit or of capacity, whatever its code:
// ECS passes on what EC2 and Fargate say under the codes of bad input.
var passing = []string{
	"reached the limit", "limit exceeded", "limitexceeded", "above your limit", "capacity is unavailable", "throttl", "rate exceeded", "try again", "too many",
}

// lastingFailures are reasons in a whole answer without a task that stay as they are: a
// cluster that is deleted, or not there.
var lastingFailures = []string{"INACTIVE", "MISSING"}

// ofCall is the error of a call that is of no use to repeat, or nil.
func ofCall(spec core.TaskSpec, err error) error {
	said, ok := errors.AsType[smithy.APIError](err)
	if !ok || !slices.Contains(lasting, said.ErrorCode()) || passes(said.ErrorMessage()) {
		return nil
	}
	return &core.TaskRefusedError{TaskDefinition: spec.TaskDefinition, Cluster: spec.Cluster, Code: said.ErrorCode(), Message: said.ErrorMessage()}
}

func passes(message string) bool {
	message = strings.ToLower(message)
	return slices.ContainsFunc(passing, func(word string) bool { return strings.Contains(message, word) })
}

// ofAnswer is the error of an answer without a task that is of no use to ask for again,
// or nil: one reason that heals is enough to try.
func ofAnswer(spec core.TaskSpec, all []types.Failure) error {
	heals := func(f types.Failure) bool { return !slices.Contains(lastingFailures, value(f.Reason)) }
	if len(all) == 0 || slices.ContainsFunc(all, heals) {
		return nil
	}
	return &core.TaskRefusedError{TaskDefinition: spec.TaskDefinition, Cluster: spec.Cluster, Code: value(all[0].Reason), Message: value(all[0].Detail)}
}
