package core

import (
	"errors"
	"fmt"
	"slices"
)

// Sizes of what probes and pages carry, in bytes.
const (
	// JournalTail is how much of the end of a journal and of its sidecar is read.
	JournalTail = 4096
	// JournalOverlap is how much of what the log already has comes along, so that a
	// journal that was rewritten is seen.
	JournalOverlap = 64
	// JournalRest is the most of the unread journal that a probe carries.
	JournalRest = 64 << 10
	// MaxJournalPage is the largest page.
	MaxJournalPage = 1 << 20
)

// JournalState is what a probe says of the agent. The zero value is unknown and
// never leads to anything.
type JournalState string

// The states of an agent as its journal tells them.
const (
	JournalUnknown   JournalState = ""
	JournalProducing JournalState = "producing" // also: about to start, or died without a sentinel
	JournalFinished  JournalState = "finished"
)

// JournalWrapper is what became of the process that runs the agent.
type JournalWrapper string

// The fates of a wrapper. WrapperUnknown, the zero value, means that the sandbox
// cannot tell: it has no /proc.
const (
	WrapperUnknown JournalWrapper = ""
	WrapperAlive   JournalWrapper = "alive"
	WrapperGone    JournalWrapper = "gone"   // it left its pid, and that process is no more
	WrapperAbsent  JournalWrapper = "absent" // it never left a pid
)

// JournalProbe is one answer of a probe script. Everything in it is of one
// moment: Size was taken first and nothing beyond it was read.
type JournalProbe struct {
	State JournalState
	Exit  int // of a finished agent

	// Why State is unknown; empty otherwise.
	Reason  string
	Healing Healing

	Present   bool   // the journal exists
	Size      int64  // bytes of the journal
	Inode     int64  // tells a replaced journal from a grown one
	ChangedAt Millis // newest change of journal and sidecar, whole seconds; 0 where the sandbox cannot tell
	Marker    bool   // the start marker exists
	Wrapper   JournalWrapper

	TailFrom int64  // position of the tail in the journal
	Tail     []byte // its end, or the place of the sentinel, at most JournalTail bytes
	Stderr   []byte // end of the sidecar, at most JournalTail bytes; only with a sentinel

	// Rest is the journal from RestFrom to Size: from JournalOverlap bytes before the
	// position asked about, provided that at most JournalRest bytes follow it.
	HasRest  bool
	RestFrom int64
	Rest     []byte
}

// Page gives what the probe carried of the unread journal; false if it was too
// much to carry.
func (p JournalProbe) Page() (JournalPage, bool) {
	if !p.HasRest {
		return JournalPage{}, false
	}
	return JournalPage{Present: p.Present, Size: p.Size, Inode: p.Inode, From: p.RestFrom, Bytes: p.Rest}, true
}

// Dead tells that the sandbox shows no process of this run that could still write
// a sentinel. Once is not enough: a wrapper that was claimed a moment ago has no
// pid yet.
func (p JournalProbe) Dead() bool {
	return p.State == JournalProducing && (p.Wrapper == WrapperGone || p.Wrapper == WrapperAbsent)
}

// ProbeScript composes the script that asks whether the agent of run has ended.
// logEnd is how many bytes of the journal the log already has. The answer is read
// by [JournalFormat.ParseProbe].
func (f JournalFormat) ProbeScript(run RunID, nonce string, logEnd int64) (string, error) {
	vars, err := f.shellVars(run, nonce)
	if err != nil {
		return "", err
	}
	if nonce == "" {
		return "", fmt.Errorf("compose probe script for run %s: want a nonce", run)
	}
	if err := checkPosition("log end", logEnd); err != nil {
		return "", err
	}
	sizes := fmt.Sprintf("end=%d max=%d over=%d rmax=%d\n", logEnd, JournalTail, JournalOverlap, JournalRest)
	return boundedScript(20, vars+sizes+shellLocale+shellAnswer+shellWrapper+probeBody), nil
}

// The position that the wrapper left is where it was about to write its sentinel:
// there it is found even if something that the agent left behind wrote on.
const probeBody = `look
present=0 newest=$mtime
[ $k = missing ] || present=1
jsize=$size jinode=$inode
number "$m/end"
from=$((jsize > max ? jsize - max : 0))
if [ -f "$m/end" ] && [ "$v" -lt "$jsize" ]; then from=$v; fi
tail=$((jsize - from > max ? max : jsize - from))
efrom=0 esize=0
if [ $present = 1 ]; then
  kind "$e"
  if [ $k = regular ]; then
    facts "$e"
    if [ "$mtime" -gt "$newest" ]; then newest=$mtime; fi
    if section "$j" $from $tail | grep -q -F -e "$n"; then
      efrom=$((size > max ? size - max : 0))
      esize=$((size - efrom))
    fi
  fi
fi
has=0 rfrom=0 rest=0
if [ $((jsize - end)) -le $rmax ]; then
  has=1 rfrom=$((end > over ? end - over : 0))
  rest=$((jsize > rfrom ? jsize - rfrom : 0))
fi
marker=0
[ ! -d "$m" ] || marker=1
wrapper
answer "present=$present size=$jsize inode=$jinode changed=$newest marker=$marker wrapper=$w from=$from tail=$tail stderr=$esize has=$has rfrom=$rfrom rest=$rest"
section "$j" $from $tail
section "$e" $efrom $esize
section "$j" $rfrom $rest
finish
`

// ParseProbe reads the stdout of a probe script. What is not a whole answer is
// unknown, with a reason.
func (f JournalFormat) ParseProbe(nonce string, out []byte) JournalProbe {
	p, err := parseProbe(out)
	if err != nil {
		return unknownProbe(err)
	}
	exit, ok := f.LastExit(nonce, p.Tail)
	if !ok {
		p.State, p.Stderr = JournalProducing, nil
		return p
	}
	p.State, p.Exit = JournalFinished, exit
	return p
}

func parseProbe(out []byte) (JournalProbe, error) {
	a, err := parseAnswer("probe", out)
	if err != nil {
		return JournalProbe{}, err
	}
	var p JournalProbe
	var changed int64
	if err := a.numbers(map[string]*int64{
		"size": &p.Size, "inode": &p.Inode, "changed": &changed, "from": &p.TailFrom, "rfrom": &p.RestFrom,
	}); err != nil {
		return JournalProbe{}, err
	}
	p.ChangedAt = Millis(changed * 1000)
	p.Present, p.Marker, p.HasRest = a.fields["present"] == "1", a.fields["marker"] == "1", a.fields["has"] == "1"
	if p.Wrapper, err = a.wrapper(); err != nil {
		return JournalProbe{}, err
	}
	for _, s := range []struct {
		key  string
		into *[]byte
	}{{"tail", &p.Tail}, {"stderr", &p.Stderr}, {"rest", &p.Rest}} {
		if *s.into, err = a.section(s.key); err != nil {
			return JournalProbe{}, err
		}
	}
	if !p.consistent() {
		return JournalProbe{}, incomplete("probe")
	}
	return p, a.done()
}

func (p JournalProbe) consistent() bool {
	if p.TailFrom+int64(len(p.Tail)) > p.Size || len(p.Tail) > JournalTail || len(p.Stderr) > JournalTail {
		return false
	}
	if !p.Present && p.Size != 0 {
		return false
	}
	return !p.HasRest || len(p.Rest) == 0 || p.RestFrom+int64(len(p.Rest)) == p.Size
}

func unknownProbe(err error) JournalProbe {
	if e, ok := errors.AsType[*JournalError](err); ok {
		return JournalProbe{Reason: e.Reason, Healing: e.Healing}
	}
	return JournalProbe{Reason: "answer-incomplete", Healing: Retry}
}

func (a *journalAnswer) numbers(into map[string]*int64) error {
	for key, n := range into {
		var err error
		if *n, err = a.number(key); err != nil {
			return err
		}
	}
	return nil
}

func (a *journalAnswer) wrapper() (JournalWrapper, error) {
	text := a.fields["wrapper"]
	if text == "unknown" {
		return WrapperUnknown, nil
	}
	w := JournalWrapper(text)
	if !slices.Contains([]JournalWrapper{WrapperAlive, WrapperGone, WrapperAbsent}, w) {
		return "", incomplete(a.op)
	}
	return w, nil
}
