package rds

import (
	"errors"
	"net/netip"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// The machine's shell: links, dials, batches, and the engine's orders.

// bytes arrive on a link.
func (m *machine) bytes(l *fuzzLink, b []byte) {
	if l.paused != nil {
		l.behind = append(l.behind, b...)
		return
	}
	if l.dead {
		return
	}
	n, err := l.fr.Feed(b, func(f *transport.Frame) error {
		err := m.receive(l, f)
		var h wire.Header
		h.Parse(f.Raw)
		m.note("%v link %d takes %v: %v", l.p, l.attempt, &h, err)
		if err == conn.ErrPause {
			l.paused = &transport.Frame{Raw: append([]byte(nil), f.Raw...), Payload: f.Payload, Buf: f.Buf}
			if f.Buf != nil {
				f.Buf.Ref()
			} else {
				l.paused.Payload = append([]byte(nil), f.Payload...)
			}
		}
		return err
	})
	switch {
	case err == conn.ErrPause:
		l.behind = append(l.behind, b[n:]...)
	case err != nil:
		l.dead = true
		if _, ok := errors.AsType[*transport.ErrTooLong](err); ok {
			m.drop(l, err)
		}
	}
	l.p.ReceivedAll(m.now, l.attempt)
	m.settle()
}

func (m *machine) link(p *conn.Lane, attempt uint64) {
	l := &fuzzLink{p: p, attempt: attempt}
	l.fr.Max = wire.MaxDatagram
	m.links = append(m.links, l)
}

func (m *machine) unlink(l *fuzzLink) {
	l.fr.Close()
	if l.paused != nil && l.paused.Buf != nil {
		l.paused.Buf.Release()
	}
	l.paused = nil
	for i := range m.links {
		if m.links[i] == l {
			m.links = append(m.links[:i], m.links[i+1:]...)
			return
		}
	}
}

func (m *machine) forget(d dial) {
	for i := range m.dials {
		if m.dials[i] == d {
			m.dials = append(m.dials[:i], m.dials[i+1:]...)
			return
		}
	}
}

func (m *machine) lost(l *fuzzLink) {
	acked := l.sent - min(l.sent, uint64(m.u8())*7)
	m.note("%v: link %d lost, %d of %d bytes acknowledged", l.p, l.attempt, acked, l.sent)
	m.unlink(l)
	l.p.Lost(m.now, l.attempt, acked, errors.New("gone"))
	m.settle()
}

// settle does what the calls so far have made possible, as the end of a step does.
func (m *machine) settle() { m.e.runDeferred(m.now) }

func (m *machine) receive(l *fuzzLink, f *transport.Frame) error {
	m.e.Begin(m.now)
	return l.p.Receive(m.now, l.attempt, f)
}

func (m *machine) connected(d dial) bool {
	ok := d.p.Connected(m.now, d.gen)
	m.settle()
	return ok
}

func (m *machine) drop(l *fuzzLink, why error) bool {
	ok := l.p.Drop(m.now, why)
	m.settle()
	return ok
}

// actions carries out the engine's orders.
func (m *machine) actions() {
	for n := 0; ; n++ {
		acts := takeActions(m.e, nil)
		if len(acts) == 0 {
			break
		}
		if n > 10000 {
			m.t.Fatal("the engine gives orders for ever")
		}
		for _, a := range acts {
			m.note("%v link %d: %v %v", a.Lane, a.Attempt, a.Kind, a.Why)
			l := m.find(a.Lane, a.Attempt)
			switch a.Kind {
			case conn.ActDial:
				m.dials = append(m.dials, dial{a.Lane, a.Attempt})
			case conn.ActClose:
				if l == nil {
					m.t.Fatalf("%v: close of link %d, which there is not", a.Lane, a.Attempt)
				}
				l.closing = true
			case conn.ActAbort:
				m.forget(dial{a.Lane, a.Attempt})
				if l != nil {
					m.unlink(l)
				}
			case conn.ActKick:
				if m.late {
					m.kicks = append(m.kicks, a.Lane)
				} else {
					m.fill(a.Lane)
				}
			case conn.ActPoll:
				if l != nil {
					a.Lane.Acked(m.now, a.Attempt, l.sent-min(l.sent, uint64(m.u8())))
					m.settle()
				}
			case conn.ActResume:
				if l != nil && l.paused != nil {
					m.resume(l)
				}
			}
		}
		if !m.late {
			kicks := m.kicks
			m.kicks = nil
			for _, p := range kicks {
				m.fill(p)
			}
		}
	}
	o := taken(m.e)
	for _, s := range o.Ready {
		m.note("%v has news: %x", s.Addr(), s.Events())
	}
	for _, c := range o.States {
		m.note("%v: %v > %v", c.Lane, c.Was, c.Now)
	}
	for _, n := range o.Notices {
		m.note("%+v", n)
	}
	if o.Collect {
		m.note("collect")
	}
}

func (m *machine) find(p *conn.Lane, attempt uint64) *fuzzLink {
	for _, l := range m.links {
		if l.p == p && l.attempt == attempt {
			return l
		}
	}
	return nil
}

func (m *machine) resume(l *fuzzLink) {
	f, behind := l.paused, l.behind
	l.paused, l.behind = nil, nil
	err := m.receive(l, f)
	m.note("%v link %d resumes: %v", l.p, l.attempt, err)
	switch {
	case err == conn.ErrPause:
		l.paused, l.behind = f, behind
		return
	case err != nil:
		l.dead = true
	}
	if f.Buf != nil {
		f.Buf.Release()
	}
	l.p.ReceivedAll(m.now, l.attempt)
	m.settle()
	m.bytes(l, behind)
}

func (m *machine) fill(p *conn.Lane) {
	if m.fills[p] != nil {
		return
	}
	b := transport.GetBatch()
	if !m.e.Fill(m.now, p, b) {
		if b.Frames() != 0 {
			m.t.Fatalf("%v: nothing to send, and %d frames", p, b.Frames())
		}
		b.Put()
		return
	}
	m.fills[p] = b
	m.notePieces(p, b)
	if l := m.find(p, p.Attempt()); l != nil {
		l.sent += uint64(b.Bytes)
	} else {
		m.t.Fatalf("%v: frames for link %d, which there is not", p, p.Attempt())
	}
	if !m.late {
		m.wrote(p)
	}
}

func (m *machine) wrote(p *conn.Lane) {
	b := m.fills[p]
	delete(m.fills, p)
	b.Put()
	more := p.Wrote(m.now)
	m.settle()
	if more {
		m.kicks = append(m.kicks, p)
	}
}

func (m *machine) read(s *Socket, n int) {
	if b, _ := s.opt.Sink.(*fuzzSink); b != nil {
		b.read(n)
		return
	}
	for range n {
		d, ok := s.Queue().Recv()
		if !ok {
			break
		}
		m.note("%v reads %d bytes of %v", s.Addr(), len(d.Payload), d.Source)
		d.Release()
	}
	s.ReadAll(m.now)
}

// queueOf is the queue of s, an empty one if its client has memory of its own.
func queueOf(s *Socket) *Queue {
	if q := s.Queue(); q != nil {
		return q
	}
	return &Queue{s: s}
}

// fuzzSink is a client's memory: room for 40,000 bytes, or one message.
type fuzzSink struct {
	m       *machine
	s       *Socket
	got     []boxed
	used, n int
	left    int // datagrams without an outcome
	drained int
	wanted  bool
}

func (b *fuzzSink) Place(from *Peer, a conn.Arrival) (int, bool) {
	t := a.Train
	cost := len(t.Body) + 1
	if b.used > 0 && b.used+cost > 40000 {
		return 0, false
	}
	b.m.note("%v takes %d of %v, number %d", b.s.Addr(), t.Count, from.AddrPort(a.SPort), a.Seq)
	b.got = append(b.got, boxed{train: t, cost: cost})
	b.used += cost
	b.n += t.Count
	return cost, true
}

func (b *fuzzSink) Done(d Decided) {
	b.m.note("%v: %d from %d on: %v %v", b.s.Addr(), d.Count, d.Tag, d.Outcome, d.Why)
	if b.left -= d.Count; b.left < 0 || b.drained > 0 {
		b.m.t.Errorf("%v: an outcome too many", b.s.Addr())
	}
}

func (b *fuzzSink) Spent(_ uint32, count int) {
	if b.left -= count; b.left < 0 || b.drained > 0 || !b.s.Closed() {
		b.m.t.Errorf("%v: %d datagrams too many have an end", b.s.Addr(), count)
	}
}

func (b *fuzzSink) Drained() {
	if b.drained++; b.left != 0 {
		b.m.t.Errorf("%v: drained with %d datagrams whose end nobody told", b.s.Addr(), b.left)
	}
}

func (b *fuzzSink) WantRoom(on bool) { b.wanted = on; b.m.note("%v wants room: %v", b.s.Addr(), on) }
func (b *fuzzSink) Changed(d *Dest, on bool) {
	b.m.note("%v: %v congested %v", b.s.Addr(), d.Addr(), on)
}
func (b *fuzzSink) Each(f func(src netip.AddrPort, bytes int) (more bool)) {}

// read gives back the first n messages, as much of it as the socket counts.
func (b *fuzzSink) read(n int) {
	for _, g := range b.got[:min(n, len(b.got))] {
		b.used -= g.cost
		b.n -= g.train.Count
		b.s.Freed(g.train.PayloadBytes(), g.cost, g.train.Count)
	}
	b.got = b.got[min(n, len(b.got)):]
	b.s.ReadAll(b.m.now)
}

// post offers a train through a destination that is opened for it alone.
func (b *fuzzSink) post(dst netip.AddrPort, n, count int, table, want bool) {
	d, err := b.s.Open(dst, nil)
	if err != nil {
		b.m.note("%v opens %v: %v", b.s.Addr(), dst, err)
		return
	}
	if count > 1 {
		n = min(n, wire.MaxTrainBytes)
	}
	if !table {
		n -= n % count
	}
	cell := new(uint64)
	b.left += count
	err = b.s.Post(b.m.now, d, wire.Train{Body: fuzzPayload[:n], Count: count, Table: table}, 0, b.m.tag, Report(want), cell)
	if err != nil {
		b.left -= count
	}
	b.m.tag += uint64(count)
	b.m.note("%v posts %d datagrams in %d bytes to %v, table %v: %v", b.s.Addr(), count, n, dst, table, err)
	if want {
		d.Close()
	}
}
