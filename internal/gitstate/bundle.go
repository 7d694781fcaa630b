package gitstate

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// bundle is an open bundle whose header was read: what follows is its pack.
type bundle struct {
	file          *os.File
	pack          *bufio.Reader
	size          int64
	prerequisites []string // sorted
	refs          map[string]string
}

func (b *bundle) Close() error { return b.file.Close() }

var errBundle = errors.New("not a bundle of git")

// openBundle reads the header of the bundle in the file name.
func openBundle(name string) (*bundle, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	b := &bundle{file: f, pack: bufio.NewReaderSize(f, maxHeaderLine), refs: map[string]string{}}
	info, err := f.Stat()
	if err == nil {
		b.size = info.Size()
		err = b.header()
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("read bundle %s: %w", bundleFile, err)
	}
	return b, nil
}

// header reads the signature, capabilities, prerequisites and refs, up to the empty
// line before the pack.
func (b *bundle) header() error {
	signature, err := b.line()
	if err != nil || signature != "# v2 git bundle" && signature != "# v3 git bundle" {
		return errors.Join(errBundle, err)
	}
	for {
		line, err := b.line()
		if err != nil {
			return err
		}
		switch {
		case line == "":
			slices.Sort(b.prerequisites)
			return nil
		case line[0] == '@':
			if line != "@object-format=sha1" && line != "@object-format=sha256" {
				return errBundle
			}
		case line[0] == '-':
			id, _, _ := strings.Cut(line[1:], " ")
			if !anyID.MatchString(id) {
				return errBundle
			}
			b.prerequisites = append(b.prerequisites, id)
		default:
			id, name, ok := strings.Cut(line, " ")
			if !ok || !anyID.MatchString(id) {
				return errBundle
			}
			b.refs[name] = id
		}
	}
}

// maxHeaderLine bounds a line of a header: an id and a ref's name or a subject.
const maxHeaderLine = 64 << 10

func (b *bundle) line() (string, error) {
	line, err := b.pack.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, bufio.ErrBufferFull) || errors.Is(err, io.EOF) {
			err = errBundle
		}
		return "", err
	}
	return strings.TrimSuffix(string(line), "\n"), nil
}
