package workspace

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// record is one entry of the tree on its way into the layer.
type record struct {
	entry    manifest.Entry
	parent   *manifest.Entry // what the parent has at the path, nil for nothing
	skip     string          // why the entry is not stored, empty if it is
	links    bool            // the file has more names, and this is the first
	redacted bool

	// Of a file whose content is read: where its path begins, and what it looked like.
	root *dirHandle // nil where nothing is read
	info fileInfo
	// Of a small one, its part of the batch's bytes.
	from, to int
	changed  bool // it was not what it looked like: it is read once more

	chunks []manifest.Chunk // content hashes; places say where the bytes are
	places []place
}

// open opens the record's file.
func (r *record) open() (int, error) { return openFileBeneath(r.root.fd, r.entry.Path) }

// largeFile is a file that is read in pieces, open as long as somebody holds it.
type largeFile struct {
	fd   int
	info fileInfo
	refs atomic.Int32
}

func (l *largeFile) retain() { l.refs.Add(1) }

func (l *largeFile) release() {
	if l.refs.Add(-1) == 0 {
		unix.Close(l.fd)
	}
}

// batch is a run of records of which the content is read at once: small files
// together, or one piece of a large file.
type batch struct {
	records []*record
	large   *largeFile // that of the only record
	piece   extent
	last    bool   // no piece of the file follows
	slab    []byte // nil where nothing is to be read
	ready   chan struct{}

	// Of a piece that was read.
	raw   []byte // within slab
	sum   manifest.Digest
	fault error
	found bool // it held a secret
}

// release lets go of the file that the batch holds open.
func (b *batch) release() {
	if b.large != nil {
		b.large.release()
	}
}

// reader reads and redacts what batches ask for. It is safe for concurrent use.
type reader struct {
	redactor *Redactor
	xattrs   bool
}

// read fills a batch.
func (r *reader) read(b *batch) {
	defer close(b.ready)
	if b.large != nil {
		b.raw, b.found, b.fault = r.readPiece(b.large.fd, b.piece, b.slab)
		b.sum = sha256.Sum256(b.raw)
		return
	}
	for _, rec := range b.records {
		if rec.root != nil {
			r.readSmall(rec, b.slab[:cap(b.slab)])
		}
	}
}

// readSmall reads a file into its part of a batch's bytes.
func (r *reader) readSmall(rec *record, raw []byte) {
	fd, err := rec.open()
	if scarce(err) {
		rec.changed = true // who reads it once more may find what lacks now
		return
	}
	if err != nil {
		rec.skip = openFault(err)
		return
	}
	defer unix.Close(fd)
	part := raw[rec.from:rec.to]
	n, err := readAt(fd, part, 0)
	if err != nil {
		rec.skip = "unreadable: " + err.Error()
		return
	}
	if err := r.attributes(rec, fd); err != nil {
		rec.skip = "unreadable attributes: " + err.Error()
		return
	}
	now, err := statFD(fd)
	if err != nil || n != len(part) || !now.same(rec.info) {
		rec.changed = true
		return
	}
	rec.redacted = r.redactor.Redact(part)
	if len(part) > 0 {
		rec.chunks = []manifest.Chunk{{Length: int64(len(part)), SHA256: sha256.Sum256(part)}}
	}
}

// attributes reads a file's extended attributes where the policy asks for them.
func (r *reader) attributes(rec *record, fd int) (err error) {
	if !r.xattrs {
		return nil
	}
	if rec.entry.Xattrs, err = readXattrs(fd); err != nil {
		return err
	}
	size := 0
	for name, value := range rec.entry.Xattrs {
		r.redactor.Redact(value)
		size += len(name) + len(value)
	}
	if size > manifest.MaxXattr || len(rec.entry.Xattrs) > manifest.MaxXattrs {
		return fmt.Errorf("%d extended attributes of %d bytes: want at most %d of %d", len(rec.entry.Xattrs), size, manifest.MaxXattrs, manifest.MaxXattr)
	}
	return nil
}

var errShort = errors.New("file became shorter")

// readPiece reads a piece of a large file into a slab, together with what redaction
// must see around it, and returns the piece. Bytes that the file no longer has are
// [errShort].
func (r *reader) readPiece(fd int, piece extent, slab []byte) (raw []byte, found bool, err error) {
	around := int64(r.redactor.Overlap())
	from := max(piece.offset-around, 0)
	raw = slab[:piece.end()-from+around]
	n, err := readAt(fd, raw, from)
	if err != nil {
		return raw[:0], false, err
	}
	before := int(piece.offset - from)
	if n < before+int(piece.length) {
		return raw[:0], false, errShort
	}
	found = r.redactor.Redact(raw[:n])
	return raw[before : before+int(piece.length)], found, nil
}

// openFault says why a file that was there could not be opened.
func openFault(err error) string {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return "gone before it was read"
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		return "became another kind of entry"
	}
	return "unreadable: " + err.Error()
}

// cutIntoPieces splits what of a file is data at multiples of the piece size.
func cutIntoPieces(extents []extent) []extent {
	var pieces []extent
	for _, e := range extents {
		for at := e.offset; at < e.end(); {
			end := min(e.end(), (at/pieceSize+1)*pieceSize)
			pieces = append(pieces, extent{at, end - at})
			at = end
		}
	}
	return pieces
}
