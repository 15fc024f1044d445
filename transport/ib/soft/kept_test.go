package soft

import (
	"context"
	"net/netip"
	"runtime"
	"testing"
	"weak"

	"github.com/rdsd/rdsd/transport/ib"
)

// owner is whom a queue pair's handler belongs to.
type owner struct{ _ [1 << 10]byte }

func (o *owner) Ready()       {}
func (o *owner) Established() {}
func (o *owner) Ended(error)  {}

// TestOwnerIsNotKept: once a queue pair is closed nothing of its owner is held, though a peer that
// does not answer keeps the connection's numbers in use for more than a minute.
func TestOwnerIsNotKept(t *testing.T) {
	a, b := devices(t, nil)
	x := newEnd(t, a, depths)
	dom, err := b.NewDomain(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dom.Close()
	o := &owner{}
	q, err := dom.NewQP(depths, o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := b.Listen(netip.AddrPortFrom(b.cfg.Addr, testPort), func(asked ib.Asked) {
		if err := asked.Accept(q, ib.Param{Retry: 7, RNRRetry: 7}); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := a.Dial(ctx, netip.AddrPort{}, l.Addr(), x.q, ib.Param{Retry: 7, RNRRetry: 7}); err != nil {
		t.Fatal(err)
	}
	l.Close()
	a.mu.Lock()
	a.shut = true // it answers nothing any more
	a.mu.Unlock()
	held := weak.Make(o)
	q.Disconnect()
	b.r.Sync()
	q.Close()
	o, q, l = nil, nil, nil
	b.r.Sync()
	runtime.GC()
	b.mu.Lock()
	conns := b.cm.Conns()
	b.mu.Unlock()
	if held.Value() != nil {
		t.Error("the owner of a closed queue pair is held by its connection")
	}
	if conns != 1 {
		t.Errorf("there are %d connections, want the one that the peer has not confirmed", conns)
	}
}
