package manifest

import (
	"cmp"
	"path"
	"strings"
)

// CheckPath refuses whatever is not a clean relative path. The rule is one for
// every system: backslashes, and a letter with a colon at the beginning, which
// mean something else elsewhere, are refused as well.
func CheckPath(p string) error {
	if why := pathFault(p); why != "" {
		return refuse(BadPath, p, "%s, want a clean relative path", why)
	}
	return nil
}

func pathFault(p string) string {
	switch {
	case p == "":
		return "path is empty"
	case len(p) > MaxPath:
		return "path is too long"
	case p[0] == '/':
		return "path is absolute"
	case len(p) > 1 && p[1] == ':' && isLetter(p[0]):
		return "path begins with a drive"
	case strings.IndexByte(p, '\\') >= 0:
		return "path has a backslash"
	case strings.IndexByte(p, 0) >= 0:
		return "path has a zero byte"
	}
	return segmentFault(p)
}

func segmentFault(p string) string {
	for start := 0; start <= len(p); {
		end := strings.IndexByte(p[start:], '/')
		if end < 0 {
			end = len(p) - start
		}
		switch segment := p[start : start+end]; {
		case segment == "":
			return "path has an empty segment"
		case segment == "." || segment == "..":
			return "path has a segment " + segment
		case len(segment) > MaxName:
			return "path has a segment that is too long"
		}
		start += end + 1
	}
	return ""
}

func isLetter(b byte) bool { return 'a' <= b|0x20 && b|0x20 <= 'z' }

// ComparePaths is the order of paths in a layer: bytewise, the slash below every
// other byte. It is the order of a depth-first walk that visits the names of a
// directory in the order of their bytes.
func ComparePaths(a, b string) int {
	shared := sharedPrefix(a, b)
	if shared == len(a) || shared == len(b) {
		return cmp.Compare(len(a), len(b))
	}
	return cmp.Compare(rank(a[shared]), rank(b[shared]))
}

func rank(b byte) int {
	if b == '/' {
		return -1
	}
	return int(b)
}

func sharedPrefix(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// Compare is the order of entries: by area, then by path.
func Compare(a, b Entry) int {
	if a.Area != b.Area {
		return cmp.Compare(a.Area, b.Area)
	}
	return ComparePaths(a.Path, b.Path)
}

// ComparePacks is the order of a root's packs: by fence, then by digest.
func ComparePacks(a, b PackRef) int {
	return cmp.Or(cmp.Compare(a.Fence, b.Fence), cmp.Compare(string(a.SHA256[:]), string(b.SHA256[:])))
}

// Below tells whether a path lies below a directory.
func Below(p, dir string) bool {
	return len(p) > len(dir) && p[len(dir)] == '/' && p[:len(dir)] == dir
}

// Outward tells whether the text of a symlink at p leads out of the tree, links on
// the way not followed.
func Outward(p, target string) bool {
	if strings.HasPrefix(target, "/") {
		return true
	}
	to := path.Join(path.Dir(p), target)
	return to == ".." || strings.HasPrefix(to, "../")
}
