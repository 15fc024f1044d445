package soft

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/roce"
	"github.com/rdsd/rdsd/roce/cm"
	"github.com/rdsd/rdsd/transport/ib"
)

// Config says what a device is. Only Addr and Reactor have no default.
type Config struct {
	Addr    netip.Addr       // one of this machine
	Reactor *reactor.Reactor // whose thread the device works on; it outlives the device
	// NoGSO sends each packet by itself, for network cards that number the packets of a burst
	// in another way than the kernel does.
	NoGSO bool
	// MTU is the most that a packet carries, where that is less than the interface allows: 256,
	// 512, 1024, 2048 or 4096 bytes; 0: what the interface allows.
	MTU int
	// Buffer is how many bytes of packets the kernel is asked to hold, each way; 0: 8 MiB.
	Buffer int
	// MaxQPs is how many queue pairs there are at most; 0: 65,536.
	MaxQPs int
	// Charge is asked before n bytes are kept for a peer that dials, or for the device itself (no
	// address), and told with n < 0 when they have been given back; it may be called with the
	// device's lock held. nil: nothing is counted.
	Charge func(peer netip.Addr, n int) error
	Log    *slog.Logger // nil: none
	// Guard contains panics of what this package's goroutines do. Panics on the reactor are
	// contained by its own.
	Guard *guard.Guard
	// On is where the device runs; nil: this machine.
	On *Machine
	// Within calls f in the network namespace that the device is in; nil: that of the process.
	Within func(f func())
}

// Errors of devices.
var (
	ErrClosed = errors.New("soft: the device has been closed")
	ErrGone   = errors.New("soft: the address was taken from this machine")
	ErrMTU    = errors.New("soft: the interface takes packets of this size no more")
)

const (
	// answerTime is how long a program has to answer a peer that dials.
	answerTime = 30 * time.Second
	// ackTime is the code of the time in which a peer expects acknowledgements: 4.096 µs × 2^19
	// is 2.1 s, which is what kernels say.
	ackTime = 19
	// rnrDelay is how long a peer waits for whom no receive was posted (InfiniBand, table 45).
	rnrDelay = 640 * time.Microsecond
	// waiting is how many messages of the connection manager one turn keeps, beyond which they
	// are lost: they are repeated.
	waiting = 32
	// lockPatience is longer than any step takes on a machine that is short of processors.
	lockPatience = 2 * time.Second
)

// Device is the RDMA device of one address: a UDP socket, the queue pairs and the memory of
// package roce, and a connection manager. Its methods are those of ib.Verbs.
//
// A step is what is done with mu held: it takes what arrived, or a call, and leaves packets
// to be sent, handlers to be called, and a time to look again. The packets are sent and the
// handlers called with mu released.
type Device struct {
	cfg   Config
	m     *Machine
	r     Thread
	sock  *socket
	in    *inbox
	timer Timer
	watch *watcher

	mu      sync.Mutex // guards the fields below; no handler and no system call but of time with it
	dev     *roce.Device
	cm      *cm.Manager
	qps     map[*roce.QP]*queuePair
	domains map[*domain]struct{} // that were not closed
	listens map[uint16]*listener
	anyPort uint16 // that was listened on last, of those taken for any
	port    port
	gone    bool          // the address is not this machine's now
	unsure  bool          // port and gone are what they were when the kernel could last be asked
	closed  bool          // by Close
	shut    bool          // nothing is sent any more
	events  []event       // handlers to be called, oldest first
	called  int           // of events, that have been
	asked   bool          // deliver will be called
	armed   time.Duration // when the timer fires
	stats   Stats
	mads    [waiting]mad // of this step
	numMADs int
	arrived []*queuePair // whose peer's first packet came in this step
	// refusals are connections that were ended within a call of the connection manager.
	refusals []*cm.Conn
	out      sender

	// Owned by the reactor's thread.
	now     time.Duration // of the step under way, for what packets are given to
	ending  bool          // transmit is called at the end of this turn
	calling *queuePair    // whose handler is being called

	// Methods of d as values, which would be made anew each time.
	eachPkt                  func(from netip.AddrPort, pkt []byte)
	transmit, delivery, next func()
}

type mad struct {
	from netip.AddrPort
	b    [cm.MADLen]byte
}

// never is the time at which nothing happens.
const never = cm.Never

// Open makes the device of an address. It fails with ErrPortTaken if another has the port,
// the kernel for example.
func Open(cfg Config) (*Device, error) {
	cfg.Addr = cfg.Addr.Unmap()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Within == nil {
		cfg.Within = func(f func()) { f() }
	}
	switch cfg.MTU {
	case 0, 256, 512, 1024, 2048, 4096:
	default:
		return nil, fmt.Errorf("soft: a packet cannot carry %d bytes at most, but 256, 512, 1024, 2048 or 4096", cfg.MTU)
	}
	if cfg.Buffer == 0 {
		cfg.Buffer = bufferBytes
	}
	if err := cfg.charge(netip.Addr{}, ownBytes); err != nil {
		return nil, err
	}
	d, err := cfg.device()
	if err != nil {
		cfg.refund(netip.Addr{}, ownBytes)
		return nil, err
	}
	return d, nil
}

// device is Open once the memory is there.
func (cfg Config) device() (*Device, error) {
	d := &Device{
		cfg: cfg, m: cfg.On, in: newInbox(), armed: never,
		qps: map[*roce.QP]*queuePair{}, domains: map[*domain]struct{}{}, listens: map[uint16]*listener{},
	}
	d.eachPkt, d.transmit, d.delivery, d.next = d.packet, d.endTurn, d.deliver, d.flush
	if d.m == nil {
		d.m = d.real()
	}
	d.r, d.timer = d.m.Thread, d.m.NewTimer(d.tick)
	var err error
	if d.port, err = d.portNow(); err != nil {
		return nil, err
	}
	if d.m.Wire != nil {
		d.sock = wireSocket(d.m.Wire)
	} else {
		cfg.Within(func() { d.sock, err = openSocket(cfg.Addr, cfg.Buffer) })
	}
	if err == nil {
		err = d.build()
	}
	if err != nil {
		if d.sock != nil {
			d.sock.close()
		}
		return nil, err
	}
	if have, want := d.sock.sendBuffer(), cfg.Buffer; d.m.Wire == nil && have < want {
		cfg.Log.Warn("the socket of a RoCE device has less room for packets to be sent than it asked for: packets to a few addresses that do not answer can fill it, and all of its connections stand meanwhile",
			"device", d.name(), "bytes", have, "asked", want, "hint", fmt.Sprintf("sysctl -w net.core.wmem_max=%d", want))
	}
	d.beginGSO()
	if err := d.r.Add(d.sock.fd, unix.EPOLLIN, d); err != nil {
		d.sock.close()
		return nil, err
	}
	if d.m.Wire != nil {
		return d, nil
	}
	d.watch = watchDevice(d)
	return d, nil
}

// ownBytes is about what a device needs for itself: what arrives is read into most of it.
const ownBytes = inSlots*slotBytes + outCopied + 64<<10

// charge asks for memory, as Config.Charge says.
func (c *Config) charge(peer netip.Addr, n int) error {
	if c.Charge == nil {
		return nil
	}
	return c.Charge(peer, n)
}

// refund gives it back.
func (c *Config) refund(peer netip.Addr, n int) {
	if c.Charge != nil {
		_ = c.Charge(peer, -n) // to take less always succeeds
	}
}

// portNow is what the address stands on now.
func (d *Device) portNow() (p port, err error) {
	p.netdev, p.mtu, err = d.m.Interface()
	if d.cfg.MTU > 0 {
		p.mtu = min(p.mtu, d.cfg.MTU)
	}
	return p, err
}

// strangerRoom is the part of the socket's buffer for each message that may be sent at once to whoever may
// not be there: of 208 KiB, which Linux has by itself, that is for 96. Each takes 1,280 bytes of the buffer as
// it is doubled, and in the 3 s that they wait at most there are not three times as many.
const strangerRoom = 2218

// build makes the two cores.
func (d *Device) build() (err error) {
	rnd := d.m.random()
	zoneless := d.cfg.Addr.WithZone("")
	d.dev, err = roce.NewDevice(roce.Config{Local: zoneless, MTU: maxMTU, MaxQPs: d.cfg.MaxQPs}, (*env)(d), rnd)
	if err != nil {
		return fmt.Errorf("soft: %w", err)
	}
	d.cm, err = cm.New(cm.Config{Local: zoneless, MTU: d.port.mtu, Answer: answerTime, Strangers: d.sock.sendBuffer() / strangerRoom}, (*env)(d), rnd)
	if err != nil {
		return fmt.Errorf("soft: %w", err)
	}
	return nil
}

func (d *Device) name() string { return "soft-" + d.cfg.Addr.String() }

// Info describes the device as it is now.
func (d *Device) Info() ib.Info {
	d.mu.Lock()
	defer d.mu.Unlock()
	return ib.Info{
		Name: d.name(), Addr: d.cfg.Addr, MTU: d.port.mtu, MaxSends: roce.MaxQueue, MaxRecvs: roce.MaxQueue,
		QPBytes: qpBytes, Caps: caps,
	}
}

// Thread is the one that calls the handlers.
func (d *Device) Thread() ib.Thread { return d.r }

// Close ends the device. Queue pairs that are left fail with ErrClosed.
func (d *Device) Close() error {
	if d.watch != nil {
		d.watch.close()
	}
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	d.failAll(ErrClosed)
	d.leave(d.m.Clock())
	d.mu.Unlock()
	d.flush() // what tells the peers of it
	d.mu.Lock()
	d.shut = true
	if d.out.full { // nobody comes back to it
		d.out.full, d.out.refused = false, true
		d.out.sent(d)
		d.leave(d.m.Clock())
	}
	d.mu.Unlock()
	d.timer.Stop()
	d.r.Remove(d.sock.fd)
	d.r.Sync() // Ended was called, and nothing of the device is on the thread any more
	d.sock.close()
	d.cfg.refund(netip.Addr{}, ownBytes)
	return nil
}

// failAll ends all connections. mu is held.
func (d *Device) failAll(why error) {
	now := d.m.Clock()
	for _, q := range d.pairs() {
		q.end(now, why)
	}
}

// pairs are the queue pairs in the order of their numbers. mu is held.
func (d *Device) pairs() []*queuePair {
	return slices.SortedFunc(maps.Values(d.qps), func(a, b *queuePair) int { return cmp.Compare(a.rq.Number(), b.rq.Number()) })
}

// Changed takes what the address stands on now. It may block.
func (d *Device) Changed() { d.look() }

// look is Changed, and reports whether the kernel could be asked: if not, all stays as it was, and
// somebody has to look again.
func (d *Device) look() bool {
	p, err := d.portNow()
	unsure := errors.Is(err, errUnsure)
	d.mu.Lock()
	was, lost, known := d.port, d.gone, !d.unsure
	if d.unsure = unsure; unsure {
		d.mu.Unlock()
		if known {
			d.cfg.Log.Warn("the interface of a RoCE device cannot be asked for: it is tried again each second", "device", d.name(), "error", err)
		}
		return false
	}
	if !d.closed {
		d.change(p, err)
		d.leave(d.m.Clock())
	}
	d.mu.Unlock()
	d.doorbell()
	switch {
	case err != nil && !lost:
		d.cfg.Log.Warn("the address of a RoCE device has gone: its connections end", "device", d.name(), "error", err)
	case err == nil && (lost || p != was):
		d.cfg.Log.Info("the interface of a RoCE device has changed", "device", d.name(), "interface", p.netdev, "mtu", p.mtu, "mtu_before", was.mtu)
	}
	return true
}

// change is changed as a step. mu is held.
func (d *Device) change(p port, err error) {
	if err != nil {
		if !d.gone {
			d.gone = true
			d.stats.LinkDowned++
			d.failAll(fmt.Errorf("%w (%w)", ErrGone, err))
		}
		return
	}
	if d.gone || d.port != p {
		d.beginGSO()
	}
	fell := p.mtu < d.port.mtu
	d.gone, d.port = false, p
	d.cm.SetMTU(p.mtu)
	if !fell {
		return
	}
	// Those whose packets pass no more would find out by silence.
	for _, q := range d.pairs() {
		if q.mtu > p.mtu {
			q.end(d.m.Clock(), fmt.Errorf("%w: the connection has MTU %d, %s now %d", ErrMTU, q.mtu, p.netdev, p.mtu))
		}
	}
}

// leave ends a step whose caller does not call deliver: the reactor will. mu is held.
func (d *Device) leave(now time.Duration) {
	d.settle(now)
	if d.called < len(d.events) && !d.asked {
		d.asked = true
		d.r.DoFor(d, d.delivery)
	}
}

// settle does what the cores may not do within one another, and sees to the timer. mu is
// held.
func (d *Device) settle(now time.Duration) {
	for i := range d.numMADs {
		d.cm.Receive(now, d.mads[i].from, d.mads[i].b[:])
	}
	d.numMADs = 0
	for i, q := range d.arrived {
		d.arrived[i] = nil
		if q.conn != nil {
			q.conn.Established(now)
		}
	}
	d.arrived = d.arrived[:0]
	for i, c := range d.refusals {
		d.refusals[i] = nil
		c.Disconnect(now)
	}
	d.refusals = d.refusals[:0]
	// A timer that fires too early costs less than one that is set anew with each packet.
	if next := min(d.dev.Next(), d.cm.Next()); next < d.armed {
		d.armed = next
		d.timer.Reset(next - now)
	}
}

// tick is the timer's.
func (d *Device) tick() {
	d.mu.Lock()
	now := d.r.Now()
	d.armed = never
	d.dev.Tick(now)
	d.cm.Tick(now)
	d.settle(now)
	d.mu.Unlock()
	d.deliver()
	d.flushLater()
}

// Work implements reactor.Owner.
func (d *Device) Work() guard.What { return guard.Link }

// Fault implements reactor.Owner: a handler, or this package, has panicked. The queue pair
// that was called for ends; the device goes on.
func (d *Device) Fault(err error) {
	q := d.calling
	d.calling = nil
	for until := time.Now().Add(lockPatience); !d.mu.TryLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			panic(err) // it was in a step of this package, which nothing can be built on
		}
	}
	now := d.m.Clock()
	if q != nil {
		q.end(now, err)
	} else {
		d.failAll(err)
	}
	d.leave(now)
	events := uint32(unix.EPOLLIN)
	if d.out.full {
		events |= unix.EPOLLOUT
	}
	// Under the lock, as Modify is: another thread may find the socket full now.
	again := !d.closed && d.r.Add(d.sock.fd, events, d) == nil // its reactor watches it no more
	d.mu.Unlock()
	if again {
		d.flushLater()
	}
}
