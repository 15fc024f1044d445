package conn

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/transport"
)

// flipped is a world with n datagrams held for a port of the peer that is congested.
func flipped(t *testing.T, n int) (*world, *Lane) {
	w := newWorld(t, "10.0.0.2", "10.0.0.1", func(c *Config) { c.CreditLog2, c.Lanes, c.Trains = 7, 1, true })
	for _, s := range []string{"accept 40000", "recv 0 probe seq=1 npaths=1 hello=77/1/12/1", "recv 0 answer received=0 npaths=1 hello=77/1/12/1"} {
		w.step(strings.Fields(s))
		w.settle()
	}
	w.flip(true)
	for range n {
		w.send(4000, 5000, 16<<10, false)
	}
	w.settle()
	p := w.c.lanes[0]
	if h := p.holds[5000]; n > 0 && (h == nil || h.n() != n) {
		t.Fatalf("%d datagrams are held for %d", n, p.queue.n)
	}
	return w, p
}

func (w *world) flip(on bool) {
	if w.peerMap.Set(5000, on) {
		w.peerPort(5000, on)
	}
}

// flips has the port become clear and congested again many times, the peer taking and
// acknowledging one batch each time. It returns how often the hold was moved, and in
// how much time.
func (w *world) flips(p *Lane, n int) (moves uint64, took time.Duration) {
	before, begun := w.ctr.HoldResume, w.now
	w.hold = true
	for range n {
		w.now += 10 * time.Microsecond
		w.flip(false)
		w.settle()
		if w.armed <= w.now {
			w.armed = Never
			w.c.Tick(w.now)
			w.settle()
		}
		w.flip(true)
		if w.batch[p] == nil {
			continue
		}
		w.wrote(p)
		if err := w.recvOne(p, fmt.Sprintf("ack ack=%d csum", p.nextSeq-1)); err != nil {
			w.t.Fatal(err)
		}
		p.ReceivedAll(w.now, p.attempt)
		w.settle()
	}
	w.hold = false
	return w.ctr.HoldResume - before, w.now - begun
}

// TestLongHoldIsMovedRarely: a peer whose port flips has a long hold moved no more often
// than one message in moveTime, and once the port stays clear all goes soon.
func TestLongHoldIsMovedRarely(t *testing.T) {
	const held = 3000
	w, p := flipped(t, held)
	moves, took := w.flips(p, 300)
	if most := uint64(took/(held/2*moveTime)) + 2; moves > most {
		t.Errorf("a hold of %d was moved %d times in %v, at most %d wanted", held, moves, took, most)
	}
	if moves == 0 {
		t.Error("the hold is never moved")
	}
	w.flip(false)
	w.settle()
	w.advance(held * moveTime)
	if len(p.holds) > 0 || p.queue.n > 0 {
		t.Errorf("the port is clear, and %d are held, %d queued", p.c.Held(), p.queue.n)
	}
}

// TestShortHoldGoesAtOnce if little was moved just now.
func TestShortHoldGoesAtOnce(t *testing.T) {
	w, p := flipped(t, heldFew)
	w.flip(false)
	w.settle()
	if len(p.holds) > 0 || p.queue.n > 0 {
		t.Errorf("%d are queued", p.queue.n)
	}
	if at := w.now + heldFew*moveTime; p.moveAt > at {
		t.Errorf("others wait until %v for it, want %v", p.moveAt, at)
	}
}

// TestHeldTrainsGoAtOnce: what a move costs is messages; that each carries many datagrams makes
// nobody wait.
func TestHeldTrainsGoAtOnce(t *testing.T) {
	w, p := flipped(t, 0)
	const trains = heldFew
	for range trains {
		w.sendTrain(4000, 5000, 16*1000, 1000, nil, false)
	}
	w.settle()
	if h := p.holds[5000]; h == nil || h.n() != trains*1000 {
		t.Fatal("they are not held")
	}
	w.flip(false)
	w.settle()
	if len(p.holds) > 0 || p.moveAt > w.now+trains*moveTime {
		t.Errorf("%d are held, others wait until %v", p.c.Held(), p.moveAt)
	}
}

// TestLateHoldsTakeTurns: of two ports whose long holds wait, the one that is always
// held again does not keep the other from its turn.
func TestLateHoldsTakeTurns(t *testing.T) {
	w, p := flipped(t, 1000)
	w.peerMap.Set(6000, true)
	for range 1000 {
		w.send(4000, 6000, 16, false)
	}
	w.settle()
	w.flips(p, 2) // the first move; from now on both are late
	w.peerMap.Set(6000, false)
	w.c.PortClear(w.now, 6000)
	for n := 0; p.holds[6000] != nil; n++ {
		if n == 400 {
			t.Fatal("the hold of port 6000 is never moved")
		}
		w.flips(p, 1)
	}
}

// TestManySmallHoldsAreMovedRarely: holds that go at once by themselves keep to the pace of a long one
// together, a turn takes back no more than some of them, and once the ports stay clear all goes soon.
func TestManySmallHoldsAreMovedRarely(t *testing.T) {
	const ports, each, flips = 256, heldFew, 100
	w := newWorld(t, "10.0.0.2", "10.0.0.1", func(c *Config) { c.CreditLog2, c.Lanes = 14, 1 })
	for _, s := range []string{"accept 40000", "recv 0 probe seq=1 npaths=1 hello=77/1/0", "recv 0 answer received=0 npaths=1 hello=77/1/0"} {
		w.step(strings.Fields(s))
		w.settle()
	}
	p := w.c.lanes[0]
	set := func(on bool) {
		for port := range uint16(ports) {
			if w.peerMap.Set(6000+port, on); !on {
				w.c.PortClear(w.now, 6000+port)
			}
		}
	}
	set(true)
	for port := range uint16(ports) {
		for range each {
			w.send(4000, 6000+port, 10, false)
		}
	}
	w.settle()
	if n := w.c.Queued().Held; n < ports*each-1 {
		t.Fatalf("%d are held, %d queued", n, p.queue.n)
	}
	ack := func(credits int) {
		if err := w.recvOne(p, fmt.Sprintf("ack ack=%d csum credit=%d", p.nextSeq-1, credits)); err != nil {
			t.Fatal(err)
		}
		p.ReceivedAll(w.now, p.attempt)
		w.settle()
		w.take()
	}
	entered, resumed, begun := w.ctr.HoldEnter, w.ctr.HoldResume, w.now
	for range flips {
		w.now += 10 * time.Microsecond
		set(false)
		w.settle()
		if w.armed <= w.now {
			w.armed = Never
			w.c.Tick(w.now)
			w.settle()
		}
		set(true)
		ack(1)
	}
	w.check()
	moved := w.ctr.HoldEnter - entered + w.ctr.HoldResume - resumed
	if most := uint64((w.now-begun)/moveTime) + 2*heldFew; moved > most {
		t.Errorf("%d were moved in %v, want %d at the most", moved, w.now-begun, most)
	}
	if w.ctr.HoldResume == resumed {
		t.Error("no hold is ever moved")
	}
	set(false)
	w.settle()
	for begun := w.now; len(p.holds) != 0; w.advance(time.Millisecond) {
		if w.now-begun > 2*ports*each*moveTime {
			t.Fatalf("%d ports are held for when all have been clear for long", len(p.holds))
		}
	}
	// All of them are congested again at once: turns take them back, each as many as it may.
	for port := range uint16(ports) {
		w.peerMap.Set(6000+port, true)
	}
	queued := p.queue.n
	p.credits = 1
	b := transport.GetBatch()
	defer b.Put()
	if p.Fill(w.now, b) || p.queue.n != queued-keptMost {
		t.Errorf("a turn has left %d of %d", p.queue.n, queued)
	}
	if w.settle(); p.queue.n != 0 || w.c.Queued().Held != queued {
		t.Errorf("%d of %d are queued, %d held", p.queue.n, queued, w.c.Queued().Held)
	}
	w.check()
}

// TestRestartsAreSpaced: with many messages waiting a peer is not another incarnation
// as often as it likes; a link that says so too soon is given up, the next one is taken.
func TestRestartsAreSpaced(t *testing.T) {
	w, p := flipped(t, 2000)
	again := func(inc int) error { // a new link
		p.Drop(w.now, errors.New("asked to"))
		w.settle()
		w.step(strings.Fields("lost 0"))
		w.settle()
		w.step(strings.Fields("accept 40000"))
		w.settle()
		err := w.recvOne(w.c.lanes[0], fmt.Sprintf("probe seq=1 npaths=1 hello=%d/1/12", inc))
		w.settle()
		return err
	}
	if err := again(78); err != nil {
		t.Fatal(err)
	}
	if err := again(79); !errors.Is(err, errRestarts) || w.ctr.PeerRestarted != 1 {
		t.Fatalf("another incarnation at once: %v, %d restarts", err, w.ctr.PeerRestarted)
	}
	w.advance(w.c.restartAt - 1 - w.now)
	if err := again(79); !errors.Is(err, errRestarts) {
		t.Errorf("a moment too early: %v", err)
	}
	if w.c.restartAt > w.now+2000*moveTime {
		t.Errorf("the next incarnation is taken at %v, it is %v", w.c.restartAt, w.now)
	}
	w.advance(w.c.restartAt - w.now)
	if err := again(79); err != nil || w.ctr.PeerRestarted != 2 {
		t.Errorf("later: %v, %d restarts", err, w.ctr.PeerRestarted)
	}
}

// TestChangesOfKindAreSpaced: nor does it turn into a kernel, or change its mind in another way, as
// often as it likes.
func TestChangesOfKindAreSpaced(t *testing.T) {
	const waiting = 3000
	w, p := flipped(t, waiting)
	link := func(frames ...string) (err error) { // a new one
		p.Drop(w.now, errors.New("asked to"))
		w.settle()
		for _, s := range []string{"lost 0", "accept 40000"} {
			w.step(strings.Fields(s))
			w.settle()
		}
		for _, f := range frames {
			if err = w.recvOne(p, f); err != nil {
				return err
			}
			w.settle()
		}
		return nil
	}
	hello := func(lanes int) []string {
		return []string{fmt.Sprintf("probe seq=1 npaths=1 hello=78/%d/7", lanes), fmt.Sprintf("answer received=0 npaths=1 hello=78/%d/7", lanes)}
	}
	const data = "data 4000>5000 seq=1 len=5"
	changes := []struct {
		name   string
		frames []string
	}{
		{"data first", []string{data}},
		{"no trains", []string{hello(1)[0] + "/1"}},
		{"a kernel's ping", []string{"probe seq=1 npaths=8"}},
	}
	// A kernel that is allowed breaks no rule: its frames are taken, and its link ends.
	turned := func(frames ...string) error {
		before := w.ctr.PeerKindChanged
		err := link(frames...)
		if err == nil && w.ctr.PeerKindChanged == before+1 && p.state == Disconnecting {
			return errPeerChanged
		}
		return err
	}
	if err := turned(data); !errors.Is(err, errPeerChanged) {
		t.Fatalf("a kernel where an rdsd was: %v", err)
	}
	for _, c := range changes {
		if err := link(hello(1)...); err != nil || p.queue.n <= heldFew {
			t.Fatalf("an rdsd: %v, %d are queued", err, p.queue.n)
		}
		if err := link(c.frames...); !errors.Is(err, errRestarts) {
			t.Errorf("%s, at once: %v", c.name, err)
		}
		w.advance(w.c.restartAt - w.now)
		if err := turned(c.frames...); !errors.Is(err, errPeerChanged) {
			t.Errorf("%s, later: %v", c.name, err)
		}
	}
	// A kernel that is known, and a Hello in its place.
	kernel := func() error { return link("probe seq=1 npaths=8", "answer seq=2 npaths=8") }
	if err := kernel(); err != nil || w.c.kind != KindKernelLegacy {
		t.Fatalf("a kernel: %v, %v", err, w.c.kind)
	}
	if err := link(hello(1)...); !errors.Is(err, errRestarts) {
		t.Errorf("an rdsd where a kernel is, at once: %v", err)
	}
	w.advance(w.c.restartAt - w.now)
	if err := link(hello(1)...); !errors.Is(err, errPeerChanged) {
		t.Errorf("an rdsd where a kernel is, later: %v", err)
	}
}

// TestNothingIsHeldAfterCancel: a long hold that waits for its turn to be moved ends with
// its last message, at once, so that what is sent next does not wait behind nothing.
func TestNothingIsHeldAfterCancel(t *testing.T) {
	w, p := flipped(t, 3000)
	w.flips(p, 2)
	w.flip(false)
	w.settle()
	h := p.holds[5000]
	if h == nil || h.out > 0 || h.n() <= heldFew || !p.late {
		t.Fatalf("the hold does not wait for its turn: %+v, late %v", h, p.late)
	}
	resumed := w.ctr.HoldResume
	if n, begun := w.c.Cancel(w.now, w.sender(5000), WhyApp); n == 0 || begun != 0 {
		t.Fatalf("%d cancelled, %d begun", n, begun)
	}
	if w.c.Held() != 0 || w.ctr.HoldResume != resumed+1 {
		t.Errorf("%d ports are held, %d resumed", w.c.Held(), w.ctr.HoldResume-resumed)
	}
	left := p.unacked.n + p.inwrite.n
	w.send(4000, 5000, 16, false)
	w.settle()
	if p.unacked.n+p.inwrite.n != left+1 {
		t.Errorf("what is sent next does not leave: %d queued, %d held", p.queue.n, w.c.Held())
	}
}

// TestMovesBesideMuch: with very much out, small holds too are put back in turns, because each that
// begins anew looks at all that is out.
func TestMovesBesideMuch(t *testing.T) {
	const out, ports, flips = outFew + 800, 20, 10
	w, p := muchOut(t, out)
	for port := range uint16(ports) {
		w.peerMap.Set(6000+port, true)
		w.send(4000, 6000+port, 10, false)
	}
	w.settle()
	if len(p.holds) != ports {
		t.Fatalf("%d ports are held for", len(p.holds))
	}
	before, begun := w.ctr.HoldResume, w.now
	for range flips {
		w.now += 10 * time.Microsecond
		for port := uint16(6000); port < 6000+ports; port++ { // clear and congested again in one read
			w.peerMap.Set(port, false)
			w.c.PortClear(w.now, port)
			w.peerMap.Set(port, true)
		}
		w.settle()
	}
	most := uint64((w.now-begun)/(out/outCost*moveTime)) + 1
	if moves := w.ctr.HoldResume - before; moves > most {
		t.Errorf("%d holds put back in %v, want %d at the most", moves, w.now-begun, most)
	}
	for port := uint16(6000); port < 6000+ports; port++ {
		w.peerMap.Set(port, false)
		w.c.PortClear(w.now, port)
	}
	w.settle()
	w.advance(ports * out / outCost * moveTime)
	if len(p.holds) != 0 {
		t.Errorf("%d ports are held for when all have been clear for long", len(p.holds))
	}
	w.take()
}

// portsOut is a world with a datagram out to each of n ports of the peer.
func portsOut(t *testing.T, n uint16) (*world, *Lane) {
	w, p := muchOut(t, 0)
	for port := range n {
		w.send(4000, 10000+port, 10, false)
	}
	w.settle()
	w.take()
	if p.unacked.messages < int(n) {
		t.Fatalf("%d of %d are out", p.unacked.messages, n)
	}
	return w, p
}

// TestManyHoldsBegin: what is out is not looked at anew for each port of a peer that calls all of
// them congested at once, nor for each that it refuses; and each hold knows what is out to its port.
func TestManyHoldsBegin(t *testing.T) {
	const ports = 1000
	check := func(w *world, p *Lane, out int) {
		t.Helper()
		if looked := w.com.Looked; looked > (holdsFew+3)*(2*ports) {
			t.Errorf("%d messages were looked at, %d are out", looked, ports)
		}
		if len(p.holds) != ports {
			t.Fatalf("%d ports are held for", len(p.holds))
		}
		for port, h := range p.holds {
			if h.out != out {
				t.Fatalf("%d are out to port %d, want %d", h.out, port, out)
			}
		}
		w.check()
	}
	w, p := portsOut(t, ports)
	for port := range uint16(ports) {
		w.peerMap.Set(10000+port, true)
		w.send(4000, 10000+port, 10, false)
	}
	w.settle()
	check(w, p, 1)
	// Others go out and are decided meanwhile.
	w.send(4000, 9999, 10, false)
	w.settle()
	w.check()
	if err := w.recvOne(p, fmt.Sprintf("ack ack=%d csum", p.nextSeq-1)); err != nil {
		t.Fatal(err)
	}
	w.settle()
	check(w, p, 0)
	for port := range uint16(ports) {
		w.peerMap.Set(10000+port, false)
		w.c.PortClear(w.now, 10000+port)
	}
	w.settle()
	w.check()
	w.advance(2 * ports * moveTime)
	w.check()
	if len(p.holds) > 0 || p.outBy != nil || p.unacked.messages != ports {
		t.Errorf("%d ports are held for, %d are counted, %d went", len(p.holds), len(p.outBy), p.unacked.messages)
	}

	w, p = portsOut(t, ports)
	w.send(4000, 9999, 10, false) // stays
	w.settle()
	var refused []string
	for port := range uint64(ports) {
		w.peerMap.Set(uint16(10000+port), true)
		refused = append(refused, fmt.Sprintf("%d:no-room", p.unacked.tail.seq-ports+port))
	}
	if err := w.recvOne(p, fmt.Sprintf("refuse %s seq=2 csum ack=1", strings.Join(refused, ","))); err != nil {
		t.Fatal(err)
	}
	w.settle()
	check(w, p, 0)
}
