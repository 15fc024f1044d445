package doctor

import (
	"math"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk/nbd"
)

// Machine is what the checks look at. Paths are of the file system.
type Machine struct {
	Read    func(path string) (string, error)
	List    func(path string) ([]string, error) // the names in a directory
	Mode    func(path string) (os.FileMode, error)
	Free    func(path string) (Room, error)         // what the file system there has left
	Limit   func(which int) (soft, hard uint64)     // of RLIMIT_*
	MTU     func(netip.Addr) (name string, mtu int) // of the interface with an address; "": none has it
	Listen  func(netip.AddrPort) error              // whether a TCP port can be had
	Connect func(network, address string) error     // whether somebody listens
	Driver  func() error                            // whether the kernel's nbd answers over netlink
	Daemon  func(socket string) int                 // the process that listens at a Unix socket; 0: not known
	// Probe sends a packet of so many bytes, which may not be divided, and tells whether it
	// came to where it should, and the largest packet that the kernel knows to go there.
	Probe func(from, to netip.Addr, bytes int) (arrived bool, mtu int)
}

// Here is this machine.
func Here() *Machine {
	return &Machine{
		Read: func(path string) (string, error) {
			b, err := os.ReadFile(path)
			return string(b), err
		},
		List: func(path string) ([]string, error) {
			entries, err := os.ReadDir(path)
			var names []string
			for _, e := range entries {
				names = append(names, e.Name())
			}
			return names, err
		},
		Mode: func(path string) (os.FileMode, error) {
			i, err := os.Stat(path)
			if err != nil {
				return 0, err
			}
			return i.Mode(), nil
		},
		Free: freeAt,
		Limit: func(which int) (soft, hard uint64) {
			var r unix.Rlimit
			if unix.Getrlimit(which, &r) != nil {
				return 0, 0
			}
			return r.Cur, r.Max
		},
		MTU: mtuOf, Driver: nbd.Driver, Probe: probe, Daemon: daemonAt,
		Listen: func(at netip.AddrPort) error {
			l, err := net.Listen("tcp", at.String())
			if err == nil {
				l.Close()
			}
			return err
		},
		Connect: func(network, address string) error {
			c, err := net.DialTimeout(network, address, time.Second)
			if err == nil {
				c.Close()
			}
			return err
		},
	}
}

func daemonAt(socket string) (pid int) {
	c, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return 0
	}
	defer c.Close()
	if raw, err := c.(*net.UnixConn).SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			if u, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				pid = int(u.Pid)
			}
		})
	}
	return pid
}

func mtuOf(a netip.Addr) (string, int) {
	all, _ := net.Interfaces()
	for _, i := range all {
		addrs, _ := i.Addrs()
		for _, x := range addrs {
			p, err := netip.ParsePrefix(x.String())
			if err == nil && (p.Addr().Unmap() == a || a.IsLoopback() && p.Addr().IsLoopback() && p.Contains(a)) {
				return i.Name, i.MTU
			}
		}
	}
	return "", 0
}

// Room is what a file system has left.
type Room struct {
	Bytes, Files uint64 // Files: how many more there may be, MaxUint64 where nothing bounds that
	ReadOnly     bool
}

func freeAt(path string) (Room, error) {
	var s unix.Statfs_t
	err := unix.Statfs(path, &s)
	r := Room{s.Bavail * uint64(s.Bsize), s.Ffree, s.Flags&unix.ST_RDONLY != 0}
	if s.Files == 0 { // btrfs, for one, makes inodes as they are needed
		r.Files = math.MaxUint64
	}
	return r, err
}
