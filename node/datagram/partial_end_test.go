package datagram

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// What is in the middle of a payload is given up when nothing more of it comes, and when it takes too
// long; what goes on is let be, and what may only look so because nobody read it for a while. A link
// that is given up is read to its end, whoever is there.
func TestPartialPayloadsEnd(t *testing.T) {
	const (
		begins = "begins" // a payload
		more   = "more"   // of it
		next   = "next"   // the rest of it, and as long a one begins
		sweep  = "sweep"
		silent = time.Minute
	)
	drips := []any{begins}
	for range 70 {
		drips = append(drips, 5*time.Second, more, sweep)
	}
	for name, c := range map[string]struct {
		steps []any
		ends  bool
	}{
		"goes on":             {[]any{begins, silent / 2, more, sweep, silent / 2, more, sweep, sweep}, false},
		"silent":              {[]any{begins, silent + 1, sweep, time.Second, sweep, sweep, sweep}, true},
		"stood still":         {[]any{begins, 10 * silent, sweep}, false},
		"read between":        {[]any{begins, 4 * silent, sweep, more, sweep, sweep, silent, sweep, sweep}, false},
		"another as long":     {[]any{begins, 4 * time.Minute, next, 59 * time.Second, more, 59 * time.Second, sweep, sweep}, false},
		"silent in the next":  {[]any{begins, silent, next, silent + 1, sweep, sweep}, true},
		"drips":               {drips, true},
		"drips, and is whole": {append(slices.Clone(drips[:3*58]), next, 50*time.Second, more, sweep, sweep), false},
	} {
		for _, kernel := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, kernel %v", name, kernel), func(t *testing.T) {
				s := newSeam(t, nil)
				k := s.bind(rds.SocketOptions{})
				f := (*fakeLink)(nil)
				if kernel {
					f = s.kernel(k)
				} else {
					f = s.rdsd(k)
				}
				start, passed := time.Now(), atomic.Int64{} // a link that is closed looks at the clock, too
				wall := func() time.Time { return start.Add(time.Duration(passed.Load())) }
				s.a.machine.Wall = wall
				const n = 1 << 20
				l, h := f.h.(*laneLink), wire.Header{Seq: 2, SPort: 9, DPort: 4, Len: n}
				header := func() []byte {
					raw := h.Append(nil)
					wire.SetChecksum(raw)
					return raw
				}
				for _, step := range c.steps {
					switch step {
					case begins:
						l.Begin()
						l.Buffer(header(), n)
						l.End()
					case more:
						l.Begin()
						l.End()
					case next:
						l.Begin()
						if err := l.Frame(&transport.Frame{Raw: header(), Payload: make([]byte, n)}); err != nil {
							t.Fatal(err) // to nobody's port
						}
						h.Seq++
						l.Buffer(header(), n)
						l.End()
					case sweep:
						s.a.Sweep(wall(), silent)
					default:
						passed.Add(int64(step.(time.Duration)))
					}
				}
				closed := func() []bool { _, _, l, _ := f.state(); return l }
				if c.ends {
					s.until("it is closed", func() bool { return len(closed()) > 0 })
				} else {
					time.Sleep(20 * time.Millisecond) // nothing tells that nothing comes
				}
				if want := []bool{true}; c.ends && !slices.Equal(closed(), want) || !c.ends && len(closed()) > 0 {
					t.Errorf("closed %v, want %v: %v", closed(), c.ends, want)
				}
			})
		}
	}
}

// TestStuckReactorLosesNothing: a kernel's link whose reactor stood still in the middle of a payload is
// swept with bytes unread that TCP has acknowledged. All of them are placed.
func TestStuckReactorLosesNothing(t *testing.T) {
	c := config.Default()
	addr, kernel := netip.MustParseAddr("127.0.0.94"), netip.MustParseAddr("127.0.0.93")
	c.RDS.Addresses, c.RDS.Port = []netip.Addr{addr}, freeTCPPort(t)
	c.Peers = []config.PeerRule{{Address: config.Prefix{Prefix: netip.PrefixFrom(kernel, 32)}, Kernel: true}}
	c.HTTP.Listen, c.API.Ledger, c.Reactor.Threads = "", "none", 1
	a := newTestHost(t, c)
	if err := a.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	h := a.list[0]
	sink := openFlow(t, h, 4000)

	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(kernel, 0)), Timeout: 10 * time.Second}
	nc, err := d.Dial("tcp", netip.AddrPortFrom(addr, c.RDS.Port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	write := func(b []byte) {
		t.Helper()
		if _, err := nc.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	const n = 32 << 10
	var out []byte
	for i := range 3 { // datagrams 1, 2 and 3
		h := wire.Header{Seq: uint64(i + 1), SPort: 9, DPort: 4000, Len: n}
		out = h.Append(out)
		out = binary.BigEndian.AppendUint64(out, uint64(i+1))
		out = append(out, make([]byte, n-8)...)
	}
	write(out[:n/2])
	await.Until(t, 10*time.Second, "a part of a payload is there", func() bool {
		a.partials.mu.Lock()
		defer a.partials.mu.Unlock()
		return len(a.partials.links) == 1
	})
	still, stop := make(chan struct{}), make(chan struct{})
	on := sync.OnceFunc(func() { close(stop) })
	defer on()
	a.workers[0].thread.Do(func() { close(still); <-stop })
	<-still
	write(out[n/2:])
	raw, err := nc.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	await.Until(t, 10*time.Second, "all is acknowledged", func() (acked bool) {
		raw.Control(func(fd uintptr) {
			left, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
			acked = err == nil && left == 0
		})
		return acked
	})
	for i := range 3 {
		a.Sweep(time.Now().Add(time.Minute+time.Duration(i)*time.Second), 20*time.Second)
	}
	await.Until(t, 10*time.Second, "the link is given up", func() (given bool) {
		e, _ := h.Lock()
		defer h.Unlock()
		e.Known(kernel).Conn().EachLane(func(p *conn.Lane) { given = given || p.State() == conn.Disconnecting })
		return given
	})
	on()
	for i := range uint64(3) {
		if src, got := sink.receive(t); src.Addr() != kernel || got != i+1 {
			t.Errorf("datagram %d of %v, want %d of %v", got, src, i+1, kernel)
		}
	}
}
