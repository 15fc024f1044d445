package rtrs

import (
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand"
	"strings"
	"testing"
	"time"
)

var (
	simSeed  = flag.Int64("rtrs.seed", 0, "the world that TestSeed shows")
	simSeeds = flag.Int("rtrs.seeds", 0, "how many worlds TestSeeds and TestHunt run; 0: as many as fit the time")
	simFrom  = flag.Int64("rtrs.from", 1, "the first of them")
)

// sim is a world drawn from a seed.
type sim struct {
	*world
	st      *store
	srv     *simServer
	clients []*simClient
	counts  struct{ cuts, crashes, admin, stalls int }
}

func newWorld(seed int64, trace bool) *world {
	w := &world{rnd: rand.New(rand.NewSource(seed)), moves: map[move]bool{}}
	if trace {
		w.trace = &strings.Builder{}
	}
	return w
}

func pick[T any](w *world, of ...T) T { return of[w.rnd.Intn(len(of))] }

// newSim draws a world: one server, one or two clients, one to four paths.
func newSim(seed int64, trace bool) *sim {
	w := newWorld(seed, trace)
	s := &sim{world: w}
	for i := range 1 + w.rnd.Intn(4) {
		w.wires = append(w.wires, &cable{w: w, name: fmt.Sprint("wire", i), delay: pick(w, 100*time.Microsecond, time.Millisecond, 20*time.Millisecond), dev: drawDevice(w)})
	}
	const perClient = 24
	clients := 1 + w.rnd.Intn(2)
	s.st = newStore(w, clients*perClient)
	s.st.latency = pick(w, 100*time.Microsecond, 2*time.Millisecond, 20*time.Millisecond)
	scfg := ServerConfig{QueueDepth: pick(w, 1, 4, 16), MaxIO: 8 * sectorLen, MaxHdr: 512, NoInvalidate: w.chance(0.2),
		TrimAfter: pick(w, 20*time.Millisecond, 200*time.Millisecond, time.Hour), ConnectTimeout: pick(w, time.Second, 5*time.Second)}
	s.srv = newSimServer(w, scfg, s.st)
	for i := range clients {
		cfg := ClientConfig{Conns: 2 + w.rnd.Intn(2), QueueDepth: pick(w, 0, 0, 2), ConnectTimeout: pick(w, time.Second, 5*time.Second),
			ReconnectMax: pick(w, 500*time.Millisecond, 5*time.Second), Policy: Policy(w.rnd.Intn(len(policies))), IOTimeout: pick(w, 500*time.Millisecond, 3*time.Second, 30*time.Second),
			OnLoss: OnLoss(w.rnd.Intn(2)), LossTimeout: pick(w, 500*time.Millisecond, 3*time.Second), RemoteInval: w.chance(0.3)}
		c := newSimClient(w, i, cfg, s.srv, w.wires)
		c.first, c.count = uint32(i*perClient), perClient
		c.depth, c.limit = pick(w, 1, 4, 20), 150+w.rnd.Intn(200)
		s.clients = append(s.clients, c)
	}
	return s
}

// faults schedules what goes wrong until t.
func (s *sim) faults(t time.Duration) {
	w := s.world
	rate := pick(w, 50*time.Millisecond, 300*time.Millisecond, 2*time.Second)
	kinds := []func(){}
	for _, f := range []func(){s.cutOne, s.cutOne, s.cutAll, s.reset, s.stall, s.crashServer, s.crashClient, s.admin, s.admin} {
		if w.chance(0.7) {
			kinds = append(kinds, f)
		}
	}
	if len(kinds) == 0 {
		return
	}
	var next func()
	next = func() {
		if w.now < t {
			pick(w, kinds...)()
			w.after(w.upTo(4*rate), next)
		}
	}
	w.after(w.upTo(4*rate), next)
}

// cutFor cuts a wire for a while, in one direction or both.
func (s *sim) cutFor(x *cable, d time.Duration) {
	s.counts.cuts++
	which := s.rnd.Intn(4)
	for dir := range 2 {
		if which == dir || which > 1 {
			x.set(dir, true)
			times := x.times[dir]
			s.after(detection, func() {
				if x.times[dir] == times {
					s.detected(x, dir)
				}
			})
			s.after(d, func() { x.set(dir, false) })
		}
	}
}

// detection is how long a cut may go unnoticed: four heartbeats of 200 ms, and
// what the clock of the process that watches is late.
const detection = 810 * time.Millisecond

// detected checks that whoever hears nothing on a wire has noticed.
func (s *sim) detected(x *cable, dir int) {
	for _, c := range s.clients {
		for _, p := range c.c.Paths() {
			if dir == 0 && c.alive && p.Remote.Addr() == x.serverAddr() && p.State() == Connected && s.now-p.since >= detection {
				s.fail("client %s has not noticed that %s is cut", c.name, x.name)
			}
		}
	}
	for _, p := range s.srv.s.Paths() {
		if dir == 1 && s.srv.alive && p.Local.Addr() == x.serverAddr() && p.State() == Connected && s.now-p.since >= detection {
			s.fail("the server has not noticed that %s is cut", x.name)
		}
	}
}

func (s *sim) cutOne() { s.cutFor(pick(s.world, s.wires...), s.upTo(4*time.Second)) }

func (s *sim) cutAll() {
	d := s.upTo(4 * time.Second)
	for _, x := range s.wires {
		s.cutFor(x, d)
	}
}

// reset ends one connection at both ends, or at one.
func (s *sim) reset() {
	x := pick(s.world, s.wires...)
	for _, e := range x.ends {
		if !e.closing && !e.closed && s.chance(0.3) {
			s.note("reset on %s", x.name)
			e.end(fmt.Errorf("reset"))
			return
		}
	}
}

func (s *sim) stall() {
	s.counts.stalls++
	s.st.stalled = s.now + s.upTo(6*time.Second)
	s.note("store stalls until %v", s.st.stalled)
}

func (s *sim) crashServer() {
	if !s.srv.alive || s.chance(0.5) {
		return
	}
	s.counts.crashes++
	s.srv.crash(s.chance(0.3))
	s.after(s.upTo(2*time.Second), s.srv.start)
}

func (s *sim) crashClient() {
	c := pick(s.world, s.clients...)
	if !c.alive || s.chance(0.5) {
		return
	}
	s.counts.crashes++
	c.crash(s.chance(0.3))
	s.after(s.upTo(2*time.Second), c.begin)
}

// admin does what an administrator may do at any time.
func (s *sim) admin() {
	s.counts.admin++
	c := pick(s.world, s.clients...)
	if s.srv.alive && s.chance(0.3) {
		if ps := s.srv.s.Paths(); len(ps) > 0 {
			if p := pick(s.world, ps...); s.chance(0.8) || p.Session() == nil {
				s.srv.s.Disconnect(s.now, p)
			} else {
				s.srv.s.disconnectAll(s.now, p.Session())
			}
			s.srv.settle()
		}
		return
	}
	if !c.alive || c.c.Err() != nil {
		return
	}
	defer c.settle()
	c.c.SetPolicy(Policy(s.rnd.Intn(len(policies))))
	ps := c.c.Paths()
	if len(ps) == 0 {
		c.addPath(pick(s.world, s.wires...))
		return
	}
	p := pick(s.world, ps...)
	switch s.rnd.Intn(5) {
	case 0:
		c.c.Remove(s.now, p)
		s.after(s.upTo(time.Second), func() { s.heal(c) })
	case 1:
		c.c.Disconnect(s.now, p)
		s.after(s.upTo(2*time.Second), func() { s.heal(c) })
	case 2:
		c.c.Reconnect(s.now, p)
	case 3:
		p.ResetStats()
	case 4:
		c.addPath(pick(s.world, s.wires...))
	}
}

// heal undoes what the administrator did.
func (s *sim) heal(c *simClient) {
	if !c.alive || c.c.Err() != nil {
		return
	}
	for _, p := range c.c.Paths() {
		if p.State() == Closed {
			c.c.Reconnect(s.now, p)
		}
	}
	for _, x := range c.wires {
		c.addPath(x)
	}
	c.settle()
}

// run runs the world with its faults, then without, and checks that all ends.
func (s *sim) run() {
	s.faults(pick(s.world, 0, 2*time.Second, 15*time.Second))
	s.runUntil(15 * time.Second)
	for s.now < 30*time.Second { // what heals by itself
		s.runUntil(s.now + time.Second)
	}
	for _, x := range s.wires {
		x.set(0, false)
		x.set(1, false)
	}
	if !s.srv.alive {
		s.fail("the server is not back")
	}
	for _, c := range s.clients {
		s.heal(c)
	}
	limit := s.now + 60*time.Second
	for s.now < limit && s.busy() {
		s.runUntil(s.now + 100*time.Millisecond)
	}
	s.runUntil(s.now + 2*time.Second)
	s.final()
	for _, c := range s.clients {
		c.c.Close(s.now)
		c.settle()
	}
	s.runUntil(s.now + 5*time.Second)
	s.srv.s.Close(s.now)
	s.srv.settle()
	s.runUntil(s.now + 5*time.Second)
	for _, c := range s.clients {
		if !c.closed {
			s.fail("client %s is not closed: %+v", c.name, c.c.Stats())
		}
	}
	if !s.srv.closed || len(s.srv.mem) != 0 {
		s.fail("the server is not closed, or %d sessions' chunks are left: %+v", len(s.srv.mem), s.srv.s.Stats())
	}
}

func (s *sim) busy() bool {
	for _, c := range s.clients {
		if c.c.Err() == nil && (c.running > 0 || c.submitted < c.limit) {
			return true
		}
	}
	return false
}

// final checks that nothing is left over once there are no faults.
func (s *sim) final() {
	for _, c := range s.clients {
		k := c.c
		if k.Err() != nil {
			s.fail("client %s: %v", c.name, k.Err())
		}
		if c.running > 0 || k.all.n+k.queue.n+k.admin.n != 0 {
			s.fail("B4: client %s has %d requests that do not end: %+v", c.name, c.running, k.Stats())
		}
		if k.connected != len(k.paths) || len(k.paths) != len(c.wires) || !c.up {
			s.fail("client %s has %d of %d paths connected", c.name, k.connected, len(k.paths))
		}
		if len(k.free) != k.Depth() || k.ghosts != 0 || len(k.epochs) != 0 || k.restPath != nil {
			s.fail("client %s: %d of %d permits free, %d ghosts, %d epochs", c.name, len(k.free), k.Depth(), k.ghosts, len(k.epochs))
		}
		seen := map[uint32]bool{}
		for _, p := range k.free {
			if seen[p] || int(p) >= k.Depth() {
				s.fail("permit %d is free twice, or none", p)
			}
			seen[p] = true
		}
		for _, p := range k.paths {
			for i, con := range p.cons {
				if con.flight != 0 || p.flight.n != 0 {
					s.fail("connection %d believes %d requests in flight", i, con.flight)
				}
			}
		}
	}
	if t := s.srv.s.Stats(); t.Inflight != 0 || t.Sessions != len(s.clients) || t.Paths != len(s.clients)*len(s.wires) || s.srv.s.waiting() != 0 || len(s.srv.s.of) != len(s.clients) {
		s.fail("the server is left with %+v", t)
	}
	for _, e := range s.srv.s.sessions {
		for i := range e.chunks {
			if e.chunks[i].req != nil {
				s.fail("chunk %d is left taken", i)
			}
		}
	}
	for i := range s.st.sectors {
		s.order++
		s.st.saw(s.order, uint32(i), s.st.sectors[i].bytes[:])
	}
}

// try runs f and returns what it violated, "" if nothing.
func (w *world) try(f func()) (bad string) {
	defer func() {
		if v := recover(); v != nil {
			if x, ok := v.(violation); ok {
				bad = string(x)
				return
			}
			panic(v)
		}
	}()
	f()
	return ""
}

func runSeed(seed int64, trace bool) (s *sim, bad string) {
	s = newSim(seed, trace)
	return s, s.try(s.run)
}

// TestSeed tells the story of one world: go test ./rtrs -run 'TestSeed$' -rtrs.seed=n -v
func TestSeed(t *testing.T) {
	if *simSeed == 0 {
		*simSeed = 1 // without a flag: that a story can be told
	}
	s, bad := runSeed(*simSeed, true)
	t.Log("\n" + s.trace.String())
	if bad != "" {
		t.Fatalf("VIOLATION %s", bad)
	}
}

// TestSeeds runs worlds with faults of all kinds, and B2 to B6 in each.
func TestSeeds(t *testing.T) {
	n := *simSeeds
	if n == 0 {
		if n = 300; raceDetector || testing.Short() {
			n = 60
		}
	}
	moves := map[move]bool{}
	var total struct{ done, failed, cuts, crashes, admin, stalls, fences, retried uint64 }
	for seed := *simFrom; seed < *simFrom+int64(n); seed++ {
		s, bad := runSeed(seed, false)
		if bad != "" {
			t.Fatalf("seed %d: %s\nshow it: go test ./rtrs -run 'TestSeed$' -rtrs.seed=%d -v", seed, bad, seed)
		}
		for _, c := range s.clients {
			st := c.c.Stats()
			total.done += uint64(c.done)
			total.failed += uint64(c.failed)
			total.fences += st.Fences
			total.retried += st.Retried
		}
		for m := range s.moves {
			moves[m] = true
		}
		total.cuts += uint64(s.counts.cuts)
		total.crashes += uint64(s.counts.crashes)
		total.admin += uint64(s.counts.admin)
		total.stalls += uint64(s.counts.stalls)
	}
	t.Logf("%d worlds: %+v", n, total)
	if total.fences == 0 || total.retried == 0 || total.crashes == 0 || total.failed == 0 {
		t.Errorf("the worlds do not cover what they should: %+v", total)
	}
	for i, ts := range [][]transition{clientTable, serverTable} {
		for _, x := range ts {
			if !moves[move{i == 0, x.from, x.to}] && n >= 300 {
				t.Errorf("no path went from %v to %v", x.from, x.to)
			}
		}
	}
}

// TestDeterminism: the same seed is the same run.
func TestDeterminism(t *testing.T) {
	for seed := int64(1); seed <= 5; seed++ {
		var sums [2]uint64
		for i := range sums {
			s, _ := runSeed(seed, true)
			h := fnv.New64a()
			h.Write([]byte(s.trace.String()))
			sums[i] = h.Sum64()
		}
		if sums[0] != sums[1] {
			t.Errorf("seed %d: two runs differ", seed)
		}
	}
}
