package datachannel

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// Gateway is the message gateway: it takes clients at /v1/data-channel/{id} and
// brings them together with the agent that runs their session.
type Gateway struct {
	ctx    context.Context // ends with the gateway: upgraded sockets outlive their server
	cancel context.CancelFunc

	mu       sync.Mutex
	sessions map[string]*Session
	opened   uint64
	wg       sync.WaitGroup
	closed   bool
}

const (
	tokenLimit    = 10 * time.Second // for the first message of a client
	keepClosed    = 10 * time.Minute // a closed session still answers that long
	outboundQueue = 20_000
	readLimit     = 1 << 20
	writeLimit    = 10 * time.Second
)

// NewGateway returns a gateway without sessions.
func NewGateway() *Gateway {
	ctx, cancel := context.WithCancel(context.Background())
	return &Gateway{ctx: ctx, cancel: cancel, sessions: map[string]*Session{}}
}

// Open makes a session and hands it to the agent, which starts the command
// whether or not anybody attaches. faults is asked again for every frame.
func (g *Gateway) Open(a *Agent, command string, faults func() Faults) *Session {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.opened++
	seed := faults().Seed
	s := &Session{
		ID: "ecs-execute-command-" + randomHex(8) + "0", Token: randomToken(),
		command: command, habits: a.habits, faults: faults, lastUse: time.Now(),
	}
	s.down = newLink(func() chances {
		f := faults()
		return chances{f.LossToClient, f.DuplicateToClient, f.ReorderToClient}
	}, seed, 2*g.opened)
	s.up = newLink(func() chances {
		f := faults()
		return chances{f.LossToAgent, f.DuplicateToAgent, f.ReorderToAgent}
	}, seed, 2*g.opened+1)
	for id, old := range g.sessions {
		if old.closedFor() > keepClosed {
			delete(g.sessions, id)
		}
	}
	g.sessions[s.ID] = s
	a.command(s)
	return s
}

// Close cuts every client off and waits until nothing serves them.
func (g *Gateway) Close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.cancel()
	g.wg.Wait()
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

func randomToken() string {
	b := make([]byte, 96)
	_, _ = rand.Read(b)
	return base64.StdEncoding.EncodeToString(b)
}

// ServeHTTP takes a client. A signature is optional, as old clients send none; one
// that is there must be for the gateway's own service.
func (g *Gateway) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	s := g.sessions[r.PathValue("id")]
	if g.closed || s == nil {
		g.mu.Unlock()
		http.Error(rw, "unknown session", http.StatusNotFound)
		return
	}
	g.wg.Add(1)
	g.mu.Unlock()
	defer g.wg.Done()
	if auth := r.Header.Get("Authorization"); auth != "" &&
		(!strings.HasPrefix(auth, "AWS4-HMAC-SHA256 ") || !strings.Contains(auth, "/ssmmessages/aws4_request")) {
		http.Error(rw, "signature is not for ssmmessages", http.StatusForbidden)
		return
	}
	conn, err := websocket.Accept(rw, r, nil)
	if err != nil {
		return // Accept has answered
	}
	defer conn.CloseNow()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(g.ctx, cancel)()
	conn.SetReadLimit(readLimit)
	if !s.admit(ctx, conn) {
		conn.Close(websocket.StatusPolicyViolation, "token refused")
		return
	}
	s.serveClient(ctx, conn)
}

// Session is one command with the two ends that talk about it.
type Session struct {
	ID    string // "ecs-execute-command-…"
	Token string // what a client must present

	command  string
	habits   Habits
	faults   func() Faults
	down, up *link

	telling  sync.Mutex // taken before all other locks
	mu       sync.Mutex
	client   *client // nil while nobody is attached
	worker   *worker // nil while the agent is not there
	lastUse  time.Time
	idle     *time.Timer
	sent     int64 // bytes of output to clients
	received int   // frames of clients
	wasCut   bool
	over     bool
	overAt   time.Time
	overText string
}

// client is an attached websocket with its own writer.
type client struct {
	conn  *websocket.Conn
	queue chan []byte
	last  chan struct{} // closed after the last frame was queued
	once  sync.Once
}

// admit reads the first message and compares its token.
func (s *Session) admit(ctx context.Context, conn *websocket.Conn) bool {
	ctx, cancel := context.WithTimeout(ctx, tokenLimit)
	defer cancel()
	kind, data, err := conn.Read(ctx)
	if err != nil || kind != websocket.MessageText {
		return false
	}
	var first struct {
		Schema string `json:"MessageSchemaVersion"`
		Token  string `json:"TokenValue"`
	}
	if json.Unmarshal(data, &first) != nil || first.Schema != "1.0" || s.faults().RefuseToken {
		return false
	}
	return subtle.ConstantTimeCompare([]byte(first.Token), []byte(s.Token)) == 1
}

// serveClient pumps frames both ways until the socket ends.
func (s *Session) serveClient(ctx context.Context, conn *websocket.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &client{conn: conn, queue: make(chan []byte, outboundQueue), last: make(chan struct{})}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { c.write(ctx) })
	wg.Go(func() { s.repeatPause(ctx, c) })
	s.attach(c)
	defer s.detach(c)
	for {
		kind, data, err := conn.Read(ctx)
		if err != nil {
			return
		}
		if kind != websocket.MessageBinary {
			continue
		}
		s.fromClient(data)
	}
}

func (c *client) write(ctx context.Context) {
	for {
		select {
		case data := <-c.queue:
			if !c.writeOne(ctx, data) {
				return
			}
			continue
		default:
		}
		select {
		case data := <-c.queue:
			if !c.writeOne(ctx, data) {
				return
			}
		case <-c.last:
			if len(c.queue) == 0 {
				c.conn.Close(websocket.StatusNormalClosure, "")
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func (c *client) writeOne(ctx context.Context, data []byte) bool {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	return c.conn.Write(ctx, websocket.MessageBinary, data) == nil
}

// send queues a frame; a client that does not read loses what does not fit.
func (c *client) send(data []byte) {
	select {
	case c.queue <- data:
	default:
	}
}

func (c *client) finish(session, output string) {
	c.once.Do(func() {
		c.send(closed(session, output))
		close(c.last)
	})
}

// attach makes c the session's client in place of an older one, and tells both
// ends whether the other is there.
func (s *Session) attach(c *client) {
	s.mu.Lock()
	old, w, over, text := s.client, s.worker, s.over, s.overText
	s.client = c
	s.lastUse = time.Now()
	switch {
	case over:
	case w != nil:
		c.send(publication(typeStart))
	default:
		c.send(publication(typePause))
	}
	s.mu.Unlock()
	if old != nil {
		old.conn.CloseNow()
	}
	if over {
		c.finish(s.ID, text)
		return
	}
	s.tellAgent()
}

// tellAgent pauses the agent's end or lets it go on, as a client is attached or not.
// The ends come and go at once: whoever tells last has seen both.
func (s *Session) tellAgent() {
	s.telling.Lock()
	defer s.telling.Unlock()
	s.mu.Lock()
	w, attached := s.worker, s.client != nil
	s.mu.Unlock()
	if w != nil {
		w.pause(!attached)
	}
}

func (s *Session) detach(c *client) {
	s.mu.Lock()
	if s.client == c {
		s.client = nil
	}
	s.mu.Unlock()
	s.tellAgent()
}

// repeatPause keeps telling a client that the other end is missing.
func (s *Session) repeatPause(ctx context.Context, c *client) {
	if s.habits.PauseEvery <= 0 {
		return
	}
	ticker := time.NewTicker(s.habits.PauseEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.mu.Lock()
			if s.worker == nil && !s.over {
				c.send(publication(typePause))
			}
			s.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

// fromClient passes a frame to the agent; while the agent is missing it is lost.
func (s *Session) fromClient(data []byte) {
	s.mu.Lock()
	s.lastUse = time.Now()
	s.received++
	w, lost := s.worker, s.received <= s.faults().LoseFirst
	s.mu.Unlock()
	if w != nil && !lost {
		s.up.pass(func() { w.deliver(data) })
	}
}

// toClient passes a frame to the client; while nobody is attached it is lost.
func (s *Session) toClient(data []byte) {
	s.down.pass(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.client == nil {
			return
		}
		s.client.send(data)
		s.countOutput(data)
	})
}

// countOutput notes use and cuts the socket where the faults say so.
func (s *Session) countOutput(data []byte) {
	f, err := parseFrame(data)
	if err != nil || f.kind != typeOutput {
		return
	}
	s.lastUse = time.Now()
	s.sent += int64(len(f.payload))
	if limit := s.faults().CutAfterBytes; limit > 0 && s.sent >= limit && !s.wasCut {
		s.wasCut = true
		go s.client.conn.CloseNow()
	}
}

// join brings the agent's end.
func (s *Session) join(w *worker) {
	s.mu.Lock()
	s.worker = w
	if s.client != nil {
		s.client.send(publication(typeStart))
	}
	s.lastUse = time.Now()
	if s.habits.Idle > 0 {
		s.idle = time.AfterFunc(s.habits.Idle, s.checkIdle)
	}
	s.mu.Unlock()
	s.tellAgent()
}

// leave takes the agent's end away; without an end of the session before, the
// client learns of it by pauses only.
func (s *Session) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.worker = nil
	if s.idle != nil {
		s.idle.Stop()
	}
	if s.client != nil && !s.over {
		s.client.send(publication(typePause))
	}
}

// end closes the session as the agent asked for. An agent whose ctx ended has no
// voice any more.
func (s *Session) end(ctx context.Context, output string) {
	if ctx.Err() == nil {
		s.close(output)
	}
}

func (s *Session) close(output string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	s.over, s.overAt, s.overText = true, time.Now(), output
	if s.client != nil {
		s.client.finish(s.ID, output)
	}
}

func (s *Session) closedFor() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		return 0
	}
	return time.Since(s.overAt)
}

// checkIdle closes a session that was not used for the idle limit; the agent then
// kills the command itself and leaves what it started.
func (s *Session) checkIdle() {
	s.mu.Lock()
	left := s.habits.Idle - time.Since(s.lastUse)
	w := s.worker
	if left > 0 || w == nil {
		s.idle.Reset(max(left, time.Second))
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	s.close("Session timed out due to inactivity.")
	w.cancel()
}
