package rds

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/rdsd/rdsd/wire"
)

// TestReversedTable holds that a train whose table stands reversed, whatever that says, arrives as its
// datagrams: from an rdsd in a frame of which the payload is copied or referenced, split for a kernel, and at
// its own address, where the receiver keeps the table in the order of a frame.
func TestReversedTable(t *testing.T) {
	large := string(bytes.Repeat([]byte("l"), 3000))
	for _, c := range []struct {
		table []uint32
		body  string
		want  []string
	}{
		{[]uint32{2, 0, 3}, "aaccc", []string{"aa", "", "ccc"}},
		{[]uint32{2, 0xffffffff, 9}, "abcd", []string{"ab", "cd", ""}},
		{[]uint32{1, 1}, "pqrs", []string{"p", "q"}},
		{[]uint32{3}, "one", []string{"one"}},
		{[]uint32{1, 3000, 2}, "x" + large + "yy", []string{"x", large, "yy"}},
	} {
		tr := wire.Train{Count: len(c.table), Table: true, Reversed: true}
		for i := range c.table {
			tr.Body = binary.BigEndian.AppendUint32(tr.Body, c.table[len(c.table)-1-i])
		}
		tr.Body = append(tr.Body, c.body...)
		for _, to := range []string{"an rdsd", "a kernel", "its own node", "its own node, a box"} {
			w := newMixedPair(t, to == "a kernel")
			a := bindBox(t, w.a, 5000, 1<<20, SocketOptions{})
			var r *Socket
			var b *box
			switch to {
			case "its own node, a box":
				b = bindBox(t, w.a, 4000, 1<<20, SocketOptions{})
				r = b.s
			case "its own node":
				r, _ = w.a.Bind(4000, SocketOptions{})
			default:
				r, _ = w.b.Bind(4000, SocketOptions{})
			}
			if err := a.s.Post(w.now, mustOpen(t, a.s, r.Addr(), nil), tr, 1, 1, Quiet, nil); err != nil {
				t.Fatal(err)
			}
			w.run()
			var got []string
			if b != nil {
				got = b.read(w.now, len(b.got))
			} else {
				for dg, ok := r.Queue().Recv(); ok; dg, ok = r.Queue().Recv() {
					got = append(got, string(dg.Payload))
					dg.Release()
				}
				r.ReadAll(w.now)
			}
			want(t, "to "+to, got, c.want)
			w.advance(50 * time.Millisecond)
			if i := a.s.Info(); i.SendQueued+i.Undecided != 0 {
				t.Errorf("to %s: %+v is left", to, i)
			}
		}
	}
}
