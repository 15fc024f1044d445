package rds

import (
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/wire"
)

// Tracing tells of each message when it comes to a stage of its way. Which messages are of
// interest, what time it is and where that is kept is the tracer's: the engine has no
// memory of what it told. Without a tracer each place below costs one look at a field
// beside Engine.now, which the step has written anyway: two looks a message that is sent
// (its outcome, and none for its sending but one a batch), one a message that is received,
// and one for each run that is read.
//
// What is not told: sends that are refused at once, whose caller knows; pings; and when a
// client with rings posted a descriptor, for it writes no time: it is seen when its
// reactor takes it.

// Tracer is told of messages, in the middle of steps, with the engine's lock held. It
// neither blocks nor calls back.
type Tracer interface {
	// Trace returns true for StagePlaced if the message is followed until it is read: a client
	// with rings is asked to say at once what it gives back, as when senders wait for it.
	Trace(t Traced) (followed bool)
}

// SetTracer has t told from now on; nil: nobody.
func (e *Engine) SetTracer(t Tracer) {
	e.tracer = t
	if t != nil {
		return
	}
	for _, s := range e.bound {
		if s.tracedTo > 0 {
			s.tracedTo = 0
			s.updateWantRoom()
		}
	}
}

// Stage is what a Tracer is told of a message.
type Stage uint8

// Stages. Those of the sender are StageWaits to StageNotAccepted.
const (
	StageWaits       Stage = iota // it has to wait in its socket; Accepted says whether it is accepted
	StageLeft                     // it is in a batch that the link gets now; again with the same sequence: sent again
	StageRefused                  // its receiver had no room: it will have another sequence
	StageDone                     // its outcome
	StageNotAccepted              // it waited, and was not accepted (Err)
	StagePlaced                   // it is where its reader finds it
	StageNotPlaced                // it is not (Verdict), and its sender will be told
	StageRead                     // the datagrams of Socket before number Nth are read
	StageDropped                  // Socket was closed: its other datagrams will not be read
)

// LaneHere is the lane of messages that stay at their address; their sequence is
// Engine.Here.
const LaneHere = conn.CellHere

// Traced is one stage of one message. Messages are named by source, destination,
// incarnation, lane and sequence, alike at both nodes.
type Traced struct {
	Stage       Stage
	Msg         *conn.Msg // at the sender, from StageWaits to StageDone: the same of one message; never looked into
	Src, Dst    netip.AddrPort
	Lane        int
	Seq         uint64 // 0: it has none yet, or will have none
	Incarnation uint64 // the sender's, towards the receiver; 0: of a kernel, or of none
	Count       int    // datagrams
	Before, Of  int    // it left in one frame, of so many datagrams, with others, and so many before it; 0: alone
	Bytes       int    // payload, without that of others in its frame
	OfBytes     int    // of StageLeft, and unless it left alone: payload of the frame
	Accepted    bool
	Outcome     conn.Outcome
	Why         conn.Why
	Err         error
	Verdict     conn.Verdict
	// At is, of StageLeft, StageRefused and StageDone, when the message was accepted for its
	// connection; of StagePlaced and StageNotPlaced, when the step began that brought it.
	At     time.Duration
	Socket uint64 // the receiver's (Info.ID); of StagePlaced to StageDropped
	Nth    uint64 // number of the message's first datagram among all that the socket was given, from 0
}

// traceMsg tells of a message of one of our sockets.
func (e *Engine) traceMsg(stage Stage, m *conn.Msg) {
	if t, ok := e.traced(stage, m); ok {
		e.tracer.Trace(t)
	}
}

// traced describes a message that is accepted. ok is false for pings.
func (e *Engine) traced(stage Stage, m *conn.Msg) (t Traced, ok bool) {
	f, ok := m.Owner.Owner().(*flow)
	if !ok || m.Kind != conn.MsgData {
		return t, false
	}
	t = Traced{Stage: stage, Msg: m, Src: f.s.Addr(), Dst: f.dst, Count: m.Datagrams(), Bytes: int(m.Bytes), At: m.At, Seq: m.Seq(), Accepted: true}
	if c := f.pe.c; c != nil {
		t.Lane, _ = c.Lane(m)
		t.Incarnation = c.Incarnation()
		t.Before, t.Of = c.Among(m)
	}
	return t, true
}

// traceLeft tells of the messages in the batch that p has just filled. Those that left in one
// frame have one sequence, and stand behind each other.
func (e *Engine) traceLeft(p *conn.Lane) {
	var frame []*conn.Msg
	tell := func() {
		bytes := 0
		for _, m := range frame {
			bytes += int(m.Bytes)
		}
		for _, m := range frame {
			if t, ok := e.traced(StageLeft, m); ok {
				if t.Of > 0 {
					t.OfBytes = bytes
				}
				e.tracer.Trace(t)
			}
		}
		frame = frame[:0]
	}
	p.Writing(func(m *conn.Msg) {
		if len(frame) > 0 && m.Seq() != frame[0].Seq() {
			tell()
		}
		frame = append(frame, m)
	})
	tell()
}

// traceDone tells the outcome of a message. One that was delivered here is the last that
// was placed.
func (s *Socket) traceDone(m *conn.Msg, o conn.Outcome, why conn.Why) {
	t, ok := s.e.traced(StageDone, m)
	if !ok {
		return
	}
	t.Outcome, t.Why = o, why
	if o == conn.Delivered && t.Dst.Addr() == s.e.local {
		t.Lane, t.Seq = LaneHere, s.e.here
	}
	s.e.tracer.Trace(t)
}

// traceWaits tells that m has begun to wait in its socket. This is off the hot path, and
// looks for the tracer itself.
func (s *Socket) traceWaits(f *flow, m *conn.Msg) {
	if s.e.tracer != nil {
		s.e.tracer.Trace(Traced{Stage: StageWaits, Msg: m, Src: s.Addr(), Dst: f.dst, Accepted: m.Owner != nil})
	}
}

func (s *Socket) traceNotAccepted(f *flow, m *conn.Msg, err error) {
	s.e.tracer.Trace(Traced{Stage: StageNotAccepted, Msg: m, Src: s.Addr(), Dst: f.dst, Count: m.Datagrams(), Bytes: len(m.Payload), Err: err})
}

// tracePlaced tells of a message of pe that was offered to a port here.
func (pe *Peer) tracePlaced(a conn.Arrival, v conn.Verdict) {
	// An answer to a ping is no datagram of an application, and a kernel's link that pauses
	// offers the same message again.
	if a.SPort < wire.PortFirst || v == conn.NoRoom && pe.c.Kind() != conn.KindRdsd {
		return
	}
	e := pe.e
	t := Traced{Stage: StageNotPlaced, Src: netip.AddrPortFrom(pe.addr, a.SPort), Dst: netip.AddrPortFrom(e.local, a.DPort),
		Lane: a.Lane.Index(), Seq: a.Seq, Incarnation: pe.c.PeerIncarnation(), Count: a.Train.Count, Bytes: a.Train.PayloadBytes(), At: e.now, Verdict: v}
	if v == conn.Placed {
		e.sock(a.DPort).tracePlaced(t)
		return
	}
	e.tracer.Trace(t)
}

// tracePlaced tells of a message that s was given just now.
func (s *Socket) tracePlaced(t Traced) {
	t.Stage, t.Socket = StagePlaced, s.id
	t.Nth = s.Stats.Received + uint64(s.unread-t.Count)
	if s.e.tracer.Trace(t) {
		s.tracedTo = t.Nth + uint64(t.Count)
		s.updateWantRoom()
	}
}

// tracePlacedHere tells of m, which s was given without a connection.
func (s *Socket) tracePlacedHere(m *conn.Msg) {
	if x, ok := s.e.traced(StagePlaced, m); ok {
		x.Msg, x.Lane, x.Seq, x.At = nil, LaneHere, s.e.here, s.e.now
		s.tracePlaced(x)
	}
}

// traceRead tells how far the socket's datagrams are read. A client with rings that gives
// its memory back in another order than it got it is counted, not followed.
func (s *Socket) traceRead() {
	s.e.tracer.Trace(Traced{Stage: StageRead, Socket: s.id, Nth: s.Stats.Received})
	if s.tracedTo > 0 && s.Stats.Received >= s.tracedTo {
		s.tracedTo = 0
		s.updateWantRoom()
	}
}

func (s *Socket) traceDropped() {
	s.e.tracer.Trace(Traced{Stage: StageDropped, Socket: s.id})
}
