package ib

import (
	"bytes"
	"errors"
	"math/rand"
	"testing"

	"github.com/rdsd/rdsd/transport"
)

// TestSendQueueModel posts operations of all sizes in any rhythm and has a device complete
// them: they come in order, each once, and what they name stays what it was until they have
// completed.
func TestSendQueueModel(t *testing.T) {
	for seed := range int64(20) {
		rng := rand.New(rand.NewSource(seed))
		places := 1 + rng.Intn(20)
		var own extents
		mine := bytes.Repeat([]byte{0}, 4096) // not on the stack, which moves
		own.add(mine)
		var copies []byte
		if seed%2 == 1 {
			copies = make([]byte, 8192)
		}
		var q sendQueue
		q.init(places, make([]byte, tailBytes(places)), copies, &own)
		charged := 0
		grow := func(n int) error { charged += n; return nil }
		free := func(n int) { charged -= n }

		type posted struct {
			data, tail []byte // as they were
			ref        []byte // the data itself
			imm        uint32
		}
		var all []posted
		var given []*WR // that the device has
		var done, handed int
		for step := 0; step < 3000; step++ {
			switch rng.Intn(4) {
			case 0, 1:
				op := transport.Op{Kind: transport.OpSendImm, Imm: uint32(len(all)), Tail: make([]byte, rng.Intn(transport.MaxTail+1)>>(rng.Intn(8)))}
				rng.Read(op.Tail)
				if rng.Intn(2) == 0 {
					op.Data = mine[:rng.Intn(len(mine))]
				} else {
					op.Data = make([]byte, rng.Intn(3000))
					rng.Read(op.Data)
				}
				all = append(all, posted{bytes.Clone(op.Data), bytes.Clone(op.Tail), op.Data, op.Imm})
				if err := q.post(op, grow); err != nil {
					t.Fatal(err)
				}
				clear(op.Tail) // it was copied
			case 2:
				run := q.next()
				if len(run) > 0 && run[len(run)-1].Flags&Signal == 0 {
					t.Fatal("the last of a run asks for no completion")
				}
				take := len(run)
				if rng.Intn(3) == 0 {
					take = rng.Intn(len(run) + 1)
				}
				q.untake(len(run) - take)
				for i := range run[:take] {
					wr := &run[i]
					p := &all[handed]
					if wr.ID != uint64(handed) || wr.Op != SendImm || wr.Imm != p.imm {
						t.Fatalf("work %d is %+v", handed, wr)
					}
					if own.has(p.ref) || copies == nil {
						if len(p.ref) > 0 && &wr.Piece[0][0] != &p.ref[0] {
							t.Fatal("data was copied that the device can read")
						}
					} else {
						clear(p.ref) // it was copied
					}
					given = append(given, wr)
					handed++
				}
			case 3:
				for i, wr := range given {
					p := &all[done+i]
					if !bytes.Equal(wr.Piece[0], p.data) || !bytes.Equal(wr.Piece[1], p.tail) {
						t.Fatalf("seed %d: work %d names other bytes before it has completed", seed, wr.ID)
					}
				}
				if len(given) == 0 {
					break
				}
				n := 1 + rng.Intn(len(given))
				ops, ok := q.complete(given[n-1].ID)
				if ops != n || !ok {
					t.Fatalf("%d operations of %d are complete, %v", ops, n, ok)
				}
				for _, wr := range given[:n] {
					if wr.Piece[0] != nil || wr.Piece[1] != nil {
						t.Fatal("memory is still referenced whose work has completed")
					}
				}
				given = given[n:]
				done += n
				q.refill(free)
			}
			if q.done > q.handed || q.handed > q.placed || q.placed-q.done > uint64(places) {
				t.Fatalf("done %d, handed %d, placed %d of %d", q.done, q.handed, q.placed, places)
			}
			if (q.late.first == nil) != (charged == 0) {
				t.Fatalf("%d bytes are charged, and something waits: %v", charged, q.late.first != nil)
			}
		}
		if done < 100 {
			t.Errorf("seed %d: only %d were carried out", seed, done)
		}
		for _, id := range []uint64{uint64(done) - 1, uint64(handed), ^uint64(0)} {
			if _, ok := q.complete(id); ok {
				t.Errorf("work %d completes, and the device has %d to %d", id, done, handed)
			}
		}
		if q.drop(free); charged != 0 {
			t.Errorf("%d bytes are charged for nothing", charged)
		}
	}
}

// TestSendQueueStaysFree: whatever the rings' state, an operation of the largest size has room
// once all before it have completed.
func TestSendQueueStaysFree(t *testing.T) {
	for first := 0; first <= transport.MaxTail; first++ {
		var q sendQueue
		var own extents
		q.init(4, make([]byte, tailBytes(4)), make([]byte, copyRoom), &own)
		for _, n := range []int{first, transport.MaxTail, transport.MaxTail} {
			op := transport.Op{Kind: transport.OpWrite, Tail: make([]byte, n), Data: make([]byte, max(1, copyRoom*n/transport.MaxTail))}
			if !q.place(&op) {
				t.Fatalf("%d bytes do not fit behind %d", n, first)
			}
			run := q.next()
			q.complete(run[0].ID)
		}
	}
}

// TestSendQueueLimits: what is beyond them is refused before it takes a place.
func TestSendQueueLimits(t *testing.T) {
	var q sendQueue
	var own extents
	q.init(4, make([]byte, tailBytes(4)), make([]byte, copyRoom), &own)
	for _, c := range []struct {
		op transport.Op
		ok bool
	}{
		{transport.Op{Kind: transport.OpSend, Data: make([]byte, transport.MaxSend)}, true},
		{transport.Op{Kind: transport.OpSend, Data: make([]byte, transport.MaxSend), Tail: []byte{1}}, false},
		{transport.Op{Kind: transport.OpSend, Tail: make([]byte, transport.MaxTail)}, true},
		{transport.Op{Kind: transport.OpSend, Tail: make([]byte, transport.MaxTail+1)}, false},
		{transport.Op{Kind: transport.OpWrite, Data: make([]byte, copyRoom)}, true},
		{transport.Op{Kind: transport.OpWrite, Data: make([]byte, copyRoom+1)}, false},
		{transport.Op{}, false},
		{transport.Op{Kind: transport.OpSendInval + 1}, false},
	} {
		if err := q.check(&c.op); (err == nil) != c.ok {
			t.Errorf("kind %d, %d and %d bytes: %v", c.op.Kind, len(c.op.Data), len(c.op.Tail), err)
		}
	}
	full := errors.New("full")
	var one sendQueue
	one.init(1, make([]byte, tailBytes(1)), nil, &own)
	op := transport.Op{Kind: transport.OpSend}
	if err := one.post(op, func(int) error { return full }); err != nil {
		t.Error(err)
	}
	if err := one.post(op, func(int) error { return full }); err != full {
		t.Errorf("posted without memory: %v", err)
	}
}

// TestExtents: memory is the device's only as a whole.
func TestExtents(t *testing.T) {
	var x extents
	mem := bytes.Repeat([]byte{0}, 100) // not on the stack, which moves
	if x.has(mem[:1]) {
		t.Error("nothing was added")
	}
	x.add(mem[50:60])
	x.add(mem[10:20])
	x.add(mem[20:30])
	for _, c := range []struct {
		from, to int
		has      bool
	}{{10, 20, true}, {12, 15, true}, {9, 12, false}, {18, 22, false}, {20, 30, true}, {30, 31, false}, {50, 60, true}, {50, 61, false}, {59, 60, true}, {60, 61, false}, {0, 1, false}} {
		if x.has(mem[c.from:c.to]) != c.has {
			t.Errorf("%d to %d: %v", c.from, c.to, !c.has)
		}
	}
	x.remove(mem[10:20])
	x.remove(mem[10:21]) // never added
	if x.has(mem[10:20]) || !x.has(mem[20:30]) || !x.has(mem[50:60]) {
		t.Error("other memory was removed")
	}
}
