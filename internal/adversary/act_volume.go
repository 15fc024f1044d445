package adversary

import (
	"fmt"
	"strings"
	"time"

	"github.com/rdsd/rdsd/transport"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// volumeActs are those of a node that connects for volumes.
var volumeActs = []Act{
	{"volume/held-sessions", 3, volumeHeld},
	{"volume/unasked-writes", 3, volumeUnasked},
	{"volume/guessed-keys", 2, volumeKeys},
	{"volume/half-requests", 2, volumeHalf},
	{"volume/open-close", 3, volumeOpenClose},
	{"volume/unread-answers", 2, volumeUnread},
	{"volume/handshakes", 2, volumeHandshakes},
	{"volume/noise", 2, volumeNoise},
	{"volume/strangers", 1, volumeStrangers},
	{"volume/requests", 2, volumeRequests},
	{"volume/spellings", 2, volumeSpellings},
}

// raid is a session of an allowed address under a name that may be another's, over TCP or RoCE.
func (s *Stage) raid(conns int) *Raider {
	name, over := oneOf(s, "raider", fmt.Sprint("raider", s.IntN(1000))), oneOf(s, s.Raid, s.RaidRoCE)
	r, err := over(s.from(s.Allowed), name, conns)
	if err != nil {
		s.Pause(10 * time.Millisecond)
		return nil
	}
	return r
}

// volumeHeld opens sessions and holds them.
func volumeHeld(s *Stage) error {
	for range 40 {
		if s.Over() {
			break
		}
		if r := s.raid(1 + s.IntN(4)); r != nil {
			r.Alive(s)
		}
	}
	s.Hold(time.Second)
	return nil
}

// volumeUnasked writes to every chunk and makes no request.
func volumeUnasked(s *Stage) error {
	for range 4 {
		r := s.raid(2)
		if r == nil {
			continue
		}
		r.Alive(s)
		junk := s.noise(make([]byte, 64<<10))
		for _, d := range r.Descs {
			for off := uint32(0); off+uint32(len(junk)) <= d.Len; off += uint32(len(junk)) {
				if s.Over() || r.Cons[1].Send(transport.Tag{Kind: transport.OpWrite, Key: d.Key, Addr: d.Addr + uint64(off)}, junk) != nil {
					break
				}
			}
		}
	}
	s.Hold(500 * time.Millisecond)
	return nil
}

// volumeKeys guesses keys and addresses.
func volumeKeys(s *Stage) error {
	for !s.Over() {
		r := s.raid(2)
		if r == nil {
			continue
		}
		d := oneOf(s, r.Descs...)
		switch s.IntN(5) {
		case 0:
			d.Key ^= 1 << s.IntN(32)
		case 1:
			d.Addr += uint64(d.Len) - 10
		case 2:
			d.Addr = s.lie(d.Addr)
		case 3:
			d.Key = s.Uint32()
		case 4: // the same key by another connection of another session
			if o := s.raid(2); o != nil {
				d.Key = oneOf(s, o.Descs...).Key
			}
		}
		r.Cons[1].Send(transport.Tag{Kind: oneOf(s, transport.OpWrite, transport.OpWriteImm, transport.OpSendInval), Key: d.Key, Addr: d.Addr, Imm: s.Uint32() >> 4}, s.noise(make([]byte, s.IntN(5000))))
		s.Hold(2 * time.Millisecond)
		closeRaider(r)
	}
	return nil
}

func closeRaider(r *Raider) {
	for _, c := range r.Cons {
		c.Close()
	}
}

// volumeHalf leaves frames and requests unfinished.
func volumeHalf(s *Stage) error {
	for range 16 {
		r := s.raid(2)
		if r == nil || s.Over() {
			break
		}
		c, ok := r.Cons[1].(*tcpCon)
		if !ok {
			continue // of a message in pieces that does not end: roce/half-messages
		}
		d := oneOf(s, r.Descs...)
		t := transport.Tag{Kind: transport.OpWriteImm, Seq: 1, Len: d.Len, Key: d.Key, Addr: d.Addr, Imm: uint32(r.C.Req(0, 32))}
		b := make([]byte, transport.TagLen, transport.TagLen+int(d.Len))
		t.Put(b)
		c.Write(append(b, make([]byte, s.IntN(int(d.Len)))...)[:1+s.IntN(transport.TagLen+int(d.Len)-1)])
	}
	s.Hold(time.Second)
	return nil
}

// volumeOpenClose opens and closes a volume of its own for writing.
func volumeOpenClose(s *Stage) error {
	r := s.raid(2)
	if r == nil {
		return nil
	}
	for !s.Over() {
		id, err := r.Open(s.Export, oneOf(s, rnbdwire.ReadWrite, rnbdwire.ReadOnly))
		if err != nil {
			return nil
		}
		if s.IntN(10) == 0 {
			closeRaider(r) // and leave it open
			if r = s.raid(2); r == nil {
				return nil
			}
			continue
		}
		if r.Request(0, 0, rtrswire.Write, rnbdwire.AppendClose(nil, id), nil, 0) != nil {
			return nil
		}
		if _, _, err := r.Cons[0].Next(); err != nil {
			return nil
		}
	}
	return nil
}

// volumeSpellings opens a volume under as many names as it has, in several sessions, and leaves with all of
// them at once.
func volumeSpellings(s *Stage) error {
	for range 4 {
		r := s.raid(2)
		if r == nil {
			continue
		}
		for n := range 600 { // a session may have more
			name := strings.Repeat("/", n%24) + s.Export + strings.Repeat("/", n/24)
			if _, err := r.Open(name, rnbdwire.ReadOnly); err != nil || s.Over() {
				break
			}
		}
		s.After(func() { closeRaider(r) })
	}
	s.Hold(200 * time.Millisecond)
	return nil
}

// volumeUnread reads as much as it can and takes no answer.
func volumeUnread(s *Stage) error {
	for range 4 {
		r := s.raid(2)
		if r == nil {
			continue
		}
		id, err := r.Open(s.Export, rnbdwire.ReadOnly)
		if err != nil {
			continue
		}
		for i := range r.C.Depth {
			if s.Over() {
				break
			}
			io := rnbdwire.IO{DeviceID: id, Sector: uint64(s.IntN(64)), RW: rnbdwire.RW(rnbdwire.Read, 0), Size: 128 << 10}
			if r.Request(1, i, rtrswire.Read, io.Append(nil), nil, int(io.Size)) != nil {
				break
			}
		}
	}
	s.Hold(time.Second)
	return nil
}

// volumeRequests makes requests that are right and others, on its own volume
// and on devices that are not there.
func volumeRequests(s *Stage) error {
	r := s.raid(3)
	if r == nil {
		return nil
	}
	id, err := r.Open(s.Export, rnbdwire.ReadWrite)
	if err != nil {
		return nil
	}
	r.Alive(s)
	for !s.Over() {
		io := rnbdwire.IO{DeviceID: oneOf(s, id, id, id, id+1, s.Uint32()), Sector: s.lie(0), RW: rnbdwire.RW(rnbdwire.Op(s.IntN(8)), rnbdwire.Flags(s.Uint32()&^0xff)), Size: uint32(512 * s.IntN(64))}
		if s.IntN(3) > 0 {
			io.Sector = uint64(s.IntN(1000))
		}
		chunk := uint32(s.IntN(int(r.C.Depth)))
		if io.Op() == rnbdwire.Write {
			err = r.Request(1+s.IntN(2), chunk, rtrswire.Write, io.Append(nil), make([]byte, io.Size), 0)
		} else {
			err = r.Request(1+s.IntN(2), chunk, rtrswire.Read, io.Append(nil), nil, int(io.Size))
		}
		if err != nil {
			return nil
		}
		s.Hold(200 * time.Microsecond)
	}
	return nil
}

// volumeHandshakes does what stands at the beginning, wrongly.
func volumeHandshakes(s *Stage) error {
	for !s.Over() {
		from := s.from(s.Allowed)
		if s.IntN(2) == 0 {
			c, err := s.Dial(from, 0, s.Volumes)
			if err != nil {
				s.Pause(5 * time.Millisecond)
				continue
			}
			c.Write(s.noise(make([]byte, s.IntN(100))))
			if s.IntN(3) == 0 {
				c.Close()
			}
			continue
		}
		req := rtrswire.ConnReq{Conn: uint16(s.IntN(20)), Conns: uint16(s.IntN(200)), Attempt: uint16(s.Uint32()), FirstConn: s.IntN(2) == 0}
		s.noise(req.Session[:s.IntN(16)])
		s.noise(req.Path[:s.IntN(16)])
		b := req.Append(nil)
		if s.IntN(2) == 0 {
			s.noise(b[s.IntN(len(b)):])
		}
		if c, _, err := s.Link(from, b[:s.IntN(len(b)+1)]); err == nil && s.IntN(2) == 0 {
			c.Close()
		}
	}
	return nil
}

// volumeNoise sends frames whose headers are right and whose sense is not.
func volumeNoise(s *Stage) error {
	kinds := []transport.OpKind{transport.OpWrite, transport.OpWriteImm, transport.OpSend, transport.OpSendImm, transport.OpSendInval, transport.TagConnect, 0, 99}
	for !s.Over() {
		r := s.raid(2)
		if r == nil {
			continue
		}
		for range 1 + s.IntN(20) {
			d := oneOf(s, r.Descs...)
			t := transport.Tag{Kind: transport.OpWriteImm, Key: d.Key, Addr: d.Addr, Imm: s.Uint32() & 0x0fffffff}
			data := s.noise(make([]byte, s.IntN(2000)))
			if s.IntN(3) == 0 {
				t.Kind, t.Imm = oneOf(s, kinds...), s.Uint32()
			} else {
				msg := rtrswire.Req{Type: oneOf(s, rtrswire.Write, rtrswire.Read), UsrLen: uint16(s.IntN(40))}
				t.Imm = uint32(r.C.Req(uint32(s.IntN(int(r.C.Depth))), uint32(len(data))))
				data = msg.Append(data)
			}
			if oneOf(s, r.Cons...).Send(t, data) != nil {
				break
			}
		}
		closeRaider(r)
	}
	return nil
}

// volumeStrangers try to get in from where no rule lets anybody in, and as the
// node that has the victims' volume mapped.
func volumeStrangers(s *Stage) error {
	for !s.Over() {
		from := oneOf(s, s.from(s.Stranger), s.Other)
		if _, err := s.Raid(from, "raider", 1); err == nil {
			return violated("let %v, which is not that node, in for volumes", from)
		}
		s.Hold(5 * time.Millisecond)
	}
	return nil
}
