package adversary

import (
	"math"
	"net"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/shm"
	"github.com/rdsd/rdsd/wire"
)

// answerActs are those of a node that the daemon connects to, because a client,
// the adversary's own, sends there.
var answerActs = []Act{
	{"answer/silent", 2, func(s *Stage) error { return answer(s, func(*Peer) {}) }},
	{"answer/unread", 2, func(s *Stage) error { return answer(s, func(p *Peer) { p.Greet(s.helloNow(8)) }) }},
	{"answer/never-acknowledged", 3, func(s *Stage) error {
		return answer(s, func(p *Peer) {
			p.Greet(s.helloNow(wire.MaxCreditLog2))
			p.Drain()
		})
	}},
	{"answer/refused-again", 3, answerRefused},
	{"answer/credit-lies", 2, answerCredit},
	{"answer/duels", 3, answerDuels},
	{"answer/resets", 2, func(s *Stage) error {
		return answer(s, func(p *Peer) {
			time.Sleep(time.Duration(len(p.From.String())) * 100 * time.Microsecond)
			p.Reset()
		})
	}},
	{"answer/kernel", 2, answerKernel},
	{"answer/flipping-ports", 2, answerPorts},
	{"answer/incarnations", 2, answerIncarnations},
	{"answer/garbage", 2, func(s *Stage) error {
		junk := s.noise(make([]byte, 4096))
		return answer(s, func(p *Peer) {
			p.Write(junk)
			p.Drain()
		})
	}},
}

// helloNow is for goroutines: it draws nothing.
func (s *Stage) helloNow(credit uint8) wire.Hello {
	return wire.Hello{Version: wire.HelloVersion, Lanes: 8, CreditLog2: credit, Caps: wire.CapTrains, Incarnation: uint64(time.Now().UnixNano())}
}

// answer listens as a node does, has the daemon connect, and gives each link to
// serve, in a goroutine that the end of the stage ends.
func answer(s *Stage, serve func(*Peer)) error {
	at := netip.AddrPortFrom(s.from(s.Larger), s.Port)
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return nil
	}
	keep(s, l)
	s.Go(func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			if end, ok := s.Ctx.Deadline(); ok {
				c.SetDeadline(end.Add(50 * time.Millisecond))
			}
			keep(s, c)
			s.Go(func() { serve(&Peer{TCPConn: c, From: at.Addr()}) })
		}
	})
	return s.send(at.Addr())
}

// send has a client of the adversary send to a node until the stage is over.
func (s *Stage) send(to netip.Addr) error {
	r, err := s.BindRing(0, 1<<20)
	if err != nil {
		return nil
	}
	for i := range uint32(8) {
		r.Flow(i, 1, netip.AddrPortFrom(to, uint16(5000+i)))
	}
	for n := uint64(0); !s.Over() && r.Reg.Closed().Load() == 0; n++ {
		if !r.PostIf(shm.MakeWord(shm.KindEach, 1<<s.IntN(15), 1), shm.SendDesc{Tag: n, Flow: uint32(s.IntN(8)), Gen: 1, Cookie: uint32(n)}) || n%64 == 0 {
			r.Ring()
			r.Events()
			s.Pause(500 * time.Microsecond)
		}
	}
	return nil
}

// answerRefused refuses everything for want of room, says at once that there
// is room again, and never acknowledges.
func answerRefused(s *Stage) error {
	return answer(s, func(p *Peer) {
		if p.Greet(s.helloNow(16)) != nil {
			return
		}
		for {
			h, _, err := p.Next()
			if err != nil {
				return
			}
			if h.Kind(true) != wire.KindData {
				continue
			}
			r := wire.Header{Flags: wire.FlagControl}
			r.Ext[0] = wire.CtlRefuse
			p.Send(r, wire.AppendRefusal(nil, wire.Refusal{Seq: h.Seq, Reason: wire.ReasonNoRoom}))
			p.Write(control(wire.CtlCongDelta, wire.AppendPortStates(nil, []wire.PortState{{Port: h.DPort, Congested: true}})))
			p.Write(control(wire.CtlCongDelta, wire.AppendPortStates(nil, []wire.PortState{{Port: h.DPort}})))
		}
	})
}

// answerCredit grants credits without an end and acknowledges the future.
func answerCredit(s *Stage) error {
	return answer(s, func(p *Peer) {
		if p.Greet(s.helloNow(0)) != nil {
			return
		}
		for range 10_000 {
			if _, err := p.Write(Frame(wire.Header{Credit: math.MaxUint8}, nil)); err != nil {
				return
			}
		}
		p.Write(Frame(wire.Header{Ack: math.MaxUint64 / 2}, nil))
	})
}

// answerDuels connects to the daemon while that connects to it, on all lanes.
func answerDuels(s *Stage) error {
	from := s.from(s.Larger)
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, s.Port)))
	if err != nil {
		return nil
	}
	keep(s, l)
	s.Go(func() {
		for i := 0; ; i++ {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			keep(s, c)
			if p := (&Peer{TCPConn: c, From: from}); i&1 == 0 {
				p.Reset()
			} else {
				c.SetDeadline(time.Now().Add(10 * time.Millisecond))
				p.Greet(s.helloNow(10))
			}
		}
	})
	r, err := s.BindRing(0, 0)
	if err != nil {
		return nil
	}
	r.Flow(0, 1, netip.AddrPortFrom(from, 5))
	for n := uint64(0); !s.Over(); n++ {
		r.PostIf(shm.MakeWord(shm.KindEach, 64, 1), shm.SendDesc{Tag: n, Gen: 1, Cookie: uint32(n)})
		r.Ring()
		r.Events()
		if p, err := s.DialPeer(from, s.IntN(8)); err == nil {
			p.SetDeadline(time.Now().Add(5 * time.Millisecond))
			p.Greet(s.hello())
			if s.IntN(2) == 0 {
				p.Reset()
			}
		}
	}
	return nil
}

// answerKernel is a kernel whose every port is congested, then none, and whose
// TCP acknowledges while nothing is read from it.
func answerKernel(s *Stage) error {
	full := make([]byte, 8192)
	for i := range full {
		full[i] = 0xff
	}
	return answer(s, func(p *Peer) {
		if p.Greet(wire.Hello{}) != nil {
			return
		}
		for i := range 1 << 20 {
			m := full
			if i&1 == 1 {
				m = make([]byte, 8192)
			}
			if p.Send(wire.Header{Flags: wire.FlagCongBitmap}, m) != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// answerPorts says of the ports that are sent to that they are congested, then that
// they are not, and takes nothing: what waits is held and let go each time.
func answerPorts(s *Stage) error {
	return answer(s, func(p *Peer) {
		if p.Greet(s.helloNow(8)) != nil {
			return
		}
		go p.Drain() // ends with the link
		var b []byte
		for i := range 64 {
			var list []wire.PortState
			for port := range uint16(8) {
				list = append(list, wire.PortState{Port: 5000 + port, Congested: i&1 == 0})
			}
			b = append(b, control(wire.CtlCongDelta, wire.AppendPortStates(nil, list))...)
		}
		for {
			if _, err := p.Write(b); err != nil {
				return
			}
		}
	})
}

// answerIncarnations is another life of the node in each link, and says so again and
// again in one: what waits for it is sorted anew each time.
func answerIncarnations(s *Stage) error {
	return answer(s, func(p *Peer) {
		for range 100 {
			if p.Greet(s.helloNow(8)) != nil {
				return
			}
		}
		p.Reset()
	})
}
