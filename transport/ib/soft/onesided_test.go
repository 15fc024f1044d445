package soft

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/ib"
	"github.com/rdsd/rdsd/transport/tcp"
	"github.com/rdsd/rdsd/transport/transporttest"
)

// TestOneSidedConformance runs the suite of one-sided links between two devices of this
// machine.
func TestOneSidedConformance(t *testing.T) {
	for name, c := range map[string]struct {
		b      string
		change func(*Config)
	}{"bursts": {local(3), nil}, "no bursts": {local(3), func(c *Config) { c.NoGSO = true }}, "one device": {local(2), nil}} {
		t.Run(name, func(t *testing.T) {
			a := open(t, local(2), nil, c.change)
			b := a
			if c.b != local(2) {
				b = open(t, c.b, nil, c.change)
			}
			pa := ib.New(a)
			pb := pa
			if b != a {
				pb = ib.New(b)
				t.Cleanup(pb.Close)
			}
			t.Cleanup(pa.Close)
			transporttest.RunOneSided(t, transporttest.OneSided{A: pa, B: pb,
				AddrA: netip.AddrPortFrom(a.cfg.Addr, 0), AddrB: netip.AddrPortFrom(b.cfg.Addr, 0)})
		})
	}
}

// peer is one end of a one-sided link of a benchmark.
type peer struct {
	l       transport.OneSided
	d       transport.Domain
	written func(w transport.Placed)
	why     error
	closed  chan struct{} // behind why
}

func (p *peer) Begin()                              {}
func (p *peer) End()                                { p.l.Flush() }
func (p *peer) Sent(int)                            {}
func (p *peer) Received([]byte, uint32, bool) error { return nil }
func (p *peer) Invalidated(uint32, int) error       { return nil }
func (p *peer) Revoked(uint32, int) error           { return nil }
func (p *peer) Closed(why error)                    { p.why = why; close(p.closed) }
func (p *peer) Written(w transport.Placed) error    { p.written(w); return nil }

// pair connects two ends, which end with the test.
func pair(t testing.TB, pa, pb transport.OneSidedProvider, local, remote netip.AddrPort) (x, y *peer) {
	x, y = &peer{d: pa.NewDomain(), closed: make(chan struct{})}, &peer{d: pb.NewDomain(), closed: make(chan struct{})}
	attr := transport.LinkAttr{Sends: 64, Recvs: 64}
	accepted := make(chan transport.OneSided, 1)
	ln, err := pb.ListenOneSided(remote, func(q transport.ConnRequest) {
		l, err := q.Accept(y.d, attr, nil)
		if err != nil {
			t.Error(err)
		}
		accepted <- l
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if x.l, _, err = pa.DialOneSided(ctx, local, ln.Addr(), x.d, attr, nil); err != nil {
		t.Fatal(err)
	}
	y.l = <-accepted
	t.Cleanup(func() {
		for _, p := range []*peer{x, y} {
			p.l.Close()
			<-p.closed
			p.d.Close()
		}
	})
	return x, y
}

// kinds are what is compared: each makes a pair of ends on two reactors.
var kinds = []struct {
	name string
	pair func(t testing.TB) (x, y *peer)
}{
	{"tcp", func(t testing.TB) (x, y *peer) {
		return pair(t, tcp.New(newReactor(t)), tcp.New(newReactor(t)), netip.AddrPortFrom(netip.MustParseAddr(local(2)), 0), netip.AddrPortFrom(netip.MustParseAddr(local(3)), 0))
	}},
	{"soft", func(t testing.TB) (x, y *peer) { return softPair(t, nil) }},
	{"soft-1024", func(t testing.TB) (x, y *peer) {
		return softPair(t, func(c *Config) { c.MTU = 1024 })
	}},
	{"soft-nogso", func(t testing.TB) (x, y *peer) { return softPair(t, func(c *Config) { c.NoGSO = true }) }},
}

func softPair(t testing.TB, change func(*Config)) (x, y *peer) {
	a, b := devices(t, change)
	pa, pb := ib.New(a), ib.New(b)
	t.Cleanup(pa.Close)
	t.Cleanup(pb.Close)
	return pair(t, pa, pb, netip.AddrPort{}, netip.AddrPortFrom(b.cfg.Addr, testPort))
}

// TestRefusedHearsWhy: who wrote where it may not hears so, and not only that its peer has ended the
// connection for it.
func TestRefusedHearsWhy(t *testing.T) {
	x, y := softPair(t, nil)
	x.l.Start(x, 64)
	y.l.Start(y, 64)
	x.l.Post(&transport.Op{Kind: transport.OpWriteImm, Key: 1, Data: pattern(100, 1)})
	x.l.Flush()
	<-x.closed
	if !errors.Is(x.why, rdserr.ErrProtocol) {
		t.Errorf("the end that wrote: %v", x.why)
	}
	<-y.closed
	if _, ok := errors.AsType[*transport.AccessError](y.why); !ok {
		t.Errorf("the end that was written to: %v", y.why)
	}
}

// work has x write n bytes to y and be answered by none, so often, depth of them at a time.
// It returns how long that took, and the processor time of the process.
func work(t testing.TB, x, y *peer, bytes, depth, messages int) (took, cpu time.Duration) {
	mem := make([]byte, bytes*depth)
	key, addr := y.d.Register(mem)
	data := pattern(bytes, 1)
	var mu sync.Mutex
	left, under := messages, 0
	done := make(chan struct{})
	op := transport.Op{Kind: transport.OpWriteImm, Key: key, Data: data}
	post := func(slot uint32) {
		left--
		under++
		op.Addr, op.Imm = addr+uint64(slot)*uint64(bytes), slot
		x.l.Post(&op)
	}
	x.written = func(w transport.Placed) {
		mu.Lock()
		defer mu.Unlock()
		if under--; left > 0 {
			post(w.Imm)
		} else if under == 0 {
			close(done)
		}
	}
	var answer transport.Op
	y.written = func(w transport.Placed) {
		answer = transport.Op{Kind: transport.OpWriteImm, Imm: w.Imm}
		y.l.Post(&answer)
	}
	began, cpuBegan := time.Now(), cpuTime()
	mu.Lock()
	for slot := range uint32(depth) {
		if left > 0 {
			post(slot)
		}
	}
	mu.Unlock()
	x.l.Flush()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("the messages do not come to an end")
	}
	took, cpu = time.Since(began), cpuTime()-cpuBegan
	y.d.Revoke(key)
	return took, cpu
}

// cpuTime is the processor time that the process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkOneSided compares one-sided links over TCP and over RoCE: writes of so many bytes,
// each answered by none, depth of them at a time.
func BenchmarkOneSided(b *testing.B) {
	for _, c := range []struct{ bytes, depth int }{{64, 1}, {4096, 32}, {64 << 10, 8}} {
		for _, k := range kinds {
			b.Run(fmt.Sprintf("bytes=%d/depth=%d/%s", c.bytes, c.depth, k.name), func(b *testing.B) {
				x, y := k.pair(b)
				x.written, y.written = func(transport.Placed) {}, func(transport.Placed) {}
				x.l.Start(x, 64)
				y.l.Start(y, 64)
				work(b, x, y, c.bytes, c.depth, 100)
				b.SetBytes(int64(c.bytes))
				b.ReportAllocs()
				b.ResetTimer()
				_, cpu := work(b, x, y, c.bytes, c.depth, b.N)
				b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), "cpu-ns/op")
			})
		}
	}
}
