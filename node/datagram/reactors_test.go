package datagram

import (
	"fmt"
	"math/rand"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rds"
)

func TestReactorOptions(t *testing.T) {
	byDefault := 1
	if runtime.NumCPU() > 4 {
		byDefault = 2
	}
	for _, c := range []struct {
		r    config.Reactor
		cpus []int
		spin time.Duration
	}{
		{config.Default().Reactor, []int{-1, -1}[:byDefault], reactor.DefaultSpin},
		{config.Reactor{Threads: 3}, []int{-1, -1, -1}, -1},
		{config.Reactor{CPUs: []int{1, 0}, Spin: config.Duration{Duration: time.Millisecond}}, []int{1, 0}, time.Millisecond},
		{config.Reactor{Threads: 1, CPUs: []int{7}}, []int{7}, -1},
	} {
		cfg := config.Default()
		cfg.Reactor = c.r
		if err := cfg.Validate(); err != nil {
			t.Errorf("%+v: %v", c.r, err)
		}
		got := reactorOptions(cfg)
		if len(got) != len(c.cpus) {
			t.Errorf("%+v: %d threads", c.r, len(got))
			continue
		}
		for i, o := range got {
			if o.CPU != c.cpus[i] || o.SpinFor != c.spin || o.Name != fmt.Sprintf("rdsd/%d", i) {
				t.Errorf("%+v: thread %d is %+v", c.r, i, o)
			}
		}
	}
	for want, r := range map[string]config.Reactor{
		"reactor.threads: 65 is":            {Threads: 65},
		"reactor.spin: -1":                  {Spin: config.Duration{Duration: -1}},
		"reactor.spin: 1s":                  {Spin: config.Duration{Duration: time.Second}},
		"reactor.cpus: 2 processors for 3":  {Threads: 3, CPUs: []int{0, 1}},
		"reactor.cpus: 5000 is not a proce": {CPUs: []int{5000}},
	} {
		cfg := config.Default()
		cfg.Reactor = r
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v; want %q", r, err, want)
		}
	}
}

// TestTurnTransmitsAtItsEnd: what one turn of a reactor queues for a peer stays
// until the turn ends, and leaves then.
func TestTurnTransmitsAtItsEnd(t *testing.T) {
	x, y := twoNodes(t, "127.0.0.55", "127.0.0.56")
	a, b := openFlow(t, x, 0), openFlow(t, y, 4000)
	a.send(t, b, 0) // the link is there, and its peer is known
	b.receive(t)
	w := x.worker
	const each = 20
	var before, after int
	done := make(chan struct{})
	queued := func() (bytes int) {
		e, _ := x.Lock()
		defer x.Unlock()
		for _, pe := range e.Peers() {
			bytes += pe.Conn().Queued().QueuedBytes
		}
		return bytes
	}
	w.Do(func() {
		for i := range each {
			_, now := x.Lock()
			if err := a.s.Send(now, b.s.Addr(), []byte{0, 0, 0, 0, 0, 0, 0, byte(i + 1)}, 0, rds.Quiet); err != nil {
				t.Error(err)
			}
			x.Unlock()
		}
		before = queued()
		w.Defer(func() { after = queued(); close(done) })
	})
	<-done
	for i := range each {
		if _, n := b.receive(t); n != uint64(i+1) {
			t.Errorf("received %d", n)
		}
	}
	if before != 8*each || after != 0 {
		t.Errorf("%d of %d bytes queued during the turn, %d at its end", before, 8*each, after)
	}
}

// TestUntilTick: never early, late by less than a grid, exact when it is near;
// and what is due within one grid is done together.
func TestUntilTick(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	for range 1000 {
		now := time.Hour + time.Duration(rng.Int63n(int64(time.Second)))
		at := now + time.Duration(rng.Int63n(int64(time.Second)))
		due := now + untilTick(now, at)
		if at-now <= tickNear && due != at || due < at || due-at >= tickGrid || at-now > tickNear && due%tickGrid != 0 {
			t.Fatalf("at %v what is due at %v waits until %v", now, at, due)
		}
	}
	if d := untilTick(time.Hour, time.Minute); d != 0 {
		t.Errorf("what is overdue waits %v", d)
	}
	if d := untilTick(0, time.Second); d != time.Second {
		t.Errorf("what is due on the grid waits %v", d)
	}
}
