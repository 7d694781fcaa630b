package watch

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"

	udiff "github.com/aymanbagabas/go-udiff"
)

// compare is the difference of a file with the baseline. info is nil for one that is no
// more. Without a diff, why tells; neither says that there is no difference.
func (w *watch) compare(ctx context.Context, rel string, info fs.FileInfo) (diff, why string) {
	if w.MaxDiffBytes < 0 {
		return "", ""
	}
	after, why := w.content(rel, info)
	if why != "" {
		return "", why
	}
	name := filepath.ToSlash(rel)
	before, had := w.before(ctx, name)
	if binary(before) || binary(after) {
		return "", "binary"
	}
	if w.Redact != nil {
		w.Redact(before)
		w.Redact(after)
	}
	from, to := "a/"+name, "b/"+name
	if !had {
		from = os.DevNull
	}
	if info == nil || info.IsDir() {
		to = os.DevNull
	}
	diff = udiff.Unified(from, to, string(before), string(after))
	if int64(len(diff)) > w.MaxDiffBytes {
		return "", "too-large"
	}
	return diff, ""
}

// before is a file as the baseline has it.
func (w *watch) before(ctx context.Context, name string) ([]byte, bool) {
	if repository := filepath.ToSlash(filepath.Clean(w.Repository)); repository != "." {
		inside := false
		if name, inside = strings.CutPrefix(name, repository+"/"); !inside {
			return nil, false
		}
	}
	if w.baseline == nil {
		return nil, false
	}
	data, ok, err := w.baseline.File(ctx, name, maxSource)
	if err != nil {
		w.Logger.Debug("read baseline", "path", name, "err", err)
	}
	return data, ok && err == nil
}

// content reads a file, through no link that leads out of the workspace.
func (w *watch) content(rel string, info fs.FileInfo) (data []byte, why string) {
	switch {
	case info == nil || info.IsDir():
		return nil, ""
	case info.Mode()&fs.ModeSymlink != 0:
		to, err := w.files.Readlink(rel)
		if err != nil {
			return nil, "unreadable"
		}
		return []byte(to), ""
	case !info.Mode().IsRegular():
		return nil, "binary"
	case info.Size() > maxSource:
		return nil, "too-large"
	}
	f, err := w.files.OpenFile(rel, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, "unreadable"
	}
	defer f.Close()
	data, err = io.ReadAll(io.LimitReader(f, maxSource+1))
	switch {
	case err != nil:
		return nil, "unreadable"
	case len(data) > maxSource:
		return nil, "too-large"
	}
	return data, ""
}

func binary(data []byte) bool { return bytes.IndexByte(data, 0) >= 0 || !utf8.Valid(data) }
