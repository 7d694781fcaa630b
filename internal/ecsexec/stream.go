package ecsexec

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

const (
	// clientVersion is the revision of the protocol spoken here: the first whose
	// upgrade is signed for good.
	clientVersion = "1.2.764.0"

	earlyLimit = 10_000  // messages kept that arrived before their turn
	earlyBytes = 8 << 20 // and their payloads together
	sendWindow = 32      // our own messages on the way; the protocol itself has no window

	firstTimeout = 200 * time.Millisecond
	minTimeout   = 10 * time.Millisecond
	maxTimeout   = time.Second
)

var (
	errKMS       = errors.New("the session is encrypted with a KMS key")
	errHandshake = errors.New("the agent asks for an unknown step of the handshake")
)

// stream is the protocol of one session without its socket and without a clock:
// frames in, frames out, the time passed along. Not safe for concurrent use.
type stream struct {
	expected int64           // number of the agent's next message
	early    map[int64]frame // its messages above that
	held     int             // bytes in early

	next    int64       // number of our next message
	waiting []frame     // typed, not yet numbered
	flight  []*outgoing // sent, not acknowledged, in order
	rtt     roundTrip

	paused      bool // the gateway says that the agent is not there
	handshaking bool // between the agent's request and its completion nothing may be typed

	out [][]byte // for the socket, see take
}

// outgoing is a message of ours under way.
type outgoing struct {
	seq   int64
	bytes []byte
	sent  time.Time // last time
	tries int
}

// news is what a frame brought.
type news struct {
	output []byte  // the agent's output, in order
	closed *string // the session is over: the agent's text, empty at an ordinary end
	fault  error   // errKMS or errHandshake: no session will come of it
}

func newStream() *stream { return &stream{early: map[int64]frame{}} }

// take returns what is to be written now, in order.
func (s *stream) take() [][]byte {
	out := s.out
	s.out = nil
	return out
}

// receive takes one binary message. What is malformed, or fails its digest, is
// dropped without an acknowledgement: the agent sends it again.
func (s *stream) receive(now time.Time, b []byte) news {
	f, err := parseFrame(b)
	if err != nil {
		return news{}
	}
	switch f.kind {
	case kindOutput:
		return s.receiveOutput(now, f)
	case kindAck:
		s.acknowledged(now, f)
	case kindPause:
		s.paused = true
	case kindStart:
		s.paused = false
		s.pump(now)
	case kindClosed:
		var body struct{ Output string }
		// A body that cannot be read still closes the session.
		_ = json.Unmarshal(f.payload, &body)
		return news{closed: &body.Output}
	}
	return news{}
}

// receiveOutput acknowledges every sound message, duplicates too: the agent resends
// only its oldest, so a lost acknowledgement would hold up all behind it.
func (s *stream) receiveOutput(now time.Time, f frame) news {
	if !f.intact() || f.seq < 0 {
		return news{}
	}
	s.paused = false // the agent is there, whatever the gateway said last
	if f.seq > s.expected {
		if _, known := s.early[f.seq]; !known {
			if len(s.early) >= earlyLimit || s.held+len(f.payload) > earlyBytes {
				return news{}
			}
			s.early[f.seq] = f
			s.held += len(f.payload)
		}
		s.acknowledge(now, f)
		return news{}
	}
	s.acknowledge(now, f)
	if f.seq < s.expected {
		return news{}
	}
	return s.deliver(now, f)
}

// deliver hands on the expected message and those that waited for it.
func (s *stream) deliver(now time.Time, f frame) news {
	var n news
	for ok := true; ok; {
		s.expected++
		n.output = append(n.output, s.open(now, f, &n)...)
		if f, ok = s.early[s.expected]; ok {
			delete(s.early, s.expected)
			s.held -= len(f.payload)
		}
	}
	s.pump(now)
	return n
}

// open returns the output in a message and acts on the handshake's. Everything
// else (stderr, exit code, flags) this kind of session never sends.
func (s *stream) open(now time.Time, f frame, n *news) []byte {
	switch f.payloadType {
	case payloadOutput:
		return f.payload
	case payloadHandshakeRequest:
		s.handshaking = true
		response, err := shakeHands(f.payload)
		if err != nil {
			n.fault = err
		}
		s.send(now, frame{payloadType: payloadHandshakeResponse, payload: response})
	case payloadHandshakeComplete:
		s.handshaking = false
	}
	return nil
}

// Statuses of a processed handshake action.
const (
	actionDone        = 1
	actionUnsupported = 3
)

type handshakeRequest struct {
	RequestedClientActions []struct{ ActionType string }
}

type handshakeResponse struct {
	ClientVersion          string
	ProcessedClientActions []processedAction
	Errors                 []string
}

type processedAction struct {
	ActionType   string
	ActionStatus int
	ActionResult any
	Error        string
}

// shakeHands answers a handshake request. It accepts any session type and refuses
// everything else, encryption above all; the agent then cancels the session.
func shakeHands(request []byte) ([]byte, error) {
	var asked handshakeRequest
	var fault error
	answer := handshakeResponse{ClientVersion: clientVersion, ProcessedClientActions: []processedAction{}, Errors: []string{}}
	if err := json.Unmarshal(request, &asked); err != nil {
		fault = fmt.Errorf("%w: unreadable request", errHandshake)
		answer.Errors = append(answer.Errors, "unreadable request")
	}
	for _, action := range asked.RequestedClientActions {
		done := processedAction{ActionType: action.ActionType, ActionStatus: actionDone}
		if action.ActionType != "SessionType" {
			done.ActionStatus, done.Error = actionUnsupported, "unsupported action"
			answer.Errors = append(answer.Errors, done.Error)
			fault = errHandshake
			if action.ActionType == "KMSEncryption" {
				fault = errKMS
			}
		}
		answer.ProcessedClientActions = append(answer.ProcessedClientActions, done)
	}
	b, err := json.Marshal(answer)
	return b, errors.Join(fault, err)
}

type acknowledgement struct {
	Type       string `json:"AcknowledgedMessageType"`
	ID         string `json:"AcknowledgedMessageId"`
	Sequence   int64  `json:"AcknowledgedMessageSequenceNumber"`
	Sequential bool   `json:"IsSequentialMessage"`
}

func (s *stream) acknowledge(now time.Time, f frame) {
	body, err := json.Marshal(acknowledgement{f.kind, f.id.String(), f.seq, true})
	if err != nil {
		return // text and numbers: cannot be
	}
	ack := frame{kind: kindAck, created: now, flags: flagsAck, id: newMessageID(), payload: body}
	s.out = append(s.out, ack.marshal())
}

// acknowledged takes a message out of flight. Only one sent once measures the round
// trip: of a repeated one nobody knows which copy was answered.
func (s *stream) acknowledged(now time.Time, f frame) {
	var body acknowledgement
	if json.Unmarshal(f.payload, &body) != nil || body.Type != kindInput {
		return
	}
	for i, o := range s.flight {
		if o.seq != body.Sequence {
			continue
		}
		if o.tries == 1 {
			s.rtt.measure(now.Sub(o.sent))
		}
		s.flight = append(s.flight[:i], s.flight[i+1:]...)
		break
	}
	s.pump(now)
}

// enqueue queues what is to be typed; it leaves when the agent is there, no handshake is
// open and the window has room.
func (s *stream) enqueue(now time.Time, payload []byte) {
	s.waiting = append(s.waiting, frame{payloadType: payloadOutput, payload: payload})
	s.pump(now)
}

func (s *stream) pump(now time.Time) {
	for len(s.waiting) > 0 && !s.paused && !s.handshaking && len(s.flight) < sendWindow {
		f := s.waiting[0]
		s.waiting = s.waiting[1:]
		s.send(now, f)
	}
}

// send numbers a message of ours and puts it in flight.
func (s *stream) send(now time.Time, f frame) {
	f.kind, f.created, f.seq, f.id = kindInput, now, s.next, newMessageID()
	s.next++
	o := &outgoing{seq: f.seq, bytes: f.marshal(), sent: now, tries: 1}
	s.flight = append(s.flight, o)
	s.out = append(s.out, o.bytes)
}

// idle reports whether all that was typed is acknowledged.
func (s *stream) idle() bool { return len(s.waiting) == 0 && len(s.flight) == 0 }

// tick resends our oldest message if its timeout has passed, and returns how long
// the next look may wait; 0 when nothing is due. While the agent is away nothing is
// resent: the gateway drops it.
func (s *stream) tick(now time.Time) time.Duration {
	if len(s.flight) == 0 || s.paused {
		return 0
	}
	o := s.flight[0]
	due := o.sent.Add(s.rtt.timeout(o.tries))
	if now.Before(due) {
		return due.Sub(now)
	}
	o.sent = now
	o.tries++
	s.out = append(s.out, o.bytes)
	return s.rtt.timeout(o.tries)
}

// roundTrip follows the measured time from message to acknowledgement.
type roundTrip struct {
	mean, deviation time.Duration
	known           bool
}

func (r *roundTrip) measure(sample time.Duration) {
	if !r.known {
		r.mean, r.deviation, r.known = sample, sample/2, true
		return
	}
	r.deviation += ((sample - r.mean).Abs() - r.deviation) / 4
	r.mean += (sample - r.mean) / 8
}

// timeout is how long the given try of a message may go unanswered. It doubles with
// each try: a round trip that grew would otherwise never be measured again.
func (r *roundTrip) timeout(try int) time.Duration {
	t := firstTimeout
	if r.known {
		t = max(minTimeout, r.mean+4*r.deviation)
	}
	return min(maxTimeout, t<<min(try-1, 8))
}
