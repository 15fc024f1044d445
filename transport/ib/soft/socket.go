package soft

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/roce"
)

// bufferBytes is what a socket's buffers are asked to hold unless Config says otherwise: bursts of
// many queue pairs that come while the reactor does other things. Without the right to pass the
// machine's limit (net.core.rmem_max) it is that limit.
const bufferBytes = 8 << 20

// socket is a UDP socket of one address, on which all its queue pairs send and receive.
//
// It is never connected: then IPv4's identification runs, and no invariant CRC would be right
// (package roce, Flow).
type socket struct {
	mu    sync.RWMutex // keeps the descriptor open while a call of another thread than the reactor's uses it
	fd    int          // -1: closed; guarded by mu
	scope uint32       // interface of a link-local address
	gro   bool         // the kernel puts packets together
	wire  Wire         // in the place of the descriptor; nil: there is one

	// fault is asked before each call that sends, and what it returns is what the call met. It is
	// for tests, which set it before the socket is used; nil: the calls are made.
	fault func() error
}

// ErrPortTaken says that another has port 4791 of an address: with a RoCE link (rdma_rxe) on
// any interface the kernel has it for all addresses.
var ErrPortTaken = errors.New("soft: UDP port 4791 is taken; a kernel that has rdma_rxe loaded with a link (rdma link show) has the port of every address, and so has another daemon of this address")

func openSocket(addr netip.Addr, buffer int) (*socket, error) {
	addr = addr.Unmap()
	s := &socket{}
	family := unix.AF_INET
	if addr.Is6() {
		family = unix.AF_INET6
		if addr.Zone() != "" {
			i, err := net.InterfaceByName(addr.Zone())
			if err != nil {
				return nil, fmt.Errorf("soft: the zone of %v: %w", addr, err)
			}
			s.scope = uint32(i.Index)
		}
	}
	var err error
	s.fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err = s.setOptions(addr, buffer); err == nil {
		err = s.bind(addr)
	}
	if err != nil {
		unix.Close(s.fd)
		return nil, err
	}
	return s, nil
}

func (s *socket) bind(addr netip.Addr) error {
	var sa unix.Sockaddr = &unix.SockaddrInet6{Port: roce.Port, ZoneId: s.scope, Addr: addr.As16()}
	if addr.Is4() {
		sa = &unix.SockaddrInet4{Port: roce.Port, Addr: addr.As4()}
	}
	switch err := unix.Bind(s.fd, sa); err {
	case nil:
		return nil
	case unix.EADDRINUSE:
		return fmt.Errorf("%w (%v)", ErrPortTaken, addr)
	default:
		return fmt.Errorf("soft: bind UDP port %d of %v: %w", roce.Port, addr, err)
	}
}

func (s *socket) setOptions(addr netip.Addr, buffer int) error {
	type option struct{ level, name, value int }
	// Don't fragment: a fragment carries an identification, which the invariant CRC covers. And not
	// what ICMP says of the path (DO): anybody may say so of any path, from his own address, and
	// nothing but small packets would leave for ten minutes.
	must := []option{{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE}}
	if addr.Is6() {
		must = []option{
			{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE},
			// rxe and cards send checksum 0, which UDP over IPv6 does not take by itself. What the
			// checksum covers the invariant CRC covers as well.
			{unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1},
		}
	}
	for _, o := range must {
		if err := unix.SetsockoptInt(s.fd, o.level, o.name, o.value); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	for _, o := range []struct{ force, plain int }{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, o.force, buffer) != nil {
			_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, o.plain, buffer) // less will do
		}
	}
	s.gro = unix.SetsockoptInt(s.fd, unix.SOL_UDP, unix.UDP_GRO, 1) == nil // Linux 5.0
	return nil
}

// canSegment reports whether the kernel knows UDP_SEGMENT (Linux 4.18).
func (s *socket) canSegment() bool {
	if s.wire != nil {
		return true
	}
	_, err := unix.GetsockoptInt(s.fd, unix.SOL_UDP, unix.UDP_SEGMENT)
	return err == nil
}

func (s *socket) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd >= 0 && s.wire == nil {
		unix.Close(s.fd)
	}
	s.fd = -1
}

// buffer is how much waits at most to be received, and how many packets found no room.
func (s *socket) buffer() (size int, overrun uint32) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.fd < 0 || s.wire != nil {
		return 0, 0
	}
	m := meminfo(s.fd)
	return int(m[unix.SK_MEMINFO_RCVBUF]), m[unix.SK_MEMINFO_DROPS]
}

// sendBuffer is how many bytes wait at most to be sent, as they are asked for: the kernel doubles that,
// for what it needs besides.
func (s *socket) sendBuffer() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.fd < 0 || s.wire != nil {
		return 0
	}
	m := meminfo(s.fd)
	return int(m[unix.SK_MEMINFO_SNDBUF] / 2)
}
