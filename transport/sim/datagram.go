package sim

import (
	"math/rand"
	"net/netip"
	"time"
)

// DatagramProfile is what a network does to datagrams.
type DatagramProfile struct {
	Latency   time.Duration // one way
	Jitter    time.Duration // added at random, up to; what is sent later may arrive earlier
	Loss      float64       // probabilities of a datagram: that it is lost,
	Duplicate float64       // that it arrives once more,
	Late      float64       // that it takes longer by up to LateBy,
	LateBy    time.Duration
	Flip      float64 // that a bit of it is another
}

// Datagrams is a network of UDP datagrams, which loses, doubles, delays, reorders and changes
// them. All of it is drawn from one source.
type Datagrams struct {
	*Clock
	Profile DatagramProfile
	// Mend, if there is one, is asked about each datagram of which a bit was changed: true
	// keeps it from arriving, as a checksum does that the network has and the hosts do not.
	Mend func(from, to netip.AddrPort, pkt []byte) bool
	// Parted, if there is one, says of two hosts that they are cut off, beside Cut.
	Parted func(from, to netip.Addr) bool

	Sent, Lost, Doubled, Flipped uint64

	rng   *rand.Rand
	hosts map[netip.Addr]func(from netip.AddrPort, pkt []byte)
	cuts  map[pair]bool
}

// NewDatagrams makes an empty network. rng is the world's.
func NewDatagrams(c *Clock, rng *rand.Rand, p DatagramProfile) *Datagrams {
	return &Datagrams{
		Clock: c, Profile: p, rng: rng,
		hosts: map[netip.Addr]func(netip.AddrPort, []byte){}, cuts: map[pair]bool{},
	}
}

// Attach has recv called for each datagram that arrives at addr. What recv is given is its own.
// nil: nobody is there any more.
func (n *Datagrams) Attach(addr netip.Addr, recv func(from netip.AddrPort, pkt []byte)) {
	n.hosts[addr] = recv
}

// Cut says whether datagrams from one address to another are lost, all of them. The other
// direction is another matter.
func (n *Datagrams) Cut(from, to netip.Addr, cut bool) { n.cuts[pair{from, to}] = cut }

// Send sends pkt, which it copies.
func (n *Datagrams) Send(from, to netip.AddrPort, pkt []byte) {
	p := &n.Profile
	n.Sent++
	copies := 1
	if n.chance(p.Duplicate) {
		n.Doubled++
		copies = 2
	}
	for range copies {
		if n.chance(p.Loss) {
			n.Lost++
			continue
		}
		delay := p.Latency + n.upTo(p.Jitter)
		if n.chance(p.Late) {
			delay += n.upTo(p.LateBy)
		}
		b := append([]byte(nil), pkt...)
		if len(b) > 0 && n.chance(p.Flip) {
			n.Flipped++
			bit := n.rng.Intn(8 * len(b))
			b[bit/8] ^= 1 << (bit % 8)
			if n.Mend != nil && n.Mend(from, to, b) {
				continue
			}
		}
		n.After(delay, func() {
			// What is under way when a cut comes is lost as well.
			if recv := n.hosts[to.Addr()]; recv != nil && !n.parted(from.Addr(), to.Addr()) {
				recv(from, b)
			}
		})
	}
}

func (n *Datagrams) parted(from, to netip.Addr) bool {
	return n.cuts[pair{from, to}] || n.Parted != nil && n.Parted(from, to)
}

// chance draws whether something of probability p happens. It draws nothing if p is 0.
func (n *Datagrams) chance(p float64) bool { return p > 0 && n.rng.Float64() < p }

// upTo draws a duration of at most d.
func (n *Datagrams) upTo(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(n.rng.Int63n(int64(d) + 1))
}
