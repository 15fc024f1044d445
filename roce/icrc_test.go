package roce

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
)

var (
	ends4 = [2]netip.AddrPort{netip.MustParseAddrPort("10.9.0.1:51234"), netip.MustParseAddrPort("10.9.0.2:4791")}
	ends6 = [2]netip.AddrPort{netip.MustParseAddrPort("[fd00::1]:51234"), netip.MustParseAddrPort("[fd00::2:3]:4791")}
)

// slowICRC is the CRC bit by bit over an IP packet as it is on the wire, all that may change
// on the way set to ones: the definition.
func slowICRC(ip []byte) uint32 {
	ip = bytes.Clone(ip)
	var udp int
	if ip[0]>>4 == 4 {
		ip[1], ip[8], ip[10], ip[11] = 0xff, 0xff, 0xff, 0xff
		udp = 20
	} else {
		ip[0] |= 0x0f
		ip[1], ip[2], ip[3], ip[7] = 0xff, 0xff, 0xff, 0xff
		udp = 40
	}
	ip[udp+6], ip[udp+7], ip[udp+8+4] = 0xff, 0xff, 0xff
	sum := ^uint32(0)
	for _, b := range append(bytes.Repeat([]byte{0xff}, 8), ip...) {
		sum ^= uint32(b)
		for range 8 {
			low := sum & 1
			sum >>= 1
			if low != 0 {
				sum ^= 0xedb88320
			}
		}
	}
	return ^sum
}

// onWire is the IP packet that holds pkt, which has no CRC yet. What may change on the way
// is drawn.
func onWire(rnd *rand.Rand, ends [2]netip.AddrPort, ident uint16, pkt []byte) []byte {
	be, n := binary.BigEndian, 8+len(pkt)+4
	var b []byte
	if ends[0].Addr().Is4() {
		b = be.AppendUint16([]byte{0x45, byte(rnd.Uint32())}, uint16(20+n))
		b = be.AppendUint16(b, ident)
		b = append(b, 0x40, 0, byte(rnd.Uint32()), 17, byte(rnd.Uint32()), byte(rnd.Uint32()))
	} else {
		b = be.AppendUint32(b, 6<<28|rnd.Uint32()>>4)
		b = be.AppendUint16(b, uint16(n))
		b = append(b, 17, byte(rnd.Uint32()))
	}
	b = append(b, ends[0].Addr().AsSlice()...)
	b = append(b, ends[1].Addr().AsSlice()...)
	b = be.AppendUint16(b, ends[0].Port())
	b = be.AppendUint16(b, ends[1].Port())
	b = be.AppendUint16(b, uint16(n))
	b = be.AppendUint16(b, uint16(rnd.Uint32()))
	b = append(b, pkt...)
	b[len(b)-len(pkt)+4] = byte(rnd.Uint32())
	return b
}

// TestICRCOfKernels computes and checks what rxe sent, whose identifications run.
func TestICRCOfKernels(t *testing.T) {
	for _, v := range vectors(t) {
		n := len(v.pkt) - icrcLen
		if sum := v.flow.ICRC(v.ident, v.pkt[:bthLen], v.pkt[bthLen:n]); !bytes.Equal(AppendICRC(nil, sum), v.pkt[n:]) {
			t.Errorf("%s: ICRC %x, want %x", v.name, sum, v.pkt[n:])
		}
		if ident, ok := v.flow.Check(v.pkt); !ok || ident != v.ident {
			t.Errorf("%s: identification %#x, %v, want %#x", v.name, ident, ok, v.ident)
		}
		if !v.flow.CheckIdent(v.pkt, v.ident) || v.flow.CheckIdent(v.pkt, v.ident+1) {
			t.Errorf("%s: its own identification is not told from the next", v.name)
		}
	}
}

// TestICRCOfLengths has each length a packet can have, over both families, against the
// definition, in the pieces in which it is sent.
func TestICRCOfLengths(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	step := 4
	if testing.Short() {
		step = 68
	}
	for _, ends := range [][2]netip.AddrPort{ends4, ends6} {
		f := newTestFlow(t, ends[0], ends[1])
		for n := bthLen; n <= maxPacket; n += step {
			pkt := make([]byte, n, n+icrcLen)
			for i := range pkt {
				pkt[i] = byte(rnd.Uint32())
			}
			ident := uint16(rnd.Uint32())
			want := slowICRC(onWire(rnd, ends, ident, pkt))
			h := min(n, bthLen+rnd.IntN(33))
			a := h + rnd.IntN(n-h+1)
			b := a + rnd.IntN(n-a+1)
			if got := f.ICRC(ident, pkt[:h], pkt[h:a], pkt[a:b], pkt[b:]); got != want {
				t.Fatalf("%v, %d bytes: %#x, want %#x", ends[0], n, got, want)
			}
			if !f.v4 {
				ident = 0
			}
			pkt = AppendICRC(pkt, want)
			if got, ok := f.Check(pkt); !ok || got != ident {
				t.Fatalf("%v, %d bytes: identification %#x, %v, want %#x", ends[0], n, got, ok, ident)
			}
			// A flipped bit is found: over IPv4 not among the identifications of a burst.
			i := 8 * rnd.IntN(len(pkt))
			if i == 8*variantByte {
				continue // which is not covered
			}
			pkt[i/8] ^= 1 << rnd.IntN(8)
			if got, ok := f.Check(pkt); ok && (!f.v4 || got < 64) {
				t.Fatalf("%v, %d bytes: flipped in byte %d and taken", ends[0], n, i/8)
			}
		}
	}
}

// TestICRCOfBurst: packet i of a burst is right with identification i and no other.
func TestICRCOfBurst(t *testing.T) {
	f := newTestFlow(t, ends4[0], ends4[1])
	for i := range uint16(64) {
		pkt := (&Packet{Op: WriteMiddle, PSN: PSN(i), Payload: make([]byte, 256)}).Append(nil)
		pkt = AppendICRC(pkt, f.ICRC(i, pkt))
		if got, ok := f.Check(pkt); !ok || got != i {
			t.Errorf("packet %d: identification %d, %v", i, got, ok)
		}
		for j := range uint16(64) {
			if f.CheckIdent(pkt, j) != (i == j) {
				t.Errorf("packet %d is right with identification %d: %v", i, j, i != j)
			}
		}
	}
}

// TestICRCRemembers: what a flow remembers of packets before changes no CRC, whatever their lengths,
// identifications and ends are, and none is found that is not the right one.
func TestICRCRemembers(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	other := netip.MustParseAddrPort("10.9.0.3:4791")
	flows := [][2]netip.AddrPort{ends4, {ends4[0], other}, ends6}
	pkts := [][]byte{}
	for _, n := range []int{0, 4, 256, 1024} {
		pkts = append(pkts, (&Packet{Op: WriteMiddle, Payload: make([]byte, n)}).Append(nil))
	}
	f, ends := &Flow{}, flows[0]
	for i := range 4000 {
		if i%40 == 0 {
			ends = flows[rnd.IntN(len(flows))]
			if err := f.set(ends[0], ends[1]); err != nil {
				t.Fatal(err)
			}
		}
		pkt, ident := bytes.Clone(pkts[rnd.IntN(len(pkts))]), uint16(rnd.IntN(MaxBurst+4))
		rnd.Shuffle(bthLen-1, func(i, j int) { pkt[1+i], pkt[1+j] = pkt[1+j], pkt[1+i] })
		pkt[variantByte] = byte(i)
		if ends[0].Addr().Is6() {
			ident = 0
		}
		want := slowICRC(onWire(rnd, ends, ident, pkt))
		if got := f.ICRC(ident, pkt); got != want {
			t.Fatalf("packet %d: %#x, want %#x", i, got, want)
		}
		pkt = AppendICRC(pkt, want)
		if got, ok := f.Check(pkt); !ok || got != ident {
			t.Fatalf("packet %d: identification %#x, %v, want %#x", i, got, ok, ident)
		}
		pkt[len(pkt)-1] ^= 1 << rnd.IntN(8)
		got, ok := f.Check(pkt)
		if ok && slowICRC(onWire(rnd, ends, got, pkt[:len(pkt)-icrcLen])) != binary.LittleEndian.Uint32(pkt[len(pkt)-icrcLen:]) {
			t.Fatalf("packet %d is taken with identification %#x", i, got)
		}
	}
}

// TestICRCByChance: of wrong CRCs one in 2^16 has an identification with which it is right.
func TestICRCByChance(t *testing.T) {
	f := newTestFlow(t, ends4[0], ends4[1])
	rnd := rand.New(rand.NewPCG(3, 4))
	pkt := AppendICRC((&Packet{Op: Acknowledge}).Append(nil), 0)
	const tries = 1 << 20
	taken := 0
	for range tries {
		binary.LittleEndian.PutUint32(pkt[len(pkt)-icrcLen:], rnd.Uint32())
		ident, ok := f.Check(pkt)
		if !ok {
			continue
		}
		taken++
		if !f.CheckIdent(pkt, ident) {
			t.Fatalf("taken with identification %#x, with which it is wrong", ident)
		}
	}
	if taken < 4 || taken > 40 { // 16 are expected; the seed is fixed
		t.Errorf("%d of %d taken", taken, tries)
	}
}

func TestICRCRefused(t *testing.T) {
	f := newTestFlow(t, ends4[0], ends4[1])
	for _, n := range []int{0, 3, 4, 15, 17, maxPacket + icrcLen + 4, 65507} {
		if _, ok := f.Check(make([]byte, n)); ok || f.CheckIdent(make([]byte, n), 0) {
			t.Errorf("%d bytes are taken", n)
		}
	}
	for _, c := range [][2]netip.AddrPort{{ends4[0], ends6[0]}, {ends6[0], ends4[0]}, {{}, {}}, {ends4[0], {}}} {
		if _, err := NewFlow(c[0], c[1]); !errors.Is(err, ErrFamily) {
			t.Errorf("from %v to %v: %v", c[0], c[1], err)
		}
	}
	mapped := func(a netip.AddrPort) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
	}
	m := newTestFlow(t, mapped(ends4[0]), mapped(ends4[1]))
	pkt := (&Packet{Op: Acknowledge}).Append(nil)
	if m.ICRC(1, pkt) != f.ICRC(1, pkt) {
		t.Error("IPv4 addresses in IPv6 are others than themselves")
	}
}

func TestICRCAllocates(t *testing.T) {
	f := newTestFlow(t, ends4[0], ends4[1])
	pkt := AppendICRC((&Packet{Op: WriteMiddle, Payload: make([]byte, 1024)}).Append(nil), 0)
	var p Packet
	if n := testing.AllocsPerRun(100, func() {
		f.ICRC(1, pkt[:12], pkt[12:500], pkt[500:])
		f.Check(pkt)
		if err := p.Parse(pkt); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}

// FuzzICRC: what is computed is what the definition says, and is found again.
func FuzzICRC(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(v.ident, v.pkt[:len(v.pkt)-icrcLen], uint64(v.ident))
	}
	f.Fuzz(func(t *testing.T, ident uint16, pkt []byte, seed uint64) {
		pkt = pkt[:min(len(pkt), maxPacket)&^3]
		if len(pkt) < bthLen {
			return
		}
		rnd := rand.New(rand.NewPCG(seed, 0))
		ends := [2]netip.AddrPort{ends4[0], ends4[1]}
		if seed%2 == 1 {
			ends, ident = ends6, 0
		}
		fl := newTestFlow(t, ends[0], ends[1])
		want := slowICRC(onWire(rnd, ends, ident, pkt))
		h := bthLen + rnd.IntN(len(pkt)-bthLen+1)
		if got := fl.ICRC(ident, pkt[:h], pkt[h:]); got != want {
			t.Fatalf("%#x, want %#x", got, want)
		}
		if got, ok := fl.Check(AppendICRC(pkt, want)); !ok || got != ident {
			t.Fatalf("identification %#x, %v, want %#x", got, ok, ident)
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	for _, n := range []int{0, 1024, 4096} {
		b.Run(string(rune('0'+n/1024))+"KiB", func(b *testing.B) {
			f := newTestFlow(b, ends4[0], ends4[1])
			pkt := (&Packet{Op: SendOnly, Payload: make([]byte, n)}).Append(nil)
			pkt = AppendICRC(pkt, f.ICRC(7, pkt))
			for b.Loop() {
				if _, ok := f.Check(pkt); !ok {
					b.Fatal("wrong")
				}
			}
		})
	}
}
