package transporttest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// Caps are what a provider may lack; a test that needs one is skipped with its name.
type Caps struct {
	Acked bool // Link.Acked counts
	Lane  bool // the peer sees the lane in the source port
	Place bool // a Placer is asked for memory
}

// Provider under test, with two addresses of it that reach each other.
type Provider struct {
	transport.Provider
	A, B netip.Addr
	Caps Caps
}

// Run runs the suite.
func Run(t *testing.T, p Provider) {
	for _, c := range []struct {
		name string
		f    func(*testing.T, Provider)
	}{
		{"FramesArriveWholeAndInOrder", testOrder},
		{"LargeAndEmptyPayloads", testSizes},
		{"FullLinkKeepsTheBatch", testFull},
		{"PauseKeepsTheFrame", testPause},
		{"GracefulCloseDeliversBothWays", testGraceful},
		{"AbortEndsAtOnce", testAbort},
		{"CloseBeforeStart", testUnstarted},
		{"AckedCountsOurBytes", testAcked},
		{"SourcePortNamesTheLane", testLane},
		{"TooLongIsRefusedUnread", testTooLong},
		{"DialFailsWithReason", testDialFails},
		{"KeptBatchIsGivenBack", testKeptBatch},
		{"PausedLinkEnds", testPausedEnds},
		{"LargePayloadsArePlaced", testPlace},
	} {
		t.Run(c.name, func(t *testing.T) { c.f(t, p) })
	}
}

// end is a recording handler.
type end struct {
	link    transport.Link
	mu      sync.Mutex
	got     [][]byte // payloads
	seqs    []uint64
	inBegin bool
	pause   int // pause before this many frames are taken; -1 never
	hold    chan struct{}
	news    chan struct{}
	written chan error
	closed  chan struct{}
	err     error
	acked   uint64

	progress atomic.Int64
}

func newEnd() *end {
	return &end{pause: -1, news: make(chan struct{}, 1), written: make(chan error, 1), closed: make(chan struct{})}
}

func (e *end) Begin() {
	if e.hold != nil {
		<-e.hold
	}
	e.mu.Lock()
	if e.inBegin {
		panic("Begin twice")
	}
	e.inBegin = true
}

func (e *end) Frame(f *transport.Frame) error {
	var h wire.Header
	if err := h.Parse(f.Raw); err != nil {
		return err
	}
	if e.pause == len(e.got) {
		return transport.ErrPause
	}
	e.got = append(e.got, bytes.Clone(f.Payload))
	e.seqs = append(e.seqs, h.Seq)
	return nil
}

func (e *end) End() {
	e.inBegin = false
	e.mu.Unlock()
	select {
	case e.news <- struct{}{}:
	default:
	}
}

func (e *end) Progress() { e.progress.Add(1) }

func (e *end) Written(b *transport.Batch, err error) { b.Put(); e.written <- err }

func (e *end) Closed(err error, acked uint64) {
	e.err, e.acked = err, acked
	close(e.closed)
}

func (e *end) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.got)
}

// until waits for n frames.
func (e *end) until(t *testing.T, n int) {
	t.Helper()
	limit := time.After(10 * time.Second)
	for e.count() < n {
		select {
		case <-e.news:
		case <-e.closed:
			if e.count() < n {
				t.Fatalf("closed (%v) after %d of %d frames", e.err, e.count(), n)
			}
		case <-limit:
			t.Fatalf("%d of %d frames in 10 s", e.count(), n)
		}
	}
}

func (e *end) wantClosed(t *testing.T) {
	t.Helper()
	select {
	case <-e.closed:
	case <-time.After(10 * time.Second):
		t.Fatal("Closed was not called in 10 s")
	}
}

// connect makes a link and starts it; x dialled.
func connect(t *testing.T, p Provider, lane int, tune func(x, y *end)) (x, y *end) {
	t.Helper()
	x, y = dialed(t, p, lane)
	if tune != nil {
		tune(x, y)
	}
	x.link.Start(x)
	y.link.Start(y)
	return x, y
}

// dialed makes a link that is not started.
func dialed(t *testing.T, p Provider, lane int) (x, y *end) {
	t.Helper()
	accepted := make(chan transport.Link, 1)
	l, err := p.Listen(netip.AddrPortFrom(p.B, 0), func(k transport.Link) { accepted <- k })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	x, y = newEnd(), newEnd()
	if x.link, err = p.Dial(context.Background(), netip.AddrPortFrom(p.A, 0), l.Addr(), lane); err != nil {
		t.Fatal(err)
	}
	y.link = <-accepted
	t.Cleanup(func() {
		x.link.Abort()
		y.link.Abort()
	})
	return x, y
}

func frame(b *transport.Batch, seq uint64, payload []byte) {
	h := wire.Header{Seq: seq, Len: uint32(len(payload))}
	h.Put(b.Frame(payload))
}

// send sends one batch and waits until the link has all of it.
func (e *end) send(t *testing.T, b *transport.Batch) {
	t.Helper()
	b.Seal()
	done, err := e.link.Send(b)
	if err != nil {
		t.Fatal(err)
	}
	if done {
		b.Put()
		return
	}
	select {
	case err := <-e.written:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Written was not called in 10 s")
	}
}

func testOrder(t *testing.T, p Provider) {
	x, y := connect(t, p, 0, nil)
	rng := rand.New(rand.NewSource(1))
	var want [][]byte
	for len(want) < 5000 {
		b := transport.GetBatch()
		for b.Room(4096) && len(want) < 5000 {
			payload := make([]byte, rng.Intn(4096))
			rng.Read(payload)
			frame(b, uint64(len(want)+1), payload)
			want = append(want, payload)
		}
		x.send(t, b)
	}
	y.until(t, len(want))
	for i := range want {
		if y.seqs[i] != uint64(i+1) || !bytes.Equal(y.got[i], want[i]) {
			t.Fatalf("frame %d is number %d, %d bytes", i+1, y.seqs[i], len(y.got[i]))
		}
	}
}

func testSizes(t *testing.T, p Provider) {
	x, y := connect(t, p, 0, nil)
	sizes := []int{0, 1, transport.DirectLen - 1, transport.DirectLen, transport.DirectLen + 1, 65536, 0, wire.MaxDatagram, 3, wire.MaxDatagram, 0}
	for i, n := range sizes {
		b := transport.GetBatch()
		frame(b, uint64(i+1), bytes.Repeat([]byte{byte(i)}, n))
		x.send(t, b)
	}
	y.until(t, len(sizes))
	for i, n := range sizes {
		if !bytes.Equal(y.got[i], bytes.Repeat([]byte{byte(i)}, n)) {
			t.Errorf("payload %d of %d bytes came as %d bytes or with other bytes", i, n, len(y.got[i]))
		}
	}
}

// testFull checks that a receiver that does not read never blocks Send, and that nothing is
// lost.
func testFull(t *testing.T, p Provider) {
	hold := make(chan struct{})
	x, y := connect(t, p, 0, func(x, y *end) { y.hold = hold })
	big := make([]byte, 200<<10)
	n := 0
	for ; n < 1000; n++ {
		b := transport.GetBatch()
		frame(b, uint64(n+1), big)
		b.Seal()
		done, err := x.link.Send(b)
		if err != nil {
			t.Fatal(err)
		}
		if !done {
			n++
			break
		}
		b.Put()
	}
	if n == 1000 {
		t.Fatal("200 MB went into a link nobody reads")
	}
	select {
	case <-x.written:
		t.Fatal("Written although nobody reads")
	default:
	}
	close(hold)
	if err := <-x.written; err != nil {
		t.Fatal(err)
	}
	y.until(t, n)
	t.Logf("progress was reported %d times", x.progress.Load())
}

func testPause(t *testing.T, p Provider) {
	for _, size := range []int{10, 100 << 10} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			x, y := connect(t, p, 0, func(x, y *end) { y.pause = 2 })
			b := transport.GetBatch()
			for i := range 5 {
				frame(b, uint64(i+1), bytes.Repeat([]byte{byte(i + 1)}, size))
				b.Seal()
				if size > 1000 {
					x.send(t, b)
					b = transport.GetBatch()
				}
			}
			if b.Frames() > 0 {
				x.send(t, b)
			}
			y.until(t, 2)
			y.link.Resume() // still full: the same frame is offered again, and kept again
			time.Sleep(20 * time.Millisecond)
			if y.count() != 2 {
				t.Fatalf("%d frames were taken while paused", y.count())
			}
			y.mu.Lock()
			y.pause = -1
			y.mu.Unlock()
			y.link.Resume()
			y.until(t, 5)
			for i := range 5 {
				if y.seqs[i] != uint64(i+1) || !bytes.Equal(y.got[i], bytes.Repeat([]byte{byte(i + 1)}, size)) {
					t.Fatalf("frame %d is number %d", i+1, y.seqs[i])
				}
			}
		})
	}
}

func testGraceful(t *testing.T, p Provider) {
	x, y := connect(t, p, 0, nil)
	for i := range 100 {
		b, c := transport.GetBatch(), transport.GetBatch()
		frame(b, uint64(i+1), make([]byte, 1000))
		frame(c, uint64(i+1), make([]byte, 1000))
		x.send(t, b)
		y.send(t, c)
	}
	x.link.Close()
	y.wantClosed(t)
	y.link.Abort()
	x.wantClosed(t)
	if x.count() != 100 || y.count() != 100 {
		t.Fatalf("%d and %d of 100 frames arrived", x.count(), y.count())
	}
}

func testAbort(t *testing.T, p Provider) {
	x, y := connect(t, p, 0, nil)
	x.link.Abort()
	x.wantClosed(t)
	y.wantClosed(t)
	if _, err := x.link.Send(func() *transport.Batch { b := transport.GetBatch(); frame(b, 1, nil); b.Seal(); return b }()); err == nil {
		t.Error("Send on a closed link succeeded")
	}
}

func testUnstarted(t *testing.T, p Provider) {
	l, err := p.Listen(netip.AddrPortFrom(p.B, 0), func(k transport.Link) { k.Abort() })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	link, err := p.Dial(context.Background(), netip.AddrPortFrom(p.A, 0), l.Addr(), 0)
	if err != nil {
		t.Fatal(err)
	}
	e := newEnd()
	link.Start(e)
	e.wantClosed(t) // the other side refused without a byte
	if e.count() != 0 {
		t.Error("bytes came from a link that was refused")
	}
}

func testAcked(t *testing.T, p Provider) {
	if !p.Caps.Acked {
		t.Skip("elsewhere: this provider lacks: Acked")
	}
	x, y := connect(t, p, 0, nil)
	for _, e := range []*end{x, y} {
		if n := e.link.Acked(); n != 0 {
			t.Errorf("%d bytes acknowledged before any was sent", n)
		}
	}
	b := transport.GetBatch()
	frame(b, 1, make([]byte, 952))
	x.send(t, b)
	y.until(t, 1)
	limit := time.Now().Add(5 * time.Second)
	for x.link.Acked() != 1000 && time.Now().Before(limit) {
		time.Sleep(time.Millisecond)
	}
	if n := x.link.Acked(); n != 1000 {
		t.Errorf("%d of 1000 bytes acknowledged", n)
	}
	y.link.Abort()
	x.wantClosed(t)
	if x.acked != 1000 {
		t.Errorf("%d of 1000 bytes acknowledged at the end", x.acked)
	}
}

func testLane(t *testing.T, p Provider) {
	if !p.Caps.Lane {
		t.Skip("elsewhere: this provider lacks: Lane")
	}
	for lane := range wire.MaxLanes {
		_, y := connect(t, p, lane, nil)
		if got := int(y.link.RemoteAddr().Port()) % wire.MaxLanes; got != lane {
			t.Errorf("lane %d came from port %d", lane, y.link.RemoteAddr().Port())
		}
	}
}

func testTooLong(t *testing.T, p Provider) {
	x, y := connect(t, p, 0, nil)
	b := transport.GetBatch()
	h := wire.Header{Len: wire.MaxDatagram + 1}
	h.Put(b.Frame(nil))
	x.send(t, b)
	y.wantClosed(t)
	if y.err == nil || y.count() != 0 {
		t.Errorf("a header that announces %d bytes: %v, %d frames", wire.MaxDatagram+1, y.err, y.count())
	}
}

func testDialFails(t *testing.T, p Provider) {
	l, err := p.Listen(netip.AddrPortFrom(p.B, 0), func(k transport.Link) { k.Abort() })
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr()
	l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := p.Dial(ctx, netip.AddrPortFrom(p.A, 0), addr, 0); err == nil {
		t.Error("Dial to nobody succeeded")
	}
}
