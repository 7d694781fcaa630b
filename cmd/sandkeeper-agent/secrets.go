package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/sandkeeper/sandkeeper/internal/secretdir"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
	"github.com/sandkeeper/sandkeeper/internal/wrapper"
)

// secretsOf finds the values of secrets by their names: what a set-up or an operator left
// first, then the environment of the container's main process, then the own one. A name
// without a value fails: nothing would be redacted for it.
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
		value, err := secretPlace().Read(name)
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

// secretPlace is where the values of secrets lie in this sandbox.
func secretPlace() secretdir.Dir {
	return secretdir.At(append(os.Environ(), wrapper.InitEnvironment()...))
}
