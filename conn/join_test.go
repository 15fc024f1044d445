package conn

import (
	"slices"
	"testing"
	"time"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// joinedOf is what Fill makes of messages of one flow with these lengths, of each of which there
// may be several: the payload and the datagrams of each frame.
func joinedOf(t *testing.T, credits int, messages ...[2]int) (frames [][2]int) {
	w, p := rdsdPair(t)
	w.cfg.Trains, w.c.trains, p.credits = true, true, credits
	w.hold = true
	var want []byte // of the payloads, one behind the other
	n := 0
	for i, x := range messages {
		body := make([]byte, x[0]*x[1])
		for k := range body {
			body[k] = byte(i + k/max(x[0], 1))
		}
		m := &Msg{Owner: w.sender(4000), Payload: body, Tag: uint64(n) + 1, SPort: 5000, DPort: 4000, Bytes: uint32(len(body)), Cell: new(uint64), At: w.now - time.Duration(i+1)*time.Millisecond}
		if x[1] > 1 {
			m.Count = uint16(x[1])
		}
		want, n = append(want, body...), n+x[1]
		w.c.Enqueue(w.now, m, nil)
	}
	var got []byte
	var lengths []int
	together := uint64(0) // datagrams that were joined
	var waits time.Duration
	left := uint64(0) // messages that have left
	for {
		b := transport.GetBatch()
		if !p.Fill(w.now, b) {
			b.Put()
			break
		}
		for _, f := range framesOf(t, b) {
			var h wire.Header
			h.Parse(f.Raw)
			tr, err := wire.ParseTrain(&h.Ext, f.Payload)
			if err != nil || !wire.ChecksumOK(f.Raw) {
				t.Fatalf("a frame of %d bytes: %v", len(f.Payload), err)
			}
			frames = append(frames, [2]int{len(f.Payload), tr.Count})
			for c := tr.Cut(); c.Left() > 0; {
				d, _ := c.Next()
				got, lengths = append(got, d...), append(lengths, len(d))
			}
		}
		b.Put()
		// Each knows where in its frame it is.
		total, at := map[uint64]int{}, map[uint64]int{}
		for m := p.inwrite.head; m != nil; m = m.next {
			total[m.seq] += m.Datagrams()
		}
		for m := p.inwrite.head; m != nil; m = m.next {
			if total[m.seq] != m.Datagrams() {
				together += uint64(m.Datagrams())
			}
			waits += w.now - m.At
			left++
		}
		for m := p.inwrite.head; m != nil; m = m.next {
			if before, of := p.c.Among(m); of == 0 && total[m.seq] != m.Datagrams() || of != 0 && (of != total[m.seq] || before != at[m.seq]) {
				t.Errorf("message %d has %d of %d before it in its frame, and says %d of %d", m.Tag, at[m.seq], total[m.seq], before, of)
			}
			at[m.seq] += m.Datagrams()
		}
		p.Wrote(w.now)
	}
	w.com.Actions = nil
	if w.c.ctr.SendJoined != together {
		t.Errorf("%v: %d datagrams are counted as joined, %d were", messages, w.c.ctr.SendJoined, together)
	}
	if q := &w.com.QueueNs; q.Sum != waits || q.Count != left {
		t.Errorf("%v: %d have waited for %v, counted are %d and %v", messages, left, waits, q.Count, q.Sum)
	}
	var sent []int
	for _, x := range messages {
		for range x[1] {
			sent = append(sent, x[0])
		}
	}
	if len(lengths) > len(sent) || !slices.Equal(lengths, sent[:len(lengths)]) || !slices.Equal(got, want[:len(got)]) {
		t.Errorf("%v: other datagrams leave than were sent, or in another order", messages)
	}
	return frames
}

func repeat(n int, x [2]int) (l [][2]int) {
	for range n {
		l = append(l, x)
	}
	return l
}

// A frame has at most 4096 datagrams and 64 KiB, its table included, and costs no more credits than
// there are; only what is copied anyway is joined.
func TestJoinLimits(t *testing.T) {
	for what, c := range map[string]struct {
		credits  int
		messages [][2]int
		want     [][2]int
	}{
		"datagrams, 0 B":             {100, repeat(4097, [2]int{0, 1}), [][2]int{{0, 4096}, {0, 1}}},
		"datagrams, trains":          {100, [][2]int{{0, 4000}, {0, 96}, {0, 2}}, [][2]int{{0, 4096}, {0, 2}}},
		"a whole train":              {100, [][2]int{{0, 4096}, {0, 1}}, [][2]int{{0, 4096}, {0, 1}}},
		"bytes, one length":          {100, repeat(33, [2]int{2048, 1}), [][2]int{{64 << 10, 32}, {2048, 1}}},
		"bytes, with the table":      {100, append([][2]int{{1020, 1}}, repeat(64, [2]int{1020 + 4, 1})...), [][2]int{{1020 + 62*1024 + 63*4, 63}, {2048, 2}}},
		"the table alone is too far": {100, append(repeat(64, [2]int{1024, 1}), [2]int{0, 1}), [][2]int{{64 << 10, 64}, {0, 1}}},
		"one credit":                 {1, repeat(9, [2]int{2048, 1}), [][2]int{{16 << 10, 8}}},
		"two credits":                {2, repeat(9, [2]int{2048, 1}), [][2]int{{9 * 2048, 9}}},
		"two credits, two frames":    {2, [][2]int{{2048, 1}, {2049, 1}, {1, 1}}, [][2]int{{2048, 1}, {2049, 1}}},
		"too large":                  {100, [][2]int{{2048, 1}, {2049, 1}, {2048, 1}, {2048, 1}}, [][2]int{{2048, 1}, {2049, 1}, {4096, 2}}},
		"a train that is too large":  {100, [][2]int{{8, 1}, {2048, 2}, {8, 1}}, [][2]int{{8, 1}, {4096, 2}, {8, 1}}},
		"a length that comes back":   {100, [][2]int{{8, 1}, {8, 1}, {7, 3}, {8, 1}}, [][2]int{{45 + 24, 6}}},
	} {
		if got := joinedOf(t, c.credits, c.messages...); !slices.Equal(got, c.want) {
			t.Errorf("%s: frames of (bytes, datagrams) %v, want %v", what, got, c.want)
		}
	}
}

// TestJoins: each of what keeps messages apart.
func TestJoins(t *testing.T) {
	w, _ := rdsdPair(t)
	for what, change := range map[string]func(m *Msg){
		"nothing":                     func(*Msg) {},
		"another source":              func(m *Msg) { m.SPort++ },
		"another destination":         func(m *Msg) { m.DPort++ },
		"another sender":              func(m *Msg) { m.Owner = w.sender(4001) },
		"it is a ping":                func(m *Msg) { m.Kind = MsgPing },
		"it has a table":              func(m *Msg) { m.Table = InOrder },
		"it has a reversed table":     func(m *Msg) { m.Table = Reversed },
		"it was refused among others": func(m *Msg) { m.apart = true },
		"it is of a split train":      func(m *Msg) { m.Count = 1 },
		"its payload is referenced":   func(m *Msg) { m.Payload = make([]byte, transport.InlineBytes+1) },
	} {
		m := &Msg{Owner: w.sender(4000), Payload: make([]byte, transport.InlineBytes), SPort: 5000, DPort: 4000}
		n := *m
		change(&n)
		if got, want := m.joins(&n), what == "nothing"; got != want || n.joins(m) != want {
			t.Errorf("%s: joined %v", what, got)
		}
	}
}

// TestJoinedAgain: what was joined is sent again in one frame, as soon as there is credit for all
// of it, and in none before; what stands behind it follows.
func TestJoinedAgain(t *testing.T) {
	w, p := rdsdPair(t)
	w.cfg.Trains, w.c.trains, w.hold = true, true, true
	for i := range 10 { // nine in one frame, and one behind it
		m := &Msg{Owner: w.sender(4000), Payload: make([]byte, 2048), SPort: 5000, DPort: 4000, Bytes: 2048, Cell: new(uint64), where: inRetrans}
		p.setSeq(m, p.nextSeq)
		if p.retrans.push(m); i >= 8 {
			p.nextSeq++
		}
	}
	frames := func(credits int) (n []int) {
		p.credits = credits
		b := transport.GetBatch()
		defer b.Put()
		p.Fill(w.now, b)
		for _, f := range framesOf(t, b) {
			n = append(n, len(f.Payload))
		}
		w.com.Actions = nil
		return n
	}
	stalls := w.c.ctr.CreditStall
	if got := frames(1); len(got) != 0 || w.c.ctr.CreditStall != stalls+1 || w.c.ctr.Retransmitted != 0 {
		t.Errorf("with too little credit frames of %v leave; %d stalls", got, w.c.ctr.CreditStall-stalls)
	}
	if got := frames(4); !slices.Equal(got, []int{9 * 2048, 2048}) || p.credits != 1 || w.c.ctr.Retransmitted != 2 {
		t.Errorf("with enough credit frames of %v leave, %d credits are left, %d frames were sent again", got, p.credits, w.c.ctr.Retransmitted)
	}
}
