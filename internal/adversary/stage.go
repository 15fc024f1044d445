package adversary

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Target is what an adversary may reach.
type Target struct {
	Socket  string     // the daemon's client socket; packets go to it with shm.SocketSuffix added
	Daemon  netip.Addr // the daemon's address
	Other   netip.Addr // that of the daemon it talks to
	Port    uint16     // TCP port of datagrams of both
	Volumes uint16     // TCP port of volumes of both
	RDMA    uint16     // port of volumes over RDMA of both
	Export  string     // a volume of Daemon that the adversary may write
	NBD     string     // socket of a mapping that the adversary may use
	HTTP    string     // the daemon's page of metrics and health
	Victims []netip.AddrPort

	// Loopback addresses. Of two nodes the one with the smaller address connects;
	// the larger one only pokes, and is answered by a connection.
	Allowed  netip.Prefix // smaller than the daemon's and allowed as peers
	Larger   netip.Prefix // larger, and allowed
	Stranger netip.Prefix // smaller, and not allowed
}

// Stage is where an act is played. What the act opens over it is closed when
// the act is over.
type Stage struct {
	Target
	*rand.Rand
	Ctx context.Context

	mu   sync.Mutex
	undo []func() // guarded by mu; nil once the stage is empty
	wg   sync.WaitGroup
}

// NewStage sets a stage whose random numbers come from seed. Clear must follow.
func NewStage(ctx context.Context, t Target, seed uint64) *Stage {
	return &Stage{Target: t, Rand: rand.New(rand.NewPCG(seed, 0x61637473)), Ctx: ctx}
}

// Over reports whether the act has to come to its end.
func (s *Stage) Over() bool { return s.Ctx.Err() != nil }

// Pause waits for d or until the stage is over.
func (s *Stage) Pause(d time.Duration) {
	select {
	case <-s.Ctx.Done():
	case <-time.After(d):
	}
}

// Hold waits a random time of at most d.
func (s *Stage) Hold(d time.Duration) { s.Pause(time.Duration(s.Int64N(int64(d)))) }

// After has f called when the act is over. Calls are made in reverse order.
func (s *Stage) After(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.undo = append(s.undo, f)
}

// Go runs f beside the act. f ends when the stage is over.
func (s *Stage) Go(f func()) { s.wg.Go(f) }

// Clear closes what the act opened and waits for what it started. The context
// must be over, or what the act started must end without.
func (s *Stage) Clear() {
	s.mu.Lock()
	list := s.undo
	s.undo = nil
	s.mu.Unlock()
	for i := len(list) - 1; i >= 0; i-- {
		list[i]()
	}
	s.wg.Wait()
}

// keep has a connection closed with the stage.
func keep[C interface{ Close() error }](s *Stage, c C) C {
	s.After(func() { c.Close() })
	return c
}

// from is a random address of p, neither the first nor the last.
func (s *Stage) from(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	n := 1 + s.IntN(1<<(32-p.Bits())-2)
	for i := 3; n > 0; i-- {
		n += int(b[i])
		b[i], n = byte(n), n>>8
	}
	return netip.AddrFrom4(b)
}

// Dial connects to a TCP port of the daemon from an address, and from a port
// when that is not 0.
func (s *Stage) Dial(from netip.Addr, fromPort, port uint16) (*net.TCPConn, error) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, fromPort)), Timeout: 2 * time.Second}
	c, err := d.DialContext(s.Ctx, "tcp", netip.AddrPortFrom(s.Daemon, port).String())
	if err != nil {
		return nil, err
	}
	t := keep(s, c.(*net.TCPConn))
	// A write that the daemon does not take must not hold the act for ever.
	if end, ok := s.Ctx.Deadline(); ok {
		t.SetDeadline(end.Add(50 * time.Millisecond))
	}
	return t, nil
}

// Unix connects to the daemon's client socket ("unix").
func (s *Stage) Unix() (*net.UnixConn, error) {
	var d net.Dialer
	c, err := d.DialContext(s.Ctx, "unix", s.Socket)
	if err != nil {
		return nil, err
	}
	u := keep(s, c.(*net.UnixConn))
	if end, ok := s.Ctx.Deadline(); ok {
		u.SetDeadline(end.Add(50 * time.Millisecond))
	}
	return u, nil
}

// noise fills b with random bytes.
func (s *Stage) noise(b []byte) []byte {
	for i := 0; i < len(b); i += 8 {
		v := s.Uint64()
		for j := i; j < min(i+8, len(b)); j++ {
			b[j], v = byte(v), v>>8
		}
	}
	return b
}

// oneOf picks one.
func oneOf[T any](s *Stage, list ...T) T { return list[s.IntN(len(list))] }

// Violation is what a daemon did and must not.
type Violation struct{ What string }

func (v *Violation) Error() string { return "the daemon " + v.What }

func violated(format string, args ...any) error { return &Violation{fmt.Sprintf(format, args...)} }
