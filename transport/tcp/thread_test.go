package tcp

import (
	"context"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// sink takes whatever comes; it checks that it is called on its link's thread.
type sink struct {
	t      testing.TB
	l      *Link
	frames atomic.Int64
	closed chan struct{}
	pause  atomic.Bool
}

func newSink(t testing.TB, l transport.Link) *sink {
	return &sink{t: t, l: l.(*Link), closed: make(chan struct{})}
}

func (s *sink) here() {
	if !s.l.Reactor().OnThread() {
		s.t.Error("a handler is called outside of its link's reactor")
	}
}
func (s *sink) Begin() { s.here() }
func (s *sink) End()   { s.here() }
func (s *sink) Frame(*transport.Frame) error {
	if s.pause.Load() {
		return transport.ErrPause
	}
	s.frames.Add(1)
	return nil
}
func (s *sink) Progress()                           { s.here() }
func (s *sink) Written(b *transport.Batch, _ error) { s.here(); b.Put() }
func (s *sink) Closed(error, uint64)                { s.here(); close(s.closed) }

// pair makes n links, both ends of which are started.
func pair(t testing.TB, p *Provider, n int) (x, y []*sink) {
	t.Helper()
	accepted := make(chan transport.Link, n)
	l, err := p.Listen(netip.MustParseAddrPort("127.0.0.85:0"), func(k transport.Link) { accepted <- k })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range n {
		k, err := p.Dial(context.Background(), netip.MustParseAddrPort("127.0.0.86:0"), l.Addr(), 0)
		if err != nil {
			t.Fatal(err)
		}
		x = append(x, newSink(t, k))
		y = append(y, newSink(t, <-accepted))
	}
	for i := range x {
		x[i].l.Start(x[i])
		y[i].l.Start(y[i])
	}
	t.Cleanup(func() {
		for i := range x {
			x[i].l.Abort()
			y[i].l.Abort()
			<-x[i].closed
			<-y[i].closed
		}
	})
	return x, y
}

func (s *sink) send(n, size int) (done bool, err error) {
	b := transport.GetBatch()
	for range n {
		(&wire.Header{Seq: 1, Len: uint32(size)}).Put(b.Frame(make([]byte, size)))
	}
	b.Seal()
	if done, err = s.l.Send(b); done || err != nil {
		b.Put()
	}
	return done, err
}

// descriptor is s's, which the reactor's thread may close at any time, as
// it does when the peer's end is closed.
func descriptor(s *socket) int {
	s.fdMu.RLock()
	defer s.fdMu.RUnlock()
	return s.fd
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	limit := time.Now().Add(10 * time.Second)
	for !f() {
		if time.Now().After(limit) {
			t.Fatal(what, "did not come about in 10 s")
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// TestLinkHasNoGoroutine, and what it has instead is small.
func TestLinkHasNoGoroutine(t *testing.T) {
	p := newProvider(t)
	const n = 200
	measure := func() (int, uint64) {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return runtime.NumGoroutine(), m.HeapAlloc
	}
	pair(t, p, 1)
	g0, h0 := measure()
	x, y := pair(t, p, n)
	x[0].send(1, 100)
	eventually(t, "a frame", func() bool { return y[0].frames.Load() == 1 })
	eventually(t, "the end of dials", func() bool { g, _ := measure(); return g <= g0 })
	_, h1 := measure()
	if per := int64(h1-h0) / (2 * n); per > 1024 {
		t.Errorf("an idle link holds %d bytes of heap", per)
	} else {
		t.Logf("an idle link holds %d bytes of heap, the test's own included", per)
	}
}

// TestPausedLinkSleeps: a paused link that is reset by its peer, with an error
// that epoll would tell again and again, costs no turns.
func TestPausedLinkSleeps(t *testing.T) {
	p := newProvider(t)
	x, y := pair(t, p, 1)
	y[0].pause.Store(true)
	x[0].send(3, 100)
	r := y[0].l.Reactor()
	eventually(t, "the pause", func() (v bool) {
		done := make(chan struct{})
		r.Do(func() { v = y[0].l.paused; close(done) })
		<-done
		return v
	})
	unix.SetsockoptLinger(descriptor(&x[0].l.socket), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	x[0].l.Abort() // a reset
	<-x[0].closed
	from, _, _, _ := r.Stats()
	time.Sleep(50 * time.Millisecond)
	if to, _, _, _ := r.Stats(); to-from > 2000 {
		t.Errorf("%d turns in 50 ms although nothing can be done", to-from)
	}
	y[0].pause.Store(false)
	y[0].l.Resume()
	<-y[0].closed
	if n := y[0].frames.Load(); n != 3 {
		t.Errorf("%d of 3 frames arrived", n)
	}
}

// TestSendMeetsClose: senders in other threads while the link ends. What they
// write must never reach a descriptor that has the number afterwards.
func TestSendMeetsClose(t *testing.T) {
	p := newProvider(t)
	for range 30 {
		x, _ := pair(t, p, 1)
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				if done, err := x[0].send(20, 1000); err != nil {
					return
				} else if !done {
					return // kept; given back in the end
				}
			}
		})
		wg.Go(func() {
			for range 1000 {
				x[0].l.Acked()
			}
		})
		x[0].l.Abort()
		var files []*os.File
		for range 8 { // one of them gets the number
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, r, w)
		}
		wg.Wait()
		<-x[0].closed
		for i := 0; i < len(files); i += 2 {
			if n, err := unix.IoctlGetInt(int(files[i].Fd()), unix.TIOCINQ); err != nil || n != 0 {
				t.Fatalf("%d bytes went into a pipe (%v)", n, err)
			}
			files[i].Close()
			files[i+1].Close()
		}
	}
}

// TestSteadyStateDoesNotAllocate, neither sending nor receiving.
func TestSteadyStateDoesNotAllocate(t *testing.T) {
	p := newProvider(t)
	x, y := pair(t, p, 1)
	var sent int64
	round := func() {
		b := transport.GetBatch()
		h := wire.Header{Len: 64}
		for range 200 {
			h.Put(b.Frame(large[:64]))
		}
		h.Len = 20000 // a large one: its payload is read into a buffer of its own
		h.Put(b.Frame(large))
		b.Seal()
		done, err := x[0].l.Send(b)
		if err != nil {
			t.Fatal(err)
		}
		if done {
			b.Put()
		}
		for sent += 201; y[0].frames.Load() < sent; {
			runtime.Gosched()
		}
	}
	if n := testing.AllocsPerRun(200, round); n > 2 {
		t.Errorf("%v allocations for 201 frames", n)
	}
}

var large = make([]byte, 20000)

// TestDeafLinkResumes: a link that was paused while its drain ran out still
// delivers what TCP had taken, and then ends.
func TestDeafLinkResumes(t *testing.T) {
	p := newProvider(t)
	x, y := pair(t, p, 1)
	y[0].pause.Store(true)
	x[0].send(50, 1000)
	y[0].l.Close()
	time.Sleep(drainTime + 3*deafTime)
	select {
	case <-y[0].closed:
		t.Fatal("closed while the receiver was full")
	default:
	}
	y[0].pause.Store(false)
	y[0].l.Resume()
	<-y[0].closed
	if n := y[0].frames.Load(); n != 50 {
		t.Errorf("%d of 50 frames arrived", n)
	}
}
