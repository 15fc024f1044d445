package adversary

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/shm"
)

// controlActs are hostile on the control connection, with rings or without.
var controlActs = []Act{
	{"control/silent", 2, controlSilent},
	{"control/half-messages", 3, controlHalf},
	{"control/giant-messages", 2, controlGiant},
	{"control/no-packets", 2, controlNoise},
	{"control/bind-storm", 3, controlBindStorm},
	{"control/bind-and-leave", 2, controlBindAndLeave},
	{"control/all-ports", 2, controlAllPorts},
	{"control/cancel-storm", 3, controlCancelStorm},
	{"control/unread-answers", 3, controlUnreadAnswers},
	{"control/flush-storm", 2, controlFlushStorm},
}

// controlSilent connects as often as it may and says nothing.
func controlSilent(s *Stage) error {
	for !s.Over() {
		if _, err := s.DialPackets(); err != nil {
			s.Pause(20 * time.Millisecond)
		}
	}
	return nil
}

// pieces sends n pieces of a message that goes on.
func pieces(s *Stage, p *Packets, n int) {
	b := make([]byte, 4+shm.MaxPiece)
	b[0], b[1] = 1, 1
	p.raw(func(fd int) {
		for range n {
			for unix.Sendto(fd, b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil) == unix.EAGAIN {
				if s.Over() {
					return
				}
				time.Sleep(time.Millisecond)
			}
		}
	})
}

// controlHalf begins messages and does not end them.
func controlHalf(s *Stage) error {
	for range 100 {
		if s.Over() {
			break
		}
		if p := passTo(s); p != nil {
			pieces(s, p, 1+s.IntN(16))
		}
	}
	s.Hold(time.Second)
	return nil
}

// controlGiant sends messages up to the limit and past it.
func controlGiant(s *Stage) error {
	for !s.Over() {
		p := passTo(s)
		if p == nil {
			s.Pause(10 * time.Millisecond)
			continue
		}
		if s.IntN(2) == 0 {
			pieces(s, p, 300) // past every limit
		} else {
			p.WriteMessage(s.noise(make([]byte, 1+s.IntN(2<<20))))
		}
		p.Close()
	}
	return nil
}

// controlNoise sends packets that are none, empty ones among them.
func controlNoise(s *Stage) error {
	for !s.Over() {
		p := passTo(s)
		if p == nil {
			s.Pause(10 * time.Millisecond)
			continue
		}
		p.raw(func(fd int) {
			for range 1 + s.IntN(20) {
				b := s.noise(make([]byte, s.IntN(100)))
				if len(b) > 4 && s.IntN(3) > 0 {
					copy(b, []byte{1, 0, 0, 0})
				}
				unix.Sendto(fd, b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
			}
		})
		s.Hold(2 * time.Millisecond)
		p.Close()
	}
	return nil
}

// controlBindStorm binds and closes as fast as the daemon lets it.
func controlBindStorm(s *Stage) error {
	for !s.Over() {
		if s.IntN(2) == 0 {
			if r, err := s.BindRing(0, 4<<10); err == nil {
				r.Close()
			}
		} else if p, _, err := s.BindPackets(0, 4<<10); err == nil {
			p.Close()
		}
	}
	return nil
}

// controlBindAndLeave asks for a socket and does not wait for the answer.
func controlBindAndLeave(s *Stage) error {
	for !s.Over() {
		p, err := s.DialPackets()
		if err != nil {
			s.Pause(10 * time.Millisecond)
			continue
		}
		b := s.bind(0, 0)
		w := &rdsdv1.RingWish{}
		w.SetVersion(uint32(s.IntN(3)))
		b.SetRing(w)
		p.Say(bindMessage(b))
		if s.IntN(3) == 0 {
			s.Hold(time.Millisecond)
		}
		p.Close()
	}
	return nil
}

// controlAllPorts takes ports until the daemon gives no more, and holds them.
func controlAllPorts(s *Stage) error {
	refused := 0
	for !s.Over() && refused < 20 {
		var err error
		if s.IntN(4) == 0 {
			_, err = s.BindRing(uint16(2+s.IntN(65000)), 4<<10)
		} else {
			_, _, err = s.BindPackets(uint16(2+s.IntN(65000)), 4<<10)
		}
		if err != nil {
			refused++
		}
	}
	s.Hold(500 * time.Millisecond)
	return nil
}

// queued is a ring socket with much that cannot leave.
func queued(s *Stage, dst netip.AddrPort) *Ring {
	r, err := s.BindRing(0, 1<<20)
	if err != nil {
		return nil
	}
	r.Flow(0, 1, dst)
	for n := range uint64(60) {
		r.PostIf(shm.MakeWord(shm.KindEach, 0, shm.MaxTrain), shm.SendDesc{Tag: n << 12, Gen: 1, Cookie: uint32(n)})
	}
	r.Ring()
	return r
}

func cancelMessage(id uint64, dst netip.AddrPort) *rdsdv1.ClientMessage {
	c := &rdsdv1.Cancel{}
	c.SetId(id)
	c.SetDestination(endpoint(dst))
	m := &rdsdv1.ClientMessage{}
	m.SetCancel(c)
	return m
}

func flushMessage(id uint64, timeout time.Duration) *rdsdv1.ClientMessage {
	f := &rdsdv1.Flush{}
	f.SetId(id)
	f.SetTimeoutNs(int64(timeout))
	m := &rdsdv1.ClientMessage{}
	m.SetFlush(f)
	return m
}

func congestedMessage(id uint64, dst netip.AddrPort) *rdsdv1.ClientMessage {
	q := &rdsdv1.CongestedQuery{}
	q.SetId(id)
	q.SetDestination(endpoint(dst))
	m := &rdsdv1.ClientMessage{}
	m.SetCongested(q)
	return m
}

func monitorMessage(mask uint64) *rdsdv1.ClientMessage {
	q := &rdsdv1.Monitor{}
	q.SetMask(mask)
	q.SetClearEvents(mask&1 == 0)
	q.SetSetEvents(mask&2 == 0)
	m := &rdsdv1.ClientMessage{}
	m.SetMonitor(q)
	return m
}

// controlCancelStorm cancels, with much queued elsewhere to the same node.
func controlCancelStorm(s *Stage) error {
	for range 4 {
		queued(s, netip.AddrPortFrom(s.Other, 65010))
		queued(s, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 99, 0, 2}), 5))
	}
	r, err := s.BindRing(0, 0)
	if err != nil {
		return nil
	}
	s.Go(func() {
		for {
			if _, _, err := r.Hear(); err != nil {
				return
			}
		}
	})
	for id := uint64(0); !s.Over(); id++ {
		dst := netip.AddrPortFrom(oneOf(s, s.Other, netip.AddrFrom4([4]byte{127, 99, 0, 2})), oneOf[uint16](s, 0, 65010, 5))
		if r.Say(cancelMessage(id, dst)) != nil {
			break
		}
	}
	r.Close()
	return nil
}

// controlUnreadAnswers asks and asks and reads no answer.
func controlUnreadAnswers(s *Stage) error {
	for !s.Over() {
		p := passTo(s)
		if p == nil {
			s.Pause(10 * time.Millisecond)
			continue
		}
		for id := range uint64(3000) {
			m := congestedMessage(id, s.somewhere())
			switch s.IntN(4) {
			case 0:
				m = cancelMessage(id, s.somewhere())
			case 1:
				m = flushMessage(id, time.Hour)
			case 2:
				m = monitorMessage(s.Uint64())
			}
			p.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
			if p.Say(m) != nil {
				break
			}
		}
		s.Hold(20 * time.Millisecond)
	}
	return nil
}

// controlFlushStorm has thousands of flushes waiting for what does not end.
func controlFlushStorm(s *Stage) error {
	r := queued(s, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 99, 0, 3}), 5))
	if r == nil {
		return nil
	}
	s.Go(func() {
		for {
			if _, _, err := r.Hear(); err != nil {
				return
			}
		}
	})
	for id := uint64(0); !s.Over(); id++ {
		if r.Say(flushMessage(id, time.Duration(s.Int64N(int64(time.Second))))) != nil {
			break
		}
	}
	r.Close()
	return nil
}
