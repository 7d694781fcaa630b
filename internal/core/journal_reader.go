package core

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Why reading a journal ended without a status. The journal stays as it is: its
// bytes are the only copy.
var (
	// ErrJournalStalled says that the first byte did not come in time.
	ErrJournalStalled = errors.New("read journal: no first byte")
	// ErrNoSentinel says that the source ended before the sentinel.
	ErrNoSentinel = errors.New("read journal: ended without a sentinel")
)

// JournalExitError is the end of an agent that did not exit 0.
type JournalExitError struct {
	Exit    int
	Message string // see [ExitMessage]; empty if stderr could not be read
}

func (e *JournalExitError) Error() string {
	return fmt.Sprintf("agent exit %d: %s", e.Exit, e.Message)
}

// JournalSource reads one run's journal.
type JournalSource interface {
	// Read returns bytes of the journal from the position from on, or none if there
	// are none yet. [io.EOF] says that there will be none.
	Read(ctx context.Context, from int64) ([]byte, error)
	// Stderr returns the end of the sidecar.
	Stderr(ctx context.Context) ([]byte, error)
}

// JournalReader reads a run's journal line by line to its sentinel.
type JournalReader struct {
	Format    JournalFormat
	Nonce     string
	Source    JournalSource
	Poll      time.Duration // between two reads, after one that gave nothing
	FirstByte time.Duration // longest wait for the first byte
}

// Read gives emit every line from the byte position from on that is not blank, and
// whether it is JSON, until the first sentinel. It returns nil for an agent that
// exited 0, a *[JournalExitError] for one that did not, [ErrJournalStalled],
// [ErrNoSentinel], ctx's cause, or the error of the source or of emit.
func (r JournalReader) Read(ctx context.Context, from int64, emit func(line JournalLine, isJSON bool) error) error {
	lines := JournalLines{Position: from}
	first, stop := context.WithTimeoutCause(ctx, r.FirstByte, ErrJournalStalled)
	defer stop()
	for reading := first; ; {
		piece, err := r.next(reading, lines.Next())
		if err != nil {
			return err
		}
		if len(piece) > 0 {
			reading = ctx
		}
		for _, line := range lines.Feed(piece) {
			if exit, ok := r.Format.ParseSentinel(r.Nonce, line.Text); ok {
				return r.end(ctx, exit)
			}
			if err := give(line, emit); err != nil {
				return err
			}
		}
	}
}

// next reads once, and waits if nothing was there.
func (r JournalReader) next(ctx context.Context, from int64) ([]byte, error) {
	piece, err := r.Source.Read(ctx, from)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, io.EOF):
		return nil, ErrNoSentinel
	case err != nil:
		return nil, fmt.Errorf("read journal from %d: %w", from, err)
	case len(piece) > 0:
		return piece, nil
	}
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(r.Poll):
		return nil, nil
	}
}

func give(line JournalLine, emit func(JournalLine, bool) error) error {
	text := bytes.TrimSpace(line.Text)
	if len(text) == 0 {
		return nil
	}
	return emit(line, json.Valid(text))
}

func (r JournalReader) end(ctx context.Context, exit int) error {
	if exit == 0 {
		return nil
	}
	stderr, err := r.Source.Stderr(ctx)
	if err != nil {
		stderr = nil // the status is known, and counts for more than its words
	}
	return &JournalExitError{Exit: exit, Message: ExitMessage(stderr)}
}
