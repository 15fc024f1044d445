package client

import (
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/shm"
)

// TestFirstMessageHasADeadline: a client whose socket is full and that reads nothing
// holds Nobody up with the first message it is sent.
func TestFirstMessageHasADeadline(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	for {
		if _, err := unix.Write(fds[0], make([]byte, 4096)); err != nil {
			break // it is full
		}
	}
	f := os.NewFile(uintptr(fds[0]), "client")
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	p := &packetStream{ctx: t.Context(), conn: shm.NewConn(c.(*net.UnixConn), 0)}
	defer p.conn.Close()
	sent := make(chan error, 1)
	m := &rdsdv1.ServerMessage{}
	m.SetBound(&rdsdv1.Bound{})
	go func() { sent <- p.SendMsg(m) }()
	select {
	case err := <-sent:
		if err != errGone {
			t.Errorf("it was sent: %v", err)
		}
	case <-time.After(5 * greetPatience):
		t.Fatal("the first message waits for a client that does not read")
	}
}
