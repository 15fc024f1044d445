package conn

import (
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// told is what the peer of a script may know of a lane's numbers. A kernel that outlived a restart of
// ours expects any number: what is sent again, flagged, it drops as old unless it has had one
// of our present numbers without the flag.
type told struct {
	next uint64 // the last number sent without the flag
	end  uint64 // offset behind that on its link, if it has not been acknowledged
	sure bool   // TCP has acknowledged an unflagged one
	// pings are the offsets behind the pings of the link that are not answered. An answer's
	// segment acknowledges so much at least.
	pings []uint64
}

// tell checks and notes what a frame that leaves tells a kernel.
func (w *world) tell(p *Lane, f transport.Frame) {
	var h wire.Header
	if err := h.Parse(f.Raw); err != nil {
		w.t.Fatal(err)
	}
	t := w.told[p]
	switch {
	case h.Seq == 0:
	case h.Flags&wire.FlagRetransmitted != 0:
		if w.c.kind.kernel() && !t.sure {
			w.t.Errorf("%v: sequence %d is sent again to a kernel of which nothing shows that it knows our numbers", p, h.Seq)
		}
	default:
		if h.Seq <= t.next { // they begin anew
			t = told{pings: t.pings}
		}
		if t.next = h.Seq; t.end == 0 {
			t.end = w.txB[p]
		}
	}
	if h.SPort == wire.PortProbe && h.DPort == wire.PortPing {
		t.pings = append(t.pings, w.txB[p])
	}
	w.told[p] = t
}

// acked notes that TCP has acknowledged n bytes of the link.
func (w *world) acked(p *Lane, n uint64) {
	t := w.told[p]
	t.sure = t.sure || t.end > 0 && t.end <= n && n <= w.txB[p]
	w.told[p] = t
}

// answered notes that an answer has come, to the oldest ping of the link.
func (w *world) answered(p *Lane) {
	if t := w.told[p]; len(t.pings) > 0 {
		w.tcp[p], t.pings = t.pings[0], t.pings[1:]
		w.told[p] = t
	}
}

// fresh notes that another link of the lane begins.
func (w *world) fresh(p *Lane) {
	t := w.told[p]
	w.txB[p], t.end, t.pings = 0, 0, nil
	w.told[p] = t
}
