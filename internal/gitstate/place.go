package gitstate

import (
	"bufio"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// place is where a repository's git directory is.
type place struct {
	root   string // of the working tree
	git    string // the git directory, links resolved
	common string // where objects and refs are: git, but for a linked worktree
	link   string // text of a .git file, as it stands
}

// locate finds the git directory of the working tree at root. It answers
// fs.ErrNotExist where there is no .git at all.
func locate(root string) (place, error) {
	p := place{root: root}
	name := filepath.Join(root, ".git")
	info, err := os.Lstat(name)
	if err != nil {
		return place{}, err
	}
	if info.Mode().IsRegular() {
		if p.link, name, err = followLink(root, name); err != nil {
			return place{}, err
		}
	}
	if p.git, err = filepath.EvalSymlinks(name); err != nil {
		return place{}, errNotRepository
	}
	p.common = p.git
	if info, err := os.Stat(p.git); err != nil || !info.IsDir() {
		return place{}, errNotRepository
	}
	dir, err := os.OpenRoot(p.git)
	if err != nil {
		return place{}, errNotRepository
	}
	defer dir.Close()
	if text, err := readPlain(dir, "commondir", 4096); err == nil {
		if p.common, err = filepath.EvalSymlinks(absolute(p.git, strings.TrimSpace(text))); err != nil {
			return place{}, errNotRepository
		}
	}
	return p, p.check()
}

var errNotRepository = errors.New("not a repository")

func followLink(root, name string) (link, to string, err error) {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return "", "", err
	}
	defer dir.Close()
	text, err := readPlain(dir, ".git", 4096)
	link, ok := strings.CutPrefix(strings.TrimRight(text, "\r\n"), "gitdir: ")
	if err != nil || !ok || link == "" || strings.ContainsAny(link, "\x00\n") {
		return "", "", errNotRepository
	}
	return link, absolute(root, link), nil
}

func absolute(base, name string) string {
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	return filepath.Join(base, name)
}

// check tells whether there is a repository.
func (p place) check() error {
	for name, dir := range map[string]string{"HEAD": p.git, "objects": p.common} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return errNotRepository
		}
	}
	return nil
}

// worktree tells a linked worktree.
func (p place) worktree() bool { return p.common != p.git }

// inside tells whether name is base or below it.
func inside(base, name string) bool {
	rel, err := filepath.Rel(base, name)
	return err == nil && filepath.IsLocal(rel)
}

// refs are the refs of a git directory: what each names, and what each symbolic one
// leads to.
type refs struct {
	ids      map[string]string
	symbolic map[string]string
}

// readRefs reads the refs that are kept as files. What is not a ref is passed over,
// as git does.
func readRefs(root *os.Root) (refs, error) {
	r := refs{ids: map[string]string{}, symbolic: map[string]string{}}
	packed, err := readIfThere(root, "packed-refs", maxRefs)
	if err != nil {
		return refs{}, err
	}
	lines := bufio.NewScanner(strings.NewReader(packed))
	for lines.Scan() {
		id, name, ok := strings.Cut(lines.Text(), " ")
		if ok && anyID.MatchString(id) && validRef(name) {
			r.ids[name] = id
		}
	}
	loose, err := looseRefs(root)
	if err != nil {
		return refs{}, err
	}
	for _, name := range loose {
		text, err := readPlain(root, name, 4096)
		if err != nil {
			continue
		}
		text = strings.TrimSpace(text)
		if to, ok := strings.CutPrefix(text, "ref: "); ok && validRef(to) {
			r.symbolic[name] = to
		} else if anyID.MatchString(text) {
			r.ids[name] = text
		}
	}
	return r, lines.Err()
}

// looseRefs lists the refs that have a file of their own.
func looseRefs(root *os.Root) ([]string, error) {
	var names []string
	err := fs.WalkDir(root.FS(), "refs", func(name string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && e.Type().IsRegular() && validRef(name) {
			names = append(names, name)
		}
		return err
	})
	return names, err
}

// names are the names of the refs below prefix, sorted.
func (r refs) names(prefix string) []string {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(r.ids)) {
		if strings.HasPrefix(name, prefix) {
			found = append(found, name)
		}
	}
	return found
}

// packed writes refs the way git packs them.
func packed(ids map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(ids)) {
		b.WriteString(ids[name] + " " + name + "\n")
	}
	return b.String()
}

// Find lists the roots of the repositories below root, relative to it, parents before
// what is nested in them; "." is root itself. No link is followed. skip, if not nil,
// tells directories that are not looked into.
func Find(root string, skip func(rel string) bool) ([]string, error) {
	var found []string
	err := filepath.WalkDir(root, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			if name == root {
				return err
			}
			return fs.SkipDir // what cannot be read is the walk's of the workspace to tell
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		if e.Name() == ".git" && rel != "." {
			found = append(found, path.Dir(filepath.ToSlash(rel)))
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if e.IsDir() && rel != "." && skip != nil && skip(filepath.ToSlash(rel)) {
			return fs.SkipDir
		}
		return nil
	})
	// A dash sorts before the dot of .git, so the walk may meet what is nested first.
	slices.SortFunc(found, func(a, b string) int { return strings.Compare(depthFirst(a), depthFirst(b)) })
	return found, err
}
