package tcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// ends notes how a link ended, and how often.
type ends struct {
	sink
	errs  chan error
	acked uint64
}

func newEnds(t *testing.T, l transport.Link) *ends {
	return &ends{sink: sink{t: t, l: l.(*Link)}, errs: make(chan error, 4)}
}

func (e *ends) Closed(err error, acked uint64) { e.here(); e.acked = acked; e.errs <- err }

// once waits for the end and checks that it is told once.
func (e *ends) once(t *testing.T, what string, want error) {
	t.Helper()
	select {
	case err := <-e.errs:
		if !errors.Is(err, want) {
			t.Errorf("%s: ended with %v, want %v", what, err, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("%s: no end", what)
	}
	e.on(func() {})
	if len(e.errs) != 0 {
		t.Errorf("%s: ended twice", what)
	}
	if descriptor(&e.l.socket) != -1 {
		t.Errorf("%s: its descriptor is open", what)
	}
}

// links makes a link, neither end of which is started; the test ends both.
func links(t *testing.T, p *Provider) (x, y transport.Link) {
	t.Helper()
	accepted := make(chan transport.Link, 1)
	l, err := p.Listen(netip.MustParseAddrPort("127.0.0.85:0"), func(k transport.Link) { accepted <- k })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if x, err = p.Dial(context.Background(), netip.MustParseAddrPort("127.0.0.86:0"), l.Addr(), 0); err != nil {
		t.Fatal(err)
	}
	y = <-accepted
	t.Cleanup(func() { x.Abort(); y.Abort() })
	return x, y
}

// A link that was closed before it was started says so when it is, once; nothing is sent
// over it, and it can be closed again.
func TestLinkClosedBeforeStart(t *testing.T) {
	p := newProvider(t)
	for _, end := range []func(transport.Link){transport.Link.Abort, transport.Link.Close} {
		x, y := links(t, p)
		e := newEnds(t, x)
		end(x)
		end(x)
		if done, err := e.send(1, 10); done || !errors.Is(err, net.ErrClosed) {
			t.Errorf("sent over a closed link: %v, %v", done, err)
		}
		if n := x.Acked(); n != 0-e.l.ackBase {
			t.Errorf("%d bytes are acknowledged", n)
		}
		x.Start(e)
		x.Start(e) // the second is nothing
		e.once(t, "closed before it was started", net.ErrClosed)
		x.Abort()
		x.Resume()
		e.on(func() {
			if e.l.Try() {
				t.Error("a link that has ended is read")
			}
			e.l.Ready(unix.EPOLLIN | unix.EPOLLOUT)
			e.l.end(io.EOF)
		})
		if len(e.errs) != 0 {
			t.Error("ended again")
		}
		other := newEnds(t, y)
		y.Start(other)
		other.once(t, "whose peer has closed", io.EOF)
	}
}

// What a link's work panics with is the end of the link, and of nothing else.
func TestFaultEndsTheLink(t *testing.T) {
	p := newProvider(t)
	x, _ := links(t, p)
	e := newEnds(t, x)
	x.Start(e)
	why := errors.New("a panic")
	if e.l.Work() != guard.Link {
		t.Errorf("work of kind %v", e.l.Work())
	}
	e.on(func() { e.l.Fault(why) })
	e.once(t, "a fault", why)

	a, b := onePair(t, p, netip.MustParseAddr("127.0.0.96"))
	a.l.Start(a, transport.MaxSend)
	b.l.Start(b, transport.MaxSend)
	if a.l.Work() != guard.Link {
		t.Errorf("work of kind %v", a.l.Work())
	}
	a.l.Reactor().Do(func() { a.l.Fault(why) })
	a.wantClosed("a fault", nil)
	if a.err != why {
		t.Errorf("ended with %v", a.err)
	}
	b.wantClosed("the other end", nil)
	done := make(chan struct{})
	a.l.Reactor().Do(func() {
		defer close(done)
		if a.l.Try() {
			t.Error("a link that has ended is read")
		}
		a.l.wake() // from a rest that began before
		a.l.end(io.EOF)
	})
	<-done
	a.l.Post(&transport.Op{Kind: transport.OpSend}) // no effect
	a.l.Flush()
	if a.l.out.Ops() != 0 {
		t.Error("something is posted on a link that has ended")
	}
}

// What a pause keeps is the frame that was not taken, in its own buffer or a copy, with
// what was read behind it; and all of it is given back.
func TestHeldFrames(t *testing.T) {
	before := buf.InUse()
	raw := bytes.Repeat([]byte{9}, wire.HeaderLen)
	for _, alone := range []bool{false, true} {
		for _, rest := range []string{"", "behind it"} {
			f := &transport.Frame{Raw: raw, Payload: []byte("payload")}
			var b *buf.Buf
			if alone {
				b = buf.Get(7)
				copy(b.B, "payload")
				f.Payload, f.Buf = b.B, b
			}
			k := hold(f)
			if alone {
				b.Release() // the reader's hold
			} else {
				copy(f.Payload, "changed")
			}
			k.keepRest([]byte(rest))
			g := k.frame()
			if !bytes.Equal(g.Raw, raw) || string(g.Payload) != "payload" || (g.Buf != nil) != alone || (k.rest != nil) != (rest != "") {
				t.Errorf("alone %v: %+v, the rest %v", alone, g, k.rest)
			}
			if k.rest != nil && string(k.rest.B) != rest {
				t.Errorf("the rest is %q", k.rest.B)
			}
			k.drop()
		}
	}
	if n := buf.InUse(); n != before {
		t.Errorf("%d bytes are held, before %d", n, before)
	}
}

// The end of a drain, step by step: when the peer's time is over TCP takes nothing more;
// then what it has taken is read for as long as there is some; then the link ends. One
// that is paused waits.
func TestDrainStepByStep(t *testing.T) {
	x, y := links(t, newProvider(t))
	e := newEnds(t, x)
	peer := newEnds(t, y)
	e.on(func() { // on the thread, which does nothing else meanwhile
		x.Start(e)
		e.l.startDrain()
		if e.l.drain == nil || e.l.deaf {
			t.Fatal("no drain has begun")
		}
		if _, err := peer.send(1, 10); err != nil {
			t.Error(err)
		}
		for end := time.Now().Add(5 * time.Second); ; {
			if n, _ := unix.IoctlGetInt(e.l.fd, unix.SIOCINQ); n > 0 || time.Now().After(end) {
				break
			}
		}
		e.l.drainDue()
		if !e.l.deaf || e.l.ended {
			t.Errorf("the time of the peer is over: deaf %v, ended %v", e.l.deaf, e.l.ended)
		}
		e.l.paused = true
		if e.l.drainDue(); e.l.ended {
			t.Error("a link that is paused has ended")
		}
		e.l.paused = false
		if e.l.drainDue(); e.l.ended {
			t.Error("ended with something unread")
		}
		if e.l.Try(); e.frames.Load() != 1 {
			t.Errorf("%d frames are read", e.frames.Load())
		}
		if e.l.drainDue(); !e.l.ended {
			t.Error("nothing is unread, and it goes on")
		}
		e.l.drainDue()
		e.l.startDrain() // after the end
	})
	e.once(t, "drained", os.ErrDeadlineExceeded)
}

// The events that a link waits for are those the reactor knows, through every change.
func TestWatchStepByStep(t *testing.T) {
	x, _ := links(t, newProvider(t))
	l := x.(*Link)
	e := newEnds(t, x)
	e.on(func() {
		s := &l.socket
		for i, want := range []uint32{unix.EPOLLIN, unix.EPOLLIN, unix.EPOLLIN | unix.EPOLLOUT, 0, 0, unix.EPOLLOUT, unix.EPOLLIN, 0} {
			if err := s.watch(want, l); err != nil || s.watched != want {
				t.Fatalf("step %d: %v, watched for %#x", i, err, s.watched)
			}
			// It is there, or not: to be added twice is an error.
			err := s.loop.r.Add(s.fd, unix.EPOLLPRI, l)
			if (err == nil) != (want == 0) {
				t.Errorf("step %d: registered %v", i, err != nil)
			}
			if err == nil {
				s.loop.r.Remove(s.fd)
			}
		}
		l.h = e
		for _, c := range []struct {
			paused, ended bool
			out           *transport.Batch
			want          uint32
		}{{false, false, nil, unix.EPOLLIN}, {true, false, nil, 0}, {false, false, &transport.Batch{}, unix.EPOLLIN | unix.EPOLLOUT},
			{true, false, &transport.Batch{}, unix.EPOLLOUT}, {false, true, nil, 0}} {
			l.paused, l.ended, l.out = c.paused, c.ended, c.out
			if err := l.wait(); err != nil || l.watched != c.want {
				t.Errorf("%+v: watched for %#x, %v", c, l.watched, err)
			}
		}
		l.paused, l.ended, l.out, l.h = false, false, nil, nil
		if err := l.wait(); err != nil || l.watched != 0 {
			t.Errorf("one that is not started: watched for %#x, %v", l.watched, err)
		}
	})
}

// Links are dialled from a port that says their lane, in the range for that, and reactors
// have them in turn.
func TestDialledLanes(t *testing.T) {
	p := newProvider(t)
	taken := make(chan transport.Link, 64)
	l, err := p.Listen(netip.MustParseAddrPort("127.0.0.85:0"), func(k transport.Link) { taken <- k })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for lane := range wire.MaxLanes {
		for range 3 {
			k, err := p.Dial(context.Background(), netip.MustParseAddrPort("127.0.0.86:0"), l.Addr(), lane)
			if err != nil {
				t.Fatal(err)
			}
			other := <-taken
			port := int(k.LocalAddr().Port())
			if port%wire.MaxLanes != lane || port < portFrom || port >= portTo || other.RemoteAddr() != k.LocalAddr() || k.RemoteAddr() != l.Addr() {
				t.Errorf("lane %d: from %v to %v, seen as %v", lane, k.LocalAddr(), k.RemoteAddr(), other.RemoteAddr())
			}
			k.Abort()
			other.Abort()
		}
	}
	counts := map[*loop]int{}
	for range 10 * len(p.loops) {
		counts[p.loop()]++
	}
	for lp, n := range counts {
		if n != 10 || len(counts) != len(p.loops) {
			t.Errorf("%d of %d reactors; one has %d of ten", len(counts), len(p.loops), n)
		}
		_ = lp
	}
}

// A request is answered once, by whoever is first; a refusal shows as much as may be shown.
func TestRequestsAreAnsweredOnce(t *testing.T) {
	p := newProvider(t)
	request := func() (q *connRequest, peer net.Conn) {
		t.Helper()
		ln, err := net.Listen("tcp4", "127.0.0.89:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		peer, err = net.Dial("tcp4", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { peer.Close(); c.Close() })
		peer.SetDeadline(time.Now().Add(10 * time.Second))
		return &connRequest{c: c.(*net.TCPConn), private: []byte("asked")}, peer
	}
	q, peer := request()
	if string(q.Private()) != "asked" || q.LocalAddr().String() != peer.RemoteAddr().String() || q.RemoteAddr().String() != peer.LocalAddr().String() {
		t.Errorf("%q from %v to %v", q.Private(), q.RemoteAddr(), q.LocalAddr())
	}
	q.timer = time.AfterFunc(time.Hour, func() {})
	q.Reject(bytes.Repeat([]byte{5}, transport.MaxReject+9))
	q.Reject([]byte("again"))
	if q.timer.Stop() {
		t.Error("an answered request is waited for")
	}
	tag, private, err := readHandshake(peer)
	if err != nil || tag.Kind != transport.TagReject || len(private) != transport.MaxReject {
		t.Errorf("rejected with %+v, %d bytes, %v", tag, len(private), err)
	}
	if rest, err := io.ReadAll(peer); len(rest) != 0 || err != nil {
		t.Errorf("%q behind it, %v", rest, err)
	}
	if l, err := q.Accept(p.NewDomain(), transport.LinkAttr{}, nil); !errors.Is(err, errAnswered) || l != nil {
		t.Errorf("accepted what was rejected: %v, %v", l, err)
	}
	q, peer = request()
	l, err := q.Accept(p.NewDomain(), transport.LinkAttr{}, []byte("yes"))
	if err != nil {
		t.Fatal(err)
	}
	q.Reject(nil)
	if l, err := q.Accept(p.NewDomain(), transport.LinkAttr{}, nil); !errors.Is(err, errAnswered) || l != nil {
		t.Errorf("accepted twice: %v, %v", l, err)
	}
	if tag, private, err = readHandshake(peer); err != nil || tag.Kind != transport.TagAccept || string(private) != "yes" {
		t.Errorf("accepted with %+v, %q, %v", tag, private, err)
	}
	l.Close()
	if rest, err := io.ReadAll(peer); len(rest) != 0 || err != nil {
		t.Errorf("%q behind it, %v", rest, err)
	}
	// A peer that has gone is told to nobody.
	q, peer = request()
	peer.(*net.TCPConn).SetLinger(0)
	peer.Close()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, err := q.c.Write([]byte("x")); err != nil {
			break
		}
	}
	if l, err := q.Accept(p.NewDomain(), transport.LinkAttr{}, nil); !errors.Is(err, net.ErrClosed) || l != nil {
		t.Errorf("accepted who has gone: %v, %v", l, err)
	}
}

// A batch that meets a full socket of a link that is about to end is not taken, and the
// link does not have it.
func TestSendMeetsTheEnd(t *testing.T) {
	x, _ := links(t, newProvider(t)) // the other end is not read
	e := newEnds(t, x)
	var err error
	for done := true; done && err == nil; {
		done, err = e.send(60, 10000)
	}
	e.l.mu.Lock()
	kept := e.l.out
	if err != nil || kept == nil {
		t.Fatalf("the socket is never full: %v", err)
	}
	e.l.ended = true
	e.l.mu.Unlock()
	if done, err := e.send(1, 10); done || !errors.Is(err, net.ErrClosed) {
		t.Errorf("sent at the end: %v, %v", done, err)
	}
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	if e.l.out != kept {
		t.Error("the link has the batch")
	}
	e.l.ended = false // the test ends it
}

// A link that ends gives back the batch it kept, and has it no more.
func TestEndLetsGoOfTheBatch(t *testing.T) {
	x, _ := links(t, newProvider(t)) // the other end is not read
	e := newEnds(t, x)
	e.on(func() { x.Start(e) })
	var err error
	for done := true; done && err == nil; {
		done, err = e.send(60, 10000)
	}
	if err != nil {
		t.Fatalf("the socket is never full: %v", err)
	}
	has := func() bool {
		e.l.mu.Lock()
		defer e.l.mu.Unlock()
		return e.l.out != nil
	}
	e.on(func() {
		if !has() {
			t.Error("the link did not keep the batch")
		}
		e.l.end(net.ErrClosed)
		if has() {
			t.Error("the link has the batch still")
		}
	})
}

// What comes of a link that was given up is thrown away up to a limit, to the last byte.
func TestWasteIsBounded(t *testing.T) {
	x, y := links(t, newProvider(t))
	e, peer := newEnds(t, x), newEnds(t, y)
	const frame = wire.HeaderLen + 10
	e.on(func() { // on the thread, which does nothing else meanwhile
		x.Start(e)
		e.l.discard, e.l.waste = true, mostWaste-frame
		for i := range 2 {
			if _, err := peer.send(1, 10); err != nil {
				t.Error(err)
			}
			for end := time.Now().Add(5 * time.Second); ; {
				if n, _ := unix.IoctlGetInt(e.l.fd, unix.SIOCINQ); n == frame || time.Now().After(end) {
					break
				}
			}
			if e.l.Try(); e.l.ended != (i == 1) || e.frames.Load() != 0 {
				t.Errorf("%d bytes of %d are thrown away: ended %v, %d frames", e.l.waste, mostWaste, e.l.ended, e.frames.Load())
			}
		}
	})
	e.once(t, "too much", os.ErrDeadlineExceeded)
}

// A link that leaves from a port of its own shares that with others, and one from any
// port does not.
func TestReusedPorts(t *testing.T) {
	p := newProvider(t)
	ln, err := p.ListenOneSided(loop95, func(q transport.ConnRequest) {
		if l, err := q.Accept(p.NewDomain(), transport.LinkAttr{}, nil); err == nil {
			l.Close()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	free, err := net.Listen("tcp4", "127.0.0.98:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).AddrPort()
	free.Close()
	for local, want := range map[netip.AddrPort]int{port: 1, netip.AddrPortFrom(port.Addr(), 0): 0, {}: 0} {
		l, _, err := p.DialOneSided(context.Background(), local, ln.Addr(), p.NewDomain(), transport.LinkAttr{}, nil)
		if err != nil {
			t.Fatal(local, err)
		}
		got, err := unix.GetsockoptInt(descriptor(&l.(*OneSided).socket), unix.SOL_SOCKET, unix.SO_REUSEADDR)
		if err != nil || got != want || local.IsValid() && l.LocalAddr().Addr() != local.Addr() || local.Port() != 0 && l.LocalAddr() != local {
			t.Errorf("from %v: from %v, shared %d, %v; want %d", local, l.LocalAddr(), got, err, want)
		}
		l.Close()
	}
}

// gated is a handler that may not always be brought more.
type gated struct {
	*ends
	open  atomic.Bool
	asked atomic.Int64
}

func (g *gated) MayRead() bool { g.here(); g.asked.Add(1); return g.open.Load() }

// TestGate: a link is not read while its handler says so; it is asked again by itself, more
// and more rarely, and everything comes when it may. What pauses for another reason is not
// begun by the gate, nor the other way round. A closed link asks nobody, and one that is drained meanwhile ends.
func TestGate(t *testing.T) {
	x, y := links(t, newProvider(t))
	e := &gated{ends: newEnds(t, x)}
	peer := newEnds(t, y)
	x.Start(e)
	if _, err := peer.send(3, 10); err != nil {
		t.Fatal(err)
	}
	await.Until(t, 10*time.Second, "it is asked again and again", func() bool { return e.asked.Load() >= 4 })
	e.on(func() {
		if e.frames.Load() != 0 || !e.l.paused || e.l.patience < 4*gateMin || e.l.patience > gateMax {
			t.Errorf("%d frames are read, paused %v, the next look in %v", e.frames.Load(), e.l.paused, e.l.patience)
		}
		e.l.patience = gateMax
		e.l.mayRead()
		if e.l.patience != gateMax {
			t.Errorf("the longest wait is %v, want %v", e.l.patience, gateMax)
		}
		e.l.Resume() // of what a receiver had paused: nothing
	})
	e.on(func() {
		if !e.l.paused || e.frames.Load() != 0 {
			t.Error("another's resume opened the gate")
		}
	})
	e.open.Store(true)
	await.Until(t, 10*time.Second, "all that was sent is read", func() bool { return e.frames.Load() == 3 })
	e.on(func() {
		if e.l.paused || e.l.patience != 0 {
			t.Errorf("paused %v, patience %v", e.l.paused, e.l.patience)
		}
	})
	// Its handler hears that it may be read also where there is nothing to read.
	e.open.Store(false)
	e.on(func() { e.l.Try() })
	n := e.asked.Load()
	e.open.Store(true)
	await.Until(t, 10*time.Second, "the gate is asked again", func() bool { return e.asked.Load() > n })
	e.pause.Store(true)
	if _, err := peer.send(1, 10); err != nil {
		t.Fatal(err)
	}
	await.Until(t, 10*time.Second, "a receiver is full", func() bool {
		held := false
		e.on(func() { held = e.l.held != nil })
		return held
	})
	e.on(func() {
		e.l.askAgain()
		if !e.l.paused {
			t.Error("the gate's timer resumed what a receiver has paused")
		}
	})
	e.pause.Store(false)
	x.Resume()
	await.Until(t, 10*time.Second, "the receiver goes on", func() bool { return e.frames.Load() == 4 })
	e.on(func() {
		e.open.Store(false)
		e.l.Try()
		e.l.startDrain()
		e.l.drainDue()
		e.l.drainDue() // it is paused
		if e.l.ended || !e.l.deaf {
			t.Errorf("ended %v, deaf %v", e.l.ended, e.l.deaf)
		}
	})
	e.open.Store(true)
	e.once(t, "drained behind a gate", os.ErrDeadlineExceeded)
	e.on(func() {
		asked := e.asked.Load()
		e.l.askAgain()
		if e.l.Try(); e.asked.Load() != asked {
			t.Error("an ended link asks its gate")
		}
	})
}
