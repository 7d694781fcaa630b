package ecsexec

import (
	"context"
	"time"

	"github.com/coder/websocket"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// Frame is a frame as tests see it.
type Frame struct {
	Kind        string
	Created     time.Time
	Seq         int64
	Flags       uint64
	ID          [16]byte
	PayloadType uint32
	Payload     []byte
	Intact      bool // after parsing only
}

// MarshalFrame lays a frame out.
func MarshalFrame(f Frame) []byte {
	return frame{
		kind: f.Kind, created: f.Created, seq: f.Seq, flags: f.Flags,
		id: f.ID, payloadType: f.PayloadType, payload: f.Payload,
	}.marshal()
}

// ParseFrame reads a frame.
func ParseFrame(b []byte) (Frame, error) {
	f, err := parseFrame(b)
	return Frame{f.kind, f.created, f.seq, f.flags, f.id, f.payloadType, f.payload, f.intact()}, err
}

// FormatID prints a message id as acknowledgements do.
func FormatID(id [16]byte) string { return messageID(id).String() }

// Command returns the command string and the typed lines for a script.
func Command(mark, script string, input []byte, limits Limits, left time.Duration) (string, [][]byte) {
	j := prepare(assignment{mark, script, input, limits.orDefaults(), left})
	return j.command, j.typed
}

// Socket is what a session needs of a WebSocket.
type Socket interface {
	Read(context.Context) (websocket.MessageType, []byte, error)
	Write(context.Context, websocket.MessageType, []byte) error
	Ping(context.Context) error
	CloseNow() error
}

// Attend runs a session on a socket that is open already.
func Attend(ctx context.Context, conn Socket, mark string, typed [][]byte, limits Limits) (core.ExecResult, *core.ExecError) {
	limits = limits.orDefaults()
	s := &session{conn: conn, limits: limits, stream: newStream(), reply: newReply(mark, limits.Stdout), typed: typed}
	result, f := s.run(ctx, "token")
	if f != nil {
		return result, f.export(core.ExecTarget{})
	}
	return result, nil
}

// Stream is the protocol without a socket.
type Stream struct{ s *stream }

// NewStream returns a session's protocol at its start.
func NewStream() Stream { return Stream{newStream()} }

// Receive takes a message and returns the output it completes.
func (s Stream) Receive(now time.Time, b []byte) []byte { return s.s.receive(now, b).output }

// Type queues keystrokes.
func (s Stream) Type(now time.Time, b []byte) { s.s.enqueue(now, b) }

// Tick resends what is due.
func (s Stream) Tick(now time.Time) time.Duration { return s.s.tick(now) }

// Take returns what is to be written.
func (s Stream) Take() [][]byte { return s.s.take() }

// Reply collects output and looks for the trailer.
type Reply struct{ r *reply }

// NewReply returns an empty reply.
func NewReply(mark string, limit int) Reply { return Reply{newReply(mark, limit)} }

// Add takes output.
func (r Reply) Add(p []byte) (bool, error) { return r.r.add(p) }

// Result decodes the answer.
func (r Reply) Result() ([]byte, int, error) { return r.r.result() }
