package service

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
)

// Lists of more than a page are complete: nothing is lost or doubled where the lock is
// let go.
func TestListsByPages(t *testing.T) {
	n := startWorld(t, func(*config.Config) {})
	h := n.hosts.Locals()[0]
	e, now := h.Lock()
	out, err := e.Bind(0, rds.SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	in, _ := e.Bind(0, rds.SocketOptions{})
	const each = 5*datagram.PageSize + 7
	for i := range each {
		if err := out.Send(now, in.Addr(), make([]byte, i), uint64(i), rds.Quiet); err != nil {
			t.Fatal(err)
		}
		// Nobody is there, and nobody needs to be.
		if err := out.Send(now, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 77, byte(i >> 8), byte(i)}), 4000), make([]byte, i), uint64(i), rds.Quiet); err != nil {
			t.Fatal(err)
		}
	}
	h.Unlock()
	a := &adminServer{front: n.services}
	for _, c := range []struct {
		kind      rdsdv1.QueueKind
		limit     uint32
		want      int
		truncated bool
	}{
		{rdsdv1.QueueKind_QUEUE_KIND_SEND, 2000, each, false},
		{rdsdv1.QueueKind_QUEUE_KIND_RECV, 2000, each, false},
		{rdsdv1.QueueKind_QUEUE_KIND_UNSPECIFIED, 2000, 2 * each, false},
		{rdsdv1.QueueKind_QUEUE_KIND_RECV, 2*datagram.PageSize + 1, 2*datagram.PageSize + 1, true},
		{rdsdv1.QueueKind_QUEUE_KIND_SEND, datagram.PageSize, datagram.PageSize, true},
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
	h.EachPeer(func(*rds.Engine, *rds.Peer) { peers++ })
	h.EachSocket(func(*rds.Engine, *rds.Socket) { socks++ })
	if peers != each || socks != 2 {
		t.Errorf("%d peers and %d sockets are listed, want %d and 2", peers, socks, each)
	}
	_, now = h.Lock()
	out.Close(now)
	in.Close(now)
	h.Unlock()
}

// TestQueueOfOneEndpoint: what waits for one socket is found behind more of another than is
// listed, and a list that could not look at all says so.
func TestQueueOfOneEndpoint(t *testing.T) {
	n := startWorld(t, func(*config.Config) {})
	h := n.hosts.Locals()[0]
	e, now := h.Lock()
	busy, err := e.Bind(0, rds.SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mine, _ := e.Bind(0, rds.SocketOptions{})
	nobody := netip.MustParseAddrPort("127.77.0.1:4000")
	const others = 1000
	for i := range others {
		if err := busy.Send(now, nobody, []byte("x"), uint64(i), rds.Quiet); err != nil {
			t.Fatal(err)
		}
	}
	if err := mine.Send(now, nobody, []byte("x"), 0, rds.Quiet); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if err := busy.Send(now, mine.Addr(), []byte("xy"), uint64(others+i), rds.Quiet); err != nil {
			t.Fatal(err)
		}
	}
	h.Unlock()
	a := &adminServer{front: n.services}
	ask := func(kind rdsdv1.QueueKind, limit uint32, local *rdsdv1.Endpoint) (*rdsdv1.ListQueueResponse, error) {
		r := &rdsdv1.ListQueueRequest{}
		r.SetKind(kind)
		r.SetLimit(limit)
		r.SetLocal(local)
		return a.ListQueue(t.Context(), r)
	}
	for _, c := range []struct {
		kind      rdsdv1.QueueKind
		limit     uint32
		want      int
		truncated bool
	}{
		{rdsdv1.QueueKind_QUEUE_KIND_UNSPECIFIED, 3, 3, false}, {rdsdv1.QueueKind_QUEUE_KIND_UNSPECIFIED, 2, 2, true},
		{rdsdv1.QueueKind_QUEUE_KIND_SEND, 10, 1, false}, {rdsdv1.QueueKind_QUEUE_KIND_RECV, 10, 2, false}, {rdsdv1.QueueKind_QUEUE_KIND_RETRANS, 10, 0, false},
	} {
		l, err := ask(c.kind, c.limit, endpoint(mine.Addr()))
		if err != nil || len(l.GetDatagram()) != c.want || l.GetTruncated() != c.truncated {
			t.Errorf("%v, at most %d: %v (%v), want %d, truncated %v", c.kind, c.limit, l, err, c.want, c.truncated)
		}
		for _, d := range l.GetDatagram() {
			if d.GetLocal().GetPort() != uint32(mine.Addr().Port()) {
				t.Errorf("%v is listed", d)
			}
		}
	}
	if l, err := ask(0, 10, endpoint(netip.AddrPortFrom(h.Addr(), 1))); err != nil || len(l.GetDatagram()) != 0 || l.GetTruncated() {
		t.Errorf("of nobody: %v, %v", l, err)
	}
	if _, err := ask(0, 10, endpoint(nobody)); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("of another node: %v", err)
	}
	if _, err := ask(0, 10, &rdsdv1.Endpoint{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("of no endpoint: %v", err)
	}
	q := &queueLister{limit: 10, local: mine.Addr(), looked: maxQueueLooked - others + 1}
	if q.sends(h); !q.truncated || len(q.list) > 1 {
		t.Errorf("with %d to look at and less allowed: truncated %v, %v", others+1, q.truncated, q.list)
	}
	_, now = h.Lock()
	busy.Close(now)
	mine.Close(now)
	h.Unlock()
}
