package node

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/accept"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// twoEnds are the ends of a connection of Unix sockets of this type.
func twoEnds(t *testing.T, kind int) (client, server *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	ends[0].SetDeadline(time.Now().Add(10 * time.Second))
	return ends[0], ends[1]
}

// refused runs refuse as an acceptor does, which must end however silent the client is,
// and checks that nothing the client said is left: closing over that would take the
// refusal with it.
func refused(t *testing.T, refuse func(net.Conn, error), server *net.UnixConn, err error) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); refuse(server, err) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		server.Close()
		t.Fatal("who refuses waits for ever")
	}
	server.SetReadDeadline(time.Now().Add(time.Millisecond))
	if n, err := server.Read(make([]byte, 4096)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes of the client were not read, %v", n, err)
	}
	server.Close()
}

// A client of gRPC that is refused gets SETTINGS, GOAWAY with the reason as it is, cut at
// 1,000 bytes, and the end.
func TestRefusedInHTTP2(t *testing.T) {
	for _, n := range []int{1, 10, 255, 256, 999, 1000, 1001, 5000} {
		why := strings.Repeat("w", n)
		client, server := twoEnds(t, unix.SOCK_STREAM)
		if _, err := client.Write([]byte(http2.ClientPreface)); err != nil {
			t.Fatal(err)
		}
		refused(t, refuseHTTP2, server, errors.New(why))
		f := http2.NewFramer(io.Discard, client)
		if first, err := f.ReadFrame(); err != nil || first.Header().Type != http2.FrameSettings || first.Header().Flags != 0 || first.Header().Length != 0 {
			t.Fatalf("the first frame is %v, %v; want empty SETTINGS", first, err)
		}
		second, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		away, ok := second.(*http2.GoAwayFrame)
		if !ok || away.ErrCode != http2.ErrCodeEnhanceYourCalm || away.LastStreamID != 0 || string(away.DebugData()) != why[:min(n, 1000)] {
			t.Errorf("%d bytes of reason: %v", n, second)
		}
		if _, err := f.ReadFrame(); !errors.Is(err, io.EOF) {
			t.Errorf("behind it: %v", err)
		}
	}
	_, server := twoEnds(t, unix.SOCK_STREAM)
	refused(t, refuseHTTP2, server, errors.New("for one that says nothing"))
}

// A client of the control socket that is refused gets Closing with the errno and the
// reason, whether or not it has said something.
func TestRefusedInPackets(t *testing.T) {
	for _, says := range [][]byte{nil, []byte("a message"), make([]byte, 3000)} {
		ours, server := twoEnds(t, unix.SOCK_SEQPACKET)
		c := shm.NewConn(ours, 0)
		if says != nil {
			if err := c.WriteMessage(says); err != nil {
				t.Fatal(err)
			}
		}
		refused(t, client.RefusePacket, server, fmt.Errorf("accept: %w", unix.EMFILE))
		b, _, err := c.ReadMessage()
		if err != nil {
			t.Fatalf("a client that says %d bytes hears %v", len(says), err)
		}
		var m rdsdv1.ServerMessage
		if err := proto.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		if e := m.GetClosing(); e.GetErrno() != int32(rdserr.Errno(rdserr.ErrTooMany)) || !strings.Contains(e.GetMessage(), "no file descriptor left") {
			t.Errorf("errno %d, %q", e.GetErrno(), e.GetMessage())
		}
		if _, _, err := c.ReadMessage(); !errors.Is(err, io.EOF) {
			t.Errorf("behind it: %v", err)
		}
	}
}

// TestRefusedOnThePage: in the words of HTTP/1.1.
func TestRefusedOnThePage(t *testing.T) {
	client, server := twoEnds(t, unix.SOCK_STREAM)
	refused(t, refusePage, server, errors.New("the reason"))
	b, err := io.ReadAll(client)
	if s := string(b); err != nil || !strings.HasPrefix(s, "HTTP/1.1 503 ") || !strings.HasSuffix(s, "\r\n\r\nthe reason\n") {
		t.Errorf("%q, %v", s, err)
	}
}

// TestNoDescriptors: what a process without descriptors hears from the kernel gets an
// errno a client can use; anything else is told as it is.
func TestNoDescriptors(t *testing.T) {
	for _, e := range []error{unix.EMFILE, unix.ENFILE} {
		if err := base.NoDescriptors(fmt.Errorf("accept: %w", e)); !errors.Is(err, rdserr.ErrTooMany) || !strings.Contains(err.Error(), "RLIMIT_NOFILE") || !strings.Contains(err.Error(), e.Error()) {
			t.Errorf("%v is told as %v", e, err)
		}
	}
	for _, e := range []error{unix.ENOMEM, rdserr.With(rdserr.ErrTooMany, "the limit, by its name"), rdserr.With(rdserr.ErrPerm, "no")} {
		if err := base.NoDescriptors(e); err != e {
			t.Errorf("%v is told as %v", e, err)
		}
	}
}

// TestDescriptorLimit: the limit is the configuration's or the system's, refuses from the
// first that is too many on, and each refusal names it and is counted.
func TestDescriptorLimit(t *testing.T) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[uint64]uint64{0: r.Cur, 1: 1, r.Cur - 1: r.Cur - 1, r.Cur: r.Cur, r.Cur + 1: 0} {
		c := config.Default()
		c.Limits.MaxDescriptors = int(n)
		got, err := base.MaxDescriptors(c)
		if got != want || (err != nil) != (want == 0) || (CheckSystem(c) != nil) != (want == 0) {
			t.Errorf("limits.max_descriptors %d of %d: %d, %v", n, r.Cur, got, err)
		}
	}
	c := testConfig(t)
	c.Limits.MaxDescriptors = int(r.Cur)
	n, err := newNode(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := &n.deps.FDs
	if err := d.Room(1<<20, 1<<20); err != nil {
		t.Errorf("before the start: %v", err)
	}
	if err := n.openDescriptors(); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	used, _, err := accept.Room(uint64(r.Cur), 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, keep := range []int{0, 5} {
		fits := int(r.Cur) - used - keep
		if err := d.Room(fits, keep); err != nil {
			t.Errorf("room for %d of %d beside %d and %d: %v", fits, r.Cur, used, keep, err)
		}
		before := n.deps.Count.DescriptorsRefused.Load()
		err := d.Room(fits+1, keep)
		if !errors.Is(err, rdserr.ErrTooMany) || !strings.Contains(err.Error(), "limits.max_descriptors") || n.deps.Count.DescriptorsRefused.Load() != before+1 {
			t.Errorf("one more: %v, %d counted", err, n.deps.Count.DescriptorsRefused.Load()-before)
		}
	}
}
