package datagram

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// turnTime returns the processor time, in nanoseconds, of a turn of a reactor that sends one datagram of
// 64 bytes over a link that takes it at once, by the short way and by the ordinary one: the least of some runs, which other
// work on the machine does not lengthen.
func turnTime(t *testing.T) (lone, ordinary int64) {
	const turns, runs = 100, 200
	s := newSeam(t, nil)
	k := s.bind(rds.SocketOptions{})
	l := s.rdsd(k)
	w, dst, payload := s.a.workers[0], netip.AddrPortFrom(seamHigher, 9), make([]byte, 64)
	run := func(offer bool) int64 {
		over := make(chan int64)
		var begun int64
		n := 0
		var turn func()
		turn = func() {
			switch n++; n {
			case 1:
				begun = threadTime()
			case turns + 1:
				over <- threadTime() - begun
				return
			}
			_, now := s.h.LockAt(w.Now())
			if offer {
				s.h.OfferLone(w)
			}
			if err := k.Send(now, dst, payload, 0, rds.Quiet); err != nil {
				t.Error(err)
			}
			s.h.Unlock()
			w.Defer(turn) // behind the write of this one
		}
		w.thread.Do(turn)
		d := <-over
		l.mu.Lock()
		ack := wire.Header{Ack: l.frames[len(l.frames)-1].Seq, Credit: turns}
		l.frames = l.frames[:0]
		l.mu.Unlock()
		if err := l.bring(t, &transport.Frame{Raw: ack.Append(nil)}); err != nil {
			t.Fatal(err)
		}
		return d / turns
	}
	for i := range runs {
		a, b := run(true), run(false)
		if i == 0 {
			lone, ordinary = a, b
		}
		lone, ordinary = min(lone, a), min(ordinary, b)
	}
	return lone, ordinary
}

// threadTime is what the thread has used of its processor.
func threadTime() int64 {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return ts.Nano()
}
