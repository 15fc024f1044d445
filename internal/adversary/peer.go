package adversary

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/wire"
)

// Peer is a link to a daemon, of an rdsd or of a kernel by what it says. Its
// frames are whatever they are told to be.
type Peer struct {
	*net.TCPConn
	From netip.Addr
	seq  uint64
}

// DialPeer opens a link from an address on a lane: the source port is the lane
// modulo 8.
func (s *Stage) DialPeer(from netip.Addr, lane int) (*Peer, error) {
	for range 20 {
		port := uint16(10240 + 8*s.IntN(2048) + lane)
		c, err := s.Dial(from, port, s.Port)
		if errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EADDRNOTAVAIL) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return &Peer{TCPConn: c, From: from}, nil
	}
	return nil, unix.EADDRINUSE
}

// Greet says and answers hello as an rdsd does, and waits until the daemon has
// said its own.
func (p *Peer) Greet(h wire.Hello) error {
	x := wire.Handshake{NPaths: uint16(max(h.Lanes, 1)), Hello: h}
	for _, ports := range [][2]uint16{{wire.PortProbe, 0}, {0, wire.PortProbe}} {
		head := wire.Header{SPort: ports[0], DPort: ports[1], Ext: x.Encode()}
		if _, err := p.Write(head.Append(nil)); err != nil {
			return err
		}
	}
	for {
		f, _, err := p.Next()
		if err != nil {
			return err
		}
		if f.Kind(true) == wire.KindProbeReply {
			return nil
		}
	}
}

// hello is that of an rdsd with all it can do.
func (s *Stage) hello() wire.Hello {
	return wire.Hello{Version: wire.HelloVersion, Lanes: uint8(1 + s.IntN(8)), CreditLog2: 10, Caps: wire.CapTrains, Incarnation: s.Uint64() | 1}
}

// Next reads a frame.
func (p *Peer) Next() (h wire.Header, payload []byte, err error) {
	var raw [wire.HeaderLen]byte
	if _, err = io.ReadFull(p, raw[:]); err != nil {
		return h, nil, err
	}
	h.Parse(raw[:])
	payload = make([]byte, binary.BigEndian.Uint32(raw[16:]))
	_, err = io.ReadFull(p, payload)
	return h, payload, err
}

// Frame is a header with its length and checksum right, and the payload.
func Frame(h wire.Header, payload []byte) []byte {
	h.Len = uint32(len(payload))
	b := h.Append(make([]byte, 0, wire.HeaderLen+len(payload)))
	wire.SetChecksum(b)
	return append(b, payload...)
}

// Send sends a frame under the next sequence number.
func (p *Peer) Send(h wire.Header, payload []byte) error {
	p.seq++
	h.Seq = p.seq
	_, err := p.Write(Frame(h, payload))
	return err
}

// Reset ends the link with a RST.
func (p *Peer) Reset() {
	p.SetLinger(0)
	p.Close()
}

// Drain reads and forgets.
func (p *Peer) Drain() { io.Copy(io.Discard, p) }

// rdsd is a greeted link of an allowed address.
func (s *Stage) rdsd(lane int) *Peer { return s.rdsdFrom(s.from(s.Allowed), lane) }

func (s *Stage) rdsdFrom(from netip.Addr, lane int) *Peer {
	p, err := s.DialPeer(from, lane)
	if err != nil {
		s.Pause(5 * time.Millisecond)
		return nil
	}
	if p.Greet(s.hello()) != nil {
		p.Close()
		s.Pause(5 * time.Millisecond)
		return nil
	}
	return p
}

// kernel is a greeted link of an allowed address whose peer is a kernel: it
// says no Hello.
func (s *Stage) kernel(lane int) *Peer {
	p, err := s.DialPeer(s.from(s.Allowed), lane)
	if err != nil {
		s.Pause(5 * time.Millisecond)
		return nil
	}
	if p.Greet(wire.Hello{}) != nil {
		p.Close()
		return nil
	}
	return p
}
