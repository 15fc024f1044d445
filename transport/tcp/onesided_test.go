package tcp

import (
	"context"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/transporttest"
)

func TestOneSidedConformance(t *testing.T) {
	for _, v := range []struct{ name, a, b string }{{"IPv4", "127.0.0.91", "127.0.0.92"}, {"IPv6", "::1", "::1"}} {
		t.Run(v.name, func(t *testing.T) {
			p := newProvider(t)
			transporttest.RunOneSided(t, transporttest.OneSided{A: p, B: p,
				AddrA: netip.AddrPortFrom(netip.MustParseAddr(v.a), 0), AddrB: netip.AddrPortFrom(netip.MustParseAddr(v.b), 0)})
		})
	}
}

// one is one end of a one-sided link; it checks on which thread it is called.
type one struct {
	t       testing.TB
	l       *OneSided
	d       *Domain
	events  atomic.Int64
	sent    atomic.Int64
	written func(imm uint32) // nil: none
	closed  chan struct{}
	err     error // set before closed
}

func newOne(t testing.TB, p *Provider) *one {
	return &one{t: t, d: p.NewDomain().(*Domain), closed: make(chan struct{})}
}

func (o *one) here() {
	if !o.d.Reactor().OnThread() {
		o.t.Error("a handler is called outside of its domain's reactor")
	}
}

func (o *one) Begin()     { o.here() }
func (o *one) End()       { o.l.Flush() }
func (o *one) Sent(n int) { o.here(); o.sent.Add(int64(n)) }
func (o *one) Written(w transport.Placed) error {
	o.events.Add(1)
	if o.written != nil {
		o.written(w.Imm)
	}
	return nil
}
func (o *one) Received([]byte, uint32, bool) error { o.here(); o.events.Add(1); return nil }
func (o *one) Invalidated(uint32, int) error       { o.here(); o.events.Add(1); return nil }
func (o *one) Revoked(uint32, int) error           { panic("TCP revokes at once") }
func (o *one) Closed(err error)                    { o.here(); o.err = err; close(o.closed) }

// onePair makes a link on a, which is not started; it ends with the test.
func onePair(t testing.TB, p *Provider, a netip.Addr) (x, y *one) {
	t.Helper()
	x, y = newOne(t, p), newOne(t, p)
	accepted := make(chan transport.OneSided, 1)
	ln, err := p.ListenOneSided(netip.AddrPortFrom(a, 0), func(q transport.ConnRequest) {
		l, err := q.Accept(y.d, transport.LinkAttr{}, nil)
		if err != nil {
			t.Error(err)
		}
		accepted <- l
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	l, _, err := p.DialOneSided(context.Background(), netip.AddrPort{}, ln.Addr(), x.d, transport.LinkAttr{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	x.l, y.l = l.(*OneSided), (<-accepted).(*OneSided)
	t.Cleanup(func() {
		for _, o := range []*one{x, y} {
			o.l.Close()
			o.l.Start(o, transport.MaxSend) // if it was not
			<-o.closed
		}
	})
	return x, y
}

// TestOneSidedDoesNotAllocate in its steady state, whatever is sent.
func TestOneSidedDoesNotAllocate(t *testing.T) {
	x, y := onePair(t, newProvider(t), netip.MustParseAddr("127.0.0.94"))
	x.l.Start(x, transport.MaxSend)
	y.l.Start(y, transport.MaxSend)
	mem, data, tail := make([]byte, 200<<10), make([]byte, 200<<10), make([]byte, 40)
	var sent int64
	round := func() {
		for range 32 {
			key, addr := y.d.Register(mem)
			x.l.Post(&transport.Op{Kind: transport.OpWriteImm, Key: key, Addr: addr, Data: data[:4096], Tail: tail})
			x.l.Post(&transport.Op{Kind: transport.OpWrite, Key: key, Addr: addr, Data: data[:100]})
			x.l.Post(&transport.Op{Kind: transport.OpSendImm, Data: data[:8]})
			x.l.Post(&transport.Op{Kind: transport.OpSendInval, Key: key})
			sent += 3
		}
		key, addr := y.d.Register(mem)
		x.l.Post(&transport.Op{Kind: transport.OpWriteImm, Key: key, Addr: addr, Data: data[:len(data)-40], Tail: tail})
		x.l.Post(&transport.Op{Kind: transport.OpSend, Data: data[:60000]})
		sent += 2
		x.l.Flush()
		for y.events.Load() < sent {
			runtime.Gosched()
		}
		if y.d.Revoke(key) != transport.Idle {
			t.Error("a key is busy when its write has come")
		}
	}
	if n := testing.AllocsPerRun(200, round); n > 1 {
		t.Errorf("%v allocations for 130 operations", n)
	}
}

// TestOneSidedIdleIsSmall: a link at rest holds little.
func TestOneSidedIdleIsSmall(t *testing.T) {
	p := newProvider(t)
	measure := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	onePair(t, p, netip.MustParseAddr("127.0.0.94"))
	before := measure()
	const n = 100
	for range n {
		x, y := onePair(t, p, netip.MustParseAddr("127.0.0.94"))
		x.l.Start(x, transport.MaxSend)
		y.l.Start(y, transport.MaxSend)
		x.l.Post(&transport.Op{Kind: transport.OpSend, Data: large})
		x.l.Flush()
		eventually(t, "a send", func() bool { return y.events.Load() == 1 })
	}
	if per := int64(measure()-before) / (2 * n); per > 2048 {
		t.Errorf("an idle link and its domain hold %d bytes of heap", per)
	} else {
		t.Logf("an idle link and its domain hold %d bytes of heap, the test's own included", per)
	}
}

// TestOneSidedRests: while its domain wants a rest nothing of a link is read, and a link
// that has rested mostRests times in succession is read all the same.
func TestOneSidedRests(t *testing.T) {
	x, y := onePair(t, newProvider(t), netip.MustParseAddr("127.0.0.95"))
	var rest atomic.Bool
	y.d.DeferReads(rest.Load)
	x.l.Start(x, transport.MaxSend)
	y.l.Start(y, transport.MaxSend)
	mem, data := make([]byte, 64<<10), make([]byte, 100)
	key, addr := y.d.Register(mem)
	write := func() {
		x.l.Post(&transport.Op{Kind: transport.OpWriteImm, Key: key, Addr: addr, Data: data})
		x.l.Flush()
	}
	arrived := func(n int64, within time.Duration) bool {
		for end := time.Now().Add(within); y.events.Load() < n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				return false
			}
		}
		return true
	}
	if write(); !arrived(1, 5*time.Second) {
		t.Fatal("nothing comes")
	}
	rest.Store(true)
	begun := time.Now()
	// A machine that pauses this thread for all of a rest lets the write be read in its turn.
	if write(); arrived(2, 10*napTime) && time.Since(begun) < maxNaps*napTime*9/10 {
		t.Errorf("read after %v, while the domain rests", time.Since(begun))
	}
	rest.Store(false)
	if !arrived(2, 5*time.Second) {
		t.Fatal("not read after the rest")
	}
	rest.Store(true)
	begun = time.Now()
	if write(); !arrived(3, 5*time.Second) {
		t.Error("a link that rests for ever is never read")
	} else if d := time.Since(begun); d < maxNaps*napTime*9/10 {
		t.Errorf("read after %v of a rest that lasts", d)
	}
}
