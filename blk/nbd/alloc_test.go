package nbd

import (
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/rdsd/rdsd/blk"
)

// counting counts what gets as far as the device.
type counting struct {
	blk.Device
	batches, reads, all atomic.Int64
}

func (d *counting) Submit(batch []*blk.Request) {
	d.batches.Add(1)
	d.all.Add(int64(len(batch)))
	for _, r := range batch {
		if r.Op == blk.OpRead {
			d.reads.Add(1)
		}
	}
	d.Device.Submit(batch)
}

// exchange writes requests and reads so many bytes of replies, both without
// allocating.
func exchange(t testing.TB, nc net.Conn, out, in []byte) {
	if _, err := nc.Write(out); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(nc, in); err != nil {
		t.Fatal(err)
	}
}

// bundle is a number of 4 KiB reads and writes, and how long the replies are.
func bundle(depth int) (requests []byte, replies int) {
	payload := make([]byte, 4096)
	for i := range depth {
		if i%2 == 0 {
			requests = append(requests, command(cmdRead, 0, uint64(i), uint64(i)*4096, 4096, nil)...)
			replies += simpleSize + 4096
		} else {
			requests = append(requests, command(cmdWrite, 0, uint64(i), uint64(i)*4096, 4096, payload)...)
			replies += simpleSize
		}
	}
	return requests, replies
}

// TestNoAllocations: in the steady state an I/O allocates nothing, and requests
// that come together stay together.
func TestNoAllocations(t *testing.T) {
	for name, dev := range map[string]blk.Device{
		"memory": memory(t, 1<<20),
		"stats":  blk.NewStats(memory(t, 1<<20)),
		"file":   fileVolume(t, 1<<20, blk.FileOptions{}),
	} {
		t.Run(name, func(t *testing.T) {
			d := &counting{Device: dev}
			_, socket := serve(t, Options{}, Export{Device: d})
			c := enter(t, socket, "", false)
			const depth = 16
			requests, n := bundle(depth)
			replies := make([]byte, n)
			for range 50 {
				exchange(t, c.nc, requests, replies)
			}
			before, beforeAll := d.batches.Load(), d.all.Load()
			allocs := testing.AllocsPerRun(200, func() { exchange(t, c.nc, requests, replies) })
			if perIO := allocs / depth; perIO > 0.05 && !raceEnabled {
				t.Errorf("%.2f allocations for each I/O", perIO)
			}
			if per := float64(d.all.Load()-beforeAll) / float64(d.batches.Load()-before); per < depth/2 {
				t.Errorf("%.1f requests in a batch; %d were sent at once", per, depth)
			}
		})
	}
}

func BenchmarkMemory(b *testing.B) {
	for _, depth := range []int{1, 32} {
		b.Run(map[int]string{1: "depth1", 32: "depth32"}[depth], func(b *testing.B) {
			_, socket := serve(b, Options{}, Export{Device: memory(b, 1<<20)})
			c := enter(b, socket, "", false)
			requests, n := bundle(depth)
			replies := make([]byte, n)
			for b.Loop() {
				exchange(b, c.nc, requests, replies)
			}
			b.ReportMetric(float64(depth)*float64(b.N)/b.Elapsed().Seconds(), "IO/s")
		})
	}
}
