package datagram

import (
	"net/netip"
	"slices"
	"testing"
	"unsafe"

	"github.com/rdsd/rdsd/rds"
)

// changes are n notices, the first of which is of port from.
func changes(from, n int) (l []rds.Notice) {
	for i := range n {
		l = append(l, rds.Notice{Endpoint: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(from+i))})
	}
	return slices.Clip(l)
}

// TestWatchNobodyReads: what a listener does not take is kept for it up to a bound, whatever the
// lists it comes in. Beyond that it has lost some, which it is told, and nothing is kept but the last.
func TestWatchNobodyReads(t *testing.T) {
	for _, size := range []int{1, 10, 1000, watchMost} {
		w := &Watch{C: make(chan []rds.Notice, 1)}
		list := changes(0, size)
		told := 0
		for range 1000 {
			w.tell(list, false)
			told += size
			kept := <-w.C
			if size := cap(kept) * int(unsafe.Sizeof(rds.Notice{})); size > WatchBytes/2 {
				t.Fatalf("after lists of %d, %d in all, %d bytes are kept, at most %d may be", len(list), told, size, WatchBytes/2)
			}
			if lost := told > watchMost; w.Lost.Load() != lost || !lost && len(kept) != told || lost && len(kept) < size {
				t.Fatalf("of lists of %d, %d in all, %d are kept; lost is %v", size, told, len(kept), w.Lost.Load())
			}
			w.C <- kept // as if nobody had looked
		}
	}
}

// TestWatchesAreToldInOrder: lists that were not taken in time come as one, in their order, and one
// that several listeners are told is not written to by any of them.
func TestWatchesAreToldInOrder(t *testing.T) {
	slow, other := &Watch{C: make(chan []rds.Notice, 1)}, &Watch{C: make(chan []rds.Notice, 1)}
	var want []rds.Notice
	for i := range 100 {
		list := changes(3*i, 3)
		want = append(want, list...)
		for _, w := range []*Watch{slow, other} {
			w.tell(list, false)
		}
		if i%10 == 9 {
			if got := <-other.C; !slices.Equal(got, want[len(want)-30:]) || !slices.Equal(list, changes(3*i, 3)) {
				t.Fatalf("told are %v", got)
			}
		}
	}
	if got := <-slow.C; !slices.Equal(got, want) || slow.Lost.Load() {
		t.Errorf("told are %v, lost is %v", got, slow.Lost.Load())
	}
	slow.tell(nil, true)
	if !slow.Lost.Load() {
		t.Error("that the engine has lost some is not told")
	}
}

// reads is a client that takes all there is as soon as it is woken.
type reads struct{ f func() }

func (r *reads) News() (goroutine bool) {
	r.f()
	return false
}

// TestWatchesHearStepsInOrder: a step whose orders are carried out late does not tell of its changes
// after the next one.
func TestWatchesHearStepsInOrder(t *testing.T) {
	s := newSeam(t, nil)
	w, stop := s.a.WatchCongestion()
	defer stop()
	client := &reads{func() {}}
	k := s.bind(rds.SocketOptions{RcvBufBytes: 4096, Data: client})
	from := s.bind(rds.SocketOptions{})
	client.f = func() { // within the step that made the port congested, the lock let go
		_, now := s.h.Lock()
		k.Events()
		for d, ok := k.Queue().Recv(); ok; d, ok = k.Queue().Recv() {
			d.Release()
		}
		k.ReadAll(now)
		s.h.Unlock()
	}
	_, now := s.h.Lock()
	err := from.Send(now, k.Addr(), make([]byte, 8192), 0, rds.Quiet)
	s.h.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	want := []rds.Notice{{Endpoint: k.Addr(), Local: true, Congested: true}, {Endpoint: k.Addr(), Local: true}}
	if got := <-w.C; !slices.Equal(got, want) {
		t.Errorf("told are %v, want %v", got, want)
	}
}
