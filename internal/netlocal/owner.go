package netlocal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var native = binary.NativeEndian

// Layout of struct inet_diag_req_v2 and struct inet_diag_msg
// (include/uapi/linux/inet_diag.h); both contain a struct inet_diag_sockid.
const (
	sockDiagByFamily = 20 // message type SOCK_DIAG_BY_FAMILY
	reqLen           = 56
	reqID            = 8
	msgLen           = 72
	msgState         = 1
	msgID            = 4
	msgUID           = 64
	msgInode         = 68
	idSport          = 0 // the rest of inet_diag_sockid, from its beginning
	idDport          = 2
	idSrc            = 4
	idDst            = 20
	idCookie         = 40
)

// States of TCP in which a socket is a process's end of a connection
// (include/net/tcp_states.h). The others are a listener's, or those of a connection whose
// socket is gone, for which the kernel reports uid 0.
const owned = 1<<1 | 1<<4 | 1<<5 | 1<<8 | 1<<9 | 1<<11 // ESTABLISHED FIN_WAIT1 FIN_WAIT2 CLOSE_WAIT LAST_ACK CLOSING

const tcpEstablished = 1

// ErrGone is returned when this machine has no socket, or no socket of a program any more,
// that is the other end of the connection.
var ErrGone = errors.New("no program of this machine holds the other end of the connection")

// Owner tells which user's the other end of a TCP connection is, of which ours
// has the addresses local and remote: the socket of this machine that has them
// the other way round. ErrGone when there is none; another error when the kernel
// does not tell.
func Owner(local, remote netip.AddrPort) (uid uint32, err error) {
	body := request(remote, local)
	b, err := ask(unix.NETLINK_SOCK_DIAG, sockDiagByFamily, body)
	switch {
	case errors.Is(err, syscall.ENOENT):
		return 0, ErrGone
	case err != nil:
		return 0, fmt.Errorf("asking the kernel whose socket %v is: %w", remote, err)
	case len(b) < msgLen:
		return 0, fmt.Errorf("asking the kernel whose socket %v is: an answer of %d bytes", remote, len(b))
	}
	// When no connection fits, the kernel looks for a listener. A connection that
	// no program has accepted yet, or that none holds any more, has no inode, and
	// older kernels call it root's.
	if !sameEnds(b, remote, local) || owned>>b[msgState]&1 == 0 || native.Uint32(b[msgInode:]) == 0 {
		return 0, ErrGone
	}
	return native.Uint32(b[msgUID:]), nil
}

// AcceptedBy is Owner of the end that a connection which was just made leads to.
// The connection stands before the program there has accepted it: until then,
// or until ctx or the connection ends, AcceptedBy waits.
func AcceptedBy(ctx context.Context, local, remote netip.AddrPort) (uid uint32, err error) {
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 50*time.Millisecond) {
		uid, err = Owner(local, remote)
		if !errors.Is(err, ErrGone) || !stands(local, remote) {
			return uid, err
		}
		select {
		case <-ctx.Done():
			return 0, err
		case <-time.After(wait):
		}
	}
}

// stands reports whether our end of a connection still expects something of the
// other one.
func stands(local, remote netip.AddrPort) bool {
	b, err := ask(unix.NETLINK_SOCK_DIAG, sockDiagByFamily, request(local, remote))
	return err == nil && len(b) >= msgLen && sameEnds(b, local, remote) && b[msgState] == tcpEstablished
}

// request asks for the socket whose own address is src and whose peer's is dst.
func request(src, dst netip.AddrPort) []byte {
	b := make([]byte, reqLen)
	b[0], b[1] = unix.AF_INET6, unix.IPPROTO_TCP
	if src.Addr().Unmap().Is4() {
		b[0] = unix.AF_INET
	}
	native.PutUint32(b[4:], ^uint32(0)) // all states
	id := b[reqID:]
	binary.BigEndian.PutUint16(id[idSport:], src.Port())
	binary.BigEndian.PutUint16(id[idDport:], dst.Port())
	copy(id[idSrc:], src.Addr().Unmap().AsSlice())
	copy(id[idDst:], dst.Addr().Unmap().AsSlice())
	native.PutUint64(id[idCookie:], ^uint64(0)) // none
	return b
}

// sameEnds reports whether the kernel's answer is about the socket asked for.
func sameEnds(b []byte, src, dst netip.AddrPort) bool {
	id := b[msgID:]
	return binary.BigEndian.Uint16(id[idSport:]) == src.Port() && binary.BigEndian.Uint16(id[idDport:]) == dst.Port() &&
		address(b[0], id[idSrc:]) == src.Addr().Unmap().WithZone("") && address(b[0], id[idDst:]) == dst.Addr().Unmap().WithZone("")
}

// address reads one of the two of an inet_diag_sockid. An IPv6 socket may hold an
// IPv4 connection.
func address(family uint8, b []byte) netip.Addr {
	if family == unix.AF_INET {
		return netip.AddrFrom4([4]byte(b))
	}
	return netip.AddrFrom16([16]byte(b)).Unmap()
}
