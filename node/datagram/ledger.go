package datagram

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/shm"
	"github.com/rdsd/rdsd/wire"
)

// localRings is a host's part in sockets with rings: what a step brought for
// them, and its place in the ledger (docs/shm.md, "Ledger"). Local.mu guards it.
type localRings struct {
	number    int             // of the host: its commit record
	here      *shm.LedgerLane // of datagrams that stay at this address; nil until it is needed
	noHere    bool            // the ledger had no room
	hereAt    uint64          // of them, the number up to which the ledger knows them
	committed bool            // commit has made placed visible; never without a ledger
	placed    []*Ring         // with datagrams that nobody sees yet
	dirty     []*Ring         // with news that nobody sees yet
	hosts     []*shm.Host     // of placed, for one call
	refused   []uint64
	refs      [shm.MaxRefusals + 1]wire.Refusal
}

// ledgerLane is p's entry in the ledger, made when it is first asked for; nil
// without a ledger, or when that is full.
func (h *Local) ledgerLane(p *conn.Lane) *shm.LedgerLane {
	l := h.laneOf(p)
	if l.ledger == nil && h.all.ledger != nil && !l.unledgered {
		c := p.Conn()
		var err error
		if l.ledger, err = h.all.ledger.Lane(c.Local(), c.Remote(), uint32(p.Index())); err != nil {
			l.unledgered = true // once; the log has it
			h.log.Error("a lane is not in the ledger", "peer", c.Remote(), "lane", p.Index(), "error", err)
			return nil
		}
		h.recordLane(p)
	}
	return l.ledger
}

// freeLane gives back the ledger's entry of a lane whose peer was forgotten.
func (h *Local) freeLane(p *conn.Lane) {
	l := h.laneOf(p)
	l.ledger.Free()
	l.ledger, l.unledgered = nil, true
}

// prepareLanes allocates what the ledger will need for a new peer, where that
// may block: in the goroutine that dials or accepts.
func (h *Local) prepareLanes(remote netip.Addr) {
	if err := h.all.ledger.PrepareLanes(h.addr, remote, wire.MaxLanes); err != nil {
		h.log.Error("lanes will not be in the ledger", "peer", remote, "error", err)
	}
}

// LaneIndex is the ledger's number of the lane that a datagram came by; p is nil for
// one that stays at this address.
func (h *Local) LaneIndex(p *conn.Lane) uint32 {
	if p == nil {
		return h.ledgerHere().Index()
	}
	return h.ledgerLane(p).Index()
}

// ledgerHere is the entry of the lane of datagrams that stay at this address.
func (h *Local) ledgerHere() *shm.LedgerLane {
	r := &h.rings
	if r.here == nil && h.all.ledger != nil && !r.noHere {
		var err error
		if r.here, err = h.all.ledger.Lane(h.addr, h.addr, shm.LocalLane); err != nil {
			r.noHere = true // once; the log has it
			h.log.Error("datagrams that stay at an address are not in the ledger", "address", h.addr, "error", err)
		}
	}
	return r.here
}

// recordLane writes down who p leads to, and where it stands.
func (h *Local) recordLane(p *conn.Lane) {
	if l := h.laneOf(p).ledger; l != nil {
		c := p.Conn()
		l.SetPeer(uint8(c.Kind()), c.Incarnation(), c.PeerIncarnation())
		*l.NextSeq = p.NextTx()
		l.SetReceived(p.Received(), h.refusals(p))
	}
}

// refusals lists what p refused and the peer may not know, ascending.
func (h *Local) refusals(p *conn.Lane) []uint64 {
	n := p.Refusals(h.rings.refs[:])
	h.rings.refused = h.rings.refused[:0]
	for _, r := range h.rings.refs[:n] {
		h.rings.refused = append(h.rings.refused, r.Seq)
	}
	slices.Sort(h.rings.refused)
	return h.rings.refused
}

// commit ends a read of p: what it placed becomes visible to clients together
// with the lane's place in the ledger, before the lock is let go and so before
// an acknowledgement can leave (D5).
func (h *Local) commit(p *conn.Lane) {
	if h.all.ledger == nil {
		return
	}
	r := &h.rings
	if len(r.placed) == 0 {
		if l := h.laneOf(p).ledger; l != nil {
			l.SetReceived(p.Received(), h.refusals(p))
		}
		return
	}
	h.commitPlaced(h.ledgerLane(p), p.Received(), h.refusals(p))
}

func (h *Local) commitPlaced(lane *shm.LedgerLane, received uint64, refusals []uint64) {
	r := &h.rings
	r.committed, r.hereAt = true, h.e.Here()
	r.hosts = r.hosts[:0]
	for _, s := range r.placed {
		r.hosts = append(r.hosts, s.End)
	}
	h.all.ledger.PublishBoth(r.number, lane, received, refusals, r.here, r.hereAt, r.hosts)
	clear(r.hosts) // or the list keeps the books of a region long after its socket is closed
}

// publishRings makes the news of a step visible and adds the doorbells to ring
// once the lock is let go.
func (h *Local) publishRings(bells []*shm.Alarm) []*shm.Alarm {
	r := &h.rings
	// What came by no link is not committed yet; without a ledger nothing is. It is shown before
	// anything else, outcomes of senders that stay at this address among it: who is killed in between
	// has not called delivered what nobody finds.
	if len(r.placed) > 0 && (!r.committed || r.hereAt != h.e.Here()) {
		h.commitPlaced(nil, 0, nil)
	}
	r.committed = false
	for _, s := range r.placed {
		s.placed = false
		h.Touch(s)
	}
	for _, s := range r.dirty {
		s.dirty = false
		if a := s.Owner.Show(); a != nil {
			bells = append(bells, a)
		}
	}
	clear(r.placed)
	clear(r.dirty)
	r.placed, r.dirty = r.placed[:0], r.dirty[:0]
	if h.Moved > movedStep { // pages that the daemon has not touched before may be among them
		h.Moved = 0
		h.all.deps.Memory.Want()
	}
	return bells
}

// movedStep is after how many bytes the keeper looks, so that what it has not seen yet
// of pages of regions is small beside memorySlack, however fast they are touched.
const movedStep = 8 << 20

// ledgerPatience is for how long the ledger of a daemon that is about to be gone is waited for: one that
// was killed, whose memory the kernel takes apart, or one that stops and has closed its sockets already.
const ledgerPatience = 2 * time.Second

// openLedger makes the ledger of this life of the daemon. What a life that was
// killed left there is replaced: its clients bind anew.
func (a *Host) openLedger() error {
	file := a.deps.Config.LedgerPath()
	if file == "" {
		return nil
	}
	failed := func(err error) error {
		return a.deps.Config.Failed("api.ledger", fmt.Errorf("api.ledger %s: %w", file, err))
	}
	spec := shm.LedgerSpec{
		Instance: a.deps.Instance,
		Lanes:    a.deps.Config.Limits.MaxPeers * wire.MaxLanes,
		Regions:  min(a.deps.Config.Limits.MaxSockets, 1<<16),
		Commits:  len(a.list),
	}
	l, err := shm.OpenLedger(file, spec)
	for until := time.Now().Add(ledgerPatience); errors.Is(err, shm.ErrLedgerInUse) && time.Now().Before(until); {
		time.Sleep(5 * time.Millisecond)
		l, err = shm.OpenLedger(file, spec)
	}
	if errors.Is(err, shm.ErrLedgerInUse) {
		err = fmt.Errorf("%w; stop it, or give this one a file of its own", err)
	}
	if err != nil {
		return failed(err)
	}
	if !l.InMemory() {
		a.deps.Log.Warn("api.ledger is on a disk: while a page of it is written there, datagrams of all clients wait; it belongs on a tmpfs such as /run", "file", file)
	}
	for i, h := range a.list {
		if err := l.Commit(i); err != nil {
			l.Remove()
			return failed(err)
		}
		h.rings.number = i
	}
	a.ledger = l
	for _, h := range a.list {
		h.ledgerHere() // now, while nobody waits
	}
	return nil
}

// closeLedger removes the ledger: after an orderly end there is nothing to find.
func (a *Host) closeLedger() { a.ledger.Remove() }

// NextWorker deals sockets with rings out to the reactors.
func (a *Host) NextWorker() *Worker {
	return a.workers[int(a.dealt.Add(1)-1)%len(a.workers)]
}
