package shm

import (
	"crypto/rand"
	"fmt"
	"math/bits"
	"net/netip"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/eintr"
)

// Spec describes a region to be made. Zero entries mean the defaults.
type Spec struct {
	Local       netip.AddrPort
	UID, PID    uint32 // of the client
	SndBuf      int    // bytes
	RcvBuf      int    // bytes, soft limit
	MaxDatagram int    // bytes; 0: MaxDatagram
	Instance    uint64 // of the daemon

	Flows, Sends, Events, Receives, Releases int // entries, powers of two
	SendArena, RecvArena                     int // bytes, powers of two; 0: from the buffers
}

// header lays the region out.
func (s *Spec) header() (Header, error) {
	h := Header{Instance: s.Instance, Local: s.Local, UID: s.UID, PID: s.PID, MaxDatagram: uint32(s.MaxDatagram), Takes: TakesMixed}
	if !s.Local.IsValid() || s.SndBuf < 0 || s.RcvBuf < 0 || s.SndBuf > 1<<34 || s.RcvBuf > 1<<34 || s.MaxDatagram < 0 || s.MaxDatagram > MaxDatagram {
		return h, &Error{unix.EINVAL, fmt.Sprintf("a region for %v with buffers of %d and %d bytes and datagrams of %d", s.Local, s.SndBuf, s.RcvBuf, s.MaxDatagram)}
	}
	if s.MaxDatagram == 0 {
		h.MaxDatagram = MaxDatagram
	}
	h.SndBuf, h.RcvBuf = uint64(s.SndBuf), uint64(s.RcvBuf)
	or := func(n, d int) uint32 {
		if n == 0 {
			n = d
		}
		return uint32(n)
	}
	h.Flows, h.Sends, h.Events = or(s.Flows, DefaultFlows), or(s.Sends, DefaultSends), or(s.Events, DefaultEvents)
	h.Receives, h.Releases = or(s.Receives, DefaultReceives), or(s.Releases, DefaultReleases)
	// Buddies waste up to half, so an arena has twice the bytes that may be in it.
	h.SendArenaBytes, h.RecvArenaBytes = uint64(s.SendArena), uint64(s.RecvArena)
	if s.SendArena == 0 {
		h.SendArenaBytes = ceilPow2(2*h.SndBuf + 2<<20)
	}
	if s.RecvArena == 0 {
		h.RecvArenaBytes = ceilPow2(2 * (2*h.RcvBuf + 1<<20))
	}
	// The client's part first, then the daemon's: each is a memfd of its own, and a table
	// begins a page so that each can be paid for by its writer.
	at := (HeaderBytes + wordsBytes + pageBytes - 1) &^ (pageBytes - 1)
	put := func(off *uint64, n, each uint64) {
		*off = at
		at = (at + n*each + pageBytes - 1) &^ (pageBytes - 1)
	}
	put(&h.FlowOff, uint64(h.Flows), entryBytes)
	put(&h.SendOff, uint64(h.Sends), entryBytes)
	put(&h.ReleaseOff, uint64(h.Releases), 8)
	put(&h.SendArenaOff, h.SendArenaBytes, 1)
	// Parts end at 64 KiB, so that both can be mapped whatever the size of a page.
	at = (at + partBytes - 1) &^ (partBytes - 1)
	h.DaemonOff = at
	put(&h.FlowStateOff, uint64(h.Flows), 8)
	put(&h.EventOff, uint64(h.Events), entryBytes)
	put(&h.RecvOff, uint64(h.Receives), entryBytes)
	put(&h.RecvArenaOff, h.RecvArenaBytes, 1)
	at = (at + partBytes - 1) &^ (partBytes - 1)
	h.RegionBytes = at
	if _, err := rand.Read(h.ID[:]); err != nil {
		return h, err
	}
	return h, h.check(at)
}

func ceilPow2(n uint64) uint64 { return 1 << bits.Len64(n-1) }

// Region is a mapped region, at either end: two memfds, one behind the other. The
// client's part both can write to, the daemon's part the daemon alone.
type Region struct {
	Header
	FD    int    // of the client's part; -1 when it was closed or belongs to the caller
	Inode uint64 // of the client's part

	// Descriptors of the daemon's part, at the daemon's end: the one for its client, until
	// Lent, and the daemon's own, until Abandoned.
	LendFD, ownFD int

	files sync.Mutex // held by a thread that closes or uses descriptors while others may close them

	mapping sync.Mutex // held by a thread that changes the mapping, or lets pages of it go
	private bool       // guarded by mapping; evacuated
	held    bool       // guarded by mapping; the daemon's part stays mapped when the region is closed, until Drop
	dropped bool       // guarded by mapping; Drop was called
	mem     []byte     // the mapping
	rest    []byte     // guarded by mapping; of a region that is closed and held, the daemon's part
	base    unsafe.Pointer

	sends, events, recvs, flows []entry
	flowStates, releases        unsafe.Pointer
	sendArena, recvArena        []byte
}

// Seals of both parts: they keep their size from the beginning, so that no access can fail.
// Once its client has mapped the client's part, no holes can be punched into that either,
// for an access to a page that is being taken away waits for the end of that, and so would
// a reactor (mm/shmem.c, shmem_falloc_wait); the mappings to write that exist stay, and
// there are no more. Of the daemon's part the client has a descriptor that only reads, so
// the holes there are the daemon's.
const (
	sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	lastSeals = unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
)

// Create makes a region: two memfds of a fixed size, mapped. The daemon has touched nothing
// of it: pages are charged to the control group of the process that touches them first. The
// client's part is to be sealed (TakeFD, Seal) when the client has mapped it, and before that no
// thread may touch it that must not wait; SetLocal then writes the header.
func Create(s Spec) (*Region, error) {
	h, err := s.header()
	if err != nil {
		return nil, err
	}
	r := &Region{Header: h, FD: -1, LendFD: -1, ownFD: -1}
	if err := r.make(); err != nil {
		r.Close()
		r.Disown()
		return nil, err
	}
	return r, nil
}

func (r *Region) make() (err error) {
	if r.FD, err = newMemfd("rdsd-ring", r.DaemonOff); err != nil {
		return err
	}
	theirs, err := newMemfd("rdsd-ring-daemon", r.RegionBytes-r.DaemonOff)
	if err != nil {
		return err
	}
	defer unix.Close(theirs)
	// Opened again to read. The file's owner is the daemon's user, and another user cannot
	// open it once more from this descriptor.
	again := fmt.Sprintf("/proc/self/fd/%d", theirs)
	for _, fd := range []*int{&r.LendFD, &r.ownFD} {
		if *fd, err = eintr.Open(again, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("shm: opening %s to read: %w", again, err)
		}
	}
	if err := unix.Fchmod(theirs, 0o400); err != nil {
		return fmt.Errorf("shm: the mode of a region: %w", err)
	}
	if err := r.mapParts(r.FD, theirs, r.DaemonOff, r.RegionBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return err
	}
	// Where tmpfs gives huge pages unasked, the first touch of one would take 2 MiB of which
	// 4 KiB are charged. A kernel without huge pages refuses; then there are none.
	_ = unix.Madvise(r.mem, unix.MADV_NOHUGEPAGE)
	r.lay()
	return nil
}

// newMemfd makes a memfd of bytes, which keeps its size.
func newMemfd(name string, bytes uint64) (fd int, err error) {
	fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return -1, fmt.Errorf("shm: memfd_create: %w", err)
	}
	err = eintr.Again(func() error { return unix.Ftruncate(fd, int64(bytes)) })
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sizeSeals)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("shm: a memfd of %d bytes: %w", bytes, tooLarge(err, bytes))
	}
	return fd, nil
}

// Seal ends the time in which memory of a memfd can be mapped to write and have holes. It takes
// the file's lock, as punching a hole does, and write(2) while memory to write from is brought:
// whoever may do that decides how long it takes, and no signal ends it. It returns EPERM if the
// memory was sealed otherwise.
func Seal(fd int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, lastSeals); err != nil {
		return fmt.Errorf("shm: sealing memory: %w", err)
	}
	return nil
}

// TakeFD gives the client's part to the caller, who has to Seal and close it: what else is to be
// known of it the mapping tells.
func (r *Region) TakeFD() int {
	r.files.Lock()
	defer r.files.Unlock()
	fd := r.FD
	r.FD = -1
	return fd
}

// Touched returns EFAULT if the client has not touched header and words, so that the daemon would
// pay for these pages.
func (r *Region) Touched() error {
	if !r.Written(0, HeaderBytes+wordsBytes) {
		return &Error{unix.EFAULT, "the client has not touched the first two pages of its region"}
	}
	return nil
}

// Lent says that the client has its descriptor of the daemon's part.
func (r *Region) Lent() {
	closeOnce(&r.LendFD)
}

func closeOnce(fd *int) {
	if *fd >= 0 {
		unix.Close(*fd)
		*fd = -1
	}
}

// Open maps a region that came from a daemon, checks its seals and sizes, and
// closes nothing: client and daemon, its two parts, stay the caller's. bytes is the size
// the daemon told. The first two pages are touched, as they have to be; nothing
// of the region may be used until the socket is bound and ReadHeader has found it good.
func Open(client, daemon int, bytes uint64) (*Region, error) {
	r, err := open(client, daemon, bytes, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	for at := uint64(0); at < HeaderBytes+wordsBytes; at += touchBytes {
		r.word64(at).Load()
	}
	return r, nil
}

// touchBytes is how far apart accesses may be that are to touch every page.
const touchBytes = 4096

// View maps a region as it stands, for looking at: writes there stay private.
func View(client, daemon int) (*Region, error) {
	r, err := open(client, daemon, 0, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	if err := r.ReadHeader(); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// open takes the files' sizes if bytes is 0. prot is for the daemon's part.
func open(client, daemon int, bytes uint64, prot, flags int) (*Region, error) {
	var sizes [2]uint64
	for i, fd := range [2]int{client, daemon} {
		got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
		if err != nil {
			return nil, badMsg("the region's descriptor is no memfd: %v", err)
		}
		// Without these seals the other side could cut the file off under the mapping, and
		// the next access would be a SIGBUS.
		if got&sizeSeals != sizeSeals {
			return nil, badMsg("the region is not sealed against shrinking and growing (seals %#x)", got)
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return nil, fmt.Errorf("shm: fstat of a region: %w", err)
		}
		sizes[i] = uint64(st.Size)
	}
	size := sizes[0] + sizes[1]
	if bytes == 0 {
		bytes = size
	}
	// Sizes are those of the files, not those announced: only they bound what may be
	// touched.
	if size != bytes || bytes > 1<<41 || sizes[0] < HeaderBytes+wordsBytes || sizes[0]%partBytes != 0 || sizes[1] == 0 || sizes[1]%partBytes != 0 {
		return nil, badMsg("the region has parts of %d and %d bytes; %d were announced", sizes[0], sizes[1], bytes)
	}
	r := &Region{FD: -1, LendFD: -1, ownFD: -1}
	if err := r.mapParts(client, daemon, sizes[0], bytes, prot, flags); err != nil {
		return nil, err
	}
	return r, nil
}

// ReadHeader reads and checks the header of a region that was opened.
func (r *Region) ReadHeader() error {
	page := make([]byte, HeaderBytes)
	copy(page, r.mem)
	split := r.DaemonOff // as it is mapped
	if err := r.Header.Parse(page, uint64(len(r.mem))); err != nil {
		return err
	}
	if r.DaemonOff != split {
		return badMsg("the header has the daemon's part at %d; it is mapped at %d", r.DaemonOff, split)
	}
	r.lay()
	return nil
}

// mapParts maps the client's part, which has split bytes, and the daemon's behind it. prot is
// for the latter.
func (r *Region) mapParts(client, daemon int, split, size uint64, prot, flags int) error {
	var st unix.Stat_t
	if err := unix.Fstat(client, &st); err != nil {
		return fmt.Errorf("shm: fstat of a region: %w", err)
	}
	base, err := unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("shm: addresses for a region of %d bytes: %w", size, err)
	}
	flags |= unix.MAP_FIXED | unix.MAP_NORESERVE
	_, err = unix.MmapPtr(client, 0, base, uintptr(split), unix.PROT_READ|unix.PROT_WRITE, flags)
	if err == nil {
		_, err = unix.MmapPtr(daemon, 0, unsafe.Add(base, split), uintptr(size-split), prot, flags)
	}
	if err != nil {
		unix.MunmapPtr(base, uintptr(size))
		return fmt.Errorf("shm: mapping a region of %d bytes: %w", size, err)
	}
	r.mem, r.base, r.Inode, r.DaemonOff = unsafe.Slice((*byte)(base), size), base, st.Ino, split
	return nil
}

// lay sets the pointers to the parts. The header was checked.
func (r *Region) lay() {
	r.base = unsafe.Pointer(unsafe.SliceData(r.mem))
	at := func(off uint64) unsafe.Pointer { return unsafe.Add(r.base, off) }
	entries := func(off uint64, n uint32) []entry { return unsafe.Slice((*entry)(at(off)), n) }
	r.sends, r.events, r.recvs, r.flows = entries(r.SendOff, r.Sends), entries(r.EventOff, r.Events), entries(r.RecvOff, r.Receives), entries(r.FlowOff, r.Flows)
	r.flowStates, r.releases = at(r.FlowStateOff), at(r.ReleaseOff)
	r.sendArena = r.mem[r.SendArenaOff:][:r.SendArenaBytes:r.SendArenaBytes]
	r.recvArena = r.mem[r.RecvArenaOff:][:r.RecvArenaBytes:r.RecvArenaBytes]
}

// SetLocal writes the header, with the address that the region's socket is bound to, before
// the client reads it.
func (r *Region) SetLocal(local netip.AddrPort) {
	r.Local = local
	r.Header.Put(r.mem[:HeaderBytes])
}

// Body is a body in the send arena.
type Body struct {
	Slot  uint64
	Bytes int
}

// holds reports whether b has something and lies in the send arena.
func (r *Region) holds(b Body) bool {
	return b.Bytes > 0 && b.Slot <= r.SendArenaBytes && uint64(b.Bytes) <= r.SendArenaBytes-b.Slot
}

// Evacuation is how many bytes of memory Evacuate takes: those of whole pages, each of them once.
func (r *Region) Evacuation(needed []Body) (bytes int64) {
	var pages pageSet
	for _, b := range needed {
		if r.holds(b) {
			lo, hi := b.Slot>>pageShift, (b.Slot+uint64(b.Bytes)-1)>>pageShift
			bytes += int64(pages.missing(lo, hi)) << pageShift
			pages.add(lo, hi)
		}
	}
	return bytes
}

// Evacuate takes the region away from its client, which is dead: the parts of the send
// arena that are still needed are copied, and are private memory at the same addresses
// then, so that pointers into them stay valid. Nothing is shared any more and the memfd is
// closed; a thread that is reading or writing there goes on undisturbed. Like Close it must
// not be called by a reactor, nor with a lock held.
func (r *Region) Evacuate(needed []Body) error {
	r.mapping.Lock()
	defer r.mapping.Unlock()
	size := uintptr(len(r.mem))
	if r.held { // which nobody needs; it stays shared, so that its pages can be let go of
		size = uintptr(r.DaemonOff)
	}
	p, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("shm: memory for a dead client: %w", err)
	}
	to := unsafe.Slice((*byte)(p), size)
	for _, b := range needed {
		if r.holds(b) {
			copy(to[r.SendArenaOff+b.Slot:][:b.Bytes], r.sendArena[b.Slot:])
		}
	}
	r.thin()
	// One call: other threads see the old pages or the new ones, never none.
	_, _, e := unix.Syscall6(unix.SYS_MREMAP, uintptr(p), size, size, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, uintptr(r.base), 0)
	if e != 0 {
		unix.MunmapPtr(p, size)
		return fmt.Errorf("shm: moving a dead client's memory: %w", e)
	}
	r.private = true
	r.closeFD()
	return nil
}

// Forget unmaps the pages that this process has touched: their content stays in the memfd,
// and touching one again costs a fault. It must not be called by a reactor, nor with a lock
// held.
func (r *Region) Forget() {
	if !r.mapping.TryLock() {
		return // its pages are being taken away
	}
	defer r.mapping.Unlock()
	if r.mem != nil && !r.private {
		r.thin()
	}
}

// ForgetHeader unmaps the header, which the daemon writes once and does not read, as Forget
// does the whole.
func (r *Region) ForgetHeader() {
	r.mapping.Lock()
	defer r.mapping.Unlock()
	if r.mem != nil && !r.private && pageBytes <= HeaderBytes {
		_ = unix.Madvise(r.mem[:HeaderBytes], unix.MADV_DONTNEED) // refused, it stays
	}
}

// thinStep bounds what one system call takes out of the page tables, and so how
// long it holds the process's lock on its memory, for which page faults and the
// Go runtime wait: some hundred microseconds.
const thinStep = 2 << 20

// thin empties the page tables of the mapping step by step. The content of the pages stays,
// because they are the memfd's.
func (r *Region) thin() {
	for off := 0; off < len(r.mem); off += thinStep {
		_ = unix.Madvise(r.mem[off:min(off+thinStep, len(r.mem))], unix.MADV_DONTNEED) // munmap does the others
	}
}

// Close unmaps the region and closes the client's part. Nothing in it may be used any more.
// Calling it again does nothing. The client's own mappings stay; see Abandoned, or Hold, for
// the daemon's part.
func (r *Region) Close() error {
	r.mapping.Lock()
	defer r.mapping.Unlock()
	var err error
	if r.mem != nil {
		r.thin()
		gone := r.mem
		if r.held {
			gone, r.rest = r.mem[:r.DaemonOff], r.mem[r.DaemonOff:]
		}
		err = unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(gone)), uintptr(len(gone)))
		if r.dropped {
			r.dropRest()
		}
		r.mem, r.base = nil, nil
		r.sends, r.events, r.recvs, r.flows = nil, nil, nil, nil
		r.sendArena, r.recvArena = nil, nil
	}
	r.closeFD()
	return err
}

func (r *Region) closeFD() {
	r.files.Lock()
	defer r.files.Unlock()
	closeOnce(&r.FD)
	closeOnce(&r.LendFD)
}

// SendArena and RecvArena are the payload memory. Bytes that the other side wrote must be
// read only once.
func (r *Region) SendArena() []byte { return r.sendArena }
func (r *Region) RecvArena() []byte { return r.recvArena }

func (r *Region) word64(off uint64) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Add(r.base, off)) }
func (r *Region) word32(off uint64) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Add(r.base, off)) }

// The words, docs/shm.md "Words".
func (r *Region) SendTail() *atomic.Uint64     { return r.word64(offSendTail) }
func (r *Region) SendHead() *atomic.Uint64     { return r.word64(offSendHead) }
func (r *Region) EventTail() *atomic.Uint64    { return r.word64(offEventTail) }
func (r *Region) EventHead() *atomic.Uint64    { return r.word64(offEventHead) }
func (r *Region) RecvTail() *atomic.Uint64     { return r.word64(offRecvTail) }
func (r *Region) RecvHead() *atomic.Uint64     { return r.word64(offRecvHead) }
func (r *Region) ReleaseTail() *atomic.Uint64  { return r.word64(offReleaseTail) }
func (r *Region) ReleaseHead() *atomic.Uint64  { return r.word64(offReleaseHead) }
func (r *Region) DaemonSleeps() *atomic.Uint32 { return r.word32(offDaemonSleeps) }
func (r *Region) ClientSleeps() *atomic.Uint32 { return r.word32(offClientSleeps) }
func (r *Region) Closed() *atomic.Uint32       { return r.word32(offClosed) }
func (r *Region) RoomWanted() *atomic.Uint64   { return r.word64(offRoomWanted) }
func (r *Region) Nudges() *atomic.Uint64       { return r.word64(offNudges) }
func (r *Region) ClientSingle() *atomic.Uint32 { return r.word32(offClientSingle) }

// Entries by their number since the region was made.
func (r *Region) sendEntry(n uint64) *entry  { return &r.sends[n&uint64(r.Sends-1)] }
func (r *Region) eventEntry(n uint64) *entry { return &r.events[n&uint64(r.Events-1)] }
func (r *Region) recvEntry(n uint64) *entry  { return &r.recvs[n&uint64(r.Receives-1)] }

func (r *Region) releaseEntry(n uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Add(r.releases, (n&uint64(r.Releases-1))*8))
}

// SendWord is the word of a send descriptor.
func (r *Region) SendWord(n uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(r.sendEntry(n)))
}

// PutSend fills a send descriptor, the word last; the tail shows it.
func (r *Region) PutSend(n uint64, w Word, d *SendDesc) {
	d.put(r.sendEntry(n))
	r.SendWord(n).Store(uint64(w))
}

// GetEvent, GetRecv read an entry, each word once.
func (r *Region) GetEvent(n uint64, v *Event)   { v.get(r.eventEntry(n)) }
func (r *Region) GetRecv(n uint64, d *RecvDesc) { d.get(r.recvEntry(n)) }

// PutRelease fills an entry of the release ring; the tail shows it.
func (r *Region) PutRelease(n, slot uint64) { r.releaseEntry(n).Store(slot) }

// PutFlow fills entry i of the flow table, the generation last.
func (r *Region) PutFlow(i uint32, f *FlowEntry) { f.put(r.flow(i)) }

func (r *Region) flow(i uint32) *entry { return &r.flows[i] }

// FlowState is the daemon's word for flow i.
func (r *Region) FlowState(i uint32) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Add(r.flowStates, uint64(i)*8))
}
