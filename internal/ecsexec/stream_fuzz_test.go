package ecsexec_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
)

// moves are what a hostile far end does, a byte each: a message's kind, number and
// payload are drawn from them.
func moves(script []byte) []ecsexec.Frame {
	kinds := []string{"output_stream_data", "output_stream_data", "output_stream_data", "acknowledge", "pause_publication", "start_publication", "x", "output_stream_data"}
	bodies := [][]byte{
		[]byte(`{"AcknowledgedMessageType":"input_stream_data","AcknowledgedMessageSequenceNumber":0}`),
		[]byte(`{"AcknowledgedMessageType":"input_stream_data","AcknowledgedMessageSequenceNumber":-1}`),
		[]byte(`{"RequestedClientActions":[{"ActionType":"SessionType"},{"ActionType":"KMSEncryption"}]}`),
		[]byte(`[[[`), {},
	}
	types := []uint32{1, 1, 1, 5, 7, 11, 12, 0xffffffff}
	var out []ecsexec.Frame
	for _, c := range script {
		f := ecsexec.Frame{Kind: kinds[c&7], Seq: int64(c>>3&7) - 1, PayloadType: types[c>>5], ID: [16]byte{c}}
		f.Payload = bodies[int(c)%len(bodies)]
		if f.PayloadType == 1 && f.Kind == "output_stream_data" {
			f.Payload = []byte{'0' + byte(f.Seq)}
		}
		out = append(out, f)
	}
	return out
}

// FuzzStream lets messages come in any order, twice, early or malformed: output is
// given once and in order, and everything written is a sound message.
func FuzzStream(f *testing.F) {
	f.Add([]byte{8, 24, 16, 8, 32}, true)
	f.Add([]byte{0xa8, 0x88, 0xe8, 3, 4, 5, 6, 7}, false)
	f.Add([]byte{16, 16, 16, 12, 13, 8}, true)
	f.Fuzz(func(t *testing.T, script []byte, cut bool) {
		s := ecsexec.NewStream()
		now := time.Unix(1_700_000_000, 0)
		var got []byte
		s.Type(now, []byte("typed"))
		for _, m := range moves(script) {
			message := ecsexec.MarshalFrame(m)
			if cut && len(script)%3 == 0 {
				message = message[:len(message)-1]
			}
			got = append(got, s.Receive(now, message)...)
			now = now.Add(50 * time.Millisecond)
			s.Tick(now)
			for _, written := range s.Take() {
				check(t, written)
			}
		}
		for i := range got {
			if i > 0 && got[i] <= got[i-1] || got[i] < '0' || got[i] > '6' {
				t.Fatalf("output %q: want each message once and in order", got)
			}
		}
	})
}

func check(t *testing.T, written []byte) {
	t.Helper()
	f, err := ecsexec.ParseFrame(written)
	if err != nil || !f.Intact {
		t.Fatalf("written: %q, %v", written, err)
	}
	if f.Kind == "acknowledge" && !json.Valid(f.Payload) || f.Kind != "acknowledge" && f.Kind != "input_stream_data" {
		t.Errorf("written: %s with %q", f.Kind, f.Payload)
	}
}

// FuzzStreamBytes feeds whatever bytes come.
func FuzzStreamBytes(f *testing.F) {
	f.Add(ecsexec.MarshalFrame(ecsexec.Frame{Kind: "channel_closed", Payload: []byte(`{"Output":"x"}`)}))
	f.Add(ecsexec.MarshalFrame(ecsexec.Frame{Kind: "output_stream_data", PayloadType: 5, Payload: []byte(`{"RequestedClientActions":null}`)}))
	f.Add([]byte{0, 0, 0, 112})
	f.Fuzz(func(t *testing.T, message []byte) {
		s := ecsexec.NewStream()
		now := time.Unix(1_700_000_000, 0)
		out := s.Receive(now, message)
		if len(out) > len(message) {
			t.Errorf("%d bytes of output from %d", len(out), len(message))
		}
		if again := s.Receive(now, message); len(again) > 0 {
			t.Errorf("a message twice gives %q again", again)
		}
		for _, written := range s.Take() {
			check(t, written)
		}
	})
}
