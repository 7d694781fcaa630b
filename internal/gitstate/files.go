package gitstate

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// heads are the one-line files of an operation in progress.
var heads = []string{
	"ORIG_HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "AUTO_MERGE", "MERGE_AUTOSTASH", "BISECT_EXPECTED_REV",
}

// texts are other files of an operation in progress.
var texts = []string{
	"MERGE_MSG", "MERGE_MODE", "SQUASH_MSG", "BISECT_LOG", "BISECT_NAMES", "BISECT_START", "BISECT_TERMS", "BISECT_ANCESTORS_OK", "MERGE_RR",
}

// steps are the directories of an operation of several steps.
var steps = []string{"rebase-merge", "rebase-apply", "sequencer"}

// stepFiles are what such a directory may hold. A strategy names a program, options
// reach one.
var stepFiles = regexp.MustCompile(`^(?:head-name|onto|onto_name|orig-head|head|git-rebase-todo(?:\.backup)?|done|msgnum|end|next|last|message|message-squash|message-fixup|` +
	`current-fixups|author-script|amend|amend-type|stopped-sha|interactive|quiet|verbose|signoff|drop_redundant_commits|keep_redundant_commits|` +
	`rewritten(?:-list|-pending)?|patch|patch-merge-index|autostash|squash-onto|update-refs|refs-to-delete|cdate_is_adate|ignore_date|` +
	`abort-safety|todo|original-commit|final-commit|info|msg|msg-clean|apply-opt|keep|scissors|messageid|threeway|utf8|rebasing|applying|sign|quoted-cr|` +
	`no-reschedule-failed-exec|[0-9]{4,8})$`)

// commons are files of the repository, rather than of one of its worktrees.
var commons = []string{"info/exclude", "info/attributes", "info/sparse-checkout", "logs/refs/stash"}

// allowedFile tells whether name, in the git directory, is a file that is stored.
func allowedFile(name string) bool {
	if slices.Contains(commons, name) {
		return true
	}
	if rest, ok := strings.CutPrefix(name, "worktrees/"); ok {
		worktree, rest, _ := strings.Cut(rest, "/")
		return validWorktreeName(worktree) && (allowedOwn(rest) || rest == "info/sparse-checkout")
	}
	return allowedOwn(name)
}

// allowedOwn is allowedFile for files that each worktree has of its own.
func allowedOwn(name string) bool {
	if name == "index" || slices.Contains(heads, name) || slices.Contains(texts, name) {
		return true
	}
	dir, file := path.Split(name)
	return slices.Contains(steps, strings.TrimSuffix(dir, "/")) && stepFiles.MatchString(file)
}

// errNotPlain says that a file is not one that is read: it is not regular, or too long.
var errNotPlain = errors.New("not a plain file")

// openPlain opens a regular file below root. A FIFO would keep an open for ever.
func openPlain(root *os.Root, name string, max int64) (*os.File, fs.FileInfo, error) {
	f, err := root.OpenFile(filepath.FromSlash(name), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() > max) {
		err = errNotPlain
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

func readPlain(root *os.Root, name string, max int64) (string, error) {
	f, _, err := openPlain(root, name, max)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, max+1))
	if err == nil && int64(len(data)) > max {
		err = errNotPlain
	}
	return string(data), err
}

// readIfThere is readPlain that gives "" for a file that is not there.
func readIfThere(root *os.Root, name string, max int64) (string, error) {
	data, err := readPlain(root, name, max)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return data, err
}

// rooted is a file below a root.
type rooted struct {
	root *os.Root
	name string
}

// copyPlain copies a regular file to a new one, and tells its facts.
func copyPlain(from, to rooted, max int64) (File, error) {
	in, info, err := openPlain(from.root, from.name, max)
	if err != nil {
		return File{}, err
	}
	defer in.Close()
	out, err := create(to.root, to.name)
	if err != nil {
		return File{}, &writeError{err}
	}
	n, err := io.Copy(out, io.LimitReader(in, max+1))
	if err := errors.Join(err, out.Close()); err != nil {
		return File{}, &writeError{err}
	}
	if n > max {
		return File{}, errNotPlain
	}
	return File{Name: from.name, Size: n, MTime: info.ModTime().UnixNano()}, nil
}

// create makes a new file of root in the place of whatever has its name. Others may
// read it: git may run as another user.
func create(root *os.Root, name string) (*os.File, error) {
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return nil, err
	}
	if err := root.RemoveAll(name); err != nil {
		return nil, err
	}
	return root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
}

// writeError is a failure of what is written, rather than of what is read.
type writeError struct{ error }

func (e *writeError) Unwrap() error { return e.error }

// ownFiles lists the files of an operation in progress below prefix, "" or a
// worktree's directory, and tells what of it cannot be stored.
func ownFiles(root *os.Root, prefix string) (names []string, skipped []Skipped) {
	for _, name := range slices.Concat(heads, texts) {
		if _, err := root.Lstat(prefix + name); err == nil {
			names = append(names, prefix+name)
		}
	}
	for _, dir := range steps {
		found, reason := stepNames(root, prefix+dir)
		if reason != "" {
			skipped = append(skipped, Skipped{What: prefix + dir, Reason: reason})
			continue
		}
		names = append(names, found...)
	}
	return names, skipped
}

// stepNames lists a directory of an operation of several steps. It is stored whole or,
// if a part of it could start a program or is not known, not at all: half an
// operation could be continued wrongly.
func stepNames(root *os.Root, dir string) (names []string, reason string) {
	entries, err := fs.ReadDir(root.FS(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ""
	}
	if err != nil {
		return nil, NotPlain
	}
	for _, e := range entries {
		switch {
		case e.Name() == "strategy" || e.Name() == "strategy_opts" || e.Name() == "gpg_sign_opt":
			data, err := readPlain(root, dir+"/"+e.Name(), maxPlain)
			if err != nil || strings.TrimSpace(data) != "" && !plainStrategy[strings.TrimSpace(data)] {
				return nil, Executes
			}
		case !e.Type().IsRegular() || !stepFiles.MatchString(e.Name()):
			return nil, NotPlain
		default:
			if reason := stepExecutes(root, dir+"/"+e.Name()); reason != "" {
				return nil, reason
			}
			names = append(names, dir+"/"+e.Name())
		}
	}
	return names, ""
}

var plainStrategy = map[string]bool{"ort": true, "recursive": true, "resolve": true, "octopus": true, "ours": true, "subtree": true}

var (
	execLine   = regexp.MustCompile(`(?m)^\s*(?:x|exec)\s`)
	scriptLine = regexp.MustCompile(`^(?:GIT_AUTHOR_(?:NAME|EMAIL|DATE)='[^\x00]*')?$`)
)

// stepExecutes tells whether a list of steps names a command, or an author's script
// is more than assignments.
func stepExecutes(root *os.Root, name string) string {
	base := path.Base(name)
	if !strings.HasPrefix(base, "git-rebase-todo") && base != "done" && base != "author-script" {
		return ""
	}
	data, err := readPlain(root, name, maxPlain)
	if err != nil {
		return NotPlain
	}
	if base != "author-script" {
		if execLine.MatchString(data) {
			return Executes
		}
		return ""
	}
	for line := range strings.Lines(data) {
		if !scriptLine.MatchString(strings.TrimSuffix(line, "\n")) {
			return Executes
		}
	}
	return ""
}

// replaceFile writes a file of root beside and renames it over name.
func replaceFile(root *os.Root, name string, mode fs.FileMode, write func(io.Writer) error) error {
	if err := root.MkdirAll(path.Dir(name), 0o777); err != nil {
		return err
	}
	temp := name + ".sandkeeper-new"
	if err := root.RemoveAll(temp); err != nil {
		return err
	}
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return err
	}
	if err := root.Rename(temp, name); err != nil {
		return fmt.Errorf("replace %s: %w", name, err)
	}
	return nil
}

func replaceText(root *os.Root, name, data string) error {
	return replaceFile(root, name, 0o666, func(w io.Writer) error {
		_, err := io.WriteString(w, data)
		return err
	})
}
