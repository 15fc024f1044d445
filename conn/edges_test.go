package conn

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/wire"
)

// steps does what lines of a script say, and looks at nothing they note.
func (w *world) steps(lines ...string) {
	for _, s := range lines {
		w.step(strings.Fields(s))
		w.settle()
		w.check()
	}
	w.take()
}

// rdsdPair is a world whose peer is an rdsd with one lane, a link and 128 credits.
func rdsdPair(t *testing.T) (*world, *Lane) {
	w := newWorld(t, "10.0.0.2", "10.0.0.1", func(c *Config) { c.CreditLog2, c.Lanes = 7, 1 })
	w.steps("accept 40000", "recv 0 probe seq=1 npaths=1 hello=77/1/7", "recv 0 answer received=0 npaths=1 hello=77/1/7")
	return w, w.c.lanes[0]
}

// A shell that offers frames before it reads them is told what would be placed.
func TestAwaits(t *testing.T) {
	w, p := rdsdPair(t)
	w.steps("recv 0 data 4000>5000 seq=2 len=1 csum", "port 5001 no-room", "recv 0 data 4000>5001 seq=3 len=1 csum")
	is := func(frame string, want bool) {
		t.Helper()
		f := w.frame(strings.Fields(frame))
		port, ok := p.Awaits(p.attempt, f.Raw)
		if ok != want || ok && port != 5000 && port != 5001 {
			t.Errorf("%s, %v: port %d, %v", frame, p.state, port, ok)
		}
		if _, ok := p.Awaits(p.attempt+1, f.Raw); ok {
			t.Errorf("%s of another link is awaited", frame)
		}
	}
	is("data 4000>5000 seq=4 len=1 csum", true)
	is("data 4000>5000 seq=4 len=1 csum=bad", false)
	is("data 4000>5000 seq=3 len=1 csum", false)
	is("data 4000>5001 seq=4 len=1 csum", false)
	is("data 4000>5001 seq=4 len=1 flags=resume csum", true)
	is("ping 5000 seq=4 csum", false)
	is("ack csum", false)
	if _, ok := p.Awaits(p.attempt, make([]byte, 3)); ok {
		t.Error("a part of a header is awaited")
	}
	w.steps("drop 0")
	is("data 4000>5000 seq=4 len=1 csum", false)

	w = newWorld(t, "10.0.0.2", "10.0.0.1", nil)
	w.steps("accept 40000", "recv 0 answer seq=1 npaths=1", "recv 0 data 4000>5000 seq=2 len=1")
	p = w.c.lanes[0]
	for _, frame := range []string{"data 4000>5000 seq=3 len=1", "data 4000>5000 seq=2 len=1", "data 4000>5000 seq=3 len=1 flags=retrans"} {
		is(frame, true)
	}
	is("data 4000>5000 seq=2 len=1 flags=retrans", false)
	w.steps("drop 0")
	is("data 4000>5000 seq=3 len=1", true)
	w.steps("lost 0")
	is("data 4000>5000 seq=3 len=1", false)
}

// Refusals says no more than fits, of those not yet put into a message and of
// those that were.
func TestRefusalsListed(t *testing.T) {
	w, p := rdsdPair(t)
	w.steps("port 5001 no-room", "recv 0 data 4000>5001 seq=2 len=1 csum", "recv 0 data 4000>5001 seq=3 len=1 csum", "hold on",
		"recv 0 data 4000>5001 seq=4 len=1 csum", "recv 0 data 4000>5001 seq=5 len=1 csum")
	for room := range 6 {
		l := make([]wire.Refusal, room)
		n := p.Refusals(l)
		if n != min(room, 4) {
			t.Errorf("%d refusals of 4 for %d places", n, room)
		}
		seen := map[uint64]bool{}
		for _, r := range l[:n] {
			if seen[r.Seq] || r.Seq < 2 || r.Seq > 5 || r.Reason != wire.ReasonNoRoom {
				t.Errorf("refusal %+v for %d places", r, room)
			}
			seen[r.Seq] = true
		}
	}
}

// Tell takes 32 messages that wait, and as many again when they have left.
func TestTellIsBounded(t *testing.T) {
	w, _ := rdsdPair(t)
	w.steps("hold on")
	for round := range 3 {
		n := 0
		for w.c.Tell(wire.CtlAskPorts, nil) {
			n++
			w.settle()
		}
		// In the first round one leaves at once, and is being written.
		if want := maxTells + 1; n != want {
			t.Errorf("round %d: %d messages were taken, want %d", round, n, want)
		}
		for w.batch[w.c.lanes[0]] != nil {
			w.wrote(w.c.lanes[0])
			w.settle()
		}
		w.check()
		w.take()
	}
	w.steps("drop 0")
	if w.c.Tell(wire.CtlAskPorts, nil) {
		t.Error("a message was taken for a link that is being closed")
	}
}

// Who pings, takes the answers and acknowledges none gets no more of them than there is memory
// for, over one link or many; an acknowledgement makes room.
func TestPongsOut(t *testing.T) {
	w, p := rdsdPair(t)
	seq := 0
	pings := func(n int) {
		t.Helper()
		for range n {
			seq++
			w.step(strings.Fields(fmt.Sprintf("recv 0 ping 9 seq=%d credit=1 csum", seq)))
			w.settle()
		}
		w.check()
		w.take()
	}
	for round := range 3 {
		pings(mostPongsOut)
		if n := p.unacked.messages; n > mostPongsOut+1 {
			t.Fatalf("round %d: %d answers are kept", round, n)
		}
		w.steps("lost 0", "wait 1s", fmt.Sprintf("accept %d", 40000), "recv 0 probe npaths=1 hello=77/1/7", "recv 0 answer received=0 npaths=1 hello=77/1/7")
	}
	if w.ctr.PongDropped != 2*mostPongsOut {
		t.Errorf("%d pings were not answered, want %d", w.ctr.PongDropped, 2*mostPongsOut)
	}
	w.steps(fmt.Sprintf("recv 0 ack ack=%d csum", p.nextSeq-1))
	if p.pongsOut != 0 {
		t.Errorf("%d answers are counted when all are acknowledged", p.pongsOut)
	}
	was := w.ctr.PongDropped
	pings(10)
	if w.ctr.PongDropped != was || p.pongsOut != 10 {
		t.Errorf("of 10 pings %d were not answered when there is room", w.ctr.PongDropped-was)
	}
}

// A connection rests when it has no link, and nothing of any sort is under way.
func TestRests(t *testing.T) {
	w := newWorld(t, "10.0.0.1", "10.0.0.2", func(c *Config) { c.CreditLog2, c.Lanes = 7, 1 })
	rests := func(want bool, what string) {
		t.Helper()
		if _, ok := w.c.Idle(); ok != want {
			t.Errorf("%s: rests %v", what, ok)
		}
	}
	known := func(want bool, what string) {
		t.Helper()
		if w.c.Known() != want {
			t.Errorf("%s: known %v", what, !want)
		}
	}
	rests(true, "at first")
	w.steps("send 5000>4000 1")
	rests(false, "something waits for the lanes")
	w.steps("cancel 4000", "dialfail 0")
	rests(true, "nothing waits any more")
	known(false, "nothing came")
	w.steps("wait 10s", "send 5000>4000 1", "connected 0")
	known(false, "nothing came yet")
	w.steps("recv 0 probe seq=1 npaths=1 hello=77/1/7", "recv 0 answer received=0 npaths=1 hello=77/1/7")
	known(true, "it said who it is")
	rests(false, "sent and not acknowledged")
	w.steps("lost 0")
	rests(false, "to be sent again")
	w.steps("wait 1s", "connected 0", "recv 0 probe npaths=1 hello=77/1/7", "recv 0 answer received=0 npaths=1 hello=77/1/7", "recv 0 ack ack=2 csum")
	rests(false, "a link")
	w.steps("drop 0")
	rests(false, "a link that closes")
	at := w.now
	w.steps("lost 0")
	if since, ok := w.c.Idle(); !ok || since != at {
		t.Errorf("rests %v since %v, the link went at %v", ok, since, at)
	}
}

// What the protocol itself has for a peer that is gone is no reason to keep it, nor to ask it
// to connect for ever; a datagram of ours is.
func TestRestsWithAnswers(t *testing.T) {
	for _, what := range []string{"ping", "data"} {
		for _, ready := range []bool{false, true} {
			w := newWorld(t, "10.0.0.2", "10.0.0.1", func(c *Config) { c.CreditLog2, c.Lanes = 7, 1 })
			w.verdict[4000] = NoRoom
			w.steps("accept 40000", "recv 0 probe npaths=1 hello=77/1/7")
			if ready {
				w.steps("recv 0 answer received=0 npaths=1 hello=77/1/7")
			}
			w.steps(map[string]string{"ping": "recv 0 ping 9 seq=1 csum", "data": "recv 0 data 9>4000 seq=1 len=1 csum"}[what])
			w.steps("lost 0")
			if _, ok := w.c.Idle(); !ok {
				t.Errorf("%s, ready %v: it does not rest when the peer is gone", what, ready)
			}
			w.steps("wait 20s")
			asked := w.ctr.PokeSent
			w.steps("wait 20s")
			if w.ctr.PokeSent == asked && (ready || what == "data") {
				t.Errorf("%s, ready %v: the peer is not asked any more after 20 s", what, ready)
			}
			asked = w.ctr.PokeSent
			w.steps("wait 10m")
			if n := w.ctr.PokeSent - asked; n != 0 {
				t.Errorf("%s, ready %v: the peer was asked %d times to connect", what, ready, n)
			}
			w.steps("send 5000>4000 1")
			if _, ok := w.c.Idle(); ok {
				t.Errorf("%s, ready %v: it rests with a datagram", what, ready)
			}
			asked = w.ctr.PokeSent
			w.steps("wait 10m")
			if n := w.ctr.PokeSent - asked; n < 60 {
				t.Errorf("%s, ready %v: for a datagram it was asked %d times to connect", what, ready, n)
			}
		}
	}
}

// A peer to which we are the one to connect is tried without an end. It rests since its link went
// nevertheless; but not while a kernel may have taken a connection.
func TestRestsWhileItIsTried(t *testing.T) {
	for _, shake := range []string{"npaths=1 hello=77/1/7", "npaths=1"} {
		w := newWorld(t, "10.0.0.1", "10.0.0.2", func(c *Config) { c.CreditLog2, c.Lanes = 7, 1 })
		w.steps("connect", "connected 0", "recv 0 probe seq=1 "+shake, "recv 0 answer seq=2 "+shake, "wait 1s", "lost 0")
		at := w.now
		for range 100 {
			w.steps("wait 6s")
			if w.c.lanes[0].state == Connecting {
				_, ok := w.c.Idle()
				if want := !w.c.kind.kernel(); ok != want {
					t.Fatalf("%v: rests %v while it is connected to", w.c.kind, ok)
				}
				w.steps("dialfail 0")
			}
			if since, ok := w.c.Idle(); !ok || since != at {
				t.Fatalf("%v: rests %v since %v, the link went at %v", w.c.kind, ok, since, at)
			}
		}
		if w.ctr.DialFailed < 50 {
			t.Errorf("%v: it was tried %d times", w.c.kind, w.ctr.DialFailed)
		}
	}
}

// Of a kernel's links that wait for their predecessors' end 64 are kept; one more,
// and only the newest counts.
func TestWaitingLinks(t *testing.T) {
	w := newWorld(t, "10.0.0.2", "10.0.0.1", nil)
	w.steps("accept 40000", "recv 0 answer seq=1 npaths=1")
	p := w.c.lanes[0]
	for i := range 2*maxWaiting + 1 {
		aborts := 0
		if a := w.c.Accept(w.now, 40000); !a.Parked || a.Attempt != p.attempt+uint64(i)+1 {
			t.Fatalf("link %d: %+v", i, a)
		}
		for _, a := range w.com.Actions {
			if a.Kind == ActAbort {
				aborts++
			}
		}
		w.settle()
		want, abort := i%maxWaiting+1, 0
		if i > 0 && i%maxWaiting == 0 {
			abort = maxWaiting
		}
		if len(p.waiting) != want || aborts != abort {
			t.Errorf("link %d: %d wait, %d were given up; want %d and %d", i, len(p.waiting), aborts, want, abort)
		}
	}
}

// Attempts after the first are counted as such, and the first is not.
func TestReconnectsCounted(t *testing.T) {
	w := newWorld(t, "10.0.0.1", "10.0.0.2", func(c *Config) { c.Lanes = 1 })
	for i, s := range []string{"send 5000>4000 1", "dialfail 0", "wait 10ms", "dialfail 0", "wait 1s", "connected 0", "lost 0", "wait 1s"} {
		w.steps(s)
		if n, want := w.c.lanes[0].Info().Reconnects, []uint64{0, 0, 1, 1, 2, 2, 2, 3}[i]; n != want || w.ctr.Reconnects != want {
			t.Errorf("after %q: %d reconnects and %d counted, want %d", s, n, w.ctr.Reconnects, want)
		}
	}
}

// The wait for the next attempt is nothing at first, then random below bounds that
// double from ReconnectMin to ReconnectMax, and no less.
func TestBackoffBounds(t *testing.T) {
	w := newWorld(t, "10.0.0.1", "10.0.0.2", nil)
	p := w.c.lane(0)
	for n := range 40 {
		bound := time.Duration(0)
		if n > 0 {
			bound = min(w.cfg.ReconnectMin<<min(n-1, 20), w.cfg.ReconnectMax)
		}
		low, high := time.Hour, time.Duration(0)
		for range 300 {
			p.failures = int32(n)
			p.backOff(w.now)
			low, high = min(low, p.retryAt-w.now), max(high, p.retryAt-w.now)
		}
		if low < 0 || low > bound/10 || high > bound || high < bound*9/10 || p.failures != int32(n+1) {
			t.Errorf("after %d attempts: waits of %v to %v, the bound is %v", n, low, high, bound)
		}
	}
}

// A kernel peer's stream passes 4 GiB: what its TCP acknowledges is told from what
// it does not at the wrap as anywhere else.
func TestStreamWraps(t *testing.T) {
	w := newWorld(t, "10.0.0.2", "10.0.0.1", nil)
	w.steps("accept 40000", "recv 0 answer seq=1 npaths=1")
	p := w.c.lanes[0]
	p.Acked(w.now, p.attempt, p.txOff)
	p.txOff, p.txAcked = 1<<32-200, 1<<32-200
	const frame = wire.HeaderLen + 16
	for i := range 10 {
		w.send(5000, 4000, 16, true)
		w.settle()
		if p.unacked.n != i+1 {
			t.Fatalf("%d unacknowledged after %d frames", p.unacked.n, i+1)
		}
	}
	for i := range 10 {
		end := 1<<32 - 200 + uint64(i+1)*frame
		p.Acked(w.now, p.attempt, end-1)
		if p.unacked.n != 10-i {
			t.Errorf("acknowledged to a byte before the end of frame %d: %d left", i, p.unacked.n)
		}
		p.Acked(w.now, p.attempt, end)
		if p.unacked.n != 9-i {
			t.Errorf("acknowledged to the end of frame %d: %d left", i, p.unacked.n)
		}
	}
}

// A message that waits for more credits than there are is cancelled: what stands behind
// it has enough, and leaves although nothing else happens.
func TestCancelOfWhatWaitsForCredits(t *testing.T) {
	w, p := rdsdPair(t)
	w.steps("send 5000>4000 1048576", "send 5000>4000 1048576", "recv 0 ack ack=1 credit=3 csum", "send 5000>4000 1048576", "send 5001>4001 1")
	if p.queue.n != 2 || p.credits != 3 {
		t.Fatalf("%d wait, with %d credits; want 2 and 3", p.queue.n, p.credits)
	}
	w.steps("cancel 4000")
	if p.queue.n != 0 || p.credits != 2 {
		t.Errorf("%d wait, with %d credits", p.queue.n, p.credits)
	}
}

// A silent peer is asked again Heartbeat after the sign that it gave, though the call
// for the end of the silence before that was set later.
func TestAskedAfterEachSilence(t *testing.T) {
	w, p := rdsdPair(t)
	for round := range 5 {
		due := p.heartbeatAt()
		w.advance(due - w.now - 1)
		if out := w.take(); strings.Contains(out, "ackreq") {
			t.Errorf("round %d: asked before %v: %s", round, due, out)
		}
		w.advance(1)
		if out := w.take(); strings.Count(out, "0 tx ack flags=ackreq") != 1 {
			t.Errorf("round %d: not asked at %v: %s", round, due, out)
		}
		w.advance(time.Millisecond)
		w.steps("recv 0 ack ack=1 csum")
	}
}

// After the loss of our address a kernel's further lane may be there before its first,
// which alone says how many there are: what waits for that goes on waiting.
func TestFurtherLaneFirstAfterAddressLost(t *testing.T) {
	w := newWorld(t, "10.0.0.2", "10.0.0.1", nil)
	w.steps("accept 40000", "recv 0 map ; probe seq=1 npaths=8 gen=7 sportidx", "recv 0 answer seq=2 npaths=8 gen=7 sportidx ; answer seq=3 npaths=8 gen=7 sportidx", "acked 0 all",
		"address", "lost 0 acked=all", "send 5000>4000 10", "accept 40003", "recv 3 map", "acked 3 all")
	if q := w.c.Queued(); q.Queued != 1 || w.c.Lanes() != 0 {
		t.Fatalf("%d lanes, %d waiting; want 1 that waits for the lanes", w.c.Lanes(), q.Queued)
	}
	w.steps("accept 40008", "recv 0 answer seq=4 npaths=8 gen=7 sportidx", "acked 0 all")
	if q := w.c.Queued(); w.c.Lanes() != 8 || w.c.pending.n != 0 {
		t.Errorf("%d lanes, %+v", w.c.Lanes(), q)
	}
}

// On the next link the peer says what it has received. What was cancelled and stands
// up to there was delivered, and its acknowledgement still comes; the next one never was.
func TestCancelledAtTheEdgeOfReceived(t *testing.T) {
	for received, want := range map[int]string{1: "cancelled cancelled", 2: "open cancelled", 3: "open open"} {
		w, _ := rdsdPair(t)
		w.steps("send 5000>4000 1", "send 5000>4001 1", "lost 0", "cancel 0", "wait 1s", "accept 40000", "recv 0 probe npaths=1 hello=77/1/7")
		w.step(strings.Fields(fmt.Sprintf("recv 0 answer received=%d ack=1 npaths=1 hello=77/1/7", received)))
		w.settle()
		out := w.take()
		var got []string
		for tag := 1; tag <= 2; tag++ {
			got = append(got, map[bool]string{true: "cancelled", false: "open"}[strings.Contains(out, fmt.Sprintf("datagram %d cancelled", tag))])
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("received up to %d: %s, want %s:\n%s", received, s, want, out)
		}
	}
}

// TestCancelledBehindLinksThatEnd: a peer that takes links and ends each before it answers does not put
// off the outcome of what was cancelled.
func TestCancelledBehindLinksThatEnd(t *testing.T) {
	w, p := rdsdPair(t)
	w.steps("send 5000>4000 1", "lost 0", "cancel 0")
	end := w.now + w.c.cfg.DeadAfter
	for w.now < end {
		for _, s := range []string{"wait 2s", "accept 40000", "wait 1s", "lost 0"} {
			w.step(strings.Fields(s))
			w.settle()
			w.check()
		}
	}
	if out := w.take(); strings.Count(out, "datagram 1 unknown") != 1 || p.cancelled != 0 {
		t.Errorf("%d cancelled; told was %q", p.cancelled, out)
	}
}

// What was sent on a former link, and has not had its turn to be sent again, has certainly
// not arrived if the peer has said so: it is cancelled at once, and a hold that waited for
// it counts it no more.
func TestCancelOfWhatWaitsToBeSentAgain(t *testing.T) {
	w, p := rdsdPair(t)
	w.steps("send 5000>4000 1048576", "send 5000>4000 1048576", "recv 0 ack ack=1 credit=64 csum", "send 5001>4001 900000")
	w.peerMap.Set(4001, true)
	w.steps("send 5001>4001 1", "lost 0", "wait 1s", "accept 40000",
		"recv 0 probe npaths=1 hello=77/1/7", "recv 0 answer received=0 ack=1 npaths=1 hello=77/1/7")
	if h := p.holds[4001]; p.retrans.n != 1 || h == nil || h.out != 1 || h.n() != 1 {
		t.Fatalf("%d wait to be sent again, the hold is %+v; want one for which there are no credits", p.retrans.n, h)
	}
	if n, begun := w.c.Cancel(w.now, w.sender(4001), WhyApp); n != 2 || begun != 0 {
		t.Errorf("%d cancelled, %d had begun; want both, for neither has arrived", n, begun)
	}
	w.settle()
	w.check()
	if out := w.take(); strings.Count(out, "cancelled by the application") != 2 {
		t.Errorf("told was %q", out)
	}
	if n, begun := w.c.Cancel(w.now, w.sender(4000), WhyApp); n != 0 || begun != 2 {
		t.Errorf("%d cancelled, %d had begun; want two that were sent again", n, begun)
	}
}

// When no lane that is up will do, the first that is not is connected, and one at a time.
func TestLaneConnectedForAFlowAtRest(t *testing.T) {
	w := newWorld(t, "10.0.0.2", "10.0.0.1", func(c *Config) { c.CreditLog2, c.Lanes = 7, 4 })
	w.steps("accept 40000", "recv 0 probe seq=1 npaths=1 hello=77/4/7", "recv 0 answer received=0 npaths=1 hello=77/4/7",
		"accept 40001", "recv 1 probe npaths=1 hello=77/4/7", "recv 1 answer received=0 npaths=1 hello=77/4/7", "lost 0", "wait 9s")
	var ports []uint16 // of lane 1, each another flow
	seen := map[uint8]bool{}
	for s := uint16(5000); len(ports) < 3; s++ {
		if i := w.c.flow(s).at; i%4 == 1 && !seen[i] {
			seen[i] = true
			ports = append(ports, s)
		}
	}
	w.c.chosen = true // as if another flow had been the first
	w.send(ports[0], 4000, w.cfg.LaneLoad, false)
	w.settle()
	for i, s := range ports[1:] {
		w.send(s, 4000, 1, false)
		w.settle()
		var states []State
		w.c.EachLane(func(p *Lane) { states = append(states, p.state) })
		if want := [][]State{{Connecting, Up}, {Connecting, Up, Connecting}}[i]; !slices.Equal(states, want) {
			t.Errorf("the lanes are %v, want %v", states, want)
		}
	}
	w.check()
}

// Of a peer that pings and takes nothing 64 answers wait on each lane; the others are
// counted, and there is room again for as many as have left.
func TestPongsAreBounded(t *testing.T) {
	w, p := rdsdPair(t)
	w.steps("hold on", "recv 0 ping 5000 seq=2 csum") // this answer is being written
	for i := range 100 {
		w.steps(fmt.Sprintf("recv 0 ping 5000 seq=%d csum", 3+i))
	}
	if p.pongs != 64 || w.ctr.PongDropped != 36 {
		t.Errorf("%d answers wait and %d are dropped, want 64 and 36", p.pongs, w.ctr.PongDropped)
	}
	w.wrote(p)
	for i := range 100 {
		w.steps(fmt.Sprintf("recv 0 ping 5000 seq=%d csum", 103+i))
	}
	if p.pongs != 64 || w.ctr.PongDropped != 72 {
		t.Errorf("then %d wait and %d are dropped, want 64 and 72", p.pongs, w.ctr.PongDropped)
	}
}

// TestBacklogOfALaneThatPausesOftenEnds: a lane that a full receiver has pause again and again makes ports
// congested once as many bytes have come as could have stood unread.
func TestBacklogOfALaneThatPausesOftenEnds(t *testing.T) {
	w := newWorld(t, "10.0.0.2", "10.0.0.1", nil)
	do := func(l ...string) {
		for _, s := range l {
			w.step(strings.Fields(s))
			w.settle()
		}
	}
	do("accept 40000", "recv 0 map ; probe seq=1 npaths=8 gen=7 sportidx ; answer seq=2 npaths=8 gen=7 sportidx", "accept 40003",
		"port 5000 no-room", "recv 3 data 4000>5000 seq=1 len=5", "recv 0 map 4001")
	seq := 1
	for ; seq <= 100 && !w.peerMap.Congested(4000); seq++ {
		do("port 5000 placed", "room", fmt.Sprintf("recv 3 data 4000>5000 seq=%d len=1048576 ; map 4000,4001", seq),
			"port 5000 no-room", fmt.Sprintf("recv 3 data 4000>5000 seq=%d len=5", seq+1), "wait 1s")
	}
	if most := backlogBytes >> 20; seq < most/2 || seq > most+2 {
		t.Errorf("a map counts behind %d MiB, want %d", seq, most)
	}
}
