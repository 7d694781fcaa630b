package manifest

import "fmt"

// VersionError reports an object of a version that this reader does not know.
type VersionError struct {
	Object  string // root or layer
	Version int
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("read %s: version %d, want version %d", e.Object, e.Version, Version)
}

// MalformedError reports bytes that are not of the format.
type MalformedError struct {
	Object string // root or layer
	At     int64  // byte of the object; of a layer, where the block begins
	Why    string
}

func (e *MalformedError) Error() string {
	return fmt.Sprintf("read %s: byte %d: %s", e.Object, e.At, e.Why)
}

// Reason is why a root or an entry is refused.
type Reason string

// The reasons.
const (
	BadPath     Reason = "path"      // unclean, absolute, too long, or otherwise not a path of the format
	BadOrder    Reason = "order"     // not after the entry before it; duplicates too
	BadShape    Reason = "shape"     // members that do not go with the kind, or out of range
	BadParent   Reason = "parent"    // below an entry that is no directory
	BadHardlink Reason = "hardlink"  // its target is not a file before it
	BadChunk    Reason = "chunk"     // outside its file or its frame, or over another
	BadFrame    Reason = "frame"     // outside its pack, too large, or over another
	BadPack     Reason = "pack"      // not listed, listed and not needed, too large, out of order, or not allowed
	BadCounts   Reason = "counts"    // other than the entries amount to
	BadRoot     Reason = "root"      // any other member of the root
	Twin        Reason = "twin"      // would be the same name where case or Unicode form does not count
	TooMuch     Reason = "too-much"  // more than the format or the caller allows
	Unfinished  Reason = "tombstone" // a tombstone in a merged tree
)

// RefusedError reports what no reader may act on.
type RefusedError struct {
	Reason Reason
	Path   string // of the entry; empty where the root is meant
	Why    string
}

func (e *RefusedError) Error() string {
	if e.Path == "" {
		return "check checkpoint: " + e.Why
	}
	return fmt.Sprintf("check entry %q: %s", e.Path, e.Why)
}

func refuse(reason Reason, path, format string, args ...any) error {
	return &RefusedError{Reason: reason, Path: path, Why: fmt.Sprintf(format, args...)}
}
