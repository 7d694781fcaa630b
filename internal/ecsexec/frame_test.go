package ecsexec_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
)

// id is 00112233-4455-6677-8899-aabbccddeeff in its usual order.
var id = [16]byte{0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}

func TestFrameLayoutIsTheTables(t *testing.T) {
	want := strings.Join([]string{
		"00000074", // header length 116
		hex.EncodeToString([]byte("input_stream_data               ")),
		"00000001",         // schema
		"0000018bcfe56800", // created
		"0000000000000005", // sequence
		"0000000000000003", // flags
		"8899aabbccddeeff", // the id's second half travels first
		"0011223344556677",
		"9834876dcfb05cb167a5c24953eba58c4ac89b1adf57f28f2f9d09af107ee8f0", // SHA-256 of aaa
		"00000001", // payload type
		"00000003", // payload length
		"616161",
	}, "")
	got := hex.EncodeToString(ecsexec.MarshalFrame(ecsexec.Frame{
		Kind: "input_stream_data", Created: time.UnixMilli(1_700_000_000_000), Seq: 5, Flags: 3,
		ID: id, PayloadType: 1, Payload: []byte("aaa"),
	}))
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if text := ecsexec.FormatID(id); text != "00112233-4455-6677-8899-aabbccddeeff" {
		t.Errorf("id prints as %s", text)
	}
}

func TestParseFrame(t *testing.T) {
	long := agentFrame("output_stream_data", 7, 11, []byte("payload"))
	for _, c := range []struct {
		name string
		in   []byte
		want ecsexec.Frame
	}{
		{"a long header has a payload type", long,
			ecsexec.Frame{Kind: "output_stream_data", Seq: 7, PayloadType: 11, Payload: []byte("payload"), Intact: true}},
		{"a short header has none, and pads with NULs", gatewayFrame("channel_closed", []byte(`{}`)),
			ecsexec.Frame{Kind: "channel_closed", Payload: []byte(`{}`)}},
		{"an empty payload is sound whatever its digest", gatewayFrame("start_publication", nil),
			ecsexec.Frame{Kind: "start_publication", Intact: true}},
		{"bytes after the payload are not the payload's", append(bytes.Clone(long), "more"...),
			ecsexec.Frame{Kind: "output_stream_data", Seq: 7, PayloadType: 11, Payload: []byte("payload"), Intact: true}},
		{"a longer header than known moves the payload", stretch(long, 8),
			ecsexec.Frame{Kind: "output_stream_data", Seq: 7, PayloadType: 11, Payload: []byte("payload"), Intact: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ecsexec.ParseFrame(c.in)
			if err != nil {
				t.Fatal(err)
			}
			if got.Kind != c.want.Kind || got.Seq != c.want.Seq || got.PayloadType != c.want.PayloadType ||
				!bytes.Equal(got.Payload, c.want.Payload) || got.Intact != c.want.Intact {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// stretch puts n bytes between payload type and payload length.
func stretch(b []byte, n int) []byte {
	out := append(append(bytes.Clone(b[:116]), make([]byte, n)...), b[116:]...)
	binary.BigEndian.PutUint32(out, uint32(116+n))
	return out
}

func TestParseFrameRefuses(t *testing.T) {
	whole := agentFrame("output_stream_data", 0, 1, []byte("payload"))
	patch := func(at int, value uint32) []byte {
		b := bytes.Clone(whole)
		binary.BigEndian.PutUint32(b[at:], value)
		return b
	}
	for name, in := range map[string][]byte{
		"nothing":                                nil,
		"a header cut short":                     whole[:100],
		"a payload cut short":                    whole[:len(whole)-1],
		"a header length beyond the message":     patch(0, 4000),
		"a header length that would wrap around": patch(0, 0xffffffff),
		"a header length below the shortest":     patch(0, 111),
		"a payload length that would wrap":       patch(116, 0xffffffff),
	} {
		t.Run(name, func(t *testing.T) {
			if f, err := ecsexec.ParseFrame(in); err == nil {
				t.Errorf("got %+v, want an error", f)
			}
		})
	}
}

func FuzzParseFrame(f *testing.F) {
	f.Add(agentFrame("output_stream_data", 3, 1, []byte("hello")))
	f.Add(gatewayFrame("channel_closed", []byte(`{"Output":"x"}`)))
	f.Add(agentFrame("acknowledge", 0, 0, []byte(`{}`))[:119])
	f.Add(stretch(agentFrame("output_stream_data", 0, 1, nil), 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := ecsexec.ParseFrame(b)
		if err != nil {
			return
		}
		if len(got.Payload) > len(b) {
			t.Fatalf("payload of %d bytes out of %d", len(got.Payload), len(b))
		}
		again, err := ecsexec.ParseFrame(ecsexec.MarshalFrame(got))
		if err != nil {
			t.Fatalf("own frame refused: %v", err)
		}
		if !again.Intact || again.Seq != got.Seq || again.ID != got.ID || again.Flags != got.Flags ||
			again.PayloadType != got.PayloadType || !bytes.Equal(again.Payload, got.Payload) ||
			again.Created.UnixMilli() != got.Created.UnixMilli() || again.Kind != got.Kind {
			t.Errorf("round trip: got %+v, want %+v", again, got)
		}
	})
}
