package setup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// cloneTemp begins the name of the directory, below the destination, in which a clone is
// made. Its repository is moved into place when it is whole.
const cloneTemp = ".sandkeeper-clone-"

var commitID = regexp.MustCompile(`^(?:[0-9a-f]{40}|[0-9a-f]{64})$`)

// clone makes the project a clone of its source, unless it is a repository already.
// Files that are in the way of the source's are replaced, others stay.
func (j *job) clone(ctx context.Context) error {
	s := *j.Plan.Workspace.Source
	if err := checkRemote(s.Repository, s.Ref, s.Directory); err != nil {
		return err
	}
	if !j.free(filepath.ToSlash(filepath.Clean(s.Directory))) {
		return fmt.Errorf("directory %.140q: want a directory that leads nowhere out of the workspace", s.Directory)
	}
	begun := filepath.Join(j.Steps, "clone.begun")
	_, ours := os.Lstat(begun)
	if _, err := os.Lstat(filepath.Join(j.project, ".git")); err == nil && ours != nil {
		j.logf("%s is a repository: it is not cloned", j.project)
		return nil
	} else if err != nil {
		if err := j.fresh(ctx, s, begun); err != nil {
			return err
		}
	}
	// A crash may have come between the move and this.
	return j.git(ctx, j.project, nil, "reset", "--quiet", "--hard")
}

// fresh clones beside, and moves the repository into place.
func (j *job) fresh(ctx context.Context, s core.SourcePlan, begun string) error {
	if err := j.makeProject(); err != nil {
		return err
	}
	entries, err := os.ReadDir(j.project)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), cloneTemp) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(j.project, e.Name())))
		}
	}
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp(j.project, cloneTemp)
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	if err := j.give(temp); err != nil {
		return err
	}
	tree := filepath.Join(temp, "tree")
	if err := j.cloneInto(ctx, tree, s); err != nil {
		return err
	}
	if err := os.WriteFile(begun, nil, 0o600); err != nil {
		return err
	}
	return os.Rename(filepath.Join(tree, ".git"), filepath.Join(j.project, ".git"))
}

func (j *job) makeProject() error {
	rel, err := filepath.Rel(j.Dir, j.project)
	if err != nil || rel == "." {
		return err
	}
	return j.mkdirAll(rel)
}

// cloneInto clones without a working tree into dir, which is not there yet.
func (j *job) cloneInto(ctx context.Context, dir string, s core.SourcePlan) error {
	env, err := j.credentials(s.Repository, s.Credential)
	if err != nil {
		return err
	}
	at, depth := filepath.Dir(dir), strconv.Itoa(max(s.Depth, 1))
	if !commitID.MatchString(s.Ref) {
		args := []string{"clone", "--quiet", "--no-checkout", "--depth", depth}
		if s.Ref != "" {
			args = append(args, "--branch", s.Ref)
		}
		return j.git(ctx, at, env, append(args, "--", s.Repository, dir)...)
	}
	for _, args := range [][]string{
		{"init", "--quiet", dir},
		{"-C", dir, "remote", "add", "--", "origin", s.Repository},
		{"-C", dir, "fetch", "--quiet", "--depth", depth, "origin", s.Ref},
		{"-C", dir, "update-ref", "--no-deref", "HEAD", s.Ref},
	} {
		if err := j.git(ctx, at, env, args...); err != nil {
			return err
		}
	}
	return nil
}

// fetch brings commits that a shallow clone lacks: those alone, or, from a server that
// gives none by their ids, all.
func (j *job) fetch(ctx context.Context, repo string, commits []string) error {
	env, err := j.credentials("", "")
	if s := j.Plan.Workspace.Source; s != nil && repo == j.project {
		env, err = j.credentials(s.Repository, s.Credential)
	}
	if err != nil {
		return err
	}
	var ids []string
	for _, id := range commits {
		if commitID.MatchString(id) {
			ids = append(ids, id)
		}
	}
	args := append([]string{"fetch", "--quiet", "--no-tags", "--depth", "1", "origin"}, ids...)
	if len(ids) > 0 && j.git(ctx, repo, env, args...) == nil {
		return nil
	}
	return j.git(ctx, repo, env, "fetch", "--quiet", "--unshallow", "origin")
}

// gitSettings are said to every git in its environment: they stand in no configuration.
var gitSettings = [][2]string{
	{"core.hooksPath", "/dev/null"}, {"core.fsmonitor", "false"}, {"credential.helper", ""}, {"protocol.ext.allow", "never"}, {"advice.detachedHead", "false"},
	{"gc.auto", "0"}, {"maintenance.auto", "false"},
}

// helper answers git's question for a password from the environment.
const helper = `!f() { test "$1" = get || exit 0; printf 'username=%s\npassword=%s\n' "$SANDKEEPER_GIT_USERNAME" "$SANDKEEPER_GIT_PASSWORD"; }; f`

// credentials is the environment in which git finds the password for a repository's host
// and for no other.
func (j *job) credentials(repository, secret string) ([]string, error) {
	settings := gitSettings
	var env []string
	if secret != "" {
		value, ok := j.Secrets[secret]
		if !ok || value == "" {
			return nil, fmt.Errorf("credential %.80q: no value", secret)
		}
		at, err := url.Parse(repository)
		if err != nil || at.Scheme != "https" && (at.Scheme != "http" || !loopback(at.Hostname())) {
			return nil, errors.New("credential: want a repository with an https URL")
		}
		user, password, ok := strings.Cut(value, ":")
		if !ok {
			user, password = "x-access-token", value
		}
		settings = append(settings[:len(settings):len(settings)], [2]string{"credential." + at.Scheme + "://" + at.Host + ".helper", helper})
		env = append(env, "SANDKEEPER_GIT_USERNAME="+user, "SANDKEEPER_GIT_PASSWORD="+password)
	}
	env = append(env, "GIT_CONFIG_COUNT="+strconv.Itoa(len(settings)))
	for i, s := range settings {
		env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", i, s[0]), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", i, s[1]))
	}
	return env, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// git runs one git command that asks nobody anything.
func (j *job) git(ctx context.Context, dir string, env []string, args ...string) error {
	if env == nil {
		var err error
		if env, err = j.credentials("", ""); err != nil {
			return err
		}
	}
	env = append(env, "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=/bin/false", "SSH_ASKPASS=/bin/false", "GIT_ALLOW_PROTOCOL=https:http:ssh:git:file",
		"GIT_SSH_COMMAND=ssh -o BatchMode=yes", "LC_ALL=C", "GIT_TEMPLATE_DIR=")
	return j.run(ctx, dir, env, append([]string{"git"}, args...)...)
}

// checkRemote refuses what git would take for an option, and passwords that would stand
// in its configuration.
func checkRemote(repository, ref, directory string) error {
	for what, text := range map[string]string{"repository": repository, "ref": ref, "directory": directory} {
		if strings.HasPrefix(text, "-") || strings.ContainsAny(text, "\x00\n\r") {
			return fmt.Errorf("%s: want one that does not begin with a dash, on one line", what)
		}
	}
	if at, err := url.Parse(repository); err == nil && at.User != nil {
		if _, has := at.User.Password(); has {
			return errors.New("repository: want a URL without a password")
		}
	}
	if directory != "" && !filepath.IsLocal(directory) {
		return errors.New("directory: want one below")
	}
	return nil
}
