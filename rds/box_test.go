package rds

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/wire"
)

// box is a client's memory for tests: a receive area of so many bytes, and a
// record of everything it was told.
type box struct {
	t       testing.TB
	s       *Socket
	size    int // bytes of room
	used    int
	got     []boxed
	done    []string
	changes []string
	drained int
	spent   []string
	lacks   bool // Place lacks memory of the node
	wanted  []bool
	reserve *buf.Buf
	asked   int // Reserve
	freed   int // Free
	calls   int // of the client's own, that wait: Felt
	felt    int // how often Felt was called
	paired  map[netip.AddrPort]PairedUnread
}

type boxed struct {
	src   netip.AddrPort
	train wire.Train
	lane  *conn.Lane
	seq   uint64
	cost  int
	buf   *buf.Buf
}

const slot = 32 // what a message costs a box beyond its bytes

func (b *box) Place(from *Peer, a conn.Arrival) (int, bool) {
	t := a.Train
	cost := len(t.Body) + slot
	if b.lacks {
		return 0, false
	}
	if b.used+cost > b.size {
		return 0, false
	}
	b.used += cost
	t.Body = bytes.Clone(t.Body)
	b.got = append(b.got, boxed{from.AddrPort(a.SPort), t, a.Lane, a.Seq, cost, a.Buf})
	return cost, true
}

func (b *box) Felt(*Dest) (uint64, int) {
	b.felt++
	return 0, b.calls
}

func (b *box) Done(d Decided) {
	b.done = append(b.done, fmt.Sprintf("%d: %d+%d %v", d.Cookie, d.Tag, d.Count, d.Outcome))
}

func (b *box) Spent(cookie uint32, count int) {
	b.spent = append(b.spent, fmt.Sprintf("%d: %d", cookie, count))
}

func (b *box) Lacked() bool { return b.lacks }

func (b *box) Drained() { b.drained++ }

func (b *box) WantRoom(on bool) { b.wanted = append(b.wanted, on) }

func (b *box) Changed(d *Dest, on bool) {
	b.changes = append(b.changes, fmt.Sprintf("%v %v %v", d.Data, on, d.Congested()))
}

func (b *box) Each(f func(src netip.AddrPort, bytes int) bool) {
	for _, g := range b.got {
		for c := g.train.Cut(); ; {
			p, ok := c.Next()
			if !ok {
				break
			}
			if !f(g.src, len(p)) {
				return
			}
		}
	}
}

func (b *box) EachPaired(f func(netip.AddrPort, PairedUnread)) {
	for src, u := range b.paired {
		f(src, u)
	}
}

func (b *box) Reserve(n int) *buf.Buf {
	b.asked++
	return b.reserve
}

// Free implements buf.Owner.
func (b *box) Free(*buf.Buf) { b.freed++ }

// read takes the first n messages and frees them.
func (b *box) read(now time.Duration, n int) (payloads []string) {
	for _, g := range b.got[:n] {
		for c := g.train.Cut(); ; {
			p, ok := c.Next()
			if !ok {
				break
			}
			payloads = append(payloads, string(p))
		}
		b.used -= g.cost
		b.s.Freed(g.train.PayloadBytes(), g.cost, g.train.Count)
	}
	b.got = b.got[n:]
	b.s.ReadAll(now)
	return payloads
}

// take returns and forgets what Done said.
func (b *box) take() []string {
	d := b.done
	b.done = nil
	return d
}

func bindBox(t testing.TB, e *Engine, port uint16, size int, o SocketOptions) *box {
	t.Helper()
	b := &box{t: t, size: size}
	o.Sink = b
	s, err := e.Bind(port, o)
	if err != nil {
		t.Fatal(err)
	}
	b.s = s
	return b
}

func mustOpen(t testing.TB, s *Socket, dst netip.AddrPort, data any) *Dest {
	t.Helper()
	d, err := s.Open(dst, data)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func uniform(words ...string) wire.Train {
	var t wire.Train
	for _, w := range words {
		t.Body = append(t.Body, w...)
		t.Count++
	}
	return t
}

func tabled(words ...string) wire.Train {
	t := wire.Train{Count: len(words), Table: true}
	for _, w := range words {
		t.Body = binary.BigEndian.AppendUint32(t.Body, uint32(len(w)))
	}
	for _, w := range words {
		t.Body = append(t.Body, w...)
	}
	return t
}

func want(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: %q, want %q", what, got, want)
	}
}

// newMixedPair makes a pair whose second node takes no trains when mixed is true.
func newMixedPair(t *testing.T, mixed bool) *pair {
	w := newPair(t)
	w.b.cfg.Conn.Trains = !mixed
	return w
}
