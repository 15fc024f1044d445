package memtest

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

const limit = 64 << 20

func startSmall(t *testing.T, addr netip.Addr, port int, args ...string) *rdsdtest.Daemon {
	t.Helper()
	t.Setenv("RDSD_LIMITS_MEMORY_BYTES", "64MiB")
	t.Setenv("RDSD_API_CALLS_BURST", "1000000")
	return rdsdtest.Start(t, addr, port, args...)
}

func start(t *testing.T) *rdsdtest.Daemon {
	t.Helper()
	return startSmall(t, rdsdtest.AddrA, rdsdtest.FreePort(t, rdsdtest.AddrA))
}

// works has an honest client of another connection send to itself.
func works(t *testing.T, d *rdsdtest.Daemon, fe rdsd.FrontEnd) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var err error
	for ctx.Err() == nil { // what the hostile ones hold is on its way back
		if err = echo(ctx, d, fe); !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.ECONNRESET) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		t.Errorf("an honest client over %v: %v", fe, err)
	}
}

func echo(ctx context.Context, d *rdsdtest.Daemon, fe rdsd.FrontEnd) error {
	c, err := rdsd.Dial(d.Socket, rdsd.WithFrontEnd(fe))
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.Bind(ctx, d.AddrPort(0), rdsd.WithOutcomes())
	if err != nil {
		return err
	}
	defer s.Close()
	for range 20 {
		// What fails for want of memory, which its outcome alone says, is sent again: nobody would receive it.
		if err := deliver(ctx, s, make([]byte, 1000)); err != nil {
			return err
		}
		if _, err := s.Recv(ctx); err != nil {
			return err
		}
	}
	return nil
}

// TestHalfControlMessages: 32 connections begin control messages and never end
// them. What has come of them is charged before it is kept, and the connections
// are ended when their time is over.
func TestHalfControlMessages(t *testing.T) {
	d := start(t)
	watchMemory(t, d, limit)
	piece := make([]byte, 4+65536)
	piece[0], piece[1] = 1, 1
	var fds []int
	for range 32 {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: d.Socket + ".rings"}); err != nil {
			t.Fatal(err)
		}
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Usec: 50_000})
		for range 255 { // just below 16 MiB
			if _, err := unix.Write(fd, piece); err != nil {
				break
			}
		}
		fds = append(fds, fd)
	}
	works(t, d, rdsd.Rings)
	works(t, d, rdsd.GRPC)
	// Those that were let be are ended too.
	for _, fd := range fds {
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 15})
		for b := make([]byte, 70000); ; {
			n, err := unix.Read(fd, b)
			if err == unix.EAGAIN {
				t.Fatal("a connection in the middle of a message was not ended in 15 s")
			}
			if n <= 0 {
				break
			}
		}
	}
	settled(t, d, "memory_control", 0)
}

// settled waits until the daemon's account has at most n of a kind.
func settled(t *testing.T, d *rdsdtest.Daemon, kind string, n uint64) {
	t.Helper()
	c := d.Dial()
	var last uint64
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		st, err := c.Admin().Status(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range st.Budgets {
			if b.Name == kind {
				last = b.Used
				if last <= n {
					return
				}
			}
		}
	}
	t.Errorf("%s: %d bytes are left, want at most %d", kind, last, n)
}

// TestHalfCalls: messages of gRPC that never end, on hundreds of streams of
// several connections.
func TestHalfCalls(t *testing.T) {
	for name, frame := range map[string]int{"16 KiB frames": 16 << 10, "1 byte frames": 1, "odd frames": 8193} {
		t.Run(name, func(t *testing.T) {
			d := start(t)
			watchMemory(t, d, limit)
			var wg sync.WaitGroup
			conns := make([]*h2, 4)
			for i := range conns {
				conns[i] = dialH2(t, d.Socket)
				wg.Go(func() {
					h := conns[i]
					var streams []uint32
					for range 100 {
						id := h.open()
						h.begin(id, 4<<20)
						streams = append(streams, id)
					}
					time.Sleep(300 * time.Millisecond) // the window for the messages
					for _, id := range streams {
						if !h.data(id, 4<<20-5, frame) {
							return
						}
					}
				})
			}
			wg.Wait()
			works(t, d, rdsd.GRPC)
			works(t, d, rdsd.Rings)
			for _, h := range conns {
				h.Close()
			}
			settled(t, d, "memory_calls", 256<<10)
		})
	}
}

// TestUnreadCalls: streams that send whole messages and read none of the
// answers, so that the daemon stops taking them.
func TestUnreadCalls(t *testing.T) {
	d := start(t)
	watchMemory(t, d, limit)
	for range 2 {
		h := dialH2(t, d.Socket)
		for range 300 {
			id := h.open()
			// An empty message after the other: not a bind, so the call ends; the
			// rest comes to a stream that is over.
			for range 10 {
				if !h.data(id, 64<<10, 5) {
					break
				}
			}
		}
	}
	works(t, d, rdsd.GRPC)
}

// TestStandingCalls: calls that do not end, because what they watch does not or because their client never says
// that its request was all. They keep their headers, and their request as it was read, of which a byte on the wire
// is a hundred and more.
func TestStandingCalls(t *testing.T) {
	name := append([]byte{0x0a, 0xfc, 0xff, 0x03}, make([]byte, 64<<10-4)...) // of a service, with a message of 64 KiB
	for what, c := range map[string]struct {
		method  string
		fields  int
		request []byte
		last    bool
	}{
		"many fields":   {"/grpc.health.v1.Health/Watch", 480, nil, true},
		"fields":        {"/grpc.health.v1.Health/Watch", 100, nil, true},
		"long names":    {"/grpc.health.v1.Health/Watch", 0, name, true},
		"endpoints":     {"/rdsd.v1.Admin/Trace", 0, bytes.Repeat([]byte{0x1a, 0}, 30_000), false},
		"paths, unary":  {"/rdsd.v1.VolumeService/Map", 0, bytes.Repeat([]byte{0x22, 0}, 30_000), false},
		"short, nested": {"/rdsd.v1.Admin/Trace", 100, bytes.Repeat([]byte{0x1a, 0}, 300), false},
	} {
		t.Run(what, func(t *testing.T) {
			t.Setenv("RDSD_API_CALLS_PER_SECOND", "1000000")
			d := start(t)
			watchMemory(t, d, limit)
			var conns []*h2
			var wg sync.WaitGroup
			for range 8 {
				h := dialH2(t, d.Socket)
				conns = append(conns, h)
				wg.Go(func() {
					for range 1000 {
						if !h.says(h.call(c.method, c.fields), c.request, c.last) {
							return
						}
					}
				})
			}
			wg.Wait()
			for _, h := range conns {
				h.Close()
			}
			works(t, d, rdsd.GRPC)
			settled(t, d, "memory_clients", 1<<20)
		})
	}
}
