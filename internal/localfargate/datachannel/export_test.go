package datachannel

import "time"

// Outgoing is the retransmission of the agent, for tests.
type Outgoing = outgoing

// NewOutgoing is what a worker begins with.
func NewOutgoing() *Outgoing { return newOutgoing() }

// Add sends data as the next message.
func (o *outgoing) Add(data string) {
	o.add(time.Now(), func(int64) []byte { return []byte(data) })
}

// Acknowledged takes an acknowledgement that arrives now.
func (o *outgoing) Acknowledged(sequence int64) { o.acknowledged(sequence, time.Now()) }

// Due is what is sent again now, or "".
func (o *outgoing) Due() string {
	data, _ := o.due(time.Now())
	return string(data)
}

// Timeout is the present one.
func (o *outgoing) Timeout() time.Duration { return o.timeout }

// AgentText is what becomes of terminal output.
var AgentText = agentText

// ParseFrame reads a frame and writes it again in both forms.
func ParseFrame(data []byte) (kind string, sequence int64, payload, long, short []byte, err error) {
	f, err := parseFrame(data)
	if err != nil {
		return "", 0, nil, nil, nil, err
	}
	return f.kind, f.sequence, f.payload, f.marshal(), f.marshalShort(), nil
}

// Input is a client's frame.
func Input(sequence int64, payload string) []byte {
	return frame{kind: typeInput, sequence: sequence, id: newID(), payloadType: payloadData, payload: []byte(payload)}.marshal()
}
