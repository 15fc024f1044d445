package sim

import "time"

// pipe is one direction of a connection. Bytes are written, travel in
// segments, arrive in the receive buffer, are acknowledged by the receiving
// TCP, and are read.
type pipe struct {
	n        *Net
	from, to *End

	queue   []segment
	last    time.Duration // arrival of the last segment
	written uint64
	arrived uint64
	acked   uint64

	rbuf []byte
	roff int

	fin, finArrived bool
	armed           bool
	dead            bool
	rto             time.Duration
	stuck           time.Duration // nothing passes since; 0: it does
	acking          bool
}

type segment struct {
	at time.Duration
	b  []byte
}

func (p *pipe) write(pieces [][]byte, take int) {
	b := make([]byte, 0, take)
	for _, q := range pieces {
		b = append(b, q[:min(len(q), take-len(b))]...)
	}
	p.written += uint64(take)
	pr := &p.n.Profile
	if pr.Chop > 0 && p.n.rng.Intn(pr.Chop) == 0 {
		for range 1 + p.n.rng.Intn(4) {
			if len(b) < 2 {
				break
			}
			k := 1 + p.n.rng.Intn(min(len(b)-1, 200))
			p.segment(b[:k:k])
			b = b[k:]
		}
	}
	p.segment(b)
	p.arm()
}

func (p *pipe) segment(b []byte) {
	pr := &p.n.Profile
	at := p.n.now + p.n.latency()
	if pr.Bandwidth > 0 {
		at += time.Duration(float64(len(b)) / float64(pr.Bandwidth) * 1e9)
	}
	if pr.Loss > 0 && p.n.rng.Float64() < pr.Loss {
		at += rtoMin + time.Duration(p.n.rng.Int63n(int64(rtoMin)))
	}
	if pr.Bandwidth > 0 && p.last > p.n.now {
		at = max(at, p.last+time.Duration(float64(len(b))/float64(pr.Bandwidth)*1e9))
	}
	at = max(at, p.last)
	p.last = at
	p.queue = append(p.queue, segment{at, b})
}

// arm schedules the next arrival.
func (p *pipe) arm() {
	if p.armed || p.dead {
		return
	}
	var at time.Duration
	switch {
	case len(p.queue) > 0:
		at = p.queue[0].at
	case p.fin && !p.finArrived:
		at = max(p.last, p.n.now+p.n.Profile.Latency)
		p.last = at
	default:
		return
	}
	p.armed = true
	p.n.At(at, p.arrive)
}

func (p *pipe) arrive() {
	p.armed = false
	if p.dead {
		return
	}
	n := p.n
	// Nothing gets through: TCP sends again, with growing pauses.
	if until := n.cutUntil(p.from.h.Addr, p.to.h.Addr); until > n.now || !p.to.h.up {
		p.retry(until)
		return
	}
	if p.to.vanished || p.to.err != nil || p.to.closed {
		// Data for an end that is gone is answered with a reset; a FIN that finds it closed is only
		// the other half of closing.
		if len(p.queue) > 0 || p.to.vanished || p.to.err != nil {
			if until := n.cutUntil(p.to.h.Addr, p.from.h.Addr); until > n.now {
				// The RST would be lost: it comes for the next try.
				p.retry(until)
				return
			}
			p.purge()
			p.to.reset(p.from)
		} else {
			p.finArrived = true
		}
		return
	}
	p.stuck, p.rto = 0, 0
	moved := false
	for len(p.queue) > 0 && p.queue[0].at <= n.now {
		room := n.Profile.RcvBuf - (len(p.rbuf) - p.roff)
		if room <= 0 {
			break // Read arms again
		}
		s := &p.queue[0]
		k := min(room, len(s.b))
		if p.roff > 0 && p.roff*2 > len(p.rbuf) {
			p.rbuf = append(p.rbuf[:0], p.rbuf[p.roff:]...)
			p.roff = 0
		}
		p.rbuf = append(p.rbuf, s.b[:k]...)
		p.arrived += uint64(k)
		s.b = s.b[k:]
		moved = true
		if len(s.b) == 0 {
			p.queue[0] = segment{}
			p.queue = p.queue[1:]
		}
	}
	if moved {
		p.ack()
	}
	// The end comes behind all bytes.
	if len(p.queue) == 0 && p.fin && !p.finArrived && p.last <= n.now {
		p.finArrived = true
		moved = true
	}
	if len(p.queue) == 0 || p.queue[0].at > n.now {
		p.arm()
	}
	if moved && p.to.Readable != nil {
		p.to.Readable()
	}
}

// retry sends a segment that met a cut again, at growing intervals as TCP does, and gives
// up in the end.
func (p *pipe) retry(until time.Duration) {
	n := p.n
	if p.stuck == 0 {
		p.stuck = n.now
	}
	if n.now-p.stuck > userTimeout {
		p.from.fail(ErrTimeout)
		return
	}
	p.rto = min(max(2*p.rto, rtoMin), rtoMax)
	at := n.now + p.rto
	if until != forever && until > n.now {
		at = min(at, until)
	}
	p.armed = true
	n.At(at, p.arrive)
}

// ack lets the receiving TCP acknowledge the bytes that have arrived.
func (p *pipe) ack() {
	if p.acking || p.dead {
		return
	}
	p.acking = true
	upTo := p.arrived
	d := p.n.latency()
	if p.n.Profile.AckDelay > 0 {
		d += time.Duration(p.n.rng.Int63n(int64(p.n.Profile.AckDelay)))
	}
	p.n.After(d, func() { p.acknowledge(upTo) })
}

func (p *pipe) acknowledge(upTo uint64) {
	p.acking = false
	if p.dead || p.from.vanished || p.from.err != nil {
		return
	}
	if p.n.cutUntil(p.to.h.Addr, p.from.h.Addr) > p.n.now {
		p.acking = true
		p.n.After(rtoMin, func() { p.acknowledge(upTo) })
		return
	}
	p.acked = max(p.acked, upTo)
	if p.arrived > upTo {
		p.ack()
	}
	if f := p.from.Writable; p.from.full && f != nil && int(p.written-p.acked) < p.n.Profile.SndBuf {
		p.from.full = false
		f()
	}
}

// purge drops the bytes that are under way.
func (p *pipe) purge() {
	p.dead = true
	clear(p.queue)
	p.queue = nil
}

// tear lets a random part of the bytes under way arrive before the others are lost.
func (p *pipe) tear() {
	for len(p.queue) > 0 && p.n.rng.Intn(2) == 0 {
		b := p.queue[0].b
		if p.n.rng.Intn(2) == 0 {
			b = b[:p.n.rng.Intn(len(b)+1)]
		}
		b = b[:min(len(b), max(0, p.n.Profile.RcvBuf-(len(p.rbuf)-p.roff)))]
		p.rbuf = append(p.rbuf, b...)
		p.arrived += uint64(len(b))
		if len(b) < len(p.queue[0].b) {
			break
		}
		p.queue = p.queue[1:]
	}
}
