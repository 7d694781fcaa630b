package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/workspace"
	"github.com/sandkeeper/sandkeeper/internal/wrapper"
)

// secretsDir is where the values of secrets are that nothing else was said of, where no
// file system in memory is there; secretsVariable names another place.
const (
	secretsDir      = "/run/sandkeeper/secrets"
	secretsVariable = "SANDKEEPER_SECRETS_DIR"
	maxSecret       = 256 << 10
)

var secretName = regexp.MustCompile(`^[0-9A-Za-z_][0-9A-Za-z._-]{0,254}$`)

// secretsOf finds the values of secrets by their names: a file first, then the
// environment of the container's main process, then the own one. A name without a
// value fails: nothing would be redacted for it.
func secretsOf(names []string) ([]workspace.Secret, error) {
	if len(names) == 0 {
		return nil, nil
	}
	values := map[string]string{}
	for _, entry := range append(os.Environ(), wrapper.InitEnvironment()...) {
		name, value, _ := strings.Cut(entry, "=")
		values[name] = value
	}
	var secrets []workspace.Secret
	for _, name := range names {
		value, err := secretLeft(name)
		if err != nil {
			return nil, fail(codeUnknownSecret, fmt.Errorf("read secret %.80q: %w", name, err))
		}
		if value == "" {
			value = values[name]
		}
		if value == "" {
			return nil, fail(codeUnknownSecret, fmt.Errorf("secret %.80q: no value in the sandbox", name))
		}
		secrets = append(secrets, workspace.Secret{Name: name, Value: value})
	}
	return secrets, nil
}

// secretPlaces are where the values of secrets may be left, the best first. A container
// has a file system in memory at /dev/shm, in which others may have made names first.
func secretPlaces() []string {
	if dir := sandboxVariable(secretsVariable); dir != "" {
		return []string{dir}
	}
	sum := sha256.Sum256([]byte(claimsDir()))
	return []string{filepath.Join(memoryDir, fmt.Sprintf("sandkeeper-%d-%x", os.Geteuid(), sum[:6])), secretsDir}
}

// memoryDir is kept in memory on every container.
const memoryDir = "/dev/shm"

// sandboxVariable is a variable of the exec session or of the container.
func sandboxVariable(name string) string {
	for _, entry := range append(os.Environ(), wrapper.InitEnvironment()...) {
		if value, ok := strings.CutPrefix(entry, name+"="); ok && value != "" {
			return value
		}
	}
	return ""
}

// secretLeft reads the value that a set-up left, or the operator; empty: there is none.
func secretLeft(name string) (string, error) {
	for _, dir := range secretPlaces() {
		if strings.HasPrefix(dir, memoryDir) && trusted(dir, true) != nil {
			continue
		}
		if value, err := secretFile(dir, name); value != "" || err != nil {
			return value, err
		}
	}
	return "", nil
}

// leaveSecrets leaves values where captures find them, readable by this user alone, and
// removes those of names that are no more.
func leaveSecrets(values map[string]string) error {
	if len(values) == 0 {
		return nil
	}
	var dir string
	err := errors.New("no place for them")
	for _, dir = range secretPlaces() {
		if err = secretsHome(dir); err == nil {
			break
		}
	}
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
		err = errors.Join(err, leaveSecret(dir, name, value))
	}
	return err
}

// secretsHome makes a directory of this user alone. One in memory must be in memory.
func secretsHome(dir string) error {
	if strings.HasPrefix(dir, memoryDir) {
		var fs unix.Statfs_t
		if err := unix.Statfs(memoryDir, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
			return fmt.Errorf("%s is not in memory", memoryDir)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return trusted(dir, true)
}

func leaveSecret(dir, name, value string) error {
	switch {
	case !secretName.MatchString(name):
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

// secretFile reads a secret's file; empty where there is none. One newline at its end
// is an editor's.
func secretFile(dir, name string) (string, error) {
	if !secretName.MatchString(name) {
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
