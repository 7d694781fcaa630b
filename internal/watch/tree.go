package watch

import (
	"context"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

// mark tells a file's content from another.
type mark struct {
	size, changed int64 // bytes, nanoseconds
	inode         uint64
	mode          fs.FileMode
}

func markOf(info fs.FileInfo) mark {
	m := mark{size: info.Size(), changed: info.ModTime().UnixNano(), mode: info.Mode().Type()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		m.inode = stat.Ino
	}
	return m
}

func (w *watch) know(rel string, info fs.FileInfo) {
	if len(w.known) < maxKnown {
		w.known[rel] = markOf(info)
		return
	}
	if !w.full {
		w.full = true
		w.lose("too-many-files")
	}
}

// scan watches every directory from dir on and looks at what is in them. tell says that
// what is found different counts as an event; without it, it is how the watch begins.
func (w *watch) scan(ctx context.Context, dir string, tell bool) {
	seen := map[string]bool{}
	whole := true
	_ = filepath.WalkDir(filepath.Join(w.Root, dir), func(name string, e fs.DirEntry, err error) error {
		rel, relErr := filepath.Rel(w.Root, name)
		switch {
		case ctx.Err() != nil:
			whole = false
			return fs.SkipAll
		case relErr != nil:
			return relErr
		case err != nil:
			// What cannot be read is not said to be gone.
			whole = whole && os.IsNotExist(err)
			return nil
		case rel != "." && w.excluded(rel):
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		case e.IsDir():
			w.add(name)
			return nil
		}
		seen[rel] = true
		w.found(rel, e, tell)
		return nil
	})
	if !tell || !whole {
		return
	}
	for name := range w.known {
		if !seen[name] && below(dir, name) {
			w.pending[name] = true
		}
	}
}

func (w *watch) found(rel string, e fs.DirEntry, tell bool) {
	info, err := e.Info()
	if err != nil {
		return
	}
	before, was := w.known[rel]
	switch {
	case !tell:
		w.know(rel, info)
	case was && markOf(info) == before:
	case !was && w.full:
		// Which of the many are new cannot be told.
	default:
		w.pending[rel] = true
	}
}

// add watches a directory. Of an excluded one, or one too many, nothing is heard.
func (w *watch) add(name string) {
	if w.notify == nil {
		return
	}
	if err := w.notify.Add(name); limit(err) && !w.limited {
		w.limited = true
		w.lose("inotify-limit")
	}
}

// below reports whether a path is in a directory.
func below(dir, name string) bool { return dir == "." || strings.HasPrefix(name, dir+"/") }

// excluded reports whether a path, or a directory above it, is not watched.
func (w *watch) excluded(rel string) bool {
	if journals := filepath.Dir(w.Out); below(w.Root, journals) && below(journals, filepath.Join(w.Root, rel)) {
		return true
	}
	rel = filepath.ToSlash(rel)
	for at := 0; at <= len(rel); at++ {
		if at < len(rel) && rel[at] != '/' {
			continue
		}
		if w.excludes(rel[:at]) {
			return true
		}
	}
	return false
}

func (w *watch) excludes(rel string) bool {
	name := path.Base(rel)
	if name == ".git" || name == "node_modules" {
		return true
	}
	for _, glob := range w.Exclude {
		subject := name
		if glob = strings.TrimPrefix(strings.TrimSuffix(glob, "/"), "./"); strings.Contains(glob, "/") {
			subject, glob = rel, strings.TrimPrefix(glob, "/")
		}
		if rest, anywhere := strings.CutPrefix(glob, "**/"); anywhere && !strings.Contains(rest, "/") {
			subject, glob = name, rest
		}
		glob = strings.TrimSuffix(glob, "/**")
		if ok, err := path.Match(glob, subject); err == nil && ok {
			return true
		}
	}
	return false
}
