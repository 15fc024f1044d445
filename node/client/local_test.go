package client

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
)

// TestPlainPackets: the control socket carries a plain socket's messages, the
// largest datagram in pieces included.
func TestPlainPackets(t *testing.T) {
	_, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	p := clienttest.DialPackets(t, cfg)
	m := p.Bind(clienttest.BindTo(addr, 0))
	if !m.HasBound() || m.GetBound().HasRing() {
		t.Fatalf("bind was answered by %v", m)
	}
	self := netip.AddrPortFrom(addr, uint16(m.GetBound().GetLocal().GetPort()))
	large := string(bytes.Repeat([]byte{'x'}, 1<<20))
	for i, payload := range []string{"hello", large, ""} {
		c := &rdsdv1.ClientMessage{}
		c.SetSend(clienttest.BatchOf(uint64(i), self, payload))
		p.Write(c)
		var result *rdsdv1.SendResult
		var got *rdsdv1.RecvBatch
		for result == nil || got == nil {
			switch m := p.Read(); {
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
	n, cfg := startClients(t)
	ends := func(what string, p *clienttest.PacketClient, m *rdsdv1.ServerMessage, want syscall.Errno) {
		t.Helper()
		if got := syscall.Errno(m.GetClosing().GetErrno()); !m.HasClosing() || got != want || m.GetClosing().GetMessage() == "" {
			t.Errorf("%s: answered by %v, want Closing with %v", what, m, want)
		}
		if _, _, err := p.C.ReadMessage(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: the connection goes on: %v", what, err)
		}
	}
	p := clienttest.DialPackets(t, cfg)
	ends("a foreign address", p, p.Bind(clienttest.BindTo(netip.MustParseAddr("192.0.2.1"), 0)), syscall.EADDRNOTAVAIL)
	p = clienttest.DialPackets(t, cfg)
	first := &rdsdv1.ClientMessage{}
	first.SetMonitor(&rdsdv1.Monitor{})
	p.Write(first)
	ends("a first message that is no bind", p, p.Read(), syscall.ENOTCONN)
	p = clienttest.DialPackets(t, cfg)
	if err := p.C.WriteMessage([]byte{0xff, 0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	ends("no protobuf", p, p.Read(), syscall.EINVAL)
	p = clienttest.DialPackets(t, cfg)
	if _, err := p.C.UnixConn.Write([]byte("garbage")); err != nil {
		t.Fatal(err)
	}
	ends("no packet", p, p.Read(), syscall.EBADMSG)
	if used := n.clients.Budget().Used; used != 0 {
		t.Errorf("%d sockets are left", used)
	}
}

// stuckConn is a connection whose close takes until it is let go.
type stuckConn struct {
	net.Conn
	goes   chan struct{}
	closed *atomic.Int32
}

func (c *stuckConn) Close() error { <-c.goes; c.closed.Add(1); return nil }

// TestStuckRefusals: connections that are closed without a word hold up neither who accepts, however many
// there are and however long their closes take, nor those of another user.
func TestStuckRefusals(t *testing.T) {
	n, _ := startClients(t)
	f := n.clients
	f.refusals.Store(maxRefusals) // so many are being told
	var stuck, quick atomic.Int32
	goes, gone := make(chan struct{}), make(chan struct{})
	close(gone)
	const many = 2 * maxClosing
	for range many {
		f.refuse(&stuckConn{goes: goes, closed: &stuck}, config.Identity{UID: 1}, rdserr.ErrTooMany)
	}
	f.refuse(&stuckConn{goes: gone, closed: &quick}, config.Identity{UID: 2}, rdserr.ErrTooMany)
	await.Until(t, 5*time.Second, "the one of another user is closed", func() bool { return quick.Load() == 1 })
	if w := f.closers.Waiting(); w != many-1 || stuck.Load() != 0 {
		t.Errorf("%d wait and %d are closed of %d", w, stuck.Load(), many)
	}
	close(goes)
	await.Until(t, 5*time.Second, "all are closed", func() bool { return stuck.Load() == many })
	f.refusals.Store(0)
}
