package cm

import (
	"net/netip"
	"time"
)

// Receive takes a datagram that came to queue pair 1; it is not kept. What is no message of the
// connection manager is counted and dropped.
//
// For each datagram at most one is sent, of the same size, to where it came from, and to strangers
// few at a time (mayAnswer); but a message that shows that the peer has forgotten a connection also begins that one's end.
func (m *Manager) Receive(now time.Duration, from netip.AddrPort, mad []byte) {
	m.stats.Received++
	peer := from.Addr().Unmap()
	a, tid, body, ok := open(mad)
	if !ok || !peer.IsValid() {
		m.stats.Garbage++
		return
	}
	m.in = message{tid: tid, fromPort: from.Port() == udpPort}
	switch a {
	case attrREQ:
		m.receiveREQ(now, peer, body)
	case attrREP:
		m.receiveREP(now, peer, body)
	case attrDREQ:
		m.receiveDREQ(now, peer, body)
	case attrREJ:
		m.receiveREJ(now, peer, body)
	case attrMRA:
		m.receiveMRA(now, peer, body)
	case attrRTU:
		var p rtu
		p.parse(body)
		m.tell(now, peer, p.local, p.remote, evRTU)
	case attrDREP:
		var p drep
		p.parse(body)
		m.tell(now, peer, p.local, p.remote, evDREP)
	default:
		// Messages of alternate paths and of service IDs (LAP, SIDR) have no use here.
		m.stats.Garbage++
	}
	m.in = message{} // it refers to the datagram
}

// find returns the connection that a message from peer is about, if it is there: local is the
// ID that the message has for its sender, remote the one for us. A message with the ID of
// somebody else's connection is taken as one about a connection that is not there: whoever
// guesses IDs learns nothing.
func (m *Manager) find(peer netip.Addr, local, remote uint32) *Conn {
	m.in.local = local
	c := m.byID[remote]
	switch {
	case c == nil:
		m.stats.Unknown++
	case c.remote.Addr() != peer || c.knows && c.remoteID != local || !m.maySend(c):
		m.stats.Forged++
	default:
		return c
	}
	return nil
}

// maySend reports whether the message that is worked on may be of c's peer, as far as its port
// says. Kernels and cards send from any. Who has sent from RoCEv2's own is a program like this one,
// which sends from no other, and at its address no other program can.
func (m *Manager) maySend(c *Conn) bool { return m.in.fromPort || !c.fromPort }

// tell gives an event to the connection that a message is about.
func (m *Manager) tell(now time.Duration, peer netip.Addr, local, remote uint32, e event) {
	if c := m.find(peer, local, remote); c != nil {
		c.event(now, e)
	}
}

func (m *Manager) receiveREQ(now time.Duration, peer netip.Addr, body []byte) {
	var p req
	if !p.parse(body) || p.qpn < 2 {
		m.stats.Garbage++
		return
	}
	if c := m.byAsk[askKey{peer, p.local}]; c != nil {
		// It is known. Only one that is the same in all that matters is the same.
		if c.peer.QPN != p.qpn || c.peer.RecvPSN != p.recvPSN || c.tid != m.in.tid {
			m.stats.Forged++
			return
		}
		m.in.local = p.local
		c.event(now, evREQ)
		return
	}
	if reason := m.unfit(peer, &p); reason != ReasonNone {
		r := rej{remote: p.local, about: aboutREQ, reason: reason}
		if reason == ReasonInvalidMTU {
			r.info = []byte{mtuCode(m.cfg.MTU)} // what would be taken instead
		}
		m.refuseStranger(now, peer, &r)
		return
	}
	if c := m.byPeer[peerKey{peer, p.guid, p.qpn}]; c != nil {
		if !m.maySend(c) {
			m.stats.Forged++
			return
		}
		// A queue pair has one connection. So the peer has forgotten this one: it has started
		// anew. It may ask again when it has been told (InfiniBand, 12.9.8.3.1).
		m.stale(now, c)
		if r := (rej{remote: p.local, about: aboutREQ, reason: ReasonStale}); c.connected {
			m.refuse(peer, &r)
		} else {
			m.refuseStranger(now, peer, &r)
		}
		return
	}
	// Requests for which there is no room are not refused: peers repeat them for longer than it
	// takes to answer the others.
	if !m.mayAsk(now, source{sourceOf(peer), m.in.fromPort}) || !m.room(now, peer) {
		m.stats.Full++
		return
	}
	c := m.add(now, peer)
	c.keepREQ(&p, m.in.tid)
	m.ask(c)
	c.state = ReqRcvd
	port, _ := servicePort(p.service)
	c.local, c.remote = netip.AddrPortFrom(m.cfg.Local, port), netip.AddrPortFrom(peer, p.header.port)
	m.byAsk[askKey{peer, p.local}] = c
	m.byPeer[c.peerKey()] = c
	c.deadline = now + m.cfg.Answer
	c.arm()
	m.env.Asked(c)
}

// unfit is why a request cannot be taken whoever listens: ReasonNone if it can.
func (m *Manager) unfit(peer netip.Addr, p *req) Reason {
	port, ok := servicePort(p.service)
	if ok {
		_, ok = m.listen[port]
	}
	switch {
	case !ok:
		m.stats.NoService++
		return ReasonNoListener
	case p.transport != transportRC:
		return ReasonTransport
	case p.header.src.Unmap() != peer.WithZone("") || p.header.dst.Unmap() != m.cfg.Local.WithZone(""):
		// Packets of queue pairs are taken from the address that asked alone.
		return ReasonInvalidGID
	case mtuBytes(p.mtu) == 0 || mtuBytes(p.mtu) > m.cfg.MTU:
		return ReasonInvalidMTU
	}
	return ReasonNone
}

func (m *Manager) receiveREP(now time.Duration, peer netip.Addr, body []byte) {
	p := &m.in.rep
	p.parse(body)
	if p.qpn < 2 {
		m.stats.Garbage++
		return
	}
	c := m.find(peer, p.local, p.remote)
	if c == nil {
		// Nobody waits for it. Its sender has something half open, which it can forget.
		m.refuseStranger(now, peer, &rej{local: p.remote, remote: p.local, about: aboutREP, reason: ReasonInvalidCommID})
		return
	}
	if c.state == ReqSent || c.state == ReqMRA {
		if old := m.byPeer[peerKey{peer, p.guid, p.qpn}]; old != nil {
			if !m.maySend(old) {
				m.stats.Forged++
				return
			}
			m.stale(now, old)
			m.refuse(peer, &rej{local: c.id, remote: p.local, about: aboutREP, reason: ReasonStale})
			m.in.rej = rej{reason: ReasonStale}
			c.event(now, evREJ)
			return
		}
	}
	c.event(now, evREP)
}

// stale ends c, which its peer has forgotten.
func (m *Manager) stale(now time.Duration, c *Conn) {
	m.stats.Stale++
	c.event(now, evStale)
}

func (m *Manager) receiveDREQ(now time.Duration, peer netip.Addr, body []byte) {
	var p dreq
	p.parse(body)
	c := m.find(peer, p.local, p.remote)
	switch {
	case c == nil:
		// The peer's connection outlived ours, or our DREP was lost: it is told what it wants to
		// hear (drivers/infiniband/core/cm.c, cm_issue_drep).
		if m.mayAnswer(now) {
			(&drep{p.remote, p.local}).put(&m.out, m.in.tid)
			m.send(peer, &m.out)
		}
	case p.qpn != c.param.QPN:
		m.stats.Forged++
	default:
		c.event(now, evDREQ)
	}
}

func (m *Manager) receiveREJ(now time.Duration, peer netip.Addr, body []byte) {
	p := &m.in.rej
	p.parse(body)
	if p.reason == ReasonTimeout && p.remote == 0 {
		// Who gives up before it was answered does not know our ID.
		m.in.local = p.local
		switch c := m.byAsk[askKey{peer, p.local}]; {
		case c == nil:
			m.stats.Unknown++
		case c.connected || !m.maySend(c):
			m.stats.Forged++ // once connected it was answered
		default:
			c.event(now, evREJ)
		}
		return
	}
	m.tell(now, peer, p.local, p.remote, evREJ)
}

func (m *Manager) receiveMRA(now time.Duration, peer netip.Addr, body []byte) {
	p := &m.in.mra
	p.parse(body)
	c := m.find(peer, p.local, p.remote)
	if c == nil {
		return
	}
	about := uint8(aboutREP)
	if c.dials {
		about = aboutREQ
	}
	if p.about != about {
		m.stats.Forged++ // of a message that c has not sent
		return
	}
	c.event(now, evMRA)
}

// refuse answers the message that is worked on with a REJ.
func (m *Manager) refuse(peer netip.Addr, r *rej) {
	r.put(&m.out, m.in.tid)
	m.send(peer, &m.out)
}

// refuseStranger is refuse, of one with whom there is no connection.
func (m *Manager) refuseStranger(now time.Duration, peer netip.Addr, r *rej) {
	if m.mayAnswer(now) {
		m.refuse(peer, r)
	}
}
