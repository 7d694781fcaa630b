package localfargate

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/localfargate/box"
)

const maxDescribe = 100

// findTask reads a task id or ARN. An id that is well formed and unknown gives
// [errTaskNotFound]. Call with the lock held.
func (s *Server) findTask(cluster, ref string) (*task, error) {
	id := ref
	if strings.HasPrefix(ref, "arn:") {
		rest, ok := strings.CutPrefix(ref, s.arn("task/"))
		if !ok {
			return nil, invalid("Invalid identifier: Identifier is for %s. Your account is %s.", ref, s.opts.Account)
		}
		id = rest
		if of, name, ok := strings.Cut(rest, "/"); ok {
			if of != cluster {
				return nil, invalid("Invalid identifier: Identifier is for cluster %s. Your cluster is %s", of, cluster)
			}
			id = name
		}
	}
	if len(id) != 32 && len(id) != 36 {
		return nil, invalid("taskId length should be one of [32,36]")
	}
	s.forgetOld()
	t := s.tasks[id]
	if t == nil || t.cluster != cluster {
		return nil, errTaskNotFound
	}
	return t, nil
}

// forgetOld drops tasks that are stopped for longer than they stay visible. Call
// with the lock held.
func (s *Server) forgetOld() {
	s.order = slices.DeleteFunc(s.order, func(t *task) bool {
		old := t.lastStatus == statusStopped && time.Since(t.stoppedAt) > s.opts.Habits.StoppedVisible
		if old {
			delete(s.tasks, t.id)
		}
		return old
	})
}

// visible says whether readers see a task yet. Call with the lock held.
func (t *task) visible() bool { return time.Since(t.createdAt) >= t.server.opts.Habits.Visible }

func (s *Server) describeTasks(_ context.Context, in struct {
	Cluster string   `json:"cluster"`
	Tasks   []string `json:"tasks"`
	Include []string `json:"include"`
}) (any, error) {
	if len(in.Tasks) == 0 {
		return nil, invalid("Tasks cannot be empty.")
	}
	if len(in.Tasks) > maxDescribe {
		return nil, invalid("Tasks cannot have more than %d elements.", maxDescribe)
	}
	kind := viewPlain
	if hasTags(in.Include) {
		kind = viewTags
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	cluster, err := s.clusterName(in.Cluster)
	if err != nil {
		return nil, err
	}
	views, failures := []taskView{}, []failure{}
	for _, ref := range in.Tasks {
		t, err := s.findTask(cluster, ref)
		switch {
		case err == nil && t.visible():
			views = append(views, t.view(kind))
		case err == nil || errors.Is(err, errTaskNotFound):
			failures = append(failures, failure{ARN: s.taskARN(cluster, ref), Reason: "MISSING"})
		default:
			return nil, err
		}
	}
	return map[string]any{"tasks": views, "failures": failures}, nil
}

func (s *Server) taskARN(cluster, ref string) string {
	if strings.HasPrefix(ref, "arn:") {
		return ref
	}
	return s.arn("task/" + cluster + "/" + ref)
}

type listTasksInput struct {
	Cluster           string  `json:"cluster"`
	Family            string  `json:"family"`
	StartedBy         string  `json:"startedBy"`
	ServiceName       string  `json:"serviceName"`
	ContainerInstance string  `json:"containerInstance"`
	DesiredStatus     string  `json:"desiredStatus"`
	LaunchType        string  `json:"launchType"`
	MaxResults        *int    `json:"maxResults"`
	NextToken         *string `json:"nextToken"`
}

func (s *Server) listTasks(_ context.Context, in listTasksInput) (any, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	limit, after, err := in.page()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	cluster, err := s.clusterName(in.Cluster)
	if err != nil {
		return nil, err
	}
	s.forgetOld()
	arns := []string{}
	out := map[string]any{}
	for _, t := range s.order {
		if t.number <= after || t.cluster != cluster || !in.matches(t) {
			continue
		}
		if len(arns) == limit {
			out["nextToken"] = base64.StdEncoding.EncodeToString([]byte("after " + strconv.FormatInt(after, 10)))
			break
		}
		arns = append(arns, t.arn)
		after = t.number
	}
	out["taskArns"] = arns
	return out, nil
}

func (in listTasksInput) check() error {
	others := in.Family != "" || in.ServiceName != "" || in.ContainerInstance != "" || in.DesiredStatus != "" || in.LaunchType != ""
	switch {
	case in.StartedBy != "" && others:
		return invalid("startedBy must be the only filter.")
	case in.ServiceName != "" && in.Family != "":
		return invalid("family and serviceName cannot be used together.")
	case in.ServiceName != "":
		return clientError("ServiceNotFoundException", "Service not found.")
	case in.DesiredStatus != "" && !slices.Contains([]string{statusRunning, statusPending, statusStopped}, in.DesiredStatus):
		return invalid("desiredStatus must be one of RUNNING, PENDING, STOPPED.")
	}
	return nil
}

func (in listTasksInput) page() (limit int, after int64, err error) {
	limit = maxDescribe
	if in.MaxResults != nil {
		limit = *in.MaxResults
	}
	if limit < 1 || limit > maxDescribe {
		return 0, 0, invalid("maxResults must be between 1 and %d.", maxDescribe)
	}
	if in.NextToken == nil {
		return limit, 0, nil
	}
	text, err := base64.StdEncoding.DecodeString(*in.NextToken)
	number, ok := strings.CutPrefix(string(text), "after ")
	if err != nil || !ok {
		return 0, 0, invalid("Invalid token.")
	}
	if after, err = strconv.ParseInt(number, 10, 64); err != nil {
		return 0, 0, invalid("Invalid token.")
	}
	return limit, after, nil
}

// matches applies the filters; without a desired status, RUNNING is meant, and
// PENDING is no task's. Call with the lock held.
func (in listTasksInput) matches(t *task) bool {
	return t.visible() &&
		t.desiredStatus == cmpOr(in.DesiredStatus, statusRunning) &&
		(in.Family == "" || t.definition.Family == in.Family) &&
		(in.StartedBy == "" || t.input.StartedBy == in.StartedBy) &&
		(in.LaunchType == "" || in.LaunchType == "FARGATE") &&
		in.ContainerInstance == ""
}

func (s *Server) stopTask(_ context.Context, in struct {
	Cluster string `json:"cluster"`
	Task    string `json:"task"`
	Reason  string `json:"reason"`
}) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cluster, err := s.clusterName(in.Cluster)
	if err != nil {
		return nil, err
	}
	t, err := s.findTask(cluster, in.Task)
	if err != nil {
		return nil, err
	}
	if t.stopCode == "" {
		t.markStopping("UserInitiated", cmpOr(in.Reason, "Task stopped by user"))
		t.version++
		t.report()
		close(t.stopAsked)
	}
	return map[string]any{"task": t.view(viewPlain)}, nil
}

type executeCommandInput struct {
	Cluster     string `json:"cluster"`
	Task        string `json:"task"`
	Container   string `json:"container"`
	Command     string `json:"command"`
	Interactive bool   `json:"interactive"`
}

func (s *Server) executeCommand(ctx context.Context, in executeCommandInput) (any, error) {
	if !in.Interactive {
		return nil, errNotInteractive
	}
	if in.Command == "" {
		return nil, invalid("Command cannot be empty.")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	cluster, err := s.clusterName(in.Cluster)
	if err != nil {
		return nil, err
	}
	t, err := s.findTask(cluster, in.Task)
	if err != nil {
		return nil, err
	}
	if err := t.refusal(); err != nil {
		return nil, err
	}
	c, err := t.execTarget(in.Container)
	if err != nil {
		return nil, err
	}
	session := s.gateway.Open(c.agent, in.Command, func() Faults { return *t.faults.Load() })
	return map[string]any{
		"clusterArn": s.clusterARN(cluster), "taskArn": t.arn, "containerArn": c.arn, "containerName": c.definition.Name,
		"interactive": true,
		"session": map[string]string{
			"sessionId":  session.ID,
			"streamUrl":  s.gatewayURL(ctx) + "/v1/data-channel/" + session.ID + "?role=publish_subscribe",
			"tokenValue": session.Token,
		},
	}, nil
}

// execTarget finds the container and checks that its agent can be reached. Call
// with the lock held.
func (t *task) execTarget(name string) (*container, error) {
	if name == "" && len(t.containers) > 1 {
		return nil, invalid("The container name must be specified for a task with several containers.")
	}
	i := slices.IndexFunc(t.containers, func(c *container) bool { return name == "" || c.definition.Name == name })
	if i < 0 {
		return nil, invalid("The container %s was not found in the task.", name)
	}
	c := t.containers[i]
	status, _ := t.agentState(c)
	switch {
	case !t.input.EnableExecuteCommand || t.lastStatus != statusRunning || status != statusRunning:
		return nil, errExecNotEnabled
	case !c.agentConnected || t.cutOff(c) || t.faults.Load().NeverConnects:
		return nil, errNotConnected
	}
	return c, nil
}

// startReason is a start error as the agent words it, without our own prefix.
func startReason(err error) error {
	if e, ok := errors.AsType[*box.StartError](err); ok {
		return errors.New(e.Reason)
	}
	return err
}
