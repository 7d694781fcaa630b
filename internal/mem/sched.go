package mem

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Sched lets processes on one store and cluster go one call at a time, in the
// order that its user picks, so that a schedule can be carried out again exactly.
//
// It also tells states apart: [Sched.Digest] covers everything that decides what
// may still happen, with random ids replaced by who minted them, so that two
// schedules that lead to one state have one digest.
type Sched struct {
	store  *Store
	fleet  *Fleet
	begun  core.Millis
	names  map[string]string // of random ids
	digest map[string]uint64 // of each part of the state

	scratch []byte
}

// Actor is one process under a schedule.
type Actor struct {
	Name string
	// Ready, if set, tells whether its next call may be made now.
	Ready func() bool

	process *Process
	plan    map[int]Fault
	next    func() (string, bool)
	stop    func()
	waits   string
	begun   bool
	over    bool
	history uint64
	minted  int
}

// NewSched schedules what happens on f and its store.
func NewSched(f *Fleet) *Sched {
	s := &Sched{store: f.store, fleet: f, begun: core.MillisOf(time.Now()), names: map[string]string{}, digest: map[string]uint64{}}
	s.look(&Actor{Name: "seed"}, "")
	return s
}

// unscheduled marks a context whose calls belong to the one before them.
type unscheduled struct{}

// Unscheduled returns a context under which calls are part of the caller's
// previous one: a schedule does not stop before them.
func Unscheduled(ctx context.Context) context.Context {
	return context.WithValue(ctx, unscheduled{}, true)
}

// Go adds an actor, which has not begun. Everything that it will do through p waits
// for [Sched.Step]; act must start no goroutine that uses p. Actors of one name must
// act alike.
func (s *Sched) Go(name string, act func(p *Process)) *Actor {
	a := &Actor{Name: name, plan: map[int]Fault{}, history: maphash.String(seed, name)}
	a.process = s.store.NewProcess(Faults{At: a.plan})
	a.next, a.stop = iter.Pull(func(yield func(string) bool) {
		a.process.faults.Before = func(ctx context.Context, call string) {
			if a.process.Stopped() || ctx.Value(unscheduled{}) != nil {
				return
			}
			if !yield(call) {
				a.process.kill()
			}
		}
		act(a.process)
	})
	return a
}

func (a *Actor) advance() {
	call, ok := a.next()
	a.waits, a.over = call, !ok
}

// Waits is the call that the actor is about to make, "" before it begins and once
// it is over.
func (a *Actor) Waits() string { return a.waits }

// Begin lets the actor come to its first call. What it does before that, such as
// looking at the clock, it does now.
func (a *Actor) Begin() {
	a.begun = true
	a.advance()
}

// Begun reports whether the actor has begun.
func (a *Actor) Begun() bool { return a.begun }

// Over reports whether the actor has come to its end or was stopped.
func (a *Actor) Over() bool { return a.over }

// Close ends the actor: each call that it still makes answers ErrStopped.
func (a *Actor) Close() { a.stop() }

// Step carries out the call that a waits for, with that fault, and lets a come to
// its next one.
func (s *Sched) Step(a *Actor, f Fault) {
	call := a.waits
	a.history = s.Told(a, call, f)
	n := len(a.process.Calls()) + 1
	a.plan[n] = f
	a.advance()
	delete(a.plan, n)
	if !ReadsOnly(call) {
		s.look(a, call)
	}
}

// Told is what a will have been told once a call was made with that fault now. It
// decides alone how a goes on from there.
func (s *Sched) Told(a *Actor, call string, f Fault) uint64 {
	return mix(a.history, maphash.String(seed, call), uint64(f), s.now(), s.seen(call))
}

// Standing is where an actor stands.
type Standing struct {
	Told  uint64 // a digest of its name and all it has been told
	Waits string // the call it is about to make
	Over  bool   // nothing remembers what it was told
}

// Standing is where a stands.
func (a *Actor) Standing() Standing { return Standing{Told: a.history, Waits: a.waits, Over: a.over} }

// now is the time since the schedule began, in milliseconds.
func (s *Sched) now() uint64 { return uint64(core.MillisOf(time.Now()) - s.begun) }

// kill ends a process as StopBefore does.
func (p *Process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
}

// reads lists, for calls that change nothing, the parts of the state that decide
// their answer; writes the parts that decide, or are changed by, other calls. A call
// in neither is taken to have to do with everything.
var (
	reads = map[string][]string{
		"read run": {"runs"}, "load runs": {"runs"}, "list detached": {"runs"}, "list due": {"runs"},
		"list segments": {"runs", "segments"}, "read blob": {"blobs"}, "read note": {"notes"}, "read cursor": {"cursors"},
		"read sandbox": {"boxes"}, "read ledger row": {"rows"}, "list due sandboxes": {"boxes", "rows"},
		"read control": {"control"}, "describe tasks": {"fleet"}, "list tasks": {"fleet"}, "list living tasks": {"fleet"}, "list journals": {"fleet"}, "probe": {"fleet"}, "page": {"fleet"},
	}
	writes = map[string][]string{
		"run task": {"fleet"}, "stop task": {"fleet"}, "start agent": {"fleet"}, "terminate": {"fleet"}, "remove journals": {"fleet"},
		"send reclaim jobs": {}, "audit": {}, "put blob": {"blobs"}, "note": {"notes"}, "move cursor": {"cursors"}, "take budget": {"taken"},
		"mark reclaiming": {"boxes"}, "unmark": {"boxes"}, "mark idle": {"boxes"},
		"put intent": {"rows"}, "stop launch": {"rows"}, "close row": {"rows"}, "name task": {"rows"}, "postpone": {"rows"},
		"create run": {"runs"}, "renew": {"runs"}, "detach": {"runs"}, "lapse": {"runs"}, "cancel due": {"runs"},
		"attach": {"runs"}, "claim": {"runs"}, "release": {"runs"}, "append": {"runs", "segments"}, "finish": {"runs"},
		"interrupt": {"runs"}, "cancel": {"runs"}, "hint": {"runs"}, "reclaim done": {"runs"}, "reclaim later": {"runs"},
		"name instance": {"runs"}, "hold": {"runs"}, "extend": {"runs"},
		"launched": {"rows", "boxes", "runs"}, "condemn": {"rows", "boxes"},
		"freeze": {"control"}, "thaw": {"control"}, "set mode": {"control"}, "count ends": {"control"},
	}
)

// ReadsOnly reports whether a call changes nothing, whatever it answers: losing its
// answer is then the same as losing the call.
func ReadsOnly(call string) bool {
	_, ok := reads[call]
	return ok
}

// judged lists the parts on which, beside their answer, the rules depend that such a
// call is judged by.
var judged = map[string][]string{
	"start agent": {"runs"}, "terminate": {"runs"}, "stop task": {"runs", "rows"},
}

// Conflict reports whether the order of two calls may matter: one changes what the
// other changes or is answered from. Calls that are not known conflict with all.
func Conflict(a, b string) bool {
	if ReadsOnly(a) && ReadsOnly(b) {
		return false
	}
	of, known := partsOf(a)
	with, other := partsOf(b)
	return !known || !other || slices.ContainsFunc(of, func(part string) bool { return slices.Contains(with, part) })
}

func partsOf(call string) ([]string, bool) {
	parts, ok := reads[call]
	if !ok {
		parts, ok = writes[call]
	}
	return append(slices.Clip(parts), judged[call]...), ok
}

// seen is a digest of what decides the answer of a call.
func (s *Sched) seen(call string) uint64 {
	parts, ok := reads[call]
	if !ok {
		parts, ok = writes[call]
	}
	if !ok {
		return s.whole()
	}
	var sum uint64
	for _, part := range parts {
		sum = mix(sum, s.digest[part])
	}
	return sum
}

func (s *Sched) whole() uint64 {
	var sum uint64
	for part, digest := range s.digest {
		sum ^= mix(maphash.String(seed, part), digest)
	}
	return sum
}

// Digest is what the store and the cluster hold, and the time.
func (s *Sched) Digest() uint64 { return mix(s.whole(), s.now()) }

// Digest is where an actor stands; who tells actors apart.
func (t Standing) Digest(who int) uint64 {
	if t.Over {
		return mix(uint64(who), 1)
	}
	return mix(uint64(who), t.Told, maphash.String(seed, t.Waits))
}

// Mix digests numbers in their order.
func Mix(numbers ...uint64) uint64 { return mix(0, numbers...) }

// Known reports whether it is known what a call may change.
func Known(call string) bool {
	_, known := partsOf(call)
	return known
}

var seed = maphash.MakeSeed()

func mix(sum uint64, more ...uint64) uint64 {
	for _, m := range more {
		sum = (sum ^ m) * 0x9e3779b97f4a7c15
		sum ^= sum >> 29
	}
	return sum
}

// incidental are the parts of a store that decide nothing: bookkeeping of the fake,
// and the queue, which whoever schedules empties after each step.
var incidental = []string{"Process", "t", "mu", "version", "lag", "runLog", "boxLog", "rowLog", "audit", "jobs"}

// parts are the decisive fields of a store, by name.
var parts = func() map[string]int {
	out := map[string]int{}
	for field := range reflect.TypeFor[Store]().Fields() {
		if !slices.Contains(incidental, field.Name) {
			out[field.Name] = field.Index[0]
		}
	}
	return out
}()

// look takes the digest of those parts of the state that a call of a may have
// changed; ids that a minted in it get their names.
func (s *Sched) look(a *Actor, call string) {
	touched, known := writes[call]
	d := dumper{names: s.names, by: a, begun: s.begun}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	v := reflect.ValueOf(s.store).Elem()
	if !known {
		touched = everything
	}
	for _, name := range touched {
		if name != "fleet" {
			s.scratch = d.value(s.scratch[:0], v.Field(parts[name]))
			s.digest[name] = maphash.Bytes(seed, s.scratch)
			continue
		}
		s.fleet.mu.Lock()
		s.scratch = d.value(s.scratch[:0], reflect.ValueOf(s.fleet.tasks))
		s.fleet.mu.Unlock()
		s.digest[name] = maphash.Bytes(seed, s.scratch)
	}
}

// everything lists all parts, those first that are kept under ids that are not
// random: from them new ids get their names.
var everything = func() []string {
	out := []string{"runs", "segments", "boxes"}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return append(out, "fleet")
}()

// dumper writes values so that equal states have equal bytes.
type dumper struct {
	names map[string]string
	by    *Actor
	begun core.Millis // times are written as since then
}

var millis = reflect.TypeFor[core.Millis]()

func (d *dumper) value(out []byte, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.String:
		return append(d.text(out, v.String()), 0)
	case reflect.Bool:
		if v.Bool() {
			return append(out, 1)
		}
		return append(out, 0)
	case reflect.Int, reflect.Int64:
		n := v.Int()
		if n != 0 && v.Type() == millis {
			n += 1<<50 - int64(d.begun) // never zero, which is "not set"
		}
		return binary.BigEndian.AppendUint64(out, uint64(n))
	case reflect.Uint64, reflect.Uintptr:
		return binary.BigEndian.AppendUint64(out, v.Uint())
	case reflect.Float64:
		return fmt.Appendf(out, "%g", v.Float())
	case reflect.Uint8:
		return append(out, byte(v.Uint()))
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return append(out, '-')
		}
		return d.value(append(out, '+'), v.Elem())
	case reflect.Struct:
		n := v.NumField()
		for i := range n {
			out = d.value(out, v.Field(i))
		}
		return out
	case reflect.Slice, reflect.Array:
		return d.list(out, v)
	case reflect.Map:
		return d.entries(out, v)
	}
	panic(fmt.Sprintf("digest of a %s: teach the dumper", v.Type()))
}

func (d *dumper) list(out []byte, v reflect.Value) []byte {
	out = binary.BigEndian.AppendUint32(out, uint32(v.Len()))
	if v.Type().Elem().Kind() == reflect.Uint8 && v.Kind() == reflect.Slice {
		return append(out, v.Bytes()...)
	}
	for i := range v.Len() {
		out = d.value(out, v.Index(i))
	}
	return out
}

// entries writes a map in the order of its written keys, so that random ids do not
// decide it.
func (d *dumper) entries(out []byte, v reflect.Value) []byte {
	out = binary.BigEndian.AppendUint32(out, uint32(v.Len()))
	keys := v.MapKeys()
	if len(keys) == 1 {
		return d.value(d.value(out, keys[0]), v.MapIndex(keys[0]))
	}
	raw := dumper{} // an id that is new gets its name in the order of the keys as they are
	slices.SortFunc(keys, func(a, b reflect.Value) int { return slices.Compare(raw.value(nil, a), raw.value(nil, b)) })
	written := make([][]byte, 0, len(keys))
	for _, k := range keys {
		written = append(written, d.value(d.value(nil, k), v.MapIndex(k)))
	}
	slices.SortFunc(written, slices.Compare[[]byte])
	for _, w := range written {
		out = append(out, w...)
	}
	return out
}

// text writes a string, each random id in it by its name.
func (d *dumper) text(out []byte, s string) []byte {
	begin := 0
	for i := 0; i <= len(s); i++ {
		if i < len(s) && isWord(s[i]) {
			continue
		}
		out = append(out, d.word(s[begin:i])...)
		if i < len(s) {
			out = append(out, s[i])
		}
		begin = i + 1
	}
	return out
}

func (d *dumper) word(w string) string {
	if d.names == nil || !minted(w) {
		return w
	}
	name, ok := d.names[w]
	if !ok {
		d.by.minted++
		name = fmt.Sprintf("%s#%d", d.by.Name, d.by.minted)
		d.names[w] = name
	}
	return name
}

func isWord(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// minted reports whether w looks like an id that core draws: 26 characters of
// base32, or 128 bits in hex.
func minted(w string) bool {
	switch len(w) {
	case 26:
		return !slices.ContainsFunc([]byte(w), func(c byte) bool { return (c < 'A' || c > 'Z') && (c < '2' || c > '7') })
	case 32:
		return !slices.ContainsFunc([]byte(w), func(c byte) bool { return (c < 'a' || c > 'f') && (c < '0' || c > '9') })
	}
	return false
}

// Agent is one run's agent in one task, as it is.
type Agent struct {
	Task    string
	Run     core.RunID
	Begun   bool
	Alive   bool
	Blocked bool // its start marker was taken by whoever ended the run
	Exited  bool // its journal has a sentinel
	Stdout  string
}

// Agents lists all agents of all tasks, those of stopped ones too.
func (f *Fleet) Agents() []Agent {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []Agent
	for arn, t := range f.tasks {
		for run, a := range t.agents {
			out = append(out, Agent{
				Task: arn, Run: run, Begun: a.begun, Alive: a.alive, Blocked: a.blocked, Exited: a.exit != nil, Stdout: string(a.stdout),
			})
		}
	}
	slices.SortFunc(out, func(a, b Agent) int { return cmp.Or(cmp.Compare(a.Task, b.Task), cmp.Compare(a.Run, b.Run)) })
	return out
}

// Named is a text with each random id in it by its name, the same in every schedule
// in which the same actor drew it.
func (s *Sched) Named(text string) string {
	d := dumper{names: s.names, by: &Actor{Name: "nobody"}}
	return string(d.text(nil, text))
}

// HashOf digests a text.
func HashOf(text string) uint64 { return maphash.String(seed, text) }

// Settings are the operator's, past every gate.
func (s *Store) Settings() core.Control {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.control
}
