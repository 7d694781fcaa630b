// Package box runs a container's stand-in: a real process tree with an init of
// its own, a private /tmp where the kernel allows it, and terminals opened from
// outside. Its rule: whatever the tree does (double forks, new sessions, ignored
// signals), when the box ends no process of it is left, and it ends at the latest
// with the process that started it.
package box

import (
	"errors"
	"path/filepath"
	"time"
)

// Isolation says what separates a box from the host and from other boxes.
type Isolation string

// The kinds of isolation, best first.
const (
	// Namespaces is a PID and a mount namespace with own /proc and /tmp. It needs
	// root, and is the only kind that honours [Spec.User].
	Namespaces Isolation = "namespaces"
	// UserNamespaces is the same for an ordinary user, who is root inside.
	UserNamespaces Isolation = "user-namespaces"
	// Directory shares everything with the host. The box's own directory for
	// temporary files is told by TMPDIR, and that for journals by [JournalVar].
	Directory Isolation = "directory"
)

// JournalVar is the environment variable that moves the journal directory away
// from [JournalDir]; it is set only where boxes share one /tmp.
const JournalVar = "SANDKEEPER_JOURNAL_DIR"

// InitVar is the environment variable that says whose user and environment an
// agent gets. Where boxes share the host's processes, process 1 is not theirs: it is
// "self" there, the exec session's own.
const InitVar = "SANDKEEPER_INIT_PID"

// JournalDir is where journals lie, as seen from inside a box with its own /tmp.
const JournalDir = "/tmp/sandkeeper-runs"

// marker is in the environment of every process of a box, so that leftovers can
// be found when its init was killed and no namespace ends them.
const marker = "SANDKEEPER_LOCAL_BOX"

// Errors of [Start] and of a [Box].
var (
	// ErrNotArmed means that the program did not call [MaybeInit] first.
	ErrNotArmed = errors.New("start box: the program must call MaybeInit at the start of main or TestMain")
	// ErrEnded means that the box ended, or is ending.
	ErrEnded = errors.New("box ended")
	// ErrUnsupported means that this operating system has no boxes.
	ErrUnsupported = errors.New("start box: needs linux")
)

// Spec describes a box.
type Spec struct {
	ID        string    // unique among running boxes
	Isolation Isolation // one that [Best] or [Try] accepted
	Dir       string    // absolute; holds work, tmp and log; created if absent
	Argv      []string  // the main process; the first word is looked up in PATH
	Env       []string  // name=value; the box adds its own few
	WorkDir   string    // absolute; "" is the box's own work directory
	User      string    // uid, uid:gid or a user's name; "" is the caller (root inside)
	Visible   []string  // absolute host paths below /tmp that stay visible inside
}

// StartError says that the main process, or the place for it, could not be made.
type StartError struct {
	ID     string
	Reason string // as the init gave it
}

func (e *StartError) Error() string { return "start box " + e.ID + ": " + e.Reason }

// Process is one live process of a box, as the host sees it.
type Process struct {
	PID     int    `json:"pid"`
	Parent  int    `json:"parent"`
	Session int    `json:"session"`
	Command string `json:"command"` // arguments joined by spaces, or the short name in brackets
}

// startLimit bounds the time that an init may take to set up and answer.
const startLimit = 20 * time.Second

// WorkDir is the working directory of a box in dir, the same inside and outside.
func WorkDir(dir string) string { return filepath.Join(dir, "work") }

// HostJournalDir is where, on the host, the journals of a box in dir lie.
func HostJournalDir(dir string) string {
	return filepath.Join(dir, "tmp", filepath.Base(JournalDir))
}

// LogFile takes what the main process of a box in dir writes to stdout and stderr.
func LogFile(dir string) string { return filepath.Join(dir, "log") }
