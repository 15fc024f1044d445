package soft

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// System calls on a socket that is told not to block: they never do, so the runtime's
// scheduler need not know (RawSyscall).

// mmsghdr is struct mmsghdr: a message, and how many bytes of it were moved.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

func sendmmsg(fd int, m []mmsghdr) (int, error) {
	n, _, e := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(m))), uintptr(len(m)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

func recvmmsg(fd int, m []mmsghdr) (int, error) {
	n, _, e := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(m))), uintptr(len(m)),
		unix.MSG_DONTWAIT, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// meminfo is what the kernel counts of a socket's memory (SO_MEMINFO); zeros where it does not
// tell.
func meminfo(fd int) (m [unix.SK_MEMINFO_VARS]uint32) {
	n := uint32(unsafe.Sizeof(m))
	unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&n)), 0)
	return m
}

// sockaddr is room for the address of either family. That of IPv4 is the shorter one.
type sockaddr = unix.RawSockaddrInet6

// put writes a into s and returns how long it is. scope is the interface of a link-local
// address.
func put(s *sockaddr, a netip.AddrPort, scope uint32) uint32 {
	port := a.Port()<<8 | a.Port()>>8
	if ip := a.Addr().Unmap(); ip.Is4() {
		s4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(s))
		*s4 = unix.RawSockaddrInet4{Family: unix.AF_INET, Port: hostOrder(port), Addr: ip.As4()}
		return unix.SizeofSockaddrInet4
	}
	*s = sockaddr{Family: unix.AF_INET6, Port: hostOrder(port), Addr: a.Addr().As16()}
	if a.Addr().IsLinkLocalUnicast() {
		s.Scope_id = scope
	}
	return unix.SizeofSockaddrInet6
}

// get reads an address that the kernel has written. The zone is left out: a socket that is
// bound to a link-local address hears that link alone.
func get(s *sockaddr) netip.AddrPort {
	port := hostOrder(s.Port)
	port = port<<8 | port>>8
	if s.Family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(s)).Addr), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(s.Addr), port)
}

// hostOrder turns a number whose bytes were swapped, which is big-endian on a machine that is
// little-endian, into one that is big-endian on any.
func hostOrder(swapped uint16) uint16 {
	if littleEndian {
		return swapped
	}
	return swapped<<8 | swapped>>8
}

var littleEndian = func() bool {
	one := uint16(1)
	return *(*byte)(unsafe.Pointer(&one)) == 1
}()

// Control messages of this package carry one number: the size of the packets of a burst.

// segmentLen is the room for one of two or of four bytes, with its header and padding.
const segmentLen = 24

// control is room for one control message, aligned as its header must be.
type control struct {
	_ [0]uint64
	b [segmentLen]byte
}

// putSegment says that a message is to be cut into packets of size bytes, the last may be
// shorter, and returns how long the control message is.
func (c *control) putSegment(size int) int {
	h := (*unix.Cmsghdr)(unsafe.Pointer(c))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	*(*uint16)(unsafe.Pointer(&c.b[unix.CmsgLen(0)])) = uint16(size)
	return unix.CmsgSpace(2)
}

// segment is the size of the packets of which a message of n bytes was put together; n when
// it is one packet.
func (c *control) segment(length uint64, n int) int {
	if length < uint64(unix.CmsgLen(4)) {
		return n
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(c))
	if h.Level != unix.SOL_UDP || h.Type != unix.UDP_GRO {
		return n
	}
	if size := int(*(*int32)(unsafe.Pointer(&c.b[unix.CmsgLen(0)]))); size > 0 {
		return size
	}
	return n
}

func pointer[T any](p *T) unsafe.Pointer { return unsafe.Pointer(p) }

// pieces are the memory that a message is of.
func pieces(h *unix.Msghdr) []unix.Iovec { return unsafe.Slice(h.Iov, int(h.Iovlen)) }

// bytesOf is memory that the kernel is told of by its address.
func bytesOf(at *byte, n int) []byte { return unsafe.Slice(at, n) }

// sizeOf is the size of the packets that a message is to be cut into (putSegment); 0: it is
// not.
func sizeOf(h *unix.Msghdr) int {
	if h.Controllen == 0 {
		return 0
	}
	c := (*control)(unsafe.Pointer(h.Control))
	return int(*(*uint16)(unsafe.Pointer(&c.b[unix.CmsgLen(0)])))
}
