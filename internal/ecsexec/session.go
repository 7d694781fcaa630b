package ecsexec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/coder/websocket"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

const (
	service      = "ssmmessages"
	emptySHA256  = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	readLimit    = 1 << 20 // channel_closed can exceed the library's 32 KiB
	interruptKey = "\x03"
	interrupts   = 5 // typed at most while parting
)

// socket is what a session needs of a *websocket.Conn.
type socket interface {
	Read(context.Context) (websocket.MessageType, []byte, error)
	Write(context.Context, websocket.MessageType, []byte) error
	Ping(context.Context) error
	CloseNow() error
}

// attend meets the started command and stays until it answered.
func (e *Executor) attend(ctx context.Context, c channel, work job, limits Limits) (core.ExecResult, *failure) {
	conn, f := e.connect(ctx, c, limits.Connect)
	if f != nil {
		return core.ExecResult{}, f
	}
	s := newSession(conn, limits, newReply(work.mark, limits.Stdout))
	s.typed = work.typed
	return s.run(ctx, c.token)
}

// connect upgrades to the data channel.
func (e *Executor) connect(ctx context.Context, c channel, limit time.Duration) (socket, *failure) {
	dial, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	address, err := url.Parse(c.url)
	if err != nil {
		return nil, &failure{retryable("no-session"), errors.New("unreadable stream address")}
	}
	if address.Scheme != "wss" && !(address.Scheme == "ws" && loopback(address.Hostname())) {
		return nil, &failure{configuration("insecure-channel"), fmt.Errorf("want wss, or ws on loopback, got %q", address.Scheme)}
	}
	header, f := e.sign(dial, address, c.cluster)
	if f != nil {
		return nil, f
	}
	conn, response, err := websocket.Dial(dial, c.url, &websocket.DialOptions{
		HTTPHeader: header,
		// A redirect would carry the signature elsewhere.
		HTTPClient: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	})
	switch {
	case err != nil && dial.Err() != nil:
		return nil, &failure{judgeContext(ctx, retryable("connect-timeout")), dial.Err()}
	case err != nil && response != nil:
		return nil, &failure{judgeUpgrade(response.StatusCode), fmt.Errorf("upgrade answered %d", response.StatusCode)}
	case err != nil:
		return nil, &failure{judgeUpgrade(0), withoutURL(err)}
	}
	conn.SetReadLimit(readLimit)
	return conn, nil
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// sign makes the headers of a SigV4-signed upgrade. An address that carries a
// signature already is left alone.
func (e *Executor) sign(ctx context.Context, address *url.URL, cluster string) (http.Header, *failure) {
	signer, region := e.Credentials, e.Region
	if e.Signer != nil {
		var err error
		if signer, region, err = e.Signer(cluster); err != nil {
			return nil, &failure{configuration("no-spoke"), err}
		}
	}
	if signer == nil || address.Query().Has("X-Amz-Signature") {
		return nil, nil
	}
	credentials, err := signer.Retrieve(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, &failure{judgeContext(ctx, retryable("no-credentials")), err}
		}
		return nil, &failure{configuration("no-credentials"), err}
	}
	request := &http.Request{Method: http.MethodGet, URL: address, Host: address.Host, Header: http.Header{}}
	if err := v4.NewSigner().SignHTTP(ctx, credentials, request, emptySHA256, service, region, time.Now()); err != nil {
		return nil, &failure{configuration("no-credentials"), err}
	}
	return request.Header, nil
}

// session is one attended command: the only place that reads and writes the socket.
type session struct {
	conn   socket
	limits Limits
	stream *stream
	reply  *reply
	typed  [][]byte // for the shell, once it is ready

	waits bool // for the shell to be ready, rather than for its answer
	heard bool // any output came
	over  bool // nobody is at the other end any more
}

// arrival is what the reader brings to the loop.
type arrival struct {
	message []byte
	err     error
}

// verdict ends a session: the answer's own, or a fault.
type verdict struct {
	failure *failure // nil: the trailer is complete
}

func newSession(conn socket, limits Limits, r *reply) *session {
	return &session{conn: conn, limits: limits, stream: newStream(), reply: r}
}

// run opens the channel and turns messages into the answer. The socket is closed
// when it returns.
func (s *session) run(ctx context.Context, token string) (result core.ExecResult, f *failure) {
	s.attended(ctx, func(link context.Context, arrivals <-chan arrival) {
		if err := s.open(ctx, token); err != nil {
			f = &failure{judgeContext(ctx, retryable("channel-cut")), err}
			return
		}
		v := s.converse(ctx, link, arrivals)
		s.leave(link, arrivals)
		result, f = s.outcome(v)
	})
	return result, f
}

// attended does something with an open socket, whose messages arrive and which is kept
// alive meanwhile, and closes it.
func (s *session) attended(ctx context.Context, do func(link context.Context, arrivals <-chan arrival)) {
	// The reader and the good-bye outlive the caller's deadline.
	link, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	arrivals := make(chan arrival, 1)
	var attendants sync.WaitGroup
	attendants.Go(func() { s.read(link, arrivals) })
	attendants.Go(func() { s.keepAlive(link) })
	defer func() {
		hangUp()
		s.conn.CloseNow() // nothing to report: the answer is known or lost already
		attendants.Wait()
	}()
	do(link, arrivals)
}

// ready opens the channel and waits until the shell says that it can be typed to.
func (s *session) ready(ctx, link context.Context, token string, arrivals <-chan arrival) *failure {
	if err := s.open(ctx, token); err != nil {
		s.over = true
		return &failure{judgeContext(ctx, retryable("channel-cut")), err}
	}
	s.waits = true
	v := s.converse(ctx, link, arrivals)
	s.waits = false
	if v.failure == nil && !s.reply.ready {
		_, v.failure = s.outcome(v)
	}
	return v.failure
}

// leave parts from a command that may still be there.
func (s *session) leave(link context.Context, arrivals <-chan arrival) {
	if !s.over && !s.stream.paused {
		s.part(link, arrivals)
	}
}

// outcome is what a verdict comes to.
func (s *session) outcome(v verdict) (core.ExecResult, *failure) {
	if v.failure != nil {
		return core.ExecResult{}, v.failure
	}
	stdout, exit, err := s.reply.result()
	if err != nil {
		return core.ExecResult{}, &failure{judgeReply(err), err}
	}
	return core.ExecResult{Stdout: stdout, Exit: exit}, nil
}

type openDataChannel struct {
	MessageSchemaVersion string
	RequestID            string `json:"RequestId"`
	TokenValue           string
	ClientID             string `json:"ClientId"`
	ClientVersion        string
}

// open sends the one text message; nothing answers it.
func (s *session) open(ctx context.Context, token string) error {
	b, err := json.Marshal(openDataChannel{
		MessageSchemaVersion: "1.0",
		RequestID:            newMessageID().String(),
		TokenValue:           token,
		ClientID:             newMessageID().String(),
		ClientVersion:        clientVersion,
	})
	if err != nil {
		return err
	}
	return s.conn.Write(ctx, websocket.MessageText, b)
}

// read brings the binary messages to the loop until the socket fails.
func (s *session) read(ctx context.Context, arrivals chan<- arrival) {
	for {
		kind, message, err := s.conn.Read(ctx)
		if err == nil && kind != websocket.MessageBinary {
			continue
		}
		select {
		case arrivals <- arrival{message, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// keepAlive pings. That an answer fails to come proves nothing, and is left to the
// deadlines: a broken socket fails the reader.
func (s *session) keepAlive(ctx context.Context) {
	ticker := time.NewTicker(s.limits.Ping)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if s.conn.Ping(ctx) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// converse is the loop: until the trailer, a fault, or ctx ends. It writes under
// link, for the library closes a socket whose write was cancelled, and then nobody
// could type the interrupt.
func (s *session) converse(ctx, link context.Context, arrivals <-chan arrival) verdict {
	first := time.NewTimer(s.limits.FirstOutput)
	defer first.Stop()
	for {
		wait, err := s.flush(link)
		if err != nil {
			s.over = true
			return cut(ctx, err)
		}
		select {
		case a := <-arrivals:
			if v := s.hear(ctx, a); v != nil {
				return *v
			}
		case <-wait:
		case <-first.C:
			if !s.heard {
				return verdict{failure: &failure{s.absence("no-first-output"), nil}}
			}
		case <-ctx.Done():
			return verdict{failure: &failure{judgeContext(ctx, s.absence("deadline")), ctx.Err()}}
		}
	}
}

// absence names the silence: the gateway may have said that the agent is not there.
func (s *session) absence(otherwise string) fault {
	if s.stream.paused {
		return retryable("agent-absent")
	}
	return retryable(otherwise)
}

// hear takes one arrival; nil means go on.
func (s *session) hear(ctx context.Context, a arrival) *verdict {
	if a.err != nil {
		s.over = true
		v := cut(ctx, a.err)
		return &v
	}
	n := s.stream.receive(time.Now(), a.message)
	s.over = n.closed != nil
	s.heard = s.heard || len(n.output) > 0
	whole, err := s.reply.add(n.output)
	switch {
	case whole:
		return &verdict{}
	case err != nil:
		return &verdict{failure: &failure{judgeReply(err), err}}
	case n.fault != nil:
		return &verdict{failure: &failure{judgeHandshake(n.fault), n.fault}}
	case n.closed != nil:
		return &verdict{failure: &failure{judgeClosing(*n.closed), agentText(*n.closed)}}
	}
	if s.reply.ready {
		if s.waits {
			return &verdict{}
		}
		for _, line := range s.typed {
			s.stream.enqueue(time.Now(), line)
		}
		s.typed = nil
	}
	return nil
}

// flush writes what the stream has to say, and returns a channel that wakes the
// loop when the oldest message is to be looked at again.
func (s *session) flush(link context.Context) (<-chan time.Time, error) {
	due := s.stream.tick(time.Now())
	for _, message := range s.stream.take() {
		if err := s.write(link, message); err != nil {
			return nil, err
		}
	}
	if due == 0 {
		return nil, nil
	}
	return time.After(due), nil
}

func (s *session) write(link context.Context, message []byte) error {
	ctx, cancel := context.WithTimeout(link, s.limits.Write)
	defer cancel()
	return s.conn.Write(ctx, websocket.MessageBinary, message)
}

func cut(ctx context.Context, err error) verdict {
	return verdict{failure: &failure{judgeContext(ctx, retryable("channel-cut")), withoutURL(err)}}
}

// part types the interrupt, so that the command leaves its slot, and stays until the
// session is closed: an agent whose client is gone stops reading, and so does not
// notice that its command has ended. The interrupt is typed again meanwhile, for a
// shell that is just starting a program can lose it. Its own deadline bounds it all:
// the caller's may be over.
func (s *session) part(link context.Context, arrivals <-chan arrival) {
	ctx, cancel := context.WithTimeout(link, s.limits.Parting)
	defer cancel()
	again := time.NewTicker(s.limits.Parting / interrupts)
	defer again.Stop()
	s.stream.waiting = nil
	s.interrupt()
	for {
		wait, err := s.flush(link)
		if err != nil {
			return
		}
		select {
		case a := <-arrivals:
			if a.err != nil || s.stream.receive(time.Now(), a.message).closed != nil {
				return
			}
		case <-again.C:
			s.interrupt()
		case <-wait:
		case <-ctx.Done():
			return
		}
	}
}

// interrupt types the interrupt, unless one is still on its way. In an open handshake
// typing is thrown away, and the refusal under way closes the session by itself.
func (s *session) interrupt() {
	if !s.stream.handshaking && s.stream.idle() {
		s.stream.enqueue(time.Now(), []byte(interruptKey))
	}
}
