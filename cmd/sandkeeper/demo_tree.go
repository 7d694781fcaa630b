package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// secretFile is what an agent's workspace has and no checkpoint may have.
const secretFile = ".env"

// work is what a coding agent leaves in its workspace, by seed: sources, scripts with
// exec bits, links of both kinds, a name in UTF-8, an empty directory, a file of big
// bytes, and credentials that must not be stored.
type work struct {
	root string
	seed string
	big  int64
}

// leave writes the workspace.
func (w work) leave() error {
	return errors.Join(w.directories(), w.files(), w.links(), w.bigFile())
}

func (w work) path(name string) string { return filepath.Join(w.root, filepath.FromSlash(name)) }

func (w work) directories() error {
	for name, mode := range map[string]fs.FileMode{"src": 0o755, "bin": 0o755, "empty": 0o700, "docs": 0o755} {
		if err := os.MkdirAll(w.path(name), mode); err != nil {
			return err
		}
	}
	return nil
}

func (w work) files() error {
	files := map[string]fs.FileMode{
		"bin/build.sh": 0o755, "bin/deploy": 0o750, "README.md": 0o644, "docs/übersicht-概要.md": 0o644,
		"notes.txt": 0o600, secretFile: 0o600, "src/.gitkeep": 0o644,
	}
	for i := range 40 {
		files[fmt.Sprintf("src/part%02d.go", i)] = 0o644
	}
	for name, mode := range files {
		text := fmt.Sprintf("%s of %s\n", name, w.seed)
		if strings.HasPrefix(name, "bin/") {
			text = "#!/bin/sh\necho " + w.seed + "\n"
		}
		if err := os.WriteFile(w.path(name), []byte(text), mode); err != nil {
			return err
		}
		if err := os.Chmod(w.path(name), mode); err != nil { // the umask has its say above
			return err
		}
	}
	return nil
}

func (w work) links() error {
	return errors.Join(
		os.Symlink("../README.md", w.path("docs/readme")),
		os.Symlink("/usr/bin/env", w.path("bin/interpreter")),
		os.Symlink("nowhere", w.path("dangling")),
		os.Link(w.path("notes.txt"), w.path("docs/same-notes.txt")),
	)
}

// bigFile is half of it noise, so that it does not vanish in compression.
func (w work) bigFile() error {
	if w.big == 0 {
		return nil
	}
	f, err := os.Create(w.path("data.bin"))
	if err != nil {
		return err
	}
	noise := rand.NewChaCha8(sha256.Sum256([]byte(w.seed)))
	text := strings.NewReader(strings.Repeat(w.seed+" goes on and on\n", 1<<16))
	block := make([]byte, 1<<20)
	for left := w.big; left > 0 && err == nil; left -= int64(len(block)) {
		block = block[:min(left, 1<<20)]
		if left/(1<<20)%2 == 0 {
			_, err = noise.Read(block)
		} else {
			_, err = text.ReadAt(block, 0)
		}
		if err == nil || errors.Is(err, io.EOF) {
			_, err = f.Write(block)
		}
	}
	return errors.Join(err, f.Close())
}

// picture is a tree as it can be compared: a line an entry.
type picture map[string]string

// pictureOf reads a tree without following links: type, mode, owner, content and
// which names are one file. Nothing of the product takes part in it.
func pictureOf(root string) (picture, error) {
	p, names := picture{}, map[uint64]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		p[name], err = describeEntry(path, name, info, names)
		return err
	})
	return p, err
}

func describeEntry(path, name string, info fs.FileInfo, names map[uint64]string) (string, error) {
	stat := info.Sys().(*syscall.Stat_t)
	line := fmt.Sprintf("%v %d:%d", info.Mode(), stat.Uid, stat.Gid)
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		return "link to " + target, err
	case info.IsDir():
		return line, nil
	case stat.Nlink > 1 && names[stat.Ino] != "":
		return line + " same file as " + names[stat.Ino], nil
	}
	names[stat.Ino] = name
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	digest := sha256.New()
	_, err = io.Copy(digest, f)
	return fmt.Sprintf("%s %d %s %s", line, info.ModTime().UnixNano(), hex.EncodeToString(digest.Sum(nil)), ""), err
}

// differences lists how restored is not the original without its credentials, at
// most ten.
func differences(original, restored picture) []string {
	var out []string
	if _, ok := restored[secretFile]; ok {
		out = append(out, secretFile+" was stored")
	}
	for name, want := range original {
		if have := restored[name]; name != secretFile && have != want {
			out = append(out, fmt.Sprintf("%s: want %q, got %q", name, want, have))
		}
	}
	for name := range restored {
		if _, ok := original[name]; !ok {
			out = append(out, name+": was not there")
		}
	}
	slices.Sort(out)
	return out[:min(len(out), 10)]
}
