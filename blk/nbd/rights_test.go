package nbd

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/internal/slowclose"
	"github.com/rdsd/rdsd/rdserr"
)

// takeRights has a socket take descriptors, as every one does before Linux 6.16.
func takeRights(fd int) {
	const soPassRights = 83
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, soPassRights, 1) // older kernels do not know it
}

func openFDs(t *testing.T) int {
	t.Helper()
	l, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(l)
}

// TestLookFirst: with a look first a stream reads what it reads without, but for what
// brings descriptors, of which it reads nothing.
func TestLookFirst(t *testing.T) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	s := &fdStream{fd: p[1], looks: true}
	defer s.close()
	takeRights(p[1])
	send := func(b string, fds ...int) {
		t.Helper()
		var rights []byte
		if len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		if err := unix.Sendmsg(p[0], []byte(b), rights, nil, unix.MSG_DONTWAIT); err != nil {
			t.Fatal(err)
		}
	}
	a, b := make([]byte, 4), make([]byte, 3)
	want := func(in, inA, inB string) {
		t.Helper()
		clear(a)
		clear(b)
		if n, err := s.read(a, b); err != nil || n != len(inA)+len(inB) || string(a[:len(inA)]) != inA || string(b[:len(inB)]) != inB {
			t.Errorf("of %q: %d, %v; %q %q", in, n, err, a, b)
		}
	}
	if n, err := s.read(a, b); err != errAgain {
		t.Errorf("of nothing: %d, %v", n, err)
	}
	send("abc")
	want("abc", "abc", "")
	send("abcd")
	send("efghij")
	want("abcdefghij", "abcd", "efg")
	want("hij", "hij", "")
	before := openFDs(t)
	send("abc")
	send("d", p[0])
	for range 2 { // it stays so
		if n, err := s.read(a, b); !errors.Is(err, rdserr.ErrProtocol) || n != 0 {
			t.Errorf("of what brings a descriptor: %d, %v", n, err)
		}
	}
	if now := openFDs(t); now != before {
		t.Errorf("%d descriptors are open, %d were", now, before)
	}

	q, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	over := &fdStream{fd: q[1], looks: true}
	defer over.close()
	unix.Close(q[0])
	if n, err := over.read(a, b); err != io.EOF {
		t.Errorf("at the end: %d, %v", n, err)
	}
}

// pass sends b with a lingering descriptor, while nobody reads it, so that it is the server who closes it
// last and waits for far.
func (c *client) pass(b []byte) (far net.Conn) {
	c.t.Helper()
	far, keep := c.passKept(b)
	unix.Close(keep)
	return far
}

// passKept is pass for a server that may read at once: whoever closes last, it or the one who closes keep,
// waits for far.
func (c *client) passKept(b []byte) (far net.Conn, keep int) {
	c.t.Helper()
	keep, far = slowclose.Socket(c.t)
	raw, err := c.nc.(*net.UnixConn).SyscallConn()
	if err == nil {
		raw.Control(func(sock uintptr) { err = unix.Sendmsg(int(sock), b, unix.UnixRights(keep), nil, 0) })
	}
	if err != nil {
		c.t.Error(err)
	}
	return far, keep
}

// listening is a server with an export, and a listener that it does not serve yet.
func listening(t *testing.T, o Options) (*Server, net.Listener) {
	t.Helper()
	s, err := NewServer(o)
	if err == nil {
		err = s.Add(Export{Device: memory(t, 1<<20)})
	}
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	return s, l
}

// TestRightsEndOne: a client that passes a descriptor, whose last close takes as long as the
// client likes, is ended where the kernel cannot refuse it. Neither it nor one that passes it
// while it negotiates holds up others of the reactor or, longer than they wait, those who stop
// the server.
func TestRightsEndOne(t *testing.T) {
	if testReactor == nil {
		return // the suite runs a second time, on a reactor
	}
	s, l := listening(t, Options{Reactor: testReactor})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	hostile, other := enter(t, l.Addr().String(), "", false), enter(t, l.Addr().String(), "", false)
	for _, c := range []*client{hostile, other} {
		if r := c.do(cmdRead, 0, 0, 512, nil); r.value != 0 {
			t.Fatal(r)
		}
	}
	s.mu.Lock()
	for h := range s.sessions {
		onThreadOf(testReactor, func() {
			takeRights(h.c.loop.s.fd)
			h.c.loop.s.looks = true
		})
	}
	s.mu.Unlock()

	early := dialClient(t, l.Addr().String())
	early.recv(18) // the greeting
	far, keep := early.passKept(make([]byte, 4))
	go unix.Close(keep)
	var far2 net.Conn
	onThreadOf(testReactor, func() { far2 = hostile.pass(command(cmdRead, 0, 1, 0, 512, nil)) })
	hostile.wantEnd("after passing a descriptor")
	if r := other.do(cmdRead, 0, 0, 512, nil); r.value != 0 {
		t.Errorf("another client: %v", r)
	}
	other.send(command(cmdDisc, 0, 0, 0, 0, nil))
	other.wantEnd("after disconnecting")
	stopped := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		stopped <- s.Shutdown(ctx)
	}()
	select {
	case err := <-stopped:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the server stopped before its last connection was closed: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("who stops the server waits for a descriptor of a client's")
	}
	far.Close()
	far2.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// turnstile accepts one connection for each value in let.
type turnstile struct {
	net.Listener
	let chan struct{}
}

func (l turnstile) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		<-l.let
	}
	return c, err
}

// TestRightsOfTheRefused: a connection that is not let in, or waits for it, and has passed a descriptor
// whose last close takes as long as its client likes, holds up neither who asks the server something nor,
// longer than they wait, those who stop it. As long as it is closed, no further ones are taken for that.
func TestRightsOfTheRefused(t *testing.T) {
	s, l := listening(t, Options{MaxConns: 1, Reactor: testReactor})
	let, served := make(chan struct{}, 1), make(chan error, 1)
	go func() { served <- s.Serve(turnstile{l, let}) }()
	within := func(what string, f func()) {
		t.Helper()
		done := make(chan struct{})
		go func() { f(); close(done) }()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Errorf("%s waits for a descriptor of a client's", what)
		}
	}

	let <- struct{}{}
	enter(t, l.Addr().String(), "", false)
	refused := dialClient(t, l.Addr().String()).pass([]byte{1})
	let <- struct{}{}
	for n := 0; s.count.refused.Load() == 0 && n < 3000; n++ {
		time.Sleep(10 * time.Millisecond)
	}
	within("who asks for counters", func() {
		if st := s.Stats(); st.Open != 1 || st.Refused != 1 {
			t.Errorf("%+v", st)
		}
	})
	waits := dialClient(t, l.Addr().String()).pass([]byte{1})
	close(let)
	within("who stops the server", func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		s.Shutdown(ctx)
	})
	within("who asks a stopped server", func() { s.Stats() })
	refused.Close()
	waits.Close()
	within("who stops it at last", func() {
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// onThreadOf runs f on the thread of a reactor.
func onThreadOf(r *reactor.Reactor, f func()) {
	done := make(chan struct{})
	r.Do(func() { f(); close(done) })
	<-done
}
