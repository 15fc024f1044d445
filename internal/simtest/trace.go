package simtest

import (
	"fmt"
	"net/netip"
	"time"
)

// trace is a line of the run's story when somebody reads along. What it costs
// otherwise is one test; arguments are evaluated all the same, so hot places
// ask w.verbose first.
func (w *World) trace(format string, args ...any) {
	if w.verbose != nil {
		w.verbose(fmt.Sprintf("%11.6f ", w.Now().Seconds()) + fmt.Sprintf(format, args...))
	}
}

// number names the datagram in a frame, for the trace.
func (w *World) number(payload []byte) string {
	if r := w.m.peek(payload); r != nil {
		return fmt.Sprintf(" #%d", r.num)
	}
	if len(payload) > signLen { // a train with a table, perhaps
		return " #?"
	}
	return ""
}

// mix adds to the hash that says whether two runs were the same.
func (w *World) mix(v ...uint64) {
	h := w.hash
	for _, x := range v {
		h = (h ^ x) * 0x100000001b3
		h ^= h >> 29
	}
	w.hash = (h ^ uint64(w.Now())) * 0x100000001b3
}

// Violation is a broken invariant, with the seed that shows it.
type Violation struct {
	Seed int64
	At   time.Duration
	Text string
}

func (v *Violation) Error() string {
	return fmt.Sprintf("seed %d at %.6fs: %s", v.Seed, v.At.Seconds(), v.Text)
}

// fail notes a broken invariant; the first one ends the run.
func (w *World) fail(format string, args ...any) {
	if w.bad == nil {
		w.bad = &Violation{w.seed, w.Now(), fmt.Sprintf(format, args...)}
		w.trace("VIOLATION %s", w.bad.Text)
	}
}

func addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
