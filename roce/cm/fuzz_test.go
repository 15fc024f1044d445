package cm

import (
	"net/netip"
	"testing"
	"time"
)

// FuzzManager plays what bytes say to a Manager: messages of two peers with IDs that it knows
// or does not, broken ones, calls of the application, and time. Nothing panics, no answer is
// larger or more than the question, what ends is told once and in order (the world's notes of
// it are looked at here), and in the end nothing is left.
func FuzzManager(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x13\x14\x25\x36\x47\x58\x69\x7a\x8b\x9c\xad\xbe\xcf"))
	f.Add([]byte{0, 0, 8, 1, 9, 0, 2, 4, 10, 0, 3, 2, 11, 0, 5, 1, 12, 0, 1, 7})
	f.Add([]byte{1, 0, 1, 0, 1, 8, 13, 0, 8, 0, 3, 8, 15, 200, 5, 0, 6, 0, 15, 255, 2, 3, 4, 5})
	f.Fuzz(func(t *testing.T, in []byte) {
		w := newWorld(t, Config{Local: netip.MustParseAddr("10.0.0.1"), MaxConns: 12, MaxAsked: 5, MaxAskedOne: 3})
		if err := w.m.Listen(1234); err != nil {
			t.Fatal(err)
		}
		next := func() byte {
			if len(in) == 0 {
				return 0
			}
			b := in[0]
			in = in[1:]
			return b
		}
		life := &lives{world: w, of: map[*Conn]int{}}
		w.m.env = life
		for range 300 {
			if len(in) == 0 {
				break
			}
			life.step(next)
			w.checkTimers()
			if n := len(life.of); n > 12 || w.m.asked > 5 {
				t.Fatalf("%d connections, %d asked for", n, w.m.asked)
			}
		}
		for c := range life.of {
			c.Disconnect(w.now)
		}
		w.pass(MaxDial + respPatience + time.Minute)
		w.checkEmpty()
		if len(life.of) != 0 {
			t.Errorf("%d connections were not released", len(life.of))
		}
	})
}

// lives is a world that holds what is told of connections to its order.
type lives struct {
	*world
	of map[*Conn]int // stages of simulated applications
}

func (l *lives) Asked(c *Conn) {
	if _, ok := l.of[c]; ok {
		l.t.Error("asked twice")
	}
	l.of[c] = simBegun
}

func (l *lives) to(c *Conn, stage int, from ...int) {
	for _, s := range from {
		if l.of[c] == s {
			l.of[c] = stage
			return
		}
	}
	l.t.Errorf("from stage %d to %d in %v", l.of[c], stage, c.State())
}

func (l *lives) Connected(c *Conn)                   { l.to(c, simConnected, simBegun) }
func (l *lives) Refused(c *Conn, _ Reason, _ []byte) { l.to(c, simEnded, simBegun) }
func (l *lives) Disconnected(c *Conn, _ error)       { l.to(c, simEnded, simConnected) }

// Released may follow a call that ended a connection which was not there.
func (l *lives) Released(c *Conn) {
	if l.of[c] == simConnected {
		l.t.Error("released and not disconnected")
	}
	delete(l.of, c)
}

// step is one message, call or pause.
func (l *lives) step(next func() byte) {
	what, which := next(), next()
	var c *Conn
	// The connection with the smallest ID of those that are left over when which is counted off.
	for x := range l.of {
		if c == nil || (x.id^uint32(which)*0x01010101) < (c.id^uint32(which)*0x01010101) {
			c = x
		}
	}
	from := netip.AddrFrom4([4]byte{10, 0, 0, 2 + which&1})
	local, remote, qpn := uint32(which>>1&7)+1, uint32(which), uint32(2+which>>2&7)
	if c != nil && what&0x80 == 0 {
		remote = c.id
		if what&0x40 == 0 && c.knows {
			local = c.remoteID
		}
		if what&0x20 == 0 {
			from, qpn = c.remote.Addr(), max(c.param.QPN, 2)
		}
	}
	var mad [MADLen]byte
	switch what & 0x0f {
	case 0, 1:
		port := uint64(1234 + int(which>>7))
		(&req{local: local, service: serviceID(uint16(port)), qpn: qpn, mtu: 1 + which&3, localTimeout: which & 31, header: ipHeader{src: from, dst: l.m.cfg.Local}}).put(&mad, uint64(which>>4))
	case 2:
		(&rep{local: local, remote: remote, qpn: qpn}).put(&mad, 1)
	case 3:
		(&rtu{local, remote}).put(&mad, 1)
	case 4:
		(&mra{local, remote, next() & 3, next() & 31}).put(&mad, 1)
	case 5:
		(&rej{local: local, remote: remote * uint32(next()&1), about: next() & 3, reason: Reason(next() & 31)}).put(&mad, 1)
	case 6:
		(&dreq{local, remote, qpn}).put(&mad, 1)
	case 7:
		(&drep{local, remote}).put(&mad, 1)
	case 8:
		l.pass(time.Duration(which) * time.Duration(which) * 3 * time.Millisecond)
		return
	case 9:
		p := Param{QPN: 2 + uint32(which>>1&15), MTU: 1024}
		if d, err := l.m.Dial(l.now, netip.AddrPortFrom(l.m.cfg.Local, 0), netip.AddrPortFrom(from, 1234), p); err == nil {
			l.of[d] = simBegun
		}
		return
	case 10:
		// Bytes of any kind, some of them behind a good beginning.
		mad = [MADLen]byte{1, 7, 2, 3, 17: 0x10 + which&7}
		for i := headerLen; i < MADLen; i += 1 + int(next()) {
			mad[i] = next()
		}
	default:
		if c != nil {
			l.call(c, what&0x0f, which)
		}
		return
	}
	was := l.sent
	l.m.Receive(l.now, netip.AddrPortFrom(from, 1), mad[:])
	if l.sent-was > 2 {
		l.t.Errorf("%d messages for one", l.sent-was)
	}
}

// call is one of the application's; whether it has a place is the Manager's to say.
func (l *lives) call(c *Conn, what, which byte) {
	asked := c.state == ReqRcvd || c.state == MRASent
	var err error
	switch what {
	case 11:
		if err = c.Accept(l.now, Param{QPN: 2 + uint32(which&15)}); err != nil && l.m.byQPN[2+uint32(which&15)] != nil {
			err, asked = nil, false
			return
		}
	case 12:
		err = c.Reject(l.now, nil)
	case 13:
		err = c.Wait(l.now)
	case 14:
		c.Established(l.now)
		return
	case 15:
		c.Disconnect(l.now)
		return
	}
	if (err == nil) != asked {
		l.t.Errorf("call %d in %v: %v", what, c.state, err)
	}
}
