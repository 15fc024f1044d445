package rnbd

import (
	"testing"

	"github.com/rdsd/rdsd/blk"
)

// counter is a Completer that counts.
type counter struct{ n int }

func (c *counter) Complete(batch []*blk.Request) { c.n += len(batch) }

// TestNoAllocation: in steady state neither side allocates for an I/O, one that
// is cut to pieces included.
func TestNoAllocation(t *testing.T) {
	if raceEnabled {
		t.Skip("elsewhere: under the race detector; the phase without it runs this")
	}
	w := newWorld(t, ServerConfig{})
	w.noLog = true
	w.export(&Export{Name: "d", Device: silent(cached)})
	e := w.client("c")
	v := e.mustMap("d", rw)
	count := &counter{}
	var batch []*blk.Request
	for i, r := range []blk.Request{
		{Op: blk.OpRead, Len: 4096}, {Op: blk.OpWrite, Len: 4096}, {Op: blk.OpWrite, Len: 200 << 10, Flags: blk.FUA}, {Op: blk.OpFlush},
		{Op: blk.OpDiscard, Len: 65536}, {Op: blk.OpWriteZeroes, Len: 4096, Flags: blk.NoUnmap}, {Op: blk.OpRead, Len: 512}, {Op: blk.OpWrite, Len: 512},
	} {
		if r.Op == blk.OpRead || r.Op == blk.OpWrite {
			r.Buf = make([]byte, r.Len)
		}
		if r.Op != blk.OpFlush {
			r.Off = uint64(i) * 8192
		}
		r.Queue = count
		batch = append(batch, &r)
	}
	run := func() {
		v.Submit(w.now, batch)
		w.run()
	}
	for range 100 {
		run()
	}
	count.n = 0
	const rounds = 200
	if n := testing.AllocsPerRun(rounds, run); n != 0 {
		t.Errorf("%v allocations for %d requests", n, len(batch))
	}
	if count.n != (rounds+1)*len(batch) {
		t.Errorf("%d completed", count.n)
	}
	for _, r := range batch {
		if r.Err != nil {
			t.Errorf("%v: %v", r.Op, r.Err)
		}
	}
	// What is kept to be used again keeps nobody's request and nobody's memory.
	calls, pieces := 0, 0
	for k := e.c.calls; k != nil; k = k.next {
		if calls++; k.r != nil || k.v != nil || k.err != nil || k.first.req.Data != nil {
			t.Errorf("an unused call keeps %+v", k)
		}
	}
	for p := e.c.pieces; p != nil; p = p.next {
		if pieces++; p.call != nil || p.req.Data != nil {
			t.Errorf("an unused piece keeps %+v", p)
		}
	}
	if calls != len(batch) || pieces == 0 {
		t.Errorf("%d calls and %d pieces are kept, want %d and some", calls, pieces, len(batch))
	}
}

// quiet is a device that does nothing.
type quiet struct{ blk.State }

func silent(info blk.Info) *quiet {
	d := &quiet{}
	d.SetInfo(&info)
	return d
}

func (d *quiet) Submit(batch []*blk.Request) {
	for _, r := range batch {
		r.Err = d.Info().Check(r)
	}
	blk.Complete(batch)
}

func (d *quiet) Close() error { return nil }

// BenchmarkIO is the cost of both sides for one 4 KiB write, without RTRS but
// for a copy of the data.
func BenchmarkIO(b *testing.B) {
	w := newWorld(b, ServerConfig{})
	w.noLog = true
	w.export(&Export{Name: "d", Device: silent(cached)})
	e := w.client("c")
	v := e.mustMap("d", rw)
	count := &counter{}
	batch := make([]*blk.Request, 32)
	for i := range batch {
		batch[i] = &blk.Request{Op: blk.OpWrite, Len: 4096, Buf: make([]byte, 4096), Queue: count}
	}
	b.ReportAllocs()
	for b.Loop() {
		v.Submit(w.now, batch)
		w.run()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(count.n), "ns/io")
}
