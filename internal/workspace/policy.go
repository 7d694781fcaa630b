package workspace

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// MarkerPrefix begins the name, at the root, of the marker that says which
// definition's files were projected into the workspace. With the policy's workspace
// hash it is the one name that no policy can make part of a checkpoint.
const MarkerPrefix = ".sandkeeper-projected-"

// GitFull is the policy's word for storing version control's own directory like any
// other.
const GitFull = "full"

// stagingPrefix begins the names of directories that a restore works in. They are
// never part of a workspace.
const stagingPrefix = ".sandkeeper-restore"

// Policy decides which paths belong to a checkpoint. It is safe for concurrent use.
type Policy struct {
	include, exclude []manifest.Rule
	defaults         bool
	git              bool // the default exclusions leave version control's directory in
	marker           string
}

// NewPolicy reads the rules of p. Without an exclude rule the default exclusions
// hold; with one they hold only if p asks for them, so that a caller's exclude
// replaces them. Errors: [CodeInvalidPolicy].
func NewPolicy(p manifest.Policy) (*Policy, error) {
	for _, rule := range slices.Concat(p.Include, p.Exclude) {
		if err := checkRule(rule); err != nil {
			return nil, refuse(CodeInvalidPolicy, "", err)
		}
	}
	if strings.ContainsAny(p.WorkspaceHash, "/\x00") {
		return nil, refuse(CodeInvalidPolicy, "", errors.New("workspace hash is no part of a file name"))
	}
	compiled := &Policy{include: p.Include, exclude: p.Exclude, defaults: p.Defaults || len(p.Exclude) == 0, git: p.Git == GitFull}
	if p.WorkspaceHash != "" {
		compiled.marker = MarkerPrefix + p.WorkspaceHash
	}
	return compiled, nil
}

func checkRule(rule manifest.Rule) error {
	for _, kind := range rule.Kinds {
		if kind < manifest.File || kind > manifest.Hardlink {
			return fmt.Errorf("rule names kind %s: want file, dir, symlink or hardlink", kind)
		}
	}
	for _, glob := range rule.Globs {
		if _, err := path.Match(glob, ""); err != nil {
			return fmt.Errorf("rule glob %q: %w", glob, err)
		}
	}
	return nil
}

// Excludes tells whether the entry at a path, and all below it, is none of the
// checkpoint's business: it is neither read nor changed. The path's ancestors are
// asked about before it.
func (p *Policy) Excludes(name string, kind manifest.Kind) bool {
	if isStaging(name) || p.marker != "" && name == p.marker {
		return true
	}
	return p.defaults && defaultExcluded(name, p.git) || matchesAny(p.exclude, name, kind)
}

// Includes tells whether an entry that is not excluded is stored.
func (p *Policy) Includes(name string, kind manifest.Kind) bool {
	return len(p.include) == 0 || matchesAny(p.include, name, kind)
}

// ExcludesBelow is [Policy.Excludes] of the path or any of its ancestors.
func (p *Policy) ExcludesBelow(name string, kind manifest.Kind) bool {
	for i := range len(name) {
		if name[i] == '/' && p.Excludes(name[:i], manifest.Dir) {
			return true
		}
	}
	return p.Excludes(name, kind)
}

func isStaging(name string) bool {
	return strings.HasPrefix(name, stagingPrefix) && !strings.Contains(name, "/")
}

// defaultExcluded tells whether the default exclusions cover a path: credentials,
// install trees, version control's own directory and files that a host projects.
func defaultExcluded(name string, git bool) bool {
	if name == "CLAUDE.md" || name == "GEMINI.md" {
		return true
	}
	depth, root := 0, ""
	for segment := range strings.SplitSeq(name, "/") {
		if segment == ".git" && !git || segment == "node_modules" || strings.HasPrefix(segment, ".env") {
			return true
		}
		switch depth++; depth {
		case 1:
			root = segment
		case 2:
			if segment != "skills" {
				root = ""
			}
		}
	}
	return depth == 3 && (root == ".claude" || root == ".codex" || root == ".grok")
}

func matchesAny(rules []manifest.Rule, name string, kind manifest.Kind) bool {
	return slices.ContainsFunc(rules, func(r manifest.Rule) bool { return matches(r, name, kind) })
}

func matches(r manifest.Rule, name string, kind manifest.Kind) bool {
	if len(r.Kinds) > 0 && !matchesKind(r.Kinds, kind) {
		return false
	}
	return r.All || r.Dirs && kind == manifest.Dir ||
		slices.Contains(r.Exact, name) ||
		slices.ContainsFunc(r.Prefixes, func(prefix string) bool {
			return name == prefix || manifest.Below(name, strings.TrimSuffix(prefix, "/"))
		}) ||
		slices.ContainsFunc(r.Suffixes, func(suffix string) bool { return strings.HasSuffix(name, suffix) }) ||
		len(r.Segments) > 0 && hasSegment(r.Segments, name) ||
		slices.ContainsFunc(r.Globs, func(glob string) bool { matched, _ := path.Match(glob, name); return matched })
}

// matchesKind takes a further name of a file for the file that it is.
func matchesKind(kinds []manifest.Kind, kind manifest.Kind) bool {
	return slices.Contains(kinds, kind) || kind == manifest.File && slices.Contains(kinds, manifest.Hardlink) ||
		kind == manifest.Hardlink && slices.Contains(kinds, manifest.File)
}

func hasSegment(segments []string, name string) bool {
	for segment := range strings.SplitSeq(name, "/") {
		if slices.Contains(segments, segment) {
			return true
		}
	}
	return false
}
