package rdsd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/rdsd/rdsd/rdserr"
)

// countedPool counts the buffers that come back.
type countedPool struct{ back int }

func (p *countedPool) Get(n int) *[]byte { b := make([]byte, n); return &b }
func (p *countedPool) Put(*[]byte)       { p.back++ }

// arrived is a batch of n datagrams from a source, numbered from first on.
func arrived(p *countedPool, src netip.AddrPort, first, n int, lent bool) *inBatch {
	b := &inBatch{left: n, sources: []netip.AddrPort{src}}
	for i := range n {
		text := fmt.Sprint(first+i, ",")
		b.payload = append(b.payload, text...)
		b.lengths = binary.AppendUvarint(b.lengths, uint64(len(text)))
	}
	if lent {
		raw := make([]byte, 4096) // what is smaller is not the pool's
		copy(raw, b.payload)
		b.payload = raw[:len(b.payload)]
		b.mem = mem.NewBuffer(&raw, p)
	}
	return b
}

// TestReceivedAgainstAModel: whatever comes and however it is read, each datagram is handed
// out once, in order; credit goes back for exactly what was read; what is lent goes back to
// its pool once, when nobody reads it any more, and what is kept never does.
func TestReceivedAgainstAModel(t *testing.T) {
	rnd := rand.New(rand.NewSource(8))
	for round := range 200 {
		pool := &countedPool{}
		q := &recvQueue{}
		cfg := bindConfig{windowDatagrams: 1 + rnd.Intn(50), windowBytes: 1 + rnd.Intn(500)}
		q.init(cfg)
		s := &stream{Socket: &Socket{}}
		var in []*inBatch
		lentOut := map[*inBatch]int{} // leases
		kept := map[*inBatch]bool{}   // somebody may keep a part of it
		var leases []Lease
		of := map[Lease][]*inBatch{}
		sent, read, bytesIn, bytesRead, credit, creditBytes := 0, 0, 0, 0, 0, 0
		check := func() {
			t.Helper()
			if q.n != sent-read || q.bytes != bytesIn-bytesRead || credit+q.owedN != read || creditBytes+q.owedB != bytesRead {
				t.Fatalf("round %d: %d unread with %d bytes, credit for %d and %d owed; sent %d, read %d", round, q.n, q.bytes, credit, q.owedN, sent, read)
			}
			if 2*q.owedN >= q.windowN || 2*q.owedB >= q.windowB {
				if q.owedN+q.owedB > 0 {
					t.Fatalf("round %d: %d and %d are owed of a window of %d and %d", round, q.owedN, q.owedB, q.windowN, q.windowB)
				}
			}
			free := 0
			for _, b := range in {
				if b.left == 0 && lentOut[b] == 0 && !kept[b] {
					free++
				}
			}
			if pool.back != free {
				t.Fatalf("round %d: %d messages went back, %d are free", round, pool.back, free)
			}
		}
		for range 120 {
			switch rnd.Intn(4) {
			case 0:
				n := 1 + rnd.Intn(6)
				b := arrived(pool, peerAddr, sent, n, rnd.Intn(2) == 0)
				if b.mem == nil {
					kept[b] = true
				}
				in = append(in, b)
				sent, bytesIn = sent+n, bytesIn+len(b.payload)
				q.deliver(b, s)
			case 1, 2:
				how := place(rnd.Intn(4))
				var touched []*inBatch
				into := make([]Datagram, 1+rnd.Intn(8))
				if how == givenOnly {
					into = into[:1]
				}
				mine := make([][]byte, len(into)) // memory of the caller's
				for i := range into {
					if how == givenOnly || rnd.Intn(2) == 0 {
						mine[i] = make([]byte, 16)
						into[i] = Datagram{Payload: mine[i][:rnd.Intn(16)], Tag: 7}
					}
				}
				left := min(len(into), sent-read)
				for _, b := range in { // what this read will take from
					if b.left > 0 && left > 0 {
						touched = append(touched, b)
						left -= min(left, b.left)
					}
				}
				was := map[*inBatch]bool{}
				for _, b := range touched {
					was[b] = b.mem != nil
				}
				got, l, due, err := q.take(into, how)
				if err != nil || got != min(len(into), sent-read) {
					t.Fatalf("round %d: %d of %d, %v", round, got, sent-read, err)
				}
				for i, d := range into[:got] {
					if want := fmt.Sprint(read, ","); string(d.Payload) != want || d.Addr != peerAddr || d.Tag != 0 || d.lent != (how == inPlace) {
						t.Fatalf("round %d: %q, want %q", round, d.Payload, want)
					}
					if there := mine[i] != nil && len(d.Payload) > 0 && &d.Payload[0] == &mine[i][0]; there != (mine[i] != nil && (how == givenMemory || how == givenOnly)) {
						t.Fatalf("round %d: in the caller's memory: %v, as %v", round, there, how)
					}
					read, bytesRead = read+1, bytesRead+len(d.Payload)
				}
				if due {
					n, size := q.credit()
					credit, creditBytes = credit+n, creditBytes+size
				}
				for _, b := range touched {
					switch {
					case how == ownMemory:
						kept[b] = true
					case how == inPlace && was[b]:
						lentOut[b]++
						of[l] = append(of[l], b)
					}
				}
				if l != (Lease{}) {
					leases = append(leases, l)
				} else if len(of[l]) > 0 {
					t.Fatalf("round %d: lent without a lease", round)
				}
			default:
				if len(leases) == 0 {
					continue
				}
				i := rnd.Intn(len(leases))
				l := leases[i]
				leases = append(leases[:i], leases[i+1:]...)
				l.Release()
				for _, b := range of[l] {
					lentOut[b]--
				}
				delete(of, l)
				l.Release() // no error
			}
			check()
		}
		for _, l := range leases {
			l.Release()
			for _, b := range of[l] {
				lentOut[b]--
			}
		}
		check()
		unread := sent - read
		over := error(rdserr.With(rdserr.ErrShutdown, "gone"))
		if round%2 == 0 {
			over = rdserr.ErrClosed
		}
		q.finish(over)
		q.deliver(arrived(pool, peerAddr, sent, 1, false), s) // too late
		into := make([]Datagram, 1000)
		got, _, _, err := q.take(into, ownMemory)
		if want := map[bool]int{true: 0, false: unread}[round%2 == 0]; got != want || got == 0 && err != over {
			t.Fatalf("round %d: %d datagrams at the end, %v; want %d", round, got, err, want)
		}
		if got, _, _, err := q.take(into, inPlace); got != 0 || err != over {
			t.Fatalf("round %d: %d datagrams after the end, %v", round, got, err)
		}
	}
}

// TestRequestsTakeTheirAnswers: of a batch the datagrams that requests wait for go to them,
// one to each, the first that waits first; the others stay in order. At a reply port they
// are dropped, and credit goes back for both.
func TestRequestsTakeTheirAnswers(t *testing.T) {
	wait := func(q *recvQueue, from netip.AddrPort) *requestWaiter {
		w := &requestWaiter{from: from, reply: make(chan Datagram, 1), failed: make(chan struct{})}
		q.addWaiter(w)
		return w
	}
	for _, replies := range []bool{false, true} {
		q := &recvQueue{}
		q.init(bindConfig{windowDatagrams: 1000, windowBytes: 1 << 20, replies: replies})
		s := &stream{Socket: &Socket{}}
		first, second, third, gone := wait(q, peerAddr), wait(q, peerAddr), wait(q, otherAddr), wait(q, peerAddr)
		q.removeWaiter(gone)
		q.removeWaiter(gone)
		b := &inBatch{payload: []byte("abcde"), lengths: []byte{1, 1, 1, 1, 1}, left: 5, sources: []netip.AddrPort{peerAddr, otherAddr, localAddr}, index: []byte{2, 0, 2, 0, 0}}
		q.deliver(b, s)
		if d := <-first.reply; string(d.Payload) != "b" || d.Addr != peerAddr {
			t.Errorf("the first: %q from %v", d.Payload, d.Addr)
		}
		if d := <-second.reply; string(d.Payload) != "d" || d.Addr != peerAddr {
			t.Errorf("the second: %q from %v", d.Payload, d.Addr)
		}
		if third.decided() || gone.decided() || len(q.waiters.list) != 1 {
			t.Errorf("decided: %v, %v; %d wait", third.decided(), gone.decided(), len(q.waiters.list))
		}
		into := make([]Datagram, 9)
		got, _, _, _ := q.take(into, ownMemory)
		text := ""
		for _, d := range into[:got] {
			text += string(d.Payload)
		}
		if want := map[bool]string{false: "ace", true: ""}[replies]; text != want || q.n != 0 || q.bytes != 0 || q.owedN != 5 || q.owedB != 5 {
			t.Errorf("replies %v: %q is left, want %q; %d unread, %d owed", replies, text, want, q.n, q.owedN)
		}
		q.deliver(arrived(nil, localAddr, 0, 3, false), s) // of nobody who is waited for
		if want := map[bool]int{false: 3, true: 0}[replies]; q.n != want {
			t.Errorf("replies %v: %d are left of a batch that nobody waits for", replies, q.n)
		}
		over := errors.New("over")
		q.finish(over)
		late := wait(q, peerAddr)
		for _, w := range []*requestWaiter{third, late} {
			select {
			case <-w.failed:
			default:
				t.Fatal("a request waits after the end")
			}
			if w.err != over || !w.decided() {
				t.Errorf("ended with %v", w.err)
			}
		}
	}
}
