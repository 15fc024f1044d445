package roce

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
)

// vector is a captured packet.
type vector struct {
	name  string
	ip    []byte
	flow  *Flow
	ident uint16
	pkt   []byte // BTH to ICRC
}

// vectors reads testdata/packets.txt.
func vectors(t testing.TB) (list []vector) {
	text, err := os.ReadFile("testdata/packets.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		v := vector{name: strings.Join(f[:3], " ")}
		for _, tok := range f[3:] {
			h, times, _ := strings.Cut(tok, "*")
			b, err := hex.DecodeString(h)
			if err != nil {
				t.Fatalf("%s: %v", v.name, err)
			}
			v.ip = append(v.ip, b...)
			if n, _ := strconv.Atoi(times); n > 0 {
				v.ip = append(v.ip, strings.Repeat(string(b[len(b)-1:]), n-1)...)
			}
		}
		v.ident = binary.BigEndian.Uint16(v.ip[4:])
		v.flow = newTestFlow(t, addrPort(v.ip[12:16], v.ip[20:]), addrPort(v.ip[16:20], v.ip[22:]))
		v.pkt = v.ip[28:]
		list = append(list, v)
	}
	if len(list) < 50 {
		t.Fatalf("testdata/packets.txt has %d packets", len(list))
	}
	return list
}

// source is the UDP port that it was sent from.
func (v *vector) source() uint16 { return binary.BigEndian.Uint16(v.ip[20:]) }

func addrPort(ip, port []byte) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port))
}

func newTestFlow(t testing.TB, src, dst netip.AddrPort) *Flow {
	f, err := NewFlow(src, dst)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
