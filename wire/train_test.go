package wire

import (
	"bytes"
	"encoding/binary"
	"math/rand"
	"testing"
)

// reverse returns t, which has a table in the order of a frame, with the table turned round.
func reverse(t Train) Train {
	n := t.Count * TableEntry
	body := bytes.Clone(t.Body)
	for i := 0; i < n; i += TableEntry {
		copy(body[n-TableEntry-i:][:TableEntry], t.Body[i:])
	}
	return Train{Body: body, Count: t.Count, Table: true, Reversed: true}
}

func cut(t Train) (ps [][]byte) {
	for c := t.Cut(); c.Left() > 0; {
		n := c.Peek()
		p, ok := c.Next()
		if !ok || len(p) != n {
			panic("Peek and Next differ")
		}
		ps = append(ps, p)
	}
	return ps
}

// TestReversedTrain holds that a train with a reversed table has the datagrams of the one that a
// frame has, whatever its table says, and that PutBody and PutTable make it that one.
func TestReversedTrain(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	for range 1000 {
		n := 1 + rng.Intn(20)
		forward := Train{Count: n, Table: true}
		for range n {
			size := uint32(rng.Intn(9))
			if rng.Intn(10) == 0 {
				size = rng.Uint32()
			}
			forward.Body = binary.BigEndian.AppendUint32(forward.Body, size)
		}
		payload := make([]byte, rng.Intn(5*n))
		rng.Read(payload)
		forward.Body = append(forward.Body, payload...)
		back := reverse(forward)
		got, want := cut(back), cut(forward)
		if len(got) != n || len(want) != n {
			t.Fatalf("%d and %d datagrams of %d", len(got), len(want), n)
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("datagram %d of %x reversed is %x, want %x", i, back.Body, got[i], want[i])
			}
		}
		for _, in := range []Train{forward, back} {
			body, table := make([]byte, len(in.Body)), make([]byte, n*TableEntry)
			in.PutBody(body)
			in.PutTable(table)
			if !bytes.Equal(body, forward.Body) || !bytes.HasPrefix(forward.Body, table) {
				t.Fatalf("%x reversed %v in a frame: %x, the table %x, want %x", in.Body, in.Reversed, body, table, forward.Body)
			}
			if in.Ext() != forward.Ext() || in.PayloadBytes() != len(payload) {
				t.Fatalf("reversed %v: other words of the header, or %d bytes of payload", in.Reversed, in.PayloadBytes())
			}
		}
	}
}

// TestTrainCount: what a message says of itself without its body, and never none.
func TestTrainCount(t *testing.T) {
	for _, c := range []struct {
		ext  []byte
		want int
	}{{nil, 1}, {[]byte{ExtTrain, 0, 7}, 7}, {[]byte{ExtTrain, 1, 0}, min(256, MaxTrain)}, {[]byte{ExtTrain}, 1}, {[]byte{ExtTrain, 0xff, 0xff}, MaxTrain}, {[]byte{ExtTrain + 1, 0, 7}, 1}} {
		var e [ExtLen]byte
		copy(e[:], c.ext)
		if got := TrainCount(&e); got != c.want {
			t.Errorf("%x: %d, want %d", c.ext, got, c.want)
		}
	}
}
