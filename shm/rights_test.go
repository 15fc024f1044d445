package shm

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/slowclose"
)

// rawPair is a connection between a client that does as it likes and one end of ours.
func rawPair(t *testing.T) (client, ours int) {
	t.Helper()
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]) })
	return p[0], p[1]
}

// TestRightsNotReceived: descriptors that nobody asked for end the connection and
// are not received, in a whole message, in a first piece and in a later one, by either
// kind of end: receiving does not wait for their last close.
func TestRightsNotReceived(t *testing.T) {
	piece := append([]byte{1, 1, 0, 0}, make([]byte, MaxPiece)...)
	for name, packets := range map[string]struct{ before, with []byte }{
		"a message":     {nil, []byte{1, 0, 0, 0, 7}},
		"a first piece": {nil, piece},
		"a later piece": {piece, []byte{1, 0, 0, 0, 7}},
		"no message":    {nil, []byte{9}},
	} {
		for kind, receive := range map[string]func(int) func() ([]byte, []int, error){
			"Control": func(fd int) func() ([]byte, []int, error) {
				k := NewControl(fd, 0)
				t.Cleanup(func() { go k.Close() })
				return k.Recv
			},
			"Conn": func(fd int) func() ([]byte, []int, error) {
				f := os.NewFile(uintptr(fd), "pair")
				nc, err := net.FileConn(f)
				f.Close()
				if err != nil {
					t.Fatal(err)
				}
				c := NewConn(nc.(*net.UnixConn), 0)
				c.SetDeadline(time.Now().Add(5 * time.Second))
				t.Cleanup(func() { go c.Close() })
				return c.ReadMessage
			},
		} {
			client, ours := rawPair(t)
			recv := receive(ours)
			if err := unix.Sendmsg(client, []byte{1, 0, 0, 0, 5}, nil, nil, 0); err != nil {
				t.Fatal(err)
			}
			if packets.before != nil {
				if err := unix.Sendmsg(client, packets.before, nil, nil, 0); err != nil {
					t.Fatal(err)
				}
			}
			fd, _ := slowclose.Socket(t)
			before := openFDs(t)
			if err := unix.Sendmsg(client, packets.with, unix.UnixRights(fd), nil, 0); err != nil {
				t.Fatal(err)
			}
			unix.Close(fd) // not the last one: nobody has received it
			soon(t, name, func() {
				if msg, fds, err := recv(); err != nil || len(msg) != 1 || msg[0] != 5 || len(fds) != 0 {
					t.Errorf("%s, %s: the message before it: %x %v %v", kind, name, msg, fds, err)
				}
				for range 3 { // it stays so
					if msg, fds, err := recv(); !errors.Is(err, unix.EBADMSG) || len(fds) != 0 {
						t.Errorf("%s, %s: %x %v %v", kind, name, msg, fds, err)
					}
				}
			})
			if n := openFDs(t); n != before-1 {
				t.Errorf("%s, %s: %d descriptors, before %d", kind, name, n, before-1)
			}
		}
	}
}

// TestRightsRefused: where the kernel can, it refuses descriptors already when they are sent.
func TestRightsRefused(t *testing.T) {
	c, _ := pair(t)
	err := c.WriteMessage([]byte{1}, 0)
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		t.Fatal("uname")
	}
	var major, minor int
	for i, b := range u.Release {
		if b < '0' || b > '9' {
			for _, b := range u.Release[i+1:] {
				if b < '0' || b > '9' {
					break
				}
				minor = 10*minor + int(b-'0')
			}
			break
		}
		major = 10*major + int(b-'0')
	}
	if major < 6 || major == 6 && minor < 16 {
		t.Skipf("Linux %d.%d takes any descriptor", major, minor)
	}
	if !errors.Is(err, unix.EPERM) {
		t.Errorf("a descriptor for the daemon: %v", err)
	}
}
