//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// refuseOther has the daemon refuse otherAddr, and count in looks, with d.mu held, how often it looks.
func (d *ringDaemon) refuseOther(looks *int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flowOf = func(dst netip.AddrPort) flowRule {
		if dst == otherAddr {
			*looks++
			return flowRule{shm.FlowRefused, uint16(rdserr.ErrHostDown.Errno)}
		}
		return flowRule{state: shm.FlowClear}
	}
}

// What a batch has for a destination that is refused costs one answer of the daemon, or a few, and one
// more for its words.
func TestRingsRefusedInABatch(t *testing.T) {
	d := newRingDaemon(t)
	looks := 0
	d.refuseOther(&looks)
	a := d.bindRing(localAddr)
	d.bindRing(peerAddr)
	ds := make([]Datagram, 200)
	for i := range ds {
		if ds[i].Addr = otherAddr; i%4 == 0 {
			ds[i].Addr = peerAddr
		}
	}
	for i, send := range []func(context.Context, []Datagram) (int, error){a.SendBatch, a.TrySendBatch} {
		n, err := send(testContext(t), ds)
		wantErr(t, err, rdserr.ErrHostDown)
		if be, _ := errors.AsType[*BatchError](err); n != 50 || len(be.Errors) != 150 {
			t.Errorf("%d accepted, %d errors", n, len(be.Errors))
		}
		d.mu.Lock()
		// What is left of a batch that had to wait for something else looks again, never each datagram.
		if looks > 10*(i+1) || d.asked != i+1 {
			t.Errorf("after batch %d the daemon has looked %d times and was asked %d times", i+1, looks, d.asked)
		}
		d.mu.Unlock()
	}
}

// A destination the daemon refuses is the error of that very call, and is
// asked about again by the next.
func TestRingsRefused(t *testing.T) {
	d := newRingDaemon(t)
	asked := 0
	d.refuseOther(&asked)
	a, b := d.bindRing(localAddr), d.bindRing(peerAddr)
	ctx := testContext(t)
	for range 3 {
		wantErr(t, a.Send(ctx, otherAddr, nil), rdserr.ErrHostDown)
		wantErr(t, a.TrySend(otherAddr, nil), rdserr.ErrHostDown)
	}
	for _, send := range []func(context.Context, []Datagram) (int, error){a.SendBatch, a.TrySendBatch} {
		n, err := send(ctx, []Datagram{{Addr: peerAddr}, {Addr: otherAddr}, {}, {Addr: peerAddr}, {Addr: peerAddr, Payload: make([]byte, 1<<20+1)}})
		wantErr(t, err, rdserr.ErrHostDown, rdserr.ErrDestination, rdserr.ErrTooLarge)
		be, _ := errors.AsType[*BatchError](err)
		if n != 2 || len(be.Errors) != 3 || be.Errors[0].Index != 1 || be.Errors[1].Index != 2 || be.Errors[2].Index != 4 {
			t.Errorf("%d accepted, %v", n, be.Errors)
		}
		for _, e := range be.Errors {
			if op, ok := errors.AsType[*OpError](e.Err); !ok || op.Local != localAddr || op.Undecided {
				t.Errorf("datagram %d: %+v is not from %v", e.Index, op, localAddr)
			}
		}
		for range 2 {
			if _, err := b.Recv(ctx); err != nil {
				t.Error(err)
			}
		}
	}
	// Why is the daemon's to say, of one and of several.
	d.mu.Lock()
	d.says = "nobody knows the way"
	before := asked
	d.mu.Unlock()
	for what, send := range map[string]func() error{
		"send":      func() error { return a.Send(ctx, otherAddr, nil) },
		"try":       func() error { return a.TrySend(otherAddr, nil) },
		"batch":     func() error { _, err := a.SendBatch(ctx, []Datagram{{Addr: otherAddr}, {Addr: otherAddr}}); return err },
		"try batch": func() error { _, err := a.TrySendBatch(ctx, []Datagram{{Addr: otherAddr}}); return err },
	} {
		err := send()
		if wantErr(t, err, rdserr.ErrHostDown); err == nil || !strings.Contains(err.Error(), d.says) {
			t.Errorf("%s: %v does not say what the daemon does", what, err)
		}
	}
	d.mu.Lock()
	d.says = ""
	if asked = before; asked != 8 {
		t.Errorf("asked %d times, want 8", asked)
	}
	d.mu.Unlock()
	_, err := a.Reserve(ctx, otherAddr, 1)
	wantErr(t, err, rdserr.ErrHostDown)
	// A request is sent from a port of its own, of which its error says nothing.
	_, err = a.Request(ctx, otherAddr, nil)
	wantErr(t, err, rdserr.ErrHostDown)
	op, _ := errors.AsType[*OpError](err)
	if _, within := op.Err.(*OpError); within || op.Op != "request" || op.Local != localAddr || op.Remote != otherAddr {
		t.Errorf("%v names another socket than the caller's", err)
	}
	wantErr(t, a.TrySend(netip.MustParseAddrPort("0.0.0.0:7"), nil), rdserr.ErrDestination)
}

func TestRingsCongestion(t *testing.T) {
	d := newRingDaemon(t)
	a, b, c := d.bindRing(localAddr), d.bindRing(peerAddr), d.bindRing(otherAddr)
	ctx := testContext(t)
	send := func(text string) Datagram { return Datagram{Addr: peerAddr, Payload: []byte(text)} }
	if err := a.Send(ctx, peerAddr, []byte("0")); err != nil {
		t.Fatal(err)
	}
	events := a.WatchCongestion(ctx)
	eventually(t, "Monitor", func() bool { d.mu.Lock(); defer d.mu.Unlock(); return d.socks[localAddr].watch })
	d.setFlow(peerAddr, shm.FlowCongested)
	wantErr(t, a.TrySend(peerAddr, nil), rdserr.ErrCongested)
	if is, err := a.Congested(ctx, peerAddr); !is || err != nil {
		t.Errorf("%v %v", is, err)
	}
	if is, err := a.Congested(ctx, stuckAddr); is || err != nil {
		t.Errorf("%v %v", is, err)
	}
	for ev, err := range events {
		if err != nil || len(ev.Changes) != 1 || ev.Changes[0] != (CongestionChange{peerAddr, true}) {
			t.Errorf("%+v %v", ev, err)
		}
		break
	}
	// Only what goes there is held up, and stays in order.
	n, err := a.TrySendBatch(ctx, []Datagram{send("no"), {Addr: otherAddr, Payload: []byte("yes")}, send("no")})
	wantErr(t, err, rdserr.ErrCongested)
	if n != 1 {
		t.Errorf("%d accepted", n)
	}
	batch := goErr(func() error {
		_, err := a.SendBatch(ctx, []Datagram{send("1"), {Addr: otherAddr, Payload: []byte("yes")}, send("2"), send("3")})
		return err
	})
	single := goErr(func() error { return a.Send(ctx, peerAddr, []byte("single")) })
	for range 2 {
		if got, err := c.Recv(ctx); err != nil || string(got.Payload) != "yes" {
			t.Errorf("%q %v", got.Payload, err)
		}
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	wantErr(t, a.Send(short, peerAddr, nil), rdserr.ErrTimeout)
	d.setFlow(peerAddr, shm.FlowClear)
	for _, done := range []chan error{batch, single} {
		if err := waitErr(t, done); err != nil {
			t.Error(err)
		}
	}
	order := ""
	for range 5 {
		got, err := b.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if string(got.Payload) != "single" {
			order += string(got.Payload)
		}
	}
	if order != "0123" {
		t.Errorf("order %q", order)
	}
	if is, err := a.Congested(ctx, peerAddr); is || err != nil {
		t.Errorf("%v %v", is, err)
	}
}

// More destinations than the flow table has entries, and more at once than that.
func TestRingsManyDestinations(t *testing.T) {
	d := newRingDaemon(t)
	d.regions(shm.Spec{Flows: 16})
	a := d.bindRing(localAddr, WithOutcomes())
	ctx := testContext(t)
	for range 3 {
		for i := range 50 {
			if err := a.Send(ctx, portOf(1000+i), nil); err != nil {
				t.Fatal(err)
			}
			if i >= 10 {
				if _, err := a.CancelSentTo(ctx, portOf(1000+i-10)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := a.CancelSentTo(ctx, netip.AddrPortFrom(peerAddr.Addr(), 0)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 16 {
		if err := a.TrySend(portOf(2000+i), nil); err != nil {
			t.Fatal(err)
		}
	}
	wantErr(t, a.TrySend(portOf(3000), nil), rdserr.ErrWouldBlock)
	waiting := goErr(func() error { return a.Send(ctx, portOf(3000), nil) })
	if _, err := a.CancelSentTo(ctx, portOf(2003)); err != nil {
		t.Fatal(err)
	}
	if err := waitErr(t, waiting); err != nil {
		t.Fatal(err)
	}
}

// A try that asks what a new flow is, and is told that it is congested before it has
// begun to wait, looks again at once: nothing else would come.
func TestRingsOpenedCongested(t *testing.T) {
	d := newRingDaemon(t)
	d.mu.Lock()
	d.flowOf = func(netip.AddrPort) flowRule { return flowRule{state: shm.FlowCongested} }
	d.mu.Unlock()
	a := d.bindRing(localAddr)
	r := a.fe.(*rings)
	d.pause(true)
	r.txMu.Lock()
	f, err := r.tx.send.Flow(peerAddr)
	r.txMu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	d.pause(false)
	ctx := testContext(t)
	for told := false; !told; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatal("the daemon says nothing of the flow")
		}
		r.txMu.Lock()
		told = r.tx.send.State(f).State() == shm.FlowCongested
		r.txMu.Unlock()
	}
	for _, c := range []struct {
		saw   error
		again bool
	}{{errOpening, true}, {rdserr.ErrCongested, false}} {
		h := holdup{r: r, ctx: ctx, wait: true}
		r.txMu.Lock()
		h.mayWaitLocked(peerAddr, c.saw)
		again := h.w.ready()
		h.end()
		r.txMu.Unlock()
		if again != c.again {
			t.Errorf("%v was seen and the flow is congested: looks again: %v", c.saw, again)
		}
	}
	wantErr(t, a.TrySend(peerAddr, nil), rdserr.ErrCongested)
}
