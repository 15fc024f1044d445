package datagram

import (
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
	for port, want := range map[uint16]bool{0: true, 1: false, 32767: true, 32768: false} {
		if at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 77, 3, 1}), port); seen[at] != want {
			t.Errorf("%v is listed: %v, want %v", at, seen[at], want)
		}
	}
}
