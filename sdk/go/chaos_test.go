//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
)

// chaos is two sockets over rings whose calls end at any moment: contexts, loops that are left, that panic or end
// their goroutine, and the daemon, which is started again and again. It keeps the accounts.
type chaos struct {
	t    *testing.T
	d    *ringDaemon
	a, b *Socket

	mu       sync.Mutex
	tag      map[uint64]uint32      // guarded by mu; number of what was accepted, by its tag
	outcome  map[uint64]OutcomeKind // guarded by mu
	got      []uint32               // guarded by mu; numbers, in the order in which they were read
	problems []string               // guarded by mu
}

func (c *chaos) fault(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.problems) < 10 {
		c.problems = append(c.problems, fmt.Sprintf(format, args...))
	}
}

// brief is a context that ends at any moment, or has ended.
func brief(rnd *rand.Rand) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Duration(rnd.IntN(400))*time.Microsecond)
}

// ends reports whether err is one that a call may have here.
func (c *chaos) ends(op string, err error) bool {
	for _, s := range []error{rdserr.ErrTimeout, rdserr.ErrCanceled, rdserr.ErrWouldBlock, rdserr.ErrShutdown, rdserr.ErrTooLarge} {
		if errors.Is(err, s) {
			return true
		}
	}
	c.fault("%s: %v", op, err)
	return false
}

// numbered is the payload of datagram number n.
func numbered(rnd *rand.Rand, n uint32) []byte {
	p := make([]byte, 4+rnd.IntN(3)*rnd.IntN(60))
	binary.LittleEndian.PutUint32(p, n)
	return p
}

// send is the only sender: numbers rise, and those that are not accepted are left out.
func (c *chaos) send(rnd *rand.Rand, count uint32) {
	accepted := func(tag uint64, n uint32) {
		c.mu.Lock()
		c.tag[tag] = n
		c.mu.Unlock()
	}
	for n := uint32(1); n <= count; {
		ctx, cancel := brief(rnd)
		switch rnd.IntN(4) {
		case 0:
			tag, err := c.a.SendTag(ctx, peerAddr, numbered(rnd, n))
			if err == nil {
				accepted(tag, n)
			} else {
				c.ends("send", err)
			}
			n++
		case 1:
			sl, err := c.a.Reserve(ctx, peerAddr, 100)
			if err != nil {
				c.ends("reserve", err)
				break
			}
			if rnd.IntN(4) == 0 {
				sl.Abort()
				break
			}
			if rnd.IntN(8) == 0 {
				c.d.again() // a slot of a life that has ended
			}
			tag, err := sl.Commit(copy(sl.Bytes(), numbered(rnd, n)))
			if err == nil {
				accepted(tag, n)
			} else {
				c.ends("commit", err)
			}
			n++
		default:
			ds := make([]Datagram, 1+rnd.IntN(50))
			for i := range ds {
				ds[i] = Datagram{Addr: peerAddr, Payload: numbered(rnd, n+uint32(i))}
			}
			way := c.a.SendBatch
			if rnd.IntN(3) == 0 {
				way = c.a.TrySendBatch
			}
			took, err := way(ctx, ds)
			refused := map[int]bool{}
			if be, ok := errors.AsType[*BatchError](err); ok {
				for _, e := range be.Errors {
					c.ends("batch", e.Err)
					refused[e.Index] = true
				}
			} else if err != nil {
				c.fault("batch: %v", err)
			}
			if took != len(ds)-len(refused) {
				c.fault("%d of %d were accepted, and %d refused", took, len(ds), len(refused))
			}
			for i := range ds {
				if !refused[i] {
					accepted(ds[i].Tag, n+uint32(i))
				}
			}
			n += uint32(len(ds))
		}
		cancel()
	}
}

// again ends the daemon and begins another one.
func (d *ringDaemon) again() {
	d.stop()
	d.start()
}

// decided takes one outcome.
func (c *chaos) decided(o Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if was, ok := c.outcome[o.Tag]; ok && len(c.problems) < 10 {
		c.problems = append(c.problems, fmt.Sprintf("datagram %d has the outcomes %v and %v", o.Tag, was, o.Kind))
	}
	c.outcome[o.Tag] = o.Kind
}

// inBody runs a loop whose body may panic or end its goroutine.
func inBody(loop func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }()
		loop()
	}()
	<-done
}

// leave leaves the body of a loop in one of its ways; false: by break.
func leave(rnd *rand.Rand) bool {
	switch rnd.IntN(12) {
	case 0:
		panic("a fault of the program")
	case 1:
		runtime.Goexit()
	case 2:
		return false
	}
	return true
}

// stopped reports whether stop is closed.
func stopped(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

// outcomes reads until stop, by loops that end in any way.
func (c *chaos) outcomes(rnd *rand.Rand, stop <-chan struct{}) {
	for !stopped(stop) {
		ctx, cancel := brief(rnd)
		inBody(func() {
			for o, err := range c.a.Outcomes(ctx) {
				if err != nil {
					c.ends("outcomes", err)
					return
				}
				c.decided(o)
				if !leave(rnd) {
					break
				}
			}
		})
		cancel()
	}
}

// read takes the number of a datagram.
func (c *chaos) read(d Datagram) {
	if len(d.Payload) < 4 || d.Addr != localAddr {
		c.fault("%d bytes from %v", len(d.Payload), d.Addr)
		return
	}
	c.mu.Lock()
	c.got = append(c.got, binary.LittleEndian.Uint32(d.Payload))
	c.mu.Unlock()
}

// receive is the only reader, by every way there is.
func (c *chaos) receive(rnd *rand.Rand, stop <-chan struct{}) {
	var leases []Lease
	defer func() {
		for _, l := range leases {
			l.Release()
		}
	}()
	into, buf := make([]Datagram, 20), make([]byte, 30)
	for !stopped(stop) {
		ctx, cancel := brief(rnd)
		n, err := 0, error(nil)
		switch way := rnd.IntN(6); way {
		case 0:
			var d Datagram
			if d, err = c.b.Recv(ctx); err == nil {
				c.read(d)
			}
		case 1:
			var d Datagram
			var k int
			if k, d.Addr, err = c.b.RecvInto(ctx, buf); err == nil {
				d.Payload = buf[:k]
				c.read(d)
			}
		case 2:
			n, err = c.b.RecvBatch(ctx, into[:1+rnd.IntN(len(into))])
		case 3:
			var l Lease
			n, l, err = c.b.Borrow(ctx, into[:1+rnd.IntN(len(into))])
			for _, d := range into[:n] {
				c.read(d) // before any lease goes
			}
			n = 0
			if leases = append(leases, l, l); len(leases) > 20 { // each twice
				rnd.Shuffle(len(leases), func(i, j int) { leases[i], leases[j] = leases[j], leases[i] })
				for _, l := range leases[10:] {
					l.Release()
				}
				leases = leases[:10]
			}
		default:
			inBody(func() {
				loop := c.b.Messages
				if way == 4 {
					loop = c.b.All
				}
				for d, err := range loop(ctx) {
					if err != nil {
						c.ends("loop", err)
						return
					}
					c.read(d)
					if !leave(rnd) {
						break
					}
				}
			})
		}
		if err != nil {
			c.ends("receive", err)
		}
		for _, d := range into[:n] {
			c.read(d)
		}
		cancel()
	}
}

// disturb asks everything else, and makes requests that nobody answers.
func (c *chaos) disturb(rnd *rand.Rand, stop <-chan struct{}) {
	for !stopped(stop) {
		ctx, cancel := brief(rnd)
		var err error
		switch rnd.IntN(5) {
		case 0:
			err = c.a.Flush(ctx)
		case 1:
			_, err = c.a.Congested(ctx, stuckAddr)
		case 2:
			_, _, err = c.b.PeekSize(ctx)
		case 3:
			_, err = c.a.CancelSentTo(ctx, stuckAddr)
		default:
			inBody(func() {
				for range c.a.WatchCongestion(ctx) {
					if !leave(rnd) {
						break
					}
				}
			})
		}
		if err != nil {
			c.ends("question", err)
		}
		cancel()
		time.Sleep(100 * time.Microsecond) // the daemon of these tests writes each answer
	}
}

// TestChaosOverRings: whatever ends in the middle, each accepted datagram has one outcome, none that was not has one,
// what was delivered is read once and in order, also by later lives of the socket, and nothing else is.
func TestChaosOverRings(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	before := runtime.NumGoroutine()
	d := newRingDaemon(t)
	fds, maps := openHere(t)
	client := d.dial()
	ctx := testContext(t)
	a, err := client.Bind(ctx, localAddr, WithOutcomes())
	if err != nil {
		t.Fatal(err)
	}
	b, err := client.Bind(ctx, peerAddr)
	if err != nil {
		t.Fatal(err)
	}
	c := &chaos{t: t, d: d, a: a, b: b, tag: map[uint64]uint32{}, outcome: map[uint64]OutcomeKind{}}
	var readers, others sync.WaitGroup
	stop, read := make(chan struct{}), make(chan struct{})
	rnd := func(who uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, who)) }
	readers.Go(func() { c.receive(rnd(1), read) })
	for i := range uint64(2) {
		readers.Go(func() { c.outcomes(rnd(2+i), read) })
	}
	others.Go(func() { c.disturb(rnd(4), stop) })
	c.send(rnd(5), 8000)
	close(stop)
	others.Wait()
	delivered := func() (want map[uint32]bool, open int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		want = map[uint32]bool{}
		for tag, n := range c.tag {
			if kind, ok := c.outcome[tag]; !ok {
				open++
			} else if kind == Delivered {
				want[n] = true
			}
		}
		for _, n := range c.got {
			delete(want, n)
		}
		return want, open
	}
	for end := time.Now().Add(4 * patience); ; time.Sleep(time.Millisecond) {
		if want, open := delivered(); len(want) == 0 && open == 0 {
			break
		} else if time.Now().After(end) {
			t.Errorf("%d accepted datagrams have no outcome, %d that were delivered are not read", open, len(want))
			break
		}
	}
	close(read)
	readers.Wait()
	c.audit()
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	wantOpenHere(t, fds, maps)
	d.stop()
	eventually(t, "the goroutines have ended", func() bool { return runtime.NumGoroutine() <= before+2 })
	d.start() // for the end of the test
}

// audit closes the accounts.
func (c *chaos) audit() {
	t := c.t
	for _, p := range c.problems {
		t.Error(p)
	}
	number := map[uint32]bool{}
	for tag, n := range c.tag {
		number[n] = true
		delete(c.outcome, tag)
	}
	for tag, kind := range c.outcome {
		t.Errorf("datagram %d was not accepted and has the outcome %v", tag, kind)
	}
	last := uint32(0)
	for _, n := range c.got {
		if n <= last {
			t.Fatalf("number %d was read after %d", n, last)
		}
		if last = n; !number[n] {
			t.Errorf("number %d was read and not accepted", n)
		}
	}
	t.Logf("%d accepted, %d read", len(c.tag), len(c.got))
}
