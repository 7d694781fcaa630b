package localfargate

import (
	"context"
	"slices"
	"strings"
)

// clusterName reads a cluster parameter, a name or an ARN, and checks that the
// cluster exists. Call with the lock held.
func (s *Server) clusterName(ref string) (string, error) {
	name := ref
	switch {
	case ref == "":
		name = "default"
	case strings.HasPrefix(ref, "arn:"):
		rest, ok := strings.CutPrefix(ref, s.arn("cluster/"))
		if !ok {
			return "", invalid("Invalid identifier: Identifier is for %s. Your region is %s.", ref, s.opts.Region)
		}
		name = rest
	}
	if !validName(name) {
		return "", invalid("Cluster name contains invalid characters.")
	}
	if len(s.opts.Clusters) > 0 && !s.clusters[name] {
		return "", errClusterNotFound
	}
	return name, nil
}

func (s *Server) createCluster(_ context.Context, in struct {
	ClusterName string `json:"clusterName"`
}) (any, error) {
	name := cmpOr(in.ClusterName, "default")
	if !validName(name) {
		return nil, invalid("Cluster name contains invalid characters.")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clusters[name] = true
	return map[string]any{"cluster": s.clusterView(name)}, nil
}

func (s *Server) describeClusters(_ context.Context, in struct {
	Clusters []string `json:"clusters"`
}) (any, error) {
	if len(in.Clusters) == 0 {
		in.Clusters = []string{"default"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found, failures := []any{}, []failure{}
	for _, ref := range in.Clusters {
		name, err := s.clusterName(ref)
		if err != nil {
			arn := ref
			if !strings.HasPrefix(ref, "arn:") {
				arn = s.clusterARN(ref)
			}
			failures = append(failures, failure{ARN: arn, Reason: "MISSING"})
			continue
		}
		found = append(found, s.clusterView(name))
	}
	return map[string]any{"clusters": found, "failures": failures}, nil
}

// clusterView is a cluster with its counts. Call with the lock held.
func (s *Server) clusterView(name string) map[string]any {
	running, waiting := 0, 0
	for _, t := range s.order {
		switch {
		case t.cluster != name:
		case t.lastStatus == statusRunning:
			running++
		case slices.Contains([]string{statusProvisioning, statusPending}, t.lastStatus):
			waiting++
		}
	}
	return map[string]any{
		"clusterArn": s.clusterARN(name), "clusterName": name, "status": "ACTIVE",
		"runningTasksCount": running, "pendingTasksCount": waiting,
		"activeServicesCount": 0, "registeredContainerInstancesCount": 0,
		"statistics": []any{}, "tags": []any{}, "settings": []any{},
		"capacityProviders": []string{"FARGATE"}, "defaultCapacityProviderStrategy": []any{},
	}
}
