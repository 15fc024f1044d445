package rnbd

import (
	"testing"
	"unsafe"

	"github.com/rdsd/rdsd/blk"
)

// where is a device that shows its requests with data to a test.
type where struct {
	*recorder
	see func(r *blk.Request)
}

func (d *where) Submit(batch []*blk.Request) {
	for _, r := range batch {
		if len(r.Buf) > 0 {
			d.see(r)
		}
	}
	d.recorder.Submit(batch)
}

// TestNothingIsCopied: the store is given the chunk in which a write arrived, or
// a read leaves, and the client's session the memory of who asked.
func TestNothingIsCopied(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	buf, seen := make([]byte, 8192), 0
	d := &where{newRecorder(cached), func(r *blk.Request) {
		for _, f := range w.flights { // what is under way: data is the chunk
			if f.req == nil || unsafe.SliceData(f.req.Data) != unsafe.SliceData(buf) {
				continue
			}
			seen++
			if unsafe.SliceData(r.Buf) != unsafe.SliceData(f.data) {
				t.Errorf("%v: the store was given other memory than the chunk", r.Op)
			}
		}
	}}
	w.export(&Export{Name: "d", Device: d})
	e := w.client("c")
	v := e.mustMap("d", rw)
	for i, op := range []blk.Op{blk.OpWrite, blk.OpRead, blk.OpWrite} {
		r := &blk.Request{Op: op, Len: uint64(len(buf)), Buf: buf}
		done := e.submit(v, r)
		w.run()
		if !*done || r.Err != nil {
			t.Fatalf("%v: %v, %v", op, *done, r.Err)
		}
		if seen != i+1 {
			t.Errorf("%v: the session was given other memory than the caller's", op)
		}
	}
}
