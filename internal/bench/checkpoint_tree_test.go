package bench_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// tree is a workspace to keep. It is made once and stays below dist.
type tree struct {
	name  string
	make  func(dir string) error
	dir   string
	files int
	bytes int64
}

// The trees. Their content is the same on every machine.
var (
	largeFiles = tree{name: "1 GiB in 8 files", make: makeLargeFiles}
	smallFiles = tree{name: "100,000 files of 4 KiB", make: makeSmallFiles}
	modules    = tree{name: "an npm project", make: makeModules}
)

// kept is where what takes long to make stays: git and go ignore it, make clean removes it.
func kept(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "dist", ".bench", name))
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// ready makes the tree if it is not there, and reads it once, so that nobody waits
// for the disk.
func (tr tree) ready(t *testing.T) tree {
	t.Helper()
	tr.dir = kept(t, strings.ReplaceAll(tr.name, " ", "-"))
	if _, err := os.Stat(tr.dir); errors.Is(err, fs.ErrNotExist) {
		unfinished := tr.dir + ".unfinished"
		err = os.RemoveAll(unfinished)
		if err == nil {
			err = os.Mkdir(unfinished, 0o755)
		}
		if err == nil {
			err = tr.make(unfinished)
		}
		if err == nil {
			err = os.Rename(unfinished, tr.dir)
		}
		if err != nil {
			t.Fatalf("make %s: %v", tr.name, err)
		}
	}
	for _, e := range contents(t, tr.dir) {
		if e.mode.IsRegular() {
			tr.files++
			tr.bytes += e.size
		}
	}
	return tr
}

// seeded is a source of chance that is the same in every run.
func seeded(text string) *rand.ChaCha8 { return rand.NewChaCha8(sha256.Sum256([]byte(text))) }

func makeLargeFiles(dir string) error {
	content := make([]byte, 128<<20)
	for i := range 8 {
		if from := seeded(fmt.Sprint("large ", i)); i%2 == 0 {
			content = prose(from, content)
		} else {
			content = noise(from, content)
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.bin", i)), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

const (
	smallSize   = 4 << 10
	smallCount  = 100_000
	smallFolder = 100 // files of one folder
)

func smallFile(dir string, i int) string {
	folder := i / smallFolder
	return filepath.Join(dir, fmt.Sprintf("part-%02d", folder/50), fmt.Sprintf("unit-%02d", folder%50), fmt.Sprintf("file-%02d.txt", i%smallFolder))
}

func makeSmallFiles(dir string) error {
	for i := range smallCount {
		if err := writeSmall(dir, i); err != nil {
			return err
		}
	}
	return nil
}

// writeSmall makes the ith of the small files: every other one compresses.
func writeSmall(dir string, i int) error {
	name := smallFile(dir, i)
	if i%smallFolder == 0 {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
	}
	from, content := seeded(fmt.Sprint("small ", i)), make([]byte, smallSize)
	if i%2 == 0 {
		content = prose(from, content)
	} else {
		content = noise(from, content)
	}
	return os.WriteFile(name, content, 0o644)
}

// touch rewrites one file in a hundred of the small ones, spread over the tree, and
// returns the bytes written. None of them compresses, before or after.
func touch(t *testing.T, tr tree, round int) (written int64) {
	t.Helper()
	from := seeded(fmt.Sprint("touch ", time.Now()))
	content := make([]byte, smallSize)
	for i := (2*round + 1) % 100; i < smallCount; i += 100 {
		if err := os.WriteFile(smallFile(tr.dir, i), noise(from, content), 0o644); err != nil {
			t.Fatal(err)
		}
		written += smallSize
	}
	return written
}

// makeModules installs what the lock file names. No script of a package runs.
func makeModules(dir string) error {
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "npm"))); err != nil {
		return err
	}
	c := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	c.Dir = dir
	if said, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci: %w: %.1000s", err, said)
	}
	return nil
}

func noise(from *rand.ChaCha8, into []byte) []byte {
	_, _ = from.Read(into)
	return into
}

// prose fills with words, the commoner the shorter, as text and code have them: zstd
// makes a third of it.
func prose(from *rand.ChaCha8, into []byte) []byte {
	words := vocabulary()
	b := into[:0]
	for len(b) < len(into) {
		draw := from.Uint64()
		for range 4 {
			rank := (draw & 0xff) * (draw >> 8 & 0xff) * uint64(len(words)) >> 16
			b = append(append(b, words[rank]...), ' ')
			draw >>= 16
		}
	}
	return b[:len(into)]
}

var vocabulary = sync.OnceValue(func() []string {
	chance := rand.New(seeded("words"))
	words := make([]string, 4096)
	for i := range words {
		word := make([]byte, 2+i/512+chance.IntN(4))
		for j := range word {
			word[j] = 'a' + byte(chance.IntN(26))
		}
		words[i] = string(word)
	}
	return words
})

// entry is what must come back of a file, a folder or a link.
type entry struct {
	mode   fs.FileMode
	size   int64
	mtime  int64 // of files and folders, ns
	target string
	sum    [sha256.Size]byte
}

// contents reads a tree.
func contents(t *testing.T, dir string) map[string]entry {
	t.Helper()
	found := map[string]entry{}
	hash := sha256.New()
	buffer := make([]byte, 1<<20)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		e := entry{mode: info.Mode(), mtime: info.ModTime().UnixNano()}
		switch {
		case e.mode.IsRegular():
			e.size = info.Size()
			hash.Reset()
			err = readInto(hash, path, buffer)
			hash.Sum(e.sum[:0])
		case e.mode&fs.ModeSymlink != 0:
			e.mtime = 0
			e.target, err = os.Readlink(path)
		}
		found[path[len(dir)+1:]] = e
		return err
	})
	if err != nil {
		t.Fatalf("read %s: %v", dir, err)
	}
	return found
}

func readInto(w io.Writer, path string, buffer []byte) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{f}, buffer)
	return err
}

// same fails unless the two trees hold the same.
func same(t *testing.T, tool, dir, want string) {
	t.Helper()
	a, b := contents(t, dir), contents(t, want)
	if len(a) != len(b) {
		t.Errorf("%s restored %d entries, want %d", tool, len(a), len(b))
	}
	for path, e := range b {
		if a[path] != e {
			t.Fatalf("%s restored %s as %+v, want %+v", tool, path, a[path], e)
		}
	}
}

// settle waits until the disk has what was written, so that no tool is measured
// while another's bytes are.
func settle() { syscall.Sync() }
