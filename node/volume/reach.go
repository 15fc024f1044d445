package volume

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
)

// newPath adds a path to the session, asked for as s; mu is held.
func (c *client) newPath(now time.Duration, s PathSpec, e endpoints) (*rtrs.ClientPath, error) {
	p, err := c.rt.AddPath(now, e.via, e.local, e.remote)
	if err != nil {
		return nil, err
	}
	c.made[p] = s
	if e.via.Name == TransportIB {
		p.MayBeKernel(now)
	}
	return p, nil
}

// unreached says of each path why it is not connected: what was tried, and how that went. It has the
// errno of the last one. mu is held.
func (c *client) unreached() error {
	var last error
	var before []string
	for _, p := range c.rt.Paths() {
		if last != nil {
			before = append(before, last.Error())
		}
		last = c.whyNot(p)
	}
	if len(before) > 0 {
		return fmt.Errorf("%s; %w", strings.Join(before, "; "), last)
	}
	return last
}

// from is the address that the server sees.
func (c *client) from(p *rtrs.ClientPath) netip.Addr {
	src, _, _ := c.ends(p)
	return src.Addr()
}

func (c *client) whyNot(p *rtrs.ClientPath) error {
	err, over := p.Info().Err, c.h.transportOf(p.Ctx).Name
	silent := err == nil || rdserr.Errno(err) == syscall.ETIMEDOUT // it has not failed yet, or did so by silence
	switch {
	case over == TransportIB && silent:
		return rdserr.With(rdserr.ErrTimeout, "%v over %s: nobody has answered on UDP port 4791 of %v; is volumes.rdma on there (or a kernel with an RDMA device), and do firewalls let the port through?",
			p.Remote, over, p.Remote.Addr())
	case over == TransportIB && rdserr.Errno(err) == syscall.ECONNREFUSED:
		return fmt.Errorf("%v over %s: %w; an rdsd listens there while it exports something (volumes.listen, volumes.rdma_port), a kernel while its rnbd_server is loaded", p.Remote, over, err)
	case rdserr.Errno(err) == syscall.EACCES:
		return fmt.Errorf("%v: %w: the [[peers]] rules there, or its volumes.allow, do not let this node in as %v", p.Remote, err, c.from(p))
	case err == nil:
		return rdserr.With(rdserr.ErrTimeout, "%v: it has not answered in time", p.Remote)
	}
	return fmt.Errorf("%v: %w", p.Remote, err)
}
