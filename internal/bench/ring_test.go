package bench

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring is a byte ring in shared memory with one producer and one consumer. It
// is mapped twice in a row, so that every span of it is contiguous. It trusts
// both sides: this is the yardstick, not a front end.
//
// What lies in it is what goes over the wire: records of 8 bytes of header
// (length of the payload, and four bytes unused) and the payload, padded to 8.
type ring struct {
	tail, head   *uint64 // bytes published, bytes consumed
	asleep       *uint32 // consumer waits for the tail to move: how it sleeps
	full         *uint32 // producer waits for half of the ring to be free
	data         []byte  // 2 × size
	size         uint64
	consumerBell int // eventfd of a consumer or producer that sleeps in poll
	producerBell int
}

// How a side sleeps, in asleep and full. The one that wakes it sets 0.
const (
	awake    = 0
	onFutex  = 1
	onBell   = 2
	ringCtl  = 4096
	recHdr   = 8
	noBell   = -1
	recAlign = 8
)

func ringBytes(size int) int { return ringCtl + size }

// mapRing maps a ring of size bytes (a power of two, whole pages) from fd.
func mapRing(fd, size int) (*ring, error) {
	ctl, err := unix.Mmap(fd, 0, ringCtl, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	base, err := unix.MmapPtr(-1, 0, nil, uintptr(2*size), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	for i := range 2 {
		if _, err := unix.MmapPtr(fd, ringCtl, unsafe.Add(base, i*size), uintptr(size),
			unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
			return nil, os.NewSyscallError("mmap", err)
		}
	}
	at := func(i int) unsafe.Pointer { return unsafe.Pointer(&ctl[i*lineBytes]) }
	return &ring{tail: (*uint64)(at(0)), head: (*uint64)(at(1)), asleep: (*uint32)(at(2)), full: (*uint32)(at(3)),
		data: unsafe.Slice((*byte)(base), 2*size), size: uint64(size), consumerBell: noBell, producerBell: noBell}, nil
}

func (r *ring) at(pos uint64, n int) []byte {
	off := pos & (r.size - 1)
	return r.data[off : off+uint64(n) : off+uint64(n)]
}

func recBytes(payload int) int { return (recHdr + payload + recAlign - 1) &^ (recAlign - 1) }

// wake ends the sleep that flag declares. The caller has just stored an index
// with XCHG, which orders the load behind it.
func wake(flag *uint32, bell int) {
	if atomic.LoadUint32(flag) == awake {
		return
	}
	switch atomic.SwapUint32(flag, awake) {
	case onFutex:
		futexWake(flag)
	case onBell:
		ring8(bell)
	}
}

// --- producer ----------------------------------------------------------------------

type producer struct {
	*ring
	pos  uint64 // next byte to write; *tail or more
	seen uint64 // head, as last seen
	idle idler
}

// room is how many bytes may be written.
func (p *producer) room(need int) int {
	free := int(p.size - (p.pos - p.seen))
	if free < need {
		p.seen = atomic.LoadUint64(p.head)
		free = int(p.size - (p.pos - p.seen))
	}
	return free
}

// wait waits for room for n bytes. Nothing unpublished may be held.
func (p *producer) wait(n int) {
	for p.room(n) < n {
		if !p.idle.idle() {
			continue
		}
		atomic.StoreUint32(p.full, onFutex)
		if p.room(n) < n {
			futexWait(p.full, onFutex)
		}
		atomic.StoreUint32(p.full, awake)
	}
	p.idle.busy()
}

// record begins a record; the caller fills the payload.
func (p *producer) record(n int) []byte {
	b := p.at(p.pos, recBytes(n))
	binary.LittleEndian.PutUint64(b, uint64(n))
	p.pos += uint64(len(b))
	return b[recHdr : recHdr+n]
}

// publish shows the consumer everything before to, and wakes it.
func (p *producer) publish(to uint64) {
	atomic.StoreUint64(p.tail, to)
	wake(p.asleep, p.consumerBell)
}

// --- consumer ----------------------------------------------------------------------

type consumer struct {
	*ring
	pos  uint64 // next byte to read; *head or more
	seen uint64 // tail, as last seen
	idle idler
}

// span is what can be read; more than one record if there is.
func (c *consumer) span() []byte {
	if c.pos == c.seen {
		c.seen = atomic.LoadUint64(c.tail)
	}
	return c.at(c.pos, int(c.seen-c.pos))
}

// wait waits until there is a span.
func (c *consumer) wait() []byte {
	for {
		if s := c.span(); len(s) > 0 {
			c.idle.busy()
			return s
		}
		if !c.idle.idle() {
			continue
		}
		atomic.StoreUint32(c.asleep, onFutex)
		if len(c.span()) == 0 {
			futexWait(c.asleep, onFutex)
		}
		atomic.StoreUint32(c.asleep, awake)
	}
}

// consume gives n bytes back to the producer. One that waits is woken when
// half of the ring is free: each wake-up costs more than a record.
func (c *consumer) consume(n int) {
	c.pos += uint64(n)
	atomic.StoreUint64(c.head, c.pos)
	if atomic.LoadUint32(c.full) != awake && c.size-(c.seen-c.pos) >= c.size/2 {
		wake(c.full, c.producerBell)
	}
}

// payload is the first record of a span, and its whole length.
func payload(span []byte) ([]byte, int, error) {
	n := int(binary.LittleEndian.Uint32(span))
	if size := recBytes(n); size <= len(span) {
		return span[recHdr : recHdr+n], size, nil
	}
	return nil, 0, fmt.Errorf("a record of %d bytes in a span of %d", n, len(span))
}

// --- system calls ---------------------------------------------------------------------

// Operations of futex(2), on memory that processes share.
const (
	futexOpWait = 0
	futexOpWake = 1
)

// patience bounds every sleep. Nobody is woken by it when all goes well.
var patience = syscall.Timespec{Sec: 1}

// futexWait may block and so gives its P away.
func futexWait(w *uint32, v uint32) {
	syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexOpWait, uintptr(v),
		uintptr(unsafe.Pointer(&patience)), 0, 0)
}

func futexWake(w *uint32) {
	syscall.RawSyscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexOpWake, 1, 0, 0, 0)
}

// ring8 adds to an eventfd.
func ring8(fd int) {
	one := uint64(1)
	syscall.RawSyscall(syscall.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), 8)
	runtime.KeepAlive(&one)
}

// send and recv do not block. n is -1 when the call would.
func send(fd int, b []byte) (int, error) {
	n, _, e := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return result("send", n, e)
}

func recv(fd int, b []byte) (int, error) {
	n, _, e := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		unix.MSG_DONTWAIT, 0, 0)
	return result("recv", n, e)
}

func result(op string, n uintptr, e syscall.Errno) (int, error) {
	switch e {
	case 0:
		return int(n), nil
	case syscall.EAGAIN, syscall.EINTR:
		return -1, nil
	}
	return 0, os.NewSyscallError(op, e)
}

// readable asks without the lock of the socket, which a recv in vain takes from
// the softirq that is just bringing data: on virtual processors the one that
// finds it taken halts.
func readable(fd int) bool {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	var now syscall.Timespec
	n, _, _ := syscall.RawSyscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	return n != 0
}

// poll waits up to a second for any of fds.
func poll(fds []unix.PollFd) {
	t := patience
	syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)), uintptr(unsafe.Pointer(&t)), 0, 0, 0)
}
