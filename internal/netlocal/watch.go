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

// addrGroups are the multicast groups of changes of addresses.
const addrGroups = unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR

// watch is a netlink socket that news come on.
type watch struct {
	f  *os.File
	rc syscall.RawConn
}

func newWatch(groups uint32) (w watch, err error) {
	fd, err := open(unix.NETLINK_ROUTE, groups)
	if err != nil {
		return w, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return w, os.NewSyscallError("fcntl", err)
	}
	w.f = os.NewFile(uintptr(fd), "netlink")
	if w.rc, err = w.f.SyscallConn(); err != nil {
		w.f.Close()
	}
	return w, err
}

// Close ends the watch and a call of Next.
func (w *watch) Close() error { return w.f.Close() }

// next waits for news. failed is unix.ENOBUFS when some were lost.
func (w *watch) next(buf []byte) (msgs []syscall.NetlinkMessage, failed, err error) {
	err = w.rc.Read(func(fd uintptr) bool {
		msgs, failed = receive(int(fd), buf)
		return !errors.Is(failed, unix.EAGAIN)
	})
	return msgs, failed, err
}

// ChangeWatch tells that the machine's network has changed.
type ChangeWatch struct{ watch }

// WatchChanges begins to watch addresses and interfaces.
func WatchChanges() (*ChangeWatch, error) {
	w, err := newWatch(addrGroups | unix.RTMGRP_LINK)
	if err != nil {
		return nil, err
	}
	return &ChangeWatch{w}, nil
}

// Next waits until an address or an interface came, went or changed, since the call before.
func (w *ChangeWatch) Next() error {
	var buf [16384]byte
	// Where the kernel lost count there was a change as well.
	if _, failed, err := w.next(buf[:]); err != nil {
		return err
	} else if failed != nil && !errors.Is(failed, unix.ENOBUFS) {
		return failed
	}
	return nil
}

// AddrWatch tells of addresses that leave this machine.
type AddrWatch struct{ watch }

// WatchAddrs begins to watch; Next reports the changes from then on.
func WatchAddrs() (*AddrWatch, error) {
	w, err := newWatch(addrGroups)
	if err != nil {
		return nil, err
	}
	return &AddrWatch{w}, nil
}

// Next waits for addresses to be taken from an interface of this machine and
// returns them. all says that there were more than the kernel could tell: any may
// have been among them.
func (w *AddrWatch) Next() (gone []netip.Addr, all bool, err error) {
	var buf [16384]byte
	for len(gone) == 0 && !all {
		msgs, failed, err := w.next(buf[:])
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
