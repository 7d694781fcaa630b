// Package secretdir is where the values of secrets lie in a sandbox, for those who have
// to keep them out of what they store. Its rule: they are readable by the agent binary's
// user alone, in memory where the container has such a file system, and are found again
// by nothing but their names and the sandbox's own variables.
package secretdir

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Variable names the directory, in the exec session's environment or the container's.
const Variable = "SANDKEEPER_SECRETS_DIR"

// Default is where values lie that an operator mounts, and where they are left in a
// container without a file system in memory.
const Default = "/run/sandkeeper/secrets"

const (
	memoryDir = "/dev/shm" // of every container
	maxSecret = 256 << 10  // bytes of a value
)

var names = regexp.MustCompile(`^[0-9A-Za-z_][0-9A-Za-z._-]{0,254}$`)

// Dir is where values may lie, the best place first.
type Dir []string

// At finds the places by a sandbox's environment, each entry name=value; of an entry that
// stands twice the first counts.
func At(env []string) Dir {
	journals := core.DefaultJournal.Dir
	for _, entry := range slices.Backward(env) {
		if dir, ok := strings.CutPrefix(entry, core.JournalDirVariable+"="); ok && dir != "" {
			journals = dir
		}
	}
	for _, entry := range env {
		if dir, ok := strings.CutPrefix(entry, Variable+"="); ok && dir != "" {
			return Dir{dir}
		}
	}
	// Sandboxes that share a machine differ in where their journals are.
	sum := sha256.Sum256([]byte(journals))
	return Dir{filepath.Join(memoryDir, fmt.Sprintf("sandkeeper-%d-%x", os.Geteuid(), sum[:6])), Default}
}

// Read reads a value; empty: there is none. One newline at its end is an editor's.
func (d Dir) Read(name string) (string, error) {
	for _, dir := range d {
		if shared(dir) && own(dir) != nil {
			continue // somebody else made it
		}
		if value, err := readFile(dir, name); value != "" || err != nil {
			return value, err
		}
	}
	return "", nil
}

// All reads every value that lies there, by name.
func (d Dir) All() (map[string]string, error) {
	values := map[string]string{}
	for _, dir := range d {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) || err == nil && shared(dir) && own(dir) != nil {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read secrets: %w", err)
		}
		for _, e := range entries {
			if !names.MatchString(e.Name()) || values[e.Name()] != "" {
				continue
			}
			if values[e.Name()], err = readFile(dir, e.Name()); err != nil {
				return nil, fmt.Errorf("read secret %s: %w", e.Name(), err)
			}
		}
	}
	return values, nil
}

// Leave puts values there, and removes those of names that are no more. Without values
// nothing is changed.
func (d Dir) Leave(values map[string]string) error {
	if len(values) == 0 {
		return nil
	}
	dir, err := d.home()
	if err != nil {
		return fmt.Errorf("leave secrets: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("leave secrets: %w", err)
	}
	for _, e := range entries {
		if _, still := values[e.Name()]; !still {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	for name, value := range values {
		err = errors.Join(err, leave(dir, name, value))
	}
	return err
}

// home makes the best place that can be had.
func (d Dir) home() (dir string, err error) {
	for _, dir = range d {
		if err = prepare(dir); err == nil {
			return dir, nil
		}
	}
	return "", err
}

func prepare(dir string) error {
	if shared(dir) {
		var at unix.Statfs_t
		if err := unix.Statfs(memoryDir, &at); err != nil || at.Type != unix.TMPFS_MAGIC {
			return fmt.Errorf("%s is not in memory", memoryDir)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return own(dir)
}

// shared reports whether others may have made names beside a directory first.
func shared(dir string) bool { return strings.HasPrefix(dir, memoryDir+"/") }

// own refuses a directory that another may look into or write to.
func own(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s: want a directory of user %d alone", dir, os.Geteuid())
	}
	return nil
}

func leave(dir, name, value string) error {
	switch {
	case !names.MatchString(name):
		return fmt.Errorf("leave secret %.80q: want a name of letters, digits, dots, dashes and underscores", name)
	case len(value) > maxSecret:
		return fmt.Errorf("leave secret %s: want at most %d bytes", name, maxSecret)
	}
	temp := filepath.Join(dir, "."+name)
	if err := errors.Join(os.RemoveAll(temp), os.WriteFile(temp, []byte(value), 0o600)); err != nil {
		return fmt.Errorf("leave secret %s: %w", name, err)
	}
	return os.Rename(temp, filepath.Join(dir, name))
}

func readFile(dir, name string) (string, error) {
	if !names.MatchString(name) {
		return "", errors.New("want a name of letters, digits, dots, dashes and underscores")
	}
	path := filepath.Join(dir, name)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	case !info.Mode().IsRegular() || info.Size() > maxSecret:
		return "", fmt.Errorf("want a regular file of at most %d bytes", maxSecret)
	}
	data, err := os.ReadFile(path)
	return strings.TrimSuffix(string(data), "\n"), err
}
