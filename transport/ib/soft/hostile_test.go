package soft

import (
	"bytes"
	"encoding/binary"
	"math/rand"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/roce"
	"github.com/rdsd/rdsd/transport/ib"
)

// hostile is somebody who can put any packet on the wire, with any source.
type hostile struct {
	t  testing.TB
	to *host
}

// ip is a packet of IP and UDP with that payload and no checksum of UDP.
func ip(from, to netip.AddrPort, payload []byte) []byte {
	p := make([]byte, 28, 28+len(payload))
	p[0] = 0x45
	binary.BigEndian.PutUint16(p[2:], uint16(28+len(payload)))
	p[6] = 0x40
	p[8], p[9] = 64, unix.IPPROTO_UDP
	copy(p[12:], from.Addr().AsSlice())
	copy(p[16:], to.Addr().AsSlice())
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum>>16+sum))
	binary.BigEndian.PutUint16(p[20:], from.Port())
	binary.BigEndian.PutUint16(p[22:], to.Port())
	binary.BigEndian.PutUint16(p[24:], uint16(8+len(payload)))
	return append(p, payload...)
}

// raw sends a payload as it is.
func (h *hostile) raw(from, to netip.AddrPort, payload []byte) {
	if _, err := h.to.tun.Write(ip(from, to, payload)); err != nil {
		h.t.Error(err)
	}
}

// packet sends a packet with a right CRC.
func (h *hostile) packet(from, to netip.AddrPort, p *roce.Packet) {
	f, err := roce.NewFlow(from, to)
	if err != nil {
		h.t.Fatal(err)
	}
	b := p.Append(nil)
	h.raw(from, to, roce.AppendICRC(b, f.ICRC(0, b)))
}

// TestHostile: packets of strangers, of somebody who spoofs the peer's address and does not know
// the numbers, and of a peer that breaks every rule, end at most the connection that they are
// sent to. Another one of the same device goes on, all are counted, and none costs memory.
func TestHostile(t *testing.T) {
	ha, hb := newHost(t, "10.9.0.1/24", 4200), newHost(t, "10.9.0.2/24", 4200)
	newNetwork(t, 7, ha, hb)
	a, b := open(t, "10.9.0.1", ha, nil), open(t, "10.9.0.2", hb, nil)
	x, y := newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, x, y)
	bad, victim := newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, bad, victim)
	mem := make([]byte, 4096)
	key, err := victim.dom.Expose(mem, 0, ib.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	h := &hostile{t, hb}
	peer, stranger := netip.MustParseAddrPort("10.9.0.1:4791"), netip.MustParseAddrPort("10.9.0.77:4791")
	to := netip.MustParseAddrPort("10.9.0.2:4791")
	rnd := rand.New(rand.NewSource(1))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	write := func(from netip.AddrPort, dest, key uint32, psn roce.PSN, n uint32) {
		h.packet(from, to, &roce.Packet{Op: roce.WriteOnly, PKey: roce.DefaultPKey, Dest: dest, PSN: psn, Key: key, Len: n, Payload: pattern(int(min(n, 64)), 1)})
	}
	sent := 0
	for range 300 {
		junk := make([]byte, rnd.Intn(400))
		rnd.Read(junk)
		h.raw(stranger, to, junk)                                                    // noise
		write(stranger, victim.q.Number(), key, roce.PSN(rnd.Uint32()&0xffffff), 64) // everything right but the address
		write(peer, rnd.Uint32()&0xffffff, key, 0, 64)                               // another queue pair
		h.raw(peer, to, pkt(victim.q.Number(), key, rnd))                            // a CRC that is wrong
		sent += 4
	}
	await.Until(t, patience, "All packets are counted as dropped.", func() bool {
		s := b.State()
		var n uint64
		for _, why := range []string{"malformed", "queue_pair", "source", "icrc", "state", "mad"} {
			n += s.Counter("drop_" + why)
		}
		return n >= uint64(sent)
	})
	runtime.ReadMemStats(&after)
	if b := after.HeapAlloc - min(before.HeapAlloc, after.HeapAlloc); b > 8<<20 {
		t.Errorf("%d hostile packets left %d bytes of memory", sent, b)
	}
	for i := range mem {
		if mem[i] != 0 {
			t.Fatal("a stranger wrote memory")
		}
	}
	exchange(t, x, y, 5, 20, 10_000)
	// Somebody who spoofs the address and knows the number of the queue pair and the key, and
	// guesses packet numbers: most are outside of what is expected.
	for range 200 {
		write(peer, victim.q.Number(), key, roce.PSN(rnd.Uint32()&0xffffff), 64)
	}
	exchange(t, x, y, 6, 20, 10_000)
	// A peer that breaks the rules: lengths beyond all memory, keys that are not, the middle of
	// no message.
	for _, p := range []roce.Packet{
		{Op: roce.WriteFirst, Key: key, Len: 1<<31 - 1, Payload: pattern(4096, 0)},
		{Op: roce.WriteOnly, Key: key + 1, Len: 4, Payload: pattern(4, 0)},
		{Op: roce.SendMiddle, Payload: pattern(4096, 0)},
		{Op: roce.ReadRequest, Key: key, Len: 1 << 31},
	} {
		u, v := newEnd(t, a, depths), newEnd(t, b, depths)
		connect(t, u, v)
		k, err := v.dom.Expose(mem, 0, ib.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		if p.Key == key {
			p.Key = k
		}
		b.mu.Lock()
		p.PSN, p.Dest, p.PKey = v.q.(*queuePair).first, v.q.Number(), roce.DefaultPKey
		b.mu.Unlock()
		h.packet(peer, to, &p)
		if err := v.end(); err == nil {
			t.Errorf("%v ended the connection without an error", p.Op)
		}
	}
	exchange(t, x, y, 7, 20, 10_000)
	// A peer that begins a message and says no more: the memory that it writes to can be taken
	// back at once, and what it would have been is kept nowhere.
	u, v := newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, u, v)
	mem = make([]byte, 8192)
	if key, err = v.dom.Expose(mem, 0, ib.RemoteWrite); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	psn := v.q.(*queuePair).first
	b.mu.Unlock()
	h.packet(peer, to, &roce.Packet{Op: roce.WriteFirst, PKey: roce.DefaultPKey, Dest: v.q.Number(), PSN: psn, Key: key, Len: 8192, Payload: pattern(4096, 1)})
	await.Until(t, patience, "The beginning has been written.", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return bytes.Equal(mem[:4096], pattern(4096, 1))
	})
	if w := v.dom.Withdraw(key); w.State != ib.Idle || w.Filled != 4096 {
		t.Errorf("memory in which a message has stopped: %+v", w)
	}
	exchange(t, x, y, 8, 20, 10_000)
}

// pkt is a packet whose CRC is wrong.
func pkt(dest, key uint32, rnd *rand.Rand) []byte {
	p := roce.Packet{Op: roce.WriteOnly, PKey: roce.DefaultPKey, Dest: dest, Key: key, Len: 64, Payload: pattern(64, 1)}
	b := p.Append(nil)
	return binary.BigEndian.AppendUint32(b, rnd.Uint32())
}

// TestFloodOfRequests: requests to connect from many addresses cost a bounded number of
// connections, and whoever is connected does not notice.
func TestFloodOfRequests(t *testing.T) {
	ha, hb := newHost(t, "10.9.0.1/24", 1500), newHost(t, "10.9.0.2/24", 1500)
	n := newNetwork(t, 7, ha, hb)
	a := open(t, "10.9.0.1", ha, nil)
	var charged, most int
	b := open(t, "10.9.0.2", hb, func(c *Config) {
		c.Charge = func(_ netip.Addr, n int) error { charged += n; most = max(most, charged); return nil }
	})
	x, y := newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, x, y)
	// A request as it is on the wire, which the flood repeats with other sources and identifiers.
	var req []byte
	n.watch(func(p []byte) {
		if len(p) > 28+20+24 && p[28] == byte(roce.DatagramSendOnly) && p[28+20+17] == 0x10 {
			req = append([]byte(nil), p[28+20:]...)
		}
	})
	l, err := b.Listen(netip.MustParseAddrPort("10.9.0.2:1234"), func(ib.Asked) {}) // nobody is answered
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go a.Dial(t.Context(), netip.AddrPort{}, l.Addr(), newEnd(t, a, depths).q, ib.Param{})
	await.Until(t, patience, "A request is on the wire.", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return req != nil
	})
	n.watch(nil) // req stays as it is from now on
	h := &hostile{t, hb}
	const flood = 5000
	to := netip.MustParseAddrPort("10.9.0.2:4791")
	for i := range flood {
		m := append([]byte(nil), req[:256]...)
		binary.BigEndian.PutUint64(m[8:], uint64(i)<<32|7)       // transaction
		binary.BigEndian.PutUint32(m[24:], uint32(i)*2654435761) // communication identifier
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 4791)
		copy(m[24+140+4+12:], from.Addr().AsSlice()) // RDMA-CM's source
		h.packet(from, to, &roce.Packet{Op: roce.DatagramSendOnly, PKey: roce.DefaultPKey, Dest: 1, QKey: 0x80010000, Source: 1, Payload: m})
		if i%100 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	exchange(t, x, y, 8, 50, 10_000)
	await.Until(t, patience, "Requests without room are counted where an operator sees them.", func() bool { return counter(b, "cm_full") > 0 })
	b.mu.Lock()
	defer b.mu.Unlock()
	if most == 0 || most > 4<<20 {
		t.Errorf("%d requests cost %d bytes at a time", flood, most)
	}
}

// TestNotReady: whoever sends a message for which nothing was posted is told to wait for rnrDelay.
func TestNotReady(t *testing.T) {
	ha, hb := newHost(t, "10.9.0.1/24", 1500), newHost(t, "10.9.0.2/24", 1500)
	n := newNetwork(t, 7, ha, hb)
	a, b := open(t, "10.9.0.1", ha, nil), open(t, "10.9.0.2", hb, nil)
	x, y := newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, x, y)
	told := make(chan time.Duration, 100)
	n.watch(func(p []byte) {
		var r roce.Packet
		if len(p) > 28 && r.Parse(p[28:]) == nil && r.Op == roce.Acknowledge && r.Syndrome.IsRNR() {
			select {
			case told <- r.Syndrome.RNRDelay():
			default:
			}
		}
	})
	x.post(ib.WR{ID: 1, Op: ib.Send, Flags: ib.Signal, Piece: [ib.MaxPieces][]byte{[]byte("early")}})
	select {
	case d := <-told:
		if d != rnrDelay {
			t.Errorf("told to wait for %v, want %v", d, rnrDelay)
		}
	case <-time.After(patience):
		t.Fatal("not told to wait")
	}
	y.slots(1, 64)
	if c := x.next(); c.ID != 1 || c.Status != ib.OK {
		t.Errorf("%+v", c)
	}
}
