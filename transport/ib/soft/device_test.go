package soft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/ib"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(peerEnv); addr != "" {
		fmt.Println(bePeer(addr))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// local is an address of this machine that no other process of tests takes: there is one port.
func local(i int) string {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, byte(64 + pid>>8&63), byte(pid), byte(i)}).String()
}

// port of RTRS over RDMA.
const testPort = 1234

const patience = 20 * time.Second

func newReactor(t testing.TB) *reactor.Reactor {
	t.Helper()
	r, err := reactor.New(reactor.Options{CPU: -1, Guard: &guard.Guard{Log: testLog(t)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// open makes the device of an address on a reactor of its own. at is where it lives.
func open(t testing.TB, addr string, at *host, change func(*Config)) *Device {
	t.Helper()
	cfg := Config{Addr: netip.MustParseAddr(addr), Reactor: newReactor(t), Log: testLog(t), Within: at.do}
	if change != nil {
		change(&cfg)
	}
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// counter is one of a device's.
func counter(d *Device, name string) uint64 {
	s := d.State()
	return s.Counter(name)
}

// end is one end of a connection, which keeps what it is told.
type end struct {
	t   testing.TB
	d   *Device
	dom ib.Domain
	q   ib.QP

	established chan struct{}
	ended       chan error
	done        chan ib.Completion
	ready       func() // in the place of keeping completions
	batch       [64]ib.Completion
	closed      sync.Once
}

func newEnd(t testing.TB, d *Device, cfg ib.QPConfig) *end {
	t.Helper()
	e := &end{t: t, d: d, established: make(chan struct{}, 1), ended: make(chan error, 1), done: make(chan ib.Completion, 4096)}
	var err error
	if e.dom, err = d.NewDomain(nil); err == nil {
		e.q, err = e.dom.NewQP(cfg, e)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.close)
	return e
}

// close ends the queue pair as its owner has to.
func (e *end) close() {
	e.closed.Do(func() {
		e.q.Disconnect()
		e.d.r.Sync()
		e.q.Close()
		e.dom.Close()
	})
}

func (e *end) Ready() {
	if !e.d.r.OnThread() {
		e.t.Error("a handler is called outside of its device's reactor")
	}
	if e.ready != nil {
		e.ready()
		return
	}
	for {
		n := e.q.Poll(e.batch[:])
		for _, c := range e.batch[:n] {
			e.done <- c
		}
		if n < len(e.batch) {
			return
		}
	}
}

func (e *end) Established()    { e.established <- struct{}{} }
func (e *end) Ended(why error) { e.ended <- why }

func (e *end) slots(n, size int) {
	e.t.Helper()
	var s []ib.Slot
	for i := range n {
		s = append(s, ib.Slot{ID: uint64(1000 + i), Data: make([]byte, size)})
	}
	if k, err := e.q.Receive(s); k != n || err != nil {
		e.t.Fatalf("%d of %d slots: %v", k, n, err)
	}
}

func (e *end) post(wr ...ib.WR) {
	e.t.Helper()
	if n, err := e.q.Post(wr); n != len(wr) || err != nil {
		e.t.Fatalf("%d of %d work requests: %v", n, len(wr), err)
	}
}

// next is the next completion.
func (e *end) next() ib.Completion {
	e.t.Helper()
	select {
	case c := <-e.done:
		return c
	case <-time.After(patience):
		e.t.Fatal("no completion")
		return ib.Completion{}
	}
}

// end waits for the connection's end.
func (e *end) end() error {
	e.t.Helper()
	select {
	case err := <-e.ended:
		return err
	case <-time.After(patience):
		e.t.Fatal("the connection does not end")
		return nil
	}
}

// connect connects two ends, the second of which listens.
func connect(t testing.TB, x, y *end) {
	t.Helper()
	l, err := y.d.Listen(netip.AddrPortFrom(y.d.cfg.Addr, testPort), func(a ib.Asked) {
		if err := a.Accept(y.q, ib.Param{Private: []byte("welcome"), Retry: 7, RNRRetry: 7}); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p, err := x.d.Dial(ctx, netip.AddrPort{}, l.Addr(), x.q, ib.Param{Private: []byte("hello"), Retry: 7, RNRRetry: 7})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(p.Param.Private, []byte("welcome\x00")) {
		t.Errorf("the answer shows %q", p.Param.Private)
	}
	select {
	case <-y.established:
	case <-time.After(patience):
		t.Fatal("the listening end is not told that the connection stands")
	}
}

// devices are two on one machine.
func devices(t testing.TB, change func(*Config)) (a, b *Device) {
	return open(t, local(2), nil, change), open(t, local(3), nil, change)
}

var depths = ib.QPConfig{Sends: 64, Recvs: 64}

func connected(t testing.TB, change func(*Config)) (x, y *end) {
	a, b := devices(t, change)
	x, y = newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, x, y)
	return x, y
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + seed)
	}
	return b
}

// TestOperations has each operation do what it says, in sizes around those of packets.
func TestOperations(t *testing.T) {
	for name, change := range map[string]func(*Config){"bursts": nil, "no bursts": func(c *Config) { c.NoGSO = true }} {
		t.Run(name, func(t *testing.T) {
			x, y := connected(t, change)
			mem, payload := make([]byte, 300<<10), uint64(0)
			for i, n := range []int{0, 1, 3, 512, 4095, 4096, 4097, 8192, 65536, 200_001} {
				payload += uint64(100 + 3*n)
				y.slots(3, 256<<10)
				key, err := y.dom.Expose(mem, 1<<40, ib.RemoteWrite|ib.PeerRevokes)
				if err != nil {
					t.Fatal(err)
				}
				data, addr := pattern(n, i), uint64(1<<40+100)
				clear(mem)
				x.post(
					ib.WR{ID: 1, Op: ib.Write, Key: key, Addr: addr - 100, Piece: [3][]byte{pattern(100, 99)}},
					ib.WR{ID: 2, Op: ib.WriteImm, Key: key, Addr: addr, Imm: 77, Piece: [3][]byte{data[:n/3], data[n/3:]}},
					ib.WR{ID: 3, Op: ib.SendImm, Imm: 78, Piece: [3][]byte{data}, Flags: ib.Solicited},
					ib.WR{ID: 4, Op: ib.SendInval, Key: key, Piece: [3][]byte{data[:n/2], data[n/2 : n/2], data[n/2:]}, Flags: ib.Signal},
				)
				c := y.next()
				if c.Op != ib.RecvWriteImm || c.N != n || c.Imm != 77 || c.Has&(ib.HasImm|ib.HasPlace) != ib.HasImm|ib.HasPlace || n > 0 && (c.Key != key || c.Addr != addr) {
					t.Errorf("%d bytes: a write came as %+v", n, c)
				}
				if !bytes.Equal(mem[:100], pattern(100, 99)) || !bytes.Equal(mem[100:100+n], data) {
					t.Errorf("%d bytes were written as others", n)
				}
				if c = y.next(); c.Op != ib.Recv || c.N != n || c.Imm != 78 || c.Has&ib.HasImm == 0 {
					t.Errorf("%d bytes: a send came as %+v", n, c)
				}
				if c = y.next(); c.Op != ib.Recv || c.N != n || c.Has&(ib.HasInval|ib.HasFilled) != ib.HasInval|ib.HasFilled || c.Key != key || c.Filled != 100+n {
					t.Errorf("%d bytes: a send that ends a key came as %+v", n, c)
				}
				if w := y.dom.Withdraw(key); w != (ib.Withdrawal{Known: true}) {
					t.Errorf("a key that the peer has ended: %+v", w)
				}
				if c = x.next(); c != (ib.Completion{ID: 4, Op: ib.SendInval}) {
					t.Errorf("%d bytes: completed as %+v", n, c)
				}
			}
			select {
			case c := <-x.done:
				t.Errorf("work without a signal completed as %+v", c)
			default:
			}
			accounts(t, x.d, y.d, payload)
		})
	}
}

// TestEnd: Disconnect ends both ends, each as it should be told.
func TestEnd(t *testing.T) {
	x, y := connected(t, nil)
	x.slots(1, 8)
	y.slots(2, 8)
	x.q.Disconnect()
	if c := x.next(); c.Status != ib.Flushed || c.Op != ib.Recv {
		t.Errorf("a slot of the end that disconnects: %+v", c)
	}
	if err := y.end(); err != io.EOF {
		t.Errorf("the other end: %v, want EOF", err)
	}
	for range 2 {
		if c := y.next(); c.Status != ib.Flushed {
			t.Errorf("a slot of the other end: %+v", c)
		}
	}
	y.post(ib.WR{ID: 9, Op: ib.Send})
	if c := y.next(); c.ID != 9 || c.Status != ib.Flushed {
		t.Errorf("work behind the end: %+v", c)
	}
}

// TestRefusals: what a listener says no to, and what nobody listens for.
func TestRefusals(t *testing.T) {
	a, b := devices(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	to := netip.AddrPortFrom(b.cfg.Addr, testPort)
	dial := func() error {
		_, err := a.Dial(ctx, netip.AddrPort{}, to, newEnd(t, a, depths).q, ib.Param{Private: []byte("?")})
		return err
	}
	rejected := func(what string, err error, reason uint16) {
		t.Helper()
		if r, ok := errors.AsType[*ib.Rejected](err); !ok || r.Reason != reason {
			t.Errorf("%s: %v, want reason %d", what, err, reason)
		} else if reason == ib.ReasonConsumer && !bytes.HasPrefix(r.Private, []byte("no room\x00")) {
			t.Errorf("%s: shows %q", what, r.Private)
		}
	}
	rejected("nobody listens", dial(), 8)
	l, err := b.Listen(to, func(a ib.Asked) {
		if p := a.Param().Private; len(p) != 56 || !bytes.HasPrefix(p, []byte("?\x00")) {
			t.Errorf("the listener is shown %q", p)
		}
		if !a.FromPort() {
			t.Error("a device sends from another port than RoCEv2's")
		}
		a.Reject([]byte("no room"))
		if a.Accept(newEnd(t, b, depths).q, ib.Param{}) == nil {
			t.Error("a second answer was taken")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	rejected("the listener refuses", dial(), ib.ReasonConsumer)
	if _, err := b.Listen(to, nil); err == nil {
		t.Error("a port is listened on twice")
	}
	l.Close()
	rejected("nobody listens any more", dial(), 8)
	short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	_, err = a.Dial(short, netip.AddrPort{}, netip.AddrPortFrom(netip.MustParseAddr(local(4)), 1234), newEnd(t, a, depths).q, ib.Param{})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody is there: %v, want that the time is up", err)
	}
	if _, err = a.Dial(ctx, netip.AddrPort{}, netip.MustParseAddrPort("[::1]:1234"), newEnd(t, a, depths).q, ib.Param{}); err == nil {
		t.Error("an address of the other family was dialled")
	}
}

// TestAccess: a peer that touches what it may not ends its connection, and both ends say so.
func TestAccess(t *testing.T) {
	x, y := connected(t, nil)
	mem := make([]byte, 100)
	key, err := y.dom.Expose(mem, 0, ib.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	x.post(ib.WR{ID: 1, Op: ib.Write, Key: key, Addr: 50, Piece: [3][]byte{pattern(51, 0)}, Flags: ib.Signal})
	if c := x.next(); c.ID != 1 || c.Status != ib.RemoteAccess {
		t.Errorf("completed as %+v", c)
	}
	if e, ok := errors.AsType[*ib.StatusError](x.end()); !ok || e.Status != ib.RemoteAccess {
		t.Errorf("the end that wrote: %v", e)
	}
	if e, ok := errors.AsType[*ib.AccessError](y.end()); !ok || e.Key != key || e.Addr != 50 || e.N != 51 || e.Op != ib.Write {
		t.Errorf("the end that was written to: %v", e)
	}
	if !bytes.Equal(mem, make([]byte, 100)) {
		t.Error("bytes were written beyond what was exposed")
	}
}

// TestDomains: a key is of no use to queue pairs of another domain.
func TestDomains(t *testing.T) {
	x, y := connected(t, nil)
	other, err := y.d.NewDomain(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	mem := make([]byte, 100)
	key, err := other.Expose(mem, 0, ib.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	x.post(ib.WR{Op: ib.Write, Key: key, Piece: [3][]byte{pattern(10, 0)}, Flags: ib.Signal})
	if c := x.next(); c.Status != ib.RemoteAccess {
		t.Errorf("completed as %+v", c)
	}
}

// TestKeysAreCounted: the keys by which peers may write memory are those that nobody has ended, of
// all domains.
func TestKeysAreCounted(t *testing.T) {
	x, y := connected(t, nil)
	has := func(n int, when string) {
		t.Helper()
		if s := y.d.State(); s.Keys != n {
			t.Errorf("%d keys %s, want %d", s.Keys, when, n)
		}
	}
	other, err := y.d.NewDomain(nil)
	if err != nil {
		t.Fatal(err)
	}
	var keys []uint32
	for _, o := range []ib.Domain{y.dom, y.dom, other} {
		key, err := o.Expose(make([]byte, 100), 0, ib.RemoteWrite|ib.PeerRevokes)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	has(3, "after three were made")
	y.slots(1, 8)
	x.post(ib.WR{Op: ib.SendInval, Key: keys[0], Flags: ib.Signal})
	if c := y.next(); c.Has&ib.HasInval == 0 {
		t.Errorf("completed as %+v", c)
	}
	has(2, "after the peer has ended one")
	y.dom.Withdraw(keys[1])
	has(1, "after its owner has ended another")
	other.Close()
	has(0, "after the last one's domain was closed")
}

// TestGuard: a guard sees memory before it is written, and its error ends the connection; one
// that wants to be asked again is, and the peer does not notice.
func TestGuard(t *testing.T) {
	a, b := devices(t, nil)
	x, y := newEnd(t, a, depths), newEnd(t, b, depths)
	mem := make([]byte, 20000)
	asked, deferred := 0, 0
	full := errors.New("no memory for this")
	y.dom.Guard(func(p []byte) error {
		switch asked++; {
		case asked > 40:
			return full
		case asked%3 == 1:
			deferred++
			return ib.ErrNotNow
		}
		clear(p)
		return nil
	})
	connect(t, x, y)
	key, err := y.dom.Expose(mem, 0, ib.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	x.post(ib.WR{ID: 1, Op: ib.Write, Key: key, Piece: [3][]byte{pattern(20000, 3)}, Flags: ib.Signal})
	c := x.next()
	b.r.Sync() // whose thread has called the guard
	if c.Status != ib.OK || !bytes.Equal(mem, pattern(20000, 3)) || deferred == 0 {
		t.Errorf("completed as %+v after %d times of waiting", c, deferred)
	}
	b.r.Sync() // before its thread writes there again
	for range 20 {
		x.post(ib.WR{ID: 2, Op: ib.Write, Key: key, Piece: [3][]byte{pattern(20000, 3)}})
	}
	if err := y.end(); !errors.Is(err, full) {
		t.Errorf("the end whose guard refused: %v", err)
	}
	if err := x.end(); err == nil {
		t.Error("the peer's end has no error")
	}
}

// TestClose: a device that is closed ends its connections and says so, and its address can
// be had again.
func TestClose(t *testing.T) {
	x, y := connected(t, nil)
	if err := x.d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := x.end(); !errors.Is(err, ErrClosed) {
		t.Errorf("the closed end: %v", err)
	}
	if err := y.end(); err != io.EOF {
		t.Errorf("the other end: %v, want EOF", err)
	}
	if _, err := x.dom.NewQP(depths, x); !errors.Is(err, ErrClosed) {
		t.Errorf("a queue pair of a closed device: %v", err)
	}
	open(t, x.d.cfg.Addr.String(), nil, nil)
}

// TestFault: a handler that panics costs its own connection.
func TestFault(t *testing.T) {
	a, b := devices(t, nil)
	x, y := newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, x, y)
	u, v := newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, u, v)
	v.slots(2, 8)
	y.slots(2, 8)
	b.r.Sync() // ready is its thread's
	y.ready = func() { y.ready = nil; panic("a handler of a test") }
	b.r.Sync()
	x.post(ib.WR{Op: ib.Send})
	if _, ok := errors.AsType[*guard.Error](y.end()); !ok {
		t.Error("the connection did not end with the panic")
	}
	if err := x.end(); err != io.EOF {
		t.Errorf("its peer: %v", err)
	}
	u.post(ib.WR{Op: ib.Send, Piece: [3][]byte{[]byte("still")}})
	if c := v.next(); c.N != 5 {
		t.Errorf("another connection: %+v", c)
	}
}

// TestSmallerMTU: a device is given a smaller MTU than its interface has, of those that there
// are.
func TestSmallerMTU(t *testing.T) {
	for mtu, want := range map[int]int{0: 4096, 256: 256, 1024: 1024} {
		if d := open(t, local(5), nil, func(c *Config) { c.MTU = mtu }); d.Info().MTU != want {
			t.Errorf("MTU %d is %d", mtu, d.Info().MTU)
		} else {
			d.Close()
		}
	}
	for _, mtu := range []int{-1, 1, 1500, 8192} {
		if d, err := Open(Config{Addr: netip.MustParseAddr(local(5)), Reactor: newReactor(t), MTU: mtu}); err == nil {
			d.Close()
			t.Errorf("MTU %d is taken", mtu)
		}
	}
}

// TestLargerMTURefused: who asks for larger packets than the interface takes hears so, and is not
// refused for a reason that only the program could tell.
func TestLargerMTURefused(t *testing.T) {
	a, b := open(t, local(2), nil, nil), open(t, local(3), nil, func(c *Config) { c.MTU = 1024 })
	l, err := b.Listen(netip.AddrPortFrom(b.cfg.Addr, testPort), func(ib.Asked) { t.Error("the listener is asked") })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dial := func() error {
		_, err := a.Dial(ctx, netip.AddrPort{}, l.Addr(), newEnd(t, a, depths).q, ib.Param{})
		return err
	}
	if r, ok := errors.AsType[*ib.Rejected](dial()); !ok || r.Reason != 26 || !strings.Contains(r.Error(), "MTU") {
		t.Errorf("refused with %v, want reason 26", r)
	}
	for d, mtu := range map[*Device]int{a: 1024, b: 512} {
		d.watch.close() // it would see that nothing has changed
		d.mu.Lock()
		d.change(port{d.port.netdev, mtu}, nil)
		d.mu.Unlock()
	}
	if r, ok := errors.AsType[*ib.Rejected](dial()); !ok || r.Reason != 26 {
		t.Errorf("after a change of the interface: refused with %v, want reason 26", r)
	}
}

// TestSteadyStateDoesNotAllocate covers both ends of answered writes, in one packet and in
// many.
func TestSteadyStateDoesNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("elsewhere: under the race detector; the phase without it runs this")
	}
	for _, bytes := range []int{64, 64 << 10} {
		t.Run(fmt.Sprint(bytes), func(t *testing.T) { steady(t, bytes) })
	}
}

func steady(t *testing.T, bytes int) {
	x, y := softPair(t, nil)
	x.written, y.written = func(transport.Placed) {}, func(transport.Placed) {}
	x.l.Start(x, 64)
	y.l.Start(y, 64)
	work(t, x, y, bytes, 8, 500)
	var before, after runtime.MemStats
	const messages = 3000
	runtime.ReadMemStats(&before)
	work(t, x, y, bytes, 8, messages)
	runtime.ReadMemStats(&after)
	// What the test itself needs, and the runtime's own, is independent of how many there are.
	if n := after.Mallocs - before.Mallocs; n > messages/20 {
		t.Errorf("%d allocations for %d writes of %d bytes", n, messages, bytes)
	}
}
