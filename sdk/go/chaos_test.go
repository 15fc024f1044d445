//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// chaos is two sockets whose calls end at any moment: contexts, loops that are left, that panic or end
// their goroutine, and the daemon, which is started again and again. It keeps the accounts.
type chaos struct {
	t       *testing.T
	again   func() // ends the daemon of a and begins another one
	a, b    *rdsd.Socket
	stuck   netip.AddrPort // where nobody is
	longest time.Duration  // a call's context
	lost    bool           // what is delivered may be lost before it is read

	mu       sync.Mutex
	tag      map[uint64]uint32           // guarded by mu; number of what was accepted, by its tag
	maybe    map[uint32]bool             // guarded by mu; numbers of what may have been accepted
	outcome  map[uint64]rdsd.OutcomeKind // guarded by mu
	got      []uint32                    // guarded by mu; numbers, in the order in which they were read
	problems []string                    // guarded by mu
}

func (c *chaos) fault(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.problems) < 10 {
		c.problems = append(c.problems, fmt.Sprintf(format, args...))
	}
}

// brief is a context that ends at any moment, or has ended.
func (c *chaos) brief(rnd *rand.Rand) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Duration(rnd.Int64N(int64(c.longest))))
}

// ends reports whether err is one that a call may have here.
func (c *chaos) ends(op string, err error) bool {
	for _, s := range []error{rdserr.ErrTimeout, rdserr.ErrCanceled, rdserr.ErrWouldBlock, rdserr.ErrShutdown, rdserr.ErrTooLarge, rdserr.ErrCongested} {
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

// send is the only sender, until enough: numbers rise, and those that are not accepted are left out.
func (c *chaos) send(rnd *rand.Rand, enough func(n uint32) bool) {
	accepted := func(tag uint64, n uint32) {
		c.mu.Lock()
		c.tag[tag] = n
		c.mu.Unlock()
	}
	// A call that has ended without an answer: the daemon may have the datagram.
	undecided := func(err error, n uint32) {
		if oe, ok := errors.AsType[*rdsd.OpError](err); ok && oe.Undecided {
			c.mu.Lock()
			c.maybe[n] = true
			c.mu.Unlock()
		}
	}
	for n := uint32(1); !enough(n); {
		ctx, cancel := c.brief(rnd)
		switch rnd.IntN(4) {
		case 0:
			tag, err := c.a.SendTag(ctx, c.b.LocalAddr(), numbered(rnd, n))
			if err == nil {
				accepted(tag, n)
			} else {
				c.ends("send", err)
				undecided(err, n)
			}
			n++
		case 1:
			sl, err := c.a.Reserve(ctx, c.b.LocalAddr(), 100)
			if err != nil {
				c.ends("reserve", err)
				break
			}
			if rnd.IntN(4) == 0 {
				sl.Abort()
				break
			}
			if rnd.IntN(8) == 0 {
				c.again() // a slot of a life that has ended
			}
			tag, err := sl.Commit(copy(sl.Bytes(), numbered(rnd, n)))
			if err == nil {
				accepted(tag, n)
			} else {
				c.ends("commit", err)
				undecided(err, n)
			}
			n++
		default:
			ds := make([]rdsd.Datagram, 1+rnd.IntN(50))
			for i := range ds {
				ds[i] = rdsd.Datagram{Addr: c.b.LocalAddr(), Payload: numbered(rnd, n+uint32(i))}
			}
			way := c.a.SendBatch
			if rnd.IntN(3) == 0 {
				way = c.a.TrySendBatch
			}
			took, err := way(ctx, ds)
			refused := map[int]bool{}
			if be, ok := errors.AsType[*rdsd.BatchError](err); ok {
				for _, e := range be.Errors {
					c.ends("batch", e.Err)
					refused[e.Index] = true
					undecided(e.Err, n+uint32(e.Index))
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

// decided takes one outcome.
func (c *chaos) decided(o rdsd.Outcome) {
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
		ctx, cancel := c.brief(rnd)
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
func (c *chaos) read(d rdsd.Datagram) {
	if len(d.Payload) < 4 || d.Addr != c.a.LocalAddr() {
		c.fault("%d bytes from %v", len(d.Payload), d.Addr)
		return
	}
	c.mu.Lock()
	c.got = append(c.got, binary.LittleEndian.Uint32(d.Payload))
	c.mu.Unlock()
}

// receive is the only reader, by every way there is.
func (c *chaos) receive(rnd *rand.Rand, stop <-chan struct{}) {
	var leases []rdsd.Lease
	defer func() {
		for _, l := range leases {
			l.Release()
		}
	}()
	into, buf := make([]rdsd.Datagram, 20), make([]byte, 30)
	for !stopped(stop) {
		ctx, cancel := c.brief(rnd)
		n, err := 0, error(nil)
		switch way := rnd.IntN(6); way {
		case 0:
			var d rdsd.Datagram
			if d, err = c.b.Recv(ctx); err == nil {
				c.read(d)
			}
		case 1:
			var d rdsd.Datagram
			var k int
			if k, d.Addr, err = c.b.RecvInto(ctx, buf); err == nil {
				d.Payload = buf[:k]
				c.read(d)
			}
		case 2:
			n, err = c.b.RecvBatch(ctx, into[:1+rnd.IntN(len(into))])
		case 3:
			var l rdsd.Lease
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
		ctx, cancel := c.brief(rnd)
		var err error
		switch rnd.IntN(5) {
		case 0:
			err = c.a.Flush(ctx)
		case 1:
			_, err = c.a.Congested(ctx, c.stuck)
		case 2:
			_, _, err = c.b.PeekSize(ctx)
		case 3:
			_, err = c.a.CancelSentTo(ctx, c.stuck)
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
	before := runtime.NumGoroutine()
	d := rdsd.NewRingDaemon(t)
	fds, maps := rdsd.OpenHere(t)
	client := d.Dial()
	c := &chaos{t: t, stuck: rdsd.StuckAddr, longest: 400 * time.Microsecond, again: func() { d.Stop(); d.Start() }}
	c.a, c.b = c.bind(client, rdsd.LocalAddr, rdsd.WithOutcomes()), c.bind(client, rdsd.PeerAddr)
	c.play(func(n uint32) bool { return n > 8000 })
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	rdsd.WantOpenHere(t, fds, maps)
	d.Stop()
	rdsd.Eventually(t, "the goroutines have ended", func() bool { return runtime.NumGoroutine() <= before+2 })
	d.Start() // for the end of the test
}

// TestChaosWithDaemons: the same with two rdsd, of which one ends and begins again, killed or told to.
func TestChaosWithDaemons(t *testing.T) {
	for _, whose := range []string{"the sender's", "the reader's"} {
		t.Run(whose, func(t *testing.T) {
			overBoth(t, func(t *testing.T, bind binder) { chaosWithDaemons(t, bind, whose == "the reader's") })
		})
	}
}

func chaosWithDaemons(t *testing.T, bind binder, readers bool) {
	a, b := rdsdtest.Pair(t)
	ends := a
	if readers {
		ends = b
	}
	var one sync.Mutex // one end at a time
	kill := false
	again := func() {
		one.Lock()
		defer one.Unlock()
		if kill = !kill; kill {
			ends.Kill()
		} else if status := ends.Stop(); status != 0 {
			t.Errorf("exit status %d", status)
		}
		ends.Run()
	}
	c := &chaos{t: t, stuck: netip.MustParseAddrPort("127.0.0.250:7"), longest: 4 * time.Millisecond, again: again}
	c.a, c.b = bind(a, 4000, rdsd.WithOutcomes()), bind(b, 4001)
	// What a stream's daemon had placed and not handed over ends with it.
	c.lost = readers && c.b.FrontEnd() == rdsd.GRPC
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 6 {
			again()
			time.Sleep(rand.N(200 * time.Millisecond)) // whatever is sent meanwhile
		}
	}()
	c.play(func(uint32) bool { return stopped(ended) })
}

func (c *chaos) bind(client *rdsd.Client, at netip.AddrPort, opts ...rdsd.BindOption) *rdsd.Socket {
	c.t.Helper()
	s, err := client.Bind(within(c.t, 4*rdsd.Patience), at, opts...)
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// play sends until enough, beside everything else, and closes the accounts.
func (c *chaos) play(enough func(n uint32) bool) {
	t := c.t
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c.tag, c.outcome, c.maybe = map[uint64]uint32{}, map[uint64]rdsd.OutcomeKind{}, map[uint32]bool{}
	var readers, others sync.WaitGroup
	stop, read := make(chan struct{}), make(chan struct{})
	rnd := func(who uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, who)) }
	readers.Go(func() { c.receive(rnd(1), read) })
	for i := range uint64(2) {
		readers.Go(func() { c.outcomes(rnd(2+i), read) })
	}
	others.Go(func() { c.disturb(rnd(4), stop) })
	c.send(rnd(5), enough)
	close(stop)
	others.Wait()
	for end := time.Now().Add(4 * rdsd.Patience); ; time.Sleep(time.Millisecond) {
		if want, open := c.open(); len(want) == 0 && open == 0 {
			break
		} else if time.Now().After(end) {
			t.Errorf("%d accepted datagrams have no outcome, %d that were delivered are not read", open, len(want))
			break
		}
	}
	close(read)
	readers.Wait()
	c.audit()
}

// open is what was delivered and is not read, and how many have no outcome.
func (c *chaos) open() (want map[uint32]bool, open int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	want = map[uint32]bool{}
	for tag, n := range c.tag {
		if kind, ok := c.outcome[tag]; !ok {
			open++
		} else if kind == rdsd.Delivered && !c.lost {
			want[n] = true
		}
	}
	for _, n := range c.got {
		delete(want, n)
	}
	return want, open
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
	// What may have been accepted has no tag that anybody knows.
	if len(c.outcome) > len(c.maybe) {
		t.Errorf("%d outcomes are of datagrams that were not accepted, which %d may have been: %v", len(c.outcome), len(c.maybe), c.outcome)
	}
	last := uint32(0)
	for _, n := range c.got {
		if n <= last {
			t.Fatalf("number %d was read after %d", n, last)
		}
		if last = n; !number[n] && !c.maybe[n] {
			t.Errorf("number %d was read and not accepted", n)
		}
	}
	t.Logf("%d accepted, %d perhaps, %d read", len(c.tag), len(c.maybe), len(c.got))
}
