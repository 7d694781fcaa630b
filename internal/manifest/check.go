package manifest

import (
	"cmp"
	"hash/maphash"
	"iter"
	"maps"
	"slices"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// CheckOptions says what a caller wants refused or allowed beyond the format. The
// zero value allows own packs only.
type CheckOptions struct {
	// Owners tells whether objects of another thread may be used.
	Owners func(owner string) bool
	// Twins is told of entries that would be the same name where case or Unicode
	// form does not count. It costs eight bytes an entry.
	Twins func(path string)
	// RefuseTwins refuses them.
	RefuseTwins bool
	// MaxEntries and MaxBytes, if not zero, are the caller's limits for the tree.
	MaxEntries, MaxBytes int64
	// MaxLayers, if not zero, is how many stored bytes all layers may have together:
	// entries that others override are read too, and are in no count.
	MaxLayers int64
}

// Check refuses, with *RefusedError, a root with its merged tree if a reader must
// not act on it: CheckWith without options.
func Check(r Root, merged iter.Seq2[Entry, error]) error {
	return CheckWith(r, merged, CheckOptions{})
}

// CheckWith reads the merged tree to its end. It holds no entry longer than it
// takes to look at the next; of the tree it remembers the frames, and with
// hardlinks or twins eight bytes a path.
func CheckWith(r Root, merged iter.Seq2[Entry, error], options CheckOptions) error {
	if err := validateRoot(r); err != nil {
		return err
	}
	c := newChecker(r, options)
	if err := c.owners(); err != nil {
		return err
	}
	if err := c.limits(); err != nil {
		return err
	}
	for e, err := range merged {
		if err != nil {
			return err
		}
		if err := c.entry(e); err != nil {
			return err
		}
	}
	return c.end()
}

type checker struct {
	root     Root
	options  CheckOptions
	counts   Counts
	entries  int64
	last     Entry
	seed     maphash.Seed
	files    map[uint64]struct{} // where there are hardlinks: the files so far
	names    map[uint64]struct{} // where twins matter: the folded paths so far
	packs    map[PackRef]int     // by ID: where in the root's list
	used     []bool              // of the root's packs
	frames   map[place]extent
	lastPack PackRef
	lastAt   int
}

// place is where a frame begins.
type place struct {
	pack   int
	offset int64
}

type extent struct{ stored, raw int64 }

func newChecker(r Root, options CheckOptions) *checker {
	c := &checker{
		root: r, options: options, seed: maphash.MakeSeed(),
		files: map[uint64]struct{}{}, names: map[uint64]struct{}{},
		packs: make(map[PackRef]int, len(r.Packs)), used: make([]bool, len(r.Packs)), frames: map[place]extent{}, lastAt: -1,
	}
	for i, p := range r.Packs {
		c.packs[p.ID()] = i
	}
	return c
}

func (c *checker) owners() error {
	for _, refs := range [][]PackRef{c.root.Layers, c.root.Packs} {
		for _, p := range refs {
			if p.Owner != "" && (c.options.Owners == nil || !c.options.Owners(p.Owner)) {
				return refuse(BadPack, "", "object %s belongs to thread %q, which is not allowed here", p.Name(), p.Owner)
			}
		}
	}
	return nil
}

// limits refuses counts before an entry was read, so that nobody reads more than
// the caller allows.
func (c *checker) limits() error {
	counts := c.root.Counts
	most, bytes := cmp.Or(c.options.MaxEntries, MaxEntries), cmp.Or(c.options.MaxBytes, MaxSize)
	if n := counts.entries(); n > most || n < 0 || counts.Bytes > bytes {
		return refuse(TooMuch, "", "%d entries with %d bytes, want at most %d and %d", n, counts.Bytes, most, bytes)
	}
	stored := int64(0)
	for _, layer := range c.root.Layers {
		stored += layer.Size
	}
	if c.options.MaxLayers != 0 && stored > c.options.MaxLayers {
		return refuse(TooMuch, "", "layers of %d bytes, want at most %d", stored, c.options.MaxLayers)
	}
	return nil
}

func (c *checker) entry(e Entry) error {
	if err := validate(e); err != nil {
		return err
	}
	if e.Deleted {
		return refuse(Unfinished, e.Path, "a tombstone in a merged tree")
	}
	if err := c.place(e); err != nil {
		return err
	}
	if err := c.counts.Add(e); err != nil {
		return err
	}
	c.entries++
	if c.counts.exceeds(c.root.Counts) {
		return refuse(BadCounts, e.Path, "more entries or bytes than the root counts")
	}
	if err := c.twins(e); err != nil {
		return err
	}
	for _, chunk := range e.Chunks {
		if err := c.chunk(e, chunk); err != nil {
			return err
		}
	}
	c.last = Entry{Area: e.Area, Path: e.Path, Kind: e.Kind}
	return nil
}

// place refuses an entry for where it is. In the order of entries everything below
// a path follows it at once, so that looking at the one before is enough.
func (c *checker) place(e Entry) error {
	if c.entries > 0 && Compare(c.last, e) >= 0 {
		return refuse(BadOrder, e.Path, "comes after %q, want every path once and in order", c.last.Path)
	}
	if c.entries > 0 && c.last.Kind != Dir && c.last.Area == e.Area && Below(e.Path, c.last.Path) {
		return refuse(BadParent, e.Path, "lies below the %s %q", c.last.Kind, c.last.Path)
	}
	if c.root.Counts.Hardlinks == 0 {
		return nil // one that comes all the same is one too many
	}
	if e.Kind == File {
		c.files[c.hash(e.Area, e.Path)] = struct{}{}
	}
	if _, ok := c.files[c.hash(e.Area, e.Target)]; e.Kind == Hardlink && !ok {
		return refuse(BadHardlink, e.Path, "its target %q is not a file before it", e.Target)
	}
	return nil
}

func (c *checker) hash(area Area, path string) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	h.WriteByte(byte(area))
	h.WriteString(path)
	return h.Sum64()
}

func (c *checker) twins(e Entry) error {
	if c.options.Twins == nil && !c.options.RefuseTwins {
		return nil
	}
	h := c.hash(e.Area, Fold(e.Path))
	_, twin := c.names[h]
	c.names[h] = struct{}{}
	if twin && c.options.Twins != nil {
		c.options.Twins(e.Path)
	}
	if twin && c.options.RefuseTwins {
		return refuse(Twin, e.Path, "another entry has this name but for case or Unicode form")
	}
	return nil
}

// Fold is what paths have in common that a file system takes for one where case
// and Unicode form do not count.
func Fold(path string) string {
	folded := make([]rune, 0, len(path))
	for _, r := range norm.NFD.String(path) {
		lowest := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			lowest = min(lowest, f)
		}
		folded = append(folded, lowest)
	}
	return norm.NFC.String(string(folded))
}

// chunk refuses a chunk whose pack is not the root's, or whose frame is another
// than the one that was named before at the same place.
func (c *checker) chunk(e Entry, chunk Chunk) error {
	at, err := c.pack(e, chunk.Pack)
	if err != nil {
		return err
	}
	key, frame := place{at, chunk.Frame.Offset}, extent{chunk.Frame.Stored, chunk.Frame.Raw}
	known, ok := c.frames[key]
	if ok && known != frame {
		return refuse(BadFrame, e.Path, "frame at %d of pack %s is %d bytes of %d, and was %d of %d", chunk.Frame.Offset, chunk.Pack.Name(), frame.stored, frame.raw, known.stored, known.raw)
	}
	if !ok && len(c.frames) == MaxFrames {
		return refuse(TooMuch, e.Path, "more than %d frames", MaxFrames)
	}
	if !ok {
		c.frames[key] = frame
	}
	return nil
}

func (c *checker) pack(e Entry, p PackRef) (int, error) {
	if c.lastAt >= 0 && c.lastPack == p {
		return c.lastAt, nil
	}
	at, ok := c.packs[p.ID()]
	if !ok {
		return 0, refuse(BadPack, e.Path, "pack %s is not listed in the root", p.Name())
	}
	if p.Size != c.root.Packs[at].Size {
		return 0, refuse(BadPack, e.Path, "pack %s of %d bytes, the root says %d", p.Name(), p.Size, c.root.Packs[at].Size)
	}
	c.used[at] = true
	c.lastPack, c.lastAt = p, at
	return at, nil
}

func (c *checker) end() error {
	for i, used := range c.used {
		if !used {
			return refuse(BadPack, "", "pack %s is listed, and no entry needs it", c.root.Packs[i].Name())
		}
		c.counts.StoredBytes += c.root.Packs[i].Size
	}
	said := c.root.Counts
	c.counts.RedactedFiles = said.RedactedFiles
	if c.counts != said {
		return refuse(BadCounts, "", "the root counts %+v, the entries amount to %+v", said, c.counts)
	}
	if said.RedactedFiles > said.Files {
		return refuse(BadCounts, "", "%d redacted files of %d", said.RedactedFiles, said.Files)
	}
	return c.overlaps()
}

// overlaps refuses frames that share bytes of a pack.
func (c *checker) overlaps() error {
	places := make([]place, 0, len(c.frames))
	for p := range c.frames {
		places = append(places, p)
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Or(cmp.Compare(a.pack, b.pack), cmp.Compare(a.offset, b.offset)) })
	for i := 1; i < len(places); i++ {
		a, b := places[i-1], places[i]
		if a.pack == b.pack && a.offset+c.frames[a].stored > b.offset {
			return refuse(BadFrame, "", "frames at %d and %d of pack %s overlap", a.offset, b.offset, c.root.Packs[a.pack].Name())
		}
	}
	return nil
}

func tooManyBytes(path string) error {
	return refuse(TooMuch, path, "all files together have more than %d bytes", int64(MaxSize))
}

// Add counts an entry. It refuses a sum that is larger than the format allows.
func (c *Counts) Add(e Entry) error {
	switch e.Kind {
	case File:
		c.Files++
		if e.Size > MaxSize-c.Bytes {
			return tooManyBytes(e.Path)
		}
		c.Bytes += e.Size
	case Dir:
		c.Dirs++
	case Symlink:
		c.Symlinks++
		if Outward(e.Path, e.Target) {
			c.OutwardLinks++
		}
	case Hardlink:
		c.Hardlinks++
	}
	return nil
}

func (c Counts) entries() int64 { return c.Files + c.Dirs + c.Symlinks + c.Hardlinks }

func (c Counts) exceeds(said Counts) bool {
	return c.Files > said.Files || c.Dirs > said.Dirs || c.Symlinks > said.Symlinks ||
		c.Hardlinks > said.Hardlinks || c.OutwardLinks > said.OutwardLinks || c.Bytes > said.Bytes
}

// Summarize answers what a writer's root says about its merged tree: the counts,
// all but the redacted files, and the packs in order, without owners.
func Summarize(merged iter.Seq2[Entry, error]) (Counts, []PackRef, error) {
	var s Summary
	for e, err := range merged {
		if err != nil {
			return Counts{}, nil, err
		}
		if err := s.Add(e); err != nil {
			return Counts{}, nil, err
		}
	}
	counts, packs := s.Totals()
	return counts, packs, nil
}

// Summary gathers what a writer's root says about its entries, which may come in any
// order. The zero value is that of no entry.
type Summary struct {
	counts Counts
	packs  map[PackRef]PackRef // by ID
	last   PackRef             // that was added last
}

// Add takes an entry in. It refuses a sum that is larger than the format allows.
func (s *Summary) Add(e Entry) error {
	if err := s.counts.Add(e); err != nil {
		return err
	}
	for i := range e.Chunks {
		if p := e.Chunks[i].Pack; p != s.last {
			s.last = p
			s.need(PackRef{Fence: p.Fence, SHA256: p.SHA256, Size: p.Size})
		}
	}
	return nil
}

func (s *Summary) need(p PackRef) {
	if s.packs == nil {
		s.packs = map[PackRef]PackRef{}
	}
	s.packs[p.ID()] = p
}

// Merge takes in what another summary has gathered of other entries. It refuses as Add.
func (s *Summary) Merge(o Summary) error {
	if o.counts.Bytes > MaxSize-s.counts.Bytes {
		return tooManyBytes("")
	}
	s.counts.Files += o.counts.Files
	s.counts.Dirs += o.counts.Dirs
	s.counts.Symlinks += o.counts.Symlinks
	s.counts.Hardlinks += o.counts.Hardlinks
	s.counts.OutwardLinks += o.counts.OutwardLinks
	s.counts.Bytes += o.counts.Bytes
	for _, p := range o.packs {
		s.need(p)
	}
	return nil
}

// Totals are the counts, all but the redacted files, and the packs in order, without
// owners.
func (s *Summary) Totals() (Counts, []PackRef) {
	counts, packs := s.counts, slices.SortedFunc(maps.Values(s.packs), ComparePacks)
	for _, p := range packs {
		counts.StoredBytes += p.Size
	}
	return counts, packs
}
