package node

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/shm"
)

// packetClient is a plain client of the control socket.
type packetClient struct {
	t *testing.T
	c *shm.Conn
}

func dialPackets(t *testing.T, cfg *config.Config) *packetClient {
	t.Helper()
	c, err := shm.Dial(testContext(t), cfg.API.Socket+shm.SocketSuffix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return &packetClient{t, c}
}

func (p *packetClient) write(m *rdsdv1.ClientMessage) {
	p.t.Helper()
	b, err := proto.Marshal(m)
	if err == nil {
		err = p.c.WriteMessage(b)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *packetClient) read() *rdsdv1.ServerMessage {
	p.t.Helper()
	m, fds := p.readFDs()
	closeFDs(fds)
	return m
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

func (p *packetClient) readFDs() (*rdsdv1.ServerMessage, []int) {
	p.t.Helper()
	b, fds, err := p.c.ReadMessage()
	if err != nil {
		p.t.Fatal(err)
	}
	m := &rdsdv1.ServerMessage{}
	if err := proto.Unmarshal(b, m); err != nil {
		p.t.Fatal(err)
	}
	return m, fds
}

// ask says Bind and returns the first answer.
func (p *packetClient) ask(b *rdsdv1.Bind) (*rdsdv1.ServerMessage, []int) {
	p.t.Helper()
	m := &rdsdv1.ClientMessage{}
	m.SetBind(b)
	p.write(m)
	s, fds := p.readFDs()
	if s.HasRegion() {
		touchRegion(p.t, fds[0])
	}
	return s, fds
}

// touchRegion touches the first two pages of a region, as its client has to.
func touchRegion(t testing.TB, fd int) {
	t.Helper()
	for _, at := range []int64{0, shm.HeaderBytes} {
		if _, err := unix.Pwrite(fd, []byte{0}, at); err != nil {
			t.Fatal(err)
		}
	}
}

// mapped says that the region is mapped and returns the answer.
func (p *packetClient) mapped() *rdsdv1.ServerMessage {
	p.t.Helper()
	m := &rdsdv1.ClientMessage{}
	m.SetMapped(&rdsdv1.RingMapped{})
	p.write(m)
	return p.read()
}

// bind says Bind and returns the last answer. With rings the region is not looked at.
func (p *packetClient) bind(b *rdsdv1.Bind) *rdsdv1.ServerMessage {
	p.t.Helper()
	m, fds := p.ask(b)
	closeFDs(fds)
	if m.HasRegion() {
		m = p.mapped()
	}
	return m
}

// TestPlainPackets: the control socket carries a plain socket's messages, the
// largest datagram in pieces included.
func TestPlainPackets(t *testing.T) {
	_, cfg := startOne(t)
	addr := cfg.RDS.Addresses[0]
	p := dialPackets(t, cfg)
	m := p.bind(bindTo(addr, 0))
	if !m.HasBound() || m.GetBound().HasRing() {
		t.Fatalf("bind was answered by %v", m)
	}
	self := netip.AddrPortFrom(addr, uint16(m.GetBound().GetLocal().GetPort()))
	large := string(bytes.Repeat([]byte{'x'}, 1<<20))
	for i, payload := range []string{"hello", large, ""} {
		c := &rdsdv1.ClientMessage{}
		c.SetSend(batchOf(uint64(i), self, payload))
		p.write(c)
		var result *rdsdv1.SendResult
		var got *rdsdv1.RecvBatch
		for result == nil || got == nil {
			switch m := p.read(); {
			case m.HasSendResult():
				result = m.GetSendResult()
			case m.HasRecv():
				got = m.GetRecv()
			default:
				t.Fatalf("unexpected %v", m)
			}
		}
		if result.GetId() != uint64(i) || result.GetAccepted() != 1 || string(got.GetPayload()) != payload {
			t.Errorf("datagram %d: %d accepted, %d bytes came back of %d", i, result.GetAccepted(), len(got.GetPayload()), len(payload))
		}
	}
}

// TestPacketsRefused: what is wrong is told with its errno before the
// connection ends, and nothing is left behind.
func TestPacketsRefused(t *testing.T) {
	n, cfg := startOne(t)
	ends := func(what string, p *packetClient, m *rdsdv1.ServerMessage, want syscall.Errno) {
		t.Helper()
		if got := syscall.Errno(m.GetClosing().GetErrno()); !m.HasClosing() || got != want || m.GetClosing().GetMessage() == "" {
			t.Errorf("%s: answered by %v, want Closing with %v", what, m, want)
		}
		if _, _, err := p.c.ReadMessage(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: the connection goes on: %v", what, err)
		}
	}
	p := dialPackets(t, cfg)
	ends("a foreign address", p, p.bind(bindTo(netip.MustParseAddr("192.0.2.1"), 0)), syscall.EADDRNOTAVAIL)
	p = dialPackets(t, cfg)
	first := &rdsdv1.ClientMessage{}
	first.SetMonitor(&rdsdv1.Monitor{})
	p.write(first)
	ends("a first message that is no bind", p, p.read(), syscall.ENOTCONN)
	p = dialPackets(t, cfg)
	if err := p.c.WriteMessage([]byte{0xff, 0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	ends("no protobuf", p, p.read(), syscall.EINVAL)
	p = dialPackets(t, cfg)
	if _, err := p.c.UnixConn.Write([]byte("garbage")); err != nil {
		t.Fatal(err)
	}
	ends("no packet", p, p.read(), syscall.EBADMSG)
	if used := n.clients.Budget().Used; used != 0 {
		t.Errorf("%d sockets are left", used)
	}
}
