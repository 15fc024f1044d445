package rds

import (
	"math"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/internal/mutant"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

const never = time.Duration(math.MaxInt64)

// Send offers one datagram without waiting (net/rds/send.c, rds_sendmsg with
// MSG_DONTWAIT). A nil error accepts it: exactly one outcome follows. payload is
// not copied and must stay as it is until then. A datagram is accepted while
// the send buffer is not full, even if it passes it by one.
//
// Port 0 pings the node: the answer is an empty datagram from its port 0.
func (s *Socket) Send(now time.Duration, dst netip.AddrPort, payload []byte, tag uint64, want bool) error {
	pe, err := s.check(dst, len(payload))
	if err != nil {
		return err
	}
	if len(s.flows) > 0 && s.flows[dst] != nil {
		return rdserr.ErrWouldBlock // those that wait for the same destination go first
	}
	if err := s.admit(pe, dst, len(payload)); err != nil {
		if err == rdserr.ErrWouldBlock {
			s.wantSpace = true
		}
		if err == rdserr.ErrCongested {
			s.e.ctr.CongSendError++
			pe.block(dst.Port())
			s.concern(dst)
		}
		return err
	}
	m := s.e.newMsg()
	m.Payload, m.Tag, m.Report, m.DPort = payload, tag, want, dst.Port()
	s.accept(now, pe, m)
	return nil
}

// check is what no waiting mends.
func (s *Socket) check(dst netip.AddrPort, n int) (*Peer, error) {
	if s.closed {
		return nil, rdserr.ErrClosed
	}
	if n > s.opt.SndBufBytes || n > wire.MaxDatagram {
		return nil, rdserr.With(rdserr.ErrTooLarge, "a datagram of %d bytes; the largest for this socket is %d", n, min(s.opt.SndBufBytes, wire.MaxDatagram))
	}
	if dst.Port() == wire.PortProbe {
		return nil, rdserr.With(rdserr.ErrInvalid, "destination port 1 is reserved for the RDS handshake")
	}
	return s.e.Peer(dst.Addr())
}

// admit tests the send buffer, then the destination: each for its own reason.
func (s *Socket) admit(pe *Peer, dst netip.AddrPort, n int) error {
	e := s.e
	if s.used >= s.opt.SndBufBytes {
		e.ctr.SendQueueFull++
		return rdserr.ErrWouldBlock
	}
	if s.undecided >= e.cfg.MaxUndecided || s.outcomesN >= e.cfg.MaxOutcomes {
		e.ctr.SendTooMany++
		return rdserr.ErrWouldBlock
	}
	if pe.Congested(dst.Port()) {
		return rdserr.ErrCongested
	}
	if !e.cfg.Budget.fits(n) {
		e.cfg.Budget.Refused.Add(1)
		return rdserr.With(rdserr.ErrNoMemory, "the daemon's memory budget of %d bytes is spent", e.cfg.Budget.Limit)
	}
	return nil
}

// accept takes the message over. From here it has exactly one outcome.
func (s *Socket) accept(now time.Duration, pe *Peer, m *conn.Msg) {
	e := s.e
	e.now = now
	n := len(m.Payload)
	m.Owner, m.SPort = s, s.port
	m.Epoch = s.epoch0 + uint32(len(s.epochs)) - 1
	s.epochs[len(s.epochs)-1].n++
	s.used += n
	s.undecided++
	s.Stats.Accepted++
	e.cfg.Budget.used.Add(int64(n))
	e.ctr.SendQueued++
	e.ctr.CopyFromUser += uint64(n)
	m.Kind = conn.MsgData
	if m.DPort == wire.PortPing {
		m.Kind = conn.MsgPing
		e.ctr.SendPong++
	}
	if s.mon.Set {
		s.concern(netip.AddrPortFrom(pe.addr, m.DPort))
	}
	if pe.c != nil {
		// At half a buffer the sender wants it back: ask for the acknowledgement.
		m.Want = m.Report || s.used >= s.opt.SndBufBytes/2
		pe.c.Enqueue(now, m)
		return
	}
	s.deliverHere(m)
}

// deliverHere is the loop transport: this very address is the destination.
func (s *Socket) deliverHere(m *conn.Msg) {
	e := s.e
	if m.Kind == conn.MsgPing {
		f := transport.Frame{}
		s.place(e.loop, wire.PortPing, &f)
		s.Completed(m, conn.Delivered, conn.WhyNone)
		return
	}
	to := e.sock(m.DPort)
	if to == nil {
		e.ctr.RecvDropNoSock++
		s.Completed(m, conn.Failed, conn.WhyNoPort)
		return
	}
	f := transport.Frame{Payload: m.Payload}
	if len(m.Payload) >= buf.SlabSize/4 {
		b := buf.Get(len(m.Payload))
		copy(b.B, m.Payload)
		f.Payload, f.Buf = b.B, b
		defer b.Release()
	}
	if to.place(e.loop, s.port, &f) != conn.Placed {
		// Cannot be: the port was not congested, and one datagram fits between
		// the soft and the hard limit. Only the node's budget can say no.
		s.Completed(m, conn.Failed, conn.WhyNoMemory)
		return
	}
	s.Completed(m, conn.Delivered, conn.WhyNone)
}

// Completed is conn.Completer: the one end of an accepted datagram.
func (s *Socket) Completed(m *conn.Msg, o conn.Outcome, why conn.Why) {
	e := s.e
	n := len(m.Payload)
	s.used -= n
	s.undecided--
	e.cfg.Budget.used.Add(-int64(n))
	switch o {
	case conn.Delivered:
		s.Stats.Delivered++
		e.ctr.OutcomeDelivered++
	case conn.Cancelled:
		s.Stats.Cancelled++
	case conn.Failed:
		s.Stats.Failed++
		e.ctr.OutcomeFailed++
	case conn.Unknown:
		s.Stats.Unknown++
		e.ctr.OutcomeUnknown++
	}
	if m.Report && !s.closed {
		s.outcome(m.Tag, o, why)
		if mutant.On(mutant.DoubleOutcome) && m.Tag%64 == 63 {
			s.outcome(m.Tag, o, why)
		}
	}
	s.leave(m.Epoch)
	if s.waiting > 0 && !mutant.On(mutant.NoSpace) {
		s.hasSpace()
	}
	if s.wantSpace && s.used <= s.opt.SndBufBytes/2 {
		s.wantSpace = false
		s.news(EvWritable)
	}
	e.freeMsg(m)
}

func (s *Socket) outcome(tag uint64, o conn.Outcome, why conn.Why) {
	s.outcomesN++
	if n := len(s.outcomes); n > 0 {
		l := &s.outcomes[n-1]
		if l.Kind == o && l.Why == why && l.First+uint64(l.Count) == tag && l.Count < math.MaxUint32 {
			l.Count++
			return
		}
	}
	s.outcomes = append(s.outcomes, OutcomeRun{tag, 1, o, why})
	s.news(EvOutcomes)
}

// Outcomes appends the outcomes reported since the last call to l.
func (s *Socket) Outcomes(l []OutcomeRun) []OutcomeRun {
	l = append(l, s.outcomes...)
	s.outcomes = s.outcomes[:0]
	if s.outcomesN > 0 {
		s.outcomesN = 0
		if s.waiting > 0 {
			s.hasSpace()
			s.e.arm(&s.e.soonTm, (*soonTicker)(s.e), 0) // no step is being ended here
		}
	}
	return l
}

// Cancel is RDS_CANCEL_SENT_TO: drop what is queued to dst (port 0: to every
// port of the address). See conn.Conn.Cancel. Sends that wait for acceptance
// fail with ErrCanceled and count as neither.
func (s *Socket) Cancel(now time.Duration, dst netip.AddrPort) (cancelled, begun int, err error) {
	if s.closed {
		return 0, 0, rdserr.ErrClosed
	}
	pe, err := s.e.Peer(dst.Addr())
	if err != nil {
		return 0, 0, err
	}
	s.failWaiting(now, dst, rdserr.ErrCanceled)
	if pe.c != nil {
		cancelled, begun = pe.c.Cancel(now, s, dst.Port(), conn.WhyApp)
	}
	s.e.settle(now)
	return cancelled, begun, nil
}

// --- flush ------------------------------------------------------------------------

// epoch counts undecided datagrams accepted between two flushes.
type epoch struct {
	n     int
	flush []uint64 // answered when this and all earlier epochs are empty
}

// Flush answers (EvFlushed, Flushed) with id once everything accepted before
// the call has its outcome.
func (s *Socket) Flush(id uint64) {
	last := &s.epochs[len(s.epochs)-1]
	last.flush = append(last.flush, id)
	if last.n > 0 {
		s.epochs = append(s.epochs, epoch{})
	}
	s.endEpochs()
}

func (s *Socket) leave(number uint32) {
	ep := &s.epochs[number-s.epoch0]
	if ep.n--; ep.n == 0 {
		s.endEpochs()
	}
}

func (s *Socket) endEpochs() {
	for s.epochs[0].n == 0 {
		if f := s.epochs[0].flush; len(f) > 0 {
			s.flushed = append(s.flushed, f...)
			s.epochs[0].flush = nil
			s.news(EvFlushed)
		}
		if len(s.epochs) == 1 {
			return
		}
		s.epochs = s.epochs[1:]
		s.epoch0++
	}
}

// Flushed returns the flushes answered since the last call.
func (s *Socket) Flushed() []uint64 {
	f := s.flushed
	s.flushed = nil
	return f
}

// Unflush forgets a flush whose caller gave up.
func (s *Socket) Unflush(id uint64) {
	for i := range s.epochs {
		f := s.epochs[i].flush
		for j := range f {
			if f[j] == id {
				s.epochs[i].flush = append(f[:j:j], f[j+1:]...)
				return
			}
		}
	}
}
