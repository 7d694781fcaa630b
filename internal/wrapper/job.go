package wrapper

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// maxLine bounds the line of JSON that says what is to be done.
const maxLine = 1 << 20

// Job is what an agent is begun for: one line of JSON on stdin. Behind it, exactly
// InputBytes long, is the agent's own stdin; without InputBytes it reads /dev/null.
type Job struct {
	Run        core.RunID `json:"run"`
	Nonce      string     `json:"nonce"`
	Argv       []string   `json:"argv,omitempty"`
	Shell      string     `json:"shell,omitempty"`
	Dir        string     `json:"dir,omitempty"`
	InputBytes *int64     `json:"inputBytes,omitempty"`

	Env  map[string]string `json:"env,omitempty"` // secrets of the agent's
	Side *core.Side        `json:"side,omitempty"`
}

// Query is what a probe asks: one line of JSON on stdin.
type Query struct {
	Run    core.RunID `json:"run"`
	Nonce  string     `json:"nonce"`
	LogEnd int64      `json:"logEnd"` // bytes of the journal that the log already has
}

func readLine[T any](in *bufio.Reader) (T, error) {
	var value T
	line, err := in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return value, fmt.Errorf("read job: want a line of at most %d bytes", maxLine)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return value, fmt.Errorf("read job: %w", err)
	}
	// The decoder's error may quote the nonce.
	if json.Unmarshal(line, &value) != nil {
		return value, errors.New("read job: want one line of JSON")
	}
	return value, nil
}

func (j Job) check() error {
	s := core.JournalStart{Run: j.Run, Nonce: j.Nonce, Argv: j.Argv, Shell: j.Shell, Dir: j.Dir, Env: j.Env, Side: j.Side}
	if j.InputBytes != nil {
		s.Input, s.InputBytes = true, *j.InputBytes
	}
	return s.Check()
}

// run is one run's files and marks in the sandbox.
type run struct {
	core.JournalPaths
	nonce string
	mark  string
}

func openRun(id core.RunID, nonce string) (run, error) {
	format := core.DefaultJournal
	if dir := os.Getenv(core.JournalDirVariable); dir != "" {
		format.Dir = dir
	}
	paths, err := format.Paths(id)
	if err != nil {
		return run{}, err
	}
	mark, err := format.Mark(id, nonce)
	if err != nil {
		return run{}, err
	}
	if format.Dir == "/" {
		paths.Dir = "/"
	}
	return run{paths, nonce, mark}, nil
}

func (r run) in(name string) string { return filepath.Join(r.Marker, name) }

// refusal is why something was not done, as scripts answer it.
type refusal struct {
	reason  string
	healing core.Healing
}

func (e *refusal) Error() string { return e.reason }

func refuse(reason string) error        { return &refusal{reason, core.Retry} }
func misconfigured(reason string) error { return &refusal{reason, core.Configuration} }

// respond prints an answer, or a refusal as one.
func respond(out io.Writer, answer []byte, err error) int {
	if e, ok := errors.AsType[*refusal](err); ok {
		answer, err = core.AppendJournalAnswer(nil, []string{"refused=" + e.reason, "healing=" + strings.ToLower(string(e.healing))}), nil
	}
	if err == nil {
		_, err = out.Write(answer)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandkeeper-agent:", err)
		return 1
	}
	return 0
}
