package conn

import "testing"

// Pages show everything once, each no more than it may, also when what was shown last
// has left meanwhile: what stood before it has left too.
func TestPageQueued(t *testing.T) {
	for _, leaves := range []int{0, 1, 40, 64} {
		w := newWorld(t, "10.0.0.1", "10.0.0.2", nil)
		const n, page = 1000, 64
		for i := range n {
			w.send(5000, uint16(4000+i%3), i, false)
		}
		seen := make([]int, n)
		var at Cursor
		gone, pages := 0, 0
		for more := true; more; pages++ {
			shown := 0
			more = w.c.PageQueued(&at, NotSent, page, func(m *Msg, bytes, lane int, sent bool) bool {
				if seen[bytes]++; seen[bytes] > 1 || sent {
					t.Fatalf("datagram %d is shown %d times, sent %v", bytes, seen[bytes], sent)
				}
				shown++
				return true
			})
			if shown > page {
				t.Fatalf("a page of %d", shown)
			}
			for k := 0; k < leaves && w.c.pending.head != nil && seen[len(w.c.pending.head.Payload)] == 1; k++ {
				m := w.c.pending.pop()
				m.where = nowhere
				w.c.completed(m, Cancelled, WhyApp)
				gone++
			}
		}
		for i, k := range seen {
			if k != 1 {
				t.Errorf("%d leave after each page: datagram %d was shown %d times", leaves, i, k)
			}
		}
		if leaves > 0 && gone == 0 || pages < n/page {
			t.Errorf("%d pages, %d left", pages, gone)
		}
		if w.c.PageQueued(&Cursor{}, Sent, page, func(*Msg, int, int, bool) bool { t.Error("nothing was sent"); return true }) {
			t.Error("there is more of nothing")
		}
	}
}
