//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"net/netip"
	"testing"
	"unsafe"

	"github.com/rdsd/rdsd/shm"
)

// pairFrom has s read from a pair number id, and returns its other end, whose flow is that of src.
func pairFrom(t *testing.T, s *Socket, id uint64, src netip.AddrPort) (*shm.Pair, *shm.PairSender) {
	t.Helper()
	made, err := shm.CreatePair(id, shm.MinPairBytes)
	if err != nil {
		t.Fatal(err)
	}
	out, err := shm.OpenPair(made.WordsFD, made.DataFD, made.Bytes, shm.PairSends)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(out.Close)
	in, err := shm.OpenPair(made.WordsFD, made.ReadFD, made.Bytes, shm.PairReads)
	made.Lent()
	made.Close()
	made.Disown()
	if err != nil {
		t.Fatal(err)
	}
	o := &pairOffer{&pairMem{p: in}, shm.PairReads, src}
	o.mem.refs.Store(1)
	if !linkOf(s).openPair(id, o) {
		t.Fatal("the pair is not read from")
	}
	return out, shm.NewPairSender(out)
}

// putPaired puts datagrams of 8 bytes as one record, and returns where it is.
func putPaired(t *testing.T, s *shm.PairSender, payloads ...string) []byte {
	t.Helper()
	b := s.Begin(8 * len(payloads))
	if b == nil {
		t.Fatal("there is no room in the pair")
	}
	for i, p := range payloads {
		copy(b[8*i:], p)
	}
	if !s.Put(len(b), len(payloads)) {
		t.Fatal("the pair is closed")
	}
	return b
}

// TestClosedPairWakes: the end of a pair is news for a reader that is parked. What its sender put
// last it may have told nobody of: it died before, or the daemon let go of it before the reader was rung.
func TestClosedPairWakes(t *testing.T) {
	d := newRingDaemon(t)
	s := d.bindRing(localAddr)
	ctx := testContext(t)
	r, l := ringsOf(s), linkOf(s)
	p, out := pairFrom(t, s, 7, peerAddr)
	r.rxMu.Lock()
	w := r.rxWaiterLocked(nil)
	r.rxMu.Unlock()
	r.waiters.add(w) // parked; nobody hears the doorbell for it
	putPaired(t, out, "the last")
	select { // of what came before
	case <-w.ch:
	default:
	}
	seq := r.rxSeq.Load()
	p.Shut()
	l.closePair(7)
	select {
	case <-w.ch:
	default:
		t.Error("a parked reader is told nothing")
	}
	if r.rxSeq.Load() == seq {
		t.Error("a reader that is about to park is told nothing")
	}
	r.waiters.remove(w)
	w.done()
	if got, err := s.Recv(ctx); err != nil || string(got.Payload) != "the last" {
		t.Errorf("%q, %v", got.Payload, err)
	}
	eventually(t, "the pair is let go of", func() bool {
		r.rxMu.Lock()
		defer r.rxMu.Unlock()
		return l.in == nil && l.ending == 0
	})
}

// TestHalfReadPairStays: a sender that writes over a record which is half read, and closes, takes no memory
// away from its reader: the rest comes, and so does what stands behind it.
func TestHalfReadPairStays(t *testing.T) {
	for name, word := range map[string]shm.Word{
		"padding":   shm.MakeWord(shm.KindNothing, 24, 0), // the record would be left out
		"no record": ^shm.Word(0),
	} {
		for _, early := range []bool{false, true} { // closed before the first is read, or after
			d := newRingDaemon(t)
			s := d.bindRing(localAddr)
			ctx := testContext(t)
			l := linkOf(s)
			p, out := pairFrom(t, s, 7, peerAddr)
			b := putPaired(t, out, "datum  0", "datum  1", "datum  2")
			overwrite := func() { *(*shm.Word)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), -8)) = word }
			if early {
				p.Shut()
				l.closePair(7)
			}
			recv := func(want string) {
				t.Helper()
				if got, err := s.Recv(ctx); err != nil || string(got.Payload) != want {
					t.Errorf("%s: %q, %v, want %q", name, got.Payload, err, want)
				}
			}
			recv("datum  0")
			overwrite()
			if !early {
				p.Shut()
				l.closePair(7)
			}
			recv("datum  1")
			recv("datum  2")
		}
	}
}

// TestPairBehindAFalseMark: of a pair that was closed with datagrams behind a mark that the receive ring does not
// come to, the reader lets go; behind one that it will come to, they are read.
func TestPairBehindAFalseMark(t *testing.T) {
	for _, honest := range []bool{false, true} {
		d := newRingDaemon(t)
		s := d.bindRing(localAddr)
		r, l := ringsOf(s), linkOf(s)
		p, out := pairFrom(t, s, 7, peerAddr)
		putPaired(t, out, "datum  0")
		other := d.bindRing(otherAddr)
		if err := other.Send(testContext(t), localAddr, []byte("by the daemon")); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is placed", func() bool { return l.region.RecvTail().Load() == 1 })
		if p.SetMark(2); honest {
			p.SetMark(1)
		}
		putPaired(t, out, "datum  1")
		p.Shut()
		l.closePair(7)
		want := []string{"datum  0", "by the daemon"}
		if honest {
			want = append(want, "datum  1")
		}
		for _, w := range want {
			if got, err := s.Recv(testContext(t)); err != nil || string(got.Payload) != w {
				t.Errorf("%q, %v, want %q", got.Payload, err, w)
			}
		}
		eventually(t, "the pair is let go of", func() bool {
			r.rxMu.Lock()
			defer r.rxMu.Unlock()
			return l.in == nil && l.ending == 0
		})
	}
}

// TestPairBehindALostMark: when a daemon ends before the receive ring has come to a mark, what stands behind that is
// read: nothing is to come before it any more.
func TestPairBehindALostMark(t *testing.T) {
	d := newRingDaemon(t)
	s := d.bindRing(localAddr)
	p, out := pairFrom(t, s, 7, peerAddr)
	p.SetMark(1)
	putPaired(t, out, "datum  0", "datum  1")
	if n, ok, err := s.PeekSize(testContext(t)); ok || err != nil {
		t.Fatalf("%d bytes, %v: its turn has not come", n, err)
	}
	d.stop()
	for _, want := range []string{"datum  0", "datum  1"} {
		if got, err := s.Recv(testContext(t)); err != nil || string(got.Payload) != want {
			t.Errorf("%q, %v, want %q", got.Payload, err, want)
		}
	}
}

// TestPairClosedTwice: a daemon that says twice that a pair is closed, or says so of one it never
// opened, harms no receive.
func TestPairClosedTwice(t *testing.T) {
	d := newRingDaemon(t)
	a, s := d.bindRing(peerAddr), d.bindRing(localAddr)
	ctx := testContext(t)
	l := linkOf(s)
	p, out := pairFrom(t, s, 7, otherAddr)
	putPaired(t, out, "the last")
	p.Shut()
	for _, id := range []uint64{7, 7, 8} {
		l.closePair(id)
	}
	if got, err := s.Recv(ctx); err != nil || string(got.Payload) != "the last" {
		t.Errorf("%q, %v", got.Payload, err)
	}
	for i := range 3 {
		if err := a.Send(ctx, localAddr, []byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Recv(ctx); err != nil || len(got.Payload) != 1 || got.Payload[0] != byte(i) {
			t.Errorf("%q, %v", got.Payload, err)
		}
	}
}
