package localfargate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// definition is a registered task definition: what we act on, and all of it.
type definition struct {
	definitionInput
	revision   int
	arn        string
	raw        map[string]json.RawMessage
	registered time.Time
}

// rawInput keeps a request as it came, beside what we read of it.
type rawInput[I any] struct {
	in  I
	raw json.RawMessage
}

// UnmarshalJSON implements [json.Unmarshaler].
func (r *rawInput[I]) UnmarshalJSON(data []byte) error {
	r.raw = bytes.Clone(data)
	return json.Unmarshal(data, &r.in)
}

func (s *Server) registerTaskDefinition(_ context.Context, r rawInput[definitionInput]) (any, error) {
	in := r.in
	if !validName(in.Family) {
		return nil, clientError("ClientException", "Family contains invalid characters.")
	}
	if err := checkContainers(in.ContainerDefinitions); err != nil {
		return nil, err
	}
	raw := map[string]json.RawMessage{}
	if err := json.Unmarshal(r.raw, &raw); err != nil {
		return nil, err
	}
	delete(raw, "tags")
	s.mu.Lock()
	defer s.mu.Unlock()
	d := &definition{definitionInput: in, raw: raw, revision: len(s.definitions[in.Family]) + 1, registered: time.Now()}
	d.arn = s.arn(fmt.Sprintf("task-definition/%s:%d", in.Family, d.revision))
	s.definitions[in.Family] = append(s.definitions[in.Family], d)
	return map[string]any{"taskDefinition": d.view(), "tags": orEmpty(in.Tags)}, nil
}

func checkContainers(containers []containerDefinition) error {
	if len(containers) == 0 {
		return clientError("ClientException", "Container list cannot be empty.")
	}
	seen := map[string]bool{}
	for _, c := range containers {
		if !validName(c.Name) || seen[c.Name] {
			return clientError("ClientException", "Invalid 'containerDefinitions.name' setting for container '%s'.", c.Name)
		}
		seen[c.Name] = true
		if c.StopTimeout != nil && (*c.StopTimeout < 2 || *c.StopTimeout > 120) {
			return clientError("ClientException", "Invalid 'stopTimeout' setting for container '%s'. It must be between 2 and 120.", c.Name)
		}
	}
	return nil
}

func (d *definition) view() map[string]any {
	out := map[string]any{}
	for name, value := range maps.All(d.raw) {
		out[name] = value
	}
	out["taskDefinitionArn"] = d.arn
	out["revision"] = d.revision
	out["status"] = "ACTIVE"
	out["registeredAt"] = stamp{time: d.registered}
	out["compatibilities"] = []string{"EC2", "FARGATE"}
	return out
}

func (s *Server) describeTaskDefinition(_ context.Context, in struct {
	TaskDefinition string   `json:"taskDefinition"`
	Include        []string `json:"include"`
}) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, err := s.findDefinition(in.TaskDefinition)
	if err != nil {
		return nil, clientError("ClientException", "Unable to describe task definition.")
	}
	out := map[string]any{"taskDefinition": d.view()}
	if hasTags(in.Include) {
		out["tags"] = orEmpty(d.Tags)
	}
	return out, nil
}

// findDefinition takes a family, family:revision or ARN. Call with the lock held.
func (s *Server) findDefinition(ref string) (*definition, error) {
	if strings.HasPrefix(ref, "arn:") {
		rest, ok := strings.CutPrefix(ref, s.arn("task-definition/"))
		if !ok {
			return nil, clientError("ClientException", "TaskDefinition not found.")
		}
		ref = rest
	}
	family, revision, hasRevision := strings.Cut(ref, ":")
	all := s.definitions[family]
	n := len(all)
	if hasRevision {
		var err error
		if n, err = strconv.Atoi(revision); err != nil {
			return nil, clientError("ClientException", "Invalid revision number. Number: %s", revision)
		}
	}
	if n < 1 || n > len(all) {
		return nil, clientError("ClientException", "TaskDefinition not found.")
	}
	return all[n-1], nil
}

func validName(name string) bool {
	if name == "" || len(name) > 255 {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}

func hasTags(include []string) bool {
	return slices.Contains(include, "TAGS")
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
