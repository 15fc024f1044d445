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

// Spec is what a region is made from. Zero entries mean the defaults.
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
	h := Header{Instance: s.Instance, Local: s.Local, UID: s.UID, PID: s.PID, MaxDatagram: uint32(s.MaxDatagram)}
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
	// Buddies waste up to half, so twice what may be in them.
	h.SendArenaBytes, h.RecvArenaBytes = uint64(s.SendArena), uint64(s.RecvArena)
	if s.SendArena == 0 {
		h.SendArenaBytes = ceilPow2(2*h.SndBuf + 2<<20)
	}
	if s.RecvArena == 0 {
		h.RecvArenaBytes = ceilPow2(2 * (2*h.RcvBuf + 1<<20))
	}
	at := uint64(HeaderBytes + wordsBytes)
	put := func(off *uint64, n, each uint64) {
		*off = at
		at = (at + n*each + 4095) &^ 4095
	}
	put(&h.FlowOff, uint64(h.Flows), entryBytes)
	put(&h.FlowStateOff, uint64(h.Flows), 8)
	put(&h.SendOff, uint64(h.Sends), entryBytes)
	put(&h.EventOff, uint64(h.Events), entryBytes)
	put(&h.RecvOff, uint64(h.Receives), entryBytes)
	put(&h.ReleaseOff, uint64(h.Releases), 8)
	put(&h.SendArenaOff, h.SendArenaBytes, 1)
	put(&h.RecvArenaOff, h.RecvArenaBytes, 1)
	h.RegionBytes = at
	if _, err := rand.Read(h.ID[:]); err != nil {
		return h, err
	}
	return h, h.check(at)
}

func ceilPow2(n uint64) uint64 { return 1 << bits.Len64(n-1) }

// Region is a mapped region, at either end.
type Region struct {
	Header
	FD    int    // of the memfd; -1 when it was closed or belongs to the caller
	Inode uint64 // of the memfd

	mapping sync.Mutex // held by who changes the mapping, or lets pages of it go
	private bool       // guarded by mapping; evacuated
	mem     []byte     // the mapping
	base    unsafe.Pointer

	flows, flowStates, sends, events, recvs, releases unsafe.Pointer
	sendArena, recvArena                              []byte
}

// Seals of every region. It keeps its size from the beginning, so that no access
// can fail. From when its client has mapped it nobody can punch holes into it
// either, for an access to a page that is being taken away waits for the end of
// that, and so would a reactor (mm/shmem.c, shmem_falloc_wait); the mappings to
// write that exist stay, and there are no more.
const (
	sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	lastSeals = unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
)

// Create makes a region: a memfd of a fixed size, mapped, with its header written.
// Its pages take memory only when they are used. It is to be sealed (Seal) when the
// client has mapped it, and touched by nobody who must not wait before that.
func Create(s Spec) (*Region, error) {
	h, err := s.header()
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("rdsd-ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate("rdsd-ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("shm: memfd_create: %w", err)
	}
	r := &Region{Header: h, FD: fd}
	if err := r.make(); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Region) make() error {
	if err := eintr.Again(func() error { return unix.Ftruncate(r.FD, int64(r.RegionBytes)) }); err != nil {
		return fmt.Errorf("shm: a region of %d bytes: %w", r.RegionBytes, err)
	}
	if _, err := unix.FcntlInt(uintptr(r.FD), unix.F_ADD_SEALS, sizeSeals); err != nil {
		return fmt.Errorf("shm: sealing a region: %w", err)
	}
	if err := r.mapFD(r.FD, int(r.RegionBytes), unix.MAP_SHARED); err != nil {
		return err
	}
	r.Header.Put(r.mem[:HeaderBytes])
	return r.lay()
}

// Seal ends the time in which the region can be mapped to write and have holes.
// It waits for a hole that is being punched: nothing for a reactor. EPERM: its
// client has sealed it otherwise.
func (r *Region) Seal() error {
	if _, err := unix.FcntlInt(uintptr(r.FD), unix.F_ADD_SEALS, lastSeals); err != nil {
		return fmt.Errorf("shm: sealing a region: %w", err)
	}
	return nil
}

// Open maps a region that came from a daemon, checks its seals and size, and
// closes nothing: fd stays the caller's. bytes is the size the daemon told. Nothing
// of the region may be used until the socket is bound and ReadHeader has found it good.
func Open(fd int, bytes uint64) (*Region, error) { return open(fd, bytes, unix.MAP_SHARED) }

// View maps a region as it stands, for looking at: what is written there stays
// private.
func View(fd int) (*Region, error) {
	r, err := open(fd, 0, unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	if err := r.ReadHeader(); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// open takes the file's size if bytes is 0.
func open(fd int, bytes uint64, flags int) (*Region, error) {
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, badMsg("the region's descriptor is no memfd: %v", err)
	}
	if got&sizeSeals != sizeSeals {
		return nil, badMsg("the region is not sealed against shrinking and growing (seals %#x)", got)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("shm: fstat of a region: %w", err)
	}
	if bytes == 0 {
		bytes = uint64(st.Size)
	}
	if uint64(st.Size) != bytes || bytes < HeaderBytes+wordsBytes || bytes > 1<<41 {
		return nil, badMsg("the region has %d bytes; %d were announced", st.Size, bytes)
	}
	r := &Region{FD: -1}
	if err := r.mapFD(fd, int(bytes), flags); err != nil {
		return nil, err
	}
	return r, nil
}

// ReadHeader reads and checks the header of a region that was opened.
func (r *Region) ReadHeader() error {
	page := make([]byte, HeaderBytes)
	copy(page, r.mem)
	if err := r.Header.Parse(page, uint64(len(r.mem))); err != nil {
		return err
	}
	return r.lay()
}

func (r *Region) mapFD(fd, n, flags int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("shm: fstat of a region: %w", err)
	}
	mem, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, flags|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("shm: mapping a region of %d bytes: %w", n, err)
	}
	r.mem, r.Inode = mem, st.Ino
	return nil
}

// lay sets the pointers to the parts. The header was checked.
func (r *Region) lay() error {
	r.base = unsafe.Pointer(unsafe.SliceData(r.mem))
	at := func(off uint64) unsafe.Pointer { return unsafe.Add(r.base, off) }
	r.flows, r.flowStates = at(r.FlowOff), at(r.FlowStateOff)
	r.sends, r.events, r.recvs, r.releases = at(r.SendOff), at(r.EventOff), at(r.RecvOff), at(r.ReleaseOff)
	r.sendArena = r.mem[r.SendArenaOff:][:r.SendArenaBytes:r.SendArenaBytes]
	r.recvArena = r.mem[r.RecvArenaOff:][:r.RecvArenaBytes:r.RecvArenaBytes]
	return nil
}

// SetLocal says what the region's socket is bound to, before the client reads
// the header.
func (r *Region) SetLocal(local netip.AddrPort) {
	r.Local = local
	r.Header.Put(r.mem[:HeaderBytes])
}

// Body is a body in the send arena.
type Body struct {
	Slot  uint64
	Bytes int
}

// Evacuate takes the region away from its client, who is dead: what is still
// needed of the send arena is copied, and then is private memory at the same
// addresses, so that pointers into it stay good. Nothing is shared any more and
// the memfd is closed; a thread that is reading or writing there goes on
// undisturbed. Like Close it is nothing for a reactor, nor for the holder of a lock.
func (r *Region) Evacuate(needed []Body) error {
	r.mapping.Lock()
	defer r.mapping.Unlock()
	size := uintptr(len(r.mem))
	p, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("shm: memory for a dead client: %w", err)
	}
	to := unsafe.Slice((*byte)(p), size)
	for _, b := range needed {
		if b.Bytes > 0 && b.Slot <= r.SendArenaBytes && uint64(b.Bytes) <= r.SendArenaBytes-b.Slot {
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

// Forget lets go of the pages that this process has touched: what they hold
// stays in the memfd, and to touch one again costs a fault. It is nothing for a
// reactor, nor for the holder of a lock.
func (r *Region) Forget() {
	r.mapping.Lock()
	defer r.mapping.Unlock()
	if r.mem != nil && !r.private {
		r.thin()
	}
}

// thinStep bounds what one system call takes out of the page tables, and so how
// long it holds the process's lock on its memory, for which page faults and the
// Go runtime wait: some hundred microseconds.
const thinStep = 2 << 20

// thin empties the page tables of the mapping step by step. What the pages hold
// stays, for they are the memfd's.
func (r *Region) thin() {
	for off := 0; off < len(r.mem); off += thinStep {
		_ = unix.Madvise(r.mem[off:min(off+thinStep, len(r.mem))], unix.MADV_DONTNEED) // munmap does the rest
	}
}

// Close unmaps the region and closes its memfd. Nothing in it may be used any
// more. Calling it again does nothing.
func (r *Region) Close() error {
	r.mapping.Lock()
	defer r.mapping.Unlock()
	var err error
	if r.mem != nil {
		r.thin()
		err = unix.Munmap(r.mem)
		r.mem, r.base = nil, nil
		r.sendArena, r.recvArena = nil, nil
	}
	r.closeFD()
	return err
}

func (r *Region) closeFD() {
	if r.FD >= 0 {
		unix.Close(r.FD)
		r.FD = -1
	}
}

// Allocated is the memory the region takes now, in bytes; 0 when the memfd is
// closed here.
func (r *Region) Allocated() uint64 {
	var st unix.Stat_t
	if r.FD < 0 || unix.Fstat(r.FD, &st) != nil {
		return 0
	}
	return uint64(st.Blocks) * 512
}

// SendArena and RecvArena are the payload memory. Whoever reads what the
// other side wrote reads each byte once.
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
func (r *Region) ClientSingle() *atomic.Uint32 { return r.word32(offClientSingle) }

// Entries by their number since the region was made.
func (r *Region) sendEntry(n uint64) *entry {
	return entryAt(r.sends, (n&uint64(r.Sends-1))*entryBytes)
}

func (r *Region) eventEntry(n uint64) *entry {
	return entryAt(r.events, (n&uint64(r.Events-1))*entryBytes)
}

func (r *Region) recvEntry(n uint64) *entry {
	return entryAt(r.recvs, (n&uint64(r.Receives-1))*entryBytes)
}

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

func (r *Region) flow(i uint32) *entry { return entryAt(r.flows, uint64(i)*entryBytes) }

// FlowState is the daemon's word for flow i.
func (r *Region) FlowState(i uint32) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Add(r.flowStates, uint64(i)*8))
}
