// Package core holds Sandkeeper's rules and the ports they speak through, on the
// standard library alone.
//
// # Nouns
//
// A run is one agent turn of a thread. A sandbox is the Fargate task it runs in;
// its instance record maps a sandbox key to the task, and its ledger row lives as
// long as the task may cost money. The journal is the file in the sandbox that
// the agent writes, closed by a sentinel; the log is what was delivered of it, by
// byte position. A claim, an epoch that only grows plus a nonce, is the right to
// drive a run. Reclaim stops the task of an ended run, or marks it idle.
//
// A checkpoint is a picture of a thread: workspace, conversation, artifacts. The
// thread's head names the newest; it moves under the writer lease, whose fence only
// grows and stands in the key of every object that is written under it. A collection
// raises the thread's floor first: from then on an object of an older fence counts only
// where a checkpoint or a fork's pin names it, so that what a collector removes, however
// late, nobody has come to need.
//
// # Writes
//
// Every write that states a fact carries its precondition in the same request. A
// [Transition] is such a write as a value: what must hold, what changes, and how
// its own success looks in a record that refuses it a second time.
package core
