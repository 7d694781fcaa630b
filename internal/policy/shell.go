package policy

import (
	"errors"
	"path"
	"slices"
	"strings"
)

// anything stands in a [word] for a piece that only the shell can tell: a variable, the
// output of a command, a pattern of file names.
const anything = rune(-1)

// word is a word of a command, without its quotes.
type word []rune

func wordOf(s string) word { return word(s) }

func (w word) unknown() bool { return slices.Contains(w, anything) }

func (w word) String() string {
	var b strings.Builder
	for _, r := range w {
		if r == anything {
			b.WriteByte('?')
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// command is one simple command of a script.
type command struct {
	words  []word
	writes []word // files that it is redirected to
	docs   []word // what stands for its input
	odd    bool   // it has more than words: no rule allows it
	err    error  // it cannot be read
}

func (c command) text() string {
	var words []string
	for _, w := range c.words {
		words = append(words, w.String())
	}
	return strings.Join(words, " ")
}

// commandsOf are the commands of a program's words: those of the script where the
// program is a shell that is given one.
func commandsOf(argv []string) []command {
	if len(argv) == 3 && slices.Contains(shells, path.Base(argv[0])) && slices.Contains([]string{"-c", "-lc"}, argv[1]) {
		return parse(argv[2])
	}
	c := command{}
	for _, a := range argv {
		c.words = append(c.words, wordOf(a))
	}
	if len(argv) == 0 {
		return nil
	}
	return []command{c}
}

// Programs that run what their words say.
var (
	shells   = []string{"sh", "bash", "dash", "zsh", "ksh", "ash", "fish"}
	evals    = []string{"eval", "trap", "su", "watch", "script", "ssh", "parallel"}
	wrappers = []string{
		"sudo", "doas", "env", "command", "builtin", "exec", "nohup", "time", "timeout", "nice", "ionice", "xargs", "setsid", "stdbuf",
		"busybox", "toybox", "chroot", "unshare", "nsenter", "find", "fd", "strace", "flock", "runuser", "setpriv", "chrt", "taskset",
		"coproc", "npx", "bunx", "watch", "parallel", "ssh", "su", "script", "hash", "mapfile", "readarray", "ip", "setarch", "linux32", "linux64",
		"prlimit", "numactl", "choom", "fakeroot", "proot", "bwrap", "firejail", "systemd-run", "pkexec", "gosu", "su-exec", "tini", "dumb-init",
		"ltrace", "unbuffer", "rlwrap", "entr", "sg", "cpulimit", "daemonize", "xvfb-run", "dbus-run-session", "start-stop-daemon",
	}
	// keywords may stand before a command.
	keywords = []string{"if", "then", "else", "elif", "do", "while", "until", "!", "{", "time"}
)

// bare is the command behind keywords and assignments.
func (c command) bare() []word {
	words := c.words
	for len(words) > 0 {
		text := words[0].String()
		switch {
		case text == "time":
			for words = words[1:]; len(words) > 0 && (words[0].String() == "-p" || words[0].String() == "--"); {
				words = words[1:]
			}
		case text == "function" && len(words) > 1:
			words = words[2:] // behind its name
		case slices.Contains(keywords, text) || assigns(words[0]):
			words = words[1:]
		default:
			return words
		}
	}
	return words
}

func assigns(w word) bool {
	name, _, ok := strings.Cut(w.String(), "=")
	if !ok || name == "" {
		return false
	}
	name = strings.TrimSuffix(name, "+")
	return strings.Trim(strings.ToLower(name), "abcdefghijklmnopqrstuvwxyz0123456789_[]?") == ""
}

// disguised lists what the command may come to: itself, and for a program that runs
// others, what follows it from each word on.
func (c command) disguised() [][]word {
	words := c.bare()
	all := [][]word{c.words, words}
	if len(words) == 0 {
		return all
	}
	name := path.Base(words[0].String())
	if slices.Contains(wrappers, name) || words[0].unknown() {
		for i := 1; i < len(words) && i < maxWords; i++ {
			all = append(all, words[i:])
		}
		if len(words) > maxWords || feeds(name, words) {
			all = append(all, []word{{anything}})
		}
	}
	return all
}

// feeds reports whether a program puts what it reads behind words that run what follows
// them.
func feeds(name string, words []word) bool {
	if name != "xargs" && name != "parallel" {
		return false
	}
	last := len(words) - 1
	for last > 0 && len(words[last]) > 0 && words[last][0] == '-' {
		last--
	}
	runs := path.Base(words[last].String())
	return last > 0 && slices.ContainsFunc([][]string{shells, evals, wrappers}, func(all []string) bool { return slices.Contains(all, runs) })
}

// maxWords bounds how far a program that runs others is looked into: behind it stands
// anything.
const maxWords = 64

// scripts are the words that are scripts themselves. A shell without a word reads one.
func (c command) scripts() []word {
	var found []word
	for _, words := range c.disguised() {
		if len(words) == 0 {
			continue
		}
		name := path.Base(words[0].String())
		shell := slices.Contains(shells, name)
		if !shell && !slices.Contains(evals, name) {
			found = append(found, within(name, words[1:])...)
			continue
		}
		if len(words) > maxWords {
			return []word{{anything}}
		}
		found = append(found, joined(words[1:])...)
		if shell {
			found = append(found, c.docs...)
		}
		if shell && len(c.docs) == 0 && !slices.ContainsFunc(words[1:], func(w word) bool { return len(w) > 0 && w[0] != '-' }) || shell && fromInput(words[1:]) {
			found = append(found, word{anything})
		}
	}
	return found
}

// within are the scripts in the words of a program that is no shell.
func within(name string, words []word) (found []word) {
	switch name {
	case "env":
		return split(words)
	case "alias":
		for _, w := range words {
			if at := slices.Index(w, '='); at >= 0 {
				found = append(found, w[at+1:])
			}
		}
	case ".", "source":
		if len(words) == 0 || fromInput(words) {
			return []word{{anything}}
		}
	case "at", "batch":
		return []word{{anything}}
	}
	return found
}

// split is what env takes apart into a command.
func split(words []word) []word {
	for i, w := range words {
		text := w.String()
		at := slices.Index(w, 'S')
		if long, ok := strings.CutPrefix(text, "--split-string"); ok {
			at = len(w) - len([]rune(strings.TrimPrefix(long, "="))) - 1
		} else if !strings.HasPrefix(text, "-") || strings.HasPrefix(text, "--") || at < 0 {
			continue
		}
		return joined(slices.Concat([]word{w[at+1:]}, words[i+1:]))
	}
	return nil
}

// fromInput reports whether a file among the words is what is read, or a descriptor.
func fromInput(words []word) bool {
	return slices.ContainsFunc(words, func(w word) bool {
		name := path.Clean(w.String())
		return name == "/dev/stdin" || strings.HasPrefix(name, "/dev/fd/") || strings.HasPrefix(name, "/proc/")
	})
}

// joined are the words, each and all together: eval takes them as one text.
func joined(words []word) []word {
	var all word
	var found []word
	for i, w := range words {
		if i > 0 {
			all = append(all, ' ')
		}
		all = append(all, w...)
		if len(words) > 1 && !w.unknown() {
			found = append(found, w)
		}
	}
	if len(all) > 0 {
		found = append(found, all)
	}
	return found
}

// hosts are those of the URLs among the words. An unknown piece is no part of any name.
func (c command) hosts() []string {
	var found []string
	for _, w := range c.words {
		text := strings.ReplaceAll(w.String(), "?", "*")
		pieces := strings.Split(text, "://")
		for _, rest := range pieces[1:] {
			found = append(found, "x://"+rest)
		}
	}
	return found
}

// maxDepth bounds how deep commands within commands are read.
const maxDepth = 16

var (
	errDepth = errors.New("want commands nested less deeply")
	errQuote = errors.New("want every quote and bracket closed")
	errNull  = errors.New("want no null byte")
)

// maxScript bounds a script, characters.
const maxScript = 64 << 10

// parse reads a script: all simple commands in it, those of substitutions and subshells
// too.
func parse(script string) []command {
	switch {
	case strings.ContainsRune(script, 0):
		return []command{{err: errNull}}
	case len(script) > maxScript:
		return []command{{err: errDepth}}
	}
	p := &parser{in: []rune(script)}
	p.script(0)
	p.flush()
	return p.out
}

type parser struct {
	in    []rune
	at    int
	depth int
	out   []command

	now    command
	word   word
	inWord bool
	vague  bool // of the word nothing can be told
	quotes bool // the word has quotes
	target bool // the next word is a file that is written to
	source bool // the next word is a file that is read
	mark   *document
	docs   []document // whose lines follow
}

// document is what stands in a script for the input of a command.
type document struct {
	command int // its place in out
	end     string
	indent  bool // tabs before its end do not count
	literal bool // nothing in it is replaced
}

func (p *parser) more() bool { return p.at < len(p.in) }

func (p *parser) next() rune {
	r := p.in[p.at]
	p.at++
	return r
}

func (p *parser) peek(r rune) bool { return p.more() && p.in[p.at] == r }

func (p *parser) skip(r rune) bool {
	if p.peek(r) {
		p.at++
		return true
	}
	return false
}

func (p *parser) add(r rune) { p.word, p.inWord = append(p.word, r), true }

func (p *parser) endWord() {
	if !p.inWord {
		return
	}
	if p.vague {
		p.word = word{anything}
	}
	switch {
	case p.mark != nil:
		p.mark.end, p.mark.literal = p.word.String(), p.quotes
		p.docs = append(p.docs, *p.mark)
		if p.word.unknown() {
			p.now.err = errQuote
		}
	case p.target:
		p.now.writes = append(p.now.writes, p.word)
	case p.source:
	default:
		p.now.words = append(p.now.words, p.word)
	}
	p.word, p.inWord, p.vague, p.quotes, p.target, p.source, p.mark = nil, false, false, false, false, false, nil
}

// flush ends a simple command.
func (p *parser) flush() {
	p.endWord()
	if p.target || p.mark != nil {
		p.now.err = errors.New("want a word behind a redirection")
	}
	if len(p.now.words) > 0 && assigns(p.now.words[0]) {
		p.now.odd = true
	}
	if p.depth > 0 && len(p.now.words) > 0 && p.now.words[0].String() == "case" {
		p.now.err = errQuote // whose brackets are not in pairs
	}
	some := len(p.now.words) > 0 || len(p.now.writes) > 0 || p.now.err != nil
	for i := range p.docs {
		if p.docs[i].command < 0 {
			p.docs[i].command, some = len(p.out), true
		}
	}
	if some {
		p.out = append(p.out, p.now)
	}
	p.now, p.target, p.source, p.mark = command{}, false, false, nil
}

// bad makes the command one that cannot be read, and ends the script.
func (p *parser) bad(err error) {
	p.now.err = err
	p.at = len(p.in)
}

// script reads to the end, or to the bracket or backquote that ends it.
func (p *parser) script(end rune) {
	for open := 0; p.more(); {
		r := p.next()
		if r == end && open == 0 && end != 0 {
			if len(p.docs) > 0 {
				p.bad(errQuote)
			}
			return
		}
		switch {
		case r == '(':
			open++
		case r == ')' && open > 0:
			open--
		}
		p.rune(r)
	}
	if end != 0 {
		p.bad(errQuote)
	}
}

func (p *parser) rune(r rune) {
	switch r {
	case ' ', '\t':
		p.endWord()
	case '\n', ';', '|', '&', '(', ')':
		p.operator(r)
	case '<', '>':
		p.redirect(r)
	case '#':
		if p.inWord {
			p.add(r)
			return
		}
		for p.more() && !p.peek('\n') {
			p.at++
		}
	case '*', '?', '[', ']', '{', '}', '~':
		p.pattern(r)
	default:
		p.quoted(r)
	}
}

// operator ends a command. Brackets make it one that no rule allows.
func (p *parser) operator(r rune) {
	if r == '&' && p.peek('>') {
		p.endWord()
		return // what follows redirects
	}
	odd := r == '(' || r == ')'
	p.now.odd = p.now.odd || odd
	p.flush()
	p.now.odd = odd
	if r == '\n' {
		p.documents()
	}
}

// redirect reads what a command is redirected to.
func (p *parser) redirect(r rune) {
	if !p.quotes && !p.vague && strings.Trim(p.word.String(), "0123456789") == "" {
		p.word, p.inWord = nil, false // the number of a descriptor
	}
	p.endWord()
	if r == '<' && p.skip('<') {
		if p.skip('<') {
			p.source = true
			return
		}
		p.mark = &document{command: -1, indent: p.skip('-')}
		return
	}
	p.source = r == '<' && !p.skip('>')
	p.target = !p.source
	for p.target && (p.skip('>') || p.skip('|')) {
	}
	if p.skip('&') {
		if length := descriptor(p.in[p.at:]); length > 0 {
			p.at += length
			p.target, p.source = false, false
		}
	}
}

// descriptor is how long the number of a descriptor is, or the dash that closes one; zero
// where the word that begins there is a file's name.
func descriptor(text []rune) int {
	length := 0
	for length < len(text) && text[length] >= '0' && text[length] <= '9' {
		length++
	}
	if length < len(text) && text[length] == '-' {
		length++
	}
	if length < len(text) && !strings.ContainsRune(" \t\n;|&<>()", text[length]) {
		return 0
	}
	return length
}

// documents reads the documents of the commands before a newline.
func (p *parser) documents() {
	for _, d := range p.docs {
		var text []rune
		for closed := false; !closed; {
			if !p.more() {
				break
			}
			from := p.at
			for p.more() && !p.peek('\n') {
				p.at++
			}
			line := p.in[from:p.at]
			p.skip('\n')
			plain := string(line)
			if d.indent {
				plain = strings.TrimLeft(plain, "\t")
			}
			if closed = plain == d.end; !closed {
				text = append(append(text, line...), '\n')
			}
		}
		if !d.literal {
			inner := &parser{in: text, depth: p.depth + 1}
			inner.double(0)
			text, inner.word, inner.inWord = inner.word, nil, false
			inner.flush()
			p.out = append(p.out, inner.out...)
		}
		p.out[d.command].docs = append(p.out[d.command].docs, word(text))
	}
	p.docs = nil
}

// pattern is a character that the shell may replace. Alone it is a keyword or a program.
func (p *parser) pattern(r rune) {
	alone := !p.inWord && (!p.more() || strings.ContainsRune(" \t\n;", p.in[p.at]))
	if alone && strings.ContainsRune("[]{}", r) {
		p.add(r)
		return
	}
	p.vague = p.vague || r == '{' || r == '['
	p.add(anything)
}

func (p *parser) quoted(r rune) {
	switch r {
	case '\'':
		p.single()
	case '"':
		p.double('"')
	case '\\':
		if !p.more() {
			p.bad(errQuote)
			return
		}
		if !p.skip('\n') {
			p.quotes = true
			p.add(p.next())
		}
	case '$', '`':
		p.expand(r, false)
	default:
		p.add(r)
	}
}

func (p *parser) single() {
	p.inWord, p.quotes = true, true
	for p.more() {
		r := p.next()
		if r == '\'' {
			return
		}
		p.add(r)
	}
	p.bad(errQuote)
}

// double reads to the quote that ends the text, or, without one, to the end.
func (p *parser) double(end rune) {
	p.inWord, p.quotes = true, true
	for p.more() {
		r := p.next()
		switch {
		case r == end && end != 0:
			return
		case r == '\\' && p.skip('\n'):
		case r == '\\' && p.more() && strings.ContainsRune("$`\"\\", p.in[p.at]):
			p.add(p.next())
		case r == '$' || r == '`':
			p.expand(r, true)
		default:
			p.add(r)
		}
	}
	if end != 0 {
		p.bad(errQuote)
	}
}

// expand reads a variable or a substitution: what it comes to can be anything, and the
// commands in it are commands. quoted says that it is between double quotes.
func (p *parser) expand(r rune, quoted bool) {
	switch {
	case r == '`':
		p.backquoted()
	case p.skip('('):
		p.nested()
	case p.skip('{'):
		p.braces(quoted)
	case !quoted && p.skip('\''):
		p.escapes()
	case !quoted && p.peek('"'):
		return // a text in the user's language
	case p.more() && (nameRune(p.in[p.at]) || strings.ContainsRune("@*#?$!-", p.in[p.at])):
		for first := true; p.more() && (nameRune(p.in[p.at]) || first); first = false {
			p.at++
		}
	default:
		p.add(r)
		return
	}
	p.add(anything)
}

func nameRune(r rune) bool {
	return r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

// nested reads the commands of a substitution.
func (p *parser) nested() {
	inner := &parser{in: p.in, at: p.at, depth: p.depth + 1}
	p.within(inner, ')')
	p.at = inner.at
}

// backquoted reads the commands between backquotes. What a backslash makes of them
// cannot be told from here.
func (p *parser) backquoted() {
	length := slices.Index(p.in[p.at:], '`')
	if length < 0 || slices.Contains(p.in[p.at:p.at+length], '\\') {
		p.bad(errQuote)
		return
	}
	p.within(&parser{in: p.in[p.at : p.at+length], depth: p.depth + 1}, 0)
	p.at += length + 1
}

func (p *parser) within(inner *parser, end rune) {
	p.now.odd = true
	if inner.depth > maxDepth {
		inner.bad(errDepth)
	} else {
		inner.script(end)
	}
	inner.flush()
	p.out = append(p.out, inner.out...)
}

// braces reads to the end of ${…}; what is in it may hold commands. Between double
// quotes it depends on more than is read here what a single one is.
func (p *parser) braces(quoted bool) {
	p.now.odd = true
	for p.more() {
		switch r := p.next(); r {
		case '}':
			return
		case '\\':
			if p.more() {
				p.at++
			}
		case '\'', '"', '$', '`':
			if r == '\'' && quoted {
				p.bad(errQuote)
				return
			}
			held := p.word
			if r == '$' || r == '`' {
				p.expand(r, quoted)
			} else {
				p.quoted(r)
			}
			p.word = held
		}
	}
	p.bad(errQuote)
}

// escapes reads to the end of $'…'.
func (p *parser) escapes() {
	for p.more() {
		switch p.next() {
		case '\'':
			return
		case '\\':
			if p.more() {
				p.at++
			}
		}
	}
	p.bad(errQuote)
}
