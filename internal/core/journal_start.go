package core

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// JournalStart describes the agent that a start script begins. Exactly one of
// Argv and Shell is given.
type JournalStart struct {
	Run   RunID
	Nonce string   // as [NewJournalNonce] makes it
	Argv  []string // the agent's words, run without a shell
	Shell string   // or text for sh -c
	Dir   string   // absolute working directory; empty: the container's
	// Input says that the script's own stdin, exactly InputBytes long, is the agent's
	// stdin. Otherwise the agent reads from /dev/null.
	Input      bool
	InputBytes int64
	// Env is added to the agent's environment. Its values are secrets: they travel with
	// the input, never in the script. Side goes on beside the agent.
	Env  map[string]string
	Side *Side
}

// NeedsAgent reports whether only the sandbox's agent binary can begin it.
func (s JournalStart) NeedsAgent() bool { return len(s.Env) > 0 || s.Side.NeedsAgent() }

// private reports whether what s says must not stand in a script.
func (s JournalStart) private() bool { return len(s.Env) > 0 || s.Side != nil }

// JournalStarted is the answer of a start script.
type JournalStarted struct {
	// Already says that the run had been claimed in this sandbox before: nothing was
	// begun now, and whether the agent runs is for a probe to find out.
	Already bool
	Wrapper JournalWrapper
}

// StartScript composes the script that begins the agent under a wrapper. The
// wrapper is detached in its own session, appends the agent's stdout to the
// journal, its stderr to the sidecar, and when the agent ended writes a newline
// and the sentinel. The start marker is taken first, so a second script for the
// same run only reports. The agent runs as the user of the container's main
// process, with its environment and [JournalRunVariable]; the journal stays the
// session's user's, so that an agent of another user cannot open it anew and cut
// it. The answer is read by [ParseStart].
func (f JournalFormat) StartScript(s JournalStart) (string, error) {
	vars, err := f.shellVars(s.Run, s.Nonce)
	if err != nil {
		return "", err
	}
	if err := s.check(); err != nil {
		return "", fmt.Errorf("compose start script for run %s: %w", s.Run, err)
	}
	if s.NeedsAgent() {
		return boundedScript(10, shellAnswer+"refuse "+ReasonAgentMissing+" configuration\n"), nil
	}
	input := int64(-1)
	if s.Input {
		input = s.InputBytes
	}
	agent := fmt.Sprintf("t=%s\n%s%s", quoteShell(mark(f.mustToken(s.Run), s.Nonce)), agentBody, s.launch())
	wrapper := vars + "agent=" + quoteShell(agent) + "\n" + shellWrapper + shellBecome + wrapperBody + f.close()
	body := vars + fmt.Sprintf("input=%d\n", input) + shellAnswer + shellWrapper + shellBecome +
		"wrapper=" + quoteShell(wrapper) + "\n" + startBody
	return boundedScript(40, body), nil
}

func (s JournalStart) check() error {
	switch {
	case s.Nonce == "":
		return errors.New("want a nonce")
	case (len(s.Argv) == 0) == (strings.TrimSpace(s.Shell) == ""):
		return errors.New("command: want either words or shell text")
	case strings.ContainsRune(strings.Join(s.Argv, "")+s.Shell+s.Dir, 0):
		return errors.New("command: want no NUL byte")
	case s.Dir != "" && !path.IsAbs(s.Dir):
		return fmt.Errorf("working directory %q: want an absolute path", s.Dir)
	case s.InputBytes < 0:
		return fmt.Errorf("input of %d bytes: want none or more", s.InputBytes)
	}
	// env would take such a first word as an option or an assignment.
	if len(s.Argv) > 0 && (s.Argv[0] == "" || s.Argv[0][0] == '-' || strings.Contains(s.Argv[0], "=")) {
		return fmt.Errorf("command %q: want a program's name or path", s.Argv[0])
	}
	return s.checkEnv()
}

// launch is how the agent's own shell becomes the agent.
func (s JournalStart) launch() string {
	words := s.Argv
	if len(words) == 0 {
		words = []string{"/bin/sh", "-c", s.Shell}
	}
	enter := `[ -z "$wd" ] || cd "$wd" 2>/dev/null || :` + "\n"
	if s.Dir != "" {
		enter = "cd " + quoteShell(s.Dir) + " || exit 126\n"
	}
	return enter + `exec env $clear "$@" "` + JournalRunVariable + `=$t" ` + quoteWords(words) + "\n"
}

func (f JournalFormat) mustToken(run RunID) string {
	token, err := f.Token(run)
	if err != nil {
		panic(err) // composing the variables has refused such a run already
	}
	return token
}

// checkEnv refuses what cannot be in an environment, and what is Sandkeeper's own.
func (s JournalStart) checkEnv() error {
	for name, value := range s.Env {
		switch {
		case !secretName.MatchString(name) || strings.HasPrefix(name, reserved):
			return fmt.Errorf("environment: want names of variables that do not begin with %s, got %.140q", reserved, name)
		case strings.ContainsRune(value, 0):
			return fmt.Errorf("environment: %s: want no NUL byte", name)
		}
	}
	return nil
}

// close is the end of the wrapper: one write, so that nothing can come between
// newline and sentinel.
func (f JournalFormat) close() string {
	return fmt.Sprintf(`printf '\n{"%s":%%d,"%s":"%%s"}\n' "$status" "$n"`+"\n", f.ExitKey, f.NonceKey)
}

// shellBecome finds out as whom the agent runs and how to become that. The main
// process' environment and working directory are readable only to its own user
// where the container lacks CAP_SYS_PTRACE, root included; its user and groups
// are readable to all.
const shellBecome = `whose() {
  init=${` + JournalInitVariable + `:-1} how=none u= g= gs= name=
  [ "$init" != self ] && [ "$(id -u)" = 0 ] || return 0
  while read -r key a b rest; do
    case $key in
    Uid:) u=$b ;;
    Gid:) g=$b ;;
    Groups:) gs="$a $b $rest" ;;
    esac
  done 2>/dev/null <"/proc/$init/status"
  case $u in ''|0|*[!0-9]*) u=; return 0 ;; esac
  gs=$(echo $gs | tr ' ' ',')
  while IFS=: read -r key x id rest; do
    if [ "$id" = "$u" ]; then name=$key; break; fi
  done 2>/dev/null </etc/passwd
  for how in setpriv su-exec gosu chroot su; do
    (become true) </dev/null >/dev/null 2>&1 && return 0
  done
  return 1
}
become() {
  case $how in
  none) exec "$@" ;;
  setpriv)
    if [ -n "$gs" ]; then exec setpriv "--reuid=$u" "--regid=$g" "--groups=$gs" -- "$@"; fi
    exec setpriv "--reuid=$u" "--regid=$g" --clear-groups -- "$@" ;;
  su-exec|gosu) exec "$how" "$u:$g" "$@" ;;
  chroot) exec chroot "--userspec=$u:$g" "--groups=$gs" / "$@" ;;
  su)
    [ -n "$name" ] || return 1
    line=
    for word; do
      word=$(printf '%sx' "$word" | sed "s/'/'\\\\''/g")
      line="$line '${word%x}'"
    done
    exec su -p -s /bin/sh "$name" -c "exec$line" ;;
  esac
}
`

// startBody begins the wrapper. Nothing is marked before everything that can be
// checked was checked: a marked run is never begun again.
const startBody = `report() { wrapper; answer "result=$1 wrapper=$w"; finish; }
mask=$(umask)
umask 077
case $d in /*) ;; *) refuse directory-not-absolute configuration ;; esac
wrapper
if [ -d "$m" ] || [ $w = alive ]; then report already; fi
mkdir -p "$d" 2>/dev/null
[ -d "$d" ] && [ -w "$d" ] || refuse directory-unwritable configuration
for file in "$j" "$e"; do
  kind "$file"
  case $k in missing|regular) ;; *) refuse "journal-$k" configuration ;; esac
done
whose || refuse cannot-become-user configuration
in=$d/.$t.in.$$
if [ "$input" -ge 0 ]; then
  cat >"$in" 2>/dev/null || { rm -f "$in"; refuse input-unwritable; }
  if [ "$(($(wc -c <"$in")))" -ne "$input" ]; then rm -f "$in"; refuse input-incomplete; fi
fi
if ! mkdir "$m" 2>/dev/null; then
  rm -f "$in"
  [ -d "$m" ] || refuse marker-unwritable configuration
  report already
fi
if [ "$input" -ge 0 ]; then mv "$in" "$m/input"; fi
set -- sh -c "$wrapper" sandkeeper-run "$d" "$init" "$mask" "$how" "$u" "$g" "$gs" "$name"
if command -v setsid >/dev/null 2>&1; then
  setsid "$@" </dev/null >/dev/null 2>&1 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- &
else
  (trap '' HUP; exec "$@") </dev/null >/dev/null 2>&1 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- &
fi
tries=0
while [ ! -f "$m/wrapper" ] && [ $tries -lt 100 ]; do
  tries=$((tries + 1))
  sleep 0.05 2>/dev/null || { sleep 1; tries=$((tries + 19)); }
done
report started
`

// wrapperBody runs the agent and waits for it. The pid is left before the stop
// mark is looked for, and terminate sets the mark before it looks for the pid:
// whichever comes second sees the other, so that no agent begins unseen.
// Signals are caught rather than ignored, since the agent would inherit the latter.
const wrapperBody = `d=$1 init=$2 mask=$3 how=$4 u=$5 g=$6 gs=$7 name=$8
j=$d/${j##*/} e=$d/${e##*/} m=$d/${m##*/}
trap : HUP INT TERM
umask 077
exec >>"$j" 2>>"$e"
started $$
printf '%s %s\n%s\n' $$ "${st:-0}" "$how $u $g $name $gs" >"$m/wrapper.new" && mv "$m/wrapper.new" "$m/wrapper" || exit 1
[ ! -e "$m/stop" ] || exit 0
if [ -f "$m/input" ]; then
  exec <"$m/input"
  rm -f "$m/input"
fi
[ -z "$u" ] || chown "$u:$g" "$e"
(umask "$mask"; become sh -c "$agent" sandkeeper-agent "$init")
status=$?
printf '%s\n' "$(($(wc -c <"$j")))" >"$m/end"
`

// agentBody collects the environment and the working directory of the container's
// main process. Lines of the environment may hold newlines, which travel as \001.
// A main process without a PATH is an init that keeps the container's environment
// to itself; then the exec session's own has to do.
const agentBody = `init=$1 clear= wd= nl='
'
soh=$(printf '\001')
set --
if [ "$init" != self ] && [ -r "/proc/$init/environ" ] && all=$(tr '\000\n' '\n\001' 2>/dev/null <"/proc/$init/environ"); then
  case $nl$all in *"${nl}PATH="*)
    while IFS= read -r var; do
      case $var in *"$soh"*) var=$(printf '%sx' "$var" | tr '\001' '\n'); var=${var%x} ;; esac
      case $var in [!=]*=*) set -- "$@" "$var" ;; esac
    done <<END
$all
END
    clear=-i
    wd=$(readlink "/proc/$init/cwd" 2>/dev/null) ;;
  esac
fi
`

// ParseStart reads the stdout of a start script. A script that refused, or an
// answer that is not whole, is a *[JournalError]; the agent may have begun all the
// same, and asking again tells.
func ParseStart(out []byte) (JournalStarted, error) {
	a, err := parseAnswer("start", out)
	if err != nil {
		return JournalStarted{}, err
	}
	w, err := a.wrapper()
	if err != nil {
		return JournalStarted{}, err
	}
	result := a.fields["result"]
	if result != "started" && result != "already" {
		return JournalStarted{}, incomplete("start")
	}
	return JournalStarted{Already: result == "already", Wrapper: w}, a.done()
}
