package manifest_test

import (
	"encoding/binary"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// This file is a second reader, written from docs/checkpoint-format.md alone. It
// knows nothing of the package, trusts its input, and panics where that is not as
// the page says.

// specReader reads bytes as the page's section on notation says.
type specReader struct{ rest []byte }

func (s *specReader) bytes(n int) []byte {
	b := s.rest[:n]
	s.rest = s.rest[n:]
	return b
}

func (s *specReader) number() uint64 {
	v := uint64(0)
	for shift := 0; ; shift += 7 {
		b := s.bytes(1)[0]
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v
		}
	}
}

func (s *specReader) signed() int64 {
	n := s.number()
	if n%2 == 0 {
		return int64(n / 2)
	}
	return -int64(n/2) - 1
}

func (s *specReader) text() string { return string(s.bytes(int(s.number()))) }

func (s *specReader) texts() []string {
	var all []string
	for range s.number() {
		all = append(all, s.text())
	}
	return all
}

// end panics unless all was read.
func (s *specReader) end(what string) {
	if len(s.rest) > 0 {
		panic(fmt.Sprintf("%d bytes follow %s", len(s.rest), what))
	}
}

type specRef struct {
	fence  uint64
	digest string
	size   uint64
	owner  string
}

type specRule struct {
	flags byte
	kinds []byte
	lists [5][]string // exact, prefixes, suffixes, segments, globs
}

type specRoot struct {
	version      byte
	id, parent   string
	created      int64
	layers       []specRef
	packs        []specRef
	flags        byte
	git, hash    string
	forms        []string
	include      []specRule
	exclude      []specRule
	counts       [8]uint64
	skipped      [][2]string
	skippedMore  uint64
	gitState     string
	salt         string
	iterations   uint64
	secretDigest string
}

func specReadRoot(data []byte) (r specRoot) {
	s := &specReader{data}
	if string(s.bytes(7)) != "sk-root" {
		panic("no root")
	}
	r.version = s.bytes(1)[0]
	r.id, r.parent, r.created = s.text(), s.text(), s.signed()
	owners := s.texts()
	r.layers, r.packs = specRefs(s, owners), specRefs(s, owners)
	r.flags = s.bytes(1)[0]
	r.git, r.hash, r.forms = s.text(), s.text(), s.texts()
	r.include, r.exclude = specRules(s), specRules(s)
	for i := range r.counts {
		r.counts[i] = s.number()
	}
	for range s.number() {
		r.skipped = append(r.skipped, [2]string{s.text(), s.text()})
	}
	r.skippedMore, r.gitState = s.number(), s.text()
	r.salt, r.iterations, r.secretDigest = s.text(), s.number(), s.text()
	s.end("the root")
	return r
}

func specRefs(s *specReader, owners []string) (refs []specRef) {
	for range s.number() {
		ref := specRef{fence: s.number(), digest: string(s.bytes(32)), size: s.number()}
		if owner := s.number(); owner > 0 {
			ref.owner = owners[owner-1]
		}
		refs = append(refs, ref)
	}
	return refs
}

func specRules(s *specReader) (rules []specRule) {
	for range s.number() {
		rule := specRule{flags: s.bytes(1)[0]}
		rule.kinds = append(rule.kinds, s.bytes(int(s.number()))...)
		for i := range rule.lists {
			rule.lists[i] = s.texts()
		}
		rules = append(rules, rule)
	}
	return rules
}

type specEntry struct {
	path           string
	kind           byte // 0 tombstone, 1 file, 2 directory, 3 symlink, 4 hardlink
	git            bool
	mode, uid, gid uint64
	mtime, ctime   int64
	inode, device  uint64
	size           uint64
	target         string
	attributes     [][2]string
	chunks         []specChunk
}

type specChunk struct {
	offset, length uint64
	digest         string
	pack           specRef
	frame          specFrame
	skip           int64
}

type specFrame struct{ pack, offset, stored, raw uint64 }

func specReadLayer(data []byte) []specEntry {
	s := &specReader{data}
	if string(s.bytes(8)) != "sklayer\x01" {
		panic("no layer of version 1")
	}
	decoder, err := zstd.NewReader(nil)
	if err != nil {
		panic(err)
	}
	defer decoder.Close()
	var all []specEntry
	for {
		stored, raw := binary.LittleEndian.Uint32(s.bytes(4)), binary.LittleEndian.Uint32(s.bytes(4))
		if stored == 0 && raw == 0 {
			break
		}
		block, err := decoder.DecodeAll(s.bytes(int(stored)), nil)
		if err != nil || len(block) != int(raw) {
			panic(fmt.Sprintf("block of %d bytes, want %d: %v", len(block), raw, err))
		}
		all = specReadBlock(block, all)
	}
	if n := binary.LittleEndian.Uint64(s.bytes(8)); n != uint64(len(all)) {
		panic(fmt.Sprintf("%d entries, want %d", len(all), n))
	}
	s.end("the trailer")
	return all
}

// specBlock is a block's tables, its columns by the numbers of the page, and what
// differences are relative to.
type specBlock struct {
	packs                []specRef
	frames               []specFrame
	column               [22]specReader
	path                 string
	mtime, inode, device int64
	frame, end           int64
}

func specReadBlock(block []byte, all []specEntry) []specEntry {
	s := &specReader{block}
	var b specBlock
	rows := s.number()
	for range s.number() {
		b.packs = append(b.packs, specRef{fence: s.number(), digest: string(s.bytes(32)), size: s.number()})
	}
	for range s.number() {
		b.frames = append(b.frames, specFrame{s.number(), s.number(), s.number(), s.number()})
	}
	var lengths [22]uint64
	for i := 1; i <= 21; i++ {
		lengths[i] = s.number()
	}
	for i := 1; i <= 21; i++ {
		b.column[i].rest = s.bytes(int(lengths[i]))
	}
	s.end("the columns")
	for range rows {
		shape := b.column[1].bytes(1)[0]
		if shape&7 == 7 {
			b.readChunks(&all[len(all)-1])
			continue
		}
		all = append(all, b.readEntry(shape))
	}
	for i := 1; i <= 21; i++ {
		b.column[i].end(fmt.Sprint("the rows in column ", i))
	}
	return all
}

func (b *specBlock) readEntry(shape byte) specEntry {
	e := specEntry{kind: shape & 7, git: shape&8 != 0}
	shared := b.column[2].number()
	e.path = b.path[:shared] + string(b.column[4].bytes(int(b.column[3].number())))
	b.path = e.path
	if e.kind == 0 {
		return e
	}
	e.mode, e.uid, e.gid = b.column[5].number(), b.column[6].number(), b.column[7].number()
	b.mtime += b.column[8].signed()
	e.mtime = b.mtime
	e.ctime = e.mtime + b.column[9].signed()
	b.inode += b.column[10].signed()
	b.device += b.column[11].signed()
	e.inode, e.device = uint64(b.inode), uint64(b.device)
	switch {
	case e.kind == 1:
		e.size = b.column[12].number()
		if shape&0x20 != 0 {
			e.chunks = []specChunk{b.place(specChunk{length: e.size})}
		} else {
			b.readChunks(&e)
		}
	case e.kind >= 3:
		e.target = string(b.column[14].bytes(int(b.column[13].number())))
	}
	if shape&0x10 != 0 {
		for range b.column[15].number() {
			e.attributes = append(e.attributes, [2]string{b.column[15].text(), b.column[15].text()})
		}
	}
	return e
}

func (b *specBlock) readChunks(e *specEntry) {
	for range b.column[16].number() {
		ended := uint64(0)
		if n := len(e.chunks); n > 0 {
			ended = e.chunks[n-1].offset + e.chunks[n-1].length
		}
		c := specChunk{offset: ended + b.column[17].number(), length: b.column[18].number()}
		e.chunks = append(e.chunks, b.place(c))
	}
}

func (b *specBlock) place(c specChunk) specChunk {
	c.digest = string(b.column[19].bytes(32))
	frame := b.frame + b.column[20].signed()
	c.skip = b.column[21].signed()
	if frame == b.frame {
		c.skip += b.end
	}
	b.frame, b.end = frame, c.skip+int64(c.length)
	c.frame = b.frames[frame]
	c.pack = b.packs[c.frame.pack]
	return c
}
