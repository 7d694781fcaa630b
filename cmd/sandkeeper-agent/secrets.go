package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/sandkeeper/sandkeeper/internal/workspace"
	"github.com/sandkeeper/sandkeeper/internal/wrapper"
)

// secretsDir is where the sandbox's setup leaves the values of secrets, readable by
// root alone; secretsVariable names another place.
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
	dir := os.Getenv(secretsVariable)
	if dir == "" {
		dir = secretsDir
	}
	values := map[string]string{}
	for _, entry := range append(os.Environ(), wrapper.InitEnvironment()...) {
		name, value, _ := strings.Cut(entry, "=")
		values[name] = value
	}
	var secrets []workspace.Secret
	for _, name := range names {
		value, err := secretFile(dir, name)
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
