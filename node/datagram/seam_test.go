package datagram

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/netlocal"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// The seam between a host and its engine: the simulator has a shell of its own, so
// what this one does for the core is tried here, against links that do nothing but
// what a test says. Nothing else is due while a test waits, so what is forgotten at
// the seam never comes.

var errFake = errors.New("out of order")

// TestSeamDial: a dial that fails is told with its reason and made again; a link is
// started; what is closed under way is closed.
func TestSeamDial(t *testing.T) {
	s := newSeam(t, nil)
	s.p.mu.Lock()
	s.p.fails = errFake
	s.p.mu.Unlock()
	k := s.bind(rds.SocketOptions{})
	s.send(k, seamHigher, "a")
	s.until("three dials", func() bool { return s.p.dialled() >= 3 })
	if err := s.info(seamHigher).LastErr; !errors.Is(err, errFake) {
		t.Errorf("the lane's error is %v", err)
	}
	s.p.mu.Lock()
	s.p.fails = nil
	s.p.mu.Unlock()
	l := s.dialled()
	if st := s.info(seamHigher).State; st != conn.Up {
		t.Errorf("the lane is %v", st)
	}
	s.until("the probe leaves", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.frames) > 0 })
	if l.remote != netip.AddrPortFrom(seamHigher, s.h.port) || l.local.Addr() != seamLocal {
		t.Errorf("dialled from %v to %v", l.local, l.remote)
	}
}

// TestSeamAcked: what TCP has acknowledged is polled for and told, also at the end of
// a link; what it has not is sent again on the next.
func TestSeamAcked(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	l := s.kernel(k)
	if n := s.undecided(k); n != 1 {
		t.Fatalf("%d undecided before anything is acknowledged", n)
	}
	l.mu.Lock()
	l.acked = l.bytes
	l.mu.Unlock()
	s.until("what is acknowledged is delivered", func() bool { return s.undecided(k) == 0 })
	s.send(k, seamHigher, "second")
	s.until("it leaves", func() bool { _, _, _, n := l.state(); return n == 2 })
	l.mu.Lock()
	second := l.bytes
	l.mu.Unlock()
	s.send(k, seamHigher, "third")
	s.until("it leaves", func() bool { _, _, _, n := l.state(); return n == 3 })
	l.mu.Lock()
	l.acked = second
	third := l.frames[len(l.frames)-1].Seq
	l.mu.Unlock()
	l.end(io.EOF)
	if n := s.undecided(k); n != 1 {
		t.Errorf("%d undecided, want the third alone", n)
	}
	if err := s.info(seamHigher).LastErr; !errors.Is(err, io.EOF) {
		t.Errorf("the lane's error is %v", err)
	}
	m := s.dialled()
	s.until("the third is sent again", func() bool { _, _, _, n := m.state(); return n == 1 })
	m.mu.Lock()
	if f := m.frames[len(m.frames)-1]; f.Seq != third || f.Flags&wire.FlagRetransmitted == 0 {
		t.Errorf("sent again as %+v", f)
	}
	m.mu.Unlock()
}

// TestSeamFull: while a link keeps a batch nothing is written; when it has left, what
// was queued meanwhile follows by itself, on the reactor's thread or any other.
func TestSeamFull(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	l := s.kernel(k)
	counted := func() (c stats.Counters) {
		var shot Snapshot
		s.a.Read(&shot)
		return shot.Counters
	}
	l.mu.Lock()
	l.keep = true
	l.mu.Unlock()
	s.send(k, seamHigher, "kept")
	s.until("a batch is kept", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.kept != nil })
	s.send(k, seamHigher, "queued")
	if c := counted(); c.TCPSndbufFull != 1 || c.SendDelayedRetry != 0 || c.TCPWriteSpace != 0 {
		t.Errorf("the link is full: %d full sockets, %d late turns, %d times room", c.TCPSndbufFull, c.SendDelayedRetry, c.TCPWriteSpace)
	}
	if _, _, _, n := l.state(); n != 2 {
		t.Errorf("%d datagrams have left, want 2", n)
	}
	l.written()
	s.until("the queued one leaves", func() bool { _, _, _, n := l.state(); return n == 3 })
	if c := counted(); c.SendDelayedRetry != 1 || c.TCPWriteSpace != 1 {
		t.Errorf("the link had room: %d late turns, %d times room", c.SendDelayedRetry, c.TCPWriteSpace)
	}

	// A batch that is kept and lost with its link is sent again on the next.
	l.mu.Lock()
	l.keep, l.acked = true, l.bytes
	l.mu.Unlock()
	s.send(k, seamHigher, "lost")
	s.until("a batch is kept", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.kept != nil })
	l.mu.Lock()
	b, h := l.kept, l.h
	l.kept, l.keep = nil, false
	l.mu.Unlock()
	h.Written(b, errFake)
	if c := counted(); c.SendDelayedRetry != 2 || c.TCPWriteSpace != 1 {
		t.Errorf("the link failed: %d late turns, %d times room", c.SendDelayedRetry, c.TCPWriteSpace)
	}
	s.send(k, seamHigher, "after")
	if _, _, _, n := l.state(); n != 4 {
		t.Errorf("%d datagrams have left: something was written on a dead link", n)
	}
	l.end(errFake)
	m := s.dialled()
	s.until("both are sent", func() bool { _, _, _, n := m.state(); return n == 2 })
}

// TestSeamSendFails: an error of Send is the end of writing on that link, and no
// more; its Closed brings the next.
func TestSeamSendFails(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	l := s.kernel(k)
	l.mu.Lock()
	l.acked, l.sendErr = l.bytes, errFake
	l.mu.Unlock()
	s.send(k, seamHigher, "fails")
	s.until("it is tried", func() bool {
		p := s.lane(seamHigher)
		s.h.Lock()
		defer s.h.Unlock()
		return s.h.laneOf(p).current(p.Attempt()) == nil
	})
	l.mu.Lock()
	l.sendErr = nil
	l.mu.Unlock()
	s.send(k, seamHigher, "not here")
	if _, _, _, n := l.state(); n != 1 {
		t.Errorf("%d datagrams were written on a link that has failed", n)
	}
	l.end(errFake)
	m := s.dialled()
	s.until("both are sent", func() bool { _, _, _, n := m.state(); return n == 2 })
}

// TestSeamAlive: a peer whose TCP takes a large batch slowly is alive as long as it
// does, and dead soon after.
func TestSeamAlive(t *testing.T) {
	for try := 1; !seamAlive(t); try++ {
		if try == 20 {
			t.Fatal("the lane is given up while its peer takes what is written, or the machine paused each time")
		}
	}
}

// seamAlive is one try. It returns false when the lane was given up and the machine paused for so
// long that the peer was silent.
func seamAlive(t *testing.T) (alive bool) {
	const dead = 300 * time.Millisecond
	s := newSeam(t, func(c *rds.Config) { c.Conn.Heartbeat, c.Conn.DeadAfter = 50*time.Millisecond, dead })
	k := s.bind(rds.SocketOptions{})
	s.send(k, seamHigher, "a")
	l := s.dialled()
	l.mu.Lock()
	l.mute = true
	l.mu.Unlock()
	if err := l.bring(t, hello(1)...); err != nil {
		t.Fatal(err)
	}
	s.until("the datagram leaves", func() bool { _, _, _, n := l.state(); return n == 1 })
	begun := time.Now()
	alive = true
	for last := begun; time.Since(begun) < 3*dead; time.Sleep(dead / 30) {
		now := time.Now()
		l.h.Progress()
		st := s.info(seamHigher).State
		if paused := time.Since(last) > dead/2; st != conn.Up && !paused {
			t.Fatalf("the lane is %v while its peer takes what is written", st)
		} else if st != conn.Up {
			alive = false
			break
		}
		last = now
	}
	s.until("silence ends the link", func() bool { _, _, c, _ := l.state(); return len(c) == 1 && c[0] })
	l.mu.Lock()
	l.mute = false
	l.mu.Unlock()
	l.end(net.ErrClosed)
	return alive
}

// TestSeamResume: a full receiver stops its kernel's link, and room makes it go on.
func TestSeamResume(t *testing.T) {
	s := newSeam(t, func(c *rds.Config) { c.HardFactor = 0 })
	w := make(wakeup, 1)
	k := s.bind(rds.SocketOptions{RcvBufBytes: 4096, Data: w})
	l := s.kernel(k)
	account := s.h.all.deps.Memory.Account(quota.Peer(seamHigher))
	defer account.Close()
	before := account.Used()
	big := string(make([]byte, 512<<10))
	err := error(nil)
	seq := uint64(2)
	for ; err == nil && seq < 50; seq++ {
		err = l.bring(t, frameOf(9, k.Addr().Port(), seq, big))
	}
	if err != transport.ErrPause {
		t.Fatalf("a receiver that does not read ends with %v", err)
	}
	if got, want := account.Used()-before, int64(len(big)+transport.MostBehind); got != want {
		t.Errorf("its peer is charged %d bytes for what the link holds, want %d", got, want)
	}
	if _, n, _, _ := l.state(); n != 0 {
		t.Fatalf("resumed %d times before there is room", n)
	}
	_, now := s.h.Lock()
	for d, ok := k.Queue().Recv(); ok; d, ok = k.Queue().Recv() {
		d.Release()
	}
	k.ReadAll(now)
	s.h.Unlock()
	s.until("the link goes on", func() bool { _, n, _, _ := l.state(); return n == 1 })
	select {
	case <-w:
	default:
		t.Error("the reader was never woken")
	}
	if err := l.bring(t, frameOf(9, k.Addr().Port(), seq-1, big)); err != nil {
		t.Fatal(err)
	}
	if got := account.Used() - before; got != 0 {
		t.Errorf("its peer is charged %d bytes when the link goes on", got)
	}
}

// TestSeamAccept: who may not be a peer is closed at once and counted; a link that
// comes while an older one is up waits for that one's end, and is read then.
func TestSeamAccept(t *testing.T) {
	s := newSeam(t, nil)
	stranger := s.accepted(netip.MustParseAddr("198.51.100.1"))
	if n, _, c, _ := stranger.state(); n != 0 || len(c) != 1 || c[0] || s.a.peers.Refused() != 1 {
		t.Errorf("a stranger's link: started %d times, closed %v, %d refusals counted", n, c, s.a.peers.Refused())
	}
	shakes := func() uint64 { return s.a.peers.Budgets()[0].Used }
	one := s.accepted(seamLower)
	if n, _, c, _ := one.state(); n != 1 || len(c) != 0 || shakes() != 1 {
		t.Fatalf("a peer's link: started %d times, closed %v, %d handshakes", n, c, shakes())
	}
	one.mu.Lock()
	one.mute = true
	one.mu.Unlock()
	k := s.bind(rds.SocketOptions{})
	if err := one.bring(t, hello(1)...); err != nil {
		t.Fatal(err)
	}
	s.until("the peer is known", func() bool { return shakes() == 0 })
	two := s.accepted(seamLower)
	if n, _, c, _ := two.state(); n != 0 || len(c) != 0 || shakes() != 1 {
		t.Errorf("a second link: started %d times, closed %v, %d handshakes", n, c, shakes())
	}
	if _, _, c, _ := one.state(); len(c) != 1 || !c[0] {
		t.Errorf("the first was closed %v, want once and gracefully", c)
	}
	three := s.accepted(seamLower) // and the second is stale already
	if n, _, c, _ := two.state(); n != 0 || len(c) != 1 || c[0] || shakes() != 1 {
		t.Errorf("the second: started %d times, closed %v, %d handshakes", n, c, shakes())
	}
	one.end(io.EOF)
	s.until("the third is read", func() bool { n, _, _, _ := three.state(); return n > 0 })
	if n := s.count(seamLower); n != 1 {
		t.Errorf("%d links are known", n)
	}
	if err := three.bring(t, append(hello(1), frameOf(9, k.Addr().Port(), 1, "here"))...); err != nil {
		t.Fatal(err)
	}
	s.h.Lock()
	n := k.Info().RecvN
	s.h.Unlock()
	if n != 1 || shakes() != 0 {
		t.Errorf("%d datagrams have come over the third link; %d handshakes are left", n, shakes())
	}
}

func (s *seam) count(remote netip.Addr) int {
	p := s.lane(remote)
	s.h.Lock()
	defer s.h.Unlock()
	return len(s.h.laneOf(p).links)
}

// TestSeamPoke: the smaller address is asked to connect by a link that is closed at
// once; from the larger one nothing else is taken, and it is dialled.
func TestSeamPoke(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	s.send(k, seamLower, "a")
	select {
	case l := <-s.p.news:
		s.until("the poke is closed", func() bool { _, _, c, _ := l.state(); return len(c) == 1 && !c[0] })
		if n, _, _, _ := l.state(); n != 0 {
			t.Error("a poke is read")
		}
	case <-time.After(5 * time.Second):
		t.Fatal("nobody was poked")
	}
	l := s.accepted(seamHigher)
	if n, _, c, _ := l.state(); n != 0 || len(c) != 1 || c[0] {
		t.Errorf("a poke: started %d times, closed %v", n, c)
	}
	s.dialled()
	if b := s.a.peers.Budgets()[0]; b.Used != 0 {
		t.Errorf("%d handshakes are left", b.Used)
	}
}

// TestSeamClosed: a host that is closed takes nothing more, and its links are closed
// gracefully.
func TestSeamClosed(t *testing.T) {
	s := newSeam(t, nil)
	l := s.kernel(s.bind(rds.SocketOptions{}))
	s.h.stop()
	if _, _, c, _ := l.state(); len(c) == 0 || !c[0] {
		t.Errorf("the link was closed %v", c)
	}
	late := s.accepted(seamLower)
	if n, _, c, _ := late.state(); n != 0 || len(c) != 1 || c[0] {
		t.Errorf("a link that is late: started %d times, closed %v", n, c)
	}
	dials := s.p.dialled()
	s.h.background(func() { t.Error("something is begun after the end") })
	s.h.links.Wait()
	if s.p.dialled() != dials {
		t.Error("dialled after the end")
	}
}

// TestSeamRules: a rule that is taken back ends the links of the peers it let in,
// and no others; what is refused is not dialled.
func TestSeamRules(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	l := s.kernel(k)
	next := *s.a.deps.Conf()
	next.Peers = []config.PeerRule{{Address: config.Prefix{Prefix: netip.MustParsePrefix("203.0.113.0/29")}, Kernel: true}}
	s.a.deps.SetConf(&next)
	if n := s.a.DropRefused(); n != 0 {
		t.Errorf("%d links were dropped without a reason", n)
	}
	noKernels := next
	noKernels.Peers = []config.PeerRule{{Address: config.Prefix{Prefix: netip.MustParsePrefix("203.0.113.0/29")}}}
	s.a.deps.SetConf(&noKernels)
	if n := s.a.DropRefused(); n != 1 {
		t.Errorf("%d links of kernels were dropped, want 1", n)
	}
	s.until("the kernel's link is closed", func() bool { _, _, c, _ := l.state(); return len(c) > 0 && c[0] })
	// The lane is dialled again at once, and the next link is refused by what is known
	// of the peer: both say that no rule lets it in.
	if err := s.info(seamHigher).LastErr; err == nil || !errors.Is(err, errNotAllowed) && !strings.Contains(err.Error(), "kernel peers are not allowed") {
		t.Errorf("the lane's error is %v", err)
	}
	nobody := next
	nobody.Peers = nil
	s.a.deps.SetConf(&nobody)
	if _, err := s.h.connectNow(context.Background(), conn.Action{Lane: s.lane(seamHigher)}); !errors.Is(err, errNotAllowed) {
		t.Errorf("dialled although no rule allows it: %v", err)
	}
}

// TestSeamAddressLost: what an address that is gone has sent and nobody acknowledged
// is unknown, and its links are ended.
func TestSeamAddressLost(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	l := s.kernel(k)
	s.h.lostAddress(false)
	s.until("it is decided", func() bool { return s.undecided(k) == 0 })
	s.until("the link is closed", func() bool { _, _, c, _ := l.state(); return len(c) > 0 })
}

// TestSeamTimer: the host's timer is armed for what is due first, again after each
// tick, and an earlier time moves it.
func TestSeamTimer(t *testing.T) {
	s := newSeam(t, func(c *rds.Config) {
		c.Conn.ReconnectMin, c.Conn.ReconnectMax = 30*time.Millisecond, 60*time.Millisecond
	})
	s.p.mu.Lock()
	s.p.fails = errFake
	s.p.mu.Unlock()
	k := s.bind(rds.SocketOptions{})
	for round := range 4 { // each retry is due by the timer alone
		s.send(k, seamHigher, "a")
		s.until("it is dialled again", func() bool { return s.p.dialled() > 2*round })
	}
	s.h.mu.Lock()
	at, _ := s.h.e.End()
	set := s.h.timerAt
	s.h.mu.Unlock()
	if set > at {
		t.Errorf("something is due at %v, the timer is set for %v", at, set)
	}
}

// TestTurnEndsAtItsBytes: whoever writes for others stops when it has written the bytes
// of its turn, not a batch later, and says that there is more.
func TestTurnEndsAtItsBytes(t *testing.T) {
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{SndBufBytes: 8 << 20})
	l := s.kernel(k)
	l.mu.Lock()
	l.keep = true
	l.mu.Unlock()
	s.send(k, seamHigher, "kept")
	s.until("a batch is kept", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.kept != nil })
	const datagrams = 60
	for range datagrams { // while the turn is taken: nobody else writes
		s.send(k, seamHigher, strings.Repeat("x", 100<<10))
	}
	l.mu.Lock()
	l.kept.Put()
	l.kept, l.keep = nil, false
	l.mu.Unlock()
	held, gate := make(chan struct{}), make(chan struct{})
	s.a.workers[0].Do(func() { close(held); <-gate }) // nothing that is due has anybody write meanwhile
	<-held
	defer close(gate)
	p := s.lane(seamHigher)
	_, now := s.h.Lock()
	more := p.Wrote(now)
	s.h.Unlock()
	if !more {
		t.Fatal("nothing waits")
	}
	turn := func(most int) (bytes int, more bool) {
		l.mu.Lock()
		was := l.bytes
		l.mu.Unlock()
		more = s.h.transmit(p, most)
		l.mu.Lock()
		defer l.mu.Unlock()
		return int(l.bytes - was), more
	}
	batch, more := turn(1)
	if batch == 0 || !more {
		t.Fatalf("%d bytes in a turn of one batch, more %v", batch, more)
	}
	for _, x := range []struct{ most, batches int }{{batch - 1, 1}, {batch, 1}, {batch + 1, 2}, {2 * batch, 2}} {
		if got, more := turn(x.most); got != x.batches*batch || !more {
			t.Errorf("a turn of %d bytes with batches of %d: %d bytes, more %v", x.most, batch, got, more)
		}
	}
}

// TestSeamUsers: a user of this machine who may not be a peer any more loses his link, and
// one whose socket is gone keeps what ends by itself.
func TestSeamUsers(t *testing.T) {
	s := newSeam(t, nil)
	l := s.kernel(s.bind(rds.SocketOptions{}))
	var says error
	s.a.machine.From = func(local, remote netip.AddrPort) (int64, error) {
		if local != l.local || remote != l.remote {
			t.Errorf("asked for %v and %v, want %v and %v", local, remote, l.local, l.remote)
		}
		return 7, says
	}
	if n := s.a.DropRefused(); n != 0 {
		t.Errorf("%d links were dropped without a reason", n)
	}
	says = netlocal.ErrGone
	if n := s.a.DropRefused(); n != 0 {
		t.Errorf("%d links were dropped of which nobody holds the other end", n)
	}
	for _, e := range []error{syscall.EMFILE, context.DeadlineExceeded, syscall.EACCES} {
		says = fmt.Errorf("the kernel does not tell whose it is: %w", e)
		if n := s.a.DropRefused(); n != 0 {
			t.Errorf("%d links were dropped that were not judged: %v", n, e)
		}
	}
	says = rdserr.ErrPerm
	if n := s.a.DropRefused(); n != 1 {
		t.Errorf("%d links of strangers were dropped, want 1", n)
	}
	s.until("the link is closed", func() bool { _, _, c, _ := l.state(); return len(c) > 0 && c[0] })
}
