// Command upgrade has another commit's code write one row of every kind, and this tree's
// code read them: what is deployed reads what the release before it has stored. Its rule:
// it changes neither tree nor repository, and without a history there is nothing to do.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// within bounds it all: two builds of the tests of one package.
const within = 10 * time.Minute

// writer is what a commit must have that can write rows for others.
const writer = "internal/ddb/released_test.go"

func main() {
	from := flag.String("from", "HEAD~1", "commit whose code writes the rows")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	said, err := check(ctx, *from)
	if err != nil {
		fmt.Fprintln(os.Stderr, "upgrade:", err)
		os.Exit(1)
	}
	fmt.Println("upgrade:", said)
}

// check says what was compared.
func check(ctx context.Context, from string) (string, error) {
	commit, err := output(ctx, "git", "rev-parse", "--verify", "--quiet", from+"^{commit}")
	if err != nil {
		return fmt.Sprintf("no commit %s here (no repository, or a shallow clone): nothing to compare", from), nil
	}
	dir, err := os.MkdirTemp("", "sandkeeper-upgrade-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if err := unpack(ctx, commit, dir); err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(dir, writer)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Sprintf("commit %.12s has no %s: nothing to compare", commit, writer), nil
	}
	rows := filepath.Join(dir, "rows.json")
	if err := rowsOf(ctx, dir, "-write-rows", rows); err != nil {
		return "", fmt.Errorf("write rows by commit %.12s: %w", commit, err)
	}
	if err := rowsOf(ctx, "", "-read-rows", rows); err != nil {
		return "", fmt.Errorf("read rows of commit %.12s: %w", commit, err)
	}
	return fmt.Sprintf("every row of commit %.12s is read", commit), nil
}

// unpack puts the files of a commit into dir.
func unpack(ctx context.Context, commit, dir string) error {
	file := filepath.Join(dir, "commit.tar")
	if _, err := output(ctx, "git", "archive", "--format=tar", "--output="+file, commit); err != nil {
		return err
	}
	_, err := output(ctx, "tar", "-x", "-f", file, "-C", dir)
	return err
}

// rowsOf runs the test that writes or reads rows, in the module at dir.
func rowsOf(ctx context.Context, dir, option, file string) error {
	c := exec.CommandContext(ctx, "go", "test", "-count=1", "-run", "^TestRowsOfAnotherCommit$", "./internal/ddb", option, file)
	c.Dir = dir
	if text, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	_, err := os.Stat(file)
	return err
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	text, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, args[0], err, text)
	}
	return strings.TrimSpace(string(text)), nil
}
