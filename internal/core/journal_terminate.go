package core

import (
	"fmt"
	"time"
)

// JournalTerminated is the answer of a terminate script.
type JournalTerminated struct {
	// Prevented says that no agent had begun and none can begin any more.
	Prevented bool
	// Sentinel says that the journal has its sentinel, so its exit status is known.
	Sentinel bool
	Signaled int64 // processes that got SIGTERM
	Killed   int64 // processes that got SIGKILL, the wrapper included
	Left     int64 // processes of the run that live in spite of it
}

// TerminateScript composes the script that ends run's agent for good. It takes the
// start marker, so that an agent which has not begun never begins; sends SIGTERM
// to the agent and all its descendants, those in sessions of their own included;
// waits at most grace, whole seconds, for the sentinel; and then kills what is
// left of the run, the wrapper first, so that a killed agent has no exit status.
// Running it again does no harm. The answer is read by [ParseTerminate].
func (f JournalFormat) TerminateScript(run RunID, nonce string, grace time.Duration) (string, error) {
	vars, err := f.shellVars(run, nonce)
	if err != nil {
		return "", err
	}
	if nonce == "" || grace < 0 || grace > time.Hour {
		return "", fmt.Errorf("compose terminate script for run %s: want a nonce and a grace of 0 to 1h", run)
	}
	seconds := int(grace.Seconds())
	body := vars + fmt.Sprintf("grace=%d max=%d\n", seconds, JournalTail) + shellLocale + shellAnswer + shellWrapper + shellBecome +
		"marked=" + quoteShell(markedBody) + "\n" + shellFamily + terminateBody
	return boundedScript(seconds+30, body), nil
}

// markedBody lists the processes whose environment names the run $1.
const markedBody = `mark=` + JournalRunVariable + `=$1
if printf 'a\0b\0' | grep -q -z -F -x -e b 2>/dev/null; then
  grep -l -z -F -x -e "$mark" /proc/[0-9]*/environ 2>/dev/null | sed 's,^/proc/,,;s,/.*,,'
else
  for p in /proc/[0-9]*; do
    if tr '\000' '\n' 2>/dev/null <"$p/environ" | grep -q -F -x -e "$mark"; then echo "${p#/proc/}"; fi
  done
fi
:
`

// shellFamily finds all processes of the run: those marked in their environment
// (asked as the agent's user too, since root may not look into other users'
// processes without CAP_SYS_PTRACE), those in the wrapper's session, and whatever
// descends from any of them. family leaves them in fam, the wrapper left out.
const shellFamily = `processes() {
  table=
  for p in /proc/[0-9]*; do
    p=${p#/proc/} life= parent= session=
    while read -r key a rest; do
      case $key in
      State:) life=$a ;;
      PPid:) parent=$a ;;
      NSsid:) session=$a; break ;;
      esac
    done 2>/dev/null <"/proc/$p/status"
    case $life in ''|Z|X) ;; *) table="$table $p:$parent:$session" ;; esac
  done
}
family() {
  processes
  set=" $wpid $(sh -c "$marked" marked "$tag" | tr '\n' ' ')"
  if [ "$how" != none ]; then set="$set $( (become sh -c "$marked" marked "$tag") 2>/dev/null | tr '\n' ' ') "; fi
  fam= more=1
  while [ -n "$more" ]; do
    more=
    for row in $table; do
      p=${row%%:*} row=${row#*:}
      case $p in 1|$$|"$wpid") continue ;; esac
      case " $fam " in *" $p "*) continue ;; esac
      case $set in
      *" $p "*|*" ${row%:*} "*) ;;
      *) [ -n "$wsid" ] && [ "${row#*:}" = "$wsid" ] || continue ;;
      esac
      fam="$fam $p" set="$set $p " more=1
    done
  done
}
`

// terminateBody counts its waits, for a container's clock may jump, and sets the stop mark before it looks for the wrapper; see
// wrapperBody. A session outlives its leader, so the dead wrapper's session still
// tells, unless its pid went to another process.
const terminateBody = `umask 077
signaled=0 killed=0 left=0
report() {
  sealed=0
  sentinel && sealed=1
  answer "result=$1 sentinel=$sealed signaled=$signaled killed=$killed left=$left"
  finish
}
sentinel() {
  kind "$j"
  [ $k = regular ] || return 1
  facts "$j"
  from=$((size > max ? size - max : 0))
  number "$m/end"
  if [ -f "$m/end" ] && [ "$v" -lt "$size" ]; then from=$v; fi
  section "$j" $from $max | grep -q -F -e "$n"
}
waited=0
nap() {
  if sleep 0.1 2>/dev/null; then waited=$((waited + 1)); else sleep 1; waited=$((waited + 10)); fi
}
mkdir -p "$d" 2>/dev/null
mkdir "$m" 2>/dev/null || [ -d "$m" ] || refuse marker-unwritable configuration
kind "$m/stop"
case $k in missing|regular) ;; *) refuse marker-unwritable configuration ;; esac
: 2>/dev/null >"$m/stop" || refuse marker-unwritable configuration
[ -f "$m/stop" ] || refuse marker-unwritable configuration
wrapper
if [ $w = absent ]; then report prevented; fi
[ $w != unknown ] || refuse no-proc configuration
whose || how=none
wsid=
if [ $w = alive ] || [ ! -d "/proc/$wpid" ]; then wsid=$wpid; fi
[ $w = alive ] || wpid=
told=" "
while :; do
  family
  for p in $fam; do
    case $told in *" $p "*) continue ;; esac
    told="$told$p "
    kill -TERM "$p" 2>/dev/null && signaled=$((signaled + 1))
    kill -CONT "$p" 2>/dev/null
  done
  if sentinel; then break; fi
  if [ -z "$fam" ]; then wrapper; [ $w = alive ] || break; fi
  [ $waited -lt $((grace * 10)) ] || break
  nap
done
rounds=0
while [ $rounds -lt 20 ]; do
  family
  wrapper
  if [ $w = alive ] && ! sentinel; then fam="$wpid $fam"; fi
  [ -n "$fam" ] || break
  for p in $fam; do kill -KILL "$p" 2>/dev/null && killed=$((killed + 1)); done
  rounds=$((rounds + 1))
  nap
done
family
for p in $fam; do left=$((left + 1)); done
report ended
`

// ParseTerminate reads the stdout of a terminate script. A script that refused, or
// an answer that is not whole, is a *[JournalError].
func ParseTerminate(out []byte) (JournalTerminated, error) {
	a, err := parseAnswer("terminate", out)
	if err != nil {
		return JournalTerminated{}, err
	}
	var t JournalTerminated
	if err := a.numbers(map[string]*int64{"signaled": &t.Signaled, "killed": &t.Killed, "left": &t.Left}); err != nil {
		return JournalTerminated{}, err
	}
	switch a.fields["result"] {
	case "prevented":
		t.Prevented = true
	case "ended":
	default:
		return JournalTerminated{}, incomplete("terminate")
	}
	t.Sentinel = a.fields["sentinel"] == "1"
	return t, a.done()
}
