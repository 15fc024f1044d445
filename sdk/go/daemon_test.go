package rdsd_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// These tests need real daemons; what can be shown with a scripted one is in
// the tests of package rdsd itself.

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// binder binds a socket at a daemon, over the front end of the test.
type binder func(d *rdsdtest.Daemon, port uint16, opts ...rdsd.BindOption) *rdsd.Socket

// overBoth runs a test over each front end.
func overBoth(t *testing.T, test func(t *testing.T, bind binder)) {
	for _, fe := range []rdsd.FrontEnd{rdsd.GRPC, rdsd.Rings} {
		t.Run(fe.String(), func(t *testing.T) {
			test(t, func(d *rdsdtest.Daemon, port uint16, opts ...rdsd.BindOption) *rdsd.Socket {
				t.Helper()
				s, err := d.Dial(rdsd.WithFrontEnd(fe)).Bind(within(t, 20*time.Second), d.AddrPort(port), opts...)
				if err != nil {
					t.Fatal(err)
				}
				if s.FrontEnd() != fe {
					t.Fatalf("front end %v, want %v", s.FrontEnd(), fe)
				}
				return s
			})
		})
	}
}

// Many flows into one socket, by single sends and by batches: each datagram
// once, whole and in the order of its flow. Small buffers have much of it
// refused, for both reasons, and sent again.
func TestFlowsInOrder(t *testing.T) { overBoth(t, flowsInOrder) }

func flowsInOrder(t *testing.T, bind binder) {
	a, b := rdsdtest.Pair(t)
	to := bind(b, 4800, rdsd.WithRecvBuffer(32<<10), rdsd.WithRecvWindow(256, 16<<10))
	ctx := within(t, 30*time.Second)
	const flows, each = 6, 2000
	var wg sync.WaitGroup
	for f := range flows {
		s := bind(a, uint16(4810+f), rdsd.WithSendBuffer(20000))
		wg.Go(func() {
			if err := sendFlow(ctx, s, to.LocalAddr(), each, f%2 == 0); err != nil {
				t.Errorf("flow %d: %v", f, err)
			}
		})
	}
	next := map[netip.AddrPort]uint32{}
	into := make([]rdsd.Datagram, 64)
	for got := 0; got < flows*each; {
		n, err := to.RecvBatch(ctx, into)
		if err != nil {
			t.Fatalf("after %d datagrams: %v", got, err)
		}
		for _, d := range into[:n] {
			number := binary.BigEndian.Uint32(d.Payload)
			if number != next[d.Addr] || len(d.Payload) != 4+int(number%200) {
				t.Fatalf("from %v: number %d of %d bytes, want number %d", d.Addr, number, len(d.Payload), next[d.Addr])
			}
			next[d.Addr]++
		}
		got += n
	}
	wg.Wait()
	if n, ok, err := to.PeekSize(ctx); ok || err != nil {
		t.Errorf("one more datagram, of %d bytes (%v)", n, err)
	}
}

func sendFlow(ctx context.Context, s *rdsd.Socket, to netip.AddrPort, count int, batches bool) error {
	payload := func(i int) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(i)), make([]byte, i%200)...)
	}
	if !batches {
		for i := range count {
			if err := s.Send(ctx, to, payload(i)); err != nil {
				return err
			}
		}
		return nil
	}
	for i := 0; i < count; i += 100 {
		ds := make([]rdsd.Datagram, 100)
		for k := range ds {
			ds[k] = rdsd.Datagram{Addr: to, Payload: payload(i + k)}
		}
		if _, err := s.SendBatch(ctx, ds); err != nil {
			return err
		}
	}
	return nil
}

// A daemon that is killed and started again: the socket has its port back,
// waiting calls go on, every accepted datagram has one outcome.
func TestDaemonRestart(t *testing.T) { overBoth(t, daemonRestart) }

func daemonRestart(t *testing.T, bind binder) {
	a, b := rdsdtest.Pair(t)
	from := bind(a, 4820, rdsd.WithOutcomes())
	to := bind(b, 4821)
	ctx := within(t, 40*time.Second)

	const stuck = 5 // nobody is there to deliver them to
	nowhere := netip.MustParseAddrPort("127.0.0.250:7")
	tags := map[uint64]bool{}
	for range stuck {
		tag, err := from.SendTag(ctx, nowhere, []byte("stuck"))
		if err != nil {
			t.Fatal(err)
		}
		tags[tag] = true
	}
	// Behind all of them: what never reached the daemon would wait for the next one.
	if _, err := from.CancelSentTo(ctx, to.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	received := make(chan error, 1)
	go func() {
		d, err := from.Recv(ctx)
		if err == nil && string(d.Payload) != "welcome back" {
			err = fmt.Errorf("received %q", d.Payload)
		}
		received <- err
	}()

	a.Kill()
	for {
		err := from.TrySend(to.LocalAddr(), nil)
		if errors.Is(err, rdserr.ErrShutdown) {
			break
		}
		if err != nil || ctx.Err() != nil {
			t.Fatalf("a try without a daemon: %v", err)
		}
	}
	waiting := make(chan error, 1)
	go func() { waiting <- from.Send(ctx, to.LocalAddr(), []byte("still here")) }()
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := from.Send(short, to.LocalAddr(), nil); !errors.Is(err, rdserr.ErrTimeout) {
		t.Errorf("a send without a daemon: %v", err)
	}

	a.Run()
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	for {
		d, err := to.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if string(d.Payload) == "still here" && d.Addr == from.LocalAddr() {
			break
		}
	}
	if err := to.Send(ctx, from.LocalAddr(), []byte("welcome back")); err != nil {
		t.Error(err)
	}
	if err := <-received; err != nil {
		t.Error(err)
	}
	for o, err := range from.Outcomes(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if tags[o.Tag] && (o.Kind != rdsd.Unknown || o.Reason != "daemon restarted") {
			t.Errorf("%+v", o)
		}
		if delete(tags, o.Tag); len(tags) == 0 {
			break
		}
	}
}

// SIGTERM drains: sockets see the end as one of the daemon, not of their own.
func TestDaemonDrains(t *testing.T) { overBoth(t, daemonDrains) }

func daemonDrains(t *testing.T, bind binder) {
	a, b := rdsdtest.Pair(t)
	from, to := bind(a, 0), bind(b, 0, rdsd.WithReconnect(false))
	ctx := within(t, 30*time.Second)
	if status := b.Stop(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	if _, err := to.Recv(ctx); !errors.Is(err, rdserr.ErrShutdown) {
		t.Errorf("receive without a daemon: %v", err)
	}
	b.Run()
	again := bind(b, to.LocalAddr().Port())
	if err := from.Send(ctx, again.LocalAddr(), []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if d, err := again.Recv(ctx); err != nil || string(d.Payload) != "hello" {
		t.Errorf("%q %v", d.Payload, err)
	}
}

// A daemon that is there and says nothing: calls end with their deadline.
func TestDaemonStopped(t *testing.T) { overBoth(t, daemonStopped) }

func daemonStopped(t *testing.T, bind binder) {
	a, b := rdsdtest.Pair(t)
	from, to := bind(a, 0), bind(b, 0)
	a.Freeze()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	for name, call := range map[string]func() error{
		"send": func() error { return from.Send(ctx, to.LocalAddr(), make([]byte, 200<<10)) },
		"batch": func() error {
			_, err := from.SendBatch(ctx, []rdsd.Datagram{{Addr: to.LocalAddr(), Payload: make([]byte, 200<<10)}})
			return err
		},
		"flush": func() error { return from.Flush(ctx) },
		"peek": func() error {
			if from.FrontEnd() == rdsd.Rings { // what is there can be seen without the daemon
				return context.DeadlineExceeded
			}
			_, _, err := from.PeekSize(ctx)
			return err
		},
	} {
		wg.Go(func() {
			if err := call(); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	wg.Wait()
	a.Thaw()
	if err := from.Send(within(t, 20*time.Second), to.LocalAddr(), []byte("go on")); err != nil {
		t.Error(err)
	}
}

// A socket that an administrator closes stays closed, hands out what it has, and says why.
func TestClosedByAdministrator(t *testing.T) { overBoth(t, closedByAdministrator) }

func closedByAdministrator(t *testing.T, bind binder) {
	a := rdsdtest.Start(t, rdsdtest.AddrA, rdsdtest.FreePort(t, rdsdtest.AddrA))
	s, from := bind(a, 4830), bind(a, 4831)
	ctx := within(t, time.Minute)
	if err := from.Send(ctx, s.LocalAddr(), []byte("unread")); err != nil {
		t.Fatal(err)
	}
	for there := false; !there; {
		var err error
		if _, there, err = s.PeekSize(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Dial().Admin().CloseSocket(ctx, s.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	for s.Flush(ctx) == nil { // until it has heard
	}
	if d, err := s.Recv(ctx); err != nil || string(d.Payload) != "unread" {
		t.Errorf("what was delivered before: %v, %v", d, err)
	}
	if _, err := s.Recv(ctx); !errors.Is(err, rdserr.ErrReset) || !strings.Contains(err.Error(), "closed by an administrator") {
		t.Errorf("receive on a closed socket: %v", err)
	}
}

// Close gives the port back at once, again and again.
func TestPortIsFreeAfterClose(t *testing.T) { overBoth(t, portIsFreeAfterClose) }

func portIsFreeAfterClose(t *testing.T, bind binder) {
	a := rdsdtest.Start(t, rdsdtest.AddrA, rdsdtest.FreePort(t, rdsdtest.AddrA))
	for range 50 {
		if err := bind(a, 4840).Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// IPv6, as far as one loopback address goes.
func TestIPv6(t *testing.T) { overBoth(t, iPv6) }

func iPv6(t *testing.T, bind binder) {
	addr := netip.IPv6Loopback()
	l, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		t.Skip("no IPv6 here: ", err)
	}
	l.Close()
	d := rdsdtest.Start(t, addr, rdsdtest.FreePort(t, addr))
	from, to := bind(d, 0), bind(d, 0)
	ctx := within(t, 20*time.Second)
	if err := from.Send(ctx, to.LocalAddr(), []byte("six")); err != nil {
		t.Fatal(err)
	}
	got, err := to.Recv(ctx)
	if err != nil || string(got.Payload) != "six" || got.Addr != from.LocalAddr() || !got.Addr.Addr().Is6() {
		t.Errorf("%v %v", got, err)
	}
	err = from.TrySend(netip.MustParseAddrPort("127.0.0.1:7"), nil)
	if !errors.Is(err, rdserr.ErrFamily) {
		t.Errorf("IPv4 destination: %v", err)
	}
}
