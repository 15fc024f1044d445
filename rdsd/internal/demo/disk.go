package demo

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

const (
	diskName    = "demo"
	diskBlock   = 4 << 10 // bytes written or read at a time
	diskBlocks  = 1024
	diskWriters = 4
	diskPause   = 4 * time.Millisecond // of each between two rounds
)

// disk is an application of A on a volume of B that is mapped over two paths, one
// of them over the link that is cut. Its writers own every diskWriters-th block
// each, write them with a new version and read others back.
type disk struct {
	t       *teller
	a, b    *site
	mapping *rdsd.Mapping
	nbd     *nbd.Client
	version [diskBlocks]uint64 // owned by the block's writer; 0: zeroes

	writes, reads, wrong, failed atomic.Uint64
	failovers                    atomic.Uint64
	longest                      atomic.Int64 // a request, ns
	lost                         atomic.Int32 // paths

	stop    chan struct{} // closed: no more rounds
	writers sync.WaitGroup
	watcher sync.WaitGroup
	quit    context.CancelFunc // ends the watcher
}

// newDisk exports a volume on b, maps it on a, and starts the application. The
// relay of the link is at relay, the volumes of b listen at direct.
func newDisk(ctx context.Context, dir string, t *teller, a, b *site, relay, direct netip.AddrPort) (*disk, error) {
	if _, err := b.client.Volumes().Export(ctx, rdsd.ExportSpec{Name: diskName, Kind: rdsd.KindMemory, Size: diskBlocks * diskBlock}); err != nil {
		return nil, fmt.Errorf("node B: %w", err)
	}
	m, err := a.client.Volumes().Map(ctx, rdsd.MapSpec{
		Node: b.addr.String(), Name: diskName, Attach: rdsd.AttachSocket, SocketPath: filepath.Join(dir, "disk"), Policy: rdsd.PolicyRoundRobin,
		Paths: []rdsd.PathSpec{{Src: a.addr.String(), Dst: relay.String()}, {Src: a.addr.String(), Dst: direct.String()}},
	})
	if err != nil {
		return nil, fmt.Errorf("node A: %w", err)
	}
	d := &disk{t: t, a: a, b: b, mapping: m, stop: make(chan struct{})}
	if d.nbd, err = nbd.DialURI(ctx, m.URI); err != nil {
		return nil, fmt.Errorf("the volume on node A: %w", err)
	}
	t.say("a volume of B, %d MiB of memory, is mapped on A over two paths, one of them over the link; an application writes it and reads it back", diskBlocks*diskBlock>>20)
	run, quit := context.WithCancel(context.WithoutCancel(ctx))
	d.quit = quit
	d.watcher.Go(func() { d.watch(run) })
	for w := range diskWriters {
		d.writers.Go(func() { d.work(w) })
	}
	return d, nil
}

// fill makes what a block holds in a version.
func fill(p []byte, block int, version uint64) []byte {
	if version == 0 {
		clear(p)
		return p
	}
	rng := rand.NewPCG(uint64(block), version)
	for i := 0; i < len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], rng.Uint64())
	}
	return p
}

// work writes and reads the blocks of writer w until told to stop.
func (d *disk) work(w int) {
	p, want := make([]byte, diskBlock), make([]byte, diskBlock)
	tick := time.NewTicker(diskPause)
	defer tick.Stop()
	mine := func() int { return rand.IntN(diskBlocks/diskWriters)*diskWriters + w }
	for {
		select {
		case <-d.stop:
			return
		case <-tick.C:
		}
		block := mine()
		d.version[block]++
		ok := d.timed(func() error {
			_, err := d.nbd.WriteAt(fill(p, block, d.version[block]), int64(block)*diskBlock)
			return err
		})
		if !ok {
			return
		}
		d.writes.Add(1)
		if !d.check(mine(), p, want) {
			return
		}
	}
}

// check reads a block and compares it; false when it cannot be read.
func (d *disk) check(block int, got, want []byte) bool {
	ok := d.timed(func() error {
		_, err := d.nbd.ReadAt(got, int64(block)*diskBlock)
		return err
	})
	if !ok {
		return false
	}
	d.reads.Add(1)
	if !bytes.Equal(got, fill(want, block, d.version[block])) {
		if d.wrong.Add(1) == 1 {
			d.t.say("A: block %d of the volume does NOT hold what was written last", block)
		}
	}
	return true
}

// timed does a request and keeps how long the longest took.
func (d *disk) timed(do func() error) bool {
	start := time.Now()
	if err := do(); err != nil {
		if d.failed.Add(1) == 1 {
			d.t.say("A: the volume failed: %v", err)
		}
		return false
	}
	took := int64(time.Since(start))
	for old := d.longest.Load(); took > old && !d.longest.CompareAndSwap(old, took); old = d.longest.Load() {
	}
	return true
}

// watch tells what A says of the volume's paths: when one is lost and when it is
// back, not each attempt to connect it.
func (d *disk) watch(ctx context.Context) {
	lost := map[string]bool{}
	for e, err := range d.a.client.Volumes().Watch(ctx) {
		if err != nil {
			return
		}
		switch {
		case e.Kind == rdsd.EventFailover:
			d.failovers.Add(e.Count)
			d.t.say("A: %d requests of the volume were on the link and go on over the other path", e.Count)
		case e.Kind != rdsd.EventPath || e.Path == nil:
		case e.State == string(rdsd.PathReconnecting) && !lost[e.Path.Dst]:
			lost[e.Path.Dst] = true
			d.lost.Add(1)
			d.t.say("A: the volume's path to %s is lost; the other one carries on", e.Path.Dst)
		case e.State == string(rdsd.PathConnected) && lost[e.Path.Dst]:
			lost[e.Path.Dst] = false
			d.lost.Add(-1)
			d.t.say("A: the volume's path to %s is back", e.Path.Dst)
		}
	}
}

// pathBack is how long the end waits for a path that was lost: the daemon tries to
// connect it seldom by the end of a long cut.
const pathBack = 5 * time.Second

// end stops the application, waits until the paths are back, reads every block once
// more, and takes the volume away. It has 10 seconds.
func (d *disk) end() DiskAccount {
	close(d.stop)
	defer time.AfterFunc(10*time.Second, func() { d.nbd.Close() }).Stop()
	d.writers.Wait()
	for begun := time.Now(); d.lost.Load() > 0 && time.Since(begun) < pathBack; {
		time.Sleep(10 * time.Millisecond)
	}
	p, want := make([]byte, diskBlock), make([]byte, diskBlock)
	whole := d.timed(d.nbd.Flush)
	verified := 0
	for block := 0; whole && block < diskBlocks; block++ {
		if whole = d.check(block, p, want); whole {
			verified++
		}
	}
	d.nbd.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// By force: the daemon may not have seen yet that the application is gone.
	for _, err := range []error{d.a.client.Volumes().Unmap(ctx, d.mapping.ID, true), d.b.client.Volumes().Unexport(ctx, diskName, false)} {
		if err != nil {
			d.failed.Add(1)
			d.t.say("the volume could not be taken away: %v", err)
		}
	}
	d.quit()
	d.watcher.Wait()
	sum := d.account()
	sum.Verified = verified
	return sum
}

// account is how it stands.
func (d *disk) account() DiskAccount {
	return DiskAccount{
		Writes: d.writes.Load(), Reads: d.reads.Load(), Wrong: d.wrong.Load(), Failed: d.failed.Load(),
		Failovers: d.failovers.Load(), LongestNs: d.longest.Load(), Blocks: diskBlocks,
	}
}
