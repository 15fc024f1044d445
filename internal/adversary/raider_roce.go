package adversary

import (
	"context"
	"io"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/ib"
	"github.com/rdsd/rdsd/transport/ib/soft"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// RDMA is a device of the adversary's own, in user space. Its transport keeps to the protocol of
// RoCE; what is sent over it does not have to keep to anything.
type RDMA struct {
	from netip.Addr
	to   netip.AddrPort
	p    *ib.Provider
	dom  transport.Domain
	mem  []byte
	at   rtrswire.Desc // where the daemon may write mem
}

// readMost is how much a raider over RoCE can read at a time: the largest request there is.
const readMost = 128 << 10

// Device makes the device of an address. At most one process has it at a time.
func (s *Stage) Device(from netip.Addr) (*RDMA, error) {
	r, err := reactor.New(reactor.Options{CPU: -1, SpinFor: -1})
	if err != nil {
		return nil, err
	}
	s.After(r.Close)
	v, err := soft.Open(soft.Config{Addr: from, Reactor: r, Buffer: 256 << 10, MTU: oneOf(s, 256, 1024, 4096)})
	if err != nil {
		return nil, err
	}
	keep(s, v)
	d := &RDMA{from: from, to: netip.AddrPortFrom(s.Daemon, s.RDMA), p: ib.New(v)}
	s.After(d.p.Close)
	d.dom = d.p.NewDomain()
	s.After(d.dom.Close)
	if d.mem, err = d.p.Memory(readMost); err != nil {
		return nil, err
	}
	d.at.Len = readMost
	d.at.Key, d.at.Addr = d.dom.Register(d.mem)
	return d, nil
}

// RaidRoCE is Raid over RoCE.
func (s *Stage) RaidRoCE(from netip.Addr, name string, n int) (*Raider, error) {
	d, err := s.Device(from)
	if err != nil {
		return nil, err
	}
	r, err := s.raidBy(name, n, d.at, func(private []byte) (RaiderCon, []byte, error) { return d.link(s, private) })
	if err == nil {
		r.Read = d.mem
	}
	return r, err
}

// slots is how many messages of the daemon a connection has room for.
const slots = 64

// link connects and shows private.
func (d *RDMA) link(s *Stage, private []byte) (RaiderCon, []byte, error) {
	ctx, cancel := context.WithTimeout(s.Ctx, 2*time.Second)
	defer cancel()
	l, answer, err := d.p.DialOneSided(ctx, netip.AddrPortFrom(d.from, 0), d.to, d.dom, transport.LinkAttr{Sends: slots, Recvs: slots}, private)
	if err != nil {
		return nil, nil, err
	}
	c := &verbsCon{s: s, d: d, l: l, news: make(chan news, 4*slots), closed: make(chan struct{})}
	l.Start(c, transport.MaxSend)
	s.After(func() { // before the device, which ends what is left
		c.Close()
		<-c.closed
	})
	return c, answer, nil
}

// verbsCon is a connection of a path over RoCE.
type verbsCon struct {
	s      *Stage
	d      *RDMA
	l      transport.OneSided
	news   chan news
	closed chan struct{}
}

// news is what came.
type news struct {
	tag  transport.Tag
	data []byte
}

// Send is RaiderCon.Send.
func (c *verbsCon) Send(t transport.Tag, data []byte) error {
	select {
	case <-c.closed:
		return io.EOF
	default:
	}
	c.l.Post(&transport.Op{Kind: t.Kind, Key: t.Key, Addr: t.Addr, Imm: t.Imm, Data: data})
	c.l.Flush()
	return nil
}

// Next is RaiderCon.Next. What was written stands in the raider's memory.
func (c *verbsCon) Next() (transport.Tag, []byte, error) {
	for {
		select {
		case n := <-c.news:
			if n.tag.Kind == transport.OpWriteImm && rtrswire.Imm(n.tag.Imm).Type() == rtrswire.Heartbeat {
				if err := c.Send(transport.Tag{Kind: transport.OpWriteImm, Imm: uint32(rtrswire.ImmHeartbeatAck)}, nil); err != nil {
					return n.tag, nil, err
				}
				continue
			}
			return n.tag, n.data, nil
		case <-c.closed:
			return transport.Tag{}, nil, io.EOF
		case <-c.s.Ctx.Done():
			return transport.Tag{}, nil, c.s.Ctx.Err()
		}
	}
}

// Close ends the connection.
func (c *verbsCon) Close() error {
	c.l.Close()
	return nil
}

// tell keeps what came, as far as there is room: the device's thread does not wait.
func (c *verbsCon) tell(t transport.Tag, data []byte) error {
	select {
	case c.news <- news{t, data}:
	default:
	}
	return nil
}

// Begin implements transport.OneSidedHandler.
func (c *verbsCon) Begin() {}

// End implements transport.OneSidedHandler.
func (c *verbsCon) End() {}

// Sent implements transport.OneSidedHandler.
func (c *verbsCon) Sent(int) {}

// Written implements transport.OneSidedHandler.
func (c *verbsCon) Written(w transport.Placed) error {
	return c.tell(transport.Tag{Kind: transport.OpWriteImm, Imm: w.Imm}, nil)
}

// Received implements transport.OneSidedHandler.
func (c *verbsCon) Received(data []byte, imm uint32, hasImm bool) error {
	t := transport.Tag{Kind: transport.OpSend, Imm: imm}
	if hasImm {
		t.Kind = transport.OpSendImm
	}
	return c.tell(t, append([]byte(nil), data...))
}

// Invalidated implements transport.OneSidedHandler.
func (c *verbsCon) Invalidated(uint32, int) error { return nil }

// Revoked implements transport.OneSidedHandler.
func (c *verbsCon) Revoked(uint32, int) error { return nil }

// Closed implements transport.OneSidedHandler.
func (c *verbsCon) Closed(error) { close(c.closed) }
