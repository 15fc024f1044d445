package conn

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/rdsd/rdsd/wire"
)

// refusing is the larger side of a link whose port 4000 has no room, with a peer of
// 128 credits that has sent up to sequence 1.
func refusing(t *testing.T) *world {
	w := newWorld(t, "10.0.0.2", "10.0.0.1", func(c *Config) { c.CreditLog2, c.Lanes = 7, 1 })
	for _, s := range []string{"accept 40000", "recv 0 probe seq=1 npaths=1 hello=77/1/7", "recv 0 answer received=0 npaths=1 hello=77/1/7", "port 4000 no-room"} {
		w.step(strings.Fields(s))
		w.settle()
	}
	w.take()
	return w
}

// A peer that does not acknowledge refusals has no credits left after its window and
// the refusals that may wait; what it sends beyond them ends the link.
func TestRefusalsNobodyAcknowledges(t *testing.T) {
	w := refusing(t)
	p := w.c.lanes[0]
	var err error
	n := 0
	for ; err == nil && n < 10000; n++ {
		err = w.recvOne(p, fmt.Sprintf("data 5000>4000 seq=%d len=10 csum ack=1", n+2))
		p.ReceivedAll(w.now, p.attempt)
		w.settle()
	}
	if !errors.Is(err, errCredits) || n > 128+128/4+2 {
		t.Errorf("%d frames refused, then %v; want the credits spent after %d", n, err, 128+128/4+1)
	}
	if p.state == Up {
		t.Error("the link is still there")
	}
}

// Nor does it gain by new links: at four windows of refusals each of them is given up,
// and no more wait.
func TestRefusalsOverManyLinks(t *testing.T) {
	w := refusing(t)
	p := w.c.lanes[0]
	seq := uint64(2)
	capped := false
	for link := 0; link < 40; link++ {
		for {
			err := w.recvOne(p, fmt.Sprintf("data 5000>4000 seq=%d len=10 csum ack=1", seq))
			if err == nil {
				seq++
				p.ReceivedAll(w.now, p.attempt)
				w.settle()
				continue
			}
			capped = capped || errors.Is(err, errRefusals)
			break
		}
		w.settle()
		for _, s := range []string{"lost 0", "accept 40000", "recv 0 probe npaths=1 hello=77/1/7", "recv 0 answer received=0 npaths=1 hello=77/1/7"} {
			w.step(strings.Fields(s))
			w.settle()
		}
	}
	if most := 4 * 128; !capped || p.refusals != most {
		t.Errorf("%d refusals wait after 40 links, four windows are %d; given up for it: %v", p.refusals, most, capped)
	}
}

// TestRefusalsTakeLittle: a peer that has each read of ours answered with a refusal, and acknowledges
// none, has no message kept for each, on a link that is up or after its loss; what is sent again then
// refuses the same.
func TestRefusalsTakeLittle(t *testing.T) {
	w := refusing(t)
	p := w.c.lanes[0]
	var err error
	seq := uint64(2)
	for ; err == nil && seq < 10000; seq++ {
		err = w.recvOne(p, fmt.Sprintf("data 5000>4000 seq=%d len=0 csum ack=1 flags=retrans", seq))
		p.ReceivedAll(w.now, p.attempt)
		w.settle()
		w.check()
	}
	if most := 4 * 128; !errors.Is(err, errRefusals) || p.refusals != most {
		t.Fatalf("%d refusals wait, then %v", p.refusals, err)
	}
	kept := func(when string) {
		t.Helper()
		bytes := 0
		for _, l := range []*list{&p.unacked, &p.retrans, &p.control} {
			for m := l.head; m != nil; m = m.next {
				bytes += int(unsafe.Sizeof(*m)) + cap(m.Payload)
			}
		}
		if most := 24 * p.refusals; bytes > most {
			t.Errorf("%s: %d bytes are kept for %d refusals", when, bytes, p.refusals)
		}
	}
	kept("on the link")
	for _, s := range []string{"lost 0", "accept 40000", "recv 0 probe npaths=1 hello=77/1/7"} {
		w.step(strings.Fields(s))
		w.settle()
		w.check()
	}
	kept("without one")
	w.take()
	w.step(strings.Fields("recv 0 answer received=0 npaths=1 hello=77/1/7"))
	w.settle()
	w.check()
	for n, said := uint64(2), w.take(); n < seq-1; n++ {
		if !strings.Contains(said, fmt.Sprintf("%d:no-room", n)) {
			t.Fatalf("the refusal of %d is not sent again: %s", n, said)
		}
	}
	if err := w.recvOne(p, fmt.Sprintf("ack ack=%d csum", p.nextSeq-1)); err != nil || p.refusals != 0 {
		t.Errorf("all are acknowledged, and %d wait: %v", p.refusals, err)
	}
	w.check()
}

// TestRefusalsAreAskedFor: beyond the first, memory for refusals is asked for; without it the link ends,
// and it is given back when all are acknowledged, the peer is another incarnation, or is forgotten.
func TestRefusalsAreAskedFor(t *testing.T) {
	for _, end := range []string{"", "probe npaths=1 hello=78/1/10", "forgotten"} {
		w := newWorld(t, "10.0.0.2", "10.0.0.1", func(c *Config) { c.CreditLog2, c.Lanes = 10, 1 })
		for _, s := range []string{"accept 40000", "recv 0 probe seq=1 npaths=1 hello=77/1/10", "recv 0 answer received=0 npaths=1 hello=77/1/10", "port 4000 no-room"} {
			w.step(strings.Fields(s))
			w.settle()
		}
		w.mostKept = keptStep * refusalBytes
		p := w.c.lanes[0]
		var err error
		for seq := uint64(2); err == nil && seq < 10000; seq++ {
			if err = w.recvOne(p, fmt.Sprintf("data 5000>4000 seq=%d len=0 csum ack=1 flags=retrans", seq)); err == nil {
				p.ReceivedAll(w.now, p.attempt)
				w.settle()
				if kept := w.kept > 0; kept != (p.refusals > keptFree) && p.refusals != keptFree {
					t.Fatalf("%d refusals, %d bytes are asked for", p.refusals, w.kept)
				}
			}
		}
		if !errors.Is(err, errRefusals) || p.refusals != keptFree+keptStep {
			t.Fatalf("%d refusals wait, then %v", p.refusals, err)
		}
		for _, s := range []string{"lost 0", "accept 40000", "recv 0 probe npaths=1 hello=77/1/10", "recv 0 answer received=0 npaths=1 hello=77/1/10"} {
			w.step(strings.Fields(s))
			w.settle()
		}
		if end == "forgotten" {
			if w.c.End(); w.kept != 0 {
				t.Errorf("%d bytes are not given back", w.kept)
			}
			continue
		}
		if end == "" {
			end = fmt.Sprintf("ack ack=%d csum", p.nextSeq-1)
		}
		_ = w.recvOne(p, end)
		if w.kept != 0 || p.refusals != 0 {
			t.Errorf("%s: %d bytes are not given back, %d refusals wait", end, w.kept, p.refusals)
		}
		w.settle()
		w.check()
	}
}

// TestRefusalsWaitInOne: what is refused while the peer lets nothing be sent is one message.
func TestRefusalsWaitInOne(t *testing.T) {
	w := refusing(t)
	p := w.c.lanes[0]
	for range 130 { // as many as it gives credits for, and some
		w.send(4000, 5000, 10, false)
	}
	w.settle()
	for _, s := range []string{"lost 0", "accept 40000", "recv 0 probe npaths=1 hello=77/1/0", "recv 0 answer received=0 npaths=1 hello=77/1/0"} {
		w.step(strings.Fields(s))
		w.settle()
	}
	if p.retrans.head == nil {
		t.Fatal("nothing is left to be sent again")
	}
	for n := range 30 {
		if err := w.recvOne(p, fmt.Sprintf("data 5000>4000 seq=%d len=0 csum", n+2)); err != nil {
			t.Fatal(err)
		}
		p.ReceivedAll(w.now, p.attempt)
		w.settle()
		w.check()
	}
	if p.refusals != 30 || p.control.messages != 1 {
		t.Errorf("%d refusals wait in %d messages", p.refusals, p.control.messages)
	}
}

// A peer that acknowledges gets its credits back with the acknowledgement, also when
// nothing else is due: it is never left without.
func TestRefusalsAcknowledged(t *testing.T) {
	w := refusing(t)
	p := w.c.lanes[0]
	for n := range 2000 {
		ack := uint64(1)
		if n%100 == 99 {
			ack = p.NextTx() - 1
		}
		if err := w.recvOne(p, fmt.Sprintf("data 5000>4000 seq=%d len=10 csum ack=%d", n+2, ack)); err != nil {
			t.Fatalf("frame %d: %v", n, err)
		}
		p.ReceivedAll(w.now, p.attempt)
		w.settle()
		if n%100 == 99 && p.granted < 128-1 {
			t.Fatalf("frame %d: everything is acknowledged, and the peer has %d credits of 128", n, p.granted)
		}
	}
	if p.refusals > 100 {
		t.Errorf("%d refusals wait", p.refusals)
	}
}

// With a quarter of the window refused and not acknowledged a peer's credits are still
// renewed; with one more they are not, except to one that sends again what it had sent.
func TestRefusalsAtTheQuarter(t *testing.T) {
	w := refusing(t)
	p := w.c.lanes[0]
	p.granted, p.owed = 127, 1
	for n := 1; n <= 34; n++ {
		p.refuse(uint64(n), 1, wire.ReasonNoRoom)
		if got, want := p.grantable() > 0, n <= 128/4; got != want {
			t.Errorf("%d of 128 are refused: credits are renewed %v", n, got)
		}
	}
	if p.again = true; p.grantable() == 0 {
		t.Error("one that sends again gets no credits")
	}
}

// Credits withheld for refusals go back once these are fewer, with nothing else to do then, if the
// peer has so few that its largest datagram would wait.
func TestWithheldForRefusals(t *testing.T) {
	for granted, back := range map[int]int{63: 65, 64: 0} {
		w := refusing(t)
		p := w.c.lanes[0]
		p.granted, p.owed, p.refusals = granted, 128-granted, 128/4+1
		w.c.Tick(w.now)
		w.settle()
		if p.granted != granted {
			t.Errorf("with %d refusals the peer's credits went from %d to %d", p.refusals, granted, p.granted)
		}
		p.refusals = 128 / 4
		w.c.Tick(w.now)
		w.settle()
		if p.granted != granted+back {
			t.Errorf("with %d refusals the peer has %d credits of 128, and had %d", p.refusals, p.granted, granted)
		}
		p.refusals = 0
	}
}

// Refusals tells as many as there is room for, lowest first, those in messages before those
// that are in none.
func TestRefusalsIntoLittleRoom(t *testing.T) {
	w := refusing(t)
	p := w.c.lanes[0]
	const n = 5
	for i := range n {
		if err := w.recvOne(p, fmt.Sprintf("data 5000>4000 seq=%d len=10 csum ack=1", i+2)); err != nil {
			t.Fatal(err)
		}
		if i == 2 { // these have left in a message
			p.ReceivedAll(w.now, p.attempt)
			w.settle()
		}
	}
	for room := range n + 3 {
		dst := make([]wire.Refusal, room)
		got := p.Refusals(dst)
		if got != min(room, n) {
			t.Errorf("%d refusals in memory for %d; there are %d", got, room, n)
		}
		for i, r := range dst[:got] {
			if r.Seq != uint64(i+2) || r.Reason != wire.ReasonNoRoom {
				t.Errorf("memory for %d: refusal %d is %+v", room, i, r)
			}
		}
	}
}

// muchOut is a world with n datagrams out, to port 5000 and unacknowledged, and a peer that grants
// as many credits as can be granted.
func muchOut(t *testing.T, n int) (*world, *Lane) {
	w := newWorld(t, "10.0.0.2", "10.0.0.1", func(c *Config) { c.CreditLog2, c.Lanes = 14, 1 })
	for _, s := range []string{"accept 40000", "recv 0 probe seq=1 npaths=1 hello=77/1/20", "recv 0 answer received=0 npaths=1 hello=77/1/20"} {
		w.step(strings.Fields(s))
		w.settle()
	}
	for i := range n {
		w.send(4000, 5000, 10, false)
		if i%100 == 0 {
			w.settle()
			w.take()
		}
	}
	w.settle()
	w.take()
	p := w.c.lanes[0]
	if p.unacked.messages < n { // and our handshake
		t.Fatalf("%d of %d are out", p.unacked.messages, n)
	}
	return w, p
}

// TestRefusalsBehindMuch: at each read the refusals that are not acknowledged are asked for. What is
// out before them is not looked through for that, nor when the link is lost.
func TestRefusalsBehindMuch(t *testing.T) {
	const out = 10000
	w, p := muchOut(t, out)
	w.verdict[6000] = NoPort
	if err := w.recvOne(p, "data 5000>6000 seq=2 len=10 csum ack=1"); err != nil {
		t.Fatal(err)
	}
	p.ReceivedAll(w.now, p.attempt)
	w.settle()
	dst := make([]wire.Refusal, 64)
	ask := func(when string) {
		t.Helper()
		before := w.com.Looked
		if n := p.Refusals(dst); n != 1 || dst[0] != (wire.Refusal{Seq: 2, Reason: wire.ReasonNoPort}) {
			t.Errorf("%s: %d refusals, %v", when, n, dst[:n])
		}
		if looked := w.com.Looked - before; looked > 1 {
			t.Errorf("%s: %d messages were looked at for one refusal", when, looked)
		}
		w.check()
	}
	ask("unacknowledged")
	w.step(strings.Fields("lost 0"))
	if p.unsentRef != 2 {
		t.Errorf("sequence %d is the first whose refusal is to be sent again", p.unsentRef)
	}
	ask("link lost")
	for _, s := range []string{"accept 40000", "recv 0 probe seq=1 npaths=1 hello=77/1/20", "recv 0 answer received=0 npaths=1 hello=77/1/20"} {
		w.step(strings.Fields(s))
		w.settle()
	}
	ask("sent again")
	if err := w.recvOne(p, fmt.Sprintf("ack ack=%d csum", p.nextSeq-1)); err != nil {
		t.Fatal(err)
	}
	if n := p.Refusals(dst); n != 0 || p.refuses != (refuses{}) {
		t.Errorf("%d refusals are left, chain %+v", n, p.refuses)
	}
	w.check()
}

// refuser refuses messages of p as its peer, a control message for each call.
func refuser(w *world, p *Lane) func(refused ...uint64) error {
	seq := uint64(2)
	return func(refused ...uint64) error {
		var l []string
		for _, s := range refused {
			l = append(l, fmt.Sprintf("%d:no-port", s))
		}
		err := w.recvOne(p, fmt.Sprintf("refuse %s seq=%d csum ack=1", strings.Join(l, ","), seq))
		seq++
		w.settle()
		w.take()
		return err
	}
}

// TestRefusalsAreSearchedOnce: those of one message cost one walk over what is out, in whatever list and
// however many there are, and each is found.
func TestRefusalsAreSearchedOnce(t *testing.T) {
	const out = 10000
	w, p := muchOut(t, out)
	first := p.unacked.tail.seq - out + 1
	var refused []uint64
	for i := uint64(0); i < out; i += 10 {
		refused = append(refused, first+i)
	}
	if err := refuser(w, p)(refused...); err != nil {
		t.Fatal(err)
	}
	if looked := w.com.Looked; looked > out+uint64(len(refused)) {
		t.Errorf("%d messages were looked at for %d refusals of %d that are out", looked, len(refused), out)
	}
	if n := p.unacked.messages; n > out-len(refused)+10 {
		t.Errorf("%d of %d are out still", n, out)
	}
	if p.search.at != nil || p.search.in != nil {
		t.Error("the search goes on behind its message")
	}
}

// TestRefusalsOneByOne: a peer that acknowledges what it has refused may refuse whatever it
// likes, and one that does not has no more looked at than it may.
func TestRefusalsOneByOne(t *testing.T) {
	const out = 10000
	w, p := muchOut(t, out)
	refuse := refuser(w, p)
	first := p.unacked.tail.seq - out + 1
	for i := uint64(0); i < out/2; i += 2 {
		if err := refuse(first + i + 1); err != nil {
			t.Fatal(err)
		}
		if err := w.recvOne(p, fmt.Sprintf("ack ack=%d csum", first+i+1)); err != nil {
			t.Fatal(err)
		}
		w.take()
	}
	if looked := w.com.Looked; looked > out || p.search.spent > 1 {
		t.Errorf("%d messages were looked at of %d that are out, %d are not paid for", looked, out, p.search.spent)
	}
	before := w.com.Looked
	p.search.spent = looksMost - 100000
	left := p.unacked.messages
	var err error
	for i := 0; err == nil && i < left/2; i++ {
		err = refuse(p.unacked.tail.seq - 1 - uint64(i))
	}
	if !errors.Is(err, errRefusedFar) {
		t.Errorf("half of %d that are out refused, the last ones first: %v", left, err)
	}
	if looked := w.com.Looked - before; looked > 100000+uint64(left) {
		t.Errorf("%d messages were looked at, 100,000 were left to be looked at and %d are out", looked, left)
	}
	if p.state == Up {
		t.Error("the link is still there")
	}
}

// TestRefusalsWithinCredits: a peer that has sent what its credits allow cannot have acknowledged refusals
// yet: whatever memory there is, its link stays up. Beyond that memory is asked for, and only where a
// refusal is made.
func TestRefusalsWithinCredits(t *testing.T) {
	w := newWorld(t, "10.0.0.2", "10.0.0.1", func(c *Config) { c.CreditLog2, c.Lanes = 12, 1 })
	for _, s := range []string{"accept 40000", "recv 0 probe seq=1 npaths=1 hello=77/1/12", "recv 0 answer received=0 npaths=1 hello=77/1/12", "port 4000 no-room"} {
		w.step(strings.Fields(s))
		w.settle()
	}
	w.mostKept = 0
	p := w.c.lanes[0]
	seq := uint64(2)
	bring := func(port int) error {
		err := w.recvOne(p, fmt.Sprintf("data 5000>%d seq=%d len=0 csum ack=1 flags=retrans", port, seq))
		seq++
		return err
	}
	for range 1 << 12 {
		if err := bring(4000); err != nil {
			t.Fatalf("frame %d: %v", seq-2, err)
		}
	}
	p.ReceivedAll(w.now, p.attempt)
	w.settle()
	for p.refusals < keptFree+1<<12 {
		if err := bring(4000); err != nil {
			t.Fatalf("frame %d: %v", seq-2, err)
		}
	}
	if err := bring(4001); err != nil {
		t.Errorf("for a port that has room: %v", err)
	}
	if err := bring(4000); !errors.Is(err, errRefusals) {
		t.Errorf("another refusal: %v", err)
	}
}
