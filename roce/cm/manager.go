package cm

import (
	"errors"
	"math"
	"math/rand"
	"net/netip"
	"time"
)

// MADLen is the length in bytes of every message.
const MADLen = 256

// Never is the time at which nothing happens.
const Never = time.Duration(math.MaxInt64)

// Errors of calls, and of connections that ended.
var (
	ErrConfig = errors.New("cm: a connection manager cannot have this value")
	ErrParam  = errors.New("cm: a connection cannot have this parameter")
	ErrState  = errors.New("cm: the state of the connection does not allow it")
	ErrBusy   = errors.New("cm: it is in use")
	ErrLimit  = errors.New("cm: no more connections are allowed")

	ErrPeer   = errors.New("cm: the peer disconnected")
	ErrStale  = errors.New("cm: the peer has forgotten the connection")
	ErrSilent = errors.New("cm: the peer does not answer")
)

// errAbsent is what has not been built yet.
var errAbsent = errors.New("cm: not built yet")

// Config is what a Manager is made with. Zero means the default, where there is one.
type Config struct {
	Local netip.Addr // the device's address; it has no default
	GUID  uint64     // the device's, by which kernels know it; the default is made of the address
	MTU   int        // the largest that the path to a peer may have; 4096

	MaxConns    int // connections, those in time-wait included; 65,536
	MaxAsked    int // of these, those that peers asked for and that are not established; 1,024
	MaxAskedOne int // of these, those of one source, an IPv4 address or an IPv6 network of 64 bits; 128

	Answer   time.Duration // how long the application has to accept or reject; 60 s
	Repeat   time.Duration // the first repetition of a message comes after this; the next after twice as long, up to what kernels wait; 200 ms
	TimeWait time.Duration // how long an ended connection's numbers are not used again; 4.3 s
}

// Manager connects queue pairs of one address with those of others. Its owner guards it and
// its Conns by one lock.
type Manager struct{}

// New makes a Manager. The identifiers that it draws from rnd are all that keeps somebody who
// cannot read its messages from ending its connections: outside of tests the source has to be
// one that cannot be foreseen. It fails with ErrConfig.
func New(cfg Config, env Env, rnd *rand.Rand) (*Manager, error) { return &Manager{}, nil }

// Receive takes a datagram that came to queue pair 1; it is not kept. The port of from is not
// looked at. What is no message of the connection manager is counted and dropped.
func (m *Manager) Receive(now time.Duration, from netip.AddrPort, mad []byte) {}

// Tick does what is due: repetitions, and ends of what has waited long enough.
func (m *Manager) Tick(now time.Duration) {}

// Next is when Tick has something to do: Never if nothing runs.
func (m *Manager) Next() time.Duration { return Never }

// Dial asks the listener at the port and address of remote for a connection. The address of
// local is that of the Manager; its port may be 0 for any. Connected or Refused follow, not
// within this call, at the latest after MaxDial. It fails with ErrParam; with ErrBusy while
// the queue pair has a connection or its time-wait; with ErrLimit.
func (m *Manager) Dial(now time.Duration, local, remote netip.AddrPort, p Param) (*Conn, error) {
	return nil, errAbsent
}

// Listen lets peers dial port, which Env.Asked then tells of; it fails with ErrBusy if it is
// listened to. Unlisten ends that; what was asked for before can still be accepted.
func (m *Manager) Listen(port uint16) error { return errAbsent }

// Unlisten ends Listen.
func (m *Manager) Unlisten(port uint16) {}
