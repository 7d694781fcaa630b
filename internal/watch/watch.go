package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/sandkeeper/sandkeeper/internal/gitstate"
)

// Config says what is watched, and where it is written to.
type Config struct {
	Root string `json:"root"` // absolute
	// Exclude are globs beside .git and node_modules: one without a slash is of any name,
	// one with a slash of a path below the root. What is below an excluded directory is
	// excluded.
	Exclude []string `json:"exclude,omitempty"`
	// MaxDiffBytes bounds each diff; 0: 16 KiB; negative: no diffs.
	MaxDiffBytes int64 `json:"maxDiffBytes,omitempty"`
	// Repository is where the repository is, below the root; empty: the root itself. Files
	// outside of it have no baseline.
	Repository string `json:"repository,omitempty"`
	// Baseline is the commit that is compared with; empty: the one that is checked out
	// when the watch begins.
	Baseline string `json:"baseline,omitempty"`
	Out      string `json:"out"`                // the side journal, absolute
	MaxBytes int64  `json:"maxBytes,omitempty"` // of it; 0: 4 MiB

	// Redact blanks the values of secrets, if not nil.
	Redact func(data []byte) bool `json:"-"`
	Logger *slog.Logger           `json:"-"`
	// Ready, if not nil, is called once when everything is watched.
	Ready func() `json:"-"`
}

// Kind is what became of a file.
type Kind string

// The kinds. Lost says that from here on something is not told, and Why.
const (
	Create Kind = "create"
	Change Kind = "change"
	Delete Kind = "delete"
	Lost   Kind = "lost"
)

// Event is one line of a side journal.
type Event struct {
	At   int64  `json:"at"` // milliseconds
	Kind Kind   `json:"kind"`
	Path string `json:"path"` // below the root, with slashes
	// Diff is in the unified format, against the baseline; without one the file is not
	// text, not as large as that, or as it was.
	Diff string `json:"diff,omitempty"`
	// Why a diff is left out, or what is lost: binary, too-large, unreadable;
	// inotify-limit, journal-full, too-many-files.
	Why string `json:"why,omitempty"`
}

// The bounds of a watch.
const (
	defaultDiff    = 16 << 10
	defaultJournal = 4 << 20
	maxSource      = 1 << 20 // of a file that is compared, bytes
	maxKnown       = 100_000 // files
	maxPending     = 5_000   // paths that wait to be looked at

	settle     = 100 * time.Millisecond // of quiet before a path is looked at
	settleMost = time.Second
	rescan     = 5 * time.Second // between looks at all, where not everything can be watched
	drainMost  = 3 * time.Second
)

// Run watches until ctx ends, then looks at everything once more, writes what is found
// and returns nil, within about three seconds. An error says that nothing was watched or
// that nothing more can be written; it is no reason to stop anything else.
func Run(ctx context.Context, c Config) error {
	w, err := open(ctx, c)
	if err != nil {
		return fmt.Errorf("watch %s: %w", c.Root, err)
	}
	defer w.close()
	if c.Ready != nil {
		c.Ready()
	}
	if err := w.loop(ctx); err != nil {
		return fmt.Errorf("watch %s: %w", c.Root, err)
	}
	return nil
}

// newWatcher asks the kernel for notifications.
var newWatcher = fsnotify.NewBufferedWatcher

// watch is one watch under way.
type watch struct {
	Config
	files    *os.Root
	notify   *fsnotify.Watcher
	journal  *journal
	baseline *gitstate.Baseline // nil: an empty one
	known    map[string]mark    // files by their path below the root
	pending  map[string]bool
	limited  bool // not every directory is watched
	full     bool // not every file is known
}

func open(ctx context.Context, c Config) (*watch, error) {
	if !filepath.IsAbs(c.Root) || !filepath.IsAbs(c.Out) {
		return nil, fmt.Errorf("root %q, out %q: want absolute paths", c.Root, c.Out)
	}
	w := &watch{Config: c, known: map[string]mark{}, pending: map[string]bool{}}
	w.MaxDiffBytes = cmp.Or(c.MaxDiffBytes, defaultDiff)
	if w.Logger == nil {
		w.Logger = slog.New(slog.DiscardHandler)
	}
	var err error
	if w.Root, err = filepath.EvalSymlinks(c.Root); err != nil {
		return nil, err
	}
	if w.Root == "/" {
		return nil, errors.New("want a directory below the root of the system: all of that is no workspace")
	}
	if w.files, err = os.OpenRoot(w.Root); err != nil {
		return nil, err
	}
	if w.journal, err = openJournal(c.Out, cmp.Or(c.MaxBytes, defaultJournal)); err == nil {
		w.notify, err = newWatcher(1024)
		if limit(err) {
			w.lose("inotify-limit")
			w.limited, err = true, nil
		}
	}
	if err != nil {
		w.close()
		return nil, err
	}
	w.baseline, err = gitstate.OpenBaseline(ctx, filepath.Join(w.Root, filepath.FromSlash(c.Repository)), c.Baseline, gitstate.Options{Workspace: w.Root})
	if err != nil {
		w.Logger.InfoContext(ctx, "compare with an empty baseline", "root", w.Root, "err", err)
	}
	w.scan(ctx, ".", false)
	return w, nil
}

func (w *watch) close() {
	if w.notify != nil {
		w.notify.Close()
	}
	if w.baseline != nil {
		w.baseline.Close()
	}
	if w.journal != nil {
		w.journal.Close()
	}
	w.files.Close()
}

// limit tells an error that says that no more can be watched.
func limit(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// lose says in the journal that something is not told from here on.
func (w *watch) lose(why string) {
	w.Logger.Warn("watch less", "root", w.Root, "why", why)
	_ = w.journal.append(Event{At: time.Now().UnixMilli(), Kind: Lost, Path: ".", Why: why}) // the next line tells
}

// channels are those of the notifications; nil channels where there are none.
func (w *watch) channels() (<-chan fsnotify.Event, <-chan error) {
	if w.notify == nil {
		return nil, nil
	}
	return w.notify.Events, w.notify.Errors
}

func (w *watch) loop(ctx context.Context) error {
	events, faults := w.channels()
	quiet, most := time.NewTimer(time.Hour), time.NewTimer(time.Hour)
	all := time.NewTicker(rescan)
	defer quiet.Stop()
	defer most.Stop()
	defer all.Stop()
	for {
		select {
		case <-ctx.Done():
			return w.drain(ctx)
		case e := <-events:
			first := len(w.pending) == 0
			w.heed(ctx, e)
			quiet.Reset(settle)
			if first {
				most.Reset(settleMost)
			}
			if len(w.pending) < maxPending {
				continue
			}
		case err := <-faults:
			// Events were lost: everything is looked at.
			w.Logger.Info("look at all files", "root", w.Root, "err", err)
			w.scan(ctx, ".", true)
		case <-all.C:
			if !w.limited {
				continue
			}
			w.scan(ctx, ".", true)
		case <-quiet.C:
		case <-most.C:
		}
		if err := w.flush(ctx); err != nil {
			return err
		}
	}
}

// heed notes what an event is about. A new directory is watched first and then looked
// at: what was made in it before it was watched is found, what is made after is told.
func (w *watch) heed(ctx context.Context, e fsnotify.Event) {
	rel, err := filepath.Rel(w.Root, e.Name)
	if err != nil || !filepath.IsLocal(rel) || rel == "." || w.excluded(rel) || e.Op == fsnotify.Chmod {
		return
	}
	if e.Has(fsnotify.Create) {
		if info, err := w.files.Lstat(rel); err == nil && info.IsDir() {
			w.scan(ctx, rel, true)
			return
		}
	}
	w.pending[rel] = true
	if _, file := w.known[rel]; !file && (e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)) {
		w.gone(rel)
	}
}

// gone notes all files below a directory that is no more.
func (w *watch) gone(dir string) {
	for name := range w.known {
		if below(dir, name) {
			w.pending[name] = true
		}
	}
}

// drain is the end: what no event told yet is found by looking.
func (w *watch) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainMost)
	defer cancel()
	w.scan(ctx, ".", true)
	return w.flush(ctx)
}

// flush looks at every file that something happened to, and writes how it is found.
func (w *watch) flush(ctx context.Context) error {
	paths := slices.Sorted(maps.Keys(w.pending))
	clear(w.pending)
	for i, rel := range paths {
		if ctx.Err() != nil && i > 0 {
			// The rest is told without being compared.
			w.MaxDiffBytes = -1
		}
		e, ok := w.look(ctx, rel)
		if !ok {
			continue
		}
		if err := w.journal.append(e); err != nil {
			return err
		}
	}
	return nil
}

// look tells what became of a file since it was looked at last.
func (w *watch) look(ctx context.Context, rel string) (Event, bool) {
	before, was := w.known[rel]
	e := Event{At: time.Now().UnixMilli(), Path: filepath.ToSlash(rel)}
	info, err := w.files.Lstat(rel)
	is := err == nil && !info.IsDir()
	switch {
	case !is && !was:
		return e, false // made and removed in between
	case !is:
		e.Kind = Delete
		delete(w.known, rel)
	case was:
		if markOf(info) == before {
			return e, false
		}
		e.Kind = Change
		w.known[rel] = markOf(info)
	default:
		e.Kind = Create
		w.know(rel, info)
	}
	e.Diff, e.Why = w.compare(ctx, rel, info)
	return e, true
}
