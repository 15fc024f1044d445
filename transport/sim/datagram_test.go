package sim

import (
	"bytes"
	"math/rand"
	"net/netip"
	"testing"
	"time"
)

// TestDatagrams counts what a network does to 10,000 datagrams.
func TestDatagrams(t *testing.T) {
	const sent = 10000
	from, to := netip.MustParseAddrPort("10.0.0.1:4791"), netip.MustParseAddrPort("10.0.0.2:4791")
	run := func(p DatagramProfile, set func(*Datagrams)) (n *Datagrams, times [sent]int, order, changed int) {
		c := &Clock{}
		n = NewDatagrams(c, rand.New(rand.NewSource(1)), p)
		if set != nil {
			set(n)
		}
		last := -1
		n.Attach(to.Addr(), func(f netip.AddrPort, pkt []byte) {
			i := int(pkt[0])<<8 | int(pkt[1])
			if f != from || c.Now() < p.Latency {
				t.Errorf("datagram %d is from %v, at %v", i, f, c.Now())
			}
			if !bytes.Equal(pkt[2:], make([]byte, 98)) {
				changed++
				return
			}
			if i >= sent { // the bit is one of its number
				changed++
				return
			}
			times[i]++
			if i < last {
				order++
			}
			last = i
		})
		pkt := make([]byte, 100)
		for i := range sent {
			c.At(time.Duration(i)*time.Microsecond, func() {
				pkt[0], pkt[1] = byte(i>>8), byte(i)
				n.Send(from, to, pkt)
			})
		}
		for c.Step(time.Hour) {
		}
		return n, times, order, changed
	}
	near := func(what string, got, want int) {
		t.Helper()
		if got < want*8/10 || got > want*12/10 {
			t.Errorf("%s: %d, want about %d", what, got, want)
		}
	}
	count := func(times [sent]int, n int) (k int) {
		for _, v := range times {
			if v == n {
				k++
			}
		}
		return k
	}
	_, times, order, changed := run(DatagramProfile{Latency: time.Millisecond}, nil)
	if count(times, 1) != sent || order != 0 || changed != 0 {
		t.Errorf("a good network: %d once, %d out of order, %d changed", count(times, 1), order, changed)
	}
	n, times, _, _ := run(DatagramProfile{Loss: 0.2}, nil)
	near("lost", count(times, 0), sent/5)
	near("counted lost", int(n.Lost), sent/5)
	_, times, _, _ = run(DatagramProfile{Duplicate: 0.3}, nil)
	near("twice", count(times, 2), sent*3/10)
	_, times, order, _ = run(DatagramProfile{Late: 0.1, LateBy: time.Millisecond}, nil)
	if near("out of order", order, sent/10); count(times, 1) != sent {
		t.Errorf("late: %d once", count(times, 1))
	}
	_, _, _, changed = run(DatagramProfile{Flip: 0.1}, nil)
	near("changed", changed, sent/10)
	_, times, _, changed = run(DatagramProfile{Flip: 0.1}, func(n *Datagrams) {
		n.Mend = func(netip.AddrPort, netip.AddrPort, []byte) bool { return true }
	})
	if near("mended", count(times, 0), sent/10); changed != 0 {
		t.Errorf("mended: %d changed", changed)
	}
	_, times, _, _ = run(DatagramProfile{}, func(n *Datagrams) { n.Cut(from.Addr(), to.Addr(), true) })
	if count(times, 0) != sent {
		t.Error("a cut network carries")
	}
	_, times, _, _ = run(DatagramProfile{}, func(n *Datagrams) { n.Cut(to.Addr(), from.Addr(), true) })
	if count(times, 1) != sent {
		t.Error("a network that is cut the other way does not carry")
	}
}
