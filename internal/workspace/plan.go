package workspace

import (
	"errors"
	"slices"
	"strings"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// source is a run of wanted entries in the order of a layer.
type source interface {
	peek() (*manifest.Entry, error) // nil at the end
	skip()
}

// present is an entry that the destination has now.
type present struct {
	path string
	kind manifest.Kind // 0 for a special file
	// protected entries survive: they belong to what the policy leaves out, or to
	// what the checkpoint does not hold.
	protected bool
}

// planner lays the wanted entries and the present ones side by side, each in the
// order of a layer, and says what a restore does. It holds the directories above
// the current entry and what is to be removed.
type planner struct {
	wanted  source
	stack   []planDir
	removes []remove          // nothing in it lies below another
	mkdirs  func(path string) // a directory that is not there now
	writes  func(e *manifest.Entry)
	// changes, if not nil, is told of each present directory, the root's path empty, in
	// which names come, go or are replaced.
	changes func(path string) error
	changed bool     // in the root
	made    []string // the wanted directories above the last wanted entry that are not there
}

// remove is an entry that goes, for nothing or for one of another kind.
type remove struct {
	path     string
	replaced bool
}

// planDir is a present directory that the walk is in.
type planDir struct {
	path      string
	want      manifest.Kind // 0: not wanted
	protected bool          // it, or something below it
	removes   int           // how many removes there were before it
	filled    bool          // something is in it
	changed   bool          // names in it come, go or are replaced
}

// see takes the next present entry. A protected entry where something else is wanted
// is refused with [CodeInvalidPath].
func (p *planner) see(at present) error {
	if err := p.wantBefore(at.path); err != nil {
		return err
	}
	if err := p.leave(at.path); err != nil {
		return err
	}
	want, err := p.wantedAt(at.path)
	if err != nil {
		return err
	}
	if n := len(p.stack); n > 0 {
		p.stack[n-1].filled = true
	}
	if at.protected {
		if want != 0 && (want != manifest.Dir || at.kind != manifest.Dir) {
			return refuse(CodeInvalidPath, at.path, errors.New("an entry is wanted where one is that must survive"))
		}
		p.protect()
	}
	switch {
	case at.kind == manifest.Dir:
		p.stack = append(p.stack, planDir{path: at.path, want: want, protected: at.protected, removes: len(p.removes)})
	case at.protected:
	case want == 0 && at.kind == 0:
		p.protect()
	case want == 0, want == manifest.Dir, at.kind == 0:
		p.removes = append(p.removes, remove{at.path, want != 0})
		p.change(at.path)
	}
	return nil
}

// change notes that a name comes, goes or is replaced in the directory above it, if
// that is there now.
func (p *planner) change(path string) {
	depth, parent := strings.Count(path, "/"), ""
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		parent = path[:i]
	}
	switch {
	case depth == 0:
		p.changed = true
	case depth <= len(p.stack) && p.stack[depth-1].path == parent:
		p.stack[depth-1].changed = true
	}
}

// protect marks the directories that the walk is in.
func (p *planner) protect() {
	for i := range p.stack {
		p.stack[i].protected = true
	}
}

// wantedAt is the kind that is wanted at a path: a directory also where only
// something below it is.
func (p *planner) wantedAt(path string) (manifest.Kind, error) {
	next, err := p.wanted.peek()
	switch {
	case err != nil || next == nil || next.Area != manifest.Workspace:
		return 0, err
	case next.Path == path:
		return next.Kind, nil
	case manifest.Below(next.Path, path):
		return manifest.Dir, nil
	}
	return 0, nil
}

// wantBefore takes the wanted entries that come before a path.
func (p *planner) wantBefore(path string) error {
	for {
		next, err := p.wanted.peek()
		if err != nil || next == nil || next.Area != manifest.Workspace || manifest.ComparePaths(next.Path, path) >= 0 {
			return err
		}
		if err := p.want(next); err != nil {
			return err
		}
	}
}

func (p *planner) want(e *manifest.Entry) error {
	if err := p.leave(e.Path); err != nil {
		return err
	}
	for len(p.made) > 0 && !manifest.Below(e.Path, p.made[len(p.made)-1]) {
		p.made = p.made[:len(p.made)-1]
	}
	for i := range len(e.Path) {
		if e.Path[i] == '/' {
			p.mkdir(e.Path[:i])
		}
	}
	if e.Kind == manifest.Dir {
		p.mkdir(e.Path)
	} else {
		p.writes(e)
		p.change(e.Path)
	}
	p.wanted.skip()
	return nil
}

// mkdir notes a wanted directory that is neither there nor noted yet.
func (p *planner) mkdir(path string) {
	depth := strings.Count(path, "/")
	if depth < len(p.stack) && p.stack[depth].path == path {
		return
	}
	if slices.Contains(p.made, path) {
		return
	}
	p.made = append(p.made, path)
	p.mkdirs(path)
	p.change(path)
}

// leave closes the present directories that a path is not in.
func (p *planner) leave(path string) error {
	for len(p.stack) > 0 {
		d := p.stack[len(p.stack)-1]
		if d.path == path || manifest.Below(path, d.path) {
			return nil
		}
		p.stack = p.stack[:len(p.stack)-1]
		switch {
		case d.want == manifest.Dir || d.protected && d.want == 0:
		case d.protected:
			return refuse(CodeInvalidPath, d.path, errors.New("a file is wanted where a directory holds entries that must survive"))
		default:
			p.removes = append(p.removes[:d.removes], remove{d.path, d.want != 0})
			d.changed = d.filled
			p.change(d.path)
		}
		if err := p.tell(d.changed, d.path); err != nil {
			return err
		}
	}
	return nil
}

func (p *planner) tell(changed bool, path string) error {
	if !changed || p.changes == nil {
		return nil
	}
	return p.changes(path)
}

// end takes what is left on either side.
func (p *planner) end() error {
	for {
		next, err := p.wanted.peek()
		if err != nil {
			return err
		}
		if next == nil || next.Area != manifest.Workspace {
			break
		}
		if err := p.want(next); err != nil {
			return err
		}
	}
	if err := p.leave(""); err != nil {
		return err
	}
	return p.tell(p.changed, "")
}
