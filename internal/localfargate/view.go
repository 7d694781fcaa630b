package localfargate

import (
	"fmt"
	"time"
)

// viewKind says for whom a task is shown.
type viewKind int

const (
	viewPlain viewKind = iota // API, without tags
	viewTags                  // API, with tags
	viewEvent                 // event: times as text
)

// view shows the task as of now. Call with the lock held.
func (t *task) view(kind viewKind) taskView {
	at := func(when time.Time) *stamp {
		if when.IsZero() {
			return nil
		}
		return &stamp{time: when, text: kind == viewEvent}
	}
	v := taskView{
		Attachments:      []attachmentView{t.attachment()},
		Attributes:       []keyValue{{Name: "ecs.cpu-architecture", Value: "x86_64"}},
		AvailabilityZone: t.server.opts.Region + "a", ClusterARN: t.server.clusterARN(t.cluster),
		Containers: []containerView{}, CPU: cmpOr(t.input.Overrides.CPU, t.definition.CPU), CreatedAt: at(t.createdAt),
		DesiredStatus: t.desiredStatus, EnableExecuteCommand: t.input.EnableExecuteCommand,
		EphemeralStorage: map[string]int{"sizeInGiB": 20}, ExecutionStoppedAt: at(t.execStoppedAt),
		Group: cmpOr(t.input.Group, "family:"+t.definition.Family), HealthStatus: "UNKNOWN", LastStatus: t.lastStatus,
		LaunchType: "FARGATE", Memory: cmpOr(t.input.Overrides.Memory, t.definition.Memory), Overrides: t.shownOverrides(),
		PlatformFamily: "Linux", PlatformVersion: "1.4.0",
		PullStartedAt: at(t.pullStartedAt), PullStoppedAt: at(t.pullStoppedAt), StartedAt: at(t.startedAt),
		StartedBy: t.input.StartedBy, StopCode: t.stopCode, StoppedAt: at(t.stoppedAt), StoppedReason: t.stoppedReason,
		StoppingAt: at(t.stoppingAt), TaskARN: t.arn, TaskDefinitionARN: t.definition.arn, Version: t.version,
	}
	if t.lastStatus != statusProvisioning {
		v.Connectivity, v.ConnectivityAt = "CONNECTED", at(t.pullStartedAt)
	}
	if kind == viewTags {
		v.Tags = orEmpty(t.tags)
	}
	if kind == viewEvent {
		v.UpdatedAt = at(time.Now())
	}
	for _, c := range t.containers {
		v.Containers = append(v.Containers, t.containerView(c, at))
	}
	return v
}

// shownOverrides names every container, as ECS does.
func (t *task) shownOverrides() taskOverride {
	o := t.input.Overrides
	o.ContainerOverrides = []containerOverride{}
	for _, c := range t.containers {
		shown := t.overrides[c.definition.Name]
		shown.Name = c.definition.Name
		o.ContainerOverrides = append(o.ContainerOverrides, shown)
	}
	return o
}

func (t *task) containerView(c *container, at func(time.Time) *stamp) containerView {
	v := containerView{
		ContainerARN: c.arn, CPU: fmt.Sprint(c.definition.CPU), ExitCode: c.exitCode, HealthStatus: "UNKNOWN",
		Image: c.definition.Image, LastStatus: c.lastStatus, Name: c.definition.Name, NetworkBindings: []struct{}{},
		NetworkInterfaces: []map[string]any{{"attachmentId": t.attachmentID(), "privateIpv4Address": t.address()}},
		Reason:            c.reason, RuntimeID: c.runtimeID, TaskARN: t.arn,
	}
	if t.input.EnableExecuteCommand {
		status, reason := t.agentState(c)
		v.ManagedAgents = []agentView{{
			Name: "ExecuteCommandAgent", LastStatus: status, LastStartedAt: at(c.agentStartedAt), Reason: reason,
		}}
	}
	return v
}

func (t *task) attachmentID() string {
	return fmt.Sprintf("%s-%s-%s-%s-%s", t.id[:8], t.id[8:12], t.id[12:16], t.id[16:20], t.id[20:])
}

func (t *task) address() string {
	return fmt.Sprintf("10.0.%d.%d", 1+(t.number/250)%250, 4+t.number%250)
}

func (t *task) attachment() attachmentView {
	status := "ATTACHED"
	switch t.lastStatus {
	case statusProvisioning:
		status = "PRECREATED"
	case statusDeprovisioning:
		status = "DETACHING"
	case statusStopped:
		status = "DELETED"
	}
	return attachmentView{
		ID: t.attachmentID(), Type: "ElasticNetworkInterface", Status: status,
		Details: []keyValue{
			{Name: "subnetId", Value: firstSubnet(t.input.NetworkConfiguration)},
			{Name: "privateIPv4Address", Value: t.address()},
		},
	}
}

func firstSubnet(network map[string]any) string {
	vpc, _ := network["awsvpcConfiguration"].(map[string]any)
	subnets, _ := vpc["subnets"].([]any)
	if len(subnets) == 0 {
		return "subnet-00000000000000000"
	}
	name, _ := subnets[0].(string)
	return name
}
