package roce

import (
	"fmt"
	"math/rand"
	"net/netip"
	"testing"
	"time"
)

// host is a device and what it told.
type host struct {
	t       testing.TB
	dev     *Device
	addr    netip.AddrPort
	told    []*QP // by Completed
	arrived []*QP
	failed  map[*QP]error
	drops   []DropReason
	mads    [][]byte
	burst   Burst
	out     []datagram // filled and not taken yet
	bursts  int
}

type datagram struct {
	to  netip.AddrPort
	pkt []byte
}

func (h *host) Completed(q *QP) { h.told = append(h.told, q) }
func (h *host) Arrived(q *QP)   { h.arrived = append(h.arrived, q) }
func (h *host) Failed(q *QP, e error) {
	if h.failed[q] != nil {
		h.t.Errorf("queue pair %d failed twice: %v and %v", q.number, h.failed[q], e)
	}
	h.failed[q] = e
}
func (h *host) Drop(why DropReason) { h.drops = append(h.drops, why) }
func (h *host) MAD(from netip.AddrPort, mad []byte) {
	h.mads = append(h.mads, append([]byte(nil), mad...))
}

func newHost(t testing.TB, addr string, cfg Config) *host {
	t.Helper()
	h := &host{t: t, addr: netip.AddrPortFrom(netip.MustParseAddr(addr), Port), failed: map[*QP]error{}}
	cfg.Local = h.addr.Addr()
	if cfg.MTU == 0 {
		cfg.MTU = MaxPayload
	}
	d, err := NewDevice(cfg, h, rand.New(rand.NewSource(int64(h.addr.Addr().AsSlice()[3]))))
	if err != nil {
		t.Fatal(err)
	}
	h.dev = d
	return h
}

// fill takes one burst, and checks that the kernel would send it as it is meant.
func (h *host) fill(now time.Duration) bool {
	b := &h.burst
	if !h.dev.Fill(now, b) {
		return false
	}
	h.bursts++
	h.out = append(h.out, burstOf(h.t, h.addr, b)...)
	h.dev.Sent(b)
	return true
}

// checkBurst copies the packets of a burst and checks their lengths and CRCs.
func checkBurst(from netip.AddrPort, b *Burst) (list []datagram, err error) {
	f, err := NewFlow(from, b.To)
	if err != nil {
		return nil, err
	}
	total := 0
	for i := range b.N {
		pkt := b.Packet(i).Append(nil)
		list = append(list, datagram{b.To, pkt})
		ident := uint16(0)
		if b.gso {
			ident = uint16(i)
			if len(pkt) > b.Size || len(pkt) < b.Size && i < b.N-1 {
				return list, fmt.Errorf("packet %d of %d with %d bytes in a burst of %d each", i, b.N, len(pkt), b.Size)
			}
		}
		if len(pkt) != b.Packet(i).Len() || !f.CheckIdent(pkt, ident) {
			return list, fmt.Errorf("packet %d of %d with %d bytes, said to be %d, or a wrong CRC", i, b.N, len(pkt), b.Packet(i).Len())
		}
		total += len(pkt)
	}
	if b.N < 1 || b.N > MaxBurst || b.gso && total > maxBurstBytes || b.Packet(0).Len() != b.Size {
		return list, fmt.Errorf("a burst of %d packets and %d bytes, the first of %d", b.N, total, b.Size)
	}
	return list, nil
}

// burstOf is checkBurst, of which the test fails.
func burstOf(t testing.TB, from netip.AddrPort, b *Burst) []datagram {
	t.Helper()
	list, err := checkBurst(from, b)
	if err != nil {
		t.Error(err)
	}
	return list
}

// next makes p the next packet that h sends, and reports whether there is one.
func (h *host) next(now time.Duration, p *Packet) bool {
	if len(h.out) == 0 && !h.fill(now) {
		return false
	}
	pkt := h.out[0].pkt
	h.out = h.out[1:]
	if err := p.Parse(pkt); err != nil {
		h.t.Fatalf("%x: %v", pkt, err)
	}
	return true
}

// give lets h receive p from a host at from.
func (h *host) give(now time.Duration, from netip.AddrPort, p *Packet) {
	f, err := NewFlow(from, h.addr)
	if err != nil {
		h.t.Fatal(err)
	}
	b := p.Append(nil)
	h.dev.Receive(now, from, AppendICRC(b, f.ICRC(0, b)))
}

// pair is two hosts with a connection, and a net that loses nothing.
type pair struct {
	t    testing.TB
	now  time.Duration
	A, B *host
	a, b *QP
}

const (
	firstA = PSN(psnMask - 3) // so that numbers wrap in each test
	firstB = PSN(5)
)

// setting is what a pair is made with; its zero value is a plain one.
type setting struct {
	mtu, sends, recvs int
	cfg               Config // of both devices
	peer              Peer   // what both say of each other
}

func newPair(t testing.TB, mtu, sends, recvs int) *pair {
	t.Helper()
	return setting{mtu: mtu, sends: sends, recvs: recvs}.pair(t)
}

func (s setting) pair(t testing.TB) *pair {
	t.Helper()
	p := &pair{t: t, A: newHost(t, "10.0.0.1", s.cfg), B: newHost(t, "10.0.0.2", s.cfg)}
	p.a, p.b = p.A.newQP(s.sends, s.recvs), p.B.newQP(s.sends, s.recvs)
	p.connect(s)
	return p
}

// connect connects both queue pairs, which are in RESET.
func (p *pair) connect(s setting) {
	p.t.Helper()
	s.peer.MTU = s.mtu
	toA, toB := s.peer, s.peer
	toA.Number, toA.Addr, toA.First = p.a.number, p.A.addr.Addr(), firstA
	toB.Number, toB.Addr, toB.First = p.b.number, p.B.addr.Addr(), firstB
	for _, err := range []error{
		p.a.Init(), p.b.Init(), p.a.Connect(toB), p.b.Connect(toA), p.a.Start(firstA), p.b.Start(firstB),
	} {
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

func (h *host) newQP(sends, recvs int) *QP {
	h.t.Helper()
	q, err := h.dev.NewQP(QPConfig{Sends: sends, Recvs: recvs, RNR: RNR(time.Millisecond)})
	if err != nil {
		h.t.Fatal(err)
	}
	return q
}

// carry moves one packet, and reports whether there was one.
func (p *pair) carry(from, to *host) bool {
	if len(from.out) == 0 && !from.fill(p.now) {
		return false
	}
	pkt := from.out[0].pkt
	from.out = from.out[1:]
	to.dev.Receive(p.now, from.addr, pkt)
	return true
}

// turn moves all packets that from has, and reports whether there was one.
func (p *pair) turn(from, to *host) (any bool) {
	for p.carry(from, to) {
		any = true
	}
	return any
}

// run moves packets until there are none. Each end sends when it has received all.
func (p *pair) run() {
	p.t.Helper()
	for i := 0; p.turn(p.A, p.B) || p.turn(p.B, p.A); i++ {
		if i > 10000 {
			p.t.Fatal("it never ends")
		}
	}
}

// wait lets time pass until d has passed, with all timers, and moves packets as run does.
func (p *pair) wait(d time.Duration) {
	p.t.Helper()
	p.run()
	for end := p.now + d; p.now < end; p.run() {
		p.now = min(end, max(p.now, p.A.dev.Next()), max(p.now, p.B.dev.Next()))
		p.A.dev.Tick(p.now)
		p.B.dev.Tick(p.now)
	}
}

// want polls q and fails unless these come, and no more.
func (p *pair) want(q *QP, want ...Completion) {
	p.t.Helper()
	for i := 0; ; i++ {
		got, ok := q.Poll()
		switch {
		case !ok && i == len(want):
			return
		case !ok:
			p.t.Fatalf("%d completions, want %d: %+v", i, len(want), want)
		case i == len(want) || got != want[i]:
			p.t.Fatalf("completion %d is %+v, want those of %+v", i, got, want)
		}
	}
}

// must fails the test on err.
func (p *pair) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// piece makes the pieces of a message of one.
func piece(b []byte) [3][]byte { return [3][]byte{b} }

// post is Post that has to succeed.
func (p *pair) post(q *QP, w Work) {
	p.t.Helper()
	p.must(q.Post(w))
}

// recv posts a receive of n bytes, and returns them.
func (p *pair) recv(q *QP, id uint64, n int) []byte {
	p.t.Helper()
	b := make([]byte, n)
	p.must(q.PostRecv(Recv{ID: id, Data: b}))
	return b
}

// expose lets the peer of h's queue pairs do everything with n bytes at address 0x1000.
func (h *host) expose(n int) (key uint32, b []byte) {
	h.t.Helper()
	b = make([]byte, n)
	key, err := h.dev.Memory().Expose(b, 0x1000, RemoteRead|RemoteWrite|PeerRevokes, AnyQP)
	if err != nil {
		h.t.Fatal(err)
	}
	return key, b
}

// random is n bytes that are the same each time.
func random(n int) []byte {
	b := make([]byte, n)
	rand.New(rand.NewSource(int64(n) + 1)).Read(b)
	return b
}
