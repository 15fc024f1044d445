package adversary

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/rdsd/rdsd/wire"
)

// peerActs are those of a node that connects as an rdsd, or as nobody.
var peerActs = []Act{
	{"peer/silent", 3, peerSilent},
	{"peer/strangers", 2, peerStrangers},
	{"peer/half-headers", 2, peerHalfHeaders},
	{"peer/announced-lengths", 3, peerAnnounced},
	{"peer/flipping-maps", 3, peerMaps},
	{"peer/flipping-ports", 2, peerDeltas},
	{"peer/pings", 2, peerPings},
	{"peer/probes", 2, peerProbes},
	{"peer/bad-acks", 2, peerBadAcks},
	{"peer/bad-refusals", 2, peerBadRefusals},
	{"peer/bad-trains", 2, peerBadTrains},
	{"peer/lanes", 2, peerLanes},
	{"peer/reset-inside-frames", 2, peerResets},
	{"peer/drip", 2, peerDrip},
	{"peer/incarnations", 2, peerIncarnations},
	{"peer/to-no-port", 3, peerToNoPort},
	{"peer/gaps-and-repeats", 2, peerGaps},
	{"peer/noise", 2, peerNoise},
	{"peer/pokes", 2, peerPokes},
	{"peer/impersonation", 2, peerImpersonation},
}

func peerSilent(s *Stage) error {
	for !s.Over() {
		if _, err := s.Dial(s.from(s.Allowed), 0, oneOf(s, s.Port, s.Port, s.Volumes)); err != nil {
			s.Pause(5 * time.Millisecond)
		}
	}
	return nil
}

func peerStrangers(s *Stage) error {
	for !s.Over() {
		p, err := s.DialPeer(s.from(s.Stranger), s.IntN(8))
		if err != nil {
			s.Pause(5 * time.Millisecond)
			continue
		}
		if p.Greet(s.hello()) != nil {
			continue
		}
		// A peer that is not allowed gets no answer.
		return violated("greeted %v, which no rule allows", p.From)
	}
	return nil
}

func peerHalfHeaders(s *Stage) error {
	for !s.Over() {
		if p, err := s.DialPeer(s.from(s.Allowed), s.IntN(8)); err == nil {
			p.Write(s.noise(make([]byte, 1+s.IntN(wire.HeaderLen-1))))
		} else {
			s.Pause(5 * time.Millisecond)
		}
	}
	return nil
}

// peerAnnounced announces datagrams of the largest size to ports of victims,
// and sends nothing or little of them.
func peerAnnounced(s *Stage) error {
	for range 16 {
		var p *Peer
		if s.IntN(2) == 0 {
			p = s.rdsd(0)
		} else {
			p = s.kernel(0)
		}
		if p == nil {
			continue
		}
		port := uint16(4000)
		if len(s.Victims) > 0 {
			port = oneOf(s, s.Victims...).Port()
		}
		h := wire.Header{Seq: 1, SPort: 77, DPort: port, Len: wire.MaxDatagram}
		b := h.Append(nil)
		wire.SetChecksum(b)
		p.Write(append(b, make([]byte, oneOf(s, 0, 1, 1000, 60_000, 500_000))...))
	}
	s.Hold(time.Second)
	return nil
}

// peerMaps sends whole congestion maps, every bit of which flips.
func peerMaps(s *Stage) error {
	p := s.rdsd(0)
	if p == nil {
		return nil
	}
	s.Go(p.Drain)
	full := make([]byte, 8192)
	for i := range full {
		full[i] = 0xff
	}
	empty := make([]byte, 8192)
	for i := 0; !s.Over(); i++ {
		m := full
		if i&1 == 1 {
			m = empty
		}
		if s.IntN(8) == 0 {
			m = s.noise(make([]byte, 8192))
		}
		if _, err := p.Write(Frame(wire.Header{Flags: wire.FlagCongBitmap}, m)); err != nil {
			return nil
		}
	}
	return nil
}

func control(kind byte, payload []byte) []byte {
	h := wire.Header{Flags: wire.FlagControl}
	h.Ext[0] = kind
	return Frame(h, payload)
}

func peerDeltas(s *Stage) error {
	p := s.rdsd(0)
	if p == nil {
		return nil
	}
	s.Go(p.Drain)
	list := make([]wire.PortState, wire.MaxPortStates)
	for n := 0; !s.Over(); n++ {
		for i := range list {
			list[i] = wire.PortState{Port: uint16(s.Uint32()), Congested: (i+n)&1 == 0}
		}
		if _, err := p.Write(control(wire.CtlCongDelta, wire.AppendPortStates(nil, list))); err != nil {
			return nil
		}
	}
	return nil
}

// peerPings pings without reading an answer.
func peerPings(s *Stage) error {
	for !s.Over() {
		p := s.rdsd(0)
		if p == nil {
			continue
		}
		var b []byte
		for i := range 1000 {
			h := wire.Header{SPort: uint16(2 + i)}
			b = append(b, Frame(h, nil)...)
		}
		p.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		for !s.Over() {
			if _, err := p.Write(b); err != nil {
				break
			}
		}
		p.Reset()
	}
	return nil
}

// peerProbes says hello again and again, each time as somebody else.
func peerProbes(s *Stage) error {
	for !s.Over() {
		p, err := s.DialPeer(s.from(s.Allowed), s.IntN(8))
		if err != nil {
			s.Pause(5 * time.Millisecond)
			continue
		}
		s.Go(p.Drain)
		for range 500 {
			h := s.hello()
			if s.IntN(4) == 0 {
				h = wire.Hello{Version: uint8(s.Uint32()), Lanes: uint8(s.Uint32()), CreditLog2: uint8(s.Uint32()), Caps: uint8(s.Uint32()), Incarnation: s.Uint64()}
			}
			x := wire.Handshake{NPaths: uint16(s.Uint32()) >> s.IntN(16), GenNum: s.Uint32() >> s.IntN(32), Hello: h}
			head := wire.Header{SPort: uint16(s.IntN(2)), Ext: x.Encode()}
			head.DPort = 1 - head.SPort
			if s.IntN(10) == 0 {
				s.noise(head.Ext[:])
			}
			if _, err := p.Write(Frame(head, nil)); err != nil {
				break
			}
		}
		p.Close()
	}
	return nil
}

func peerBadAcks(s *Stage) error {
	for !s.Over() {
		p := s.rdsd(s.IntN(8))
		if p == nil {
			continue
		}
		p.Write(Frame(wire.Header{Ack: oneOf[uint64](s, 1, 2, math.MaxUint64, 1<<63, s.Uint64()), Credit: uint8(s.Uint32())}, nil))
		s.Hold(2 * time.Millisecond)
		p.Close()
	}
	return nil
}

func peerBadRefusals(s *Stage) error {
	for !s.Over() {
		p := s.rdsd(s.IntN(8))
		if p == nil {
			continue
		}
		var b []byte
		for range 1 + s.IntN(wire.MaxRefusals) {
			b = wire.AppendRefusal(b, wire.Refusal{Seq: s.lie(1), Reason: wire.Reason(s.IntN(4))})
		}
		h := wire.Header{Flags: wire.FlagControl}
		h.Ext[0] = wire.CtlRefuse
		p.Send(h, b[:len(b)-s.IntN(2)])
		s.Hold(2 * time.Millisecond)
		p.Close()
	}
	return nil
}

func peerBadTrains(s *Stage) error {
	for !s.Over() {
		p := s.rdsd(s.IntN(8))
		if p == nil {
			continue
		}
		s.Go(p.Drain)
		for range 1 + s.IntN(20) {
			t := wire.Train{Count: s.IntN(wire.MaxTrain + 10), Table: s.IntN(2) == 0}
			body := make([]byte, s.IntN(wire.MaxTrainBytes+100))
			for i := 0; t.Table && i < t.Count && 4*i+4 <= len(body); i++ {
				binary.BigEndian.PutUint32(body[4*i:], s.Uint32()>>s.IntN(32))
			}
			h := wire.Header{SPort: 9, DPort: uint16(65020 + s.IntN(3)), Ext: t.Ext()}
			h.Ext[3] += byte(s.IntN(20) / 19)
			if p.Send(h, body) != nil {
				break
			}
		}
		p.Close()
	}
	return nil
}

// peerLanes opens and drops lanes of one address.
func peerLanes(s *Stage) error {
	from, h := s.from(s.Allowed), s.hello()
	h.Lanes = 8
	var open []*Peer
	for !s.Over() {
		p, err := s.DialPeer(from, s.IntN(8))
		if err != nil {
			s.Pause(5 * time.Millisecond)
			continue
		}
		if s.IntN(3) > 0 {
			p.Greet(h)
		}
		open = append(open, p)
		if len(open) > 6 {
			i := s.IntN(len(open))
			open[i].Reset()
			open[i] = open[len(open)-1]
			open = open[:len(open)-1]
		}
	}
	return nil
}

func peerResets(s *Stage) error {
	for !s.Over() {
		p := s.rdsd(s.IntN(8))
		if p == nil {
			continue
		}
		f := Frame(wire.Header{Seq: 1, SPort: 9, DPort: 65021}, make([]byte, s.IntN(100_000)))
		p.Write(f[:s.IntN(len(f))])
		if s.IntN(2) == 0 {
			p.Reset()
		} else {
			p.Close()
		}
	}
	return nil
}

// peerDrip sends frames a byte at a time, on many links.
func peerDrip(s *Stage) error {
	var list []*Peer
	for range 12 {
		if p := s.rdsd(0); p != nil {
			list = append(list, p)
		}
	}
	f := Frame(wire.Header{Seq: 1, SPort: 9, DPort: 65022}, make([]byte, 4096))
	for i := 0; !s.Over() && i < len(f); i++ {
		for _, p := range list {
			p.Write(f[i : i+1])
		}
		s.Hold(2 * time.Millisecond)
	}
	return nil
}

// peerIncarnations is another life of itself each time.
func peerIncarnations(s *Stage) error {
	from := s.from(s.Allowed)
	for !s.Over() {
		p := s.rdsdFrom(from, 0)
		if p == nil {
			continue
		}
		p.Send(wire.Header{SPort: 9, DPort: 65023}, make([]byte, 100))
		p.Reset()
	}
	return nil
}

// peerToNoPort sends to ports that nobody has and acknowledges no refusal.
func peerToNoPort(s *Stage) error {
	p := s.rdsd(0)
	if p == nil {
		return nil
	}
	s.Go(p.Drain)
	var b []byte
	for !s.Over() {
		b = b[:0]
		for range 500 {
			p.seq++
			b = append(b, Frame(wire.Header{Seq: p.seq, SPort: 9, DPort: uint16(60000 + s.IntN(1000))}, nil)...)
		}
		if _, err := p.Write(b); err != nil {
			return nil
		}
	}
	return nil
}

// peerGaps leaves numbers out and sends others again.
func peerGaps(s *Stage) error {
	for !s.Over() {
		p := s.rdsd(0)
		if p == nil {
			continue
		}
		s.Go(p.Drain)
		for range 100 {
			h := wire.Header{Seq: s.lie(p.seq), SPort: 9, DPort: 65024, Flags: oneOf[uint8](s, 0, wire.FlagRetransmitted, wire.FlagResume, wire.FlagAckRequired)}
			if s.IntN(2) == 0 {
				p.seq++
				h.Seq = p.seq
			}
			if _, err := p.Write(Frame(h, make([]byte, s.IntN(200)))); err != nil {
				break
			}
		}
		p.Close()
	}
	return nil
}

func peerNoise(s *Stage) error {
	for !s.Over() {
		p := s.rdsd(s.IntN(8))
		if p == nil {
			continue
		}
		for range 30 {
			b := s.noise(make([]byte, wire.HeaderLen))
			binary.BigEndian.PutUint32(b[16:], uint32(s.IntN(3000)))
			if s.IntN(3) > 0 {
				binary.BigEndian.PutUint64(b, p.seq+1)
				p.seq++
				binary.BigEndian.PutUint64(b[8:], 0)
			}
			wire.SetChecksum(b)
			if _, err := p.Write(append(b, make([]byte, binary.BigEndian.Uint32(b[16:]))...)); err != nil {
				break
			}
		}
		p.Close()
	}
	return nil
}

// peerPokes asks to be connected to, from many addresses where nobody listens.
func peerPokes(s *Stage) error {
	for !s.Over() {
		p, err := s.DialPeer(s.from(s.Larger), s.IntN(8))
		if err != nil {
			s.Pause(5 * time.Millisecond)
			continue
		}
		if s.IntN(2) == 0 {
			p.Greet(s.hello())
		}
		p.Close()
	}
	return nil
}

// peerImpersonation connects from the address of the other daemon, as any user
// of this machine can where addresses are loopback: the system tells whose the
// socket is, and it is neither root's nor the daemon's.
func peerImpersonation(s *Stage) error {
	for !s.Over() {
		from := s.Other
		if s.IntN(4) == 0 {
			from = s.Daemon
		}
		p, err := s.DialPeer(from, s.IntN(8))
		if err != nil {
			s.Pause(5 * time.Millisecond)
			continue
		}
		p.SetDeadline(time.Now().Add(200 * time.Millisecond))
		if p.Greet(s.hello()) == nil {
			return violated("greeted %v from a socket of another user than that node's", from)
		}
		if len(s.Victims) > 0 {
			v := oneOf(s, s.Victims...)
			p.Send(wire.Header{SPort: v.Port(), DPort: v.Port()}, s.noise(make([]byte, 64)))
		}
		p.Close()
		s.Hold(5 * time.Millisecond)
	}
	return nil
}
