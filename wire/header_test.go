package wire

import (
	"errors"
	"math/rand"
	"strings"
	"testing"
)

func TestParseShort(t *testing.T) {
	var h Header
	for _, n := range []int{0, 1, HeaderLen - 1} {
		if err := h.Parse(make([]byte, n)); !errors.Is(err, ErrShort) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if err := h.Parse(make([]byte, HeaderLen+1)); err != nil {
		t.Error(err)
	}
}

// TestKind: how a message is told, to a kernel peer and to an rdsd.
func TestKind(t *testing.T) {
	const data, null, ctl = KindData, KindNull, KindControl
	for _, c := range []struct {
		what         string
		h            Header
		kernel, rdsd Kind
	}{
		{"data", Header{Seq: 1, SPort: 5000, DPort: 4000}, data, data},
		{"data, retransmitted", Header{Seq: 1, SPort: 5000, DPort: 4000, Flags: 4}, data, data},
		{"data, asking for an ack", Header{Seq: 1, SPort: 5000, DPort: 4000, Flags: 2}, data, data},
		{"from the probe's port to a socket", Header{Seq: 1, SPort: 1, DPort: 4000}, data, data},
		{"to port 1 from a socket", Header{Seq: 1, SPort: 5000, DPort: 1}, data, data},
		{"first port", Header{Seq: 1, SPort: 2, DPort: 2}, data, data},
		{"last port", Header{Seq: 1, SPort: 65535, DPort: 65535}, data, data},
		{"map", Header{Flags: 1}, KindCongMap, KindCongMap},
		{"map flag between ports", Header{Seq: 3, SPort: 5000, DPort: 4000, Flags: 1}, KindCongMap, KindCongMap},
		{"map flag and another", Header{Flags: 5}, null, KindAckOnly},
		{"map flag and another between ports", Header{Seq: 3, SPort: 5000, DPort: 4000, Flags: 3}, data, data},
		{"ping", Header{Seq: 1, SPort: 5064}, KindPing, KindPing},
		{"pong", Header{Seq: 1, DPort: 5064}, KindPong, KindPong},
		{"handshake ping", Header{Seq: 1, SPort: 1}, KindProbe, KindProbe},
		{"handshake pong", Header{Seq: 2, DPort: 1}, KindProbeReply, KindProbeReply},
		{"handshake ping of an rdsd", Header{SPort: 1}, KindProbe, KindProbe},
		{"ports 0 and 0", Header{Seq: 9}, null, null},
		{"ports 0 and 0, no sequence", Header{}, null, KindAckOnly},
		{"control", Header{Flags: 0x80}, null, ctl},
		{"control with other flags", Header{Seq: 4, Flags: 0x86}, null, ctl},
		{"control flag between ports", Header{Seq: 4, SPort: 5000, DPort: 4000, Flags: 0x80}, data, ctl},
		{"resume", Header{Seq: 4, SPort: 5000, DPort: 4000, Flags: 0x40}, data, data},
	} {
		if k := c.h.Kind(false); k != c.kernel {
			t.Errorf("%s, from a kernel: %v, want %v", c.what, k, c.kernel)
		}
		if k := c.h.Kind(true); k != c.rdsd {
			t.Errorf("%s, from an rdsd: %v, want %v", c.what, k, c.rdsd)
		}
	}
}

func TestKindNames(t *testing.T) {
	seen := map[string]bool{}
	for k := range KindNull + 1 {
		if s := k.String(); s == "" || seen[s] {
			t.Errorf("kind %d: name %q", k, s)
		} else {
			seen[s] = true
		}
	}
	h := Header{Seq: 7, Ack: 6, Len: 5, SPort: 4, DPort: 3, Flags: 2, Credit: 1}
	if s, want := h.String(), "data seq=7 ack=6 len=5 4>3 flags=0x02 credit=1"; s != want {
		t.Errorf("%q, want %q", s, want)
	}
	if !strings.HasPrefix((&Header{}).String(), "ack-only ") {
		t.Error("an empty header prints as", &Header{})
	}
}

// TestPadding: the four bytes nobody defined are written as zero, whatever was
// there, and ignored when read.
func TestPadding(t *testing.T) {
	b := make([]byte, HeaderLen)
	for i := range b {
		b[i] = 0xff
	}
	h := Header{Seq: 1}
	h.Put(b)
	if b[26]|b[27]|b[28]|b[29] != 0 {
		t.Errorf("padding %x", b[26:30])
	}
	b[27] = 9
	var got Header
	if got.Parse(b); got != h {
		t.Errorf("%+v, want %+v", got, h)
	}
}

// checksumByTheBook sums 16-bit words one by one, as RFC 1071 has it.
func checksumByTheBook(b []byte) uint16 {
	var s uint32
	for i := 0; i < HeaderLen; i += 2 {
		if i == 30 {
			continue
		}
		s += uint32(b[i])<<8 | uint32(b[i+1])
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}

func TestChecksumByTheBook(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	b := make([]byte, HeaderLen)
	for i := range 10000 {
		rng.Read(b)
		if i%3 == 0 { // few bits: carries and the two zeros
			for j := range b {
				b[j] = []byte{0, 0, 0, 0xff}[rng.Intn(4)]
			}
		}
		want := checksumByTheBook(b)
		if want == 0 {
			want = 0xffff
		}
		if c := Checksum(b); c != want {
			t.Fatalf("%x: %#04x, want %#04x", b, c, want)
		}
		if SetChecksum(b); !ChecksumOK(b) || b[30]|b[31] == 0 {
			t.Fatalf("%x does not verify", b)
		}
		var h Header
		h.Parse(b)
		summed, put := make([]byte, HeaderLen), make([]byte, HeaderLen)
		h.PutSummed(summed)
		h.Csum = checksumByTheBook(summed)
		if h.Put(put); h.Csum != 0 && string(put) != string(summed) || !ChecksumOK(summed) || summed[30]|summed[31] == 0 {
			t.Fatalf("%+v is put as %x, with its checksum as %x", h, put, summed)
		}
	}
	all := make([]byte, HeaderLen)
	if Checksum(all) != 0xffff {
		t.Error("of zeros")
	}
	for i := range all {
		all[i] = 0xff
	}
	if Checksum(all) != 0xffff {
		t.Error("of ones: 0 would mean that none was computed")
	}
	if ChecksumOK(all) != true {
		t.Error("ones everywhere verify")
	}
	all[30], all[31] = 0, 0
	if !ChecksumOK(all) {
		t.Error("a stored 0 means not computed and is accepted")
	}
}

func TestHeaderDoesNotAllocate(t *testing.T) {
	b := make([]byte, HeaderLen)
	h := Header{Seq: 1, SPort: 2, DPort: 3}
	if n := testing.AllocsPerRun(100, func() { h.Put(b); SetChecksum(b); h.Parse(b); ChecksumOK(b); h.Kind(true) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
