package workspace

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// RestoreOptions say what is restored and where. Root, Store and Manifest are
// required.
type RestoreOptions struct {
	Root     string // directory that is there already, no link
	Store    Store
	Manifest manifest.Root
	// Policy says what of the destination is the checkpoint's business; nil: the
	// policy of the checkpoint.
	Policy *manifest.Policy
	// GitDir, if not empty, is where the git area goes: a directory that is empty or
	// not there. Without it the git area is not restored.
	GitDir string
	// Deadline holds for the part before the first change; zero: none.
	Deadline time.Time
	// Progress, if not nil, is called about once a second, and at the end.
	Progress func(Progress)
	// RenewEvery is how often the store hears that the work goes on; zero: 30 s.
	RenewEvery time.Duration
}

// RestoreResult is what a restore did.
type RestoreResult struct {
	Written int64 // files and links
	Made    int64 // directories that were not there
	Removed int64 // entries that the checkpoint does not have, without what was below them
	Bytes   int64 // of content
	// Unset counts owners and extended attributes that the system refused to set.
	Unset int64
}

// Restore makes the part of a directory that the policy covers equal to a
// checkpoint; what it does not cover survives. Root, entries, destination and every
// byte are checked, and all that is to be written is on the disk beside the
// destination, before the first change. A restore that is cut before that leaves
// the directory as it was; one that is cut later is completed by the next Restore,
// Capture or [Recover] of the directory. A cut is the end of the process: nothing is
// forced onto the disk, which in a sandbox ends with its machine.
//
// Errors are *[Error] with the codes of this package where the checkpoint or the
// destination is the cause.
func Restore(ctx context.Context, options RestoreOptions) (RestoreResult, error) {
	return restore(ctx, kernel{}, options)
}

// restoration is one run.
type restoration struct {
	options RestoreOptions
	disk    disk
	policy  *Policy
	strict  bool
	skipped map[string]bool
	root    *dirHandle
	device  uint64          // the file system of root, which everything is written to
	mounts  map[string]bool // what is mounted below root, as far as the system tells
	layers  layers
	stage   *staging
	result  RestoreResult
	done    atomic.Int64
	bytes   atomic.Int64
	unset   atomic.Int64
}

func restore(ctx context.Context, d disk, options RestoreOptions) (RestoreResult, error) {
	if err := recoverRoot(d, options.Root); err != nil {
		return RestoreResult{}, err
	}
	if !options.Deadline.IsZero() {
		limit := refuse(CodeTimeLimit, "", errors.New("the restore was not ready in time; nothing is changed"))
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, options.Deadline, limit)
		defer cancel()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &restoration{options: options, disk: d}
	defer r.close()
	beats, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		beatWhile(beats, beat{options.Store, options.Progress, options.RenewEvery, r.progress}, cancel)
	}()
	err := r.prepare(ctx)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = r.stage.commit(d)
	}
	stop()
	<-ended
	if err != nil {
		return RestoreResult{}, causeOf(ctx, err)
	}
	if err := r.stage.apply(d); err != nil {
		return RestoreResult{}, fmt.Errorf("apply restore of %s: %w", options.Manifest.ID, err)
	}
	r.result.Bytes, r.result.Unset = r.bytes.Load(), r.unset.Load()+r.stage.unset
	return r.result, nil
}

func (r *restoration) progress() Progress {
	return Progress{Files: r.done.Load(), Bytes: r.bytes.Load()}
}

func (r *restoration) close() {
	r.layers.close()
	if r.stage != nil {
		r.stage.discard(r.disk)
	}
	if r.root != nil {
		r.root.release()
	}
}

// prepare does all that changes nothing in the destination.
func (r *restoration) prepare(ctx context.Context) error {
	if err := r.open(); err != nil {
		return err
	}
	var err error
	if r.layers, err = fetchLayers(ctx, r.options.Store, r.options.Manifest); err != nil {
		return err
	}
	if err := r.check(); err != nil {
		return err
	}
	// The destination is looked at before anything is fetched, so that a refusal is
	// cheap, and again at the end, so that what came meanwhile is seen.
	if _, err := r.scan(ctx); err != nil {
		return err
	}
	if r.stage, err = openStaging(r.disk, r.options.Root, r.root, r.options.Manifest.ID); err != nil {
		return err
	}
	if err := r.fetch(ctx); err != nil {
		return err
	}
	plan, err := r.scan(ctx)
	if err != nil {
		return err
	}
	r.result = plan.result
	return r.stage.note(r.disk, plan.removes, r.layers.merged())
}

func (r *restoration) open() (err error) {
	policy := r.options.Manifest.Policy
	if r.options.Policy != nil {
		policy = *r.options.Policy
	}
	if r.policy, err = NewPolicy(policy); err != nil {
		return err
	}
	r.strict = policy.Strict
	r.skipped = map[string]bool{}
	for _, s := range r.options.Manifest.Skipped {
		r.skipped[s.Path] = true
	}
	if r.root, err = openRoot(r.options.Root); err != nil {
		return err
	}
	info, err := statFD(r.root.fd)
	r.device = info.dev
	if err == nil {
		r.mounts, err = mountsBelow(r.root.fd)
	}
	return err
}

// check refuses a manifest that no reader may act on, or that is not what the
// policy lets through.
func (r *restoration) check() error {
	allowed := func(yield func(manifest.Entry, error) bool) {
		for e, err := range r.layers.merged() {
			if err == nil {
				err = r.allow(&e)
			}
			if !yield(e, err) {
				return
			}
		}
	}
	return checkTree(r.options.Manifest, allowed)
}

func checkTree(root manifest.Root, merged iter.Seq2[manifest.Entry, error]) error {
	own := func(string) bool { return true } // the server set it
	return manifestFault(manifest.CheckWith(root, merged, manifest.CheckOptions{Owners: own}))
}

func (r *restoration) allow(e *manifest.Entry) error {
	if e.Area != manifest.Workspace {
		return nil
	}
	if r.policy.ExcludesBelow(e.Path, e.Kind) {
		return refuse(CodeInvalidPath, e.Path, errors.New("the policy excludes it"))
	}
	// A directory that the policy does not include may stand above an entry that it does.
	if e.Kind != manifest.Dir && !r.policy.Includes(e.Path, e.Kind) {
		return refuse(CodeInvalidPath, e.Path, errors.New("the policy does not include it"))
	}
	return nil
}

// manifestFault gives a refused manifest its code.
func manifestFault(err error) error {
	refused, ok := errors.AsType[*manifest.RefusedError](err)
	if !ok {
		if _, bad := errors.AsType[*manifest.MalformedError](err); bad {
			return refuse(CodeInvalidManifest, "", err)
		}
		if _, bad := errors.AsType[*manifest.VersionError](err); bad {
			return refuse(CodeInvalidManifest, "", err)
		}
		return err
	}
	switch refused.Reason {
	case manifest.BadPath, manifest.BadOrder, manifest.BadShape, manifest.BadParent, manifest.BadHardlink:
		return refuse(CodeInvalidPath, refused.Path, err)
	}
	return refuse(CodeInvalidManifest, refused.Path, err)
}

// restorePlan is what the destination needs.
type restorePlan struct {
	removes []string
	result  RestoreResult
}

// scan looks at the destination and changes nothing.
func (r *restoration) scan(ctx context.Context) (restorePlan, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tree := parentTree{layers: r.layers}
	var plan restorePlan
	p := &planner{
		wanted:  tree.cursor(ctx),
		mkdirs:  func(string) { plan.result.Made++ },
		writes:  func(*manifest.Entry) { plan.result.Written++ },
		changes: r.changeable,
	}
	err := walkAll(r.root, r.policy, func(v *visit, _ *dirHandle) error {
		at, err := r.presentOf(v)
		if err != nil {
			return err
		}
		return p.see(at)
	})
	if err == nil {
		err = p.end()
	}
	plan.result.Removed = int64(len(p.removes))
	for _, gone := range p.removes {
		// What is replaced goes when its replacement comes: after a cut nobody could
		// tell one from the other.
		if !gone.replaced {
			plan.removes = append(plan.removes, gone.path)
		}
	}
	return plan, err
}

// presentOf judges what the walk of the destination found.
func (r *restoration) presentOf(v *visit) (present, error) {
	at := present{path: v.path, kind: v.kind}
	if v.excluded || r.leftOut(v.path) || manifest.CheckPath(v.path) != nil {
		at.protected = true
		return at, nil
	}
	if v.err != nil {
		return at, fmt.Errorf("read destination %q: %w", v.path, v.err)
	}
	if r.strict {
		if v.kind == 0 {
			return at, refuse(CodeUnsupportedEntry, v.path, errors.New(v.info.special()+": want regular files and directories"))
		}
		if err := strictly(v); err != nil {
			return at, err
		}
	}
	if !r.policy.Includes(v.path, v.kind) {
		at.protected = true
		return at, nil
	}
	if v.kind == manifest.Dir && v.info.dev != r.device || r.mounts[v.path] {
		return at, refuse(CodeInvalidWorkspace, v.path, errors.New("another file system is mounted there: want it excluded"))
	}
	return at, nil
}

// leftOut tells whether the checkpoint says that it does not hold an entry, or one above
// it.
func (r *restoration) leftOut(path string) bool {
	if len(r.skipped) == 0 {
		return false
	}
	for i := range len(path) {
		if path[i] == '/' && r.skipped[path[:i]] {
			return true
		}
	}
	return r.skipped[path]
}

// changeable refuses a directory of the destination in which this process cannot make,
// replace or remove names, before anything is decided: what is decided must succeed.
func (r *restoration) changeable(path string) error {
	fd, err := r.root.fd, error(nil)
	if path != "" {
		if fd, err = openBeneath(r.root.fd, path); err != nil {
			return fmt.Errorf("open destination %q: %w", path, err)
		}
		defer unix.Close(fd)
	}
	err = unix.Faccessat(fd, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	if errors.Is(err, unix.EACCES) {
		// Its owner gives itself the permission when it comes to that.
		if info, bad := statFD(fd); bad == nil && info.uid == uint32(os.Geteuid()) {
			return nil
		}
	}
	if err != nil {
		return refuse(CodeInvalidWorkspace, path, fmt.Errorf("want a directory that may be changed: %w", err))
	}
	return nil
}
