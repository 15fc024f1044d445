package service

import (
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/node/config"
)

// lastAccepted keeps the connection that was accepted last.
type lastAccepted struct {
	net.Listener
	conns chan *net.TCPConn
}

func (l lastAccepted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.conns <- c.(*net.TCPConn)
	}
	return c, err
}

// TestNoKeepaliveByTimeOfDay: gRPC has no keepalive of its own, on whatever connection. It would close each
// of them once the clock is set back. Where it has one it sets TCP_USER_TIMEOUT, by which it shows.
func TestNoKeepaliveByTimeOfDay(t *testing.T) {
	for _, local := range []bool{true, false} {
		w := newWorld(t, config.Default(), world{})
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l := lastAccepted{tcp, make(chan *net.TCPConn, 1)}
		srv := w.services.NewServer(local)
		served := make(chan error, 1)
		go func() { served <- srv.Serve(l) }() // ends with Stop
		c, err := net.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(20 * time.Second))
		// The preface and empty settings; gRPC answers when it has set up the connection.
		if _, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 9)); err != nil {
			t.Fatal(err)
		}
		raw, err := (<-l.conns).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		raw.Control(func(fd uintptr) {
			if ms, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT); ms != 0 || err != nil {
				t.Errorf("local %v: gRPC notices silence, after %d ms (%v)", local, ms, err)
			}
		})
		c.Close()
		srv.Stop()
		<-served
	}
}
