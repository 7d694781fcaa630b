package ecsexec

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Message types.
const (
	kindInput   = "input_stream_data"
	kindOutput  = "output_stream_data"
	kindAck     = "acknowledge"
	kindClosed  = "channel_closed"
	kindStart   = "start_publication"
	kindPause   = "pause_publication"
	flagsAck    = 3 // SYN and FIN, as both genuine ends send it
	schemaOne   = 1
	offKind     = 4
	offSchema   = 36
	offCreated  = 40
	offSeq      = 48
	offFlags    = 56
	offID       = 64
	offDigest   = 80
	offType     = 112
	shortHeader = 112 // messages that the gateway makes itself: no payload type
	longHeader  = 116
	lengthSize  = 4
)

// Payload types.
const (
	payloadNone              = 0
	payloadOutput            = 1
	payloadHandshakeRequest  = 5
	payloadHandshakeResponse = 6
	payloadHandshakeComplete = 7
)

var errFrame = errors.New("malformed frame")

// frame is one binary message of the data channel.
type frame struct {
	kind        string
	created     time.Time
	seq         int64
	flags       uint64
	id          messageID
	digest      [sha256.Size]byte
	payloadType uint32 // payloadNone where the header has no such field
	payload     []byte
}

// messageID is a UUID in its usual byte order.
type messageID [16]byte

// newMessageID returns a random version 4 UUID.
func newMessageID() messageID {
	var id messageID
	rand.Read(id[:]) // never fails: crypto/rand aborts the process instead
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}

func (id messageID) String() string {
	h := hex.EncodeToString(id[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// swapped exchanges the two halves: the order in which a UUID travels. It is its
// own inverse.
func (id messageID) swapped() messageID {
	var out messageID
	copy(out[:8], id[8:])
	copy(out[8:], id[:8])
	return out
}

// marshal lays the frame out with the long header. The digest is computed, never
// taken from the frame.
func (f frame) marshal() []byte {
	b := make([]byte, longHeader+lengthSize+len(f.payload))
	binary.BigEndian.PutUint32(b, longHeader)
	copy(b[offKind:offSchema], bytes.Repeat([]byte{' '}, offSchema-offKind))
	copy(b[offKind:offSchema], f.kind)
	binary.BigEndian.PutUint32(b[offSchema:], schemaOne)
	binary.BigEndian.PutUint64(b[offCreated:], uint64(f.created.UnixMilli()))
	binary.BigEndian.PutUint64(b[offSeq:], uint64(f.seq))
	binary.BigEndian.PutUint64(b[offFlags:], f.flags)
	id, sum := f.id.swapped(), sha256.Sum256(f.payload)
	copy(b[offID:], id[:])
	copy(b[offDigest:], sum[:])
	binary.BigEndian.PutUint32(b[offType:], f.payloadType)
	binary.BigEndian.PutUint32(b[longHeader:], uint32(len(f.payload)))
	copy(b[longHeader+lengthSize:], f.payload)
	return b
}

// parseFrame reads a frame of either header length. The payload aliases b. Every
// length is checked against b, so that no input makes it panic; the digest is not
// checked here, see intact.
func parseFrame(b []byte) (frame, error) {
	if len(b) < shortHeader+lengthSize {
		return frame{}, fmt.Errorf("%w: %d bytes", errFrame, len(b))
	}
	header := uint64(binary.BigEndian.Uint32(b))
	if header < shortHeader || header+lengthSize > uint64(len(b)) {
		return frame{}, fmt.Errorf("%w: header length %d of %d bytes", errFrame, header, len(b))
	}
	size := uint64(binary.BigEndian.Uint32(b[header:]))
	body := b[header+lengthSize:]
	if size > uint64(len(body)) {
		return frame{}, fmt.Errorf("%w: payload length %d of %d bytes", errFrame, size, len(body))
	}
	f := frame{
		kind:    string(bytes.Trim(b[offKind:offSchema], " \x00")),
		created: time.UnixMilli(int64(binary.BigEndian.Uint64(b[offCreated:]))),
		seq:     int64(binary.BigEndian.Uint64(b[offSeq:])),
		flags:   binary.BigEndian.Uint64(b[offFlags:]),
		id:      messageID(b[offID:offDigest]).swapped(),
		digest:  [sha256.Size]byte(b[offDigest:offType]),
		payload: body[:size],
	}
	if header >= longHeader {
		f.payloadType = binary.BigEndian.Uint32(b[offType:])
	}
	return f, nil
}

// intact reports whether the digest is that of the payload. Only the agent's
// stream messages are judged by it: clients that never sent a right digest are
// about, and the gateway's own messages carry none.
func (f frame) intact() bool {
	return len(f.payload) == 0 || sha256.Sum256(f.payload) == f.digest
}
