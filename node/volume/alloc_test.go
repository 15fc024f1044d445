package volume

import (
	"sync"
	"testing"

	"github.com/rdsd/rdsd/blk"
)

// ring keeps a number of requests in flight until so many were carried out.
type ring struct {
	d    blk.Device
	reqs []*blk.Request
	mu   sync.Mutex
	left int // guarded by mu; to be submitted
	out  int // guarded by mu; in flight
	done chan error
	err  error // guarded by mu
}

func newRing(d blk.Device, depth, size int, op blk.Op) *ring {
	r := &ring{d: d, done: make(chan error, 1)}
	for i := range depth {
		r.reqs = append(r.reqs, &blk.Request{Op: op, Off: uint64(i * size), Len: uint64(size), Buf: make([]byte, size), Queue: r, Ctx: new([1]*blk.Request)})
	}
	return r
}

// run carries out n requests.
func (r *ring) run(n int) error {
	r.left, r.out = n, 0
	for _, q := range r.reqs {
		r.mu.Lock()
		if r.left == 0 {
			r.mu.Unlock()
			break
		}
		r.left--
		r.out++
		r.mu.Unlock()
		r.submit(q)
	}
	return <-r.done
}

func (r *ring) submit(q *blk.Request) {
	one := q.Ctx.(*[1]*blk.Request)
	one[0] = q
	r.d.Submit(one[:])
}

func (r *ring) Complete(batch []*blk.Request) {
	for _, q := range batch {
		r.mu.Lock()
		if q.Err != nil && r.err == nil {
			r.err = q.Err
		}
		again := r.left > 0
		if again {
			r.left--
		} else if r.out--; r.out == 0 {
			r.done <- r.err
		}
		r.mu.Unlock()
		if again {
			r.submit(q)
		}
	}
}

func mappedDevice(t testing.TB, client *testNode, id string) blk.Device {
	client.h.mu.Lock()
	defer client.h.mu.Unlock()
	m, err := client.h.find(id)
	if err != nil {
		t.Fatal(err)
	}
	return m.stats
}

// Steady state allocates nothing, at either end.
func TestIOAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("elsewhere: under the race detector; the phase without it runs this")
	}
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	for _, s := range []ExportSpec{memory("mem", 8<<20), file(t, "file", 8<<20)} {
		mustExport(t, server.h, s)
		m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: s.Name, Paths: server.twoPaths()})
		d := mappedDevice(t, client, m.ID)
		for _, op := range []blk.Op{blk.OpWrite, blk.OpRead} {
			for _, size := range []int{4 << 10, 128 << 10} {
				r := newRing(d, 16, size, op)
				const n = 500
				run := func() {
					if err := r.run(n); err != nil {
						t.Fatal(err)
					}
				}
				run() // everything grows to its size
				if a := testing.AllocsPerRun(3, run) / n; a > 0.05 {
					t.Errorf("%s: %v of %d bytes: %.2f allocations a request", s.Name, op, size, a)
				}
			}
		}
	}
}

// BenchmarkIO is one request of 4 KiB or 128 KiB, at depth 1 or 32, without NBD.
func BenchmarkIO(b *testing.B) {
	for _, w := range []struct {
		name        string
		op          blk.Op
		size, depth int
	}{
		{"read4k-d1", blk.OpRead, 4 << 10, 1},
		{"write4k-d1", blk.OpWrite, 4 << 10, 1},
		{"read4k-d32", blk.OpRead, 4 << 10, 32},
		{"write4k-d32", blk.OpWrite, 4 << 10, 32},
		{"read128k-d8", blk.OpRead, 128 << 10, 8},
		{"write128k-d8", blk.OpWrite, 128 << 10, 8},
	} {
		b.Run(w.name, func(b *testing.B) {
			t := b
			port := freePort(t)
			server, client := newServerNode(t, port), newClientNode(t, port)
			server.quiet, client.quiet = true, true
			server.start()
			client.start()
			mustExport(t, server.h, memory("mem", 32<<20))
			m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "mem"})
			r := newRing(mappedDevice(b, client, m.ID), w.depth, w.size, w.op)
			r.run(100)
			b.SetBytes(int64(w.size))
			b.ReportAllocs()
			b.ResetTimer()
			if err := r.run(b.N); err != nil {
				b.Fatal(err)
			}
		})
	}
}
