package ecsexec_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	mrand "math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ecs"
	"github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/coder/websocket"

	"github.com/sandkeeper/sandkeeper/internal/localfargate/terminal"
)

// gateway is a small message gateway with the agent's end behind it: commands run
// as real processes on real terminals. Its frames are laid out here once more, by
// the table of the protocol, so that the codec under test does not judge itself.
type gateway struct {
	faults     faults
	handshake  string        // if set, the actions of a handshake that opens each session
	noReply    bool          // accepts, and stays silent
	absent     bool          // says pause, and never starts the command
	cutAfter   int           // closes the socket at this output message
	closeText  string        // if set, no command starts: channel_closed brings this
	digest     bool          // false leaves the digest wrong on each message's first copy
	leak       bool          // puts the session's id and token into closeText
	drain      time.Duration // how long an ended command's output is repaired
	shell      string        // stands in for /bin/sh
	environ    []string
	refuse     int    // status that the upgrade gets instead
	onOutput   func() // called at each output message
	server     *httptest.Server
	mu         sync.Mutex
	pending    map[string]*pendingSession
	commands   []string
	headers    []http.Header
	typed      bytes.Buffer // what clients sent as keystrokes, in order
	interrupts int
	wg         sync.WaitGroup
}

type pendingSession struct{ token, command string }

// faults are the shares of messages that are lost, doubled or swapped, each way.
type faults struct {
	loss, double, swap float64
	seed               uint64
}

func newGateway(t *testing.T) *gateway {
	g := &gateway{pending: map[string]*pendingSession{}, digest: true, drain: 300 * time.Millisecond}
	g.server = httptest.NewServer(http.HandlerFunc(g.serve))
	t.Cleanup(g.stop)
	return g
}

// stop waits for the sessions; what was recorded may be read afterwards.
func (g *gateway) stop() {
	g.server.Close()
	g.wg.Wait()
}

// ExecuteCommand registers a session, as ECS would.
func (g *gateway) ExecuteCommand(_ context.Context, in *ecs.ExecuteCommandInput, _ ...func(*ecs.Options)) (*ecs.ExecuteCommandOutput, error) {
	id, token := "ecs-execute-command-"+randomHex(8), randomHex(32)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pending[id] = &pendingSession{token: token, command: *in.Command}
	g.commands = append(g.commands, *in.Command)
	url := "ws" + strings.TrimPrefix(g.server.URL, "http") + "/v1/data-channel/" + id + "?role=publish_subscribe"
	return &ecs.ExecuteCommandOutput{Session: &types.Session{SessionId: &id, StreamUrl: &url, TokenValue: &token}}, nil
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}

func (g *gateway) serve(w http.ResponseWriter, r *http.Request) {
	g.wg.Add(1)
	defer g.wg.Done()
	g.mu.Lock()
	session := g.pending[strings.TrimPrefix(r.URL.Path, "/v1/data-channel/")]
	g.headers = append(g.headers, r.Header.Clone())
	g.mu.Unlock()
	if g.refuse != 0 {
		http.Error(w, "refused", g.refuse)
		return
	}
	conn, err := websocket.Accept(w, r, nil)
	if err != nil || session == nil {
		return
	}
	defer conn.CloseNow()
	kind, hello, err := conn.Read(r.Context())
	var open struct{ MessageSchemaVersion, TokenValue, RequestId string }
	if err != nil || kind != websocket.MessageText || json.Unmarshal(hello, &open) != nil ||
		open.MessageSchemaVersion != "1.0" || open.TokenValue != session.token || len(open.RequestId) != 36 {
		conn.Close(websocket.StatusPolicyViolation, "bad token")
		return
	}
	a := &agent{g: g, conn: conn, early: map[int64][]byte{}, random: mrand.New(mrand.NewPCG(g.faults.seed, 1))}
	if g.leak {
		a.g.closeText += strings.TrimPrefix(r.URL.Path, "/v1/data-channel/") + " " + session.token
	}
	a.run(r.Context(), session.command)
}

// agent is the far end of one session, with the genuine agent's habits.
type agent struct {
	g       *gateway
	conn    *websocket.Conn
	random  *mrand.Rand
	held    [2][]byte // a message that is to be swapped with the next, each way
	tty     *os.File
	next    int64
	flight  []flying
	expect  int64
	early   map[int64][]byte
	outputs int
	shaken  bool

	output   <-chan []byte   // of the terminal; nil before and after
	ended    <-chan struct{} // the command; nil before it began
	deadline <-chan time.Time
}

type flying struct {
	seq   int64
	bytes []byte
	sent  time.Time
}

func (a *agent) run(ctx context.Context, command string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	incoming := a.listen(ctx)
	if a.g.noReply || a.g.absent || a.g.closeText != "" {
		a.disappoint(ctx)
		for range incoming {
		}
		return
	}
	a.write(ctx, gatewayFrame("start_publication", nil))
	if a.g.handshake == "" {
		a.spawn(a.g.words(command))
	} else {
		a.send(ctx, 5, []byte(`{"AgentVersion":"3.3","RequestedClientActions":[`+a.g.handshake+`]}`))
	}
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for goOn := true; goOn; {
		select {
		case b, open := <-incoming:
			goOn = open && a.receive(ctx, b)
			if a.shaken && a.ended == nil {
				a.spawn(a.g.words(command))
			}
		case b, open := <-a.output:
			goOn = a.print(ctx, b, open)
		case <-ticker.C:
			a.resend(ctx)
			goOn = a.ended == nil || a.output != nil || len(a.flight) > 0 || a.leave(ctx)
		case <-a.deadline:
			goOn = a.leave(ctx)
		}
	}
}

func (a *agent) listen(ctx context.Context) <-chan []byte {
	incoming := make(chan []byte)
	go func() {
		defer close(incoming)
		for {
			_, b, err := a.conn.Read(ctx)
			if err != nil {
				return
			}
			select {
			case incoming <- b:
			case <-ctx.Done():
				return
			}
		}
	}()
	return incoming
}

// disappoint is a session in which nothing runs.
func (a *agent) disappoint(ctx context.Context) {
	if a.g.absent {
		a.write(ctx, gatewayFrame("pause_publication", nil))
	}
	if a.g.closeText != "" {
		a.close(ctx, a.g.closeText)
	}
}

// print sends what the command printed; false ends the session.
func (a *agent) print(ctx context.Context, b []byte, open bool) bool {
	if !open {
		a.output = nil
		a.deadline = time.After(a.g.drain)
		return true
	}
	if a.g.onOutput != nil {
		a.g.onOutput()
	}
	a.send(ctx, 1, b)
	if a.outputs++; a.outputs == a.g.cutAfter {
		a.conn.CloseNow()
		return false
	}
	return true
}

// leave ends the session once the command has.
func (a *agent) leave(ctx context.Context) bool {
	<-a.ended
	a.close(ctx, "")
	return false
}

// words splits as the agent does, for what this package sends: quotes are single.
func (g *gateway) words(command string) []string {
	var words []string
	for i, part := range strings.Split(command, "'") {
		if i%2 == 1 {
			words = append(words, part)
			continue
		}
		words = append(words, strings.Fields(part)...)
	}
	if g.shell != "" {
		for i := range words {
			words[i] = strings.ReplaceAll(words[i], "/bin/sh", g.shell)
		}
	}
	return words
}

// spawn runs the command in a session of its own on a fresh terminal.
func (a *agent) spawn(words []string) {
	output, ended := make(chan []byte), make(chan struct{})
	master, slave, err := terminal.Open()
	if err != nil {
		panic(err)
	}
	a.tty = master
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.Env = append(os.Environ(), a.g.environ...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = cmd.Start()
	slave.Close()
	if err != nil {
		panic(err)
	}
	a.g.wg.Add(2)
	go func() { defer a.g.wg.Done(); cmd.Wait(); close(ended) }()
	go func() {
		defer a.g.wg.Done()
		defer close(output)
		defer master.Close()
		for {
			b := make([]byte, 1024)
			n, err := master.Read(b)
			if err != nil {
				return
			}
			select {
			case output <- b[:n]:
			case <-ended:
				// Nobody is there any more, or the loop is draining: both end soon.
				select {
				case output <- b[:n]:
				case <-time.After(a.g.drain):
					return
				}
			}
		}
	}()
	a.output, a.ended, a.shaken = output, ended, true
}

// receive takes a message of the client's; false ends the session.
func (a *agent) receive(ctx context.Context, raw []byte) bool {
	for _, b := range a.link(0, raw) {
		kind := strings.TrimRight(string(b[4:36]), " ")
		seq := int64(binary.BigEndian.Uint64(b[48:]))
		body := b[120:]
		if binary.BigEndian.Uint32(b) != 116 || int(binary.BigEndian.Uint32(b[116:])) != len(body) || sha256.Sum256(body) != [32]byte(b[80:112]) {
			panic("the client sent a malformed frame")
		}
		switch kind {
		case "acknowledge":
			var ack struct{ AcknowledgedMessageSequenceNumber int64 }
			if json.Unmarshal(body, &ack) != nil {
				panic("unreadable acknowledgement")
			}
			for i, f := range a.flight {
				if f.seq == ack.AcknowledgedMessageSequenceNumber {
					a.flight = append(a.flight[:i], a.flight[i+1:]...)
					break
				}
			}
		case "input_stream_data":
			a.acknowledge(ctx, b, seq)
			if seq >= a.expect {
				a.early[seq] = b
			}
			for b, ok := a.early[a.expect]; ok; b, ok = a.early[a.expect] {
				delete(a.early, a.expect)
				a.expect++
				if !a.input(ctx, b) {
					return false
				}
			}
		}
	}
	return true
}

func (a *agent) input(ctx context.Context, b []byte) bool {
	body := b[120:]
	switch binary.BigEndian.Uint32(b[112:]) {
	case 1:
		a.g.mu.Lock()
		a.g.typed.Write(body)
		a.g.interrupts += bytes.Count(body, []byte{3})
		a.g.mu.Unlock()
		if a.tty != nil && a.shaken {
			a.tty.Write(body)
		}
	case 6:
		var answer struct {
			ProcessedClientActions []struct {
				ActionType   string
				ActionStatus int
			}
		}
		if json.Unmarshal(body, &answer) != nil {
			panic("unreadable handshake response")
		}
		for _, action := range answer.ProcessedClientActions {
			if action.ActionStatus != 1 {
				a.close(ctx, fmt.Sprintf("Encountered error while initiating handshake. %s failed on client with status %d", action.ActionType, action.ActionStatus))
				return false
			}
		}
		a.shaken = true
		a.send(ctx, 7, []byte(`{"HandshakeTimeToComplete":1000,"CustomerMessage":""}`))
	}
	return true
}

func (a *agent) acknowledge(ctx context.Context, b []byte, seq int64) {
	id := append(append([]byte{}, b[72:80]...), b[64:72]...)
	h := hex.EncodeToString(id)
	body := fmt.Appendf(nil, `{"AcknowledgedMessageType":"input_stream_data","AcknowledgedMessageId":"%s-%s-%s-%s-%s","AcknowledgedMessageSequenceNumber":%d,"IsSequentialMessage":true}`,
		h[:8], h[8:12], h[12:16], h[16:20], h[20:], seq)
	a.transmit(ctx, agentFrame("acknowledge", 0, 0, body))
}

func (a *agent) send(ctx context.Context, payloadType uint32, body []byte) {
	b := agentFrame("output_stream_data", a.next, payloadType, body)
	a.flight = append(a.flight, flying{a.next, b, time.Now()})
	a.next++
	if !a.g.digest {
		b = bytes.Clone(b)
		b[80] ^= 0xff
	}
	a.transmit(ctx, b)
}

// resend repeats the oldest message only.
func (a *agent) resend(ctx context.Context) {
	if len(a.flight) > 0 && time.Since(a.flight[0].sent) > 20*time.Millisecond {
		a.flight[0].sent = time.Now()
		a.transmit(ctx, a.flight[0].bytes)
	}
}

func (a *agent) transmit(ctx context.Context, b []byte) {
	for _, b := range a.link(1, b) {
		a.write(ctx, b)
	}
}

func (a *agent) write(ctx context.Context, b []byte) {
	_ = a.conn.Write(ctx, websocket.MessageBinary, b) // the client may be gone: its reader tells
}

// link is the lossy line.
func (a *agent) link(way int, b []byte) [][]byte {
	f := a.g.faults
	if a.random.Float64() < f.loss {
		return nil
	}
	out := [][]byte{b}
	if a.random.Float64() < f.double {
		out = append(out, b)
	}
	if held := a.held[way]; held != nil {
		a.held[way] = nil
		return append(out, held)
	}
	if a.random.Float64() < f.swap {
		a.held[way] = b
		return nil
	}
	return out
}

func (a *agent) close(ctx context.Context, text string) {
	body, err := json.Marshal(map[string]string{"MessageType": "channel_closed", "Output": text})
	if err != nil {
		panic(err)
	}
	a.write(ctx, gatewayFrame("channel_closed", body))
	a.conn.Close(websocket.StatusNormalClosure, "")
}

// agentFrame lays a message out as the agent does: long header, spaces.
func agentFrame(kind string, seq int64, payloadType uint32, body []byte) []byte {
	b := commonFrame(116, kind, ' ', seq, body)
	b = binary.BigEndian.AppendUint32(b, payloadType)
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	return append(b, body...)
}

// gatewayFrame lays a message out as the gateway does: short header, NULs, no digest.
func gatewayFrame(kind string, body []byte) []byte {
	b := commonFrame(112, kind, 0, 0, body)
	clear(b[80:112])
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	return append(b, body...)
}

func commonFrame(header uint32, kind string, pad byte, seq int64, body []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, header)
	b = append(b, kind...)
	b = append(b, bytes.Repeat([]byte{pad}, 32-len(kind))...)
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint64(b, uint64(time.Now().UnixMilli()))
	b = binary.BigEndian.AppendUint64(b, uint64(seq))
	b = binary.BigEndian.AppendUint64(b, 0)
	id := make([]byte, 16)
	rand.Read(id)
	b = append(b, id...)
	sum := sha256.Sum256(body)
	return append(b, sum[:]...)
}
