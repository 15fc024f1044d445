package volume

import (
	"errors"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/rdsd/rdsd/internal/quota"
)

// chunkPages counts which pages of a session's chunks are in memory, and charges
// the session's peer for each before it is first written: by the peer, which
// needs no request for that, or by a store that is read. A session has hundreds of
// chunks and an honest one uses few, so that to charge them all would allow few
// sessions.
type chunkPages struct {
	mem     []byte
	account *quota.Account
	bits    []atomic.Uint64
	taken   atomic.Int64 // pages
}

const (
	chunkPage = 4096
	// chunkSure is how many pages of its chunks a session has while the node has them, whatever else its
	// peer or others hold: one request of 1 MiB, and what an idle session keeps.
	chunkSure = (1<<20 + 256<<10) / chunkPage
)

func newChunkPages(mem []byte, account *quota.Account) *chunkPages {
	pages := (len(mem) + chunkPage - 1) / chunkPage
	return &chunkPages{mem: mem, account: account, bits: make([]atomic.Uint64, (pages+63)/64)}
}

// at finds p in the chunks: its offset, or false.
func (c *chunkPages) at(p []byte) (off int, ok bool) {
	if len(p) == 0 {
		return 0, false
	}
	d := uintptr(unsafe.Pointer(unsafe.SliceData(p))) - uintptr(unsafe.Pointer(unsafe.SliceData(c.mem)))
	return int(d), d < uintptr(len(c.mem))
}

// touch charges for the pages of p, at off, that are not in memory yet. Any
// thread may call it. What is refused is charged for and noted in no part.
func (c *chunkPages) touch(off, n int) error {
	first, last := off/chunkPage, (off+n-1)/chunkPage
	var want int64
	each(first, last, func(i int, mask uint64) { want += int64(bits.OnesCount64(mask &^ c.bits[i].Load())) })
	if want == 0 {
		return nil
	}
	err := c.account.Take(quota.Chunks, want*chunkPage)
	if err != nil && !errors.Is(err, quota.ErrRationed) && c.taken.Load()+want <= chunkSure {
		err = c.account.Sure(quota.Chunks, want*chunkPage)
	}
	if err != nil {
		return err
	}
	var fresh int64
	each(first, last, func(i int, mask uint64) { fresh += int64(bits.OnesCount64(mask &^ c.bits[i].Or(mask))) })
	// Another thread may have come between, with pages of the same or a trim.
	c.account.Give(quota.Chunks, (want-fresh)*chunkPage)
	c.taken.Add(fresh)
	return nil
}

// trimmed tells that the whole pages within n bytes at off were given back.
func (c *chunkPages) trimmed(off, n int) {
	first, last := (off+chunkPage-1)/chunkPage, (off+n)/chunkPage-1
	var gone int64
	each(first, last, func(i int, mask uint64) {
		gone += int64(bits.OnesCount64(mask & c.bits[i].And(^mask)))
	})
	c.give(gone)
}

// free gives everything back.
func (c *chunkPages) free() {
	c.give(c.taken.Load())
	c.account.Close()
}

func (c *chunkPages) give(pages int64) {
	c.taken.Add(-pages)
	c.account.Give(quota.Chunks, pages*chunkPage)
}

// each calls f with each word of a bitmap that has bits first to last, and with
// those.
func each(first, last int, f func(word int, mask uint64)) {
	for first <= last {
		end := min(last, first|63)
		mask := ^uint64(0) << (first & 63) & (^uint64(0) >> (63 - end&63))
		f(first/64, mask)
		first = end + 1
	}
}
