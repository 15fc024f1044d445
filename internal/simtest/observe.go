package simtest

import (
	"bytes"
	"net/netip"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// view is what an onlooker at the wire knows of one path: what the peer was
// told and what it may be told (D5).
type view struct {
	inc      uint64 // the peer's incarnation
	own      uint64 // link it was last used on
	expected uint64
	maxRx    uint64
	refused  map[uint64]bool // received, not placed; true: told so on this link
	told     []told
}

type told struct {
	seq  uint64 // of our refusal
	what []uint64
}

func (n *node) view(l *link) *view {
	v := n.views[l.p]
	inc := l.p.Conn().PeerIncarnation()
	if v == nil || v.inc != inc {
		v = &view{inc: inc, own: l.attempt, refused: map[uint64]bool{}}
		n.views[l.p] = v
	}
	if v.own != l.attempt && l.attempt == l.p.Attempt() {
		v.own = l.attempt
		for s := range v.refused {
			v.refused[s] = false
		}
	}
	return v
}

// offer gives a frame to the engine and watches what becomes of it.
func (n *node) offer(l *link, f *transport.Frame) error {
	w := n.w
	var h wire.Header
	h.Parse(f.Raw)
	dst := n.eng.Socket(h.DPort)
	before := 0
	var to *app
	if dst != nil {
		before = dst.Info().RecvN
		if to, _ = dst.Options().Data.(*app); to != nil && to.m != nil {
			to.m.asked, to.m.tried = false, false
		}
	}
	n.offering = h.Seq
	kept := f
	lent := f.Buf != nil && f.Buf.Owner() != nil // Buffer was asked when its header came
	if !lent {
		if b := l.h.(transport.Placer).Buffer(f.Raw, len(f.Payload)); b != nil {
			b.Release()
		} else if n.skips(l, &h, f) {
			kept = &transport.Frame{Raw: f.Raw, Skipped: len(f.Payload)}
		}
	}
	body := f.Payload // as it came, for onlookers
	if lent && f.Buf.Owner().(*memory).a.dead {
		body = bytes.Clone(body)
		clear(f.Payload) // its pages may be another's by now
	}
	draining := l.p.State() == conn.Disconnecting && l.p.Conn().Kind() == conn.KindRdsd
	err := l.h.Frame(kept)
	rdsd := l.p.Conn().Kind() == conn.KindRdsd
	kind := h.Kind(rdsd)
	if err == nil {
		datagrams(&h, body, rdsd, func(_, _ int, d []byte) {
			if r := w.m.peek(d); r != nil {
				r.arrived = true
			}
		})
	}
	w.mix(4, h.Seq, h.Ack, uint64(h.Len), uint64(h.SPort)<<16|uint64(h.DPort), uint64(h.Flags))
	if err == nil && (l.attempt != l.p.Attempt() || draining) {
		w.fail("D10: %v takes a frame of link %d, which was given up", l.p, l.attempt)
	}
	placed := false
	if to != nil {
		if more := dst.Info().RecvN - before; more > 0 {
			placed = true
			src := netip.AddrPortFrom(l.p.Conn().Remote(), h.SPort)
			datagrams(&h, f.Payload, rdsd, func(i, count int, d []byte) {
				if count != more {
					w.fail("D4: %d datagrams of %d of %v are placed", more, count, &h)
				} else if to.m == nil {
					to.placed(src, i, count, d)
				}
			})
		}
		if m := to.m; m != nil && kind == wire.KindData && !lent && m.tried != m.asked && (m.tried || rdsd && err == nil && n.cfg.Budget.Limit >= ample) {
			w.fail("D7: %v: memory was asked for %v, a frame was offered %v: %v, %v", to.addr, m.asked, m.tried, &h, err)
		}
	}
	if w.verbose != nil {
		w.trace("%v: gen %d takes %v%s: placed %v, %v", l.p, l.attempt, &h, w.number(body), placed, err)
	}
	if rdsd && !draining && l.attempt == l.p.Attempt() {
		n.observeAck(l, &h)
	}
	if kind == wire.KindControl && err == nil && l.batch == nil {
		n.observeRefusals(l, &h, body)
	}
	if rdsd && err == nil {
		n.observeIn(l, &h, kind, placed)
	}
	if err == conn.ErrPause && rdsd {
		w.fail("D9: %v pauses a link to an rdsd", l.p)
	}
	return err
}

// skips reports whether the node has no memory to read a message into, now and then where it
// has little: what it does not keep it refuses.
func (n *node) skips(l *link, h *wire.Header, f *transport.Frame) bool {
	const often = 37
	draw := (h.Seq*0x9e3779b97f4a7c15 ^ l.attempt*0xbf58476d1ce4e5b9) >> 32
	return n.cfg.Budget.Limit < ample && len(f.Payload) > 0 && draw%often == 0 && l.p.Skips(f.Raw)
}

func (n *node) observeIn(l *link, h *wire.Header, kind wire.Kind, placed bool) {
	v := n.view(l)
	if h.Seq == 0 || kind == wire.KindProbe || kind == wire.KindProbeReply {
		return
	}
	fresh := !(h.Seq < v.expected && h.Flags&wire.FlagRetransmitted != 0)
	if !fresh {
		return
	}
	v.expected = h.Seq + 1
	v.maxRx = max(v.maxRx, h.Seq)
	if kind == wire.KindData && !placed {
		v.refused[h.Seq] = false
	}
}

// observeRefusals checks that datagrams the peer had no room for have no sequence in their
// cell any more.
func (n *node) observeRefusals(l *link, h *wire.Header, payload []byte) {
	if h.Ext[0] != wire.CtlRefuse {
		return
	}
	wire.ParseRefusals(payload, func(r wire.Refusal) error {
		for _, p := range n.posted[linkKey{l.p, r.Seq}] {
			if !p.a.dead && p.left == len(p.recs) && !p.split && p.cell != 0 && p.cell == p.sent && p.cell&(1<<conn.CellLane-1) == r.Seq {
				n.w.fail("D5: %v was refused as number %d, which its cell still has", p.recs[0], r.Seq)
			}
		}
		return nil
	})
}

// observeAck forgets the refusals that the peer has acknowledged: they hold nothing up any
// more.
func (n *node) observeAck(l *link, h *wire.Header) {
	v := n.view(l)
	for len(v.told) > 0 && v.told[0].seq <= h.Ack {
		for _, s := range v.told[0].what {
			delete(v.refused, s)
		}
		v.told = v.told[1:]
	}
}

// observeOut looks at every frame of a batch before it is written.
func (n *node) observeOut(l *link, b *transport.Batch) {
	w := n.w
	rdsd := l.p.Conn().Kind() == conn.KindRdsd
	v := n.view(l)
	var h wire.Header
	w.frames(b.Pieces, func(raw, payload []byte) {
		h.Parse(raw)
		w.mix(5, h.Seq, h.Ack, uint64(h.Len), uint64(h.Flags))
		kind := h.Kind(rdsd)
		if w.verbose != nil {
			w.trace("%v: gen %d sends %v%s", l.p, l.attempt, &h, w.number(payload))
		}
		if rdsd {
			if h.Ack > v.maxRx {
				w.fail("D5: %v acknowledges %d, the highest received is %d", l.p, h.Ack, v.maxRx)
			}
			for s, sent := range v.refused {
				if s <= h.Ack && !sent {
					w.fail("D5: %v acknowledges %d, but %d was not placed and the refusal has not left", l.p, h.Ack, s)
				}
			}
		}
		switch kind {
		case wire.KindProbe, wire.KindProbeReply:
			if x := wire.ParseHandshake(&h.Ext); x.Hello.Version != 0 {
				w.incs[x.Hello.Incarnation] = n.epoch
			}
		case wire.KindControl:
			if h.Ext[0] == wire.CtlRefuse {
				t := told{seq: h.Seq}
				wire.ParseRefusals(payload, func(r wire.Refusal) error {
					if _, ok := v.refused[r.Seq]; ok {
						v.refused[r.Seq] = true
						t.what = append(t.what, r.Seq)
					}
					return nil
				})
				if len(v.told) == 0 || v.told[len(v.told)-1].seq < h.Seq {
					v.told = append(v.told, t)
				}
			}
		case wire.KindData:
			if h.Ext[0] != 0 && !rdsd {
				w.fail("V1: %v sends a train to a kernel", l.p)
			}
			datagrams(&h, payload, rdsd, func(_, count int, d []byte) {
				r := w.m.peek(d)
				if r == nil {
					if len(d) > 0 {
						w.fail("D7: %v sends a payload nobody has signed", l.p)
					}
					return
				}
				if r.cancelled && !r.arrived && r.flow.src.Addr() == n.addr {
					w.fail("D6: %v leaves after it was cancelled", r)
				}
				if r.outcome != 0 {
					w.fail("D7: %v is sent after its outcome %v", r, r.outcome)
				}
				if r.left = true; rdsd {
					r.rcvEpoch = w.incs[v.inc]
				}
				if r.post != nil {
					r.post.observe(w, r, l.p.Index(), h.Seq, count)
					// Those of a frame come one behind the other.
					if k := (linkKey{l.p, h.Seq}); len(n.posted[k]) == 0 || n.posted[k][len(n.posted[k])-1] != r.post {
						n.posted[k] = append(n.posted[k], r.post)
					}
				}
			})
		}
	})
}

// frames walks the frames of a batch. Every header lies in one piece.
func (w *World) frames(pieces [][]byte, f func(raw, payload []byte)) {
	for i := 0; i < len(pieces); i++ {
		p := pieces[i]
		for len(p) > 0 {
			raw := p[:wire.HeaderLen]
			k := int(wire.PayloadLen(raw))
			p = p[wire.HeaderLen:]
			if k <= len(p) {
				f(raw, p[:k])
				p = p[k:]
				continue
			}
			// What is referenced is a piece of its own, behind what was written in front of it.
			i++
			f(raw, append(p[:len(p):len(p)], pieces[i]...))
			break
		}
	}
}
