package localfargate

import (
	"context"
	"sync"
)

// eventQueue hands events on one at a time, in order, without making the tasks
// wait for who takes them.
type eventQueue struct {
	sink func(context.Context, Event)

	mu      sync.Mutex
	queue   []Event
	arrived chan struct{}
	done    bool
}

func newEventQueue(sink func(context.Context, Event)) *eventQueue {
	return &eventQueue{sink: sink, arrived: make(chan struct{}, 1)}
}

func (q *eventQueue) add(e Event) {
	if q.sink == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.done {
		return
	}
	q.queue = append(q.queue, e)
	select {
	case q.arrived <- struct{}{}:
	default:
	}
}

// close lets no further event in.
func (q *eventQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.done = true
}

// deliver works until ctx ends; what is then undelivered is lost, as ECS promises
// no delivery.
func (q *eventQueue) deliver(ctx context.Context) {
	for {
		select {
		case <-q.arrived:
		case <-ctx.Done():
			return
		}
		for e, ok := q.take(); ok && ctx.Err() == nil; e, ok = q.take() {
			q.sink(ctx, e)
		}
	}
}

func (q *eventQueue) take() (Event, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		return Event{}, false
	}
	e := q.queue[0]
	q.queue = q.queue[1:]
	return e, true
}
