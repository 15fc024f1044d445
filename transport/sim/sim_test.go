package sim

import (
	"bytes"
	"math/rand"
	"net/netip"
	"testing"
	"time"
)

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
)

// two is two hosts and one connection between them.
type two struct {
	*Net
	ha, hb *Host
	a, b   *End
}

func newTwo(t *testing.T, p Profile) *two {
	t.Helper()
	w := &two{Net: NewNet(&Clock{}, rand.New(rand.NewSource(1)), p)}
	w.ha, w.hb = w.AddHost(addrA), w.AddHost(addrB)
	w.hb.Accept = func(e *End, from netip.AddrPort) {
		if from != netip.AddrPortFrom(addrA, 40001) {
			t.Errorf("accepted from %v", from)
		}
		w.b = e
	}
	w.ha.Dial(40001, addrB, time.Second, func(e *End, err error) {
		if err != nil {
			t.Error(err)
		}
		w.a = e
	})
	w.run(time.Second)
	if w.a == nil || w.b == nil {
		t.Fatal("no connection")
	}
	return w
}

func (w *two) run(d time.Duration) {
	for end := w.Now() + d; w.Step(end); {
	}
}

func fair() Profile {
	return Profile{Latency: time.Millisecond, SndBuf: 1 << 16, RcvBuf: 1 << 16}
}

func TestBytesArriveInOrder(t *testing.T) {
	p := fair()
	p.Chop, p.Loss, p.Jitter, p.Bandwidth, p.RcvBuf = 1, 0.1, time.Millisecond, 1<<20, 1000
	w := newTwo(t, p)
	want := make([]byte, 300000)
	rand.New(rand.NewSource(2)).Read(want)
	left, got := want, []byte(nil)
	for len(got) < len(want) {
		n, err := w.a.Write([][]byte{left[:min(len(left), 5000)]})
		if err != nil {
			t.Fatal(err)
		}
		left = left[n:]
		w.run(10 * time.Millisecond)
		if acked := w.a.Acked(); acked > uint64(len(got)+w.b.Buffered()) {
			t.Fatalf("%d bytes acknowledged, %d arrived", acked, len(got)+w.b.Buffered())
		}
		got = w.b.Read(got, 700)
		if w.Now() > time.Hour {
			t.Fatalf("stuck after %d bytes", len(got))
		}
	}
	if !bytes.Equal(got, want) {
		t.Fatal("the stream differs")
	}
	w.a.CloseWrite()
	w.run(time.Second)
	if over, err := w.b.Ended(); !over || err != nil {
		t.Fatalf("after FIN: ended %v, %v", over, err)
	}
	if n, _ := w.b.Write([][]byte{{1}}); n != 1 {
		t.Fatal("the other direction is closed too")
	}
	w.run(time.Second)
	if w.a.Acked() != uint64(len(want)) || w.a.Buffered() != 1 {
		t.Fatalf("%d acknowledged, %d came back", w.a.Acked(), w.a.Buffered())
	}
}

func TestFullBufferAndWritable(t *testing.T) {
	w := newTwo(t, fair())
	again := false
	w.a.Writable = func() { again = true }
	n, _ := w.a.Write([][]byte{make([]byte, 1<<17)})
	if n != 1<<16 {
		t.Fatalf("a buffer of 64 KiB took %d bytes", n)
	}
	w.run(time.Second)
	if !again {
		t.Fatal("nobody said that there is room again")
	}
}

func TestBreak(t *testing.T) {
	for _, half := range []bool{false, true} {
		w := newTwo(t, fair())
		w.a.Write([][]byte{make([]byte, 1000)})
		w.run(10 * time.Millisecond)
		w.a.Write([][]byte{make([]byte, 1000)}) // under way
		w.a.Break(half)
		if _, err := w.a.Write([][]byte{{1}}); err != ErrReset {
			t.Fatalf("write after the reset: %v", err)
		}
		if n := w.b.Buffered(); n < 1000 || n > 2000 {
			t.Fatalf("%d bytes can be read after the reset, 1000 had arrived", n)
		}
		if over, _ := w.b.Ended(); over == half {
			t.Fatalf("half %v: the other end knows %v", half, over)
		}
		if half {
			w.b.Write([][]byte{{1}})
			w.run(time.Second)
			if _, err := w.b.Ended(); err != ErrReset {
				t.Fatalf("sending to a connection that is gone: %v", err)
			}
		}
	}
}

func TestCutDelaysAndHeals(t *testing.T) {
	w := newTwo(t, fair())
	w.Cut(addrA, addrB, 0)
	w.a.Write([][]byte{{1}})
	w.b.Write([][]byte{{2}})
	w.run(10 * time.Second)
	if w.b.Buffered() != 0 || w.a.Buffered() != 1 {
		t.Fatal("a cut is of one direction")
	}
	w.Heal()
	w.run(10 * time.Second)
	if w.b.Buffered() != 1 {
		t.Fatal("the byte did not come after the cut")
	}
	w.Cut(addrA, addrB, 0)
	w.a.Write([][]byte{{1}})
	w.run(2 * time.Minute)
	if _, err := w.a.Ended(); err != ErrTimeout {
		t.Fatalf("two minutes without a way: %v", err)
	}
	if over, _ := w.b.Ended(); over {
		t.Fatal("the other end cannot know")
	}
}

func TestKillAndPowerOff(t *testing.T) {
	w := newTwo(t, fair())
	w.hb.Kill()
	w.run(time.Second)
	if over, err := w.a.Ended(); !over || err != nil {
		t.Fatalf("a killed program's connection: %v, %v", over, err)
	}
	w = newTwo(t, fair())
	w.hb.PowerOff()
	w.a.Write([][]byte{{1}})
	w.run(5 * time.Second)
	if over, _ := w.a.Ended(); over {
		t.Fatal("a machine without power says nothing")
	}
	w.hb.PowerOn()
	w.run(10 * time.Second)
	if _, err := w.a.Ended(); err != ErrReset {
		t.Fatalf("a machine that came back: %v", err)
	}
}

func TestDialFails(t *testing.T) {
	w := newTwo(t, fair())
	w.hb.Accept = nil
	var got error
	try := func() { w.ha.Dial(1, addrB, 2*time.Second, func(_ *End, err error) { got = err }) }
	try()
	w.run(time.Second)
	if got != ErrRefused {
		t.Fatalf("nobody listens: %v", got)
	}
	w.Cut(addrB, addrA, 0)
	got = nil
	try()
	w.run(3 * time.Second)
	if got != ErrTimeout {
		t.Fatalf("no way back: %v", got)
	}
}

func TestProbe(t *testing.T) {
	w := newTwo(t, fair())
	var alive []bool
	probe := func() {
		w.a.Probe(func(ok bool) { alive = append(alive, ok) })
		w.run(time.Second)
	}
	probe()
	w.Cut(addrA, addrB, 2*time.Second)
	probe()
	if len(alive) != 2 || !alive[0] || alive[1] {
		t.Fatalf("answers %v", alive)
	}
	w.run(3 * time.Second)
	w.b.Hang()
	probe()
	if _, err := w.a.Ended(); err != ErrReset {
		t.Fatalf("probing a connection that is gone: %v", err)
	}
}

func TestClockOrder(t *testing.T) {
	var c Clock
	var got []int
	for i := range 50 {
		c.At(time.Duration(i%7)*time.Second, func() { got = append(got, i) })
	}
	for c.Step(time.Minute) {
	}
	for i := 1; i < len(got); i++ {
		a, b := got[i-1], got[i]
		if a%7 > b%7 || a%7 == b%7 && a > b {
			t.Fatalf("%d ran before %d", a, b)
		}
	}
	if c.Now() != time.Minute || c.Ran() != 50 {
		t.Fatalf("now %v after %d events", c.Now(), c.Ran())
	}
}
