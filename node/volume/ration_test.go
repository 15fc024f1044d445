package volume

import (
	"bytes"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
)

// TestRationedReads: reads for which no memory is granted yet wait for it, and are
// answered with the right bytes once it is; without a grant they fail in time.
func TestRationedReads(t *testing.T) {
	port := freePort(t)
	n := newServerNode(t, port)
	var asked atomic.Int64 // how often anybody wanted memory
	n.memory = quota.New(256<<20, func() int64 { asked.Add(1); return 0 })
	srv, cli := n.start(), newClientNode(t, port).start()
	const size = 4 << 20
	mustExport(t, srv, memory("disk", size))
	m := mustMap(t, cli, MapSpec{Node: n.node(), Name: "disk"})
	c := open(t, m)
	if err := writePattern(c, 0, size, 1, 64<<10); err != nil {
		t.Fatal(err)
	}
	used := func() int64 { return n.memory.Kinds()[quota.Chunks].Used }
	forget := func() { // as if nothing had been used yet
		srv.srv.mu.Lock()
		defer srv.srv.mu.Unlock()
		for _, p := range *srv.srv.pages.Load() {
			p.trimmed(0, len(p.mem))
		}
	}
	forget()
	n.memory.Ration(quota.Chunks, used()+4096, used()+4096)

	got := make([]byte, 128<<10)
	done := make(chan error, 1)
	go func() {
		_, err := c.ReadAt(got, 0)
		done <- err
	}()
	eventually(t, "more is asked for", func() bool { return n.memory.Asked(quota.Chunks) })
	select {
	case err := <-done:
		t.Fatalf("read without memory: %v", err)
	case <-time.After(4 * rationEvery):
	}
	n.memory.Ration(quota.Chunks, 128<<20, 128<<20)
	if err := <-done; err != nil {
		t.Fatalf("after the grant: %v", err)
	}
	want := make([]byte, len(got))
	for at := 0; at < len(want); at += 64 << 10 {
		pattern(want[at:at+64<<10], int64(at), 1)
	}
	if !bytes.Equal(got, want) {
		t.Error("other bytes than were written")
	}

	forget()
	// Looked at once: a request that is refused counts for a moment.
	little := used() + 8*4096
	n.memory.Ration(quota.Chunks, little, little) // before anything is read
	asked.Store(0)
	begun := time.Now()
	go func() {
		_, err := c.ReadAt(got, 0)
		done <- err
	}()
	for waits := true; waits; { // answered each time, never with enough
		n.memory.Ration(quota.Chunks, little, little)
		select {
		case err := <-done:
			waits = false
			if err == nil || time.Since(begun) < rationWait {
				t.Errorf("without a grant: %v after %v", err, time.Since(begun))
			}
			// A look takes the server's lock: there is a pause between two.
			if n, most := asked.Load(), int64(time.Since(begun)/rationEvery)+10; n > most {
				t.Errorf("memory was asked for %d times in %v, at most %d times is right", n, time.Since(begun), most)
			}
		case <-time.After(rationEvery):
		}
	}
	n.memory.Ration(quota.Chunks, 128<<20, 128<<20)
	if err := checkPattern(c, 0, size, 1, 64<<10); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestRationedWrites: a write for which no memory is granted yet waits in the link, which is not
// read for that long, and does not end for it.
func TestRationedWrites(t *testing.T) {
	port := freePort(t)
	n := newServerNode(t, port)
	n.memory = quota.New(256<<20, func() int64 { return 0 })
	srv, cli := n.start(), newClientNode(t, port).start()
	mustExport(t, srv, memory("disk", 4<<20))
	m := mustMap(t, cli, MapSpec{Node: n.node(), Name: "disk"})
	c := open(t, m)
	used := func() int64 { return n.memory.Kinds()[quota.Chunks].Used }
	n.memory.Ration(quota.Chunks, used()+4096, used()+192<<10) // what may come by one read fits
	done := make(chan error, 1)
	go func() { done <- writePattern(c, 0, 256<<10, 1, 64<<10) }()
	eventually(t, "more is asked for", func() bool { return n.memory.Asked(quota.Chunks) })
	select {
	case err := <-done:
		t.Fatalf("written without memory: %v", err)
	case <-time.After(4 * rationEvery):
	}
	n.memory.Ration(quota.Chunks, 128<<20, 128<<20)
	if err := <-done; err != nil {
		t.Fatalf("after the grant: %v", err)
	}
	if p := cli.Paths(); len(p) != 1 || p[0].Epoch != 1 || p[0].ReconnectsOK != 0 {
		t.Errorf("the path was connected anew: epoch %d, %d times", p[0].Epoch, p[0].ReconnectsOK)
	}
	if err := checkPattern(c, 0, 256<<10, 1, 64<<10); err != nil {
		t.Error(err)
	}
}

// TestRationedIsNotYet: a link learns of what a peer may write in a moment that it is so, and of
// what it may write now that it may, whoever waits for memory.
func TestRationedIsNotYet(t *testing.T) {
	s := &server{h: &Host{memory: quota.New(256<<20, nil)}}
	mem := make([]byte, 16*chunkPage)
	s.count(mem, netip.MustParseAddr("10.0.0.1"))
	s.h.memory.Ration(quota.Chunks, chunkPage, 4*chunkPage)
	if err := s.mayPlace(mem[:2*chunkPage]); err != nil || !s.rest() {
		t.Errorf("two pages of four: %v, more is asked for: %v", err, s.rest())
	}
	if err := s.mayPlace(mem[chunkPage : 2*chunkPage]); err != nil {
		t.Errorf("a page that is charged: %v", err)
	}
	if err := s.mayPlace(mem); !errors.Is(err, transport.ErrNotYet) || !errors.Is(err, rdserr.ErrNoMemory) {
		t.Errorf("more than is granted: %v", err)
	}
	if err := s.mayPlace([]byte("elsewhere")); err != nil {
		t.Errorf("memory that is not the session's: %v", err)
	}
}

// TestChunksAreGivenBack: what a session was charged for its chunks comes back with its
// end, and only that: another session's stays.
func TestChunksAreGivenBack(t *testing.T) {
	port := freePort(t)
	n := newServerNode(t, port)
	n.memory = quota.New(256<<20, nil)
	srv, cli := n.start(), newClientNode(t, port).start()
	const size = 1 << 20
	used := func() int64 { return n.memory.Kinds()[quota.Chunks].Used }
	var ids []string
	var after []int64
	for _, name := range []string{"one", "two", "three"} {
		mustExport(t, srv, memory(name, size))
		m := mustMap(t, cli, MapSpec{Node: n.node(), Name: name, Session: name})
		if err := writePattern(open(t, m), 0, size, 1, 64<<10); err != nil {
			t.Fatal(err)
		}
		ids, after = append(ids, m.ID), append(after, used())
	}
	if after[0] <= 0 || after[1] <= after[0] || after[2] <= after[1] {
		t.Fatalf("sessions are charged %v in all", after)
	}
	for i, left := range []int64{after[2] - after[0], after[2] - after[1], 0} {
		if err := cli.Unmap(testCtx(t), ids[i], true); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is given back", func() bool { return used() <= left })
		if got := used(); got != left {
			t.Errorf("session %d ended: %d bytes are charged, want %d", i+1, got, left)
		}
	}
}
