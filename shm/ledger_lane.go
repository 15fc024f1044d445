package shm

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// LedgerLane is the entry of one lane of one peer. Its setters are plain stores to memory;
// the owner of the lane calls them.
type LedgerLane struct {
	// NextSeq is where the next sequence to send is recorded, before anything with a higher one
	// leaves.
	NextSeq *uint64

	l     *Ledger
	key   laneKey
	index uint32
	mem   []byte

	received uint64 // as it stands in mem
}

// PrepareLanes allocates the entries of n lanes for a peer that has none yet, so that Lane,
// which reactors call, finds them. It may block on the file system.
func (l *Ledger) PrepareLanes(local, remote netip.Addr, n int) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	if l.lanes[laneKey{local, remote, 0}] != nil {
		l.mu.Unlock()
		return nil
	}
	// Some peers that were prepared for never come; they must not take more and more.
	l.promised = min(l.promised+n, maxPromised)
	first := l.nLanes
	n = min(l.promised, int(l.h.Lanes-first))
	l.mu.Unlock()
	if n == 0 {
		return nil
	}
	return l.ensure(l.h.LaneOff+uint64(first)*laneBytes, uint64(n)*laneBytes)
}

// maxPromised bounds the lanes that are allocated in advance: half a megabyte.
const maxPromised = 1024

// Lane returns the entry of a lane and makes it when there is none. It blocks
// only when PrepareLanes was not called for it.
func (l *Ledger) Lane(local, remote netip.Addr, lane uint32) (*LedgerLane, error) {
	if l == nil {
		return nil, nil
	}
	if !local.IsValid() || !remote.IsValid() || local.Is4() != remote.Is4() {
		return nil, &Error{unix.EINVAL, fmt.Sprintf("a lane from %v to %v", local, remote)}
	}
	key := laneKey{local, remote, lane}
	for {
		p, off, err := l.lane(key)
		if p != nil || err != nil {
			return p, err
		}
		if err := l.ensure(off, laneBytes); err != nil {
			return nil, err
		}
	}
}

// lane is Lane, but allocates nothing: without an entry and without an error the page at
// off is to be allocated first.
func (l *Ledger) lane(key laneKey) (p *LedgerLane, off uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.lanes[key]; p != nil {
		return p, 0, nil
	}
	p = &LedgerLane{l: l, key: key, index: l.nLanes}
	reuse := len(l.freeLanes) > 0
	if reuse {
		p.index = l.freeLanes[len(l.freeLanes)-1]
	} else if l.nLanes >= l.h.Lanes {
		return nil, 0, &Error{unix.ENOMEM, fmt.Sprintf("the ledger has room for %d lanes", l.h.Lanes)}
	}
	off = l.h.LaneOff + uint64(p.index)*laneBytes
	// Stores into a page that the file system has not given could kill the daemon (SIGBUS):
	// the caller allocates it, without this lock, and asks again.
	if page := off >> 12; l.have[page/64]&(1<<(page%64)) == 0 { // an entry lies in one page
		return nil, off, nil
	}
	if reuse {
		l.freeLanes = l.freeLanes[:len(l.freeLanes)-1]
	} else {
		l.nLanes++
	}
	l.promised = max(l.promised-1, 0)
	p.mem = l.mem[off:][:laneBytes:laneBytes]
	clear(p.mem)
	p.NextSeq = (*uint64)(unsafe.Pointer(&p.mem[64]))
	le.PutUint32(p.mem[4:], key.lane)
	putAddr(p.mem[8:24], key.local)
	p.mem[40] = putAddr(p.mem[24:40], key.remote)
	// In use last: a reader of a dead daemon's ledger sees a whole entry or none.
	word32(p.mem).Store(1)
	l.lanes[key] = p
	return p, off, nil
}

// Index returns the entry's number, for Host.Place; NoLane for a nil lane.
func (p *LedgerLane) Index() uint32 {
	if p == nil {
		return NoLane
	}
	return p.index
}

// Free gives the entry back.
func (p *LedgerLane) Free() {
	if p == nil {
		return
	}
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	word32(p.mem).Store(0)
	delete(p.l.lanes, p.key)
	p.l.freeLanes = append(p.l.freeLanes, p.index)
}

// SetPeer records the kind of peer (conn.Kind) and both incarnations.
func (p *LedgerLane) SetPeer(kind uint8, ours, peers uint64) {
	if p == nil {
		return
	}
	p.mem[41] = kind
	word64(p.mem[48:]).Store(ours)
	word64(p.mem[56:]).Store(peers)
}

// SetReceived records the highest sequence received when no datagram came with
// it; otherwise PublishAll does.
func (p *LedgerLane) SetReceived(seq uint64, refusals []uint64) {
	if p != nil {
		p.setRefusals(refusals)
		p.setReceived(seq)
	}
}

// setReceived leaves alone what says so already: a sender to many peers reads one acknowledgement of
// each, which brings no sequence, and each entry is a cache line of its own.
func (p *LedgerLane) setReceived(seq uint64) {
	if p != nil && p.received != seq {
		p.received = seq
		word64(p.mem[72:]).Store(seq)
	}
}

// setRefusals stores them in ascending order. The new list is the old one without some, and
// new ones behind: so no refusal that stays is ever missing in between (it moves down, onto
// one that leaves or has moved). Refusals above the received sequence do not count yet.
func (p *LedgerLane) setRefusals(refusals []uint64) {
	n := (*uint32)(unsafe.Pointer(&p.mem[80]))
	if len(refusals) > MaxRefusals {
		atomic.StoreUint32(n, RefusalsOverflow)
		return
	}
	if len(refusals) == 0 && *n == 0 {
		return
	}
	for i, s := range refusals {
		*(*uint64)(unsafe.Pointer(&p.mem[88+8*i])) = s
	}
	atomic.StoreUint32(n, uint32(len(refusals)))
}
