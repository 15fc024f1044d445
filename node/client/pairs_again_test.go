package client

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/datagram"
)

// TestPairOfAPortBoundAnew: while a reader has the pair of a socket that is gone, one that is bound to the
// same port is offered none: the reader could not tell them apart, and the first would not be counted any more.
func TestPairOfAPortBoundAnew(t *testing.T) {
	n, cfg := startClients(t)
	addr := cfg.RDS.Addresses[0]
	local := n.hosts.Engine(addr).(*datagram.Local)
	attach := func(port uint16) (*clienttest.RingClient, *ringSock) {
		c := clienttest.AttachRing(t, cfg, clienttest.BindTo(addr, port))
		var s *ringSock
		await.Until(t, time.Minute, "The socket is served.", func() bool {
			local.Lock()
			defer local.Unlock()
			s = local.Socket(uint16(c.Bound.GetLocal().GetPort())).Options().Data.(*ringSock)
			s.pairs.wanted = true
			return s.begun
		})
		return c, s
	}
	reader, to := attach(0)
	defer reader.Close()
	offer := func(from *ringSock) {
		done := make(chan struct{})
		from.react.DoFor(from, func() {
			defer close(done)
			_, now := local.Lock()
			defer local.Unlock()
			from.offerPair(now, to.sock.Addr().Port())
		})
		<-done
	}
	first, from := attach(0)
	offer(from)
	port := from.sock.Addr().Port()
	local.Lock()
	p := to.pairs.in[port]
	local.Unlock()
	if p == nil {
		t.Fatal("no pair is offered")
	}
	await.Until(t, time.Minute, "Both are told of it.", func() bool {
		local.Lock()
		defer local.Unlock()
		return p.told == [2]bool{true, true}
	})
	first.Close()
	await.Until(t, time.Minute, "The sender is gone.", func() bool {
		local.Lock()
		defer local.Unlock()
		return p.state == pairClosing && local.Socket(port) == nil
	})

	second, again := attach(port)
	defer second.Close()
	offer(again)
	local.Lock()
	if to.pairs.in[port] != p || len(to.pairs.all) != 1 || len(again.pairs.all) != 0 {
		t.Errorf("a second pair of port %d is offered, and takes the place of the first", port)
	}
	local.Unlock()

	m := &rdsdv1.ClientMessage{}
	a := &rdsdv1.PairAnswer{}
	a.SetId(p.id)
	a.SetState(rdsdv1.PairState_PAIR_STATE_GONE)
	m.SetPair(a)
	raw, err := proto.Marshal(m)
	if err == nil {
		err = reader.C.WriteMessage(raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	await.Until(t, time.Minute, "The reader has let go of the first.", func() bool {
		local.Lock()
		defer local.Unlock()
		return p.state == pairGone
	})
	offer(again)
	local.Lock()
	defer local.Unlock()
	if q := to.pairs.in[port]; q == nil || q == p {
		t.Error("no pair is offered when the first is gone")
	}
}
