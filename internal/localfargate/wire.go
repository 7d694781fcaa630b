package localfargate

import (
	"strconv"
	"time"
)

// stamp is a time on the wire: seconds since the epoch in the API, text in events.
type stamp struct {
	time time.Time
	text bool
}

// MarshalJSON writes the form that the stamp was made for.
func (s stamp) MarshalJSON() ([]byte, error) {
	if s.text {
		return []byte(strconv.Quote(s.time.UTC().Format("2006-01-02T15:04:05.000Z"))), nil
	}
	return strconv.AppendFloat(nil, float64(s.time.UnixMilli())/1000, 'f', 3, 64), nil
}

type keyValue struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type tag struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

type failure struct {
	ARN    string `json:"arn,omitempty"`
	Reason string `json:"reason"`
	Detail string `json:"detail,omitempty"`
}

// taskView is a task as DescribeTasks and the events show it.
type taskView struct {
	Attachments          []attachmentView `json:"attachments"`
	Attributes           []keyValue       `json:"attributes"`
	AvailabilityZone     string           `json:"availabilityZone"`
	ClusterARN           string           `json:"clusterArn"`
	Connectivity         string           `json:"connectivity,omitempty"`
	ConnectivityAt       *stamp           `json:"connectivityAt,omitempty"`
	Containers           []containerView  `json:"containers"`
	CPU                  string           `json:"cpu"`
	CreatedAt            *stamp           `json:"createdAt,omitempty"`
	DesiredStatus        string           `json:"desiredStatus"`
	EnableExecuteCommand bool             `json:"enableExecuteCommand"`
	EphemeralStorage     map[string]int   `json:"ephemeralStorage"`
	ExecutionStoppedAt   *stamp           `json:"executionStoppedAt,omitempty"`
	Group                string           `json:"group"`
	HealthStatus         string           `json:"healthStatus"`
	LastStatus           string           `json:"lastStatus"`
	LaunchType           string           `json:"launchType"`
	Memory               string           `json:"memory"`
	Overrides            taskOverride     `json:"overrides"`
	PlatformFamily       string           `json:"platformFamily"`
	PlatformVersion      string           `json:"platformVersion"`
	PullStartedAt        *stamp           `json:"pullStartedAt,omitempty"`
	PullStoppedAt        *stamp           `json:"pullStoppedAt,omitempty"`
	StartedAt            *stamp           `json:"startedAt,omitempty"`
	StartedBy            string           `json:"startedBy,omitempty"`
	StopCode             string           `json:"stopCode,omitempty"`
	StoppedAt            *stamp           `json:"stoppedAt,omitempty"`
	StoppedReason        string           `json:"stoppedReason,omitempty"`
	StoppingAt           *stamp           `json:"stoppingAt,omitempty"`
	Tags                 []tag            `json:"tags,omitempty"`
	TaskARN              string           `json:"taskArn"`
	TaskDefinitionARN    string           `json:"taskDefinitionArn"`
	UpdatedAt            *stamp           `json:"updatedAt,omitempty"` // events only
	Version              int64            `json:"version"`
}

type attachmentView struct {
	ID      string     `json:"id"`
	Type    string     `json:"type"`
	Status  string     `json:"status"`
	Details []keyValue `json:"details"`
}

type containerView struct {
	ContainerARN      string           `json:"containerArn"`
	CPU               string           `json:"cpu"`
	ExitCode          *int             `json:"exitCode,omitempty"`
	HealthStatus      string           `json:"healthStatus"`
	Image             string           `json:"image"`
	LastStatus        string           `json:"lastStatus"`
	ManagedAgents     []agentView      `json:"managedAgents,omitempty"`
	Name              string           `json:"name"`
	NetworkBindings   []struct{}       `json:"networkBindings"`
	NetworkInterfaces []map[string]any `json:"networkInterfaces"`
	Reason            string           `json:"reason,omitempty"`
	RuntimeID         string           `json:"runtimeId,omitempty"`
	TaskARN           string           `json:"taskArn"`
}

type agentView struct {
	Name          string `json:"name"`
	LastStatus    string `json:"lastStatus"`
	LastStartedAt *stamp `json:"lastStartedAt,omitempty"`
	Reason        string `json:"reason,omitempty"`
}

type taskOverride struct {
	ContainerOverrides []containerOverride `json:"containerOverrides"`
	CPU                string              `json:"cpu,omitempty"`
	Memory             string              `json:"memory,omitempty"`
	TaskRoleARN        string              `json:"taskRoleArn,omitempty"`
	ExecutionRoleARN   string              `json:"executionRoleArn,omitempty"`
}

type containerOverride struct {
	Name        string     `json:"name"`
	Command     []string   `json:"command,omitempty"`
	Environment []keyValue `json:"environment,omitempty"`
	CPU         int        `json:"cpu,omitempty"`
	Memory      int        `json:"memory,omitempty"`
}

// definitionInput is what we act on of RegisterTaskDefinition; everything else is
// kept as it came and given back.
type definitionInput struct {
	Family               string                `json:"family"`
	ContainerDefinitions []containerDefinition `json:"containerDefinitions"`
	CPU                  string                `json:"cpu"`
	Memory               string                `json:"memory"`
	NetworkMode          string                `json:"networkMode"`
	PIDMode              string                `json:"pidMode"`
	TaskRoleARN          string                `json:"taskRoleArn"`
	ExecutionRoleARN     string                `json:"executionRoleArn"`
	Tags                 []tag                 `json:"tags"`
}

type containerDefinition struct {
	Name             string        `json:"name"`
	Image            string        `json:"image"`
	Command          []string      `json:"command"`
	EntryPoint       []string      `json:"entryPoint"`
	Environment      []keyValue    `json:"environment"`
	Essential        *bool         `json:"essential"`
	StopTimeout      *int          `json:"stopTimeout"`
	User             string        `json:"user"`
	WorkingDirectory string        `json:"workingDirectory"`
	CPU              int           `json:"cpu"`
	Memory           int           `json:"memory"`
	ReadOnlyRoot     bool          `json:"readonlyRootFilesystem"`
	MountPoints      []mountPoint  `json:"mountPoints"`
	RestartPolicy    restartPolicy `json:"restartPolicy"`
}

type mountPoint struct {
	ContainerPath string `json:"containerPath"`
	ReadOnly      bool   `json:"readOnly"`
}

type restartPolicy struct {
	Enabled bool `json:"enabled"`
}

type runTaskInput struct {
	Cluster              string         `json:"cluster"`
	TaskDefinition       string         `json:"taskDefinition"`
	ClientToken          string         `json:"clientToken"`
	Count                *int           `json:"count"`
	EnableExecuteCommand bool           `json:"enableExecuteCommand"`
	EnableManagedTags    bool           `json:"enableECSManagedTags"`
	Group                string         `json:"group"`
	LaunchType           string         `json:"launchType"`
	CapacityProviders    []any          `json:"capacityProviderStrategy"`
	NetworkConfiguration map[string]any `json:"networkConfiguration"`
	Overrides            taskOverride   `json:"overrides"`
	PlatformVersion      string         `json:"platformVersion"`
	PropagateTags        string         `json:"propagateTags"`
	StartedBy            string         `json:"startedBy"`
	Tags                 []tag          `json:"tags"`
}
