package roce

import (
	"fmt"
	"math/rand"
	"net/netip"
	"time"
)

// Config says what a device is.
type Config struct {
	Local netip.Addr // that packets are sent from and received at
	MTU   int        // the largest of a path: 256, 512, 1024, 2048 or 4096

	// GSO says that the shell sends a burst by one system call that the kernel cuts, which
	// gives the i-th packet the identification i. The CRC covers it. Without, each packet
	// leaves by itself, with identification 0, as all do to a peer to which bursts do not arrive
	// (Burst.Cut). SetGSO changes it.
	GSO bool

	MaxQPs  int // queue pairs at most; 0: 65,536
	MaxMADs int // management datagrams that wait for Fill at most; 0: 256

	// Patience is how long a queue pair waits at most for a peer that says nothing, whatever
	// the peer announced; 0: 30 s.
	Patience time.Duration
}

// What a Config means that does not say.
const (
	defaultQPs      = 1 << 16
	defaultMADs     = 256
	defaultPatience = 30 * time.Second
)

// Env is what a device tells its caller. The methods are called within those of the device and
// of its queue pairs, and do not call back.
type Env interface {
	// Completed says that q has something to Poll. It is not said again before Poll has
	// found nothing.
	Completed(q *QP)
	// Arrived says that the first packet of q's peer came since Connect. At the side that
	// accepted a connection it stands for an RTU that is lost or late.
	Arrived(q *QP)
	// Failed says that q is in ERROR without having been told to Fail, and why: a
	// *StatusError when the peer refused a work request or did not answer, an *AccessError
	// when the peer wanted memory that it may not touch, ErrProtocol, or an error of
	// Memory.Guard. It comes before Completed. What was posted is Flushed, but what why is
	// about.
	Failed(q *QP, why error)
	// MAD is a management datagram of 256 bytes for queue pair 1; it is not to be kept.
	MAD(from netip.AddrPort, mad []byte)
	// Drop says that a packet was not taken.
	Drop(why DropReason)
}

// Device is the queue pairs and the memory of one address. The caller's lock guards it and all
// that belongs to it. Times are those of one monotonic clock.
//
// The caller gives it what arrives (Receive), and then, at the end of its turn, takes what is
// to be sent (Fill) until there is nothing: acknowledgements of what one turn received leave
// together, behind what was posted in it.
type Device struct {
	cfg     Config
	env     Env
	rnd     *rand.Rand
	memory  *Memory
	numbers numbers
	qps     map[uint32]*QP
	timers  timers
	line    line
	mads    ring[mad]
	mad     mad // that the burst on its way refers to

	lent   *Burst // made by Fill, and not Sent yet
	stats  Counters
	ways   map[netip.Addr]*way
	kept   int        // of them, those without queue pairs
	lost   uint64     // trials of bursts that failed
	lostTo netip.Addr // the last one
	drops  [NumDropReasons]uint64
	in     Flow // of the last packet received
	from   netip.AddrPort
	out    Flow // of the last one sent
	to     netip.AddrPort
	packet Packet // of Receive, which must not make one anew
}

// NewDevice makes a device without queue pairs. Whoever can predict rnd can guess keys, numbers
// of queue pairs and of packets. It fails with ErrConfig.
func NewDevice(cfg Config, env Env, rnd *rand.Rand) (*Device, error) {
	cfg.Local = cfg.Local.Unmap()
	if cfg.MaxQPs == 0 {
		cfg.MaxQPs = defaultQPs
	}
	if cfg.MaxMADs == 0 {
		cfg.MaxMADs = defaultMADs
	}
	if cfg.Patience == 0 {
		cfg.Patience = defaultPatience
	}
	switch {
	case !cfg.Local.IsValid():
		return nil, fmt.Errorf("%w: no local address", ErrConfig)
	case !validMTU(cfg.MTU):
		return nil, fmt.Errorf("%w: MTU %d, want 256, 512, 1024, 2048 or 4096", ErrConfig, cfg.MTU)
	case cfg.MaxQPs < 1 || cfg.MaxQPs > maxNumber/2:
		return nil, fmt.Errorf("%w: %d queue pairs, want 1 to %d", ErrConfig, cfg.MaxQPs, maxNumber/2)
	case cfg.MaxMADs < 1 || cfg.MaxMADs > MaxQueue:
		return nil, fmt.Errorf("%w: %d management datagrams, want 1 to %d", ErrConfig, cfg.MaxMADs, MaxQueue)
	case cfg.Patience < 0:
		return nil, fmt.Errorf("%w: patience %v, want more than nothing", ErrConfig, cfg.Patience)
	}
	return &Device{
		cfg: cfg, env: env, rnd: rnd, memory: NewMemory(rnd), numbers: newNumbers(rnd),
		qps: map[uint32]*QP{}, ways: map[netip.Addr]*way{}, mads: newRing[mad](cfg.MaxMADs),
	}, nil
}

// Memory is what peers may touch of d.
func (d *Device) Memory() *Memory { return d.memory }

// SetGSO changes Config.GSO for the bursts that Fill makes from now on, and forgets which did not
// arrive.
func (d *Device) SetGSO(on bool) {
	d.cfg.GSO = on
	d.forgetTrials()
}

// Counters are those of d since it was made. It looks at all queue pairs.
func (d *Device) Counters() Counters {
	sum := d.stats
	for _, q := range d.qps {
		sum.add(&q.stats)
	}
	return sum
}

// Drops are how many packets were not taken, by reason.
func (d *Device) Drops() [NumDropReasons]uint64 { return d.drops }

// NewQP makes a queue pair in RESET. Its number is hard to guess, and comes again only after
// all others. It fails with ErrConfig, and with ErrFull when there are too many.
func (d *Device) NewQP(cfg QPConfig) (*QP, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if len(d.qps) >= d.cfg.MaxQPs {
		return nil, fmt.Errorf("%w: there are %d queue pairs, and %d is the limit", ErrFull, len(d.qps), d.cfg.MaxQPs)
	}
	if cfg.Memory == nil {
		cfg.Memory = d.memory
	}
	q := newQP(d, d.numbers.draw(func(n uint32) bool { return d.qps[n] != nil }), cfg)
	d.qps[q.number] = q
	return q, nil
}

// NewPSN draws the number of a first packet, for QP.Start and for the peer.
func (d *Device) NewPSN() PSN { return PSN(d.rnd.Uint32() & psnMask) }

// Receive takes a UDP datagram from address and port from: a packet from its first header to
// its CRC. Nothing of pkt is kept. Nothing is answered to what is dropped.
func (d *Device) Receive(now time.Duration, from netip.AddrPort, pkt []byte) {
	p := &d.packet
	if p.Parse(pkt) != nil {
		d.drop(DropMalformed)
		return
	}
	// What costs least comes first: a flood for queue pairs that are not there, or from
	// others than their peers, is not worth a CRC.
	if p.Dest == madQP {
		d.receiveMAD(from, pkt)
		return
	}
	q := d.qps[p.Dest]
	switch {
	case q == nil:
		d.drop(DropQueuePair)
		return
	case q.state != RTR && q.state != RTS:
		d.drop(DropState)
		return
	case plain(from.Addr()) != q.peer.Addr:
		d.drop(DropSource)
		return
	case !d.intact(from, pkt):
		d.drop(DropICRC)
		return
	case !samePartition(p.PKey):
		d.drop(DropPartition)
		return
	}
	q.receive(now, p)
	q.kick()
	p.Payload = nil
}

// samePartition reports whether a packet of this partition is for the one every port is in. Its
// upper bit says whether the sender may speak with everybody in it.
func samePartition(pkey uint16) bool { return pkey|0x8000 == DefaultPKey }

// plain is a as queue pairs know their peers: without what IPv6 wraps IPv4 in, and without
// the interface of a link-local address.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// intact checks the CRC of a packet.
func (d *Device) intact(from netip.AddrPort, pkt []byte) bool {
	if from != d.from {
		d.from = netip.AddrPort{}
		if d.in.set(from, netip.AddrPortFrom(d.cfg.Local, Port)) != nil {
			return false
		}
		d.from = from
	}
	_, ok := d.in.Check(pkt)
	return ok
}

func (d *Device) drop(why DropReason) {
	d.drops[why]++
	d.env.Drop(why)
}

// Fill makes b what is to be sent next, and reports whether there is something. Queue pairs
// take turns, a burst each. The memory that b refers to is in use until Sent: until then
// Fill has nothing more, the completions of the burst's queue pair are withheld, and
// Memory.Take says that a peer is under way.
func (d *Device) Fill(now time.Duration, b *Burst) bool {
	if d.lent != nil {
		return false
	}
	b.clear()
	b.gso = d.cfg.GSO // a datagram is alone
	if d.fillMAD(b) {
		d.lent = b
		return true
	}
	for q := d.line.pop(); q != nil; q = d.line.pop() {
		b.gso = d.cfg.GSO && d.takesBursts(now, q.way)
		q.fill(now, b)
		if b.N == 0 {
			continue // what it had to send is no more
		}
		if b.gso && b.N > 1 {
			q.way.burst()
		}
		q.kick()
		q.stats.SentPkts += uint64(b.N)
		q.lent, b.qp, d.lent = true, q, b
		return true
	}
	return false
}

// begin makes b a burst to addr.
func (d *Device) begin(b *Burst, to netip.AddrPort) {
	b.To = to
	if to != d.to {
		// Connect and SendMAD have seen that the family is the same.
		if err := d.out.set(netip.AddrPortFrom(d.cfg.Local, Port), to); err != nil {
			panic(err)
		}
		d.to = to
	}
}

// Sent says that b, which Fill made, was sent.
func (d *Device) Sent(b *Burst) {
	if d.lent != b {
		panic("roce: Sent of a burst that is not on its way")
	}
	d.lent = nil
	for i := range b.packets[:b.N] {
		if r := b.packets[i].region; r != nil {
			r.lent--
		}
	}
	q := b.qp
	b.clear()
	if q != nil {
		q.lent = false
		q.tell()
	}
}

// Unsent is Sent for a burst that the system did not take. Its packets are as if the network
// had lost them.
func (d *Device) Unsent(b *Burst) {
	d.stats.SendErr += uint64(b.N)
	d.Sent(b)
}

// Next is when Tick has to be called, or the largest Duration if there is no need to. What can
// be sent at once is not waited for: call Fill after whatever may have changed something.
func (d *Device) Next() time.Duration { return d.timers.next() }

// Tick does what is due: what was not acknowledged in time is sent again, and so is an
// acknowledgement after which nothing came. Call Fill after it.
func (d *Device) Tick(now time.Duration) {
	for d.timers.next() <= now {
		q := d.timers.pop()
		if q.resp.repeat <= now {
			q.repeatAck()
		}
		if q.deadline <= now {
			q.deadline = never
			q.expired(now)
		}
		q.kick()
		d.timers.arm(q)
	}
}
