package rtrs

import (
	"fmt"
	"testing"
	"time"
)

// TestGhostWrites: write A is held somewhere on a path that dies, or at the
// store; its retry completes on another path, or on the same one anew, or fails
// by its limit; then write B to the same sector is submitted and completes. In
// whatever order what was held is let go, the sector is B's.
func TestGhostWrites(t *testing.T) {
	n := int64(10000)
	if raceDetector || testing.Short() {
		n = 1500
	}
	var held, retried, failed int
	for seed := int64(1); seed <= n; seed++ {
		g := newGhost(seed, false)
		if bad := g.try(g.run); bad != "" {
			t.Fatalf("seed %d: %s\nshow it: go test ./rtrs -run TestGhost$ -rtrs.seed=%d -v", seed, bad, seed)
		}
		if g.held {
			held++
		}
		if g.c.c.Stats().Retried > 0 {
			retried++
		}
		if g.aFailed {
			failed++
		}
	}
	t.Logf("%d interleavings: in %d write A was held at the store, in %d sent again, in %d it failed", n, held, retried, failed)
	if held < int(n)/10 || retried < int(n)/3 || failed < int(n)/50 {
		t.Errorf("the interleavings are too tame")
	}
}

// TestGhost shows one of them.
func TestGhost(t *testing.T) {
	if *simSeed == 0 {
		*simSeed = 1 // without a flag: that a story can be told
	}
	g := newGhost(*simSeed, true)
	bad := g.try(g.run)
	t.Log("\n" + g.trace.String())
	if bad != "" {
		t.Fatal(bad)
	}
}

// ghost is a world of one client, two paths and one sector.
type ghost struct {
	*world
	st      *store
	srv     *simServer
	c       *simClient
	held    bool
	aFailed bool
}

func newGhost(seed int64, trace bool) *ghost {
	w := newWorld(seed, trace)
	g := &ghost{world: w}
	for i := range 2 {
		w.wires = append(w.wires, &cable{w: w, name: fmt.Sprint("wire", i), delay: pick(w, 50*time.Microsecond, time.Millisecond)})
	}
	g.st = newStore(w, 2)
	g.st.latency = pick(w, 100*time.Microsecond, 5*time.Millisecond)
	g.srv = newSimServer(w, ServerConfig{QueueDepth: pick(w, 1, 2, 4), MaxIO: 512, MaxHdr: 512, NoInvalidate: w.chance(0.2)}, g.st)
	g.c = newSimClient(w, 0, ClientConfig{Policy: RoundRobin, RemoteInval: w.chance(0.2), OnLoss: OnLoss(w.rnd.Intn(2)),
		IOTimeout: pick(w, 300*time.Millisecond, 10*time.Second), LossTimeout: pick(w, 300*time.Millisecond, 10*time.Second), ReconnectMax: 500 * time.Millisecond}, g.srv, w.wires)
	g.c.count = 1
	return g
}

func (g *ghost) run() {
	w, c := g.world, g.c
	g.runUntil(100 * time.Millisecond)
	if !c.open || c.c.connected != 2 {
		g.fail("the session is not up")
	}
	var a, b *simReq
	holding := w.chance(0.5)
	g.st.hold = func(id uint64) bool {
		stop := holding && a != nil && id == a.u.id
		g.held = g.held || stop
		return stop
	}
	over := false
	c.onDone = func(q *simReq) {
		switch q {
		case a:
			g.aFailed = q.Err != nil
			w.after(w.upTo(20*time.Millisecond), func() { b = c.submit(usr{kind: usrWrite, count: 1}); c.settle() })
			a = nil
		case b:
			if q.Err != nil { // by its limit: try until it is there
				w.after(10*time.Millisecond, func() { b = c.submit(usr{kind: usrWrite, count: 1}); c.settle() })
			} else {
				over = true
			}
		}
	}
	c.spare = nil
	a = c.submit(usr{kind: usrWrite, count: 1})
	c.settle()
	// The path A is on dies some time on its way, in one direction or both, or
	// its connection is reset; everything else goes wrong now and then, too.
	x := c.wireOf(a.path)
	w.after(w.upTo(3*time.Millisecond), func() {
		switch w.rnd.Intn(4) {
		case 0:
			x.set(1, true)
		case 1:
			x.set(0, true)
		case 2:
			x.set(0, true)
			x.set(1, true)
		case 3:
			for _, e := range x.ends {
				if w.chance(0.5) && !e.closing {
					e.end(fmt.Errorf("reset"))
				}
			}
		}
	})
	w.after(w.upTo(5*time.Second), func() { x.set(0, false); x.set(1, false) })
	w.after(w.upTo(6*time.Second), func() { holding = false })
	if w.chance(0.3) {
		y := w.wires[1-x.index()]
		w.after(w.upTo(2*time.Second), func() { y.set(w.rnd.Intn(2), true) })
		w.after(w.upTo(5*time.Second), func() { y.set(0, false); y.set(1, false) })
	}
	for limit := w.now + 60*time.Second; !over && w.now < limit; {
		g.runUntil(w.now + 50*time.Millisecond)
	}
	if !over {
		g.fail("B4: writes A and B do not end: %+v", c.c.Stats())
	}
	last := *c.ids
	x.set(0, false)
	x.set(1, false)
	g.runUntil(w.now + 8*time.Second) // whatever was held comes now
	if id, ok := check(g.st.sectors[0].bytes[:], 0); !ok || id != 1<<32|last {
		g.fail("B3: the sector is of write %d, B is %d", id, 1<<32|last)
	}
}
