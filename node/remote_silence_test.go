package node

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestRemoteSilence: a connection of a remote client has from its listener what notices that the client is gone.
func TestRemoteSilence(t *testing.T) {
	l, err := listenRemote("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	raw, err := s.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []struct {
		name              string
		level, opt, value int
	}{
		{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(remoteIdle / time.Second)},
		{"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(remoteEvery / time.Second)},
		{"TCP_KEEPCNT", unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 4},
		{"TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(remoteTime / time.Millisecond)},
	} {
		raw.Control(func(fd uintptr) {
			if v, err := unix.GetsockoptInt(int(fd), o.level, o.opt); v != o.value || err != nil {
				t.Errorf("%s is %d (%v), want %d", o.name, v, err, o.value)
			}
		})
	}
}
