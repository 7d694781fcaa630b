package localfargate

import (
	"maps"
	"sync"
)

// Metrics counts API calls by operation. A throttled call is in both maps.
type Metrics struct {
	Calls     map[string]int `json:"calls"`
	Throttled map[string]int `json:"throttled"`
	Errors    map[string]int `json:"errors"` // by error code
}

type callCounts struct {
	mu sync.Mutex
	m  Metrics
}

func newCallCounts() *callCounts {
	return &callCounts{m: Metrics{Calls: map[string]int{}, Throttled: map[string]int{}, Errors: map[string]int{}}}
}

func (c *callCounts) count(operation string, failed *apiError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m.Calls[operation]++
	if failed == nil {
		return
	}
	c.m.Errors[failed.code]++
	if failed == errThrottled {
		c.m.Throttled[operation]++
	}
}

// Metrics is a copy of the counts since Start.
func (s *Server) Metrics() Metrics {
	s.calls.mu.Lock()
	defer s.calls.mu.Unlock()
	return Metrics{
		Calls: maps.Clone(s.calls.m.Calls), Throttled: maps.Clone(s.calls.m.Throttled), Errors: maps.Clone(s.calls.m.Errors),
	}
}
