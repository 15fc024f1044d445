package volumetest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// obeying is a world whose stores obey, with one volume of an app's size and
// something beyond it, mapped.
func obeying(t *testing.T, s rdsd.MapSpec) (*world, *rdsd.Mapping) {
	w := newWorld(t, overTCP)
	w.serve(true, "")
	w.map_("")
	w.addPaths(2)
	w.export("disk", appBytes)
	s.Name = "disk"
	return w, w.mount(s)
}

func connect(t *testing.T, w *world, m *rdsd.Mapping) *nbd.Client {
	t.Helper()
	c, err := nbd.DialURI(w.ctx(), m.URI)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestStoreErrors: the store fails one request in twenty, some of them half done.
// Each error goes to the request it belongs to, and everything else is as it was
// (B7).
func TestStoreErrors(t *testing.T) {
	t.Parallel()
	w, m := obeying(t, rdsd.MapSpec{})
	a := newApp(t, m.URI)
	a.start()
	a.progress(200, 5*time.Second)
	a.failing.Store(true)
	for _, err := range []string{"EIO", "ENOSPC"} {
		w.server.rule(blk.Rule{Ops: blk.Ops(blk.OpWrite), Chance: 0.02, Short: 2 * blockSize}, err)
		w.server.rule(blk.Rule{Ops: blk.Ops(blk.OpRead, blk.OpWriteZeroes), Chance: 0.02}, err)
	}
	a.progress(5000, 20*time.Second)
	hits := w.server.heal()
	a.progress(200, 5*time.Second)
	a.stop()
	failed := a.failed.Load()
	if failed == 0 || int(failed) > hits {
		t.Errorf("%d operations failed, the store has failed %d", failed, hits)
	}
	a.verify()
	a.d.inFile(t, w.file("disk"))

	// Which error it was is told.
	c := connect(t, w, m)
	p := make([]byte, blockSize)
	for err, want := range map[string]syscall.Errno{"EIO": syscall.EIO, "ENOSPC": syscall.ENOSPC} {
		w.server.rule(blk.Rule{Ops: blk.Ops(blk.OpWrite), Count: 1}, err)
		if _, got := c.WriteAt(p, 0); !errors.Is(got, want) {
			t.Errorf("a write that the store failed with %s: %v", err, got)
		}
		w.server.heal()
	}
	t.Logf("REPORT the store failed %d of %d operations: each error where it belongs, all other bytes right", failed, a.ops.Load()+failed)
}

// TestFailedSync: after a sync has failed no flush succeeds: not when the store
// is well again, nor after a path was lost, nor when the serving daemon was
// killed and is back. When the volume is mapped anew they do (B7).
func TestFailedSync(t *testing.T) {
	t.Parallel()
	w, m := obeying(t, rdsd.MapSpec{})
	c := connect(t, w, m)
	p := make([]byte, blockSize)
	write := func() {
		t.Helper()
		if _, err := c.WriteAt(p, 0); err != nil {
			t.Fatal(err)
		}
	}
	write()
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	write()
	w.server.rule(blk.Rule{Ops: blk.Ops(blk.OpFlush), Count: 1}, "EIO")
	refused := func(when string) {
		t.Helper()
		for range 3 {
			write()
			if err := c.Flush(); !errors.Is(err, syscall.EIO) {
				t.Errorf("%s: a flush: %v", when, err)
			}
		}
	}
	refused("it fails")
	w.server.heal()
	refused("the store is well")
	for _, x := range w.paths {
		x.cut()
	}
	refused("both paths were lost")
	w.server.kill()
	w.server.start()
	refused("the serving daemon was killed")
	w.server.ready()
	c.Close()
	eventually(t, "it is unmapped", func() bool { return w.client.vols().Unmap(w.ctx(), m.ID, false) == nil })
	m, err := w.client.vols().Map(w.ctx(), rdsd.MapSpec{Node: w.at(serverHost), Name: "disk"})
	if err != nil {
		t.Fatal(err)
	}
	c = connect(t, w, m)
	write()
	if err := c.Flush(); err != nil {
		t.Errorf("mapped anew: %v", err)
	}
}

// TestStalledStore: one write stalls in the store for long, and passes its limit.
// Others go on over the other path; the write completes once, when the store
// does (B3, B4).
func TestStalledStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, overTCP)
	w.serve(true, "")
	w.map_("")
	w.addPaths(2)
	w.export("disk", appBytes+blockSize)
	m := w.mount(rdsd.MapSpec{Name: "disk", IOTimeout: time.Second})
	events := w.client.watch(t)
	a := newApp(t, m.URI)
	a.start()
	a.progress(200, 5*time.Second)
	c := connect(t, w, m)
	p := make([]byte, blockSize)
	fill(p, appWorkers*workerBlocks, 1)
	w.server.rule(blk.Rule{Off: appBytes, Len: blockSize, Count: 1, Stall: true}, "")
	done := make(chan error, 1)
	go func() { // ends with the write
		_, err := c.WriteAt(p, appBytes)
		done <- err
	}()
	eventually(t, "the write is at the store", func() bool { return w.server.held() == 1 })
	a.stall()
	for end := time.Now().Add(*stall); time.Now().Before(end) && !a.bad(); {
		a.progress(100, 5*time.Second)
	}
	select {
	case err := <-done:
		t.Fatalf("the write has ended (%v) while the store has it", err)
	default:
	}
	if n := events.count(func(e *rdsd.VolumeEvent) bool { return e.Kind == rdsd.EventError }); n == 0 {
		t.Error("no event tells that a request passed its limit")
	}
	worst := a.stall()
	if worst > worstStall {
		t.Errorf("an operation on another block took %v", ms(worst))
	}
	w.server.heal()
	if err := <-done; err != nil {
		t.Errorf("the write: %v", err)
	}
	a.progress(200, 5*time.Second)
	a.stop()
	a.verify()
	if _, err := c.ReadAt(p, appBytes); err != nil {
		t.Error(err)
	}
	if g, err := generation(p, appWorkers*workerBlocks); err != nil || g != 1 {
		t.Errorf("the block that was written slowly: generation %d, %v", g, err)
	}
	w.pathsUp(m, 2)
	t.Logf("REPORT a write stalled for %v in the store: the longest of %d other operations took %v", *stall, a.ops.Load(), ms(worst))
}

// TestPowerCut: the serving machine loses its power again and again: what was not
// flushed is lost, torn and reordered, the daemon is dead, and the machine starts
// anew. What was flushed, and what was written with FUA, is there; no flush
// succeeds before the volume is mapped anew, because completed writes may be
// gone (B1, B7).
func TestPowerCut(t *testing.T) { powerCuts(t, overTCP, 6) }

// TestPowerCutOverRDMA: the same over RoCE.
func TestPowerCutOverRDMA(t *testing.T) { powerCuts(t, overRDMA, max(6 / *rdmaShare, 2)) }

func powerCuts(t *testing.T, o over, cuts int) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("another boot id needs a mount namespace, and root")
	}
	w := newWorld(t, o)
	boot := filepath.Join(w.dir, "boot")
	start := func(n byte) {
		if err := os.WriteFile(boot, []byte("00000000-0000-4000-8000-00000000000"+string('0'+n)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		w.server.start()
	}
	w.server = w.newDaemon("server", serverHost, true, "")
	w.server.env = []string{bootEnv + "=" + boot, cacheEnv + "=1"}
	w.server.unshare = syscall.CLONE_NEWNS
	start(0)
	w.server.ready()
	w.map_("")
	w.export("disk", uint64(appBytes+cuts*blockSize))
	m := w.mount(rdsd.MapSpec{Name: "disk"})
	a := newApp(t, m.URI)
	lost := 0
	for i := range byte(cuts) { // a digit of the boot id
		a.noFlush.Store(false)
		a.failing.Store(false)
		a.start()
		a.progress(500, 10*time.Second)
		fua(t, m.URI, appBytes+int(i)*blockSize, i+1)
		a.noFlush.Store(true)
		a.progress(300, 10*time.Second) // completed and not flushed
		a.failing.Store(true)
		lost += w.server.order(order{Do: "power cut"}).Unsynced
		<-w.server.ended
		w.server.kill()
		a.cuts.Add(1)
		start(i + 1)
		a.flushes.Store(0)
		a.noFlush.Store(false)
		a.progress(500, 10*time.Second)
		if n := a.flushes.Load(); n > 0 {
			t.Errorf("%d flushes have succeeded after writes were lost", n)
		}
		if a.failed.Load() == 0 {
			t.Error("no flush has failed after writes were lost")
		}
		a.failed.Store(0)
		a.stop()
		a.verify()
		if t.Failed() {
			return
		}
		w.server.ready()

		a.drop(nil)
		eventually(t, "it is unmapped", func() bool { return w.client.vols().Unmap(w.ctx(), m.ID, false) == nil })
		m = w.mount(rdsd.MapSpec{Name: "disk"})
		a.uri = m.URI
		c := connect(t, w, m)
		if err := c.Flush(); err != nil {
			t.Errorf("mapped anew: %v", err)
		}
		p := make([]byte, blockSize)
		for k := range int(i) + 1 {
			if _, err := c.ReadAt(p, int64(appBytes+k*blockSize)); err != nil {
				t.Fatal(err)
			}
			for _, x := range p {
				if x != byte(k)+1 {
					t.Fatalf("written with FUA before power cut %d, and lost at %d", k, i)
				}
			}
		}
		c.Close()
	}
	a.verify()
	if lost == 0 {
		t.Error("no sector was in danger")
	}
	t.Logf("REPORT over %v: %d power cuts with %d sectors in danger: everything flushed is there, no flush succeeded before the volume was mapped anew", o, cuts, lost)
}

// fua writes a block with FUA.
func fua(t *testing.T, uri string, off int, pattern byte) {
	t.Helper()
	if _, err := exec.LookPath("qemu-io"); err != nil {
		t.Skip("qemu-io is not installed (scripts/setup.sh)")
	}
	out, err := exec.Command("qemu-io", "-f", "raw", "-t", "writeback", "-c", "write -f -P "+strconv.Itoa(int(pattern))+" "+strconv.Itoa(off)+" "+strconv.Itoa(blockSize), uri).CombinedOutput()
	if err != nil {
		t.Fatalf("qemu-io: %v\n%s", err, out)
	}
}
