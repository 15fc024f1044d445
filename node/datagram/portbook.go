package datagram

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/eintr"
)

// portBook is a file in which the next life of the daemon finds the ports that are
// bound now and whose they are, and the kernels to which it has to connect: however this one ends, for it is a mapping of a
// file and a store is all that a bind costs. All of it is allocated beforehand, so
// that a full file system is an error at the start and not a signal later.
//
//	0     magic, number of addresses (8 bytes each)
//	64    the addresses, 16 bytes each
//	4096  for each address 65,536 words of 4 bytes: uid + 1, or 0; then 256 addresses
//	      of kernels, 16 bytes each
type portBook struct {
	mem   []byte
	index map[netip.Addr]int
	done  atomic.Bool // what is closed from now on is closed by the end of the daemon

	mu      sync.Mutex
	kernels []kernelPlaces // by number of the address; guarded by mu
}

// kernelPlaces are the kernels of an address, and which of them were peers in this life.
type kernelPlaces struct {
	at   map[netip.Addr]int
	seen [bookKernels]bool
}

const (
	bookMagic     = 0x7264736470727431 // "rdsdprt1"
	bookAddrs     = 64
	bookTables    = 4096
	bookPorts     = 4 << 16
	bookKernels   = 256
	bookTable     = bookPorts + 16*bookKernels
	bookMostAddrs = (bookTables - bookAddrs) / 16
)

// bookPage is what the book says of an address.
type bookPage struct {
	ports   map[uint16]uint32 // uid by port
	kernels []netip.Addr
}

type bookPages map[netip.Addr]bookPage

// openPortBook makes the book of this life at file, and returns what the former
// one says of the addresses that are served again; that stands in the new one, too. It is
// returned as well if the book cannot be made. Then there is none: one that stayed would tell
// a later life of a former one.
func openPortBook(file string, addrs []netip.Addr) (*portBook, bookPages, error) {
	was, err := readPortBook(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	held := bookPages{}
	for _, a := range addrs {
		if page, ok := was[a]; ok {
			held[a] = page
		}
	}
	b, err := makePortBook(file, addrs, held)
	if err != nil {
		os.Remove(file)
		b, err = makePortBook(file, addrs, held) // perhaps that has made room
	}
	return b, held, err
}

// fallocate stands for unix.Fallocate in tests of file systems that are full.
var fallocate = unix.Fallocate

// makePortBook makes the book, with what is held.
func makePortBook(file string, addrs []netip.Addr, held bookPages) (*portBook, error) {
	if len(addrs) > bookMostAddrs {
		return nil, fmt.Errorf("%d addresses, more than %d", len(addrs), bookMostAddrs)
	}
	fresh := file + ".new"
	os.Remove(fresh)
	f, err := os.OpenFile(fresh, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping stays
	defer os.Remove(fresh)
	size := bookTables + len(addrs)*bookTable
	if err := eintr.Again(func() error { return fallocate(int(f.Fd()), 0, 0, int64(size)) }); err != nil {
		return nil, os.NewSyscallError("fallocate", err)
	}
	b := &portBook{index: map[netip.Addr]int{}}
	if b.mem, err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	binary.BigEndian.PutUint64(b.mem, bookMagic)
	binary.BigEndian.PutUint64(b.mem[8:], uint64(len(addrs)))
	for i, a := range addrs {
		raw := a.As16()
		copy(b.mem[bookAddrs+16*i:], raw[:])
		b.index[a] = i
		b.kernels = append(b.kernels, kernelPlaces{at: map[netip.Addr]int{}})
		page := held[a]
		for port, uid := range page.ports {
			b.note(a, port, uid, true)
		}
		for _, k := range page.kernels {
			b.noteKernel(a, k, false)
		}
	}
	if err := os.Rename(fresh, file); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// readPortBook reads a former life's. One that is not the daemon's own, or makes
// no sense, is an error.
func readPortBook(file string) (bookPages, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != uint32(os.Geteuid()) {
		return nil, fmt.Errorf("%s is no file of this daemon's user", file)
	}
	var head [bookTables]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return nil, nil // it was being made
	}
	n := binary.BigEndian.Uint64(head[8:])
	if binary.BigEndian.Uint64(head[:]) != bookMagic || n > bookMostAddrs || st.Size != int64(bookTables+n*bookTable) {
		return nil, nil // another version's
	}
	book := bookPages{}
	table := make([]byte, bookTable)
	for i := range n {
		if _, err := io.ReadFull(f, table); err != nil {
			return nil, err
		}
		ports := map[uint16]uint32{}
		for port := range 1 << 16 {
			if v := binary.NativeEndian.Uint32(table[4*port:]); v != 0 {
				ports[uint16(port)] = v - 1
			}
		}
		page := bookPage{ports: ports}
		for k := range bookKernels {
			if a := netip.AddrFrom16([16]byte(table[bookPorts+16*k:])).Unmap(); !a.IsUnspecified() {
				page.kernels = append(page.kernels, a)
			}
		}
		book[netip.AddrFrom16([16]byte(head[bookAddrs+16*i:])).Unmap()] = page
	}
	return book, nil
}

// note writes down that a port was bound or closed.
func (b *portBook) note(a netip.Addr, port uint16, uid uint32, bound bool) {
	i, ok := b.index[a]
	if !ok || b.done.Load() {
		return
	}
	word := uint32(0)
	if bound {
		word = uid + 1
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&b.mem[bookTables+i*bookTable+4*int(port)])), word)
}

// noteKernel writes down that kernel is a peer of the address a which waits for us
// to connect, in this life (seen) or in a former one. There is room for bookKernels of them:
// when it is used up, one that was not seen in this life makes place.
func (b *portBook) noteKernel(a, kernel netip.Addr, seen bool) {
	i, ok := b.index[a]
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	k := &b.kernels[i]
	at, ok := k.at[kernel]
	if !ok {
		if at, ok = k.place(); !ok {
			return
		}
		k.at[kernel] = at
		raw := kernel.As16()
		copy(b.mem[bookTables+i*bookTable+bookPorts+16*at:], raw[:])
	}
	k.seen[at] = k.seen[at] || seen
}

// place is one for another kernel; false: there is none.
func (k *kernelPlaces) place() (at int, ok bool) {
	if n := len(k.at); n < bookKernels {
		return n, true
	}
	for old, at := range k.at {
		if !k.seen[at] {
			delete(k.at, old)
			return at, true
		}
	}
	return 0, false
}

// freeze leaves the book as it is for the next life.
func (b *portBook) freeze() {
	if b != nil {
		b.done.Store(true)
	}
}

// close must come after the last note.
func (b *portBook) close() {
	if b != nil && b.mem != nil {
		b.freeze()
		unix.Munmap(b.mem)
		b.mem = nil
	}
}

// openPorts has the ports that were bound in the former life held for their owners
// (rds.restart_hold, from Serving on), and writes down those of this one. It returns the
// kernels to connect to.
func (a *Host) openPorts() bookPages {
	file := a.deps.Config.LedgerPath()
	hold := a.deps.Config.RDS.RestartHold.Duration
	if file == "" {
		return nil
	}
	file += ".ports"
	if hold == 0 { // and a later life must not find a former one's
		os.Remove(file)
		return nil
	}
	var addrs []netip.Addr
	for _, h := range a.list {
		addrs = append(addrs, h.addr)
	}
	book, held, err := openPortBook(file, addrs)
	if err != nil {
		a.deps.Log.Warn("ports will not be held over the next restart", "file", file, "error", err)
	}
	a.ports = book
	n := 0
	for _, h := range a.list {
		e, now := h.Lock()
		if book != nil {
			e.OnPorts(func(port uint16, uid uint32, bound bool) { book.note(h.addr, port, uid, bound) })
		}
		page := held[h.addr]
		e.Hold(now, page.ports, conn.Never)
		n += e.Held()
		h.Unlock()
	}
	if n > 0 {
		a.deps.Log.Info("ports are held for those who had them bound", "ports", n, "for", hold)
	}
	return held
}

// Serving has the ports that are held given up when rds.restart_hold is over. It is called
// when clients can bind them: what else the start waits for may take longer than that.
func (a *Host) Serving() {
	for _, h := range a.list {
		e, now := h.Lock()
		e.HoldUntil(now + a.deps.Config.RDS.RestartHold.Duration)
		h.Unlock()
	}
}

// Draining keeps the ports that are still held for the next life: their owners cannot bind any
// more, and what is waited for until Quiesce may take longer than rds.restart_hold.
func (a *Host) Draining() {
	for _, h := range a.list {
		e, _ := h.Lock()
		e.HoldUntil(conn.Never)
		h.Unlock()
	}
}

// reconnect connects to the kernels that were peers before the daemon ended. Of
// two addresses the smaller one connects, and a kernel with the larger one asks for
// it only when an application of it sends: one that waits already, for room in its
// send buffer or for a port to become clear, would wait for ever.
func (a *Host) reconnect(was bookPages) {
	for _, h := range a.list {
		e, now := h.Lock()
		for _, k := range was[h.addr].kernels {
			if a.engineConfig.AllowPeer(k) && a.engineConfig.AllowKernel(k) {
				if pe, err := e.Peer(k); err == nil && pe.Conn() != nil {
					pe.Conn().Connect(now)
				}
			}
		}
		h.Unlock()
	}
}
