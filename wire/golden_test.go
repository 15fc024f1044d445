package wire_test

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/rdsd/rdsd/wire"
	"github.com/rdsd/rdsd/wire/wiretest"
)

// goldenFrame is one header of testdata/vectors.json: bytes a Linux 6.1 kernel
// put on the wire, with their meaning.
type goldenFrame struct {
	Name      string
	Transport string
	Header    string
	Expect    string // derived frames only: how a kernel reacts
	Decode    struct {
		Sequence, Ack uint64
		Len           uint32
		SPort, DPort  uint16
		Flags, Credit uint8
		Csum          uint16
		CsumOK        *bool `json:"csum_ok"`
		Kind          string
		Extensions    []struct {
			Type     uint8
			ValueHex string `json:"value_hex"`
		}
	}
}

func golden(t testing.TB) (frames, derived []goldenFrame) {
	b, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct{ Frames, Derived []goldenFrame }
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Frames) < 25 || len(v.Derived) < 8 {
		t.Fatalf("%d frames and %d derived ones: the file is not whole", len(v.Frames), len(v.Derived))
	}
	return v.Frames, v.Derived
}

func TestGoldenFrames(t *testing.T) {
	frames, _ := golden(t)
	for _, g := range frames {
		t.Run(g.Name, func(t *testing.T) {
			raw := wiretest.Unhex(t, g.Header)
			var h wire.Header
			if err := h.Parse(raw); err != nil {
				t.Fatal(err)
			}
			want := wire.Header{Seq: g.Decode.Sequence, Ack: g.Decode.Ack, Len: g.Decode.Len, SPort: g.Decode.SPort, DPort: g.Decode.DPort,
				Flags: g.Decode.Flags, Credit: g.Decode.Credit, Csum: g.Decode.Csum}
			copy(want.Ext[:], raw[32:])
			if h != want {
				t.Errorf("parsed  %+v\ndecoded %+v", h, want)
			}
			if n := wire.PayloadLen(raw); n != g.Decode.Len {
				t.Errorf("PayloadLen %d, want %d", n, g.Decode.Len)
			}
			if again := h.Append(nil); !bytes.Equal(again, raw) {
				t.Errorf("encoded %x\nwas     %x", again, raw)
			}
			// Acknowledgements alone exist on IB and between two rdsd.
			if k := h.Kind(g.Transport == "ib").String(); k != g.Decode.Kind {
				t.Errorf("kind %s, want %s", k, g.Decode.Kind)
			}
			checkExtensions(t, &g, &h)
			if g.Transport == "ib" {
				checkChecksum(t, &g, raw)
			} else if h.Csum != 0 || !wire.ChecksumOK(raw) {
				t.Errorf("over TCP the checksum is 0 and accepted; got %#04x", h.Csum)
			}
		})
	}
}

// checkExtensions walks the bytes by the sizes the file gives and compares
// what ParseHandshake makes of them.
func checkExtensions(t *testing.T, g *goldenFrame, h *wire.Header) {
	t.Helper()
	var want wire.Handshake
	at := 0
	for _, x := range g.Decode.Extensions {
		v := wiretest.Unhex(t, x.ValueHex)
		if h.Ext[at] != x.Type || !bytes.Equal(h.Ext[at+1:at+1+len(v)], v) {
			t.Errorf("extension at %d is %x, want type %d %x", at, h.Ext[at:], x.Type, v)
		}
		at += 1 + len(v)
		if x.Type == wire.ExtNPaths {
			want.NPaths = uint16(v[0])<<8 | uint16(v[1])
		}
	}
	if at < wire.ExtLen && h.Ext[at] != wire.ExtEnd {
		t.Errorf("more extensions at %d: %x", at, h.Ext[at:])
	}
	got := wire.ParseHandshake(&h.Ext)
	if got != want {
		t.Errorf("handshake %+v, want %+v", got, want)
	}
	if k := h.Kind(false); k == wire.KindProbe || k == wire.KindProbeReply {
		if got.Encode() != h.Ext {
			t.Errorf("encoded handshake %x, was %x", got.Encode(), h.Ext)
		}
	}
}

func checkChecksum(t *testing.T, g *goldenFrame, raw []byte) {
	t.Helper()
	if g.Decode.CsumOK == nil || wire.ChecksumOK(raw) != *g.Decode.CsumOK {
		t.Error("checksum does not verify as recorded")
	}
	if c := wire.Checksum(raw); c != g.Decode.Csum {
		t.Errorf("checksum %#04x, want %#04x", c, g.Decode.Csum)
	}
	// Computed anew over a header that held something else.
	again := bytes.Clone(raw)
	again[30], again[31] = 0xaa, 0x55
	wire.SetChecksum(again)
	if !bytes.Equal(again, raw) {
		t.Errorf("SetChecksum: %x\nwas          %x", again[30:32], raw[30:32])
	}
	// Every single bit matters, apart from a field of zero: "not computed".
	for bit := range wire.HeaderLen * 8 {
		bad := bytes.Clone(raw)
		bad[bit/8] ^= 1 << (bit % 8)
		if bad[30]|bad[31] != 0 && wire.ChecksumOK(bad) {
			t.Errorf("bit %d flipped and the checksum verifies", bit)
		}
	}
}

// TestDerivedFrames: headers nobody captured, whose meaning to a kernel is known.
func TestDerivedFrames(t *testing.T) {
	_, derived := golden(t)
	check := map[string]func(t *testing.T, h *wire.Header, raw []byte){
		"ib-bad-checksum": func(t *testing.T, h *wire.Header, raw []byte) {
			if wire.ChecksumOK(raw) {
				t.Error("accepted")
			}
		},
		"handshake-ping-npaths-gen-sport": func(t *testing.T, h *wire.Header, raw []byte) {
			want := wire.Handshake{NPaths: 8, GenNum: 0x12345678, SportIdx: true}
			if got := wire.ParseHandshake(&h.Ext); got != want || h.Kind(false) != wire.KindProbe {
				t.Errorf("%v %+v", h.Kind(false), got)
			}
			if want.Encode() != h.Ext {
				t.Errorf("encoded %x, was %x", want.Encode(), h.Ext)
			}
		},
		"exthdr-unknown-type-9-stops": func(t *testing.T, h *wire.Header, raw []byte) {
			if got := wire.ParseHandshake(&h.Ext); got != (wire.Handshake{}) || h.Kind(false) != wire.KindData {
				t.Errorf("%v %+v", h.Kind(false), got)
			}
		},
		"exthdr-runs-out": func(t *testing.T, h *wire.Header, raw []byte) {
			if got := wire.ParseHandshake(&h.Ext); got != (wire.Handshake{GenNum: 7}) {
				t.Errorf("%+v: want the generation, and no NPATHS that passes the end", got)
			}
		},
		"sequence-old-with-flag": func(t *testing.T, h *wire.Header, raw []byte) {
			if h.Flags != wire.FlagRetransmitted || h.Kind(false) != wire.KindData {
				t.Error(h)
			}
		},
		"sequence-old-without-flag": func(t *testing.T, h *wire.Header, raw []byte) {
			if h.Flags != 0 || h.Kind(false) != wire.KindData {
				t.Error(h)
			}
		},
		"congestion-flag-plus-retransmitted": func(t *testing.T, h *wire.Header, raw []byte) {
			if h.Kind(false) != wire.KindNull {
				t.Errorf("%v: flags must equal 0x01 for a map", h.Kind(false))
			}
		},
		"congestion-wrong-length": func(t *testing.T, h *wire.Header, raw []byte) {
			if h.Kind(false) != wire.KindCongMap || h.Len != 100 {
				t.Error(h)
			}
		},
	}
	for _, g := range derived {
		t.Run(g.Name, func(t *testing.T) {
			f := check[g.Name]
			if f == nil {
				t.Fatalf("no test for it; a kernel is expected to: %s", g.Expect)
			}
			raw := wiretest.Unhex(t, g.Header)
			var h wire.Header
			if err := h.Parse(raw); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(h.Append(nil), raw) {
				t.Error("encoding gives other bytes")
			}
			f(t, &h, raw)
		})
	}
}
