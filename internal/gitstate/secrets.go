package gitstate

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// scanner looks for secrets in a stream that it is given in any pieces.
type scanner struct {
	secrets Secrets
	kept    []byte // of the stream, up to here
	spare   []byte
	found   bool
}

const scanPiece = 1 << 20

func (s *scanner) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), scanPiece)
		s.kept, rest = append(s.kept, rest[:n]...), rest[n:]
		if len(s.kept) >= scanPiece {
			s.look()
		}
	}
	return len(p), nil
}

// look searches what is kept, and keeps the end of it, where a secret may begin.
func (s *scanner) look() {
	s.spare = append(s.spare[:0], s.kept...) // what is found is written over
	s.found = s.secrets.Redact(s.spare) || s.found
	overlap := min(s.secrets.Overlap(), len(s.kept))
	s.kept = append(s.kept[:0], s.kept[len(s.kept)-overlap:]...)
}

func (s *scanner) holds() bool {
	s.look()
	return s.found
}

// scanObjects looks for secrets in the objects that the bundle holds, which are
// compressed there.
func (s *saving) scanObjects(ctx context.Context) error {
	if s.options.Secrets == nil {
		return nil
	}
	ids, err := s.git.output(ctx, "", maxIndex, append([]string{"rev-list", "--objects", "--no-object-names"}, bundled...)...)
	if err != nil {
		return notSaved("objects", err)
	}
	scan := &scanner{secrets: s.options.Secrets}
	if err := s.git.run(ctx, strings.NewReader(ids), scan, "cat-file", "--batch=-"); err != nil {
		return notSaved("objects", err)
	}
	if scan.holds() {
		return &unsaved{"objects", HoldsSecret, nil}
	}
	return nil
}

// scanFiles looks for secrets in everything that was stored, as it is stored: nobody
// redacts it later without damaging it.
func (s *saving) scanFiles() error {
	if s.options.Secrets == nil {
		return nil
	}
	return filepath.WalkDir(s.out, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		scan := &scanner{secrets: s.options.Secrets}
		if _, err := io.Copy(scan, f); err != nil {
			return err
		}
		if scan.holds() {
			what, _ := filepath.Rel(s.out, name)
			return &unsaved{strings.TrimPrefix(filepath.ToSlash(what), plainDir+"/"), HoldsSecret, nil}
		}
		return nil
	})
}
