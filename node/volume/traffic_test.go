package volume

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
)

// device is what traffic needs of an NBD client.
type device interface {
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
	Flush() error
}

// traffic writes and reads back what it has written, each worker in a range of
// its own, until it is stopped.
type traffic struct {
	stop    atomic.Bool
	wg      sync.WaitGroup
	ops     atomic.Int64
	longest atomic.Int64 // ns of one operation, by the clock
	clock   *await.Clock // of the time that all of this had
	mu      sync.Mutex
	errs    []error // guarded by mu
}

const (
	trafficWorkers = 4
	trafficRange   = 512 << 10
)

func startTraffic(t *testing.T, d device) *traffic {
	x := &traffic{clock: await.NewClock(t)}
	for i := range int64(trafficWorkers) {
		x.wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 7))
			gens := make([]byte, trafficRange>>12) // of each block of 4 KiB
			for !x.stop.Load() {
				if err := x.one(d, rnd, i*trafficRange, gens); err != nil {
					x.mu.Lock()
					x.errs = append(x.errs, err)
					x.mu.Unlock()
					return
				}
			}
		})
	}
	t.Cleanup(func() { x.stop.Store(true) })
	return x
}

// one writes some blocks, or reads some and compares.
func (x *traffic) one(d device, rnd *rand.Rand, base int64, gens []byte) error {
	n := 1 << rnd.IntN(6)
	at := rnd.IntN(len(gens) - n + 1)
	p := make([]byte, n<<12)
	began := x.clock.Now()
	var err error
	write := rnd.IntN(2) == 0
	if write {
		gen := byte(rnd.IntN(255) + 1)
		for i := range n {
			pattern(p[i<<12:][:4096], base+int64(at+i)<<12, gen)
			gens[at+i] = gen
		}
		if _, err = d.WriteAt(p, base+int64(at)<<12); err == nil && rnd.IntN(16) == 0 {
			err = d.Flush()
		}
	} else {
		_, err = d.ReadAt(p, base+int64(at)<<12)
	}
	took := x.clock.Now() - began
	for was := x.longest.Load(); int64(took) > was && !x.longest.CompareAndSwap(was, int64(took)); was = x.longest.Load() {
	}
	if err != nil {
		return err
	}
	x.ops.Add(1)
	if write {
		return nil
	}
	want := make([]byte, 4096)
	for i := range n {
		clear(want)
		if gens[at+i] != 0 {
			pattern(want, base+int64(at+i)<<12, gens[at+i])
		}
		if string(want) != string(p[i<<12:][:4096]) {
			return fmt.Errorf("wrong bytes at %d", base+int64(at+i)<<12)
		}
	}
	return nil
}

// progress waits until n operations more are done.
func (x *traffic) progress(t *testing.T, n int64) {
	t.Helper()
	from := x.ops.Load()
	eventually(t, fmt.Sprintf("%d operations", n), func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.ops.Load() >= from+n || len(x.errs) > 0
	})
}

// end stops it and fails the test for each error.
func (x *traffic) end(t *testing.T) {
	t.Helper()
	x.stop.Store(true)
	x.wg.Wait()
	for _, err := range x.errs {
		t.Error(err)
	}
	t.Logf("%d operations, the longest took %v", x.ops.Load(), time.Duration(x.longest.Load()))
}
