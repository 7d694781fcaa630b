package datachannel

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"
)

// Message types of the binary frames.
const (
	typeInput        = "input_stream_data"
	typeOutput       = "output_stream_data"
	typeAcknowledge  = "acknowledge"
	typeClosed       = "channel_closed"
	typeStart        = "start_publication"
	typePause        = "pause_publication"
	typeSessionState = "agent_session_state"
)

// Payload types that the agent of an interactive command uses.
const (
	payloadData              uint32 = 1
	payloadSize              uint32 = 3
	payloadHandshakeRequest  uint32 = 5
	payloadHandshakeResponse uint32 = 6
)

// Flags of the binary frames.
const (
	flagSYN uint64 = 1
	flagFIN uint64 = 2
)

// Offsets of the fixed part; integers are big-endian.
const (
	offsetType        = 4
	offsetSchema      = 36
	offsetCreated     = 40
	offsetSequence    = 48
	offsetFlags       = 56
	offsetID          = 64
	offsetDigest      = 80
	offsetPayloadType = 112
	shortHeader       = 112 // the gateway's own messages have no payload type
	longHeader        = 116
)

// frame is one binary message. The id is in the usual order of a UUID.
type frame struct {
	kind        string
	sequence    int64
	flags       uint64
	id          [16]byte
	payloadType uint32
	payload     []byte
}

func newID() (id [16]byte) {
	_, _ = rand.Read(id[:])
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}

func idText(id [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// marshal writes the long form, as both ends do.
func (f frame) marshal() []byte {
	out := f.header(longHeader, ' ')
	binary.BigEndian.PutUint32(out[offsetPayloadType:], f.payloadType)
	return append(out, f.payload...)
}

// marshalShort writes the form of the gateway's own messages.
func (f frame) marshalShort() []byte {
	return append(f.header(shortHeader, 0), f.payload...)
}

func (f frame) header(length int, pad byte) []byte {
	out := make([]byte, length+4, length+4+len(f.payload))
	binary.BigEndian.PutUint32(out, uint32(length))
	copy(out[offsetType:offsetSchema], bytes.Repeat([]byte{pad}, offsetSchema-offsetType))
	copy(out[offsetType:offsetSchema], f.kind)
	binary.BigEndian.PutUint32(out[offsetSchema:], 1)
	binary.BigEndian.PutUint64(out[offsetCreated:], uint64(time.Now().UnixMilli()))
	binary.BigEndian.PutUint64(out[offsetSequence:], uint64(f.sequence))
	binary.BigEndian.PutUint64(out[offsetFlags:], f.flags)
	copy(out[offsetID:], f.id[8:])
	copy(out[offsetID+8:], f.id[:8])
	digest := sha256.Sum256(f.payload)
	copy(out[offsetDigest:], digest[:])
	binary.BigEndian.PutUint32(out[length:], uint32(len(f.payload)))
	return out
}

// parseFrame reads either form. Like the agent it does not look at the digest.
func parseFrame(data []byte) (frame, error) {
	if len(data) < shortHeader+4 {
		return frame{}, fmt.Errorf("read frame: %d bytes are less than a header", len(data))
	}
	length := int(binary.BigEndian.Uint32(data))
	if length < shortHeader || length > len(data)-4 {
		return frame{}, fmt.Errorf("read frame: header length %d in %d bytes", length, len(data))
	}
	size := int(binary.BigEndian.Uint32(data[length:]))
	if size != len(data)-length-4 {
		return frame{}, fmt.Errorf("read frame: payload length %d with %d bytes left", size, len(data)-length-4)
	}
	f := frame{
		kind:     string(bytes.Trim(data[offsetType:offsetSchema], " \x00")),
		sequence: int64(binary.BigEndian.Uint64(data[offsetSequence:])),
		flags:    binary.BigEndian.Uint64(data[offsetFlags:]),
		payload:  data[length+4:],
	}
	copy(f.id[8:], data[offsetID:])
	copy(f.id[:8], data[offsetID+8:])
	if length >= longHeader {
		f.payloadType = binary.BigEndian.Uint32(data[offsetPayloadType:])
	}
	return f, nil
}

// acknowledgement is the payload of an acknowledge message.
type acknowledgement struct {
	Type       string `json:"AcknowledgedMessageType"`
	ID         string `json:"AcknowledgedMessageId"`
	Sequence   int64  `json:"AcknowledgedMessageSequenceNumber"`
	Sequential bool   `json:"IsSequentialMessage"`
}

// acknowledge answers a stream message.
func acknowledge(f frame) []byte {
	payload, _ := json.Marshal(acknowledgement{Type: f.kind, ID: idText(f.id), Sequence: f.sequence, Sequential: true})
	return frame{kind: typeAcknowledge, flags: flagSYN | flagFIN, id: newID(), payload: payload}.marshal()
}

// publication is a start_publication or pause_publication message.
func publication(kind string) []byte {
	return frame{kind: kind, id: newID(), payload: []byte(kind)}.marshalShort()
}

// closed is the gateway's last message; output is empty for an ordinary end.
func closed(session, output string) []byte {
	id := newID()
	payload, _ := json.Marshal(map[string]any{
		"MessageType": typeClosed, "MessageId": idText(id), "DestinationId": session, "SessionId": session,
		"SchemaVersion": 1, "CreatedDate": time.Now().UTC().Format(time.RFC3339Nano), "Output": output,
	})
	return frame{kind: typeClosed, id: id, payload: payload}.marshalShort()
}
