package core

import (
	"encoding/json"
	"fmt"
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

// ProgramStartScript composes a start script that hands the run to the sandbox's agent
// binary, whose wrapper passes SIGTERM on, ends what an agent leaves behind and puts the
// journal on the disk; where there is no such binary, or none that runs, it is
// [JournalFormat.StartScript]. The answers are the same.
func (f JournalFormat) ProgramStartScript(s JournalStart) (string, error) {
	script, err := f.StartScript(s)
	if err != nil {
		return "", err
	}
	job := struct {
		Run        RunID    `json:"run"`
		Nonce      string   `json:"nonce"`
		Argv       []string `json:"argv,omitempty"`
		Shell      string   `json:"shell,omitempty"`
		Dir        string   `json:"dir,omitempty"`
		InputBytes *int64   `json:"inputBytes,omitempty"`
	}{Run: s.Run, Nonce: s.Nonce, Argv: s.Argv, Shell: s.Shell, Dir: s.Dir}
	input := ":"
	if s.Input {
		job.InputBytes, input = &s.InputBytes, "cat"
	}
	line, err := json.Marshal(job)
	if err != nil {
		return "", fmt.Errorf("compose start script for run %s: %w", s.Run, err)
	}
	// What the search leaves behind must not be in the agent's environment: it runs in a
	// shell of its own.
	return "a=$(" + findAgent + `case $a in /*) [ -f "$a" ] && [ -x "$a" ] && "$a" version >/dev/null 2>&1 </dev/null && echo "$a" ;; esac)
if [ -n "$a" ]; then
  { printf '%s\n' ` + quoteShell(string(line)) + "; " + input + `; } | "$a" run
  exit
fi
` + script, nil
}
