package blk_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

func TestMemOptions(t *testing.T) {
	for _, o := range []blk.MemOptions{{Size: 1000}, {Size: 1 << 63}, {Size: 1 << 20, LogicalBlock: 100}} {
		if _, err := blk.NewMem(o); !errors.Is(err, rdserr.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestMemHuge: size costs nothing, nor do operations on all of it.
func TestMemHuge(t *testing.T) {
	m := newMem(t, blk.MemOptions{Size: blk.MaxSize})
	defer m.Close()
	data := bytes.Repeat([]byte{7}, 4096)
	for _, off := range []uint64{0, 1 << 40, blk.MaxSize - 4096} {
		if err := blk.WriteAt(m, data, off, 0); err != nil {
			t.Fatal(err)
		}
	}
	if m.Allocated() != 3*64<<10 {
		t.Errorf("%d bytes are allocated", m.Allocated())
	}
	if err := blk.Discard(m, 4096, blk.MaxSize-8192, 0); err != nil {
		t.Fatal(err)
	}
	if m.Allocated() != 2*64<<10 {
		t.Errorf("%d bytes are allocated after the discard", m.Allocated())
	}
	got := make([]byte, 4096)
	for off, want := range map[uint64]byte{0: 7, 1 << 40: 0, blk.MaxSize - 4096: 7} {
		if err := blk.ReadAt(m, got, off); err != nil || got[0] != want {
			t.Errorf("at %d: %d, %v", off, got[0], err)
		}
	}
	if err := blk.WriteZeroes(m, 0, blk.MaxSize, 0); err != nil || m.Allocated() != 0 {
		t.Errorf("%d bytes are allocated, %v", m.Allocated(), err)
	}
}

func TestMemLimit(t *testing.T) {
	m := newMem(t, blk.MemOptions{Size: 1 << 30, Limit: 128 << 10})
	defer m.Close()
	b := make([]byte, 4096)
	for _, off := range []uint64{0, 1 << 20, 8192} {
		if err := blk.WriteAt(m, b, off, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := blk.WriteAt(m, b, 2<<20, 0); !errors.Is(err, blk.ErrNoSpace) {
		t.Errorf("a write beyond the limit: %v", err)
	}
	if err := blk.WriteZeroes(m, 2<<20, 4096, blk.NoUnmap); !errors.Is(err, blk.ErrNoSpace) {
		t.Errorf("zeroes that shall be allocated: %v", err)
	}
	if err := blk.WriteZeroes(m, 2<<20, 4096, 0); err != nil {
		t.Errorf("zeroes that need no memory: %v", err)
	}
	if err := blk.Discard(m, 0, 64<<10, 0); err != nil {
		t.Fatal(err)
	}
	if err := blk.WriteAt(m, b, 2<<20, 0); err != nil {
		t.Errorf("a write after memory was given back: %v", err)
	}
}

// purse lets a volume have so many bytes.
type purse struct{ left, closed int64 }

func (p *purse) Take(n int64) error {
	if p.left < n {
		return errors.New("the purse is empty")
	}
	p.left -= n
	return nil
}
func (p *purse) Give(n int64) { p.left += n }
func (p *purse) Close()       { p.closed++ }

// TestMemPurse: pages are paid for before they are made, and paid back when they are given up.
func TestMemPurse(t *testing.T) {
	const page = 64 << 10
	p := &purse{left: 2 * page}
	m := newMem(t, blk.MemOptions{Size: 1 << 20, Purse: p})
	b := make([]byte, 4096)
	write := func(off uint64, want error) {
		t.Helper()
		if err := blk.WriteAt(m, b, off, 0); !errors.Is(err, want) || want != nil && !strings.Contains(err.Error(), "the purse is empty") {
			t.Errorf("a write at %d: %v, want %v", off, err, want)
		}
	}
	write(0, nil)
	write(4096, nil)
	write(page, nil)
	write(2*page, blk.ErrNoSpace)
	if p.left != 0 || m.Allocated() != 2*page {
		t.Errorf("%d bytes are left and %d allocated", p.left, m.Allocated())
	}
	if err := blk.Discard(m, 0, page, 0); err != nil || p.left != page {
		t.Errorf("after a discard %d bytes are left, %v", p.left, err)
	}
	write(2*page, nil)
	if err := m.Resize(2 * page); err != nil || p.left != page {
		t.Errorf("after the end was cut off %d bytes are left, %v", p.left, err)
	}
	m.Close()
	m.Close()
	if p.left != 2*page || p.closed != 1 {
		t.Errorf("after the end %d bytes are left, closed %d times", p.left, p.closed)
	}
}

// TestMemGrows: a volume that was made larger can be filled.
func TestMemGrows(t *testing.T) {
	m := newMem(t, blk.MemOptions{Size: 64 << 10})
	defer m.Close()
	if err := m.Resize(1 << 20); err != nil {
		t.Fatal(err)
	}
	if err := blk.WriteAt(m, bytes.Repeat([]byte{1}, 1<<20), 0, 0); err != nil {
		t.Error(err)
	}
}

// TestMemResize: what was cut off does not come back.
func TestMemResize(t *testing.T) {
	m := newMem(t, blk.MemOptions{Size: 1 << 20})
	if err := blk.WriteAt(m, bytes.Repeat([]byte{1}, 1<<20), 0, 0); err != nil {
		t.Fatal(err)
	}
	for _, size := range []uint64{100 << 10, 1 << 20} {
		if err := m.Resize(size); err != nil {
			t.Fatal(err)
		}
	}
	b := make([]byte, 1<<20)
	if err := blk.ReadAt(m, b, 0); err != nil || len(bytes.Trim(b[:100<<10], "\x01")) != 0 || len(bytes.Trim(b[100<<10:], "\x00")) != 0 {
		t.Errorf("after shrinking and growing the content is wrong (%v)", err)
	}
	if err := m.Resize(100); !errors.Is(err, rdserr.ErrInvalid) {
		t.Errorf("a size of 100: %v", err)
	}
	m.Close()
	if err := m.Resize(1 << 20); !errors.Is(err, blk.ErrClosed) {
		t.Errorf("resized when closed: %v", err)
	}
}

func TestReadOnly(t *testing.T) {
	m := newMem(t, blk.MemOptions{})
	ro := blk.ReadOnly(m)
	b := bytes.Repeat([]byte{9}, 512)
	if err := blk.WriteAt(m, b, 0, 0); err != nil {
		t.Fatal(err)
	}
	completed := map[*blk.Request]int{}
	done := blk.CompleteFunc(func(r *blk.Request) { completed[r]++ })
	read := func() *blk.Request {
		return &blk.Request{Op: blk.OpRead, Len: 512, Buf: make([]byte, 512), Queue: done}
	}
	write := func() *blk.Request { return &blk.Request{Op: blk.OpWrite, Len: 512, Buf: b, Queue: done} }
	batch := []*blk.Request{read(), write(), {Op: blk.OpDiscard, Len: 512, Queue: done}, read(), {Op: blk.OpFlush, Queue: done}, write()}
	want := []error{nil, blk.ErrReadOnly, blk.ErrReadOnly, nil, nil, blk.ErrReadOnly}
	ro.Submit(slices.Clone(batch))
	for i, r := range batch {
		if completed[r] != 1 || !errors.Is(r.Err, want[i]) {
			t.Errorf("request %d: completed %d times, %v, want %v", i, completed[r], r.Err, want[i])
		}
	}
	if got, ok := blk.As[*blk.Mem](blk.NewStats(ro)); !ok || got != m {
		t.Error("the memory volume is not found under its layers")
	}
	if _, ok := blk.As[*blk.File](ro); ok {
		t.Error("a file is found that is not there")
	}
	if err := ro.Close(); err != nil || !errors.Is(blk.Flush(m), blk.ErrClosed) {
		t.Errorf("closing the upper layer does not close the device (%v)", err)
	}
}
