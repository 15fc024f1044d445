package conn

import (
	"fmt"
	"math/rand"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/internal/transcript"
)

const walks, walkSteps = 320, 110

// TestWalks plays scripts that are drawn: sockets that send, cancel and close, a peer of
// one sort that mostly keeps to the protocol, a shell that is quick, slow or asleep.
// After each step everything that rules_test.go knows must hold, and what can be seen
// from outside must be what it was (internal/transcript).
func TestWalks(t *testing.T) {
	var sum stats.Counters
	transcript.Check(t, "testdata/walks.hash", *update, walks, func(t *testing.T, seed int) []string {
		k := newWalk(t, seed)
		defer sum.Add(&k.w.ctr)
		return k.run()
	})
	// Walks that meet nothing pin nothing: together they move what conn counts.
	v := reflect.ValueOf(sum)
	for _, name := range strings.Fields(`ConnReset RecvDropBadChecksum RecvDropOldSeq RecvDropNoSock RecvAckRequired RecvPing SendQueueEmpty SendLockContention TCPDataReady SendDropAcked
		SendAckRequired SendPong CongUpdateQueued CongUpdateReceived TCPListenStale SentBytes SentFrames ReceivedBytes ReceivedFrames Retransmitted
		AckOnlySent AckOnlyReceived HeartbeatSent HeartbeatLost CreditStall CreditWithheld SendJoined HoldEnter HoldResume LaneMoved RefuseNoPort RefuseNoRoom
		ReadPaused ProtocolError PeerRestarted PeerKindChanged HandshakeTimeout PokeSent PokeReceived DialFailed Reconnects AcceptRefused SendCancelled`) {
		if v.FieldByName(name).Uint() == 0 {
			t.Errorf("%s never moved", name)
		}
	}
}

// walk draws the lines of one script. Sizes and times are chosen from few, so that
// they meet limits exactly.
type walk struct {
	w     *world
	rng   *rand.Rand
	peer  string // rdsd, kernel, legacy, or mute, which answers no handshake
	lanes int    // of the peer
	mean  bool   // it gives hardly any credits
	small bool   // what sockets send is mostly small, and more of it
	inc   int    // incarnation or generation of the peer
	was   []uint64
	steps []string
}

var walkPeers = []string{"rdsd", "rdsd", "rdsd", "rdsd", "kernel", "kernel", "legacy", "mute"}

func newWalk(t *testing.T, seed int) *walk {
	k := &walk{rng: rand.New(rand.NewSource(int64(seed))), inc: 77}
	k.peer = walkPeers[seed%len(walkPeers)]
	k.lanes = k.oneOf(1, 1, 2, 4, 8)
	k.mean = k.chance(35)
	local, remote := "10.0.0.1", "10.0.0.2"
	if k.chance(50) {
		local, remote = remote, local
	}
	k.w = newWorld(t, local, remote, func(c *Config) {
		c.Lanes = k.oneOf(1, 1, 2, 4, 8)
		c.CreditLog2 = uint8(k.oneOf(7, 7, 7, 8, 10))
		c.Ping = k.chance(85)
		c.Trains = k.chance(60)
		c.AckFrames, c.AckBytes, c.AckStep = k.oneOf(3, 5, 256), k.oneOf(20_000, 1<<20), k.oneOf(6_000, 128<<10)
		c.LaneLoad = k.oneOf(20_000, 64<<10)
	})
	k.w.noKernel = k.peer == "rdsd" && k.chance(30)
	return k
}

func (k *walk) chance(percent int) bool { return k.rng.Intn(100) < percent }
func (k *walk) oneOf(l ...int) int      { return l[k.rng.Intn(len(l))] }
func (k *walk) word(l ...string) string { return l[k.rng.Intn(len(l))] }
func (k *walk) say(f string, a ...any)  { k.do(fmt.Sprintf(f, a...)) }
func (k *walk) port() int               { return k.oneOf(4000, 4001, 4002) }
func (k *walk) sport() int              { return 5000 + k.rng.Intn(6) }
func (k *walk) length() int {
	if k.small && k.chance(80) {
		return k.oneOf(0, 64, 2048)
	}
	return k.oneOf(0, 1, 100, 10_000, 16_384, 16_385, 300_000)
}
func (k *walk) inState(s ...State) *Lane {
	return k.oneLane(func(p *Lane) bool { return contains(s, p.state) })
}

func contains(l []State, s State) bool {
	for _, x := range l {
		if x == s {
			return true
		}
	}
	return false
}

// oneLane draws one of the lanes there are.
func (k *walk) oneLane(which func(*Lane) bool) *Lane {
	var l []*Lane
	k.w.c.EachLane(func(p *Lane) {
		if which(p) {
			l = append(l, p)
		}
	})
	if len(l) == 0 {
		return nil
	}
	return l[k.rng.Intn(len(l))]
}

func (k *walk) run() []string {
	k.say("%s", k.word("send 5000>4000 10", "send 5000>4000 10", "send 5000>4000 10 want", "connect", "blocked on"))
	for i := range walkSteps {
		if i%11 == 10 {
			k.say("trim")
		}
		k.next()
	}
	w := k.w
	w.c.Abandon(WhyShutdown)
	w.c.EachLane(func(p *Lane) {
		if b := w.batch[p]; b != nil {
			b.Put()
			p.Wrote(w.now)
		}
	})
	k.steps = append(k.steps, "the end\n"+w.take())
	w.checkEnd()
	for tag := range w.undone {
		w.t.Errorf("datagram %d has no outcome", tag)
	}
	return k.steps
}

// do plays one line, checks, and writes down what can be seen.
func (k *walk) do(line string) {
	w := k.w
	w.step(strings.Fields(line))
	w.settle()
	if !strings.HasPrefix(line, "asleep") { // nobody was called meanwhile
		w.check()
	}
	k.steps = append(k.steps, "> "+line+"\n"+w.take()+"\n"+k.seen())
	if w.t.Failed() {
		for i := max(0, len(k.steps)-8); i < len(k.steps); i++ {
			w.t.Logf("%d: %s", i, k.steps[i])
		}
		w.t.FailNow()
	}
}

// seen is the state anybody outside can ask for, and the counters that moved.
func (k *walk) seen() string {
	w := k.w
	since, rests := w.c.Idle()
	s := fmt.Sprintf("call at %v; %v rests %v since %v known %v up %v lanes %d held %d rtt %v trains %v", w.armed, w.c.kind, rests, since, w.c.Known(), w.c.Up(), w.c.Lanes(), w.c.Held(), w.c.RTT(), w.c.Trains())
	s += fmt.Sprintf(" %+v", w.c.Queued())
	w.c.EachLane(func(p *Lane) {
		s += fmt.Sprintf("\n%d %+v ready %v received %d", p.idx, p.Info(), p.Ready(), p.Received())
	})
	now := w.ctr.Values(nil)
	for i, f := range stats.Fields {
		if k.was == nil || now[i] != k.was[i] {
			s += fmt.Sprintf("\n%s %d", f.Name, now[i])
		}
	}
	k.was = now
	return s
}

// next draws what happens.
func (k *walk) next() {
	if p := k.inState(Connecting); p != nil && k.w.c.active && k.chance(50) {
		k.say("%s %d", k.word("connected", "connected", "connected", "dialfail"), p.idx)
		return
	}
	if !k.w.c.active && k.oneLane(func(p *Lane) bool { return p.state == Up }) == nil && k.chance(50) {
		k.say("accept %d", 40000+k.lane())
		return
	}
	if p := k.oneLane(func(p *Lane) bool { return p.state == Up && !p.ready }); p != nil && k.chance(60) {
		if k.peer == "mute" && p.heard && k.chance(50) {
			k.say("acked %d all", p.idx) // or it would never be ready
			return
		}
		k.receive(p, 1)
		return
	}
	if k.small && k.chance(35) {
		k.say("send %d>%d %d", k.sport(), k.port(), k.length())
		return
	}
	n := k.rng.Intn(100)
	switch {
	case n < 18:
		k.send()
	case n < 52:
		if p := k.inState(Up, Up, Disconnecting); p != nil {
			k.receive(p, k.oneOf(1, 1, 2, 3))
		}
	case n < 66:
		k.pass()
	case n < 74:
		k.shell()
	case n < 82:
		k.link()
	case n < 90:
		k.owner()
	case n < 95:
		k.stop()
	default:
		k.rare()
	}
}

func (k *walk) lane() int { return k.rng.Intn(k.oneOf(1, k.lanes, k.lanes, 8)) }

func (k *walk) send() {
	want := k.word("", "", " want")
	if k.mean && k.chance(20) {
		k.say("chain %d>%d %d %d", k.sport(), k.port(), k.oneOf(300_000, 1<<20), k.oneOf(3, 9))
		return
	}
	switch k.rng.Intn(8) {
	case 0:
		k.say("send %d>0 0", k.sport())
	case 1:
		n := k.oneOf(2, 3, 4)
		k.say("train %d>%d %d %d%s", k.sport(), k.port(), n*k.oneOf(0, 10, 3000), n, want)
	case 2:
		k.say("train %d>%d 30 10,0,15%s", k.sport(), k.port(), want)
	case 3:
		k.say("chain %d>%d %d %d", k.sport(), k.port(), k.oneOf(10, 3000), k.oneOf(2, 5, 9))
	default:
		k.say("send %d>%d %d%s", k.sport(), k.port(), k.length(), want)
	}
}

func (k *walk) pass() {
	w := k.w
	if w.armed != Never && w.armed > w.now && w.armed < w.now+time.Minute && k.chance(40) {
		k.say("wait %v", w.armed-w.now+time.Duration(k.oneOf(-1, 0, 0))*time.Nanosecond)
		return
	}
	if k.chance(4) {
		k.say("asleep %v", k.word("900ms", "1s", "11s", "40s"))
	}
	k.say("wait %s", k.word("0s", "1ms", "2ms", "5ms", "20ms", "80ms", "200ms", "1s", "3s", "5s", "11s", "31s"))
}

func (k *walk) shell() {
	w := k.w
	if p := k.oneLane(func(p *Lane) bool { return w.batch[p] != nil }); p != nil && k.chance(70) {
		k.say("wrote %d", p.idx)
		return
	}
	if p := k.inState(Up); p != nil && k.chance(60) {
		switch {
		case k.chance(10):
			k.say("alive %d", p.idx)
		case w.txB[p] > 0 && k.chance(30):
			k.say("acked %d %d", p.idx, k.rng.Intn(int(w.txB[p]+2)))
		default:
			k.say("acked %d all", p.idx)
		}
		return
	}
	k.say("hold %s", k.word("on", "off", "off"))
}

func (k *walk) link() {
	switch k.rng.Intn(6) {
	case 0, 1:
		k.say("accept %d", 40000+k.lane())
	case 2:
		if p := k.inState(Up); p != nil {
			k.say("drop %d", p.idx)
		}
	default:
		p := k.inState(Disconnecting)
		if p == nil && k.chance(50) {
			p = k.inState(Up)
		}
		if p != nil {
			acked := k.word("all", "0", strconv.Itoa(k.rng.Intn(int(k.w.txB[p]+1))))
			k.say("lost %d acked=%s", p.idx, acked)
		}
	}
}

func (k *walk) owner() {
	switch k.rng.Intn(7) {
	case 0, 1:
		k.say("port %d %s", 5000+k.rng.Intn(3), k.word("placed", "placed", "no-port", "no-room", "no-room"))
	case 2:
		k.say("local %d %s", k.oneOf(6000, 6001, 6002), k.word("on", "off"))
	case 3:
		k.say("room")
	case 4:
		k.say("grant %s", k.word("on", "on", "off"))
	case 5:
		k.say("blocked %s", k.word("on", "off", "off"))
	case 6:
		k.say("tell")
	}
}

func (k *walk) stop() {
	switch k.rng.Intn(4) {
	case 0, 1:
		k.say("cancel %d", k.oneOf(0, 4000, 4001, 4002))
	case 2:
		if len(k.w.ports) > 0 {
			k.say("close %d", k.w.ports[k.rng.Intn(len(k.w.ports))])
		}
	case 3:
		k.say("connect")
	}
}

// rare is what changes who the peer is, or where we are.
func (k *walk) rare() {
	switch k.rng.Intn(8) {
	case 0, 1:
		k.inc++
		k.say("wait 1ms")
	case 2:
		k.peer = walkPeers[k.rng.Intn(len(walkPeers))]
		k.say("wait 0s")
	case 3:
		k.say("address")
	case 4:
		k.say("kernels %s", k.word("yes", "yes", "no"))
	case 5:
		if p := k.inState(Up, Error, Disconnecting); p != nil {
			k.say("refusals %d", p.idx)
		}
	default:
		k.say("queued")
	}
}

// receive has the peer send n frames that are read at once.
func (k *walk) receive(p *Lane, n int) {
	var l []string
	seq := max(p.rx().expected, 1)
	for range n {
		l = append(l, k.frame(p, &seq))
	}
	k.say("recv %d %s", p.idx, strings.Join(l, " ; "))
}

func (k *walk) frame(p *Lane, seq *uint64) string {
	switch {
	case !p.ready && k.peer == "mute":
		return k.word("map ", "ping 5000 seq=1", "data 4000>5000 seq=1 len=1")
	case !p.ready && k.chance(85), k.chance(4):
		return k.handshake(p, seq)
	case k.peer == "rdsd":
		return k.ofRdsd(p, seq)
	}
	return k.ofKernel(p, seq)
}

// number is the sequence of the peer's next message and how it is flagged.
func (k *walk) number(seq *uint64) string {
	n := *seq
	switch k.rng.Intn(24) {
	case 0:
		n += uint64(k.oneOf(1, 2, 5))
	case 1, 2:
		n -= min(n-1, uint64(k.oneOf(1, 2)))
		return fmt.Sprintf("seq=%d flags=retrans", n)
	case 3:
		if k.chance(30) {
			return fmt.Sprintf("seq=%d", n-min(n-1, 1))
		}
	case 4:
		*seq = n + 1
		return fmt.Sprintf("seq=%d flags=retrans,ackreq", n)
	case 5, 6, 7:
		*seq = n + 1
		return fmt.Sprintf("seq=%d flags=ackreq", n)
	case 8, 9:
		*seq = n + 1
		return fmt.Sprintf("seq=%d flags=resume", n)
	}
	*seq = n + 1
	return fmt.Sprintf("seq=%d", n)
}

func (k *walk) handshake(p *Lane, seq *uint64) string {
	x := ""
	switch k.peer {
	case "rdsd":
		x = fmt.Sprintf("npaths=1 hello=%d/%d/%d", k.inc, k.lanes, 7)
		if k.inc%2 == 1 && k.lanes > 1 {
			x += "/1"
		}
		if p.expected == 0 && k.chance(30) {
			x += fmt.Sprintf(" seq=%d", *seq)
			*seq++
		}
		if k.chance(60) {
			got := p.nextSeq - 1
			return fmt.Sprintf("answer %s received=%d ack=%d", x, got-min(got, uint64(k.oneOf(0, 0, 1, 2, 4))), got-min(got, uint64(k.oneOf(0, 1, 4))))
		}
		return "probe " + x
	case "kernel":
		x = fmt.Sprintf("npaths=%d gen=%d sportidx seq=%d", k.oneOf(k.lanes, k.lanes, 8, 1), k.inc, *seq)
	default:
		x = fmt.Sprintf("npaths=%d seq=%d", k.oneOf(1, 8), *seq)
	}
	*seq++
	return k.word("probe ", "answer ", "answer ", "answer late ") + x
}

func (k *walk) ack(p *Lane) uint64 {
	if k.chance(1) {
		return p.nextSeq
	}
	last := p.nextSeq - 1
	return last - min(last, uint64(k.oneOf(0, 0, 0, 1, 2, 3, 6)))
}

func (k *walk) ofRdsd(p *Lane, seq *uint64) string {
	credit := k.oneOf(0, 0, 1, 3, 40, 255)
	if k.mean {
		credit = k.oneOf(0, 0, 0, 1, 3, 19)
	}
	tail := fmt.Sprintf(" ack=%d credit=%d csum", k.ack(p), credit)
	if k.chance(1) {
		tail += "=bad"
	}
	switch n := k.rng.Intn(20); {
	case n < 9:
		train := k.word("", "", "", " train=3", " train=3t")
		return fmt.Sprintf("data %d>%d%s len=%d %s", k.port(), 5000+k.rng.Intn(3), train, k.oneOf(12, 12, 300, 16_384, 30_000, 500_001), k.number(seq)) + tail
	case n < 12:
		return "ack" + k.word("", " flags=ackreq") + tail
	case n < 13:
		return fmt.Sprintf("ping 5001 %s", k.number(seq)) + tail
	case n < 14:
		return fmt.Sprintf("pong 5001 %s", k.number(seq)) + tail
	case n < 15:
		return fmt.Sprintf("null %s", k.number(seq)) + tail
	case n < 16:
		return "map " + k.word("", "4000", "4000,4001", "4002") + tail
	case n < 18:
		return fmt.Sprintf("delta %d%s", k.port(), k.word("+", "-", "-")) + tail
	default:
		return k.refuse(p) + " " + k.number(seq) + tail
	}
}

// refuse names one or two of the messages that are under way.
func (k *walk) refuse(p *Lane) string {
	var l []string
	for _, q := range []*list{&p.retrans, &p.unacked, &p.inwrite} {
		for m := q.head; m != nil; m = m.next {
			if m.Kind == MsgData && k.chance(50) && len(l) < 2 {
				l = append(l, fmt.Sprintf("%d:%s", m.seq, k.word("no-room", "no-room", "no-port")))
			}
		}
	}
	if len(l) == 0 {
		l = []string{fmt.Sprintf("%d:no-room", max(1, p.nextSeq-min(p.nextSeq, uint64(k.oneOf(1, 1, 1, 0)))))}
	}
	return "refuse " + strings.Join(l, ",")
}

func (k *walk) ofKernel(p *Lane, seq *uint64) string {
	switch n := k.rng.Intn(10); {
	case n < 6:
		return fmt.Sprintf("data %d>%d len=%d %s", k.port(), 5000+k.rng.Intn(3), k.oneOf(1, 300, 30_000), k.number(seq))
	case n < 7:
		return "map " + k.word("", "4000", "4000,4001", "4002")
	case n < 8:
		return fmt.Sprintf("%s 5001 %s", k.word("ping", "pong"), k.number(seq))
	default:
		return "null " + k.number(seq)
	}
}
