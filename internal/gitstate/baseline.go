package gitstate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Baseline is a commit of a repository, to compare files with.
type Baseline struct {
	Commit string // full object id
	git    git
	remove func()
}

// ErrNoCommit says that a repository has no commit yet.
var ErrNoCommit = errors.New("no commit")

// OpenBaseline opens a commit of the working tree at repo; with an empty commit, the one
// that is checked out. It fails where there is no repository, no git, or no such commit.
// Git runs on a copy, never on what the sandbox configured.
func OpenBaseline(ctx context.Context, repo, commit string, o Options) (*Baseline, error) {
	at, err := locate(filepath.Clean(repo))
	if err != nil {
		return nil, fmt.Errorf("open baseline: %w", err)
	}
	if !inside(o.workspace(filepath.Clean(repo)), at.common) {
		return nil, fmt.Errorf("open baseline: %w", errNotRepository)
	}
	shadow, remove, err := o.shadow(at)
	if err != nil {
		return nil, fmt.Errorf("open baseline: %w", err)
	}
	shadow.behind = filepath.Join(at.common, "objects")
	b := &Baseline{git: shadow, remove: remove}
	if b.Commit, err = b.resolve(ctx, at, commit); err != nil {
		remove()
		return nil, fmt.Errorf("open baseline: %w", err)
	}
	return b, nil
}

func (b *Baseline) resolve(ctx context.Context, at place, commit string) (string, error) {
	config, err := readThere(at, "config")
	if err != nil {
		return "", err
	}
	if strings.Contains(strings.ToLower(config), "sha256") {
		if err := b.git.configure("sha256"); err != nil {
			return "", err
		}
	}
	if commit == "" {
		if commit, err = headOf(at); err != nil {
			return "", err
		}
	}
	if !anyID.MatchString(commit) {
		return "", fmt.Errorf("commit %.80q: want an object id", commit)
	}
	have, err := b.git.have(ctx, []string{commit})
	if err == nil && have[commit] != "commit" {
		err = ErrNoCommit
	}
	return commit, err
}

// headOf is the commit that is checked out.
func headOf(at place) (string, error) {
	head, err := readThere(at, "HEAD")
	if err != nil {
		return "", err
	}
	name, symbolic := strings.CutPrefix(strings.TrimSpace(head), "ref: ")
	if !symbolic {
		return name, nil
	}
	common, err := os.OpenRoot(at.common)
	if err != nil {
		return "", err
	}
	defer common.Close()
	all, err := readRefs(common)
	if err != nil {
		return "", err
	}
	if id := all.ids[name]; id != "" {
		return id, nil
	}
	return "", ErrNoCommit
}

// File reads a file of the baseline by its path below the working tree. ok is false where
// the baseline has no such file, or one above max bytes.
func (b *Baseline) File(ctx context.Context, path string, max int64) (data []byte, ok bool, err error) {
	if strings.ContainsAny(path, "\x00\n") {
		return nil, false, nil
	}
	name := b.Commit + ":" + path
	types, err := b.git.output(ctx, name+"\n", 4096+int64(len(name)), "cat-file", "--batch-check=%(objecttype) %(objectsize)")
	var kind string
	var size int64
	if err != nil {
		return nil, false, err
	}
	if n, scanned := fmt.Sscanf(types, "%s %d", &kind, &size); scanned != nil || n != 2 || kind != "blob" || size > max {
		return nil, false, nil
	}
	text, err := b.git.output(ctx, "", max, "cat-file", "blob", name)
	return []byte(text), err == nil, err
}

// Close removes what the baseline keeps.
func (b *Baseline) Close() { b.remove() }

func readThere(at place, name string) (string, error) {
	dir, err := os.OpenRoot(at.git)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	return readIfThere(dir, name, maxPlain)
}
