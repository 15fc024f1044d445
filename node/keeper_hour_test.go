package node

import (
	"bytes"
	"net/netip"
	"os"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/page"
	"github.com/rdsd/rdsd/node/page/hour"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/wire"
)

// TestKeeperFindsWhatItMissed: a keeper of the hour that begins when a port is congested
// already, of which nobody tells it any more, finds it and who should read it when it looks
// at everything; it notes when the port is clear, and ends when it is told to.
func TestKeeperFindsWhatItMissed(t *testing.T) {
	x := startIll(t, nil)
	port, reader := x.congests(t, x)
	k := page.NewKeeper(x.n.hosts)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		k.Run(stop)
	}()
	kept := func() *rdsdv1.PortHistory {
		if l := k.History(port).GetPort(); len(l) == 1 {
			return l[0]
		}
		return nil
	}
	await.Until(t, 2*time.Minute, "the keeper has found the port", func() bool { return kept().GetCongested() && kept().GetReaderPid() != 0 })
	p := kept()
	if int(p.GetReaderPid()) != os.Getpid() || p.GetReaderProgram() == "" || len(p.GetCulprit()) != 1 || !p.GetLocal() || p.GetTimes() != 1 {
		t.Errorf("it has %v", p)
	}
	if err := reader.stream.CloseSend(); err != nil { // the socket is closed, and its port clear
		t.Fatal(err)
	}
	await.Until(t, 2*time.Minute, "the keeper has noted that it is clear", func() bool { return !kept().GetCongested() })
	if p := kept(); p.GetCongestedNs() == 0 || p.GetReaderPid() == 0 {
		t.Errorf("of a port that is clear it has %v", p)
	}
	if n := len(k.History(netip.AddrPort{}).GetPort()); n != 1 {
		t.Errorf("it has %d ports", n)
	}
	close(stop)
	<-done
}

// TestKeeperOfAFullMap: a peer that says all of its ports are congested makes a list that is cut. Of what
// is not in it the keeper takes nothing for clear that is not, and nothing for congested that is clear.
func TestKeeperOfAFullMap(t *testing.T) {
	x := startIll(t, nil)
	h := x.n.hosts.Locals()[0]
	remote := netip.MustParseAddr("127.77.6.1")
	tell := func(f func(now time.Duration, pe *rds.Peer)) {
		e, now := h.Lock()
		defer h.Unlock()
		pe, err := e.Peer(remote)
		if err != nil {
			t.Fatal(err)
		}
		f(now, pe)
	}
	k := page.NewKeeper(x.n.hosts)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		k.Run(stop)
	}()
	defer func() {
		close(stop)
		<-done
	}()
	const stays, ends = 60000, 60001
	congested := func(port uint16) bool {
		l := k.History(netip.AddrPortFrom(remote, port)).GetPort()
		return len(l) == 1 && l[0].GetCongested() && l[0].GetTimes() == 1
	}
	// Its watch begins after Run does.
	await.Until(t, 2*time.Minute, "the keeper has the ports", func() bool {
		tell(func(now time.Duration, pe *rds.Peer) {
			pe.CongestionDelta(now, wire.PortState{Port: stays, Congested: true})
			pe.CongestionDelta(now, wire.PortState{Port: ends, Congested: true})
		})
		return congested(stays) && congested(ends)
	})
	tell(func(now time.Duration, pe *rds.Peer) {
		m := bytes.Repeat([]byte{0xff}, 8192)
		pe.CongestionMap(now, m)
	})
	others := func() int { return int(k.History(netip.AddrPort{}).GetOthers().GetCongestedPorts()) }
	await.Until(t, 3*time.Minute, "the keeper has looked", func() bool { return others() > 1000 })
	if !congested(stays) || !congested(ends) {
		t.Errorf("port %d is congested: %v, port %d: %v", stays, congested(stays), ends, congested(ends))
	}
	if n := others(); n != 65536-hour.MaxPorts {
		t.Errorf("%d others are congested, want %d", n, 65536-hour.MaxPorts)
	}
	// A map that differs in more ports than there are notices of clears one unsaid.
	tell(func(now time.Duration, pe *rds.Peer) {
		m := bytes.Repeat([]byte{0xff}, 8192)
		clear(m[:100])
		m[ends/8] &^= 1 << (ends % 8)
		pe.CongestionMap(now, m)
	})
	await.Until(t, 3*time.Minute, "the keeper has looked again", func() bool { return !congested(ends) })
	if !congested(stays) {
		t.Errorf("port %d is taken for clear", stays)
	}
}
