package manifest

import (
	"encoding/hex"
	"fmt"
	"maps"
	"strconv"
)

// Digest is a SHA-256 digest.
type Digest [32]byte

// String is the digest in lower-case hex.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText writes the digest in lower-case hex.
func (d Digest) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, d[:]), nil }

// UnmarshalText reads 64 hex digits.
func (d *Digest) UnmarshalText(text []byte) error {
	if len(text) != 2*len(d) {
		return fmt.Errorf("read digest: %d characters, want %d hex digits", len(text), 2*len(d))
	}
	if _, err := hex.Decode(d[:], text); err != nil {
		return fmt.Errorf("read digest: %w", err)
	}
	return nil
}

// PackRef names an immutable object: a pack or a layer. Fence and SHA256 identify
// it; two references that differ in Owner only are about the same content.
type PackRef struct {
	Fence  int64  `json:"fence"`
	SHA256 Digest `json:"sha256"` // of the stored bytes
	Size   int64  `json:"size"`   // stored bytes
	// Owner is the thread that owns the object, empty for the own thread. Only the
	// server sets it, and only a root carries it: layers name objects by fence and
	// digest.
	Owner string `json:"owner,omitempty"`
}

// Name is the last part of the object's key: fence, hyphen, digest in hex.
func (p PackRef) Name() string { return strconv.FormatInt(p.Fence, 10) + "-" + p.SHA256.String() }

// ID is the reference without its owner, and without its size: what two
// references to the same object have in common.
func (p PackRef) ID() PackRef { return PackRef{Fence: p.Fence, SHA256: p.SHA256} }

// Root is the head of a checkpoint: everything but the entries.
type Root struct {
	Version   int       `json:"version"`
	ID        string    `json:"id"`
	Parent    string    `json:"parent,omitempty"`
	CreatedAt int64     `json:"createdAt"` // ms since 1970
	Layers    []PackRef `json:"layers"`    // oldest first
	Packs     []PackRef `json:"packs"`     // every pack that an entry of the merged tree needs, and no other, by ComparePacks
	Policy    Policy    `json:"policy"`
	Counts    Counts    `json:"counts"`
	Skipped   []Skipped `json:"skipped,omitempty"`
	// SkippedMore counts the entries that were skipped too and are not listed.
	SkippedMore int64     `json:"skippedMore,omitempty"`
	Git         string    `json:"git,omitempty"` // what the git area holds, in the writer's words
	Redaction   Redaction `json:"redaction"`
}

// Policy is what a capture was told to take.
type Policy struct {
	Include       []Rule   `json:"include,omitempty"`
	Exclude       []Rule   `json:"exclude,omitempty"`
	Defaults      bool     `json:"defaults"`      // the default exclusions hold as well
	Git           string   `json:"git,omitempty"` // state, full or none
	Xattrs        bool     `json:"xattrs,omitempty"`
	Strict        bool     `json:"strict,omitempty"`
	WorkspaceHash string   `json:"workspaceHash,omitempty"`
	RedactForms   []string `json:"redactForms,omitempty"` // encoded forms of secrets that are redacted too
}

// Rule matches an entry of one of its kinds (of every kind, if it names none)
// for which any of its members holds.
type Rule struct {
	Kinds    []Kind   `json:"kinds,omitempty"`
	All      bool     `json:"all,omitempty"`
	Dirs     bool     `json:"dirs,omitempty"`     // every directory
	Exact    []string `json:"exact,omitempty"`    // whole paths
	Prefixes []string `json:"prefixes,omitempty"` // of the path
	Suffixes []string `json:"suffixes,omitempty"` // of the path
	Segments []string `json:"segments,omitempty"` // any segment of the path, whole
	Globs    []string `json:"globs,omitempty"`    // of the path
}

// Counts is what a tree amounts to, both areas together.
type Counts struct {
	Files         int64 `json:"files"`
	Dirs          int64 `json:"dirs"`
	Symlinks      int64 `json:"symlinks"`
	Hardlinks     int64 `json:"hardlinks"`    // names beyond the first
	OutwardLinks  int64 `json:"outwardLinks"` // symlinks that lead out of the tree, by their text
	Bytes         int64 `json:"bytes"`        // sizes of the files, each counted once
	StoredBytes   int64 `json:"storedBytes"`  // sizes of the root's packs
	RedactedFiles int64 `json:"redactedFiles"`
}

// Skipped is an entry that is not in the checkpoint, and why. Its path may be one
// that no entry could have.
type Skipped struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Redaction lets a later capture tell whether the same secrets were redacted,
// without telling them. The zero value says that there were none.
type Redaction struct {
	Salt       []byte `json:"salt,omitempty"`
	Iterations int64  `json:"iterations,omitempty"`
	Digest     []byte `json:"digest,omitempty"` // PBKDF2-HMAC-SHA-256 of the values, 32 bytes
}

// Kind is what an entry is. A tombstone has none.
type Kind uint8

// The kinds of entries.
const (
	File Kind = iota + 1
	Dir
	Symlink
	Hardlink
)

var kindNames = [...]string{"", "file", "dir", "symlink", "hardlink"}

// String is the kind's name, empty for none.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "kind-" + strconv.Itoa(int(k))
}

// MarshalText writes the kind's name.
func (k Kind) MarshalText() ([]byte, error) {
	if k > Hardlink {
		return nil, fmt.Errorf("write kind %d: want 1 to 4", k)
	}
	return []byte(k.String()), nil
}

// UnmarshalText reads a kind's name.
func (k *Kind) UnmarshalText(text []byte) error {
	for i, name := range kindNames {
		if string(text) == name {
			*k = Kind(i)
			return nil
		}
	}
	return fmt.Errorf("read kind %q: want file, dir, symlink or hardlink", text)
}

// Area is the name space that an entry's path belongs to. Entries of different
// areas may have the same path.
type Area uint8

// The areas, in the order in which layers hold them.
const (
	Workspace Area = iota
	GitState
)

// Entry is one name of the tree, or the tombstone of one. Inode, Device and CTime
// say what the file looked like when it was read; they are not restored.
type Entry struct {
	Area    Area   `json:"area,omitempty"`
	Path    string `json:"path"` // clean, relative, separated by slashes; bytes, not necessarily UTF-8
	Kind    Kind   `json:"kind,omitempty"`
	Deleted bool   `json:"deleted,omitempty"` // a tombstone: removes this path, and none below it, from the layers before
	Mode    uint32 `json:"mode,omitempty"`    // the twelve permission bits
	UID     uint32 `json:"uid,omitempty"`
	GID     uint32 `json:"gid,omitempty"`
	MTime   int64  `json:"mtime,omitempty"` // ns since 1970
	CTime   int64  `json:"ctime,omitempty"` // ns since 1970
	Inode   uint64 `json:"inode,omitempty"`
	Device  uint64 `json:"device,omitempty"`
	Size    int64  `json:"size,omitempty"` // of a file, bytes
	// Target is the text of a symlink, or for a hardlink the path of a file before
	// it in the same area.
	Target string            `json:"target,omitempty"`
	Xattrs map[string][]byte `json:"xattrs,omitempty"`
	Chunks []Chunk           `json:"chunks,omitempty"` // of a file, by offset; what none covers is zero
}

// Chunk is a run of a file's bytes, and where they are stored.
type Chunk struct {
	Offset int64   `json:"offset"` // in the file
	Length int64   `json:"length"`
	SHA256 Digest  `json:"sha256"` // of the run's bytes
	Pack   PackRef `json:"pack"`
	Frame  Frame   `json:"frame"`
	Skip   int64   `json:"skip,omitempty"` // bytes of the frame, decompressed, before the run
}

// Frame is one zstd frame of a pack.
type Frame struct {
	Offset int64 `json:"offset"` // in the pack
	Stored int64 `json:"stored"` // bytes in the pack
	Raw    int64 `json:"raw"`    // bytes decompressed
}

// Tombstone is the entry that removes a path.
func Tombstone(area Area, path string) Entry {
	return Entry{Area: area, Path: path, Deleted: true}
}

// Equal tells whether two entries are the same in every member. Owners of packs
// do not count.
func (e Entry) Equal(other Entry) bool {
	return e.sameTree(other) && e.CTime == other.CTime && e.Inode == other.Inode && e.Device == other.Device &&
		samePlaces(e.Chunks, other.Chunks)
}

// sameTree compares what a restore brings back.
func (e Entry) sameTree(other Entry) bool {
	return e.Area == other.Area && e.Path == other.Path && e.Kind == other.Kind && e.Deleted == other.Deleted &&
		e.Mode == other.Mode && e.UID == other.UID && e.GID == other.GID && e.MTime == other.MTime &&
		e.Target == other.Target && sameXattrs(e.Xattrs, other.Xattrs) && e.SameContent(other)
}

// SameContent tells whether two files have the same bytes by their chunks, stored
// wherever.
func (e Entry) SameContent(other Entry) bool {
	if e.Size != other.Size || len(e.Chunks) != len(other.Chunks) {
		return false
	}
	for i, c := range e.Chunks {
		o := other.Chunks[i]
		if c.Offset != o.Offset || c.Length != o.Length || c.SHA256 != o.SHA256 {
			return false
		}
	}
	return true
}

// chunkEnd is where the last chunk ends.
func (e Entry) chunkEnd() int64 {
	if len(e.Chunks) == 0 {
		return 0
	}
	last := e.Chunks[len(e.Chunks)-1]
	return last.Offset + last.Length
}

func samePlaces(a, b []Chunk) bool {
	for i := range a {
		if a[i].Pack.ID() != b[i].Pack.ID() || a[i].Pack.Size != b[i].Pack.Size || a[i].Frame != b[i].Frame || a[i].Skip != b[i].Skip {
			return false
		}
	}
	return true
}

func sameXattrs(a, b map[string][]byte) bool {
	return maps.EqualFunc(a, b, func(x, y []byte) bool { return string(x) == string(y) })
}
