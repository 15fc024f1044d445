package rds

import (
	"fmt"
	"math/rand"
	"net/netip"
	"strings"

	"github.com/rdsd/rdsd/internal/quota"
)

// What some of the pinned programs have beside: a tracer, users with accounts, pairs, and who is told
// of ports.

// more gives a program what its seed says.
func (m *machine) more(seed int) {
	if seed%2 == 1 {
		m.pins.pairs = map[*Socket]int{}
		m.e.OnPorts(func(port uint16, uid uint32, bound bool) { m.note("port %d of user %d is bound: %v", port, uid, bound) })
	}
	switch seed % 4 {
	case 1:
		m.pins.traces = true
		m.e.SetTracer((*programTracer)(m))
	case 3:
		b := m.cfg.Budget
		node := quota.New(b.Limit, b.Datagrams)
		b.Rest = node.Rest()
		for uid := range 3 {
			m.pins.users = append(m.pins.users, node.Account(quota.User(uint32(uid))))
		}
		m.cfg.PeerAccount = func(addr netip.Addr) *quota.Account { return node.Account(quota.Peer(addr)) }
	}
}

// owned makes a socket one of a user's, in programs that have users.
func (m *machine) owned(o *SocketOptions, uid uint32) {
	if m.pins == nil || m.pins.pairs == nil {
		return
	}
	o.UID = uid
	if m.pins.users != nil {
		o.Account = m.pins.users[uid]
	}
}

// programTracer writes down what it is told, and follows a third of what is placed.
type programTracer machine

func (p *programTracer) Trace(t Traced) bool {
	has := t.Msg != nil
	t.Msg = nil // an address
	(*machine)(p).note("traced %+v of a message: %v", t, has)
	return t.Stage == StagePlaced && t.Nth%3 == 0
}

// actMore is an act of a program that has pairs, or a tracer.
func (m *machine) actMore(rng *rand.Rand) {
	if m.pins.pairs == nil || len(m.socks) == 0 || rng.Intn(3) > 0 {
		return
	}
	s := m.socks[rng.Intn(len(m.socks))]
	switch rng.Intn(8) {
	case 0, 1:
		n := 1 + rng.Intn(s.PairRoom()+200)
		if ok := s.SetAside(m.now, n); ok {
			m.pins.pairs[s] += n
			m.note("%v sets %d bytes aside, room for %d is left", s.Addr(), n, s.PairRoom())
		} else {
			m.note("%v has no %d bytes to set aside", s.Addr(), n)
		}
	case 2, 3:
		n := m.pins.pairs[s]
		m.pins.pairs[s] = 0
		m.note("%v gives %d bytes back: %v", s.Addr(), n, s.SetAside(m.now, -n))
	case 4:
		n := uint64(rng.Intn(9))
		s.PairedSent(n, 10*n)
		s.PairedRead(n, 7*n)
		s.PairedDropped(n)
	case 5:
		s.SetPaired(PairedUnread{rng.Intn(5), rng.Intn(500)})
	case 6:
		var l []string
		for _, o := range m.e.Sockets() {
			l = append(l, fmt.Sprintf("%v %v %d", o.Addr(), o.Closed(), o.ReceiveMemory()))
		}
		m.note("%d are bound: %s", len(m.e.Bound()), strings.Join(l, ", "))
	case 7:
		if m.pins.traces {
			on := rng.Intn(2) == 0
			if m.note("traced: %v", on); on {
				m.e.SetTracer((*programTracer)(m))
			} else {
				m.e.SetTracer(nil)
			}
		}
	}
}

// checkUsers holds that what is noted for the users is what their sockets have, and pins it.
func (m *machine) checkUsers(b *strings.Builder) {
	sum := int64(0)
	for _, u := range m.pins.users {
		fmt.Fprintf(b, "; a user has %d", u.Used())
		sum += u.Used()
	}
	if m.pins.users != nil && sum != m.cfg.Budget.Datagrams() {
		m.t.Errorf("users have %d bytes of the %d that there are", sum, m.cfg.Budget.Datagrams())
	}
	if rest := m.cfg.Budget.Rest; rest != nil {
		fmt.Fprintf(b, "; %d for peers", rest.Load())
		if want := int64(len(m.e.order)) * peerCost; rest.Load() != want {
			m.t.Errorf("%d bytes for %d peers, want %d", rest.Load(), len(m.e.order), want)
		}
	}
}
