package netlocal

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Layout of struct ifaddrmsg (include/uapi/linux/if_addr.h).
const ifaddrLen = 8

// AddrWatch tells of addresses that leave this machine.
type AddrWatch struct {
	f  *os.File
	rc syscall.RawConn
}

// WatchAddrs begins to watch; Next reports the changes from then on.
func WatchAddrs() (*AddrWatch, error) {
	fd, err := open(unix.NETLINK_ROUTE, unix.RTMGRP_IPV4_IFADDR|unix.RTMGRP_IPV6_IFADDR)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	w := &AddrWatch{f: os.NewFile(uintptr(fd), "netlink")}
	if w.rc, err = w.f.SyscallConn(); err != nil {
		w.f.Close()
		return nil, err
	}
	return w, nil
}

// Close ends the watch and a call of Next.
func (w *AddrWatch) Close() error { return w.f.Close() }

// Next waits for addresses to be taken from an interface of this machine and
// returns them. all says that there were more than the kernel could tell: any may
// have been among them.
func (w *AddrWatch) Next() (gone []netip.Addr, all bool, err error) {
	var buf [16384]byte
	for len(gone) == 0 && !all {
		var msgs []syscall.NetlinkMessage
		var failed error
		err := w.rc.Read(func(fd uintptr) bool {
			msgs, failed = receive(int(fd), buf[:])
			return !errors.Is(failed, unix.EAGAIN)
		})
		switch {
		case err != nil:
			return nil, false, err
		case errors.Is(failed, unix.ENOBUFS):
			all = true
		case failed != nil:
			return nil, false, failed
		}
		for _, m := range msgs {
			if m.Header.Type == unix.RTM_DELADDR {
				if a, ok := ifAddr(m.Data); ok {
					gone = append(gone, a)
				}
			}
		}
	}
	return gone, all, nil
}

// ifAddr reads the machine's own address in a message about one: of a link to one
// other machine IFA_ADDRESS is the other's.
func ifAddr(b []byte) (a netip.Addr, ok bool) {
	if len(b) < ifaddrLen {
		return a, false
	}
	for b = b[ifaddrLen:]; len(b) >= rtattrLen; {
		n := int(binary.NativeEndian.Uint16(b))
		if n < rtattrLen || n > len(b) {
			break
		}
		switch kind := binary.NativeEndian.Uint16(b[2:]); {
		case kind == unix.IFA_LOCAL, kind == unix.IFA_ADDRESS && !ok:
			if x, isAddr := netip.AddrFromSlice(b[rtattrLen:n]); isAddr {
				a, ok = x.Unmap(), true
			}
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return a, ok
}
