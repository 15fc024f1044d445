package transport

import (
	"bytes"
	"errors"
	"math/rand"
	"testing"

	"github.com/rdsd/rdsd/wire"
)

// TestRegionsAgainstAModel: whatever is registered, written, revoked and taken, a key
// leads to its own memory and no other, as long as it holds; what was written is told to
// the byte; and nothing of an old region is found in a new one.
func TestRegionsAgainstAModel(t *testing.T) {
	rnd := rand.New(rand.NewSource(5))
	type one struct {
		key    uint32
		addr   uint64
		mem    []byte
		filled int
		busy   []*region
	}
	for round := range 40 {
		d := NewRegions([32]byte{byte(round)})
		var live, dead []*one
		drop := func(i int) *one {
			o := live[i]
			live = append(live[:i], live[i+1:]...)
			dead = append(dead, o)
			return o
		}
		for step := range 400 {
			if len(live) == 0 || rnd.Intn(3) == 0 {
				o := &one{mem: make([]byte, rnd.Intn(65))}
				if len(dead) > 0 && rnd.Intn(2) == 0 {
					o.addr = dead[rnd.Intn(len(dead))].addr
					o.key = d.RegisterAt(o.mem, o.addr)
				} else if o.key, o.addr = d.Register(o.mem); o.addr&0xfff != 0 || o.addr < 1<<56 || o.addr > 3<<56 {
					t.Fatalf("an address of %#x", o.addr)
				}
				if o.key == 0 {
					t.Fatal("a key of 0")
				}
				live = append(live, o)
				continue
			}
			i := rnd.Intn(len(live))
			o := live[i]
			what := rnd.Intn(6)
			switch what {
			case 0, 1, 2: // a write, of any part or a bit beside it
				off, n := rnd.Intn(66)-1, rnd.Intn(66)
				tag := Tag{Kind: OpWrite, Key: o.key, Addr: o.addr + uint64(off), Len: uint32(n)}
				r, dst, err := d.begin(&tag)
				if good := off >= 0 && off+n <= len(o.mem); good != (err == nil) {
					t.Fatalf("%d bytes at %d of %d: %v", n, off, len(o.mem), err)
				} else if !good {
					if !errors.As(err, new(*AccessError)) {
						t.Fatalf("%v", err)
					}
					continue
				}
				if len(dst) != n || cap(dst) != n || n > 0 && &dst[0] != &o.mem[off] {
					t.Fatalf("%d bytes at %d are %d elsewhere", n, off, len(dst))
				}
				if rnd.Intn(8) == 0 {
					o.busy = append(o.busy, r)
					continue
				}
				r.wrote(&tag)
				if r.end(); off <= o.filled {
					o.filled = max(o.filled, off+n)
				}
			case 3, 4: // revoked, or taken
				filled, how, want := o.filled, Pending, Idle
				if what == 3 {
					how = d.Revoke(o.key)
				} else {
					filled, how = d.Take(o.key)
				}
				if len(o.busy) > 0 {
					want = Busy
				}
				if how != want || filled != o.filled {
					t.Fatalf("step %d: %d filled, %v; want %d, %v", step, filled, how, o.filled, want)
				}
				for _, r := range o.busy {
					if !r.dead.Load() {
						t.Fatal("who writes does not see that the key is gone")
					}
					r.end()
				}
				drop(i)
			case 5: // by the peer
				filled, err := d.invalidate(&Tag{Kind: OpSendInval, Key: o.key})
				if (err == nil) != (len(o.busy) == 0) || err == nil && filled != o.filled {
					t.Fatalf("invalidated: %d filled, %v; want %d, with %d writes under way", filled, err, o.filled, len(o.busy))
				}
				if err == nil {
					drop(i)
				}
			}
			if d.live != len(live) {
				t.Fatalf("%d live, want %d", d.live, len(live))
			}
		}
		for _, o := range dead { // nothing is found by a key that is gone
			if d.find(o.key) != nil {
				t.Fatal("a key that was revoked is found")
			}
			if filled, how := d.Take(o.key); filled != 0 || how != Idle || d.Revoke(o.key) != Idle {
				t.Fatalf("taken again: %d filled, %v", filled, how)
			}
			if _, err := d.invalidate(&Tag{Kind: OpSendInval, Key: o.key}); !errors.As(err, new(*AccessError)) {
				t.Fatalf("invalidated again: %v", err)
			}
		}
		d.Close()
		for _, o := range live {
			if _, _, err := d.begin(&Tag{Kind: OpWrite, Key: o.key, Addr: o.addr}); !errors.As(err, new(*AccessError)) {
				t.Fatalf("a write after Close: %v", err)
			}
			for _, r := range o.busy {
				if !r.dead.Load() {
					t.Fatal("who writes does not see that all is over")
				}
			}
		}
		key, addr := d.Register(make([]byte, 10))
		if _, _, err := d.begin(&Tag{Kind: OpWrite, Key: key, Addr: addr}); err == nil || d.live != 0 || len(d.spare) != 0 {
			t.Fatalf("registered after Close: %v, %d live, %d spare", err, d.live, len(d.spare))
		}
	}
}

// TestAccessErrors: what a peer had no right to is told in full.
func TestAccessErrors(t *testing.T) {
	e := (&Tag{Kind: OpWriteImm, Key: 7, Addr: 9, Len: 11}).denied("why").(*AccessError)
	if *e != (AccessError{Kind: OpWriteImm, Key: 7, Addr: 9, Len: 11, Why: "why"}) {
		t.Errorf("%+v", e)
	}
}

// TestPostLimits: what may be posted, up to each limit exactly; what is refused leaves
// nothing, and what is taken is laid out as its kind has it.
func TestPostLimits(t *testing.T) {
	data := func(n int) []byte { return bytes.Repeat([]byte{'d'}, n) }
	for what, c := range map[string]struct {
		op   Op
		good bool
		want Tag
	}{
		"a write":                {Op{Kind: OpWrite, Key: 1, Addr: 2, Imm: 3, Data: data(4)}, true, Tag{Kind: OpWrite, Key: 1, Addr: 2, Len: 4}},
		"with immediate":         {Op{Kind: OpWriteImm, Key: 1, Addr: 2, Imm: 3}, true, Tag{Kind: OpWriteImm, Key: 1, Addr: 2, Imm: 3}},
		"a send":                 {Op{Kind: OpSend, Key: 1, Addr: 2, Imm: 3}, true, Tag{Kind: OpSend}},
		"a send with immediate":  {Op{Kind: OpSendImm, Key: 1, Addr: 2, Imm: 3}, true, Tag{Kind: OpSendImm, Imm: 3}},
		"one that revokes":       {Op{Kind: OpSendInval, Key: 1, Addr: 2, Imm: 3}, true, Tag{Kind: OpSendInval, Key: 1}},
		"no kind":                {Op{}, false, Tag{}},
		"a kind to come":         {Op{Kind: OpSendInval + 1}, false, Tag{}},
		"the longest tail":       {Op{Kind: OpWrite, Tail: data(MaxTail)}, true, Tag{Kind: OpWrite, Len: MaxTail}},
		"a longer tail":          {Op{Kind: OpWrite, Tail: data(MaxTail + 1)}, false, Tag{}},
		"the longest send":       {Op{Kind: OpSend, Data: data(MaxSend - 5), Tail: data(5)}, true, Tag{Kind: OpSend, Len: MaxSend}},
		"a longer send":          {Op{Kind: OpSend, Data: data(MaxSend - 5), Tail: data(6)}, false, Tag{}},
		"a longer one of a kind": {Op{Kind: OpSendInval, Data: data(MaxSend + 1)}, false, Tag{}},
		"a write of more":        {Op{Kind: OpWrite, Data: data(MaxSend + 1)}, true, Tag{Kind: OpWrite, Len: MaxSend + 1}},
		"data that is copied":    {Op{Kind: OpWrite, Data: data(tagInline), Tail: data(1)}, true, Tag{Kind: OpWrite, Len: tagInline + 1}},
		"data that is not":       {Op{Kind: OpWrite, Data: data(tagInline + 1), Tail: data(1)}, true, Tag{Kind: OpWrite, Len: tagInline + 2}},
	} {
		q := NewTagQueue(9)
		err := q.Post(&c.op)
		if (err == nil) != c.good {
			t.Errorf("%s: %v", what, err)
		}
		if !c.good {
			if q.Ops() != 0 || q.Next() != nil || q.seq != 9 {
				t.Errorf("%s: refused, and %d are queued", what, q.Ops())
			}
			continue
		}
		if q.Ops() != 1 || q.seq != 10 {
			t.Errorf("%s: %d queued, %d is the next", what, q.Ops(), q.seq)
		}
		b := q.Next()
		all := bytes.Join(b.Pieces, nil)
		c.want.Seq = 9
		var h [TagLen]byte
		c.want.Put(h[:])
		if want := append(append(h[:], c.op.Data...), c.op.Tail...); !bytes.Equal(all, want) {
			t.Errorf("%s: % x, want % x", what, all[:TagLen], h)
		}
		if len(c.op.Data) > 0 { // small data is copied, large is not
			c.op.Data[0] = 'x'
			if copied := bytes.Join(b.Pieces, nil)[TagLen] == 'd'; copied != (len(c.op.Data) <= tagInline) {
				t.Errorf("%s: copied %v", what, copied)
			}
		}
		if !b.Wrote(len(all)) || len(b.Pieces) != 0 {
			t.Errorf("%s: not written", what)
		}
		if q.Done(); q.Ops() != 0 || q.Next() != nil {
			t.Errorf("%s: %d are left", what, q.Ops())
		}
	}
}

// TestFramesHeldInPart: after any part of a frame, and then only, something is held; it is
// let go of at the end.
func TestFramesHeldInPart(t *testing.T) {
	for _, n := range []int{0, 1, 100, DirectLen - 1, DirectLen, DirectLen + 1} {
		stream := make([]byte, wire.HeaderLen+n)
		h := wire.Header{Seq: 1, Len: uint32(n)}
		h.Put(stream)
		for _, cut := range []int{0, 1, wire.HeaderLen - 1, wire.HeaderLen, wire.HeaderLen + 1, len(stream) - 1, len(stream)} {
			cut = min(cut, len(stream))
			f := Framer{Max: DirectLen + 1}
			got := 0
			used, err := f.Feed(stream[:cut], func(fr *Frame) error {
				got++
				if len(fr.Payload) != n || (fr.Buf != nil) != (n >= DirectLen) {
					t.Errorf("%d bytes: a frame of %d, in a buffer of its own: %v", n, len(fr.Payload), fr.Buf != nil)
				}
				return nil
			})
			whole := cut == len(stream)
			if used != cut || err != nil || got != map[bool]int{true: 1}[whole] || f.Partial() != (cut > 0 && !whole) {
				t.Errorf("%d of %d bytes: %d used, %v, %d frames, held: %v", cut, len(stream), used, err, got, f.Partial())
			}
			want := f.Want
			if (want != nil) != (f.cur != nil) || want != nil && len(want) != len(stream)-cut {
				t.Errorf("%d of %d bytes: %d are wanted", cut, len(stream), len(want))
			}
			if f.Close(); f.Partial() || f.Want != nil {
				t.Error("something is held after Close")
			}
		}
	}
	f := Framer{Max: 10}
	var h [wire.HeaderLen]byte
	for n, good := range map[uint32]bool{10: true, 11: false, 1 << 31: false} {
		f.Close()
		hd := wire.Header{Len: n}
		hd.Put(h[:])
		used, err := f.Feed(h[:], func(*Frame) error { return nil })
		var long *ErrTooLong
		if errors.As(err, &long) == good || used != len(h) || !good && (long.Len != n || long.Max != 10) {
			t.Errorf("a payload of %d bytes, of 10: %d used, %v", n, used, err)
		}
	}
}

// TestTagsHeldInPart is the same of tagged frames, and of what a write or a send that is
// partly there holds.
func TestTagsHeldInPart(t *testing.T) {
	d := NewRegions([32]byte{9})
	mem := make([]byte, 64)
	key, addr := d.Register(mem)
	for _, tag := range []Tag{{Kind: OpSend}, {Kind: OpSend, Len: 30}, {Kind: OpSendImm, Imm: 4, Len: 1}, {Kind: OpWrite, Key: key, Addr: addr, Len: 64},
		{Kind: OpWriteImm, Key: key, Addr: addr + 63, Len: 1}, {Kind: OpWriteImm}, {Kind: OpWrite}} {
		tag.Seq = 1
		stream := make([]byte, TagLen+tag.Len)
		tag.Put(stream)
		for cut := range len(stream) + 1 {
			h := &tagLog{}
			r := NewTagReader(d, 1, new(SentCount))
			r.Start(h)
			if err := r.Feed(stream[:cut]); err != nil {
				t.Fatalf("%+v, %d bytes: %v", tag, cut, err)
			}
			whole := cut == len(stream)
			busy := d.find(key).busy.Load()
			writes := tag.Kind <= OpWriteImm && tag.Len > 0 && cut >= TagLen
			if r.Partial() != (cut > 0 && !whole) || (busy != 0) != (writes && !whole) {
				t.Errorf("%+v, %d bytes: held %v, %d writes under way", tag, cut, r.Partial(), busy)
			}
			if want := map[bool]int{true: 1}[whole && tag.Kind != OpWrite]; len(h.calls) != want {
				t.Errorf("%+v, %d bytes: calls %v", tag, cut, h.calls)
			}
			if err := r.Filled(0); err != nil {
				t.Error(err)
			}
			r.EndTurn()
			if r.Close(); r.Partial() || d.find(key).busy.Load() != 0 {
				t.Errorf("%+v, %d bytes: held after Close", tag, cut)
			}
			if want, err := r.Want(); want != nil || err != nil {
				t.Errorf("%d bytes are wanted after Close, %v", len(want), err)
			}
		}
	}
	// A frame of the handshake is none behind it, and one out of turn is none either.
	for _, tag := range []Tag{{Kind: TagConnect, Seq: 1, Addr: tagMagic}, {Kind: OpSend, Seq: 2}, {Kind: OpSend, Seq: 0}} {
		r := NewTagReader(d, 1, new(SentCount))
		r.Start(&tagLog{})
		b := make([]byte, TagLen)
		tag.Put(b)
		if err := r.Feed(b); !errors.As(err, new(*TagError)) {
			t.Errorf("%+v: %v", tag, err)
		}
	}
}

// TestWroteAnywhere: what was written of a list of pieces is taken off it, whatever the
// number, and what is left is what follows.
func TestWroteAnywhere(t *testing.T) {
	texts := []string{"abc", "d", "", "efgh"}
	for first := range 9 {
		for second := range 9 - first {
			var u unwritten
			for _, s := range texts {
				u.Pieces = append(u.Pieces, []byte(s))
			}
			n := len(u.Pieces)
			u.Wrote(first)
			all := u.Wrote(second)
			left := string(bytes.Join(u.Pieces, nil))
			if want := "abcdefgh"[first+second:]; left != want || all != (want == "") {
				t.Errorf("%d and %d bytes: %q is left from piece %d on, want %q", first, second, left, n-len(u.Pieces), want)
			}
		}
	}
}
