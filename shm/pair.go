package shm

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/eintr"
)

// A pair is memory by which two clients of one node exchange the datagrams of one flow
// without the daemon on the way (docs/pairs.md, docs/adr/0026-paired-rings.md). It has two
// memfds: words, which both clients and the daemon write, and data, which the sender writes
// and the reader has a descriptor of that only reads. The daemon makes both, keeps their
// size, and seals them when both clients have mapped them; it never maps the data.
//
// Each side keeps its own place in private memory and reads the other's words once, checks,
// then uses them. The one word that decides is the tail: a datagram is in the pair if the
// sender's exchange of it succeeded, and nothing gets in once its highest bit is set.

// Sizes of a pair, in bytes.
const (
	MinPairBytes = 64 << 10 // of data
	MaxPairBytes = 1 << 20

	pairWordsBytes = partBytes
	pairVersion    = 1
)

// Offsets of a pair's words, one in 128 bytes; the header stands before them.
const (
	offPairTail  = 128 * (1 + iota) // bytes put, and pairClosed
	offPairHead                     // bytes taken
	offPairSleep                    // the reader sleeps, or is about to
	offPairMark                     // descriptors in the reader's receive ring with the flow's last by the daemon
	offPairNudge                    // the daemon is to ring the reader's doorbell
	offPairSent                     // datagrams put
	offPairSentBytes
	offPairRead // datagrams taken
	offPairReadBytes
)

// pairClosed in the tail says that nothing more gets in.
const pairClosed = 1 << 63

var pairMagic = [8]byte{'R', 'D', 'S', 'D', 'P', 'A', 'I', 'R'}

// Pair is a mapped pair, at any of its three ends.
type Pair struct {
	Bytes uint64 // of data, a power of two

	// Descriptors at the daemon's end, until Lent: the words, the data to write, and to read.
	WordsFD, DataFD, ReadFD int
	own                     [2]int // of the words and of the data, only to read, until Abandoned

	files sync.Mutex // held by a thread that closes or uses own

	words unsafe.Pointer // the mapping
	data  []byte         // the mapping; nil at the daemon's end
}

// NoPair is a pair without memory, as one that was closed and abandoned.
func NoPair() *Pair { return &Pair{WordsFD: -1, DataFD: -1, ReadFD: -1, own: [2]int{-1, -1}} }

// CreatePair makes the memory of a pair with so many bytes of data, a power of two. id names
// it in the header. Nothing but the header is touched.
func CreatePair(id uint64, bytes int) (*Pair, error) {
	if bytes < MinPairBytes || bytes > MaxPairBytes || bytes&(bytes-1) != 0 {
		return nil, &Error{unix.EINVAL, fmt.Sprintf("a pair of %d bytes", bytes)}
	}
	p := NoPair()
	p.Bytes = uint64(bytes)
	if err := p.make(id); err != nil { // to map something is its last step: nothing is mapped
		p.Lent()
		p.Disown()
		return nil, err
	}
	return p, nil
}

func (p *Pair) make(id uint64) (err error) {
	if err = newPairFile("rdsd-pair-words", pairWordsBytes, &p.WordsFD, &p.own[0]); err != nil {
		return err
	}
	if err = newPairFile("rdsd-pair-data", p.Bytes, &p.DataFD, &p.own[1], &p.ReadFD); err != nil {
		return err
	}
	if err := p.mapWords(p.WordsFD); err != nil {
		return err
	}
	h := unsafe.Slice((*byte)(p.words), offPairTail)
	copy(h, pairMagic[:])
	le.PutUint32(h[8:], pairVersion)
	le.PutUint64(h[16:], p.Bytes)
	le.PutUint64(h[24:], id)
	return nil
}

// newPairFile makes a memfd of bytes. It is opened again to write, as *lent, and as all of reads, which only
// read (Region.make). The one that memfd_create opens is not kept: the kernel counts those that are opened
// by name alone, and would grant a lease (abandoned) while a client has that one, or has mapped it.
func newPairFile(name string, bytes uint64, lent *int, reads ...*int) error {
	made, err := newMemfd(name, bytes)
	if err != nil {
		return err
	}
	defer unix.Close(made)
	again := fmt.Sprintf("/proc/self/fd/%d", made)
	if *lent, err = eintr.Open(again, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("shm: opening %s to write: %w", again, err)
	}
	for _, fd := range reads {
		if *fd, err = eintr.Open(again, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("shm: opening %s to read: %w", again, err)
		}
	}
	if err := unix.Fchmod(made, 0o400); err != nil {
		return fmt.Errorf("shm: the mode of a pair: %w", err)
	}
	return nil
}

func (p *Pair) mapWords(fd int) (err error) {
	if p.words, err = unix.MmapPtr(fd, 0, nil, pairWordsBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		p.words = nil
		return fmt.Errorf("shm: mapping the words of a pair: %w", err)
	}
	return nil
}

// Seal ends the time in which the pair can be mapped to write and have holes: both clients
// have mapped it. Until then the daemon must not touch the words, because an access to a page
// that is being taken away waits. It takes as long as a client likes, see Seal of a memfd.
func (p *Pair) Seal() error {
	if err := Seal(p.WordsFD); err != nil {
		return err
	}
	return Seal(p.DataFD)
}

// Lent closes the descriptors that clients have got.
func (p *Pair) Lent() {
	closeOnce(&p.WordsFD)
	closeOnce(&p.DataFD)
	closeOnce(&p.ReadFD)
}

// PairRole is an end of a pair.
type PairRole uint8

const (
	PairSends PairRole = iota
	PairReads
)

// OpenPair maps a pair that came from a daemon with so many bytes of data, as it says, and
// checks sizes and seals. The descriptors stay the caller's. Nothing of it may be touched
// before the daemon says that it is sealed; then Sealed has to find it good.
func OpenPair(words, data int, bytes uint64, role PairRole) (*Pair, error) {
	if bytes < MinPairBytes || bytes > MaxPairBytes || bytes&(bytes-1) != 0 {
		return nil, badMsg("a pair of %d bytes was offered", bytes)
	}
	// Sizes are those of the files: only they bound what may be touched, and without the seals
	// the daemon's end of them could be cut off under the mapping (Region.open).
	for i, fd := range [2]int{words, data} {
		got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
		if err != nil || got&sizeSeals != sizeSeals {
			return nil, badMsg("the descriptor of a pair is no memfd that keeps its size (seals %#x, %v)", got, err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return nil, fmt.Errorf("shm: fstat of a pair: %w", err)
		}
		if want := [2]uint64{pairWordsBytes, bytes}[i]; uint64(st.Size) != want {
			return nil, badMsg("the memfd of a pair has %d bytes, not %d", st.Size, want)
		}
	}
	p := NoPair()
	p.Bytes = bytes
	if err := p.mapWords(words); err != nil {
		return nil, err
	}
	prot := unix.PROT_READ
	if role == PairSends {
		prot |= unix.PROT_WRITE
	}
	at, err := unix.MmapPtr(data, 0, nil, uintptr(bytes), prot, unix.MAP_SHARED)
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("shm: mapping the data of a pair: %w", err)
	}
	p.data = unsafe.Slice((*byte)(at), bytes)
	return p, nil
}

// Sealed reports whether the header is that of a pair of this size and id.
func (p *Pair) Sealed(id uint64) bool {
	var h [offPairTail]byte
	copy(h[:], unsafe.Slice((*byte)(p.words), offPairTail))
	return bytes.Equal(h[:8], pairMagic[:]) && le.Uint32(h[8:]) == pairVersion && le.Uint64(h[16:]) == p.Bytes && le.Uint64(h[24:]) == id
}

// Close unmaps the pair. Nothing of it may be used any more.
func (p *Pair) Close() {
	if p.words != nil {
		unix.MunmapPtr(p.words, pairWordsBytes)
		p.words = nil
	}
	if p.data != nil {
		unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(p.data)), uintptr(len(p.data)))
		p.data = nil
	}
}

// Disown closes the daemon's own descriptors of the words and of the data.
func (p *Pair) Disown() {
	p.files.Lock()
	defer p.files.Unlock()
	closeOnce(&p.own[0])
	closeOnce(&p.own[1])
}

// Abandoned is Region.Abandoned for the words and the data of a pair: gone says that nobody has either.
func (p *Pair) Abandoned() (gone, certain bool) {
	p.files.Lock()
	defer p.files.Unlock()
	words, sure := abandoned(&p.own[0])
	data, certain := abandoned(&p.own[1])
	return words && data, sure && certain
}

func (p *Pair) word64(off uintptr) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Add(p.words, off)) }
func (p *Pair) word32(off uintptr) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Add(p.words, off)) }

func (p *Pair) tail() *atomic.Uint64  { return p.word64(offPairTail) }
func (p *Pair) head() *atomic.Uint64  { return p.word64(offPairHead) }
func (p *Pair) sleep() *atomic.Uint32 { return p.word32(offPairSleep) }
func (p *Pair) nudge() *atomic.Uint32 { return p.word32(offPairNudge) }

// Shut has nothing more get into the pair. Any end may call it, at any time.
func (p *Pair) Shut() { p.tail().Or(pairClosed) }

// Tail is the word that changes with whatever happens to the pair; readers that wait compare it.
func (p *Pair) Tail() uint64 { return p.tail().Load() }

// Sleeps says whether the reader sleeps, or is about to look a last time before it does.
func (p *Pair) Sleeps(on bool) {
	v := uint32(0)
	if on {
		v = 1
	}
	p.sleep().Store(v)
}

// Awaken reports whether the reader sleeps and has to be rung awake: the caller, who sends,
// has stored news. Then the daemon is to be told (Region.Nudge).
func (p *Pair) Awaken() bool {
	w := p.sleep()
	if w.Load() == 0 || w.Swap(0) == 0 {
		return false
	}
	p.nudge().Store(1)
	return true
}

// Nudged is the daemon's part: it reports, once, that the reader is to be rung awake.
func (p *Pair) Nudged() bool {
	w := p.nudge()
	return w.Load() != 0 && w.Swap(0) != 0
}

// SetMark says that the last datagram of the flow that came by the daemon is below descriptor
// n of the reader's receive ring. The daemon stores it before the sender hears of the
// datagram's outcome.
func (p *Pair) SetMark(n uint64) { p.word64(offPairMark).Store(n) }

// PairFigures is what the clients of a pair say of it. Nothing but figures depends on them.
type PairFigures struct {
	Sent, SentBytes, Read, ReadBytes uint64 // since it was made
}

// Figures are those of now.
func (p *Pair) Figures() PairFigures {
	return PairFigures{p.word64(offPairSent).Load(), p.word64(offPairSentBytes).Load(), p.word64(offPairRead).Load(), p.word64(offPairReadBytes).Load()}
}

// Fill is how many bytes of the data are put and not taken, at most Bytes, and whether the
// pair is closed.
func (p *Pair) Fill() (n uint64, closed bool) {
	head := p.head().Load()
	tail := p.tail().Load()
	return min(tail&^pairClosed-head, p.Bytes), tail&pairClosed != 0
}
