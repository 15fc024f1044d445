package rtrs

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// Links of devices: their completions come late, they revoke by a work request, and they do
// not say where a write went.

// TestDoneWhenSent: a write's memory is the caller's again when it was answered and its
// operation was sent, in whichever order; its chunk is free with the answer.
func TestDoneWhenSent(t *testing.T) {
	f, p := upClient(t, ClientConfig{})
	f.late = true
	a, b := f.submit(Write, make([]byte, 100)), f.submit(Write, make([]byte, 100))
	read := f.submit(Read, make([]byte, 100))
	ps := f.take()
	free := len(f.c.free)
	for _, o := range ps {
		if err := f.answer(o, 0, 9); err != nil {
			t.Fatal(err)
		}
	}
	// Nothing of the read's memory was posted.
	if one(t, f.done) != read || len(f.c.free) != free+3 {
		t.Fatalf("%d are done, %d chunks are free", len(f.done), len(f.c.free))
	}
	if f.c.Cancel(f.now, a, syscall.ECANCELED) {
		t.Error("cancelled after its answer")
	}
	p.Sent(f.now, 0, 5) // of the other connection
	if len(f.done) != 1 {
		t.Fatal("done by another connection's completions")
	}
	p.Sent(f.now, 1, 1)
	if len(f.done) != 2 || f.done[1] != a || a.Err != nil {
		t.Fatalf("%d are done: %v", len(f.done), a.Err)
	}
	p.Sent(f.now, 1, 1)
	if len(f.done) != 3 || f.done[2] != b {
		t.Fatalf("%d are done", len(f.done))
	}
	// Sent before it is answered, and refused.
	c := f.submit(Write, make([]byte, 100))
	p.Sent(f.now, 1, 2)
	if len(f.done) != 3 {
		t.Fatal("done without an answer")
	}
	if err := f.answer(one(t, f.take()), uint16(syscall.EIO), 9); err != nil || len(f.done) != 4 || !errors.Is(c.Err, syscall.EIO) {
		t.Fatalf("%v, %d are done: %v", err, len(f.done), c.Err)
	}
	if what := f.c.broken(); what != "" {
		t.Fatal(what)
	}
}

// TestAnsweredAndLost: a write that was answered has its outcome, and is not sent again when
// its path is lost before its operation was sent; it is done when the links are closed.
func TestAnsweredAndLost(t *testing.T) {
	f, p := upClient(t, ClientConfig{OnLoss: Error, IOTimeout: time.Second, LossTimeout: time.Second})
	f.late = true
	r := f.submit(Write, make([]byte, 100))
	if err := f.answer(one(t, f.take()), 0, 9); err != nil {
		t.Fatal(err)
	}
	p.Lost(f.now, 1, syscall.ECONNRESET)
	p.Sent(f.now, 1, 10)
	f.tick(5 * time.Second) // past every limit
	if len(f.done) != 0 {
		t.Fatal("done while its path's links live")
	}
	p.Gone(f.now)
	if one(t, f.done) != r || r.Err != nil || len(f.c.epochs) != 0 {
		t.Fatalf("done with %v, %d epochs", r.Err, len(f.c.epochs))
	}
}

// TestAnsweredPastItsLimit: a write that was answered in time, and whose operation is not sent by
// the limit of the request, costs its path, which is the other way to have its memory back; so it
// is done as it was answered, when the links are closed.
func TestAnsweredPastItsLimit(t *testing.T) {
	f, p := upClient(t, ClientConfig{OnLoss: Error, IOTimeout: time.Second, LossTimeout: time.Second, HeartbeatEvery: time.Minute, ConnTimeout: 5 * time.Minute})
	f.late = true
	r := f.submit(Write, make([]byte, 100))
	if err := f.answer(one(t, f.take()), 0, 9); err != nil {
		t.Fatal(err)
	}
	f.tick(1900 * time.Millisecond)
	if p.State() != Connected || f.c.Next() > r.submitted+2*time.Second {
		t.Fatalf("before the limit the path is %v, and the next look is at %v", p.State(), f.c.Next())
	}
	f.tick(100 * time.Millisecond)
	if p.State() == Connected || len(f.done) != 0 {
		t.Fatalf("at the limit the path is %v, and %d are done", p.State(), len(f.done))
	}
	p.Gone(f.now)
	if one(t, f.done) != r || r.Err != nil {
		t.Fatalf("done with %v", r.Err)
	}
	if what := f.c.broken(); what != "" {
		t.Fatal(what)
	}
}

// TestReadAfterRevocation: a read whose key's end is Pending is done when that is told, with
// what was filled by then.
func TestReadAfterRevocation(t *testing.T) {
	for name, c := range map[string]struct {
		filled int
		want   error
	}{
		"all": {100, nil}, "a byte less": {99, ErrShortRead}, "unknown": {transport.Unfilled, nil},
	} {
		f, p := upClient(t, ClientConfig{})
		f.how = transport.Pending
		r := f.submit(Read, make([]byte, 100))
		o := one(t, f.take())
		if err := f.answer(o, 0, 9); err != nil || len(f.done) != 0 {
			t.Fatalf("%s: %v, %d are done with the answer", name, err, len(f.done))
		}
		free := len(f.c.free)
		p.Revoked(f.now, 0, r.key+1, 100)
		if len(f.done) != 0 {
			t.Fatalf("%s: done by the end of another key", name)
		}
		p.Revoked(f.now, 0, r.key, c.filled)
		if one(t, f.done) != r || !errors.Is(r.Err, c.want) || len(f.c.free) != free+1 {
			t.Fatalf("%s: done with %v", name, r.Err)
		}
		p.Revoked(f.now, 0, r.key, c.filled) // once more is nothing
		if what := f.c.broken(); what != "" || len(f.done) != 1 {
			t.Fatalf("%s: %s", name, what)
		}
	}
	f, p := upClient(t, ClientConfig{})
	f.how = transport.Pending
	f.submit(Read, make([]byte, 100))
	o := one(t, f.take())
	f.answer(o, 0, 9)
	if err := f.answer(o, 0, 9); err == nil || p.State() != Closing {
		t.Fatalf("answered twice: %v", err)
	}
}

// TestRevocationLost: a read is asked again if its path is lost before its key has ended:
// nobody knows what its memory holds.
func TestRevocationLost(t *testing.T) {
	f, p := upClient(t, ClientConfig{})
	f.how = transport.Pending
	r := f.submit(Read, make([]byte, 100))
	if err := f.answer(one(t, f.take()), 0, 9); err != nil {
		t.Fatal(err)
	}
	p.Lost(f.now, 0, syscall.ECONNRESET)
	p.Revoked(f.now, 0, r.key, 100)
	p.Gone(f.now)
	if len(f.done) != 0 {
		t.Fatal("done by what came after the loss")
	}
	f.tick(200 * time.Millisecond)
	f.how = transport.Idle
	f.connect(p, fourChunks, ours, 7)
	var again posted
	for _, o := range f.take() {
		if o.op.Kind == transport.OpWriteImm {
			again = o
		}
	}
	if again.path == nil {
		t.Fatal("it is not asked again")
	}
	if err := f.answer(again, 0, 9); err != nil || one(t, f.done) != r || r.Err != nil {
		t.Fatalf("%v, %v", err, r.Err)
	}
}

// TestLinksAreMadeFor: what a client and a server say of their connections before and after
// the depth is known.
func TestLinksAreMadeFor(t *testing.T) {
	f := newFakeClient(t, ClientConfig{QueueDepth: 3})
	p := f.add(1)
	f.connect(p, fourChunks, ours, 7)
	for i, want := range []transport.LinkAttr{{Sends: 3 + spareOps, Recvs: spareOps}, {Sends: 3 + spareOps, Recvs: 6 + spareOps}} {
		if f.dials[i].attr != want {
			t.Errorf("connection %d is made for %+v, want %+v", i, f.dials[i].attr, want)
		}
	}
	// Without a bound of its own a client takes all chunks, and guesses their number at first.
	f = newFakeClient(t, ClientConfig{})
	p = f.add(1)
	f.connect(p, fourChunks, ours, 7)
	all := int(fourChunks.Depth)
	for i, want := range []transport.LinkAttr{{Sends: rtrswire.Depth + spareOps, Recvs: spareOps}, {Sends: all + spareOps, Recvs: 2*all + spareOps}} {
		if f.dials[i].attr != want {
			t.Errorf("without a bound, connection %d is made for %+v, want %+v", i, f.dials[i].attr, want)
		}
	}
	if n := p.RecvBytes(0); n != len(info(fourChunks, 7)) {
		t.Errorf("connection 0 takes messages of %d bytes", n)
	}
	if n := p.RecvBytes(1); n != rtrswire.RKeyRspLen {
		t.Errorf("connection 1 takes messages of %d bytes", n)
	}
	g := newFakeServer(t, smallServer)
	g.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	depth := int(g.s.chunks.Depth)
	for i, c := range g.accepted {
		if want := (transport.LinkAttr{Sends: 4*depth + spareOps, Recvs: depth + spareOps}); g.attrs[i] != want {
			t.Errorf("connection %d is let in for %+v, want %+v", i, g.attrs[i], want)
		}
		if want := []int{rtrswire.InfoReqLen, 0}[i]; c.RecvBytes() != want {
			t.Errorf("connection %d takes messages of %d bytes, want %d", i, c.RecvBytes(), want)
		}
	}
}

// TestRequestWaitsForItsKey: a request whose chunk's key ends later is not read before, and
// nobody else comes into its chunk.
func TestRequestWaitsForItsKey(t *testing.T) {
	f := newFakeServer(t, smallServer)
	f.how = transport.Pending
	p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	if err := f.put(p, 1, ds, 1, Write, []byte("first")); err != nil {
		t.Fatal(err)
	}
	chunk := p.ses.chunk(1)
	copy(chunk, "other") // the client still can
	if len(f.reqs) != 0 || len(f.take()) != 0 || f.s.Stats().Inflight != 1 {
		t.Fatalf("%d requests have begun", len(f.reqs))
	}
	p.Revoked(f.now, 0, ds[2].Key, 0)
	if len(f.reqs) != 0 {
		t.Fatal("begun by the end of another key")
	}
	if err := p.Revoked(f.now, 0, ds[1].Key, 0); err != nil {
		t.Fatal(err)
	}
	r := one(t, f.reqs)
	if string(r.Data) != "other" || r.Op != Write || p.stats.Writes != 1 {
		t.Fatalf("%v of %q", r.Op, r.Data)
	}
	p.Revoked(f.now, 0, ds[1].Key, 0) // once more is nothing
	f.s.Reply(f.now, r, 0, nil)
	if o := one(t, f.take()); o.op.Kind != transport.OpSendImm {
		t.Fatalf("%+v", o)
	}
	if what := f.s.broken(); what != "" || len(f.reqs) != 1 {
		t.Fatal(what)
	}
	// What is wrong in it is found then.
	if err := f.write(p, 1, ds, 2, 0, 0, make([]byte, 12)); err != nil {
		t.Fatal(err)
	}
	if err := p.Revoked(f.now, 0, ds[2].Key, 0); err == nil || p.State() != Closing {
		t.Fatalf("a message of no type: %v", err)
	}
	p.Gone(f.now)
	if len(f.s.Paths()) != 0 || f.s.broken() != "" || f.live != 0 {
		t.Fatalf("the path is %v, %s", p.State(), f.s.broken())
	}
	// A second one on the same path breaks the protocol, also before the first is read.
	p, ds = f.up(someone{session: 2, path: 1, attempt: 1, addr: 1, name: "a"})
	f.put(p, 1, ds, 1, Write, []byte("first"))
	if err := p.Written(f.now, 1, transport.Placed{Known: true, Key: ds[1].Key, Addr: ds[1].Addr, N: 12, Imm: uint32(f.s.chunks.Req(1, 0))}); err == nil || p.State() != Closing {
		t.Fatalf("two in one chunk: %v", err)
	}
}

// TestRequestLostWithItsKey: a request that was not read when its path is lost is forgotten
// when the links are closed, and the session is whole.
func TestRequestLostWithItsKey(t *testing.T) {
	f := newFakeServer(t, smallServer)
	f.how = transport.Pending
	p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	q, es := f.up(someone{session: 1, path: 2, attempt: 1, addr: 2, name: "a", late: true})
	f.put(p, 1, ds, 1, Write, []byte("first"))
	p.Lost(f.now, 1, syscall.ECONNRESET)
	if err := p.Revoked(f.now, 0, ds[1].Key, 0); err != nil || len(f.reqs) != 0 {
		t.Fatalf("%v, %d requests have begun", err, len(f.reqs))
	}
	p.Gone(f.now)
	if p.State() != Dead || len(f.reqs) != 0 || len(f.take()) != 0 {
		t.Fatalf("the path is %v, %d requests have begun", p.State(), len(f.reqs))
	}
	f.how = transport.Idle
	if err := f.put(q, 1, es, 1, Write, []byte("again")); err != nil || string(one(t, f.reqs).Data) != "again" {
		t.Fatalf("%v, %d requests", err, len(f.reqs))
	}
	if what := f.s.broken(); what != "" {
		t.Fatal(what)
	}
}

// TestKernelFailsOverWhatIsArriving: a kernel sends a request again on another path before
// the key of the first one has ended: it begins when the old path's links are closed and its
// own key has ended, whichever is last.
func TestKernelFailsOverWhatIsArriving(t *testing.T) {
	for _, keyFirst := range []bool{true, false} {
		f := newFakeServer(t, smallServer)
		f.how = transport.Pending
		p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a", kernel: true})
		q, es := f.up(someone{session: 1, path: 2, attempt: 1, addr: 2, name: "a", kernel: true, late: true})
		f.put(p, 1, ds, 0, Write, []byte("data"))
		if err := f.put(q, 1, es, 0, Write, []byte("data")); err != nil || p.State() != Closing {
			t.Fatalf("%v, the old path is %v", err, p.State())
		}
		steps := []func(){func() { q.Revoked(f.now, 0, es[0].Key, 0) }, func() { p.Gone(f.now) }}
		if !keyFirst {
			steps[0], steps[1] = steps[1], steps[0]
		}
		steps[0]()
		if len(f.reqs) != 0 {
			t.Fatalf("key first %v: begun too early", keyFirst)
		}
		steps[1]()
		r := one(t, f.reqs)
		if r.Path != q || string(r.Data) != "data" || p.State() != Dead {
			t.Fatalf("key first %v: %q of the wrong path, the old one is %v", keyFirst, r.Data, p.State())
		}
		f.s.Reply(f.now, r, 0, nil)
		if o := one(t, f.take()); o.path != q || f.s.broken() != "" || f.s.Stats().Inflight != 0 {
			t.Fatalf("key first %v: %+v, %s", keyFirst, o, f.s.broken())
		}
	}
}

// TestUnknownPlace: a link that does not tell where a write went. The request is checked by
// itself, and as many bytes have to have come as it has.
func TestUnknownPlace(t *testing.T) {
	m := rtrswire.Req{Type: rtrswire.Write, UsrLen: 8}
	whole := m.Append([]byte("datauser-hdr"))
	for name, c := range map[string]struct {
		n     int
		errno uint16
	}{
		"all": {len(whole), 0}, "a byte less": {len(whole) - 1, errnoInvalid}, "a byte more": {len(whole) + 1, errnoInvalid},
	} {
		f := newFakeServer(t, smallServer)
		p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
		copy(p.ses.chunk(1), whole)
		key := ds[1].Key
		if err := p.Written(f.now, 1, transport.Placed{N: c.n, Imm: uint32(f.s.chunks.Req(1, 12))}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, ok := f.regions[key]; ok {
			t.Fatalf("%s: the chunk's key is good", name)
		}
		if c.errno == 0 {
			if r := one(t, f.reqs); string(r.Data) != "data" || string(r.Usr) != "user-hdr" {
				t.Fatalf("%s: %q, %q", name, r.Usr, r.Data)
			}
			continue
		}
		if o := one(t, f.take()); rtrswire.Imm(o.op.Imm) != rtrswire.Done(1, c.errno, false) || len(f.reqs) != 0 {
			t.Fatalf("%s: %+v", name, o)
		}
	}
	for _, n := range []int{0, -1, int(chunksOf(4, 8192, 512).Size()) + 1} {
		f := newFakeServer(t, smallServer)
		p, _ := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
		if err := p.Written(f.now, 1, transport.Placed{N: n, Imm: uint32(f.s.chunks.Req(1, 12))}); err == nil || p.State() != Closing {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	// It may be anywhere in the chunk if nothing says where.
	f := newFakeServer(t, smallServer)
	p, _ := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
	copy(p.ses.chunk(1), (&rtrswire.Req{Type: rtrswire.Write, UsrLen: 900}).Append(nil)) // longer than what is before it
	if err := p.Written(f.now, 1, transport.Placed{N: 12, Imm: uint32(f.s.chunks.Req(1, 0))}); err != nil || p.ses.touched != int(f.s.chunks.Size()) {
		t.Errorf("%v, %d bytes count as touched", err, p.ses.touched)
	}
}

// TestPinnedIsNotTrimmed: a device goes on writing to pages that the process would no longer
// have, so that nobody is asked to rest.
func TestPinnedIsNotTrimmed(t *testing.T) {
	for _, pinned := range []bool{false, true} {
		f := newFakeServer(t, smallServer)
		f.s.keep, f.pinned = 0, pinned
		p, ds := f.up(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
		f.put(p, 1, ds, 1, Write, make([]byte, 8192))
		f.s.Reply(f.now, one(t, f.reqs), 0, nil)
		f.take()
		for range 300 {
			f.tick(100 * time.Millisecond)
			p.Written(f.now, 0, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeatAck)})
		}
		asked := len(f.take()) > 0
		if asked == pinned {
			t.Errorf("pinned %v: asked to rest %v", pinned, asked)
		}
	}
}

// TestChunksThatNoDeviceTakes: a path whose device has no room for the session's chunks is
// refused, and nothing of a session that it would have been the first of is left.
func TestChunksThatNoDeviceTakes(t *testing.T) {
	for name, c := range map[string]struct {
		cfg ServerConfig
		set func(f *fakeServer, v bool)
	}{
		"not adopted": {smallServer, func(f *fakeServer, v bool) {
			if f.noAdopt = nil; v {
				f.noAdopt = syscall.ENOMEM
			}
		}},
		"not registered": {ServerConfig{QueueDepth: 4, MaxIO: 8192, MaxHdr: 512, NoInvalidate: true}, func(f *fakeServer, v bool) { f.noRoom = v }},
	} {
		f := newFakeServer(t, c.cfg)
		c.set(f, true)
		p := f.join(someone{session: 1, path: 1, attempt: 1, addr: 1, name: "a"})
		ps := f.take()
		n, err := rtrswire.ParseNotice(one(t, ps).bytes)
		if err != nil || n.Type != rtrswire.RefusedType || n.Errno != errnoNoMemory || p.State() != Closing {
			t.Fatalf("%s: %+v, %v, the path is %v", name, n, err, p.State())
		}
		if len(f.s.Sessions()) != 0 || f.live != 0 || len(f.ups) != 0 {
			t.Fatalf("%s: %d sessions, %d bytes", name, len(f.s.Sessions()), f.live)
		}
		f.tick(farewell)
		p.Gone(f.now)
		// A further path of a session that lives leaves it alone.
		c.set(f, false)
		f.up(someone{session: 1, path: 1, attempt: 2, addr: 1, name: "a"})
		c.set(f, true)
		if q := f.join(someone{session: 1, path: 2, attempt: 1, addr: 2, name: "a", late: true}); q.State() != Closing {
			t.Fatalf("%s: another path is %v", name, q.State())
		}
		if one(t, f.s.Sessions()).up != 1 || f.live == 0 {
			t.Fatalf("%s: the session is gone", name)
		}
	}
}
