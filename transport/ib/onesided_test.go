package ib

import (
	"math/rand"
	"net/netip"
	"testing"

	"github.com/rdsd/rdsd/transport/transporttest"
)

func (w *world) suite() transporttest.OneSided {
	return transporttest.OneSided{A: w.pa, B: w.pb,
		AddrA: netip.AddrPortFrom(w.a.info.Addr, 0), AddrB: netip.AddrPortFrom(w.b.info.Addr, 0)}
}

// TestConformance runs the suite of one-sided links over devices that differ in what they can
// do, and in how they do it.
func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(v *fakeVerbs)
	}{
		{"all that a device can do", nil},
		{"small queues", func(v *fakeVerbs) { v.info.MaxSends, v.info.MaxRecvs = 4, 3 }},
		{"one place", func(v *fakeVerbs) { v.info.MaxSends, v.info.MaxRecvs = 1, 1 }},
		{"completions out of order", func(v *fakeVerbs) { v.Mix = rand.New(rand.NewSource(1)) }},
		{"one completion at a time", func(v *fakeVerbs) { v.Few = 1 }},
		{"memory of its own", func(v *fakeVerbs) { v.info.Caps.AnyMemory = false }},
		{"places unknown", func(v *fakeVerbs) { v.info.Caps.Places = false }},
		{"revokes later", func(v *fakeVerbs) { v.info.Caps.Pending = true }},
		{"a plain card", func(v *fakeVerbs) { v.info.Caps = Caps{Pinned: true} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			if testing.Short() && c.set != nil && c.name != "small queues" {
				t.Skip("the suite runs over the other devices without -short")
			}
			w := newWorld(t, c.set)
			transporttest.RunOneSided(t, w.suite())
			w.clean()
		})
	}
}
