package kernelpeer

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"

	"github.com/rdsd/rdsd/wire"
)

// Peer is the kernel of one address. The daemon has to have a smaller one: then it is the
// daemon that connects, and this only listens.
type Peer struct {
	lis  net.Listener
	wg   sync.WaitGroup
	got  chan Frame
	done chan struct{}

	writing sync.Mutex // held while a frame is written, which a daemon that does not read lets last; before mu
	seq     uint64     // guarded by writing

	mu   sync.Mutex // guards what follows
	link net.Conn   // the last one
	all  []net.Conn
}

// Frame is a datagram that came.
type Frame struct {
	Source, Destination uint16 // ports
	Payload             []byte
}

const mapLen = 8192

// Listen makes the kernel of an address.
func Listen(at netip.AddrPort) (*Peer, error) {
	lis, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
	if err != nil {
		return nil, err
	}
	p := &Peer{lis: lis, got: make(chan Frame, 1024), done: make(chan struct{})}
	p.wg.Go(func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(c) })
		}
	})
	return p, nil
}

// Got brings the datagrams that come. Nothing more is read while it is full.
func (p *Peer) Got() <-chan Frame { return p.got }

// Send sends a datagram over the last link, and ErrNoLink says that there is none.
func (p *Peer) Send(f Frame) error {
	p.mu.Lock()
	c := p.link
	p.mu.Unlock()
	if c == nil {
		return ErrNoLink
	}
	return p.write(c, f)
}

// ErrNoLink says that the daemon has not connected.
var ErrNoLink = errors.New("the daemon has not connected to this kernel")

// Close ends the kernel and its links.
func (p *Peer) Close() {
	close(p.done)
	p.lis.Close()
	p.mu.Lock()
	for _, c := range p.all {
		c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// serve reads a link until it ends.
func (p *Peer) serve(c net.Conn) {
	defer c.Close()
	p.writing.Lock()
	p.mu.Lock()
	p.link = c
	p.all = append(p.all, c)
	p.mu.Unlock()
	select {
	case <-p.done: // Close may have looked already
		p.writing.Unlock()
		return
	default:
	}
	// A kernel tells its map first on every link (net/rds/send.c, rds_send_xmit): no port is
	// congested.
	told := wire.Header{Len: mapLen, Flags: wire.FlagCongBitmap}
	_, err := c.Write(append(told.Append(nil), make([]byte, mapLen)...))
	p.writing.Unlock()
	var raw [wire.HeaderLen]byte
	for err == nil {
		if _, err = io.ReadFull(c, raw[:]); err != nil {
			return
		}
		var h wire.Header
		if err = h.Parse(raw[:]); err != nil {
			return
		}
		f := Frame{h.SPort, h.DPort, make([]byte, h.Len)}
		if _, err = io.ReadFull(c, f.Payload); err != nil {
			return
		}
		switch {
		case h.Flags&wire.FlagCongBitmap != 0:
		case f.Destination == 0 && f.Source != 0:
			// A ping. The pong has no number of paths, as that of a kernel that knows none.
			err = p.write(c, Frame{Destination: f.Source})
		case f.Destination != 0:
			select {
			case p.got <- f:
			case <-p.done:
				return
			}
		}
	}
}

func (p *Peer) write(c net.Conn, f Frame) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	p.seq++
	h := wire.Header{Seq: p.seq, Len: uint32(len(f.Payload)), SPort: f.Source, DPort: f.Destination}
	_, err := c.Write(append(h.Append(nil), f.Payload...))
	return err
}
