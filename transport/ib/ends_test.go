package ib

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// end is one end of a link, and a handler that writes down what it is told.
type end struct {
	l *link
	d transport.Domain

	news int // told since Begin; the reactor's thread's

	mu     sync.Mutex // guards what follows
	log    []string
	sent   int
	closed error
	on     func(what string) error // called with an event, without mu
	onEnd  func()
}

func (e *end) say(format string, args ...any) error {
	s := fmt.Sprintf(format, args...)
	e.news++
	e.mu.Lock()
	if e.closed != nil {
		panic(s + " after Closed")
	}
	e.log = append(e.log, s)
	on := e.on
	e.mu.Unlock()
	if on != nil {
		return on(s)
	}
	return nil
}

func (e *end) Begin() { e.news = 0 }

// End also finds a batch of which nothing was told, though the link goes on.
func (e *end) End() {
	if e.news == 0 && !e.l.silent.Load() {
		panic("Begin and End with nothing between them")
	}
	if e.onEnd != nil {
		e.onEnd()
	}
}

func (e *end) Sent(n int) {
	if n <= 0 {
		panic(fmt.Sprintf("%d operations are sent", n))
	}
	e.news++
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sent += n
}

func (e *end) Written(w transport.Placed) error {
	if !w.Known {
		return e.say("written %d %#x somewhere", w.N, w.Imm)
	}
	return e.say("written %d %#x", w.N, w.Imm)
}

func (e *end) Received(b []byte, imm uint32, has bool) error {
	return e.say("received %q %#x %v", b, imm, has)
}
func (e *end) Invalidated(key uint32, filled int) error { return e.say("invalidated %d", filled) }
func (e *end) Revoked(key uint32, filled int) error     { return e.say("revoked %#x %d", key, filled) }

func (e *end) Closed(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed != nil {
		panic("Closed twice")
	}
	e.closed = err
}

func (e *end) why() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

func (e *end) told() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.log...)
}

func (e *end) sends() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sent
}

func (e *end) qp() *fakeQP { return e.l.qp.(*fakeQP) }

func (e *end) post(ops ...transport.Op) {
	for i := range ops {
		e.l.Post(&ops[i])
	}
	e.l.Flush()
}

// world is two devices on one fabric.
type world struct {
	t      testing.TB
	a, b   *fakeVerbs
	pa, pb *Provider
	attr   transport.LinkAttr
}

func newWorld(t testing.TB, set func(v *fakeVerbs)) *world {
	f := newFabric()
	w := &world{t: t, a: f.add(t, "10.0.0.1"), b: f.add(t, "10.0.0.2"), attr: transport.LinkAttr{Sends: 64, Recvs: 64}}
	for _, v := range []*fakeVerbs{w.a, w.b} {
		if set != nil {
			set(v)
		}
	}
	w.pa, w.pb = New(w.a), New(w.b)
	return w
}

// until waits for what cond reports.
func (w *world) until(what string, cond func() bool) {
	w.t.Helper()
	await.Until(w.t, 10*time.Second, what, cond)
}

// locked is a look at the devices.
func (w *world) locked(f func() bool) bool {
	w.a.fab.mu.Lock()
	defer w.a.fab.mu.Unlock()
	return f()
}

func (w *world) listen(answer func(q transport.ConnRequest)) transport.Listener {
	w.t.Helper()
	ln, err := w.pb.ListenOneSided(netip.AddrPortFrom(w.b.info.Addr, 0), answer)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { ln.Close() })
	return ln
}

func (w *world) dial(ln transport.Listener, d transport.Domain, private []byte) (*link, []byte, error) {
	l, rsp, err := w.pa.DialOneSided(context.Background(), netip.AddrPort{}, ln.Addr(), d, w.attr, private)
	if err != nil {
		return nil, nil, err
	}
	return l.(*link), rsp, nil
}

// link makes a link that is not started. When the test ends, nothing of it may be left.
func (w *world) link() (x, y *end) {
	w.t.Helper()
	x, y = &end{d: w.pa.NewDomain()}, &end{d: w.pb.NewDomain()}
	accepted := make(chan *link, 1)
	ln := w.listen(func(q transport.ConnRequest) {
		l, err := q.Accept(y.d, w.attr, nil)
		if err != nil {
			w.t.Error(err)
		}
		accepted <- l.(*link)
	})
	var err error
	if x.l, _, err = w.dial(ln, x.d, nil); err != nil {
		w.t.Fatal(err)
	}
	y.l = <-accepted
	w.t.Cleanup(func() {
		x.l.Close()
		y.l.Close()
		w.clean()
		for _, e := range []*end{x, y} {
			if d, err := e.l.p.domain(e.d); err == nil {
				w.until("The domain has no link.", func() bool {
					d.mu.Lock()
					defer d.mu.Unlock()
					return len(d.links) == 0
				})
			}
		}
		x.d.Close()
		y.d.Close()
	})
	return x, y
}

func (w *world) started() (x, y *end) {
	w.t.Helper()
	x, y = w.link()
	x.l.Start(x, 1024)
	y.l.Start(y, 1024)
	return x, y
}

// clean waits until the devices have nothing of any link.
func (w *world) clean() {
	w.t.Helper()
	w.until("Every queue pair is closed, and all memory given back.", func() bool {
		return w.locked(func() bool { return len(w.a.qps)+len(w.b.qps) == 0 && w.a.memory == 0 && w.b.memory == 0 })
	})
}

// wantTold waits for exactly these events.
func (w *world) wantTold(e *end, want ...string) {
	w.t.Helper()
	w.until("The events came.", func() bool { return len(e.told()) >= len(want) })
	if got := e.told(); fmt.Sprint(got) != fmt.Sprint(want) {
		w.t.Errorf("told %q, want %q", got, want)
	}
}

// wantClosed waits for the end and returns why.
func (w *world) wantClosed(e *end) error {
	w.t.Helper()
	w.until("The link said that it is closed.", func() bool { return e.why() != nil })
	return e.why()
}

// settled waits until both reactors have done what they were asked for.
func (w *world) settled() {
	for range 4 {
		w.a.r.Sync()
		w.b.r.Sync()
	}
}

// settledOnly is settled for one device, the other being kept busy.
func (w *world) settledOnly(v *fakeVerbs) {
	for range 4 {
		v.r.Sync()
	}
}

func (w *world) hold(e *end, on bool) {
	w.locked(func() bool {
		e.qp().hold = on
		if !on {
			e.qp().pumpSoon()
		}
		return true
	})
}
