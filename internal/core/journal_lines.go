package core

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Faults of a base64 frame.
var (
	// ErrFrameTruncated says that the frame ended within a group of four.
	ErrFrameTruncated = errors.New("decode base64 frame: truncated")
	// ErrFrameInvalid says that the frame holds something that is not base64.
	ErrFrameInvalid = errors.New("decode base64 frame: invalid")
)

// JournalFrame decodes base64 text that arrives in pieces, such as a shell's
// base64 prints it. White space is passed over; padding ends a piece's groups. Its
// zero value is ready.
type JournalFrame struct {
	held []byte // characters of a group that is not complete, at most 3
}

// Decode returns the bytes that piece completes. After an error the frame is lost.
func (d *JournalFrame) Decode(piece []byte) ([]byte, error) {
	text := d.held
	for _, c := range piece {
		if !isFrameSpace(c) {
			text = append(text, c)
		}
	}
	whole := len(text) / 4 * 4
	out := make([]byte, base64.StdEncoding.DecodedLen(whole))
	n, err := base64.StdEncoding.Decode(out, text[:whole])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFrameInvalid, err)
	}
	d.held = bytes.Clone(text[whole:])
	return out[:n], nil
}

func isFrameSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

// Close reports whether the frame ended where a frame may end.
func (d *JournalFrame) Close() error {
	if len(d.held) > 0 {
		return ErrFrameTruncated
	}
	return nil
}

// JournalLine is a complete line of a journal.
type JournalLine struct {
	Text []byte // without its newline, otherwise as it was written
	End  int64  // byte position just past its newline
}

// JournalLines cuts a journal that arrives in pieces into lines. Lines end at
// newlines alone; a rest without one is never given out. Position is where the
// next line begins, and where reading can be taken up again.
type JournalLines struct {
	Position int64
	rest     []byte
}

// Next is the position of the first byte that was not fed yet.
func (l *JournalLines) Next() int64 { return l.Position + int64(len(l.rest)) }

// Feed takes the next piece and returns the lines that it completes.
func (l *JournalLines) Feed(piece []byte) []JournalLine {
	var lines []JournalLine
	for len(piece) > 0 {
		text, more, whole := bytes.Cut(piece, []byte("\n"))
		l.rest = append(l.rest, text...)
		if !whole {
			break
		}
		l.Position += int64(len(l.rest)) + 1
		lines = append(lines, JournalLine{Text: l.rest, End: l.Position})
		l.rest, piece = nil, more
	}
	return lines
}

// MaxExitMessage is the most that an agent's stderr contributes to the error of
// its run, in characters.
const MaxExitMessage = 1000

// ExitMessage is the message of an agent that failed: the end of its stderr as
// text, without the white space around it, at most [MaxExitMessage] characters.
func ExitMessage(stderr []byte) string {
	text := strings.TrimFunc(strings.ToValidUTF8(string(stderr), string(utf8.RuneError)), unicode.IsSpace)
	for cut := utf8.RuneCountInString(text) - MaxExitMessage; cut > 0; cut-- {
		_, size := utf8.DecodeRuneInString(text)
		text = text[size:]
	}
	return text
}
