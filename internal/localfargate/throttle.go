package localfargate

import (
	"sync"
	"time"
)

// Throttle sets the request limits. The zero value means the real ones.
type Throttle struct {
	Off   bool
	Scale float64 // multiplies bursts and rates; 0 is 1
}

// bucket refills with time and is emptied by calls.
type bucket struct {
	burst, rate float64 // calls, calls a second
	left        float64
	at          time.Time
}

// throttle holds the buckets of one account and region. Calls of a kind share one
// ("Request throttling" in the ECS API reference); RunTask draws on three.
type throttle struct {
	mu      sync.Mutex
	off     bool
	buckets map[string]*bucket
}

// Buckets of the ECS API.
const (
	bucketResourceModify = "cluster resource modify"
	bucketResourceRead   = "cluster resource read"
	bucketClusterRead    = "cluster read"
	bucketRunTaskCalls   = "fargate run task calls"
	bucketLaunches       = "fargate task launches"
	bucketDefinitionRead = "task definition read"
	bucketRegister       = "task definition registration"
)

func newThrottle(t Throttle, now time.Time) *throttle {
	scale := t.Scale
	if scale <= 0 {
		scale = 1
	}
	limits := map[string][2]float64{
		bucketResourceModify: {100, 40},
		bucketResourceRead:   {100, 20},
		bucketClusterRead:    {50, 20},
		bucketRunTaskCalls:   {20, 20},
		bucketLaunches:       {100, 20},
		bucketDefinitionRead: {50, 20},
		bucketRegister:       {20, 1},
	}
	out := &throttle{off: t.Off, buckets: map[string]*bucket{}}
	for name, l := range limits {
		out.buckets[name] = &bucket{burst: l[0] * scale, rate: l[1] * scale, left: l[0] * scale, at: now}
	}
	return out
}

// take draws n calls from a bucket, wholly or not at all.
func (t *throttle) take(name string, n int, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.buckets[name]
	if t.off || b == nil {
		return true
	}
	b.left = min(b.burst, b.left+now.Sub(b.at).Seconds()*b.rate)
	b.at = now
	if b.left < float64(n) {
		return false
	}
	b.left -= float64(n)
	return true
}
