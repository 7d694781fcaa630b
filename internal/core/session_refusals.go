package core

import "slices"

// refusals are the codes with which each operation of a session says no, beside those of
// bad input. A code is final: who gets one does not ask again for the same.
var refusals = map[string][]string{
	"start": {
		"terminal-run", "attached-elsewhere", "another-thread", "another-parent", "another-definition", "cancel-requested", "too-late", "claim-lost",
		"writer-conflict", "thread-busy", "unknown-definition", "unknown-run", "quota", "spend-cap", "frozen", "restore-failed",
		"setup-failed", "hook-failed", "secret-unavailable", "tools-unavailable", "sandbox-gone", "agent-missing",
		"agent-not-started", invalidTask,
	},
	"attach":    {"unknown-run", "terminal-run", "cancel-requested", "too-late", "attached-elsewhere"},
	"renew":     {"unknown-run", "claim-lost", "writer-lost"},
	"tail":      {"unknown-run", "claim-lost", "journal-stalled", "busy"},
	"segments":  {"unknown-run", "no-grants"},
	"detach":    {"unknown-run"},
	"interrupt": {"unknown-run", "claim-lost", "cancel-requested"},
	"cancel":    {"unknown-run", "terminal-run"},
	"finish":    {"unknown-run", "claim-lost", "still-producing", "writer-lost", "stale-head", "stale-conversation", "no-checkpoints"},
	"fail":      {"unknown-run", "claim-lost"},
	"get":       {"unknown-run"},
	"adopt": {
		"terminal-run", "attached-elsewhere", "another-thread", "another-parent", "cancel-requested", "too-late", "claim-lost",
		"writer-conflict", "quota", "another-task", "task-taken", "task-gone", "task-missing", "task-leaving", invalidTask,
	},
}

// Refusals lists the codes with which an operation of a session refuses a request that is
// well formed, by the operation's name; none for one that refuses nothing.
func Refusals(operation string) []string { return slices.Clone(refusals[operation]) }
