package volume

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/kernelpeer"
)

// checkFor returns the finding about what, and whether there is one.
func checkFor(t *testing.T, h *Host, what string) (Finding, bool) {
	t.Helper()
	list, err := h.Check(testCtx(t), "")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(f Finding) bool { return f.What == what })
	if i < 0 {
		return Finding{}, false
	}
	return list[i], true
}

// TestKernelsKeepGeometry: a server that is started with another configuration keeps the queue
// depth that a kernel's session knows, until that has unmapped.
func TestKernelsKeepGeometry(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.cfg.Exports = []ExportSpec{file(t, "disk", 1<<20)}
	server.cfg.QueueDepth, server.cfg.MaxIO = 16, 64<<10
	client.links = kernelpeer.Volumes
	server.start()
	client.start()
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"})
	for _, h := range []*Host{server.h, client.h} {
		if s := h.Sessions(); len(s) != 1 || !s[0].Kernel {
			t.Errorf("the other end is no kernel: %+v", s)
		}
	}
	if x := server.h.Exports(); len(x[0].Users) != 1 || !x[0].Users[0].Kernel {
		t.Errorf("no kernel has it open: %+v", x[0].Users)
	}
	depth := func() (d int) {
		eventually(t, "a session", func() bool {
			s := server.h.Sessions()
			if len(s) == 1 {
				d = s[0].Depth
			}
			return len(s) == 1
		})
		return d
	}
	if d := depth(); d != 16 {
		t.Fatalf("depth %d", d)
	}
	restart := func(depth int) {
		t.Helper()
		server.stop()
		server.cfg.QueueDepth, server.cfg.MaxIO = depth, 128<<10
		server.start()
	}
	for range 2 { // also when it was not connected again between two starts
		restart(32)
		f, ok := checkFor(t, server.h, "kernels")
		if !ok || f.Severity != SeverityWarning || !strings.Contains(f.Text, "volumes.queue_depth 16") || !strings.Contains(f.Text, "client-127_0_0_2") {
			t.Fatalf("%+v", f)
		}
	}
	if d := depth(); d != 16 {
		t.Fatalf("depth %d", d)
	}
	eventually(t, "it goes on", func() bool {
		i, err := client.h.Mapping(m.ID)
		return err == nil && i.State == StateOpen
	})
	if err := client.h.Unmap(testCtx(t), m.ID, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the session's end", func() bool { return len(server.h.Sessions()) == 0 })
	restart(32)
	if f, ok := checkFor(t, server.h, "kernels"); ok {
		t.Fatalf("%+v", f)
	}
	mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"})
	if d := depth(); d != 32 {
		t.Fatalf("depth %d", d)
	}

	// An rdsd takes whatever depth it finds, also one in the place of a kernel.
	server.stop()
	client.stop()
	client.links = nil
	server.start()
	client.start()
	mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"})
	restart(64)
	if d := depth(); d != 64 {
		t.Fatalf("depth %d", d)
	}
}

// TestKernelsAreForgotten: a session that was lost long ago no longer counts, nor does the oldest
// of too many, nor a file that says what nobody can have configured.
func TestKernelsAreForgotten(t *testing.T) {
	wall := time.Now()
	lost := func(n int, ago time.Duration) (list []kernelState) {
		for i := range n {
			list = append(list, kernelState{fmt.Sprintf("k%04d", i), wall.Add(-ago - time.Duration(i)*time.Second)})
		}
		return list
	}
	configured, known := geometry{512, 256 << 10}, geometry{64, 128 << 10}
	for _, test := range []struct {
		what string
		old  *kernelsState
		want geometry
		n    int
	}{
		{"nothing is known", nil, configured, 0},
		{"none any more", &kernelsState{geometry: known}, configured, 0},
		{"one", &kernelsState{known, lost(1, time.Hour)}, known, 1},
		{"one that was up", &kernelsState{known, []kernelState{{Name: "a"}}}, known, 1},
		{"for long", &kernelsState{known, lost(1, keepKernels)}, known, 1},
		{"too long ago", &kernelsState{known, lost(3, keepKernels+1)}, configured, 0},
		{"when the time of day was wrong", &kernelsState{known, lost(2, -10*keepKernels)}, known, 2},
		{"too many", &kernelsState{known, lost(maxKernels+2, time.Hour)}, known, maxKernels},
		{"of another size than can be", &kernelsState{geometry{1 << 20, 4096}, lost(1, 0)}, configured, 1},
		{"of no size", &kernelsState{geometry{}, lost(1, 0)}, configured, 1},
	} {
		h := newHostFor(t, wall)
		s := &server{h: h, lostKernels: map[string]time.Time{}}
		s.takeGeometry(test.old)
		if s.geo != test.want || len(s.lostKernels) != test.n {
			t.Errorf("%s: %v and %d sessions; want %v and %d", test.what, s.geo, len(s.lostKernels), test.want, test.n)
		}
		for name, lost := range s.lostKernels {
			if lost.After(wall) || !strings.Contains(lost.String(), " m=") {
				t.Errorf("%s: %s was lost at %v, now is %v", test.what, name, lost, wall)
			}
		}
		if names := s.kernelNames(); test.n == maxKernels && names[len(names)-1] != fmt.Sprintf("k%04d", maxKernels-1) {
			t.Errorf("%s: %s is left", test.what, names[len(names)-1])
		}
	}
}

// newHostFor is the part of a Host that a server's geometry needs.
func newHostFor(t *testing.T, wall time.Time) *Host {
	t.Helper()
	n := newServerNode(t, 1)
	n.cfg.defaults()
	n.h = &Host{cfg: n.cfg, log: slog.New(slog.DiscardHandler), machine: &Machine{Wall: func() time.Time { return wall }}}
	return n.h
}
