package simtest

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/transport/sim"
	"github.com/rdsd/rdsd/wire"
)

type kstate uint8

const (
	kDown kstate = iota
	kConnecting
	kUp
)

// kpath is one TCP connection's worth of a kconn.
type kpath struct {
	c        *kconn
	idx      int
	state    kstate
	attempt  int // names dials, so that late ones are known
	end      *sim.End
	port     uint16 // its source port, when it was accepted
	nextTx   uint64
	expected uint64

	queue   []*kmsg // never sent
	retrans []*kmsg // sent on an earlier connection
	unacked []*kmsg
	mapDue  bool
	cur     []byte // what is left of the frame being written
	wrote   uint64
	rx      []byte
	backoff time.Duration
	silent  int
	moved   bool // since the last keep-alive
}

// queue gives a message to its path: by socket once the paths are known.
func (c *kconn) queue(m *kmsg) {
	p := c.paths[0]
	if h := int(uint32(m.sport)*2654435761>>13) % 8; c.npaths > 1 {
		p = c.paths[h%c.npaths]
		if c.k.newer && c.growing && m.rec != nil {
			c.fan = append(c.fan, m)
			c.fanOut()
			return
		}
	} else if c.npaths == 0 && h != 0 && !c.pinged {
		c.pinged = true
		c.paths[0].handshake(wire.PortProbe, wire.PortPing)
	}
	p.queue = append(p.queue, m)
	p.connectIfDown()
	p.xmit()
}

func (p *kpath) drained() bool {
	p.release()
	return len(p.queue) == 0 && len(p.retrans) == 0 && len(p.unacked) == 0
}

// fanOut spreads what waited for the paths to drain.
func (c *kconn) fanOut() {
	if !c.growing {
		return
	}
	for _, p := range c.paths {
		if !p.drained() {
			p.connectIfDown()
			return
		}
	}
	l := c.fan
	c.fan, c.growing = nil, false
	for _, m := range l {
		h := int(uint32(m.sport)*2654435761>>13) % 8
		p := c.paths[h%max(c.npaths, 1)]
		p.queue = append(p.queue, m)
		p.connectIfDown()
		p.xmit()
	}
}

// handshake queues a handshake ping or pong. A pong is delayed work, a tick or two: a link that is lost
// meanwhile has it stay in the queue, and it leaves on the next one as if it were about that.
func (p *kpath) handshake(sport, dport uint16) {
	k := p.c.k
	x := wire.Handshake{NPaths: 8}
	if k.newer {
		x.GenNum, x.SportIdx = k.gen, true
	}
	p.queue = append(p.queue, &kmsg{sport: sport, dport: dport, ext: x.Encode()})
	p.connectIfDown()
	if sport == wire.PortProbe {
		p.xmit()
	} else {
		k.after(time.Duration(4+k.w.rng.Intn(5))*time.Millisecond, p.xmit)
	}
}

// --- up and down -----------------------------------------------------------------

func (p *kpath) connectIfDown() {
	if p.state != kDown {
		return
	}
	c, k := p.c, p.c.k
	p.state = kConnecting
	p.attempt++
	my := p.attempt
	port := uint16(40000 + 8*k.w.rng.Intn(2000))
	if k.newer {
		port += uint16(p.idx)
	} else {
		port += uint16(k.w.rng.Intn(8))
	}
	k.host.Dial(port, c.peer, 20*time.Second, func(e *sim.End, err error) {
		switch {
		case p.attempt != my || p.state != kConnecting:
			if e != nil {
				e.Close()
			}
		case err == nil && c.smaller:
			p.connected(e, 0)
		default: // failed, or a poke: the peer is to connect
			if e != nil {
				e.Close()
			}
			p.state = kDown
			p.reconnect()
			c.unpark()
		}
	})
}

// reconnect lets the smaller side try again; the larger one waits.
func (p *kpath) reconnect() {
	if !p.c.smaller {
		return
	}
	d := time.Duration(0)
	if p.backoff > 0 {
		d = p.c.k.w.upTo(p.backoff)
	}
	p.backoff = min(max(2*p.backoff, 4*time.Millisecond), time.Second)
	p.c.k.after(d, p.connectIfDown)
}

func (p *kpath) connected(e *sim.End, port uint16) {
	c, k := p.c, p.c.k
	k.w.trace("kernel %v path %d to %v is connection #%d", k.addr, p.idx, c.peer, e.ID())
	p.attempt++
	p.state, p.end, p.port = kUp, e, port
	p.cur, p.rx, p.wrote, p.silent = nil, nil, 0, 0
	p.mapDue = true
	my := p.attempt
	live := func(f func()) func() {
		return k.guard(func() {
			if p.attempt == my && p.state == kUp {
				f()
			}
		})
	}
	e.Readable, e.Writable = live(p.read), live(p.xmit)
	if p.idx == 0 && (k.newer || c.npaths == 0 && (!c.smaller || c.pinged)) {
		c.paths[0].handshake(wire.PortProbe, wire.PortPing)
	}
	if k.newer && p.idx == 0 && c.smaller {
		c.openPaths()
	}
	p.keepAlive(my)
	p.xmit()
	k.after(0, live(p.read))
}

// keepAlive ends a link after 5 s of silence and 5 probes 5 s apart.
func (p *kpath) keepAlive(my int) {
	k := p.c.k
	k.after(5*time.Second, func() {
		if p.attempt != my || p.state != kUp {
			return
		}
		p.release()
		p.c.fanOut()
		if p.moved {
			p.moved = false
			p.keepAlive(my)
			return
		}
		p.end.Probe(func(alive bool) {
			if p.attempt != my || p.state != kUp {
				return
			}
			if alive {
				p.silent = 0
			} else if p.silent++; p.silent > 5 {
				p.down()
			}
		})
		p.keepAlive(my)
	})
}

// down ends the link: messages that TCP did not acknowledge go back to the queue, flagged.
func (p *kpath) down() {
	k := p.c.k
	p.release()
	k.w.trace("kernel %v path %d to %v is down, %d to send again", k.addr, p.idx, p.c.peer, len(p.unacked))
	p.attempt++
	p.end.Close()
	p.end, p.state = nil, kDown
	for _, m := range p.unacked {
		m.flags = wire.FlagRetransmitted
		if m.rec != nil {
			m.rec.resent = true
		}
	}
	p.retrans = append(p.unacked, p.retrans...)
	p.unacked, p.cur, p.rx = nil, nil, nil
	p.reconnect()
	p.c.unpark()
}

// release forgets what TCP has acknowledged.
func (p *kpath) release() {
	if p.end == nil {
		return
	}
	acked := p.end.Acked()
	for len(p.unacked) > 0 && p.unacked[0].end <= acked {
		p.unacked = p.unacked[1:]
	}
}

// --- sending ---------------------------------------------------------------------

func (p *kpath) xmit() {
	if p.state != kUp {
		return
	}
	for {
		if len(p.cur) == 0 && !p.next() {
			return
		}
		n, err := p.end.Write([][]byte{p.cur})
		if err != nil || n == 0 {
			return
		}
		p.moved = true
		p.cur = p.cur[n:]
	}
}

// next makes the next frame: the map, then retransmissions, then the queue.
func (p *kpath) next() bool {
	h := wire.Header{}
	var payload []byte
	var m *kmsg
	switch {
	case p.mapDue:
		p.mapDue = false
		payload = p.c.k.cmap[:]
		h.Flags = wire.FlagCongBitmap
	case len(p.retrans) > 0:
		m, p.retrans = p.retrans[0], p.retrans[1:]
	case len(p.queue) > 0:
		m, p.queue = p.queue[0], p.queue[1:]
		m.seq = p.nextTx
		p.nextTx++
	default:
		return false
	}
	if m != nil {
		payload = m.payload
		h.Seq, h.SPort, h.DPort, h.Flags, h.Ext = m.seq, m.sport, m.dport, m.flags, m.ext
		p.unacked = append(p.unacked, m)
	}
	h.Len = uint32(len(payload))
	if k := p.c.k; k.w.verbose != nil {
		k.w.trace("kernel %v path %d to %v sends %v", k.addr, p.idx, p.c.peer, &h)
	}
	p.cur = append(h.Append(make([]byte, 0, wire.HeaderLen+len(payload))), payload...)
	p.wrote += uint64(len(p.cur))
	if m != nil {
		m.end = p.wrote
		if m.rec != nil {
			m.rec.left, m.rec.path = true, p.idx
		}
	}
	return true
}

// --- receiving -------------------------------------------------------------------

func (p *kpath) read() {
	p.moved = true
	for p.end.Buffered() > 0 {
		p.rx = p.end.Read(p.rx, 1<<20)
	}
	off, my := 0, p.attempt
	for len(p.rx)-off >= wire.HeaderLen {
		n := wire.HeaderLen + int(binary.BigEndian.Uint32(p.rx[off+16:]))
		if len(p.rx)-off < n {
			break
		}
		p.take(p.rx[off:off+wire.HeaderLen], p.rx[off+wire.HeaderLen:off+n])
		if p.attempt != my {
			return
		}
		off += n
	}
	p.rx = append(p.rx[:0], p.rx[off:]...)
	p.release()
	p.c.fanOut()
	if over, _ := p.end.Ended(); over {
		p.down()
	}
}

// take is rds_recv_incoming.
func (p *kpath) take(raw, payload []byte) {
	c, k := p.c, p.c.k
	w := k.w
	var h wire.Header
	h.Parse(raw)
	p.backoff = 0
	w.mix(10, h.Seq, uint64(h.Len), uint64(h.Flags))
	if w.verbose != nil {
		w.trace("kernel %v path %d takes %v (expected %d)", k.addr, p.idx, &h, p.expected)
	}
	if h.Flags&^(wire.FlagCongBitmap|wire.FlagRetransmitted) != 0 || h.Ack != 0 || h.Credit != 0 || h.Csum != 0 {
		w.fail("V1: an rdsd sends %v to a kernel", &h)
	}
	if h.Flags == wire.FlagCongBitmap {
		if len(payload) == len(c.pmap) {
			copy(c.pmap[:], payload)
		}
		return
	}
	if h.Seq < p.expected && h.Flags&wire.FlagRetransmitted != 0 {
		return
	}
	p.expected = h.Seq + 1
	switch {
	case h.DPort == 0 && k.noPing:
	case h.DPort == 0 && h.SPort == 0:
	case h.DPort == 0 && h.SPort == wire.PortProbe:
		p.handshake(0, wire.PortProbe)
		c.agree(&h)
	case h.DPort == wire.PortProbe && h.SPort == 0:
		c.agree(&h)
	case h.DPort == 0:
		to := h.SPort
		k.after(time.Duration(4+w.rng.Intn(5))*time.Millisecond, func() {
			p.queue = append(p.queue, &kmsg{dport: to})
			p.xmit()
		})
	case h.SPort == 0: // a pong
	default:
		if s := k.socks[h.DPort]; s != nil {
			w.m.placedAt(k.epoch, netip.AddrPortFrom(c.peer, h.SPort), netip.AddrPortFrom(k.addr, h.DPort), payload)
			s.take(len(payload))
		}
	}
}

// agree takes the number of paths of a handshake message.
func (c *kconn) agree(h *wire.Header) {
	x := wire.ParseHandshake(&h.Ext)
	n := max(1, min(8, int(x.NPaths)))
	if x.GenNum != 0 {
		c.k.w.fail("V1: an rdsd sends GEN_NUM to a kernel, which makes it lose what it has queued")
	}
	if c.k.newer {
		n = max(n, c.npaths) // lanes are never reduced
	}
	c.growing = c.growing || n != c.npaths
	c.npaths = n
	if c.smaller {
		c.openPaths()
	} else if p := c.paths[0]; c.k.newer && n > 1 && p.state == kUp && p.port%8 != 0 {
		p.down() // it was another path's connection
	}
	c.unpark()
}

func (c *kconn) openPaths() {
	for _, p := range c.paths[1:max(c.npaths, 1)] {
		p.connectIfDown()
	}
}
