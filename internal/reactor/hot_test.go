package reactor

import (
	"fmt"
	"math/rand"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mailbox is the least a ring is: a count in memory, a flag that says the
// reader sleeps, a doorbell.
type mailbox struct {
	r      *Reactor
	fd     int
	posted atomic.Int64
	asleep atomic.Bool
	rings  atomic.Int64

	taken atomic.Int64 // written by the reactor's thread
	took  func(n int64)

	declared, taken2 int // Sleep and Wake, on the thread
}

func newMailbox(t testing.TB, r *Reactor) *mailbox {
	m := &mailbox{r: r, fd: eventfd(t)}
	m.asleep.Store(true)
	if err := r.Add(m.fd, unix.EPOLLIN, m); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *mailbox) post() {
	m.posted.Add(1)
	if m.asleep.Load() {
		m.rings.Add(1)
		ringFD(m.fd)
	}
}

func (m *mailbox) Ready(uint32) {
	drainFD(m.fd)
	m.r.Hot(m)
}

func (m *mailbox) Poll(time.Duration) bool {
	n := m.posted.Load() - m.taken.Load()
	if n == 0 {
		return false
	}
	n = min(n, 16)
	m.taken.Add(n)
	if m.took != nil {
		m.took(n)
	}
	return true
}

func (m *mailbox) Sleep() bool {
	m.declared++
	m.asleep.Store(true)
	if m.posted.Load() != m.taken.Load() {
		m.Wake()
		return false
	}
	return true
}

func (m *mailbox) Wake() {
	m.taken2++
	m.asleep.Store(false)
}

// TestNoWakeUpIsLost: producers that wait for each answer, at every distance
// from the moment the reactor falls asleep, and others that do not wait.
func TestNoWakeUpIsLost(t *testing.T) {
	for _, spin := range []time.Duration{-1, resting, time.Microsecond, 20 * time.Microsecond} {
		t.Run(fmt.Sprint(spin), func(t *testing.T) {
			r := open(t, spin)
			rounds := int64(400)
			if spin == resting { // its goroutine waits for its turn among these
				rounds = 60
			}
			var wg sync.WaitGroup
			for g := range 4 {
				m := newMailbox(t, r)
				m.took = func(int64) {}
				wg.Go(func() {
					rng := rand.New(rand.NewSource(int64(g)))
					limit := time.Now().Add(20 * time.Second)
					for i := range rounds {
						m.post()
						if g == 3 && i%50 != 49 {
							continue
						}
						for m.taken.Load() != m.posted.Load() {
							runtime.Gosched()
							if time.Now().After(limit) {
								t.Errorf("%d of %d taken", m.taken.Load(), m.posted.Load())
								return
							}
						}
						for range rng.Intn(3000) {
							m.asleep.Load()
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestHotPollerLeaves: an idle poller is told Sleep once and polled no more,
// although the reactor is busy; its doorbell brings it back.
func TestHotPollerLeaves(t *testing.T) {
	r := open(t, 0)
	busy := &busyPoller{}
	m := newMailbox(t, r)
	r.Hot(busy)
	for range 3 {
		m.post()
		limit := time.Now().Add(10 * time.Second)
		for !m.asleep.Load() || m.taken.Load() != m.posted.Load() {
			if time.Now().After(limit) {
				t.Fatal("still hot after 10 s without work")
			}
			time.Sleep(time.Millisecond)
		}
	}
	on(r, func() {
		if _, ok := r.hot.place[m]; ok || m.declared != 3 || m.taken2 != 3 {
			t.Errorf("hot %v, told Sleep %d and Wake %d times in 3 rounds", ok, m.declared, m.taken2)
		}
		r.Forget(busy)
	})
	if n := m.rings.Load(); n != 3 {
		t.Errorf("%d rings in 3 rounds", n)
	}
}

// TestForget: a poller that was forgotten is not called any more, also when it
// was dozing or forgets itself or others in the middle of a turn.
func TestForget(t *testing.T) {
	r := open(t, -1)
	a, b := &busyPoller{}, &forgetful{}
	b.f = func() { r.Forget(b); r.Forget(a) }
	on(r, func() { r.Hot(a); r.Hot(b); r.Hot(b) })
	r.Sync()
	m := newMailbox(t, r)
	m.post()
	for m.taken.Load() == 0 {
		runtime.Gosched()
	}
	r.Forget(m)
	r.Sync()
	on(r, func() {
		if len(r.hot.list)+len(r.hot.place) > 0 || b.polls != 1 {
			t.Errorf("%d pollers, %d places, %d polls of one that forgot itself", len(r.hot.list), len(r.hot.place), b.polls)
		}
	})
	r.Remove(m.fd)
	before := m.declared
	on(r, func() {})
	if m.declared != before {
		t.Error("a forgotten poller is called")
	}
}

type forgetful struct {
	busyPoller
	f func()
}

func (p *forgetful) Poll(time.Duration) bool { p.polls++; p.f(); return true }

// TestDozersGoOn: pollers that slept for a short time because the reactor did
// are hot again without a ring, and told so.
func TestDozersGoOn(t *testing.T) {
	r := open(t, -1)
	m := newMailbox(t, r)
	woken := false
	for range 100 {
		m.post()
		for m.taken.Load() != m.posted.Load() {
			runtime.Gosched()
		}
		on(r, func() {}) // something else wakes the reactor at once
		on(r, func() {
			_, hot := r.hot.place[m]
			woken = woken || hot
			if hot && m.asleep.Load() {
				t.Fatal("hot, but its other side was told to ring")
			}
		})
	}
	if !woken {
		t.Error("a poller that slept for microseconds was never hot again")
	}
}

// TestIdleCostsNothing: a thousand descriptors and pollers that had work once, and half a second
// in which the reactor turns a few times, for the two calls that ask it.
func TestIdleCostsNothing(t *testing.T) {
	r := bound(t, 0)
	const n = 1000
	boxes := make([]*mailbox, n)
	for i := range boxes {
		boxes[i] = newMailbox(t, r)
		boxes[i].post()
	}
	limit := time.Now().Add(10 * time.Second)
	for i := 0; i < n; {
		if m := boxes[i]; m.asleep.Load() && m.taken.Load() == 1 {
			i++
		} else if time.Now().After(limit) {
			t.Fatal("not asleep after 10 s")
		} else {
			time.Sleep(time.Millisecond)
		}
	}
	var before, after, slept, sleeps uint64
	on(r, func() { before, slept, _, _ = r.Stats() })
	time.Sleep(500 * time.Millisecond)
	on(r, func() { after, sleeps, _, _ = r.Stats() })
	// One in ten runs on a shared machine has 6 to 8; a reactor that looks each 10 ms would have 50.
	if turns := after - before; turns > 20 || sleeps == slept {
		t.Errorf("an idle reactor turned %d times and slept %d times", turns, sleeps-slept)
	}
}
