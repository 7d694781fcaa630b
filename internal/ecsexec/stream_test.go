package ecsexec_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
)

var begun = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func output(seq int64, text string) []byte {
	return agentFrame("output_stream_data", seq, 1, []byte(text))
}

// acked lists what the messages acknowledge, as type and number.
func acked(t *testing.T, messages [][]byte) []string {
	t.Helper()
	var out []string
	for _, b := range messages {
		f, err := ecsexec.ParseFrame(b)
		if err != nil || f.Kind != "acknowledge" || f.Flags != 3 || f.Seq != 0 || !f.Intact {
			t.Fatalf("got %+v, %v; want an acknowledgement", f, err)
		}
		var ack struct {
			AcknowledgedMessageType           string
			AcknowledgedMessageID             string `json:"AcknowledgedMessageId"`
			AcknowledgedMessageSequenceNumber int64
			IsSequentialMessage               bool
		}
		if err := json.Unmarshal(f.Payload, &ack); err != nil || !ack.IsSequentialMessage || len(ack.AcknowledgedMessageID) != 36 {
			t.Fatalf("acknowledgement %s: %v", f.Payload, err)
		}
		out = append(out, fmt.Sprint(ack.AcknowledgedMessageType, " ", ack.AcknowledgedMessageSequenceNumber))
	}
	return out
}

func TestOutputArrivesInOrderAndIsAlwaysAcknowledged(t *testing.T) {
	s := ecsexec.NewStream()
	for _, c := range []struct {
		name   string
		in     []byte
		output string
		acks   int
	}{
		{"the second message early", output(1, "b"), "", 1},
		{"the same again", output(1, "b"), "", 1},
		{"the fourth, earlier still", output(3, "d"), "", 1},
		{"the first releases the second", output(0, "a"), "ab", 1},
		{"a duplicate of what was delivered", output(0, "a"), "", 1},
		{"stderr takes a number but is no output", agentFrame("output_stream_data", 2, 11, []byte("no")), "d", 1},
		{"a wrong digest is dropped unacknowledged", spoil(output(4, "e")), "", 0},
		{"its repetition is taken", output(4, "e"), "e", 1},
		{"a negative number is dropped", output(-1, "x"), "", 0},
		{"a malformed message is dropped", output(5, "f")[:118], "", 0},
		{"an unknown type is dropped", agentFrame("agent_session_state", 5, 0, []byte("{}")), "", 0},
	} {
		got := s.Receive(begun, c.in)
		acks := acked(t, s.Take())
		if string(got) != c.output || len(acks) != c.acks {
			t.Errorf("%s: got %q and acknowledgements %v; want %q and %d", c.name, got, acks, c.output, c.acks)
		}
	}
}

func spoil(b []byte) []byte {
	b[80] ^= 1
	return b
}

func TestAcknowledgementCarriesTheIDInItsUsualForm(t *testing.T) {
	b := output(0, "a")
	copy(b[64:], []byte{0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77})
	s := ecsexec.NewStream()
	s.Receive(begun, b)
	if ack := s.Take()[0]; !bytes.Contains(ack, []byte(`"00112233-4455-6677-8899-aabbccddeeff"`)) {
		t.Errorf("got %s", ack[120:])
	}
}

func TestEarlyOutputIsBounded(t *testing.T) {
	s := ecsexec.NewStream()
	kept := 0
	for seq := int64(1); seq <= 10_100; seq++ {
		s.Receive(begun, output(seq, ""))
		kept += len(s.Take())
	}
	if kept != 10_000 {
		t.Errorf("small messages kept: got %d, want 10000", kept)
	}
	s = ecsexec.NewStream()
	kept = 0
	for seq := int64(1); seq <= 20; seq++ {
		s.Receive(begun, output(seq, strings.Repeat("x", 1<<20-200)))
		kept += len(s.Take())
	}
	if kept != 8 {
		t.Errorf("large messages kept: got %d, want 8", kept)
	}
}

// ackOf acknowledges our message of that number, as the agent would.
func ackOf(seq int64) []byte {
	return agentFrame("acknowledge", 0, 0, fmt.Appendf(nil,
		`{"AcknowledgedMessageType":"input_stream_data","AcknowledgedMessageId":"x","AcknowledgedMessageSequenceNumber":%d,"IsSequentialMessage":true}`, seq))
}

// sent lists the numbers of our stream messages.
func sent(messages [][]byte) []int64 {
	var out []int64
	for _, b := range messages {
		if f, err := ecsexec.ParseFrame(b); err == nil && f.Kind == "input_stream_data" {
			out = append(out, f.Seq)
		}
	}
	return out
}

func TestOldestMessageIsRepeatedUntilAcknowledged(t *testing.T) {
	s, now := ecsexec.NewStream(), begun
	s.Type(now, []byte("a"))
	s.Type(now, []byte("b"))
	first := s.Take()
	if got := sent(first); len(got) != 2 || got[0] != 0 || got[1] != 1 {
		t.Fatalf("sent %v, want 0 and 1", got)
	}
	if wait := s.Tick(now); wait != 200*time.Millisecond {
		t.Fatalf("first timeout: got %v", wait)
	}
	now = now.Add(199 * time.Millisecond)
	if s.Tick(now); len(s.Take()) != 0 {
		t.Error("repeated before the timeout")
	}
	for _, next := range []time.Duration{400, 800, 1000, 1000} {
		now = now.Add(s.Tick(now))
		wait := s.Tick(now)
		again := s.Take()
		if len(again) != 1 || !bytes.Equal(again[0], first[0]) {
			t.Fatalf("repeated %v, want the first message unchanged", sent(again))
		}
		if wait != next*time.Millisecond {
			t.Errorf("next timeout: got %v, want %v", wait, next*time.Millisecond)
		}
	}
	s.Receive(now, ackOf(0))
	s.Receive(now, ackOf(0)) // a duplicate is harmless
	s.Tick(now)
	if got := sent(s.Take()); len(got) != 1 || got[0] != 1 {
		t.Errorf("repeated %v, want 1, the oldest now", got)
	}
	s.Receive(now, ackOf(1))
	if wait := s.Tick(now.Add(time.Hour)); wait != 0 || len(s.Take()) != 0 {
		t.Error("all is acknowledged, and something is still due")
	}
}

func TestTimeoutFollowsTheRoundTrip(t *testing.T) {
	for _, c := range []struct {
		name    string
		samples []time.Duration
		want    time.Duration
	}{
		{"none measured", nil, 200 * time.Millisecond},
		{"one sample: itself and four times half of it", []time.Duration{40 * time.Millisecond}, 120 * time.Millisecond},
		{"a steady one shrinks its deviation by a quarter", []time.Duration{40 * time.Millisecond, 40 * time.Millisecond}, 100 * time.Millisecond},
		{"mean moves by an eighth", []time.Duration{40 * time.Millisecond, 80 * time.Millisecond}, 145 * time.Millisecond},
		{"at least 10 ms", []time.Duration{time.Microsecond}, 10 * time.Millisecond},
		{"at most 1 s", []time.Duration{10 * time.Second}, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, now := ecsexec.NewStream(), begun
			for i, sample := range c.samples {
				s.Type(now, []byte("x"))
				now = now.Add(sample)
				s.Receive(now, ackOf(int64(i)))
			}
			s.Type(now, []byte("x"))
			if got := s.Tick(now); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestTypingWaitsForTheAgent(t *testing.T) {
	s, now := ecsexec.NewStream(), begun
	s.Receive(now, gatewayFrame("pause_publication", nil))
	s.Type(now, []byte("a"))
	if len(s.Take()) != 0 {
		t.Fatal("typed into a pause")
	}
	s.Receive(now, gatewayFrame("start_publication", nil))
	if got := sent(s.Take()); len(got) != 1 {
		t.Fatalf("sent %v after the start, want one", got)
	}
	s.Receive(now, gatewayFrame("pause_publication", nil))
	if s.Tick(now.Add(time.Minute)); len(s.Take()) != 0 {
		t.Error("repeated into a pause")
	}
	s.Receive(now, output(0, "there"))
	s.Take()
	if s.Tick(now.Add(time.Minute)); len(sent(s.Take())) != 1 {
		t.Error("output did not end the pause")
	}
}

func TestTypingIsLimitedByAWindow(t *testing.T) {
	s := ecsexec.NewStream()
	for range 100 {
		s.Type(begun, []byte("x"))
	}
	if got := sent(s.Take()); len(got) != 32 {
		t.Fatalf("on the way: %d, want 32", len(got))
	}
	s.Receive(begun, ackOf(5))
	if got := sent(s.Take()); len(got) != 1 || got[0] != 32 {
		t.Errorf("sent %v after one acknowledgement, want 32", got)
	}
}

func TestHandshakeHoldsTypingBack(t *testing.T) {
	s := ecsexec.NewStream()
	s.Receive(begun, agentFrame("output_stream_data", 0, 5,
		[]byte(`{"AgentVersion":"3.3","RequestedClientActions":[{"ActionType":"SessionType","ActionParameters":{"SessionType":"InteractiveCommands"}}]}`)))
	s.Type(begun, []byte("x"))
	out := s.Take()
	if got := sent(out); len(out) != 2 || len(got) != 1 {
		t.Fatalf("got %d messages, want an acknowledgement and a response", len(out))
	}
	response := out[1]
	if binary.BigEndian.Uint32(response[112:]) != 6 {
		response = out[0]
	}
	f, err := ecsexec.ParseFrame(response)
	if err != nil || f.PayloadType != 6 || !bytes.Contains(f.Payload, []byte(`{"ActionType":"SessionType","ActionStatus":1,`)) {
		t.Errorf("response %s, %v", f.Payload, err)
	}
	s.Receive(begun, agentFrame("output_stream_data", 1, 7, []byte(`{}`)))
	if got := sent(s.Take()); len(got) != 1 || got[0] != 1 {
		t.Errorf("sent %v once it was complete, want 1", got)
	}
}
