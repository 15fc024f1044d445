package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// counting counts the payload bytes of one link.
type counting struct {
	bytes  int
	closed chan struct{}
}

// Begin is slow, so that TCP holds unread bytes at every moment.
func (*counting) Begin() { time.Sleep(2 * time.Millisecond) }

func (*counting) End()                            {}
func (*counting) Progress()                       {}
func (*counting) Written(*transport.Batch, error) {}
func (c *counting) Closed(error, uint64)          { close(c.closed) }
func (c *counting) Frame(f *transport.Frame) error {
	c.bytes += len(f.Raw) + len(f.Payload)
	return nil
}

// toBarePeer is a link that was dialled, and its peer's bare connection.
func toBarePeer(t *testing.T) (transport.Link, net.Conn) {
	t.Helper()
	peer, err := net.Listen("tcp", "127.0.0.83:0")
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	l, err := newProvider(t).Dial(context.Background(), netip.MustParseAddrPort("127.0.0.84:0"),
		peer.Addr().(*net.TCPAddr).AddrPort(), 0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := peer.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return l, c
}

// A peer that goes on sending after our graceful close, and never closes: it
// is reset in the end, and of what TCP acknowledged to it nothing is unread.
func TestDrainOfAPeerThatGoesOn(t *testing.T) {
	l, c := toBarePeer(t)
	h := &counting{closed: make(chan struct{})}
	l.Start(h)
	l.Close()

	frame := make([]byte, wire.HeaderLen+100)
	(&wire.Header{Seq: 1, Len: 100, SPort: 5, DPort: 6}).Put(frame)
	c.SetWriteDeadline(time.Now().Add(20 * time.Second))
	var err error
	for err == nil {
		_, err = c.Write(frame)
	}
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Fatalf("the peer's write: %v", err)
	}
	<-h.closed
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err != nil {
		t.Fatal(err)
	}
	acked := int(info.Bytes_acked)
	if whole := acked - acked%len(frame); h.bytes < whole {
		t.Errorf("%d bytes were acknowledged, %d of them read", acked, h.bytes)
	}
}

// givingUp refuses what comes, as after a peer broke the protocol, and closes.
type givingUp struct {
	counting
	l transport.Link
}

func (*givingUp) Begin() {}

func (g *givingUp) Frame(f *transport.Frame) error {
	g.l.Close()
	return syscall.EBADMSG
}

// TestGivenUpLinkIsNotReadOn: of a peer that broke the protocol and goes on sending little
// is read and thrown away, not all that it sends in the second that a close may take.
func TestGivenUpLinkIsNotReadOn(t *testing.T) {
	l, c := toBarePeer(t)
	h := &givingUp{counting{closed: make(chan struct{})}, l}
	l.Start(h)
	frame := make([]byte, wire.HeaderLen+60_000)
	(&wire.Header{Seq: 1, Len: 60_000, SPort: 5, DPort: 6}).Put(frame)
	c.SetWriteDeadline(time.Now().Add(20 * time.Second))
	var err error
	sent := 0
	for n := 0; err == nil; sent += n {
		n, err = c.Write(frame)
	}
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Fatalf("the peer's write: %v", err)
	}
	<-h.closed
	// What sockets hold of their own accord is a few MiB.
	if most := mostWaste + 16<<20; sent > most {
		t.Errorf("the peer got rid of %d MiB before it was reset, at most %d", sent>>20, most>>20)
	}
}

// The count of acknowledged bytes at the end of a link that we close is that of our bytes, to
// the last one, and the FIN is none: whether the peer closes in turn, resets, or has no room for
// what we sent.
func TestAckedAtTheEnd(t *testing.T) {
	const frames = 3 * (wire.HeaderLen + 1000)
	for _, c := range []struct {
		name string
		end  func(y *ends)
		want error
	}{
		{"closed by the peer", func(y *ends) { y.l.Close() }, io.EOF},
		{"reset by the peer", func(y *ends) { y.l.Abort() }, nil},
		{"not closed by the peer", func(*ends) {}, os.ErrDeadlineExceeded},
	} {
		x, y := links(t, newProvider(t))
		e, peer := newEnds(t, x), newEnds(t, y)
		x.Start(e)
		if _, err := e.send(3, 1000); err != nil {
			t.Fatal(err)
		}
		if c.want != os.ErrDeadlineExceeded { // else it does not read
			y.Start(peer)
			eventually(t, "the frames", func() bool { return peer.frames.Load() == 3 })
		}
		x.Close()
		c.end(peer)
		select {
		case err := <-e.errs:
			if c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%s: ended with %v", c.name, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: no end", c.name)
		}
		if e.acked != frames {
			t.Errorf("%s: %d bytes are acknowledged of %d", c.name, e.acked, frames)
		}
	}
}

// Of what the peer has no room for nothing is acknowledged, and the FIN stands behind it.
func TestAckedAtTheEndOfAFullPeer(t *testing.T) {
	l, c := toBarePeer(t)
	e := newEnds(t, l)
	l.Start(e)
	for done := true; done; {
		var err error
		if done, err = e.send(10, 60_000); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	select {
	case <-e.errs:
	case <-time.After(10 * time.Second):
		t.Fatal("no end")
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	there := 0
	raw.Control(func(fd uintptr) { there, err = unix.IoctlGetInt(int(fd), unix.SIOCINQ) })
	if err != nil || uint64(there) != e.acked {
		t.Errorf("%d bytes are acknowledged, the peer has %d (%v)", e.acked, there, err)
	}
}

// TestWriteFails: a link whose bytes cannot be read, at once or after its socket was full, ends soon, with that
// reason, though its connection is whole.
func TestWriteFails(t *testing.T) {
	p := newProvider(t)
	gone, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(gone)
	for before, what := range map[int]string{0: "at once", 16: "later"} {
		x, y := links(t, p)
		from, to := newEnds(t, x), newEnds(t, y)
		to.pause.Store(before > 0)
		x.Start(from)
		y.Start(to)
		b := transport.GetBatch()
		for i := range before + 1 {
			payload := gone
			if i < before {
				payload = make([]byte, 1<<20)
			}
			(&wire.Header{Seq: 1, Len: 1 << 20}).Put(b.Frame(payload))
		}
		b.Seal()
		done, err := x.Send(b)
		if done || (err != nil) != (before == 0) {
			t.Fatalf("%s: sent: %v, %v", what, done, err)
		}
		if err != nil {
			b.Put()
		}
		to.pause.Store(false)
		to.l.Resume()
		from.once(t, what, unix.EFAULT)
		to.once(t, what, io.EOF)
	}
}
