package transporttest

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// fill sends until the link keeps a batch; it returns how many frames went in.
func (e *end) fill(t *testing.T) (frames int) {
	t.Helper()
	big := make([]byte, 200<<10)
	for frames < 1000 {
		b := transport.GetBatch()
		frame(b, uint64(frames+1), big)
		b.Seal()
		done, err := e.link.Send(b)
		if err != nil {
			t.Fatal(err)
		}
		frames++
		if !done {
			return frames
		}
		b.Put()
	}
	t.Fatal("200 MB went into a link nobody reads")
	return 0
}

// testKeptBatch checks that a batch the link keeps comes back with an error when the link
// is given up, before Closed.
func testKeptBatch(t *testing.T, p Provider) {
	hold := make(chan struct{})
	x, _ := connect(t, p, 0, func(x, y *end) { y.hold = hold })
	defer close(hold)
	x.fill(t)
	x.link.Abort()
	x.wantClosed(t)
	select {
	case err := <-x.written:
		if err == nil {
			t.Error("Written without an error")
		}
	default:
		t.Error("Closed before Written")
	}
}

// testPausedEnds checks that a link whose receiver is full costs nothing when the peer
// resets it, still delivers what had come when the receiver goes on, and says then that it
// has ended; or at once if it is given up.
func testPausedEnds(t *testing.T, p Provider) {
	for _, resume := range []bool{true, false} {
		x, y := connect(t, p, 0, func(x, y *end) { y.pause = 1 })
		b := transport.GetBatch()
		for i := range 3 {
			frame(b, uint64(i+1), []byte{1, 2, 3})
		}
		x.send(t, b)
		y.until(t, 1)
		x.link.Abort()
		x.wantClosed(t)
		select {
		case <-y.closed:
			t.Fatal("Closed before the receiver went on")
		case <-time.After(10 * time.Millisecond):
		}
		if resume {
			y.mu.Lock()
			y.pause = -1
			y.mu.Unlock()
			y.link.Resume()
		} else {
			y.link.Abort()
		}
		y.wantClosed(t)
		if want := map[bool]int{true: 3, false: 1}[resume]; y.count() != want {
			t.Errorf("resume %v: %d frames arrived, %d are right", resume, y.count(), want)
		}
	}
}

// placing is an end with memory of its own for large payloads.
type placing struct {
	*end
	mem         [8][]byte
	asked, used int
	freed       atomic.Int64
	refuse      bool
}

func (e *placing) Buffer(raw []byte, n int) *buf.Buf {
	if !e.inBegin {
		panic("Buffer outside of Begin and End")
	}
	var h wire.Header
	if h.Parse(raw) != nil || int(h.Len) != n || n < transport.DirectLen {
		panic("asked for memory with another header")
	}
	if e.asked++; e.refuse {
		return nil
	}
	e.mem[h.Seq] = make([]byte, n)
	return buf.Foreign(e.mem[h.Seq], e, uint32(h.Seq))
}

func (e *placing) Free(*buf.Buf) { e.freed.Add(1) }

func (e *placing) Frame(f *transport.Frame) error {
	err := e.end.Frame(f)
	if err == nil && f.Buf != nil && f.Buf.Owner() == e {
		if m := e.mem[f.Buf.ID]; &m[0] != &f.Payload[0] {
			panic("the payload lies elsewhere")
		}
		e.used++
	}
	return err
}

// testPlace checks that a Placer is asked once for each large payload, that the payload
// comes to lie there, and that a place half filled at the end is given back.
func testPlace(t *testing.T, p Provider) {
	if !p.Caps.Place {
		t.Skip("elsewhere: this provider lacks: Place")
	}
	for _, refuse := range []bool{false, true} {
		x, y := dialed(t, p, 0)
		py := &placing{end: y, refuse: refuse}
		py.pause = 3
		x.link.Start(x)
		y.link.Start(py)
		sizes := []int{100, transport.DirectLen, 300 << 10, wire.MaxDatagram, transport.DirectLen - 1}
		for i, n := range sizes {
			b := transport.GetBatch()
			frame(b, uint64(i+1), bytes.Repeat([]byte{byte(i)}, n))
			x.send(t, b)
		}
		y.until(t, 3)
		y.mu.Lock()
		y.pause = -1 // the fourth lies where it was placed while the link is paused
		y.mu.Unlock()
		y.link.Resume()
		y.until(t, len(sizes))
		for i, n := range sizes {
			if !bytes.Equal(y.got[i], bytes.Repeat([]byte{byte(i)}, n)) {
				t.Errorf("payload %d has other bytes", i)
			}
		}
		want := 3
		y.mu.Lock()
		if py.asked != 3 {
			t.Errorf("asked %d times for 3 large payloads", py.asked)
		}
		y.mu.Unlock()
		if refuse {
			want = 0
		} else { // one more, of which the end is missing
			b := transport.GetBatch()
			h := wire.Header{Seq: 6, Len: 400 << 10}
			h.Put(b.Frame(nil))
			x.send(t, b)
			want = 4
		}
		x.link.Close()
		y.wantClosed(t)
		if y.count() != len(sizes) || py.freed.Load() != int64(want) || py.used != min(want, 3) {
			t.Errorf("refuse %v: %d frames, %d in their places, %d places given back", refuse, y.count(), py.used, py.freed.Load())
		}
	}
}
