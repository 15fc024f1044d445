package node

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/client"
)

// kept is a keeper of a node that does not run, with figures of the process made up.
func kept(t *testing.T) (k *keeper, says func(resident, shared int64)) {
	t.Helper()
	n, _ := newFakeNode(t, testConfig(t), &fakeCore{})
	n.deps.Memory = quota.New(64<<20, nil)
	f, err := os.Create(filepath.Join(t.TempDir(), "statm"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	const page = 4096
	k = &keeper{node: n, page: page, own: n.deps.Memory.Account(quota.Holder{}), file: f, goUse: func() goUse { return goUse{} }}
	t.Cleanup(k.own.Close)
	whole.Store(true)
	t.Cleanup(func() { whole.Store(false) })
	return k, func(resident, shared int64) {
		b := fmt.Sprintf("%-8d %-8d %-8d 1 0 2 0\n", 1<<20, resident/page, shared/page)
		if _, err := f.WriteAt([]byte(b), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// Pages of regions, which is what is shared beside the program's own file, are charged to
// the node as they come and go; when memory is short they are let go, and not before.
func TestKeeperChargesRegions(t *testing.T) {
	k, says := kept(t)
	const mib = 1 << 20
	limit := k.node.deps.Memory.Limit()
	forgotten := uint64(0)
	for _, c := range []struct {
		what             string
		resident, shared int64
		regions          int64
		forget           bool
	}{
		{"the program alone", 30 * mib, programPages, 0, false},
		{"less than the program", 30 * mib, mib, 0, false},
		{"some", 40 * mib, programPages + 10*mib, 10 * mib, false},
		{"more", 60 * mib, programPages + 20*mib, 20 * mib, false},
		{"fewer", 50 * mib, programPages + 5*mib, 5 * mib, false},
		{"at seven eighths of the limit", 50 * mib, programPages + limit/8*7, limit / 8 * 7, false},
		{"a page above", 50 * mib, programPages + limit/8*7 + 4096, limit/8*7 + 4096, true},
		{"few, and a process as large as it may be", limit + memorySlack - memoryReserve, programPages + 3*mib, 3 * mib, false},
		{"and a page larger", limit + memorySlack - memoryReserve + 4096, programPages + 3*mib, 3 * mib, true},
		{"hardly any", limit + memorySlack, programPages + limitStep, limitStep, false},
		{"none any more", 30 * mib, 0, 0, false},
	} {
		says(c.resident, c.shared)
		if got := k.look(); got != c.resident {
			t.Errorf("%s: %d bytes are said to be resident, want %d", c.what, got, c.resident)
		}
		if got := k.node.deps.Memory.Kinds()[quota.Regions].Used; got != c.regions || k.own.Used() != c.regions {
			t.Errorf("%s: %d bytes are charged, %d to the node; want %d", c.what, got, k.own.Used(), c.regions)
		}
		if c.forget {
			forgotten++
		}
		if got := k.node.deps.Count.RegionsForgotten.Load(); got != forgotten {
			t.Errorf("%s: let go %d times, want %d", c.what, got, forgotten)
			forgotten = got
		}
	}
}

// What cannot be read is not taken for a process without memory, and where several nodes
// are one process nothing is charged at all.
func TestKeeperKnowsNothing(t *testing.T) {
	k, says := kept(t)
	says(40<<20, programPages+10<<20)
	if k.look() == 0 {
		t.Fatal("nothing is resident")
	}
	charged := k.own.Used()
	for _, text := range []string{"", "1 2", "1 x 3", "1 2 x"} {
		if err := k.file.Truncate(0); err != nil {
			t.Fatal(err)
		}
		if _, err := k.file.WriteAt([]byte(text), 0); err != nil {
			t.Fatal(err)
		}
		if got := k.look(); got != 0 || k.own.Used() != charged {
			t.Errorf("%q: %d bytes resident, %d charged and %d before", text, got, k.own.Used(), charged)
		}
	}
	says(60<<20, programPages+20<<20)
	whole.Store(false)
	if got := k.look(); got != 0 || k.own.Used() != charged {
		t.Errorf("one of several nodes: %d bytes resident, %d charged and %d before", got, k.own.Used(), charged)
	}
}

// The collector's limit follows what the process has besides, by steps: it is left alone
// until it is off by more than limitStep, in either direction.
func TestKeeperSetsTheCollectorsLimit(t *testing.T) {
	k, says := kept(t)
	before, was := debug.SetMemoryLimit(-1), tuned.Load()
	t.Cleanup(func() {
		tuned.Store(was)
		debug.SetMemoryLimit(before)
	})
	limit := k.node.deps.Memory.Limit()
	tuned.Store(limit)
	const mib, page = 1 << 20, 4096
	set := int64(0)
	for _, c := range []struct {
		what   string
		shared int64
		set    bool
	}{
		{"at first", 36 * mib, true},
		{"a step less room", 36*mib + limitStep, false},
		{"a page more than a step less", 36*mib + limitStep + page, true},
		{"a step more again", 36*mib + page, false},
		{"a page more than that", 36 * mib, true},
	} {
		says(50*mib, c.shared)
		k.look()
		if c.set {
			set = goLimit(limit, c.shared, 0, goUse{}.needs(), ration(limit))
		}
		if got := debug.SetMemoryLimit(-1); got != set || k.goLimit != set {
			t.Errorf("%s: the limit is %d and noted as %d, want %d", c.what, got, k.goLimit, set)
		}
	}
}

// TestKeeperIsBroughtForward: who lacks a page just after another was fed waits for a few FeedEvery and
// not for the keeper's own time; and looks that are wanted all the time do not put that time off.
func TestKeeperIsBroughtForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop, wanted, ended := make(chan struct{}), make(chan struct{}, 1), make(chan struct{})
		var lacks, always atomic.Bool
		var swept atomic.Int64
		var fed time.Time
		since := func() time.Duration { return time.Since(time.Unix(0, swept.Load())) }
		look := func() int64 {
			if now := time.Now(); lacks.Load() && now.Sub(fed) >= client.FeedEvery {
				lacks.Store(always.Load())
				fed = now
			}
			return 0
		}
		go func() {
			defer close(ended)
			keepLooking(stop, wanted, 1<<30, look, lacks.Load, func(now time.Time) { swept.Store(now.UnixNano()) })
		}()
		pass := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		want := func() {
			select {
			case wanted <- struct{}{}:
			default:
			}
		}
		pass(3 * keepIdle)
		for range 2 {
			lacks.Store(true)
			want()
			pass(grantEvery)
		}
		if pass(3 * client.FeedEvery); lacks.Load() {
			t.Errorf("who lacked a page is not fed for %v", 3*client.FeedEvery)
		}
		pass(3 * keepIdle)
		lacks.Store(true)
		always.Store(true)
		for begun := time.Now(); time.Since(begun) < 10*keepIdle; pass(time.Millisecond) {
			want()
			if since() > 2*keepIdle {
				t.Errorf("nothing was swept for %v", since())
				break
			}
		}
		close(stop)
		<-ended
	})
}

// TestKeeperWithoutProc: where the process's memory cannot be read the keeper goes on, by what Go has and clients pay for.
func TestKeeperWithoutProc(t *testing.T) {
	old := statm
	t.Cleanup(func() { statm = old })
	statm = filepath.Join(t.TempDir(), "none")
	k, _ := kept(t)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		k.node.keep(stop)
	}()
	// Wanted once: a keeper between two looks would find what is wanted again while it sleeps.
	k.node.deps.Memory.Want()
	for until := time.Now().Add(20 * time.Second); len(k.node.deps.Memory.Wanted()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Error("nobody keeps the memory")
			break
		}
	}
	close(stop)
	<-done
	k.file, k.goUse = nil, func() goUse { return goUse{all: 100 << 20} }
	if got := k.look(); got != programPages+100<<20 || k.regions != 0 {
		t.Errorf("%d bytes are taken for resident, %d for regions", got, k.regions)
	}
}
