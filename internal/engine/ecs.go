package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

const copyWithin = 15 * time.Second

// ECS is a client for an ECS at a loopback endpoint, with the engine's
// credentials: the engine's own, or local Fargate.
func (e *Engine) ECS(endpoint string) *ecs.Client {
	return ecs.NewFromConfig(e.Config(), func(o *ecs.Options) { o.BaseEndpoint = &endpoint })
}

// copyECS brings what CloudFormation made at the engine's own ECS, which runs
// nothing, to the one that does: cluster and task definition. It returns the task
// definition's ARN there.
func (e *Engine) copyECS(ctx context.Context, endpoint string, outputs Outputs) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, copyWithin)
	defer cancel()
	arn := outputs[names.OutTaskDefinition]
	described, err := e.ECS(e.Endpoint).DescribeTaskDefinition(ctx, &ecs.DescribeTaskDefinitionInput{TaskDefinition: &arn})
	if err != nil {
		return "", fmt.Errorf("describe task definition %s: %w", arn, err)
	}
	target := e.ECS(endpoint)
	if _, err := target.CreateCluster(ctx, &ecs.CreateClusterInput{ClusterName: new(outputs[names.OutInstall])}); err != nil {
		return "", fmt.Errorf("create cluster %s: %w", outputs[names.OutInstall], err)
	}
	made, err := target.RegisterTaskDefinition(ctx, registration(described.TaskDefinition))
	if err != nil {
		return "", fmt.Errorf("register task definition %s: %w", arn, err)
	}
	return *made.TaskDefinition.TaskDefinitionArn, nil
}

// registration is a described task definition as one to register. The engine
// loses the init process of a container, which the stack asks for.
func registration(d *types.TaskDefinition) *ecs.RegisterTaskDefinitionInput {
	for i := range d.ContainerDefinitions {
		d.ContainerDefinitions[i].LinuxParameters = &types.LinuxParameters{InitProcessEnabled: new(true)}
	}
	return &ecs.RegisterTaskDefinitionInput{
		Family:                  d.Family,
		ContainerDefinitions:    d.ContainerDefinitions,
		Cpu:                     d.Cpu,
		Memory:                  d.Memory,
		NetworkMode:             d.NetworkMode,
		RequiresCompatibilities: d.RequiresCompatibilities,
		TaskRoleArn:             d.TaskRoleArn,
	}
}
