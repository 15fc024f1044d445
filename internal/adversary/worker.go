package adversary

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"
)

// Worker plays acts drawn from a seed, lanes of them side by side, each for a
// moment, until ctx ends. Every act is announced on log before it begins, so
// that a worker that is killed has told what it was at. The first violation
// ends it.
func Worker(ctx context.Context, t Target, acts []Act, seed uint64, lanes int, log io.Writer) error {
	// What an act allocates and forgets is not the daemon's matter, but a
	// worker must not take the machine's memory.
	debug.SetMemoryLimit(512 << 20)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var first error
	var wg sync.WaitGroup
	for lane := range lanes {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(lane)))
			for ctx.Err() == nil {
				a, sub, limit := draw(rng, acts), rng.Uint64(), 50*time.Millisecond+time.Duration(rng.Int64N(int64(1500*time.Millisecond)))
				mu.Lock()
				fmt.Fprintln(log, a.Name)
				mu.Unlock()
				if err := play(ctx, t, a, sub, limit); err != nil {
					mu.Lock()
					if first == nil {
						first = fmt.Errorf("%s: %w", a.Name, err)
					}
					mu.Unlock()
					cancel()
				}
			}
		})
	}
	wg.Wait()
	return first
}

func play(ctx context.Context, t Target, a Act, seed uint64, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	s := NewStage(ctx, t, seed)
	err := a.Play(s)
	cancel()
	s.Clear()
	return err
}
