package datagram

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rds"
)

// TestListersTakeTurns: who lists waits for others that list, and while they do so the
// lock of the address is free; what a watcher is told comes in pages, without the lock.
func TestListersTakeTurns(t *testing.T) {
	h := newSeam(t, nil).h
	e, now := h.Lock()
	pe, err := e.Peer(netip.MustParseAddr("127.77.1.1"))
	if err != nil {
		t.Fatal(err)
	}
	full := make([]byte, 8192)
	for i := range full {
		full[i] = 0xff
	}
	pe.CongestionMap(now, full)
	h.Unlock()

	h.looking.Lock()
	done := make(chan struct{})
	var got, most, inPage int
	go func() {
		defer close(done)
		h.EachCongested(func(*rds.Engine, *rds.CongestedPort) { got++; inPage++ }, func() bool {
			h.Lock() // it is free
			h.Unlock()
			most, inPage = max(most, inPage), 0
			return got < 10*PageSize
		})
	}()
	for range 100 {
		h.Lock()
		h.Unlock()
	}
	select {
	case <-done:
		t.Error("two list at once")
	case <-time.After(20 * time.Millisecond):
	}
	h.looking.Unlock()
	<-done
	if most == 0 || most > PageSize || got < 10*PageSize || got > 11*PageSize {
		t.Errorf("%d ports in pages of %d at most", got, most)
	}
}

// TestCongestedPortsAreBounded: however many ports of however many peers are congested,
// a list has maxCongested of them, the node's own first, and says each once.
func TestCongestedPortsAreBounded(t *testing.T) {
	h := newSeam(t, nil).h
	full := make([]byte, 8192)
	for i := range full {
		full[i] = 0xff
	}
	e, now := h.Lock()
	k, err := e.Bind(0, rds.SocketOptions{RcvBufBytes: 4096})
	if err != nil {
		t.Fatal(err)
	}
	for range 64 {
		if k.Send(now, k.Addr(), make([]byte, 4096), 1, rds.Quiet) != nil {
			break
		}
	}
	for i := range 3 {
		pe, err := e.Peer(netip.AddrFrom4([4]byte{127, 77, 3, byte(i)}))
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 { // nothing of the first is congested
			m := full
			if i == 1 {
				m = make([]byte, 8192)
				m[4095], m[0] = 0x80, 1
			}
			pe.CongestionMap(now, m)
		}
	}
	h.Unlock()
	seen := map[netip.AddrPort]bool{}
	list := func() (got, local, pages int) {
		clear(seen)
		h.EachCongested(func(_ *rds.Engine, c *rds.CongestedPort) {
			if seen[c.Endpoint] {
				t.Errorf("%v is listed twice", c.Endpoint)
			}
			if c.Local && got > 0 {
				t.Errorf("%v is ours and number %d", c.Endpoint, got)
			}
			seen[c.Endpoint] = true
			got++
			if c.Local {
				local++
			}
		}, func() bool { pages++; return true })
		return got, local, pages
	}
	got, local, pages := list()
	if got != maxCongested || local != 1 || pages < maxCongested/PageSize {
		t.Errorf("%d ports are listed in %d pages, %d of them ours; want %d, and one of ours", got, pages, local, maxCongested)
	}
	if len(seen) != got {
		t.Errorf("%d ports are listed, %d of them once", got, len(seen))
	}
	for port, want := range map[uint16]bool{0: true, 1: false, 32767: true, 32768: false} {
		if at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 77, 3, 1}), port); seen[at] != want {
			t.Errorf("%v is listed: %v, want %v", at, seen[at], want)
		}
	}
}

// TestFullMapHidesNobody: a peer that says all of its ports are congested hides neither the ports of others,
// wherever they stand in the order, nor those of its own that concern a socket here, however many those are.
func TestFullMapHidesNobody(t *testing.T) {
	for _, opened := range []int{1, 3000} {
		h := newSeam(t, func(c *rds.Config) { c.AllowPeer = nil }).h
		full := bytes.Repeat([]byte{0xff}, 8192)
		few := make([]byte, 8192)
		few[4000/8] = 0xff
		e, now := h.Lock()
		k, err := e.Bind(0, rds.SocketOptions{})
		if err != nil {
			t.Fatal(err)
		}
		peer := func(i byte) netip.Addr { return netip.AddrFrom4([4]byte{127, 77, 4, i}) }
		for i := range byte(4) {
			pe, err := e.Peer(peer(i))
			if err != nil {
				t.Fatal(err)
			}
			m := few
			if i%2 == 0 {
				m = full
			}
			pe.CongestionMap(now, m)
		}
		for i := range opened {
			if _, err := k.Open(netip.AddrPortFrom(peer(2), uint16(65535-i)), nil); err != nil {
				t.Fatal(err)
			}
		}
		h.Unlock()
		seen := map[netip.AddrPort]bool{}
		got := 0
		more := h.EachCongested(func(_ *rds.Engine, c *rds.CongestedPort) {
			got++
			seen[c.Endpoint] = true
		}, nil)
		if len(seen) != got || got != maxCongested || more != 2*65536+16-got {
			t.Errorf("%d ports are listed, %d of them once, and there are %d more", got, len(seen), more)
		}
		missing := 0
		for i := range opened {
			if !seen[netip.AddrPortFrom(peer(2), uint16(65535-i))] {
				missing++
			}
		}
		if missing > 0 {
			t.Errorf("of %d ports that a socket has open %d are not listed", opened, missing)
		}
		for port := range uint16(8) {
			for _, i := range []byte{1, 3} {
				if at := netip.AddrPortFrom(peer(i), 4000+port); !seen[at] {
					t.Errorf("%v is not listed", at)
				}
			}
		}
	}
}

// TestShareCongested: who needs little has it, the others as much as each other, and the address itself half
// of all at least.
func TestShareCongested(t *testing.T) {
	for _, c := range []struct{ n, want []int }{
		{[]int{0}, nil},
		{[]int{20000}, []int{10000}},
		{[]int{1, 2, 20000}, []int{1, 2, 9997}},
		{[]int{1, 20000, 2}, []int{1, 9997, 2}},
		{[]int{20000, 20000, 20000}, []int{5000, 2500, 2500}},
		{[]int{20000, 1000, 20}, []int{8980, 1000, 20}},
		{[]int{10, 9000, 30, 8000, 7000}, []int{10, 3320, 30, 3320, 3320}},
		{[]int{5000, 2500, 2500}, []int{5000, 2500, 2500}},
	} {
		l := make([]listedPeer, len(c.n))
		for i, n := range c.n {
			l[i].n = n
		}
		shareCongested(l)
		for i, want := range c.want {
			if got := min(l[i].share, l[i].n); got != want || (l[i].which == rds.ConcernedPorts) != (got < c.n[i]) {
				t.Errorf("of %v number %d has %d, %v; want %d", c.n, i, got, l[i].which, want)
			}
		}
	}
	many := make([]listedPeer, 3*maxCongested)
	for i := range many {
		many[i].n = 2
	}
	shareCongested(many)
	for i := range many {
		if many[i].share < 1 {
			t.Fatalf("number %d of many has %d", i, many[i].share)
		}
	}
}
