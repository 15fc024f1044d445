package simtest

import (
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/roce"
	"github.com/rdsd/rdsd/transport/ib"
	"github.com/rdsd/rdsd/transport/ib/soft"
	"github.com/rdsd/rdsd/transport/sim"
)

// deviceSeeds is the first seed whose world has volumes over RoCE too; all higher ones have.
const deviceSeeds = 2_000_000

// fabric is the network that devices are at: the addresses, the cuts and the machines are those
// of the world's, and datagrams are lost, doubled, changed and late.
type fabric struct {
	v     *volumes
	net   *sim.Datagrams
	mtus  []int // by path
	noGSO bool
	old   []capture // some datagrams of a while ago
}

// capture is a datagram that somebody has kept.
type capture struct {
	from, to netip.AddrPort
	pkt      []byte
}

// newFabric draws the network of devices, with so many paths from node to node.
func newFabric(v *volumes, paths int) *fabric {
	w := v.w
	f := &fabric{v: v, noGSO: w.chance(3)}
	f.net = sim.NewDatagrams(w.Clock, w.rng, f.drawProfile())
	f.net.Parted = w.net.Parted
	f.net.Mend = mended
	for range paths {
		f.mtus = append(f.mtus, pick(w, 256, 512, 1024, 4096))
	}
	return f
}

func (f *fabric) drawProfile() sim.DatagramProfile {
	w := f.v.w
	p := sim.DatagramProfile{Latency: 10*time.Microsecond + w.upTo(time.Millisecond), Jitter: w.upTo(500 * time.Microsecond)}
	if w.chance(4) {
		p.Latency = w.upTo(20 * time.Millisecond)
	}
	p.Loss = pick(w, 0, 0, 0.001, 0.01, 0.05, 0.2)
	p.Duplicate = pick(w, 0, 0.02, 0.3)
	p.Late, p.LateBy = pick(w, 0, 0.02, 0.2), pick(w, 2*time.Millisecond, 100*time.Millisecond)
	p.Flip = pick(w, 0, 0, 0.01, 0.05)
	return p
}

// mended keeps a changed packet from arriving whose CRC is right for another identification of
// IPv4, as one of 2^16 is: UDP's checksum finds that.
func mended(from, to netip.AddrPort, pkt []byte) bool {
	f, err := roce.NewFlow(from, to)
	if err != nil {
		return false
	}
	_, ok := f.Check(pkt)
	return ok
}

// send sends a datagram, and keeps a few.
func (f *fabric) send(from, to netip.AddrPort, pkt []byte) {
	if w := f.v.w; !w.calm && w.chance(20) {
		if len(f.old) == 64 {
			f.old = slices.Delete(f.old, 0, 16)
		}
		f.old = append(f.old, capture{from, to, slices.Clone(pkt)})
	}
	f.net.Send(from, to, pkt)
}

// replay sends what was kept once more, long after its time.
func (f *fabric) replay() {
	for _, c := range f.old {
		f.net.Send(c.from, c.to, c.pkt)
	}
}

// volDevice is the RDMA device of one address in one process: the daemon's own (transport/ib
// over transport/ib/soft), on a machine that is simulated. It is the machine's thread, and its
// wire.
type volDevice struct {
	p     *volProcess
	nic   *sim.Host
	num   int // of the path
	dev   *soft.Device
	links *ib.Provider

	// The thread.
	on    bool // a turn is under way
	ends  []func()
	queue []func()
	h     reactor.Handler // nil: nothing is watched
	woken bool            // a turn is about to come
	room  bool            // it is to be told when there is room to send

	arrived []capture
	full    time.Duration // until when nothing can be sent
	poor    time.Duration // until when there is no memory for peers
	mtu     int           // of the interface
	gone    error         // the address is not there

	memory, charged, own int // given, and not given back: of links, of peers, of the device itself
}

var (
	_ soft.Thread = (*volDevice)(nil)
	_ soft.Wire   = (*volDevice)(nil)
)

// maxArrived is how many packets wait for a device's thread at most.
const maxArrived = 256

// openDevices opens the devices of a process.
func (p *volProcess) openDevices() error {
	f := p.v.fabric
	for i, h := range p.nics {
		x := &volDevice{p: p, nic: h, num: i, mtu: f.mtus[i]}
		m := x.machine()
		var err error
		if x.dev, err = soft.Open(soft.Config{Addr: h.Addr, NoGSO: f.noGSO, Charge: x.charge, On: m}); err != nil {
			return err
		}
		x.links = ib.NewOn(&seenVerbs{x.dev, p, map[seenKey]struct{}{}}, m.Machine)
		x.links.Charge = x.charge
		p.devices = append(p.devices, x)
		f.net.Attach(h.Addr, x.receive)
	}
	return nil
}

// closeDevices ends them in order, behind their links.
func (p *volProcess) closeDevices() {
	w := p.v.w
	for _, x := range p.devices {
		x.links.Close()
		s := x.dev.State()
		x.count(&s)
		if s.QueuePairs != 0 {
			w.fail("M1: %d queue pairs of %v are left", s.QueuePairs, x.nic.Addr)
		}
		if s.Keys != 0 {
			w.fail("M1: %d keys of %v open memory yet", s.Keys, x.nic.Addr)
		}
		if x.memory != 0 {
			w.fail("M1: %d bytes of the device of %v are left", x.memory, x.nic.Addr)
		}
		// What peers that dial cost is given back when their numbers are not in use any more.
		for end := w.Now() + timeWait; w.calm && x.charged != 0 && w.Now() < end; {
			p.wait(100 * time.Millisecond)
		}
		if w.calm && x.charged != 0 {
			w.fail("M1: %d bytes are charged to peers of %v", x.charged, x.nic.Addr)
		}
		if err := x.dev.Close(); err != nil {
			w.fail("the device of %v is not closed: %v", x.nic.Addr, err)
		}
		if x.own != 0 {
			w.fail("M1: %d bytes of the device of %v are charged after its end", x.own, x.nic.Addr)
		}
	}
}

// timeWait is longer than a connection is remembered that has ended in calm: its peer may have
// ended before, and is asked for 69 s to confirm that, as kernels do.
const timeWait = 80 * time.Second

// lose takes the devices from the network, whose process has ended.
func (p *volProcess) lose() {
	for _, x := range p.devices {
		p.v.fabric.net.Attach(x.nic.Addr, nil)
		if !p.over {
			s := x.dev.State()
			x.count(&s)
		}
	}
}

// count adds what the device has seen to what the world shows.
func (x *volDevice) count(s *soft.State) {
	t := &x.p.v.total
	t.Resent += int(s.Counter("completer_retry_err"))
	t.Timeouts += int(s.Counter("ack_timeouts"))
	t.Duplicates += int(s.Counter("duplicate_request"))
	t.NotReady += int(s.Counter("send_rnr_err"))
	t.Packets += int(s.Counter("rcvd_pkts"))
}

func (x *volDevice) machine() *soft.Machine {
	p := x.p
	return &soft.Machine{
		Machine: &ib.Machine{
			Clock:   p.v.w.Now,
			Seed:    p.v.w.rng.Uint64,
			Go:      p.spawn,
			Wait:    func(bells ...<-chan struct{}) int { return p.wait(volume.Forever, bells...) },
			Timeout: p.timeout,
		},
		Thread: x,
		NewTimer: func(f func()) soft.Timer {
			return &volTimer{p: p, f: func() { x.turn(f) }}
		},
		Memory: func(n int) ([]byte, func(), error) {
			x.memory += n
			return make([]byte, n), func() { x.memory -= n }, nil
		},
		Interface: func() (string, int, error) { return "sim", x.mtu, x.gone },
		Wire:      x,
	}
}

var errPoor = rdserr.With(rdserr.ErrNoMemory, "there is no memory for peers")

func (x *volDevice) charge(peer netip.Addr, n int) error {
	if !peer.IsValid() {
		x.own += n
		return nil
	}
	if n > 0 && x.p.v.w.Now() < x.poor {
		return errPoor
	}
	x.charged += n
	return nil
}

// --- the thread -------------------------------------------------------------------

func (x *volDevice) OnThread() bool     { return x.on }
func (x *volDevice) Now() time.Duration { return x.p.v.w.Now() }
func (x *volDevice) Defer(f func())     { x.ends = append(x.ends, f) }
func (x *volDevice) Sync()              {}

// DoFor wakes the thread, which takes a moment when it sleeps.
func (x *volDevice) DoFor(_ reactor.Owner, f func()) {
	x.queue = append(x.queue, f)
	x.wake()
}

func (x *volDevice) Add(_ int, _ uint32, h reactor.Handler) error {
	x.h = h
	return nil
}

func (x *volDevice) Modify(_ int, events uint32) error {
	x.room = events&unix.EPOLLOUT != 0
	if x.room {
		w := x.p.v.w
		w.After(x.full-w.Now(), x.p.event(x.wake))
	}
	return nil
}

func (x *volDevice) Remove(int) error {
	x.h = nil
	return nil
}

func (x *volDevice) wake() {
	if x.woken {
		return
	}
	x.woken = true
	w, d := x.p.v.w, time.Duration(0)
	if w.chance(8) {
		d = w.upTo(50 * time.Microsecond)
	}
	w.After(d, x.p.event(func() {
		x.woken = false
		x.turn(x.look)
	}))
}

// look does what there is for the thread to do.
func (x *volDevice) look() {
	queue := x.queue
	x.queue = nil
	for _, f := range queue {
		f()
	}
	var events uint32
	if len(x.arrived) > 0 {
		events |= unix.EPOLLIN
	}
	if x.room && x.p.v.w.Now() >= x.full {
		events |= unix.EPOLLOUT
	}
	if x.h != nil && events != 0 {
		x.h.Ready(events)
	}
	if len(x.queue) > 0 || x.h != nil && len(x.arrived) > 0 {
		x.wake()
	}
}

// turn runs f on the thread, and what is left for the end of the turn.
func (x *volDevice) turn(f func()) {
	x.on = true
	f()
	ends := x.ends
	x.ends = nil
	for _, f := range ends {
		f()
	}
	x.on = false
	if len(x.ends) > 0 {
		x.wake()
	}
}

// --- the wire ---------------------------------------------------------------------

// receive keeps a packet for the thread. It is an event of the network's, not the process's,
// which may be frozen.
func (x *volDevice) receive(from netip.AddrPort, pkt []byte) {
	if len(x.arrived) < maxArrived {
		x.arrived = append(x.arrived, capture{from: from, pkt: pkt})
		x.wake()
	}
}

// Receive implements soft.Wire.
func (x *volDevice) Receive(b []byte) (int, netip.AddrPort, error) {
	if len(x.arrived) == 0 {
		return 0, netip.AddrPort{}, unix.EAGAIN
	}
	c := x.arrived[0]
	x.arrived = x.arrived[1:]
	return copy(b, c.pkt), c.from, nil
}

// Send implements soft.Wire. A packet that is longer than the interface allows does not leave.
func (x *volDevice) Send(to netip.AddrPort, b []byte, size int) error {
	w, f := x.p.v.w, x.p.v.fabric
	if w.Now() < x.full {
		return unix.EAGAIN
	}
	if size == 0 {
		size = len(b)
	}
	if size > x.mtu+packetHeaders {
		return unix.EMSGSIZE
	}
	if x.gone != nil {
		return unix.EADDRNOTAVAIL
	}
	from := netip.AddrPortFrom(x.nic.Addr, roce.Port)
	for p := range slices.Chunk(b, size) {
		f.send(from, to, p)
	}
	return nil
}

// packetHeaders is the most that a packet has beside its payload.
const packetHeaders = 52

// fault does something to devices alone.
func (f *fabric) fault(c *volClient) {
	v, w := f.v, f.v.w
	x := pick(w, c.node, c.srv)
	if x.p == nil || x.p.dead || len(x.p.devices) == 0 {
		return
	}
	d := pick(w, x.p.devices...)
	long := w.upTo(time.Second)
	switch w.rng.Intn(8) {
	case 0, 1:
		f.net.Profile = f.drawProfile()
		w.trace("FAULT devices have other weather: %+v", f.net.Profile)
	case 2:
		long = w.upTo(100 * time.Millisecond)
		w.trace("FAULT the device of %v can send nothing for %v", d.nic.Addr, long)
		d.full = w.Now() + long
	case 3:
		w.trace("FAULT the interface of %v has MTU 256 for %v", d.nic.Addr, long)
		d.change(256, nil)
		w.After(long, d.p.event(func() { d.change(f.mtus[d.num], nil) }))
	case 4:
		w.trace("FAULT the address of the device of %v is gone for %v", d.nic.Addr, long)
		d.change(d.mtu, unix.EADDRNOTAVAIL)
		w.After(long, d.p.event(func() { d.change(f.mtus[d.num], nil) }))
	case 5:
		w.trace("FAULT there is no memory for peers of the device of %v for %v", d.nic.Addr, long)
		d.poor = w.Now() + long
	default:
		w.trace("FAULT %d datagrams of devices come again", len(f.old))
		f.replay()
	}
	v.total.DeviceFaults++
}

// change has the device stand on another interface, which it is told a moment later.
func (x *volDevice) change(mtu int, gone error) {
	x.mtu, x.gone = mtu, gone
	w := x.p.v.w
	w.After(w.upTo(time.Millisecond), x.p.event(x.dev.Changed))
}

// calmDown ends the faults.
func (f *fabric) calmDown() {
	p := &f.net.Profile
	p.Loss, p.Flip, p.Late = 0, 0, 0
	for _, x := range f.v.nodes {
		for _, d := range x.p.devices {
			d.full, d.poor = 0, 0
			d.change(f.mtus[d.num], nil)
		}
	}
}
