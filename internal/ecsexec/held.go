package ecsexec

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

var errHeldOver = errors.New("the session is over")

var _ core.ExecDialer = (*Executor)(nil)

// Dial opens a session in the target's container that is held: many scripts, one after
// another, at the price of one call of ECS. Every error is a [core.ExecError].
func (e *Executor) Dial(ctx context.Context, target core.ExecTarget) (core.ExecSession, error) {
	limits := e.Limits.orDefaults()
	if f := check(target, "", nil, limits); f != nil {
		return nil, f.export(target)
	}
	ctx, cancel := context.WithTimeout(ctx, limits.Whole)
	defer cancel()
	mark := newMark()
	c, f := e.start(ctx, target, heldWrapper(mark, limits), limits.Start)
	if f != nil {
		return nil, f.export(target)
	}
	conn, f := e.connect(ctx, c, limits.Connect)
	if f == nil {
		h := &held{target: target, channel: c, limits: limits, session: newSession(conn, limits, newReply(mark, 0))}
		if f = h.begin(ctx); f == nil {
			return h, nil
		}
	}
	return nil, f.export(target, c.secrets()...)
}

// heldWrapper is the command of a held session: [wrapper] in a loop. Each script comes as a
// typed line of its mark, how many lines follow, and how long they are together; then
// these. Its answer is marked as that of a session of its own. There is no trailer after
// which the shell has to stay: it stays anyway.
func heldWrapper(mark string, limits Limits) string {
	var b strings.Builder
	b.WriteString(`/bin/sh -c '`)
	fmt.Fprintf(&b, `exec 3>&1 2>/dev/null; _sk_a=%s; _sk_k=${_sk_a}%s; _sk_w=; `, mark[:16], mark[16:])
	b.WriteString(`_sk_m() { printf "\n%s %s.\n" $_sk_k "$1" >&3; }; `)
	b.WriteString(`_sk_end() { trap exit INT; _sk_m "$1"; sleep 5 >/dev/null 3>&- & wait $!; exit; }; `)
	fmt.Fprintf(&b, `_sk_dog() { [ -z "$_sk_w" ] || kill $_sk_w; ( trap "kill \$!; exit" TERM; sleep %d >/dev/null 3>&- & wait $!; kill -9 -$$ ) & _sk_w=$!; }; `,
		max(1, int(limits.Idle/time.Second)))
	b.WriteString(`for _sk_t in base64 head sleep; do command -v $_sk_t >/dev/null || _sk_end no-$_sk_t; done; `)
	b.WriteString(`_sk_dog; trap "kill \$_sk_w; exit" INT HUP TERM; stty -echo || _sk_end no-stty; _sk_m ready; `)
	b.WriteString(`while read -r _sk_k _sk_n _sk_l; do _sk_dog; `)
	b.WriteString(`_sk_s=$(head -n $_sk_n); [ ${#_sk_s} -eq $_sk_l ] || _sk_end bad-input; `)
	b.WriteString(decodeScript(`printf %s "$_sk_s"`))
	b.WriteString(runScript("", " </dev/null", limits))
	b.WriteString(`_sk_m $_sk_r; done; kill $_sk_w'`)
	return b.String()
}

// typedAsk is what is typed for one script.
func typedAsk(mark, script string) [][]byte {
	text := encodedInput([]byte(script))
	count := lineCount(text)
	head := fmt.Sprintf("%s %d %d\n", mark, count, len(text)+count-1)
	return append([][]byte{[]byte(head)}, lines(text)...)
}

// held is a session that is held. One goroutine of its own attends to it, so that what the
// agent sends between two scripts is acknowledged.
type held struct {
	target  core.ExecTarget
	channel channel
	limits  Limits
	session *session

	asks    chan ask
	closing chan struct{} // closed once nobody asks any more
	close   sync.Once
	over    chan struct{} // closed once the socket is
}

// ask is a script to run.
type ask struct {
	ctx    context.Context
	mark   string
	script string
	answer chan<- answered // has room for it
}

type answered struct {
	result  core.ExecResult
	failure *failure
}

// begin opens the channel, waits for the shell, and leaves the goroutine behind.
func (h *held) begin(ctx context.Context) *failure {
	h.asks, h.closing, h.over = make(chan ask), make(chan struct{}), make(chan struct{})
	ready := make(chan *failure, 1)
	go func() {
		defer close(h.over)
		h.session.attended(ctx, func(link context.Context, arrivals <-chan arrival) {
			f := h.session.ready(ctx, link, h.channel.token, arrivals)
			ready <- f
			if f == nil {
				h.serve(link, arrivals)
			}
			h.session.leave(link, arrivals)
		})
	}()
	f := <-ready
	if f != nil {
		<-h.over
	}
	return f
}

// serve answers scripts until one gets no answer, the session breaks, or nobody asks.
func (h *held) serve(link context.Context, arrivals <-chan arrival) {
	s := h.session
	for {
		s.reply = newReply(newMark(), 0) // of what comes unasked nothing is an answer
		wait, err := s.flush(link)
		if err != nil {
			s.over = true
			return
		}
		select {
		case a := <-arrivals:
			if s.hear(link, a) != nil {
				return
			}
		case <-wait:
		case <-h.closing:
			return
		case q := <-h.asks:
			s.reply = newReply(q.mark, h.limits.Stdout)
			for _, line := range typedAsk(q.mark, q.script) {
				s.stream.enqueue(time.Now(), line)
			}
			result, f := s.outcome(s.converse(q.ctx, link, arrivals))
			q.answer <- answered{result, f}
			if f != nil {
				return
			}
		}
	}
}

// Exec runs a script as [Executor.Exec] does, without input. One that is not answered
// whole ends the session, for what comes after it would be its answer.
func (h *held) Exec(ctx context.Context, script string) (core.ExecResult, error) {
	if f := check(h.target, script, nil, h.limits); f != nil {
		return core.ExecResult{}, f.export(h.target)
	}
	ctx, cancel := context.WithTimeout(ctx, h.limits.Whole)
	defer cancel()
	answer := make(chan answered, 1)
	select {
	case h.asks <- ask{ctx, newMark(), script, answer}:
	case <-h.over:
		return core.ExecResult{}, (&failure{retryable("channel-cut"), errHeldOver}).export(h.target)
	case <-ctx.Done():
		return core.ExecResult{}, (&failure{judgeContext(ctx, retryable("deadline")), ctx.Err()}).export(h.target)
	}
	got := <-answer
	if got.failure != nil {
		return core.ExecResult{}, got.failure.export(h.target, h.channel.secrets()...)
	}
	return got.result, nil
}

// Close ends the session, and waits until its command has left the container or is given
// up, two seconds at most.
func (h *held) Close() {
	h.close.Do(func() { close(h.closing) })
	<-h.over
}
