package core

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// CommandLine is what an operator types to have op done to a run, with what follows op and
// the run; "" where nothing does. Ids are their hosts' own words: whatever they hold, a
// shell reads the run as one word, the tool as that very run, and a terminal into which it
// is pasted obeys none of it. It has no double quotes, which a rule's input template would
// have to escape. Where an id holds what a terminal obeys, the shell has to know $'…'. It is
// empty where an id holds a NUL, which nobody can type.
func CommandLine(op string, k RunKey, rest string) string {
	if strings.ContainsRune(k.String(), 0) {
		return ""
	}
	if rest != "" {
		rest = " " + rest
	}
	tenant := string(k.Tenant)
	if strings.Contains(tenant, "/") || strings.HasPrefix(tenant, "-") && tenant != "-" {
		return "sandkeeper " + op + rest + " --tenant=" + quoteTyped(tenant) + " -- " + quoteTyped(string(k.Run))
	}
	return "sandkeeper " + op + " " + quoteTyped(k.String()) + rest
}

// quoteTyped makes text one word of a shell at a terminal.
func quoteTyped(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, obeyed) {
		return quoteShell(text)
	}
	var b strings.Builder
	b.WriteString("$'")
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		piece := text[i : i+size]
		i += size
		if r != utf8.RuneError && !obeyed(r) && r != '\'' && r != '\\' {
			b.WriteString(piece)
			continue
		}
		for n := range len(piece) {
			fmt.Fprintf(&b, `\%03o`, piece[n])
		}
	}
	b.WriteByte('\'')
	return b.String()
}

// obeyed reports whether a rune is not to stand in a command as it is.
func obeyed(r rune) bool { return r == '"' || !unicode.IsPrint(r) }
