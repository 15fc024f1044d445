package cm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/rdsd/rdsd/roce"
)

// simHost is a host: a Manager, which a restart makes anew, and applications.
type simHost struct {
	s       *sim
	n       int
	addr    netip.Addr
	m       *Manager
	lives   int
	conns   map[*Conn]*simApp
	charged int
	// While a datagram is worked on: how many messages were sent, and where they may go.
	working bool
	sent    int
	resting map[uint32]time.Duration // numbers of queue pairs whose connections made room
	crowded uint64                   // connections that had, at the last look
}

// simDial is one call of Dial: who is at its ends, and how often each was connected. More than
// one is asked if a host starts anew meanwhile.
type simDial struct {
	from *simApp
	to   []*simApp
	up   [2]int // of the side that dialled, and of the other
}

// Stages of an application's side of a connection.
const (
	simBegun = iota // dialled or asked for
	simConnected
	simEnded    // the owner knows
	simReleased // the Manager has forgotten it
)

// simApp is an application's side of a connection.
type simApp struct {
	h      *simHost
	life   int
	c      *Conn
	token  uint64
	dials  bool
	plan   int
	stage  int
	hung   bool // this side has ended it
	why    error
	reason Reason
	heard  time.Duration
	quiet  time.Duration // until then the peer is not to be asked again
	mute   bool          // it sends no packets at first
}

func (a *simApp) String() string {
	if a == nil {
		return "nobody"
	}
	return fmt.Sprintf("%v/%d dial %d, %v (%v, %v)", a.h.addr, a.life, a.token, map[bool]string{true: "asking", false: "asked"}[a.dials], a.c.State(), a.reason)
}

// What the one that is asked does.
const (
	simAny = iota
	simAccept
)

func newSimHost(s *sim, n int) *simHost {
	h := &simHost{s: s, n: n, addr: s.addr(byte(n + 1))}
	h.restart()
	return h
}

// Limits of a host, which the stranger is held to.
const (
	simConns    = 40
	simAsked    = 12
	simAskedOne = 8
)

// restTime is how long a queue pair's number is not used again whose connection made room: as with
// devices, where it comes again after all others only. Its peer may send to it until it finds out.
const restTime = 2 * time.Minute

// restart makes a Manager that knows nothing, and applications that have forgotten all.
func (h *simHost) restart() {
	h.lives++
	h.s.story("%v starts", h.addr)
	h.conns, h.charged, h.resting, h.crowded = map[*Conn]*simApp{}, 0, map[uint32]time.Duration{}, 0
	m, err := New(Config{Local: h.addr, MaxConns: simConns, MaxAsked: simAsked, MaxAskedOne: simAskedOne}, h, rand.New(rand.NewSource(h.s.rnd.Int63())))
	if err == nil {
		err = m.Listen(1234)
	}
	if err != nil {
		h.s.fail("%v", err)
	}
	h.m = m
}

// life is what applications do of themselves, until the calm.
func (h *simHost) life() {
	if h.s.calm {
		return
	}
	h.s.at(h.s.upTo(3*time.Second), h.life)
	apps := h.sorted()
	switch n := h.s.rnd.Intn(40); {
	case n < 20:
		h.dial(h.s.hosts[h.s.rnd.Intn(len(h.s.hosts))], simAny)
	case n < 32 && len(apps) > 0:
		a := apps[h.s.rnd.Intn(len(apps))]
		b := a.other()
		a.hangUp()
		if b != nil && h.s.chance(0.3) {
			b.hangUp()
		}
	case n == 32:
		h.restart()
	}
	h.check()
}

// number is one of few that no connection has as far as was told, or 0.
func (h *simHost) number() uint32 {
	used := map[uint32]bool{}
	for _, a := range h.conns {
		used[a.c.Param().QPN] = true
	}
	for n, until := range h.resting {
		used[n] = used[n] || until > h.s.now
	}
	var free []uint32
	for n := uint32(2); n < 12; n++ {
		if !used[n] {
			free = append(free, n)
		}
	}
	if len(free) == 0 {
		return 0
	}
	return free[h.s.rnd.Intn(len(free))]
}

func (h *simHost) param(token uint64) (p Param, ok bool) {
	p = Param{QPN: h.number(), RecvPSN: roce.PSN(h.s.rnd.Intn(1 << 24)), MTU: 1024, Retry: 7, RNRRetry: 7, Ack: 19}
	p.Private = binary.BigEndian.AppendUint64(nil, token)
	return p, p.QPN != 0
}

// dial returns nil if there is no number for a queue pair, or no room.
func (h *simHost) dial(to *simHost, plan int) *simApp {
	token := uint64(len(h.s.dials) + 1)
	p, ok := h.param(token)
	if !ok {
		return nil
	}
	p.Private = append(p.Private, byte(plan))
	c, err := h.m.Dial(h.s.now, netip.AddrPortFrom(h.addr, 0), netip.AddrPortFrom(to.addr, 1234), p)
	if errors.Is(err, ErrLimit) {
		return nil
	} else if err != nil {
		h.s.fail("%v dials with queue pair %d: %v", h.addr, p.QPN, err)
	}
	a := &simApp{h: h, life: h.lives, c: c, token: token, dials: true, mute: h.s.chance(0.2)}
	h.conns[c] = a
	h.s.dials = append(h.s.dials, &simDial{from: a})
	h.s.story("%v: dial to %v, queue pair %d, ID %#x", a, to.addr, p.QPN, c.id)
	return a
}

// meant is the other side of a, by the IDs that a knows, or the one that was asked last; it may
// be of a life before.
func (a *simApp) meant() *simApp {
	if a.token == 0 {
		return nil
	}
	d := a.h.s.dials[a.token-1]
	if !a.dials {
		return d.from
	}
	for _, b := range d.to {
		if b.c.id == a.c.remoteID {
			return b
		}
	}
	if len(d.to) == 0 {
		return nil
	}
	return d.to[len(d.to)-1]
}

// other is meant if that still lives.
func (a *simApp) other() *simApp {
	if b := a.meant(); b != nil && b.life == b.h.lives {
		return b
	}
	return nil
}

// sorted are the connections of h, oldest first.
func (h *simHost) sorted() (list []*simApp) {
	for _, a := range h.conns {
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b *simApp) int {
		if a.token != b.token {
			return int(a.token) - int(b.token)
		}
		return int(a.c.id>>1) - int(b.c.id>>1)
	})
	return list
}

// hangUp is the application's end.
func (a *simApp) hangUp() {
	if a.life != a.h.lives || a.stage >= simEnded {
		return
	}
	a.h.s.story("%v: hangs up", a)
	a.hung = true
	if a.stage == simBegun {
		a.stage = simEnded
	}
	a.c.Disconnect(a.h.s.now)
	a.h.check()
}

// receive gives a message to the Manager.
func (h *simHost) receive(from netip.Addr, mad []byte) {
	h.s.wrote("", h.addr, "<", from, mad)
	if a, _, body, _ := open(mad); a == attrMRA {
		var p mra
		p.parse(body)
		// From now on the peer need not be asked again for so long.
		if x := h.conns[h.m.byID[p.remote]]; x != nil && x.c.Remote().Addr() == from && (x.c.State() == ReqSent || x.c.State() == ReqMRA) {
			x.quiet = h.s.now + min(codeTime(p.service), service)
		}
	}
	h.working, h.sent = true, 0
	h.m.Receive(h.s.now, netip.AddrPortFrom(from, 1), mad)
	h.working = false
	if h.sent > 2 {
		h.s.fail("%v sent %d messages for one: %s", h.addr, h.sent, textOf(mad))
	}
	h.check()
}

func (h *simHost) Send(to netip.AddrPort, mad []byte) {
	h.sent++
	m := simMAD{from: h.addr, to: to.Addr(), mad: [MADLen]byte(mad)}
	h.s.wrote("", h.addr, ">", to.Addr(), mad)
	if a, _, body, _ := open(mad); a == attrREQ {
		var p req
		p.parse(body)
		if x := h.conns[h.m.byID[p.local]]; x != nil && h.s.now < x.quiet {
			h.s.fail("%v asks again, and was to be quiet until %v", x, x.quiet)
		}
	}
	h.s.carry(m)
}

func (h *simHost) Charge(netip.Addr) bool {
	h.charged++
	return true
}

func (h *simHost) Refund(netip.Addr) {
	if h.charged--; h.charged < 0 {
		h.s.fail("%v gives back more than it was charged", h.addr)
	}
}

func (h *simHost) Asked(c *Conn) {
	a := &simApp{h: h, life: h.lives, c: c, token: binary.BigEndian.Uint64(c.Peer().Private), plan: int(c.Peer().Private[8]), mute: h.s.chance(0.2)}
	if c.Remote().Addr() == h.s.stranger {
		a.token = 0 // he copied it
	} else {
		d := h.s.dials[a.token-1]
		for _, b := range d.to {
			if b.life == h.lives && b.stage != simReleased {
				h.s.fail("%v is asked once more by the same dial: %v", h.addr, b)
			}
		}
		d.to = append(d.to, a)
	}
	h.conns[c] = a
	h.s.story("%v: is asked by queue pair %d", a, c.Peer().QPN)
	switch wait := h.s.rnd.Intn(20); {
	case a.plan == simAccept || wait < 14:
		h.s.at(h.s.upTo(300*time.Millisecond), a.answer)
	case wait < 18:
		h.s.at(h.s.upTo(30*time.Second), a.answer)
		h.s.at(h.s.upTo(time.Second), func() {
			if a.life == h.lives && c.State() <= MRASent {
				if err := c.Wait(h.s.now); err != nil {
					h.s.fail("%v: %v", a, err)
				}
			}
		})
	default: // never
	}
}

// answer accepts, or rejects, if it still can.
func (a *simApp) answer() {
	h := a.h
	if a.life != h.lives || a.stage != simBegun {
		return
	}
	p, ok := h.param(a.token)
	if a.token == 0 || !ok || a.plan != simAccept && h.s.chance(0.2) {
		a.stage = simEnded
		h.s.story("%v: rejects", a)
		if err := a.c.Reject(h.s.now, p.Private); err != nil {
			h.s.fail("%v: %v", a, err)
		}
	} else {
		h.s.story("%v: accepts with queue pair %d", a, p.QPN)
		if err := a.c.Accept(h.s.now, p); err != nil {
			h.s.fail("%v accepts with queue pair %d: %v", a, p.QPN, err)
		}
	}
	h.check()
}

func (h *simHost) app(c *Conn, what string) *simApp {
	a := h.conns[c]
	if a == nil {
		h.s.fail("%v: %s of a connection that was released, or never told of", h.addr, what)
	}
	h.s.story("%v: %s", a, what)
	return a
}

func (h *simHost) Connected(c *Conn) {
	a := h.app(c, "connected")
	if a.stage != simBegun {
		h.s.fail("%v: connected in stage %d", a, a.stage)
	}
	a.stage, a.heard = simConnected, h.s.now
	d := h.s.dials[a.token-1]
	side := 1
	if a.dials {
		side = 0
	}
	if d.up[side]++; d.up[side] > 1 {
		h.s.fail("%v: %d connections of one dial", a, d.up[side])
	}
	if got := binary.BigEndian.Uint64(c.Peer().Private); got != a.token {
		h.s.fail("%v: private data of dial %d", a, got)
	}
	// Some have nothing to say at first, so that no packet is there in the place of the RTU.
	if first := h.s.upTo(500 * time.Millisecond); a.mute {
		h.s.at(5*time.Second, a.beat)
	} else {
		h.s.at(first, a.beat)
	}
}

func (h *simHost) Refused(c *Conn, reason Reason, _ []byte) {
	a := h.app(c, "refused: "+reason.String())
	if a.stage != simBegun {
		h.s.fail("%v: refused in stage %d", a, a.stage)
	}
	a.stage, a.reason = simEnded, reason
}

func (h *simHost) Disconnected(c *Conn, why error) {
	a := h.app(c, fmt.Sprintf("disconnected: %v", why))
	if a.stage != simConnected || !a.hung && why == nil {
		h.s.fail("%v: disconnected in stage %d, hung up %v: %v", a, a.stage, a.hung, why)
	}
	a.stage, a.why = simEnded, why
}

func (h *simHost) Released(c *Conn) {
	a := h.app(c, "released")
	if a.stage != simEnded || c.State() != Closed {
		h.s.fail("%v: released in stage %d", a, a.stage)
	}
	a.stage = simReleased
	delete(h.conns, c)
	if n := h.m.stats.Crowded; n != h.crowded {
		h.crowded = n
		h.resting[c.Param().QPN] = h.s.now + restTime
	}
}

// beat is a packet of a queue pair to the other, which says that its side lives. Who hears
// nothing hangs up.
func (a *simApp) beat() {
	s := a.h.s
	if a.life != a.h.lives || a.stage != simConnected || a.hung {
		return
	}
	s.at(500*time.Millisecond, a.beat)
	if s.now > a.heard+8*time.Second {
		s.story("%v: hears nothing", a)
		a.hangUp()
		return
	}
	to := s.host(a.c.Remote().Addr())
	s.packet(a, to, a.c.Peer().QPN)
}

// packet carries a packet from a's queue pair to another.
func (s *sim) packet(a *simApp, to *simHost, qpn uint32) {
	if !s.calm && (s.chance(s.loss) || s.cut[[2]int{a.h.n, to.n}]) {
		return
	}
	meant := 0
	if b := a.meant(); b != nil {
		meant = b.life
	}
	from, life, token := a.h.addr, a.life, a.token
	s.at(s.upTo(s.delay), func() {
		for _, b := range to.sorted() {
			st := b.c.State()
			if b.c.Param().QPN != qpn || b.c.Remote().Addr() != from || st != RepSent && st != RepMRA && st != Established {
				continue
			}
			// Numbers of a life before may be met again, as nobody remembers them: there the packet's
			// own number tells.
			if meant != to.lives || life != a.h.lives {
				return
			}
			if b.token != token || b.dials == a.dials {
				s.fail("a packet of dial %d came to queue pair %d of %v", token, qpn, b)
			}
			b.heard = s.now
			b.c.Established(s.now)
			if b.stage == simBegun {
				s.fail("%v: a packet came, and it is not connected", b)
			}
			to.check()
		}
	})
}

// others are the connections with others than the stranger, and their states.
func (h *simHost) others() string {
	var b strings.Builder
	for _, a := range h.sorted() {
		if a.c.Remote().Addr() != h.s.stranger {
			fmt.Fprintf(&b, "%d:%v ", a.token, a.c.State())
		}
	}
	return b.String()
}

// check states what is true of a host at any time.
func (h *simHost) check() {
	s, m := h.s, h.m
	if len(m.byID) != len(h.conns) || h.charged != len(h.conns) || m.Conns() > simConns {
		s.fail("%v has %d connections, told of are %d, charged %d", h.addr, m.Conns(), len(h.conns), h.charged)
	}
	type peer struct {
		addr netip.Addr
		guid uint64
		qpn  uint32
	}
	asked, by, peers := 0, map[netip.Addr]int{}, map[peer]*simApp{}
	for _, a := range h.sorted() {
		c := a.c
		limit := map[State]time.Duration{
			ReqRcvd: time.Minute, MRASent: time.Minute, DreqSent: respPatience, TimeWait: response,
			ReqSent: MaxDial, ReqMRA: MaxDial, RepSent: MaxDial, RepMRA: MaxDial,
		}[c.State()]
		since := c.since
		if limit == MaxDial {
			since = c.begun
		}
		if c.State() != Established && (c.deadline > since+limit || s.now > c.deadline || c.slot == noSlot) {
			// MRASent goes on with the time of ReqRcvd.
			s.fail("%v is in it since %v and ends at %v", a, since, c.deadline)
		}
		if st := c.State(); st == ReqRcvd || st == MRASent || st == RepSent || st == RepMRA {
			asked++
			by[sourceOf(c.Remote().Addr())]++
		}
		if st := c.State(); st >= ReqRcvd && st <= Established {
			k := peer{c.Remote().Addr(), c.guid, c.Peer().QPN}
			if b := peers[k]; b != nil {
				s.fail("%v and %v are with one queue pair", a, b)
			}
			peers[k] = a
		}
	}
	if asked > simAsked {
		s.fail("%v: %d are asked for", h.addr, asked)
	}
	for peer, n := range by {
		if n > simAskedOne {
			s.fail("%v: %d are asked for by %v", h.addr, n, peer)
		}
	}
}
