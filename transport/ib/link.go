package ib

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/transport"
)

// link is a one-sided link over one queue pair, whose Handler it is.
//
// Anybody posts; whoever flushes, and finds nobody handing work to the device, hands over all
// that there is. Completions are taken on the reactor's thread, in turns (turn.go), which are
// also where the link ends:
//
//	why is set        the queue pair fails, and tells the peer
//	turns after that  take completions; what was received before is told to the handler if
//	                  the peer ended the link, and not if its owner did (silent)
//	the last one      finds that nothing is posted any more, so that the device touches no
//	                  memory for the link: it closes the queue pair and calls Closed
//
// mu is not held during a call of the handler, nor of QP.Post, which may send, as long as the
// queue pair has not failed; it is held during other calls of the device.
type link struct {
	p             *Provider
	d             *domain
	qp            QP
	to            netip.AddrPort // what it was made for; the device may speak before local and remote are known
	local, remote netip.AddrPort // of the connection
	recvs         int            // slots
	again         func()         // turn, made once
	fault         func(error)    // Fault, likewise

	silent atomic.Bool // nothing is told any more but Closed
	live   atomic.Bool // it was started, and is not to end

	mu       sync.Mutex // guards the fields below
	h        transport.OneSidedHandler
	ready    bool  // the peer has taken the connection: work can be handed over
	why      error // it ends, for this reason; set once
	ended    bool  // Closed was called, or is to be called by Start
	out      sendQueue
	handing  bool // a thread is handing work over
	due      bool // a turn has been asked for
	left     bool // and Flush has left work to it
	reserved int  // bytes charged
	releases []func()

	// Set by Start, and from then on owned by the reactor's thread.
	slots    []byte
	slotSize int
	posted   int // slots that the device has
}

var (
	_ transport.OneSided = (*link)(nil)
	_ Handler            = (*link)(nil)
	_ reactor.Owner      = (*link)(nil)
)

const (
	// maxPlaces is the longest send queue. An RTRS server may post some thousand operations, of
	// which each of its many connections would reserve all; a wire that is busy needs few of
	// them at a time, and the others wait, charged while they do.
	maxPlaces = 256
	// maxRuns is how many runs of work one Flush hands over. The reactor's thread goes on, so
	// that a caller does not become everybody's writer.
	maxRuns = 16
	// flushLooks is how often Close looks whether the device has flushed the work of a link that
	// was not started.
	flushLooks = 1000
	// workBytes is what a work request is charged with.
	workBytes = int(unsafe.Sizeof(WR{})+unsafe.Sizeof(mark{})) + tailRoom
)

// newLink makes a link whose queue pair is to be connected with remote.
func newLink(d *domain, attr transport.LinkAttr, remote netip.AddrPort) (*link, error) {
	p := d.p
	l := &link{p: p, d: d, to: remote, remote: remote, recvs: min(max(attr.Recvs, 1), p.info.MaxRecvs)}
	l.again, l.fault = l.turn, l.Fault
	sends := min(max(attr.Sends, 1), p.info.MaxSends, maxPlaces)
	queues := QPConfig{Sends: sends, Recvs: l.recvs}
	err := l.reserve(sends)
	if err == nil && p.info.QPBytes != nil {
		err = l.grow(p.info.QPBytes(queues))
	}
	if err == nil {
		l.qp, err = d.d.NewQP(queues, l)
	}
	if err != nil {
		l.free()
		return nil, fmt.Errorf("ib: a link with %v: %w", remote, err)
	}
	d.add(l)
	return l, nil
}

// reserve gets the memory of the sending side. mu is held.
func (l *link) reserve(sends int) error {
	tails, err := l.memory(tailBytes(sends), sends*workBytes)
	if err != nil {
		return err
	}
	var copies []byte
	if !l.p.info.Caps.AnyMemory {
		if copies, err = l.memory(copyRoom, copyRoom); err != nil {
			return err
		}
	}
	l.out.init(sends, tails, copies, &l.p.adopted)
	return nil
}

// memory gets n bytes of the device's, charged as price, until free. mu is held.
func (l *link) memory(n, price int) ([]byte, error) {
	if err := l.grow(price); err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, nil
	}
	b, release, err := l.p.v.Memory(n)
	if err != nil {
		return nil, err
	}
	l.releases = append(l.releases, release)
	return b, nil
}

// grow charges for n bytes, shrink gives them back. mu is held.
func (l *link) grow(n int) error {
	if l.p.Charge != nil {
		if err := l.p.Charge(l.to.Addr(), n); err != nil {
			return err
		}
	}
	l.reserved += n
	return nil
}

func (l *link) shrink(n int) {
	l.reserved -= n
	if l.p.Charge != nil && n != 0 {
		l.p.Charge(l.to.Addr(), -n)
	}
}

// free gives all memory back. mu is held.
func (l *link) free() {
	l.out.drop(l.shrink)
	for _, release := range l.releases {
		release()
	}
	l.releases, l.slots = nil, nil
	l.shrink(l.reserved)
}

func (l *link) LocalAddr() netip.AddrPort  { return l.local }
func (l *link) RemoteAddr() netip.AddrPort { return l.remote }

// Start posts the receives; until then the peer's sends wait. (Its device is told to try
// again, as often as it likes.)
func (l *link) Start(h transport.OneSidedHandler, recvBytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.h != nil {
		return
	}
	l.h = h
	if l.ended { // before it was started
		l.p.v.Thread().DoFor(l, l.sayClosed)
		return
	}
	if l.why == nil {
		if err := l.receive(recvBytes); err != nil {
			l.fail(fmt.Errorf("ib: receives from %v: %w", l.to, err))
		}
	}
	l.live.Store(l.why == nil)
	// Work may have been posted, and what was received before has been told to nobody.
	l.turnSoon()
}

// receive posts the slots. mu is held.
func (l *link) receive(size int) error {
	l.slotSize = min(max(size, 0), transport.MaxSend)
	n := l.recvs * l.slotSize
	var err error
	if l.slots, err = l.memory(n, n); err != nil {
		return err
	}
	slots := make([]Slot, l.recvs)
	for i := range slots {
		slots[i] = l.slotOf(uint64(i))
	}
	l.posted, err = l.qp.Receive(slots)
	if err == nil && l.posted < l.recvs {
		err = fmt.Errorf("the device has room for %d of %d", l.posted, l.recvs)
	}
	return err
}

// slotOf is the slot with that ID.
func (l *link) slotOf(id uint64) Slot {
	return Slot{ID: id, Data: l.slots[int(id)*l.slotSize:][:l.slotSize:l.slotSize]}
}

// Grant exposes p. The key is the domain's.
func (l *link) Grant(p []byte, at uint64) (key uint32, addr uint64) {
	key, addr, err := l.d.expose(p, at)
	if err != nil {
		l.stop(fmt.Errorf("ib: memory for %v: %w", l.to, err))
	}
	return key, addr
}

// Post queues op.
func (l *link) Post(op *transport.Op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil {
		return
	}
	err := l.out.check(op)
	if err == nil {
		err = l.out.post(*op, l.grow)
	}
	if err != nil {
		l.silent.Store(true)
		l.fail(err)
	}
}

// Flush hands work to the device, unless another thread does.
func (l *link) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Whoever is handing over finds what was posted meanwhile.
	if l.handing {
		return
	}
	l.handing = true
	for runs := 0; l.ready && l.why == nil; runs++ {
		run := l.out.next()
		if len(run) == 0 {
			break
		}
		if runs == maxRuns {
			l.out.untake(len(run))
			l.left = true
			l.turnSoon()
			break
		}
		// The device may send now, and others want to post meanwhile. What is in run stays
		// there until it has completed.
		l.mu.Unlock()
		n, err := l.qp.Post(run)
		l.mu.Lock()
		if n < len(run) {
			l.refused(run[n:], err)
		}
	}
	l.handing = false
	if l.why != nil {
		l.turnSoon() // it may have waited for this thread
	}
}

// refused ends the link because the device did not take the first of run, which stands behind
// work that it took. That may have no completion of its own, so one more is posted, which
// completes behind it, since the queue pair has failed. mu is held.
func (l *link) refused(run []WR, err error) {
	if err == nil {
		err = errors.New("it has fewer places than it said")
	}
	l.fail(fmt.Errorf("ib: the device refuses a %v to %v: %w", run[0].Op, l.to, err))
	run[0] = WR{ID: run[0].ID, Op: Send, Flags: Signal}
	n, _ := l.qp.Post(run[:1])
	l.out.untake(len(run) - n)
}

// Close ends the link. One that was not started has nobody to be told when the device is done
// with its memory: that is so on return, or, of a device that takes long to flush, soon after.
func (l *link) Close() {
	l.stop(net.ErrClosed)
	l.mu.Lock()
	defer l.mu.Unlock()
	for looks := 0; looks < flushLooks && l.h == nil && !l.drained(); looks++ {
	}
}

// stop ends the link, and tells its owner no more than that.
func (l *link) stop(why error) {
	l.silent.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail(why)
	l.turnSoon() // it may have waited to be started
}

// fail ends the link, if nothing has ended it before. mu is held.
func (l *link) fail(why error) {
	if l.why != nil {
		return
	}
	l.why = why
	l.live.Store(false)
	l.qp.Disconnect()
	l.turnSoon()
}

// turnSoon asks for a turn. mu is held.
func (l *link) turnSoon() {
	if !l.due && !l.ended {
		l.due = true
		l.p.v.Thread().DoFor(l, l.again)
	}
}

// Established tells that work may be sent.
func (l *link) Established() {
	l.mu.Lock()
	l.ready = true
	l.mu.Unlock()
	l.Flush()
}

// Work implements reactor.Owner.
func (l *link) Work() guard.What { return guard.Link }

// Fault implements reactor.Owner.
func (l *link) Fault(err error) { l.stop(err) }
