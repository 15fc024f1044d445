package interop

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

const rdsPort = 16385

// barePeer is the least RDS peer that a kernel accepts: one path, no
// retransmission, no congestion map. It proves the harness without rdsd.
type barePeer struct {
	ns      *Netns
	local   netip.Addr
	remote  netip.Addr
	lis     net.Listener
	wg      sync.WaitGroup
	frames  chan bareFrame
	maps    chan []byte   // congestion maps, as they come
	down    chan struct{} // closed when the link has ended
	timeout time.Duration // of dial
	wmu     sync.Mutex
	link    net.Conn // guarded by wmu
	seq     uint64   // guarded by wmu
}

type bareFrame struct {
	sport, dport uint16
	payload      []byte
}

// newBarePeer listens; the address order says who connects: the smaller.
func newBarePeer(ns *Netns, local, remote netip.Addr) (*barePeer, error) {
	p := &barePeer{ns: ns, local: local, remote: remote, frames: make(chan bareFrame, 1024), maps: make(chan []byte, 64),
		down: make(chan struct{}), timeout: 5 * time.Second}
	err := ns.Do(func() (err error) {
		lc := net.ListenConfig{}
		p.lis, err = lc.Listen(context.Background(), "tcp", netip.AddrPortFrom(local, rdsPort).String())
		return err
	})
	if err != nil {
		return nil, err
	}
	p.wg.Go(p.accept)
	return p, nil
}

func (p *barePeer) accept() {
	for {
		c, err := p.lis.Accept()
		if err != nil {
			return
		}
		if p.local.Less(p.remote) {
			_ = c.Close() // a poke: never a connection
			_ = p.dial()
			continue
		}
		p.use(c)
	}
}

// dial makes the connection (smaller address) or pokes for it (larger).
func (p *barePeer) dial() error {
	var c net.Conn
	err := p.ns.Do(func() (err error) {
		d := net.Dialer{Timeout: p.timeout, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.local, 0))}
		c, err = d.Dial("tcp", netip.AddrPortFrom(p.remote, rdsPort).String())
		return err
	})
	if err != nil {
		return err
	}
	if !p.local.Less(p.remote) {
		return c.Close()
	}
	p.use(c)
	return nil
}

func (p *barePeer) use(c net.Conn) {
	p.wmu.Lock()
	defer p.wmu.Unlock()
	if p.link != nil {
		_ = c.Close()
		return
	}
	p.link = c
	p.wg.Go(func() {
		p.read(c)
		close(p.down)
	})
}

func (p *barePeer) read(c net.Conn) {
	var h [48]byte
	for {
		if _, err := io.ReadFull(c, h[:]); err != nil {
			return
		}
		f := bareFrame{binary.BigEndian.Uint16(h[20:]), binary.BigEndian.Uint16(h[22:]),
			make([]byte, binary.BigEndian.Uint32(h[16:]))}
		if _, err := io.ReadFull(c, f.payload); err != nil {
			return
		}
		switch {
		case h[24] == 0x01:
			select {
			case p.maps <- f.payload:
			default: // only the congestion test looks at them
			}
		case f.dport == 0 && f.sport != 0:
			// The pong bears no lane count, which the kernel reads as one.
			_ = p.write(0, f.sport, nil)
		default:
			p.frames <- f
		}
	}
}

func (p *barePeer) write(sport, dport uint16, payload []byte) error {
	p.wmu.Lock()
	defer p.wmu.Unlock()
	if p.link == nil {
		return errors.New("bare peer: no connection")
	}
	p.seq++
	h := make([]byte, 48, 48+len(payload))
	binary.BigEndian.PutUint64(h, p.seq)
	binary.BigEndian.PutUint32(h[16:], uint32(len(payload)))
	binary.BigEndian.PutUint16(h[20:], sport)
	binary.BigEndian.PutUint16(h[22:], dport)
	_, err := p.link.Write(append(h, payload...))
	return err
}

// congest tells the kernel that one port of ours is congested, or none (0).
func (p *barePeer) congest(port uint16) error {
	frame := make([]byte, 48+8192)
	binary.BigEndian.PutUint32(frame[16:], 8192)
	frame[24] = 0x01
	if port != 0 {
		frame[48+port/8] = 1 << (port % 8)
	}
	p.wmu.Lock()
	defer p.wmu.Unlock()
	_, err := p.link.Write(frame)
	return err
}

// awaitMap waits until the kernel's map has a port marked as told.
func (p *barePeer) awaitMap(port uint16, congested bool) error {
	limit := time.After(20 * time.Second)
	for {
		select {
		case m := <-p.maps:
			if (m[port/8]>>(port%8)&1 == 1) == congested {
				return nil
			}
		case <-limit:
			return fmt.Errorf("no map with port %d congested=%v: %w", port, congested, syscall.ETIMEDOUT)
		}
	}
}

// next returns the next frame to one of the ports, or fails after a while.
func (p *barePeer) next(ports ...uint16) (bareFrame, error) {
	limit := time.After(20 * time.Second)
	for {
		select {
		case f := <-p.frames:
			if slices.Contains(ports, f.dport) {
				return f, nil
			}
		case <-limit:
			return bareFrame{}, fmt.Errorf("no frame to %v: %w", ports, syscall.ETIMEDOUT)
		}
	}
}

func (p *barePeer) close() {
	_ = p.lis.Close()
	p.wmu.Lock()
	if p.link != nil {
		_ = p.link.Close()
	}
	p.wmu.Unlock()
	go func() { // unblock the reader
		for range p.frames {
		}
	}()
	p.wg.Wait()
	close(p.frames)
}
