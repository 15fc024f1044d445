package volumetest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// times collects durations of parallel worlds.
type times struct {
	mu sync.Mutex
	l  []time.Duration
	n  int64 // operations
}

func (x *times) add(d time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.l = append(x.l, d)
}

func (x *times) count(n int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.n += n
}

func (x *times) String() string {
	least, most := spread(x.l)
	return fmt.Sprintf("%v to %v (%d times)", ms(least), ms(most), len(x.l))
}

// killWorlds is how many worlds share the kills, at the same time.
const killWorlds = 4

// parallel shares n out over worlds of their own.
func parallel(t *testing.T, n int, run func(t *testing.T, world, n int)) {
	t.Run("worlds", func(t *testing.T) {
		for i := range min(killWorlds, n) {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				run(t, i, (n+killWorlds-1)/killWorlds)
			})
		}
	})
}

// pause is a random time, 100 ms at most.
func pause() { time.Sleep(rand.N(100 * time.Millisecond)) }

// again kills a daemon that has just been started, one time in four.
func (d *daemon) again() {
	if rand.IntN(4) == 0 {
		time.Sleep(rand.N(30 * time.Millisecond))
		d.kill()
		d.start()
	}
}

// TestServerKilled kills the daemon that exports, under I/O. What was under way
// waits and goes on when it is back; there is no error, and no write that had
// completed is missing (B1, B2, B4).
func TestServerKilled(t *testing.T) { serverKilled(t, overTCP) }

// TestServerKilledOverRDMA: the same over RoCE, where nothing tells that a process has ended.
func TestServerKilledOverRDMA(t *testing.T) { serverKilled(t, overRDMA) }

func serverKilled(t *testing.T, o over) {
	t.Parallel()
	var back times
	parallel(t, o.some(*kills), func(t *testing.T, world, n int) {
		w := newWorld(t, o)
		w.serve(false, "")
		w.map_("")
		w.export("disk", appBytes)
		m := w.mount(rdsd.MapSpec{Name: "disk"})
		a := newApp(t, m.URI)
		a.start()
		a.progress(200, 5*time.Second)
		for range n {
			pause()
			w.server.kill()
			if world%2 == 1 {
				pause()
			}
			w.server.start()
			w.server.again()
			back.add(a.progress(50, 10*time.Second))
			if a.bad() {
				break
			}
		}
		w.server.ready()
		a.stop()
		a.verify()
		if a.dials.Load() > 3 {
			t.Errorf("%d connections to the socket; it was lost", a.dials.Load())
		}
		a.d.inFile(t, w.file("disk"))
		back.count(a.ops.Load())
	})
	t.Logf("REPORT over %v: the serving daemon killed %d times under I/O: on after %v, %d operations, no error, nothing lost", o, len(back.l), &back, back.n)
}

// TestServerKilledErrors: with on-loss error, requests fail in time while the
// daemon is away, and others go on when it is back.
func TestServerKilledErrors(t *testing.T) { serverKilledErrors(t, overTCP) }

// TestServerKilledErrorsOverRDMA: the same over RoCE.
func TestServerKilledErrorsOverRDMA(t *testing.T) { serverKilledErrors(t, overRDMA) }

func serverKilledErrors(t *testing.T, o over) {
	t.Parallel()
	const ioTimeout, lossTimeout = time.Second, 200 * time.Millisecond
	w := newWorld(t, o)
	w.serve(false, "")
	w.map_("")
	w.export("disk", appBytes)
	m := w.mount(rdsd.MapSpec{Name: "disk", OnLoss: rdsd.OnLossError, IOTimeout: ioTimeout, LossTimeout: lossTimeout})
	a := newApp(t, m.URI)
	a.failing.Store(true)
	a.start()
	a.progress(200, 5*time.Second)
	n := o.some(*kills / 10)
	for range n {
		pause()
		w.server.kill()
		failed := a.failed.Load()
		eventually(t, "requests fail", func() bool { return a.failed.Load() >= failed+appWorkers })
		w.server.start()
		w.server.ready()
		a.progress(50, 10*time.Second)
	}
	a.stop()
	a.verify()
	a.d.inFile(t, w.file("disk"))
	worst := a.stall()
	if most := ioTimeout + lossTimeout + 500*time.Millisecond; worst > most {
		t.Errorf("an operation took %v; at most %v are configured", ms(worst), ioTimeout+lossTimeout)
	}
	t.Logf("REPORT over %v: the same %d times with errors allowed: %d operations failed, the slowest after %v", o, n, a.failed.Load(), ms(worst))
}

// TestClientKilled kills the daemon that maps, under I/O. The socket of a
// mapping is back at the same place within a second of the daemon's start,
// whether it is persistent or not, and every write that had completed is there.
func TestClientKilled(t *testing.T) { clientKilled(t, overTCP) }

// TestClientKilledOverRDMA: the same over RoCE, and over both in worlds of two paths.
func TestClientKilledOverRDMA(t *testing.T) { clientKilled(t, overBoth) }

func clientKilled(t *testing.T, o over) {
	t.Parallel()
	const within = time.Second
	var back times
	parallel(t, o.some(*kills), func(t *testing.T, world, n int) {
		w := newWorld(t, o)
		w.serve(false, "")
		w.map_("")
		w.export("disk", appBytes)
		if world%2 == 0 {
			w.addPaths(2)
		}
		m := w.mount(rdsd.MapSpec{Name: "disk", Persist: world < 2})
		a := newApp(t, m.URI)
		a.start()
		a.progress(200, 5*time.Second)
		for range n {
			pause()
			w.client.kill()
			w.client.start()
			w.client.again()
			began := a.clock.Now()
			var c *nbd.Client
			eventually(t, "the socket is back", func() bool {
				var err error
				c, err = nbd.DialURI(w.ctx(), m.URI)
				return err == nil
			})
			back.add(a.clock.Now() - began)
			if _, err := c.ReadAt(make([]byte, blockSize), 0); err != nil {
				t.Errorf("the first read: %v", err)
			}
			c.Close()
			a.progress(50, 10*time.Second)
			if a.bad() {
				break
			}
		}
		w.client.ready()
		a.stop()
		a.verify()
		a.d.inFile(t, w.file("disk"))
		back.count(a.ops.Load())
		again, err := w.client.vols().Mapping(w.ctx(), m.ID)
		if err != nil || again.URI != m.URI || again.Persist != m.Persist || again.State != rdsd.MappingOpen {
			t.Errorf("it was %+v, is %+v, %v", m, again, err)
		}
	})
	_, most := spread(back.l)
	if most > within {
		t.Errorf("a socket was back after %v; %v are allowed", ms(most), within)
	}
	t.Logf("REPORT over %v: the mapping daemon killed %d times under I/O: the socket back after %v, %d operations, nothing lost", o, len(back.l), &back, back.n)
}
