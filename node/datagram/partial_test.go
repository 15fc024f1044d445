package datagram

import (
	"testing"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// TestPartialPayloadIsCharged: after each read the peer is charged for exactly what is in the
// middle of its payload, be it more, less, another or nothing, and a link is watched exactly
// while there is something.
func TestPartialPayloadIsCharged(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	s.rdsd(k)
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	lane := s.h.e.Known(seamHigher).Conn().LaneAt(0)
	l := s.h.laneOf(lane).find(lane.Attempt())
	account := s.h.all.deps.Memory.Account(quota.Peer(seamHigher))
	defer account.Close()
	before := account.Used()
	const n = 1 << 20
	for _, bytes := range []int64{n, n + 1, n, 1, 2, 0, 0, 1, 0} {
		l.partial = bytes
		l.settlePartial()
		if got := account.Used() - before; got != bytes {
			t.Errorf("charged for %d bytes, want %d", got, bytes)
		}
		p := &s.h.all.partials
		p.mu.Lock()
		if watched := p.links[l] != nil; watched != (bytes > 0) {
			t.Errorf("with %d bytes there, watched: %v", bytes, watched)
		}
		p.mu.Unlock()
	}
}

// TestPayloadWithoutMemory: a payload that is partly there and for which its peer can be charged
// nothing is skipped and refused if it is an rdsd's datagram, and its link closed otherwise. The least a lane may
// hold is there while the node has it, whatever its peer holds; memory of the receiver costs the peer nothing.
func TestPayloadWithoutMemory(t *testing.T) {
	const n = 100 << 10
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	f := s.rdsd(k)
	memory := s.h.all.deps.Memory
	peer, other := memory.Account(quota.Peer(seamHigher)), memory.Account(quota.Peer(seamLower))
	defer peer.Close()
	defer other.Close()
	s.h.mu.Lock()
	lane := s.h.e.Known(seamHigher).Conn().LaneAt(0)
	l := s.h.laneOf(lane).find(lane.Attempt())
	s.h.mu.Unlock()
	seq := uint64(1)
	header := func(n int) []byte {
		h := wire.Header{Seq: seq, SPort: 9, DPort: k.Addr().Port(), Len: uint32(n)}
		raw := h.Append(nil)
		wire.SetChecksum(raw)
		return raw
	}
	charged := func(want int64) {
		t.Helper()
		if got := peer.Used(); got != want {
			t.Errorf("the peer is charged %d bytes, want %d", got, want)
		}
	}
	read := func(f func()) {
		l.Begin()
		f()
		l.End()
	}
	was := peer.Used()

	peer.Grow(quota.Chunks, memory.Limit()*7/8) // its share is spent, the node's memory is not
	read(func() { l.Buffer(header(partialSure), partialSure) })
	charged(was + memory.Limit()*7/8 + partialSure)
	read(func() { l.Buffer(header(n), n) })
	charged(was + memory.Limit()*7/8)
	if f.skips != 1 {
		t.Fatalf("skipped %d times, want once", f.skips)
	}
	read(func() {
		if err := l.Frame(&transport.Frame{Raw: header(n), Skipped: n}); err != nil {
			t.Error(err)
		}
	})
	peer.Give(quota.Chunks, memory.Limit()*7/8)
	charged(was)
	s.h.mu.Lock()
	if refused := s.h.e.Counters().RefuseNoRoom; refused != 1 || len(f.closes) != 0 {
		t.Errorf("%d are refused, the link was closed %v", refused, f.closes)
	}
	s.h.mu.Unlock()

	seq++
	other.Grow(quota.Chunks, memory.Limit()) // there is nothing
	read(func() { l.Buffer(header(n), n) })
	if charged(was); f.skips != 2 {
		t.Errorf("skipped %d times, want twice", f.skips)
	}
	read(func() { l.partial, l.placed = n, true })
	if charged(was); f.skips != 2 || len(f.closes) != 0 {
		t.Errorf("in the receiver's memory: skipped %d times, closed %v", f.skips, f.closes)
	}
	read(func() { l.partial, l.placed, l.skips = n, false, false })
	s.until("a link that cannot skip is closed", func() bool { _, _, c, _ := f.state(); return len(c) == 1 })
	other.Give(quota.Chunks, memory.Limit())
}

// TestKernelIsNotReadWithoutMemory: of a kernel's payload that is partly there nothing is given up,
// whatever it is charged; behind it the link is read on while the node has memory for the next,
// and not otherwise. Links of others are read always.
func TestKernelIsNotReadWithoutMemory(t *testing.T) {
	const n = 1 << 20
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	f := s.kernel(k)
	if err := f.bring(t, frameOf(9, k.Addr().Port(), 2, "known by now")); err != nil {
		t.Fatal(err)
	}
	memory := s.h.all.deps.Memory
	peer, other := memory.Account(quota.Peer(seamHigher)), memory.Account(quota.Peer(seamLower))
	defer peer.Close()
	defer other.Close()
	was := peer.Used()
	s.h.mu.Lock()
	lane := s.h.e.Known(seamHigher).Conn().LaneAt(0)
	l := s.h.laneOf(lane).find(lane.Attempt())
	s.h.mu.Unlock()
	if !l.kernel || !l.MayRead() {
		t.Fatalf("kernel %v, may be read %v", l.kernel, l.MayRead())
	}
	spent := memory.Limit() - memory.Used()
	other.Grow(quota.Chunks, spent)
	if l.MayRead() {
		t.Error("a kernel is read without memory for what it sends")
	}
	l.kernel = false
	if !l.MayRead() {
		t.Error("another is not read")
	}
	l.kernel = true
	h := wire.Header{Seq: 3, SPort: 9, DPort: 4, Len: n}
	l.Begin()
	l.Buffer(h.Append(nil), n)
	l.End()
	if got := peer.Used() - was; got != n || f.skips != 0 || !l.MayRead() {
		t.Errorf("in the middle: charged %d, skipped %d times, may be read %v", got, f.skips, l.MayRead())
	}
	l.Begin()
	if err := l.Frame(&transport.Frame{Raw: h.Append(nil), Payload: make([]byte, n)}); err != nil {
		t.Error(err) // to nobody's port
	}
	l.End()
	if got := peer.Used() - was; got != 0 || l.MayRead() {
		t.Errorf("behind it: charged %d, may be read %v", got, l.MayRead())
	}
	if _, _, c, _ := f.state(); len(c) != 0 {
		t.Errorf("the link was closed: %v", c)
	}
	other.Give(quota.Chunks, spent)
	if !l.MayRead() {
		t.Error("with memory again it is not read")
	}
}

// TestOldMapOfAKernelThatWasNotRead: what a kernel's link brings that was not read for want of memory
// makes no port congested if another lane has brought a map meanwhile.
func TestOldMapOfAKernelThatWasNotRead(t *testing.T) {
	s := newSeam(t, nil)
	first := s.acceptedLane(seamLower, 0)
	congested := func(ports ...byte) *transport.Frame {
		h := wire.Header{Flags: wire.FlagCongBitmap, Len: 8192}
		f := &transport.Frame{Raw: h.Append(nil), Payload: make([]byte, 8192)}
		copy(f.Payload, ports)
		return f
	}
	read := func(l *fakeLink, want int, frames ...*transport.Frame) {
		t.Helper()
		if err := l.bring(t, frames...); err != nil {
			t.Fatal(err)
		}
		e, _ := s.h.Lock()
		defer s.h.Unlock()
		if n := e.Known(seamLower).CongestedPorts(); n != want {
			t.Errorf("%d ports are congested, want %d", n, want)
		}
	}
	read(first, 0, kernelShake(wire.MaxLanes)...)
	other := s.acceptedLane(seamLower, 3)
	read(first, 1, congested(1))
	memory := s.h.all.deps.Memory
	spent := memory.Account(quota.Peer(seamHigher))
	defer spent.Close()
	l := first.h.(*laneLink)
	for _, meanwhile := range []bool{false, true} {
		n := memory.Limit() - memory.Used()
		spent.Grow(quota.Chunks, n)
		if l.MayRead() {
			t.Error("it is read without memory")
		}
		if meanwhile {
			read(other, 0, congested(0))
		}
		spent.Give(quota.Chunks, n)
		if !l.MayRead() {
			t.Error("it is not read with memory again")
		}
		want := 0
		if !meanwhile {
			read(other, 0, congested(0))
			want = 1
		}
		read(first, want, congested(1))
	}
}
