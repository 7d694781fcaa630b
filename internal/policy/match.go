package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// begins reports whether a rule's words match the first words of a command, whatever
// the unknown pieces come to.
func begins(globs []string, words []word) bool {
	if len(globs) == 0 || len(globs) > len(words) {
		return false
	}
	for i, glob := range globs {
		if !globMatch([]rune(glob), words[i]) {
			return false
		}
	}
	return true
}

// mayBegin reports whether a rule's words match the first words of a command if the
// unknown pieces come to the worst. A program is also known by the last part of its path.
func mayBegin(globs []string, words []word) bool {
	if len(globs) == 0 || len(words) == 0 {
		return false
	}
	glob := []rune(globs[0])
	return (possibly(glob, words[0]) || possibly(glob, base(words[0]))) && mayFollow(globs[1:], words[1:])
}

// mayFollow passes over options, and what may be their values.
func mayFollow(globs []string, words []word) bool {
	switch {
	case len(globs) == 0:
		return true
	case len(words) == 0:
		return false
	case slices.Contains(words[0], anything):
		return true // it may come to many words
	case possibly([]rune(globs[0]), words[0]) && mayFollow(globs[1:], words[1:]):
		return true
	case len(words[0]) == 0 || words[0][0] != '-':
		return false
	}
	return mayFollow(globs, words[1:]) || len(words) > 1 && mayFollow(globs, words[2:])
}

func base(w word) word {
	for i := len(w) - 1; i >= 0; i-- {
		if w[i] == '/' {
			return w[i+1:]
		}
	}
	return w
}

// possibly matches a glob with a word some of whose pieces can be anything: it keeps all
// places of the glob that the word so far can have come to.
func possibly(glob, w []rune) bool {
	at := make([]bool, len(glob)+1)
	at[0] = true
	spread(glob, at)
	for _, r := range w {
		next := make([]bool, len(glob)+1)
		reached := false
		for i := range at {
			switch {
			case r == anything:
				reached = reached || at[i]
				next[i] = reached
			case !at[i] || i == len(glob):
			case glob[i] == '*':
				next[i] = true
			case glob[i] == r:
				next[i+1] = true
			}
		}
		at = next
		spread(glob, at)
	}
	return at[len(glob)]
}

// spread adds the places behind stars that match nothing.
func spread(glob []rune, at []bool) {
	for i, r := range glob {
		if at[i] && r == '*' {
			at[i+1] = true
		}
	}
}

// globMatch matches a glob whose star is any text, going back to the last star only.
// Only a star matches an unknown piece.
func globMatch(glob, text []rune) bool {
	g, t, star, from := 0, 0, -1, 0
	for t < len(text) {
		switch {
		case g < len(glob) && glob[g] == '*':
			star, from, g = g, t, g+1
		case g < len(glob) && glob[g] == text[t]:
			g, t = g+1, t+1
		case star >= 0:
			from++
			g, t = star+1, from
		default:
			return false
		}
	}
	for g < len(glob) && glob[g] == '*' {
		g++
	}
	return g == len(glob)
}

// covers reports whether a rule names a path, or a directory above it.
func covers(rule, place, root string) bool {
	if rule == "" {
		return false
	}
	if !path.IsAbs(rule) {
		rule = root + "/" + rule
	}
	return coversParts(parts(path.Clean(rule)), parts(place))
}

func parts(name string) []string {
	if name = strings.Trim(name, "/"); name != "" {
		return strings.Split(name, "/")
	}
	return nil
}

func coversParts(globs, names []string) bool {
	switch {
	case len(globs) == 0:
		return true // it is, or is above, the path
	case globs[0] == "**":
		for i := range len(names) + 1 {
			if coversParts(globs[1:], names[i:]) {
				return true
			}
		}
		return false
	case len(names) == 0:
		return false
	}
	return globMatch([]rune(globs[0]), []rune(names[0])) && coversParts(globs[1:], names[1:])
}

// maxLinks is how many links one path may lead through, as for the kernel.
const maxLinks = 40

// resolve follows a path as the kernel does: link by link, and up from where a link
// leads. What does not exist is taken by its name.
func resolve(name string) string {
	at, left, links := "/", parts(name), 0
	for len(left) > 0 {
		part := left[0]
		left = left[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		to, err := os.Readlink(next)
		if links++; err != nil || links > maxLinks {
			at = next
			continue
		}
		if path.IsAbs(to) {
			at = "/"
		}
		left = append(parts(to), left...)
	}
	return at
}

var errHost = errors.New("want a host name or a URL")

// hostName is the host of a URL, or of a name with or without a port, in lower case,
// and an address as addresses are written.
func hostName(text string) (string, error) {
	text = strings.TrimSpace(text)
	if !strings.Contains(text, "://") {
		text = "x://" + text
	}
	at, err := url.Parse(text)
	if err != nil || at.Hostname() == "" || strings.ContainsAny(text, "\\\t\r\n") {
		return "", errHost
	}
	name := strings.ToLower(strings.TrimSuffix(at.Hostname(), "."))
	for _, r := range name {
		if r > 0x7e || r <= ' ' || strings.ContainsRune("%*?\"<>^`{|}", r) {
			return "", fmt.Errorf("want a host name in ASCII, got %.100q", name)
		}
	}
	if ip, err := netip.ParseAddr(name); err == nil {
		return ip.Unmap().WithZone("").String(), nil
	}
	return addressOf(name)
}

// addressOf reads the other ways to write an IPv4 address, as the C library takes them.
func addressOf(name string) (string, error) {
	labels := strings.Split(name, ".")
	last := labels[len(labels)-1]
	if last == "" {
		return "", errHost
	}
	if _, err := number(last); err != nil {
		return name, nil
	}
	if len(labels) > 4 {
		return "", errHost
	}
	var ip uint64
	for i, label := range labels {
		n, err := number(label)
		most := uint64(255)
		if i == len(labels)-1 {
			most = 1<<(8*(5-len(labels))) - 1
		}
		if err != nil || n > most {
			return "", errHost
		}
		if i < len(labels)-1 {
			n <<= 8 * (3 - i)
		}
		ip |= n
	}
	return netip.AddrFrom4([4]byte{byte(ip >> 24), byte(ip >> 16), byte(ip >> 8), byte(ip)}).String(), nil
}

// number reads decimal, 0x hexadecimal and 0 octal digits.
func number(label string) (uint64, error) {
	switch {
	case strings.HasPrefix(label, "0x"):
		if label == "0x" {
			return 0, nil
		}
		return strconv.ParseUint(label[2:], 16, 64)
	case len(label) > 1 && label[0] == '0':
		return strconv.ParseUint(label[1:], 8, 64)
	}
	return strconv.ParseUint(label, 10, 64)
}

// hostMatches matches a rule with a host's name.
func hostMatches(rule, name string) bool {
	rule = strings.ToLower(strings.TrimSuffix(strings.TrimSpace(rule), "."))
	if parent, ok := strings.CutPrefix(rule, "*."); ok {
		return strings.HasSuffix(name, "."+parent)
	}
	if rule == "*" || rule == name {
		return true
	}
	canonical, err := hostName(rule)
	return err == nil && canonical == name
}
