package manifest

import (
	"encoding/binary"
	"maps"
	"slices"
)

// The columns of a block, in the order of the format.
const (
	colShape = iota
	colShared
	colRest
	colNames
	colMode
	colUID
	colGID
	colMTime
	colCTime
	colInode
	colDevice
	colSize
	colTargetLength
	colTargets
	colXattrs
	colChunks
	colGap
	colLength
	colDigests
	colFrame
	colSkip
	columns
)

// The bits of a row's shape.
const (
	shapeKind    = 0x07 // 0 tombstone, 1 to 4 the kinds, 7 a continuation
	shapeGit     = 0x08
	shapeXattrs  = 0x10
	shapeWhole   = 0x20 // one chunk, which is the whole file
	shapeMore    = 0x40 // the next row goes on with the chunks of this one
	shapeUnknown = 0x80

	kindContinued = 7
)

// rowChunks is how many chunks a row holds. With it, a row is far smaller than a
// block may be.
const rowChunks = 2048

// blockTarget is the size at which a block is closed.
const blockTarget = 256 << 10

// frameKey is a frame with the number of its pack in the block.
type frameKey struct {
	pack  int
	frame Frame
}

// run is what the rows of a block say relative to the row before.
type run struct {
	path          string
	mtime         int64
	inode, device uint64
	frame         int   // of the last chunk
	end           int64 // of the last chunk in its frame
	fileEnd       int64 // of the last chunk in its file
}

// builder collects the rows of one block.
type builder struct {
	rows   int
	cols   [columns][]byte
	size   int // of all columns
	packs  []PackRef
	frames []frameKey
	packAt map[PackRef]int
	at     map[frameKey]int
	run    run
}

func newBuilder() *builder {
	return &builder{packAt: map[PackRef]int{}, at: map[frameKey]int{}}
}

func (b *builder) reset() {
	for i := range b.cols {
		b.cols[i] = b.cols[i][:0]
	}
	clear(b.packAt)
	clear(b.at)
	*b = builder{cols: b.cols, packs: b.packs[:0], frames: b.frames[:0], packAt: b.packAt, at: b.at}
}

func (b *builder) full() bool {
	return b.rows >= MaxRows/2 || b.size+44*len(b.packs)+12*len(b.frames) >= blockTarget
}

// add appends the row of an entry, with at most rowChunks of its chunks. More
// follow by addChunks.
func (b *builder) add(e Entry) {
	chunks := e.Chunks[:min(rowChunks, len(e.Chunks))]
	whole := len(chunks) == 1 && chunks[0].Length == e.Size
	shape := byte(e.Kind) | flag(e.Area == GitState, shapeGit) | flag(len(e.Xattrs) > 0, shapeXattrs) |
		flag(whole, shapeWhole) | flag(len(chunks) < len(e.Chunks), shapeMore)
	b.row(shape)
	b.addPath(e.Path)
	if e.Deleted {
		b.measure()
		return
	}
	b.addStat(e)
	if e.Kind == File {
		b.put(colSize, uint64(e.Size))
		if !whole {
			b.put(colChunks, uint64(len(chunks)))
		}
		b.run.fileEnd = 0
		b.chunks(chunks, whole)
	}
	if e.Kind == Symlink || e.Kind == Hardlink {
		b.put(colTargetLength, uint64(len(e.Target)))
		b.cols[colTargets] = append(b.cols[colTargets], e.Target...)
	}
	if len(e.Xattrs) > 0 {
		b.addXattrs(e.Xattrs)
	}
	b.measure()
}

// addChunks appends a continuation, the file's chunk before it ending at from.
func (b *builder) addChunks(chunks []Chunk, from int64, more bool) {
	b.row(kindContinued | flag(more, shapeMore))
	b.put(colChunks, uint64(len(chunks)))
	b.run.fileEnd = from
	b.chunks(chunks, false)
	b.measure()
}

func (b *builder) row(shape byte) {
	b.rows++
	b.cols[colShape] = append(b.cols[colShape], shape)
}

func (b *builder) put(column int, v uint64) {
	b.cols[column] = binary.AppendUvarint(b.cols[column], v)
}

func (b *builder) putSigned(column int, v int64) {
	b.cols[column] = appendSigned(b.cols[column], v)
}

func (b *builder) addPath(path string) {
	shared := sharedPrefix(b.run.path, path)
	b.put(colShared, uint64(shared))
	b.put(colRest, uint64(len(path)-shared))
	b.cols[colNames] = append(b.cols[colNames], path[shared:]...)
	b.run.path = path
}

func (b *builder) addStat(e Entry) {
	b.put(colMode, uint64(e.Mode))
	b.put(colUID, uint64(e.UID))
	b.put(colGID, uint64(e.GID))
	b.putSigned(colMTime, e.MTime-b.run.mtime)
	b.putSigned(colCTime, e.CTime-e.MTime)
	b.putSigned(colInode, int64(e.Inode-b.run.inode))
	b.putSigned(colDevice, int64(e.Device-b.run.device))
	b.run.mtime, b.run.inode, b.run.device = e.MTime, e.Inode, e.Device
}

func (b *builder) addXattrs(xattrs map[string][]byte) {
	b.put(colXattrs, uint64(len(xattrs)))
	for _, name := range slices.Sorted(maps.Keys(xattrs)) {
		b.cols[colXattrs] = appendText(appendText(b.cols[colXattrs], name), string(xattrs[name]))
	}
}

func (b *builder) chunks(chunks []Chunk, whole bool) {
	for _, c := range chunks {
		if !whole {
			b.put(colGap, uint64(c.Offset-b.run.fileEnd))
			b.put(colLength, uint64(c.Length))
			b.run.fileEnd = c.Offset + c.Length
		}
		b.cols[colDigests] = append(b.cols[colDigests], c.SHA256[:]...)
		frame := b.frame(c)
		if frame != b.run.frame {
			b.run.end = 0
		}
		b.putSigned(colFrame, int64(frame-b.run.frame))
		b.putSigned(colSkip, c.Skip-b.run.end)
		b.run.frame, b.run.end = frame, c.Skip+c.Length
	}
}

// frame is the number of a chunk's frame in the block's table.
func (b *builder) frame(c Chunk) int {
	pack := PackRef{Fence: c.Pack.Fence, SHA256: c.Pack.SHA256, Size: c.Pack.Size}
	p, ok := b.packAt[pack]
	if !ok {
		p = len(b.packs)
		b.packAt[pack] = p
		b.packs = append(b.packs, pack)
	}
	key := frameKey{p, c.Frame}
	f, ok := b.at[key]
	if !ok {
		f = len(b.frames)
		b.at[key] = f
		b.frames = append(b.frames, key)
	}
	return f
}

func (b *builder) measure() {
	b.size = 0
	for i := range b.cols {
		b.size += len(b.cols[i])
	}
}

// encode writes the block: its tables, then its columns.
func (b *builder) encode(to []byte) []byte {
	to = binary.AppendUvarint(to, uint64(b.rows))
	to = binary.AppendUvarint(to, uint64(len(b.packs)))
	for _, p := range b.packs {
		to = appendInt(append(appendInt(to, p.Fence), p.SHA256[:]...), p.Size)
	}
	to = binary.AppendUvarint(to, uint64(len(b.frames)))
	for _, f := range b.frames {
		to = binary.AppendUvarint(to, uint64(f.pack))
		to = appendInt(appendInt(appendInt(to, f.frame.Offset), f.frame.Stored), f.frame.Raw)
	}
	for i := range b.cols {
		to = binary.AppendUvarint(to, uint64(len(b.cols[i])))
	}
	for i := range b.cols {
		to = append(to, b.cols[i]...)
	}
	return to
}

// block reads the rows of one block.
type block struct {
	rows   int
	packs  []PackRef
	frames []frameKey
	cols   [columns]cursor
	run    run
}

// openBlock reads the tables and finds the columns.
func openBlock(data []byte, b *block) string {
	c := &cursor{data: data}
	b.run = run{}
	b.rows = c.count(MaxRows, 1)
	if b.rows == 0 {
		c.fail("a block has no rows")
	}
	b.packs = b.packs[:0]
	for range c.count(MaxPacks, 34) {
		b.packs = append(b.packs, PackRef{Fence: c.number(), SHA256: c.digest(), Size: c.number()})
	}
	b.frames = b.frames[:0]
	for range c.count(MaxFrames, 4) {
		f := frameKey{pack: int(c.number())}
		f.frame = Frame{Offset: c.number(), Stored: c.number(), Raw: c.number()}
		if f.pack < 0 || f.pack >= len(b.packs) {
			c.fail("a frame is in no pack of the block")
		}
		b.frames = append(b.frames, f)
	}
	var lengths [columns]int
	for i := range lengths {
		lengths[i] = c.count(len(data), 0)
	}
	for i, n := range lengths {
		b.cols[i] = cursor{data: c.take(n)}
	}
	if c.why == "" && c.left() > 0 {
		c.fail("something follows the columns")
	}
	return c.why
}

// fault is what was wrong with any column so far.
func (b *block) fault() string {
	for i := range b.cols {
		if b.cols[i].why != "" {
			return b.cols[i].why
		}
	}
	return ""
}

// done tells what is wrong at the end of the rows.
func (b *block) done() string {
	for i := range b.cols {
		if b.cols[i].left() > 0 {
			return "a column is longer than its rows need"
		}
	}
	return ""
}

// next reads a row into e: a new entry, or more chunks of the one that is there.
// It answers whether more chunks follow.
func (b *block) next(e *Entry, continues bool) (more bool, why string) {
	shape := b.cols[colShape].byte()
	kind := Kind(shape & shapeKind)
	if why := shapeFault(shape, continues); why != "" {
		return false, why
	}
	if continues {
		b.run.fileEnd = e.chunkEnd() // of a block before, maybe
		b.readChunks(e, b.cols[colChunks].count(rowChunks, 0))
		return shape&shapeMore != 0, b.fault()
	}
	*e = Entry{Kind: kind, Deleted: kind == 0}
	if shape&shapeGit != 0 {
		e.Area = GitState
	}
	b.readPath(e)
	if !e.Deleted {
		b.readStat(e)
		b.readContent(e, shape)
	}
	return shape&shapeMore != 0, b.fault()
}

func shapeFault(shape byte, continues bool) string {
	kind := Kind(shape & shapeKind)
	switch {
	case shape&shapeUnknown != 0 || kind > Hardlink && kind != kindContinued:
		return "a row has an unknown shape"
	case continues != (kind == kindContinued):
		return "a list of chunks is not continued where it should be"
	case kind == kindContinued && shape&^shapeMore != kindContinued:
		return "a continuation has members"
	case kind != File && kind != kindContinued && shape&(shapeWhole|shapeMore) != 0:
		return "a row that is no file has chunks"
	case kind == 0 && shape&shapeXattrs != 0:
		return "a tombstone has attributes"
	case shape&shapeWhole != 0 && shape&shapeMore != 0:
		return "a whole file is continued"
	}
	return ""
}

func (b *block) readPath(e *Entry) {
	shared := b.cols[colShared].count(len(b.run.path), 0)
	rest := b.cols[colNames].take(b.cols[colRest].count(MaxPath-shared, 0))
	e.Path = b.run.path[:shared] + string(rest)
	b.run.path = e.Path
}

func (b *block) readStat(e *Entry) {
	e.Mode = b.narrow(colMode)
	e.UID = b.narrow(colUID)
	e.GID = b.narrow(colGID)
	e.MTime = b.run.mtime + b.cols[colMTime].signed()
	e.CTime = e.MTime + b.cols[colCTime].signed()
	e.Inode = b.run.inode + uint64(b.cols[colInode].signed())
	e.Device = b.run.device + uint64(b.cols[colDevice].signed())
	b.run.mtime, b.run.inode, b.run.device = e.MTime, e.Inode, e.Device
}

func (b *block) narrow(column int) uint32 {
	v := b.cols[column].uvarint()
	if v > 1<<32-1 {
		b.cols[column].fail("a mode or an owner is too large")
	}
	return uint32(v)
}

func (b *block) readContent(e *Entry, shape byte) {
	switch e.Kind {
	case File:
		e.Size = b.cols[colSize].number()
		b.run.fileEnd = 0
		if shape&shapeWhole != 0 {
			e.Chunks = []Chunk{{Length: e.Size}}
			b.readPlace(&e.Chunks[0])
		} else {
			b.readChunks(e, b.cols[colChunks].count(rowChunks, 0))
		}
	case Symlink, Hardlink:
		e.Target = string(b.cols[colTargets].take(b.cols[colTargetLength].count(MaxTarget, 0)))
	}
	if shape&shapeXattrs != 0 {
		e.Xattrs = b.readXattrs()
	}
}

func (b *block) readXattrs() map[string][]byte {
	c := &b.cols[colXattrs]
	n := c.count(MaxXattrs, 2)
	if n == 0 {
		c.fail("a list of attributes is empty")
	}
	xattrs := make(map[string][]byte, n)
	before := ""
	for i := range n {
		name := c.text(MaxName)
		if i > 0 && name <= before {
			c.fail("attributes are not in order")
		}
		xattrs[name] = slices.Clone(c.take(c.count(MaxXattr, 1)))
		before = name
	}
	return xattrs
}

func (b *block) readChunks(e *Entry, n int) {
	if n > b.cols[colDigests].left()/len(Digest{}) {
		b.cols[colDigests].fail("a list of chunks is longer than it may be")
		return
	}
	if n == 0 {
		return
	}
	e.Chunks = slices.Grow(e.Chunks, n)
	for range n {
		gap, length := b.cols[colGap].number(), b.cols[colLength].number()
		if gap > MaxSize || length > MaxSize || b.run.fileEnd > MaxSize {
			b.cols[colGap].fail("a chunk ends beyond any file")
			return
		}
		c := Chunk{Offset: b.run.fileEnd + gap, Length: length}
		b.run.fileEnd = c.Offset + c.Length
		b.readPlace(&c)
		e.Chunks = append(e.Chunks, c)
	}
}

func (b *block) readPlace(c *Chunk) {
	c.SHA256 = b.cols[colDigests].digest()
	frame := int64(b.run.frame) + b.cols[colFrame].signed()
	if frame < 0 || frame >= int64(len(b.frames)) {
		b.cols[colFrame].fail("a chunk is in no frame of the block")
		return
	}
	if int(frame) != b.run.frame {
		b.run.end = 0
	}
	f := b.frames[frame]
	c.Pack, c.Frame = b.packs[f.pack], f.frame
	c.Skip = b.run.end + b.cols[colSkip].signed()
	b.run.frame, b.run.end = int(frame), c.Skip+c.Length
}
