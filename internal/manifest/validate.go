package manifest

import "strings"

// validate refuses an entry that no layer may hold, whatever else is in the tree.
func validate(e Entry) error {
	if e.Area > GitState {
		return refuse(BadShape, e.Path, "area %d, want 0 or 1", e.Area)
	}
	if err := CheckPath(e.Path); err != nil {
		return err
	}
	if e.Deleted {
		return validateTombstone(e)
	}
	if e.Kind < File || e.Kind > Hardlink {
		return refuse(BadShape, e.Path, "kind %d, want 1 to 4", e.Kind)
	}
	if e.Mode > 0o7777 {
		return refuse(BadShape, e.Path, "mode %o, want permission bits only", e.Mode)
	}
	if err := validateXattrs(e); err != nil {
		return err
	}
	if err := validateTarget(e); err != nil {
		return err
	}
	return validateContent(e)
}

func validateTombstone(e Entry) error {
	if !e.Equal(Tombstone(e.Area, e.Path)) {
		return refuse(BadShape, e.Path, "a tombstone has members, want only area and path")
	}
	return nil
}

func validateXattrs(e Entry) error {
	if len(e.Xattrs) > MaxXattrs {
		return refuse(TooMuch, e.Path, "%d extended attributes, want at most %d", len(e.Xattrs), MaxXattrs)
	}
	total := 0
	for name, value := range e.Xattrs {
		if name == "" || len(name) > MaxName || strings.IndexByte(name, 0) >= 0 {
			return refuse(BadShape, e.Path, "extended attribute %q, want a name of 1 to %d bytes, none of them zero", name, MaxName)
		}
		total += len(name) + len(value)
	}
	if total > MaxXattr {
		return refuse(TooMuch, e.Path, "%d bytes of extended attributes, want at most %d", total, MaxXattr)
	}
	return nil
}

func validateTarget(e Entry) error {
	switch e.Kind {
	case Symlink:
		if e.Target == "" || len(e.Target) > MaxTarget || strings.IndexByte(e.Target, 0) >= 0 {
			return refuse(BadShape, e.Path, "target of %d bytes, want 1 to %d, none of them zero", len(e.Target), MaxTarget)
		}
	case Hardlink:
		if why := pathFault(e.Target); why != "" {
			return refuse(BadHardlink, e.Path, "target: %s, want a clean relative path", why)
		}
		if ComparePaths(e.Target, e.Path) >= 0 {
			return refuse(BadHardlink, e.Path, "target %q does not come before it", e.Target)
		}
	default:
		if e.Target != "" {
			return refuse(BadShape, e.Path, "a %s has a target", e.Kind)
		}
	}
	return nil
}

func validateContent(e Entry) error {
	if e.Kind != File {
		if e.Size != 0 || len(e.Chunks) > 0 {
			return refuse(BadShape, e.Path, "a %s has content", e.Kind)
		}
		return nil
	}
	if e.Size < 0 || e.Size > MaxSize {
		return refuse(BadShape, e.Path, "size %d, want 0 to %d", e.Size, int64(MaxSize))
	}
	if len(e.Chunks) > MaxChunks {
		return refuse(TooMuch, e.Path, "%d chunks, want at most %d", len(e.Chunks), MaxChunks)
	}
	end := int64(0)
	for _, c := range e.Chunks {
		if err := validateChunk(e, c, end); err != nil {
			return err
		}
		end = c.Offset + c.Length
	}
	return nil
}

// validateChunk looks at a chunk that may begin at from. Differences are compared
// rather than sums, which could overflow.
func validateChunk(e Entry, c Chunk, from int64) error {
	if c.Offset < from || c.Length < 1 || c.Offset > e.Size || c.Length > e.Size-c.Offset {
		return refuse(BadChunk, e.Path, "chunk of %d bytes at %d, want it between %d and the file's end at %d", c.Length, c.Offset, from, e.Size)
	}
	f := c.Frame
	if f.Raw < 1 || f.Raw > MaxFrame || f.Stored < 1 || f.Stored > MaxFrameStored {
		return refuse(BadFrame, e.Path, "frame of %d bytes stored as %d, want 1 to %d", f.Raw, f.Stored, MaxFrame)
	}
	if c.Skip < 0 || c.Skip > f.Raw || c.Length > f.Raw-c.Skip {
		return refuse(BadChunk, e.Path, "chunk of %d bytes after %d of a frame of %d", c.Length, c.Skip, f.Raw)
	}
	if c.Pack.Fence < 0 || c.Pack.Size < 1 || c.Pack.Size > MaxPack {
		return refuse(BadPack, e.Path, "pack of %d bytes under fence %d, want 1 to %d bytes", c.Pack.Size, c.Pack.Fence, MaxPack)
	}
	if f.Offset < 0 || f.Offset > c.Pack.Size || f.Stored > c.Pack.Size-f.Offset {
		return refuse(BadFrame, e.Path, "frame of %d bytes at %d of a pack of %d", f.Stored, f.Offset, c.Pack.Size)
	}
	return nil
}
