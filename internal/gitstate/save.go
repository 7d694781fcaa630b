package gitstate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Save stores the state of the repository whose working tree is at repo in the empty
// directory out: its state, a bundle of the objects that no clone of its remote has,
// and plain files. The same repository gives the same bytes. What cannot be stored,
// the whole repository even, is told in the state's Skipped; an error means that
// nothing could be written, or that ctx ended.
func Save(ctx context.Context, repo, out string, o Options) (State, error) {
	repo = filepath.Clean(repo)
	s := saving{out: out, options: o, state: State{Version: Version, Path: "."}}
	if rel, err := filepath.Rel(o.workspace(repo), repo); err == nil && filepath.IsLocal(rel) {
		s.state.Path = filepath.ToSlash(rel)
	}
	err := s.save(ctx, repo)
	if err == nil {
		if err = s.state.write(out); err == nil {
			err = s.scanFiles()
		}
	}
	if cause := ctx.Err(); cause != nil {
		return s.state, fmt.Errorf("save git state of %s: %w", s.state.Path, cause)
	}
	if e, ok := errors.AsType[*unsaved](err); ok {
		err = s.nothing(e)
	}
	if err != nil {
		return s.state, fmt.Errorf("save git state of %s: %w", s.state.Path, err)
	}
	return s.state, nil
}

// nothing stores only why nothing is stored: half a state would be restored wrongly.
func (s *saving) nothing(why *unsaved) error {
	left := Skipped{What: why.what, Reason: why.reason, Detail: why.detail()}
	s.state = State{Version: Version, Path: s.state.Path, Skipped: append(s.state.Skipped, left)}
	if why.reason == HoldsSecret {
		s.state.Skipped = []Skipped{left} // the others may hold it
	}
	return errors.Join(os.RemoveAll(filepath.Join(s.out, plainDir)), removeIfThere(filepath.Join(s.out, bundleFile)), s.state.write(s.out))
}

// unsaved says why nothing of a repository is stored.
type unsaved struct {
	what, reason string
	cause        error
}

func (e *unsaved) Error() string { return fmt.Sprintf("%s: %s: %v", e.what, e.reason, e.cause) }
func (e *unsaved) detail() string {
	if e.cause == nil {
		return ""
	}
	text := e.cause.Error()
	return text[max(0, len(text)-300):]
}
func (e *unsaved) Unwrap() error { return e.cause }

func notSaved(what string, err error) error {
	if err == nil {
		return nil
	}
	return &unsaved{what: what, reason: reason(err), cause: err}
}

func removeIfThere(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// saving is one save under way.
type saving struct {
	out     string
	options Options
	state   State
	at      place
	dir     *os.Root // the git directory
	plain   *os.Root // where plain files go
	work    *os.Root // of the shadow
	git     git
	refs    refs
	have    map[string]string // types of the objects that are named somewhere
	keep    map[string]bool   // objects that no ref leads to
	config  []Setting         // all of it
}

func (s *saving) save(ctx context.Context, repo string) (err error) {
	if s.at, err = locate(repo); err != nil {
		return &unsaved{"repository", NotARepository, err}
	}
	if s.at.worktree() {
		return &unsaved{"repository", LinkedWorktree, nil}
	}
	if s.dir, err = os.OpenRoot(s.at.git); err != nil {
		return &unsaved{"repository", NotARepository, err}
	}
	defer s.dir.Close()
	shadow, remove, err := s.options.shadow(s.at)
	if errors.Is(err, errNoGit) {
		return &unsaved{"repository", GitMissing, err}
	}
	if err != nil {
		return err
	}
	defer remove()
	s.git, s.keep = shadow, map[string]bool{}
	s.git.behind = filepath.Join(s.at.git, "objects")
	if err := os.MkdirAll(filepath.Join(s.out, plainDir), 0o700); err != nil {
		return err
	}
	if s.plain, err = os.OpenRoot(filepath.Join(s.out, plainDir)); err != nil {
		return err
	}
	defer s.plain.Close()
	if s.work, err = os.OpenRoot(shadow.work()); err != nil {
		return err
	}
	defer s.work.Close()
	for _, step := range []func(context.Context) error{s.readConfig, s.readHead, s.readWorktrees, s.readPlain, s.readObjects, s.readIndexes, s.bundle} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *saving) readConfig(ctx context.Context) (err error) {
	if s.config, err = s.git.settings(ctx, s.dir, "config"); err != nil {
		return notSaved("config", err)
	}
	// A sparse checkout keeps its settings apart, and for the main worktree alone.
	if slices.Contains(s.config, Setting{Key: "extensions.worktreeconfig", Value: "true"}) {
		own, err := s.git.settings(ctx, s.dir, "config.worktree")
		if err != nil {
			return notSaved("config.worktree", err)
		}
		s.config = append(s.config, own...)
	}
	s.state.ObjectFormat = "sha1"
	for _, set := range s.config {
		switch {
		case set.Key == "extensions.objectformat" && strings.EqualFold(set.Value, "sha256"):
			s.state.ObjectFormat = "sha256"
		case set.Key == "extensions.refstorage" && set.Value != "files":
			return &unsaved{"repository", RefFormat, nil}
		}
	}
	s.storeConfig()
	if rel, err := filepath.Rel(s.options.workspace(s.at.root), s.at.git); s.at.link != "" && err == nil && filepath.IsLocal(rel) && !filepath.IsAbs(s.at.link) {
		s.state.Link = s.at.link
	}
	return s.git.configure(s.state.ObjectFormat)
}

// storeConfig stores what is allowed, and tells what was left out of what has a
// meaning to the sandbox's user: settings nobody stores are not listed one by one.
func (s *saving) storeConfig() {
	for _, set := range s.config {
		value, why := cleanSetting(set.Key, set.Value)
		if why == "" {
			s.state.Config = append(s.state.Config, Setting{Key: set.Key, Value: value})
			if value != set.Value {
				s.state.skip("config "+set.Key, Credential)
			}
			continue
		}
		if strings.HasPrefix(set.Key, "extensions.") || structural[set.Key] {
			continue
		}
		// The name of a setting may itself hold a credential, as url.<base>.insteadOf does.
		name, _, _ := settingName(set.Key)
		s.state.skip("config "+name, why)
	}
}

// structural settings belong to the git directory, which the restore makes anew.
var structural = map[string]bool{"core.repositoryformatversion": true, "core.bare": true, "core.worktree": true}

func (s *saving) readHead(context.Context) (err error) {
	head, err := readPlain(s.dir, "HEAD", 4096)
	if err != nil {
		return &unsaved{"HEAD", NotPlain, err}
	}
	if s.state.Head = strings.TrimSpace(head); !s.state.validHead(s.state.Head) {
		return &unsaved{"HEAD", NotPlain, nil}
	}
	if s.refs, err = readRefs(s.dir); err != nil {
		return &unsaved{"refs", NotPlain, err}
	}
	for _, name := range slices.Sorted(maps.Keys(s.refs.symbolic)) {
		if !strings.HasPrefix(name, "refs/remotes/") {
			s.state.skip(name, NotPlain)
		}
	}
	shallow, err := readIfThere(s.dir, "shallow", maxPlain)
	if err != nil {
		return &unsaved{"shallow", NotPlain, err}
	}
	for id := range strings.FieldsSeq(shallow) {
		if s.state.validID(id) {
			s.state.Shallow = append(s.state.Shallow, id)
		}
	}
	slices.Sort(s.state.Shallow)
	if shallow != "" {
		return s.git.put("shallow", shallow)
	}
	return nil
}

func (s *saving) readWorktrees(context.Context) error {
	entries, err := fs.ReadDir(s.dir.FS(), "worktrees")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.state.skip("worktrees", NotPlain)
	}
	for _, e := range entries {
		w, err := s.worktree(e.Name())
		if err != nil {
			s.state.skip("worktrees/"+strings.ToValidUTF8(e.Name(), "?"), NotPlain)
			continue
		}
		s.state.Worktrees = append(s.state.Worktrees, w)
	}
	return nil
}

func (s *saving) worktree(name string) (Worktree, error) {
	dir := "worktrees/" + name
	head, err := readPlain(s.dir, dir+"/HEAD", 4096)
	if err != nil {
		return Worktree{}, err
	}
	link, err := readPlain(s.dir, dir+"/gitdir", 4096)
	if err != nil {
		return Worktree{}, err
	}
	at := filepath.Dir(absolute(filepath.Join(s.at.git, dir), strings.TrimRight(link, "\r\n")))
	w := Worktree{Name: name, Path: at, Head: strings.TrimSpace(head)}
	if rel, err := filepath.Rel(s.at.root, at); err == nil && inside(s.options.workspace(s.at.root), at) {
		w.Path, w.Inside = filepath.ToSlash(rel), true
	}
	_, err = s.dir.Lstat(dir + "/locked")
	w.Locked = err == nil
	return w, State{ObjectFormat: s.state.ObjectFormat, Worktrees: []Worktree{w}}.checkWorktrees()
}

// readPlain copies the plain files, and notes which objects they name.
func (s *saving) readPlain(context.Context) error {
	names := slices.Clone(commons)
	prefixes := []string{""}
	for _, w := range s.state.Worktrees {
		prefixes = append(prefixes, "worktrees/"+w.Name+"/")
		names = append(names, "worktrees/"+w.Name+"/info/sparse-checkout")
	}
	for _, prefix := range prefixes {
		own, skipped := ownFiles(s.dir, prefix)
		names = append(names, own...)
		s.state.Skipped = append(s.state.Skipped, skipped...)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := s.store(name, maxPlain); err != nil {
			return err
		}
	}
	return nil
}

// store copies one file, if it is there, from the git directory to the state.
func (s *saving) store(name string, max int64) error {
	f, err := copyPlain(rooted{s.dir, name}, rooted{s.plain, name}, max)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if e, ok := errors.AsType[*writeError](err); ok {
		return e
	}
	if err != nil {
		s.state.skip(name, NotPlain)
		return s.plain.RemoveAll(name)
	}
	s.state.Files = append(s.state.Files, f)
	return nil
}

var idWord = regexp.MustCompile(`\b[0-9a-f]{40}(?:[0-9a-f]{24})?\b`)

// readObjects settles which of the objects that refs, HEADs, stash and operations
// name are there, and drops the refs whose objects are not.
func (s *saving) readObjects(ctx context.Context) (err error) {
	var ids []string
	for name, id := range s.refs.ids {
		if !strings.HasPrefix(name, "refs/remotes/") {
			ids = append(ids, id)
		}
	}
	named := s.namedIDs()
	ids = append(ids, named...)
	for _, id := range s.negatives() {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	if s.have, err = s.git.have(ctx, slices.Compact(ids)); err != nil {
		return notSaved("objects", err)
	}
	for _, name := range s.refs.names("") {
		id := s.refs.ids[name]
		switch {
		case strings.HasPrefix(name, "refs/remotes/"):
			if s.state.validID(id) {
				s.state.Tracking = append(s.state.Tracking, Ref{Name: name, ID: id})
			}
		case s.have[id] == "" || !s.state.validID(id):
			s.state.skip(name, ObjectMissing)
		default:
			s.state.Refs = append(s.state.Refs, Ref{Name: name, ID: id})
		}
	}
	for _, id := range named {
		if s.have[id] != "" {
			s.keep[id] = true
		}
	}
	return nil
}

// namedIDs are the objects that something else than a ref names.
func (s *saving) namedIDs() []string {
	ids := idWord.FindAllString(s.state.Head, -1)
	for _, w := range s.state.Worktrees {
		ids = append(ids, idWord.FindAllString(w.Head, -1)...)
	}
	for _, f := range s.state.Files {
		base := filepath.Base(f.Name)
		if strings.Contains(f.Name, "info/") || base == "index" {
			continue
		}
		data, err := readPlain(s.plain, f.Name, maxPlain)
		if err == nil {
			ids = append(ids, idWord.FindAllString(data, -1)...)
		}
	}
	return slices.DeleteFunc(ids, func(id string) bool { return strings.Trim(id, "0") == "" || !s.state.validID(id) })
}

// negatives are what the remote-tracking refs say the restore's clone will have. A
// shallow clone will have other commits than this one when the remote has moved on.
func (s *saving) negatives() map[string]string {
	if len(s.state.Shallow) > 0 {
		return nil
	}
	remote := s.remote()
	if remote == "" {
		return nil
	}
	found := map[string]string{}
	for _, name := range s.refs.names("refs/remotes/" + remote + "/") {
		found[name] = s.refs.ids[name]
	}
	return found
}

// remote is the remote that the restore's clone will be of.
func (s *saving) remote() string {
	var all []string
	for _, set := range s.config {
		name, sub, _ := settingName(set.Key)
		if name == "remote.*.url" && leadsOut(set.Value) && !slices.Contains(all, sub) {
			all = append(all, sub)
		}
	}
	switch {
	case s.options.Remote != "":
		if slices.Contains(all, s.options.Remote) {
			return s.options.Remote
		}
		return ""
	case slices.Contains(all, "origin"):
		return "origin"
	case len(all) == 1:
		return all[0]
	}
	return ""
}

// readIndexes stores the index of the repository and of each worktree, and notes the
// staged objects that no commit has.
func (s *saving) readIndexes(ctx context.Context) error {
	heads := map[string]string{"": s.state.Head}
	prefixes := []string{""}
	for _, w := range s.state.Worktrees {
		prefix := "worktrees/" + w.Name + "/"
		prefixes = append(prefixes, prefix)
		heads[prefix] = w.Head
	}
	for _, prefix := range prefixes {
		if err := s.readIndex(ctx, prefix, heads[prefix]); err != nil {
			return err
		}
	}
	return nil
}

func (s *saving) readIndex(ctx context.Context, prefix, head string) error {
	f, err := copyPlain(rooted{s.dir, prefix + "index"}, rooted{s.work, "index"}, maxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if e, ok := errors.AsType[*writeError](err); ok {
		return e
	}
	var staged []string
	if err == nil {
		err = s.wholeIndex(ctx, prefix)
	}
	if err == nil {
		staged, err = s.staged(ctx, head)
	}
	if err != nil {
		why := reason(err)
		if errors.Is(err, errNotPlain) {
			why = NotPlain
		}
		s.state.skip(prefix+"index", why)
		return nil
	}
	for _, id := range staged {
		s.keep[id] = true
	}
	stored, err := copyPlain(rooted{s.work, "index"}, rooted{s.plain, prefix + "index"}, maxIndex)
	s.state.Files = append(s.state.Files, File{Name: prefix + "index", Size: stored.Size, MTime: f.MTime})
	return err
}

// wholeIndex joins a split index: its other part is a file of its own.
func (s *saving) wholeIndex(ctx context.Context, prefix string) error {
	parts, err := fs.Glob(s.dir.FS(), prefix+"sharedindex.*")
	if err != nil || len(parts) == 0 {
		return err
	}
	for _, name := range parts {
		// The other part is looked for in the git directory, which is this process' own.
		data, err := readPlain(s.dir, name, maxIndex)
		if err == nil {
			err = s.git.put(filepath.Base(name), data)
		}
		if err != nil {
			return err
		}
		defer os.Remove(filepath.Join(s.git.dir, filepath.Base(name)))
	}
	return s.git.run(ctx, nil, &limited{}, "-c", "splitIndex.maxPercentChange=0", "update-index", "--no-split-index")
}

// staged lists the objects of the shadow's index that the commit head does not have.
// Those of an entry that was only announced (intent to add) are not there.
func (s *saving) staged(ctx context.Context, head string) ([]string, error) {
	base := s.resolve(head)
	if base == "" || s.have[base] != "commit" {
		var err error
		if base, err = s.git.output(ctx, "", 100, "hash-object", "-t", "tree", "--stdin"); err != nil {
			return nil, err
		}
	}
	diff, err := s.git.output(ctx, "", maxIndex, "diff-index", "--cached", "--raw", "-z", "--no-renames", "--no-abbrev", "--no-ext-diff", "--no-textconv",
		"--ignore-submodules=all", strings.TrimSpace(base))
	if err != nil {
		return nil, err
	}
	unmerged, err := s.git.output(ctx, "", maxIndex, "ls-files", "--unmerged", "-z")
	if err != nil {
		return nil, err
	}
	ids := append(rawIDs(diff), unmergedIDs(unmerged)...)
	slices.Sort(ids)
	have, err := s.git.have(ctx, slices.Compact(ids))
	maps.Copy(s.have, have)
	return slices.DeleteFunc(ids, func(id string) bool { return have[id] == "" }), err
}

// resolve gives the object that a HEAD leads to; empty if none.
func (s *saving) resolve(head string) string {
	if name, ok := strings.CutPrefix(head, "ref: "); ok {
		return s.refs.ids[name]
	}
	return head
}

// rawIDs reads the new objects out of a raw diff: ":old new old-id new-id status", NUL,
// path, NUL. A submodule's commit is not an object of this repository.
func rawIDs(diff string) []string {
	var ids []string
	for field := range strings.SplitSeq(diff, "\x00") {
		words := strings.Fields(field)
		if len(words) == 5 && strings.HasPrefix(field, ":") && words[1] != "160000" && strings.Trim(words[3], "0") != "" {
			ids = append(ids, words[3])
		}
	}
	return ids
}

// unmergedIDs reads the objects out of "mode id stage", tab, path, NUL.
func unmergedIDs(listing string) []string {
	var ids []string
	for entry := range strings.SplitSeq(listing, "\x00") {
		facts, _, ok := strings.Cut(entry, "\t")
		words := strings.Fields(facts)
		if ok && len(words) == 3 && words[0] != "160000" {
			ids = append(ids, words[1])
		}
	}
	return ids
}

// Refs of a bundle that are not the repository's own.
const (
	keepRef   = "refs/sandkeeper/keep"   // a commit of all that no commit has
	extraRefs = "refs/sandkeeper/extra/" // commits that no ref names, by their ids
	haveRefs  = "refs/sandkeeper-have/"  // what the restore's clone has; never in a bundle
)

// bundled are the revisions that a bundle is of.
var bundled = []string{"--exclude=" + haveRefs + "*", "--all", "--not", "--glob=" + haveRefs + "*"}

// bundle writes what the restore's clone will not have.
func (s *saving) bundle(ctx context.Context) error {
	ids := map[string]string{}
	for _, ref := range s.state.Refs {
		ids[ref.Name] = ref.ID
	}
	for name, id := range s.negatives() {
		if s.have[id] != "" {
			ids[haveRefs+strings.TrimPrefix(name, "refs/remotes/")] = id
		}
	}
	keep, err := s.keepCommit(ctx, ids)
	if err != nil {
		return notSaved("objects", err)
	}
	ids[keepRef] = keep
	if err := errors.Join(s.git.put("packed-refs", packed(ids)), s.git.put("HEAD", unborn)); err != nil {
		return err
	}
	out, err := os.OpenFile(filepath.Join(s.out, bundleFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = s.git.run(ctx, nil, &limited{w: out, left: s.options.maxBytes()},
		append([]string{"bundle", "create", "--quiet", "-"}, bundled...)...)
	if closed := out.Close(); closed != nil {
		return closed
	}
	if err != nil {
		return notSaved("objects", err)
	}
	if err := s.noteBundle(); err != nil {
		return err
	}
	return s.scanObjects(ctx)
}

// keepCommit adds a ref for each commit or tag that only something else than a ref
// names, and makes one commit of the trees and files that no commit has.
func (s *saving) keepCommit(ctx context.Context, ids map[string]string) (string, error) {
	var tree strings.Builder
	kept := make([]string, 0, len(s.keep))
	for id := range s.keep {
		kept = append(kept, id)
	}
	slices.Sort(kept)
	for _, id := range kept {
		switch s.have[id] {
		case "commit", "tag":
			ids[extraRefs+id] = id
		case "tree":
			tree.WriteString("040000 tree " + id + "\t" + id + "\n")
		case "blob":
			tree.WriteString("100644 blob " + id + "\t" + id + "\n")
		}
	}
	id, err := s.git.output(ctx, tree.String(), 100, "mktree")
	if err != nil {
		return "", err
	}
	commit, err := s.git.output(ctx, "", 100, "commit-tree", "--no-gpg-sign", "-m", "what no commit has", strings.TrimSpace(id))
	return strings.TrimSpace(commit), err
}

func (s *saving) noteBundle() error {
	b, err := openBundle(filepath.Join(s.out, bundleFile))
	if err != nil {
		return &unsaved{"objects", GitFailed, err}
	}
	defer b.Close()
	s.state.Bundle, s.state.Prerequisites = b.size, b.prerequisites
	return nil
}
