package volume

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/internal/quota"
)

// requestMemory charges what the programs that use a mapping have in the daemon.
type requestMemory struct{ *quota.Account }

func (m requestMemory) Take(n int) bool { return m.Account.Take(quota.Requests, int64(n)) == nil }
func (m requestMemory) Grow(n int)      { m.Account.Grow(quota.Requests, int64(n)) }
func (m requestMemory) Give(n int)      { m.Account.Give(quota.Requests, int64(n)) }

// storeMemory charges the pages of a volume in memory.
type storeMemory struct{ *quota.Account }

func (m storeMemory) Take(n int64) error { return m.Account.Take(quota.Stores, n) }
func (m storeMemory) Give(n int64)       { m.Account.Give(quota.Stores, n) }

// chargeUser charges connections to the users who made them, as the kernel names
// them; nil: nobody counts.
func (h *Host) chargeUser() func(net.Conn) nbd.Charge {
	if h.memory == nil {
		return nil
	}
	return func(nc net.Conn) nbd.Charge { return requestMemory{h.memory.Account(connected(nc))} }
}

// chargeNode charges connections to the node: it is the kernel that made them.
func (h *Host) chargeNode() func(net.Conn) nbd.Charge {
	if h.memory == nil {
		return nil
	}
	return func(net.Conn) nbd.Charge { return requestMemory{h.memory.Account(quota.Holder{})} }
}

// connected is who connected; the node, where the kernel does not say.
func connected(nc net.Conn) (who quota.Holder) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return who
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return who
	}
	raw.Control(func(fd uintptr) {
		if u, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			who = quota.User(u.Uid)
		}
	})
	return who
}
