package ib

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/transport"
)

// TestParameters: both ends want to be tried again as often as possible.
func TestParameters(t *testing.T) {
	w := newWorld(t, nil)
	x, y := w.started()
	w.locked(func() bool {
		for _, q := range []*fakeQP{x.qp(), y.qp()} {
			if q.param.Retry != 7 || q.param.RNRRetry != 7 {
				t.Errorf("retry counts %d and %d; want 7", q.param.Retry, q.param.RNRRetry)
			}
			if q.cfg != (QPConfig{Sends: 64, Recvs: 64}) {
				t.Errorf("queues of %+v", q.cfg)
			}
		}
		return true
	})
	if y.l.RemoteAddr() != x.l.LocalAddr() || x.l.RemoteAddr() != y.l.LocalAddr() || x.l.LocalAddr().Addr() != w.a.info.Addr {
		t.Errorf("%v to %v, and %v to %v", x.l.LocalAddr(), x.l.RemoteAddr(), y.l.LocalAddr(), y.l.RemoteAddr())
	}
}

// TestQueuesAreBounded: a link reserves no more places than keep a wire busy, or than the device
// has, and as many slots as it is asked for, if the device has them.
func TestQueuesAreBounded(t *testing.T) {
	for _, c := range []struct {
		attr              transport.LinkAttr
		maxSends, maxRecv int
		want              QPConfig
	}{
		{transport.LinkAttr{Sends: 2064, Recvs: 600}, 1000, 700, QPConfig{Sends: maxPlaces, Recvs: 600}},
		{transport.LinkAttr{Sends: 2064, Recvs: 800}, 100, 700, QPConfig{Sends: 100, Recvs: 700}},
		{transport.LinkAttr{}, 1000, 700, QPConfig{Sends: 1, Recvs: 1}},
	} {
		w := newWorld(t, func(v *fakeVerbs) { v.info.MaxSends, v.info.MaxRecvs = c.maxSends, c.maxRecv })
		w.attr = c.attr
		if x, y := w.link(); x.qp().cfg != c.want || y.qp().cfg != c.want {
			t.Errorf("for %+v, queues of %+v and %+v; want %+v", c.attr, x.qp().cfg, y.qp().cfg, c.want)
		}
	}
}

// TestDialFails: an attempt that fails says why, and leaves nothing behind.
func TestDialFails(t *testing.T) {
	w := newWorld(t, nil)
	d := w.pa.NewDomain()
	ln := w.listen(func(q transport.ConnRequest) { q.Reject([]byte("no")) })
	_, _, err := w.dial(ln, d, nil)
	var refused *transport.Refused
	if !errors.As(err, &refused) || !strings.HasPrefix(string(refused.Private), "no") {
		t.Errorf("rejected: %v", err)
	}
	ln.Close()
	_, _, err = w.dial(ln, d, nil)
	if errors.As(err, &refused) || !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "nobody listens") {
		t.Errorf("nobody listens: %v", err)
	}
	for reason, want := range map[uint16]error{4: syscall.ETIMEDOUT, 10: syscall.ECONNRESET, 99: nil} {
		w.a.RejectAll = reason
		_, _, err := w.dial(ln, d, nil)
		if errors.As(err, &refused) || err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("reason %d: %v", reason, err)
		}
	}
	w.a.RejectAll = 0
	if _, _, err := w.dial(ln, d, make([]byte, transport.MaxConnect+1)); err == nil || !strings.Contains(err.Error(), "57 bytes") {
		t.Errorf("more was shown than a REQ has: %v", err)
	}
	w.a.Refuse = errors.New("nothing is left")
	if _, _, err := w.dial(ln, d, nil); !errors.Is(err, w.a.Refuse) {
		t.Errorf("without memory: %v", err)
	}
	w.a.Refuse = nil
	ctx, cancel := context.WithCancel(context.Background())
	asked := make(chan transport.ConnRequest, 1)
	ln = w.listen(func(q transport.ConnRequest) { cancel(); asked <- q })
	if _, _, err := w.pa.DialOneSided(ctx, netip.AddrPort{}, ln.Addr(), d, w.attr, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := (<-asked).Accept(w.pb.NewDomain(), w.attr, nil); err == nil {
		t.Error("a request was accepted whose peer is gone")
	}
	w.clean()
}

// TestAcceptFails: a request for which there is no link can still be refused, with a reason.
func TestAcceptFails(t *testing.T) {
	w := newWorld(t, nil)
	none := errors.New("nothing is left")
	failed := make(chan error, 1)
	ln := w.listen(func(q transport.ConnRequest) {
		d := w.pb.NewDomain()
		w.locked(func() bool { w.b.Refuse = none; return true })
		_, err := q.Accept(d, w.attr, nil)
		failed <- err
		q.Reject([]byte("why"))
	})
	_, _, err := w.dial(ln, w.pa.NewDomain(), nil)
	if r, ok := errors.AsType[*transport.Refused](err); !ok || !strings.HasPrefix(string(r.Private), "why") {
		t.Errorf("dialled: %v", err)
	}
	if err := <-failed; !errors.Is(err, none) {
		t.Errorf("accepted: %v", err)
	}
	w.clean()
}

// TestAcceptPanics: a request whose answer panics is refused, and the listener goes on.
func TestAcceptPanics(t *testing.T) {
	w := newWorld(t, nil)
	w.pb.Guard = &guard.Guard{Log: slog.New(slog.DiscardHandler)}
	ln := w.listen(func(q transport.ConnRequest) { panic("the owner's") })
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, _, err := w.pa.DialOneSided(ctx, netip.AddrPort{}, ln.Addr(), w.pa.NewDomain(), w.attr, nil)
		if cancel(); !errors.As(err, new(*transport.Refused)) {
			t.Errorf("dialled: %v", err)
		}
	}
	w.clean()
}

// TestListenFails: a port that the device does not give has no listener.
func TestListenFails(t *testing.T) {
	w := newWorld(t, nil)
	w.b.Refuse = errors.New("the port is another's")
	ln, err := w.pb.ListenOneSided(netip.AddrPortFrom(w.b.info.Addr, 7), func(transport.ConnRequest) {})
	if !errors.Is(err, w.b.Refuse) || ln != nil {
		t.Errorf("%v, %v", ln, err)
	}
}

// TestMoreIsShownThanAnAnswerHas: it is not sent, and the request can still be answered.
func TestMoreIsShownThanAnAnswerHas(t *testing.T) {
	w := newWorld(t, nil)
	ln := w.listen(func(q transport.ConnRequest) {
		for _, more := range []int{1, 100} {
			if _, err := q.Accept(w.pb.NewDomain(), w.attr, make([]byte, transport.MaxAccept+more)); err == nil {
				t.Errorf("%d bytes too many were taken", more)
			}
		}
		q.Reject(bytes.Repeat([]byte("r"), transport.MaxReject+1))
	})
	var refused *transport.Refused
	_, _, err := w.dial(ln, w.pa.NewDomain(), nil)
	if !errors.As(err, &refused) || string(refused.Private) != strings.Repeat("r", transport.MaxReject) {
		t.Errorf("rejected: %v", err)
	}
}

// TestNoCopies: a link needs room for copies, if the device cannot read all memory.
func TestNoCopies(t *testing.T) {
	charged := 0
	w := newWorld(t, func(v *fakeVerbs) { v.info.Caps.AnyMemory, v.Most = false, copyRoom-1 })
	w.pa.Charge = func(_ netip.Addr, n int) error { charged += n; return nil }
	ln := w.listen(func(q transport.ConnRequest) { q.Reject(nil) })
	if _, _, err := w.dial(ln, w.pa.NewDomain(), nil); !errors.Is(err, errMost) || charged != 0 {
		t.Errorf("dialled: %v; %d bytes are charged", err, charged)
	}
	w.clean()
}

// TestAnsweredOnce: a second answer makes no link.
func TestAnsweredOnce(t *testing.T) {
	w := newWorld(t, nil)
	ln := w.listen(func(q transport.ConnRequest) {
		q.Reject(nil)
		if _, err := q.Accept(w.pb.NewDomain(), w.attr, nil); err != errAnswered {
			t.Errorf("accepted: %v", err)
		}
		q.Reject(nil)
	})
	if _, _, err := w.dial(ln, w.pa.NewDomain(), nil); !errors.As(err, new(*transport.Refused)) {
		t.Error(err)
	}
	ln.Close()
}

// TestListenerCloses: Close waits for calls of accept; a request that comes later has no answer,
// and one that was brought can be answered.
func TestListenerCloses(t *testing.T) {
	w := newWorld(t, nil)
	asked, goOn := make(chan struct{}), make(chan struct{})
	ln := w.listen(func(q transport.ConnRequest) {
		close(asked)
		<-goOn
		q.Reject(nil)
	})
	dialled := make(chan error, 1)
	go func() { // ends when it is refused
		_, _, err := w.dial(ln, w.pa.NewDomain(), nil)
		dialled <- err
	}()
	<-asked
	closed := make(chan struct{})
	go func() { // ends with accept
		ln.Close()
		close(closed)
	}()
	w.until("The port is free.", func() bool { return w.locked(func() bool { return len(w.b.fab.ports) == 0 }) })
	select {
	case <-closed:
		t.Error("Close did not wait for accept")
	case <-time.After(10 * time.Millisecond):
	}
	l := ln.(*listener)
	late := &fakeAsked{l: &fakeListener{v: w.b}, reject: make(chan []byte, 1)}
	l.mu.Lock()
	l.closed = true // as it is when Close waits
	l.mu.Unlock()
	l.ask(late)
	<-late.reject
	close(goOn)
	<-closed
	if err := <-dialled; !errors.As(err, new(*transport.Refused)) {
		t.Error(err)
	}
}

// TestAnswersAreBounded: of more requests than are answered at a time the rest have no answer, and come
// again.
func TestAnswersAreBounded(t *testing.T) {
	w := newWorld(t, nil)
	goOn := make(chan struct{})
	var calls sync.WaitGroup
	calls.Add(maxAnswering)
	ln := w.listen(func(q transport.ConnRequest) {
		calls.Done()
		<-goOn
		q.Reject([]byte("late"))
	})
	l := ln.(*listener)
	asks := make([]*fakeAsked, maxAnswering+3)
	for i := range asks { // of as many sources, for one has to wait its turn
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}), 1)
		asks[i] = &fakeAsked{l: &fakeListener{v: w.b}, remote: from, reject: make(chan []byte, 1)}
		l.ask(asks[i])
	}
	calls.Wait()
	for _, a := range asks[maxAnswering:] {
		if b := <-a.reject; string(b) != "forgotten" {
			t.Errorf("it is refused (%q), and would not come again", b)
		}
	}
	close(goOn)
	for _, a := range asks[:maxAnswering] {
		if b := <-a.reject; !strings.HasPrefix(string(b), "late") {
			t.Errorf("%q", b)
		}
	}
}

// TestAnsweringStaysBounded: one that has no answer when its turn comes goes beyond the bound for a
// moment, in which no other is admitted.
func TestAnsweringStaysBounded(t *testing.T) {
	m := *ThisMachine
	m.Clock = func() time.Duration { return time.Hour } // all come at once
	l := &listener{p: &Provider{m: &m}, over: make(chan struct{})}
	from := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}) }
	var waits time.Duration
	for i := range maxAnswering + 1 {
		wait, ok := l.admit(from(max(i, paceBurst)-paceBurst), false) // of the first one more than answered at once
		if !ok {
			t.Fatalf("request %d is refused", i)
		}
		waits = max(waits, wait)
	}
	if l.waiting != 1 || l.turn(waits) {
		t.Fatalf("%d wait, and what waited has room beside %d", l.waiting, maxAnswering)
	}
	if _, ok := l.admit(from(200), false); ok {
		t.Errorf("one more is admitted where %d are answered", l.busy)
	}
}

// TestWhoWaitsHoldsUpNobody: where as many wait as may, whose requests have not come too fast are
// answered, and only another that would have to wait is not.
func TestWhoWaitsHoldsUpNobody(t *testing.T) {
	m := *ThisMachine
	m.Clock = func() time.Duration { return time.Hour } // all come at once
	l := &listener{p: &Provider{m: &m}, over: make(chan struct{})}
	ask := func(i, n int) (answered int) {
		for range n {
			wait, ok := l.admit(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), false)
			if ok && wait == 0 {
				answered++
				l.busy-- // at once
			}
		}
		return answered
	}
	for i := range maxWaiting / paceQueue {
		ask(i, paceBurst+paceQueue)
	}
	if l.waiting != maxWaiting {
		t.Fatalf("%d wait, want %d", l.waiting, maxWaiting)
	}
	if n := ask(200, paceBurst+1); n != paceBurst || l.waiting != maxWaiting {
		t.Errorf("%d requests of another source are answered, want %d; %d wait", n, paceBurst, l.waiting)
	}
}

// TestAsksWaitTheirTurn: of one source a burst is answered at once, some wait their turn, and
// what is beyond has no answer, while another source is answered. Who waits when the listener ends
// has no answer.
func TestAsksWaitTheirTurn(t *testing.T) {
	w := newWorld(t, nil)
	ln := w.listen(func(q transport.ConnRequest) { q.Reject([]byte("asked")) })
	l := ln.(*listener)
	ask := func(from string) chan []byte {
		a := &fakeAsked{l: &fakeListener{v: w.b}, remote: netip.MustParseAddrPort(from), reject: make(chan []byte, 1)}
		l.ask(a)
		return a.reject
	}
	begun := time.Now()
	var asks []chan []byte
	for range paceBurst + paceQueue + 100 {
		asks = append(asks, ask("10.0.0.9:1"))
	}
	took := time.Since(begun) // more turns have come in it
	if b := <-ask("10.0.0.8:1"); !strings.HasPrefix(string(b), "asked") {
		t.Errorf("another source: %q", b)
	}
	answered := 0
	for i, c := range asks {
		b := <-c
		if !strings.HasPrefix(string(b), "asked") {
			if string(b) != "forgotten" {
				t.Errorf("request %d is refused (%q), and would not come again", i, b)
			}
			continue
		}
		answered++
		if least := time.Duration(i+1-paceBurst) * paceEvery; i < paceBurst+paceQueue && time.Since(begun) < least {
			t.Errorf("request %d was answered after %v, its turn is after %v", i, time.Since(begun), least)
		}
	}
	if most := paceBurst + paceQueue + int(took/paceEvery) + 1; answered < paceBurst+paceQueue || answered > most {
		t.Errorf("%d requests of a source were answered, want %d to %d", answered, paceBurst+paceQueue, most)
	}
	asks = asks[:0]
	for range paceQueue {
		asks = append(asks, ask("10.0.0.9:1"))
	}
	closing := time.Since(begun)
	ln.Close()
	if l.waiting != 0 || l.busy != 0 {
		t.Errorf("%d wait, and %d calls are under way, when Close has returned", l.waiting, l.busy)
	}
	refused := 0
	for _, c := range asks {
		if b := <-c; !strings.HasPrefix(string(b), "asked") {
			refused++
		}
	}
	// Of all turns since the beginning so many have been taken; what has come since may be answered.
	if least := paceQueue - 1 - max(0, paceBurst+int(time.Since(begun)/paceEvery)-answered); refused < least {
		t.Errorf("%d of those that wait are refused when the listener ends, want %d", refused, least)
	}
	if few := paceBurst + int(closing/paceEvery) - answered; refused == 0 && few < 8 {
		t.Errorf("Close waited for the turn of all, when that of %d had come", few)
	}
}

// TestAskedOfThisMachine: of an address of this machine the kernel knows who has RoCEv2's port, and
// nothing of who else sends with it: that one is refused before the listener's owner hears of it.
func TestAskedOfThisMachine(t *testing.T) {
	w := newWorld(t, nil)
	w.pb.Local = func(a netip.Addr) bool { return a == netip.MustParseAddr("10.0.0.9") }
	ln := w.listen(func(q transport.ConnRequest) { q.Reject([]byte("asked")) })
	for _, c := range []struct {
		from     string
		fromPort bool
		asked    bool
	}{{"10.0.0.9:1", false, false}, {"10.0.0.9:1", true, true}, {"10.0.0.8:1", false, true}} {
		a := &fakeAsked{l: &fakeListener{v: w.b}, remote: netip.MustParseAddrPort(c.from), fromPort: c.fromPort, reject: make(chan []byte, 1)}
		ln.(*listener).ask(a)
		if b := <-a.reject; strings.HasPrefix(string(b), "asked") != c.asked {
			t.Errorf("%+v: %q", c, b)
		}
	}
}
