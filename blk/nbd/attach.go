package nbd

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/rdserr"
)

// Commands and attributes of the kernel's driver (include/uapi/linux/nbd-netlink.h).
const (
	genlVersion = 1

	genlConnect     = 1
	genlDisconnect  = 2
	genlReconfigure = 3
	genlStatus      = 5

	attrIndex       = 1
	attrSize        = 2
	attrBlockSize   = 3
	attrTimeout     = 4
	attrServerFlags = 5
	attrClientFlags = 6
	attrSockets     = 7
	attrDeadConn    = 8
	attrDeviceList  = 9
	attrBackend     = 10

	attrSockItem        = 1 // in attrSockets
	attrSockFd          = 1 // in attrSockItem
	attrDeviceItem      = 1 // in attrDeviceList
	attrDeviceIndex     = 1 // in attrDeviceItem
	attrDeviceConnected = 2

	clientDestroy    = 1 << 0
	clientDisconnect = 1 << 1
)

// AnyDevice lets the kernel choose the device.
const AnyDevice = -1

// Attach describes a /dev/nbdN. The timeouts are always sent, in whole seconds, rounded up:
// a device without them waits for ever, and a process that uses it cannot be killed.
type Attach struct {
	Size      uint64 // bytes; Reconfigure: 0 leaves it
	BlockSize uint32 // bytes: the logical block; Reconfigure: 0 leaves it
	Flags     uint64 // KernelFlags

	// Timeout of one request; more than 0. A connection on which a request takes longer is
	// dead to the kernel, which sends the request again on another. Requests under way on a
	// connection that broke are sent again too, but only when their time is over: I/O
	// stalls so long when its server dies.
	Timeout     time.Duration
	DeadTimeout time.Duration // how long requests wait for a new socket when all are dead; more than 0

	// Sockets are ends of Unix socket pairs, whose other ends are served by
	// ServeKernel; more than one only if the device can multi-conn. The kernel
	// takes references of its own. Reconfigure: replace dead ones, may be none.
	Sockets []int

	// Backend is kept by the kernel (since 5.14); Reconfigure fails unless it
	// is the same. May be empty.
	Backend string

	DisconnectOnClose   bool // when the last user closes the device; Reconfigure sets it again
	DestroyOnDisconnect bool // remove /dev/nbdN then; the same
}

func (a *Attach) validate() error {
	switch {
	case a.Timeout <= 0 || a.DeadTimeout <= 0:
		return rdserr.With(rdserr.ErrInvalid, "nbd: timeout %v, dead connection timeout %v; want both, more than 0", a.Timeout, a.DeadTimeout)
	case len(a.Sockets) > maxSockets:
		return rdserr.With(rdserr.ErrInvalid, "nbd: %d sockets; at most %d", len(a.Sockets), maxSockets)
	case len(a.Backend) > maxName || strings.IndexByte(a.Backend, 0) >= 0:
		return rdserr.With(rdserr.ErrInvalid, "nbd: backend identifier %.40q; want at most %d bytes without NUL", a.Backend, maxName)
	}
	return nil
}

// maxSockets bounds the connections of one device.
const maxSockets = 64

// Connect makes the kernel's device index, or any with AnyDevice, one of ours,
// and returns its number. It needs CAP_SYS_ADMIN.
func Connect(index int, a Attach) (int, error) {
	if err := a.validate(); err != nil {
		return 0, err
	}
	if a.Size == 0 || a.BlockSize == 0 || len(a.Sockets) == 0 {
		return 0, rdserr.With(rdserr.ErrInvalid, "nbd: size %d, block size %d, %d sockets; want all of them", a.Size, a.BlockSize, len(a.Sockets))
	}
	answers, err := ask("connect", genlConnect, unix.NLM_F_ACK, func(m *message) {
		if index >= 0 { // recent kernels refuse -1 for any
			m.u32(attrIndex, uint32(index))
		}
		a.put(m)
		m.u64(attrServerFlags, a.Flags)
	})
	if err != nil {
		return 0, err
	}
	// The answer names the device also when it was asked for by number.
	for _, b := range answers {
		err := eachAttr(b, func(kind uint16, data []byte) error {
			if kind != attrIndex {
				return nil
			}
			n, err := getU32(data)
			index = int(n)
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	if index < 0 {
		return 0, rdserr.With(rdserr.ErrProtocol, "nbd: the kernel did not say which device it connected")
	}
	return index, nil
}

// Reconfigure gives a device new sockets in place of dead ones, another size, or
// other timeouts. Sockets for which none is dead are dropped without a word:
// Reconnect looks whether they were taken.
func Reconfigure(index int, a Attach) error {
	if err := a.validate(); err != nil {
		return err
	}
	_, err := ask("reconfigure", genlReconfigure, unix.NLM_F_ACK, func(m *message) {
		m.u32(attrIndex, uint32(index))
		a.put(m)
	})
	return err
}

// Disconnect ends a device. Writes that it had not done by then fail.
func Disconnect(index int) error {
	_, err := ask("disconnect", genlDisconnect, unix.NLM_F_ACK, func(m *message) {
		m.u32(attrIndex, uint32(index))
	})
	return err
}

// Status tells for each device the driver has whether it is connected; of one
// device only, unless index is AnyDevice.
func Status(index int) (map[int]bool, error) {
	answers, err := ask("status", genlStatus, unix.NLM_F_ACK, func(m *message) {
		if index >= 0 {
			m.u32(attrIndex, uint32(index))
		}
	})
	if err != nil {
		return nil, err
	}
	devices := map[int]bool{}
	for _, b := range answers {
		// A list of items, each a nest of its own (net/netlink, nbd's NBD_ATTR_DEVICE_LIST).
		if err := eachAttr(b, func(kind uint16, list []byte) error {
			if kind != attrDeviceList {
				return nil
			}
			return eachAttr(list, func(kind uint16, item []byte) error {
				if kind != attrDeviceItem {
					return nil
				}
				return parseDevice(item, devices)
			})
		}); err != nil {
			return nil, err
		}
	}
	return devices, nil
}

func parseDevice(item []byte, devices map[int]bool) error {
	n, connected := -1, false
	err := eachAttr(item, func(kind uint16, data []byte) error {
		switch kind {
		case attrDeviceIndex:
			v, err := getU32(data)
			n = int(v)
			return err
		case attrDeviceConnected:
			connected = len(data) > 0 && data[0] != 0
		}
		return nil
	})
	if err == nil && n >= 0 {
		devices[n] = connected
	}
	return err
}

// put adds the attributes that Connect and Reconfigure have in common.
func (a *Attach) put(m *message) {
	if a.Size != 0 {
		m.u64(attrSize, a.Size)
	}
	if a.BlockSize != 0 {
		m.u64(attrBlockSize, uint64(a.BlockSize))
	}
	// Rounded up: 0 means no timeout to the driver.
	seconds := func(d time.Duration) uint64 { return uint64((d + time.Second - 1) / time.Second) }
	m.u64(attrTimeout, seconds(a.Timeout))
	m.u64(attrDeadConn, seconds(a.DeadTimeout))
	var flags uint64
	if a.DestroyOnDisconnect {
		flags |= clientDestroy
	}
	if a.DisconnectOnClose {
		flags |= clientDisconnect
	}
	m.u64(attrClientFlags, flags)
	if a.Backend != "" {
		m.str(attrBackend, a.Backend)
	}
	// The driver takes a reference to each file: this process may close its own afterwards.
	if len(a.Sockets) > 0 {
		m.nest(attrSockets, func() {
			for _, fd := range a.Sockets {
				m.nest(attrSockItem, func() { m.u32(attrSockFd, uint32(fd)) })
			}
		})
	}
}

// dialGenl stands for openGenl in tests.
var dialGenl = openGenl

// ask sends one command to the driver.
func ask(what string, cmd uint8, flags uint16, fill func(*message)) ([][]byte, error) {
	nl, err := dialGenl()
	if err != nil {
		return nil, err
	}
	defer nl.close()
	id, err := family(nl, "nbd")
	if err != nil {
		return nil, err
	}
	m := newMessage(id, cmd, genlVersion, flags)
	fill(m)
	answers, err := nl.call(m.finish(2))
	if errors.Is(err, unix.EPERM) {
		return nil, rdserr.With(rdserr.ErrPerm, "nbd: %s needs CAP_SYS_ADMIN", what)
	}
	if err != nil {
		return nil, fmt.Errorf("nbd: %s: %w", what, err)
	}
	return answers, nil
}

// Driver reports why devices cannot be asked for over netlink; nil: they can. It needs no
// right.
func Driver() error {
	nl, err := dialGenl()
	if err != nil {
		return err
	}
	defer nl.close()
	_, err = family(nl, "nbd")
	return err
}

// KernelPair is a socket pair for the driver: kernel goes into Attach.Sockets
// and can be closed after Connect; ours is for ServeKernel.
func KernelPair() (kernel *os.File, ours net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("nbd: socket pair: %w", err)
	}
	kernel = os.NewFile(uintptr(fds[0]), "nbd-kernel")
	f := os.NewFile(uintptr(fds[1]), "nbd-server")
	ours, err = net.FileConn(f) // a non-blocking duplicate
	f.Close()
	if err != nil {
		kernel.Close()
		return nil, nil, fmt.Errorf("nbd: socket pair: %w", err)
	}
	return kernel, ours, nil
}

// sysBlock is where the kernel describes block devices; tests have another.
var sysBlock = "/sys/block"

// Backend returns what the kernel knows a device by (Attach.Backend); "": by nothing, which it
// also is when it is not attached, or not over netlink (qemu-nbd). It returns false where the
// kernel does not tell.
func Backend(index int) (string, bool) {
	dir := filepath.Join(sysBlock, "nbd"+strconv.Itoa(index))
	b, err := os.ReadFile(filepath.Join(dir, "backend"))
	if errors.Is(err, fs.ErrNotExist) && tellsBackend(kernelRelease()) {
		_, err = os.Stat(dir) // no device, or no sysfs: that tells nothing
	}
	return strings.TrimSuffix(string(b), "\n"), err == nil
}

// tellsBackend reports whether a kernel has the file of each device that is attached over netlink.
func tellsBackend(release string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return n == 2 && (major > 5 || major == 5 && minor >= 14)
}

// kernelRelease is as uname(1) has it; tests have another.
var kernelRelease = func() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// SetMaxRequest lets a device make requests as large as the driver can, up to n
// bytes. The default is small and costs throughput. It needs the right to write there, unless somebody has
// set that already (packaging/60-rdsd-nbd.rules).
func SetMaxRequest(index int, n int) error {
	dir := filepath.Join(sysBlock, "nbd"+strconv.Itoa(index), "queue")
	b, err := os.ReadFile(filepath.Join(dir, "max_hw_sectors_kb"))
	if err != nil {
		return err
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return fmt.Errorf("nbd%d: max_hw_sectors_kb: %w", index, err)
	}
	want, name := strconv.Itoa(min(most, max(n>>10, 4))), filepath.Join(dir, "max_sectors_kb")
	if is, err := os.ReadFile(name); err == nil && strings.TrimSpace(string(is)) == want {
		return nil
	}
	return os.WriteFile(name, []byte(want), 0)
}
