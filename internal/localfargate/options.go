package localfargate

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/localfargate/box"
	"github.com/sandkeeper/sandkeeper/internal/localfargate/datachannel"
)

// Faults are what goes wrong on purpose in a task's ECS Exec.
type Faults = datachannel.Faults

// Options configure a [Server].
type Options struct {
	// Addr is host:port with a loopback literal; "" is 127.0.0.1 and a free port.
	Addr string
	// Bridge is host:port where this machine's containers reach it too, at the address
	// of Docker's own bridge; port 0 is a free one. "": nowhere. It speaks TLS with
	// BridgeCertificate, since clients of ECS Exec take plain text on loopback only.
	Bridge            string
	BridgeCertificate tls.Certificate
	// Dir takes the tasks' files, in a directory tasks that must not be there before and
	// that Close removes; "" is a new one below the system's directory for temporary
	// files.
	Dir string
	// Region and Account appear in ARNs; "" is us-east-1 and 000000000000.
	Region, Account string
	// Peers are servers of other accounts or regions that this one's endpoint answers for
	// too, and AccountOf says whose an access key is. A request goes to the server of the
	// account and the region that signed it; without AccountOf each is for this one. Peers
	// are started and closed by who made them.
	Peers     []*Server
	AccountOf func(ctx context.Context, accessKey string) (account string, err error)
	// Clusters are the clusters that exist; none means that any name does.
	Clusters []string
	// Driver runs the tasks; "" is [DriverProcess].
	Driver Driver
	// Image takes the place, under [DriverDocker], of an image that the engine does not
	// have; nothing is pulled. "": a task whose image is not there does not start.
	Image string
	// DockerSocket is where the engine listens; "" is DOCKER_HOST's, or the usual one.
	DockerSocket string
	// Isolation of the tasks under [DriverProcess]; "" is the best that works here.
	Isolation box.Isolation
	// Visible are absolute paths below /tmp that tasks with a /tmp of their own see
	// all the same: what an image would bring. The server's directory always is.
	Visible []string
	// Env is added to every container's environment, before its definition's.
	Env []string
	// Events gets every task state change, in order, one call at a time.
	Events func(context.Context, Event)
	// Throttle sets the request limits.
	Throttle Throttle
	// Habits are the waits; the zero value is [RealHabits].
	Habits Habits
	// Faults is what new tasks begin with.
	Faults Faults
	// Log gets what no caller is told; nil is silence.
	Log *slog.Logger
}

// Driver says what a container is.
type Driver string

// The drivers.
const (
	// DriverProcess makes it a process tree with this machine's programs.
	DriverProcess Driver = "process"
	// DriverDocker makes it a container of the Docker engine on this machine, with the
	// definition's image and limits.
	DriverDocker Driver = "docker"
)

// Habits are the waits that ECS, Fargate and the agent impose.
type Habits struct {
	// Visible is how long a new task is MISSING for readers.
	Visible time.Duration
	// Provision is the time until the image would be there.
	Provision time.Duration
	// AgentStart is the time from RUNNING until the managed agent is RUNNING, and
	// AgentConnect from then until it can be reached.
	AgentStart, AgentConnect time.Duration
	// Deprovision is the time from the end of the processes until STOPPED.
	Deprovision time.Duration
	// StopTimeout is the time from SIGTERM to SIGKILL where the definition says none.
	StopTimeout time.Duration
	// Notice is the longest time from the notice that a task's capacity is taken back,
	// which comes with SIGTERM, to SIGKILL; a shorter stop timeout is what counts.
	Notice time.Duration
	// StoppedVisible is how long a stopped task can be described.
	StoppedVisible time.Duration
	// TokenLife is how long a client token is remembered.
	TokenLife time.Duration
	// Channel are the waits of ECS Exec sessions.
	Channel datachannel.Habits
}

// RealHabits are the waits of the real thing, except that a task is there after
// two seconds and gone after one, where Fargate takes half a minute or more.
func RealHabits() Habits {
	return Habits{
		Visible: time.Second, Provision: 2 * time.Second,
		AgentStart: time.Second, AgentConnect: time.Second,
		Deprovision: time.Second, StopTimeout: 30 * time.Second, Notice: 2 * time.Minute,
		StoppedVisible: time.Hour, TokenLife: 24 * time.Hour,
		Channel: datachannel.RealHabits(),
	}
}

// QuickHabits wait for nothing that a test need not see, and keep the limits.
func QuickHabits() Habits {
	h := RealHabits()
	h.Visible, h.Provision, h.AgentStart, h.AgentConnect, h.Deprovision = 0, 0, 0, 0, 0
	h.StopTimeout, h.Notice = 2*time.Second, 20*time.Second
	h.Channel.FirstOutput, h.Channel.StartFailure, h.Channel.AfterRead = 0, 0, 0
	return h
}

// Event is a task state change as EventBridge carries it.
type Event struct {
	// Time is when the change happened.
	Time time.Time
	// TaskARN is the event's only resource.
	TaskARN string
	// LastStatus and DesiredStatus are also in Detail.
	LastStatus, DesiredStatus string
	// Version grows with each change of the task; it is also in Detail.
	Version int64
	// Detail is the task, as in an "ECS Task State Change".
	Detail json.RawMessage
}

// DetailType is the detail-type of every [Event].
const DetailType = "ECS Task State Change"

// Source is the source of delivered events; AWS lets nobody but itself use aws.ecs.
const Source = "local.ecs"
