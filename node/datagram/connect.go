package datagram

import (
	"context"
	"errors"
	"net/netip"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/netlocal"
	"github.com/rdsd/rdsd/transport"
)

// dialled is told what came of a dial.
func (h *Local) dialled(a conn.Action, link transport.Link, err error) {
	p, attempt := a.Lane, a.Attempt
	h.prepareLanes(p.Conn().Remote())
	_, now := h.Lock()
	if err == nil && !h.all.engineConfig.AllowPeer(p.Conn().Remote()) { // not any more (DropRefused)
		link.Abort()
		err = errNotAllowed
	}
	switch {
	case err != nil:
		p.DialFailed(now, attempt, err)
	case h.closed || !p.Connected(now, attempt):
		link.Abort()
	default:
		k := &laneLink{h: h, p: p, attempt: attempt, link: link}
		l := h.laneOf(p)
		l.links = append(l.links, k)
		h.links.Add(1)
		link.Start(k)
	}
	h.Unlock()
}

// connect makes a link, or says why not: a panic on the way is a reason like others.
func (h *Local) connect(ctx context.Context, a conn.Action) (link transport.Link, err error) {
	if e := h.all.deps.Guard.Do(guard.Dial, func() {
		guard.Point("dial")
		link, err = h.connectNow(ctx, a)
	}); e != nil {
		return nil, e
	}
	return link, err
}

func (h *Local) connectNow(ctx context.Context, a conn.Action) (transport.Link, error) {
	if !h.all.engineConfig.AllowPeer(a.Lane.Conn().Remote()) { // not any more
		return nil, errNotAllowed
	}
	h.mu.Lock()
	leaving := h.leaving
	h.mu.Unlock()
	if leaving {
		return nil, errLeaving
	}
	return h.all.provider.Dial(ctx, netip.AddrPortFrom(h.addr, 0), netip.AddrPortFrom(a.Lane.Conn().Remote(), h.port), a.Index)
}

// Accept judges an incoming connection. What is refused is closed before
// anything is read or written: the answer is never larger than the question.
func (h *Local) Accept(link transport.Link) {
	remote := link.RemoteAddr()
	refuse := func(why string, args ...any) {
		link.Abort()
		h.all.peers.Refuse("connection", remote.Addr(), why, args...)
	}
	if !h.all.engineConfig.AllowPeer(remote.Addr()) {
		refuse("it is not an allowed peer; allow it with a [[peers]] entry of the configuration")
		return
	}
	user, err := h.all.machine.From(link.LocalAddr(), remote)
	if err != nil {
		// A poke may be closed by now. Nothing is taken from it but the wish to be
		// connected to, and who is there then is judged when it has accepted.
		if poke := h.addr.Less(remote.Addr()); !poke || !errors.Is(err, netlocal.ErrGone) {
			refuse(err.Error())
			return
		}
	}
	h.prepareLanes(remote.Addr())
	shake, err := h.all.peers.Admit(h.all.machine.Wall(), remote.Addr(), user, link.Abort)
	if err != nil {
		refuse(err.Error())
		return
	}
	_, now := h.Lock()
	if h.closed || !h.all.engineConfig.AllowPeer(remote.Addr()) { // not any more (DropRefused)
		h.mu.Unlock()
		link.Abort()
		shake.End()
		return
	}
	a, err := h.e.Accept(now, remote)
	if err != nil || !a.Link {
		h.Unlock()
		shake.End()
		if err != nil {
			refuse(err.Error())
		} else {
			link.Abort() // a poke, or no lane for it
		}
		return
	}
	k := &laneLink{h: h, p: a.Lane, attempt: a.Attempt, link: link, shake: shake}
	l := h.laneOf(a.Lane)
	l.links = append(l.links, k)
	h.links.Add(1)
	if !a.Parked {
		link.Start(k)
	}
	h.Unlock()
}

func (h *Local) closeLink(a conn.Action) {
	h.mu.Lock()
	l := h.laneOf(a.Lane)
	k := l.find(a.Attempt)
	parked := k != nil && a.Kind == conn.ActAbort
	if parked {
		// Never started: nobody else will report its end.
		l.remove(k)
		k.identified()
	}
	h.mu.Unlock()
	if k == nil {
		return
	}
	if a.Kind == conn.ActClose {
		k.link.Close()
	} else {
		k.link.Abort()
	}
	if parked {
		h.links.Done()
	}
}

func (h *Local) pollAcked(a conn.Action) {
	h.mu.Lock()
	k := h.laneOf(a.Lane).find(a.Attempt)
	h.mu.Unlock()
	if k == nil {
		return
	}
	n := k.link.Acked()
	_, now := h.Lock()
	a.Lane.Acked(now, a.Attempt, n)
	k.settled() // a kernel says nothing on a further lane that has no datagrams
	h.Unlock()
}
