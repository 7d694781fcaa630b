package gitstate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// binary finds git where only the image's maker can have put it: an entry of PATH
// that others may write to would let the sandbox choose what runs here.
func binary() (string, bool) {
	dirs := append([]string{"/usr/bin", "/usr/local/bin", "/bin"}, filepath.SplitList(os.Getenv("PATH"))...)
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) || writable(dir) {
			continue
		}
		name := filepath.Join(dir, "git")
		info, err := os.Stat(name)
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && !writable(name) {
			return name, true
		}
	}
	return "", false
}

// writable tells whether somebody else than root and this process' user may change
// what name leads to.
func writable(name string) bool {
	info, err := os.Stat(name)
	if err != nil {
		return true
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	return !ok || owner.Uid != 0 && int(owner.Uid) != os.Geteuid() || info.Mode()&0o022 != 0
}

// git runs git on a shadow of a repository.
type git struct {
	bin     string
	dir     string // the shadow's git directory
	objects string // where new objects go
	behind  string // more objects, read only; may be empty
	timeout time.Duration
	as      *syscall.Credential // who git runs as; nil: this process' user
}

// environment is all that git gets. The shadow's configuration is ours; these settle
// what would apply even without one.
func (g git) environment() []string {
	env := []string{
		"PATH=/usr/bin:/bin:/usr/local/bin", "HOME=/nonexistent", "LC_ALL=C", "TZ=UTC",
		"GIT_DIR=" + g.dir, "GIT_OBJECT_DIRECTORY=" + g.objects, "GIT_INDEX_FILE=" + filepath.Join(g.work(), "index"),
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=/bin/false", "SSH_ASKPASS=/bin/false", "GIT_ALLOW_PROTOCOL=none", "GIT_NO_LAZY_FETCH=1",
		"GIT_NO_REPLACE_OBJECTS=1", "GIT_OPTIONAL_LOCKS=0", "GIT_PAGER=cat", "GIT_EDITOR=/bin/false",
		"GIT_AUTHOR_NAME=sandkeeper", "GIT_AUTHOR_EMAIL=sandkeeper@localhost", "GIT_AUTHOR_DATE=1000000000 +0000",
		"GIT_COMMITTER_NAME=sandkeeper", "GIT_COMMITTER_EMAIL=sandkeeper@localhost", "GIT_COMMITTER_DATE=1000000000 +0000",
	}
	if g.behind != "" {
		env = append(env, "GIT_ALTERNATE_OBJECT_DIRECTORIES="+quotePath(g.behind))
	}
	return env
}

// quotePath makes name one element of a list of paths that git splits at colons.
func quotePath(name string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(name) + `"`
}

// overrides are said again on the command line, where nothing can override them. One
// thread makes the same bundle of the same repository.
var overrides = []string{
	"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "safe.directory=*", "-c", "protocol.allow=never",
	"-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "core.untrackedCache=false", "-c", "core.attributesFile=/dev/null",
	"-c", "pack.threads=1", "-c", "pack.windowMemory=64m", "-c", "core.packedGitLimit=256m", "-c", "pack.writeBitmaps=false", "-c", "core.commitGraph=false", "-c", "core.multiPackIndex=true",
}

// run runs one git command. Its error holds the end of what git said.
func (g git) run(ctx context.Context, in io.Reader, out io.Writer, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, g.bin, append(append([]string{"--no-pager"}, overrides...), args...)...)
	cmd.Env, cmd.Dir = g.environment(), g.dir
	said := &tail{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: g.as}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if cause := ctx.Err(); cause != nil {
		return fmt.Errorf("run git %s: %w", args[0], cause)
	}
	if l, ok := out.(*limited); ok && l.over {
		return fmt.Errorf("run git %s: %w", args[0], errTooLarge)
	}
	return fmt.Errorf("run git %s: %w: %s", args[0], err, said.text())
}

// output is run for a command whose output is at most max bytes.
func (g git) output(ctx context.Context, in string, max int64, args ...string) (string, error) {
	var out bytes.Buffer
	err := g.run(ctx, strings.NewReader(in), &limited{w: &out, left: max}, args...)
	return out.String(), err
}

// reason names a failure of git for [Skipped].
func reason(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return TookTooLong
	case errors.Is(err, errTooLarge):
		return TooLarge
	}
	return GitFailed
}

var errTooLarge = errors.New("more output than wanted")

// limited passes on so many bytes and refuses the rest.
type limited struct {
	w    io.Writer
	left int64
	over bool // more came
}

func (l *limited) Write(p []byte) (int, error) {
	if int64(len(p)) > l.left {
		l.over = true
		return 0, errTooLarge
	}
	l.left -= int64(len(p))
	return l.w.Write(p)
}

// tail keeps the end of what it is told.
type tail struct{ kept []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if drop := len(t.kept) - 1000; drop > 0 {
		t.kept = t.kept[drop:]
	}
	return len(p), nil
}

func (t *tail) text() string { return strings.ToValidUTF8(strings.TrimSpace(string(t.kept)), "?") }

// owner is whose files name's are, for a process that can become anybody: git then
// runs as that user and what is written is that user's. Nil for anybody else.
func owner(name string) *syscall.Credential {
	info, err := os.Stat(name)
	if err != nil || os.Geteuid() != 0 {
		return nil
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid == 0 {
		return nil
	}
	return &syscall.Credential{Uid: stat.Uid, Gid: stat.Gid, NoSetGroups: false}
}

var errNoGit = errors.New("no git binary")

// shadow makes an empty git directory in which git runs. Its configuration is ours,
// so whatever the repository's own one says does not apply.
func (o Options) shadow(repo place) (git, func(), error) {
	bin, ok := binary()
	if !ok {
		return git{}, nil, errNoGit
	}
	as, temp := owner(repo.git), o.Temp
	if as != nil {
		temp = "" // another user may not get into a directory of ours
	}
	dir, err := os.MkdirTemp(temp, "sandkeeper-git-")
	if err != nil {
		return git{}, nil, err
	}
	remove := func() { os.RemoveAll(dir) }
	g := git{bin: bin, dir: dir, objects: filepath.Join(dir, "objects"), timeout: o.timeout(), as: as}
	if err := g.make(); err != nil {
		remove()
		return git{}, nil, err
	}
	return g, remove, nil
}

// make fills the shadow. It stays this process' own, which git's user may read, but for
// the two directories that git writes to: what is written here as root must not lead
// elsewhere.
func (g git) make() error {
	for _, name := range []string{"refs", "objects", "objects/pack", "work"} {
		if err := os.Mkdir(filepath.Join(g.dir, name), 0o755); err != nil {
			return err
		}
	}
	if g.as != nil {
		for _, name := range []string{"objects/pack", "objects", "work"} {
			if err := os.Lchown(filepath.Join(g.dir, name), int(g.as.Uid), int(g.as.Gid)); err != nil {
				return err
			}
		}
		if err := os.Chmod(g.dir, 0o755); err != nil {
			return err
		}
	}
	return errors.Join(g.put("HEAD", unborn), g.configure("sha1"))
}

// work is where the index is, with what git makes of it.
func (g git) work() string { return filepath.Join(g.dir, "work") }

const unborn = "ref: refs/heads/sandkeeper-unborn\n"

// configure writes the shadow's configuration, for objects of this format.
func (g git) configure(format string) error {
	config := "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
	if format == "sha256" {
		config = "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n\tobjectformat = sha256\n"
	}
	return g.put("config", config)
}

// put writes a file of the shadow.
func (g git) put(name, data string) error {
	full := filepath.Join(g.dir, name)
	return errors.Join(os.WriteFile(full, []byte(data), 0o644), os.Chmod(full, 0o644))
}

// settings reads the configuration file of root, without what it includes.
func (g git) settings(ctx context.Context, root *os.Root, name string) ([]Setting, error) {
	text, err := readIfThere(root, name, maxPlain)
	if err != nil || text == "" {
		return nil, err
	}
	out, err := g.output(ctx, text, maxPlain, "config", "--file", "-", "--no-includes", "--list", "-z")
	return parseSettings(out), err
}

// have asks which of ids the objects hold, and of which type each is.
func (g git) have(ctx context.Context, ids []string) (map[string]string, error) {
	if len(ids) == 0 {
		return map[string]string{}, nil
	}
	out, err := g.output(ctx, strings.Join(ids, "\n")+"\n", int64(len(ids))*160, "cat-file", "--batch-check=%(objectname) %(objecttype)")
	types := map[string]string{}
	for line := range strings.Lines(out) {
		id, kind, _ := strings.Cut(strings.TrimSpace(line), " ")
		if kind != "missing" && kind != "ambiguous" {
			types[id] = kind
		}
	}
	return types, err
}

// give makes everything below dir a user's, unless it is nobody's in particular. A file
// with further names is left as it is: they may be anywhere.
func give(dir string, as *syscall.Credential) error {
	if as == nil {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || stat.Uid == as.Uid && stat.Gid == as.Gid || !info.IsDir() && stat.Nlink > 1 {
			return nil
		}
		return root.Lchown(name, int(as.Uid), int(as.Gid))
	})
}
