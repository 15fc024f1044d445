package volume

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
)

// Everything at once: mappings come and go, sizes change, paths are cut, and
// somebody looks on all the time.
func TestEverythingAtOnce(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.quiet, client.quiet = true, true
	server.start()
	client.start()
	ctx := testCtx(t)
	for i := range 4 {
		x := memory(fmt.Sprint("mem", i), 4<<20)
		x.Shared = true
		mustExport(t, server.h, x)
	}
	stay := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "mem0", Session: "stay", Paths: server.twoPaths()})
	x := startTraffic(t, open(t, stay))

	var stop atomic.Bool
	var wg sync.WaitGroup
	repeat := func(f func(n int) error) {
		wg.Go(func() {
			for n := 0; !stop.Load(); n++ {
				if err := f(n); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 3 { // three of them fight for one session, with volumes of their own
		name := fmt.Sprint("mem", i+1)
		repeat(func(n int) error {
			m, err := client.h.Map(ctx, MapSpec{Node: server.node(), Name: name, Session: "many"})
			if err != nil {
				return err
			}
			return client.h.Unmap(ctx, m.ID, n%2 == 0)
		})
	}
	repeat(func(n int) error {
		_, err := server.h.ResizeExport(ctx, "mem0", uint64(4+n%2)<<20)
		if err == nil {
			_, err = client.h.ResizeMapping(ctx, stay.ID, 0)
		}
		return err
	})
	repeat(func(n int) error {
		err := server.h.DisconnectPath(ctx, "stay", PathSpec{Dst: []string{"127.0.0.2", "127.0.0.3"}[n%2]})
		time.Sleep(20 * time.Millisecond)
		if errors.Is(err, syscall.ENOENT) { // it is not back yet
			err = nil
		}
		return err
	})
	repeat(func(int) error {
		for _, h := range []*Host{client.h, server.h} {
			h.Mappings()
			h.Sessions()
			h.Paths()
			h.Exports()
			h.Check(ctx, "")
		}
		_, err := client.h.RemoteInfo(ctx, MapSpec{Node: server.node(), Name: "mem1", Session: "ask"})
		return err
	})
	time.Sleep(2 * time.Second)
	stop.Store(true)
	wg.Wait()
	x.end(t)
	if l := client.h.Mappings(); len(l) != 1 {
		t.Errorf("left: %+v", l)
	}
	if l := client.h.Sessions(); len(l) != 1 {
		t.Errorf("left: %+v", l)
	}
}

// A Host that closes does not wait for a Map that waits.
func TestCloseEndsWhatWaits(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	mustExport(t, server.h, memory("mem", 1<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "mem"})
	server.stop()
	eventually(t, "closed", func() bool { i, _ := client.h.Mapping(m.ID); return i.State == StateClosed })
	h := client.h
	done := make(chan error, 2)
	go func() { // joins a session that has no path
		_, err := h.Map(context.Background(), MapSpec{Node: server.node(), Name: "other"})
		done <- err
	}()
	go func() {
		_, err := h.RemoteInfo(context.Background(), MapSpec{Node: server.node(), Name: "other"})
		done <- err
	}()
	eventually(t, "a second mapping", func() bool { return len(h.Mappings()) == 2 })
	began := time.Now()
	client.stop()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("close took %v", took)
	}
	for range 2 {
		if err := <-done; err == nil {
			t.Error("a call that was ended has succeeded")
		}
	}
}

// A store that hangs does not keep Close longer than it is given.
func TestCloseWithAStoreThatHangs(t *testing.T) {
	server, client, s, m := withFaults(t, memory("mem", 1<<20), MapSpec{})
	s.add(blk.Rule{Stall: true})
	c := open(t, m)
	done := make(chan error, 1)
	go func() { done <- writePattern(c, 0, 4096, 1, 4096) }()
	eventually(t, "the write is at the store", func() bool { return s.held() == 1 })
	client.stop() // gives the request up
	if err := <-done; err == nil {
		t.Error("a write that was given up has succeeded")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	h := server.h
	server.h = nil
	if err := h.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close: %v", err)
	}
	s.heal()
	<-h.work.ended()
	server.r.Close()
}

func TestIPv6(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.cfg.Addresses = []netip.Addr{netip.IPv6Loopback()}
	server.start()
	client.start()
	if _, err := server.h.Export(testCtx(t), memory("mem", 1<<20)); errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Skip("no IPv6 here")
	} else if err != nil {
		t.Fatal(err)
	}
	m := mustMap(t, client.h, MapSpec{Node: "::1", Name: "mem"})
	c := open(t, m)
	if err := writePattern(c, 0, 64<<10, 1, 4096); err != nil {
		t.Fatal(err)
	}
	if err := checkPattern(c, 0, 64<<10, 1, 4096); err != nil {
		t.Fatal(err)
	}
}
