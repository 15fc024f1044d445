package client

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/shm"
)

// Pages of regions that the daemon touches first are charged to its own control group
// by the kernel, and so to the user of the client here (quota.Regions), until they are
// given back: those that nobody needs when memory is short, the others when the
// client has let go of the region.

// purse pays for pages out of a user's account. What lies in them unread is charged as
// received already, so of the two the larger one is charged: to the pages goes the
// difference. The region's host is locked.
type purse struct {
	account *quota.Account
	total   *atomic.Int64 // of all regions, what is paid for
	charged int           // to the account, of what is paid for
	kept    int           // charged to the account for accounts
}

// Take implements shm.Payer.
func (p *purse) Take(n int) bool {
	if p.account.Take(quota.Regions, int64(n)) != nil {
		return false
	}
	p.charged += n
	p.total.Add(int64(n))
	return true
}

// Give implements shm.Payer.
func (p *purse) Give(n int) {
	p.charge(p.charged - n)
	p.total.Add(int64(-n))
}

// Keep implements shm.Payer.
func (p *purse) Keep(n int) bool {
	if n > 0 && p.account.Take(quota.Sockets, int64(n)) != nil {
		return false
	}
	if n < 0 {
		p.account.Give(quota.Sockets, int64(-n))
	}
	p.kept += n
	return true
}

func (p *purse) charge(n int) {
	p.account.Grow(quota.Regions, int64(n-p.charged))
	p.charged = n
}

// purseStep is how far what is charged may be off, so that not every datagram counts.
const purseStep = 64 << 10

// settle charges pages of which received bytes are charged otherwise.
func (p *purse) settle(paid, received int) {
	if n := max(paid-received, 0); n >= p.charged+purseStep || n <= p.charged-purseStep {
		p.charge(n)
	}
}

// findOut has it found out what this end of the region was not sure of. The lock is
// held.
func (r *ringSock) findOut() {
	off, n, wanted := r.End.Unsure()
	if !wanted {
		return
	}
	r.aside(func() {
		_ = r.front.step("look") // it does not fail
		written := r.reg.Written(off, n)
		// It may be swapped out, and then it is being read in.
		for wait := time.Millisecond; !written && wait < swapPatience && shm.Swaps() && !r.over(); wait *= 2 {
			time.Sleep(wait)
			written = r.reg.Written(off, n)
		}
		r.host.Lock()
		r.End.Sure(written)
		r.host.Touch(&r.Ring)
		r.freeIfIdle()
		r.host.Unlock()
		r.react.Hot(r) // at an error too
	}, func(err error) { r.react.Do(func() { r.Fault(err) }) })
}

// lag has what takes time done elsewhere, that taking descriptors goes on. The lock is held.
func (r *ringSock) lag() {
	if from, pages, wanted := r.End.Growth(); wanted {
		r.aside(func() { r.growLedger(from, pages) }, func(err error) { r.react.Do(func() { r.Fault(err) }) })
	}
	r.findOut()
}

// growthBytes is what a page of the ledger's for more descriptors under way takes, with what is
// kept here for each of them.
const (
	growthBytes = shm.GrowthBytes + shm.GrowthEntries*postBytes
	postBytes   = 16
)

// growLedger allocates entries of the ledger for more descriptors under way: in a
// goroutine, for the file system may take its time. What these have at this end is paid
// for with them.
func (r *ringSock) growLedger(from uint32, pages int) {
	bytes := growthBytes * int64(pages)
	err := r.front.step("grow")
	if err == nil {
		err = r.purse.account.Take(quota.Sockets, bytes)
	}
	if err == nil {
		if err = r.led.Grow(from, pages); err != nil {
			r.purse.account.Give(quota.Sockets, bytes)
		}
	}
	if err != nil {
		r.front.deps.Log.Warn("no more descriptors of a socket can be taken for now", "local", r.reg.Local, "error", err)
		pages, bytes = 0, 0
	}
	r.host.Lock()
	r.grown += bytes
	r.End.Grown(pages)
	r.host.Touch(&r.Ring)
	r.freeIfIdle()
	r.host.Unlock()
	r.react.Hot(r) // of no room nobody hears by Due, and a message may be held until this is known
}

// over reports whether the socket is closed.
func (r *ringSock) over() bool {
	r.host.Lock()
	closed := r.closed
	r.host.Unlock()
	return closed
}

// swapPatience is about half of the time that memory of a client gets to be read in from where
// it was swapped out to.
const swapPatience = 2 * time.Second

const (
	// giveBackEvery is the least time between two looks for pages that can be given
	// back; after one that found little it is lackGiveBack where somebody lacks some, and
	// else idleGiveBack.
	giveBackEvery = 10 * time.Millisecond
	lackGiveBack  = 100 * time.Millisecond
	idleGiveBack  = time.Second
	// collectTime is what reactors get to take what clients have released. What they
	// take later is found the next time.
	collectTime = time.Millisecond
	// foundMuch is after how many bytes the next look comes soon.
	foundMuch = 2 << 20
)

// FeedEvery is how often those try again that lacked pages.
const FeedEvery = 20 * time.Millisecond

// regionPages is what the front knows of pages: who lacks some, and what regions that are closed
// still take.
type regionPages struct {
	total atomic.Int64 // bytes that are paid for

	mu      sync.Mutex
	lacking map[*ringSock]struct{} // guarded by mu
	closed  map[*ringSock]struct{} // guarded by mu; their clients have not let go
	giving  map[uint32]struct{}    // guarded by mu; users of whose regions pages are being given back
	stopped bool                   // guarded by mu; nothing is waited for any more

	found atomic.Int64 // how many bytes were given back since somebody looked last

	// The keeper's.
	gave time.Time // the last time somebody looked for what can be given back
	fed  time.Time
}

// lack notes that a socket could not have a page. The socket's host is locked.
func (p *regionPages) lack(r *ringSock) (first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lacking == nil {
		p.lacking = map[*ringSock]struct{}{}
	}
	first = len(p.lacking) == 0
	p.lacking[r] = struct{}{}
	return first
}

// Lacks reports whether sockets wait for pages; FeedEvery says how soon they try again.
func (f *Front) Lacks() bool { return f.pages.lacks() }

// PagesPaid is how many bytes of regions users pay for.
func (f *Front) PagesPaid() int64 { return f.pages.total.Load() }

func (p *regionPages) lacks() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lacking) > 0
}

// due tells what is to be done now, and notes that it is done.
func (p *regionPages) due(now time.Time, short, lacks bool) (give, feed bool) {
	wait := giveBackEvery
	switch {
	case p.found.Load() >= foundMuch:
	case lacks:
		wait = lackGiveBack
	default:
		wait = idleGiveBack
	}
	if give = (short || lacks) && now.Sub(p.gave) >= wait; give {
		p.gave = now
		p.found.Store(0)
	}
	if feed = lacks && now.Sub(p.fed) >= FeedEvery; feed {
		p.fed = now
	}
	return give, feed
}

// KeepPages gives back what nobody needs while memory is short, and lets those go on that
// lacked some. It is the keeper's.
func (f *Front) KeepPages(now time.Time, short bool) {
	p := &f.pages
	give, feed := p.due(now, short, p.lacks())
	if give {
		f.giveBack()
	}
	if feed {
		f.feed()
	}
	p.mu.Lock()
	l := make([]*ringSock, 0, len(p.closed))
	for r := range p.closed {
		l = append(l, r)
	}
	p.mu.Unlock()
	for _, r := range l {
		if !r.letGo() {
			continue
		}
		p.mu.Lock()
		delete(p.closed, r)
		p.mu.Unlock()
		go func() { // ends with the last of its pages
			defer f.deps.Guard.Recover(guard.Socket, nil)
			r.gone()
		}()
	}
}

// ringSocks lists the sockets with rings.
func (f *Front) ringSocks() []*ringSock {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := make([]*ringSock, 0, len(f.rings))
	for r := range f.rings {
		l = append(l, r)
	}
	return l
}

// giveBack has the pages given back that nobody needs, of all regions. How long the kernel takes for a page is
// for who maps it to decide, be it from ten processes and 60,000 times each: so that is nobody's time but of
// a goroutine for each user, one region after the other.
func (f *Front) giveBack() {
	if f.deps.Collect != nil {
		f.deps.Collect() // for a reactor that sleeps does not look
		time.Sleep(collectTime)
	}
	f.mu.Lock() // as long as one is in f.rings, the daemon's stop has not come to wait for what is aside
	defer f.mu.Unlock()
	of := map[uint32][]*ringSock{}
	for r := range f.rings {
		of[r.s.id.UID] = append(of[r.s.id.UID], r)
	}
	p := &f.pages
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, l := range of {
		if _, under := p.giving[uid]; under {
			continue
		}
		if p.giving == nil {
			p.giving = map[uint32]struct{}{}
		}
		p.giving[uid] = struct{}{}
		l[0].aside(func() {
			defer p.given(uid)
			for _, r := range l {
				p.found.Add(int64(r.giveBack()))
			}
		}, nil)
	}
}

// given ends a giveBack of a user's regions.
func (p *regionPages) given(uid uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.giving, uid)
}

// giveBack does it for one region of a socket that is open. Who buries a closed one has
// it to himself: he unmaps it, and nobody may be in the middle of a look at it then.
func (r *ringSock) giveBack() (bytes int) {
	if !r.giving.TryLock() {
		return 0
	}
	defer r.giving.Unlock()
	return r.giveBackOf(func() bool { return !r.closed })
}

// giveBackOf gives back a piece at a time, as long as may says so: with the lock held what
// is found is taken out of use, without it the kernel takes it away. giving is held.
func (r *ringSock) giveBackOf(may func() bool) (bytes int) {
	for at := uint64(0); ; {
		var s shm.Spared
		r.host.Lock()
		ok := may()
		if ok {
			s, ok = r.End.Spare(&at)
		}
		r.host.Unlock()
		if !ok {
			return bytes
		}
		_ = r.front.step("remove") // it does not fail
		if err := r.reg.Remove(s); err != nil {
			r.front.deps.Log.Error("memory of a region cannot be given back", "local", r.reg.Local, "error", err)
		}
		r.host.Lock()
		n := r.End.Restore(s)
		r.host.Unlock()
		r.front.deps.Count.RegionsGivenBack.Add(uint64(n))
		bytes += n
	}
}

// feed lets those go on that lacked pages, as far as there are some now.
func (f *Front) feed() {
	p := &f.pages
	p.mu.Lock()
	l := p.lacking
	p.lacking = nil
	p.mu.Unlock()
	for r := range l {
		_, now := r.host.Lock()
		if !r.closed {
			r.End.MemoryAgain()
			r.sock.ReadAll(now)   // what was refused may come again
			r.host.Touch(&r.Ring) // events that wait are published
		}
		r.host.Unlock()
	}
}

// linger waits until the client has let go of a region that is closed and unmapped here: its
// pages are charged until then, and the connection counts.
func (r *ringSock) linger() {
	for wait := time.Millisecond; wait < 100*time.Millisecond; wait *= 4 { // most clients have, or are about to
		if r.letGo() {
			r.gone()
			return
		}
		time.Sleep(wait)
	}
	p := &r.front.pages
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		r.leaveTo()
		return
	}
	if p.closed == nil {
		p.closed = map[*ringSock]struct{}{}
	}
	p.closed[r] = struct{}{}
}

// stop waits for no client any more: the daemon ends, and what it has mapped stays the
// client's.
func (p *regionPages) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	for r := range p.closed {
		r.leaveTo()
	}
	clear(p.closed)
}

// leaveTo leaves a region that is closed to its client, for the daemon ends.
func (r *ringSock) leaveTo() {
	r.reg.Disown()
	r.closeAlarm(func() {})
}

// letGo reports whether nobody has a region any more that is closed. The client has its place until its
// doorbell is closed.
func (r *ringSock) letGo() bool {
	if r.alarm.Hears() {
		return !r.keeps || r.alarm.LetGo()
	}
	gone, certain := r.reg.Abandoned()
	if gone && !certain {
		r.front.deps.Log.Debug("it cannot be told whether a client has let go of its region", "local", r.reg.Local)
	}
	return gone
}

// gone ends the account of a region that nobody has any more. It may take long. No lease tells of a
// descriptor of the file's name alone (O_PATH), which keeps pages as well, so they are taken away.
func (r *ringSock) gone() {
	_ = r.front.step("remove") // as in giveBackOf
	r.reg.Drop()
	r.host.Lock()
	r.End.PaidOff()
	r.host.Unlock()
	r.purse.account.Close()
	r.closeAlarm(func() { r.front.deps.Clients.Remove(r.s.id, r.ctl.account, localConnBytes) })
}
