package workspace

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// Forms in which a secret's value is looked for besides its plain bytes.
const (
	FormBase64 = "base64" // standard and URL alphabet, at each of the three alignments
	FormURL    = "url"    // percent-encoded, in upper- and lower-case hexadecimal digits
)

// maxSecret bounds a secret's value: pieces of a large file are read with that many
// bytes around them.
const maxSecret = 256 << 10

// minEncoded is the length of the shortest encoded form that is looked for. Shorter
// ones are found in about any text.
const minEncoded = 4

// Secret is a value that must not be stored.
type Secret struct {
	Name  string
	Value string
}

// Redactor replaces each byte of each occurrence of each secret by a zero byte. It
// is safe for concurrent use.
type Redactor struct {
	patterns []pattern
	longest  int
	// Where there are many patterns, the long ones are looked for in one pass and the
	// short ones each in its own.
	short []pattern
	many  *multi
}

// pattern is a byte string that gives a secret away. Before and after it stand up to
// that many characters which hold some bits of the secret.
type pattern struct {
	text          []byte
	before, after int
}

// NewRedactor looks for the values of secrets in the given forms, plain always.
// Empty values are ignored. Errors: [CodeInvalidPolicy] for an unknown form or a
// value above 256 KiB.
func NewRedactor(secrets []Secret, forms []string) (*Redactor, error) {
	for _, form := range forms {
		if form != FormBase64 && form != FormURL {
			return nil, refuse(CodeInvalidPolicy, "", fmt.Errorf("redact form %q: want %s or %s", form, FormBase64, FormURL))
		}
	}
	r := &Redactor{}
	for _, s := range secrets {
		if len(s.Value) > maxSecret {
			return nil, refuse(CodeInvalidPolicy, "", fmt.Errorf("secret %s: longer than %d bytes", s.Name, maxSecret))
		}
		if s.Value != "" {
			r.add(s.Value, forms)
		}
	}
	var long []pattern
	for _, p := range r.patterns {
		r.longest = max(r.longest, len(p.text)+p.before+p.after)
		if len(p.text) >= minMulti {
			long = append(long, p)
		} else {
			r.short = append(r.short, p)
		}
	}
	if len(long) < manyPatterns {
		r.short = r.patterns
	} else {
		r.many = newMulti(long)
	}
	return r, nil
}

func (r *Redactor) add(value string, forms []string) {
	r.addPattern(pattern{text: []byte(value)})
	if slices.Contains(forms, FormBase64) {
		for alignment := range 3 {
			r.addBase64(value, alignment)
		}
	}
	if slices.Contains(forms, FormURL) {
		for _, encoded := range urlForms(value) {
			if len(encoded) >= minEncoded {
				r.addPattern(pattern{text: []byte(encoded)})
			}
		}
	}
}

func (r *Redactor) addPattern(p pattern) {
	same := func(q pattern) bool { return bytes.Equal(p.text, q.text) && p.before == q.before && p.after == q.after }
	if !slices.ContainsFunc(r.patterns, same) {
		r.patterns = append(r.patterns, p)
	}
}

// addBase64 looks for the characters that value alone decides when alignment bytes
// of something else stand before it in its group of three. The characters next to
// them hold bits of it too.
func (r *Redactor) addBase64(value string, alignment int) {
	padded := append(make([]byte, alignment), value...)
	first, last := (4*alignment+2)/3, 4*len(padded)/3
	if last-first < minEncoded {
		return
	}
	p := pattern{before: min(alignment, 1), after: min(len(padded)%3, 1)}
	for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		p.text = []byte(alphabet.EncodeToString(padded)[first:last])
		r.addPattern(p)
	}
}

// urlForms are the encodings of value by the usual encoders.
func urlForms(value string) []string {
	component := url.QueryEscape(value)
	forms := []string{component, strings.ReplaceAll(component, "+", "%20"), url.PathEscape(value), escapeComponent(value)}
	for _, form := range slices.Clone(forms) {
		forms = append(forms, lowerHex(form))
	}
	return forms
}

// escapeComponent leaves the marks that ECMAScript's encodeURIComponent leaves.
func escapeComponent(value string) string {
	var out strings.Builder
	for _, c := range []byte(value) {
		if '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || strings.IndexByte("-_.!~*'()", c) >= 0 {
			out.WriteByte(c)
			continue
		}
		fmt.Fprintf(&out, "%%%02X", c)
	}
	return out.String()
}

// lowerHex writes the digits of each percent escape in lower case.
func lowerHex(escaped string) string {
	out := []byte(escaped)
	for i := 0; i+2 < len(out); i++ {
		if out[i] == '%' {
			copy(out[i+1:i+3], bytes.ToLower(out[i+1:i+3]))
			i += 2
		}
	}
	return string(out)
}

// Overlap is how many bytes around a piece of a file [Redactor.Redact] must see so
// that it finds what the piece's borders cut.
func (r *Redactor) Overlap() int { return max(r.longest-1, 0) }

// Redact zeroes data in place and tells whether it found anything. Matching runs on
// the bytes as they are given, so that no occurrence hides another.
func (r *Redactor) Redact(data []byte) bool {
	var marks bitmap
	for _, p := range r.short {
		markAll(&marks, data, p)
	}
	if r.many != nil {
		r.many.markAll(&marks, data)
	}
	if marks == nil {
		return false
	}
	marks.zero(data)
	return true
}

func markAll(marks *bitmap, data []byte, p pattern) {
	for from := 0; ; {
		i := bytes.Index(data[from:], p.text)
		if i < 0 {
			return
		}
		p.mark(marks, data, from+i)
		from += i + 1 // an occurrence may begin within this one
	}
}

// mark marks an occurrence and those of its neighbours that are characters of base64.
func (p pattern) mark(marks *bitmap, data []byte, start int) {
	if *marks == nil {
		*marks = make(bitmap, (len(data)+63)/64)
	}
	end := start + len(p.text)
	if p.before > 0 && start > 0 && isBase64(data[start-1]) {
		start--
	}
	if p.after > 0 && end < len(data) && isBase64(data[end]) {
		end++
	}
	marks.set(start, end)
}

func isBase64(c byte) bool {
	return '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || strings.IndexByte("+/-_", c) >= 0
}

// bitmap has a bit for each byte of a piece.
type bitmap []uint64

func (b bitmap) set(start, end int) {
	for i := start; i < end; {
		if i%64 == 0 && end-i >= 64 {
			b[i/64] = ^uint64(0)
			i += 64
			continue
		}
		b[i/64] |= 1 << (i % 64)
		i++
	}
}

func (b bitmap) zero(data []byte) {
	for w, word := range b {
		if word == 0 {
			continue
		}
		for i := range min(64, len(data)-w*64) {
			if word&(1<<i) != 0 {
				data[w*64+i] = 0
			}
		}
	}
}
