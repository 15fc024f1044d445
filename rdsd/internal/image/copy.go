package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/rdsd/rdsd/rdserr"
)

// Phases of a copy.
const (
	Copying   = "copying"
	Verifying = "verifying"
)

// Meter shows how far a copy has come. Its fields may be read at any time.
type Meter struct {
	phase atomic.Pointer[string]
	Done  atomic.Int64 // bytes of the phase, holes included
	Data  atomic.Int64 // bytes written as data
	Zero  atomic.Int64 // bytes that are zeroes: written as such, or left out
}

// Phase is Copying or Verifying.
func (m *Meter) Phase() string {
	if p := m.phase.Load(); p != nil {
		return *p
	}
	return Copying
}

// workers is how many pieces are under way at a time.
const workers = 8

// Copy makes target begin with what source holds, and flushes it. What is zero
// at the source becomes a hole where the target can have one. If the source ends
// inside of a block of the target, the rest of the block is zeroes; what is
// behind stays as it is. When ctx ends, Copy returns as soon as what is under way
// has ended; close the volumes to end that too.
func Copy(ctx context.Context, target Target, source Source, m *Meter) error {
	if err := Fits(target, source); err != nil {
		return err
	}
	m.phase.Store(new(string(Copying)))
	err := run(ctx, source, target.Block(), func(buf []byte, p piece) error {
		if p.zero {
			return m.zero(target, p.off, roundUp(p.n, target.Block()))
		}
		return m.data(target, source, buf, p)
	}, &m.Done)
	if err != nil {
		return err
	}
	if err := target.Flush(); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	return nil
}

// Fits refuses a target that is too small for the source (ErrNoSpace). Copy asks it before it writes anything.
func Fits(target Target, source Source) error {
	if need := roundUp(source.Size(), target.Block()); need > target.Size() {
		return rdserr.With(rdserr.ErrNoSpace, "the source has %d bytes and the target only %d", source.Size(), target.Size())
	}
	return nil
}

func roundUp(n, block int64) int64 { return (n + block - 1) / block * block }

// zero makes a range of the target zeroes, or leaves it so.
func (m *Meter) zero(target Target, off, n int64) error {
	m.Zero.Add(n)
	if target.Blank() {
		return nil
	}
	return target.Zero(off, n)
}

// data copies a piece, without the zeroes in it.
func (m *Meter) data(target Target, source Source, buf []byte, p piece) error {
	buf = buf[:roundUp(p.n, target.Block())]
	if err := readFull(source, buf[:p.n], p.off); err != nil {
		return err
	}
	clear(buf[p.n:])
	page := int(max(pageBytes, target.Block()))
	least := sparseBytes
	if target.Blank() {
		least = page
	}
	return runs(buf, page, least, func(from, to int, zero bool) error {
		if zero {
			return m.zero(target, p.off+int64(from), int64(to-from))
		}
		m.Data.Add(int64(to - from))
		_, err := target.WriteAt(buf[from:to], p.off+int64(from))
		return err
	})
}

// runs splits b into what is data and runs of zeroes of at least so many bytes,
// at multiples of page.
func runs(b []byte, page, least int, each func(from, to int, zero bool) error) error {
	data := 0 // where data begins that was not handed out
	for at := 0; at < len(b); {
		end := at
		for end < len(b) && isZero(b[end:min(end+page, len(b))]) {
			end = min(end+page, len(b))
		}
		if end-at >= least || at == 0 && end == len(b) {
			if at > data {
				if err := each(data, at, false); err != nil {
					return err
				}
			}
			if err := each(at, end, true); err != nil {
				return err
			}
			data = end
		}
		at = min(end+page, len(b)) // the page at end is data
	}
	if data < len(b) {
		return each(data, len(b), false)
	}
	return nil
}

// Different is what Compare found.
type Different struct{ Off int64 }

func (e *Different) Error() string {
	return fmt.Sprintf("the target differs from the source at byte %d", e.Off)
}

// Compare reads both and returns a *Different with the first byte that is not
// the same. Zeroes are read at the target too.
func Compare(ctx context.Context, target Target, source Source, m *Meter) error {
	m.phase.Store(new(string(Verifying)))
	m.Done.Store(0)
	var mu sync.Mutex
	var found *Different
	err := run(ctx, source, target.Block(), func(buf []byte, p piece) error {
		if err := compare(target, source, buf, p); err != nil {
			d, ok := errors.AsType[*Different](err)
			if !ok {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if found == nil || d.Off < found.Off {
				found = d
			}
			return err
		}
		return nil
	}, &m.Done)
	if found != nil {
		return found
	}
	return err
}

// compare compares one piece, of any length.
func compare(target Target, source Source, buf []byte, p piece) error {
	half := len(buf) / 2
	for p.n > 0 {
		n := min(p.n, pieceBytes)
		want := zeroes[:n]
		if !p.zero {
			want = buf[half:][:n]
			if err := readFull(source, want, p.off); err != nil {
				return err
			}
		}
		got := buf[:half][:roundUp(n, target.Block())]
		if err := readFull(target, got, p.off); err != nil {
			return err
		}
		if !bytes.Equal(want, got[:n]) {
			i := 0
			for want[i] == got[i] {
				i++
			}
			return &Different{p.off + int64(i)}
		}
		p.off, p.n = p.off+n, p.n-n
	}
	return nil
}

var zeroes [pieceBytes]byte

// readFull reads all of p. What the source has no more of is an error.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	switch {
	case n == len(p):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return rdserr.With(rdserr.ErrIO, "it ended at byte %d; was it made shorter meanwhile?", off+int64(n))
	}
	return err
}

// run hands the pieces of source to some goroutines, each with a buffer for two
// pieces, until one fails or ctx ends. done counts the bytes that are through.
func run(ctx context.Context, source Source, align int64, do func(buf []byte, p piece) error, done *atomic.Int64) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	todo := make(chan piece)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			buf := make([]byte, 2*roundUp(pieceBytes, align))
			for p := range todo {
				if err := do(buf, p); err != nil {
					stop(err)
					return
				}
				done.Add(p.n)
			}
		})
	}
	err := pieces(source, align, func(p piece) error {
		select {
		case todo <- p:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	close(todo)
	wg.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	return err
}
