package conn

import (
	"maps"
	"math/rand"
	"testing"
	"unsafe"
)

// TestQueueFlows: whatever is pushed, put back, taken out and popped, each flow
// stays in order, nothing is lost or doubled, and the counts are right.
func TestQueueFlows(t *testing.T) {
	for seed := range int64(50) {
		rng := rand.New(rand.NewSource(seed))
		var q queue
		next := map[uint16]uint64{} // to be pushed
		want := map[uint16]uint64{} // to be popped
		gone := map[*Msg]bool{}
		n, bytes := 0, 0
		var back list
		for step := range 2000 {
			if step%3 == 0 {
				if q.trim(); (q.lists == nil) != (q.n == 0) {
					t.Fatalf("seed %d: %d datagrams, and lists %v", seed, q.n, q.lists)
				}
			}
			switch rng.Intn(10) {
			case 0: // the last popped go back
				q.front(&back)
			case 1:
				q.each(func(m *Msg) bool {
					if rng.Intn(8) == 0 && !gone[m] {
						gone[m] = true
						n, bytes = n-1, bytes-len(m.Payload)
						return true
					}
					return false
				})
			case 2, 3, 4, 5:
				m := &Msg{SPort: uint16(rng.Intn(12)), DPort: 7, Payload: make([]byte, rng.Intn(3)*40_000)}
				m.Tag = next[m.SPort]
				next[m.SPort]++
				q.push(m)
				n, bytes = n+1, bytes+len(m.Payload)
			default:
				m := q.head()
				if m == nil {
					if n != 0 {
						t.Fatalf("seed %d: empty with %d to come", seed, n-back.n)
					}
					continue
				}
				if k := q.pop(); k != m {
					t.Fatalf("seed %d: pop is not head", seed)
				}
				if rng.Intn(4) == 0 && back.n == 0 {
					back.push(m) // it will go back before anything else is popped of it
					q.front(&back)
					continue
				}
				if m.Tag < want[m.SPort] {
					t.Fatalf("seed %d: flow %d: number %d behind %d", seed, m.SPort, m.Tag, want[m.SPort]-1)
				}
				want[m.SPort] = m.Tag + 1
				n, bytes = n-1, bytes-len(m.Payload)
			}
			if q.n != n || q.bytes != bytes || (q.head() == nil) != (n == 0) {
				t.Fatalf("seed %d: %d datagrams of %d bytes, counted %d, %d", seed, n, bytes, q.n, q.bytes)
			}
		}
		var all list
		q.moveTo(&all)
		if all.n != n || q.head() != nil {
			t.Fatalf("seed %d: %d moved of %d", seed, all.n, n)
		}
	}
}

// TestQueueTurns: a flow with megabytes before it does not hold up a small one.
func TestQueueTurns(t *testing.T) {
	var q queue
	for range 100 {
		q.push(&Msg{SPort: 1, DPort: 9, Payload: make([]byte, 32<<10)})
	}
	q.push(&Msg{SPort: 2, DPort: 9, Payload: make([]byte, 64)})
	for before := 0; ; before += len(q.pop().Payload) {
		if q.head().SPort == 2 {
			if before > quantum {
				t.Errorf("%d bytes of another flow went before it", before)
			}
			return
		}
	}
}

// TestQueueEach: all messages of all flows are seen, each once, and none of them is lost by it.
func TestQueueEach(t *testing.T) {
	var q queue
	want := map[*Msg]int{}
	for flow := range uint16(40) {
		for range 3 {
			m := &Msg{SPort: flow, DPort: 9}
			q.push(m)
			want[m] = 1
		}
	}
	got := map[*Msg]int{}
	q.each(func(m *Msg) bool { got[m]++; return false })
	if !maps.Equal(got, want) || q.n != len(want) {
		t.Errorf("%d of %d were seen, %d are left", len(got), len(want), q.n)
	}
}

// TestMsgSize: a message is two cache lines. Those in flight are what the cache is
// full of; with 152 bytes a datagram took a tenth more time.
func TestMsgSize(t *testing.T) {
	if n := unsafe.Sizeof(Msg{}); n != 128 {
		t.Errorf("%d bytes", n)
	}
}

// TestLaneSize: with the 8 bytes that Go puts before it a lane fits into 768, which Go has a size for; the
// next is 896. Of an idle peer it is the second largest part.
func TestLaneSize(t *testing.T) {
	if n := unsafe.Sizeof(Lane{}); n > 768-8 {
		t.Errorf("%d bytes", n)
	}
}
