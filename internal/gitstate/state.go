package gitstate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Version is the version of [State] that Save writes and Restore reads.
const Version = 1

// Names of what Save leaves in its directory.
const (
	stateFile  = "state.json"
	bundleFile = "objects.bundle"
	plainDir   = "git" // files that go into the git directory under the same names
)

// State is what Save stores about one repository, beside its bundle of objects and
// its plain files.
type State struct {
	Version int `json:"version"`
	// Path is the repository's root, relative to the workspace; "." for the root itself.
	Path string `json:"path"`
	// Link is the text behind "gitdir: " where the root's .git is a file that leads
	// into the workspace, as a submodule's does.
	Link         string `json:"link,omitempty"`
	ObjectFormat string `json:"objectFormat,omitempty"` // sha1 or sha256
	Head         string `json:"head,omitempty"`         // an object id, or "ref: refs/heads/…"
	Refs         []Ref  `json:"refs,omitempty"`         // sorted by name; remote-tracking refs are not among them
	// Tracking are the remote-tracking refs. They are restored for remotes that the
	// clone does not have, as far as their objects are there.
	Tracking []Ref     `json:"tracking,omitempty"`
	Config   []Setting `json:"config,omitempty"`
	Shallow  []string  `json:"shallow,omitempty"` // commits whose parents the repository does not have
	// Prerequisites are commits that the bundle builds on: the restore's clone has to
	// bring them.
	Prerequisites []string `json:"prerequisites,omitempty"`
	Bundle        int64    `json:"bundle,omitempty"` // bytes; 0: there is none
	// Files are the plain files, sorted, by their names in the git directory.
	Files     []File     `json:"files,omitempty"`
	Worktrees []Worktree `json:"worktrees,omitempty"`
	Skipped   []Skipped  `json:"skipped,omitempty"` // what was left out, and why
}

// Ref is a ref and the object it names.
type Ref struct {
	Name string `json:"name"`
	ID   string `json:"id"`
}

// Setting is one line of configuration: section.subsection.name, and its value.
type Setting struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// File is a plain file of the git directory.
type File struct {
	Name  string `json:"name"`
	Size  int64  `json:"size"`
	MTime int64  `json:"mtime"` // nanoseconds; an index is judged by it
}

// Worktree is a linked worktree. Its index and operation in progress are among the
// plain files, below worktrees/<Name>.
type Worktree struct {
	Name string `json:"name"`
	Path string `json:"path"` // absolute, or relative to the repository's root if Inside
	// Inside says that the worktree was in the workspace, so that it moves with it.
	Inside bool   `json:"inside,omitempty"`
	Head   string `json:"head"`
	Locked bool   `json:"locked,omitempty"`
}

// Skipped says what was left out and why. The reasons are short, fixed, lower-case
// with hyphens.
type Skipped struct {
	What   string `json:"what"`
	Reason string `json:"reason"`
	Detail string `json:"detail,omitempty"` // what git said, for people
}

// The reasons of [Skipped] and the codes of [Result].
const (
	GitMissing         = "git-missing"            // there is no git binary
	NotARepository     = "not-a-repository"       // .git leads nowhere, or has no HEAD or objects
	LinkedWorktree     = "linked-worktree"        // it belongs to another repository, which holds its state
	RefFormat          = "ref-format-unsupported" // refs are not kept as files
	ObjectMissing      = "object-missing"         // the repository itself does not have the object
	TooLarge           = "too-large"
	TookTooLong        = "took-too-long"
	GitFailed          = "git-failed"             // git could not read the repository
	NotPlain           = "not-plain"              // not a regular file, or not of the expected form
	NotStored          = "not-stored"             // a setting that is not on the list of those that are
	Executes           = "executes"               // it could start a program
	Credential         = "credential"             // it held a credential, which was taken out
	HoldsSecret        = "holds-secret"           // it holds the value of a secret, which an object\'s id does not let be taken out
	Damaged            = "state-damaged"          // what is stored is not what was saved
	ObjectsMissing     = "objects-missing"        // the bundle builds on commits that no clone brought
	FormatMismatch     = "object-format-mismatch" // the clone's objects have other ids
	OutsideOfWorkspace = "outside-of-workspace"   // .git leads out of the workspace
)

// Options bound a save or a restore. The zero value is usable.
type Options struct {
	// Workspace is the absolute root of what is captured; empty: the repository's root.
	Workspace string
	// Remote is the remote that the restore's clone will be of; its remote-tracking
	// refs are what needs no storing. Empty: origin, else the only one with a URL that
	// leads out of the sandbox.
	Remote string
	// MaxBytes bounds the bundle; 0 means 1 GiB.
	MaxBytes int64
	// Timeout bounds each git command; 0 means 5 minutes.
	Timeout time.Duration
	// Secrets, if not nil, tells the values that must not be stored. A repository that
	// holds one in what would be stored of it is not stored.
	Secrets Secrets
	// Temp is the directory for what git needs while it works; empty: the system's.
	Temp string
}

// Secrets finds the values of secrets.
type Secrets interface {
	// Redact tells whether data holds one, and may change data.
	Redact(data []byte) bool
	// Overlap is how far the longest of them reaches.
	Overlap() int
}

const (
	defaultMaxBytes = 1 << 30
	defaultTimeout  = 5 * time.Minute
	maxState        = 64 << 20
	maxPlain        = 4 << 20   // a state file of an operation in progress
	maxIndex        = 512 << 20 // an index
	maxRefs         = 64 << 20  // packed refs
)

func (o Options) maxBytes() int64 {
	if o.MaxBytes > 0 {
		return o.MaxBytes
	}
	return defaultMaxBytes
}

func (o Options) timeout() time.Duration {
	if o.Timeout > 0 {
		return o.Timeout
	}
	return defaultTimeout
}

func (o Options) workspace(repo string) string {
	if o.Workspace == "" {
		return repo
	}
	return filepath.Clean(o.Workspace)
}

// ReadState reads and checks the state that Save left in dir.
func ReadState(dir string) (State, error) {
	f, err := os.Open(filepath.Join(dir, stateFile))
	if err != nil {
		return State{}, fmt.Errorf("read git state: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxState+1))
	if err != nil {
		return State{}, fmt.Errorf("read git state: %w", err)
	}
	if len(data) > maxState {
		return State{}, fmt.Errorf("read git state: more than %d bytes", maxState)
	}
	var s State
	if err := json.Unmarshal(data, &s); err != nil {
		return State{}, fmt.Errorf("read git state: %w", err)
	}
	if err := s.check(); err != nil {
		return State{}, fmt.Errorf("read git state: %w", err)
	}
	return s, nil
}

func (s State) write(dir string) error {
	data, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, stateFile), append(data, '\n'), 0o600)
}

func (s *State) skip(what, reason string) {
	entry := Skipped{What: what, Reason: reason}
	if !slices.Contains(s.Skipped, entry) {
		s.Skipped = append(s.Skipped, entry)
	}
}

// Empty tells that nothing of the repository was stored.
func (s State) Empty() bool { return s.Head == "" }

// check refuses what Save never writes: a checkpoint is data from a store.
func (s State) check() error {
	if s.Version != Version {
		return fmt.Errorf("version %d: want %d", s.Version, Version)
	}
	if s.Path != "." && !filepath.IsLocal(s.Path) || s.Path != filepath.Clean(s.Path) {
		return fmt.Errorf("path %q: want a clean path below the workspace", s.Path)
	}
	if s.Empty() {
		return nil
	}
	if s.ObjectFormat != "sha1" && s.ObjectFormat != "sha256" {
		return fmt.Errorf("object format %q: want sha1 or sha256", s.ObjectFormat)
	}
	return errors.Join(s.checkRefs(), s.checkConfig(), s.checkFiles(), s.checkWorktrees())
}

func (s State) checkRefs() error {
	if !s.validHead(s.Head) {
		return fmt.Errorf("head %q: want a branch or an object id", s.Head)
	}
	for _, ref := range s.Refs {
		if !validRef(ref.Name) || strings.HasPrefix(ref.Name, "refs/remotes/") || !s.validID(ref.ID) {
			return fmt.Errorf("ref %q %q: want a ref's name and an object id", ref.Name, ref.ID)
		}
	}
	for _, ref := range s.Tracking {
		if !validRef(ref.Name) || !strings.HasPrefix(ref.Name, "refs/remotes/") || !s.validID(ref.ID) {
			return fmt.Errorf("ref %q %q: want a remote-tracking ref's name and an object id", ref.Name, ref.ID)
		}
	}
	for _, id := range slices.Concat(s.Shallow, s.Prerequisites) {
		if !s.validID(id) {
			return fmt.Errorf("commit %q: want an object id", id)
		}
	}
	return nil
}

func (s State) checkConfig() error {
	for _, set := range s.Config {
		if value, reason := cleanSetting(set.Key, set.Value); reason != "" || value != set.Value {
			return fmt.Errorf("setting %q: not one that is restored", set.Key)
		}
	}
	return nil
}

func (s State) checkFiles() error {
	for _, f := range s.Files {
		if !allowedFile(f.Name) {
			return fmt.Errorf("file %q: not one that is restored", f.Name)
		}
		if f.Size < 0 || f.Size > maxIndex {
			return fmt.Errorf("file %q of %d bytes: want 0 to %d", f.Name, f.Size, int64(maxIndex))
		}
	}
	return nil
}

func (s State) checkWorktrees() error {
	for _, w := range s.Worktrees {
		if !validWorktreeName(w.Name) || !s.validHead(w.Head) || w.Path == "" || strings.ContainsAny(w.Path, "\x00\n\r") || filepath.IsAbs(w.Path) == w.Inside {
			return fmt.Errorf("worktree %q at %q: want a name, a place and a head", w.Name, w.Path)
		}
	}
	return nil
}

var (
	hex40      = regexp.MustCompile(`^[0-9a-f]{40}$`)
	hex64      = regexp.MustCompile(`^[0-9a-f]{64}$`)
	anyID      = regexp.MustCompile(`^(?:[0-9a-f]{40}|[0-9a-f]{64})$`)
	refBad     = regexp.MustCompile(`[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(?:/|$)|[./]$`)
	worktreeOK = regexp.MustCompile(`^[0-9A-Za-z._+@=-]{1,255}$`)
)

func (s State) validID(id string) bool {
	if s.ObjectFormat == "sha256" {
		return hex64.MatchString(id)
	}
	return hex40.MatchString(id)
}

func (s State) validHead(head string) bool {
	if name, ok := strings.CutPrefix(head, "ref: "); ok {
		return validRef(name)
	}
	return s.validID(head)
}

// validRef tells names that git itself accepts below refs/.
func validRef(name string) bool {
	return strings.HasPrefix(name, "refs/") && len(name) < 4096 && !refBad.MatchString(name)
}

func validWorktreeName(name string) bool {
	return worktreeOK.MatchString(name) && strings.Trim(name, ".") != "" && !strings.HasSuffix(name, ".lock")
}
