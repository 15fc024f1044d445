package client

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// narrow is a connection with room for one or two packets.
func narrow(t *testing.T) (p *packetStream, client *shm.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*shm.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = shm.NewConn(c.(*net.UnixConn), 0)
		t.Cleanup(func() { c.Close() })
	}
	conns[0].SetWriteBuffer(shm.MaxPiece)
	conns[1].SetDeadline(time.Now().Add(20 * time.Second))
	return &packetStream{ctx: t.Context(), conn: conns[0], greeted: true}, conns[1]
}

// readWhole reads messages, which have to be whole, until there are none.
func readWhole(t *testing.T, c *shm.Conn) (list []*rdsdv1.ServerMessage) {
	t.Helper()
	for {
		raw, _, err := c.ReadMessage()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			return list
		}
		m := &rdsdv1.ServerMessage{}
		if err := proto.Unmarshal(raw, m); err != nil || m.WhichBody() == rdsdv1.ServerMessage_Body_not_set_case {
			t.Fatalf("message %d is not whole: %v", len(list), err)
		}
		list = append(list, m)
	}
}

// largeRecv is a message of 17 packets.
func largeRecv() *rdsdv1.ServerMessage {
	b := &rdsdv1.RecvBatch{}
	b.SetPayload(make([]byte, 16*shm.MaxPiece))
	m := &rdsdv1.ServerMessage{}
	m.SetRecv(b)
	return m
}

// TestFarewellIsBehindAMessage: the last word of a connection does not come between the packets of a
// message that somebody is writing, and nothing comes behind it.
func TestFarewellIsBehindAMessage(t *testing.T) {
	p, client := narrow(t)
	sent, said := make(chan error, 1), make(chan struct{})
	go func() { sent <- p.SendMsg(largeRecv()) }() // ends when the client reads
	time.Sleep(20 * time.Millisecond)              // it is full
	go func() {                                    // ends like that
		defer close(said)
		p.sayClosing(rdserr.ErrShutdown)
		p.sayClosing(rdserr.ErrShutdown)
		if err := p.SendMsg(largeRecv()); err != errGone {
			t.Errorf("a message behind the last word: %v", err)
		}
		p.conn.Close()
	}()
	time.Sleep(20 * time.Millisecond)
	if l := readWhole(t, client); len(l) != 2 || !l[0].HasRecv() || !l[1].HasClosing() {
		t.Errorf("%d messages were sent, want two: what was being written, and the last word", len(l))
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	<-said
}

// TestNoFarewellInAMessage: to a client that does not take the rest of a message no last word is said.
func TestNoFarewellInAMessage(t *testing.T) {
	p, client := narrow(t)
	sent := make(chan error, 1)
	go func() { sent <- p.SendMsg(largeRecv()) }() // ends with sayClosing
	time.Sleep(20 * time.Millisecond)
	p.sayClosing(rdserr.ErrShutdown)
	if err := <-sent; err != errGone {
		t.Errorf("the message was sent: %v", err)
	}
	p.conn.Close()
	if l := readWhole(t, client); len(l) > 0 {
		t.Errorf("%d messages were sent, the first is %v", len(l), l[0].WhichBody())
	}
}

// TestFarewellToASlowReader: what a client reads until its socket is closed by somebody else is whole,
// however slow it is.
func TestFarewellToASlowReader(t *testing.T) {
	n, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	accept := func(c *net.UnixConn, id config.Identity) error {
		c.SetWriteBuffer(shm.MaxPiece)
		return n.clients.Accept(c, id)
	}
	c := clienttest.ConnectAs(t, accept, config.Identity{UID: uint32(os.Getuid())})
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	p := clienttest.PacketsOver(t, c)
	self := netip.AddrPortFrom(addr, uint16(p.Bind(clienttest.BindTo(addr, 0)).GetBound().GetLocal().GetPort()))
	m := &rdsdv1.ClientMessage{}
	m.SetSend(clienttest.BatchOf(1, self, string(bytes.Repeat([]byte{'x'}, 1<<20))))
	p.Write(m)
	e, _ := n.hosts.Engine(addr).Lock()
	s := e.Socket(self.Port())
	n.hosts.Engine(addr).Unlock()
	// Packet by packet, each of which is looked at when all have come.
	var packets [][]byte
	buf := make([]byte, shm.MaxPiece+64)
	for i := 0; ; i++ {
		if i == 2 && !End(s, rdserr.ErrShutdown) {
			t.Error("the socket is nobody's")
		}
		k, err := c.UnixConn.Read(buf)
		if k == 0 || err != nil {
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
				t.Fatal(err)
			}
			break
		}
		packets = append(packets, bytes.Clone(buf[:k]))
		time.Sleep(100 * time.Millisecond)
	}
	far, near := narrow(t)
	far.conn.SetWriteBuffer(4 << 20)
	go func() { // ends when they are read
		defer far.conn.Close()
		for _, k := range packets {
			if _, err := far.conn.UnixConn.Write(k); err != nil {
				return
			}
		}
	}()
	readWhole(t, near)
	if len(packets) < 4 {
		t.Errorf("%d packets came: nothing was tested", len(packets))
	}
}
