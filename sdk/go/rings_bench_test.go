//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// These measure the client's end alone, against the small daemon of these tests
// in another goroutine; internal/bench and docs/performance-log.md have the whole way.
//
//	go test -run '^$' -bench Rings -benchmem ./sdk/go

// ringSink binds a socket at a daemon that takes everything sent to peerAddr and
// is done with it.
func ringSink(tb testing.TB, opts ...BindOption) (*ringDaemon, *Socket) {
	d := newRingDaemon(tb)
	d.mu.Lock()
	d.sink = true
	d.mu.Unlock()
	s := d.bindRing(localAddr, opts...)
	if err := s.Send(context.Background(), peerAddr, nil); err != nil {
		tb.Fatal(err)
	}
	return d, s
}

func datagramsOf(n, size int) []Datagram {
	ds := make([]Datagram, n)
	for i := range ds {
		ds[i] = Datagram{Addr: peerAddr, Payload: make([]byte, size)}
	}
	return ds
}

func perDatagram(b *testing.B, n int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/datagram")
}

func BenchmarkRingsSendBatch(b *testing.B) {
	for _, c := range []struct{ n, size int }{{64, 64}, {1000, 64}, {64, 1024}, {16, 64 << 10}} {
		b.Run(fmt.Sprintf("%dx%d", c.n, c.size), func(b *testing.B) {
			_, s := ringSink(b)
			ds := datagramsOf(c.n, c.size)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.SendBatch(context.Background(), ds); err != nil {
					b.Fatal(err)
				}
			}
			perDatagram(b, c.n)
		})
	}
}

func BenchmarkRingsSendBatchMixed(b *testing.B) {
	_, s := ringSink(b)
	ds := datagramsOf(256, 0)
	for i := range ds {
		ds[i].Payload = make([]byte, 32+i%64)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.SendBatch(context.Background(), ds); err != nil {
			b.Fatal(err)
		}
	}
	perDatagram(b, len(ds))
}

func BenchmarkRingsSend(b *testing.B) {
	_, s := ringSink(b)
	p := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Send(context.Background(), peerAddr, p); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRingsBorrow(b *testing.B) {
	for _, c := range []struct{ n, size int }{{64, 64}, {1000, 64}, {64, 1024}} {
		b.Run(fmt.Sprintf("%dx%d", c.n, c.size), func(b *testing.B) {
			d, s := ringSink(b)
			d.flood(localAddr, c.n, c.size)
			into := make([]Datagram, 1024)
			got := 0
			b.ReportAllocs()
			for b.Loop() {
				n, l, err := s.Borrow(context.Background(), into)
				if err != nil {
					b.Fatal(err)
				}
				l.Release()
				got += n
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(got), "ns/datagram")
		})
	}
}

func BenchmarkRingsRecvBatch(b *testing.B) {
	d, s := ringSink(b)
	d.flood(localAddr, 64, 64)
	into := make([]Datagram, 1024)
	got := 0
	b.ReportAllocs()
	for b.Loop() {
		n, err := s.RecvBatch(context.Background(), into)
		if err != nil {
			b.Fatal(err)
		}
		got += n
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(got), "ns/datagram")
}

// leastAllocs is testing.AllocsPerRun, tried again after a pause while more than most are
// counted. The daemon of these tests is in the same process, and its tables grow whenever it gets
// further ahead of the reader than before: what the calls allocate is there each time.
func leastAllocs(runs int, call func(), most float64, pause func()) float64 {
	least := testing.AllocsPerRun(runs, call)
	for tries := 0; least > most && tries < 20; tries++ {
		pause()
		least = min(least, testing.AllocsPerRun(runs, call))
	}
	return least
}

// What is done for each datagram does not allocate.
func TestRingsAllocateNothing(t *testing.T) {
	d, s := ringSink(t)
	ctx := context.Background()
	one, batch := datagramsOf(1, 64), datagramsOf(200, 64)
	mixed := datagramsOf(100, 64)
	for i := range mixed {
		mixed[i].Payload = make([]byte, i)
	}
	into := make([]Datagram, 64)
	room := func() {
		eventually(t, "room", func() bool {
			r := ringsOf(s)
			r.txMu.Lock()
			defer r.txMu.Unlock()
			r.takeEventsLocked(r.tx)
			return r.tx.send.Out() == 0
		})
	}
	for name, call := range map[string]func(){
		"TrySend": func() {
			if err := s.TrySend(peerAddr, one[0].Payload); err != nil {
				t.Error(err)
			}
		},
		"Send": func() {
			if err := s.Send(ctx, peerAddr, one[0].Payload); err != nil {
				t.Error(err)
			}
		},
		"SendBatch": func() {
			for _, ds := range [][]Datagram{batch, mixed} {
				if _, err := s.SendBatch(ctx, ds); err != nil {
					t.Error(err)
				}
			}
		},
		"Borrow": func() {
			n, l, err := s.Borrow(ctx, into)
			if err != nil || n == 0 {
				t.Error(n, err)
			}
			l.Release()
		},
	} {
		if name == "Borrow" {
			d.flood(localAddr, 10, 64)
			time.Sleep(10 * time.Millisecond)
		}
		for range 100 { // tables grow, pools fill
			call()
		}
		room()
		// The rest of a call's memory is the runtime's own, now and then.
		if n := leastAllocs(200, call, 0.5, room); n >= 0.5 {
			t.Errorf("%s: %v allocations", name, n)
		}
		room()
	}
}
