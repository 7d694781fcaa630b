package localfargate

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// tokenKey is what makes a client token unique.
type tokenKey struct{ cluster, token string }

// tokenUse remembers what a client token was used for.
type tokenUse struct {
	digest [sha256.Size]byte // of the request without the token
	tasks  []*task
	at     time.Time
}

const (
	maxTasksPerRun  = 10
	maxTags         = 50
	maxStartedBy    = 128
	maxClientToken  = 64
	maxOverrideSize = 8192
)

func (s *Server) runTask(_ context.Context, r rawInput[runTaskInput]) (any, error) {
	in := r.in
	count := 1
	if in.Count != nil {
		count = *in.Count
	}
	if err := checkRunTask(in, count, r.raw); err != nil {
		return nil, err
	}
	digest, err := requestDigest(r.raw)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	cluster, err := s.clusterName(in.Cluster)
	if err != nil {
		return nil, err
	}
	key := tokenKey{cluster, in.ClientToken}
	if used, ok := s.tokens[key]; ok && in.ClientToken != "" && time.Since(used.at) < s.opts.Habits.TokenLife {
		return used.again(digest)
	}
	d, err := s.findDefinition(in.TaskDefinition)
	if err != nil {
		return nil, err
	}
	if err := checkAgainst(d, in); err != nil {
		return nil, err
	}
	if !s.throttle.take(bucketLaunches, count, time.Now()) {
		return nil, errThrottled
	}
	if s.closed {
		return nil, &apiError{code: "ServerException", message: "Service Unavailable. Please try again later.", status: 500}
	}
	tasks := make([]*task, count)
	for i := range tasks {
		tasks[i] = s.launch(cluster, d, in)
	}
	s.clusters[cluster] = true
	if in.ClientToken != "" {
		s.tokens[key] = tokenUse{digest: digest, tasks: tasks, at: time.Now()}
	}
	return runTaskOutput(tasks), nil
}

func runTaskOutput(tasks []*task) any {
	views := []taskView{}
	for _, t := range tasks {
		views = append(views, t.view(viewTags))
	}
	return map[string]any{"tasks": views, "failures": []failure{}}
}

// again answers a repeated client token: the same tasks to the same request, a
// conflict that names them to another one.
func (u tokenUse) again(digest [sha256.Size]byte) (any, error) {
	if digest == u.digest {
		return runTaskOutput(u.tasks), nil
	}
	e := clientError("ConflictException", "The client token was used with other parameters.")
	for _, t := range u.tasks {
		e.resourceIDs = append(e.resourceIDs, t.arn)
	}
	return nil, e
}

// requestDigest identifies a request whatever the order of its members.
func requestDigest(raw []byte) ([sha256.Size]byte, error) {
	var members map[string]any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if err := decoder.Decode(&members); err != nil {
		return [sha256.Size]byte{}, fmt.Errorf("digest request: %w", err)
	}
	delete(members, "clientToken")
	canonical, err := json.Marshal(members)
	if err != nil {
		return [sha256.Size]byte{}, fmt.Errorf("digest request: %w", err)
	}
	return sha256.Sum256(canonical), nil
}

func checkRunTask(in runTaskInput, count int, raw json.RawMessage) error {
	switch {
	case in.TaskDefinition == "":
		return clientError("ClientException", "TaskDefinition not found.")
	case count < 1 || count > maxTasksPerRun:
		return invalid("Count should be between 1 and %d.", maxTasksPerRun)
	case len(in.StartedBy) > maxStartedBy || in.StartedBy != "" && !validName(strings.ReplaceAll(in.StartedBy, "/", "-")):
		return invalid("startedBy must be up to %d letters, numbers, hyphens, forward slashes and underscores.", maxStartedBy)
	case len(in.Tags) > maxTags:
		return invalid("The maximum number of tags is %d.", maxTags)
	case len(in.ClientToken) > maxClientToken || strings.ContainsFunc(in.ClientToken, func(r rune) bool { return r < 33 || r > 126 }):
		return invalid("clientToken must be up to %d printable ASCII characters.", maxClientToken)
	case in.LaunchType != "" && in.LaunchType != "FARGATE":
		return invalid("No Container Instances were found in your cluster.")
	case in.LaunchType != "" && len(in.CapacityProviders) > 0:
		return invalid("Specify either launchType or capacityProviderStrategy, not both.")
	}
	return checkOverrideSize(raw)
}

func checkOverrideSize(raw json.RawMessage) error {
	var in struct {
		Overrides json.RawMessage `json:"overrides"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return fmt.Errorf("measure overrides: %w", err)
	}
	if len(in.Overrides) > maxOverrideSize {
		return invalid("Container Overrides length must be at most %d", maxOverrideSize)
	}
	return nil
}

// checkAgainst compares a request with the definition it names.
func checkAgainst(d *definition, in runTaskInput) error {
	if d.NetworkMode == "awsvpc" && in.NetworkConfiguration == nil {
		return invalid("Network Configuration must be provided when networkMode 'awsvpc' is specified.")
	}
	for _, o := range in.Overrides.ContainerOverrides {
		known := slices.ContainsFunc(d.ContainerDefinitions, func(c containerDefinition) bool { return c.Name == o.Name })
		if !known {
			return invalid("Override for container named %s is not a container in the TaskDefinition.", o.Name)
		}
	}
	return nil
}

// launch makes one task and lets it run. Call with the lock held.
func (s *Server) launch(cluster string, d *definition, in runTaskInput) *task {
	s.started++
	t := &task{
		server: s, id: randomID(), cluster: cluster, number: s.started, definition: d, input: in,
		overrides: map[string]containerOverride{}, createdAt: time.Now(),
		stopAsked: make(chan struct{}), reclaimed: make(chan struct{}, 1), exited: make(chan struct{}, 1), done: make(chan struct{}),
		lastStatus: statusProvisioning, desiredStatus: statusRunning, version: 1,
	}
	t.arn = s.arn("task/" + cluster + "/" + t.id)
	t.tags = slices.Clone(in.Tags)
	if in.PropagateTags == "TASK_DEFINITION" {
		t.tags = mergeTags(slices.Clone(d.Tags), in.Tags)
	}
	for _, o := range in.Overrides.ContainerOverrides {
		t.overrides[o.Name] = o
	}
	t.faults.Store(new(s.faults))
	for _, c := range d.ContainerDefinitions {
		id := newUUID()
		t.containers = append(t.containers, &container{
			definition: c, id: id, arn: s.arn("container/" + cluster + "/" + t.id + "/" + id), lastStatus: statusPending, ended: make(chan struct{}),
		})
	}
	s.tasks[t.id] = t
	s.order = append(s.order, t)
	t.report()
	s.wg.Go(func() { t.run(s.ctx) })
	return t
}

func randomID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func newUUID() string {
	id := randomID()
	return id[:8] + "-" + id[8:12] + "-4" + id[13:16] + "-a" + id[17:20] + "-" + id[20:]
}
