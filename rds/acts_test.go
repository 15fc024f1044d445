package rds

import (
	"math/rand"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/wire"
)

// act does what the instructions of fuzz_test.go do not know: an administrator and a
// shell that ask, ports that are held, addresses that go, many peers for few places.
func (m *machine) act(rng *rand.Rand) {
	var s *Socket
	if len(m.socks) > 0 {
		s = m.socks[rng.Intn(len(m.socks))]
	}
	dst := netip.AddrPortFrom(fuzzPeers[rng.Intn(3)], uint16(2+rng.Intn(6)))
	switch n := rng.Intn(26); {
	case n == 0 && rng.Intn(4) == 0:
		m.note("our address is lost")
		m.e.AddressLost(m.now)
		m.settle()
	case n == 1:
		was := m.e.ReadersDue()
		m.note("%d answers are due of %d asked for", was, askAll(m.e))
	case n < 4 && len(m.links) > 0:
		m.tellOrAsk(rng, m.links[rng.Intn(len(m.links))])
	case n == 4:
		p, err := m.e.Bind(0, SocketOptions{UID: uint32(rng.Intn(3))})
		if m.note("any port: %v", err); err == nil {
			m.note("%v", p.Addr())
			p.Close(m.now)
		}
	case n == 5 && m.e.Held() == 0:
		ports := map[uint16]uint32{uint16(2 + rng.Intn(6)): 0, uint16(2 + rng.Intn(6)): 1, 9: 0}
		for port := range ports {
			if m.e.Socket(port) != nil {
				delete(ports, port)
			}
		}
		m.e.Hold(m.now, ports, m.now+time.Duration(rng.Intn(300))*time.Millisecond)
	case n == 6:
		_, pending := m.e.End()
		m.note("pending %v, %d evicted, self %v", pending, len(m.evicted()), m.e.Self().Addr())
	case n < 9:
		m.stranger(rng)
	case s == nil:
	case n < 14:
		m.readRun(rng, s)
	case n == 14:
		on, err := s.Congested(dst)
		m.note("%v: is %v congested: %v %v", s.Addr(), dst, on, err)
	case n == 15:
		s.SetMonitor(Monitor{Mask: uint64(rng.Intn(2)) * rng.Uint64(), Clear: rng.Intn(2) == 0, Set: rng.Intn(3) == 0})
	case n < 20 && s.opt.Sink != nil:
		m.dests(rng, s, dst)
	case n < 22 && s.opt.Sink == nil:
		m.tag++
		queued, err := s.SendWait(m.now, dst, fuzzPayload[:fuzzSizes[rng.Intn(6)]], m.tag, Reported, m.now+time.Duration(1+rng.Intn(40))*time.Millisecond, "batch")
		m.note("%v waits to send to %v: %v %v", s.Addr(), dst, queued, err)
	case n < 24:
		a, b, err := s.Cancel(m.now, netip.AddrPortFrom(dst.Addr(), 0))
		m.note("%v cancels all to %v: %d %d %v", s.Addr(), dst.Addr(), a, b, err)
	case len(m.links) > 0:
		l := m.links[rng.Intn(len(m.links))]
		l.p.Alive(m.now, l.attempt)
		h := wire.Header{SPort: 4, DPort: s.port, Seq: uint64(rng.Intn(9)), Len: 100}
		raw := h.Append(nil)
		wire.SetChecksum(raw)
		m.note("memory for %v: %v", s.Addr(), m.e.Buffer(l.p, l.attempt, raw, 100) != nil)
	}
}

// evicted takes the connections that were forgotten, alone.
func (m *machine) evicted() (l []*conn.Conn) {
	l, m.e.evicted = m.e.evicted, nil
	return l
}

// stranger is a peer that connects, or that somebody names, beside the three.
func (m *machine) stranger(rng *rand.Rand) {
	addr := netip.AddrFrom4([4]byte{10, 0, 1, byte(rng.Intn(6))})
	if rng.Intn(2) == 0 && len(m.socks) > 0 {
		s := m.socks[rng.Intn(len(m.socks))]
		if s.opt.Sink == nil {
			m.tag++
			m.note("%v sends to %v: %v", s.Addr(), addr, s.Send(m.now, netip.AddrPortFrom(addr, 4), nil, m.tag, Reported))
			if rng.Intn(2) == 0 {
				s.Cancel(m.now, netip.AddrPortFrom(addr, 0))
			}
		}
		return
	}
	pe, err := m.e.Peer(addr)
	m.note("peer %v: %v", addr, err)
	if pe != nil {
		m.note("known %v, %d ports congested, counted %v", m.e.Known(addr) == pe, pe.CongestedPorts(), pe.Counters().ConnReset)
	}
}

func (m *machine) tellOrAsk(rng *rand.Rand, l *fuzzLink) {
	h := wire.Header{Flags: wire.FlagControl}
	var p []byte
	if rng.Intn(2) == 0 {
		h.Ext[0] = wire.CtlAskPorts
		p = wire.AppendPorts(nil, []uint16{2, 3, 4, 5, 6, 7})
	} else {
		h.Ext[0] = wire.CtlTellPort
		p = wire.AppendReader(nil, &wire.Reader{Port: uint16(2 + rng.Intn(6)), UID: 5, Label: "x", Queued: 7})
	}
	m.frame(l, h, p)
}

func (m *machine) readRun(rng *rand.Rand, s *Socket) {
	var r Run
	queueOf(s).RecvRun(&r, rng.Intn(9), 1+rng.Intn(80000))
	m.note("%v reads a run of %d: %v of %v %v in %d spans, %d bytes", s.Addr(), r.Len(), r.Lengths, r.Sources, r.Index, len(r.Spans), r.Bytes)
	r.Release()
	s.ReadAll(m.now)
}

// dests opens, asks and closes destinations of a client with a sink.
func (m *machine) dests(rng *rand.Rand, s *Socket, dst netip.AddrPort) {
	if len(m.opened) > 0 && rng.Intn(2) == 0 {
		i := rng.Intn(len(m.opened))
		d := m.opened[i]
		train := wire.Train{Body: fuzzPayload[:40+rng.Intn(20000)], Count: 1 + rng.Intn(3), Table: rng.Intn(2) == 0}
		m.note("%v congested %v: %v, %v", d.Addr(), d.Congested(), s.Admit(d, train, Within), s.Admit(d, train, Past))
		if rng.Intn(3) == 0 {
			m.opened = append(m.opened[:i], m.opened[i+1:]...)
			d.Close()
		}
		return
	}
	d, err := s.Open(dst, nil)
	if m.note("%v opens %v: %v", s.Addr(), dst, err); err == nil {
		m.opened = append(m.opened, d)
	}
}
