package shm

import (
	"testing"

	"github.com/rdsd/rdsd/wire"
)

// work is one round of a daemon: n descriptors of a client, each with an
// outcome, and n datagrams of 64 bytes received in trains of per.
type work struct {
	h   *Host
	m   *mate
	led *Ledger
	n   int
	ids []uint32
}

func newWork(t testing.TB, n int, ledger bool) *work {
	w := &work{n: n}
	if ledger {
		w.led = newLedger(t, LedgerSpec{})
		w.led.Commit(0)
	}
	w.h, w.m = newPair(t, testSpec(), w.led)
	return w
}

func (w *work) post() {
	d := SendDesc{Gen: 1}
	for i := range w.n {
		d.Tag, d.Slot, d.Cookie = uint64(i), uint64(i)*64, uint32(i)
		w.m.r.PutSend(w.m.sendTail, MakeWord(KindEach, 64, 1), &d)
		w.m.sendTail++
	}
	w.m.r.SendTail().Store(w.m.sendTail)
}

func (w *work) take() {
	w.ids = w.ids[:0]
	var p Post
	for {
		grow(w.h)
		ok, err := w.h.Next(&p)
		if err != nil {
			panic(err)
		}
		if !ok {
			return
		}
		id, cell := w.h.Taken(&p, MakeTarget(testDst), true)
		*cell = 5
		w.ids = append(w.ids, id)
	}
}

func (w *work) finish() {
	for i, id := range w.ids {
		w.h.Outcome(id, uint64(i), 1, Delivered, 0, true)
	}
	w.h.Publish()
	w.m.r.EventHead().Store(w.m.r.EventTail().Load())
}

var body64 [64]byte

func (w *work) receive(per int) {
	for i := range w.n {
		if i%per == 0 {
			w.h.closeTrain()
		}
		w.h.PlaceCopy(testDst, wire.One(body64[:]), NoLane, uint64(i))
	}
	w.led.PublishAll(0, nil, 0, nil, []*Host{w.h})
	w.h.Publish()
}

func (w *work) direct(size int) {
	for range w.n {
		off, body, ok := w.h.Reserve(size)
		if !ok {
			panic("no room")
		}
		w.h.Place(testDst, off, wire.One(body), NoLane, 0)
	}
	w.h.Publish()
}

func (w *work) release() {
	m := w.m
	for tail := m.r.RecvTail().Load(); m.head != tail; m.head++ {
		m.r.PutRelease(m.tail, (*m.r.recvEntry(m.head))[1])
		m.tail++
	}
	m.r.RecvHead().Store(m.head)
	m.r.ReleaseTail().Store(m.tail)
	for w.h.HasReleases() {
		if _, _, _, err := w.h.Releases(); err != nil {
			panic(err)
		}
	}
}

// TestHostAllocates nothing, once its tables have grown.
func TestHostAllocates(t *testing.T) {
	for _, ledger := range []bool{false, true} {
		w := newWork(t, 256, ledger)
		round := func() {
			w.post()
			w.take()
			w.finish()
			w.receive(16)
			w.direct(1000)
			w.release()
		}
		round()
		if n := testing.AllocsPerRun(20, round); n > 1 { // 1: the slice of hosts in receive
			t.Errorf("ledger %v: %v allocations in a round of 768 descriptors", ledger, n)
		}
		if w.h.Err() != nil || w.h.Outstanding() != 0 {
			t.Error(w.h.Err())
		}
	}
}

// BenchmarkHost: nanoseconds for each descriptor or datagram, both ends' stores included.
func BenchmarkHost(b *testing.B) {
	for _, ledger := range []bool{false, true} {
		name := map[bool]string{false: "plain/", true: "ledger/"}[ledger]
		const n = 256
		per := func(b *testing.B) {
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/each")
			b.ReportMetric(0, "ns/op")
		}
		b.Run(name+"send", func(b *testing.B) {
			w := newWork(b, n, ledger)
			for b.Loop() {
				w.post()
				w.take()
				w.finish()
			}
			per(b)
		})
		b.Run(name+"receive64alone", func(b *testing.B) {
			w := newWork(b, n, ledger)
			for b.Loop() {
				w.receive(1)
				w.release()
			}
			per(b)
		})
		b.Run(name+"receive64train", func(b *testing.B) {
			w := newWork(b, n, ledger)
			for b.Loop() {
				w.receive(n)
				w.release()
			}
			per(b)
		})
		b.Run(name+"direct", func(b *testing.B) {
			w := newWork(b, n, ledger)
			for b.Loop() {
				w.direct(8192)
				w.release()
			}
			per(b)
		})
		b.Run(name+"publish1", func(b *testing.B) {
			w := newWork(b, 1, ledger)
			hosts := []*Host{w.h}
			for b.Loop() {
				w.h.PlaceCopy(testDst, wire.One(body64[:]), NoLane, 0)
				w.led.PublishAll(0, nil, 0, nil, hosts)
				w.h.Publish()
				w.release()
			}
		})
	}
}
