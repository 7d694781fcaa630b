package setup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// lock is how a package manager is known, and what it is told where its lock file holds.
type lock struct {
	manager core.PackageManager
	files   []string
	frozen  []string // with the lock file
	plain   []string // without one
}

// locks in the order in which they are looked for: of one language the first counts.
var locks = [][]lock{{
	{core.ManagerPNPM, []string{"pnpm-lock.yaml"}, []string{"pnpm", "install", "--frozen-lockfile"}, []string{"pnpm", "install"}},
	{core.ManagerYarn, []string{"yarn.lock"}, []string{"yarn", "install", "--frozen-lockfile"}, []string{"yarn", "install"}},
	{core.ManagerBun, []string{"bun.lock", "bun.lockb"}, []string{"bun", "install", "--frozen-lockfile"}, []string{"bun", "install"}},
	{core.ManagerNPM, []string{"package-lock.json", "npm-shrinkwrap.json"}, []string{"npm", "ci", "--no-audit", "--no-fund"}, []string{"npm", "install", "--no-audit", "--no-fund"}},
}, {
	{core.ManagerUV, []string{"uv.lock"}, []string{"uv", "sync", "--frozen"}, []string{"uv", "sync"}},
	{core.ManagerPip, []string{"requirements.txt"}, nil, nil},
}}

// packages installs what the project's lock files list, or with the manager that the
// plan names.
func (j *job) packages(ctx context.Context) error {
	wanted := j.Plan.Workspace.Manager
	auto := wanted == core.ManagerDefault || wanted == core.ManagerAuto
	for _, language := range locks {
		for _, l := range language {
			there := j.lockFile(l)
			if auto && there == "" || !auto && l.manager != wanted {
				continue
			}
			if err := j.install(ctx, l, there); err != nil {
				return err
			}
			break
		}
	}
	return nil
}

func (j *job) lockFile(l lock) string {
	for _, name := range l.files {
		if info, err := os.Stat(filepath.Join(j.project, name)); err == nil && info.Mode().IsRegular() {
			return name
		}
	}
	return ""
}

// managerFiles are where package managers read variables from.
var managerFiles = []string{".npmrc", ".yarnrc", ".yarnrc.yml", "bunfig.toml", "pip.conf", "uv.toml", "pyproject.toml", "requirements.txt", "package.json"}

func (j *job) install(ctx context.Context, l lock, there string) error {
	env := j.named(j.read(managerFiles...))
	if l.manager == core.ManagerPip {
		// The image's own Python may be one that takes no packages.
		if err := j.run(ctx, j.project, env, "python3", "-m", "venv", ".venv"); err != nil {
			return named(err, l.manager)
		}
		argv := []string{filepath.Join(j.project, ".venv/bin/python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"}
		if there != "" {
			argv = append(argv, "-r", there)
		} else {
			argv = append(argv, ".")
		}
		return named(j.run(ctx, j.project, env, argv...), l.manager)
	}
	argv := l.plain
	if there != "" {
		argv = l.frozen
	}
	if l.manager == core.ManagerYarn && there != "" && strings.Contains(j.read("yarn.lock"), "__metadata:") {
		argv = []string{"yarn", "install", "--immutable"}
	}
	return named(j.run(ctx, j.project, env, argv...), l.manager)
}

// named says of which package manager an error is.
func named(err error, manager core.PackageManager) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*StepError](err); ok {
		e.Step, e.Err = "packages", fmt.Errorf("%s: %w", manager, e.Err)
	}
	return err
}

// read gives the text of files of the project, as far as there are any, up to 1 MiB each.
func (j *job) read(names ...string) string {
	var all bytes.Buffer
	for _, name := range names {
		data, err := readFile(j.project, name, 1<<20)
		if err == nil {
			all.Write(data)
			all.WriteByte('\n')
		}
	}
	return all.String()
}
