// Package gitstate saves what a clone of a repository's remote does not bring back
// (HEAD, branches, tags, stash, unpushed commits, the index, linked worktrees, an
// operation in progress, harmless configuration) and restores it into a clone or into
// an empty directory. Its rule: a repository is hostile data. Git never runs with
// the repository's own configuration, hooks or attributes, but on a copy of its refs
// and index with a configuration of ours and the repository's objects behind it, so
// that nothing in a repository can start a program; and nothing that could start one
// later, and no credential, is stored or restored.
package gitstate
