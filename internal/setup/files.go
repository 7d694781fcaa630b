package setup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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
	"syscall"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

// file is one file that the plan puts into the workspace.
type file struct {
	data []byte
	mode fs.FileMode
}

// The places of what a plan brings. Agents of different makers look for skills and
// instructions in different places.
var (
	instructionFiles = []string{"AGENTS.md", "CLAUDE.md", "GEMINI.md"}
	skillDirs        = []string{".claude/skills", ".codex/skills", ".grok/skills"}
)

const (
	pluginDir  = ".claude/plugins"
	scriptDir  = ".sandkeeper/scripts"
	policyFile = ".sandkeeper/policy.json"
)

// The bounds of what a repository of skills may bring.
const (
	maxAddedFiles = 2000
	maxAddedBytes = 32 << 20
)

// marker is the file at the workspace's root that says what was put there.
type marker struct {
	Version int               `json:"version"`
	Files   map[string]string `json:"files"` // hex SHA-256 by path
}

const maxMarker = 4 << 20

// projectFiles makes the plan's files be there, and those of former plans go. A file that
// is neither what the marker says nor what the plan says is somebody else's, and stays.
func (j *job) projectFiles(ctx context.Context) error {
	wanted, err := j.wanted(ctx)
	if err != nil {
		return err
	}
	former, names := j.markers()
	now := marker{Version: 1, Files: map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		ours, err := j.put(name, wanted[name], former[name])
		if err != nil {
			return fmt.Errorf("put %s: %w", name, err)
		}
		if ours {
			now.Files[name] = hash(wanted[name].data)
		} else {
			j.result.Kept = append(j.result.Kept, name)
			j.logf("%s is not the definition's: it is kept", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(former)) {
		if _, still := wanted[name]; !still {
			if err := j.drop(name, former[name]); err != nil {
				return fmt.Errorf("remove %s: %w", name, err)
			}
		}
	}
	return j.mark(now, names)
}

// wanted are all files of the plan, by their path.
func (j *job) wanted(ctx context.Context) (map[string]file, error) {
	w := j.Plan.Workspace
	all := map[string]file{}
	if w.Instructions != "" {
		for _, name := range instructionFiles {
			all[name] = file{[]byte(w.Instructions), 0o644}
		}
	}
	for _, skill := range w.Skills {
		if err := j.added(ctx, "skill", skill, all, skillDirs...); err != nil {
			return nil, err
		}
	}
	for _, plugin := range w.Plugins {
		if err := j.added(ctx, "plugin", plugin, all, pluginDir); err != nil {
			return nil, err
		}
	}
	for name, text := range w.Scripts {
		all[path.Join(scriptDir, name)] = file{[]byte(text), 0o755}
	}
	if !j.Plan.Policy.Empty() {
		text, err := json.MarshalIndent(j.Plan.Policy, "", "  ")
		if err != nil {
			return nil, err
		}
		all[policyFile] = file{append(text, '\n'), 0o644}
	}
	for name := range all {
		if !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
			return nil, fmt.Errorf("%.140q: want a path below the workspace", name)
		}
	}
	return all, nil
}

// added puts a skill's or plugin's files below each of dirs.
func (j *job) added(ctx context.Context, what string, a core.AddedPlan, all map[string]file, dirs ...string) error {
	files := map[string]file{}
	for name, text := range a.Files {
		files[name] = file{[]byte(text), 0o644}
		if strings.HasPrefix(text, "#!") {
			files[name] = file{[]byte(text), 0o755}
		}
	}
	if a.Repository != "" {
		if err := j.fromRepository(ctx, a, files); err != nil {
			if e, ok := errors.AsType[*StepError](err); ok {
				e.Step = what + " " + a.Name
				return e
			}
			return &StepError{Step: what + " " + a.Name, Err: err}
		}
	}
	for _, dir := range dirs {
		for name, f := range files {
			all[path.Join(dir, a.Name, name)] = f
		}
	}
	return nil
}

func (j *job) fromRepository(ctx context.Context, a core.AddedPlan, files map[string]file) error {
	if err := checkRemote(a.Repository, a.Ref, a.Directory); err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "sandkeeper-added-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	if err := j.give(temp); err != nil {
		return err
	}
	tree := filepath.Join(temp, "tree")
	if err := j.cloneInto(ctx, tree, core.SourcePlan{Repository: a.Repository, Ref: a.Ref, Credential: a.Credential}); err != nil {
		return err
	}
	if err := j.git(ctx, tree, nil, "reset", "--quiet", "--hard"); err != nil {
		return err
	}
	root, err := os.OpenRoot(tree)
	if err != nil {
		return err
	}
	defer root.Close()
	return collect(root, path.Clean(filepath.ToSlash(a.Directory)), files)
}

// collect reads the regular files below dir.
func collect(root *os.Root, dir string, files map[string]file) error {
	total := int64(0)
	return fs.WalkDir(root.FS(), dir, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && e.Name() == ".git":
			return fs.SkipDir
		case !e.Type().IsRegular():
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if total += info.Size(); len(files) >= maxAddedFiles || total > maxAddedBytes {
			return fmt.Errorf("want at most %d files of %d bytes together", maxAddedFiles, maxAddedBytes)
		}
		data, err := root.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		files[filepath.ToSlash(rel)] = file{data, 0o644 | info.Mode()&0o111}
		return err
	})
}

// put writes a file unless somebody else's is there. former is the hash of what was put
// there before.
func (j *job) put(name string, f file, former string) (ours bool, err error) {
	if !j.free(path.Dir(name)) {
		return false, nil
	}
	data, err := readIn(j.root, name, maxAddedBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, j.write(name, f)
	case errors.Is(err, errNotOurs):
		return false, nil
	case err != nil:
		return false, err
	}
	switch hash(data) {
	case hash(f.data):
		return true, nil
	case former:
		return true, j.write(name, f)
	}
	return false, nil
}

// free reports whether a directory is there or can be made: nothing on the way to it is a
// file, or a link that leads nowhere or out of the workspace.
func (j *job) free(dir string) bool {
	at := "."
	for part := range strings.SplitSeq(dir, "/") {
		at = path.Join(at, part)
		if _, err := j.root.Lstat(at); errors.Is(err, fs.ErrNotExist) {
			return true
		}
		if info, err := j.root.Stat(at); err != nil || !info.IsDir() {
			return false
		}
	}
	return true
}

// write puts a file in place in one piece, the container's user's.
func (j *job) write(name string, f file) error {
	if err := j.mkdirAll(path.Dir(name)); err != nil {
		return err
	}
	temp := name + ".sandkeeper-new"
	_ = j.root.RemoveAll(temp) // a crash may have left it
	out, err := j.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode)
	if err != nil {
		return err
	}
	_, err = out.Write(f.data)
	err = errors.Join(err, out.Chmod(f.mode))
	if j.User != nil {
		err = errors.Join(err, out.Chown(int(j.User.Uid), int(j.User.Gid)))
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	return j.root.Rename(temp, name)
}

// mkdirAll makes a directory below the workspace, and those above it, the container's
// user's.
func (j *job) mkdirAll(rel string) error {
	at := "."
	for part := range strings.SplitSeq(filepath.ToSlash(rel), "/") {
		at = path.Join(at, part)
		err := j.root.Mkdir(at, 0o755)
		switch {
		case errors.Is(err, fs.ErrExist):
		case err != nil:
			return err
		case j.User != nil:
			if err := j.root.Lchown(at, int(j.User.Uid), int(j.User.Gid)); err != nil {
				return err
			}
		}
	}
	return nil
}

// drop removes a file of a former plan that is as it was put there, and the directories
// that it leaves empty.
func (j *job) drop(name, former string) error {
	if !filepath.IsLocal(name) || path.Clean(name) != name {
		return nil // the marker is anybody's to write
	}
	data, err := readIn(j.root, name, maxAddedBytes)
	if err != nil || hash(data) != former {
		return nil
	}
	if err := j.root.Remove(name); err != nil {
		return err
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if j.root.Remove(dir) != nil {
			break // it holds something else
		}
	}
	return nil
}

// markers reads what was put there before, by whichever plan.
func (j *job) markers() (files map[string]string, names []string) {
	files = map[string]string{}
	entries, err := os.ReadDir(j.Dir)
	if err != nil {
		return files, nil
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), workspace.MarkerPrefix) || !e.Type().IsRegular() {
			continue
		}
		names = append(names, e.Name())
		var m marker
		data, err := readFile(j.Dir, e.Name(), maxMarker)
		if err == nil && json.Unmarshal(data, &m) == nil && m.Version == 1 {
			maps.Copy(files, m.Files)
		}
	}
	return files, names
}

// mark writes what is there now, and then removes the markers of former plans.
func (j *job) mark(now marker, former []string) error {
	data, err := json.Marshal(now)
	if err != nil {
		return err
	}
	name := workspace.MarkerPrefix + j.Plan.Hash
	if err := j.write(name, file{append(data, '\n'), 0o644}); err != nil {
		return err
	}
	for _, old := range former {
		if old != name {
			err = errors.Join(err, j.root.Remove(old))
		}
	}
	j.exclude(append(slices.Sorted(maps.Keys(now.Files)), name))
	return err
}

// exclude keeps what was put here out of what git calls untracked. Where it cannot, git
// shows it, and nothing else is different.
func (j *job) exclude(names []string) {
	repo, err := j.root.OpenRoot(".git") // through no link out of the workspace
	if err != nil {
		return
	}
	defer repo.Close()
	data, err := readIn(repo, "info/exclude", maxMarker)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return
	}
	have := strings.Split(string(data), "\n")
	var more []string
	for _, name := range names {
		if line := "/" + name; !slices.Contains(have, line) && !strings.ContainsAny(name, "\n*?[\\ ") {
			more = append(more, line)
		}
	}
	if len(more) == 0 {
		return
	}
	text := strings.TrimRight(string(data), "\n") + "\n" + strings.Join(more, "\n") + "\n"
	_ = repo.Mkdir("info", 0o755) // mostly it is there
	if err := repo.WriteFile("info/exclude", []byte(strings.TrimLeft(text, "\n")), 0o644); err != nil {
		j.logf("write info/exclude: %v", err)
	}
	if j.User != nil {
		_ = repo.Lchown("info/exclude", int(j.User.Uid), int(j.User.Gid)) // git only reads it
	}
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// readFile reads a regular file of at most max bytes, through no link out of dir.
func readFile(dir, name string, max int64) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return readIn(root, name, max)
}

// errNotOurs is what is no file that a plan may have put there.
var errNotOurs = errors.New("want a regular file that is not too long")

// readIn reads a regular file of at most max bytes that is no link.
func readIn(root *os.Root, name string, max int64) ([]byte, error) {
	info, err := root.Lstat(name)
	if err == nil && (!info.Mode().IsRegular() || info.Size() > max) {
		err = fmt.Errorf("read %s: %w", name, errNotOurs)
	}
	if err != nil {
		return nil, err
	}
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, max+1))
	if err == nil && int64(len(data)) > max {
		err = fmt.Errorf("read %s: %w", name, errNotOurs)
	}
	return data, err
}
