package rds

import (
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rdserr"
)

// Waiting sends. Datagrams that cannot be accepted yet wait in one queue for
// each destination of a socket, so that a congested port holds up only what
// goes to it. A flow is either lined up for the send buffer or awaits its
// port, never both, and is moved by the event it waits for:
// Completed frees buffer, a congestion update frees a port. Nothing polls.
type flow struct {
	s      *Socket
	pe     *Peer
	dst    netip.AddrPort
	q      []*conn.Msg
	awaits bool // the port is congested
	lined  bool // the send buffer is full
}

// SendWait offers one datagram and waits until deadline (0: for ever) if it
// must: queued true says that it waits, and a SendDone with batch and tag
// follows; otherwise it was accepted (nil error) or refused at once.
func (s *Socket) SendWait(now time.Duration, dst netip.AddrPort, payload []byte, tag uint64, want bool, deadline time.Duration, batch any) (queued bool, err error) {
	pe, err := s.check(dst, len(payload))
	if err != nil {
		return false, err
	}
	if s.waiting >= s.e.cfg.MaxUndecided {
		return false, rdserr.With(rdserr.ErrTooMany, "%d sends of this socket wait already", s.waiting)
	}
	if deadline == 0 {
		deadline = never
	}
	f := s.flows[dst]
	if f == nil {
		err = s.admit(pe, dst, len(payload))
		if err == nil {
			m := s.e.newMsg()
			m.Payload, m.Tag, m.Report, m.DPort = payload, tag, want, dst.Port()
			s.accept(now, pe, m)
			return false, nil
		}
		if err != rdserr.ErrWouldBlock && err != rdserr.ErrCongested {
			return false, err
		}
		f = &flow{s: s, pe: pe, dst: dst}
		if s.flows == nil {
			s.flows = make(map[netip.AddrPort]*flow)
		}
		s.flows[dst] = f
		if err == rdserr.ErrCongested {
			s.block(f)
		} else {
			s.lineUp(f)
		}
	}
	m := s.e.newMsg()
	m.Payload, m.Tag, m.Report, m.DPort, m.At, m.Batch = payload, tag, want, dst.Port(), deadline, batch
	f.q = append(f.q, m)
	s.waiting++
	if deadline < s.deadline {
		s.deadline = deadline
		s.e.arm(&s.tm, s, deadline)
	}
	return true, nil
}

// block lets f await its port.
func (s *Socket) block(f *flow) {
	s.e.ctr.CongSendBlocked++
	f.pe.block(f.dst.Port())
	s.concern(f.dst)
	f.awaits = true
	f.pe.await(f.dst.Port(), f)
}

func (s *Socket) lineUp(f *flow) {
	if !f.lined {
		f.lined = true
		s.lined = append(s.lined, f)
	}
}

// hasSpace notes that waiting sends may go on; they do at the end of the step.
func (s *Socket) hasSpace() {
	if !s.spaceListed {
		s.spaceListed = true
		s.e.space = append(s.e.space, s)
	}
}

// runWaiting accepts what it can, flow by flow in turn.
func (s *Socket) runWaiting(now time.Duration) {
	for len(s.lined) > 0 {
		f := s.lined[0]
		if len(f.q) == 0 {
			s.lined = s.lined[1:]
			f.lined = false
			s.endFlow(f)
			continue
		}
		m := f.q[0]
		err := s.admit(f.pe, f.dst, len(m.Payload))
		if err == rdserr.ErrWouldBlock {
			return
		}
		s.lined = s.lined[1:]
		f.lined = false
		if err == rdserr.ErrCongested {
			s.block(f)
			continue
		}
		f.q = f.q[1:]
		s.waiting--
		s.sendDone(m, err)
		if err == nil {
			m.Batch = nil
			s.accept(now, f.pe, m)
		} else {
			s.e.freeMsg(m)
		}
		if len(f.q) == 0 {
			s.endFlow(f)
		} else {
			s.lineUp(f)
		}
	}
	s.lined = nil
}

func (s *Socket) endFlow(f *flow) {
	if s.flows[f.dst] == f {
		delete(s.flows, f.dst)
	}
}

func (s *Socket) sendDone(m *conn.Msg, err error) {
	s.sends = append(s.sends, SendDone{m.Batch, m.Tag, err})
	s.news(EvSends)
}

// SendsDone appends the waiting sends decided since the last call to l.
func (s *Socket) SendsDone(l []SendDone) []SendDone {
	l = append(l, s.sends...)
	clear(s.sends)
	s.sends = s.sends[:0]
	return l
}

// failWaiting ends waiting sends to dst (the zero value: all; port 0: all of
// the address).
func (s *Socket) failWaiting(now time.Duration, dst netip.AddrPort, err error) {
	s.expire(now, err, func(f *flow, m *conn.Msg) bool {
		return !dst.Addr().IsValid() || dst.Addr() == f.dst.Addr() && (dst.Port() == 0 || dst.Port() == f.dst.Port())
	})
}

// tick ends waiting sends whose deadline passed.
func (s *Socket) tick(now time.Duration) {
	s.tm.t = nil
	n := len(s.sends)
	s.expire(now, rdserr.ErrTimeout, func(_ *flow, m *conn.Msg) bool { return m.At <= now })
	s.e.ctr.SendTimeout += uint64(len(s.sends) - n)
	s.deadline = never
	for _, f := range s.flows {
		for _, m := range f.q {
			s.deadline = min(s.deadline, m.At)
		}
	}
	if s.deadline != never {
		s.e.arm(&s.tm, s, s.deadline)
	}
}

func (s *Socket) expire(now time.Duration, err error, which func(*flow, *conn.Msg) bool) {
	if s.waiting == 0 {
		return
	}
	for _, f := range s.sortedFlows() {
		f.q = slices.DeleteFunc(f.q, func(m *conn.Msg) bool {
			if !which(f, m) {
				return false
			}
			s.waiting--
			s.sendDone(m, err)
			s.e.freeMsg(m)
			return true
		})
		if len(f.q) > 0 {
			continue
		}
		if f.awaits {
			f.awaits = false
			f.pe.unawait(f.dst.Port(), f)
		}
		if f.lined {
			f.lined = false
			s.lined = slices.DeleteFunc(s.lined, func(k *flow) bool { return k == f })
		}
		s.endFlow(f)
	}
}

// sortedFlows: the simulator wants the same order each time.
func (s *Socket) sortedFlows() []*flow {
	l := make([]*flow, 0, len(s.flows))
	for _, f := range s.flows {
		l = append(l, f)
	}
	slices.SortFunc(l, func(a, b *flow) int { return a.dst.Compare(b.dst) })
	return l
}
