package client

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
)

// hangs has calls of a step hang, while on is set, until the test lets them go.
type hangs struct {
	on, hanging atomic.Int32
	goes        chan struct{}
}

func (h *hangs) at(w *world, what string) {
	h.goes = make(chan struct{})
	fails := func(step string) error {
		if step == what && h.on.Load() != 0 {
			h.hanging.Add(1)
			<-h.goes
			h.hanging.Add(-1)
		}
		return nil
	}
	w.clients.fails.Store(&fails)
}

// stopsSoon has the daemon stop, which has to be over before a seal that hangs would be given up.
func stopsSoon(t *testing.T, stop func()) {
	t.Helper()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	select {
	case <-stopped:
	case <-time.After(sealPatience - time.Second):
		t.Error("the daemon does not stop")
	}
}

// TestSealsHang: seals of a user's regions that do not come back take one thread, and the places of those
// clients alone: they are refused in time, other users bind meanwhile, and the daemon stops.
func TestSealsHang(t *testing.T) {
	cfg := clienttest.Config(t)
	w := newWorld(t, cfg, nil)
	stop := w.start(t)
	addr := cfg.RDS.Addresses[0]
	var h hangs
	h.at(w, "seal")
	defer close(h.goes)
	h.on.Store(1)
	asks := func() *clienttest.PacketClient {
		t.Helper()
		p := clienttest.PacketsOver(t, clienttest.ConnectAs(t, w.clients.Accept, config.Identity{UID: 12345}))
		t.Cleanup(func() { p.C.Close() })
		p.C.SetDeadline(time.Now().Add(15 * time.Second))
		m, fds := p.Ask(clienttest.RingBind(addr, 0))
		if clienttest.CloseFDs(fds); !m.HasRegion() {
			t.Fatalf("bind was answered by %v", m)
		}
		said := &rdsdv1.ClientMessage{}
		said.SetMapped(&rdsdv1.RingMapped{})
		p.Write(said)
		return p
	}
	var evil [5]*clienttest.PacketClient
	for i := range evil {
		evil[i] = asks()
	}
	await.Until(t, 5*time.Second, "a seal hangs", func() bool { return h.hanging.Load() > 0 })
	time.Sleep(100 * time.Millisecond)
	if n := h.hanging.Load(); n != 1 {
		t.Errorf("%d seals of one user hang", n)
	}
	h.on.Store(0)
	good := clienttest.DialPackets(t, cfg)
	if m := good.Bind(clienttest.RingBind(addr, 0)); !m.HasBound() {
		t.Errorf("another user's bind was answered by %v", m)
	}
	for i, p := range evil {
		if m := p.Read(); m.GetClosing().GetErrno() != int32(syscall.ETIMEDOUT) {
			t.Errorf("number %d was told %v", i, m)
		}
	}
	if n := w.users.Len(); n != len(evil)+1 {
		t.Errorf("%d clients have a place, want %d", n, len(evil)+1)
	}
	asks() // the daemon's end does not wait for its patience either
	stopsSoon(t, stop)
	h.goes <- struct{}{}
	await.Until(t, 5*time.Second, "no client has a place", func() bool { return w.users.Len() == 0 })
}

// TestPairSealHangs: so with pairs: no more of them are offered while many wait, and the daemon stops.
func TestPairSealHangs(t *testing.T) {
	cfg := clienttest.Config(t)
	w := newWorld(t, cfg, nil)
	stop := w.start(t)
	local, socks := w.attachRings(t, cfg, 3)
	var h hangs
	h.at(w, "seal a pair")
	defer close(h.goes)
	h.on.Store(1)
	from, uid := socks[0], socks[0].s.id.UID
	offer := func(to *ringSock) (offered bool) {
		t.Helper()
		_, now := local.Lock()
		defer local.Unlock()
		from.offerPair(now, to.sock.Addr().Port())
		return from.pairs.out[to.sock.Addr().Port()] != nil
	}
	await.Until(t, 5*time.Second, "all are served, and a pair is offered", func() bool {
		local.Lock()
		served := socks[0].begun && socks[1].begun && socks[2].begun
		local.Unlock()
		return served && offer(socks[1])
	})
	var p *pair
	await.Until(t, 5*time.Second, "both ends are told", func() bool {
		local.Lock()
		defer local.Unlock()
		p = from.pairs.out[socks[1].sock.Addr().Port()]
		return p.told == [2]bool{true, true}
	})
	_, now := local.Lock()
	for end := range p.ends {
		if err := p.answered(now, end, rdsdv1.PairState_PAIR_STATE_MAPPED); err != nil {
			t.Error(err)
		}
	}
	local.Unlock()
	await.Until(t, 5*time.Second, "its seal hangs", func() bool { return h.hanging.Load() == 1 })
	for range maxPairs {
		w.clients.seals.Do(uid, func() {})
	}
	if offer(socks[2]) {
		t.Errorf("a pair is offered though %d seals wait", w.clients.seals.Behind(uid))
	}
	stopsSoon(t, stop)
	h.goes <- struct{}{}
	await.Until(t, 5*time.Second, "the pair is gone", func() bool {
		local.Lock()
		defer local.Unlock()
		return p.state == pairGone && w.clients.seals.Behind(uid) == 0
	})
}
