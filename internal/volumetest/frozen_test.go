package volumetest

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/internal/await"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// fileSystem makes an ext4 of its own below the world's directory, which can be
// frozen.
func (w *world) fileSystem() (dir string) {
	w.t.Helper()
	if os.Geteuid() != 0 {
		w.t.Skip("a file system of its own needs root")
	}
	image := filepath.Join(w.dir, "fs")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Truncate(image, 64<<20); err != nil {
		w.t.Fatal(err)
	}
	dir = filepath.Join(w.dir, "mnt")
	if err := os.Mkdir(dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			w.t.Skipf("%s: %v: %s", args[0], err, out)
		}
	}
	w.t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			w.t.Error(err)
		}
	})
	return dir
}

const (
	fiFreeze = 0xC0045877
	fiThaw   = 0xC0045878
)

// freeze lets nothing write to a file system until thaw is called, or the test ends.
func freeze(t *testing.T, dir string) (thaw func()) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetInt(fd, fiFreeze, 0); err != nil {
		unix.Close(fd)
		t.Skip("this file system cannot be frozen: ", err)
	}
	thaw = sync.OnceFunc(func() {
		if err := unix.IoctlSetInt(fd, fiThaw, 0); err != nil {
			t.Error(err)
		}
		unix.Close(fd)
	})
	t.Cleanup(thaw)
	return thaw
}

// pingPong sends datagrams from one daemon's socket to one of the other's and back,
// and tells how long the slowest took since it was asked last.
type pingPong struct {
	mu      sync.Mutex
	n       int
	longest time.Duration
}

func (p *pingPong) worst() (n int, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, d = p.n, p.longest
	p.n, p.longest = 0, 0
	return n, d
}

func (w *world) pingPong() *pingPong {
	w.t.Helper()
	bind := func(d *daemon, host int) *rdsd.Socket {
		s, err := d.client().Bind(w.ctx(), netip.AddrPortFrom(netip.MustParseAddr(w.at(host)), 0))
		if err != nil {
			w.t.Fatal(err)
		}
		return s
	}
	from, to := bind(w.client, clientHost), bind(w.server, serverHost)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	p, clock := &pingPong{}, await.NewClock(w.t)
	wg.Go(func() { // ends with ctx
		for {
			d, err := to.Recv(ctx)
			if err != nil {
				return
			}
			to.Send(ctx, d.Addr, d.Payload)
		}
	})
	wg.Go(func() { // ends with ctx
		for ctx.Err() == nil {
			began := clock.Now()
			if _, err := from.Request(ctx, to.LocalAddr(), []byte("ping")); err != nil {
				if ctx.Err() == nil {
					w.t.Errorf("a datagram: %v", err)
				}
				return
			}
			p.mu.Lock()
			p.n++
			p.longest = max(p.longest, clock.Now()-began)
			p.mu.Unlock()
		}
	})
	w.t.Cleanup(func() {
		cancel()
		wg.Wait()
		from.Close()
		to.Close()
	})
	return p
}

// TestFrozenStore: the file system under one export is frozen while it is written
// to by many: everything else of the same daemons, on the same reactors and in
// the same session, goes on: volumes in memory and on other file systems, their
// opening and closing, and datagrams. What the frozen one was asked completes when
// it is thawed, and that it passes the limit of a request meanwhile gives up no path
// that others use.
func TestFrozenStore(t *testing.T) {
	w := newWorld(t, overTCP)
	dir := w.fileSystem()
	w.serve(false, "")
	w.map_("")
	frozen := rdsd.ExportSpec{Name: "frozen", Path: filepath.Join(dir, "v.img"), Create: true, Size: appBytes}
	if _, err := w.server.vols().Export(w.ctx(), frozen); err != nil {
		t.Fatal(err)
	}
	w.export("well", appBytes)
	w.export("other", appBytes)
	cold := w.mount(rdsd.MapSpec{Name: "frozen", IOTimeout: *stall / 3})
	a := newApp(t, w.mount(rdsd.MapSpec{Name: "well"}).URI)
	a.start()
	a.progress(200, 10*time.Second)
	p := w.pingPong()

	thaw := freeze(t, dir)
	const writers = 40 // more than a file has workers
	done := make(chan error, writers+1)
	ask := func(f func(c *nbd.Client) error) {
		c := connect(t, w, cold)
		go func() { done <- f(c) }() // ends when it is thawed
	}
	block := bytes.Repeat([]byte{7}, blockSize)
	for i := range writers {
		ask(func(c *nbd.Client) error { _, err := c.WriteAt(block, int64(i)*blockSize); return err })
	}
	ask(func(c *nbd.Client) error { return c.WriteZeroes(1<<20, 1<<16) })

	a.stall()
	p.worst()
	began := time.Now()
	var opened []time.Duration
	for time.Since(began) < *stall {
		a.progress(20, worstStall)
		at := a.clock.Now()
		m, err := w.client.vols().Map(w.ctx(), rdsd.MapSpec{Node: w.at(serverHost), Name: "other"})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.client.vols().Unmap(w.ctx(), m.ID, false); err != nil {
			t.Fatal(err)
		}
		opened = append(opened, a.clock.Now()-at)
	}
	worst := a.stall()
	n, ping := p.worst()
	if worst > worstStall {
		t.Errorf("an operation on another volume took %v", ms(worst))
	}
	if n == 0 || ping > worstStall/2 {
		t.Errorf("%d datagrams went there and back, the slowest in %v", n, ms(ping))
	}
	if d := slices.Max(opened); d > worstStall {
		t.Errorf("opening and closing another volume took %v", ms(d))
	}
	select {
	case err := <-done:
		t.Errorf("something completed on a frozen store: %v", err)
	default:
	}
	thaw()
	for range writers + 1 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	got := make([]byte, blockSize)
	c := connect(t, w, cold)
	for i := range writers {
		if _, err := c.ReadAt(got, int64(i)*blockSize); err != nil || !bytes.Equal(got, block) {
			t.Fatalf("block %d after the thaw: %v", i, err)
		}
	}
	a.progress(100, 10*time.Second)
	a.stop()
	a.verify()
	t.Logf("REPORT a store was frozen for %v: %d datagrams (the slowest %v), the longest operation on another volume %v, opening one %v",
		*stall, n, ms(ping), ms(worst), ms(slices.Max(opened)))
}
