package core

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// JournalError says why a journal script could not do what it was sent for, or
// that its answer is not whole. It says nothing about the agent.
type JournalError struct {
	Op      string  // start, probe, page, terminate, list
	Healing Healing // whether asking again may help
	Reason  string  // short, fixed, lower-case with hyphens
}

func (e *JournalError) Error() string {
	return fmt.Sprintf("%s journal: %s (%s)", e.Op, e.Reason, e.Healing)
}

// quoteShell makes text one word of a POSIX shell, whatever it holds.
func quoteShell(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// quoteWords makes each of args one word of a POSIX shell.
func quoteWords(args []string) string {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = quoteShell(arg)
	}
	return strings.Join(words, " ")
}

var journalNonce = regexp.MustCompile(`^[0-9a-fA-F]{16,128}$`)

// mark is what the environment of a run's processes carries. The token alone would
// be another run's too where sandboxes share one process table, two tenants' or two
// installations' say; the nonce is not told by its hash.
func mark(token, nonce string) string {
	sum := sha256.Sum256([]byte(nonce))
	return token + "." + hex.EncodeToString(sum[:8])
}

// shellVars are the assignments every script of a run begins with: t the token, tag
// the mark, n the nonce, d the directory, j the journal, e the sidecar, m the start marker.
func (f JournalFormat) shellVars(run RunID, nonce string) (string, error) {
	token, err := f.Token(run)
	if err != nil {
		return "", err
	}
	if nonce != "" && !journalNonce.MatchString(nonce) {
		return "", errors.New("compose journal script: nonce: want 16 to 128 hex digits")
	}
	return fmt.Sprintf("t=%s\ntag=%s\nn=%s\n%s%s", quoteShell(token), quoteShell(mark(token, nonce)), quoteShell(nonce),
		f.shellDir(), f.shellFiles()), nil
}

func (f JournalFormat) shellDir() string {
	return fmt.Sprintf("d=${%s-}\n[ -n \"$d\" ] || d=%s\ncase $d in ?*/) d=${d%%/} ;; esac\n",
		JournalDirVariable, quoteShell(f.Dir))
}

func (f JournalFormat) shellFiles() string {
	return fmt.Sprintf("j=$d/$t%s e=$d/$t%s m=$d/$t%s g=$d/$t%s\n", f.Ext, f.ErrExt, f.marker(), f.files())
}

// files is the extension of the side journal, also for formats that do not decode it.
func (f JournalFormat) files() string {
	if f.FilesExt == "" {
		return DefaultJournal.FilesExt
	}
	return f.FilesExt
}

// marker is the extension of the start marker, also for formats that do not
// decode it.
func (f JournalFormat) marker() string {
	if f.MarkerExt == "" {
		return DefaultJournal.MarkerExt
	}
	return f.MarkerExt
}

// boundedScript runs body in a shell of its own that is killed after so many
// seconds. A client that went away ends nothing, so the bound is inside. BusyBox'
// timeout is passed over: its watcher keeps stdout open for up to a second.
func boundedScript(seconds int, body string) string {
	return "b=" + quoteShell(body) + "\ns=" + strconv.Itoa(seconds) + `
if timeout --version >/dev/null 2>&1; then exec timeout -s KILL "$s" sh -c "$b"; fi
exec 3<&0
sh -c "$b" <&3 3<&- &
p=$!
( trap 'kill $z; exit' TERM; sleep "$s" & z=$!; wait $z; kill -KILL $p ) </dev/null >/dev/null 2>&1 3<&- &
w=$!
wait $p
r=$?
kill $w 2>/dev/null
exit $r
`
}

// Every framed answer is one header line of key=value words, then raw sections
// whose lengths the header gives, then the trailer. Nothing else is an answer.
const (
	answerMagic   = "sandkeeper-journal/1"
	answerTrailer = "\n" + answerMagic + " end\n"
	maxHeader     = 1024
)

// shellLocale makes lengths bytes and tools speak one language. A start script has
// to do without, since the agent inherits its environment.
const shellLocale = "LC_ALL=C\nexport LC_ALL\n"

// shellAnswer are the functions with which scripts look at files and answer. Files
// that hold a few words are read by their begin alone: a shell's own read would take
// a long line byte by byte.
const shellAnswer = `answer() { printf '` + answerMagic + ` %s\n' "$*"; }
finish() { printf '\n` + answerMagic + ` end\n'; exit 0; }
refuse() { answer "refused=$1 healing=${2-retry}"; finish; }
kind() {
  if [ -L "$1" ]; then k=symlink
  elif [ -d "$1" ]; then k=directory
  elif [ ! -e "$1" ]; then k=missing
  elif [ ! -f "$1" ]; then k=special
  elif [ ! -r "$1" ]; then k=unreadable
  else k=regular; fi
}
facts() {
  set -- "$1" $(stat -c '%s %i %Y' "$1" 2>/dev/null)
  [ $# -eq 4 ] || { set -- "$1" $(ls -lin "$1" 2>/dev/null); set -- "$1" "${7-}" "${2-}" 0; }
  size=$2 inode=$3 mtime=$4
  case $size$inode$mtime in ''|*[!0-9]*) refuse stat-failed ;; esac
}
section() { [ "$3" -eq 0 ] || tail -c "+$(($2 + 1))" "$1" 2>/dev/null | head -c "$3"; }
words() {
  set -f
  set -- $(head -c 64 "$1" 2>/dev/null)
  set +f
  word=${1-} next=${2-}
}
number() {
  v=0
  if [ -f "$1" ] && [ ! -L "$1" ]; then words "$1"; v=$word; fi
  case $v in ''|*[!0-9]*|????????????????*) v=0 ;; esac
}
look() {
  head -c 1 </dev/null >/dev/null 2>&1 || refuse no-head configuration
  if [ -e "$d" ] && { [ ! -d "$d" ] || [ ! -x "$d" ]; }; then refuse directory-unreadable configuration; fi
  size=0 inode=0 mtime=0
  kind "$j"
  case $k in
  missing) ;;
  regular) facts "$j" ;;
  *) refuse "journal-$k" configuration ;;
  esac
}
`

// shellWrapper looks for a run's wrapper: w becomes alive, gone, absent (it never
// left a pid) or unknown, and wpid its process id. A zombie is gone: an init that
// does not reap keeps it for ever. Where no pid was left it is looked for by its
// words, which all users can read: an agent that cleans up /tmp takes the run's files
// with it, and works on. Neither a script's own words nor those of a setsid that is to
// become the wrapper are of that form.
const shellWrapper = `started() {
  st=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  set -- ${st##*) }
  case $1 in Z|X) return 1 ;; esac
  shift 19
  st=$1
}
seek() {
  for p in $(grep -l -F -e "$tag" /proc/[0-9]*/cmdline 2>/dev/null); do
    case $(tr '\000' '\n' 2>/dev/null <"$p") in "sh$nl-c$nl"*"${nl}sandkeeper-run$nl"*|"` + WrapperName + `${nl}` + WrapperCommand + `${nl}$tag"*) ;; *) continue ;; esac
    p=${p#/proc/} p=${p%/cmdline}
    if started "$p"; then w=alive wpid=$p wst=$st; return; fi
  done
}
nl='
'
wrapper() {
  w=absent wpid= wst=
  if [ ! -f "$m/wrapper" ] || [ -L "$m/wrapper" ]; then seek; return; fi
  words "$m/wrapper"
  wpid=$word wst=$next
  case $wpid in ''|*[!0-9]*) wpid=; return ;; esac
  w=unknown
  [ -r /proc/self/stat ] || return
  w=gone
  if started "$wpid" && [ "$st" = "$wst" ]; then w=alive; fi
}
`

// journalAnswer is a framed answer taken apart.
type journalAnswer struct {
	op     string
	fields map[string]string
	rest   []byte
}

var headerWord = regexp.MustCompile(`^[a-zA-Z]+=[0-9a-z-]*$`)

// parseAnswer takes a framed answer apart as far as the sections, and returns a
// *[JournalError] when it is not whole or when the script refused.
func parseAnswer(op string, out []byte) (*journalAnswer, error) {
	body, ok := bytes.CutSuffix(out, []byte(answerTrailer))
	header, rest, _ := bytes.Cut(body, []byte("\n"))
	if !ok || len(header) > maxHeader {
		return nil, incomplete(op)
	}
	if !bytes.Contains(body, []byte("\n")) {
		return nil, incomplete(op)
	}
	words := strings.Split(string(header), " ")
	if words[0] != answerMagic {
		return nil, incomplete(op)
	}
	a := &journalAnswer{op: op, fields: map[string]string{}, rest: rest}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		if _, again := a.fields[key]; again || !headerWord.MatchString(word) {
			return nil, incomplete(op)
		}
		a.fields[key] = value
	}
	return a, a.refusal()
}

func incomplete(op string) error {
	return &JournalError{Op: op, Healing: Retry, Reason: "answer-incomplete"}
}

func (a *journalAnswer) refusal() error {
	reason, refused := a.fields["refused"]
	if !refused {
		return nil
	}
	healing := Healing(a.fields["healing"])
	if healing != Configuration {
		healing = Retry
	}
	return &JournalError{Op: a.op, Healing: healing, Reason: reason}
}

// number reads a field that must be a whole number from 0 to 2^53-1.
func (a *journalAnswer) number(key string) (int64, error) {
	n, err := strconv.ParseInt(a.fields[key], 10, 64)
	if err != nil || n < 0 || n > maxPosition {
		return 0, incomplete(a.op)
	}
	return n, nil
}

// section takes the next section off, whose length a field gives.
func (a *journalAnswer) section(key string) ([]byte, error) {
	n, err := a.number(key)
	if err != nil {
		return nil, err
	}
	if n > int64(len(a.rest)) {
		return nil, incomplete(a.op)
	}
	piece := a.rest[:n:n]
	a.rest = a.rest[n:]
	return piece, nil
}

// done checks that no bytes are left over.
func (a *journalAnswer) done() error {
	if len(a.rest) != 0 {
		return incomplete(a.op)
	}
	return nil
}

// maxPosition is the last byte position that every reader of the record, in any
// language, can hold exactly.
const maxPosition = 1<<53 - 1

func checkPosition(what string, at int64) error {
	if at < 0 || at > maxPosition {
		return fmt.Errorf("compose journal script: %s %d: want 0 to %d", what, at, int64(maxPosition))
	}
	return nil
}
