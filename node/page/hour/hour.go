package hour

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// MaxPorts is how many ports are told apart.
const MaxPorts = 256

// MaxCulprits is how many senders are remembered of a port.
const MaxCulprits = 4

// Port is a port of this node, or of another one.
type Port struct {
	Endpoint netip.AddrPort
	Local    bool
}

// Reader is who should read a port, and who filled it.
type Reader struct {
	UID, PID uint32
	Program  string
	Culprits []Culprit
}

// Culprit is a sender that filled a port.
type Culprit struct {
	Source           netip.AddrPort
	Datagrams, Bytes uint64
}

// entry is a port that is told apart.
type entry struct {
	track  // n is 1 while it is congested
	port   Port
	times  uint32
	reader Reader
}

// Hour is the last hour of a node. Whoever makes one calls Change for what changes and,
// now and then, Settle with how everything stands.
//
// A port that becomes congested gets an entry of its own as long as there are entries or
// an idle one can be had: of these the one with the least time goes, which is added to
// others. If all are congested, the port is one of others itself.
// So who was congested for long stays, however many others come and go.
type Hour struct {
	ports  map[Port]*entry
	others track // n: how many ports without an entry are congested
	moved  uint32
}

// New makes an hour that begins at time 0.
func New() *Hour { return &Hour{ports: map[Port]*entry{}} }

// Change says that a port became congested, or clear. One that it is already is no change.
func (h *Hour) Change(now time.Duration, p Port, congested bool) {
	e := h.ports[p]
	if e == nil && congested {
		e = h.admit(now, p)
	}
	switch {
	case e == nil && congested:
		h.others.set(now, h.others.n+1)
		h.moved++
	case e == nil:
		h.others.set(now, max(h.others.n-1, 0))
	case congested && e.n == 0:
		e.set(now, 1)
		e.times++
	case !congested:
		e.set(now, 0)
	}
}

// Settle says which ports are congested now: what was missed is put right. more is how many
// are beside those of the list, of which none is told apart (Congested). Ports that were not
// congested in the hour are forgotten.
func (h *Hour) Settle(now time.Duration, congested []Port, more int) {
	seen := make(map[Port]bool, min(len(congested), MaxPorts))
	others := 0
	for _, p := range congested {
		e := h.ports[p]
		if e == nil {
			e = h.admit(now, p)
		}
		if e == nil {
			others++
			continue
		}
		seen[p] = true
		if e.n == 0 {
			e.set(now, 1)
			e.times++
		}
	}
	for p, e := range h.ports {
		if e.n > 0 && !seen[p] {
			e.set(now, 0)
		}
		e.upTo(now)
		if e.n == 0 && e.sum == 0 {
			delete(h.ports, p)
		}
	}
	h.others.set(now, others+more)
}

// Congested lists the ports that are told apart and were congested when that was last said.
func (h *Hour) Congested() (l []Port) {
	for p, e := range h.ports {
		if e.n > 0 {
			l = append(l, p)
		}
	}
	return l
}

// Know notes who should read a port, if that is told apart.
func (h *Hour) Know(p Port, r Reader) {
	if e := h.ports[p]; e != nil {
		r.Culprits = slices.Clone(r.Culprits[:min(len(r.Culprits), MaxCulprits)])
		e.reader = r
	}
}

// Busy reports whether a port is congested.
func (h *Hour) Busy() bool {
	if h.others.n > 0 {
		return true
	}
	for _, e := range h.ports {
		if e.n > 0 {
			return true
		}
	}
	return false
}

// admit makes an entry, or returns nil.
func (h *Hour) admit(now time.Duration, p Port) *entry {
	if len(h.ports) < MaxPorts {
		e := &entry{port: p}
		e.at = now
		h.ports[p] = e
		return e
	}
	var least *entry
	for _, e := range h.ports {
		if e.n == 0 && (least == nil || e.sum < least.sum) {
			least = e
		}
	}
	if least == nil {
		return nil
	}
	h.fold(now, least)
	delete(h.ports, least.port)
	*least = entry{port: p}
	least.at = now
	h.ports[p] = least
	return least
}

// fold adds what a port has to the others'.
func (h *Hour) fold(now time.Duration, e *entry) {
	e.upTo(now)
	h.others.upTo(now)
	for i, units := range e.busy {
		h.others.add(time.Duration(i), uint64(units))
	}
	h.moved += e.times
}

// PortView is a port in the last hour. Slots count from the oldest.
type PortView struct {
	Port
	Congested bool
	Total     time.Duration
	Times     uint32
	Slot, Ms  []uint32
	Reader    Reader
}

// View is the last hour.
type View struct {
	Ports     []PortView    // longest congested first
	Others    PortView      // of all others, their times added
	OthersNow int           // how many of those are congested
	SlotEnd   time.Duration // of the newest
	Kept      time.Duration // how much of the hour there is
}

// Look returns the last hour. only, unless nil, says which ports are wanted.
func (h *Hour) Look(now time.Duration, only func(Port) bool) View {
	v := View{SlotEnd: (slotOf(now) + 1) * SlotLength, Kept: min(now, Slots*SlotLength)}
	for p, e := range h.ports {
		if only != nil && !only(p) {
			continue
		}
		w := PortView{Port: p, Congested: e.n > 0, Times: e.times, Reader: e.reader}
		w.Slot, w.Ms = e.slots(now)
		if w.Total = e.total(); len(w.Slot) > 0 || w.Congested {
			v.Ports = append(v.Ports, w)
		}
	}
	slices.SortFunc(v.Ports, func(a, b PortView) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), a.Endpoint.Compare(b.Endpoint))
	})
	v.Others.Slot, v.Others.Ms = h.others.slots(now)
	v.Others.Total, v.Others.Times, v.OthersNow = h.others.total(), h.moved, h.others.n
	return v
}
