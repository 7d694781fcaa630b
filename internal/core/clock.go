package core

import (
	"sync/atomic"
	"time"
)

// clockAhead is by how much this process's clock is ahead of the stores', nanoseconds.
var clockAhead atomic.Int64

// CorrectClock has what this process writes and decides from now on be told by a clock
// that is behind its own by ahead: a host's clock may be wrong, and times of several
// writers are compared. Functions never call it: their clocks are the ones that count.
func CorrectClock(ahead time.Duration) { clockAhead.Store(int64(ahead)) }

// nowMillis is the time, corrected as [CorrectClock] was told. Nothing else here tells the
// time of a record.
func nowMillis() Millis { return MillisOf(time.Now().Add(-time.Duration(clockAhead.Load()))) }

// here is a time of the stores' by this process's own clock, for its timers.
func (m Millis) here() time.Time { return m.Time().Add(time.Duration(clockAhead.Load())) }
