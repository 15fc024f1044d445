package toll

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/toll/tolltest"
)

// pair is a connection that is measured, and its client's end.
func pair(t *testing.T, told func(error)) (ours net.Conn, client *net.UnixConn) {
	t.Helper()
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var c [2]net.Conn
	for i, fd := range p {
		f := os.NewFile(uintptr(fd), "pair")
		if c[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		t.Cleanup(func() { c[i].Close() })
	}
	return Wrap(c[0], nil, told), c[1].(*net.UnixConn)
}

// TestConn: it is the connection it was: all bytes in order, however many at once, its
// deadlines, its end.
func TestConn(t *testing.T) {
	ours, client := pair(t, func(err error) { t.Error(err) })
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // more than the kernel keeps
	go func() {
		client.Write(want)
		got, err := io.ReadAll(client)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("the client reads %d bytes, %v", len(got), err)
		}
		client.Close()
	}()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(ours, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("read %d bytes, %v", n, err)
	}
	if n, err := ours.Read(nil); n != 0 || err != nil {
		t.Errorf("reading nothing: %d, %v", n, err)
	}
	ours.SetReadDeadline(time.Now().Add(time.Millisecond))
	if n, err := ours.Read(got); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %d, %v", n, err)
	}
	ours.SetReadDeadline(time.Time{})
	if n, err := ours.Write(want); n != len(want) || err != nil {
		t.Fatalf("wrote %d bytes, %v", n, err)
	}
	ours.(*Conn).Conn.(*net.UnixConn).CloseWrite()
	if n, err := ours.Read(got); n != 0 || err != io.EOF {
		t.Errorf("at the end: %d, %v", n, err)
	}
	var e *net.OpError
	if _, err := ours.Write(want); !errors.Is(err, unix.EPIPE) || !errors.As(err, &e) || e.Op != "write" {
		t.Errorf("writing after the end: %v", err)
	}
	ours.Close()
	if _, err := ours.Read(got); !errors.Is(err, net.ErrClosed) {
		t.Errorf("reading when it is closed: %v", err)
	}
}

// wrapped leads to the connection inside.
type wrapped struct {
	net.Conn
	inner net.Conn
}

func (w wrapped) NetConn() net.Conn { return w.inner }

// TestWrap: what has no descriptor is left as it is; what leads to one is measured and
// closed as before.
func TestWrap(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	if Wrap(a, nil, nil) != a {
		t.Error("a pipe in memory is measured")
	}
	ours, client := pair(t, nil)
	w := wrapped{a, ours.(*Conn).Conn}
	m, ok := Wrap(w, nil, nil).(*Conn)
	if !ok {
		t.Fatal("a socket within is not measured")
	}
	client.Write([]byte("x"))
	var p [1]byte
	if n, err := m.Read(p[:]); n != 1 || err != nil {
		t.Error(n, err)
	}
	m.Close() // the outer one
	if _, err := a.Write(p[:]); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the connection outside is not closed: %v", err)
	}
}

// TestLeft: that the client has closed its end is known while something of it is unread, and
// of one that is only silent, or has sent something, it is not said.
func TestLeft(t *testing.T) {
	for what, close := range map[string]func(*net.UnixConn) error{"closed": (*net.UnixConn).Close, "written to no more": (*net.UnixConn).CloseWrite} {
		ours, client := pair(t, nil)
		c := ours.(*Conn)
		if c.Left() {
			t.Errorf("%s: a silent client has left", what)
		}
		client.Write([]byte("x"))
		if c.Left() {
			t.Errorf("%s: a client has left that has sent something", what)
		}
		if close(client); !c.Left() {
			t.Errorf("%s: the client has not left", what)
		}
		c.Close()
		if c.Left() {
			t.Errorf("%s: a closed connection knows of its client", what)
		}
	}
}

// TestConnCostly: a client with two hundred thousand watchers is found out by what is
// read from it and by what is written to it, and served no more.
func TestConnCostly(t *testing.T) {
	for _, way := range []string{"read", "write"} {
		t.Run(way, func(t *testing.T) {
			var told error
			ours, client := pair(t, func(err error) {
				if told != nil {
					t.Error("told again:", err)
				}
				told = err
			})
			raw, err := client.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			fd := -1
			raw.Control(func(f uintptr) { fd = int(f) })
			tolltest.Watch(t, fd)
			ours.SetDeadline(time.Now().Add(time.Minute))
			p := make([]byte, 1)
			calls := 0
			for err = nil; err == nil; calls++ {
				if way == "write" {
					_, err = ours.Write(p)
				} else if _, err = client.Write(p); err == nil {
					_, err = ours.Read(p)
				}
			}
			if !Costly(err) || told != err || calls > 100 {
				t.Errorf("ended by %v after %d calls, told %v", err, calls, told)
			}
			call := ours.Read
			if way == "write" {
				call = ours.Write
			}
			if _, again := call(p); again != err {
				t.Errorf("served on: %v", again)
			}
		})
	}
}
