package datachannel

import (
	"math/rand/v2"
	"sync"
	"time"
)

// chances are the rates of one direction.
type chances struct{ loss, duplicate, reorder float64 }

// overtakeLimit is how long a held frame waits for another to overtake it.
const overtakeLimit = 50 * time.Millisecond

// link is one direction between a client and an agent, faults included.
type link struct {
	rates func() chances

	mu   sync.Mutex
	rand *rand.Rand
	held func() // a frame that waits to be overtaken
}

func newLink(rates func() chances, seed, stream uint64) *link {
	return &link{rates: rates, rand: rand.New(rand.NewPCG(seed, stream))}
}

// pass delivers a frame no, one or two times, at once or after the next one. The
// deliver function must not wait for the link.
func (l *link) pass(deliver func()) {
	c := l.rates()
	if c == (chances{}) && !l.holding() {
		deliver()
		return
	}
	l.mu.Lock()
	lost, twice, late := l.rand.Float64() < c.loss, l.rand.Float64() < c.duplicate, l.rand.Float64() < c.reorder
	overtaken := l.held
	l.held = nil
	if late && !lost && overtaken == nil {
		l.held = deliver
		time.AfterFunc(overtakeLimit, l.release)
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	if !lost {
		deliver()
	}
	if twice && !lost {
		deliver()
	}
	if overtaken != nil {
		overtaken()
	}
}

func (l *link) holding() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held != nil
}

// release lets a held frame go that nothing overtook.
func (l *link) release() {
	l.mu.Lock()
	held := l.held
	l.held = nil
	l.mu.Unlock()
	if held != nil {
		held()
	}
}
