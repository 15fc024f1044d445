package node

import (
	"net/netip"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rds"
)

// Lists of more than a page are complete: nothing is lost or doubled where the lock is
// let go.
func TestListsByPages(t *testing.T) {
	n, _ := startOne(t)
	h := n.hosts.list[0]
	e, now := h.lock()
	out, err := e.Bind(0, rds.SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	in, _ := e.Bind(0, rds.SocketOptions{})
	const each = 5*pageSize + 7
	for i := range each {
		if err := out.Send(now, in.Addr(), make([]byte, i), uint64(i), false); err != nil {
			t.Fatal(err)
		}
		// Nobody is there, and nobody needs to be.
		if err := out.Send(now, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 77, byte(i >> 8), byte(i)}), 4000), make([]byte, i), uint64(i), false); err != nil {
			t.Fatal(err)
		}
	}
	h.unlock()
	a := &adminServer{node: n}
	for _, c := range []struct {
		kind      rdsdv1.QueueKind
		limit     uint32
		want      int
		truncated bool
	}{
		{rdsdv1.QueueKind_QUEUE_KIND_SEND, 2000, each, false},
		{rdsdv1.QueueKind_QUEUE_KIND_RECV, 2000, each, false},
		{rdsdv1.QueueKind_QUEUE_KIND_UNSPECIFIED, 2000, 2 * each, false},
		{rdsdv1.QueueKind_QUEUE_KIND_RECV, 2*pageSize + 1, 2*pageSize + 1, true},
		{rdsdv1.QueueKind_QUEUE_KIND_SEND, pageSize, pageSize, true},
		{rdsdv1.QueueKind_QUEUE_KIND_RETRANS, 10, 0, false},
	} {
		r := &rdsdv1.ListQueueRequest{}
		r.SetKind(c.kind)
		r.SetLimit(c.limit)
		l, err := a.ListQueue(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[[2]uint64]bool{}
		for _, d := range l.GetDatagram() {
			k := [2]uint64{uint64(d.GetKind()), d.GetBytes()}
			if seen[k] {
				t.Errorf("%v, at most %d: %v is listed twice", c.kind, c.limit, d)
			}
			seen[k] = true
		}
		if len(seen) != c.want || l.GetTruncated() != c.truncated {
			t.Errorf("%v, at most %d: %d listed, truncated %v; want %d, %v", c.kind, c.limit, len(seen), l.GetTruncated(), c.want, c.truncated)
		}
	}
	peers, socks := 0, 0
	h.eachPeer(func(*rds.Engine, *rds.Peer) { peers++ })
	h.eachSocket(func(*rds.Engine, *rds.Socket) { socks++ })
	if peers != each || socks != 2 {
		t.Errorf("%d peers and %d sockets are listed, want %d and 2", peers, socks, each)
	}
	_, now = h.lock()
	out.Close(now)
	in.Close(now)
	h.unlock()
}

// TestListersTakeTurns: who lists waits for others that list, and while they do so the
// lock of the address is free; what a watcher is told comes in pages, without the lock.
func TestListersTakeTurns(t *testing.T) {
	n, _ := startOne(t)
	h := n.hosts.list[0]
	e, now := h.lock()
	pe, err := e.Peer(netip.MustParseAddr("127.77.1.1"))
	if err != nil {
		t.Fatal(err)
	}
	full := make([]byte, 8192)
	for i := range full {
		full[i] = 0xff
	}
	pe.CongestionMap(now, full)
	h.unlock()

	h.looking.Lock()
	done := make(chan struct{})
	var got, most, inPage int
	go func() {
		defer close(done)
		h.eachCongested(func(*rds.Engine, *rds.CongestedPort) { got++; inPage++ }, func() bool {
			h.lock() // it is free
			h.unlock()
			most, inPage = max(most, inPage), 0
			return got < 10*pageSize
		})
	}()
	for range 100 {
		h.lock()
		h.unlock()
	}
	select {
	case <-done:
		t.Error("two list at once")
	case <-time.After(20 * time.Millisecond):
	}
	h.looking.Unlock()
	<-done
	if most == 0 || most > pageSize || got < 10*pageSize || got > 11*pageSize {
		t.Errorf("%d ports in pages of %d at most", got, most)
	}
}
