package rdsd

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// acceptPort is the daemon's side of a reply port that is being bound.
func acceptPort(d *fakeDaemon) *fakeStream {
	d.t.Helper()
	st, bind := d.accept()
	if got := endpointFromProto(bind.GetLocal()); got != netip.AddrPortFrom(localAddr.Addr(), 0) {
		d.t.Errorf("bound to %v, want any port of %v", got, localAddr.Addr())
	}
	st.sendBound(bound(bind))
	d.t.Cleanup(st.answerClose)
	return st
}

type asked struct {
	d   Datagram
	err error
}

func ask(ctx context.Context, s *Socket, to netip.AddrPort, text string) chan asked {
	c := make(chan asked, 1)
	go func() {
		d, err := s.Request(ctx, to, []byte(text))
		c <- asked{d, err}
	}()
	return c
}

func wantAnswer(t *testing.T, c chan asked, want string) {
	t.Helper()
	select {
	case a := <-c:
		if a.err != nil || string(a.d.Payload) != want {
			t.Errorf("%q from %v, %v, want %q", a.d.Payload, a.d.Addr, a.err, want)
		}
	case <-time.After(patience):
		t.Fatalf("no answer, want %q", want)
	}
}

// ports are those of a socket with how many requests each has.
func ports(s *Socket) (counts []int) {
	s.requests.mu.Lock()
	defer s.requests.mu.Unlock()
	for _, q := range s.requests.list {
		counts = append(counts, len(q.asked))
	}
	return counts
}

// Requests to one destination have a port each, requests to different ones share
// one; answers go by port and source, and nothing of it is seen by Recv.
func TestRequest(t *testing.T) {
	d, _, s, st := bindFake(t)
	ctx := testContext(t)
	first := ask(ctx, s, peerAddr, "1")
	p1 := acceptPort(d)
	p1.sendResult(p1.nextSend())
	second := ask(ctx, s, peerAddr, "2")
	p2 := acceptPort(d)
	p2.sendResult(p2.nextSend())
	other := ask(ctx, s, otherAddr, "3")
	p1.sendResult(p1.nextSend())
	if got := ports(s); fmt.Sprint(got) != "[2 1]" {
		t.Errorf("requests on the ports: %v", got)
	}
	p2.push(Datagram{Addr: stuckAddr, Payload: []byte("not it")}, dgram("re: 2"), dgram("more"))
	wantAnswer(t, second, "re: 2")
	p1.push(Datagram{Addr: otherAddr, Payload: []byte("re: 3")}, dgram("re: 1"))
	wantAnswer(t, first, "re: 1")
	wantAnswer(t, other, "re: 3")

	st.push(dgram("for Recv"))
	if d, err := s.Recv(ctx); err != nil || string(d.Payload) != "for Recv" {
		t.Errorf("%v %v", d, err)
	}
	again := ask(ctx, s, peerAddr, "4")
	p1.sendResult(p1.nextSend()) // the port is used again, and no other is bound
	p1.push(dgram("re: 4"))
	wantAnswer(t, again, "re: 4")
	if got := ports(s); fmt.Sprint(got) != "[0 0]" {
		t.Errorf("requests on the ports: %v", got)
	}
}

// TestReplyPortTaken: a reply port that somebody else was given after a restart takes no request
// any more. It is closed, and another one is bound.
func TestReplyPortTaken(t *testing.T) {
	d, c, s, _ := bindFake(t)
	ctx := testContext(t)
	first := ask(ctx, s, peerAddr, "1")
	st := acceptPort(d)
	st.sendResult(st.nextSend())
	st.push(dgram("re: 1"))
	wantAnswer(t, first, "re: 1")
	lost := s.requests.list[0].sock
	left := ask(ctx, s, otherAddr, "left")
	st.sendResult(st.nextSend())
	st.finish(rdserr.ErrShutdown)
	eventually(t, "the port is away", func() bool { lost.mu.Lock(); defer lost.mu.Unlock(); return lost.link == nil })
	second := ask(ctx, s, peerAddr, "2") // waits for it
	eventually(t, "it is on the port", func() bool { return fmt.Sprint(ports(s)) == "[2]" })
	for { // the port is asked for again until it is heard that it is lost, then another one is
		var bind *rdsdv1.Bind
		if st, bind = d.accept(); bind.GetLocal().GetPort() == 0 {
			st.sendBound(bound(bind))
			t.Cleanup(st.answerClose)
			break
		}
		st.finish(rdserr.ErrAddrInUse)
		if ctx.Err() != nil {
			t.Fatal("the request waits for a port that somebody else has")
		}
	}
	if !lost.isLost() {
		t.Error("another port is asked for, and the first is not lost")
	}
	wantErr(t, (<-left).err, rdserr.ErrShutdown)
	st.sendResult(st.nextSend())
	st.push(dgram("re: 2"))
	wantAnswer(t, second, "re: 2")
	eventually(t, "the lost port is closed", func() bool { return !(&replyPort{sock: lost}).open(c) })
}

// What a request that gave up may still be answered is never handed to another
// one: its port takes no request any more and is closed with its last one.
func TestLateAnswerIsNobodys(t *testing.T) {
	d, _, s, _ := bindFake(t)
	ctx, cancel := context.WithCancel(testContext(t))
	late := ask(ctx, s, peerAddr, "q1")
	p1 := acceptPort(d)
	p1.sendResult(p1.nextSend())
	beside := ask(testContext(t), s, otherAddr, "beside")
	p1.sendResult(p1.nextSend())
	cancel()
	m := p1.next()
	if m.WhichBody() != rdsdv1.ClientMessage_Cancel_case || endpointFromProto(m.GetCancel().GetDestination()) != peerAddr {
		t.Fatalf("%v, want a Cancel", m)
	}
	p1.sendCancelled(m, 0, 1)
	wantErr(t, (<-late).err, rdserr.ErrCanceled)

	second := ask(testContext(t), s, peerAddr, "q2")
	p2 := acceptPort(d)
	p2.sendResult(p2.nextSend())
	p1.push(dgram("late"))
	p2.push(dgram("re: q2"))
	wantAnswer(t, second, "re: q2")
	third := ask(testContext(t), s, stuckAddr, "q3")
	p2.sendResult(p2.nextSend()) // not the spoiled one, though nothing was asked there
	p2.push(Datagram{Addr: stuckAddr, Payload: []byte("re: q3")})
	wantAnswer(t, third, "re: q3")

	p1.push(Datagram{Addr: otherAddr, Payload: []byte("re: beside")})
	wantAnswer(t, beside, "re: beside")
	for range p1.in { // until the port is closed
	}
	p1.finish(nil)
	if got := ports(s); fmt.Sprint(got) != "[0]" {
		t.Errorf("requests on the ports: %v", got)
	}
}

// A request that has provably not left leaves its port as it was.
func TestRequestTakenBack(t *testing.T) {
	d, _, s, _ := bindFake(t)
	ctx, cancel := context.WithCancel(testContext(t))
	first := ask(ctx, s, peerAddr, "q1")
	p1 := acceptPort(d)
	p1.sendResult(p1.nextSend())
	cancel()
	p1.sendCancelled(p1.next(), 1, 0)
	wantErr(t, (<-first).err, rdserr.ErrCanceled)
	second := ask(testContext(t), s, peerAddr, "q2")
	p1.sendResult(p1.nextSend())
	p1.push(dgram("re: q2"))
	wantAnswer(t, second, "re: q2")

	// One that was refused, too.
	third := ask(testContext(t), s, peerAddr, "q3")
	p1.sendResult(p1.nextSend(), sendError(0, 1, rdserr.ErrFamily))
	wantErr(t, (<-third).err, rdserr.ErrFamily)
	fourth := ask(testContext(t), s, peerAddr, "q4")
	p1.sendResult(p1.nextSend())
	p1.push(dgram("re: q4"))
	wantAnswer(t, fourth, "re: q4")
}

// Closing a socket ends its requests, in each of their states, and its ports.
func TestCloseEndsRequests(t *testing.T) {
	d, _, s, st := bindFake(t)
	ctx := testContext(t)
	waits := ask(ctx, s, peerAddr, "waits for its answer")
	p1 := acceptPort(d)
	p1.sendResult(p1.nextSend())
	binds := ask(ctx, s, peerAddr, "waits for its port")
	d.accept() // and says nothing
	queued := ask(ctx, s, peerAddr, "waits for that one")
	closed := goErr(s.Close)
	for _, c := range []chan asked{waits, binds, queued} {
		wantErr(t, (<-c).err, rdserr.ErrClosed)
	}
	st.answerClose()
	p1.answerClose()
	if err := waitErr(t, closed); err != nil {
		t.Error(err)
	}
	wantErr(t, (<-ask(ctx, s, peerAddr, "too late")).err, rdserr.ErrClosed)
}

// Answers in another order, a request that is given up, one that cannot leave.
func TestRingsRequest(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr)
	ctx := testContext(t)
	next := func(want string) Datagram {
		t.Helper()
		q, err := b.Recv(ctx)
		if err != nil || string(q.Payload) != want {
			t.Fatalf("%q %v, want %q", q.Payload, err, want)
		}
		return q
	}
	reply := func(q Datagram, text string) {
		t.Helper()
		if err := b.Reply(ctx, q, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	// Two at a time, answered in the other order.
	first := ask(ctx, a, peerAddr, "1")
	q1 := next("1")
	second := ask(ctx, a, peerAddr, "2")
	q2 := next("2")
	if q1.Addr == q2.Addr || q1.Addr == localAddr || q1.Addr.Addr() != localAddr.Addr() {
		t.Errorf("requests from %v and %v", q1.Addr, q2.Addr)
	}
	reply(q2, "re: 2")
	wantAnswer(t, second, "re: 2")
	reply(q1, "re: 1")
	wantAnswer(t, first, "re: 1")

	// One is given up; its answer comes late.
	brief, cancel := context.WithCancel(ctx)
	gone := ask(brief, a, peerAddr, "3")
	q3 := next("3")
	cancel()
	wantErr(t, (<-gone).err, rdserr.ErrCanceled)
	for i := 4; i < 8; i++ {
		c := ask(ctx, a, peerAddr, fmt.Sprint(i))
		q := next(fmt.Sprint(i))
		if q.Addr == q3.Addr {
			t.Errorf("request %d leaves from the port of the one given up", i)
		}
		if i == 5 {
			_ = b.TrySend(q3.Addr, []byte("re: 3"))
		}
		reply(q, "re: "+fmt.Sprint(i))
		wantAnswer(t, c, "re: "+fmt.Sprint(i))
	}
	if got := ports(a); fmt.Sprint(got) != "[0]" {
		t.Errorf("requests on the ports: %v", got)
	}
	if _, ok, err := a.PeekSize(ctx); ok || err != nil {
		t.Errorf("something is there for Recv: %v", err)
	}

	// What cannot be answered is taken back, and the port stays.
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err := a.Request(short, stuckAddr, nil)
	wantErr(t, err, rdserr.ErrTimeout)
	if got := ports(a); fmt.Sprint(got) != "[0]" {
		t.Errorf("requests on the ports: %v", got)
	}
}

// Strays on a reply port are dropped: they fill no memory and hold up no answer.
func TestRingsStraysAtReplyPort(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr, WithRecvBuffer(4096)), d.bindRing(peerAddr)
	c := d.bindRing(otherAddr)
	ctx := testContext(t)
	for i := range 3 {
		got := ask(ctx, a, peerAddr, "?")
		q, err := b.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if err := c.Send(ctx, q.Addr, make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Reply(ctx, q, []byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		wantAnswer(t, got, string([]byte{byte(i)}))
	}
}

// At most so many requests to one destination are under way, the others wait for
// their turn; ports that are not needed any more are let go of.
func TestRingsRequestLimit(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr)
	ctx := testContext(t)
	const n = maxReplyPorts + 8
	var waiting sync.WaitGroup
	for i := range n {
		waiting.Go(func() {
			wantAnswer(t, ask(ctx, a, peerAddr, fmt.Sprint(i)), "re: "+fmt.Sprint(i))
		})
	}
	sources := map[netip.AddrPort]bool{}
	var held []Datagram
	for range maxReplyPorts {
		q, err := b.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		sources[q.Addr] = true
		held = append(held, q)
	}
	if _, ok, err := b.PeekSize(ctx); ok || err != nil || len(sources) != maxReplyPorts || len(ports(a)) != maxReplyPorts {
		t.Errorf("one more is there: %v %v; %d sources, %d ports", ok, err, len(sources), len(ports(a)))
	}
	for answered := range n {
		q := held[0]
		held = held[1:]
		if err := b.Reply(ctx, q, fmt.Appendf(nil, "re: %s", q.Payload)); err != nil {
			t.Fatal(err)
		}
		if answered < n-maxReplyPorts {
			q, err := b.Recv(ctx)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, q)
		}
	}
	waiting.Wait()
	if got := ports(a); len(got) > keepReplyPorts {
		t.Errorf("%d ports without a request, want at most %d", len(got), keepReplyPorts)
	}
}

// A reply port that an administrator has closed is replaced.
func TestRingsReplyPortDismissed(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr)
	ctx := testContext(t)
	for range 2 {
		c := ask(ctx, a, peerAddr, "?")
		q, err := b.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Reply(ctx, q, []byte("!")); err != nil {
			t.Fatal(err)
		}
		wantAnswer(t, c, "!")
		a.requests.mu.Lock()
		port := a.requests.list[0].sock
		a.requests.mu.Unlock()
		port.mu.Lock()
		port.finishLocked(rdserr.ErrCanceled)
		port.mu.Unlock()
	}
}

// A destination may be written as an IPv6 address that an IPv4 address is mapped to: it is the same.
func TestRequestToAMappedAddress(t *testing.T) {
	d, _, s, _ := bindFake(t)
	mapped := netip.AddrPortFrom(netip.AddrFrom16(peerAddr.Addr().As16()), peerAddr.Port())
	a := ask(testContext(t), s, mapped, "1")
	p := acceptPort(d)
	p.sendResult(p.nextSend())
	p.push(dgram("re: 1"))
	wantAnswer(t, a, "re: 1")
}
