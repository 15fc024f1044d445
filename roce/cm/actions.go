package cm

import (
	"encoding/binary"
	"time"
)

// The actions of the table, in its order.

// enter does what belongs to a state however it is come to.
func (c *Conn) enter(now time.Duration) {
	m := c.m
	c.unwait()
	switch c.state {
	case RepSent:
		c.makeRoom()
	case Established:
		c.settle()
		c.again, c.deadline = Never, Never
		c.disarm()
	case DreqSent:
		c.retire()
		c.forgetPeer()
		if c.asker != nil {
			c.makeRoom()
		}
	case TimeWait:
		// The peer may use its queue pair again as soon as its own time-wait allows it, ours has
		// its number until late packets of the peer cannot be meant for another.
		c.forgetPeer()
		c.again, c.deadline = Never, now+m.cfg.TimeWait
		c.arm()
		c.retire()
		if c.asker != nil {
			c.makeRoom()
		}
	}
}

// settle ends c's share of the limits on what peers ask for.
func (c *Conn) settle() {
	if c.asker == nil {
		return
	}
	c.m.asked--
	if c.asker.n--; c.asker.n == 0 {
		delete(c.m.askedBy, c.source())
	}
	c.asker = nil
}

// peerKey is the peer's queue pair.
func (c *Conn) peerKey() peerKey { return peerKey{c.remote.Addr(), c.guid, c.peer.QPN} }

// forgetPeer lets the peer's queue pair have another connection.
func (c *Conn) forgetPeer() {
	if k := c.peerKey(); c.m.byPeer[k] == c {
		delete(c.m.byPeer, k)
	}
}

// ask sends the REQ.
func (c *Conn) ask(now time.Duration, private []byte) {
	m, p := c.m, &c.param
	c.tid = m.rnd.Uint64()
	from, to := c.local.Addr(), c.remote.Addr()
	(&req{
		local: c.id, service: serviceID(c.remote.Port()), guid: m.cfg.GUID,
		qpn: p.QPN, recvPSN: p.RecvPSN, readsIn: p.ReadsIn, reads: p.Reads,
		remoteTimeout: responseCode, localTimeout: responseCode, maxRetries: maxRetries, transport: transportRC,
		retry: p.Retry, rnrRetry: p.RNRRetry, srq: p.SRQ, ackTimeout: p.Ack,
		pkey: defaultPKey, mtu: mtuCode(p.MTU), localLID: noLID, remoteLID: noLID,
		localGID: from, remoteGID: to, flowLabel: flowLabel(c.local.Port(), c.remote.Port()), hopLimit: hopLimit,
		header:  ipHeader{port: c.local.Port(), src: from, dst: to},
		private: private,
	}).put(&c.out, c.tid)
	c.sendAgain(now)
	c.repeat(now, reqTimeout, reqPatience)
}

// Fields of a REQ that are the same in all.
const (
	defaultPKey = 0xffff
	noLID       = 0xffff
	hopLimit    = 64
)

// flowLabel is what kernels make of the two ports (include/rdma/ib_verbs.h,
// rdma_calc_flow_label), by which routers with several ways choose one.
func flowLabel(local, remote uint16) uint32 {
	return (uint32(local)*31 + uint32(remote)) & (1<<20 - 1)
}

// replied takes the REP.
func (c *Conn) replied(now time.Duration) {
	p := &c.m.in.rep
	c.remoteID, c.knows = p.local, true
	c.guid, c.fromPort = p.guid, c.m.in.fromPort
	c.peer = c.peerParam(p)
	c.m.byPeer[c.peerKey()] = c
	// The owner's queue pair is ready when the peer hears that it may send.
	c.established(now)
	c.confirm(now)
}

func (c *Conn) established(time.Duration) {
	c.connected = true
	c.giveBack()
	c.m.env.Connected(c)
}

// confirm sends the RTU, of the side that dialled.
func (c *Conn) confirm(time.Duration) {
	if !c.dials {
		c.m.stats.Illegal++ // who asked does not reply
		return
	}
	(&rtu{c.id, c.remoteID}).put(&c.m.out, c.tid)
	c.m.send(c.remote.Addr(), &c.m.out)
}

// end tells the owner that c is over, if it does not know: of a connection why it ended, of
// what was none the reason.
func (c *Conn) end(why error, reason Reason, private []byte) {
	if c.told {
		return
	}
	c.told = true
	if c.connected {
		c.m.env.Disconnected(c, why)
	} else {
		c.m.env.Refused(c, reason, private)
	}
}

// refused and endedByPeer take a REJ.
func (c *Conn) refused(time.Duration) { c.end(nil, c.m.in.rej.reason, c.m.in.rej.private) }

func (c *Conn) endedByPeer(time.Duration) { c.end(ErrPeer, ReasonNone, nil) }

// hungUp takes a DREQ.
func (c *Conn) hungUp(now time.Duration) {
	c.drep(now)
	c.end(ErrPeer, ReasonNone, nil)
}

// drep answers a DREQ.
func (c *Conn) drep(time.Duration) {
	(&drep{c.id, c.m.in.local}).put(&c.m.out, c.m.in.tid)
	c.m.send(c.remote.Addr(), &c.m.out)
}

// drepAgain answers a DREQ that comes once more, acceptAgain a REQ.
func (c *Conn) drepAgain(now time.Duration) {
	if c.mayTell(now) {
		c.drep(now)
	}
}

func (c *Conn) acceptAgain(now time.Duration) {
	if c.mayTell(now) {
		c.sendAgain(now)
	}
}

// putREJ makes c's answer to its REQ a REJ.
func (c *Conn) putREJ(p *rej) {
	p.local, p.remote, p.about = c.id, c.remoteID, aboutREQ
	p.put(&c.out, c.tid)
	c.rejected = true
}

// giveUp ends a dial: the peer need not wait for an RTU. It does not know our ID's
// counterpart, so kernels find it by the device's GUID.
func (c *Conn) giveUp(now time.Duration) {
	c.told = true
	c.timeout(aboutREQ)
}

func (c *Conn) timeout(about uint8) {
	var guid [8]byte
	binary.BigEndian.PutUint64(guid[:], c.m.cfg.GUID)
	(&rej{local: c.id, remote: c.remoteID, about: about, reason: ReasonTimeout, info: guid[:]}).put(&c.m.out, c.tid)
	c.m.send(c.remote.Addr(), &c.m.out)
}

func (c *Conn) expireReq(time.Duration) {
	c.timeout(aboutREQ)
	c.end(nil, ReasonTimeout, nil)
}

func (c *Conn) wait(now time.Duration) {
	if c.mayTell(now) {
		(&mra{c.id, c.remoteID, aboutREQ, serviceCode}).put(&c.m.out, c.tid)
		c.m.send(c.remote.Addr(), &c.m.out)
	}
}

// accept sends the REP, which is in c.out.
func (c *Conn) accept(now time.Duration) {
	c.begun = now
	if c.mayAccept(now) {
		c.sendAgain(now)
	}
	c.repeat(now, c.answerIn, (maxRetries+1)*c.answerIn)
}

// reject sends the REJ, which is in c.out. A peer that may not have it now asks again.
func (c *Conn) reject(now time.Duration) {
	c.told = true
	if c.mayTell(now) {
		c.sendAgain(now)
	}
}

// expireAsked refuses what the application has not answered. Kernels do not look up by our ID
// what ReasonTimeout is about.
func (c *Conn) expireAsked(now time.Duration) {
	c.putREJ(&rej{reason: ReasonNoResources})
	if c.mayTell(now) {
		c.sendAgain(now)
	}
	c.end(nil, ReasonTimeout, nil)
}

func (c *Conn) expireRep(now time.Duration) {
	if c.mayTell(now) {
		c.timeout(aboutREP)
	}
	c.end(nil, ReasonTimeout, nil)
}

func (c *Conn) forgotten(time.Duration) { c.end(nil, ReasonStale, nil) }

// forgottenDREQ ends what the peer has forgotten. It is asked all the same: if it was somebody
// else in its name, both sides learn that the connection is over.
func (c *Conn) forgottenDREQ(now time.Duration) {
	c.dreq(now)
	c.end(ErrStale, ReasonStale, nil)
}

// disconnect begins the end. The owner of a Conn that was not connected has no need to hear
// more.
func (c *Conn) disconnect(now time.Duration) {
	c.told = !c.connected
	c.dreq(now)
}

func (c *Conn) dreq(now time.Duration) {
	(&dreq{c.id, c.remoteID, c.peer.QPN}).put(&c.out, c.m.rnd.Uint64())
	if c.mayTell(now) {
		c.sendAgain(now)
	}
	c.repeat(now, response, respPatience)
}

// confirmed, crossed and silent are how a DREQ ends.
func (c *Conn) confirmed(time.Duration) { c.end(nil, ReasonNone, nil) }

func (c *Conn) crossed(now time.Duration) {
	c.drep(now)
	c.end(nil, ReasonNone, nil)
}

func (c *Conn) silent(time.Duration) { c.end(ErrSilent, ReasonNone, nil) }

// refuseAgain answers a REQ whose connection has ended.
func (c *Conn) refuseAgain(now time.Duration) {
	if !c.mayTell(now) {
		return
	}
	if !c.rejected {
		c.putREJ(&rej{reason: ReasonStale})
	}
	c.sendAgain(now)
}

// refuseRep answers a REP whose dial has ended, so that its sender forgets it.
func (c *Conn) refuseRep(now time.Duration) {
	if !c.mayTell(now) {
		return
	}
	c.m.refuse(c.remote.Addr(), &rej{local: c.id, remote: c.m.in.local, about: aboutREP, reason: ReasonStale})
}

// forget ends what the peer has no answer to.
func (c *Conn) forget(now time.Duration) {
	c.told = true
	c.forgetPeer()
	c.release(now)
}

// release ends the time-wait.
func (c *Conn) release(time.Duration) {
	m := c.m
	c.unwait()
	c.settle()
	c.disarm()
	delete(m.byID, c.id)
	if m.byQPN[c.param.QPN] == c {
		delete(m.byQPN, c.param.QPN)
	}
	if k := (askKey{c.remote.Addr(), c.remoteID}); m.byAsk[k] == c {
		delete(m.byAsk, k)
	}
	m.env.Refund(c.remote.Addr())
	m.env.Released(c)
}
