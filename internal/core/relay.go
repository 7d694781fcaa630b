package core

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"time"
)

// RelayDir is where the agent of a step leaves its requests, if its sandbox has no route
// to the keeper's URL: a directory that only the token's holder and the keeper can name.
func RelayDir(tokenHash string) string {
	return "/tmp/.sandkeeper-" + tokenHash[:min(32, len(tokenHash))]
}

// RelayedRequest is one that an agent left: what it would have posted to the URL.
type RelayedRequest struct {
	Name  string // of the request, by which it is answered
	Path  string
	Token string
	Body  []byte
}

// RelayedAnswer answers a [RelayedRequest].
type RelayedAnswer struct {
	Name   string
	Status int // of HTTP
	Body   []byte
}

// Relayer exchanges answers for requests in a sandbox.
type Relayer interface {
	// Exchange delivers answers, waits a little for requests, and takes those that are
	// there. Requests that are not answered are taken again.
	Exchange(ctx context.Context, target ExecTarget, dir string, answers []RelayedAnswer) ([]RelayedRequest, error)
}

const (
	relayWait    = 5       // seconds that one exchange waits for a request
	relaySeconds = 30      // after which its script is killed
	relayBytes   = 3 << 20 // that one exchange takes; a session carries 4 MiB
	// relayMost is the longest answer that a session's input carries.
	relayMost = 700 << 10
)

// relayScript takes lines of name, status and base64 from stdin, then prints, framed,
// a line of name, path, token and base64 for each request. It waits for a request, and
// a little for the agent: whoever asks does so again at once.
const relayScript = `[ -d "$d" ] && [ ! -L "$d" ] || { sleep 1; answer length=0; finish; }
while read -r n s b; do
  case $n in ''|*[!A-Z0-9]*) continue ;; esac
  printf '%s %s\n' "$s" "$b" >"$d/$n.new" && mv "$d/$n.new" "$d/$n.a" && rm -f "$d/$n.q"
done
list() {
  total=0 names=
  for f in "$d"/*.q; do
    [ -f "$f" ] && [ ! -L "$f" ] || continue
    n=${f##*/} n=${n%.q}
    case $n in ''|*[!A-Z0-9]*) continue ;; esac
    size=$(($(wc -c <"$f") + ${#n} + 1))
    [ $((total + size)) -le "$most" ] || continue
    total=$((total + size)) names="$names $n"
  done
}
tries=0
list
while [ -z "$names" ] && [ $tries -lt $((wait * 5)) ]; do
  tries=$((tries + 1))
  sleep 0.2 2>/dev/null || { sleep 1; tries=$((tries + 4)); }
  list
done
answer "length=$total"
for n in $names; do printf '%s ' "$n"; cat "$d/$n.q"; done
finish
`

// Exchange runs the script, with the answers on its stdin.
func (s ExecJobStarter) Exchange(ctx context.Context, target ExecTarget, dir string, answers []RelayedAnswer) ([]RelayedRequest, error) {
	script := boundedScript(relaySeconds, fmt.Sprintf("d=%s most=%d wait=%d\n", quoteShell(dir), relayBytes, relayWait)+shellLocale+shellAnswer+relayScript)
	out, err := s.Exec.Exec(ctx, target, script, relayInput(answers))
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	return ParseRelay(out.Stdout)
}

func relayInput(answers []RelayedAnswer) []byte {
	var b bytes.Buffer
	for _, a := range answers {
		fmt.Fprintf(&b, "%s %d %s\n", a.Name, a.Status, base64.StdEncoding.EncodeToString(a.Body))
	}
	return b.Bytes()
}

// ParseRelay reads the stdout of a relay script. What is no request is passed over: the
// directory lies in the sandbox.
func ParseRelay(out []byte) ([]RelayedRequest, error) {
	a, err := parseAnswer("relay", out)
	if err != nil {
		return nil, err
	}
	lines, err := a.section("length")
	if err != nil {
		return nil, err
	}
	var requests []RelayedRequest
	for line := range strings.Lines(string(lines)) {
		words := strings.Fields(line)
		if len(words) != 4 {
			continue
		}
		body, err := base64.StdEncoding.DecodeString(words[3])
		if err == nil {
			requests = append(requests, RelayedRequest{words[0], words[1], words[2], body})
		}
	}
	return requests, a.done()
}

// RelayRequest names the step whose agent is to be served over exec sessions.
type RelayRequest struct {
	ThreadKey
	ID       CheckpointID `json:"id"`
	Kind     StepKind     `json:"kind"`
	Key      SandboxKey   `json:"key"`
	Instance InstanceID   `json:"instance"`
}

// relayReserve is how much of the caller's time an exchange needs.
const relayReserve = 60 * time.Second

// Relay is who carries requests and who answers them.
type Relay struct {
	Relayer Relayer
	// Serve answers a request as the URL would.
	Serve func(ctx context.Context, r RelayedRequest) RelayedAnswer
}

// Relay serves the agent of a step that is under way, request by request, until the
// step has ended or the time is used up; the report says which. The agent's own token is
// what entitles it, as at the URL.
func (k *Keeper) Relay(ctx context.Context, q RelayRequest, by Relay) (StepReport, error) {
	r := stepRequest{ThreadKey: q.ThreadKey, id: q.ID, kind: q.Kind, key: q.Key, instance: q.Instance}
	if err := r.check(); err != nil {
		return StepReport{}, err
	}
	at, err := k.target(ctx, r)
	if err != nil {
		return StepReport{}, err
	}
	hold := k.exec(r)
	defer hold.free(ctx)
	var answers []RelayedAnswer
	for {
		th, err := k.Threads.Thread(ctx, q.ThreadKey)
		if err != nil {
			return StepReport{}, err
		}
		s := r.mine(th)
		if s == nil {
			return StepReport{}, refuse("relay", "step "+string(q.ID), "no-such-step")
		}
		over := s.State != StepWorking || s.Fence != th.Fence || !th.Lease.Live(nowMillis())
		if over && len(answers) == 0 || !timeFor(ctx, relayReserve) {
			return reportOf(*s), nil
		}
		if err := hold.take(ctx, execHoldFor); err != nil {
			return reportOf(*s), busyError("relay", err)
		}
		requests, err := by.Relayer.Exchange(ctx, at.target, RelayDir(s.Token), answers)
		if err != nil {
			return reportOf(*s), err
		}
		answers = by.answer(ctx, requests)
	}
}

func timeFor(ctx context.Context, d time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return !ok || time.Until(deadline) >= d
}

// answer serves requests one after another. What one exchange cannot carry waits for
// the next; an answer that none can is refused.
func (by Relay) answer(ctx context.Context, requests []RelayedRequest) []RelayedAnswer {
	var answers []RelayedAnswer
	size := 0
	for _, r := range requests {
		a := by.Serve(ctx, r)
		if len(a.Body) > relayMost {
			a.Status, a.Body = 413, []byte(`{"error":{"code":"too-large","message":"an exec session carries no answer of this size"}}`)
		}
		if size += len(a.Body); size > relayMost {
			break
		}
		answers = append(answers, a)
	}
	return answers
}
