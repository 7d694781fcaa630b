package localfargate

import (
	"context"
	"slices"
	"strings"
)

// tagged finds the task whose tags an ARN means; tags of other resources are not
// kept. Call with the lock held.
func (s *Server) tagged(arn string) (*task, error) {
	rest, ok := strings.CutPrefix(arn, s.arn("task/"))
	cluster, _, hasCluster := strings.Cut(rest, "/")
	if !ok || !hasCluster {
		return nil, invalid("Long arn format must be used for tagging operations")
	}
	t, err := s.findTask(cluster, arn)
	if err != nil {
		return nil, clientError("ResourceNotFoundException", "The specified task is inactive.")
	}
	return t, nil
}

func (s *Server) tagResource(_ context.Context, in struct {
	ResourceARN string `json:"resourceArn"`
	Tags        []tag  `json:"tags"`
}) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.tagged(in.ResourceARN)
	if err != nil {
		return nil, err
	}
	merged := mergeTags(slices.Clone(t.tags), in.Tags)
	if len(merged) > maxTags {
		return nil, invalid("The maximum number of tags is %d.", maxTags)
	}
	t.tags = merged
	return struct{}{}, nil
}

func (s *Server) untagResource(_ context.Context, in struct {
	ResourceARN string   `json:"resourceArn"`
	TagKeys     []string `json:"tagKeys"`
}) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.tagged(in.ResourceARN)
	if err != nil {
		return nil, err
	}
	t.tags = slices.DeleteFunc(slices.Clone(t.tags), func(g tag) bool { return slices.Contains(in.TagKeys, g.Key) })
	return struct{}{}, nil
}

func (s *Server) listTagsForResource(_ context.Context, in struct {
	ResourceARN string `json:"resourceArn"`
}) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.tagged(in.ResourceARN)
	if err != nil {
		return nil, err
	}
	return map[string]any{"tags": orEmpty(t.tags)}, nil
}

// mergeTags adds tags to a list that it may change; a later value of a key wins.
func mergeTags(tags, more []tag) []tag {
	for _, g := range more {
		if i := slices.IndexFunc(tags, func(old tag) bool { return old.Key == g.Key }); i >= 0 {
			tags[i].Value = g.Value
		} else {
			tags = append(tags, g)
		}
	}
	return tags
}
