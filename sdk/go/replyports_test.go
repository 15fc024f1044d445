package rdsd

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
)

// idlePort is a reply port whose socket is over, so that closing it waits for nobody. open
// says whether its socket is still there.
func idlePort(c *Client, asked ...netip.AddrPort) *replyPort {
	s := &Socket{client: c, ended: make(chan struct{}), over: rdserr.ErrClosed}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	close(s.ended)
	c.sockets[s] = struct{}{}
	q := &replyPort{sock: s, asked: map[netip.AddrPort]struct{}{}}
	for _, a := range asked {
		q.asked[a] = struct{}{}
	}
	return q
}

func (q *replyPort) open(c *Client) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.sockets[q.sock]
	return ok
}

// TestReplyPortsPick: a request gets a port that has none to its destination and may not
// be sent a late answer; a port that an administrator closed is forgotten when it has no
// request any more, and no sooner.
func TestReplyPortsPick(t *testing.T) {
	c := &Client{sockets: map[*Socket]struct{}{}}
	one, other := portOf(1), portOf(2)
	alive := func(q *replyPort) *replyPort { q.sock.over = nil; return q }
	busy, spoiled, free := alive(idlePort(c, one)), alive(idlePort(c, other)), alive(idlePort(c))
	spoiled.spoiled = true
	dismissed, dismissedBusy := idlePort(c), idlePort(c, one)
	p := &replyPorts{list: []*replyPort{dismissed, dismissedBusy, busy, spoiled, free}}
	if q := p.pickLocked(one); q != free {
		t.Errorf("a request got another port than the free one")
	}
	p.closing.Wait()
	if len(p.list) != 4 || p.list[0] != dismissedBusy || dismissed.open(c) {
		t.Errorf("%d ports are left; the dismissed one is open: %v", len(p.list), dismissed.open(c))
	}
	if q := p.pickLocked(one); q != nil {
		t.Error("a second request to a destination got a port that has one")
	}
	delete(dismissedBusy.asked, one)
	if q := p.pickLocked(other); q != busy {
		t.Error("a request to another destination did not get the first port")
	}
	if len(p.list) != 3 {
		t.Errorf("%d ports are left", len(p.list))
	}
	if _, ok := busy.asked[other]; !ok || len(busy.asked) != 2 {
		t.Errorf("on the port are requests to %v", busy.asked)
	}
}

// TestReplyPortsRelease: so many ports without a request are kept, one that may be sent a
// late answer is closed with its last request and takes no further one, and who waits for
// a port is told.
func TestReplyPortsRelease(t *testing.T) {
	c := &Client{sockets: map[*Socket]struct{}{}}
	one, other := portOf(1), portOf(2)
	p := &replyPorts{}
	for range keepReplyPorts + 2 {
		p.list = append(p.list, idlePort(c, one))
	}
	all := append([]*replyPort(nil), p.list...)
	for i, q := range all {
		p.mu.Lock()
		changed := p.changedLocked()
		p.mu.Unlock()
		p.release(q, one, false)
		select {
		case <-changed:
		default:
			t.Error("nobody is told that a port is free")
		}
		p.closing.Wait()
		if kept := i < keepReplyPorts; q.open(c) != kept || len(p.list) != len(all)-max(0, i+1-keepReplyPorts) {
			t.Errorf("port %d without a request is kept: %v, of %d", i, q.open(c), len(p.list))
		}
	}
	q := idlePort(c, one, other)
	q.sock.over = nil
	p.list = []*replyPort{q}
	p.release(q, one, true)
	p.closing.Wait()
	if !q.open(c) || len(p.list) != 1 {
		t.Error("a port is closed under a request")
	}
	p.mu.Lock()
	if p.pickLocked(one) != nil {
		t.Error("a port that may be sent a late answer takes a request")
	}
	p.mu.Unlock()
	q.sock.over = rdserr.ErrClosed // so that closing it waits for nobody
	p.release(q, other, false)
	p.closing.Wait()
	if q.open(c) || len(p.list) != 0 {
		t.Error("a port that may be sent a late answer is kept without a request")
	}
}

// TestReplyPortsFinish: with the socket all ports are closed, a bind under way is ended,
// and who waits for a port, or comes after, hears why.
func TestReplyPortsFinish(t *testing.T) {
	c := &Client{sockets: map[*Socket]struct{}{}}
	why := errors.New("over")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p := &replyPorts{list: []*replyPort{idlePort(c), idlePort(c, portOf(1))}, cancel: cancel}
	p.mu.Lock()
	changed := p.changedLocked()
	p.mu.Unlock()
	if p.isOver() || !p.used() {
		t.Error("before the end it is over, or has no port")
	}
	p.finish(why)
	p.closing.Wait()
	select {
	case <-changed:
	default:
		t.Error("who waits is not told")
	}
	if ctx.Err() == nil || !p.isOver() || p.used() || len(c.sockets) != 0 {
		t.Errorf("the bind goes on: %v; over %v, ports %v, %d sockets open", ctx.Err() == nil, p.isOver(), p.used(), len(c.sockets))
	}
	if q, err := p.acquire(context.Background(), &Socket{}, portOf(1)); q != nil || !errors.Is(err, why) {
		t.Errorf("a request after the end: %v, %v", q, err)
	}
}

// TestReplyPortsTurn: who waits behind another's bind gets the port that comes with it,
// and its own context's end is the end of its wait.
func TestReplyPortsTurn(t *testing.T) {
	c := &Client{sockets: map[*Socket]struct{}{}}
	p := &replyPorts{binding: true}
	p.closing.Add(1) // of the other's turn
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := p.acquire(ctx, &Socket{}, portOf(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that is given up: %v", err)
	}
	type got struct {
		q   *replyPort
		err error
	}
	waits := make(chan got, 1)
	go func() {
		q, err := p.acquire(context.Background(), &Socket{}, portOf(1))
		waits <- got{q, err}
	}()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		p.mu.Lock()
		waiting := p.changed != nil
		p.mu.Unlock()
		if waiting {
			break
		}
		if time.Now().After(end) {
			t.Fatal("nobody waits")
		}
	}
	q := idlePort(c)
	q.sock.over = nil
	p.mu.Lock()
	p.list = append(p.list, q)
	p.mu.Unlock()
	p.endTurn()
	p.closing.Wait() // the turn is over, and nothing counts it any more
	select {
	case g := <-waits:
		if g.q != q || g.err != nil || p.binding {
			t.Errorf("%v, %v, binding %v", g.q == q, g.err, p.binding)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("who waits for a port is not told that there is one")
	}
}

// TestOutcomeRuns: the same outcome of tags that follow each other is one run, and any
// difference begins another; they are read in their order, once, and sends may go on
// exactly when the list is not full any more.
func TestOutcomeRuns(t *testing.T) {
	var q outcomeQueue
	q.init()
	if q.ready() {
		t.Error("an empty list is ready")
	}
	q.add(1, 2, Delivered, "")
	q.add(3, 1, Delivered, "")
	for n, x := range []outcomeRun{
		{tagRun{4, 1}, Failed, "why"}, {tagRun{5, 1}, Failed, "another"}, {tagRun{7, 1}, Failed, "another"}, {tagRun{6, 1}, Failed, "another"},
	} {
		q.add(x.first, x.count, x.kind, x.reason)
		if got := q.len.Load(); got != int64(n+2) {
			t.Errorf("after tag %d there are %d runs, want %d", x.first, got, n+2)
		}
	}
	for i, want := range []Outcome{{1, Delivered, ""}, {2, Delivered, ""}, {3, Delivered, ""}, {4, Failed, "why"}, {5, Failed, "another"}, {7, Failed, "another"}, {6, Failed, "another"}} {
		<-q.wake // there is more: whoever comes next is woken
		o, ok, freed, err := q.take()
		if o != want || !ok || freed || err != nil {
			t.Errorf("outcome %d: %+v, %v, %v, %v", i, o, ok, freed, err)
		}
	}
	select {
	case <-q.wake:
		t.Error("it wakes for nothing")
	default:
	}
	if _, ok, _, err := q.take(); ok || err != nil || q.ready() || q.len.Load() != 0 {
		t.Errorf("there is more: %v, %v, %d runs", ok, err, q.len.Load())
	}
	for i := range uint64(maxOutcomeRuns + 1) {
		if q.full() != (i >= maxOutcomeRuns) {
			t.Fatalf("with %d runs it is full: %v", i, q.full())
		}
		q.add(2*i, 1, Failed, "")
	}
	if _, _, freed, _ := q.take(); freed || !q.full() {
		t.Error("with as many runs as there may be sends go on")
	}
	if _, _, freed, _ := q.take(); !freed || q.full() {
		t.Error("sends do not go on when there is room")
	}
	if _, _, freed, _ := q.take(); freed {
		t.Error("it is said twice")
	}
	var end outcomeQueue
	end.init()
	end.add(1, 1, Unknown, "")
	end.finish(rdserr.ErrClosed)
	if o, ok, _, err := end.take(); !ok || o.Tag != 1 || err != nil {
		t.Errorf("what was known before the end: %+v, %v, %v", o, ok, err)
	}
	for range 2 { // each reader is told, and wakes the next
		<-end.wake
		if _, ok, _, err := end.take(); ok || !errors.Is(err, rdserr.ErrClosed) || !end.ready() {
			t.Errorf("at the end: %v, %v", ok, err)
		}
	}
}

// TestWatchNews: later news of a destination take the place of earlier ones, each watch
// has its own, what was freed adds up, and after a lost stream everything may have
// changed.
func TestWatchNews(t *testing.T) {
	var ws watchers
	a, b := bareWatcher(), bareWatcher()
	ws.add(a, nil)
	if !ws.active() || ws.ready(a) {
		t.Error("a watch is not there, or has news")
	}
	ws.news(1, CongestionChange{portOf(1), true}, CongestionChange{portOf(2), true})
	ws.add(b, nil)
	ws.news(4, CongestionChange{portOf(1), false})
	for name, c := range map[string]struct {
		w     *watcher
		freed uint64
		want  []CongestionChange
	}{"the first": {a, 5, []CongestionChange{{portOf(2), true}, {portOf(1), false}}}, "who came later": {b, 4, []CongestionChange{{portOf(1), false}}}} {
		select {
		case <-c.w.wake:
		default:
			t.Errorf("%s is not woken", name)
		}
		if !ws.ready(c.w) {
			t.Errorf("%s has no news", name)
		}
		ev, ok, err := ws.take(c.w)
		if !ok || err != nil || ev.Freed != c.freed || len(ev.Changes) != len(c.want) {
			t.Fatalf("%s: %+v, %v, %v", name, ev, ok, err)
		}
		for i := range c.want {
			if ev.Changes[i] != c.want[i] {
				t.Errorf("%s: change %d is %+v, want %+v", name, i, ev.Changes[i], c.want[i])
			}
		}
		if ev, ok, _ := ws.take(c.w); ok || len(ev.Changes) > 0 || ev.Freed != 0 {
			t.Errorf("%s is told twice: %+v", name, ev)
		}
	}
	ws.news(0, CongestionChange{portOf(9), true})
	ws.lost()
	if ev, ok, _ := ws.take(a); !ok || ev.Freed != ^uint64(0) || len(ev.Changes) != 0 {
		t.Errorf("after a lost stream: %+v, %v", ev, ok)
	}
	ws.remove(b)
	ws.news(2)
	if ev, ok, _ := ws.take(b); !ok || ev.Freed != ^uint64(0) { // of before it went
		t.Errorf("who has gone: %+v, %v", ev, ok)
	}
	ws.finish(rdserr.ErrClosed)
	if _, _, err := ws.take(a); !errors.Is(err, rdserr.ErrClosed) || !ws.ready(a) {
		t.Errorf("at the end: %v", err)
	}
	if _, _, err := ws.take(b); err != nil {
		t.Errorf("who has gone hears of the end: %v", err)
	}
	ws.remove(a)
	if ws.active() {
		t.Error("there are watches when all have gone")
	}
}
