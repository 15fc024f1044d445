package ib

import (
	"slices"
	"sync/atomic"
	"unsafe"
)

// extents is the memory that a device can read, for one that cannot read all. Changes are
// the caller's to lock; has is called by anybody.
type extents struct {
	list atomic.Pointer[[]extent] // in order, none within another; not changed
}

type extent struct{ from, to uintptr } // to is behind the last byte

func extentOf(b []byte) extent {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return extent{at, at + uintptr(len(b))}
}

// has reports whether all of b is in one piece of memory that was added.
func (x *extents) has(b []byte) bool {
	l := x.list.Load()
	if l == nil {
		return false
	}
	e := extentOf(b)
	i, found := slices.BinarySearchFunc(*l, e, func(a, b extent) int { return compare(a.from, b.from) })
	if !found {
		i--
	}
	return i >= 0 && (*l)[i].from <= e.from && e.to <= (*l)[i].to
}

func compare(a, b uintptr) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (x *extents) add(b []byte) {
	var l []extent
	if old := x.list.Load(); old != nil {
		l = slices.Clone(*old)
	}
	e := extentOf(b)
	i, _ := slices.BinarySearchFunc(l, e, func(a, b extent) int { return compare(a.from, b.from) })
	l = slices.Insert(l, i, e)
	x.list.Store(&l)
}

func (x *extents) remove(b []byte) {
	old := x.list.Load()
	if old == nil {
		return
	}
	e := extentOf(b)
	l := slices.Clone(*old)
	if i := slices.Index(l, e); i >= 0 {
		l = slices.Delete(l, i, i+1)
	}
	x.list.Store(&l)
}
