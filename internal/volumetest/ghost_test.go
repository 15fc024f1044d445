package volumetest

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/internal/await"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// TestGhostWrites: write A is held, at a store that stalls or on a path that
// dies, and the path is lost; A is sent again over another, or given up; write B
// to the same block completes; then what was held is let go. The block holds B,
// through the volume and in the file, at once and at the end (B3).
func TestGhostWrites(t *testing.T) {
	t.Parallel()
	ghostWrites(t, overTCP)
}

// TestGhostWritesOverRDMA: the same with paths over RoCE, and with one of each kind.
func TestGhostWritesOverRDMA(t *testing.T) {
	t.Parallel()
	for _, o := range []over{overRDMA, overBoth} {
		t.Run(o.String(), func(t *testing.T) {
			t.Parallel()
			ghostWrites(t, o)
		})
	}
}

func ghostWrites(t *testing.T, o over) {
	var rounds atomic.Int64
	variants := []struct {
		name  string
		spec  rdsd.MapSpec
		round func(*ghost, int)
	}{
		{"stalled store, paths cut", rdsd.MapSpec{}, (*ghost).pathsCut},
		{"stalled store, path silent", rdsd.MapSpec{}, (*ghost).pathSilent},
		{"held on the path", rdsd.MapSpec{}, (*ghost).onThePath},
		{"stalled store, mapping daemon killed", rdsd.MapSpec{Persist: true}, (*ghost).clientKilled},
		{"stalled store, serving daemon killed", rdsd.MapSpec{}, (*ghost).serverKilled},
		{"stalled store, given up", rdsd.MapSpec{OnLoss: rdsd.OnLossError, IOTimeout: 2 * time.Second, LossTimeout: 300 * time.Millisecond}, (*ghost).givenUp},
	}
	each := (o.some(*ghosts) + len(variants) - 1) / len(variants)
	t.Run("variants", func(t *testing.T) {
		for _, v := range variants {
			t.Run(v.name, func(t *testing.T) {
				t.Parallel()
				g := newGhost(t, o, v.spec, each)
				for i := range each {
					v.round(g, i)
					g.holdsB(i)
					rounds.Add(1)
				}
				time.Sleep(300 * time.Millisecond) // for what may still come
				for i := range each {
					g.holdsB(i)
				}
			})
		}
	})
	t.Logf("REPORT over %v: %d writes held while their path died, in %d ways: the block held the later write each time", o, rounds.Load(), len(variants))
}

// ghost is a world with two paths and one volume.
type ghost struct {
	t *testing.T
	w *world
	m *rdsd.Mapping
	c *nbd.Client

	clock *await.Clock
}

func newGhost(t *testing.T, o over, s rdsd.MapSpec, rounds int) *ghost {
	w := newWorld(t, o)
	w.serve(true, "")
	w.map_("")
	w.addPaths(2)
	w.export("disk", uint64(rounds)*blockSize)
	s.Name, s.Policy = "disk", rdsd.PolicyRoundRobin
	g := &ghost{t: t, w: w, m: w.mount(s), clock: await.NewClock(t)}
	g.connect()
	t.Cleanup(func() { g.c.Close() })
	return g
}

func (g *ghost) connect() {
	g.t.Helper()
	eventually(g.t, "the socket is back", func() bool {
		var err error
		g.c, err = nbd.DialURI(g.w.ctx(), g.m.URI)
		return err == nil
	})
}

// generations of a round.
func genA(i int) uint64 { return uint64(2*i + 1) }
func genB(i int) uint64 { return uint64(2*i + 2) }

// write begins a write to the round's block.
func (g *ghost) write(i int, gen uint64) <-chan error {
	done, c := make(chan error, 1), g.c
	p := make([]byte, blockSize)
	fill(p, i, gen)
	go func() { // ends with the write
		_, err := c.WriteAt(p, int64(i)*blockSize)
		done <- err
	}()
	return done
}

// b writes B.
func (g *ghost) b(i int) {
	g.t.Helper()
	if err := <-g.write(i, genB(i)); err != nil {
		g.t.Fatalf("round %d: write B: %v", i, err)
	}
}

// atStore begins write A and returns when the store has it, and keeps it.
func (g *ghost) atStore(i int) <-chan error {
	g.t.Helper()
	g.w.server.rule(blk.Rule{Ops: blk.Ops(blk.OpWrite), Off: uint64(i) * blockSize, Len: blockSize, Count: 1, Stall: true}, "")
	done := g.write(i, genA(i))
	eventually(g.t, "write A is at the store", func() bool { return g.w.server.held() == 1 })
	return done
}

// open fails the test if done is not, for a while.
func (g *ghost) open(what string, i int, done <-chan error) {
	g.t.Helper()
	select {
	case err := <-done:
		g.t.Fatalf("round %d: %s has ended (%v) while an earlier copy is at the store", i, what, err)
	case <-time.After(100 * time.Millisecond):
	}
}

func (g *ghost) succeeds(what string, i int, done <-chan error) {
	g.t.Helper()
	select {
	case err := <-done:
		if err != nil {
			g.t.Fatalf("round %d: %s: %v", i, what, err)
		}
	case <-time.After(15 * time.Second):
		g.t.Fatalf("round %d: %s has not ended after 15 s", i, what)
	}
}

// holdsB looks at the block.
func (g *ghost) holdsB(i int) {
	g.t.Helper()
	p := make([]byte, blockSize)
	if _, err := g.c.ReadAt(p, int64(i)*blockSize); err != nil {
		g.t.Fatalf("round %d: %v", i, err)
	}
	if gen, err := generation(p, i); err != nil || gen != genB(i) {
		g.t.Fatalf("round %d: generation %d, %v; want %d", i, gen, err, genB(i))
	}
	f, err := os.Open(g.w.file("disk"))
	if err != nil {
		g.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.ReadAt(p, int64(i)*blockSize); err != nil {
		g.t.Fatal(err)
	}
	if gen, err := generation(p, i); err != nil || gen != genB(i) {
		g.t.Fatalf("round %d: in the file: generation %d, %v; want %d", i, gen, err, genB(i))
	}
}

// pathsCut resets both paths, or the one that A went over, and has them back at once.
func (g *ghost) pathsCut(i int) {
	a := g.atStore(i)
	p, other := g.busy()
	p.cut()
	if i%2 == 0 {
		other.cut()
	}
	g.open("A", i, a)
	g.w.server.heal()
	g.succeeds("A", i, a)
	g.b(i)
	g.w.pathsUp(g.m, 2)
}

// busy is the path that has requests.
func (g *ghost) busy() (busy, other path) {
	g.t.Helper()
	eventually(g.t, "a request is on a path", func() bool {
		paths, err := g.w.client.vols().Paths(g.w.ctx(), g.m.Session)
		if err != nil {
			g.t.Fatal(err)
		}
		for _, x := range paths {
			for k, p := range g.w.paths {
				if x.Dst == p.addr() && x.InFlight > 0 {
					busy, other = p, g.w.paths[1-k]
				}
			}
		}
		return busy != nil
	})
	return busy, other
}

// pathSilent silences the path that A went over, to one side or to both; the other one
// takes A again, when the first copy has ended.
func (g *ghost) pathSilent(i int) {
	a := g.atStore(i)
	p, _ := g.busy()
	switch i % 3 {
	case 0:
		p.set(way{hold: true})
	case 1:
		p.setEach(way{hold: true}, way{})
	case 2:
		p.setEach(way{}, way{hold: true})
	}
	g.w.pathsUp(g.m, 1)
	g.open("A", i, a)
	g.w.server.heal()
	g.succeeds("A", i, a)
	g.b(i)
	p.set(way{})
	g.w.pathsUp(g.m, 2)
}

// onThePath holds A itself on its way, so that it arrives after B.
func (g *ghost) onThePath(i int) {
	for _, p := range g.w.paths {
		p.setEach(way{hold: true}, way{})
	}
	a := g.write(i, genA(i))
	p, other := g.busy()
	other.set(way{})
	g.succeeds("A", i, a)
	if i%2 == 0 { // B comes before the bytes that were held
		g.b(i)
		p.set(way{})
	} else { // or just after
		p.set(way{})
		g.b(i)
	}
	g.w.pathsUp(g.m, 2)
}

// clientKilled kills the daemon that has sent A; the next takes its place.
func (g *ghost) clientKilled(i int) {
	a := g.atStore(i)
	g.w.client.kill()
	if err := <-a; !connectionLost(err) {
		g.t.Fatalf("round %d: A ended with %v when its daemon was killed", i, err)
	}
	g.w.client.start()
	g.c.Close()
	time.Sleep(time.Duration(i%4) * 100 * time.Millisecond) // before the next has come, and after
	g.w.server.heal()
	g.connect()
	g.b(i)
	g.w.client.ready()
	g.w.pathsUp(g.m, 2)
}

// serverKilled kills the daemon that has A at its store; A is sent to the next.
func (g *ghost) serverKilled(i int) {
	a := g.atStore(i)
	g.w.server.kill()
	g.open("A", i, a)
	g.w.server.start()
	g.succeeds("A", i, a)
	g.b(i)
	g.w.server.ready()
	g.w.pathsUp(g.m, 2)
}

// givenUp takes every path away, so that A fails in time; B does not succeed until A cannot
// happen any more.
func (g *ghost) givenUp(i int) {
	a := g.atStore(i)
	for _, p := range g.w.paths {
		p.close()
	}
	began := g.clock.Now()
	err := <-a
	if took := g.clock.Now() - began; !errors.Is(err, syscall.EIO) || took > 2*time.Second {
		g.t.Fatalf("round %d: A without a path: %v after %v", i, err, took)
	}
	for _, p := range g.w.paths {
		p.open()
	}
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if err := <-g.write(i, genB(i)); !errors.Is(err, syscall.EIO) {
			g.t.Fatalf("round %d: B has ended (%v) while A is at the store", i, err)
		}
	}
	g.w.server.heal()
	eventually(g.t, "write B is done", func() bool { return <-g.write(i, genB(i)) == nil })
	g.w.pathsUp(g.m, 2)
}
