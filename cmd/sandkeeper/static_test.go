package main

import (
	"debug/elf"
	"debug/macho"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestTheToolIsOneStaticFile: what make cli builds for Linux asks for no interpreter and no
// library, with a C compiler there or not, and for darwin it builds, with the system's own
// libraries alone.
func TestTheToolIsOneStaticFile(t *testing.T) {
	root := filepath.Join("..", "..")
	for _, machine := range []string{"linux-" + runtime.GOARCH, "darwin-arm64"} {
		make := exec.CommandContext(t.Context(), "make", "--no-print-directory", "cli-"+machine)
		make.Dir, make.Env = root, append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=", "CGO_ENABLED=1", "GOFLAGS=-buildvcs=false")
		if out, err := make.CombinedOutput(); err != nil {
			t.Fatalf("make cli-%s: %v\n%s", machine, err, out)
		}
	}
	linux, err := elf.Open(filepath.Join(root, "dist", "cli", "linux-"+runtime.GOARCH, "sandkeeper"))
	if err != nil {
		t.Fatal(err)
	}
	defer linux.Close()
	for _, p := range linux.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("it has a segment %s", p.Type)
		}
	}
	darwin, err := macho.Open(filepath.Join(root, "dist", "cli", "darwin-arm64", "sandkeeper"))
	if err != nil {
		t.Fatal(err)
	}
	defer darwin.Close()
	libraries, err := darwin.ImportedLibraries()
	foreign := func(path string) bool {
		return !strings.HasPrefix(path, "/usr/lib/") && !strings.HasPrefix(path, "/System/")
	}
	if err != nil || slices.ContainsFunc(libraries, foreign) {
		t.Errorf("it wants %q, %v", libraries, err)
	}
}
