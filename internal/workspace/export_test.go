package workspace

import (
	"context"
	"io"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// Present is an entry of a destination, for the vectors of plans.
type Present struct {
	Path      string
	Kind      manifest.Kind
	Protected bool
}

// Plan is what a restore would do.
type Plan struct{ Removes, Mkdirs, Writes []string }

type list []manifest.Entry

func (l *list) peek() (*manifest.Entry, error) {
	if len(*l) == 0 {
		return nil, nil
	}
	return &(*l)[0], nil
}

func (l *list) skip() { *l = (*l)[1:] }

// PlanRestore runs the planner over lists in the order of a layer.
func PlanRestore(wanted []manifest.Entry, now []Present) (Plan, error) {
	var plan Plan
	source := list(wanted)
	p := &planner{
		wanted: &source,
		mkdirs: func(path string) { plan.Mkdirs = append(plan.Mkdirs, path) },
		writes: func(e *manifest.Entry) { plan.Writes = append(plan.Writes, e.Path) },
	}
	for _, at := range now {
		if err := p.see(present{at.Path, at.Kind, at.Protected}); err != nil {
			return Plan{}, err
		}
	}
	err := p.end()
	for _, r := range p.removes {
		plan.Removes = append(plan.Removes, r.path)
	}
	return plan, err
}

// Disk lets tests stand between a restore and the file system.
type Disk = disk

// Kernel is the disk itself.
var Kernel Disk = kernel{}

// RestoreOn is [Restore] on another disk.
func RestoreOn(ctx context.Context, d Disk, options RestoreOptions) (RestoreResult, error) {
	return restore(ctx, d, options)
}

// RecoverOn is [Recover] on another disk.
func RecoverOn(d Disk, root string) error { return recoverRoot(d, root) }

// OpenBeneath opens a directory below another, with openat2 or step by step.
func OpenBeneath(root int, path string, stepwise bool) (int, error) {
	if stepwise {
		return openStepwise(root, path)
	}
	return openBeneath(root, path)
}

// SlabsInUse is how many large buffers are not free, of those that there are.
func SlabsInUse() int {
	slabs.mu.Lock()
	defer slabs.mu.Unlock()
	return slabs.made - len(slabs.free)
}

// NewSpool opens a spool.
func NewSpool() (spool interface {
	io.Writer
	io.ReaderAt
}, digest func() manifest.Digest, closeSpool func()) {
	s := newSpool()
	return s, s.digest, s.close
}
