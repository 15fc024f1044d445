package tcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// What system calls are asked for, and what follows when they fail.

func optionsOf(t *testing.T, fd int) map[string]int {
	t.Helper()
	got := map[string]int{}
	for name, o := range map[string][2]int{
		"TCP_NODELAY": {unix.IPPROTO_TCP, unix.TCP_NODELAY}, "SO_KEEPALIVE": {unix.SOL_SOCKET, unix.SO_KEEPALIVE},
		"TCP_KEEPIDLE": {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}, "TCP_KEEPINTVL": {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL},
		"TCP_KEEPCNT": {unix.IPPROTO_TCP, unix.TCP_KEEPCNT}, "TCP_USER_TIMEOUT": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT},
		"SO_SNDBUF": {unix.SOL_SOCKET, unix.SO_SNDBUF}, "SO_RCVBUF": {unix.SOL_SOCKET, unix.SO_RCVBUF},
		"TCP_WINDOW_CLAMP": {unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP},
	} {
		v, err := unix.GetsockoptInt(fd, o[0], o[1])
		if err != nil {
			t.Fatal(name, err)
		}
		got[name] = v
	}
	return got
}

// TestSocketOptions: both ends of both sorts of links have what the kernel's rds_tcp
// has; buffers are bounded where that is asked for, and the kernel's otherwise.
func TestSocketOptions(t *testing.T) {
	bounded := newProvider(t)
	bounded.BufferBytes = 96 << 10
	x, y := pair(t, bounded, 1)
	a, b := onePair(t, newProvider(t), netip.MustParseAddr("127.0.0.95"))
	for what, fd := range map[string]int{"dialled": descriptor(&x[0].l.socket), "accepted": descriptor(&y[0].l.socket), "one-sided, dialled": descriptor(&a.l.socket), "one-sided, accepted": descriptor(&b.l.socket)} {
		got := optionsOf(t, fd)
		for name, want := range map[string]int{"TCP_NODELAY": 1, "SO_KEEPALIVE": 1, "TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 5, "TCP_USER_TIMEOUT": 30000} {
			if got[name] != want {
				t.Errorf("%s: %s is %d, want %d", what, name, got[name], want)
			}
		}
		// The kernel doubles what it is asked for. The window follows only if it is told to.
		isBounded := got["SO_SNDBUF"] == 2*96<<10 && got["SO_RCVBUF"] == 2*128<<10 && got["TCP_WINDOW_CLAMP"] == 128<<10
		if want := fd == descriptor(&x[0].l.socket) || fd == descriptor(&y[0].l.socket); isBounded != want {
			t.Errorf("%s: buffers of %d and %d bytes, a window of %d", what, got["SO_SNDBUF"], got["SO_RCVBUF"], got["TCP_WINDOW_CLAMP"])
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			t.Error(err)
		}
	}
	if err := setOptions(-1, 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("options of no socket: %v", err)
	}
	pipe, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	if err := setOptions(pipe[0], 0); err == nil {
		t.Error("a socket that is not TCP's was taken")
	}
}

// TestAckedExactly: both ends count their own bytes from 0, to the last one, and say
// so at the end.
func TestAckedExactly(t *testing.T) {
	x, y := pair(t, newProvider(t), 1)
	for i, s := range []*sink{x[0], y[0]} {
		if n := s.l.Acked(); n != 0 {
			t.Errorf("end %d: %d bytes are acknowledged before any was sent", i, n)
		}
		if _, err := s.send(3, 1000); err != nil {
			t.Fatal(err)
		}
		const want = 3 * (wire.HeaderLen + 1000)
		eventually(t, "the acknowledgement", func() bool { return s.l.Acked() >= want })
		if n := s.l.Acked(); n != want {
			t.Errorf("end %d: %d bytes are acknowledged of %d", i, n, want)
		}
	}
}

// TestReceiveCounts: what a read brought is told apart from nothing, an end included:
// a reactor goes on spinning by it.
func TestReceiveCounts(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	var lp loop
	want := func(what string, into []byte, n int, e error, reads uint64) {
		t.Helper()
		got, err := lp.receive(fds[0], into, 100)
		if got != n || err != e || lp.reads != reads {
			t.Errorf("%s: %d bytes, %v, %d reads; want %d, %v, %d", what, got, err, lp.reads, n, e, reads)
		}
	}
	want("nothing", nil, 0, unix.EAGAIN, 0)
	want("nothing, into memory", make([]byte, 10), 0, unix.EAGAIN, 0)
	unix.Write(fds[1], []byte("0123456789abcdef"))
	mem := make([]byte, 6)
	want("sixteen", mem, 16, nil, 1)
	if string(mem) != "012345" || string(lp.stage[:10]) != "6789abcdef" || lp.iov[0].Base != nil {
		t.Errorf("read %q and %q; held: %v", mem, lp.stage[:10], lp.iov[0].Base)
	}
	unix.Close(fds[1])
	want("the end", nil, 0, nil, 2)

	x, y := pair(t, newProvider(t), 1)
	tried := func() (did bool) {
		done := make(chan struct{})
		y[0].l.Reactor().Do(func() { did = y[0].l.Try(); close(done) })
		<-done
		return did
	}
	if tried() {
		t.Error("a look at nothing has worked")
	}
	y[0].pause.Store(true)
	x[0].send(1, 10)
	eventually(t, "the pause", func() (v bool) {
		done := make(chan struct{})
		y[0].l.Reactor().Do(func() { v = y[0].l.paused; close(done) })
		<-done
		return v
	})
	if tried() {
		t.Error("a paused link was read")
	}
	y[0].pause.Store(false)
	y[0].l.Resume()
	eventually(t, "the frame", func() bool { return y[0].frames.Load() == 1 })
}

// TestOneTurn: a link that always has more is read for about a turn's bytes, and
// then others are.
func TestOneTurn(t *testing.T) {
	p := newProvider(t)
	x, y := pairOf(t, p)
	for _, s := range []*sink{x, y} {
		unix.SetsockoptInt(descriptor(&s.l.socket), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
		unix.SetsockoptInt(descriptor(&s.l.socket), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 8<<20)
	}
	x.l.Start(x)
	const size = 1000
	for range 20 {
		x.send(60, size)
	}
	there := func() int { n, _ := unix.IoctlGetInt(descriptor(&y.l.socket), unix.SIOCINQ); return n }
	limit := time.Now().Add(5 * time.Second)
	for there() < 2*turnBytes && time.Now().Before(limit) {
		time.Sleep(time.Millisecond)
	}
	if there() < 2*turnBytes {
		t.Skip("the kernel does not hold two turns' bytes: ", there())
	}
	var once, twice int64
	done := make(chan struct{})
	y.l.Reactor().Do(func() {
		defer close(done)
		y.l.Start(y)
		y.l.Try()
		once = y.frames.Load()
		y.l.Try()
		twice = y.frames.Load()
	})
	<-done
	const frame = size + wire.HeaderLen
	if once*frame < turnBytes-frame || once*frame > turnBytes+stageBytes || twice <= once {
		t.Errorf("one turn read %d bytes, two %d; want about %d each", once*frame, twice*frame, turnBytes)
	}
	eventually(t, "the rest", func() bool { return y.frames.Load() == 20*60 })
}

// TestManyPieces: one call writes what there is room for, in order; empty pieces
// take none.
func TestManyPieces(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	var pieces [][]byte
	var want []byte
	for i := range 2 * (transport.BatchPieces + 8) {
		p := bytes.Repeat([]byte{byte(i)}, i%3)
		pieces = append(pieces, p)
		want = append(want, p...)
	}
	n, err := writePieces(fds[0], pieces)
	if err != nil || n == 0 || n > len(want) {
		t.Fatalf("%d bytes written of %d: %v", n, len(want), err)
	}
	got := make([]byte, len(want))
	if m, err := unix.Read(fds[1], got); err != nil || m != n || !bytes.Equal(got[:m], want[:n]) {
		t.Errorf("%d bytes of %d have come, or others: %v", m, n, err)
	}
	for k := range 4 { // of so many pieces, all with one call
		n, err := writeOnce(fds[0], [][]byte{{1}, {2, 3}, {4, 5, 6}, {7}}[:k+1])
		if all := []int{1, 3, 6, 7}[k]; err != nil || n != all {
			t.Errorf("%d bytes of %d pieces written: %v", n, k+1, err)
		}
	}
	if n, err := writeOnce(-1, pieces[1:2]); err != unix.EBADF || n != 0 {
		t.Errorf("written to nowhere: %d, %v", n, err)
	}
	b := transport.GetBatch()
	defer b.Put()
	(&wire.Header{Seq: 1}).Put(b.Frame(nil))
	b.Seal()
	if done, err := write(-1, b); done || !errors.Is(err, net.ErrClosed) {
		t.Errorf("a batch written to a closed link: %v, %v", done, err)
	}
	unix.Shutdown(fds[0], unix.SHUT_WR)
	if done, err := write(fds[0], b); done || err != unix.EPIPE {
		t.Errorf("a batch written to a socket that is shut: %v, %v", done, err)
	}
}

// withoutRoom leaves the process room for n descriptors more while f runs.
func withoutRoom(t *testing.T, n int, f func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	var fill []*os.File
	limit := 0 // below it, n numbers are free
	for range n + 1 {
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		limit = max(limit, int(f.Fd()))
		fill = append(fill, f)
	}
	for _, f := range fill {
		f.Close()
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(limit), Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &was)
	f()
}

func openFiles(t *testing.T) int {
	t.Helper()
	l, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(l)
}

// TestNoDescriptorForALink: a link that cannot have its descriptor is an error that
// says so, and leaves nothing open.
func TestNoDescriptorForALink(t *testing.T) {
	p := newProvider(t)
	ln, err := net.Listen("tcp4", "127.0.0.89:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	to := ln.Addr().(*net.TCPAddr).AddrPort()
	from := netip.MustParseAddrPort("127.0.0.90:0")
	if l, err := p.Dial(context.Background(), from, to, 3); err != nil { // Go's poller has what it needs now
		t.Fatal(err)
	} else {
		l.Abort()
	}
	before := openFiles(t)
	for room, want := range map[int]bool{0: false, 1: false, 2: true} {
		withoutRoom(t, room, func() {
			l, err := p.Dial(context.Background(), from, to, 3)
			if (err == nil) != want || (l != nil) != want || err != nil && !errors.Is(err, unix.EMFILE) {
				t.Errorf("with room for %d: %v, %v", room, l, err)
			}
			if l != nil {
				l.Abort()
			}
		})
	}
	eventually(t, "everything to be closed", func() bool { return openFiles(t) == before })
}

// TestNoDescriptorForAOneSidedLink: on the side that dials, when the answer has come
// and there is none for its link, and on the side that accepts.
func TestNoDescriptorForAOneSidedLink(t *testing.T) {
	p := newProvider(t)
	ln, err := net.Listen("tcp4", "127.0.0.89:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	asked, over := make(chan net.Conn), make(chan struct{})
	go func() { // ends with the handshake
		c, err := ln.Accept()
		if err == nil {
			_, _, err = readHandshake(c)
		}
		if err != nil {
			t.Error(err)
		}
		asked <- c
	}()
	d := p.NewDomain()
	go func() { // ends when it is answered
		defer close(over)
		l, _, err := p.DialOneSided(context.Background(), netip.AddrPort{}, ln.Addr().(*net.TCPAddr).AddrPort(), d, transport.LinkAttr{}, nil)
		if !errors.Is(err, unix.EMFILE) || l != nil {
			t.Errorf("dialled: %v, %v", l, err)
		}
	}()
	c := <-asked
	defer c.Close()
	withoutRoom(t, 0, func() {
		c.Write(handshake(transport.TagAccept, "yes"))
		<-over
	})
	if _, err := io.ReadAll(c); err != nil {
		t.Errorf("the connection was not closed: %v", err)
	}
	ours, err := p.ListenOneSided(loop95, func(q transport.ConnRequest) {
		withoutRoom(t, 0, func() {
			if l, err := q.Accept(d, transport.LinkAttr{}, nil); !errors.Is(err, unix.EMFILE) || l != nil {
				t.Errorf("accepted: %v, %v", l, err)
			}
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	if l, _, err := p.DialOneSided(context.Background(), netip.AddrPort{}, ours.Addr(), d, transport.LinkAttr{}, nil); err == nil || l != nil {
		t.Errorf("dialled who has no descriptor: %v, %v", l, err)
	}
}

// TestForeignDomain: another provider's domain is refused on both sides, with a word.
func TestForeignDomain(t *testing.T) {
	p := newProvider(t)
	var foreign struct{ transport.Domain }
	ln, err := p.ListenOneSided(loop95, func(q transport.ConnRequest) {
		if l, err := q.Accept(foreign, transport.LinkAttr{}, nil); err == nil || l != nil {
			t.Errorf("accepted in a domain of somebody else: %v, %v", l, err)
		}
		if l, err := q.Accept(p.NewDomain(), transport.LinkAttr{}, make([]byte, transport.MaxAccept+1)); err == nil || l != nil {
			t.Errorf("accepted with more than can be shown: %v, %v", l, err)
		}
		q.Reject(nil)
		if l, err := q.Accept(p.NewDomain(), transport.LinkAttr{}, nil); !errors.Is(err, errAnswered) || l != nil {
			t.Errorf("accepted after it was rejected: %v, %v", l, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if l, _, err := p.DialOneSided(context.Background(), netip.AddrPort{}, ln.Addr(), foreign, transport.LinkAttr{}, nil); err == nil || l != nil {
		t.Errorf("dialled in a domain of somebody else: %v, %v", l, err)
	}
	if l, _, err := p.DialOneSided(context.Background(), netip.AddrPort{}, ln.Addr(), p.NewDomain(), transport.LinkAttr{}, make([]byte, transport.MaxConnect+1)); err == nil || l != nil {
		t.Errorf("dialled with more than can be shown: %v, %v", l, err)
	}
	var refused *transport.Refused
	if l, _, err := p.DialOneSided(context.Background(), netip.AddrPort{}, ln.Addr(), p.NewDomain(), transport.LinkAttr{}, nil); !errors.As(err, &refused) || l != nil {
		t.Errorf("rejected: %v, %v", l, err)
	}
	other := newProvider(t)
	if d, err := p.NewDomainOn(other.loops[0].r); err == nil || d != nil {
		t.Errorf("a domain on a reactor of somebody else: %v, %v", d, err)
	}
	for _, lp := range p.loops {
		if d, err := p.NewDomainOn(lp.r); err != nil || d.(*Domain).Reactor() != lp.r {
			t.Errorf("a domain on a reactor of the provider's: %v", err)
		}
	}
}

// TestNoRoom: where there may be no further connection none is dialled, and one that
// was accepted is closed unread; there may be one again later.
func TestNoRoom(t *testing.T) {
	p := newProvider(t)
	full := errors.New("full")
	room := make(chan error, 1)
	p.Room = func() error {
		err := <-room
		room <- err
		return err
	}
	room <- full
	taken := make(chan transport.Link, 4)
	ln, err := p.Listen(loop95, func(l transport.Link) { taken <- l })
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if l, err := p.Dial(context.Background(), loop95, ln.Addr(), 0); !errors.Is(err, full) || l != nil {
		t.Errorf("dialled without room: %v, %v", l, err)
	}
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection without room: %d, %v", n, err)
	}
	<-room
	room <- nil
	l, err := p.Dial(context.Background(), loop95, ln.Addr(), 5)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Abort()
	select {
	case k := <-taken:
		if k.RemoteAddr() != l.LocalAddr() || l.LocalAddr().Port()%wire.MaxLanes != 5 {
			t.Errorf("%v was accepted, %v dialled", k.RemoteAddr(), l.LocalAddr())
		}
		k.Abort()
	case <-time.After(5 * time.Second):
		t.Error("nothing is accepted although there is room")
	}
}

// TestCheckComesFirst: a connection that Check refuses is ended before a byte is sent, and at once.
func TestCheckComesFirst(t *testing.T) {
	p := newProvider(t)
	ln, err := net.Listen("tcp4", "127.0.0.89:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	why := errors.New("not him")
	var local, remote netip.AddrPort
	p.Check = func(_ context.Context, l, r netip.AddrPort) error { local, remote = l, r; return why }
	l, _, err := p.DialOneSided(context.Background(), netip.AddrPort{}, ln.Addr().(*net.TCPAddr).AddrPort(), p.NewDomain(), transport.LinkAttr{}, []byte("secret"))
	if !errors.Is(err, why) || l != nil {
		t.Errorf("%v, %v", l, err)
	}
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(5 * time.Second)) // one that is only forgotten ends with the collector
	if b, err := io.ReadAll(c); len(b) != 0 || err != nil {
		t.Errorf("%q was sent, %v", b, err)
	}
	if remote.String() != ln.Addr().String() || local.String() != c.RemoteAddr().String() {
		t.Errorf("asked about %v and %v", local, remote)
	}
}

// TestWatchFails: a link whose reactor cannot watch it any more ends with the reason,
// wherever it finds out.
func TestWatchFails(t *testing.T) {
	unwatch := func(s *socket) {
		done := make(chan struct{})
		s.loop.r.Do(func() { s.loop.r.Remove(s.fd); close(done) }) // behind its back
		<-done
	}
	watch := func(s *socket, l *Link) {
		done := make(chan struct{})
		s.loop.r.Do(func() { s.loop.r.Add(s.fd, unix.EPOLLPRI, l); close(done) }) // a second time fails
		<-done
	}
	ended := func(t *testing.T, what string, closed chan struct{}) {
		t.Helper()
		select {
		case <-closed:
		case <-time.After(5 * time.Second):
			t.Fatalf("%s: a link that nobody watches goes on", what)
		}
	}
	t.Run("full", func(t *testing.T) {
		x, y := pair(t, newProvider(t), 1)
		y[0].pause.Store(true)
		unwatch(&x[0].l.socket)
		var err error
		for i := 0; err == nil && i < 10000; i++ {
			var done bool
			if done, err = x[0].send(20, 20000); done != (err == nil) {
				t.Fatalf("a batch is kept that nobody will write, or was not written: done %v, %v", done, err)
			}
		}
		if err == nil {
			t.Error("the socket never was full")
		}
		ended(t, "full", x[0].closed)
	})
	t.Run("pause", func(t *testing.T) {
		x, y := pair(t, newProvider(t), 1)
		y[0].pause.Store(true)
		x[0].send(1, 10)
		eventually(t, "the pause", func() (v bool) {
			done := make(chan struct{})
			y[0].l.Reactor().Do(func() { v = y[0].l.paused; close(done) })
			<-done
			return v
		})
		watch(&y[0].l.socket, y[0].l)
		y[0].pause.Store(false)
		y[0].l.Resume()
		ended(t, "pause", y[0].closed)
	})
	t.Run("start", func(t *testing.T) {
		x, y := pairOf(t, newProvider(t))
		watch(&y.l.socket, y.l)
		x.l.Start(x)
		y.l.Start(y)
		ended(t, "start", y.closed)
	})
	t.Run("one-sided", func(t *testing.T) {
		p := newProvider(t)
		x, y := onePair(t, p, netip.MustParseAddr("127.0.0.96"))
		x.l.Start(x, transport.MaxSend)
		unwatch(&x.l.socket)
		mem := make([]byte, 8<<20)
		key, addr := y.d.Register(mem)
		for range 4 { // y is not started and reads nothing
			x.l.Post(&transport.Op{Kind: transport.OpWrite, Key: key, Addr: addr, Data: mem})
		}
		x.l.Flush()
		ended(t, "one-sided", x.closed)
		y.l.Start(y, transport.MaxSend)
	})
}
