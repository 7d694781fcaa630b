package localfargate_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/coder/websocket"
)

// message is a binary frame as these tests' own small client reads it.
type message struct {
	headerLength uint32
	kind         string // with its padding
	sequence     int64
	flags        uint64
	id           string // text form
	payload      []byte
}

func (m message) name() string { return strings.TrimRight(m.kind, " \x00") }

func readMessage(t *testing.T, data []byte) message {
	t.Helper()
	if len(data) < 116 {
		t.Fatalf("frame of %d bytes", len(data))
	}
	m := message{
		headerLength: binary.BigEndian.Uint32(data),
		kind:         string(data[4:36]),
		sequence:     int64(binary.BigEndian.Uint64(data[48:])),
		flags:        binary.BigEndian.Uint64(data[56:]),
	}
	id := append(append([]byte{}, data[72:80]...), data[64:72]...)
	h := hex.EncodeToString(id)
	m.id = h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
	size := binary.BigEndian.Uint32(data[m.headerLength:])
	m.payload = data[m.headerLength+4:]
	if int(size) != len(m.payload) {
		t.Fatalf("%s: payload length %d, want %d", m.name(), size, len(m.payload))
	}
	if sum := sha256.Sum256(m.payload); string(sum[:]) != string(data[80:112]) {
		t.Fatalf("%s: digest does not match", m.name())
	}
	return m
}

func writeMessage(kind string, sequence int64, payloadType uint32, payload []byte) []byte {
	out := make([]byte, 120, 120+len(payload))
	binary.BigEndian.PutUint32(out, 116)
	copy(out[4:36], kind+strings.Repeat(" ", 32))
	binary.BigEndian.PutUint32(out[36:], 1)
	binary.BigEndian.PutUint64(out[40:], uint64(time.Now().UnixMilli()))
	binary.BigEndian.PutUint64(out[48:], uint64(sequence))
	_, _ = rand.Read(out[64:80])
	sum := sha256.Sum256(payload)
	copy(out[80:], sum[:])
	binary.BigEndian.PutUint32(out[112:], payloadType)
	binary.BigEndian.PutUint32(out[116:], uint32(len(payload)))
	return append(out, payload...)
}

// channel is an attached client.
type channel struct {
	t    *testing.T
	conn *websocket.Conn
	next int64 // expected output
	sent int64 // next input
}

// dial opens the socket without a word.
func dial(t *testing.T, session *types.Session) *channel {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), *session.StreamUrl, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(1 << 20)
	t.Cleanup(func() { conn.CloseNow() })
	return &channel{t: t, conn: conn}
}

func (c *channel) open(token string) {
	c.t.Helper()
	first := fmt.Sprintf(`{"MessageSchemaVersion":"1.0","RequestId":"00000000-0000-4000-8000-000000000001","TokenValue":%q,"ClientId":"00000000-0000-4000-8000-000000000002","ClientVersion":"1.3.0.0"}`, token)
	if err := c.conn.Write(c.t.Context(), websocket.MessageText, []byte(first)); err != nil {
		c.t.Fatal(err)
	}
}

func attach(t *testing.T, session *types.Session) *channel {
	t.Helper()
	c := dial(t, session)
	c.open(*session.TokenValue)
	return c
}

// read returns the next frame.
func (c *channel) read() (message, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	_, data, err := c.conn.Read(ctx)
	if err != nil {
		return message{}, err
	}
	return readMessage(c.t, data), nil
}

func (c *channel) acknowledge(m message) {
	payload, _ := json.Marshal(map[string]any{
		"AcknowledgedMessageType": m.name(), "AcknowledgedMessageId": m.id,
		"AcknowledgedMessageSequenceNumber": m.sequence, "IsSequentialMessage": true,
	})
	_ = c.conn.Write(c.t.Context(), websocket.MessageBinary, writeMessage("acknowledge", 0, 0, payload))
}

func (c *channel) typed(text string) {
	c.t.Helper()
	err := c.conn.Write(c.t.Context(), websocket.MessageBinary, writeMessage("input_stream_data", c.sent, 1, []byte(text)))
	if err != nil {
		c.t.Fatal(err)
	}
	c.sent++
}

// transcript is what a whole session showed.
type transcript struct {
	output   string
	messages []message // output only, each once
	seen     []string  // names of all frames, in order
	closed   string    // Output of channel_closed
	ended    bool      // channel_closed came
}

// follow acknowledges everything, duplicates too, puts the output in order, and
// returns at the session's or the socket's end, or when until says so.
func (c *channel) follow(until func(transcript) bool) transcript {
	c.t.Helper()
	var tr transcript
	early := map[int64]message{}
	for {
		m, err := c.read()
		if err != nil {
			if errors.Is(err, context.DeadlineExceeded) {
				c.t.Fatalf("session went silent after %q (%v)", tr.output, tr.seen)
			}
			return tr
		}
		tr.seen = append(tr.seen, m.name())
		switch m.name() {
		case "output_stream_data":
			c.acknowledge(m)
			early[m.sequence] = m
			for next, ok := early[c.next]; ok; next, ok = early[c.next] {
				delete(early, c.next)
				tr.messages = append(tr.messages, next)
				tr.output += string(next.payload)
				c.next++
			}
		case "channel_closed":
			var payload struct{ Output string }
			if err := json.Unmarshal(m.payload, &payload); err != nil {
				c.t.Fatal(err)
			}
			tr.closed, tr.ended = payload.Output, true
			return tr
		}
		if until != nil && until(tr) {
			return tr
		}
	}
}
