package setup

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// shell runs the text of a step, with the secrets that it names.
func (j *job) shell(ctx context.Context, text string) error {
	return j.run(ctx, j.project, j.named(text), "/bin/sh", "-c", text)
}

// named are the secrets that a text names, as variables.
func (j *job) named(text string) []string {
	var env []string
	for name, value := range j.Secrets {
		if mentions(text, name) {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// holdOn is how long what a command left behind may keep its output open.
const holdOn = 2 * time.Second

// run runs a command as the container's user, in a group of its own that ends with ctx.
// Its failure is a [*StepError] with the end of its output.
func (j *job) run(ctx context.Context, dir string, more []string, argv ...string) error {
	env := append(j.environment(), more...)
	name, err := lookPath(argv[0], env)
	if err != nil {
		return &StepError{Err: err}
	}
	cmd := exec.CommandContext(ctx, name, argv[1:]...)
	cmd.Args[0] = argv[0]
	cmd.Dir, cmd.Env = dir, env
	said := &tail{most: 4*TailChars + j.Overlap}
	cmd.Stdout, cmd.Stderr = said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: j.User}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = holdOn
	err = cmd.Run()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil {
		return nil // what it left behind goes on
	}
	return &StepError{Tail: said.text(j.Redact, j.Overlap), Err: err}
}

// environment is the container's, without what is of this program alone.
func (j *job) environment() []string {
	var env []string
	home := false
	for _, entry := range j.Env {
		if strings.HasPrefix(entry, "SANDKEEPER_GIT_") {
			continue
		}
		home = home || strings.HasPrefix(entry, "HOME=")
		env = append(env, entry)
	}
	if !home {
		env = append(env, "HOME="+j.Dir)
	}
	return env
}

// lookPath finds a program in the search path that it is given.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := "/usr/local/bin:/usr/bin:/bin"
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, "PATH="); ok {
			path = value
		}
	}
	for _, dir := range filepath.SplitList(path) {
		full := filepath.Join(dir, name)
		if info, err := os.Stat(full); err == nil && filepath.IsAbs(dir) && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return full, nil
		}
	}
	return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
}

// tail keeps the end of what is printed.
type tail struct {
	mu   sync.Mutex
	most int
	kept []byte
	cut  bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - t.most; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
		t.cut = true
	}
	return len(p), nil
}

// text is the end of the output, without secrets: also not the rest of one whose
// beginning is no longer there.
func (t *tail) text(redact func([]byte) bool, overlap int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := append([]byte{}, t.kept...)
	if redact != nil {
		redact(kept)
		if t.cut {
			kept = kept[min(overlap, len(kept)):]
		}
	}
	text := []rune(strings.ToValidUTF8(string(kept), "?"))
	text = text[max(0, len(text)-TailChars):]
	return strings.TrimSpace(strings.ReplaceAll(string(text), "\x00", "*"))
}
