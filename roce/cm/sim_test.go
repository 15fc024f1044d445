package cm

import (
	"container/heap"
	"flag"
	"fmt"
	"math/rand"
	"net/netip"
	"strings"
	"testing"
	"time"
)

var (
	simSeeds = flag.Int("cm.seeds", 0, "how many worlds TestSeeds and TestHunt run; 0: as many as fit the time")
	simFrom  = flag.Int64("cm.from", 1, "the first of them")
	simSeed  = flag.Int64("cm.seed", 1, "the world that TestSeed tells the story of")
	huntFlag = flag.Bool("cm.hunt", false, "TestHunt looks for a rule that is broken in this program")
)

// sim is a world drawn from a seed: hosts with a Manager each, applications that dial, answer
// and hang up, a net that loses, doubles, delays and reorders, restarts, and a stranger who
// copies what he sees. simhost_test.go has the hosts, and what must hold.
type sim struct {
	rnd   *rand.Rand
	now   time.Duration
	queue simQueue
	n     int // events so far, so that those of one time keep their order
	hosts []*simHost
	dials []*simDial // by token, from 1
	story func(string, ...any)
	told  bool // there is a story

	six      bool
	stranger netip.Addr

	// The net.
	loss, double float64
	delay        time.Duration // the longest, of packets and messages alike
	late         float64       // the share of messages of which a copy comes up to a minute later
	cut          map[[2]int]bool
	lossy        int             // the next messages of the calm are lost once each: see once
	lost         map[string]bool // those that were
	seen         []simMAD        // what was sent, for whoever repeats it
	calm         bool            // nothing is lost any more, and nobody interferes
}

// simMAD is a message on its way.
type simMAD struct {
	from, to netip.Addr
	mad      [MADLen]byte
}

type simEvent struct {
	at time.Duration
	n  int
	do func()
}

type simQueue []simEvent

func (q simQueue) Len() int { return len(q) }
func (q simQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].n < q[j].n
}
func (q simQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *simQueue) Push(x any)   { *q = append(*q, x.(simEvent)) }
func (q *simQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

// addr is that of a host: in half of the worlds of IPv6. The stranger has one without a Manager.
func (s *sim) addr(n byte) netip.Addr {
	if s.six {
		return netip.AddrFrom16([16]byte{0: 0xfd, 15: n})
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, n})
}

// The longest delay of packets, of which the time-wait is more than twice.
const simDelay = 1500 * time.Millisecond

// simChaos is how long the faults last.
const simChaos = 90 * time.Second

// fail ends a world: it is not what it must be.
type simFailure string

func (s *sim) fail(format string, a ...any) {
	panic(simFailure(fmt.Sprintf("%.3fs: ", s.now.Seconds()) + fmt.Sprintf(format, a...)))
}

func (s *sim) at(d time.Duration, do func()) {
	s.n++
	heap.Push(&s.queue, simEvent{s.now + d, s.n, do})
}

func (s *sim) chance(p float64) bool { return s.rnd.Float64() < p }

func (s *sim) upTo(d time.Duration) time.Duration { return time.Duration(s.rnd.Int63n(int64(d) + 1)) }

// run lets the world go on until a time.
func (s *sim) run(until time.Duration) {
	for {
		next, who := until, (*simHost)(nil)
		for _, h := range s.hosts {
			if t := h.m.Next(); t < next {
				next, who = t, h
			}
		}
		if len(s.queue) > 0 && s.queue[0].at <= next {
			e := heap.Pop(&s.queue).(simEvent)
			if e.at > until {
				heap.Push(&s.queue, e)
				s.now = until
				return
			}
			s.now = max(s.now, e.at)
			e.do()
			continue
		}
		if who == nil {
			s.now = until
			return
		}
		s.now = max(s.now, next)
		who.m.Tick(s.now)
		if t := who.m.Next(); t <= s.now {
			s.fail("%v has still something to do after a tick, since %v", who.addr, t)
		}
		who.check()
	}
}

func (s *sim) host(a netip.Addr) *simHost {
	for _, h := range s.hosts {
		if h.addr == a {
			return h
		}
	}
	return nil
}

// carry sends a message through the net.
func (s *sim) carry(m simMAD) {
	from, to := s.host(m.from), s.host(m.to)
	if to == nil || from == nil {
		return
	}
	if len(s.seen) < 500 {
		s.seen = append(s.seen, m)
	} else {
		s.seen[s.rnd.Intn(500)] = m
	}
	a, _, _, _ := open(m.mad[:])
	if s.once(a.String()) || !s.calm && (s.chance(s.loss) || s.cut[[2]int{from.n, to.n}]) {
		s.wrote("lost:", m.from, ">", m.to, m.mad[:])
		return
	}
	copies := 1
	if !s.calm && s.chance(s.double) {
		copies = 2
	}
	for range copies {
		s.at(s.upTo(s.delay), func() { to.receive(m.from, m.mad[:]) })
	}
	if !s.calm && s.chance(s.late) {
		s.at(s.upTo(time.Minute), func() { s.again(m) })
	}
}

// wrote is a line of the story about a message.
func (s *sim) wrote(what string, a netip.Addr, way string, b netip.Addr, mad []byte) {
	if s.told {
		s.story("%s %v %s %v %s", what, a, way, b, textOf(mad))
	}
}

// once reports whether a message of the calm is lost: the first of each kind, in half of the
// worlds.
func (s *sim) once(kind string) bool {
	if !s.calm || s.lossy == 0 || s.lost[kind] {
		return false
	}
	s.lost[kind] = true
	return true
}

// again is a message that comes long after it was sent. One that asks for a connection would
// show that a queue pair that has one now was forgotten: of that, senders under a false address
// are capable, and late copies are not.
func (s *sim) again(m simMAD) {
	to := s.host(m.to)
	a, _, body, _ := open(m.mad[:])
	if a == attrREQ {
		var p req
		p.parse(body)
		if c := to.m.byPeer[peerKey{m.from, p.guid, p.qpn}]; c != nil && c.remoteID != p.local {
			return
		}
	}
	to.receive(m.from, m.mad[:])
}

// meddle is the stranger: he sends what he saw in his own name, requests of his own, and under
// a false address an end with the wrong queue pair.
func (s *sim) meddle() {
	if s.calm {
		return
	}
	s.at(s.upTo(500*time.Millisecond), s.meddle)
	if len(s.seen) == 0 {
		return
	}
	m := s.seen[s.rnd.Intn(len(s.seen))]
	to := s.host(m.to)
	a, _, body, _ := open(m.mad[:])
	switch s.rnd.Intn(5) {
	case 4:
		s.flood(to)
		return
	case 0, 1:
		m.from = s.stranger
		if a == attrREQ {
			// As his own it would be a request like any other.
			var p req
			if p.parse(body); s.chance(0.5) {
				p.header.src, p.local, p.qpn = s.stranger, s.rnd.Uint32(), 2+uint32(s.rnd.Intn(1000))
				p.put(&m.mad, s.rnd.Uint64())
			}
		}
	case 2:
		var p dreq
		if a != attrDREQ {
			return
		}
		p.parse(body)
		p.qpn ^= 1 << 20
		p.put(&m.mad, 1)
	case 3:
		s.again(m)
		return
	}
	was, crowded := to.others(), to.m.stats.Crowded
	to.receive(m.from, m.mad[:])
	// A request of his may take the place of one that is not confirmed.
	if now := to.others(); now != was && to.m.stats.Crowded == crowded {
		s.fail("a message of the stranger changed connections of %v: %s\nbefore %s\nafter  %s", to.addr, textOf(m.mad[:]), was, now)
	}
}

// flood is more requests of the stranger's than he may have unanswered.
func (s *sim) flood(to *simHost) {
	for range s.rnd.Intn(2 * simAskedOne) {
		p := req{local: s.rnd.Uint32(), qpn: 2 + uint32(s.rnd.Intn(1<<20)), service: serviceID(1234), mtu: 3, header: ipHeader{src: s.stranger, dst: to.addr}}
		m := simMAD{from: s.stranger, to: to.addr}
		p.put(&m.mad, s.rnd.Uint64())
		to.receive(m.from, m.mad[:])
	}
}

// runSim runs the world of a seed and returns what was wrong with it.
func runSim(seed int64, story func(string, ...any)) (bad string) {
	s := &sim{rnd: rand.New(rand.NewSource(seed)), cut: map[[2]int]bool{}, lost: map[string]bool{}}
	s.told = story != nil
	s.story = func(f string, a ...any) {
		if s.told {
			story("%9.3fs "+f, append([]any{s.now.Seconds()}, a...)...)
		}
	}
	defer func() {
		switch p := recover().(type) {
		case nil:
		case simFailure:
			bad = fmt.Sprintf("seed %d: %s", seed, string(p))
		default:
			panic(p)
		}
	}()
	s.loss = []float64{0, 0.05, 0.2, 0.4}[s.rnd.Intn(4)]
	s.double = []float64{0, 0.1, 0.5}[s.rnd.Intn(3)]
	s.late = []float64{0, 0.05, 0.2}[s.rnd.Intn(3)]
	s.delay = []time.Duration{time.Millisecond, 50 * time.Millisecond, simDelay}[s.rnd.Intn(3)]
	s.lossy = s.rnd.Intn(2)
	s.six = s.chance(0.5)
	s.stranger = s.addr(66)
	for i := range 2 + s.rnd.Intn(2) {
		s.hosts = append(s.hosts, newSimHost(s, i))
	}
	for _, h := range s.hosts {
		s.at(s.upTo(time.Second), h.life)
	}
	s.at(0, s.meddle)
	s.at(0, s.cuts)
	s.run(simChaos)
	s.settle()
	return ""
}

// cuts cuts one direction between two hosts now and then.
func (s *sim) cuts() {
	if s.calm {
		return
	}
	way := [2]int{s.rnd.Intn(len(s.hosts)), s.rnd.Intn(len(s.hosts))}
	s.at(s.upTo(40*time.Second), func() {
		s.cut[way] = true
		s.at(s.upTo(20*time.Second), func() { delete(s.cut, way); s.cuts() })
	})
}

// settle ends the faults. After a while both sides of every connection agree on it, a dial is
// there soon and so is its end; then all is hung up, and nothing is left.
func (s *sim) settle() {
	s.calm, s.delay = true, time.Millisecond
	s.story("calm")
	s.run(s.now + 3*time.Minute)
	s.agree()
	for _, h := range s.hosts {
		for _, to := range s.hosts {
			s.prompt(h, to, s.rnd.Intn(3))
		}
	}
	s.agree()
	for _, h := range s.hosts {
		for _, a := range h.sorted() {
			a.hangUp()
		}
	}
	s.run(s.now + MaxDial + respPatience + time.Minute)
	for _, h := range s.hosts {
		if m := h.m; m.Conns()+len(m.byQPN)+len(m.byAsk)+len(m.byPeer)+len(m.askedBy)+len(m.timers)+m.asked+len(h.conns)+h.charged != 0 || m.Next() != Never {
			s.fail("%v: of %d connections are left %d numbers, %d asked, %d of peers, %d timers, %d charges", h.addr, m.Conns(), len(m.byQPN), len(m.byAsk), len(m.byPeer), len(m.timers), h.charged)
		}
	}
}

// agree holds both sides of each connection to each other.
func (s *sim) agree() {
	for _, h := range s.hosts {
		for _, a := range h.sorted() {
			if a.stage != simConnected {
				continue
			}
			b := a.other()
			if b == nil || b.stage != simConnected || b.c.State() != Established || a.c.State() != Established {
				s.fail("%v is connected and its other side is not: %v", a, b)
			}
			if a.c.remoteID != b.c.id || a.c.Peer().QPN != b.c.Param().QPN || a.c.Peer().RecvPSN != b.c.Param().RecvPSN || a.c.Remote() != b.c.Local() {
				s.fail("%v and %v do not know each other", a, b)
			}
		}
	}
}

// How long a connection may take to begin, and to end, when nothing is lost but the first
// message of each kind.
const simSoon = 10 * time.Second

// prompt dials from h to another and hangs up, by one side, by both at once, or after the other
// has started anew.
func (s *sim) prompt(h, to *simHost, how int) {
	var a *simApp
	for try := 0; ; try++ {
		s.lost = map[string]bool{}
		if a = h.dial(to, simAccept); a == nil {
			return // no number is free
		}
		s.run(s.now + simSoon)
		if a.stage == simConnected && a.other() != nil && a.other().stage == simConnected {
			break
		}
		if a.reason == ReasonConsumer {
			return // the other side has no number free
		}
		// A connection that a restart has left behind costs one try.
		if try == 3 || a.reason != ReasonStale {
			s.fail("%v is not connected after %v: %v", a, simSoon, a.reason)
		}
	}
	b := a.other()
	s.lost = map[string]bool{}
	switch {
	case how == 1:
		a.hangUp()
		b.hangUp()
	case how == 2 && h != to:
		to.restart()
		a.hangUp()
		b = nil
	default:
		a.hangUp()
	}
	s.run(s.now + simSoon)
	if a.stage < simEnded || b != nil && b.stage < simEnded {
		s.fail("%v has not ended after %v, or not %v", a, simSoon, b)
	}
	if a.why != nil {
		s.fail("%v ended with %v", a, a.why)
	}
}

// TestSeeds runs worlds; go test ./roce/cm -run 'TestSeed$' -cm.seed=n -v tells the story of
// one.
func TestSeeds(t *testing.T) {
	n := *simSeeds
	if n == 0 {
		n = 60
		if testing.Short() {
			n = 20
		}
	}
	for seed := *simFrom; seed < *simFrom+int64(n); seed++ {
		if bad := runSim(seed, nil); bad != "" {
			t.Fatal(bad)
		}
	}
}

func TestSeed(t *testing.T) {
	if bad := runSim(*simSeed, t.Logf); bad != "" {
		t.Error(bad)
	}
}

// TestHunt looks for a seed in which a broken rule is seen to be broken. It is for a test
// program in which one is (go run ./internal/mutate -rules), and fails when no seed shows
// anything.
func TestHunt(t *testing.T) {
	if !*huntFlag {
		t.Skip("elsewhere: no rule is broken in this program; the phase of the mutants builds and runs those in which one is")
	}
	n := int64(*simSeeds)
	if n == 0 {
		n = 600
	}
	for seed := int64(1); seed <= n; seed++ {
		if bad := runSim(seed, nil); bad != "" {
			_, bad, _ = strings.Cut(bad, ": ")
			fmt.Printf("found: seed %d | %s\n", seed, strings.ReplaceAll(bad, "\n", " "))
			return
		}
	}
	t.Fatalf("%d seeds show nothing", n)
}
