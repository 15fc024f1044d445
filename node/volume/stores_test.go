package volume

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rtrs"
)

// stores are the stores of a node, each under a fault layer.
type stores struct {
	mu   sync.Mutex
	list []*blk.Fault
}

func (n *testNode) faults() *stores {
	s := &stores{}
	n.wrap = func(_ string, d blk.Device) blk.Device {
		f := blk.NewFault(d, 1)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.list = append(s.list, f)
		return f
	}
	return s
}

func (s *stores) each(do func(*blk.Fault)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.list {
		do(f)
	}
}

func (s *stores) add(r blk.Rule) { s.each(func(f *blk.Fault) { f.Add(r) }) }

func (s *stores) heal() {
	s.each(func(f *blk.Fault) {
		f.Clear()
		f.Release()
	})
}

func (s *stores) held() (n int) {
	s.each(func(f *blk.Fault) { n += f.Held() })
	return n
}

// withFaults is a server and a client with one volume mapped.
func withFaults(t *testing.T, x ExportSpec, m MapSpec) (server, client *testNode, s *stores, i MappingInfo) {
	port := freePort(t)
	server, client = newServerNode(t, port), newClientNode(t, port)
	s = server.faults()
	server.start()
	client.start()
	mustExport(t, server.h, x)
	m.Node, m.Name = server.node(), x.Name
	if m.Paths == nil {
		m.Paths = server.twoPaths()
	}
	return server, client, s, mustMap(t, client.h, m)
}

func TestErrorsOfTheStoreReachWhoAsked(t *testing.T) {
	server, client, s, m := withFaults(t, file(t, "disk", 8<<20), MapSpec{})
	c := open(t, m)
	if err := writePattern(c, 0, 1<<20, 1, 64<<10); err != nil {
		t.Fatal(err)
	}
	s.add(blk.Rule{Ops: blk.Ops(blk.OpRead), Off: 4096, Len: 4096, Err: blk.ErrMedium})
	s.add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Off: 8192, Len: 4096, Short: 512, Err: blk.ErrNoSpace})
	p := make([]byte, 4096)
	if _, err := c.ReadAt(p, 4096); !errors.Is(err, syscall.EIO) {
		t.Errorf("a read of a bad block: %v", err)
	}
	if _, err := c.WriteAt(p, 8192); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a write without space: %v", err)
	}
	if err := checkPattern(c, 16384, 1<<20-16384, 1, 64<<10); err != nil {
		t.Errorf("beside it: %v", err)
	}
	s.heal()
	s.add(blk.Rule{Ops: blk.Ops(blk.OpFlush), Count: 1, Err: blk.ErrMedium})
	if err := c.Flush(); !errors.Is(err, syscall.EIO) {
		t.Errorf("a flush that failed: %v", err)
	}
	s.heal()
	if err := c.Flush(); err == nil {
		t.Error("a flush after one that failed has succeeded") // B7
	}
	x, _ := server.h.exportInfo("disk")
	if x.Ops[blk.OpRead].Errors == 0 || x.Ops[blk.OpFlush].Errors == 0 || x.FailedAgo <= 0 || x.FailedAgo > time.Minute {
		t.Errorf("counted at the server: %+v, the last %v ago", x.Ops, x.FailedAgo)
	}
	if x.State != "open" || !strings.Contains(x.Error, blk.ErrMedium.Error()) {
		t.Errorf("the export is %s and says %q; want why its store failed last", x.State, x.Error)
	}
	if m, _ = client.h.Mapping(m.ID); m.Ops[blk.OpWrite].Errors == 0 || m.LastError == "" || m.FailedAgo <= 0 || m.FailedAgo > time.Minute || !m.SyncLost {
		t.Errorf("told by the mapping: %+v", m)
	}
}

// A write that a dying path holds at the store is over before its retry, so that
// a later write of the same block is what is there at the end.
func TestGhostWrites(t *testing.T) {
	f := &faulty{}
	port := freePort(t)
	f.server, f.client = newServerNode(t, port), newClientNode(t, port)
	s := f.server.faults()
	f.server.start()
	f.a = newProxy(t, "127.0.0.4:0", addr("127.0.0.2", port))
	f.b = newProxy(t, "127.0.0.5:0", addr("127.0.0.3", port))
	f.client.start()
	x := file(t, "disk", 8<<20)
	mustExport(t, f.server.h, x)
	f.m = mustMap(t, f.client.h, MapSpec{Node: "127.0.0.4", Name: "disk", Paths: []PathSpec{{Dst: f.a.addr()}, {Dst: f.b.addr()}}, Policy: rtrs.RoundRobin.String()})
	c := open(t, f.m)
	for i := range 10 {
		eventually(t, "two paths", func() bool { return f.up() == 2 })
		off := int64(i) * 4096
		s.add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Off: uint64(off), Len: 4096, Count: 1, Stall: true})
		done := make(chan error, 1)
		go func() { done <- writePattern(c, off, 4096, 1, 4096) }() // A
		eventually(t, "write A is at the store", func() bool { return s.held() == 1 })
		f.a.cut()
		f.b.set(i%2 == 0, i%2 == 1)
		select {
		case err := <-done:
			t.Fatalf("A completed (%v) while its first copy is at the store", err)
		case <-time.After(100 * time.Millisecond):
		}
		s.heal()
		f.b.set(false, false)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := writePattern(c, off, 4096, 2, 4096); err != nil { // B
			t.Fatal(err)
		}
		if err := checkPattern(c, off, 4096, 2, 4096); err != nil {
			t.Fatal(err)
		}
	}
}

func addr(host string, port uint16) string { return net.JoinHostPort(host, number(int(port))) }

func TestUnmapWhileInUse(t *testing.T) {
	_, client, s, m := withFaults(t, file(t, "disk", 8<<20), MapSpec{})
	c := open(t, m)
	ctx := testCtx(t)
	if err := client.h.Unmap(ctx, m.ID, false); !errors.Is(err, syscall.EBUSY) {
		t.Fatalf("unmap in use: %v", err)
	}
	if err := writePattern(c, 0, 4096, 1, 4096); err != nil {
		t.Fatalf("after a refused unmap: %v", err)
	}
	s.add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Stall: true})
	done := make(chan error, 1)
	go func() { done <- writePattern(c, 0, 4096, 2, 4096) }()
	eventually(t, "the write is at the store", func() bool { return s.held() == 1 })
	began := time.Now()
	if err := client.h.Unmap(ctx, m.ID, true); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("unmap by force took %v", took)
	}
	if err := <-done; err == nil {
		t.Error("a write that was given up has succeeded")
	}
	if l := client.h.Mappings(); len(l) != 0 {
		t.Errorf("left: %+v", l)
	}
	// As long as the store has the write, nobody else writes.
	if _, err := client.h.Map(ctx, MapSpec{Node: m.Node, Name: m.Name, Session: "another"}); !errors.Is(err, syscall.EPERM) {
		t.Errorf("mapped while a write of the last owner is at the store: %v", err)
	}
	s.heal()
	eventually(t, "mapped again", func() bool {
		_, err := client.h.Map(ctx, MapSpec{Node: m.Node, Name: m.Name, Session: "another"})
		return err == nil
	})
}

func TestStalledStoreDoesNotHoldUpOthers(t *testing.T) {
	server, client, s, m := withFaults(t, file(t, "slow", 8<<20), MapSpec{})
	s.add(blk.Rule{Stall: true})
	mustExport(t, server.h, memory("mem", 8<<20)) // under a layer of its own, without rules
	m2 := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "mem"})
	slow, quick := open(t, m), open(t, m2)
	done := make(chan error, 1)
	go func() { done <- writePattern(slow, 0, 4096, 1, 4096) }()
	eventually(t, "the write is at the store", func() bool { return s.held() == 1 })
	if err := writePattern(quick, 0, 1<<20, 1, 4096); err != nil {
		t.Fatal(err)
	}
	s.heal()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestFileThatCannotBeMade: a file that there is no room for is an error, and not left behind;
// one that is there stays as it is.
func TestFileThatCannotBeMade(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large")
	other, err := os.Create(filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if other.Truncate(1<<63-1) == nil {
		t.Skip("this file system has files of 8 EiB")
	}
	if err := createFile(large, 1<<63-1); err == nil {
		t.Error("there is room for it")
	}
	if _, err := os.Stat(large); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
	small := filepath.Join(dir, "small")
	for _, size := range []uint64{12288, 4096} {
		if err := createFile(small, size); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(small); err != nil || info.Size() != 12288 || info.Mode().Perm() != 0o600 {
			t.Errorf("after %d bytes were asked for: %v, %v", size, info, err)
		}
	}
	if err := createFile(filepath.Join(dir, "none", "a"), 4096); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a directory that is not there: %v", err)
	}
}
