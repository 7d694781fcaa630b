package mem

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"maps"
	"reflect"
	"slices"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// reads lists, for calls that change nothing, the parts of the state that decide
// their answer; writes the parts that decide, or are changed by, other calls. A call
// in neither is taken to have to do with everything.
var (
	reads = map[string][]string{
		"read run": {"runs"}, "load runs": {"runs"}, "list detached": {"runs"}, "list due": {"runs"},
		"list segments": {"runs", "segments"}, "read blob": {"blobs"}, "read note": {"notes"}, "read cursor": {"cursors"},
		"read sandbox": {"boxes"}, "read ledger row": {"rows"}, "list due sandboxes": {"boxes", "rows"},
		"read thread": {"shelf"}, "read checkpoint": {"shelf"}, "find checkpoint": {"shelf"}, "list checkpoints": {"shelf"},
		"list pins": {"shelf"}, "list artifacts": {"shelf"},
		"read control": {"control"}, "describe tasks": {"fleet"}, "list tasks": {"fleet"}, "read capture": {"fleet"}, "list living tasks": {"fleet"}, "list journals": {"fleet"}, "probe": {"fleet"}, "page": {"fleet"},
	}
	writes = map[string][]string{
		"take snapshot": {"fleet"}, "restore task": {"fleet"}, "drop snapshots": {"fleet"}, "note snapshot": {"boxes"},
		"run task": {"fleet"}, "stop task": {"fleet"}, "start agent": {"fleet"}, "terminate": {"fleet"}, "remove journals": {"fleet"},
		"start capture": {"fleet"}, "capture ends": {"fleet"},
		"send reclaim jobs": {}, "audit": {}, "put blob": {"blobs"}, "note": {"notes"}, "move cursor": {"cursors"}, "take budget": {"taken"}, "spend spool": {"spooled"},
		"mark reclaiming": {"boxes"}, "unmark": {"boxes"}, "mark idle": {"boxes"},
		"put intent": {"rows"}, "stop launch": {"rows"}, "close row": {"rows"}, "name task": {"rows"}, "postpone": {"rows"}, "settle debt": {"rows"},
		"create run": {"runs"}, "renew": {"runs"}, "detach": {"runs"}, "lapse": {"runs"}, "cancel due": {"runs"},
		"attach": {"runs"}, "claim": {"runs"}, "release": {"runs"}, "append": {"runs", "segments"}, "finish": {"runs"},
		"interrupt": {"runs"}, "cancel": {"runs"}, "hint": {"runs"}, "reclaim done": {"runs"}, "reclaim later": {"runs"},
		"name instance": {"runs"}, "hold": {"runs"}, "extend": {"runs"},
		"note checkpoint": {"runs"},
		"launched":        {"rows", "boxes", "runs"}, "condemn": {"rows", "boxes"}, "move debt": {"runs", "rows"},
		"acquire lease": {"shelf"}, "renew lease": {"shelf"}, "release lease": {"shelf"}, "begin step": {"shelf"}, "note step": {"shelf"},
		"end step": {"shelf"}, "lose workspace": {"shelf"}, "found workspace": {"shelf"}, "note run": {"shelf"}, "commit": {"shelf"},
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

// Known reports whether it is known what a call may change.
func Known(call string) bool {
	_, known := partsOf(call)
	return known
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

var seed = maphash.MakeSeed()

func mix(sum uint64, more ...uint64) uint64 {
	for _, m := range more {
		sum = (sum ^ m) * 0x9e3779b97f4a7c15
		sum ^= sum >> 29
	}
	return sum
}

// incidental are the parts of a store that decide nothing: bookkeeping of the fake, what
// only a keeper's own objects need, and the queue, which whoever schedules empties after
// each step.
var incidental = []string{"Process", "t", "mu", "version", "lag", "runLog", "boxLog", "rowLog", "audit", "jobs", "stamps", "leaves", "objects"}

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
	if !known {
		touched = everything
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.fleet.mu.Lock()
	defer s.fleet.mu.Unlock()
	for _, part := range touched {
		s.digest[part] = s.take(a, part)
	}
}

// take is the digest of one part; the locks are held.
func (s *Sched) take(a *Actor, part string) uint64 {
	d := dumper{names: s.names, by: a, begun: s.begun}
	v := reflect.ValueOf(s.fleet.tasks)
	if part != "fleet" {
		v = reflect.ValueOf(s.store).Elem().Field(parts[part])
	}
	s.scratch = d.value(s.scratch[:0], v)
	return maphash.Bytes(seed, s.scratch)
}

// Stale lists the parts of the state that were changed by a call that is not known
// to change them: then neither digests nor conflicts can be believed.
func (s *Sched) Stale() []string {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.fleet.mu.Lock()
	defer s.fleet.mu.Unlock()
	var out []string
	for _, part := range everything {
		if s.digest[part] != s.take(&Actor{Name: "nobody"}, part) {
			out = append(out, part)
		}
	}
	return out
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

// Named is a text with each random id in it by its name, the same in every schedule
// in which the same actor drew it.
func (s *Sched) Named(text string) string {
	d := dumper{names: s.names, by: &Actor{Name: "nobody"}}
	return string(d.text(nil, text))
}

// HashOf digests a text.
func HashOf(text string) uint64 { return maphash.String(seed, text) }
