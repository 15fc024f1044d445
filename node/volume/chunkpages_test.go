package volume

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/rdsd/rdsd/internal/quota"
)

func TestChunkPages(t *testing.T) {
	const pages = 300
	node := quota.New(64<<20, nil)
	c := newChunkPages(make([]byte, pages*chunkPage), node.Account(quota.Holder{}))
	in := map[int]bool{}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		off := rng.IntN(len(c.mem))
		n := 1 + rng.IntN(min(len(c.mem)-off, 70*chunkPage))
		if rng.IntN(3) > 0 {
			if err := c.touch(off, n); err != nil {
				t.Fatal(err)
			}
			for p := off / chunkPage; p <= (off+n-1)/chunkPage; p++ {
				in[p] = true
			}
		} else {
			c.trimmed(off, n)
			for p := (off + chunkPage - 1) / chunkPage; (p+1)*chunkPage <= off+n; p++ {
				delete(in, p)
			}
		}
		if got := node.Kinds()[quota.Chunks].Used; got != int64(len(in)*chunkPage) {
			t.Fatalf("%d bytes are charged for %d pages", got, len(in))
		}
	}
	if off, ok := c.at(c.mem[5000:6000]); !ok || off != 5000 {
		t.Errorf("found at %d, %v", off, ok)
	}
	if _, ok := c.at(make([]byte, 10)); ok {
		t.Error("memory of others was found")
	}
	c.free()
	if node.Used() != 0 || len(node.Holders()) != 0 {
		t.Errorf("%d bytes and %v are left", node.Used(), node.Holders())
	}
}

func TestChunkPagesRefused(t *testing.T) {
	node := quota.New(64<<20, nil)
	c := newChunkPages(make([]byte, 64<<20), node.Account(quota.Holder{}))
	got := 0
	for c.touch(got, 1<<20) == nil {
		got += 1 << 20
	}
	if got != 32<<20 {
		t.Errorf("%d MiB of chunks fit into an account of 64", got>>20)
	}
	if c.touch(got, 1<<20) == nil {
		t.Error("what was refused is taken for charged")
	}
	c.free()
	if node.Used() != 0 {
		t.Errorf("%d bytes are left", node.Used())
	}
}

// TestChunkPagesSure: a session has pages for a request of 1 MiB, and what it keeps, whatever its peer
// holds, while the node has them, and no more.
func TestChunkPagesSure(t *testing.T) {
	const limit = 64 << 20
	node := quota.New(limit, nil)
	peer, other := node.Account(quota.User(1)), node.Account(quota.User(2))
	c := newChunkPages(make([]byte, 8<<20), node.Account(quota.User(1)))
	peer.Grow(quota.Sockets, limit*7/8) // far beyond its share
	if err := c.touch(0, 1<<20); err != nil {
		t.Fatalf("the first MiB: %v", err)
	}
	if err := c.touch(1<<20, 256<<10+1); err == nil {
		t.Error("a page more than is sure was given")
	}
	if err := c.touch(1<<20, 256<<10); err != nil {
		t.Errorf("what a session keeps: %v", err)
	}
	c.trimmed(0, 1<<20)
	const all = limit + limit/32 // what is sure may go beyond the limit
	other.Grow(quota.Sockets, all-node.Used()-512<<10)
	if err := c.touch(0, 1<<20); err == nil {
		t.Error("more was given than the node has")
	}
	if err := c.touch(0, 512<<10); err != nil || node.Used() != all {
		t.Errorf("the last: %v, %d of %d", err, node.Used(), all)
	}
	c.free()
	if peer.Give(quota.Sockets, limit*7/8); peer.Used() != 0 {
		t.Errorf("%d bytes are left", peer.Used())
	}
	peer.Close()
	other.Close()
}

// TestChunkPagesRationed: who is refused and tries again pays once.
func TestChunkPagesRationed(t *testing.T) {
	node := quota.New(64<<20, nil)
	node.Ration(quota.Chunks, 4*chunkPage, 8*chunkPage)
	c := newChunkPages(make([]byte, 64*chunkPage), node.Account(quota.Holder{}))
	if err := c.touch(0, 6*chunkPage); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := c.touch(3*chunkPage, 20*chunkPage); !errors.Is(err, quota.ErrRationed) {
			t.Fatalf("20 pages, of which 3 are there, with 2 left: %v", err)
		}
	}
	if err := c.touch(0, 6*chunkPage); err != nil || node.Used() != 6*chunkPage {
		t.Errorf("what is there: %v, %d pages charged", err, node.Used()/chunkPage)
	}
	node.Ration(quota.Chunks, 40*chunkPage, 40*chunkPage)
	if err := c.touch(3*chunkPage, 20*chunkPage); err != nil || node.Used() != 23*chunkPage {
		t.Errorf("with a new ration: %v, %d pages charged", err, node.Used()/chunkPage)
	}
	c.free()
	if node.Used() != 0 {
		t.Errorf("%d bytes are left", node.Used())
	}
}

// TestTouchFromManyThreads: threads that touch the same pages are charged for each once.
func TestTouchFromManyThreads(t *testing.T) {
	n := quota.New(1<<30, nil)
	c := newChunkPages(make([]byte, 256*chunkPage), n.Account(quota.Holder{}))
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			for i := range 2000 {
				off := (i*7 + k) % 200
				if err := c.touch(off*chunkPage, 50*chunkPage); err != nil {
					t.Error(err)
				}
				if i%5 == k%5 {
					c.trimmed(off*chunkPage, 30*chunkPage)
				}
			}
		})
	}
	wg.Wait()
	if err := c.touch(0, 256*chunkPage); err != nil || n.Used() != 256*chunkPage {
		t.Errorf("%v, %d bytes are charged for %d", err, n.Used(), 256*chunkPage)
	}
	c.free()
	if got := n.Used(); got != 0 {
		t.Errorf("%d bytes are charged at the end", got)
	}
}
