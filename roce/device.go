package roce

import (
	"errors"
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
	// leaves by itself, with identification 0. SetGSO changes it.
	GSO bool

	MaxQPs  int // queue pairs at most; 0: 65,536
	MaxMADs int // management datagrams that wait for Fill at most; 0: 256

	// Patience is how long a queue pair waits at most for a peer that says nothing, whatever
	// the peer announced; 0: 30 s.
	Patience time.Duration
}

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
	cfg    Config
	env    Env
	rnd    *rand.Rand
	memory *Memory
}

var errNotBuilt = errors.New("roce: this is not built yet")

// NewDevice makes a device without queue pairs. Whoever can predict rnd can guess keys, numbers
// of queue pairs and of packets. It fails with ErrConfig.
func NewDevice(cfg Config, env Env, rnd *rand.Rand) (*Device, error) {
	return &Device{cfg: cfg, env: env, rnd: rnd, memory: NewMemory(rnd)}, errNotBuilt
}

// Memory is what peers may touch of d.
func (d *Device) Memory() *Memory { return d.memory }

// SetGSO changes Config.GSO for the bursts that Fill makes from now on.
func (d *Device) SetGSO(on bool) { d.cfg.GSO = on }

// NewQP makes a queue pair in RESET. Its number is hard to guess, and comes again only after
// all others. It fails with ErrConfig, and with ErrFull when there are too many.
func (d *Device) NewQP(cfg QPConfig) (*QP, error) { return nil, errNotBuilt }

// NewPSN draws the number of a first packet, for QP.Start and for the peer.
func (d *Device) NewPSN() PSN { return PSN(d.rnd.Uint32() & psnMask) }

// Receive takes a UDP datagram from address and port from: a packet from its first header to
// its CRC. Nothing of pkt is kept.
func (d *Device) Receive(now time.Duration, from netip.AddrPort, pkt []byte) {}

// Fill makes b what is to be sent next, and reports whether there is something. Queue pairs
// take turns, a burst each. The memory that b refers to is in use until Sent: until then
// Fill has nothing more, the completions of the burst's queue pair are withheld, and
// Memory.Take says that a peer is under way.
func (d *Device) Fill(now time.Duration, b *Burst) bool { return false }

// Sent says that b, which Fill made, was sent, or that it never will be: a packet that the
// system did not take is one that the network lost.
func (d *Device) Sent(b *Burst) {}

// Next is when Tick has to be called, or the largest Duration if there is no need to. What can
// be sent at once is not waited for: call Fill after whatever may have changed something.
func (d *Device) Next() time.Duration { return 1<<63 - 1 }

// Tick does what is due: what was not acknowledged in time is sent again. Call Fill after it.
func (d *Device) Tick(now time.Duration) {}

// SendMAD sends a management datagram of 256 bytes to queue pair 1 at to. mad is copied. It
// fails with ErrWork if mad is of another length or to of another family than d's address, and
// with ErrFull if too many wait for Fill.
func (d *Device) SendMAD(to netip.AddrPort, mad []byte) error { return errNotBuilt }

// Close ends q: its number is free, its peer's packets are dropped, and keys for it alone are
// forgotten. What was posted is the caller's again, without completions. It fails with
// ErrState between Fill and Sent of a burst of q.
func (q *QP) Close() error { return errNotBuilt }

// Number is q's number, which a peer is told.
func (q *QP) Number() uint32 { return q.cfg.Number }
