package ib

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/rdsd/rdsd/transport"
)

// busy answers each event with a message.
type busy struct {
	l    transport.OneSided
	op   transport.Op
	left atomic.Int64
}

func (b *busy) Begin()       {}
func (b *busy) End()         { b.l.Flush() }
func (b *busy) Sent(int)     {}
func (b *busy) Closed(error) {}

func (b *busy) event() error {
	if b.left.Add(-1) > 0 {
		b.l.Post(&b.op)
	}
	return nil
}

func (b *busy) Written(transport.Placed) error      { return b.event() }
func (b *busy) Received([]byte, uint32, bool) error { return b.event() }
func (b *busy) Invalidated(uint32, int) error       { return nil }
func (b *busy) Revoked(uint32, int) error           { return nil }

// TestNothingIsAllocated: messages in both directions, some of which wait for a place, take no
// memory once the link is warm.
func TestNothingIsAllocated(t *testing.T) {
	w := newWorld(t, func(v *fakeVerbs) { v.info.MaxSends = 16 })
	x, y := w.link()
	mem := make([]byte, 4096)
	key, addr := y.d.Register(mem)
	bx := &busy{l: x.l, op: transport.Op{Kind: transport.OpWriteImm, Key: key, Addr: addr, Data: make([]byte, 4000), Tail: make([]byte, 56)}}
	by := &busy{l: y.l, op: transport.Op{Kind: transport.OpSendImm, Tail: make([]byte, 8)}}
	bx.left.Store(1 << 40)
	by.left.Store(1 << 40)
	x.l.Start(bx, 16)
	y.l.Start(by, 16)
	for range 40 { // under way all the time, with 16 places
		x.l.Post(&bx.op)
	}
	x.l.Flush()
	wait := func(n int64) {
		want := bx.left.Load() - n
		w.until("Messages are answered.", func() bool { return bx.left.Load() <= want })
	}
	wait(5000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const n = 20000
	wait(n)
	runtime.ReadMemStats(&after)
	if got := after.Mallocs - before.Mallocs; got > n/100 && !raceDetector {
		t.Errorf("%d allocations for %d messages each way", got, n)
	}
}
