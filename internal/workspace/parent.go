package workspace

import (
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// clockMargin is how long before the parent's capture a file must have changed for
// the last time, so that its times prove that it was not changed since: clocks of
// file systems tick slowly.
const clockMargin = int64(2e9)

// maxIndexed bounds the parent's content that is found wherever it went: about
// 100 bytes of memory each. Above it only content that stayed at its path is.
const maxIndexed = 300_000

// parentTree is the checkpoint that a capture goes out from.
type parentTree struct {
	root   manifest.Root
	layers layers
	byStat bool // a file that looks as it did has the content it had
	rebase bool // all entries are written into one new layer
	frames frameTable
}

// openParent fetches what the parent's tree is made of. Without a parent there is an
// empty tree.
func openParent(ctx context.Context, options CaptureOptions) (*parentTree, error) {
	p := &parentTree{frames: frameTable{}}
	if options.Parent == nil {
		p.rebase = true
		return p, nil
	}
	p.root = *options.Parent
	var err error
	if p.layers, err = fetchLayers(ctx, options.Store, p.root); err != nil {
		return nil, fmt.Errorf("read parent %s: %w", p.root.ID, err)
	}
	// As if this capture's layer, whose size is not known yet, lay above already.
	next := manifest.Root{Layers: append(slices.Clone(p.root.Layers), manifest.PackRef{})}
	p.rebase = len(p.root.Layers) == 0 || manifest.Rebase(next)
	p.byStat = sameForms(p.root.Policy.RedactForms, options.Policy.RedactForms) && sameSecrets(p.root.Redaction, options.Secrets) &&
		(p.root.Policy.Xattrs || !options.Policy.Xattrs)
	return p, nil
}

func sameForms(a, b []string) bool {
	return slices.Equal(slices.Compact(slices.Sorted(slices.Values(a))), slices.Compact(slices.Sorted(slices.Values(b))))
}

// frameTable finds the one frameInfo for each frame of earlier checkpoints.
type frameTable map[frameKey]*frameInfo

type frameKey struct {
	pack   manifest.PackRef // its ID
	offset int64
}

// place is where the parent has a chunk.
func (t frameTable) place(c manifest.Chunk) place {
	key := frameKey{c.Pack.ID(), c.Frame.Offset}
	info := t[key]
	if info == nil {
		ref := c.Pack
		ref.Owner = ""
		info = &frameInfo{pack: &packInfo{ref: ref, stored: true}, offset: c.Frame.Offset, stored: c.Frame.Stored, raw: c.Frame.Raw}
		t[key] = info
	}
	return place{info, c.Skip}
}

// index is where content of the parent is, whatever its path.
func (p *parentTree) index() (map[manifest.Digest]place, error) {
	known := map[manifest.Digest]place{}
	for e, err := range p.layers.merged() {
		if err != nil {
			return nil, fmt.Errorf("read parent %s: %w", p.root.ID, err)
		}
		for _, c := range e.Chunks {
			if len(known) >= maxIndexed {
				return known, nil
			}
			known[c.SHA256] = p.frames.place(c)
		}
	}
	return known, nil
}

// parentCursor walks along the parent's entries, which are decoded ahead of it.
type parentCursor struct {
	batches chan []manifest.Entry
	fault   chan error
	batch   []manifest.Entry
}

const cursorBatch = 256

func (p *parentTree) cursor(ctx context.Context) *parentCursor {
	c := &parentCursor{batches: make(chan []manifest.Entry, 2), fault: make(chan error, 1)}
	go func() {
		defer close(c.batches)
		c.fault <- p.decode(ctx, c.batches)
	}()
	return c
}

func (p *parentTree) decode(ctx context.Context, batches chan<- []manifest.Entry) error {
	var batch []manifest.Entry
	send := func() error {
		select {
		case batches <- batch:
			batch = make([]manifest.Entry, 0, cursorBatch)
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for e, err := range p.layers.merged() {
		if err != nil {
			return fmt.Errorf("read parent %s: %w", p.root.ID, err)
		}
		if batch = append(batch, e); len(batch) == cursorBatch {
			if err := send(); err != nil {
				return err
			}
		}
	}
	return send()
}

// peek returns the next entry, nil at the end.
func (c *parentCursor) peek() (*manifest.Entry, error) {
	for len(c.batch) == 0 {
		batch, more := <-c.batches
		if !more {
			err := <-c.fault
			c.fault <- err
			return nil, err
		}
		c.batch = batch
	}
	return &c.batch[0], nil
}

func (c *parentCursor) skip() { c.batch = c.batch[1:] }

// looksUnchanged tells whether a file is the one that the parent has, by its times
// and its inode.
func (p *parentTree) looksUnchanged(old *manifest.Entry, info fileInfo) bool {
	return p.byStat && old != nil && old.Kind == manifest.File && info.kind() == manifest.File &&
		old.Size == info.size && old.MTime == info.mtime && old.CTime == info.ctime && old.Inode == info.inode &&
		info.ctime < p.root.CreatedAt*1e6-clockMargin
}

// sameForRestore tells whether a restore of both entries makes the same.
func sameForRestore(a, b *manifest.Entry) bool {
	return a.Kind == b.Kind && a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID && a.MTime == b.MTime && a.Target == b.Target &&
		maps.EqualFunc(a.Xattrs, b.Xattrs, func(x, y []byte) bool { return string(x) == string(y) }) && a.SameContent(*b)
}

// Cost of the digest that tells whether secrets are those of before.
const (
	redactionIterations    = 100_000
	maxRedactionIterations = 1_000_000
)

// sameSecrets tells whether secrets are those that a digest was made of.
func sameSecrets(r manifest.Redaction, secrets []Secret) bool {
	values := secretValues(secrets)
	if len(values) == 0 || len(r.Digest) == 0 {
		return len(values) == 0 && len(r.Digest) == 0
	}
	if r.Iterations < 1 || r.Iterations > maxRedactionIterations {
		return false
	}
	digest, err := digestSecrets(values, r.Salt, int(r.Iterations))
	return err == nil && subtle.ConstantTimeCompare(digest, r.Digest) == 1
}

// redactionOf makes the digest of secrets: the parent's if it is of the same.
func redactionOf(p *parentTree, secrets []Secret) (manifest.Redaction, error) {
	values := secretValues(secrets)
	if len(values) == 0 {
		return manifest.Redaction{}, nil
	}
	if p.byStat {
		return p.root.Redaction, nil
	}
	salt := make([]byte, 16)
	rand.Read(salt)
	digest, err := digestSecrets(values, salt, redactionIterations)
	if err != nil {
		return manifest.Redaction{}, err
	}
	return manifest.Redaction{Salt: salt, Iterations: redactionIterations, Digest: digest}, nil
}

func secretValues(secrets []Secret) []string {
	var values []string
	for _, s := range secrets {
		if s.Value != "" {
			values = append(values, s.Value)
		}
	}
	slices.Sort(values)
	return slices.Compact(values)
}

func digestSecrets(values []string, salt []byte, iterations int) ([]byte, error) {
	var all []byte
	for _, value := range values {
		all = append(binary.BigEndian.AppendUint64(all, uint64(len(value))), value...)
	}
	digest, err := pbkdf2.Key(sha256.New, string(all), salt, iterations, sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("digest secrets: %w", err)
	}
	return digest, nil
}
