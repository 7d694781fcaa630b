package datachannel

import (
	"sync"
	"time"
)

// Retransmission as both real ends do it: only the oldest unacknowledged message
// is looked at, every resendTick.
const (
	resendTick      = 100 * time.Millisecond
	firstTimeout    = 200 * time.Millisecond
	firstRoundTrip  = 100 * time.Millisecond
	longestTimeout  = time.Second
	clockStep       = 10 * time.Millisecond
	outgoingLimit   = 100_000 // beyond it messages are sent but not kept
	incomingLimit   = 100_000
	roundTripWeight = 8 // the newest sample counts for 1/8
	deviationWeight = 4
)

// pending is a message that was sent and not acknowledged.
type pending struct {
	sequence int64
	data     []byte
	sent     time.Time
}

// outgoing numbers and keeps messages until they are acknowledged.
type outgoing struct {
	mu        sync.Mutex
	next      int64
	kept      []*pending
	roundTrip time.Duration
	deviation time.Duration
	timeout   time.Duration
}

func newOutgoing() *outgoing {
	return &outgoing{roundTrip: firstRoundTrip, timeout: firstTimeout}
}

// add gives the next number to a message that build makes, and keeps it.
func (o *outgoing) add(now time.Time, build func(sequence int64) []byte) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	data := build(o.next)
	if len(o.kept) < outgoingLimit {
		o.kept = append(o.kept, &pending{sequence: o.next, data: data, sent: now})
	}
	o.next++
	return data
}

// acknowledged forgets a message and learns from its round trip.
func (o *outgoing) acknowledged(sequence int64, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, p := range o.kept {
		if p.sequence == sequence {
			o.learn(now.Sub(p.sent))
			o.kept = append(o.kept[:i], o.kept[i+1:]...)
			return
		}
	}
}

func (o *outgoing) learn(sample time.Duration) {
	o.deviation += (max(sample-o.roundTrip, o.roundTrip-sample) - o.deviation) / deviationWeight
	o.roundTrip += (sample - o.roundTrip) / roundTripWeight
	o.timeout = min(o.roundTrip+max(clockStep, 4*o.deviation), longestTimeout)
}

// due returns the oldest message if its timeout passed, and counts it as sent.
func (o *outgoing) due(now time.Time) ([]byte, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.kept) == 0 || now.Sub(o.kept[0].sent) < o.timeout {
		return nil, false
	}
	o.kept[0].sent = now
	return o.kept[0].data, true
}

func (o *outgoing) empty() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.kept) == 0
}
