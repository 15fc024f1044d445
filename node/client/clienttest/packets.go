package clienttest

import (
	"context"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/shm"
)

// PacketClient is a plain client of the control socket.
type PacketClient struct {
	t *testing.T
	C *shm.Conn
}

// DialPackets connects to the control socket of a daemon.
func DialPackets(t *testing.T, cfg *config.Config) *PacketClient {
	t.Helper()
	c, err := shm.Dial(Context(t), cfg.API.Socket+shm.SocketSuffix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return PacketsOver(t, c)
}

// Write sends a message.
func (p *PacketClient) Write(m *rdsdv1.ClientMessage) {
	p.t.Helper()
	b, err := proto.Marshal(m)
	if err == nil {
		err = p.C.WriteMessage(b)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// Read receives a message; descriptors that come with it are closed.
func (p *PacketClient) Read() *rdsdv1.ServerMessage {
	p.t.Helper()
	m, fds := p.readFDs()
	CloseFDs(fds)
	return m
}

// CloseFDs closes descriptors.
func CloseFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

func (p *PacketClient) readFDs() (*rdsdv1.ServerMessage, []int) {
	p.t.Helper()
	b, fds, err := p.C.ReadMessage()
	if err != nil {
		p.t.Fatal(err)
	}
	m := &rdsdv1.ServerMessage{}
	if err := proto.Unmarshal(b, m); err != nil {
		p.t.Fatal(err)
	}
	return m, fds
}

// Ask says Bind and returns the first answer.
func (p *PacketClient) Ask(b *rdsdv1.Bind) (*rdsdv1.ServerMessage, []int) {
	p.t.Helper()
	m := &rdsdv1.ClientMessage{}
	m.SetBind(b)
	p.Write(m)
	s, fds := p.readFDs()
	if s.HasRegion() {
		TouchRegion(p.t, fds[0])
	}
	return s, fds
}

// TouchRegion touches the first two pages of a region, as its client has to.
func TouchRegion(t testing.TB, fd int) {
	t.Helper()
	for _, at := range []int64{0, shm.HeaderBytes} {
		if _, err := unix.Pwrite(fd, []byte{0}, at); err != nil {
			t.Fatal(err)
		}
	}
}

// Mapped says that the region is mapped and returns the answer.
func (p *PacketClient) Mapped() *rdsdv1.ServerMessage {
	p.t.Helper()
	m := &rdsdv1.ClientMessage{}
	m.SetMapped(&rdsdv1.RingMapped{})
	p.Write(m)
	return p.Read()
}

// Bind says Bind and returns the last answer. With rings the region is not looked at.
func (p *PacketClient) Bind(b *rdsdv1.Bind) *rdsdv1.ServerMessage {
	p.t.Helper()
	m, fds := p.Ask(b)
	CloseFDs(fds)
	if m.HasRegion() {
		m = p.Mapped()
	}
	return m
}

// BindTo makes a Bind with plenty of credit.
func BindTo(a netip.Addr, port uint16) *rdsdv1.Bind {
	b := &rdsdv1.Bind{}
	b.SetLocal(EndpointMsg(netip.AddrPortFrom(a, port)))
	b.SetInitialCreditDatagrams(1 << 20)
	b.SetInitialCreditBytes(1 << 30)
	return b
}

// BatchOf is a batch of datagrams that all go one way.
func BatchOf(id uint64, dst netip.AddrPort, payloads ...string) *rdsdv1.SendBatch {
	b := &rdsdv1.SendBatch{}
	b.SetId(id)
	var all []byte
	var lengths []uint32
	for _, p := range payloads {
		all = append(all, p...)
		lengths = append(lengths, uint32(len(p)))
	}
	b.SetPayload(all)
	b.SetLength(lengths)
	b.SetDestination([]*rdsdv1.Endpoint{EndpointMsg(dst)})
	return b
}

// EndpointMsg is an endpoint as it stands in messages.
func EndpointMsg(a netip.AddrPort) *rdsdv1.Endpoint {
	e := &rdsdv1.Endpoint{}
	e.SetAddress(a.Addr().AsSlice())
	e.SetPort(uint32(a.Port()))
	return e
}

// ConnectAs is a connection to the control socket by anybody, and past the kernel's
// refusal of descriptors. accept is the daemon's.
func ConnectAs(t *testing.T, accept func(*net.UnixConn, config.Identity) error, id config.Identity) *shm.Conn {
	t.Helper()
	s, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conns := [2]*net.UnixConn{}
	for i, fd := range s {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = c.(*net.UnixConn)
	}
	if err := accept(conns[0], id); err != nil {
		t.Fatal(err)
	}
	return shm.NewConn(conns[1], 4)
}

// Context ends before anybody waits too long for a test.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// PacketsOver is a plain client over a connection.
func PacketsOver(t *testing.T, c *shm.Conn) *PacketClient { return &PacketClient{t, c} }
