package peers

import (
	"container/list"
	"net/netip"
	"sync"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/rdserr"
)

// Accepted connections whose peer has not said who it is, for datagrams or for volumes:
// they have one set of slots, for a source that is refused by one would else come to the
// other. Whoever may connect at all can make any number of them and say nothing, so no
// source may have more than a part of the slots. A source is an address, a /64 of IPv6, or
// a user of this machine, who has as many loopback addresses as he likes. A connection that
// comes when its source has no slot left, or nobody has, takes that of the one that has
// been silent for longest. A source that connects without an end does that at a pace: to
// greet is dear, to close what has just been accepted is not.

const (
	// handshakeShare is the part of limits.max_handshakes that one source may have.
	handshakeShare = 4
	// handshakeBytes is what such a link takes.
	handshakeBytes = 4 << 10
	// handshakesSure is how many a source has whatever else its peers hold, and however little memory
	// is left: a peer whose links are broken comes again with as many as it has lanes.
	handshakesSure = 8
	// handshakeEvery is how often one of a source's slots is given to another of it.
	handshakeEvery = 5 * time.Millisecond
)

// handshakes is those of a node. The zero value is ready.
type handshakes struct {
	mu       sync.Mutex       // nothing is called with it held
	order    list.List        // of *Handshake, oldest first; guarded by mu
	bySource map[source]slots // guarded by mu
	refused  uint64           // guarded by mu
}

// slots are those of a source.
type slots struct {
	n    int
	next time.Time // when one of them may be given to another
}

// Handshake is one connection on its way.
type Handshake struct {
	table   *handshakes
	abort   func()
	source  source
	account *quota.Account
	at      *list.Element // nil when it is over; guarded by handshakes.mu
}

// source is what a link counts for: a user of this machine, or else a network.
type source struct {
	user    int64 // NoUser: network says it
	network netip.Prefix
}

func sourceOf(a netip.Addr, user int64) source {
	if user != NoUser {
		return source{user: user}
	}
	a = a.Unmap()
	bits := 32
	switch {
	case a.IsLoopback() && a.Is4():
		bits = 8
	case a.Is6():
		bits = 64
	}
	p, _ := a.Prefix(bits)
	return source{NoUser, p}
}

// begin is Registry.Admit. most is limits.max_handshakes.
func (t *handshakes) begin(now time.Time, remote netip.Addr, user int64, abort func(), most int, memory *quota.Node) (*Handshake, error) {
	x := &Handshake{table: t, abort: abort, source: sourceOf(remote, user), account: memory.Account(quota.Peer(remote.Unmap()))}
	take := x.account.Take
	if t.of(x.source) < handshakesSure {
		take = x.account.Sure
	}
	if err := take(quota.Handshakes, handshakeBytes); err != nil {
		x.account.Close()
		t.mu.Lock()
		t.refused++
		t.mu.Unlock()
		return nil, err
	}
	t.mu.Lock()
	if t.bySource == nil {
		t.bySource = map[source]slots{}
	}
	var silent *Handshake
	switch of, share := t.bySource[x.source], max(1, most/handshakeShare); {
	case of.n >= share && now.Before(of.next):
		t.refused++
		t.mu.Unlock()
		x.account.Give(quota.Handshakes, handshakeBytes)
		x.account.Close()
		return nil, rdserr.With(rdserr.ErrTooMany, "%d connections of its source have not said who they are, a part of limits.max_handshakes; one in %v makes room", of.n, handshakeEvery)
	case of.n >= share:
		of.next = now.Add(handshakeEvery)
		t.bySource[x.source] = of
		silent = t.oldest(func(o *Handshake) bool { return o.source == x.source })
	case t.order.Len() >= most:
		silent = t.oldest(func(*Handshake) bool { return true })
	}
	x.at = t.order.PushBack(x)
	t.count(x.source, 1)
	if silent != nil { // behind x: without a connection of the source its pace would be forgotten
		t.remove(silent)
		t.refused++
	}
	t.mu.Unlock()
	if silent != nil {
		silent.abort()
	}
	return x, nil
}

// of is how many a source has.
func (t *handshakes) of(s source) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bySource[s].n
}

// oldest finds the oldest that is fit. mu is held.
func (t *handshakes) oldest(fit func(*Handshake) bool) *Handshake {
	for e := t.order.Front(); e != nil; e = e.Next() {
		if x := e.Value.(*Handshake); fit(x) {
			return x
		}
	}
	return nil
}

// count changes how many slots a source has. mu is held.
func (t *handshakes) count(s source, by int) {
	of := t.bySource[s]
	if of.n += by; of.n == 0 {
		delete(t.bySource, s)
	} else {
		t.bySource[s] = of
	}
}

// remove takes x out. mu is held.
func (t *handshakes) remove(x *Handshake) {
	t.order.Remove(x.at)
	x.at = nil
	t.count(x.source, -1)
	x.account.Give(quota.Handshakes, handshakeBytes)
	x.account.Close()
}

// End is for a connection that has said who it is, or is gone. Calling it again, or for
// nil, does nothing.
func (x *Handshake) End() {
	if x == nil {
		return
	}
	t := x.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if x.at != nil {
		t.remove(x)
	}
}

func (t *handshakes) budget(most int) base.Budget {
	t.mu.Lock()
	defer t.mu.Unlock()
	return base.Budget{Name: "handshakes", Used: uint64(t.order.Len()), Limit: uint64(most), Refused: t.refused}
}
