package ecsexec_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/coder/websocket"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
)

// line is a socket in memory, for bubbles: the far end is the test.
type line struct {
	toClient, fromClient chan []byte
	closed               chan struct{}
	isClosed             atomic.Bool
	pings                atomic.Int32
}

func newLine() *line {
	return &line{toClient: make(chan []byte, 1000), fromClient: make(chan []byte, 1000), closed: make(chan struct{})}
}

func (l *line) Read(ctx context.Context) (websocket.MessageType, []byte, error) {
	select {
	case b, open := <-l.toClient:
		if !open {
			return 0, nil, errors.New("connection reset")
		}
		return websocket.MessageBinary, b, nil
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	}
}

func (l *line) Write(_ context.Context, _ websocket.MessageType, b []byte) error {
	l.fromClient <- b
	return nil
}

func (l *line) Ping(context.Context) error {
	l.pings.Add(1)
	return nil
}

func (l *line) CloseNow() error {
	l.isClosed.Store(true)
	return nil
}

func TestDeadlines(t *testing.T) {
	for _, c := range []struct {
		name   string
		say    func(*line)
		caller time.Duration // the caller's own deadline; 0 is none
		took   time.Duration
		reason string
		pings  int32
	}{
		// Two seconds of each are the interrupt's, which nobody hears.
		{"a silent gateway is left after 15 s", func(*line) {}, 0, 17 * time.Second, "no-first-output", 0},
		{"an absent agent is named", func(l *line) { l.toClient <- gatewayFrame("pause_publication", nil) }, 0, 15 * time.Second, "agent-absent", 0},
		{"an answer cut short ends with the caller's deadline", func(l *line) { l.toClient <- output(0, mark+" begin.\r\n") }, 20 * time.Second, 22 * time.Second, "deadline", 0},
		{"a long session pings every 30 s", func(l *line) { l.toClient <- output(0, mark+" begin.\r\n") }, 100 * time.Second, 102 * time.Second, "deadline", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if c.caller != 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.caller)
					defer cancel()
				}
				l := newLine()
				c.say(l)
				start := time.Now()
				_, e := ecsexec.Attend(ctx, l, mark, nil, ecsexec.Limits{})
				if e == nil || e.Healing != core.Retry || e.Reason != c.reason {
					t.Errorf("got %v, want %s", e, c.reason)
				}
				if took := time.Since(start); took != c.took {
					t.Errorf("took %v, want %v", took, c.took)
				}
				if got := l.pings.Load(); got != c.pings || !l.isClosed.Load() {
					t.Errorf("pings: got %d, want %d; closed %v", got, c.pings, l.isClosed.Load())
				}
			})
		})
	}
}

func TestAnswerEndsTheSessionOnceItIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine()
		l.toClient <- output(0, answer([]byte("hello"), "7"))
		go func() {
			for {
				f, err := ecsexec.ParseFrame(<-l.fromClient)
				if err != nil || f.Kind != "input_stream_data" {
					continue
				}
				if !bytes.Equal(f.Payload, []byte{3}) {
					t.Errorf("typed %q, want the interrupt", f.Payload)
				}
				time.Sleep(30 * time.Millisecond)
				l.toClient <- ackOf(f.Seq)
				time.Sleep(20 * time.Millisecond)
				l.toClient <- gatewayFrame("channel_closed", []byte(`{"Output":""}`))
				return
			}
		}()
		start := time.Now()
		got, e := ecsexec.Attend(t.Context(), l, mark, nil, ecsexec.Limits{})
		if e != nil || string(got.Stdout) != "hello" || got.Exit != 7 {
			t.Errorf("got %+v, %v", got, e)
		}
		if took := time.Since(start); took != 50*time.Millisecond {
			t.Errorf("took %v, want 50ms", took)
		}
	})
}

// lossy plays an agent over a line that loses, doubles and delays: it prints the
// answer once the typed lines are complete. It repeats its oldest message only, and
// closes at the interrupt, or linger after the trailer.
type lossy struct {
	line   *line
	random *rand.Rand
	chunks [][]byte
	want   []byte // the typed lines
	linger time.Duration

	next    int64
	flight  []flying // in order
	typed   []byte
	expect  int64
	early   map[int64][]byte
	printed bool
	end     <-chan time.Time
}

func (a *lossy) play(ctx context.Context) {
	a.early = map[int64][]byte{}
	a.send(output(a.next, mark+" ready.\r\n"))
	a.print()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.end:
			a.close()
			return
		case b := <-a.line.fromClient:
			f, err := ecsexec.ParseFrame(b)
			if err != nil || a.random.Float64() < 0.1 {
				continue
			}
			if f.Kind == "acknowledge" {
				a.acknowledged(f.Payload)
			} else if a.input(f); bytes.HasSuffix(a.typed, []byte{3}) {
				a.close()
				return
			}
		case <-ticker.C:
			if len(a.flight) > 0 && time.Since(a.flight[0].sent) > 50*time.Millisecond {
				a.flight[0].sent = time.Now()
				a.pass(a.flight[0].bytes)
			}
		}
	}
}

func (a *lossy) send(b []byte) {
	a.flight = append(a.flight, flying{a.next, b, time.Now()})
	a.next++
	a.pass(b)
}

// print sends the answer if the typed lines are complete.
func (a *lossy) print() {
	if a.printed || !bytes.Equal(a.typed, a.want) {
		return
	}
	a.printed = true
	for _, c := range a.chunks {
		a.send(output(a.next, string(c)))
	}
	a.end = time.After(a.linger)
}

func (a *lossy) acknowledged(body []byte) {
	var ack struct{ AcknowledgedMessageSequenceNumber int64 }
	if err := json.Unmarshal(body, &ack); err != nil {
		panic(err)
	}
	a.flight = slices.DeleteFunc(a.flight, func(f flying) bool { return f.seq == ack.AcknowledgedMessageSequenceNumber })
}

func (a *lossy) input(f ecsexec.Frame) {
	a.pass(ackOf(f.Seq))
	if f.Seq >= a.expect {
		a.early[f.Seq] = f.Payload
	}
	for p, ok := a.early[a.expect]; ok; p, ok = a.early[a.expect] {
		delete(a.early, a.expect)
		a.expect++
		a.typed = append(a.typed, p...)
	}
	a.print()
}

func (a *lossy) close() {
	a.line.toClient <- gatewayFrame("channel_closed", []byte(`{"Output":""}`))
}

// pass loses, doubles and delays.
func (a *lossy) pass(b []byte) {
	roll := a.random.Float64()
	if roll < 0.1 {
		return
	}
	if roll < 0.2 {
		a.line.toClient <- b
	}
	if roll > 0.9 {
		time.AfterFunc(time.Duration(a.random.IntN(40))*time.Millisecond, func() { a.line.toClient <- b })
		return
	}
	a.line.toClient <- b
}

// At 10 % loss each way, doubled and delayed messages, an answer that comes is the
// right one, and with the linger most come.
func TestLossNeverMakesAWrongAnswer(t *testing.T) {
	const sessions = 200
	answered := 0
	for seed := range uint64(sessions) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 7))
			stdout := make([]byte, random.IntN(60_000))
			for i := range stdout {
				stdout[i] = byte(random.Uint32())
			}
			a := &lossy{line: newLine(), random: random, linger: 10 * time.Second}
			for c := range chunks([]byte(answer(stdout, "3")), 1024) {
				a.chunks = append(a.chunks, bytes.Clone(c))
			}
			var typed [][]byte
			for i := range random.IntN(40) {
				typed = append(typed, fmt.Appendf(nil, "line %d\n", i))
			}
			a.want = bytes.Join(typed, nil)
			ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
			defer cancel()
			go a.play(ctx)
			got, e := ecsexec.Attend(ctx, a.line, mark, typed, ecsexec.Limits{})
			switch {
			case e == nil && (got.Exit != 3 || !bytes.Equal(got.Stdout, stdout)):
				t.Errorf("seed %d: a wrong answer of %d bytes, want %d", seed, len(got.Stdout), len(stdout))
			case e == nil:
				answered++
			case e.Healing != core.Retry:
				t.Errorf("seed %d: %v", seed, e)
			}
			cancel()
			time.Sleep(time.Second) // delayed messages land
		})
	}
	t.Logf("%d of %d sessions answered, none wrong", answered, sessions)
	if answered < sessions*9/10 {
		t.Errorf("answered: got %d of %d, want nine tenths", answered, sessions)
	}
}

// The same on real shells and sockets, with swapped messages and wrong digests.
func TestLossOnRealTerminals(t *testing.T) {
	input := bytes.Repeat([]byte("0123456789abcdef"), 300)
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			g := newGateway(t)
			g.faults = faults{loss: 0.1, double: 0.1, swap: 0.1, seed: seed}
			g.digest = seed%3 != 0
			got, err := executor(g).Exec(t.Context(), target, "cat; head -c 20000 /dev/zero; exit 5", input)
			if err != nil {
				if e := execError(t, err); e.Healing != core.Retry {
					t.Error(err)
				}
				return
			}
			if got.Exit != 5 || !bytes.Equal(got.Stdout, append(bytes.Clone(input), make([]byte, 20_000)...)) {
				t.Errorf("a wrong answer: exit %d, %d bytes", got.Exit, len(got.Stdout))
			}
		})
	}
}

func TestSessionsThatBringNoAnswer(t *testing.T) {
	for _, c := range []struct {
		name      string
		configure func(*gateway)
		healing   core.Healing
		reason    string
		says      string
	}{
		{"a silent gateway", func(g *gateway) { g.noReply = true }, core.Retry, "no-first-output", ""},
		{"an agent that is not there", func(g *gateway) { g.absent = true }, core.Retry, "agent-absent", ""},
		{"a socket cut in mid-output", func(g *gateway) { g.cutAfter = 1 }, core.Retry, "channel-cut", ""},
		{"an upgrade refused for want of rights", func(g *gateway) { g.refuse = 403 }, core.Configuration, "channel-denied", "403"},
		{"an upgrade refused", func(g *gateway) { g.refuse = 503 }, core.Retry, "channel-refused", "503"},
		{"a redirect is not followed", func(g *gateway) { g.refuse = 302 }, core.Retry, "channel-refused", "302"},
		{"an agent without its plugin", func(g *gateway) { g.closeText = "Plugin with name InteractiveCommands not found. Step name: x" }, core.Configuration, "agent-broken", "InteractiveCommands"},
		{"no shell in the image", func(g *gateway) {
			g.closeText = "Unable to start command: Failed to start pty: fork/exec /bin/sh: no such file or directory"
		}, core.Configuration, "no-shell", "/bin/sh"},
		{"a data key refused", func(g *gateway) {
			g.closeText = "Encountered error while initiating handshake. Fetching data key failed: InvalidCiphertextException"
		}, core.Configuration, "kms-data-key", "InvalidCiphertext"},
		{"logging refused", func(g *gateway) {
			g.closeText = "We couldn't start the session because encryption is not set up on the selected CloudWatch Logs log group."
		}, core.Configuration, "logging-refused", "log group"},
		{"a handshake that timed out", func(g *gateway) {
			g.closeText = "Encountered error while initiating handshake. Handshake timed out."
		}, core.Retry, "handshake-failed", "timed out"},
		{"a text that nobody knows", func(g *gateway) { g.closeText = "something new" }, core.Retry, "closed-by-agent", "something new"},
		{"a session encrypted with KMS", func(g *gateway) {
			g.handshake = `{"ActionType":"KMSEncryption","ActionParameters":{"KMSKeyId":"k"}},{"ActionType":"SessionType","ActionParameters":{}}`
		}, core.Configuration, "kms-unsupported", "KMS"},
		{"a handshake with an unknown step", func(g *gateway) { g.handshake = `{"ActionType":"Dance"}` }, core.Configuration, "handshake-unsupported", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGateway(t)
			c.configure(g)
			e := executor(g)
			e.Limits = ecsexec.Limits{Parting: 100 * time.Millisecond, Linger: time.Second} // who is answered, is so in time
			if g.noReply || g.absent {
				e.Limits.FirstOutput = 3 * time.Second
			}
			_, err := e.Exec(t.Context(), target, "sleep 1", nil)
			wantFault(t, err, c.healing, c.reason)
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q does not tell %q", err, c.says)
			}
			wantNoSecret(t, g, err)
		})
	}
}

// wantNoSecret fails if an error holds the id or the token of any session.
func wantNoSecret(t *testing.T, g *gateway, err error) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, s := range g.pending {
		if strings.Contains(err.Error(), id) || strings.Contains(err.Error(), s.token) || strings.Contains(err.Error(), "data-channel") {
			t.Errorf("%q holds a session's id, token or address", err)
		}
	}
}

func TestHandshakeWithoutEncryption(t *testing.T) {
	g := newGateway(t)
	g.handshake = `{"ActionType":"SessionType","ActionParameters":{"SessionType":"InteractiveCommands","Properties":{}}}`
	got, err := executor(g).Exec(t.Context(), target, "cat; exit 2", []byte("typed after it"))
	if err != nil || string(got.Stdout) != "typed after it" || got.Exit != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestClosingTextCannotLeakTheSession(t *testing.T) {
	g := newGateway(t)
	g.leak = true
	g.closeText = "session "
	_, err := executor(g).Exec(t.Context(), target, "true", nil)
	wantFault(t, err, core.Retry, "closed-by-agent")
	wantNoSecret(t, g, err)
	if !strings.Contains(err.Error(), "[redacted]") {
		t.Errorf("%q: want the text with its secrets replaced", err)
	}
}

func TestUpgradeIsSigned(t *testing.T) {
	g := newGateway(t)
	e := executor(g)
	e.Credentials = credentials.NewStaticCredentialsProvider("test", "test", "session-token")
	if _, err := e.Exec(t.Context(), target, "true", nil); err != nil {
		t.Fatal(err)
	}
	g.stop()
	header := g.headers[0]
	authorization := header.Get("Authorization")
	if !strings.HasPrefix(authorization, "AWS4-HMAC-SHA256 Credential=test/") ||
		!strings.Contains(authorization, "/eu-west-1/ssmmessages/aws4_request, SignedHeaders=host;x-amz-date;x-amz-security-token, Signature=") ||
		header.Get("X-Amz-Date") == "" || header.Get("X-Amz-Security-Token") != "session-token" {
		t.Errorf("headers %v", header)
	}
}

func TestUpgradeWithoutCredentials(t *testing.T) {
	t.Run("a provider that fails is a fault of configuration", func(t *testing.T) {
		g := newGateway(t)
		e := executor(g)
		e.Credentials = credentials.NewStaticCredentialsProvider("", "", "")
		_, err := e.Exec(t.Context(), target, "true", nil)
		wantFault(t, err, core.Configuration, "no-credentials")
	})
	t.Run("none at all leaves it unsigned", func(t *testing.T) {
		g := newGateway(t)
		if _, err := executor(g).Exec(t.Context(), target, "true", nil); err != nil {
			t.Fatal(err)
		}
		g.stop()
		if got := g.headers[0].Get("Authorization"); got != "" {
			t.Errorf("signed: %s", got)
		}
	})
}

// answering is an ECS that answers always the same.
type answering struct {
	out *ecs.ExecuteCommandOutput
	err error
}

func (a answering) ExecuteCommand(context.Context, *ecs.ExecuteCommandInput, ...func(*ecs.Options)) (*ecs.ExecuteCommandOutput, error) {
	return a.out, a.err
}

func TestStreamAddress(t *testing.T) {
	session := func(url string) answering {
		return answering{out: &ecs.ExecuteCommandOutput{Session: &types.Session{SessionId: new("id-1"), StreamUrl: &url, TokenValue: new("token-1")}}}
	}
	for _, c := range []struct {
		name    string
		ecs     answering
		healing core.Healing
		reason  string
	}{
		{"a token never goes out in the clear", session("ws://example.com/v1/data-channel/id-1"), core.Configuration, "insecure-channel"},
		{"nor over another protocol", session("http://127.0.0.1/v1/data-channel/id-1"), core.Configuration, "insecure-channel"},
		{"an address that cannot be read", session("wss://%zz/id-1"), core.Retry, "no-session"},
		{"nobody listens", session("ws://127.0.0.1:1/v1/data-channel/id-1?role=publish_subscribe"), core.Retry, "channel-unreachable"},
		{"no session", answering{out: &ecs.ExecuteCommandOutput{}}, core.Retry, "no-session"},
		{"no answer", answering{err: errors.New("connection refused")}, core.Retry, "api-unreachable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := ecsexec.Executor{ECS: c.ecs, Region: "eu-west-1"}
			_, err := e.Exec(t.Context(), target, "true", nil)
			wantFault(t, err, c.healing, c.reason)
			if strings.Contains(err.Error(), "id-1") || strings.Contains(err.Error(), "token-1") {
				t.Errorf("%q holds a secret", err)
			}
		})
	}
}
