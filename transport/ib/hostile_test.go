package ib

import (
	"errors"
	"io"
	"log/slog"
	"sync"
	"syscall"
	"testing"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/transport"
)

// TestThePeerGoes: whenever the peer goes, the link says Closed once, with EOF, and the device
// has nothing of it afterwards.
func TestThePeerGoes(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(w *world, x, y *end) // y goes in it
	}{
		{"before either is started", func(w *world, x, y *end) {
			y.l.Close()
			x.l.Start(x, 16)
		}},
		{"before the other is started, which has posted", func(w *world, x, y *end) {
			x.post(send("a"))
			y.l.Close()
			w.settled()
			x.post(send("b"))
			x.l.Start(x, 16)
		}},
		{"when it has not been started", func(w *world, x, y *end) {
			x.l.Start(x, 16)
			x.post(send("a"))
			y.l.Close()
		}},
		{"while work is under way", func(w *world, x, y *end) {
			x.l.Start(x, 16)
			y.l.Start(y, 16)
			w.hold(x, true)
			for range 200 {
				x.post(send("a"))
			}
			y.l.Close()
		}},
		{"while it has no slots", func(w *world, x, y *end) {
			x.l.Start(x, 16)
			for range 200 {
				x.post(send("a"))
			}
			w.settled()
			y.l.Close()
		}},
		{"in its handler", func(w *world, x, y *end) {
			x.l.Start(x, 16)
			y.on = func(string) error { y.l.Close(); return nil }
			y.l.Start(y, 16)
			for range 10 {
				x.post(send("a"))
			}
		}},
		{"in the handler of the other", func(w *world, x, y *end) {
			x.on = func(string) error { y.l.Close(); return nil }
			x.l.Start(x, 16)
			y.l.Start(y, 16)
			y.post(send("a"), send("b"))
		}},
		{"with its last words", func(w *world, x, y *end) {
			x.l.Start(x, 16)
			y.l.Start(y, 16)
			y.post(send("a"))
			w.until("It is sent.", func() bool { return y.sends() == 1 })
			y.l.Close()
			w.until("It was told.", func() bool { return len(x.told()) == 1 })
		}},
		{"with an error of its device", func(w *world, x, y *end) {
			x.l.Start(x, 16)
			y.l.Start(y, 16)
			w.locked(func() bool { y.qp().fail(&StatusError{Op: Recv, Status: OtherFailure}); return true })
			w.until("It said goodbye.", func() bool { return w.locked(func() bool { return y.qp().said }) })
		}},
	} {
		w := newWorld(t, nil)
		x, y := w.link()
		c.then(w, x, y)
		if err := w.wantClosed(x); err != io.EOF {
			t.Errorf("%s: closed with %v", c.name, err)
		}
		y.l.Start(y, 16)
		w.wantClosed(y)
		w.clean()
	}
}

// TestGoesBeforeEstablished: a peer that gives up while its request is being accepted.
func TestGoesBeforeEstablished(t *testing.T) {
	w := newWorld(t, nil)
	w.b.holdRTU = make(chan struct{})
	defer close(w.b.holdRTU)
	x, y := w.link()
	y.l.Start(y, 16)
	y.post(send("a"))
	x.l.Close()
	if err := w.wantClosed(y); err != io.EOF {
		t.Errorf("closed with %v", err)
	}
}

// TestBothGo: goodbyes cross, and the threads of both owners close what has been closed.
func TestBothGo(t *testing.T) {
	for range 50 {
		w := newWorld(t, nil)
		x, y := w.started()
		var go2 sync.WaitGroup
		for _, e := range []*end{x, y, x, y} {
			go2.Go(func() { // ends when all is posted
				for range 20 {
					e.post(send("a"))
				}
				e.l.Close()
				e.post(send("b"))
			})
		}
		go2.Wait()
		w.wantClosed(x)
		w.wantClosed(y)
	}
}

// TestDeviceLies: completions of what was never posted end the link, and are not followed into
// memory.
func TestDeviceLies(t *testing.T) {
	for name, c := range map[string]Completion{
		"work to come":  {ID: 1, Op: Send},
		"work of old":   {ID: 1 << 63, Op: Send},
		"a slot":        {ID: 64, Op: Recv, N: 1},
		"far too many":  {ID: 0, Op: Recv, N: 1025},
		"of an unknown": {ID: 0, Op: 99, N: 1 << 40, Has: HasImm},
	} {
		w := newWorld(t, nil)
		x, y := w.started()
		w.settled()
		w.locked(func() bool {
			q := x.qp()
			if c.Op < Recv {
				q.sdone, q.sold = append(q.sdone, c), append(q.sold, 0)
			} else {
				q.rq = shift(q.rq)
				q.rdone = append(q.rdone, c)
			}
			q.tell()
			return true
		})
		if err := w.wantClosed(x); errors.Is(err, io.EOF) || len(x.told()) > 0 {
			t.Errorf("%s: told %q, closed with %v", name, x.told(), err)
		}
		w.wantClosed(y)
	}
}

// TestDeviceRefuses: work and slots that the device does not take end the link.
func TestDeviceRefuses(t *testing.T) {
	for _, what := range []string{"work", "slots", "slots again", "fewer slots"} {
		w := newWorld(t, nil)
		x, y := w.link()
		y.l.Start(y, 16)
		refuse := errors.New("not that")
		set := func() { w.locked(func() bool { x.qp().refuse = refuse; return true }) }
		switch what {
		case "work":
			x.l.Start(x, 16)
			set()
			x.post(send("a"))
		case "slots":
			set()
			x.l.Start(x, 16)
		case "slots again":
			x.l.Start(x, 16)
			set()
			y.post(send("a"))
		default:
			w.locked(func() bool { x.qp().slots = 1; return true })
			x.l.Start(x, 16)
			w.locked(func() bool { x.qp().slots = 0; return true })
		}
		if err := w.wantClosed(x); what != "fewer slots" && !errors.Is(err, refuse) || err == io.EOF {
			t.Errorf("%s: closed with %v", what, err)
		}
		w.wantClosed(y)
	}
}

// TestWrongMemory: what a peer wants to do with memory that it may not touch ends both ends:
// with what it was where the device tells, and with an errno at the peer.
func TestWrongMemory(t *testing.T) {
	for _, faults := range []bool{true, false} {
		w := newWorld(t, func(v *fakeVerbs) { v.info.Caps.Faults = faults })
		x, y := w.started()
		x.post(write(7, 8, "abc"))
		err := w.wantClosed(y)
		a, ok := errors.AsType[*transport.AccessError](err)
		if ok != faults || ok && (a.Kind != transport.OpWriteImm || a.Key != 7 || a.Addr != 8 || a.Len != 3) {
			t.Errorf("faults are told %v: %v", faults, err)
		}
		if err := w.wantClosed(x); !errors.Is(err, syscall.EPROTO) {
			t.Errorf("the peer closed with %v", err)
		}
	}
}

// TestPanicsAreContained: a panic of one link's owner ends that link, and no other of the
// device.
func TestPanicsAreContained(t *testing.T) {
	for _, where := range []string{"event", "End", "Revoked"} {
		w := newWorld(t, func(v *fakeVerbs) { v.info.Caps.Pending = true })
		g := &guard.Guard{Log: slog.New(slog.DiscardHandler)}
		w.pb.Guard = g
		x, y := w.started()
		other, y2 := w.started()
		switch where {
		case "event":
			y.on = func(string) error { panic("in an event") }
			x.post(send("a"), send("b"))
		case "End":
			y.onEnd = func() { panic("in End") }
			x.post(send("a"))
		default:
			y.on = func(string) error { panic("in Revoked") }
			key, _ := y.d.Register(make([]byte, 1))
			y.d.Revoke(key)
		}
		if err := w.wantClosed(y); !errors.As(err, new(*guard.Error)) || g.Count(guard.Link) != 1 {
			t.Errorf("%s: closed with %v, %d panics", where, err, g.Count(guard.Link))
		}
		w.wantClosed(x)
		other.post(send("c"))
		w.wantTold(y2, `received "c" 0x0 false`)
	}
}
