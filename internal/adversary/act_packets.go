package adversary

import (
	"math"
	"net/netip"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// packetActs are hostile on plain sockets, in the words of SEQPACKET; the words
// of gRPC are the same (act_stream.go).
var packetActs = []Act{
	{"packets/bad-batches", 3, packetsBadBatches},
	{"packets/beyond-window", 2, packetsBeyondWindow},
	{"packets/credit-lies", 2, packetsCreditLies},
	{"packets/unread", 2, packetsUnread},
	{"packets/waiting-sends", 2, packetsWaiting},
}

// batch is a SendBatch of n datagrams of size bytes.
func batch(id uint64, dst netip.AddrPort, n, size int, wait bool) *rdsdv1.SendBatch {
	b := &rdsdv1.SendBatch{}
	b.SetId(id)
	b.SetPayload(make([]byte, n*size))
	lengths := make([]uint32, n)
	for i := range lengths {
		lengths[i] = uint32(size)
	}
	b.SetLength(lengths)
	b.SetDestination([]*rdsdv1.Endpoint{endpoint(dst)})
	b.SetFirstTag(id << 20)
	b.SetWantOutcomes(id&1 == 0)
	b.SetWait(wait)
	return b
}

func sendMessage(b *rdsdv1.SendBatch) *rdsdv1.ClientMessage {
	m := &rdsdv1.ClientMessage{}
	m.SetSend(b)
	return m
}

// badBatch is a batch that is wrong in something.
func (s *Stage) badBatch(id uint64) *rdsdv1.ClientMessage {
	b := batch(id, s.somewhere(), 1+s.IntN(50), s.IntN(100), s.IntN(2) == 0)
	switch s.IntN(9) {
	case 0:
		b.SetLength([]uint32{math.MaxUint32, 5, math.MaxUint32 - 3})
	case 1:
		b.SetDestinationIndex([]uint32{math.MaxUint32, 0, 7})
	case 2:
		b.SetDestination(nil)
	case 3:
		e := &rdsdv1.Endpoint{}
		e.SetAddress(s.noise(make([]byte, s.IntN(20))))
		e.SetPort(s.Uint32())
		b.SetDestination([]*rdsdv1.Endpoint{e})
	case 4:
		b.SetLength(make([]uint32, 100_000))
	case 5:
		b.SetFirstTag(math.MaxUint64)
	case 6:
		b.SetTimeoutNs(math.MinInt64)
	case 7:
		b.SetPayload(make([]byte, 3<<20))
		b.SetLength([]uint32{3 << 20})
	}
	return sendMessage(b)
}

func packetsBadBatches(s *Stage) error {
	for !s.Over() {
		p, _, err := s.BindPackets(0, 0)
		if err != nil {
			s.Pause(20 * time.Millisecond)
			continue
		}
		for id := range uint64(100) {
			if p.Say(s.badBatch(id)) != nil {
				break
			}
		}
		s.Hold(2 * time.Millisecond)
		p.Close()
	}
	return nil
}

// packetsBeyondWindow sends more batches than it was allowed to have open.
func packetsBeyondWindow(s *Stage) error {
	for !s.Over() {
		p, _, err := s.BindPackets(0, 0)
		if err != nil {
			s.Pause(20 * time.Millisecond)
			continue
		}
		dst := s.somewhere()
		p.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		for id := range uint64(2000) {
			if s.Over() || p.Say(sendMessage(batch(id, dst, 1+s.IntN(64), 1000, true))) != nil {
				break
			}
		}
		s.Hold(20 * time.Millisecond)
		p.Close()
	}
	return nil
}

func creditMessage(n uint32, bytes uint64) *rdsdv1.ClientMessage {
	c := &rdsdv1.Credit{}
	c.SetDatagrams(n)
	c.SetBytes(bytes)
	m := &rdsdv1.ClientMessage{}
	m.SetCredit(c)
	return m
}

// packetsCreditLies grants credits that no number holds, and peeks at nothing.
func packetsCreditLies(s *Stage) error {
	p, own, err := s.BindPackets(0, 0)
	if err != nil {
		return nil
	}
	s.Go(func() {
		for {
			if _, _, err := p.Hear(); err != nil {
				return
			}
		}
	})
	for id := uint64(0); !s.Over(); id++ {
		var m *rdsdv1.ClientMessage
		switch s.IntN(3) {
		case 0:
			m = creditMessage(s.Uint32(), s.lie(0))
		case 1:
			k := &rdsdv1.Peek{}
			k.SetId(id)
			m = &rdsdv1.ClientMessage{}
			m.SetPeek(k)
		default:
			m = sendMessage(batch(id, own, 1+s.IntN(10), s.IntN(2000), false))
		}
		if p.Say(m) != nil {
			break
		}
	}
	p.Close()
	return nil
}

// packetsUnread sends to itself with credit without end, and reads nothing.
func packetsUnread(s *Stage) error {
	for range 8 {
		if s.Over() {
			break
		}
		p, own, err := s.BindPackets(0, 0)
		if err != nil {
			return nil
		}
		p.Say(creditMessage(math.MaxUint32, math.MaxInt64))
		p.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		for id := range uint64(500) {
			if p.Say(sendMessage(batch(id, own, 16, 4000, true))) != nil {
				break
			}
		}
	}
	s.Hold(500 * time.Millisecond)
	return nil
}

// packetsWaiting leaves sends waiting for room that never comes.
func packetsWaiting(s *Stage) error {
	dst := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 99, 0, 4}), 5)
	for range 16 {
		p, _, err := s.BindPackets(0, 64<<10)
		if err != nil {
			return nil
		}
		p.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
		for id := range uint64(64) {
			if p.Say(sendMessage(batch(id, dst, 4, 8000, true))) != nil {
				break
			}
		}
	}
	s.Hold(500 * time.Millisecond)
	return nil
}
