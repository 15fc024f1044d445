package ib

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/transport"
)

// TestPaceOfTheRest: sources beyond those that are remembered share one pace, however little each
// of them asks for; when others have everything back there is room for them again.
func TestPaceOfTheRest(t *testing.T) {
	source := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }
	var p pace
	for i := range paceSource {
		if wait, ok := p.take(0, source(i), false); wait != 0 || !ok {
			t.Fatalf("source %d: %v, %v", i, wait, ok)
		}
	}
	for i := range 100 {
		wait, ok := p.take(0, source(paceSource+i), false)
		if want := max(0, time.Duration(i+1-paceBurst)*paceEvery); ok != (i < paceBurst+paceQueue) || ok && wait != want {
			t.Fatalf("source %d of the rest waits %v, %v; want %v", i, wait, ok, want)
		}
	}
	if wait, ok := p.take(0, source(0), false); wait != 0 || !ok {
		t.Errorf("one that is remembered: %v, %v", wait, ok)
	}
	if wait, ok := p.take(2*paceEvery, source(paceSource+99), false); wait != 0 || !ok || len(p.until) != 1 {
		t.Errorf("when others have everything back: %v, %v, %d are remembered", wait, ok, len(p.until))
	}
}

// TestSources: which addresses are one source.
func TestSources(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"10.0.0.1", "::ffff:10.0.0.1", true}, {"::ffff:10.0.0.1", "::ffff:10.0.0.2", false}, {"10.0.0.1", "10.0.0.2", false},
		{"fe80::1%a", "fe80::2%b", true}, {"fd00:0:0:1::1", "fd00:0:0:1:ff::", true}, {"fd00:0:0:1::1", "fd00:0:0:2::1", false},
	} {
		if a, b := networkOf(netip.MustParseAddr(c.a)), networkOf(netip.MustParseAddr(c.b)); (a == b) != c.same {
			t.Errorf("%s is of %v, %s of %v", c.a, a, c.b, b)
		}
	}
}

// TestAccessReasons: what a peer wanted to do is told as what it was.
func TestAccessReasons(t *testing.T) {
	w := newWorld(t, nil)
	x, _ := w.started()
	for op, kind := range map[Op]transport.OpKind{Write: transport.OpWrite, WriteImm: transport.OpWriteImm, SendInval: transport.OpSendInval} {
		why := errors.New("no")
		fault := &AccessError{Op: op, Key: 1, Addr: 2, N: 3, Err: why}
		if !errors.Is(fault, why) {
			t.Errorf("%v is not what it is because of", fault)
		}
		got, ok := errors.AsType[*transport.AccessError](x.l.reason(fault))
		if want := (transport.AccessError{Kind: kind, Key: 1, Addr: 2, Len: 3, Why: "no"}); !ok || fmt.Sprint(*got) != fmt.Sprint(want) {
			t.Errorf("%v: %+v", op, got)
		}
	}
}

// TestForeignDomains: no link is made in the domain of another device or kind, and a request that
// was to be accepted into one can still be answered.
func TestForeignDomains(t *testing.T) {
	w := newWorld(t, nil)
	foreign := map[string]transport.Domain{"of another kind": struct{ transport.Domain }{w.pb.NewDomain()}, "of another device": w.pa.NewDomain()}
	ln := w.listen(func(q transport.ConnRequest) {
		for what, d := range foreign {
			if l, err := q.Accept(d, w.attr, nil); err == nil || l != nil {
				t.Errorf("accepted into one %s: %v", what, err)
			}
		}
		q.Reject([]byte("no domain"))
	})
	_, _, err := w.dial(ln, w.pa.NewDomain(), nil)
	if r, ok := errors.AsType[*transport.Refused](err); !ok || string(r.Private[:9]) != "no domain" {
		t.Errorf("dialled: %v", err)
	}
	if _, _, err := w.dial(ln, foreign["of another kind"], nil); err == nil {
		t.Error("dialled in one of another kind")
	}
	w.clean()
}
