package rdsd

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// TestSilence: a connection to a daemon on another machine notices that it is gone, by TCP and not by gRPC, whose keepalive
// sets another TCP_USER_TIMEOUT.
func TestSilence(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conns := make(chan *net.TCPConn, 16)
	c, err := Dial(l.Addr().String(), WithDialOptions(grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", to)
		if err == nil {
			conns <- c.(*net.TCPConn)
		}
		return c, err
	})))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	bound := make(chan error, 1)
	go func() { // ends with ctx
		_, err := c.Bind(ctx, netip.MustParseAddrPort("127.0.0.1:0"))
		bound <- err
	}()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadFull(s, make([]byte, 24)); err != nil { // the preface, behind the handshake
		t.Fatal(err)
	}
	raw, err := (<-conns).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []struct {
		name              string
		level, opt, value int
	}{
		{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(silentIdle / time.Second)},
		{"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(silentEvery / time.Second)},
		{"TCP_KEEPCNT", unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 4},
		{"TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silentTime / time.Millisecond)},
	} {
		raw.Control(func(fd uintptr) {
			if v, err := unix.GetsockoptInt(int(fd), o.level, o.opt); v != o.value || err != nil {
				t.Errorf("%s is %d (%v), want %d", o.name, v, err, o.value)
			}
		})
	}
	cancel()
	<-bound
	c.Close()
	s.Close()
}
