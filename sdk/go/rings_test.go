//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// stuckAddr is where nobody is, for the small daemon of these tests.
var stuckAddr = netip.MustParseAddrPort("127.0.0.250:7")

func ringsOf(s *Socket) *rings { return s.fe.(*rings) }

// linkOf is the socket's link in use.
func linkOf(s *Socket) *ringLink {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ringsOf(s).cur
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come: " + what)
		}
	}
}

func TestRingsEcho(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr)
	var ctx context.Context
	for i := range 1000 {
		if i%50 == 0 { // patience is for a step, not for what a busy machine makes of a thousand
			ctx = testContext(t)
		}
		if err := a.Send(ctx, peerAddr, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
		got, err := b.Recv(ctx)
		if err != nil || string(got.Payload) != fmt.Sprint(i) || got.Addr != localAddr {
			t.Fatalf("%v %v", got, err)
		}
		if err := b.TrySend(localAddr, got.Payload); err != nil {
			t.Fatal(err)
		}
		if got, err = a.Recv(ctx); err != nil || string(got.Payload) != fmt.Sprint(i) {
			t.Fatalf("%v %v", got, err)
		}
	}
}

func TestRingsBindAsksForWhatItWas(t *testing.T) {
	d := newRingDaemon(t)
	s := d.bindRing(localAddr, WithSendBuffer(100000), WithRecvBuffer(50000), WithLabel("me"))
	b := d.sock(localAddr).binds
	if b.GetSendBufferBytes() != 100000 || b.GetRecvBufferBytes() != 50000 || b.GetLabel() != "me" || b.GetRing().GetVersion() != shm.Version {
		t.Errorf("%v", b)
	}
	if any := d.bindRing(netip.AddrPortFrom(localAddr.Addr(), 0)); any.LocalAddr().Port() == 0 || s.LocalAddr() != localAddr {
		t.Errorf("bound to %v and %v", any.LocalAddr(), s.LocalAddr())
	}
	_, err := d.dial().Bind(testContext(t), localAddr)
	wantErr(t, err, rdserr.ErrAddrInUse)
}

// Runs to one destination are one descriptor each, whatever their lengths, or part of the one before.
func TestRingsTrains(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr)
	ctx := testContext(t)
	if err := a.Send(ctx, peerAddr, nil); err != nil { // opens the flow
		t.Fatal(err)
	}
	if _, err := b.Recv(ctx); err != nil {
		t.Fatal(err)
	}
	equal := func(n, size int) (ds []Datagram) {
		for i := range n {
			ds = append(ds, Datagram{Addr: peerAddr, Payload: bytes.Repeat([]byte{byte(i)}, size)})
		}
		return ds
	}
	mixed := equal(100, 0)
	for i := range mixed {
		mixed[i].Payload = bytes.Repeat([]byte{byte(i)}, i)
	}
	for name, c := range map[string]struct {
		ds     []Datagram
		trains int
	}{
		"equal":     {equal(64, 64), 1},
		"empty":     {equal(5000, 0), 2},
		"mixed":     {mixed, 1},
		"long":      {equal(100, 1000), 2},
		"large":     {equal(3, 40000), 3},
		"tail":      {append(equal(40, 8), mixed...), 2},
		"1 MiB":     {equal(1, 1<<20), 1},
		"two ports": {append(equal(3, 8), Datagram{Addr: localAddr}, Datagram{Addr: peerAddr}), 3},
	} {
		t.Run(name, func(t *testing.T) {
			r := ringsOf(a)
			r.txMu.Lock()
			before := r.tx.region.SendTail().Load()
			r.txMu.Unlock()
			if _, err := a.SendBatch(ctx, c.ds); err != nil {
				t.Fatal(err)
			}
			if name == "two ports" { // and a descriptor that opens the second flow
				c.trains++
				if _, err := a.Recv(ctx); err != nil {
					t.Error(err)
				}
			}
			r.txMu.Lock()
			if n := r.tx.region.SendTail().Load() - before; int(n) > c.trains {
				t.Errorf("%d descriptors, want at most %d", n, c.trains)
			}
			r.txMu.Unlock()
			var got []Datagram
			for range c.ds {
				into := make([]Datagram, 7) // they are kept
				if len(got) >= len(c.ds) || name == "two ports" && len(got) == len(c.ds)-1 {
					break
				}
				n, err := b.RecvBatch(ctx, into)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, into[:n]...)
			}
			i := 0
			for _, want := range c.ds {
				if want.Addr != peerAddr {
					continue
				}
				if !bytes.Equal(got[i].Payload, want.Payload) || got[i].Addr != localAddr {
					t.Fatalf("datagram %d: %d bytes from %v, want %d", i, len(got[i].Payload), got[i].Addr, len(want.Payload))
				}
				i++
			}
		})
	}
}

// Single datagrams gather behind one that the daemon has not taken yet.
func TestRingsAppend(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr, WithOutcomes()), d.bindRing(peerAddr)
	ctx := testContext(t)
	if err := a.Send(ctx, peerAddr, []byte("0000")); err != nil {
		t.Fatal(err)
	}
	d.pause(true)
	r := ringsOf(a)
	r.txMu.Lock()
	before := r.tx.region.SendTail().Load()
	r.txMu.Unlock()
	const n = 2000
	for i := 1; i < n; i++ {
		if err := a.TrySend(peerAddr, fmt.Appendf(nil, "%04d", i)); err != nil {
			t.Fatal(err)
		}
	}
	r.txMu.Lock()
	posted := r.tx.region.SendTail().Load() - before
	r.txMu.Unlock()
	if posted > 12 {
		t.Errorf("%d descriptors for %d datagrams", posted, n)
	}
	d.pause(false)
	for i := range n {
		if got, err := b.Recv(ctx); err != nil || string(got.Payload) != fmt.Sprintf("%04d", i) {
			t.Fatalf("datagram %d: %q %v", i, got.Payload, err)
		}
	}
	next := uint64(1)
	for o, err := range a.Outcomes(ctx) {
		if err != nil || o.Tag != next || o.Kind != Delivered {
			t.Fatalf("%+v %v, want tag %d", o, err, next)
		}
		if next++; next > n {
			break
		}
	}
}

// What is borrowed stays as it is until it is released, in any order, also over
// the end of the socket.
func TestRingsBorrow(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr)
	ctx := testContext(t)
	var leases []Lease
	var kept [][]byte
	into := make([]Datagram, 3)
	for round := range 20 {
		ds := make([]Datagram, 5)
		for i := range ds {
			ds[i] = Datagram{Addr: peerAddr, Payload: fmt.Appendf(nil, "round %d, datagram %d", round, i)}
		}
		if _, err := a.SendBatch(ctx, ds); err != nil {
			t.Fatal(err)
		}
		for got := 0; got < len(ds); {
			n, l, err := b.Borrow(ctx, into)
			if err != nil {
				t.Fatal(err)
			}
			for _, dg := range into[:n] {
				if string(dg.Payload) != string(ds[got].Payload) || cap(dg.Payload) != len(dg.Payload) {
					t.Fatalf("%q (cap %d), want %q", dg.Payload, cap(dg.Payload), ds[got].Payload)
				}
				kept = append(kept, dg.Payload)
				got++
			}
			leases = append(leases, l)
		}
	}
	check := func() {
		t.Helper()
		for i, p := range kept {
			if want := fmt.Sprintf("round %d, datagram %d", i/5, i%5); string(p) != want {
				t.Fatalf("%q, want %q", p, want)
			}
		}
	}
	check()
	l := linkOf(b)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	check() // the mapping is still there
	for i, k := range []int{3, 0, 30} {
		leases[k].Release()
		leases[k].Release()
		leases = append(leases[:k], leases[k+1:]...)
		if i == 0 {
			(Lease{}).Release()
		}
	}
	for _, l := range leases {
		if refs := ringsRefs(b, l); refs < 1 {
			t.Fatalf("%d references while something is borrowed", refs)
		}
		l.Release()
	}
	eventually(t, "the mapping is gone", func() bool { return l.refs.Load() == 0 })
}

func ringsRefs(s *Socket, l Lease) int32 {
	r := ringsOf(s)
	r.rxMu.Lock()
	defer r.rxMu.Unlock()
	return l.of.(*held).trains[0].l.refs.Load()
}

// A context that has ended does not keep from taking what is there.
func TestRingsBorrowWithoutWaiting(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	into := make([]Datagram, 8)
	if n, _, err := b.Borrow(ended, into); n != 0 || !errors.Is(err, rdserr.ErrCanceled) {
		t.Errorf("%d %v", n, err)
	}
	if err := a.Send(testContext(t), peerAddr, []byte("x")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the datagram", func() bool {
		n, l, _ := b.Borrow(ended, into)
		l.Release()
		return n == 1
	})
	if n, _, err := b.Borrow(ended, nil); n != 0 || err != nil {
		t.Errorf("%d %v", n, err)
	}
}

// Too much borrowed: Borrow says so, Recv waits until something is released.
func TestRingsBorrowedTooMuch(t *testing.T) {
	d := newRingDaemon(t)
	d.regions(shm.Spec{Receives: 8, Releases: 8})
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr)
	ctx := testContext(t)
	into := make([]Datagram, 1)
	var leases []Lease
	for i := range 9 {
		if err := a.Send(ctx, peerAddr, make([]byte, i)); err != nil {
			t.Fatal(err)
		}
		n, l, err := b.Borrow(ctx, into)
		if i < 8 {
			if n != 1 || err != nil {
				t.Fatalf("%d: %v", i, err)
			}
			leases = append(leases, l)
			continue
		}
		wantErr(t, err, shm.ErrBorrowed, rdserr.ErrWouldBlock)
	}
	if n, ok, err := b.PeekSize(ctx); !errors.Is(err, shm.ErrBorrowed) {
		t.Errorf("%d %v %v", n, ok, err)
	}
	done := goErr(func() error { _, err := b.Recv(ctx); return err })
	time.Sleep(5 * time.Millisecond)
	leases[0].Release()
	if err := waitErr(t, done); err != nil {
		t.Fatal(err)
	}
	for _, l := range leases {
		l.Release()
	}
}

func TestRingsReserve(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr, WithSendBuffer(10000), WithOutcomes()), d.bindRing(peerAddr)
	ctx := testContext(t)
	sl, err := a.Reserve(ctx, peerAddr, 100)
	if err != nil || len(sl.Bytes()) != 100 {
		t.Fatalf("%v, %d bytes", err, len(sl.Bytes()))
	}
	other, err := a.Reserve(ctx, peerAddr, 9999)
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, a.TrySend(peerAddr, nil), rdserr.ErrWouldBlock) // what is reserved counts
	_, err = sl.Commit(101)
	wantErr(t, err, rdserr.ErrTooLarge)
	tag, err := sl.Commit(copy(sl.Bytes(), "in place"))
	if err != nil || tag == 0 {
		t.Fatal(err)
	}
	_, err = sl.Commit(1)
	wantErr(t, err, rdserr.ErrInvalid)
	sl.Abort()
	if sl.Bytes() != nil {
		t.Error("a committed slot has bytes")
	}
	waiting := goErr(func() error { return a.Send(ctx, peerAddr, []byte("behind")) })
	other.Abort()
	other.Abort()
	if err := waitErr(t, waiting); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"in place", "behind"} {
		if got, err := b.Recv(ctx); err != nil || string(got.Payload) != want {
			t.Errorf("%q %v", got.Payload, err)
		}
	}
	for o, err := range a.Outcomes(ctx) {
		if err != nil || o.Tag != tag || o.Kind != Delivered {
			t.Errorf("%+v %v", o, err)
		}
		break
	}
	for _, n := range []int{-1, 1<<20 + 1} {
		if _, err := a.Reserve(ctx, peerAddr, n); err == nil {
			t.Errorf("a slot of %d bytes", n)
		}
	}
	late, err := a.Reserve(ctx, peerAddr, 10)
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	copy(late.Bytes(), "still mapped")
	_, err = late.Commit(1)
	wantErr(t, err, rdserr.ErrClosed)
	eventually(t, "the last slot frees the mapping", func() bool { return late.ring.l.refs.Load() == 0 })
}

func TestRingsSendBufferFull(t *testing.T) {
	d := newRingDaemon(t)
	a := d.bindRing(localAddr, WithSendBuffer(65536), WithOutcomes())
	ctx := testContext(t)
	n := 0
	for ; n < 1000; n++ {
		if err := a.TrySend(stuckAddr, make([]byte, 1000)); err != nil {
			wantErr(t, err, rdserr.ErrWouldBlock)
			break
		}
	}
	if n != 66 { // the last one passes 65536
		t.Errorf("%d datagrams of 1000 bytes were accepted", n)
	}
	accepted, err := a.TrySendBatch(ctx, []Datagram{{Addr: stuckAddr}, {Addr: peerAddr}})
	if be, ok := errors.AsType[*BatchError](err); accepted != 0 || !ok || len(be.Errors) != 2 || !errors.Is(err, rdserr.ErrWouldBlock) {
		t.Errorf("%d %v", accepted, err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	err = a.Send(short, stuckAddr, nil)
	wantErr(t, err, rdserr.ErrTimeout, context.DeadlineExceeded)
	if op, ok := errors.AsType[*OpError](err); !ok || op.Undecided {
		t.Errorf("%+v: what was not posted is decided", op)
	}
	wantErr(t, a.Flush(short), rdserr.ErrTimeout)

	waiting := goErr(func() error {
		_, err := a.SendBatch(ctx, []Datagram{{Addr: stuckAddr, Payload: []byte("later")}})
		return err
	})
	res, err := a.CancelSentTo(ctx, stuckAddr)
	if err != nil || res.Cancelled != uint64(n) {
		t.Errorf("%+v %v, want %d", res, err, n)
	}
	if err := waitErr(t, waiting); err != nil {
		t.Error(err)
	}
	kinds := map[OutcomeKind]int{}
	for o, err := range a.Outcomes(ctx) {
		if err != nil || o.Reason != "cancelled by the application" {
			t.Fatalf("%+v %v", o, err)
		}
		if kinds[o.Kind]++; kinds[o.Kind] == n {
			break
		}
	}
	if kinds[Cancelled] != n {
		t.Errorf("%v", kinds)
	}
}

func TestRingsPeekSize(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr)
	ctx := testContext(t)
	if n, ok, err := b.PeekSize(ctx); ok || err != nil {
		t.Errorf("%d %v %v", n, ok, err)
	}
	if _, err := a.SendBatch(ctx, []Datagram{{Addr: peerAddr, Payload: make([]byte, 7)}, {Addr: peerAddr, Payload: make([]byte, 9)}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "7 bytes", func() bool { n, ok, err := b.PeekSize(ctx); return ok && n == 7 && err == nil })
	if _, err := b.Recv(ctx); err != nil {
		t.Fatal(err)
	}
	if n, ok, err := b.PeekSize(ctx); n != 9 || !ok || err != nil {
		t.Errorf("%d %v %v", n, ok, err)
	}
}
