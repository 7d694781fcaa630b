package core

import (
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
