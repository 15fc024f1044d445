package wire

import (
	"testing"
)

// oldKernel walks an extension space as kernel 6.1 does: a type below 16 that
// it does not know has no payload for it. It returns what it understood.
func oldKernel(e [ExtLen]byte) (npaths uint16, gen uint32, unknown []byte) {
	size := map[byte]int{ExtVersion: 4, ExtRDMA: 4, ExtRDMADest: 8, ExtNPaths: 2, ExtGenNum: 4}
	for n := 0; n < ExtLen; {
		t := e[n]
		n++
		if t == ExtEnd || t >= 16 || n+size[t] > ExtLen {
			return
		}
		switch t {
		case ExtNPaths:
			npaths = uint16(e[n])<<8 | uint16(e[n+1])
		case ExtGenNum:
			gen = uint32(e[n])<<24 | uint32(e[n+1])<<16 | uint32(e[n+2])<<8 | uint32(e[n+3])
		}
		if _, ok := size[t]; !ok {
			unknown = append(unknown, t)
		}
		n += size[t]
	}
	return
}

var someHello = Hello{Version: 1, Lanes: 8, CreditLog2: 12, Incarnation: 0x0506050605060506} // bytes that look like types

// TestHandshakeToOldKernel: whatever we say, a kernel reads the kernel's part
// and nothing of ours.
func TestHandshakeToOldKernel(t *testing.T) {
	for _, x := range []Handshake{
		{NPaths: 1}, {NPaths: 8},
		{NPaths: 1, Hello: someHello},
		{Hello: someHello},
		{NPaths: 8, GenNum: 0xdeadbeef},
		{NPaths: 8, GenNum: 0xdeadbeef, SportIdx: true},
		{NPaths: 8, SportIdx: true},
		{SportIdx: true, Hello: someHello},
	} {
		npaths, gen, unknown := oldKernel(x.Encode())
		if npaths != x.NPaths || gen != x.GenNum {
			t.Errorf("%+v: a kernel reads npaths %d, gen %#x", x, npaths, gen)
		}
		if x.SportIdx != (len(unknown) == 1 && unknown[0] == ExtSportIdx) || !x.SportIdx && unknown != nil {
			t.Errorf("%+v: a kernel complains of types %v", x, unknown)
		}
	}
}

func TestHandshakeRoundTrip(t *testing.T) {
	for _, x := range []Handshake{
		{}, {NPaths: 1}, {GenNum: 1}, {SportIdx: true}, {NPaths: 65535, GenNum: 0xffffffff, SportIdx: true},
		{NPaths: 1, Hello: someHello}, {Hello: someHello}, {SportIdx: true, Hello: someHello},
		{NPaths: 1, Hello: Hello{Version: 255, Lanes: 1, Caps: 255, Incarnation: 1}},
	} {
		e := x.Encode()
		if got := ParseHandshake(&e); got != x {
			t.Errorf("%+v came back as %+v", x, got)
		}
	}
}

// TestHelloGivesWay: what does not fit is left out whole, never cut.
func TestHelloGivesWay(t *testing.T) {
	for _, x := range []Handshake{
		{NPaths: 8, GenNum: 1, SportIdx: true, Hello: someHello},
		{NPaths: 8, SportIdx: true, Hello: someHello},
		{GenNum: 7, Hello: someHello},
	} {
		e := x.Encode()
		x.Hello = Hello{}
		if got := ParseHandshake(&e); got != x {
			t.Errorf("%+v, want %+v", got, x)
		}
	}
}

// TestHandshakeWalk: hand-made spaces and where the walk ends.
func TestHandshakeWalk(t *testing.T) {
	for _, c := range []struct {
		what string
		e    [ExtLen]byte
		want Handshake
	}{
		{"empty", [ExtLen]byte{}, Handshake{}},
		{"end, then more", [ExtLen]byte{0, 5, 0, 8}, Handshake{}},
		{"known types nobody uses are skipped", [ExtLen]byte{1, 9, 9, 9, 9, 2, 9, 9, 9, 9, 5, 0, 4}, Handshake{NPaths: 4}},
		{"types of newer kernels are skipped", [ExtLen]byte{4, 9, 9, 9, 9, 9, 9, 9, 9, 5, 0, 4}, Handshake{NPaths: 4}},
		{"unknown below 16 has no payload", [ExtLen]byte{10, 11, 12, 13, 14, 15, 5, 0, 3}, Handshake{NPaths: 3}},
		{"16 and above ends", [ExtLen]byte{16, 5, 0, 8}, Handshake{}},
		{"an unknown private type ends", [ExtLen]byte{0xd4, 5, 0, 8}, Handshake{}},
		{"the last one wins", [ExtLen]byte{5, 0, 8, 5, 0, 2}, Handshake{NPaths: 2}},
		{"ends exactly at the border", [ExtLen]byte{3, 8: 0, 9: 6, 13: 1, 14: 15, 15: 15}, Handshake{GenNum: 1}},
		{"NPATHS passes the border", [ExtLen]byte{3, 9: 6, 13: 1, 14: 5}, Handshake{GenNum: 1}},
		{"NPATHS in the last byte", [ExtLen]byte{3, 9: 6, 13: 1, 14: 15, 15: 5}, Handshake{GenNum: 1}},
		{"Hello in the last byte", [ExtLen]byte{3, 9: 6, 13: 1, 14: 15, 15: ExtHello}, Handshake{GenNum: 1}},
	} {
		if got := ParseHandshake(&c.e); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
}
