package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/transfer"
)

// piece is what is asked of a journal, as [core.PushInput] writes it.
type piece struct {
	Run     core.RunID        `json:"run"`
	Nonce   string            `json:"nonce"`
	From    int64             `json:"from"`
	Max     int64             `json:"max"`
	Size    int64             `json:"size"`
	SHA256  string            `json:"sha256"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
}

// The most that a piece may be, and how long storing it may take: the script that asks
// is killed after that.
const (
	maxPiece    = 64 << 20
	pushTimeout = 45 * time.Second
)

// push measures a piece of a run's journal, or stores it where it is told a URL, and
// says so in one line: measured | stored SIZE SHA256 OVERLAP, refused REASON. What it
// takes of the journal is cut as pages are, and never holds the sentinel.
func push(args []string) int {
	flags := flag.NewFlagSet("push", flag.ContinueOnError)
	dir := flags.String("dir", claimsDir(), "")
	if flags.Parse(args) != nil || flags.NArg() > 0 {
		return complain("push: want -dir DIR at most")
	}
	var q piece
	if err := core.DecodeStrict(firstLine(os.Stdin), &q); err != nil || q.From < 0 || q.Max < 1 || q.Max > maxPiece {
		return say(&refusal{"push-invalid", true, err})
	}
	data, overlap, err := q.read(*dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "push:", err)
		return say(err)
	}
	sum := sha256.Sum256(data)
	digest, what := hex.EncodeToString(sum[:]), "measured"
	if q.URL != "" {
		if int64(len(data)) != q.Size || digest != q.SHA256 {
			return say(&refusal{"journal-changed", false, nil})
		}
		if err := q.store(data); err != nil {
			fmt.Fprintln(os.Stderr, "push:", err)
			return say(&refusal{"upload-failed", false, err})
		}
		what = "stored"
	}
	before := "-"
	if len(overlap) > 0 {
		before = hex.EncodeToString(overlap)
	}
	fmt.Println(what, len(data), digest, before)
	return exitDone
}

// firstLine is what is asked. It waits for no end of the terminal's input.
func firstLine(in io.Reader) []byte {
	line, _ := bufio.NewReader(io.LimitReader(in, 1<<20)).ReadBytes('\n')
	return line
}

// read takes the piece and the bytes before it.
func (q piece) read(dir string) (data, overlap []byte, err error) {
	format := core.DefaultJournal
	format.Dir = dir
	paths, err := format.Paths(q.Run)
	if err != nil {
		return nil, nil, &refusal{"push-invalid", true, err}
	}
	f, err := os.OpenFile(paths.Journal, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, &refusal{"no-journal", false, err}
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, nil, &refusal{"no-journal", false, err}
	}
	begin := q.From - min(q.From, core.JournalOverlap)
	all, err := io.ReadAll(io.NewSectionReader(f, begin, q.From-begin+q.Max))
	if err != nil || int64(len(all)) <= q.From-begin {
		return nil, nil, &refusal{"journal-short", false, err}
	}
	overlap, data = all[:q.From-begin], all[q.From-begin:]
	return data[:format.Cut(q.Nonce, data, core.EdgeMore).Append], overlap, nil
}

// store writes the piece where the grant allows it. An object that is there already is
// this one: the grant names its content.
func (q piece) store(data []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), pushTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, q.URL, bytes.NewReader(data))
	if err != nil {
		return errors.New("the URL is not one") // which is a right to write, and in no message
	}
	for name, value := range q.Headers {
		request.Header.Set(name, value)
	}
	answer, err := transfer.NewHTTPClient().Do(request)
	if err != nil {
		return errors.New("no answer")
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusPreconditionFailed {
		return fmt.Errorf("status %d", answer.StatusCode)
	}
	return nil
}
