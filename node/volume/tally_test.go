package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rnbd"
)

// TestCountersDoNotFall: an export and a volume below a root have one store for writers and one for
// readers. What either has counted stays when it closes, when it is taken from its session, and
// when all are closed.
func TestCountersDoNotFall(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "below"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	server.cfg.Roots = []RootSpec{{Path: root}}
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "file", 1<<20))
	mustExport(t, server.h, memory("mem", 1<<20))
	ctx := testCtx(t)

	// looks looks all the time, as somebody does who draws it.
	count := func() map[string]uint64 {
		n := map[string]uint64{}
		for _, x := range server.h.CountedExports() {
			n[x.Name] = x.Counts[blk.OpWrite].Completed + x.Counts[blk.OpRead].Completed
		}
		return n
	}
	stop := make(chan struct{})
	var looks sync.WaitGroup
	ended := sync.OnceFunc(func() { close(stop); looks.Wait() })
	defer ended() // before the nodes are
	looks.Go(func() {
		last := map[string]uint64{}
		for {
			select {
			case <-stop:
				return
			default:
			}
			now := count()
			for name, n := range last {
				if now[name] < n {
					t.Errorf("%s: %d requests, and %d before", name, now[name], n)
					return
				}
			}
			last = now
			time.Sleep(20 * time.Microsecond) // of one processor it leaves something
		}
	})

	names := []string{"file", "below", "mem"}
	for round := range 3 {
		for _, name := range names {
			w := mustMap(t, client.h, MapSpec{Node: server.node(), Name: name})
			r := mustMap(t, client.h, MapSpec{Node: server.node(), Name: name, Session: "reader", Access: AccessRO})
			was := count()[name]
			if err := writePattern(open(t, w), 0, 64<<10, 1, 4096); err != nil {
				t.Fatal(err)
			}
			if err := checkPattern(open(t, r), 0, 64<<10, 1, 4096); err != nil {
				t.Fatal(err)
			}
			if round == 1 { // else by its client
				if err := server.h.ForceClose(ctx, name, w.Session); err != nil {
					t.Fatal(err)
				}
			}
			for _, m := range []MappingInfo{w, r} {
				if err := client.h.Unmap(ctx, m.ID, true); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, name+" is closed", func() bool { return len(server.h.srv.openVolumes()) == 0 })
			if n := count()[name] - was; n < 32 {
				t.Errorf("%s: %d requests of at least 32 counted", name, n)
			}
		}
	}
	ended()
	for _, x := range server.h.CountedExports() {
		if below := x.Name == "below"; x.Gone != below || x.State == "open" && x.Kind != KindMemory {
			t.Errorf("listed at the end: %s %s, gone: %v", x.Name, x.State, x.Gone)
		}
	}
	for _, name := range []string{"file", "mem"} {
		if err := server.h.Unexport(ctx, name, false); err != nil {
			t.Fatal(err)
		}
	}
	defer server.h.srv.look()()
	if s := server.h.srv; len(s.counting) != 0 || len(s.closedStores) != 1 {
		t.Errorf("%d stores count and of %d it is known what they had, of which one is below a root", len(s.counting), len(s.closedStores))
	}
}

// TestClosedBelowAreBounded: peers cannot make the table of names below roots long.
func TestClosedBelowAreBounded(t *testing.T) {
	s := &server{counting: map[*counted]bool{}, closedStores: map[storeKey]*closedStores{}}
	root, x := &rnbd.Root{}, &rnbd.Export{Name: "x"}
	use := func(k storeKey) {
		m, err := blk.NewMem(blk.MemOptions{Size: 4096})
		if err != nil {
			t.Fatal(err)
		}
		d := &counted{blk.NewStats(m), k}
		s.tally(d)
		d.Submit([]*blk.Request{{Op: blk.OpFlush, Queue: ignored{}}})
		s.fold(d)
		s.fold(d) // once more does nothing
	}
	use(storeKey{x, "x"})
	for i := range maxClosedBelow + 10 {
		use(storeKey{root, fmt.Sprint(i)})
		use(storeKey{root, "0"}) // closed last
	}
	if n := len(s.closedStores); n != maxClosedBelow+1 {
		t.Errorf("%d are kept", n)
	}
	if c := s.closedStores[storeKey{root, "0"}]; c == nil || c.counts[blk.OpFlush].Completed != maxClosedBelow+11 || s.closedStores[storeKey{root, "1"}] != nil {
		t.Errorf("what was closed last is %+v", c)
	}
	s.forgetCounts(x)
	if s.closedStores[storeKey{x, "x"}] != nil {
		t.Error("kept without its export")
	}
}

// ignored takes what completes.
type ignored struct{}

func (ignored) Complete([]*blk.Request) {}
