// Package mem keeps every record that core's store ports speak of in memory, for
// tests. Its rule is that it answers exactly as the real stores do, and says more:
// it fails calls on demand in the ways a network does, it stops a process at any
// call, it shows a lagging index, and it accuses a caller, through testing.TB, of
// what no error would report.
package mem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// ErrStopped is what every call of a process answers once its plan stopped it.
var ErrStopped = errors.New("process stopped")

// ErrInjected is the cause in every error that a plan injected.
var ErrInjected = errors.New("injected fault")

// Fault is what befalls one call.
type Fault int

const (
	// None lets the call through.
	None Fault = iota
	// NotLanded fails the call; it changes nothing.
	NotLanded
	// AnswerLost fails the call after it was carried out.
	AnswerLost
	// StopBefore ends the process: this call and every later one change nothing and
	// answer ErrStopped.
	StopBefore
	// StopAfter ends the process after this call was carried out; it and every later
	// one answer ErrStopped.
	StopAfter
)

func (f Fault) String() string {
	return [...]string{"none", "not landed", "answer lost", "stop before", "stop after"}[f]
}

// Faults is the plan of one process. The zero value injects nothing.
type Faults struct {
	// At gives the fault of the nth call, counted from 1.
	At map[int]Fault
	// Choose, if set, gives it instead, under the process's lock.
	Choose func(name string) Fault
	// Before, if set, is called before each call, without any lock: another process
	// may run in it.
	Before func(ctx context.Context, name string)
}

// At plans one fault, at the nth call.
func At(n int, f Fault) Faults { return Faults{At: map[int]Fault{n: f}} }

// Between plans that do comes before the nth call, of a process that may make several side
// by side.
func Between(n int, do func(ctx context.Context)) Faults {
	var calls atomic.Int64
	return Faults{Before: func(ctx context.Context, _ string) {
		if calls.Add(1) == int64(n) {
			do(ctx)
		}
	}}
}

// Store is the state that processes share. It is itself a process without faults,
// so it can be passed wherever a port is asked for.
type Store struct {
	*Process

	t           testing.TB
	mu          sync.Mutex
	runs        map[core.RunKey]core.Run
	segments    map[core.RunKey][]core.Segment // by From
	boxes       map[core.SandboxKey]core.Sandbox
	rows        map[core.InstanceID]core.LedgerRow
	blobs       map[string][]byte
	jobs        []core.ReclaimJob
	control     core.Control
	audit       []core.AuditEntry
	notes       map[core.RunKey]core.Note
	spoiled     map[core.RunKey]error
	cursors     map[int]core.Cursor
	taken       map[core.Millis]int
	spooled     map[core.RunKey]core.SpoolSpend
	secrets     map[string]string
	definitions []core.Definition
	shelf       shelf
	stamps      map[string]stamp // of blobs
	leaves      map[string]leave // by a grant's URL
	objects     int              // counts what was stored, for versions

	version int // counts changes, for the index's lag
	lag     int
	runLog  map[core.RunKey][]change[core.IndexEntry]
	boxLog  map[core.SandboxKey][]change[core.DueSandbox]
	rowLog  map[core.InstanceID][]change[core.DueSandbox]
}

// New returns an empty store that accuses through t.
func New(t testing.TB) *Store {
	s := &Store{
		t:        t,
		runs:     map[core.RunKey]core.Run{},
		segments: map[core.RunKey][]core.Segment{},
		boxes:    map[core.SandboxKey]core.Sandbox{},
		rows:     map[core.InstanceID]core.LedgerRow{},
		blobs:    map[string][]byte{},
		notes:    map[core.RunKey]core.Note{},
		spoiled:  map[core.RunKey]error{},
		cursors:  map[int]core.Cursor{},
		taken:    map[core.Millis]int{},
		spooled:  map[core.RunKey]core.SpoolSpend{},
		secrets:  map[string]string{},
		shelf:    newShelf(),
		stamps:   map[string]stamp{},
		leaves:   map[string]leave{},
		runLog:   map[core.RunKey][]change[core.IndexEntry]{},
		boxLog:   map[core.SandboxKey][]change[core.DueSandbox]{},
		rowLog:   map[core.InstanceID][]change[core.DueSandbox]{},
	}
	s.Process = s.NewProcess(Faults{})
	return s
}

// Process is one process's view of a store: every port of core, behind one gate
// that counts the process's calls and injects its faults.
//
// It accuses (t.Errorf) a caller that changes an ended run otherwise than by its
// reclaim mark, lets an epoch or a log's end go back, unseals a log, takes back an
// ending or a cancel, clears detachedSince without being a host, leaves a run that
// has not ended outside every index, revives a ledger row or changes its task,
// appends a segment that does not match its append or whose blob is not stored, or
// sends an end's message before the end.
type Process struct {
	s      *Store
	faults Faults

	mu      sync.Mutex
	stopped bool
	calls   []string
	writes  []string
}

var (
	_ core.Runs                = (*Process)(nil)
	_ core.RunLog              = (*Process)(nil)
	_ core.RunIndex            = (*Process)(nil)
	_ core.Sandboxes           = (*Process)(nil)
	_ core.Ledger              = (*Process)(nil)
	_ core.SandboxTransactions = (*Process)(nil)
	_ core.SandboxIndex        = (*Process)(nil)
	_ core.Blobs               = (*Process)(nil)
	_ core.ReclaimQueue        = (*Process)(nil)
	_ core.Controls            = (*Process)(nil)
	_ core.ControlWriter       = (*Process)(nil)
	_ core.AuditLog            = (*Process)(nil)
	_ core.Notes               = (*Process)(nil)
	_ core.Cursors             = (*Process)(nil)
	_ core.Budget              = (*Process)(nil)
)

// NewProcess returns another process on the same state, with its own plan.
func (s *Store) NewProcess(faults Faults) *Process { return &Process{s: s, faults: faults} }

// Calls lists the names of the calls made so far, in order, a refused or failed
// one included.
func (p *Process) Calls() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// Writes lists what this process has changed so far, in order.
func (p *Process) Writes() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.writes)
}

// Stopped reports whether the plan has stopped the process.
func (p *Process) Stopped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped
}

// Call passes do through the process's gate under name. Fakes of other ports use
// it, so that one plan counts all of a process's calls. do is called at most once.
func (p *Process) Call(ctx context.Context, name string, do func() error) error {
	fault, err := p.enter(ctx, name)
	if err != nil {
		return err
	}
	if fault == NotLanded {
		return fmt.Errorf("%s: %w (%s)", name, ErrInjected, fault)
	}
	err = do()
	switch fault {
	case AnswerLost:
		return fmt.Errorf("%s: %w (%s)", name, ErrInjected, fault)
	case StopAfter:
		return fmt.Errorf("%s: %w", name, ErrStopped)
	default:
		return err
	}
}

// Plan has f befall the next call, whoever makes it.
func (p *Process) Plan(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.faults.At == nil {
		p.faults.At = map[int]Fault{}
	}
	p.faults.At[len(p.calls)+1] = f
}

// enter counts a call and tells its fault.
func (p *Process) enter(ctx context.Context, name string) (Fault, error) {
	if p.faults.Before != nil {
		p.faults.Before(ctx, name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return None, fmt.Errorf("%s: %w", name, ErrStopped)
	}
	if err := ctx.Err(); err != nil {
		return None, fmt.Errorf("%s: %w", name, err)
	}
	p.calls = append(p.calls, name)
	fault := p.faults.At[len(p.calls)]
	if p.faults.Choose != nil {
		fault = p.faults.Choose(name)
	}
	p.stopped = fault == StopBefore || fault == StopAfter
	if fault == StopBefore {
		return fault, fmt.Errorf("%s: %w", name, ErrStopped)
	}
	return fault, nil
}

// get passes a read through the gate.
func get[T any](ctx context.Context, p *Process, name string, read func(s *Store) (T, error)) (T, error) {
	var out, none T
	err := p.Call(ctx, name, func() error {
		p.s.mu.Lock()
		defer p.s.mu.Unlock()
		var err error
		out, err = read(p.s)
		return err
	})
	if err != nil {
		return none, err
	}
	return out, nil
}

// wrote notes a change; the store's lock is held.
func (p *Process) wrote(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes = append(p.writes, name)
}

// change is what an index showed from a version on; gone if nothing.
type change[E any] struct {
	version int
	entry   E
	gone    bool
}

// shown is what a listing of an index that lags sees of one record.
func shown[E any](log []change[E], version int) (E, bool) {
	var none E
	for _, c := range slices.Backward(log) {
		if c.version <= version {
			return c.entry, !c.gone
		}
	}
	return none, false
}

// SetIndexLag lets every index show the state before the last n changes, all
// records counted: rows that are gone still stand there, new ones do not yet.
func (s *Store) SetIndexLag(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lag = n
}
