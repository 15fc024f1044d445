package soft

import (
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/transport/ib"
)

// Machine is what a device takes from where it runs. The daemon's is this machine (real,
// below). A simulated world brings its own, so that the same device runs there, in one thread,
// from a seed. All fields are set.
type Machine struct {
	*ib.Machine
	Thread Thread // in the place of Config.Reactor
	// NewTimer makes a timer that is not set; f runs on Thread when it is due.
	NewTimer func(f func()) Timer
	// Memory returns n zero bytes, until release is called.
	Memory func(n int) (b []byte, release func(), err error)
	// Interface says what the address stands on, and the MTU of packets' payload there; an
	// error: the address has gone. Device.Changed has it asked again.
	Interface func() (name string, mtu int, err error)
	Wire      Wire // in the place of a UDP socket; nil: there is one
}

// Thread is what a device asks of the thread that it works on: a reactor, or a world's stand-in
// for one, which has one device's Wire to watch in the place of descriptors.
type Thread interface {
	ib.Thread
	// OnThread reports whether the caller runs on it.
	OnThread() bool
	// Now is when its turn began, by Machine.Clock. On the thread.
	Now() time.Duration
	// Defer runs f at the end of the turn. On the thread.
	Defer(f func())
	// Sync waits until what was removed and stopped before is not being called any more.
	Sync()
	// Add has h called when there is something to receive, Modify also when there is room to
	// send again, if that is among the events, and Remove no more.
	Add(fd int, events uint32, h reactor.Handler) error
	Modify(fd int, events uint32) error
	Remove(fd int) error
}

// Timer is a thread's; Reset sets it anew, whether it was set or not. From anywhere.
type Timer interface {
	Reset(d time.Duration)
	Stop() bool
}

// Wire is what a device sends and receives by where there are no sockets.
type Wire interface {
	// Send sends b, which it copies: a packet, or with size > 0 packets of so many bytes, of
	// which the last may be shorter. unix.EAGAIN: there is no room (Thread.Modify).
	Send(to netip.AddrPort, b []byte, size int) error
	// Receive copies the packet that has arrived next to b, and says how long it is.
	// unix.EAGAIN: there is none.
	Receive(b []byte) (n int, from netip.AddrPort, err error)
}

// real is the machine that the daemon runs on.
func (d *Device) real() *Machine {
	return &Machine{
		Machine: ib.ThisMachine,
		Thread:  d.cfg.Reactor,
		NewTimer: func(f func()) Timer {
			return d.cfg.Reactor.NewTimer(f).For(d)
		},
		Memory: d.mapped,
		Interface: func() (string, int, error) {
			var p port
			var err error
			d.cfg.Within(func() { p, err = portOf(d.cfg.Addr) })
			return p.netdev, p.mtu, err
		},
	}
}

// wireFD is the descriptor of a socket that is none.
const wireFD = 0

// wireSocket is a socket that sends and receives by w.
func wireSocket(w Wire) *socket { return &socket{fd: wireFD, wire: w} }

// sendmmsg sends messages in order, and returns how many; an error is the first one's.
func (s *socket) sendmmsg(m []mmsghdr) (n int, err error) {
	if s.wire == nil {
		return sendmmsg(s.fd, m)
	}
	for n < len(m) && err == nil {
		h := &m[n].hdr
		var b []byte
		for _, p := range pieces(h) {
			b = append(b, bytesOf(p.Base, int(p.Len))...)
		}
		if err = s.wire.Send(get((*sockaddr)(pointer(h.Name))), b, sizeOf(h)); err == nil {
			n++
		}
	}
	if n > 0 {
		err = nil
	}
	return n, err
}

// recvmmsg receives messages, likewise.
func (s *socket) recvmmsg(m []mmsghdr) (n int, err error) {
	if s.wire == nil {
		return recvmmsg(s.fd, m)
	}
	for n < len(m) && err == nil {
		h := &m[n].hdr
		to := pieces(h)[0]
		var from netip.AddrPort
		var k int
		if k, from, err = s.wire.Receive(bytesOf(to.Base, int(to.Len))); err == nil {
			m[n].n, h.Flags = uint32(k), 0
			h.SetControllen(0)
			put((*sockaddr)(pointer(h.Name)), from, 0)
			n++
		}
	}
	if n > 0 {
		err = nil
	}
	return n, err
}
