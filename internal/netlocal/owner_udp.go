package netlocal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// OwnerUDP tells which user's the UDP socket of this machine is that is bound to an address
// and a port. ErrGone when there is none, or none of a program, or only one that is bound to
// the port at any address; another error when the kernel does not tell.
func OwnerUDP(at netip.AddrPort) (uid uint32, err error) {
	// A question about one UDP socket has the ends the other way round: the kernel looks for
	// who would receive from src (net/ipv4/udp_diag.c, udp_dump_one).
	body := request(netip.AddrPortFrom(at.Addr(), 0), at)
	body[1] = unix.IPPROTO_UDP
	b, err := ask(unix.NETLINK_SOCK_DIAG, sockDiagByFamily, body)
	switch {
	case errors.Is(err, syscall.ENOENT):
		return 0, ErrGone
	case err != nil:
		return 0, fmt.Errorf("asking the kernel whose UDP socket %v is: %w", at, err)
	case len(b) < msgLen:
		return 0, fmt.Errorf("asking the kernel whose UDP socket %v is: an answer of %d bytes", at, len(b))
	}
	id := b[msgID:]
	if address(b[0], id[idSrc:]) != at.Addr().Unmap().WithZone("") || binary.BigEndian.Uint16(id[idSport:]) != at.Port() || native.Uint32(b[msgInode:]) == 0 {
		return 0, ErrGone
	}
	return native.Uint32(b[msgUID:]), nil
}
