package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
	"github.com/sandkeeper/sandkeeper/internal/wrapper"
)

// workspaceOf is where the workspace is: where the job says, else where the sandbox's
// environment says, else the usual place, else where the container's main process
// works, which is the image's working directory. The whole system is none: a capture of
// it would hold what other processes keep, a restore would remove it.
func workspaceOf(dir string) (string, error) {
	dir, err := namedWorkspace(dir)
	if err == nil && dir == "/" {
		return "", fail(string(workspace.CodeInvalidWorkspace), errors.New("want a directory below the root of the system"))
	}
	return dir, err
}

func namedWorkspace(dir string) (string, error) {
	if dir != "" {
		return dir, nil
	}
	for _, entry := range append(os.Environ(), wrapper.InitEnvironment()...) {
		if value, ok := strings.CutPrefix(entry, core.WorkspaceVariable+"="); ok && filepath.IsAbs(value) {
			return filepath.Clean(value), nil
		}
	}
	if info, err := os.Stat(core.DefaultWorkspace); err == nil && info.IsDir() {
		return core.DefaultWorkspace, nil
	}
	if dir := wrapper.InitDirectory(); dir != "" && dir != "/" {
		return dir, nil
	}
	return "", fail(string(workspace.CodeInvalidWorkspace), errors.New("no directory is said to be the workspace, and the main process works in none"))
}
