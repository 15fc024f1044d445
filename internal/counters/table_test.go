package counters

import (
	"sync/atomic"
	"testing"
)

func TestReadAndAdd(t *testing.T) {
	type two struct {
		A uint64        `counter:"a" help:"Plain."`
		B atomic.Uint64 `counter:"b" help:"Atomic."`
	}
	tab := NewTable[two]()
	var x two
	x.A++
	x.B.Add(7)
	if got := tab.Read(nil, &x); len(got) != 2 || got[0] != 1 || got[1] != 7 {
		t.Errorf("Read = %v, want [1 7]", got)
	}
	sum := []uint64{10, 10}
	tab.Add(sum, &x)
	if sum[0] != 11 || sum[1] != 17 {
		t.Errorf("Add = %v, want [11 17]", sum)
	}
}

func TestNewTableRefusesBadFields(t *testing.T) {
	mustPanic := func(name string, f func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s: no panic", name)
			}
		}()
		f()
	}
	mustPanic("type", func() {
		NewTable[struct {
			A int `counter:"a" help:"A."`
		}]()
	})
	mustPanic("no help", func() {
		NewTable[struct {
			A uint64 `counter:"a"`
		}]()
	})
	mustPanic("twice", func() {
		NewTable[struct {
			A uint64 `counter:"a" help:"A."`
			B uint64 `counter:"a" help:"B."`
		}]()
	})
}
