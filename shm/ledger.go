package shm

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/crash"
	"github.com/rdsd/rdsd/internal/eintr"
)

// The ledger holds the state that a restart of the daemon needs besides the regions
// (docs/shm.md, "Ledger"). Nothing in it is written with a system call: the stores survive
// the process because the pages belong to the file.
//
// The file is sparse. A store into a page that the file system cannot give would kill the
// daemon (SIGBUS), so pages are allocated before they are written, and an entry without a
// page is refused.

// LedgerSpec says how much a ledger has room for. Zero means the default.
type LedgerSpec struct {
	Instance uint64 // of the daemon
	Lanes    int    // lanes of all peers; 16,384
	Regions  int    // sockets with rings; 1,024
	Commits  int    // local addresses; 64
}

// Ledger is the ledger of a running daemon. The tables' entries are given out under a lock;
// the content of an entry belongs to its user.
type Ledger struct {
	h    LedgerHeader
	path string
	fd   int // its lock says that the ledger is in use
	mem  []byte
	base unsafe.Pointer

	mu          sync.Mutex // guards the fields below
	have        []uint64   // bits of the file's pages that are allocated
	lanes       map[laneKey]*LedgerLane
	freeLanes   []uint32
	nLanes      uint32
	promised    int // lanes that were prepared for and have not come yet
	freeRegions []uint32
	nRegions    uint32
}

type laneKey struct {
	local, remote netip.Addr
	lane          uint32
}

// OpenLedger makes a new ledger at path, mode 0600, in place of one that is
// there: read that with Recover first. What is there and no ledger stays, and is an error, and
// so is a ledger that is open, of this process or another: ErrLedgerInUse.
func OpenLedger(path string, s LedgerSpec) (*Ledger, error) {
	or := func(n, d int) uint32 {
		if n == 0 {
			n = d
		}
		return uint32(n)
	}
	l := &Ledger{fd: -1, lanes: map[laneKey]*LedgerLane{}}
	l.h = LedgerHeader{Instance: s.Instance, Lanes: or(s.Lanes, 16384), Regions: or(s.Regions, 1024), Commits: or(s.Commits, 64),
		Sends: MaxOutstanding, Boot: bootID()}
	if s.Lanes < 0 || s.Regions < 0 || s.Commits < 0 || s.Lanes > 1<<24 || s.Regions > 1<<16 || s.Commits > 1<<16 {
		return nil, &Error{unix.EINVAL, fmt.Sprintf("a ledger for %d lanes, %d regions, %d local addresses", s.Lanes, s.Regions, s.Commits)}
	}
	l.h.lay()
	l.path = path
	if err := l.create(); err != nil {
		l.Close()
		return nil, fmt.Errorf("shm: ledger %s: %w", path, err)
	}
	return l, nil
}

// InMemory reports whether the ledger's file system keeps it in memory alone. One that
// writes to a disk holds up a thread that stores into a page that is being written.
func (l *Ledger) InMemory() bool {
	var st unix.Statfs_t
	return unix.Fstatfs(l.fd, &st) == nil && inMemory(uint32(st.Type))
}

func inMemory(magic uint32) bool {
	return magic == unix.TMPFS_MAGIC || magic == unix.RAMFS_MAGIC || magic == unix.HUGETLBFS_MAGIC
}

// fallocate stands for unix.Fallocate in tests of file systems that have none.
var fallocate = unix.Fallocate

// tooLarge says what the limit is that a file of n bytes, or its mapping, is beyond, if err says so.
func tooLarge(err error, n uint64) error {
	var l unix.Rlimit
	switch {
	case err == unix.EFBIG && unix.Getrlimit(unix.RLIMIT_FSIZE, &l) == nil && n > l.Cur:
		return fmt.Errorf("%w: it has %d bytes, most of them holes, and this process may make files of %d (ulimit -f, LimitFSIZE)", err, n, l.Cur)
	case err == unix.ENOMEM && unix.Getrlimit(unix.RLIMIT_AS, &l) == nil && l.Cur != unix.RLIM_INFINITY:
		return fmt.Errorf("%w: it takes %d bytes of addresses, most of them without memory, and this process may have %d (ulimit -v, LimitAS)", err, n, l.Cur)
	}
	return err
}

// ensure allocates the pages of a part of the file. A file system may take its
// time for that, so mu is not held: reactors take mu. Two callers may allocate
// the same page, which does no harm.
func (l *Ledger) ensure(off, n uint64) error {
	from, to := off>>12, (off+n+4095)>>12
	if l.allocated(from, to) {
		return nil
	}
	err := eintr.Again(func() error {
		return fallocate(l.fd, unix.FALLOC_FL_KEEP_SIZE, int64(from<<12), int64((to-from)<<12))
	})
	switch err {
	case nil:
	case unix.EOPNOTSUPP, unix.ENOSYS:
		return &Error{err.(unix.Errno), fmt.Sprintf("its file system cannot promise room (fallocate: %v); a ledger belongs on one that can, such as the tmpfs of /run", err)}
	default:
		return &Error{unix.ENOMEM, fmt.Sprintf("no room for another %d bytes of the ledger: %v", (to-from)<<12, err)}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := from; p < to; p++ {
		l.have[p/64] |= 1 << (p % 64)
	}
	return nil
}

// allocated reports whether the pages from up to to, without that, are there.
func (l *Ledger) allocated(from, to uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := from; p < to; p++ {
		if l.have[p/64]&(1<<(p%64)) == 0 {
			return false
		}
	}
	return true
}

// punch gives whole pages back; they read as 0 afterwards. They are the caller's
// alone, and mu is not held.
func (l *Ledger) punch(off, n uint64) {
	if unix.Fallocate(l.fd, unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, int64(off), int64(n)) != nil {
		clear(l.mem[off : off+n])
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := off >> 12; p < (off+n)>>12; p++ {
		l.have[p/64] &^= 1 << (p % 64)
	}
}

// Commit prepares the commit record of local address number i, from 0 on, for
// PublishAll.
func (l *Ledger) Commit(i int) error {
	if l == nil {
		return nil
	}
	if i < 0 || i >= int(l.h.Commits) {
		return &Error{unix.ENOMEM, fmt.Sprintf("local address number %d; the ledger has room for %d", i, l.h.Commits)}
	}
	n := commitBytes(l.h.Regions)
	return l.ensure(l.h.CommitOff+uint64(i)*n, n)
}

// LedgerRegion is the entry of one region, with its send table.
type LedgerRegion struct {
	l     *Ledger
	index uint32
	mem   []byte
	words *[recordBytes / 8]atomic.Uint64 // the same
	sends []entry                         // the send table
	acct  uint8                           // the current account
	pages uint32                          // of the send table that are usable; Host.Grown counts
}

func recordWords(b []byte) *[recordBytes / 8]atomic.Uint64 {
	return (*[recordBytes / 8]atomic.Uint64)(unsafe.Pointer(&b[0]))
}

const sendsPerPage = 4096 / entryBytes

// Region makes the entry of a region.
func (l *Ledger) Region(r *Region) (*LedgerRegion, error) {
	g, err := l.PrepareRegion()
	if err == nil {
		g.Begin(r)
	}
	return g, err
}

// PrepareRegion takes an entry of the region table with a page of its send table, for
// Begin, or Free if the region is not made. It may block on the file system.
func (l *Ledger) PrepareRegion() (*LedgerRegion, error) {
	if l == nil {
		return nil, nil
	}
	g, err := l.regionEntry()
	if err != nil {
		return nil, err
	}
	off := l.h.RegionOff + uint64(g.index)*recordBytes
	if err = l.ensure(off, recordBytes); err == nil {
		err = l.ensure(g.sendOff(), 4096)
	}
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.freeRegions = append(l.freeRegions, g.index)
		return nil, err
	}
	g.mem = l.mem[off:][:recordBytes:recordBytes]
	g.words = recordWords(g.mem)
	g.sends = unsafe.Slice((*entry)(unsafe.Add(l.base, g.sendOff())), l.h.Sends)
	g.pages = 1
	return g, nil
}

func (l *Ledger) regionEntry() (*LedgerRegion, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := &LedgerRegion{l: l, index: l.nRegions}
	if n := len(l.freeRegions); n > 0 {
		g.index = l.freeRegions[n-1]
		l.freeRegions = l.freeRegions[:n-1]
	} else if l.nRegions >= l.h.Regions {
		return nil, &Error{unix.ENOMEM, fmt.Sprintf("the ledger has room for %d regions", l.h.Regions)}
	} else {
		l.nRegions++
	}
	return g, nil
}

// Regions is how many entries of the region table are taken.
func (l *Ledger) Regions() int {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.nRegions) - len(l.freeRegions)
}

// Begin writes the entry's record: the region is in the ledger from here on.
func (g *LedgerRegion) Begin(r *Region) {
	if g == nil {
		return
	}
	rec := RegionRecord{ID: r.ID, Inode: r.Inode, Bytes: r.RegionBytes, Local: r.Local, UID: r.UID, PID: r.PID}
	rec.put(g.mem)
}

func (g *LedgerRegion) sendOff() uint64 {
	return g.l.h.SendOff + uint64(g.index)*uint64(g.l.h.Sends)*entryBytes
}

// Grow allocates pages of the send table from entry n on, so that pages more are
// usable. It may block on the file system; Host.Grown tells the Host.
func (g *LedgerRegion) Grow(n uint32, pages int) error {
	return g.l.ensure(g.sendOff()+uint64(n)*entryBytes, uint64(pages)*4096)
}

// gone says that the region is not there any more. Its number and cells stay
// until Free.
func (g *LedgerRegion) gone() {
	if g != nil {
		word32(g.mem).Store(0)
	}
}

// Free gives the entry to other regions: no cell of it may be written any more.
// It may block on the file system.
func (g *LedgerRegion) Free() {
	if g == nil {
		return
	}
	g.gone()
	if g.pages > 1 {
		g.l.punch(g.sendOff(), uint64(g.pages)*4096)
	} else {
		clear(g.l.mem[g.sendOff():][:4096])
	}
	g.l.mu.Lock()
	defer g.l.mu.Unlock()
	g.l.freeRegions = append(g.l.freeRegions, g.index)
}

// Words of the record that change while the region is there (RegionRecord).
const (
	wordSendHead = 72 / 8
	wordEvents   = 80 / 8
	wordRecvTail = 88 / 8
	wordTaken    = 96 / 8 // two
	wordFinished = 112 / 8
)

// took records that descriptor number n was taken; taken counts the datagrams of all taken
// ones. Its entry, if it has one, was put before.
func (g *LedgerRegion) took(n, taken uint64) {
	g.words[wordTaken+(n+1)&1].Store(taken)
	if crash.Armed {
		crash.Point("ring.accept.count")
	}
	g.words[wordSendHead].Store(n + 1)
	if crash.Armed {
		crash.Point("ring.accept.ledger")
	}
}

// progress marks the entry with the outcomes that the publication under way adds.
func (g *LedgerRegion) progress(id uint32, before, after int) {
	p := uint32(before) | uint32(after)<<progressBits | progressUnder | uint32(g.acct^1)<<progressAcct
	*(*uint32)(unsafe.Add(unsafe.Pointer(&g.sends[id]), 20)) = p
}

// publish records the event tail; finished counts the datagrams of all events.
func (g *LedgerRegion) publish(tail, finished uint64) {
	next := g.acct ^ 1
	g.words[wordFinished+next].Store(finished)
	if crash.Armed {
		crash.Point("ring.outcome.account")
	}
	g.words[wordEvents].Store(tail | uint64(next)<<63)
	g.acct = next
	if crash.Armed {
		crash.Point("ring.outcome.ledger")
	}
}

// settle ends the publication for one entry.
func (g *LedgerRegion) finishEntry(id uint32, done int, last bool) {
	if last {
		atomic.StoreUint64(&g.sends[id][1], 0)
		if crash.Armed {
			crash.Point("ring.outcome.free")
		}
		return
	}
	atomic.StoreUint32((*uint32)(unsafe.Add(unsafe.Pointer(&g.sends[id]), 20)), uint32(done))
}

// PublishAll makes everything placed in hosts visible, together with the lane's highest
// received sequence and the refusals whose answer may be lost, so that after a crash either
// all of it happened or nothing. lane may be nil, and received has no meaning then.
// refusals ascend. commit is the number of the local address, see Commit. Afterwards
// Publish of each host is to be called, which says whether its doorbell has to be rung.
// Without a ledger (nil) it only makes them visible.
func (l *Ledger) PublishAll(commit int, lane *LedgerLane, received uint64, refusals []uint64, hosts []*Host) {
	l.PublishBoth(commit, lane, received, refusals, nil, 0, hosts)
}

// PublishBoth is PublishAll for datagrams of a lane and others that stayed at
// their address: here is the lane of those (LocalLane) and hereReceived the
// number of the last one.
func (l *Ledger) PublishBoth(commit int, lane *LedgerLane, received uint64, refusals []uint64, here *LedgerLane, hereReceived uint64, hosts []*Host) {
	if l == nil {
		for _, h := range hosts {
			h.publishRecv()
		}
		return
	}
	if lane != nil {
		// Refusals above the received sequence do not count yet, so they may be stored before
		// it (docs/shm.md, "Ledger").
		lane.setRefusals(refusals)
		if crash.Armed {
			crash.Point("ring.receive.refusals")
		}
	}
	// One record names every tail and sequence that changes together. Until it is valid
	// nothing has happened; from then on Recover carries it out, as often as it likes.
	rec := l.mem[l.h.CommitOff+uint64(commit)*commitBytes(l.h.Regions):]
	n := 0
	for _, h := range hosts {
		h.closeTrain()
		// inCommit: a host may stand in the list twice, and needs one entry.
		if h.led == nil || h.dead || h.recvTail == h.recvPub || h.inCommit {
			continue
		}
		h.inCommit = true
		e := rec[commitHead+commitEach*n:]
		le.PutUint64(e, uint64(h.led.index))
		le.PutUint64(e[8:], h.recvTail)
		n++
	}
	if n == 0 {
		lane.setReceived(received)
		here.setReceived(hereReceived)
	} else {
		le.PutUint32(rec[4:], uint32(n))
		le.PutUint32(rec[8:], lane.Index())
		le.PutUint32(rec[12:], here.Index())
		le.PutUint64(rec[16:], received)
		le.PutUint64(rec[24:], hereReceived)
		if crash.Armed {
			crash.Point("ring.receive.record")
		}
		// This store decides.
		word32(rec).Store(1)
		if crash.Armed {
			crash.Point("ring.receive.valid")
		}
	}
	for _, h := range hosts {
		if h.inCommit {
			h.inCommit = false
			// The record is valid: whatever of these stores a crash leaves out, Recover
			// does. The region goes first, so that the client need not wait for the rest.
			h.showRecv()
			if crash.Armed {
				crash.Point("ring.receive.tail")
			}
			h.led.words[wordRecvTail].Store(h.recvTail)
			if crash.Armed {
				crash.Point("ring.receive.table")
			}
		} else {
			h.publishRecv() // one without a ledger
		}
	}
	if n > 0 {
		lane.setReceived(received)
		here.setReceived(hereReceived)
		if crash.Armed {
			crash.Point("ring.receive.lane")
		}
		// All of it stands in its place now, and the record may be used for the next step.
		word32(rec).Store(0)
		if crash.Armed {
			crash.Point("ring.receive.done")
		}
	}
}

// bootFile is where the kernel tells a boot from another; tests have another one.
var bootFile = "/proc/sys/kernel/random/boot_id"

// bootID is the machine's boot, all zero when the system does not tell.
func bootID() (id [16]byte) {
	b, _ := os.ReadFile(bootFile)
	if b = bytes.ReplaceAll(bytes.TrimSpace(b), []byte("-"), nil); len(b) == 32 {
		hex.Decode(id[:], b)
	}
	return id
}
