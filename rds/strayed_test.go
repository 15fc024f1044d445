package rds

import (
	"bytes"
	"fmt"
	"math/rand"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/wire"
)

// TestStrayed: a large datagram is read into memory of the socket that has its port, which is closed
// in the middle of it. Who has the port by then gets it whole, once and in its place, and nothing of
// that memory, which is given back at once. With nobody there it has failed.
func TestStrayed(t *testing.T) {
	const n = 60 << 10
	for _, heir := range []string{"queue", "memory", "nobody"} {
		for _, count := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s, %d datagrams", heir, count), func(t *testing.T) {
				w := newPair(t)
				a, old := bindBox(t, w.a, 5000, 1<<20, SocketOptions{}), bindBox(t, w.b, 4000, 1<<20, SocketOptions{})
				d := mustOpen(t, a.s, old.s.Addr(), nil)
				post := func(tag uint64, train wire.Train) {
					t.Helper()
					if err := a.s.Post(w.now, d, train, 0, tag, Reported, nil); err != nil {
						t.Fatal(err)
					}
				}
				post(0, uniform("first"))
				w.run()
				p := old.got[0].lane
				mem := make([]byte, n)
				var heirs *box
				var queue *Socket
				w.link[p].fr.Place = func(raw []byte, n int) *buf.Buf {
					w.link[p].fr.Place = nil
					old.reserve = buf.Foreign(mem[:n], old, 1)
					b := w.b.Buffer(p, p.Attempt(), raw, n)
					if b != old.reserve {
						t.Fatal("it is not read into the memory of its socket")
					}
					old.s.Close(w.now)
					switch heir {
					case "queue":
						queue, _ = w.b.Bind(4000, SocketOptions{})
					case "memory":
						heirs = bindBox(t, w.b, 4000, 1<<20, SocketOptions{})
					}
					return b
				}
				body := make([]byte, n)
				rand.New(rand.NewSource(1)).Read(body)
				post(1, wire.Train{Body: body, Count: count})
				post(uint64(1+count), uniform("last"))
				w.run()
				clear(mem) // whatever becomes of it
				w.advance(50 * time.Millisecond)
				if old.freed != 1 {
					t.Errorf("its memory was given back %d times", old.freed)
				}
				var got [][]byte
				switch heir {
				case "queue":
					for d, ok := queue.Queue().Recv(); ok; d, ok = queue.Queue().Recv() {
						got = append(got, bytes.Clone(d.Payload))
						d.Release()
					}
				case "memory":
					for _, s := range heirs.read(w.now, len(heirs.got)) {
						got = append(got, []byte(s))
					}
				}
				outcome, c := conn.Delivered, w.b.Counters()
				if heir == "nobody" {
					outcome = conn.Failed
					if len(got) != 0 || c.RefuseNoPort == 0 {
						t.Errorf("%d came, %d were refused for want of a port", len(got), c.RefuseNoPort)
					}
				} else if all := append(bytes.Clone(body), "last"...); len(got) != count+1 || !bytes.Equal(bytes.Join(got, nil), all) {
					t.Errorf("%d datagrams came, or others than were sent", len(got))
				} else if c.RefuseNoRoom == 0 || w.b.cmap.Len() != 0 || w.a.Known(w.b.Local()).Conn().Held() != 0 {
					t.Errorf("%d refused, %d ports congested, %d held", c.RefuseNoRoom, w.b.cmap.Len(), w.a.Known(w.b.Local()).Conn().Held())
				}
				want(t, "outcomes", a.take(), []string{"0: 0+1 delivered", fmt.Sprintf("0: 1+%d %v", count, outcome), fmt.Sprintf("0: %d+1 %v", count+1, outcome)})
			})
		}
	}
}

// TestStrayedOfAKernel: a kernel, and a peer of which nobody knows what it is, cannot be refused
// anything, and sends nothing again. What of them has strayed is dropped, be it offered in a read or after a pause, and the
// link goes on.
func TestStrayedOfAKernel(t *testing.T) {
	cfg := DefaultConfig()
	e := NewEngine(&cfg, netip.MustParseAddr("10.0.0.1"), rand.New(rand.NewSource(1)))
	pe, err := e.Peer(netip.MustParseAddr("10.0.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	old := bindBox(t, e, 4000, 1<<10, SocketOptions{}) // too little
	b := buf.Foreign(make([]byte, 8<<10), old, 1)
	offer := func() conn.Verdict {
		return pe.Deliver(conn.Arrival{Seq: 1, SPort: 9, DPort: 4000, Train: wire.One(b.B), Buf: b})
	}
	if v := offer(); v != conn.NoRoom {
		t.Fatalf("with its socket full: %v", v)
	}
	old.size = 1 << 20
	if v := offer(); v != conn.Placed || old.got[0].buf != b {
		t.Fatalf("in its own memory: %v", v)
	}
	old.s.Close(time.Second)
	if v := offer(); v != conn.NoPort {
		t.Errorf("with nobody there: %v", v)
	}
	s, err := e.Bind(4000, SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if v := offer(); v != conn.NoPort || s.Info().RecvN != 0 || s.congested {
		t.Errorf("with a queue there: %v", v)
	}
	s.Close(time.Second)
	heir := bindBox(t, e, 4000, 1<<20, SocketOptions{})
	if v := offer(); v != conn.NoPort || len(heir.got) != 0 {
		t.Errorf("with another's memory there: %v", v)
	}
	if b.Release(); old.freed != 1 {
		t.Errorf("given back %d times", old.freed)
	}
}
