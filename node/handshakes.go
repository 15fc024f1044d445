package node

import (
	"container/list"
	"net/netip"
	"sync"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/transport"
)

// Accepted links whose peer has not said who it is. Whoever may connect at all
// can make any number of them and say nothing, so no source may have more than a
// part of the slots. A source is an address, a /64 of IPv6, or a user of this machine,
// who has as many loopback addresses as he likes. Who comes
// when its source has no slot left, or nobody has, takes that of the one that
// has been silent for longest.

const (
	// handshakeShare is the part of limits.max_handshakes that one source may have.
	handshakeShare = 4
	// handshakeBytes is what such a link takes.
	handshakeBytes = 4 << 10
)

// handshakes is those of a node. The zero value is ready.
type handshakes struct {
	mu       sync.Mutex // nothing is called with it held
	order    list.List  // of *handshake, oldest first; guarded by mu
	bySource map[source]int
	refused  uint64 // guarded by mu
}

// handshake is one link on its way.
type handshake struct {
	link    transport.Link
	source  source
	account *quota.Account
	at      *list.Element // nil when it is over; guarded by handshakes.mu
}

// source is what a link counts for: a user of this machine, or else a network.
type source struct {
	user    int64 // noUser: network says it
	network netip.Prefix
}

func sourceOf(a netip.Addr, user int64) source {
	if user != noUser {
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
	return source{noUser, p}
}

// begin enters a link of a user of this machine, or noUser; end must follow. most is
// limits.max_handshakes.
func (t *handshakes) begin(link transport.Link, user int64, most int, memory *quota.Node) (*handshake, error) {
	x := &handshake{link: link, source: sourceOf(link.RemoteAddr().Addr(), user), account: memory.Account(quota.Peer(link.RemoteAddr().Addr().Unmap()))}
	if err := x.account.Take(quota.Handshakes, handshakeBytes); err != nil {
		x.account.Close()
		t.mu.Lock()
		t.refused++
		t.mu.Unlock()
		return nil, err
	}
	t.mu.Lock()
	if t.bySource == nil {
		t.bySource = map[source]int{}
	}
	var silent *handshake
	switch {
	case t.bySource[x.source] >= max(1, most/handshakeShare):
		silent = t.oldest(func(o *handshake) bool { return o.source == x.source })
	case t.order.Len() >= most:
		silent = t.oldest(func(*handshake) bool { return true })
	}
	if silent != nil {
		t.remove(silent)
		t.refused++
	}
	x.at = t.order.PushBack(x)
	t.bySource[x.source]++
	t.mu.Unlock()
	if silent != nil {
		silent.link.Close(false)
	}
	return x, nil
}

// oldest finds the oldest that is fit. mu is held.
func (t *handshakes) oldest(fit func(*handshake) bool) *handshake {
	for e := t.order.Front(); e != nil; e = e.Next() {
		if x := e.Value.(*handshake); fit(x) {
			return x
		}
	}
	return nil
}

// remove takes x out. mu is held.
func (t *handshakes) remove(x *handshake) {
	t.order.Remove(x.at)
	x.at = nil
	if t.bySource[x.source]--; t.bySource[x.source] == 0 {
		delete(t.bySource, x.source)
	}
	x.account.Give(quota.Handshakes, handshakeBytes)
	x.account.Close()
}

// end is for a link that has said who it is, or is gone. Calling it again, or for
// nil, does nothing.
func (t *handshakes) end(x *handshake) {
	if x == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if x.at != nil {
		t.remove(x)
	}
}

func (t *handshakes) budget(most int) budget {
	t.mu.Lock()
	defer t.mu.Unlock()
	return budget{"handshakes", uint64(t.order.Len()), uint64(most), t.refused}
}
