package conn

import (
	"time"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// fillCongestion tells the peer which of our ports are congested. Whole maps
// go to kernels and to peers too far behind, not more often than mapInterval;
// an rdsd gets changes.
//
// The first map of a link goes to a kernel, and to a peer that may be one, even when it is
// empty. A kernel keeps our map while there is no link (net/rds/cong.c), and this daemon
// cannot know the map that its former incarnation, or another node that had its address
// before, has sent: a port that was congested then would be refused for ever. Another rdsd
// forgets the map with the incarnation (see restart), so that an empty one says nothing to
// it.
func (p *Lane) fillCongestion(now time.Duration, b *transport.Batch, o *frameOut) {
	if !p.congDirty || p.idx != 0 || !p.c.may().hear {
		return
	}
	whole := p.c.kind != KindRdsd
	if !whole && !o.rdsd && p.congVer != 0 {
		// The first map of this link has left; changes wait for the answer to our handshake.
		return
	}
	// A map is 8 KiB and replaces the one before: a port that flips often must not fill
	// the link with maps, so later changes are merged into the next.
	if whole && now-p.congAt < p.c.mapInterval() {
		p.c.rearm(p.congAt + p.c.mapInterval())
		return
	}
	ver, delta, m := p.c.owner.LocalCongestion(p.congVer, whole)
	// Before the frame is put: the owner answers with the newest version, and a change
	// after that sets congDirty again.
	p.congDirty = false
	p.congVer = ver
	switch {
	case m != nil:
		p.congAt = now
		h := wire.Header{Flags: wire.FlagCongBitmap, Len: uint32(len(m))}
		p.put(b, o, &h, m)
	case len(delta) > 0:
		payload := wire.AppendPortStates(nil, delta)
		h := wire.Header{Flags: wire.FlagControl, Len: uint32(len(payload))}
		h.Ext[0] = wire.CtlCongDelta
		p.put(b, o, &h, payload)
	default:
		return
	}
	p.c.ctr.CongUpdateQueued++
}

// CongestionChanged tells that our own map changed. It reports whether the peer gets the whole map each
// time (Common.MapLinks).
func (c *Conn) CongestionChanged(now time.Duration) (whole bool) {
	if !c.Up() {
		// There is no link to tell it on: the next link begins with the whole map.
		return false
	}
	whole = c.kind != KindRdsd
	p := c.lane(0)
	p.congDirty = true
	if p.state != Up {
		// Updates go on lane 0 alone, and the peer, whose other lanes are up, may wait for
		// this one.
		p.want(now)
		return whole
	}
	if whole && now-p.congAt < c.mapInterval() {
		c.rearm(p.congAt + c.mapInterval())
		return whole
	}
	p.kick()
	return whole
}

// mapTime is the time between two whole maps of all links together, if a port of ours changes all the time.
// Whoever has one decides how often it does, and each change would be 8 KiB for each kernel.
const mapTime = 500 * time.Microsecond

// mapInterval is the least time between two whole maps on the link.
func (c *Conn) mapInterval() time.Duration {
	return max(c.cfg.MapInterval, time.Duration(c.com.MapLinks)*mapTime)
}
