package netlocal

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// IsLocal reports whether an address is one of this machine: packets to it stay here (the
// kernel's table "local", with all of 127.0.0.0/8). Where the kernel cannot be asked, an
// address that may be bound counts as one.
func IsLocal(a netip.Addr) bool {
	local, err := AskLocal(a)
	if err != nil {
		return mayBind(a.Unmap())
	}
	return local
}

// AskLocal is IsLocal as the kernel says it; an error: it could not be asked.
func AskLocal(a netip.Addr) (bool, error) {
	if a = a.Unmap(); a.IsLoopback() {
		return true, nil
	}
	return routeIsLocal(a)
}

// Layout of struct rtmsg and struct rtattr (include/uapi/linux/rtnetlink.h).
const (
	rtmsgLen  = 12
	rtmsgType = 7
	rtattrLen = 4
)

func routeIsLocal(a netip.Addr) (bool, error) {
	raw := a.AsSlice()
	b := make([]byte, rtmsgLen+rtattrLen, rtmsgLen+rtattrLen+len(raw))
	b[0], b[1] = unix.AF_INET6, uint8(8*len(raw))
	if a.Is4() {
		b[0] = unix.AF_INET
	}
	native.PutUint16(b[rtmsgLen:], uint16(rtattrLen+len(raw)))
	native.PutUint16(b[rtmsgLen+2:], unix.RTA_DST)
	answer, err := ask(unix.NETLINK_ROUTE, unix.RTM_GETROUTE, append(b, raw...))
	switch {
	case err == unix.ENETUNREACH || err == unix.EHOSTUNREACH:
		return false, nil // no way there, so it is not here
	case err != nil:
		return false, err
	case len(answer) < rtmsgLen:
		return false, fmt.Errorf("netlink: a route of %d bytes", len(answer))
	}
	return answer[rtmsgType] == unix.RTN_LOCAL, nil
}

// mayBind reports whether a socket can have the address.
func mayBind(a netip.Addr) bool {
	family, sa := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: a.As16()})
	if a.Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Addr: a.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return true // nothing is known: as if it were
	}
	defer unix.Close(fd)
	return unix.Bind(fd, sa) == nil
}
