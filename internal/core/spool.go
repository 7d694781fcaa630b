package core

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
)

// MaxSpoolPiece is the longest piece of a journal in the spool, bytes.
const MaxSpoolPiece = 1 << 20

// SpoolPiece names a piece of a journal that a sandbox has put into the spool: the
// journal's bytes From to End, as it says.
type SpoolPiece struct {
	From, End int64
	SHA256    string // hex, over the piece's bytes
	At        Millis // when it was stored
}

// Spool is where sandboxes leave pieces of their journals while they are written. It is
// a cache: what it holds is only read, and nothing is concluded from it.
type Spool interface {
	// Pieces lists a run's pieces that begin at from or behind it, in the order of where
	// they begin, and whether there are more than these.
	Pieces(ctx context.Context, key RunKey, from int64) (pieces []SpoolPiece, more bool, err error)
	// Piece returns the bytes of a piece, or ErrNotFound.
	Piece(ctx context.Context, key RunKey, p SpoolPiece) ([]byte, error)
}

// SpoolPrefix begins the keys of all pieces of a run.
func SpoolPrefix(key RunKey) string {
	return KeyToken(string(key.Tenant)) + "/spool/" + KeyToken(string(key.Run)) + "/"
}

// SpoolKey is the key of a piece: its name sorts by where it begins, and says what it
// holds.
func SpoolKey(key RunKey, p SpoolPiece) string {
	return fmt.Sprintf("%s%016d-%016d-%s", SpoolPrefix(key), p.From, p.End, p.SHA256)
}

// SpoolAfter is behind what key the pieces are listed that begin at from or behind it.
func SpoolAfter(key RunKey, from int64) string {
	return fmt.Sprintf("%s%016d", SpoolPrefix(key), from)
}

// Check reports the first member that is not as expected.
func (p SpoolPiece) Check() error {
	switch sum, err := hex.DecodeString(p.SHA256); {
	case p.From < 0 || p.End > maxPosition || p.End <= p.From || p.End-p.From > MaxSpoolPiece:
		return fmt.Errorf("spool piece: want 1 to %d bytes from 0 on, got %d to %d", MaxSpoolPiece, p.From, p.End)
	case err != nil || len(sum) != sha256.Size || p.SHA256 != strings.ToLower(p.SHA256):
		return fmt.Errorf("spool piece: want a SHA-256 of 64 hex digits, got %.80q", p.SHA256)
	}
	return nil
}

var spoolName = regexp.MustCompile(`^([0-9]{16})-([0-9]{16})-([0-9a-f]{64})$`)

// ParseSpoolKey reads which piece of a run is under a key; what is none answers false.
func ParseSpoolKey(run RunKey, key string) (SpoolPiece, bool) {
	name, ok := strings.CutPrefix(key, SpoolPrefix(run))
	found := spoolName.FindStringSubmatch(name)
	if !ok || found == nil {
		return SpoolPiece{}, false
	}
	var p SpoolPiece
	p.From, _ = strconv.ParseInt(found[1], 10, 64) // 16 digits fit
	p.End, _ = strconv.ParseInt(found[2], 10, 64)
	p.SHA256 = found[3]
	return p, p.Check() == nil
}

// SpoolReader reads journals from the spool as a prober reads them from sandboxes.
type SpoolReader struct {
	Spool Spool
	// Most is how many bytes one page has at most.
	Most   int
	Logger *slog.Logger
}

// How a page is put together.
const (
	spoolChain = 256 // pieces at most
	spoolWidth = 8   // of them are read at a time
	spoolLists = 8   // listings at most
	// spoolNear is how far before a position a piece most often begins that holds it; a
	// far one may begin as far before it as a piece is long.
	spoolNear = 64 << 10
)

// SpoolPage is what the spool has of a journal behind a position.
type SpoolPage struct {
	Data   []byte // cut as pages are; it never tells of the agent's end
	End    int64  // up to where the spool has the journal
	Newest Millis // when the newest piece that was seen was stored; zero: none was
}

// Page reads the journal from the position asked for on. What cannot be read, does not
// match its digest, or does not go on from what the log ends with, is as if it were not
// there.
func (s SpoolReader) Page(ctx context.Context, q PageRequest) SpoolPage {
	page := SpoolPage{End: q.From}
	begin := q.From - int64(len(q.Last))
	chain, newest, err := s.chain(ctx, q.RunKey, begin)
	page.Newest = newest
	if err != nil || len(chain) == 0 || chain[len(chain)-1].End <= q.From {
		s.ignore(ctx, q, err)
		return page
	}
	data, err := s.read(ctx, q.RunKey, chain, begin)
	if err != nil || !bytes.HasPrefix(data, q.Last) {
		if err == nil {
			err = fmt.Errorf("it contradicts the log before %d", q.From)
		}
		s.ignore(ctx, q, err)
		return page
	}
	fresh := data[len(q.Last):]
	page.End += int64(len(fresh))
	page.Data = fresh[:DefaultJournal.Cut(q.Nonce, fresh, EdgeMore).Append]
	return page
}

func (s SpoolReader) ignore(ctx context.Context, q PageRequest, err error) {
	if err != nil && s.Logger != nil {
		s.Logger.InfoContext(ctx, "spool", "run", q.RunKey.String(), "from", q.From, "err", err)
	}
}

// chain finds pieces that hold the journal from a position on without a gap, and when
// the newest of all that were listed was stored.
func (s SpoolReader) chain(ctx context.Context, key RunKey, at int64) (chain []SpoolPiece, newest Millis, err error) {
	for _, before := range []int64{spoolNear, MaxSpoolPiece} {
		from := max(0, at-before)
		chain, newest, err = s.chainFrom(ctx, key, at, from)
		if err != nil || len(chain) > 0 || from == 0 {
			return chain, newest, err
		}
	}
	return nil, newest, nil
}

func (s SpoolReader) chainFrom(ctx context.Context, key RunKey, at, from int64) (chain []SpoolPiece, newest Millis, err error) {
	c := spoolCover{before: at, end: at, most: at + int64(s.Most)}
	for range spoolLists {
		listed, more, err := s.Spool.Pieces(ctx, key, from)
		if err != nil {
			return nil, newest, err
		}
		for _, p := range listed {
			newest = max(newest, p.At)
			if !c.add(p) {
				return c.chain, newest, nil
			}
		}
		if !more || len(listed) == 0 || listed[len(listed)-1].From < from {
			break
		}
		from = listed[len(listed)-1].From + 1
	}
	return c.chain, newest, nil
}

// spoolCover is a chain of pieces that grows.
type spoolCover struct {
	chain  []SpoolPiece
	before int64 // up to where all but the last piece reach
	end    int64
	most   int64
}

// add takes a piece that begins no earlier than those before, if it goes on from them; it
// answers false once no other can.
func (c *spoolCover) add(p SpoolPiece) bool {
	switch {
	case p.From > c.end:
		return false
	case p.End <= c.end:
	case len(c.chain) > 0 && p.From <= c.before: // it holds all that the last one adds
		c.chain[len(c.chain)-1], c.end = p, p.End
	case len(c.chain) == spoolChain || c.end >= c.most:
		return false
	default:
		c.chain, c.before, c.end = append(c.chain, p), c.end, p.End
	}
	return true
}

// read brings a chain's bytes from a position on.
func (s SpoolReader) read(ctx context.Context, key RunKey, chain []SpoolPiece, at int64) ([]byte, error) {
	pieces, errs := make([][]byte, len(chain)), make([]error, len(chain))
	pool(spoolWidth, len(chain), func(i int) { pieces[i], errs[i] = s.piece(ctx, key, chain[i]) })
	var data []byte
	end := at
	for i, p := range chain {
		if errs[i] != nil {
			return nil, errs[i]
		}
		// Where two overlap they say the same, or one of them is not the journal's.
		if known := min(end-at, end-p.From); !bytes.HasSuffix(data, pieces[i][end-known-p.From:end-p.From]) {
			return nil, fmt.Errorf("pieces of it contradict each other before %d", end)
		}
		data, end = append(data, pieces[i][end-p.From:]...), p.End
	}
	return data[:min(len(data), s.Most+JournalOverlap)], nil
}

func (s SpoolReader) piece(ctx context.Context, key RunKey, p SpoolPiece) ([]byte, error) {
	data, err := s.Spool.Piece(ctx, key, p)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	if int64(len(data)) != p.End-p.From || hex.EncodeToString(sum[:]) != p.SHA256 {
		return nil, fmt.Errorf("piece at %d does not match its name", p.From)
	}
	return data, nil
}
