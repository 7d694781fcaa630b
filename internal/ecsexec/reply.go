package ecsexec

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
)

// Words of the shell's lines, each `MARK word.`; any other word ends the answer:
// a status, or the name of what is wrong.
const (
	wordReady = "ready"
	wordBegin = "begin"
)

// wordLimit is longer than any word; a mark followed by more is not a line of ours.
const wordLimit = 16

var (
	errGarbled  = errors.New("garbled answer")
	errTooLarge = errors.New("more output than allowed")
)

// reply gathers a session's output, in order, and finds the marked lines in it.
// What lies outside begin and trailer (a banner, an echo, carriage returns) is
// ignored.
type reply struct {
	mark  []byte
	limit int // largest stdout, decoded

	text  []byte
	scan  int // where the next search for the mark starts
	from  int // end of the begin line; 0 before it
	ready bool
	word  string // the trailer's; empty before it
	until int    // start of the trailer
}

func newReply(mark string, limit int) *reply {
	return &reply{mark: []byte(mark), limit: limit}
}

// add takes the next output and reports whether the trailer is complete. It fails
// once the output exceeds what any answer within the limit can need.
func (r *reply) add(p []byte) (bool, error) {
	if r.word != "" {
		return true, nil
	}
	r.text = append(r.text, p...)
	for r.word == "" && r.next() {
	}
	// base64 adds a third and, with CRLF after 76 characters, 1/38 of that; 64 KiB is for chatter.
	if r.word == "" && len(r.text) > r.limit/2*3+64<<10 {
		return false, errTooLarge
	}
	return r.word != "", nil
}

// next consumes one marked line; it reports false when there is no whole one yet.
func (r *reply) next() bool {
	at := bytes.Index(r.text[r.scan:], r.mark)
	if at < 0 {
		r.scan = max(r.scan, len(r.text)-len(r.mark)+1)
		return false
	}
	at += r.scan
	r.scan = at // a line still incomplete is looked at again
	rest := r.text[at+len(r.mark):]
	stop := bytes.IndexByte(rest, '.')
	if stop < 0 && len(rest) <= wordLimit {
		return false
	}
	if stop < 2 || stop > wordLimit || rest[0] != ' ' {
		r.scan = at + len(r.mark)
		return true
	}
	r.scan = at + len(r.mark) + stop + 1
	switch word := string(rest[1:stop]); word {
	case wordReady:
		r.ready = true
	case wordBegin:
		r.from = r.scan
	default:
		r.word, r.until = word, at
	}
	return true
}

// result decodes the answer; valid once add reported the trailer. It returns the
// trailer's word as a [wordError] where that is not a status.
func (r *reply) result() (stdout []byte, exit int, err error) {
	status, err := strconv.ParseUint(r.word, 10, 8)
	if err != nil {
		return nil, 0, wordError(r.word)
	}
	if r.from == 0 {
		return nil, 0, fmt.Errorf("%w: a trailer without a beginning", errGarbled)
	}
	stdout, err = decode(r.text[r.from:r.until])
	if err != nil {
		return nil, 0, err
	}
	if len(stdout) > r.limit {
		return nil, 0, errTooLarge
	}
	return stdout, int(status), nil
}

// wordError is a trailer without a status.
type wordError string

func (e wordError) Error() string { return fmt.Sprintf("the shell answered %q", string(e)) }

// decode reads base64 in lines. All lines but the last must be equally long, which
// is how foreign text that happens to be base64 is told from the answer.
func decode(text []byte) ([]byte, error) {
	body := make([]byte, 0, len(text))
	width, last := 0, 0
	for line := range bytes.SplitSeq(text, []byte("\n")) {
		line = bytes.TrimRight(line, "\r")
		if len(line) == 0 {
			continue
		}
		if width == 0 {
			width = len(line)
		} else if last != width || len(line) > width {
			return nil, fmt.Errorf("%w: lines of %d and %d characters", errGarbled, last, len(line))
		}
		last = len(line)
		body = append(body, line...)
	}
	out := make([]byte, base64.StdEncoding.DecodedLen(len(body)))
	n, err := base64.StdEncoding.Strict().Decode(out, body)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", errGarbled, err)
	}
	return out[:n], nil
}
