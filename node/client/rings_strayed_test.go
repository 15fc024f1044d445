package client

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/wire"
)

// TestPortChangesHandsInAPayload: half of a datagram of 1 MiB is there, read into the memory of the client
// that has its port, when that client exits and another takes the port. The new one gets nothing of the
// old one's memory: a datagram of an rdsd it gets whole, when that has sent it again, and a
// kernel's is as lost as what its predecessor had not read. Of the old socket nothing is left.
func TestPortChangesHandsInAPayload(t *testing.T) {
	for _, kernel := range []bool{false, true} {
		for _, rings := range []bool{false, true} {
			t.Run(fmt.Sprintf("kernel %v, rings %v", kernel, rings), func(t *testing.T) { portChangesHands(t, kernel, rings) })
		}
	}
}

// strayingPeer is a peer of one link, whose frames come when it is told to.
type strayingPeer struct {
	t *testing.T
	net.Conn
	greeted bool
	acked   uint64 // by the daemon
	refusal uint64 // the sequence of the daemon's last
}

func portChangesHands(t *testing.T, kernel, rings bool) {
	addr, peer := netip.MustParseAddr("127.0.0.94"), netip.MustParseAddr("127.0.0.93")
	n, cfg := startClientsWith(t, func(c *config.Config) {
		c.RDS.Addresses = []netip.Addr{addr}
		if kernel {
			c.Peers = []config.PeerRule{{Address: config.Prefix{Prefix: netip.PrefixFrom(peer, 32)}, Kernel: true}}
		}
	})
	wish := clienttest.RingBind(addr, 0)
	wish.GetRing().SetOneDoorbell(rings) // which lets go of the region in another way
	old := clienttest.AttachRing(t, cfg, wish)
	port := uint16(old.Bound.GetLocal().GetPort())
	e, _ := n.hosts.Locals()[0].Lock()
	r := e.Socket(port).Options().Data.(*ringSock)
	n.hosts.Locals()[0].Unlock()
	p := dialStraying(t, peer, netip.AddrPortFrom(addr, cfg.RDS.Port))
	if !kernel {
		p.greet()
	}

	const half = 512 << 10
	body := make([]byte, 2*half)
	rand.NewChaCha8([32]byte{1}).Read(body)
	frame := func(h wire.Header, payload []byte) []byte {
		h.SPort, h.DPort, h.Len = 9, port, uint32(len(payload))
		raw := h.Append(nil)
		wire.SetChecksum(raw)
		return append(raw, payload...)
	}
	first := frame(wire.Header{Seq: 1}, body)
	p.write(first[:wire.HeaderLen+half])
	await.Until(t, time.Minute, "half of it is in the client's memory", func() bool {
		r.host.Lock()
		defer r.host.Unlock()
		return r.reserved == 1 && bytes.Equal(r.reg.RecvArena()[half-64:half], body[half-64:half])
	})
	old.Close()
	await.Until(t, time.Minute, "its memory is taken away", func() bool {
		r.host.Lock()
		defer r.host.Unlock()
		return r.moved
	})

	var receive func() (netip.AddrPort, []byte)
	if rings {
		s, err := dialRings(t, cfg).Bind(clienttest.Context(t), netip.AddrPortFrom(addr, port))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		receive = func() (netip.AddrPort, []byte) {
			d, err := s.Recv(clienttest.Context(t))
			if err != nil {
				t.Fatal(err)
			}
			return d.Addr, d.Payload
		}
	} else {
		s := clienttest.DialPackets(t, cfg)
		if m := s.Bind(clienttest.BindTo(addr, port)); !m.HasBound() {
			t.Fatal(m)
		}
		receive = func() (netip.AddrPort, []byte) {
			m := s.Read()
			if !m.HasRecv() {
				t.Fatal(m)
			}
			from, _ := netip.AddrFromSlice(m.GetRecv().GetSource()[0].GetAddress())
			return netip.AddrPortFrom(from, uint16(m.GetRecv().GetSource()[0].GetPort())), m.GetRecv().GetPayload()
		}
	}
	p.write(first[wire.HeaderLen+half:])
	want := body
	if kernel {
		want = []byte("the next")
		p.write(frame(wire.Header{Seq: 2}, want))
	} else if p.until("it is refused, or acknowledged", func() bool { return p.refusal > 0 || p.acked >= 1 }); p.refusal > 0 {
		p.write(frame(wire.Header{Seq: 2, Ack: p.refusal, Flags: wire.FlagResume | wire.FlagAckRequired}, body))
	}
	if from, got := receive(); from != netip.AddrPortFrom(peer, 9) || !bytes.Equal(got, want) {
		wrong := 0
		for i := range min(len(got), len(want)) {
			if got[i] != want[i] {
				wrong++
			}
		}
		t.Errorf("%d bytes of %v come, %d of them others than were sent; want %d", len(got), from, wrong, len(want))
	}
	if !kernel && p.refusal > 0 {
		p.until("it is acknowledged", func() bool { return p.acked >= 2 })
	}
	e, _ = r.host.Lock()
	c := e.Counters()
	r.host.Unlock()
	if refused := c.RefuseNoRoom; kernel && (c.RecvDropNoSock != 1 || refused != 0) || !kernel && (c.RecvDropNoSock != 0 || refused != 1) {
		t.Errorf("%d were dropped and %d refused", c.RecvDropNoSock, refused)
	}
	await.Until(t, time.Minute, "nothing is left of its region", func() bool {
		r.host.Lock()
		defer r.host.Unlock()
		return r.freed
	})
}

// dialStraying connects on lane 0, which a source port names that is a multiple of 8.
func dialStraying(t *testing.T, from netip.Addr, to netip.AddrPort) *strayingPeer {
	for {
		d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, uint16(10240+8*rand.IntN(2048))))}
		c, err := d.Dial("tcp", to.String())
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(time.Minute))
		return &strayingPeer{t: t, Conn: c}
	}
}

func (p *strayingPeer) write(b []byte) {
	p.t.Helper()
	if _, err := p.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// greet says and answers Hello as an rdsd does.
func (p *strayingPeer) greet() {
	x := wire.Handshake{NPaths: 1, Hello: wire.Hello{Version: wire.HelloVersion, Lanes: 1, CreditLog2: 10, Incarnation: 1}}
	for _, ports := range [][2]uint16{{wire.PortProbe, 0}, {0, wire.PortProbe}} {
		h := wire.Header{SPort: ports[0], DPort: ports[1], Ext: x.Encode()}
		p.write(h.Append(nil))
	}
	p.until("it is greeted", func() bool { return p.greeted })
}

// until reads frames until is says so.
func (p *strayingPeer) until(what string, is func() bool) {
	p.t.Helper()
	for !is() {
		var raw [wire.HeaderLen]byte
		if _, err := io.ReadFull(p, raw[:]); err != nil {
			p.t.Fatalf("%s: %v", what, err)
		}
		payload := make([]byte, binary.BigEndian.Uint32(raw[16:]))
		if _, err := io.ReadFull(p, payload); err != nil {
			p.t.Fatalf("%s: %v", what, err)
		}
		var h wire.Header
		h.Parse(raw[:])
		p.acked = max(p.acked, h.Ack)
		switch kind := h.Kind(true); {
		case kind == wire.KindProbeReply:
			p.greeted = true
		case kind == wire.KindControl && h.Ext[0] == wire.CtlRefuse:
			p.refusal = h.Seq
		}
	}
}
