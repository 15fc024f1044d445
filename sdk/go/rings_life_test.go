//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// A restart of the daemon: what arrived is still read, what was accepted and is
// undecided is unknown, who waits goes on, the port is the same.
func TestRingsReconnect(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr, WithOutcomes()), d.bindRing(peerAddr)
	ctx := testContext(t)
	stuck, err := a.SendTag(ctx, stuckAddr, []byte("stuck"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if err := a.Send(ctx, peerAddr, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Flush(short(t, 20*time.Millisecond)); !errors.Is(err, rdserr.ErrTimeout) { // what is stuck stays
		t.Fatal(err)
	}
	into := make([]Datagram, 2)
	n, lease, err := b.Borrow(ctx, into)
	if n < 1 || err != nil {
		t.Fatal(n, err)
	}
	reserved, err := a.Reserve(ctx, peerAddr, 10)
	if err != nil {
		t.Fatal(err)
	}
	old := linkOf(b)
	flush := goErr(func() error { return a.Flush(ctx) })
	eventually(t, "Flush", func() bool { d.mu.Lock(); defer d.mu.Unlock(); return len(d.socks[localAddr].flush) == 2 })

	d.stop()
	wantErr(t, waitErr(t, flush), rdserr.ErrShutdown)
	eventually(t, "the end of the link", func() bool { return errors.Is(a.TrySend(peerAddr, nil), rdserr.ErrShutdown) })
	_, err = reserved.Commit(1)
	wantErr(t, err, rdserr.ErrShutdown)
	accepted, err := a.TrySendBatch(ctx, []Datagram{{Addr: peerAddr}})
	if wantErr(t, err, rdserr.ErrShutdown); accepted != 0 {
		t.Error(accepted)
	}
	wantErr(t, a.Send(short(t, 20*time.Millisecond), peerAddr, nil), rdserr.ErrTimeout)
	for i := n; i < 5; i++ { // delivered is delivered
		if got, err := b.Recv(ctx); err != nil || string(got.Payload) != fmt.Sprint(i) {
			t.Fatalf("%q %v, want %d", got.Payload, err, i)
		}
	}
	late := goErr(func() error { return a.Send(ctx, peerAddr, []byte("late")) })
	batch := goErr(func() error {
		_, err := a.SendBatch(ctx, []Datagram{{Addr: peerAddr, Payload: []byte("late")}})
		return err
	})
	recv := goErr(func() error {
		got, err := b.Recv(ctx)
		if err == nil && (string(got.Payload) != "late" || got.Addr != localAddr) {
			err = fmt.Errorf("%q from %v", got.Payload, got.Addr)
		}
		return err
	})
	d.start()
	for _, done := range []chan error{late, batch, recv} {
		if err := waitErr(t, done); err != nil {
			t.Error(err)
		}
	}
	if string(into[0].Payload) != "0" {
		t.Errorf("what was borrowed has become %q", into[0].Payload)
	}
	lease.Release()
	eventually(t, "the old mapping is gone", func() bool { return old.refs.Load() == 0 })
	delivered := 0
	for o, err := range a.Outcomes(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if o.Tag == stuck {
			if o.Kind != Unknown || o.Reason != "daemon restarted" {
				t.Errorf("%+v", o)
			}
			stuck = 0
		} else if o.Kind == Delivered {
			delivered++
		}
		if stuck == 0 && delivered == 7 {
			break
		}
	}
}

func short(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestRingsWithoutReconnect(t *testing.T) {
	d := newRingDaemon(t)
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr, WithReconnect(false))
	ctx := testContext(t)
	if err := a.Send(ctx, peerAddr, []byte("last")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the datagram", func() bool { _, ok, _ := b.PeekSize(ctx); return ok })
	d.stop()
	if got, err := b.Recv(ctx); err != nil || string(got.Payload) != "last" {
		t.Fatalf("%q %v", got.Payload, err)
	}
	_, err := b.Recv(ctx)
	wantErr(t, err, rdserr.ErrShutdown)
	wantErr(t, b.Send(ctx, localAddr, nil), rdserr.ErrShutdown)
	wantErr(t, b.TrySend(localAddr, nil), rdserr.ErrShutdown)
	_, _, err = b.PeekSize(ctx)
	wantErr(t, err, rdserr.ErrShutdown)
	_, err = b.Request(ctx, localAddr, nil)
	wantErr(t, err, rdserr.ErrShutdown)
	_, err = b.Reserve(ctx, localAddr, 1)
	wantErr(t, err, rdserr.ErrShutdown)
}

// Nothing hangs while there is no daemon.
func TestRingsTimeoutsWithoutDaemon(t *testing.T) {
	d := newRingDaemon(t)
	a := d.bindRing(localAddr, WithOutcomes())
	d.stop()
	// Until the socket knows, an empty ring is an answer to a peek.
	eventually(t, "the end of the link", func() bool { return errors.Is(a.TrySend(peerAddr, nil), rdserr.ErrShutdown) })
	for name, call := range map[string]func(context.Context) error{
		"send":    func(ctx context.Context) error { return a.Send(ctx, peerAddr, nil) },
		"batch":   func(ctx context.Context) error { _, err := a.SendBatch(ctx, []Datagram{{Addr: peerAddr}}); return err },
		"reserve": func(ctx context.Context) error { _, err := a.Reserve(ctx, peerAddr, 1); return err },
		"recv":    func(ctx context.Context) error { _, err := a.Recv(ctx); return err },
		"request": func(ctx context.Context) error { _, err := a.Request(ctx, peerAddr, nil); return err },
		"cancel":  func(ctx context.Context) error { _, err := a.CancelSentTo(ctx, peerAddr); return err },
		"flush":   func(ctx context.Context) error { return a.Flush(ctx) },
		"peek":    func(ctx context.Context) error { _, _, err := a.PeekSize(ctx); return err },
		"outcomes": func(ctx context.Context) error {
			for _, err := range a.Outcomes(ctx) {
				return err
			}
			return nil
		},
		"watch": func(ctx context.Context) error {
			for _, err := range a.WatchCongestion(ctx) {
				return err
			}
			return nil
		},
	} {
		if err := call(short(t, 20*time.Millisecond)); !errors.Is(err, rdserr.ErrTimeout) && !errors.Is(err, rdserr.ErrShutdown) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRingsClose(t *testing.T) {
	d := newRingDaemon(t)
	a := d.bindRing(localAddr, WithOutcomes(), WithSendBuffer(100))
	ctx := testContext(t)
	if err := a.Send(ctx, stuckAddr, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	waiting := map[string]chan error{
		"recv":    goErr(func() error { _, err := a.Recv(ctx); return err }),
		"borrow":  goErr(func() error { _, _, err := a.Borrow(ctx, make([]Datagram, 1)); return err }),
		"send":    goErr(func() error { return a.Send(ctx, stuckAddr, nil) }),
		"batch":   goErr(func() error { _, err := a.SendBatch(ctx, []Datagram{{Addr: stuckAddr}}); return err }),
		"reserve": goErr(func() error { _, err := a.Reserve(ctx, stuckAddr, 1); return err }),
		"request": goErr(func() error { _, err := a.Request(ctx, stuckAddr, nil); return err }),
		"flush":   goErr(func() error { return a.Flush(ctx) }),
		"watch": goErr(func() error {
			for _, err := range a.WatchCongestion(ctx) {
				return err
			}
			return nil
		}),
	}
	eventually(t, "all calls are parked", func() bool { return ringsOf(a).waiters.parked.Load() == 6 })
	l := linkOf(a)
	clock := await.NewClock(t)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	for name, done := range waiting {
		if err := waitErr(t, done); !errors.Is(err, rdserr.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if d.sock(localAddr) != nil {
		t.Error("the daemon still has the port")
	}
	if took := clock.Now(); took > closeGrace/2 {
		t.Errorf("Close took %v", took)
	}
	wantErr(t, a.TrySend(peerAddr, nil), rdserr.ErrClosed)
	_, err := a.Recv(ctx)
	wantErr(t, err, rdserr.ErrClosed)
	for o, err := range a.Outcomes(ctx) {
		if err != nil {
			wantErr(t, err, rdserr.ErrClosed)
			break
		}
		if o.Kind != Unknown || o.Reason != "the socket was closed" {
			t.Errorf("%+v", o)
		}
	}
	eventually(t, "the mapping is gone", func() bool { return l.refs.Load() == 0 })
}

// A daemon that does not answer keeps Close no longer than its grace.
func TestRingsCloseOfStoppedDaemon(t *testing.T) {
	d := newRingDaemon(t)
	a := d.bindRing(localAddr)
	d.mu.Lock() // it is stopped in the middle of something
	start, clock := time.Now(), await.NewClock(t)
	err := a.Close()
	took, had := time.Since(start), clock.Now()
	d.mu.Unlock()
	if err != nil || took < closeGrace || had > closeGrace+time.Second {
		t.Errorf("%v after %v, %v of it with a processor", err, took, had)
	}
}

// A daemon without rings, or without any for us: a stream, unless rings are a must.
func TestRingsFallBack(t *testing.T) {
	d := newFakeDaemon(t)
	ln, err := shm.Listen(d.path+shm.SocketSuffix, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(null)
	says, said := make(chan func(c *shm.Conn), 1), make(chan struct{}, 1)
	go func() {
		for {
			c, err := ln.AcceptConn()
			if err != nil {
				return
			}
			if _, _, err := c.ReadMessage(); err == nil {
				(<-says)(c)
				said <- struct{}{}
			}
			c.Close()
		}
	}()
	refuse := func(errno syscall.Errno) func(*shm.Conn) {
		return func(c *shm.Conn) { sayClosing(c, closing(errno, "no")) }
	}
	grant := func(version uint32, fds ...int) func(*shm.Conn) {
		return func(c *shm.Conn) {
			g := &rdsdv1.RingGrant{}
			g.SetVersion(version)
			m := &rdsdv1.ServerMessage{}
			m.SetRegion(g)
			_ = say(c, m, fds...)
		}
	}
	// The client can receive no descriptors: its process may open no more.
	noRoom := func(c *shm.Conn) {
		var was unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
			return
		}
		none := was
		none.Cur = 1
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
			t.Error(err)
		}
		grant(shm.Version, null, null, null, null)(c)
		_, _, _ = c.ReadMessage() // until the client has hung up
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	}
	nonsense := func(c *shm.Conn) {
		m := &rdsdv1.ServerMessage{}
		m.SetFlushResult(&rdsdv1.FlushResult{})
		_ = say(c, m)
	}
	for name, c := range map[string]struct {
		say   func(*shm.Conn)
		falls bool
		err   error
	}{
		"not supported":  {refuse(syscall.ENOSYS), true, rdserr.ErrNotSupported},
		"other version":  {refuse(syscall.EPROTONOSUPPORT), true, rdserr.ErrNotSupported},
		"no memory":      {refuse(syscall.ENOMEM), true, rdserr.ErrNoMemory},
		"no descriptors": {grant(shm.Version), true, rdserr.ErrNotSupported},
		"version 1":      {grant(1, null, null, null), true, rdserr.ErrNotSupported},
		"no region":      {grant(shm.Version, null, null, null, null), true, syscall.EBADMSG},
		"in use":         {refuse(syscall.EADDRINUSE), false, rdserr.ErrAddrInUse},
		"no room":        {noRoom, false, rdserr.ErrTooMany},
		"hangs up":       {func(*shm.Conn) {}, false, rdserr.ErrShutdown},
		"nonsense":       {nonsense, false, rdserr.ErrProtocol},
		"no message":     {func(c *shm.Conn) { _ = c.WriteMessage([]byte{0xff}) }, false, rdserr.ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			for _, fe := range []FrontEnd{Auto, Rings} {
				client, err := Dial(d.path, WithFrontEnd(fe))
				if err != nil {
					t.Fatal(err)
				}
				says <- c.say
				bind := make(chan *Socket, 1)
				done := goErr(func() error {
					s, err := client.Bind(testContext(t), localAddr)
					bind <- s
					return err
				})
				if fe == Auto && c.falls {
					st, b := d.accept()
					st.sendBound(bound(b))
					st.answerClose()
					if err := waitErr(t, done); err != nil {
						t.Error(err)
					} else if s := <-bind; s.FrontEnd() != GRPC {
						t.Errorf("front end %v", s.FrontEnd())
					}
				} else {
					wantErr(t, waitErr(t, done), c.err)
				}
				select {
				case <-said: // the next one begins when the daemon has done with this
				case <-time.After(10 * time.Second):
					t.Fatal("the daemon was not asked for rings")
				}
				client.Close()
			}
		})
	}
	ended := goErr(func() error {
		c, err := Dial(d.path, WithFrontEnd(Rings))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Bind(short(t, 20*time.Millisecond), localAddr)
		return err
	})
	wantErr(t, waitErr(t, ended), rdserr.ErrTimeout) // the daemon says nothing
	says <- func(*shm.Conn) {}
}

func TestFrontEndChoice(t *testing.T) {
	d := newFakeDaemon(t) // without rings
	t.Setenv("RDSD_FRONT_END", "rings")
	c, err := Dial(d.path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Bind(testContext(t), localAddr)
	wantErr(t, err, rdserr.ErrShutdown)
	c.Close()
	c, err = Dial(d.path, WithFrontEnd(Auto)) // the option wins
	if err != nil {
		t.Fatal(err)
	}
	done := goErr(func() error { _, err := c.Bind(testContext(t), localAddr); return err })
	st, b := d.accept()
	st.sendBound(bound(b))
	st.answerClose()
	if err := waitErr(t, done); err != nil {
		t.Error(err)
	}
	c.Close()
	_, err = Dial("127.0.0.1:16387")
	wantErr(t, err, rdserr.ErrInvalid)
	t.Setenv("RDSD_FRONT_END", "pigeons")
	_, err = Dial(d.path)
	wantErr(t, err, rdserr.ErrInvalid)
	for target, want := range map[string]string{
		"unix:///run/rdsd/rdsd.sock": "/run/rdsd/rdsd.sock.rings", "unix:s": "s.rings", "unix-abstract:x": "", "dns:///n:1": "", "unix:": "",
		"unix:///tmp/a%23b%25": "/tmp/a#b%.rings", "unix:///a%zz": "",
	} {
		if got, ok := ringsPath(target); ok != (want != "") || ok && got != want {
			t.Errorf("%s: %q %v", target, got, ok)
		}
	}
	if fmt.Sprint(Auto, GRPC, Rings) != "auto grpc rings" {
		t.Error(Auto, GRPC, Rings)
	}
}

// Whatever stands in the region: an error, and no crash.
func TestRingsCorruptRegion(t *testing.T) {
	for name, scribble := range map[string]func(reg *shm.Region){
		"receive tail": func(reg *shm.Region) { reg.RecvTail().Add(1 << 40) },
		"event tail":   func(reg *shm.Region) { reg.EventTail().Add(5000) },
		"event":        func(reg *shm.Region) { reg.EventTail().Add(1) }, // of no kind
		"descriptor":   func(reg *shm.Region) { reg.RecvTail().Add(1) },  // of no kind
	} {
		t.Run(name, func(t *testing.T) {
			d := newRingDaemon(t)
			a := d.bindRing(localAddr, WithOutcomes())
			ctx := testContext(t)
			for range 40 {
				if err := a.Send(ctx, localAddr, nil); err != nil {
					t.Fatal(err)
				}
				if _, err := a.Recv(ctx); err != nil {
					t.Fatal(err)
				}
			}
			d.pause(true)
			r := ringsOf(a)
			r.txMu.Lock()
			r.takeEventsLocked(r.tx)
			scribble(r.tx.region)
			r.txMu.Unlock()
			next := goErr(func() error {
				for {
					if _, err := a.Recv(short(t, 50*time.Millisecond)); !errors.Is(err, rdserr.ErrTimeout) {
						return err
					}
					if err := a.TrySend(stuckAddr, nil); err != nil && !errors.Is(err, rdserr.ErrWouldBlock) {
						return err
					}
				}
			})
			for _, err := range a.Outcomes(ctx) {
				if err != nil {
					wantErr(t, err, syscall.EBADMSG)
					break
				}
			}
			wantErr(t, waitErr(t, next), syscall.EBADMSG)
			_, err := a.Recv(ctx)
			wantErr(t, err, syscall.EBADMSG)
			wantErr(t, a.TrySend(peerAddr, nil), syscall.EBADMSG)
		})
	}
}

// Sockets that come and go leave nothing behind.
func TestRingsLeaveNothing(t *testing.T) {
	d := newRingDaemon(t)
	c := d.dial()
	fds, maps := 0, 0
	for i := range 60 {
		ctx := testContext(t)
		s, err := c.Bind(ctx, netip.AddrPortFrom(localAddr.Addr(), 0))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(ctx, s.LocalAddr(), []byte("note")); err != nil {
			t.Fatal(err)
		}
		_, l, err := s.Borrow(ctx, make([]Datagram, 1))
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			l.Release()
		}
		s.Close()
		l.Release()
		if i == 9 {
			fds, maps = openHere(t)
		}
	}
	wantOpenHere(t, fds, maps)
}

// TestRingsRefusedWhenMapped: a daemon may refuse the port, or turn out to be another, after
// the client has mapped its region. Bind says why then, with rings as with any front end, and
// binds nothing.
func TestRingsRefusedWhenMapped(t *testing.T) {
	d := newRingDaemon(t)
	refused := func(e syscall.Errno) func(*shm.Region) *rdsdv1.Closing {
		return func(*shm.Region) *rdsdv1.Closing { return closing(e, "not now") }
	}
	for what, c := range map[string]struct {
		mapped func(*shm.Region) *rdsdv1.Closing
		want   error
	}{
		"in use":     {refused(syscall.EADDRINUSE), rdserr.ErrAddrInUse},
		"permission": {refused(syscall.EACCES), rdserr.ErrPerm},
		"no such":    {refused(syscall.EADDRNOTAVAIL), rdserr.ErrAddrNotAvail},
		"another header": {func(r *shm.Region) *rdsdv1.Closing {
			r.Sends++ // no power of two
			return nil
		}, unix.EBADMSG},
	} {
		d.mu.Lock()
		d.mapped = c.mapped
		d.mu.Unlock()
		client, err := Dial(d.path, WithFrontEnd(Rings))
		if err != nil {
			t.Fatal(err)
		}
		s, err := client.Bind(testContext(t), localAddr)
		if wantErr(t, err, c.want); s != nil {
			t.Errorf("%s: %v", what, s)
		}
		client.Close()
	}
	d.mu.Lock()
	d.mapped = nil
	d.mu.Unlock()
	d.bindRing(localAddr)
}
