package core

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// What a program in the sandbox needs to keep a journal as the scripts do, and to
// answer as they do.

// WrapperName and WrapperCommand are the first two words of a wrapper that is a
// program; the third is the run's mark. By them the scripts find it where the agent
// has removed the run's files.
const (
	WrapperName    = "sandkeeper-agent"
	WrapperCommand = "wrapper"
)

// Mark is what [JournalRunVariable] holds in the environment of a run's processes.
func (f JournalFormat) Mark(run RunID, nonce string) (string, error) {
	token, err := f.Token(run)
	if err != nil {
		return "", err
	}
	return mark(token, nonce), nil
}

// Check refuses what no start script is composed for.
func (s JournalStart) Check() error {
	if _, err := DefaultJournal.shellVars(s.Run, s.Nonce); err != nil {
		return err
	}
	return s.check()
}

// AppendJournalAnswer frames an answer as the scripts do: header is its words of
// key=value, sections are what the header gives the lengths of.
func AppendJournalAnswer(dst []byte, header []string, sections ...[]byte) []byte {
	dst = append(dst, answerMagic+" "+strings.Join(header, " ")+"\n"...)
	for _, section := range sections {
		dst = append(dst, section...)
	}
	return append(dst, answerTrailer...)
}

// line is the job that the agent binary reads.
func (s JournalStart) line() ([]byte, error) {
	job := struct {
		Run        RunID             `json:"run"`
		Nonce      string            `json:"nonce"`
		Argv       []string          `json:"argv,omitempty"`
		Shell      string            `json:"shell,omitempty"`
		Dir        string            `json:"dir,omitempty"`
		InputBytes *int64            `json:"inputBytes,omitempty"`
		Env        map[string]string `json:"env,omitempty"`
		Side       *Side             `json:"side,omitempty"`
	}{Run: s.Run, Nonce: s.Nonce, Argv: s.Argv, Shell: s.Shell, Dir: s.Dir, Env: s.Env, Side: s.Side}
	if s.Input {
		job.InputBytes = &s.InputBytes
	}
	line, err := json.Marshal(job)
	if err != nil {
		return nil, fmt.Errorf("compose start of run %s: %w", s.Run, err)
	}
	return line, nil
}

// Stdin is what the script of [JournalFormat.ProgramStartScript] must read, input being
// the agent's own stdin: where s has what no script may hold, its line comes first. Nil:
// nothing.
func (s JournalStart) Stdin(input []byte) ([]byte, error) {
	if !s.private() {
		return input, nil
	}
	line, err := s.line()
	if err != nil {
		return nil, err
	}
	return slices.Concat(line, []byte("\n"), input), nil
}

// ProgramStartScript composes a start script that hands the run to the sandbox's agent
// binary, whose wrapper passes SIGTERM on, ends what an agent leaves behind and puts the
// journal on the disk; where there is no such binary, or none that runs, it is
// [JournalFormat.StartScript]. The answers are the same. Its stdin is what
// [JournalStart.Stdin] says. What only the binary can do is refused without it, as
// [ReasonAgentMissing].
func (f JournalFormat) ProgramStartScript(s JournalStart) (string, error) {
	script, err := f.StartScript(s)
	if err != nil {
		return "", err
	}
	feed := "cat |" // the line comes before the input
	if s.private() {
		script = "IFS= read -r line\n" + script // not for a shell: only what makes things faster
	} else {
		line, err := s.line()
		if err != nil {
			return "", err
		}
		input := ":"
		if s.Input {
			input = "cat"
		}
		feed = "{ printf '%s\n' " + quoteShell(string(line)) + "; " + input + "; } |"
	}
	// What the search leaves behind must not be in the agent's environment: it runs in a
	// shell of its own.
	return "a=$(" + findAgent + `case $a in /*) [ -f "$a" ] && [ -x "$a" ] && "$a" version >/dev/null 2>&1 </dev/null && echo "$a" ;; esac)
if [ -n "$a" ]; then
  ` + feed + ` "$a" run
  exit
fi
` + script, nil
}
