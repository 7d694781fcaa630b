package workspace

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// CaptureOptions say what is captured and where it goes. Root, Store and ID are
// required.
type CaptureOptions struct {
	Root   string // directory, no link
	Store  Store
	ID     string
	Parent *manifest.Root // checkpoint that unchanged content is taken from
	Policy manifest.Policy
	// Secrets are redacted from content, not from names.
	Secrets []Secret
	// GitDir, if not empty, is a directory of which everything becomes the git area,
	// and Git what the root says about it.
	GitDir, Git string
	Now         time.Time // when the capture begins; the zero time: now
	Deadline    time.Time // zero: none
	MaxBytes    int64     // of file content in the tree; zero: no limit
	// Progress, if not nil, is called about once a second, and at the end.
	Progress func(Progress)
	// RenewEvery is how often the store hears that the work goes on; zero: 30 s.
	RenewEvery time.Duration
}

// CaptureResult is a checkpoint that is whole in the store but for its root.
type CaptureResult struct {
	Root manifest.Root
	// What it cost.
	Packs, PackBytes int64 // new packs, and their stored bytes
	LayerBytes       int64 // stored bytes of the new layer, zero if there is none
	ReadFiles        int64 // files that were read
	ReadBytes        int64
}

// Capture stores the tree below a directory and returns the root that describes it.
// It reads no link and nothing outside the directory. Content that the parent has
// is not sent again, nor is anything that an earlier, cut capture of the same tree
// has stored.
//
// Errors are *[Error] with the codes of this package where the tree, the policy or a
// limit is the cause; after time-limit and byte-limit what was stored is of use to
// the next capture.
func Capture(ctx context.Context, options CaptureOptions) (CaptureResult, error) {
	if options.Now.IsZero() {
		options.Now = time.Now()
	}
	if err := Recover(options.Root); err != nil {
		return CaptureResult{}, err
	}
	if !options.Deadline.IsZero() {
		limit := refuse(CodeTimeLimit, "", errors.New("the capture did not end in time"))
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, options.Deadline, limit)
		defer cancel()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c, err := newCapture(ctx, cancel, options)
	if err != nil {
		return CaptureResult{}, causeOf(ctx, err)
	}
	defer c.close()
	c.run(ctx)
	if err := context.Cause(ctx); err != nil {
		return CaptureResult{}, err
	}
	return c.result(ctx)
}

// causeOf prefers the reason for which a context ended to what came of it.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// capture is one run. Content passes four stages, each of which keeps the order of
// the walk: gather decides what is read, workers read batches, the sequencer
// drops content that is stored already and makes frames, workers compress them,
// and the finisher packs them and writes the layer.
type capture struct {
	options  CaptureOptions
	fail     context.CancelCauseFunc
	policy   *Policy
	reader   *reader
	parent   *parentTree
	secrets  manifest.Redaction
	encoder  *zstd.Encoder
	root     *dirHandle
	git      *dirHandle // nil without a git area
	raws     pool
	packings pool
	spare    []byte // for files that are read once more
	packer   *packer

	reads    chan *batch
	ordered  chan *batch
	frames   chan *frame
	steps    chan step
	gathered manifest.Summary // what needs no place in the layer
	finished finisher

	files, bytes, readFiles, readBytes atomic.Int64
}

// step is what the finisher is given: a frame, or a record whose frames came before.
type step struct {
	frame  *frame
	record *record
}

func newCapture(ctx context.Context, fail context.CancelCauseFunc, options CaptureOptions) (c *capture, err error) {
	c = &capture{options: options, fail: fail}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.policy, err = NewPolicy(options.Policy); err != nil {
		return nil, err
	}
	redactor, err := NewRedactor(options.Secrets, options.Policy.RedactForms)
	if err != nil {
		return nil, err
	}
	c.reader = &reader{redactor: redactor, xattrs: options.Policy.Xattrs}
	if c.root, err = openRoot(options.Root); err != nil {
		return nil, err
	}
	if options.GitDir != "" {
		if c.git, err = openRoot(options.GitDir); err != nil {
			return nil, err
		}
	}
	if c.parent, err = openParent(ctx, options); err != nil {
		return nil, err
	}
	if c.secrets, err = redactionOf(c.parent, options.Secrets); err != nil {
		return nil, err
	}
	return c, c.openBuffers()
}

// workers is how many batches are read and frames compressed at once: one more than
// there are processors, since reading waits for disks, and few, since each holds
// buffers of several MiB.
func workers() int { return min(runtime.GOMAXPROCS(0)+1, 4) }

func (c *capture) openBuffers() (err error) {
	if c.encoder, err = newEncoder(workers()); err != nil {
		return err
	}
	if c.raws, err = newPool(workers() + 1); err != nil {
		return err
	}
	if c.packings, err = newPool(workers()); err != nil {
		return err
	}
	if c.spare, err = takeSlab(); err != nil {
		return err
	}
	packs, err := newPool(packBuffers)
	if err != nil {
		return err
	}
	c.packer = &packer{store: c.options.Store, fail: c.fail, buffers: packs, sent: make(chan *packInfo, packBuffers)}
	c.reads, c.ordered = make(chan *batch, 16), make(chan *batch, 16)
	c.frames, c.steps = make(chan *frame, workers()), make(chan step, 1024)
	c.finished = newFinisher(c)
	return nil
}

func (c *capture) close() {
	for _, d := range []*dirHandle{c.root, c.git} {
		if d != nil {
			d.release()
		}
	}
	if c.parent != nil {
		c.parent.layers.close()
	}
	if c.encoder != nil {
		c.encoder.Close()
	}
	if c.packer != nil {
		c.packer.close()
		c.finished.close()
	}
	c.raws.close()
	c.packings.close()
	if c.spare != nil {
		last := pool(make(chan []byte, 1))
		last <- c.spare
		last.close()
	}
}

// run returns when every goroutine of the capture has ended. A failure is the
// context's cause.
func (c *capture) run(ctx context.Context) {
	beat, stop := context.WithCancel(ctx)
	var keeper, stages sync.WaitGroup
	keeper.Go(func() { c.renew(beat) })
	stages.Go(func() { c.stage(c.gather(ctx)) })
	for range workers() {
		stages.Go(c.work)
	}
	stages.Go(func() { c.stage(newSequencer(c).run(ctx)) })
	stages.Go(func() { c.stage(c.finished.run(ctx)) })
	stages.Wait()
	c.packer.sending.Wait()
	stop()
	keeper.Wait()
}

func (c *capture) stage(err error) {
	if err != nil {
		c.fail(err)
	}
}

// work reads batches and compresses frames, frames first: they hold the memory that
// batches wait for.
func (c *capture) work() {
	reads, frames := c.reads, c.frames
	for reads != nil || frames != nil {
		select {
		case f, more := <-frames:
			if !more {
				frames = nil
				continue
			}
			c.compress(f)
			continue
		default:
		}
		select {
		case f, more := <-frames:
			if !more {
				frames = nil
				continue
			}
			c.compress(f)
		case b, more := <-reads:
			if !more {
				reads = nil
				continue
			}
			c.reader.read(b)
		}
	}
}

func (c *capture) compress(f *frame) {
	f.packed = compress(c.encoder, f.raw, f.packed[:0])
	if f.slab != nil {
		c.raws <- f.slab
	}
	close(f.done)
}

// renew tells the store and the caller how far the capture is.
func (c *capture) renew(ctx context.Context) {
	beatWhile(ctx, beat{c.options.Store, c.options.Progress, c.options.RenewEvery, c.progress}, c.fail)
}

func (c *capture) progress() Progress { return Progress{Files: c.files.Load(), Bytes: c.bytes.Load()} }

// beat is how a long operation says that it lives.
type beat struct {
	store    Store
	progress func(Progress)
	every    time.Duration
	now      func() Progress
}

// beatWhile renews until ctx ends. A store that refuses ends the operation.
func beatWhile(ctx context.Context, b beat, fail context.CancelCauseFunc) {
	if b.every == 0 {
		b.every = 30 * time.Second
	}
	second, renewal := time.NewTicker(time.Second), time.NewTicker(b.every)
	defer second.Stop()
	defer renewal.Stop()
	for {
		select {
		case <-ctx.Done():
			if b.progress != nil {
				b.progress(b.now())
			}
			return
		case <-second.C:
			if b.progress != nil {
				b.progress(b.now())
			}
		case <-renewal.C:
			if err := b.store.Renew(ctx, b.now()); err != nil && ctx.Err() == nil {
				fail(fmt.Errorf("renew: %w", err))
				return
			}
		}
	}
}

// result stores the layer and makes the root.
func (c *capture) result(ctx context.Context) (CaptureResult, error) {
	layer, size, err := c.finished.storeLayer(ctx)
	if err != nil {
		return CaptureResult{}, causeOf(ctx, err)
	}
	total := c.finished.written
	if err := total.Merge(c.gathered); err != nil {
		return CaptureResult{}, err
	}
	counts, packs := total.Totals()
	counts.RedactedFiles = c.finished.redacted
	root := manifest.Root{
		Version: manifest.Version, ID: c.options.ID, Parent: c.parent.root.ID, CreatedAt: c.options.Now.UnixMilli(),
		Packs: packs, Policy: c.options.Policy, Counts: counts,
		Skipped: c.finished.skipped, SkippedMore: c.finished.skippedMore, Git: c.options.Git, Redaction: c.secrets,
	}
	if !c.parent.rebase {
		for _, l := range c.parent.root.Layers {
			l.Owner = ""
			root.Layers = append(root.Layers, l)
		}
	}
	if size > 0 {
		root.Layers = append(root.Layers, layer)
	}
	return CaptureResult{
		Root: root, Packs: c.packer.packs, PackBytes: c.packer.bytes, LayerBytes: size,
		ReadFiles: c.readFiles.Load(), ReadBytes: c.readBytes.Load(),
	}, nil
}
