package adversary

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/rdsd/rdsd/roce"
	"github.com/rdsd/rdsd/roce/cm"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// roceActs are those of a node that speaks RoCEv2 as it likes. What stands above it is in the acts
// of volumes, whose raiders come over TCP and over RoCE.
var roceActs = []Act{
	{"roce/noise", 2, roceNoise},
	{"roce/requests", 3, roceRequests},
	{"roce/managers", 2, roceManagers},
	{"roce/half-messages", 2, roceHalf},
	{"roce/rules", 3, roceRules},
	{"roce/refusals", 2, roceRefusals},
	{"roce/silent", 2, roceSilent},
	{"roce/strangers", 1, roceStrangers},
}

// cast is a Caster of an allowed address; nil: another has it.
func (s *Stage) cast() *Caster {
	c, err := s.Cast(s.from(s.Allowed))
	if err != nil {
		s.Pause(10 * time.Millisecond)
		return nil
	}
	return c
}

// qpn is a number that a queue pair may have.
func (s *Stage) qpn() uint32 { return 2 + s.Uint32()%(1<<24-2) }

// opcodes are those there are, with some there are not.
func (s *Stage) opcode() roce.Opcode {
	return oneOf(s, roce.Opcode(s.IntN(0x18)), roce.Opcode(s.IntN(0x18)), roce.DatagramSendOnly, roce.Opcode(s.IntN(256)))
}

// roceNoise sends packets that mean nothing to anybody.
func roceNoise(s *Stage) error {
	c := s.cast()
	if c == nil {
		return nil
	}
	for n := 0; !s.Over(); n++ {
		switch b := s.noise(make([]byte, s.IntN(1400))); s.IntN(4) {
		case 0:
			c.Raw(b)
		case 1:
			c.MAD(s.noise(make([]byte, cm.MADLen)))
		default:
			p := roce.Packet{Op: s.opcode(), PKey: oneOf(s, uint16(roce.DefaultPKey), uint16(s.Uint32())), Dest: oneOf(s, 0, 1, s.qpn()), PSN: roce.PSN(s.Uint32() & 0xffffff),
				QKey: s.Uint32(), Source: s.qpn(), Addr: s.Uint64(), Key: s.Uint32(), Len: s.Uint32(), Syndrome: roce.Syndrome(s.Uint32())}
			if p.Op.Valid() && (p.Op < roce.ReadRequest || p.Op == roce.DatagramSendOnly) {
				p.Payload = b
			}
			c.Packet(&p)
		}
		if n%64 == 0 {
			s.Hold(4 * time.Millisecond)
		}
	}
	return nil
}

// shown is what a client of volumes shows with a request to connect, now and then wrong.
func (s *Stage) shown() []byte {
	req := rtrswire.ConnReq{Conn: uint16(s.IntN(3)), Conns: uint16(1 + s.IntN(4)), Attempt: 1, FirstConn: true}
	s.noise(req.Session[:])
	s.noise(req.Path[:])
	b := req.Append(nil)
	if s.IntN(3) == 0 {
		s.noise(b[s.IntN(len(b)):])
	}
	return b
}

// roceRequests asks for connections and does not care for the answers.
func roceRequests(s *Stage) error {
	for !s.Over() {
		c := s.cast()
		if c == nil {
			continue
		}
		for range 1 + s.IntN(200) {
			if _, _, err := c.Ask(s, oneOf(s, s.RDMA, s.RDMA, s.Port), s.qpn(), s.shown()); err != nil {
				break
			}
			s.Hold(time.Millisecond)
		}
		c.Close()
	}
	return nil
}

// roceManagers sends messages of connection managers again, changed, and about the connections
// of others.
func roceManagers(s *Stage) error {
	c := s.cast()
	if c == nil {
		return nil
	}
	var last [][cm.MADLen]byte
	c.Mute = func(mad []byte) bool {
		if last = append(last, [cm.MADLen]byte(mad)); len(last) > 64 {
			last = last[1:]
		}
		return true
	}
	c.Listen(s, func(*roce.Packet) {})
	for n := 0; !s.Over(); n++ {
		if n%16 == 0 {
			c.Ask(s, s.RDMA, s.qpn(), s.shown())
			s.Pause(2 * time.Millisecond)
		}
		c.mu.Lock()
		var mad [cm.MADLen]byte
		if len(last) > 0 {
			mad = oneOf(s, last...)
		}
		c.mu.Unlock()
		switch s.IntN(5) {
		case 0: // as it was
		case 1: // of another kind, about the same
			binary.BigEndian.PutUint16(mad[16:], uint16(0x10+s.IntN(12)))
		case 2: // about another connection
			binary.BigEndian.PutUint32(mad[24+4*s.IntN(2):], s.Uint32())
		case 3: // under another number, so that it is another's
			binary.BigEndian.PutUint64(mad[8:], s.Uint64())
		case 4:
			s.noise(mad[24+s.IntN(200):])
		}
		c.MAD(mad[:])
		if n%8 == 0 {
			s.Hold(2 * time.Millisecond)
		}
	}
	return nil
}

// roceUp is a connection of a queue pair of c, and what its first packet has for a number;
// nil: there was none.
func (s *Stage) roceUp(c *Caster, got func(*roce.Packet)) (q *cm.Conn) {
	c.Listen(s, got)
	b := (&rtrswire.ConnReq{Conns: 1, Attempt: 1, FirstConn: true, Session: [16]byte(s.noise(make([]byte, 16))), Path: [16]byte(s.noise(make([]byte, 16)))}).Append(nil)
	q, err := c.Dial(s, s.RDMA, s.qpn(), b)
	if err != nil {
		return nil
	}
	return q
}

// toPeer is a packet to the peer of q, n behind the first.
func toPeer(q *cm.Conn, op roce.Opcode, n int) roce.Packet {
	return roce.Packet{Op: op, PKey: roce.DefaultPKey, Dest: q.Peer().QPN, PSN: (q.Peer().RecvPSN + roce.PSN(n)) & 0xffffff, AckReq: n%4 == 0}
}

// roceHalf begins messages and does not end them.
func roceHalf(s *Stage) error {
	for !s.Over() {
		c := s.cast()
		if c == nil {
			continue
		}
		q := s.roceUp(c, func(*roce.Packet) {})
		if q == nil {
			return nil
		}
		for i := range 1 + s.IntN(40) {
			p := toPeer(q, roce.SendMiddle, i)
			if i == 0 {
				p.Op = roce.SendFirst
			}
			p.Payload = s.noise(make([]byte, 1024))
			c.Packet(&p)
		}
		s.Hold(100 * time.Millisecond)
	}
	return nil
}

// roceRules breaks one rule of a queue pair after the other.
func roceRules(s *Stage) error {
	for !s.Over() {
		c := s.cast()
		if c == nil {
			continue
		}
		q := s.roceUp(c, func(*roce.Packet) {})
		if q == nil {
			return nil
		}
		for i := range 1 + s.IntN(20) {
			p := toPeer(q, s.opcode(), oneOf(s, i, i, i, 0, -1, s.IntN(1<<24)))
			p.Addr, p.Key, p.Len, p.Imm, p.Inval = s.Uint64(), s.Uint32(), oneOf(s, 0, 1<<31, 1<<31+1, s.Uint32()), s.Uint32(), s.Uint32()
			p.Syndrome, p.MSN = roce.Syndrome(s.Uint32()), roce.PSN(s.Uint32()&0xffffff)
			if p.Op.Valid() && p.Op < roce.ReadRequest {
				p.Payload = s.noise(make([]byte, oneOf(s, 0, 1, 1023, 1024, 1025, 1400)))
			}
			c.Packet(&p)
		}
		s.Hold(5 * time.Millisecond)
		c.Close()
	}
	return nil
}

// roceRefusals gives each packet of the daemon an answer that has it sent again.
func roceRefusals(s *Stage) error {
	c := s.cast()
	if c == nil {
		return nil
	}
	up := make(chan *cm.Conn, 1)
	how := oneOf(s, roce.NAKSequence, roce.RNR(time.Microsecond), roce.RNR(time.Hour), roce.NAKRemoteAccess)
	q := s.roceUp(c, func(p *roce.Packet) {
		select {
		case q := <-up:
			up <- q
			a := toPeer(q, roce.Acknowledge, 0)
			a.PSN, a.Syndrome, a.AckReq = p.PSN, how, false
			c.Packet(&a)
		default:
		}
	})
	if q == nil {
		return nil
	}
	up <- q
	info, err := rtrswire.AppendInfoReq(nil, "raider")
	if err != nil {
		return err
	}
	p := toPeer(q, roce.SendOnly, 0)
	p.AckReq, p.Payload = true, info
	c.Packet(&p)
	s.Pause(2 * time.Second)
	return nil
}

// roceSilent stops at each point of a connection's life.
func roceSilent(s *Stage) error {
	for range 50 {
		c := s.cast()
		if c == nil || s.Over() {
			continue
		}
		n, stop := 0, s.IntN(4)
		c.Mute = func([]byte) bool { n++; return n <= stop }
		q := s.roceUp(c, func(*roce.Packet) {})
		if q != nil && s.IntN(2) == 0 {
			p := toPeer(q, roce.SendOnly, 0)
			p.Payload = s.noise(make([]byte, 512))
			c.Packet(&p)
		}
		s.Hold(20 * time.Millisecond)
	}
	s.Hold(time.Second)
	return nil
}

// roceStrangers try to get in from where no rule lets anybody in.
func roceStrangers(s *Stage) error {
	for !s.Over() {
		from := s.from(s.Stranger)
		r, err := s.RaidRoCE(from, "raider", 1)
		if err == nil && r != nil {
			return violated("let %v, which no rule allows, in for volumes over RoCE", from)
		}
		if errors.Is(err, s.Ctx.Err()) {
			return nil
		}
		s.Hold(5 * time.Millisecond)
	}
	return nil
}
