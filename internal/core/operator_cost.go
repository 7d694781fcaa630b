package core

import "time"

// Prices are Fargate's list prices, dollars an hour.
type Prices struct{ VCPU, GB, PublicIPv4 float64 }

// The list prices of us-east-1, https://aws.amazon.com/fargate/pricing/ and
// https://aws.amazon.com/vpc/pricing/, as of November 2026.
var (
	PricesX86 = Prices{VCPU: 0.04048, GB: 0.004445, PublicIPv4: 0.005}
	PricesARM = Prices{VCPU: 0.03238, GB: 0.00356, PublicIPv4: 0.005}
)

// TaskSize is what Fargate charges a task for.
type TaskSize struct {
	VCPU, GB   float64
	ARM        bool
	PublicIPv4 bool
}

// Hourly is the price of an hour of such a task, dollars.
func (s TaskSize) Hourly() float64 {
	p := PricesX86
	if s.ARM {
		p = PricesARM
	}
	price := s.VCPU*p.VCPU + s.GB*p.GB
	if s.PublicIPv4 {
		price += p.PublicIPv4
	}
	return price
}

// leastBilled is what Fargate charges at least.
const leastBilled = time.Minute

// Cost is the price of a task of that size for that long, dollars.
func (s TaskSize) Cost(d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return s.Hourly() * max(d, leastBilled).Hours()
}

// RunTime is how long a run has had its task: from its start to its end, or to now.
// A run that never had a task has none.
func RunTime(r Run, now Millis) time.Duration {
	switch {
	case r.TaskARN == "" || r.StartedAt == 0:
		return 0
	case r.Status.Terminal() && r.FinishedAt != 0:
		return max(0, r.FinishedAt.Sub(r.StartedAt))
	}
	return max(0, now.Sub(r.StartedAt))
}

// SavedTime is how much longer the task of an ended run would have lived under a
// cleaner that knows nothing but the time that a run may stay detached: from its
// agent's own end up to then. A run that nobody left, or that did not end by itself,
// saved nothing.
func SavedTime(r Run, l Limits) time.Duration {
	if r.DetachedSince == 0 || r.FinishedAt == 0 || r.Sealed == nil || r.Ending != nil || !r.Status.Terminal() {
		return 0
	}
	return max(0, r.DetachedSince.Add(seconds(r.TTLSeconds, l.RunTTL)).Sub(r.FinishedAt))
}
