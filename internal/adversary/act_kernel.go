package adversary

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/rdsd/rdsd/wire"
)

// kernelActs are those of a node that says it is a kernel, or says nothing.
var kernelActs = []Act{
	{"kernel/data-first", 2, kernelDataFirst},
	{"kernel/flood", 3, kernelFlood},
	{"kernel/flipping-maps", 2, kernelMaps},
	{"kernel/keep-alive-half", 2, kernelHalf},
	{"kernel/numbers", 2, kernelNumbers},
	{"kernel/rdsd-words", 1, kernelRdsdWords},
	{"kernel/reboots", 2, kernelReboots},
}

// kernelDataFirst sends datagrams before any handshake, as old kernels do.
func kernelDataFirst(s *Stage) error {
	for !s.Over() {
		p, err := s.DialPeer(s.from(s.Allowed), s.IntN(8))
		if err != nil {
			s.Pause(5 * time.Millisecond)
			continue
		}
		for range 50 {
			h := wire.Header{SPort: 9, DPort: uint16(61000 + s.IntN(100))}
			if p.Send(h, make([]byte, s.IntN(4000))) != nil {
				break
			}
		}
		s.Hold(20 * time.Millisecond)
		p.Close()
	}
	return nil
}

// kernelFlood fills the receive queue of a socket of the adversary's own that
// does not read: the link of a kernel is stopped then.
func kernelFlood(s *Stage) error {
	r, err := s.BindRing(0, 64<<10)
	p := s.kernel(0)
	if err != nil || p == nil {
		return nil
	}
	s.Go(p.Drain)
	for !s.Over() {
		port := r.Local.Port()
		if s.IntN(20) == 0 {
			port = 62000
		}
		if p.Send(wire.Header{SPort: 9, DPort: port}, make([]byte, 1<<s.IntN(18))) != nil {
			return nil
		}
	}
	return nil
}

func kernelMaps(s *Stage) error {
	p := s.kernel(0)
	if p == nil {
		return nil
	}
	s.Go(p.Drain)
	m := make([]byte, 8192)
	for !s.Over() {
		for i := 0; i < len(m); i += 8 {
			binary.BigEndian.PutUint64(m[i:], ^binary.BigEndian.Uint64(m[i:]))
		}
		if p.Send(wire.Header{Flags: wire.FlagCongBitmap}, m) != nil {
			return nil
		}
	}
	return nil
}

// kernelHalf leaves a frame for a victim unfinished and keeps the link alive.
func kernelHalf(s *Stage) error {
	for range 24 {
		p := s.kernel(0)
		if p == nil || len(s.Victims) == 0 {
			continue
		}
		h := wire.Header{Seq: 1, SPort: 9, DPort: oneOf(s, s.Victims...).Port(), Len: wire.MaxDatagram}
		p.Write(append(h.Append(nil), make([]byte, s.IntN(700_000))...))
		p.SetKeepAlive(true)
	}
	s.Hold(time.Second)
	return nil
}

// kernelNumbers counts as no kernel does.
func kernelNumbers(s *Stage) error {
	for !s.Over() {
		p := s.kernel(s.IntN(8))
		if p == nil {
			continue
		}
		s.Go(p.Drain)
		for range 100 {
			p.seq = oneOf(s, p.seq, p.seq+1, s.Uint64(), math.MaxUint64-1, 0)
			if p.Send(wire.Header{SPort: 9, DPort: 61001, Ack: s.Uint64(), Flags: uint8(s.Uint32())}, make([]byte, s.IntN(100))) != nil {
				break
			}
		}
		p.Close()
	}
	return nil
}

// kernelRdsdWords uses what only an rdsd may say.
func kernelRdsdWords(s *Stage) error {
	for !s.Over() {
		p := s.kernel(0)
		if p == nil {
			continue
		}
		p.Write(control(wire.CtlCongDelta, wire.AppendPortStates(nil, []wire.PortState{{Port: 4000, Congested: true}})))
		h := wire.Header{Flags: wire.FlagControl}
		h.Ext[0] = wire.CtlRefuse
		p.Send(h, wire.AppendRefusal(nil, wire.Refusal{Seq: 1, Reason: wire.ReasonNoRoom}))
		t := wire.Train{Count: 10}
		p.Send(wire.Header{SPort: 9, DPort: 61002, Ext: t.Ext()}, make([]byte, 100))
		s.Hold(3 * time.Millisecond)
		p.Close()
	}
	return nil
}

// kernelReboots comes back with another generation, with lanes and without.
func kernelReboots(s *Stage) error {
	from := s.from(s.Allowed)
	for !s.Over() {
		p, err := s.DialPeer(from, s.IntN(8))
		if err != nil {
			s.Pause(5 * time.Millisecond)
			continue
		}
		x := wire.Handshake{NPaths: oneOf[uint16](s, 0, 1, 8, 100), GenNum: s.Uint32(), SportIdx: s.IntN(2) == 0}
		h := wire.Header{SPort: wire.PortProbe, Ext: x.Encode()}
		p.Write(Frame(h, nil))
		p.Send(wire.Header{SPort: 9, DPort: 61003}, make([]byte, 10))
		s.Hold(2 * time.Millisecond)
		p.Reset()
	}
	return nil
}
