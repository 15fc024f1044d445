package adversary

import (
	"encoding/binary"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// nbdActs are those of a program that uses a mapping of its own.
var nbdActs = []Act{
	{"nbd/silent", 1, nbdSilent},
	{"nbd/huge-options", 2, nbdOptions},
	{"nbd/half-requests", 2, nbdHalf},
	{"nbd/unread", 2, nbdUnread},
	{"nbd/noise", 2, nbdNoise},
	{"nbd/rights", 1, nbdRights},
}

// Numbers of the NBD protocol (doc/proto.md of the NBD project).
const (
	nbdOptMagic     = 0x49484156454f5054 // "IHAVEOPT"
	nbdRequestMagic = 0x25609513
	nbdExportName   = 1
	nbdRead         = 0
	nbdWrite        = 1
)

func (s *Stage) nbd() (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(s.Ctx, "unix", s.NBD)
	if err != nil {
		return nil, err
	}
	if end, ok := s.Ctx.Deadline(); ok {
		c.SetDeadline(end.Add(50 * time.Millisecond))
	}
	return keep(s, c), nil
}

// nbdEnter goes through the greeting to where requests are made. The export's
// size and flags are read.
func (s *Stage) nbdEnter() (net.Conn, error) {
	c, err := s.nbd()
	if err != nil {
		s.Pause(10 * time.Millisecond)
		return nil, err
	}
	if _, err := io.ReadFull(c, make([]byte, 18)); err != nil {
		return nil, err
	}
	c.Write([]byte{0, 0, 0, 3})
	c.Write(nbdOption(nbdExportName, nil))
	_, err = io.ReadFull(c, make([]byte, 10))
	return c, err
}

func nbdOption(opt uint32, data []byte) []byte {
	b := binary.BigEndian.AppendUint64(nil, nbdOptMagic)
	b = binary.BigEndian.AppendUint32(b, opt)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(data))), data...)
}

func nbdRequest(cmd uint16, cookie, off uint64, n uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, nbdRequestMagic)
	b = binary.BigEndian.AppendUint16(b, 0)
	b = binary.BigEndian.AppendUint16(b, cmd)
	b = binary.BigEndian.AppendUint64(b, cookie)
	b = binary.BigEndian.AppendUint64(b, off)
	return binary.BigEndian.AppendUint32(b, n)
}

func nbdSilent(s *Stage) error {
	for range 200 {
		if _, err := s.nbd(); err != nil {
			break
		}
	}
	s.Hold(500 * time.Millisecond)
	return nil
}

func nbdOptions(s *Stage) error {
	for !s.Over() {
		c, err := s.nbd()
		if err != nil {
			s.Pause(20 * time.Millisecond)
			continue
		}
		c.Write([]byte{0, 0, 0, 1})
		for range 20 {
			b := nbdOption(uint32(s.IntN(20)), s.noise(make([]byte, s.IntN(8000))))
			if s.IntN(3) == 0 {
				binary.BigEndian.PutUint32(b[12:], s.Uint32())
			}
			if _, err := c.Write(b); err != nil {
				break
			}
		}
		c.Close()
	}
	return nil
}

func nbdHalf(s *Stage) error {
	for range 20 {
		c, err := s.nbdEnter()
		if err != nil || s.Over() {
			break
		}
		b := append(nbdRequest(nbdWrite, s.Uint64(), 0, 1<<20), make([]byte, 1<<20)...)
		c.Write(b[:s.IntN(len(b))])
	}
	s.Hold(time.Second)
	return nil
}

func nbdUnread(s *Stage) error {
	for range 6 {
		c, err := s.nbdEnter()
		if err != nil || s.Over() {
			break
		}
		c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		for i := range uint64(2000) {
			if _, err := c.Write(nbdRequest(nbdRead, i, 0, 256<<10)); err != nil {
				break
			}
		}
	}
	s.Hold(time.Second)
	return nil
}

// nbdRights sends descriptors along with requests: of connections whose last close waits, and of nothing much.
func nbdRights(s *Stage) error {
	fd, ok := lingering(s)
	for !s.Over() {
		c, err := s.nbdEnter()
		if err != nil {
			continue
		}
		raw, err := c.(*net.UnixConn).SyscallConn()
		if err != nil {
			return nil
		}
		for range 1 + s.IntN(8) {
			b := nbdRequest(nbdRead, s.Uint64(), 0, 4096)
			send := []int{0, 0, 0}[:1+s.IntN(3)]
			if ok && s.IntN(2) == 0 {
				send[0] = fd
			}
			raw.Control(func(p uintptr) {
				unix.Sendmsg(int(p), b[:1+s.IntN(len(b))], unix.UnixRights(send...), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
			})
		}
		s.Hold(time.Millisecond)
		c.Close()
	}
	return nil
}

func nbdNoise(s *Stage) error {
	for !s.Over() {
		c, err := s.nbdEnter()
		if err != nil {
			continue
		}
		for range 1 + s.IntN(20) {
			b := nbdRequest(uint16(s.IntN(9)), s.Uint64(), s.lie(0), s.Uint32()>>s.IntN(32))
			if s.IntN(10) == 0 {
				s.noise(b)
			}
			if _, err := c.Write(b); err != nil {
				break
			}
		}
		s.Hold(time.Millisecond)
		c.Close()
	}
	return nil
}
