// Package manifest is the format of a checkpoint: a small root, layers of
// entries that override one another, and references into packs. It encodes and
// decodes them, merges layers into the tree they describe, compares trees, and
// refuses what no reader may act on. Its rule: everything read is hostile until
// it was checked, a count or a length is checked before memory is used for it,
// and the memory needed depends on the format's limits, not on the input.
// docs/checkpoint-format.md describes every byte.
package manifest

// Version is the version of the format that this package writes. Readers accept
// it and, once there is one, the version before.
const Version = 1

// Limits of the format. A reader refuses what exceeds one before it uses memory.
const (
	MaxRoot    = 4 << 20   // bytes of an encoded root
	MaxLayers  = 64        // layers of a root
	MaxLayer   = 256 << 20 // stored bytes of a layer
	MaxPacks   = 65536     // packs of a root
	MaxPack    = 16 << 20  // stored bytes of a pack
	MaxFrame   = 4 << 20   // bytes of a frame, decompressed
	MaxFrames  = 1 << 19   // different frames that one tree uses
	MaxBlock   = 1 << 20   // bytes of a layer's block, decompressed
	MaxRows    = 16384     // rows of a block
	MaxEntries = 1 << 23   // entries of a merged tree
	MaxPath    = 4096      // bytes of a path
	MaxName    = 255       // bytes of a segment of a path
	MaxTarget  = 4096      // bytes of a link's target
	MaxSize    = 1<<53 - 1 // bytes of a file, and of all files together
	MaxChunks  = 65536     // chunks of a file
	MaxXattrs  = 64        // extended attributes of an entry
	MaxXattr   = 128 << 10 // bytes of an entry's extended attributes, names and values
	MaxText    = 65536     // bytes of any text in a root
	MaxID      = 1024      // bytes of an id
	MaxSkipped = 16384     // skipped entries that a root lists
)

// MaxFrameStored is how many stored bytes a frame may have: what zstd adds to
// content that it cannot compress is far below the allowance.
const MaxFrameStored = MaxFrame + 64<<10
