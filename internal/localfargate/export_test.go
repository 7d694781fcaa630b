package localfargate

import "time"

// Limits is a set of buckets, for tests.
type Limits struct{ t *throttle }

// NewLimits fills the buckets now.
func NewLimits(t Throttle) Limits { return Limits{newThrottle(t, time.Now())} }

// Pass makes n calls of an operation one after the other, now, and counts those that
// its buckets let pass.
func (l Limits) Pass(operation string, n int) (passed int) {
	for range n {
		ok := true
		for _, bucket := range operations[operation].buckets {
			ok = ok && l.t.take(bucket, 1, time.Now())
		}
		if ok {
			passed++
		}
	}
	return passed
}

// Launch draws on the bucket of task launches.
func (l Limits) Launch(tasks int) bool { return l.t.take(bucketLaunches, tasks, time.Now()) }
