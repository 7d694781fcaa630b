package side

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/agenthttp"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/toolwire"
)

// When a piece is pushed.
const (
	look     = 500 * time.Millisecond
	pieceMin = 64 << 10 // bytes, at once while somebody watches
	pieceMax = core.MaxSpoolPiece
	every    = 2 * time.Second // less than that, while somebody watches
	// unwatched is how long less than the longest piece waits while nobody does: each
	// costs a request of the function and one of the store.
	unwatched = 5 * time.Minute
	// watched is how long somebody is believed to watch after a sign of it.
	watched = time.Minute

	backoff    = time.Second
	backoffMax = time.Minute
	putTimeout = 30 * time.Second
)

// Pusher copies a journal into the spool, piece by piece, and holds one piece at a time.
type Pusher struct {
	Journal string // path
	State   string // path of the file that holds how far it is, over its own death
	Follow  string // path of a file that is touched by whoever follows the journal
	// Grants returns the right to store each piece, in the same order. A refusal is a
	// *[toolwire.Error].
	Grants func(ctx context.Context, pieces []toolwire.Piece) (toolwire.SpoolAnswer, error)
	Client *http.Client // to where grants point
	Log    *slog.Logger

	at     int64
	inode  uint64
	seen   time.Time // the last sign that somebody watches; zero: none
	pushed time.Time // when the last piece was; zero: the first is pushed at once, and tells
	buf    []byte
}

// Run pushes until ctx ends, or, once it has been told where the journal ends, until all
// of it is there, which is nil. What will not heal is an error: it has given up.
func (p *Pusher) Run(ctx context.Context, end <-chan int64) error {
	p.recall()
	var last *int64
	var fails int
	var retry time.Time
	for {
		size, err := p.size()
		if err != nil {
			return err
		}
		if last != nil {
			if size = min(size, *last); p.at >= size {
				return nil
			}
		}
		if !time.Now().Before(retry) && p.due(size, last != nil) {
			err := p.push(ctx, size)
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case err == nil:
				fails = 0
				continue
			case final(err):
				return err
			}
			fails++
			p.Log.Warn("push", "from", p.at, "fails", fails, "err", err)
			wait := min(backoff<<min(fails-1, 10), backoffMax)
			retry = time.Now().Add(wait/2 + rand.N(wait/2))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case at := <-end:
			last, end, retry = &at, nil, time.Time{}
		case <-time.After(look):
		}
	}
}

// due tells whether what there is behind the last piece is pushed now.
func (p *Pusher) due(size int64, over bool) bool {
	fresh := size - p.at
	switch {
	case fresh == 0:
		return false
	case over || fresh >= pieceMax:
		return true
	case !p.watching():
		return time.Since(p.pushed) >= unwatched
	}
	return fresh >= pieceMin || time.Since(p.pushed) >= every
}

// watching tells whether somebody is believed to watch.
func (p *Pusher) watching() bool {
	if info, err := os.Lstat(p.Follow); err == nil && info.ModTime().After(p.seen) {
		p.seen = info.ModTime()
	}
	return time.Since(p.seen) < watched
}

// errRewritten is a journal that does not go on from what was pushed of it.
var errRewritten = errors.New("push: the journal was cut, replaced or removed")

func (p *Pusher) size() (int64, error) {
	info, err := os.Lstat(p.Journal)
	if err != nil {
		return 0, errRewritten
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !info.Mode().IsRegular() || info.Size() < p.at || p.inode != 0 && stat.Ino != p.inode:
		return 0, errRewritten
	}
	p.inode = stat.Ino
	return info.Size(), nil
}

// push stores the next piece.
func (p *Pusher) push(ctx context.Context, size int64) error {
	data, err := p.read(min(size-p.at, pieceMax))
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	piece := toolwire.Piece{From: p.at, Size: int64(len(data)), SHA256: hex.EncodeToString(sum[:])}
	answer, err := p.Grants(ctx, []toolwire.Piece{piece})
	if err != nil {
		return err
	}
	if len(answer.Grants) != 1 {
		return fmt.Errorf("push: %d grants for a piece", len(answer.Grants))
	}
	if err := p.put(ctx, answer.Grants[0], data); err != nil {
		return err
	}
	p.at, p.pushed = p.at+int64(len(data)), time.Now()
	p.seen = time.Time{} // whoever follows the journal without having the run leaves his mark
	if answer.Watched {
		p.seen = p.pushed
	}
	p.remember()
	return nil
}

func (p *Pusher) read(n int64) ([]byte, error) {
	f, err := os.OpenFile(p.Journal, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, errRewritten
	}
	defer f.Close()
	if int64(cap(p.buf)) < n {
		p.buf = make([]byte, max(n, pieceMin))
	}
	data := p.buf[:n]
	if read, err := f.ReadAt(data, p.at); err != nil {
		return nil, fmt.Errorf("push: read %d bytes of the journal at %d, got %d: %w", n, p.at, read, err)
	}
	return data, nil
}

// put stores a piece. One that is there already is this one: its name says what it holds.
// A grant is a right, and in no message.
func (p *Pusher) put(ctx context.Context, g toolwire.Grant, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, putTimeout)
	defer cancel()
	answer, err := agenthttp.Put(ctx, p.Client, agenthttp.Object{URL: g.URL, Headers: g.Headers, Body: bytes.NewReader(data), Size: int64(len(data))})
	if err != nil {
		return fmt.Errorf("push: put a piece: %w", err)
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 64<<10)) // so that the connection is used again
	if !agenthttp.Stored(answer.StatusCode) {
		return fmt.Errorf("push: the store answers status %d", answer.StatusCode)
	}
	return nil
}

// final tells of what another try will not change.
func final(err error) bool {
	if errors.Is(err, errRewritten) {
		return true
	}
	e, ok := errors.AsType[*toolwire.Error](err)
	return ok && e.Code != toolwire.CodeUnavailable && e.Status != http.StatusTooManyRequests
}

// recall reads how far another before this one was. Without that everything is pushed
// again, which does no harm.
func (p *Pusher) recall() {
	data, err := os.ReadFile(p.State)
	if err != nil {
		return
	}
	var at int64
	var inode uint64
	if n, err := fmt.Sscanf(string(data), "%d %d\n", &at, &inode); n == 2 && err == nil && at >= 0 {
		p.at, p.inode = at, inode
	}
}

func (p *Pusher) remember() {
	fresh := p.State + ".new"
	if os.WriteFile(fresh, fmt.Appendf(nil, "%d %d\n", p.at, p.inode), 0o600) == nil {
		_ = os.Rename(fresh, p.State) // without it the next one pushes again
	}
}
