package blk

import (
	"errors"
	"testing"
)

// TestLongZeroes: a request without data that covers much of a volume in memory
// is not carried out in the thread that submits it, and neither a resize nor the
// end of the volume is behind it for others.
func TestLongZeroes(t *testing.T) {
	const size = 64 << 20
	m, err := NewMem(MemOptions{Size: size})
	if err != nil {
		t.Fatal(err)
	}
	c := &counter{}
	buf := make([]byte, 4096)
	// What takes long holds sizing: as long as it is held here, it cannot be done.
	m.sizing.Lock()
	for i, r := range []*Request{
		{Op: OpWriteZeroes, Flags: NoUnmap, Len: size / 2},
		{Op: OpDiscard, Off: size / 2, Len: size / 2},
		{Op: OpWriteZeroes, Len: size / 4},
	} {
		r.Queue = c
		soon(t, "Submit of a long "+r.Op.String(), func() { m.Submit([]*Request{r}) })
		short := &counter{}
		soon(t, "what comes behind it", func() {
			m.Submit([]*Request{{Op: OpWrite, Len: 4096, Buf: buf, Queue: short}, {Op: OpDiscard, Len: memInPlace, Queue: short}})
		})
		if short.ok.Load() != 2 || c.ok.Load() != 0 {
			t.Fatalf("request %d: %d short ones and %d long ones have completed; want 2 and none", i, short.ok.Load(), c.ok.Load())
		}
	}
	m.sizing.Unlock()
	eventually(t, "they complete", func() bool { return c.ok.Load() == 3 })
	if got, want := m.Allocated(), uint64(size/4); got != want {
		t.Errorf("%d bytes are allocated; want %d", got, want)
	}
	if err := m.Resize(size / 2); err != nil {
		t.Fatal(err)
	}
	if err := Do(m, &Request{Op: OpDiscard, Off: size / 2, Len: size / 4}); !errors.Is(err, ErrRange) {
		t.Errorf("a long discard beyond the new end: %v", err)
	}
	// Close waits for what is in flight.
	m.sizing.Lock()
	last := &Request{Op: OpWriteZeroes, Flags: NoUnmap, Len: size / 2, Queue: c}
	m.Submit([]*Request{last})
	closed := make(chan error, 1)
	go func() { closed <- m.Close() }()
	eventually(t, "the volume is being closed", func() bool {
		m.resize.RLock()
		defer m.resize.RUnlock()
		return m.closed
	})
	select {
	case <-closed:
		t.Fatal("Close has not waited for what is in flight")
	default:
	}
	m.sizing.Unlock()
	if err := <-closed; err != nil || c.ok.Load() != 4 || m.Allocated() != 0 {
		t.Errorf("%v, %d completed, %d bytes are allocated after Close", err, c.ok.Load(), m.Allocated())
	}
}

// TestLongAmongShort: of a batch with a long request in front the short ones complete at once,
// each once, and the long one when it has been carried out.
func TestLongAmongShort(t *testing.T) {
	const size = 64 << 20
	m, err := NewMem(MemOptions{Size: size})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	long, first, second := &counter{}, &counter{}, &counter{}
	buf := make([]byte, 4096)
	m.sizing.Lock()
	m.Submit([]*Request{
		{Op: OpDiscard, Len: size / 2, Queue: long},
		{Op: OpWrite, Off: size / 2, Len: 4096, Buf: buf, Queue: first},
		{Op: OpWrite, Off: size / 4 * 3, Len: 4096, Buf: buf, Queue: second},
	})
	if l, f, s := long.ok.Load(), first.ok.Load(), second.ok.Load(); l != 0 || f != 1 || s != 1 {
		t.Errorf("the long one has completed %d times, the others %d and %d; want 0, 1 and 1", l, f, s)
	}
	m.sizing.Unlock()
	eventually(t, "the long one completes", func() bool { return long.ok.Load() == 1 })
}
