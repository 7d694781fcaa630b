package gitstate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Result says what a restore did.
type Result struct {
	Path     string `json:"path"`
	Restored bool   `json:"restored"` // HEAD, refs and index are as they were saved
	Cloned   bool   `json:"cloned"`   // a repository was there already
	// Code says why it was not restored: [GitMissing], [ObjectsMissing],
	// [FormatMismatch], [OutsideOfWorkspace], [RefFormat], [NotARepository],
	// [GitFailed], [TookTooLong], or what Save skipped it for.
	Code    string    `json:"code,omitempty"`
	Missing []string  `json:"missing,omitempty"` // commits that the remote has and no clone brought
	Skipped []Skipped `json:"skipped,omitempty"` // what Save and Restore left out
}

// Restore brings the state in the directory in, which Save left, back to the working
// tree at repo: into the repository that is there, which a clone of the remote made,
// or into a new one. Files of the working tree are not touched, but for the .git file
// of a linked worktree. Where the bundle builds on commits that only the remote has,
// a new repository gets its remotes and branch, so that a fetch brings them, and the
// result says [ObjectsMissing]; doing it again after the fetch finishes it. An error
// means that in is not what Save writes, that nothing could be written, or that ctx
// ended; running it again does no harm.
func Restore(ctx context.Context, repo, in string, o Options) (Result, error) {
	state, err := ReadState(in)
	if err != nil {
		return Result{}, err
	}
	r := restoring{root: filepath.Clean(repo), in: in, options: o, state: state, result: Result{Path: state.Path, Skipped: state.Skipped}}
	if state.Empty() {
		r.result.Code = NotARepository
		if len(state.Skipped) > 0 {
			r.result.Code = state.Skipped[0].Reason
		}
		return r.result, nil
	}
	err = r.restore(ctx)
	if cause := ctx.Err(); cause != nil {
		err = cause
	}
	if e, ok := errors.AsType[*refusal](err); ok {
		r.result.Code, err = e.code, nil
	}
	if err != nil {
		return r.result, fmt.Errorf("restore git state of %s: %w", state.Path, err)
	}
	return r.result, nil
}

// refusal ends a restore with a code.
type refusal struct{ code string }

func (e *refusal) Error() string { return e.code }

func refuse(code string) error { return &refusal{code: code} }

// restoring is one restore under way.
type restoring struct {
	root    string
	in      string
	options Options
	state   State
	result  Result
	at      place
	dir     *os.Root // the git directory
	plain   *os.Root // the plain files of the state
	git     git
	refs    refs // of the repository that was there
}

func (r *restoring) restore(ctx context.Context) (err error) {
	if _, ok := binary(); !ok {
		return refuse(GitMissing)
	}
	if err := r.open(ctx); err != nil {
		return err
	}
	defer r.dir.Close()
	defer r.plain.Close()
	shadow, remove, err := r.options.shadow(r.at)
	if err != nil {
		return err
	}
	defer remove()
	r.git = shadow
	r.git.objects = filepath.Join(r.at.git, "objects")
	defer func() { err = errors.Join(err, r.give()) }()
	for _, step := range []func(context.Context) error{
		r.readThere, r.readObjects, r.writeConfig, r.writeShallow, r.writeRefs, r.writeFiles, r.writeWorktrees,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	r.result.Restored = true
	return nil
}

// open finds or makes the git directory, and checks that it is in the workspace.
func (r *restoring) open(context.Context) (err error) {
	workspace, err := filepath.EvalSymlinks(r.options.workspace(r.root))
	if err != nil {
		return err
	}
	root, err := filepath.EvalSymlinks(r.root)
	if err != nil {
		return err
	}
	if !inside(workspace, root) {
		return refuse(OutsideOfWorkspace)
	}
	r.root = root
	r.at, err = locate(root)
	r.result.Cloned = err == nil
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := r.create(workspace); err != nil {
			return err
		}
	case errors.Is(err, errNotRepository):
		return refuse(NotARepository)
	case err != nil:
		return err
	}
	if !inside(workspace, r.at.git) || r.at.worktree() {
		return refuse(OutsideOfWorkspace)
	}
	if info, err := os.Lstat(filepath.Join(r.at.git, "objects")); err != nil || !info.IsDir() {
		return refuse(NotARepository)
	}
	if err := os.MkdirAll(filepath.Join(r.in, plainDir), 0o700); err != nil {
		return err
	}
	if r.plain, err = os.OpenRoot(filepath.Join(r.in, plainDir)); err != nil {
		return err
	}
	r.dir, err = os.OpenRoot(r.at.git)
	return err
}

// openBelow opens the workspace, beyond which nothing is written, and names a place in it.
func openBelow(workspace, at string) (space *os.Root, rel string, err error) {
	if rel, err = filepath.Rel(workspace, at); err != nil {
		return nil, "", err
	}
	space, err = os.OpenRoot(workspace)
	return space, rel, err
}

// create makes an empty repository. HEAD comes last: without it there is none, and
// the next attempt begins again.
func (r *restoring) create(workspace string) error {
	at := filepath.Join(r.root, ".git")
	if r.state.Link != "" {
		at = absolute(r.root, r.state.Link)
	}
	if !inside(workspace, at) {
		return refuse(OutsideOfWorkspace)
	}
	space, rel, err := openBelow(workspace, at)
	if err != nil {
		return err
	}
	defer space.Close()
	for _, dir := range []string{"objects/info", "objects/pack", "refs/heads", "refs/tags", "info"} {
		if err := space.MkdirAll(filepath.Join(rel, dir), 0o777); err != nil {
			return err
		}
	}
	config, err := r.firstConfig(at)
	if err == nil {
		err = replaceText(space, filepath.Join(rel, "config"), config)
	}
	if err == nil {
		err = replaceText(space, filepath.Join(rel, "HEAD"), r.firstHead())
	}
	if err == nil && r.state.Link != "" {
		err = r.linkTo(space, workspace)
	}
	if err != nil {
		return err
	}
	if r.at, err = locate(r.root); err != nil {
		return err
	}
	return give(r.at.git, owner(r.root))
}

// firstConfig is the configuration of an empty repository with its git directory at.
func (r *restoring) firstConfig(at string) (string, error) {
	config := "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tlogallrefupdates = true\n"
	if r.state.ObjectFormat == "sha256" {
		config = "[core]\n\trepositoryformatversion = 1\n\tbare = false\n\tlogallrefupdates = true\n[extensions]\n\tobjectformat = sha256\n"
	}
	if r.state.Link == "" {
		return config, nil
	}
	tree, err := filepath.Rel(at, r.root)
	return config + formatSettings([]Setting{{Key: "core.worktree", Value: tree}}), err
}

// linkTo writes the .git file that leads to a git directory elsewhere.
func (r *restoring) linkTo(space *os.Root, workspace string) error {
	tree, err := filepath.Rel(workspace, r.root)
	if err != nil {
		return err
	}
	return replaceText(space, filepath.Join(tree, ".git"), "gitdir: "+r.state.Link+"\n")
}

// firstHead is the branch of a repository whose objects are not there yet.
func (r *restoring) firstHead() string {
	if strings.HasPrefix(r.state.Head, "ref: ") {
		return r.state.Head + "\n"
	}
	return "ref: refs/heads/main\n"
}

// readThere reads what the repository that is there has.
func (r *restoring) readThere(ctx context.Context) (err error) {
	config, err := r.git.settings(ctx, r.dir, "config")
	if err != nil {
		return refuse(reason(err))
	}
	format := "sha1"
	for _, set := range config {
		switch {
		case set.Key == "extensions.objectformat" && strings.EqualFold(set.Value, "sha256"):
			format = "sha256"
		case set.Key == "extensions.refstorage" && set.Value != "files":
			return refuse(RefFormat)
		}
	}
	if format != r.state.ObjectFormat {
		return refuse(FormatMismatch)
	}
	if r.refs, err = readRefs(r.dir); err != nil {
		return err
	}
	shallow, err := readIfThere(r.dir, "shallow", maxPlain)
	if err != nil {
		return err
	}
	if shallow != "" {
		if err := r.git.put("shallow", shallow); err != nil {
			return err
		}
	}
	return r.git.configure(format)
}

// readObjects takes the bundle's objects in, and checks that nothing is missing
// behind them before any ref names them.
func (r *restoring) readObjects(ctx context.Context) error {
	b, err := openBundle(filepath.Join(r.in, bundleFile))
	if err != nil {
		return err
	}
	defer b.Close()
	have, err := r.git.have(ctx, b.prerequisites)
	if err != nil {
		return refuse(reason(err))
	}
	for _, id := range b.prerequisites {
		if have[id] == "" {
			r.result.Missing = append(r.result.Missing, id)
		}
	}
	if len(r.result.Missing) > 0 {
		return r.objectsMissing(ctx)
	}
	if err := r.git.run(ctx, b.pack, &limited{left: 1000, w: io.Discard}, "index-pack", "--stdin", "--fix-thin"); err != nil {
		return refuse(reason(err))
	}
	return r.connected(ctx, slices.Collect(maps.Values(b.refs)))
}

// objectsMissing leaves a new repository with its remotes, so that a fetch can bring
// what is missing, and a clone as it is.
func (r *restoring) objectsMissing(ctx context.Context) error {
	if !r.result.Cloned {
		if err := r.writeConfig(ctx); err != nil {
			return err
		}
	}
	return refuse(ObjectsMissing)
}

// connected checks that everything is there that the saved refs lead to and the
// clone's do not: the way git itself checks what it fetched.
func (r *restoring) connected(ctx context.Context, bundled []string) error {
	if err := r.shadowShallow(ctx); err != nil {
		return err
	}
	there := map[string]string{}
	ids := slices.Collect(maps.Values(r.refs.ids))
	slices.Sort(ids)
	have, err := r.git.have(ctx, slices.Compact(ids))
	if err != nil {
		return refuse(reason(err))
	}
	for name, id := range r.refs.ids {
		if have[id] != "" {
			there[name] = id
		}
	}
	var want strings.Builder
	for _, id := range bundled {
		want.WriteString(id + "\n")
	}
	for _, ref := range r.state.Refs {
		want.WriteString(ref.ID + "\n")
	}
	if !strings.HasPrefix(r.state.Head, "ref: ") {
		want.WriteString(r.state.Head + "\n")
	}
	if err := r.git.put("packed-refs", packed(there)); err != nil {
		return err
	}
	if _, err := r.git.output(ctx, want.String(), 4096, "rev-list", "--objects", "--quiet", "--stdin", "--not", "--all"); err != nil {
		if code := reason(err); code != GitFailed {
			return refuse(code)
		}
		return r.objectsMissing(ctx)
	}
	return nil
}

// shallow gives the commits whose parents the repository will not have: those it says
// itself, and those of the state that it does not have whole.
func (r *restoring) shallow(ctx context.Context) ([]string, error) {
	text, err := readIfThere(r.dir, "shallow", maxPlain)
	if err != nil {
		return nil, err
	}
	all := strings.Fields(text)
	for _, id := range r.state.Shallow {
		if slices.Contains(all, id) {
			continue
		}
		commit, err := r.git.output(ctx, "", maxPlain, "cat-file", "commit", id)
		if err != nil {
			continue // no commit that is there leads to it
		}
		parents := parentsOf(commit)
		have, err := r.git.have(ctx, parents)
		if err != nil {
			return nil, refuse(reason(err))
		}
		if len(have) < len(parents) {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

func parentsOf(commit string) []string {
	var parents []string
	header, _, _ := strings.Cut(commit, "\n\n")
	for line := range strings.Lines(header) {
		if id, ok := strings.CutPrefix(strings.TrimSpace(line), "parent "); ok && !slices.Contains(parents, id) {
			parents = append(parents, id)
		}
	}
	return parents
}

func (r *restoring) shadowShallow(ctx context.Context) error {
	all, err := r.shallow(ctx)
	if err != nil || len(all) == 0 {
		return err
	}
	return r.git.put("shallow", strings.Join(all, "\n")+"\n")
}

func (r *restoring) writeShallow(ctx context.Context) error {
	all, err := r.shallow(ctx)
	if err != nil || len(all) == 0 {
		return err
	}
	return replaceText(r.dir, "shallow", strings.Join(all, "\n")+"\n")
}

// writeConfig joins the saved configuration with the one that is there. A remote that
// is there stays as it is: it may hold what its clone needs.
func (r *restoring) writeConfig(ctx context.Context) error {
	there, err := r.git.settings(ctx, r.dir, "config")
	if err != nil {
		return refuse(reason(err))
	}
	all := joinSettings(there, r.state.Config)
	if slices.Equal(all, there) {
		return nil
	}
	return replaceText(r.dir, "config", formatSettings(all))
}

// joinSettings puts the saved settings over those that are there. Branches are those
// that were saved; a remote or submodule that is there stays whole; anything else
// saved replaces what has its name.
func joinSettings(there, saved []Setting) []Setting {
	groups := map[string]bool{}
	for _, set := range there {
		groups[group(set.Key)] = true
	}
	names := map[string]bool{}
	for _, set := range saved {
		names[set.Key] = true
	}
	var all []Setting
	for _, set := range there {
		kept := strings.HasPrefix(group(set.Key), "remote.") || strings.HasPrefix(group(set.Key), "submodule.")
		if strings.HasPrefix(group(set.Key), "branch.") || names[set.Key] && !kept {
			continue
		}
		all = append(all, set)
	}
	for _, set := range saved {
		g := group(set.Key)
		if (strings.HasPrefix(g, "remote.") || strings.HasPrefix(g, "submodule.")) && groups[g] {
			continue
		}
		all = append(all, set)
	}
	return all
}

// group is the section and subsection of a key, with a dot behind; of a key without a
// subsection it is empty.
func group(key string) string {
	first, last := strings.IndexByte(key, '.'), strings.LastIndexByte(key, '.')
	if first == last {
		return ""
	}
	return key[:last+1]
}

// writeRefs makes the refs those that were saved, and keeps the remote-tracking refs
// and the tags that the clone brought. The packed refs are renamed into place before a
// loose one, which would hide a packed one, goes.
func (r *restoring) writeRefs(ctx context.Context) error {
	all, err := r.tracking(ctx)
	if err != nil {
		return err
	}
	for name, id := range r.refs.ids {
		if strings.HasPrefix(name, "refs/remotes/") || strings.HasPrefix(name, "refs/tags/") {
			all[name] = id
		}
	}
	for _, ref := range r.state.Refs {
		all[ref.Name] = ref.ID
	}
	if err := replaceText(r.dir, "packed-refs", packed(all)); err != nil {
		return err
	}
	loose, err := looseRefs(r.dir)
	if err != nil {
		return err
	}
	for _, name := range loose {
		if strings.HasPrefix(name, "refs/remotes/") {
			continue
		}
		if err := r.dir.Remove(name); err != nil {
			return err
		}
	}
	// A directory of refs that is empty would be in the way of none, but refs itself
	// makes the directory a repository.
	if err := r.dir.MkdirAll("refs/heads", 0o777); err != nil {
		return err
	}
	return replaceText(r.dir, "HEAD", r.state.Head+"\n")
}

// tracking gives the saved remote-tracking refs of remotes that nothing tracks yet,
// as far as the objects are there.
func (r *restoring) tracking(ctx context.Context) (map[string]string, error) {
	tracked := map[string]bool{}
	for name := range r.refs.ids {
		tracked[remoteOf(name)] = true
	}
	var ids []string
	for _, ref := range r.state.Tracking {
		ids = append(ids, ref.ID)
	}
	slices.Sort(ids)
	have, err := r.git.have(ctx, slices.Compact(ids))
	if err != nil {
		return nil, refuse(reason(err))
	}
	all := map[string]string{}
	for _, ref := range r.state.Tracking {
		if !tracked[remoteOf(ref.Name)] && have[ref.ID] != "" {
			all[ref.Name] = ref.ID
		}
	}
	return all, nil
}

// remoteOf is the first part of a remote-tracking ref's name below refs/remotes/.
func remoteOf(name string) string {
	rest, ok := strings.CutPrefix(name, "refs/remotes/")
	if !ok {
		return ""
	}
	remote, _, _ := strings.Cut(rest, "/")
	return remote
}

// writeFiles puts the plain files in place, the indexes last, and removes what an
// operation left that was not in progress when the state was saved.
func (r *restoring) writeFiles(ctx context.Context) error {
	there, _ := ownFiles(r.dir, "")
	saved := map[string]bool{}
	for _, f := range r.state.Files {
		saved[f.Name] = true
	}
	for _, name := range append(there, "logs/refs/stash", "index") {
		if !saved[name] {
			if err := r.dir.RemoveAll(name); err != nil {
				return err
			}
		}
	}
	for _, dir := range steps {
		if slices.ContainsFunc(r.state.Files, func(f File) bool { return strings.HasPrefix(f.Name, dir+"/") }) {
			continue
		}
		if err := r.dir.RemoveAll(dir); err != nil {
			return err
		}
	}
	files := slices.Clone(r.state.Files)
	if r.lostIndex() {
		if err := r.rebuildIndex(ctx); err != nil {
			return err
		}
	}
	slices.SortStableFunc(files, func(a, b File) int { return boolOrder(path.Base(a.Name) == "index", path.Base(b.Name) == "index") })
	for _, f := range files {
		if strings.HasPrefix(f.Name, "worktrees/") && !r.hasWorktree(f.Name) {
			continue
		}
		if err := r.writeFile(f); err != nil {
			return err
		}
	}
	return nil
}

// lostIndex tells that there was an index that could not be saved.
func (r *restoring) lostIndex() bool {
	return slices.ContainsFunc(r.state.Skipped, func(s Skipped) bool { return s.What == "index" })
}

// rebuildIndex makes the index that of HEAD: nothing is staged any more.
func (r *restoring) rebuildIndex(ctx context.Context) error {
	head := r.state.Head
	if name, ok := strings.CutPrefix(head, "ref: "); ok {
		at := slices.IndexFunc(r.state.Refs, func(ref Ref) bool { return ref.Name == name })
		if at < 0 {
			return nil
		}
		head = r.state.Refs[at].ID
	}
	if err := r.git.run(ctx, nil, &limited{}, "read-tree", head); err != nil {
		return refuse(reason(err))
	}
	work, err := os.OpenRoot(r.git.work())
	if err != nil {
		return err
	}
	defer work.Close()
	data, err := readPlain(work, "index", maxIndex)
	if err != nil {
		return err
	}
	return replaceText(r.dir, "index", data)
}

func (r *restoring) hasWorktree(file string) bool {
	return slices.ContainsFunc(r.state.Worktrees, func(w Worktree) bool { return strings.HasPrefix(file, "worktrees/"+w.Name+"/") })
}

func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// writeFile puts one plain file in place. An index keeps its time: git takes entries
// that are as young as the index for possibly changed.
func (r *restoring) writeFile(f File) error {
	if why := stepExecutes(r.plain, f.Name); why != "" {
		r.result.Skipped = append(r.result.Skipped, Skipped{What: f.Name, Reason: why})
		return nil
	}
	from, info, err := openPlain(r.plain, f.Name, maxIndex)
	if err != nil {
		return err
	}
	defer from.Close()
	if info.Size() != f.Size {
		return fmt.Errorf("file %s: %d bytes, want %d", f.Name, info.Size(), f.Size)
	}
	err = replaceFile(r.dir, f.Name, 0o666, func(w io.Writer) error {
		_, err := io.CopyN(w, from, f.Size)
		return err
	})
	if err != nil {
		return err
	}
	when := time.Unix(0, f.MTime)
	return r.dir.Chtimes(f.Name, when, when)
}

// writeWorktrees makes the linked worktrees known to the repository, and leads those
// whose files are there to it.
func (r *restoring) writeWorktrees(context.Context) error {
	workspace, err := filepath.EvalSymlinks(r.options.workspace(r.root))
	if err != nil {
		return err
	}
	for _, w := range r.state.Worktrees {
		at := w.Path
		if w.Inside {
			at = filepath.Join(r.root, filepath.FromSlash(w.Path))
		}
		dir := "worktrees/" + w.Name
		files := map[string]string{"HEAD": w.Head + "\n", "commondir": "../..\n", "gitdir": filepath.Join(at, ".git") + "\n"}
		if w.Locked {
			files["locked"] = ""
		}
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if err := replaceText(r.dir, dir+"/"+name, files[name]); err != nil {
				return err
			}
		}
		if w.Inside && inside(workspace, at) {
			if err := r.leadTo(workspace, at, w.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// leadTo writes the .git file of a linked worktree whose directory is there.
func (r *restoring) leadTo(workspace, at, name string) error {
	space, rel, err := openBelow(workspace, at)
	if err != nil {
		return err
	}
	defer space.Close()
	if info, err := space.Lstat(rel); err != nil || !info.IsDir() {
		return nil
	}
	link := filepath.Join(rel, ".git")
	if _, err := space.Lstat(link); err == nil {
		return nil
	}
	if err := replaceText(space, link, "gitdir: "+filepath.Join(r.at.git, "worktrees", name)+"\n"); err != nil {
		return err
	}
	if as := owner(r.root); as != nil {
		return space.Lchown(link, int(as.Uid), int(as.Gid))
	}
	return nil
}

// give makes the git directory its owner's, so that what was written as root can be
// changed by the agent.
func (r *restoring) give() error {
	return give(r.at.git, owner(r.root))
}
