package soft

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func openTestSocket(t testing.TB, addr string) *socket {
	t.Helper()
	s, err := openSocket(netip.MustParseAddr(addr), bufferBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

// await waits until the socket can be read.
func (s *socket) await(t testing.TB) {
	t.Helper()
	p := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, 5000); n != 1 {
		t.Fatalf("nothing came: %v", err)
	}
}

// readAll reads once and calls f for each packet.
func (in *inbox) readAll(s *socket, f func(netip.AddrPort, []byte)) error {
	n, _, err := in.read(s)
	for i := range max(n, 0) {
		in.each(i, f)
	}
	return err
}

// TestBurst: a burst leaves in one call and arrives as packets of its size, in order, from
// the socket's own address, with or without the receiver's kernel putting packets together.
func TestBurst(t *testing.T) {
	for _, c := range []struct {
		a, b string
		gro  int
	}{{local(2), local(3), 1}, {local(2), local(3), 0}, {"::1", "::1", 1}} {
		a, b := openTestSocket(t, c.a), (*socket)(nil)
		if b = a; c.a != c.b {
			b = openTestSocket(t, c.b)
		}
		if !a.canSegment() || !a.gro {
			t.Skip("this kernel cuts no UDP messages (UDP_SEGMENT)")
		}
		if err := unix.SetsockoptInt(b.fd, unix.SOL_UDP, unix.UDP_GRO, c.gro); err != nil {
			t.Fatal(err)
		}
		from, to := netip.AddrPortFrom(netip.MustParseAddr(c.a), 4791), netip.AddrPortFrom(netip.MustParseAddr(c.b), 4791)
		var out outbox
		var want [][]byte
		out.message(to, 0, 100)
		for i := range 5 {
			p := bytes.Repeat([]byte{byte('a' + i)}, 100)
			if i == 4 {
				p = p[:40]
			}
			out.piece(p[:20])
			out.piece(p[20:])
			want = append(want, p)
		}
		out.message(to, 0, 0)
		out.piece([]byte("alone"))
		want = append(want, []byte("alone"))
		if err := out.send(a); err != nil || out.first != 2 {
			t.Fatalf("%d messages were sent: %v", out.first, err)
		}
		in := newInbox()
		var got [][]byte
		for len(got) < len(want) {
			b.await(t)
			if err := in.readAll(b, func(src netip.AddrPort, pkt []byte) {
				if src != from {
					t.Errorf("a packet from %v, want %v", src, from)
				}
				got = append(got, bytes.Clone(pkt))
			}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Errorf("%v: packet %d is %q, want %q", c, i, got[i], want[i])
			}
		}
		if err := in.readAll(b, nil); err != unix.EAGAIN {
			t.Errorf("an empty socket: %v, want EAGAIN", err)
		}
		a.close()
		b.close()
	}
}

// TestPortTaken: the second socket of one address is told who may have the port.
func TestPortTaken(t *testing.T) {
	openTestSocket(t, local(2))
	_, err := openSocket(netip.MustParseAddr(local(2)), bufferBytes)
	if !errors.Is(err, ErrPortTaken) {
		t.Errorf("%v, want ErrPortTaken", err)
	}
}

// TestSendRefused: a message that cannot be sent is named by its place, and those behind it
// can still be sent.
func TestSendRefused(t *testing.T) {
	a, b := openTestSocket(t, local(2)), openTestSocket(t, local(3))
	good, bad := netip.AddrPortFrom(netip.MustParseAddr(local(3)), 4791), netip.MustParseAddrPort("255.255.255.255:4791")
	var out outbox
	for _, to := range []netip.AddrPort{good, bad, good} {
		out.message(to, 0, 0)
		out.piece([]byte("x"))
	}
	if err := out.send(a); err != unix.EACCES || out.first != 1 {
		t.Errorf("stopped at message %d: %v, want EACCES at 1", out.first, err)
	}
	out.skip()
	if err := out.send(a); err != nil {
		t.Error(err)
	}
	n := 0
	b.await(t)
	if err := newInbox().readAll(b, func(netip.AddrPort, []byte) { n++ }); err != nil || n != 2 {
		t.Errorf("%d packets came: %v, want 2", n, err)
	}
}

// TestZoneThatIsNotThere: an address of a link that the machine does not have is refused, with
// the name of the zone.
func TestZoneThatIsNotThere(t *testing.T) {
	s, err := openSocket(netip.MustParseAddr("fe80::1%nosuchlink"), bufferBytes)
	if err == nil || s != nil || !strings.Contains(err.Error(), "the zone of fe80::1%nosuchlink") {
		t.Errorf("%v, %v", s, err)
	}
}

// TestSmallSendBuffer: who has less room to send than asked for is told, once, and what to do.
func TestSmallSendBuffer(t *testing.T) {
	for _, c := range []struct {
		ask  int
		told int
	}{{64 << 10, 0}, {math.MaxInt32, 1}} { // of which the kernel gives half at most
		var log bytes.Buffer
		d := open(t, local(9), nil, func(cfg *Config) {
			cfg.Buffer, cfg.Log = c.ask, slog.New(slog.NewTextHandler(&log, nil))
		})
		d.Close()
		if n := strings.Count(log.String(), "net.core.wmem_max"); n != c.told {
			t.Errorf("%d bytes asked for: told %d times, want %d: %s", c.ask, n, c.told, &log)
		}
	}
}
