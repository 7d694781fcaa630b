package ecsexec

import (
	"encoding/base64"
	"fmt"
	"strings"
	"time"
)

const (
	// commandLimit bounds the command string; above it the script is typed instead.
	// Nothing larger is documented to work.
	commandLimit = 8000
	// scriptLimit stays under the 128 KiB that Linux allows for one argument, which
	// the script becomes inside the container.
	scriptLimit = 120_000
	// typedLine is the length of one typed line without its newline. A terminal in
	// canonical mode loses what exceeds 4096 bytes a line; 1024 bytes is also what
	// a message of the agent's own carries.
	typedLine = 1000
)

// job is one script prepared for the wire.
type job struct {
	mark    string   // 32 hex digits
	command string   // what ExecuteCommand gets
	typed   [][]byte // lines to send once the shell says it is ready
}

// assignment is what a job is made from.
type assignment struct {
	mark   string
	script string
	input  []byte // nil or empty: stdin is empty
	limits Limits
	left   time.Duration
}

// prepare builds the command. The agent splits it like a shell would but runs no
// shell, and looks for double braces in it; so all is one single-quoted word in
// which neither a quote nor two adjacent braces occur, and the script is base64.
func prepare(a assignment) job {
	script := base64.StdEncoding.EncodeToString([]byte(a.script))
	j := job{mark: a.mark, command: wrapper(a, inlineScript(script))}
	if len(j.command) > commandLimit {
		j.typed = lines(script)
		j.command = wrapper(a, typedScript(len(j.typed), script))
	}
	if len(a.input) > 0 {
		j.typed = append(j.typed, lines(encodedInput(a.input))...)
	}
	return j
}

func encodedInput(input []byte) string { return base64.StdEncoding.EncodeToString(input) }

func inlineScript(script string) string {
	return decodeScript(`printf %s ` + script)
}

// typedScript reads the script's lines from the terminal. A terminal in canonical
// mode gives at most one line a read, so head takes these lines and no more.
func typedScript(count int, script string) string {
	return readTyped("_sk_s", count, script) + decodeScript(`printf %s "$_sk_s"`)
}

// decodeScript keeps trailing newlines, which a command substitution would strip.
func decodeScript(source string) string {
	return `_sk_c=$(` + source + ` | base64 -d && printf .) || _sk_end bad-script; _sk_c=${_sk_c%.}; `
}

// readTyped reads lines into a variable and checks their length, so that a script
// or an input cut short is never used.
func readTyped(name string, count int, text string) string {
	return fmt.Sprintf(`%s=$(head -n %d); [ ${#%s} -eq %d ] || _sk_end bad-input; `,
		name, count, name, len(text)+count-1)
}

// wrapper is the whole command: /bin/sh -c and the shell's part of the protocol.
//
//   - Descriptor 3 is the terminal, 4 the status; the script has neither.
//   - The mark is joined from halves, so that no echo or log of the command has it.
//   - The watchdog ends the whole process group. timeout(1) would put the script in
//     a group of its own, out of reach of the interrupt, and older ones of busybox
//     take other arguments. Its trap keeps a sleep from being left behind.
//   - The interrupt is trapped before the trailer asks for it: a shell between fork
//     and exec would lose it, and linger to the end.
//   - The script's status, and an x for each part of the pipeline that failed,
//     reach a command substitution; only digits alone make a trailer with a status.
//   - printf must be the shell's own where there is input, for a program's arguments
//     can be read by others.
//   - head takes one byte more than is allowed: how the receiver knows of a cut.
func wrapper(a assignment, readScript string) string {
	scriptTime, linger := a.limits.inside(a.left)
	var b strings.Builder
	b.WriteString(`/bin/sh -c '`)
	fmt.Fprintf(&b, `exec 3>&1 2>/dev/null; _sk_a=%s; _sk_b=%s; `, a.mark[:16], a.mark[16:])
	b.WriteString(`_sk_m() { printf "\n%s%s %s.\n" $_sk_a $_sk_b "$1" >&3; }; `)
	fmt.Fprintf(&b, `_sk_end() { trap exit INT; _sk_m "$1"; sleep %d >/dev/null 3>&- & wait $!; exit; }; `, linger)
	b.WriteString(`for _sk_t in base64 head sleep; do command -v $_sk_t >/dev/null || _sk_end no-$_sk_t; done; `)
	fmt.Fprintf(&b, `( trap "kill \$!; exit" TERM; sleep %d 3>&- & wait $!; _sk_m unfinished; sleep %d; kill -9 -$$ ) & _sk_w=$!; `,
		scriptTime, linger)
	if strings.Contains(readScript, "head -n") || len(a.input) > 0 {
		b.WriteString(`stty -echo || _sk_end no-stty; _sk_m ready; `)
	}
	b.WriteString(readScript)
	stdin, redirect := "", " </dev/null"
	if len(a.input) > 0 {
		text := encodedInput(a.input)
		b.WriteString(`case $(command -v printf) in (/*) _sk_end no-printf;; esac; `)
		b.WriteString(readTyped("_sk_i", lineCount(text), text))
		stdin, redirect = feedInput, ""
	}
	b.WriteString(runScript(stdin, redirect, a.limits))
	b.WriteString(`kill $_sk_w; _sk_end $_sk_r'`)
	return b.String()
}

// runScript prints a script's stdout between its begin and its trailer, whose word it
// leaves.
func runScript(stdin, redirect string, limits Limits) string {
	return fmt.Sprintf(`_sk_m begin; _sk_r=$( { { %s/bin/sh -c "$_sk_c"%s 3>&- 4>&-; printf %%s $? >&4; }`, stdin, redirect) +
		fmt.Sprintf(` | { head -c %d || printf x >&4; } | base64 >&3 || printf x >&4; } 4>&1; ); `, limits.Stdout+1) +
		`case $_sk_r in (""|*[!0-9]*) _sk_r=lost;; esac; `
}

// feedInput decodes the input into the script's stdin. A script need not read all
// of it, so 141 (SIGPIPE) and 1 (the same where SIGPIPE is ignored) are no failure.
const feedInput = `printf %s "$_sk_i" | { base64 -d; case $? in (0|1|141) ;; (*) printf x >&4;; esac; } | `

func lineCount(text string) int { return (len(text) + typedLine - 1) / typedLine }

// lines cuts text into lines of at most typedLine characters, newline included.
func lines(text string) [][]byte {
	out := make([][]byte, 0, lineCount(text))
	for len(text) > typedLine {
		out = append(out, []byte(text[:typedLine]+"\n"))
		text = text[typedLine:]
	}
	if text != "" {
		out = append(out, []byte(text+"\n"))
	}
	return out
}
