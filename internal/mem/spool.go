package mem

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Pieces lists the pieces of a run's journal that are in the spool.
func (p *Process) Pieces(ctx context.Context, key core.RunKey, from int64) (pieces []core.SpoolPiece, more bool, err error) {
	pieces, err = get(ctx, p, "list spool", func(s *Store) ([]core.SpoolPiece, error) {
		var out []core.SpoolPiece
		for name := range s.blobs {
			if piece, ok := core.ParseSpoolKey(key, name); ok && piece.From >= from {
				piece.At = s.info(name).ModifiedAt
				out = append(out, piece)
			}
		}
		slices.SortFunc(out, func(a, b core.SpoolPiece) int { return strings.Compare(core.SpoolKey(key, a), core.SpoolKey(key, b)) })
		return out, nil
	})
	return pieces, false, err
}

// Piece returns the bytes of a piece.
func (p *Process) Piece(ctx context.Context, key core.RunKey, piece core.SpoolPiece) ([]byte, error) {
	return p.Blob(ctx, core.SpoolKey(key, piece))
}

// Spool puts a piece of a run's journal into the spool, as its sandbox does.
func (s *Store) Spool(key core.RunKey, from int64, data []byte) {
	sum := sha256.Sum256(data)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep(core.SpoolKey(key, core.SpoolPiece{From: from, End: from + int64(len(data)), SHA256: hex.EncodeToString(sum[:])}), data)
}
