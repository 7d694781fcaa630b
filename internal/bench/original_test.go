package bench_test

import "time"

// original is the system that this one re-implements, as the calls and waits of its
// sweep: one run after another, each call taking as long as every other. The numbers
// in the comments are those of the rules that it follows. It keeps nothing but how
// long the log is; what it would compute takes no time.
type original struct {
	call time.Duration
	log  int // chunks that are stored
	done int
}

// What the original is configured with, where its user says nothing.
const (
	originalBatch   = 25              // RP-1: runs of one sweep
	originalQuiet   = 5 * time.Second // CL-10: a window of quiescence
	originalWindows = 6               // CL-10: windows at most
	originalRecheck = 32              // CL-5: appends between two looks at the epoch
)

func (o *original) io() { time.Sleep(o.call) }

// sweep finalises up to a batch of finished runs, each with so many chunks.
func (o *original) sweep(runs, chunks int) {
	o.io() // RP-1: it lists once
	for range min(runs, originalBatch) {
		o.finalize(chunks) // RP-1: one after another
		o.done++
	}
}

// finalize is a detached run whose agent has ended, from the probe to the end of its
// sandbox.
func (o *original) finalize(chunks int) {
	o.log = 0
	o.io() // RP-2, JN-17: the probe
	o.io() // CL-1: the run's lock
	o.io() // CL-2: read the record
	o.io() // CL-2: write the epoch
	o.quiesce()
	o.drive(chunks)
	o.io() // CL-1: give the lock back
	o.io() // RC-2: read the instance record
	o.io() // RC-2: destroy
	o.io() // RC-2: delete the instance record
}

// quiesce waits until the log stands still: two lengths, a window apart, that are
// equal (CL-10). Nobody else writes here, so it is one window.
func (o *original) quiesce() {
	length := o.length()
	for range originalWindows {
		time.Sleep(originalQuiet)
		next := o.length()
		if next == length {
			return
		}
		length = next
	}
}

func (o *original) length() int {
	o.io()
	return o.log
}

// drive replays the journal into the log and closes the run. The sentinel is in what
// the first read brings, so no poll is waited for (JN-12).
func (o *original) drive(chunks int) {
	o.io() // DR-9: create or resume the record
	o.io() // AL-1: the stored log
	o.io() // AT-1: the journal is there
	o.io() // JN-11: read it
	o.io() // JN-20: delete both files
	for n := range chunks {
		if n%originalRecheck == 0 {
			o.io() // CL-5: the stored epoch, at the first append and every 32nd after it
		}
		o.io() // DR-3: one chunk
		o.log++
	}
	o.io() // CL-7: the epoch, before a terminal write
	o.io() // DR-7: the terminal write
	o.io() // DR-7: close the log
	o.io() // DR-7: read the record again
}

// capture is a workspace with so many files, each of which is new.
func (o *original) capture(files int) {
	o.io() // SN-17: the thread's lease
	for range files {
		o.io() // SN-7: a head request, which finds nothing
		o.io() // SN-7: the put
	}
	o.io() // SO-2: read the head
	o.io() // CP-5: append
}
