package client

import (
	"sync"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/shm"
)

const (
	// pairEvery is how often pairs are looked at.
	pairEvery = 100 * time.Millisecond
	// A pair is idle that carried less than quietDatagrams in each of quietLooks looks in a
	// row.
	quietDatagrams = 64
	quietLooks     = 10
	// pairPatience is how long clients may take to open what they were offered.
	pairPatience = 10 * time.Second
	// maxRest bounds for how many looks a buried pair is not asked about. It doubles each time, as most are
	// free at once, and clients may keep many for ever.
	maxRest = 31
)

// pairTable has all pairs of a node. Its lock is taken with that of an address held, never
// the other way round.
type pairTable struct {
	mu      sync.Mutex
	ids     uint64
	all     map[*pair]struct{} // guarded by mu; open, or about to be
	buried  map[*pair]struct{} // guarded by mu; unmapped here, while clients may have them
	users   map[uint32]int     // guarded by mu; how many of both a user has
	ticking bool               // guarded by mu; a timer runs
	stopped bool               // guarded by mu
}

// add enters a pair, and has all looked at from now on.
func (t *pairTable) add(f *Front, p *pair) (id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all, t.buried, t.users = map[*pair]struct{}{}, map[*pair]struct{}{}, map[uint32]int{}
	}
	t.users[p.uid]++
	t.ids++
	t.all[p] = struct{}{}
	t.tickSoon(f)
	return t.ids
}

// mayAdd reports whether there may be one more of a user.
func (t *pairTable) mayAdd(uid uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.all)+len(t.buried) < base.MaxPairs && t.users[uid] < base.MaxPairsPerUID
}

// tickSoon has the timer run while there is something to look at. mu is held.
func (t *pairTable) tickSoon(f *Front) {
	if t.ticking || t.stopped || len(t.all)+len(t.buried) == 0 {
		return
	}
	t.ticking = true
	time.AfterFunc(pairEvery, func() { // ends at once, and comes again while there are pairs
		defer f.deps.Guard.Recover(guard.Socket, nil)
		t.tick(f)
	})
}

func (t *pairTable) tick(f *Front) {
	all, buried := t.due()
	for _, p := range all {
		p.lockAnd(p.look)
	}
	for _, p := range buried {
		if gone, _ := p.mem.Abandoned(); gone {
			t.forget(p)
		}
	}
	t.mu.Lock()
	t.ticking = false
	t.tickSoon(f)
	t.mu.Unlock()
}

// due is the pairs to look at, and those to ask about whether they are free.
func (t *pairTable) due() (all, buried []*pair) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for p := range t.all {
		all = append(all, p)
	}
	for p := range t.buried {
		if p.skip > 0 {
			p.skip--
			continue
		}
		p.rest = min(2*p.rest+1, maxRest)
		p.skip = p.rest
		buried = append(buried, p)
	}
	return all, buried
}

// look does what has to be done of a pair now and then. The lock is held.
func (p *pair) look(now time.Duration) {
	p.hear()
	switch {
	case p.state >= pairClosing:
		return
	case p.state < pairOpen:
		if now-p.since >= pairPatience {
			p.close(now)
		}
		return
	case p.host.Traced() || p.front.sockets.draining() != nil:
		p.close(now)
		return
	}
	if _, closed := p.mem.Fill(); closed { // by its reader
		p.close(now)
		return
	}
	if p.quiet++; p.heard.Sent-p.last >= quietDatagrams {
		p.quiet = 0
	}
	p.last = p.heard.Sent
	// What the reader has released of its ring nobody else takes, where the daemon sleeps: it would
	// count as queued.
	if to := p.ends[reads]; to.End.HasReleases() {
		to.react.DoFor(to, to.Collect)
	}
	if p.quiet >= quietLooks && p.unread().Datagrams == 0 {
		p.close(now)
	}
}

// hear takes what the clients have counted into the figures of their sockets. The lock is
// held.
func (p *pair) hear() {
	if !p.sealed || p.state == pairGone {
		return
	}
	f, was := p.mem.Figures(), p.heard
	// A number that goes back, or on faster than any process can count, is not believed, and
	// what was not sent was not read.
	f.Sent, f.SentBytes = believed(was.Sent, f.Sent), believed(was.SentBytes, f.SentBytes)
	f.Read, f.ReadBytes = min(believed(was.Read, f.Read), f.Sent), min(believed(was.ReadBytes, f.ReadBytes), f.SentBytes)
	if from := p.ends[sends].sock; f.Sent > was.Sent {
		from.PairedSent(f.Sent-was.Sent, f.SentBytes-was.SentBytes)
		p.front.deps.Count.PairDatagrams.Add(f.Sent - was.Sent)
	}
	to := p.ends[reads].sock
	if f.Read > was.Read {
		to.PairedRead(f.Read-was.Read, f.ReadBytes-was.ReadBytes)
	}
	p.heard = f
	var u rds.PairedUnread
	for _, q := range p.ends[reads].pairs.in {
		v := q.unread()
		u.Datagrams, u.Bytes = u.Datagrams+v.Datagrams, u.Bytes+v.Bytes
	}
	to.SetPaired(u)
}

// pairMost is more than a process can put into memory between two looks.
const pairMost = 1 << 34

func believed(was, is uint64) uint64 {
	if is < was || is-was > pairMost {
		return was
	}
	return is
}

// bury unmaps a pair. Its pages are charged until no client has it.
func (t *pairTable) bury(p *pair) {
	if p.mem == nil { // it could not be made
		p.mem = shm.NoPair()
	}
	p.mem.Lent()
	p.mem.Close()
	t.mu.Lock()
	delete(t.all, p)
	t.buried[p] = struct{}{}
	stopped := t.stopped
	t.tickSoon(p.front)
	t.mu.Unlock()
	if gone, _ := p.mem.Abandoned(); gone || stopped {
		t.forget(p)
	}
}

// forget ends the account of a pair that nobody has any more, once.
func (t *pairTable) forget(p *pair) {
	t.mu.Lock()
	_, ok := t.buried[p]
	if delete(t.buried, p); ok {
		if t.users[p.uid]--; t.users[p.uid] == 0 {
			delete(t.users, p.uid)
		}
	}
	t.mu.Unlock()
	if ok {
		p.mem.Disown()
		p.account.Give(quota.Regions, p.charge())
		p.account.Close()
	}
}

// stop waits for no client any more: what they have mapped stays theirs.
func (t *pairTable) stop() {
	t.mu.Lock()
	t.stopped = true
	var left []*pair
	for p := range t.buried {
		left = append(left, p)
	}
	t.mu.Unlock()
	for _, p := range left {
		t.forget(p)
	}
}
