package simtest

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/ib"
	"github.com/rdsd/rdsd/transport/ib/soft"
)

// seenVerbs is a device of the world with the links that are over it looked at: what a key's end
// is worth there, and whether either keeps to the contract of package ib.
type seenVerbs struct {
	*soft.Device
	p    *volProcess
	keys map[seenKey]struct{} // that nobody has ended, as far as their owners know
}

// seenKey is a key, which is its domain's.
type seenKey struct {
	d   *seenDomain
	key uint32
}

var _ ib.Verbs = (*seenVerbs)(nil)

func (v *seenVerbs) NewDomain(withdrawn func(key uint32, w ib.Withdrawal)) (ib.Domain, error) {
	d, err := v.Device.NewDomain(withdrawn)
	if err != nil {
		return nil, err
	}
	return &seenDomain{d, v, v.p}, nil
}

func (v *seenVerbs) Dial(ctx context.Context, local, remote netip.AddrPort, q ib.QP, p ib.Param) (ib.Peer, error) {
	return v.Device.Dial(ctx, local, remote, q.(*seenQP).QP, p)
}

func (v *seenVerbs) Listen(local netip.AddrPort, ask func(ib.Asked)) (transport.Listener, error) {
	return v.Device.Listen(local, func(a ib.Asked) { ask(seenAsked{a}) })
}

// seenAsked is a request to connect.
type seenAsked struct{ ib.Asked }

func (a seenAsked) Accept(q ib.QP, p ib.Param) error { return a.Asked.Accept(q.(*seenQP).QP, p) }

// seenDomain is a protection domain.
type seenDomain struct {
	ib.Domain
	v *seenVerbs
	p *volProcess
}

func (d *seenDomain) Expose(b []byte, iova uint64, r ib.Rights) (key uint32, err error) {
	if key, err = d.Domain.Expose(b, iova, r); err == nil {
		d.v.keys[seenKey{d, key}] = struct{}{}
	}
	return key, err
}

func (d *seenDomain) Withdraw(key uint32) ib.Withdrawal {
	w := d.Domain.Withdraw(key)
	d.dead(key, "its owner")
	return w
}

func (d *seenDomain) Close() {
	d.Domain.Close()
	maps.DeleteFunc(d.v.keys, func(k seenKey, _ struct{}) bool { return k.d == d })
	d.v.check("its domain was closed")
}

// dead fails the world when a key goes on that somebody has ended.
func (d *seenDomain) dead(key uint32, who string) {
	delete(d.v.keys, seenKey{d, key})
	d.v.check(fmt.Sprintf("%s has ended %#x", who, key))
}

// check fails the world when there are more keys than have not been ended. Those that a peer has
// ended are fewer until their owner is told, so one that goes on is found at the latest when there
// is nothing to be told.
func (v *seenVerbs) check(after string) {
	if n := v.Keys(); n > len(v.keys) {
		v.p.v.w.fail("Q1: %d keys of %v open memory after %s, and %d were not ended", n, v.p.n.addr, after, len(v.keys))
	}
}

func (d *seenDomain) NewQP(cfg ib.QPConfig, h ib.Handler) (ib.QP, error) {
	q, err := d.Domain.NewQP(cfg, h)
	if err != nil {
		return nil, err
	}
	return &seenQP{QP: q, d: d}, nil
}

// seenQP is a queue pair, and what is under way in it.
type seenQP struct {
	ib.QP
	d     *seenDomain
	sends []uint64 // work that has not completed
	slots int
	over  bool // Disconnect was called: nobody need be told of what comes
}

// untold is a key that a peer has ended, of which the link's owner was not told yet.
type untold struct {
	q   *seenQP
	key uint32
}

func (q *seenQP) Post(wr []ib.WR) (int, error) {
	n, err := q.QP.Post(wr)
	for i := range wr[:n] {
		q.sends = append(q.sends, wr[i].ID)
	}
	return n, err
}

func (q *seenQP) Receive(s []ib.Slot) (int, error) {
	n, err := q.QP.Receive(s)
	q.slots += n
	return n, err
}

func (q *seenQP) Poll(c []ib.Completion) int {
	n := q.QP.Poll(c)
	for i := range c[:n] {
		q.completed(&c[i])
	}
	return n
}

func (q *seenQP) completed(c *ib.Completion) {
	p := q.d.p
	if c.Op < ib.Recv {
		i := slices.Index(q.sends, c.ID)
		q.sends = q.sends[i+1:] // what stands before it has completed without a word
		return
	}
	q.slots--
	if c.Status == ib.OK && c.Has&ib.HasInval != 0 {
		q.d.dead(c.Key, "its peer")
		p.v.total.Invalidated++
		if !q.over {
			p.untold = append(p.untold, untold{q, c.Key})
		}
	}
}

func (q *seenQP) Disconnect() {
	q.over = true
	q.d.p.untold = slices.DeleteFunc(q.d.p.untold, func(u untold) bool { return u.q == q })
	q.QP.Disconnect()
}

func (q *seenQP) Close() {
	switch p := q.d.p; {
	case !q.over:
		p.v.w.fail("Q3: a queue pair of %v is freed that was not disconnected", p.n.addr)
	case len(q.sends) > 0 || q.slots > 0:
		p.v.w.fail("Q3: a queue pair of %v is freed while %d operations and %d slots are under way", p.n.addr, len(q.sends), q.slots)
	}
	q.QP.Close()
}

// told is an owner of a link hearing that the peer has ended a key.
func (p *volProcess) told(key uint32) {
	if i := slices.IndexFunc(p.untold, func(u untold) bool { return u.key == key }); i >= 0 {
		p.untold = slices.Delete(p.untold, i, i+1)
	}
}

// allTold fails the world when what a turn brought was told, but for a key's end.
func (p *volProcess) allTold() {
	if len(p.untold) > 0 {
		p.v.w.fail("Q2: the peer has ended the key %#x of %v, and nobody was told", p.untold[0].key, p.n.addr)
	}
}
