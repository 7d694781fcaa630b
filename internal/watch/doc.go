// Package watch writes what changes in a workspace to a run's side journal: created,
// changed and deleted files, with diffs against the commit that the run began from. Its
// rule: it looks and never disturbs. Whatever fails costs lines of the side journal and
// is said in it; memory, journal and the time that its end takes are bounded, and what
// counts is how a file is found, so that an event that was lost is made up for by the
// next look.
package watch
