package datachannel

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/google/shlex"

	"github.com/sandkeeper/sandkeeper/internal/localfargate/terminal"
)

// Process is a command that runs on a session's terminal.
type Process interface {
	// Done is closed when the command itself ended.
	Done() <-chan struct{}
	// Kill ends the command itself, not what it started.
	Kill()
}

// Resizer is a [Process] whose terminal is another than the one it was given, and is
// told of that one's size.
type Resizer interface {
	Resize(columns, rows uint16)
}

// Runner starts commands inside a container.
type Runner interface {
	// Run starts argv as leader of a session whose controlling terminal is tty. The
	// error's text is told to the client.
	Run(argv []string, tty *os.File) (Process, error)
	// Alive says whether the container lives. It is asked when a terminal falls
	// silent: the death of a container ends its terminals first, and with it goes the
	// agent, which then must not report an ordinary end.
	Alive() bool
}

// The agent runs two sessions, lets one wait, and takes no more from its control
// channel until there is room: leaked sessions keep later ones from starting.
const (
	workerSlots   = 2
	waitingSlots  = 1
	readSize      = 1024
	inboundQueue  = 10_000
	drainPoll     = 10 * time.Millisecond
	failurePrefix = "----------ERROR-------\nUnable to start command: Failed to start pty: "
)

// Agent is the ECS Exec agent of one container.
type Agent struct {
	runner Runner
	habits Habits
	ctx    context.Context // ends with the container, not with a call
	cancel context.CancelFunc
	jobs   chan *Session

	mu      sync.Mutex
	control []*Session // commands that the control channel still holds
	arrived chan struct{}
	wg      sync.WaitGroup
}

// NewAgent starts an agent; [Agent.Stop] ends it with its container.
func NewAgent(runner Runner, habits Habits) *Agent {
	ctx, cancel := context.WithCancel(context.Background())
	a := &Agent{
		runner: runner, habits: habits, ctx: ctx, cancel: cancel,
		jobs: make(chan *Session, waitingSlots), arrived: make(chan struct{}, 1),
	}
	a.wg.Go(a.readControl)
	for range workerSlots {
		a.wg.Go(a.work)
	}
	return a
}

// Stop ends the agent as the death of its container does: at once, without a
// word to the gateway. It returns when nothing of it runs.
func (a *Agent) Stop() {
	a.cancel()
	a.wg.Wait()
}

// command hands a new session to the agent's control channel.
func (a *Agent) command(s *Session) {
	a.mu.Lock()
	a.control = append(a.control, s)
	a.mu.Unlock()
	select {
	case a.arrived <- struct{}{}:
	default:
	}
}

func (a *Agent) readControl() {
	for {
		select {
		case <-a.arrived:
		case <-a.ctx.Done():
			return
		}
		for s := a.nextCommand(); s != nil; s = a.nextCommand() {
			select {
			case a.jobs <- s:
			case <-a.ctx.Done():
				return
			}
		}
	}
}

func (a *Agent) nextCommand() *Session {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.control) == 0 {
		return nil
	}
	s := a.control[0]
	a.control = a.control[1:]
	return s
}

func (a *Agent) work() {
	for {
		select {
		case s := <-a.jobs:
			if !s.faults().NeverJoins {
				a.serve(s)
			}
		case <-a.ctx.Done():
			return
		}
	}
}

// serve runs one session from its first process to its end.
func (a *Agent) serve(s *Session) {
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	w := &worker{session: s, habits: a.habits, cancel: cancel, out: newOutgoing(), early: map[int64]frame{}, resumed: make(chan struct{})}
	w.inbound = make(chan []byte, inboundQueue)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { w.receive(ctx) })
	wg.Go(func() { w.resend(ctx) })
	s.join(w)
	defer s.leave()

	if text := w.refusal(ctx); text != "" {
		sleep(ctx, a.habits.StartFailure)
		s.end(ctx, text)
		return
	}
	process, err := w.start(a.runner, s.command)
	if err != nil {
		sleep(ctx, a.habits.StartFailure)
		s.end(ctx, failurePrefix+err.Error())
		return
	}
	if banner := s.faults().Banner; banner != "" {
		w.send([]byte(banner))
	}
	stopClosing := context.AfterFunc(ctx, func() { w.terminal.Close() })
	w.pump(ctx)
	w.drain(ctx)
	if ctx.Err() != nil {
		process.Kill()
	}
	if stopClosing() {
		w.terminal.Close()
	}
	if a.runner.Alive() {
		s.end(ctx, s.faults().EndText)
	}
}

// worker is the agent's side of one session.
type worker struct {
	session *Session
	habits  Habits
	cancel  context.CancelFunc
	out     *outgoing
	inbound chan []byte

	mu       sync.Mutex
	terminal *os.File // nil until the command runs
	command  Process  // nil until the command runs
	expected int64
	early    map[int64]frame
	paused   bool
	resumed  chan struct{} // closed when not paused any more
	answers  chan []byte   // takes the response while a handshake is open
}

// start splits the command as the agent does, without a shell, and runs it.
func (w *worker) start(runner Runner, command string) (Process, error) {
	argv, err := shlex.Split(command)
	if err != nil {
		return nil, err
	}
	if len(argv) == 0 {
		return nil, errors.New("command is empty")
	}
	master, tty, err := terminal.Open()
	if err != nil {
		return nil, err
	}
	defer tty.Close()
	process, err := runner.Run(argv, tty)
	if err != nil {
		master.Close()
		return nil, err
	}
	w.mu.Lock()
	w.terminal, w.command = master, process
	w.mu.Unlock()
	return process, nil
}

// pump sends what the terminal says until nothing holds the terminal any more.
func (w *worker) pump(ctx context.Context) {
	sleep(ctx, w.habits.FirstOutput)
	var buf [readSize]byte
	var rest []byte
	for w.active(ctx) {
		n, err := w.terminal.Read(buf[:])
		var text []byte
		text, rest = agentText(append(rest, buf[:n]...))
		if len(text) > 0 {
			w.send(text)
		}
		if err != nil {
			return
		}
		sleep(ctx, w.habits.AfterRead)
	}
}

func (w *worker) send(text []byte) { w.say(payloadData, text) }

// say sends a stream message of any payload type.
func (w *worker) say(payloadType uint32, payload []byte) {
	data := w.out.add(time.Now(), func(sequence int64) []byte {
		f := frame{kind: typeOutput, sequence: sequence, id: newID(), payloadType: payloadType, payload: payload}
		if sequence == 0 {
			f.flags = flagSYN
		}
		return f.marshal()
	})
	w.session.toClient(data)
}

// drain waits for acknowledgements, but not for long; the rest is lost.
func (w *worker) drain(ctx context.Context) {
	deadline := time.Now().Add(w.habits.Drain)
	for !w.out.empty() && time.Now().Before(deadline) && ctx.Err() == nil {
		sleep(ctx, drainPoll)
	}
}

func (w *worker) resend(ctx context.Context) {
	ticker := time.NewTicker(resendTick)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			if data, ok := w.out.due(now); ok {
				w.session.toClient(data)
			}
		case <-ctx.Done():
			return
		}
	}
}

// deliver takes a frame of the client's; it never blocks.
func (w *worker) deliver(data []byte) {
	select {
	case w.inbound <- data:
	default:
	}
}

func (w *worker) receive(ctx context.Context) {
	for {
		select {
		case data := <-w.inbound:
			if f, err := parseFrame(data); err == nil {
				w.take(f)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (w *worker) take(f frame) {
	switch f.kind {
	case typeAcknowledge:
		w.pause(false)
		var ack acknowledgement
		if json.Unmarshal(f.payload, &ack) == nil {
			w.out.acknowledged(ack.Sequence, time.Now())
		}
	case typeInput:
		w.pause(false)
		w.input(f)
	}
}

// input takes stream messages in order. What cannot be processed yet, because
// there is no terminal, is not acknowledged and comes again.
func (w *worker) input(f frame) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case f.sequence < w.expected:
		w.session.toClient(acknowledge(f))
	case f.sequence > w.expected:
		if len(w.early) < incomingLimit {
			w.early[f.sequence] = f
			w.session.toClient(acknowledge(f))
		}
	case w.process(f):
		w.session.toClient(acknowledge(f))
		w.expected++
		for next, ok := w.early[w.expected]; ok && w.process(next); next, ok = w.early[w.expected] {
			delete(w.early, w.expected)
			w.expected++
		}
	}
}

// process acts on one stream message; unknown payload types are ignored.
func (w *worker) process(f frame) bool {
	if w.answers != nil {
		w.shake(f)
		return true
	}
	if w.terminal == nil {
		return false
	}
	switch f.payloadType {
	case payloadData:
		_, _ = w.terminal.Write(f.payload)
	case payloadSize:
		var size struct {
			Cols uint16 `json:"cols"`
			Rows uint16 `json:"rows"`
		}
		if json.Unmarshal(f.payload, &size) == nil {
			_ = terminal.Resize(w.terminal, size.Cols, size.Rows)
			if other, ok := w.command.(Resizer); ok {
				other.Resize(size.Cols, size.Rows)
			}
		}
	}
	return true
}

// pause stops or goes on with reading the terminal.
func (w *worker) pause(paused bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case paused && !w.paused:
		w.resumed = make(chan struct{})
	case !paused && (w.paused || !isClosed(w.resumed)):
		close(w.resumed)
	}
	w.paused = paused
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// active waits until the session is not paused; false means that it is over.
func (w *worker) active(ctx context.Context) bool {
	w.mu.Lock()
	resumed := w.resumed
	w.mu.Unlock()
	select {
	case <-resumed:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
