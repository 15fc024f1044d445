package bench

import (
	"math/bits"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	boardBytes  = 128 << 10
	lineBytes   = 128 // counters of different writers lie so far apart
	histSub     = 128 // buckets for each power of two: 0.8 % wide
	histBuckets = histSub * 34
)

// board is memory that a measured process shares with the harness. All words
// are written by the process and read by the harness.
type board struct {
	mem []byte
	f   *os.File
}

// Words of a board, each on a line of its own.
const (
	wordCount  = iota // datagrams received, or round trips made
	wordSent          // datagrams sent
	wordReady         // 1: begun
	wordOthers        // datagrams received by others than the one that stops
	wordHist   = 8    // the histogram begins at this line
)

func newBoard() (*board, error) {
	f, err := memFile("board", boardBytes)
	if err != nil {
		return nil, err
	}
	return mapBoard(f)
}

func mapBoard(f *os.File) (*board, error) {
	mem, err := unix.Mmap(int(f.Fd()), 0, boardBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return &board{mem, f}, err
}

func (b *board) close() {
	unix.Munmap(b.mem)
	b.f.Close()
}

func (b *board) word(i int) *uint64 { return (*uint64)(unsafe.Pointer(&b.mem[i*lineBytes])) }

func (b *board) load(i int) uint64 { return atomic.LoadUint64(b.word(i)) }

func (b *board) set(i int, v uint64) { atomic.StoreUint64(b.word(i), v) }

func (b *board) bucket(i int) *uint64 {
	return (*uint64)(unsafe.Pointer(&b.mem[wordHist*lineBytes+i*8]))
}

func (b *board) add(i int, n uint64) { atomic.AddUint64(b.word(i), n) }

// record notes one latency. One thread of the process calls it.
func (b *board) record(d time.Duration) {
	p := b.bucket(bucketOf(uint64(max(d, 0))))
	atomic.StoreUint64(p, *p+1)
}

// hist copies the histogram.
func (b *board) hist() []uint64 {
	h := make([]uint64, histBuckets)
	for i := range h {
		h[i] = atomic.LoadUint64(b.bucket(i))
	}
	return h
}

// bucketOf returns the bucket of a latency: values below histSub have a bucket each, then
// there are histSub/2 for each power of two... of which the upper half is used.
func bucketOf(ns uint64) int {
	if ns < histSub {
		return int(ns)
	}
	e := bits.Len64(ns) - bits.Len64(histSub-1) // 1 for histSub to 2·histSub-1
	return min(histSub+(e-1)*histSub/2+int(ns>>e)-histSub/2, histBuckets-1)
}

// bucketTop is the largest value of a bucket.
func bucketTop(i int) uint64 {
	if i < histSub {
		return uint64(i)
	}
	e := (i-histSub)/(histSub/2) + 1
	m := (i-histSub)%(histSub/2) + histSub/2
	return uint64(m+1)<<e - 1
}

// quantile of what h has more than h0.
func quantile(h0, h []uint64, q float64) time.Duration {
	var all uint64
	for i := range h {
		all += h[i] - h0[i]
	}
	left := uint64(float64(all) * (1 - q))
	for i := len(h) - 1; i >= 0; i-- {
		n := h[i] - h0[i]
		if n > left {
			return time.Duration(bucketTop(i))
		}
		left -= n
	}
	return 0
}

// memFile makes an anonymous file of so many bytes.
func memFile(name string, size int) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := f.Truncate(int64(size)); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
