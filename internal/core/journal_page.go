package core

import (
	"bytes"
	"cmp"
	"fmt"
	"time"
)

// JournalPage is a piece of a journal. Bytes begin at From, which lies
// [JournalOverlap] bytes before the position asked for, or at 0.
type JournalPage struct {
	Present bool
	Size    int64 // of the whole journal when the page was taken
	Inode   int64
	From    int64
	Bytes   []byte
	Stderr  []byte // end of the sidecar, at most JournalTail bytes; only of a page that reaches the journal's end
}

// PageScript composes the script that reads run's journal from the byte position
// from on, at most max bytes (0: [MaxJournalPage]), and JournalOverlap bytes
// before it. The answer is read by [ParsePage].
func (f JournalFormat) PageScript(run RunID, from int64, max int) (string, error) {
	return f.pageScript(pageQuery{run: run, from: from, max: max})
}

// FilesScript composes the page script of run's side journal, which tells what changed in
// the workspace. It has no stderr beside it.
func (f JournalFormat) FilesScript(run RunID, from int64, max int, wait PageWait) (string, error) {
	return f.pageScript(pageQuery{run: run, from: from, max: max, wait: wait, file: "j=$g e=$g.none\n"})
}

// PageWait has a page script wait for the journal to be longer than Beyond, whole seconds,
// and tell the sandbox that somebody follows the journal.
type PageWait struct {
	For    time.Duration
	Beyond int64
	Follow bool
}

// FollowMark is the file in a run's start marker that is touched by who follows its
// journal: what copies that to the spool does so at once for a while.
const FollowMark = "follow"

// WaitingPageScript composes a page script that waits first.
func (f JournalFormat) WaitingPageScript(run RunID, from int64, max int, wait PageWait) (string, error) {
	return f.pageScript(pageQuery{run: run, from: from, max: max, wait: wait})
}

// pageQuery is what a page script asks for.
type pageQuery struct {
	run  RunID
	from int64
	max  int
	wait PageWait
	file string // names another file than the journal, in the shell's variables
}

func (q pageQuery) check() error {
	if err := checkPosition("page begin", q.from); err != nil {
		return err
	}
	if q.max < 0 || q.max > MaxJournalPage {
		return fmt.Errorf("compose page script for run %s: page of %d bytes: want 0 to %d", q.run, q.max, MaxJournalPage)
	}
	if err := checkPosition("wait beyond", q.wait.Beyond); err != nil || q.wait.For < 0 || q.wait.For > MaxPageWait {
		return fmt.Errorf("compose page script for run %s: wait of %s beyond %d: want 0 to %s, and a position", q.run, q.wait.For, q.wait.Beyond, MaxPageWait)
	}
	return nil
}

func (f JournalFormat) pageScript(q pageQuery) (string, error) {
	vars, err := f.shellVars(q.run, "")
	if err != nil {
		return "", err
	}
	if err := q.check(); err != nil {
		return "", err
	}
	begin, seconds := q.from-min(q.from, JournalOverlap), int(q.wait.For.Seconds())
	most := q.from - begin + int64(cmp.Or(q.max, MaxJournalPage))
	sizes := fmt.Sprintf("begin=%d max=%d emax=%d wait=%d beyond=%d\n", begin, most, JournalTail, 2*seconds, q.wait.Beyond)
	if q.wait.Follow {
		sizes += `if [ -d "$m" ] && [ ! -L "$m" ]; then rm -f "$m/` + FollowMark + `" && : >"$m/` + FollowMark + `"; fi 2>/dev/null` + "\n"
	}
	return boundedScript(30+seconds, vars+q.file+sizes+shellLocale+shellAnswer+pageBody), nil
}

const pageBody = `look
waited=0
while [ $waited -lt $wait ] && [ $size -le $beyond ]; do
  if sleep 0.5 2>/dev/null; then waited=$((waited + 1)); else sleep 1; waited=$((waited + 2)); fi
  look
done
present=0
[ $k = missing ] || present=1
bytes=$((size > begin ? size - begin : 0))
bytes=$((bytes > max ? max : bytes))
jsize=$size jinode=$inode efrom=0 esize=0
if [ $((begin + bytes)) -ge $jsize ]; then
  kind "$e"
  if [ $k = regular ]; then
    facts "$e"
    efrom=$((size > emax ? size - emax : 0))
    esize=$((size - efrom))
  fi
fi
answer "present=$present size=$jsize inode=$jinode from=$begin bytes=$bytes stderr=$esize"
section "$j" $begin $bytes
section "$e" $efrom $esize
finish
`

// ParsePage reads the stdout of a page script. An answer that is not whole is a
// *[JournalError].
func ParsePage(out []byte) (JournalPage, error) {
	a, err := parseAnswer("page", out)
	if err != nil {
		return JournalPage{}, err
	}
	var p JournalPage
	if err := a.numbers(map[string]*int64{"size": &p.Size, "inode": &p.Inode, "from": &p.From}); err != nil {
		return JournalPage{}, err
	}
	p.Present = a.fields["present"] == "1"
	if p.Bytes, err = a.section("bytes"); err != nil {
		return JournalPage{}, err
	}
	if p.Stderr, err = a.section("stderr"); err != nil {
		return JournalPage{}, err
	}
	if len(p.Bytes) > 0 && p.From+int64(len(p.Bytes)) > p.Size || !p.Present && p.Size != 0 {
		return JournalPage{}, incomplete("page")
	}
	return p, a.done()
}

// After gives the bytes from the position at on, where the log ends. last is the
// end of what the log already has, as much as is at hand. It answers false if the
// journal does not go on from there: it was cut, replaced or rewritten.
func (p JournalPage) After(at int64, last []byte) ([]byte, bool) {
	if p.Size < at || at < p.From || at > p.From+int64(len(p.Bytes)) {
		return nil, false
	}
	known, fresh := p.Bytes[:at-p.From], p.Bytes[at-p.From:]
	n := min(len(known), len(last))
	return fresh, bytes.Equal(known[len(known)-n:], last[len(last)-n:])
}

// ToEnd tells whether the page reaches the end that the journal had.
func (p JournalPage) ToEnd() bool { return p.From+int64(len(p.Bytes)) >= p.Size }

// JournalEdge says what lies behind the last byte of a piece of a journal.
type JournalEdge int

// The edges.
const (
	EdgeMore  JournalEdge = iota // the journal goes on
	EdgeEnd                      // it ends here as far as was seen, and may grow
	EdgeFinal                    // it ends here, and nothing will be written any more
)

// JournalCut says how much of a piece of a journal is the agent's output.
type JournalCut struct {
	Append int  // so many bytes may be appended to the log now
	Sealed bool // the sentinel follows them: the output is whole
	Exit   int  // of a sealed journal
}

// Cut finds the agent's output in piece, which begins where the log ends. The
// output ends before the newline that the wrapper puts in front of its sentinel.
// What may be the beginning of that newline and sentinel is held back until more
// is known, at most [MaxSentinelLine] bytes and a newline, so that of a longer
// piece something is always appended or sealed. Cutting a journal into other
// pieces gives the same output, provided that the log grows by Cut alone.
func (f JournalFormat) Cut(nonce string, piece []byte, edge JournalEdge) JournalCut {
	// The log ends before a newline or within a line, so only what follows a newline
	// in this piece is a line from its beginning.
	newline := bytes.IndexByte(piece, '\n')
	for newline >= 0 {
		line := piece[newline+1:]
		end := bytes.IndexByte(line, '\n')
		if end < 0 {
			return f.cutLast(nonce, piece, newline, edge)
		}
		if exit, ok := f.ParseSentinel(nonce, line[:end]); ok {
			return JournalCut{Append: newline, Sealed: true, Exit: exit}
		}
		newline += 1 + end
	}
	return JournalCut{Append: len(piece)}
}

// cutLast decides about the line behind the last newline of piece.
func (f JournalFormat) cutLast(nonce string, piece []byte, newline int, edge JournalEdge) JournalCut {
	line := piece[newline+1:]
	// Without a newline a sentinel counts only where the journal ends: with more
	// behind it the line may turn out to be something else.
	if edge != EdgeMore {
		if exit, ok := f.ParseSentinel(nonce, line); ok {
			return JournalCut{Append: newline, Sealed: true, Exit: exit}
		}
	}
	if edge == EdgeFinal || !sentinelMayBegin(line) {
		return JournalCut{Append: len(piece)}
	}
	return JournalCut{Append: newline}
}

// sentinelMayBegin tells whether a line that is not at its end may still become a
// sentinel.
func sentinelMayBegin(line []byte) bool {
	text := bytes.TrimLeft(line, sentinelSpace)
	return len(line) <= MaxSentinelLine && (len(text) == 0 || text[0] == '{')
}
