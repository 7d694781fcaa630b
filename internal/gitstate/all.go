package gitstate

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// SaveAll saves every repository below the workspace, nested ones and submodules too,
// each into a directory of its own below out, whose name depends on the repository's
// path alone. skip, if not nil, tells directories that are not looked into.
// Repositories without anything to store but a reason leave that reason.
func SaveAll(ctx context.Context, workspace, out string, o Options, skip func(rel string) bool) ([]State, error) {
	workspace = filepath.Clean(workspace)
	o.Workspace = workspace
	found, err := Find(workspace, skip)
	if err != nil {
		return nil, fmt.Errorf("find repositories of %s: %w", workspace, err)
	}
	var all []State
	for _, rel := range found {
		repo := filepath.Join(workspace, filepath.FromSlash(rel))
		if at, err := locate(repo); err == nil && at.worktree() && inside(workspace, at.common) {
			continue // its repository's state holds it
		}
		to := filepath.Join(out, dirName(rel))
		if err := os.MkdirAll(to, 0o700); err != nil {
			return all, fmt.Errorf("save git state of %s: %w", rel, err)
		}
		state, err := Save(ctx, repo, to, o)
		if err != nil {
			return all, err
		}
		all = append(all, state)
	}
	return all, nil
}

func dirName(rel string) string {
	sum := sha256.Sum256([]byte(rel))
	return hex.EncodeToString(sum[:8])
}

// RestoreAll restores every state below in, which SaveAll left, into the workspace,
// parents before what is nested in them. One that cannot be restored does not keep the
// others from it: its result says why.
func RestoreAll(ctx context.Context, workspace, in string, o Options) ([]Result, error) {
	o.Workspace = filepath.Clean(workspace)
	entries, err := os.ReadDir(in)
	if err != nil {
		return nil, fmt.Errorf("restore git states: %w", err)
	}
	type saved struct {
		dir   string
		state State
	}
	var all []saved
	var results []Result
	for _, e := range entries {
		dir := filepath.Join(in, e.Name())
		state, err := ReadState(dir)
		if err != nil {
			results = append(results, Result{Code: Damaged, Skipped: []Skipped{{What: e.Name(), Reason: Damaged, Detail: err.Error()}}})
			continue
		}
		all = append(all, saved{dir, state})
	}
	slices.SortFunc(all, func(a, b saved) int { return cmp.Compare(depthFirst(a.state.Path), depthFirst(b.state.Path)) })
	for _, s := range all {
		repo := filepath.Join(o.Workspace, filepath.FromSlash(s.state.Path))
		if _, err := os.Lstat(repo); errors.Is(err, fs.ErrNotExist) {
			results = append(results, Result{Path: s.state.Path, Code: NotARepository, Skipped: s.state.Skipped})
			continue
		}
		result, err := Restore(ctx, repo, s.dir, o)
		if err != nil {
			return results, err
		}
		results = append(results, result)
	}
	return results, nil
}

// depthFirst makes the workspace's own root sort before everything in it.
func depthFirst(path string) string {
	if path == "." {
		return ""
	}
	return path
}
