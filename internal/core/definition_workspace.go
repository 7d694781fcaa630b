package core

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
)

// WorkspacePlan is where the agent works, and what is put there before it begins.
type WorkspacePlan struct {
	Root         string         `json:"root,omitempty"` // absolute; empty: as [WorkspaceVariable] says
	Source       *SourcePlan    `json:"source,omitempty"`
	Instructions string         `json:"instructions,omitempty"` // text of the workspace's AGENTS.md
	Skills       []AddedPlan    `json:"skills,omitempty"`
	Plugins      []AddedPlan    `json:"plugins,omitempty"`
	Manager      PackageManager `json:"packageManager,omitempty"` // empty: auto
	// Scripts are programs for the agent, by name.
	Scripts map[string]string `json:"scripts,omitempty"`
	// Setup is run in order, a group after the other.
	Setup []SetupGroup `json:"setup,omitempty"`
}

// SourcePlan is the repository that the workspace is a clone of.
type SourcePlan struct {
	Repository string `json:"repository"`
	Ref        string `json:"ref,omitempty"` // branch, tag or commit; empty: the repository's own head
	Depth      int    `json:"depth,omitempty"`
	Directory  string `json:"directory,omitempty"` // below the root; empty: the root itself
	// Credential names the secret with which the repository is read.
	Credential string `json:"credential,omitempty"`
}

// AddedPlan is a skill or a plugin: its files, or the repository that holds them.
type AddedPlan struct {
	Name       string            `json:"name"`
	Files      map[string]string `json:"files,omitempty"` // text by path
	Repository string            `json:"repository,omitempty"`
	Ref        string            `json:"ref,omitempty"`
	Directory  string            `json:"directory,omitempty"` // of the repository
	Credential string            `json:"credential,omitempty"`
}

// PackageManager names what installs a workspace's dependencies.
type PackageManager string

// By default the workspace's lock file tells.
const (
	ManagerDefault PackageManager = "" // auto
	ManagerAuto    PackageManager = "auto"
	ManagerNPM     PackageManager = "npm"
	ManagerPNPM    PackageManager = "pnpm"
	ManagerYarn    PackageManager = "yarn"
	ManagerBun     PackageManager = "bun"
	ManagerPip     PackageManager = "pip"
	ManagerUV      PackageManager = "uv"
	ManagerNone    PackageManager = "none"
)

// PackageManagers is the closed set.
var PackageManagers = []PackageManager{
	ManagerDefault, ManagerAuto, ManagerNPM, ManagerPNPM, ManagerYarn, ManagerBun, ManagerPip, ManagerUV, ManagerNone,
}

// SetupGroup is steps that belong together: one after the other, or all at once.
type SetupGroup struct {
	Name     string      `json:"name"`
	Parallel bool        `json:"parallel,omitempty"`
	Steps    []SetupStep `json:"steps"`
}

// SetupStep is one command of the set-up.
type SetupStep struct {
	Name string `json:"name"`
	Run  string `json:"run"` // for a shell
}

// The limits of a workspace.
const (
	maxAdded  = 50 // skills, plugins, scripts, groups, and steps of a group, each
	maxFiles  = 100
	maxDepth  = 1_000_000
	maxRef    = 255
	maxShell  = 32 << 10 // bytes of one step
	maxAuthor = 64 << 10 // bytes of one file, script or text
)

var (
	gitRef    = regexp.MustCompile(`^[A-Za-z0-9_][^\x00-\x20\x7f~^:?*\[\\]*$`)
	scpRemote = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[^-\x00-\x20][^\x00-\x20]*$`)
)

// empty reports whether nothing is put into the workspace.
func (w WorkspacePlan) empty() bool {
	return w.Source == nil && w.Instructions == "" && len(w.Skills)+len(w.Plugins)+len(w.Scripts)+len(w.Setup) == 0 &&
		(w.Manager == ManagerDefault || w.Manager == ManagerNone)
}

func (w WorkspacePlan) check(secrets []string) error {
	root := w.Root
	switch {
	case root != "" && (!path.IsAbs(root) || path.Clean(root) != root || root == "/" || len(root) > maxText || strings.ContainsRune(root, 0)):
		return fmt.Errorf("workspace.root: want a clean absolute path below the root of the system, got %.140q", root)
	case !slices.Contains(PackageManagers, w.Manager):
		return fmt.Errorf("workspace.packageManager: want one of %q, got %.80q", PackageManagers[1:], w.Manager)
	case len(w.Instructions) > maxAuthor:
		return fmt.Errorf("workspace.instructions: want at most %d bytes, got %d", maxAuthor, len(w.Instructions))
	}
	if w.Source != nil {
		if err := w.Source.check(secrets); err != nil {
			return fmt.Errorf("workspace.source.%w", err)
		}
	}
	return cmp.Or(checkAdded("skills", w.Skills, secrets), checkAdded("plugins", w.Plugins, secrets), w.checkScripts(), w.checkSetup())
}

func checkAdded(what string, list []AddedPlan, secrets []string) error {
	if len(list) > maxAdded {
		return fmt.Errorf("workspace.%s: want at most %d, got %d", what, maxAdded, len(list))
	}
	var names []string
	for _, a := range list {
		if err := a.check(secrets); err != nil {
			return fmt.Errorf("workspace.%s %.100q: %w", what, a.Name, err)
		}
		names = append(names, a.Name)
	}
	return once("workspace."+what, names)
}

func (a AddedPlan) check(secrets []string) error {
	switch {
	case !definitionName.MatchString(a.Name):
		return fmt.Errorf("name: want %s", definitionName)
	case (len(a.Files) == 0) == (a.Repository == ""):
		return errors.New("want either files or a repository")
	case a.Repository != "":
		return SourcePlan{Repository: a.Repository, Ref: a.Ref, Directory: a.Directory, Credential: a.Credential}.check(secrets)
	case a.Ref != "" || a.Directory != "" || a.Credential != "":
		return errors.New("want ref, directory and credential only with a repository")
	case len(a.Files) > maxFiles:
		return fmt.Errorf("files: want at most %d, got %d", maxFiles, len(a.Files))
	}
	for _, name := range slices.Sorted(maps.Keys(a.Files)) {
		if err := checkInside("files", name); err != nil {
			return err
		}
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, file := a.Files[dir]; file {
				return fmt.Errorf("files %.140q: want it not to be below a file", name)
			}
		}
		if len(a.Files[name]) > maxAuthor {
			return fmt.Errorf("files %.140q: want at most %d bytes, got %d", name, maxAuthor, len(a.Files[name]))
		}
	}
	return nil
}

func (w WorkspacePlan) checkScripts() error {
	if len(w.Scripts) > maxAdded {
		return fmt.Errorf("workspace.scripts: want at most %d, got %d", maxAdded, len(w.Scripts))
	}
	for _, name := range slices.Sorted(maps.Keys(w.Scripts)) {
		if !definitionName.MatchString(name) || len(w.Scripts[name]) > maxAuthor {
			return fmt.Errorf("workspace.scripts: want names like %s and at most %d bytes, got %.120q with %d", definitionName, maxAuthor, name, len(w.Scripts[name]))
		}
	}
	return nil
}

func (w WorkspacePlan) checkSetup() error {
	if len(w.Setup) > maxAdded {
		return fmt.Errorf("workspace.setup: want at most %d groups, got %d", maxAdded, len(w.Setup))
	}
	var groups []string
	for _, g := range w.Setup {
		groups = append(groups, g.Name)
		var steps []string
		if !definitionName.MatchString(g.Name) || len(g.Steps) == 0 || len(g.Steps) > maxAdded {
			return fmt.Errorf("workspace.setup: want groups with a name and 1 to %d steps, got %.120q with %d", maxAdded, g.Name, len(g.Steps))
		}
		for _, s := range g.Steps {
			if !definitionName.MatchString(s.Name) || strings.TrimSpace(s.Run) == "" || len(s.Run) > maxShell || strings.ContainsRune(s.Run, 0) {
				return fmt.Errorf("workspace.setup %s: want steps with a name and 1 to %d bytes to run, got %.120q with %d", g.Name, maxShell, s.Name, len(s.Run))
			}
			steps = append(steps, s.Name)
		}
		if err := once("workspace.setup "+g.Name, steps); err != nil {
			return err
		}
	}
	return once("workspace.setup", groups)
}

// check refuses what git would take as an option or as a program to run, and a password
// that would stand in records.
func (s SourcePlan) check(secrets []string) error {
	switch {
	case len(s.Repository) > maxText || !remote(s.Repository):
		return fmt.Errorf("repository: want an https, http, ssh, git or file URL without a password, or user@host:path, of at most %d bytes", maxText)
	case s.Ref != "" && (len(s.Ref) > maxRef || !gitRef.MatchString(s.Ref) || strings.Contains(s.Ref, "..")):
		return fmt.Errorf("ref: want a branch, tag or commit, got %.140q", s.Ref)
	case s.Credential != "" && !slices.Contains(secrets, s.Credential):
		return fmt.Errorf("credential: want the name of one of the definition's secrets, got %.140q", s.Credential)
	case s.Depth < 0 || s.Depth > maxDepth:
		return fmt.Errorf("depth: want 0 to %d, got %d", maxDepth, s.Depth)
	}
	if s.Directory == "" {
		return nil
	}
	return checkInside("directory", s.Directory)
}

func remote(text string) bool {
	if scpRemote.MatchString(text) {
		return true
	}
	at, err := url.Parse(text)
	if err != nil || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return false
	}
	if _, secret := at.User.Password(); secret {
		return false
	}
	switch at.Scheme {
	case "https", "http", "ssh", "git":
		return at.Host != "" && !strings.HasPrefix(at.Host, "-")
	case "file":
		return at.Host == "" && path.IsAbs(at.Path)
	}
	return false
}

// checkInside refuses a path that is not below where it is put.
func checkInside(what, name string) error {
	if !fs.ValidPath(name) || name == "." || len(name) > maxText || strings.ContainsAny(name, "\x00\\") {
		return fmt.Errorf("%s: want clean paths below, got %.140q", what, name)
	}
	return nil
}

// once refuses a name that stands twice.
func once(what string, names []string) error {
	seen := map[string]bool{}
	for _, name := range names {
		if seen[name] {
			return fmt.Errorf("%s: want each name once, got %.120q twice", what, name)
		}
		seen[name] = true
	}
	return nil
}
