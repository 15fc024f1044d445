package tcp

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/transport"
)

// dialTime is how long DialOneSided waits for the other end's answer, all
// in all; the other end gives its own program as long (answerTime).
const dialTime = 30 * time.Second

// Domain is a protection domain, whose links all live on one reactor.
type Domain struct {
	*transport.Regions // a transport.Guarded
	loop               *loop
}

var _ transport.OneSidedProvider = (*Provider)(nil)

// Reactor is the one the domain's links live on.
func (d *Domain) Reactor() *reactor.Reactor { return d.loop.r }

// NewDomain makes a domain on the reactor whose turn it is.
func (p *Provider) NewDomain() transport.Domain { return newDomain(p.loop()) }

// NewDomainOn makes a domain on r, one of the provider's reactors: links of
// several domains that share a lock are best read by one thread.
func (p *Provider) NewDomainOn(r *reactor.Reactor) (transport.Domain, error) {
	for _, lp := range p.loops {
		if lp.r == r {
			return newDomain(lp), nil
		}
	}
	return nil, fmt.Errorf("tcp: a domain was asked for on a reactor that is none of the provider's")
}

func newDomain(lp *loop) *Domain {
	var seed [32]byte
	crand.Read(seed[:]) // does not fail
	return &Domain{Regions: transport.NewRegions(seed), loop: lp}
}

func domainOf(d transport.Domain) (*Domain, error) {
	if d, ok := d.(*Domain); ok {
		return d, nil
	}
	return nil, fmt.Errorf("tcp: a domain of type %T is not this provider's; make one with NewDomain", d)
}

// OneSidedCaps implements transport.OneSidedProvider: all of it, and nothing is pinned.
func (p *Provider) OneSidedCaps() transport.OneSidedCaps {
	return transport.OneSidedCaps{SecretKeys: true, Places: true, Faults: true, PeerRevokes: true, Fills: true, Guards: true}
}

// Memory implements transport.OneSidedProvider: any memory can be posted and registered.
func (p *Provider) Memory(n int) ([]byte, error) { return make([]byte, n), nil }

// Adopt implements transport.OneSidedProvider; see Memory.
func (p *Provider) Adopt([]byte) (release func(), err error) { return func() {}, nil }

// DialOneSided connects. It takes no longer than half a minute, and ends when
// ctx does. attr needs nothing: what is posted waits in memory, what comes in the socket.
func (p *Provider) DialOneSided(ctx context.Context, local, remote netip.AddrPort, d transport.Domain, attr transport.LinkAttr, private []byte) (transport.OneSided, []byte, error) {
	if err := p.room(); err != nil {
		return nil, nil, err
	}
	dom, err := domainOf(d)
	if err != nil {
		return nil, nil, err
	}
	hello, err := transport.AppendHandshake(nil, transport.TagConnect, private)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	dialer := net.Dialer{KeepAlive: -1, Control: p.control(local.Port() != 0)}
	if local.Addr().IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(local)
	}
	c, err := dialer.DialContext(ctx, "tcp", remote.String())
	if err != nil {
		return nil, nil, err
	}
	var rsp []byte
	// Before a byte is sent: the connection may be one that policy forbids.
	if p.Check != nil {
		err = p.Check(ctx, unmap(c.LocalAddr()), unmap(c.RemoteAddr()))
	}
	if err == nil {
		rsp, err = exchange(ctx, c, hello)
	}
	if err != nil {
		c.Close()
		return nil, nil, fmt.Errorf("connecting to %v: %w", remote, err)
	}
	l, err := newOneSided(dom, c.(*net.TCPConn))
	if err != nil {
		return nil, nil, err
	}
	return l, rsp, nil
}

// exchange shows hello to the other end and returns its answer.
func exchange(ctx context.Context, c net.Conn, hello []byte) (rsp []byte, err error) {
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil { // too late: the deadline is set, or is being set
			err = ctx.Err()
		} else if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("waiting for the answer: %w", ctx.Err())
		}
	}()
	if _, err := c.Write(hello); err != nil {
		return nil, err
	}
	t, rsp, err := readHandshake(c)
	switch {
	case err != nil:
		return nil, err
	case t.Kind == transport.TagReject:
		return nil, &transport.Refused{Remote: unmap(c.RemoteAddr()), Private: rsp}
	case t.Kind != transport.TagAccept:
		return nil, &transport.TagError{Why: fmt.Sprintf("the answer to a handshake is of kind %d", t.Kind)}
	}
	return rsp, nil
}

// readHandshake reads one frame of the handshake and no byte more.
func readHandshake(c net.Conn) (t transport.Tag, private []byte, err error) {
	var b [transport.TagLen]byte
	if _, err := io.ReadFull(c, b[:4+4+4+4]); err != nil {
		return t, nil, err
	}
	// A length that no handshake has is refused at once, and so are the bytes of a program
	// that took the port for another's.
	if n := binary.LittleEndian.Uint32(b[12:]); n > transport.MaxAccept {
		return t, nil, &transport.TagError{Why: fmt.Sprintf("%q begins no handshake", b[:16])}
	}
	if _, err := io.ReadFull(c, b[16:]); err != nil {
		return t, nil, err
	}
	if err := t.Parse(b[:], 0); err != nil {
		return t, nil, err
	}
	if t.Kind < transport.TagConnect {
		return t, nil, &transport.TagError{Why: fmt.Sprintf("a frame of kind %d before the handshake", t.Kind)}
	}
	private = make([]byte, t.Len)
	_, err = io.ReadFull(c, private)
	return t, private, err
}
