package mem

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// stamp is what the store knows of an object beside its bytes.
type stamp struct {
	version string
	at      core.Millis
}

// leave is what a grant's URL stands for.
type leave struct {
	key, version, sha256 string
	size                 int64
	put                  bool
	until                core.Millis
}

var _ core.Objects = (*Process)(nil)

// keep stores an object's bytes.
func (s *Store) keep(key string, data []byte) {
	s.objects++
	s.blobs[key] = slices.Concat([]byte{}, data)
	s.stamps[key] = stamp{fmt.Sprint("v", s.objects), core.MillisOf(time.Now())}
}

func (s *Store) info(key string) core.ObjectInfo {
	data, at := s.blobs[key], s.stamps[key]
	return core.ObjectInfo{Key: key, Size: int64(len(data)), Version: at.version, ModifiedAt: at.at}
}

// Stat describes an object.
func (p *Process) Stat(ctx context.Context, key string) (core.ObjectInfo, error) {
	return get(ctx, p, "stat object", func(s *Store) (core.ObjectInfo, error) {
		data, ok := s.blobs[key]
		if !ok {
			return core.ObjectInfo{}, fmt.Errorf("stat object %s: %w", key, core.ErrNotFound)
		}
		info, sum := s.info(key), sha256.Sum256(data)
		info.SHA256 = hex.EncodeToString(sum[:])
		return info, nil
	})
}

// Objects lists objects by key.
func (p *Process) Objects(ctx context.Context, prefix string) ([]core.ObjectInfo, error) {
	return get(ctx, p, "list objects", func(s *Store) ([]core.ObjectInfo, error) {
		var out []core.ObjectInfo
		for key := range s.blobs {
			if strings.HasPrefix(key, prefix) {
				out = append(out, s.info(key))
			}
		}
		slices.SortFunc(out, func(a, b core.ObjectInfo) int { return strings.Compare(a.Key, b.Key) })
		return out, nil
	})
}

// Prefixes lists what keys go on with.
func (p *Process) Prefixes(ctx context.Context, prefix string) ([]string, error) {
	return get(ctx, p, "list prefixes", func(s *Store) ([]string, error) {
		var out []string
		for key := range s.blobs {
			if rest, ok := strings.CutPrefix(key, prefix); ok {
				if before, _, more := strings.Cut(rest, "/"); more {
					out = append(out, prefix+before+"/")
				}
			}
		}
		slices.Sort(out)
		return slices.Compact(out), nil
	})
}

// Delete removes a version of an object.
func (p *Process) Delete(ctx context.Context, key, version string) error {
	return p.transact(ctx, "delete object", func(s *Store) error {
		if at, ok := s.stamps[key]; ok && at.version == version {
			delete(s.blobs, key)
			delete(s.stamps, key)
			p.wrote("delete object " + key)
		}
		return nil
	})
}

// GrantPut lets somebody store an object.
func (p *Process) GrantPut(ctx context.Context, key, sha256 string, size int64, life time.Duration) (core.Grant, error) {
	return p.grant(ctx, "grant put", leave{key: key, sha256: sha256, size: size, put: true}, life)
}

// GrantGet lets somebody read an object.
func (p *Process) GrantGet(ctx context.Context, key, version string, life time.Duration) (core.Grant, error) {
	return p.grant(ctx, "grant get", leave{key: key, version: version}, life)
}

func (p *Process) grant(ctx context.Context, name string, l leave, life time.Duration) (core.Grant, error) {
	return get(ctx, p, name, func(s *Store) (core.Grant, error) {
		l.until = core.MillisOf(time.Now()).Add(life)
		url := fmt.Sprintf("mem://%d/%s", len(s.leaves), l.key)
		s.leaves[url] = l
		return core.Grant{URL: url, Header: map[string]string{"size": fmt.Sprint(l.size)}, Until: l.until}, nil
	})
}

// ErrGrant is the answer of the store to a request that its grant does not cover.
var ErrGrant = errors.New("the grant does not cover it")

// Upload makes the request that a grant of a put allows. An object that is there is
// success: its key says what it holds.
func (p *Process) Upload(ctx context.Context, g core.Grant, data []byte) error {
	return p.transact(ctx, "upload", func(s *Store) error {
		l, ok := s.leaves[g.URL]
		sum := sha256.Sum256(data)
		if !ok || !l.put || core.MillisOf(time.Now()) >= l.until || hex.EncodeToString(sum[:]) != l.sha256 || int64(len(data)) != l.size {
			return fmt.Errorf("upload %s: %w", g.URL, ErrGrant)
		}
		if _, there := s.blobs[l.key]; !there {
			s.keep(l.key, data)
			p.wrote("upload " + l.key)
		}
		return nil
	})
}

// Download makes the request that a grant of a read allows.
func (p *Process) Download(ctx context.Context, g core.Grant) ([]byte, error) {
	return get(ctx, p, "download", func(s *Store) ([]byte, error) {
		l, ok := s.leaves[g.URL]
		if !ok || l.put || core.MillisOf(time.Now()) >= l.until {
			return nil, fmt.Errorf("download %s: %w", g.URL, ErrGrant)
		}
		data, there := s.blobs[l.key]
		if !there || l.version != "" && s.stamps[l.key].version != l.version {
			return nil, fmt.Errorf("download %s: %w", g.URL, core.ErrNotFound)
		}
		return bytes.Clone(data), nil
	})
}

// Damage replaces an object's bytes, as no store lets anybody do.
func (s *Store) Damage(key string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep(key, data)
}
