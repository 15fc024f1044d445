package blktest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
)

// Size is how large the devices are that Run opens, in bytes, at least.
const Size = 4 << 20

// patience bounds how long a request may take.
const patience = 20 * time.Second

// Run puts devices through the suite. open makes a fresh one of at least Size
// bytes that reads as zeroes; Run closes it.
func Run(t *testing.T, open func(t *testing.T) blk.Device) {
	for _, c := range []struct {
		name string
		test func(*testing.T, blk.Device)
	}{
		{"Info", testInfo},
		{"Model", testModel},
		{"Refused", testRefused},
		{"Batch", testBatch},
		{"Zeroes", testZeroes},
		{"Concurrent", testConcurrent},
		{"Map", testMap},
		{"Close", testClose},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := open(t)
			if d.Info().Size < Size {
				t.Fatalf("the device has %d bytes; the suite wants %d", d.Info().Size, Size)
			}
			c.test(t, d)
			if err := d.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}

func testInfo(t *testing.T, d blk.Device) {
	info := d.Info()
	if err := info.Validate(); err != nil {
		t.Error(err)
	}
	if d.Info() != info {
		t.Error("Info is another struct without a change")
	}
	d.Watch(func(*blk.Info) { t.Error("told of a change there was not") })()
}

// testModel compares a device with a slice over 250 random requests.
func testModel(t *testing.T, d blk.Device) {
	info := d.Info()
	block := uint64(info.LogicalBlock)
	model := make([]byte, Size)
	rng := rand.New(rand.NewSource(1))
	for i := range 250 {
		off := uint64(rng.Intn(Size/int(block))) * block
		n := min(uint64(1+rng.Intn(64))*block, Size-off, uint64(info.MaxBytes))
		if rng.Intn(10) == 0 {
			n = min(uint64(1+rng.Intn(256<<10/int(block)))*block, Size-off, uint64(info.MaxBytes))
		}
		what := fmt.Sprintf("request %d, at %d, length %d", i, off, n)
		var err error
		switch k := rng.Intn(20); {
		case k < 8:
			b := make([]byte, n)
			rng.Read(b)
			copy(model[off:], b)
			var flags blk.Flags
			if info.FUA && rng.Intn(8) == 0 {
				flags = blk.FUA
			}
			err = blk.WriteAt(d, b, off, flags)
		case k < 16:
			b := bytes.Repeat([]byte{0xee}, int(n))
			if err = blk.ReadAt(d, b, off); err == nil && !bytes.Equal(b, model[off:off+n]) {
				t.Fatalf("%s: read something else than was written", what)
			}
		case k < 17:
			err = blk.Flush(d)
		case k < 18 && info.MaxDiscard > 0:
			if err = blk.Discard(d, off, n, 0); err == nil {
				err = blk.ReadAt(d, model[off:off+n], off) // whatever it is, it stays
			}
		case info.MaxWriteZeroes > 0:
			flags := blk.Flags(0)
			if rng.Intn(2) == 0 {
				flags = blk.NoUnmap
			}
			clear(model[off : off+n])
			err = blk.WriteZeroes(d, off, n, flags)
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	got := make([]byte, min(Size, uint64(info.MaxBytes)))
	for off := uint64(0); off < Size; off += uint64(len(got)) {
		got = got[:min(uint64(len(got)), Size-off)]
		if err := blk.ReadAt(d, got, off); err != nil || !bytes.Equal(got, model[off:off+uint64(len(got))]) {
			t.Fatalf("at the end the content at %d differs (%v)", off, err)
		}
	}
}

// testRefused checks that a device refuses requests that break a rule and that they change
// nothing (B5). The volume is filled first and compared afterwards.
func testRefused(t *testing.T, d blk.Device) {
	info := d.Info()
	block := uint64(info.LogicalBlock)
	fill := bytes.Repeat([]byte{0x5a}, int(block))
	if err := blk.WriteAt(d, fill, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := blk.WriteAt(d, fill, info.Size-block, 0); err != nil {
		t.Fatal(err)
	}
	buf := func(n uint64) []byte { return make([]byte, n) }
	for _, c := range []struct {
		name string
		r    blk.Request
		want error
	}{
		{"unknown operation", blk.Request{Op: 200, Len: block}, blk.ErrNotSupported},
		{"unknown flag", blk.Request{Op: blk.OpRead, Flags: 0x80, Len: block, Buf: buf(block)}, blk.ErrRequest},
		{"misplaced flag", blk.Request{Op: blk.OpWrite, Flags: blk.NoUnmap, Len: block, Buf: buf(block)}, blk.ErrRequest},
		{"length 0", blk.Request{Op: blk.OpWrite}, blk.ErrRequest},
		{"write without buffer", blk.Request{Op: blk.OpWrite, Len: block}, blk.ErrRequest},
		{"short buffer", blk.Request{Op: blk.OpWrite, Len: 2 * block, Buf: buf(block)}, blk.ErrRequest},
		{"flush with a range", blk.Request{Op: blk.OpFlush, Off: block, Len: block}, blk.ErrRequest},
		{"misaligned offset", blk.Request{Op: blk.OpWrite, Off: 1, Len: block, Buf: buf(block)}, blk.ErrAlign},
		{"misaligned length", blk.Request{Op: blk.OpWrite, Len: block - 1, Buf: buf(block - 1)}, blk.ErrAlign},
		{"beyond the end", blk.Request{Op: blk.OpWrite, Off: info.Size, Len: block, Buf: buf(block)}, blk.ErrRange},
		{"across the end", blk.Request{Op: blk.OpWrite, Off: info.Size - block, Len: 2 * block, Buf: buf(2 * block)}, blk.ErrRange},
		{"read across the end", blk.Request{Op: blk.OpRead, Off: info.Size - block, Len: 2 * block, Buf: buf(2 * block)}, blk.ErrRange},
		{"offset that wraps", blk.Request{Op: blk.OpWrite, Off: -block, Len: block, Buf: buf(block)}, blk.ErrRange},
		{"sum that wraps", blk.Request{Op: blk.OpRead, Off: -block, Len: 2 * block, Buf: buf(2 * block)}, blk.ErrRange},
		{"discard with a buffer", blk.Request{Op: blk.OpDiscard, Len: block, Buf: buf(block)}, nil},
		{"discard beyond the end", blk.Request{Op: blk.OpDiscard, Off: info.Size - block, Len: 1 << 62}, nil},
		{"write zeroes that wrap", blk.Request{Op: blk.OpWriteZeroes, Off: block, Len: -block}, nil},
	} {
		err := blk.Do(d, &c.r)
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if most := uint64(info.MaxBytes); most < blk.MaxIO && info.Size > most {
		b := buf(most + block)
		if err := blk.WriteAt(d, b, 0, 0); !errors.Is(err, blk.ErrTooBig) {
			t.Errorf("too large a write: %v", err)
		}
	}
	for _, off := range []uint64{0, info.Size - block} {
		got := buf(block)
		if err := blk.ReadAt(d, got, off); err != nil || !bytes.Equal(got, fill) {
			t.Errorf("a refused request changed the block at %d (%v)", off, err)
		}
	}
}

// collector counts completions.
type collector struct {
	t    *testing.T
	mu   sync.Mutex
	seen map[*blk.Request]int
	left sync.WaitGroup
}

func (c *collector) Complete(batch []*blk.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range batch {
		c.seen[r]++
		if r.Queue != blk.Completer(c) || r.Ctx != any(c) {
			c.t.Errorf("a request came back with another Queue or Ctx")
		}
		if c.seen[r] == 1 {
			c.left.Done()
		}
	}
}

func (c *collector) wait() {
	c.t.Helper()
	done := make(chan struct{})
	go func() { c.left.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		c.t.Fatalf("requests have not completed after %v", patience)
	}
}

// testBatch submits one batch with requests of every kind, right and wrong ones mixed.
func testBatch(t *testing.T, d blk.Device) {
	block := uint64(d.Info().LogicalBlock)
	c := &collector{t: t, seen: map[*blk.Request]int{}}
	var batch, wrong, right []*blk.Request
	for i := range uint64(100) {
		r := &blk.Request{Op: blk.OpWrite, Off: i * block, Len: block, Buf: bytes.Repeat([]byte{byte(i)}, int(block)), Queue: c, Ctx: c}
		switch i % 5 {
		case 1:
			r.Op = blk.OpRead
		case 2:
			*r = blk.Request{Op: blk.OpFlush, Queue: c, Ctx: c}
		case 3:
			r.Off += 1
			wrong = append(wrong, r)
		}
		if i%5 != 3 {
			right = append(right, r)
		}
		batch = append(batch, r)
	}
	c.left.Add(len(batch))
	d.Submit(batch)
	c.wait()
	for r, n := range c.seen {
		if n != 1 {
			t.Errorf("%v at %d completed %d times", r.Op, r.Off, n)
		}
	}
	for _, r := range wrong {
		if !errors.Is(r.Err, blk.ErrAlign) {
			t.Errorf("%v at %d: %v", r.Op, r.Off, r.Err)
		}
	}
	for _, r := range right {
		if r.Err != nil {
			t.Errorf("%v at %d: %v", r.Op, r.Off, r.Err)
		}
	}
	got := make([]byte, block)
	for _, r := range right {
		if r.Op != blk.OpWrite {
			continue
		}
		if err := blk.ReadAt(d, got, r.Off); err != nil || !bytes.Equal(got, r.Buf) {
			t.Errorf("the write at %d is not there (%v)", r.Off, err)
		}
	}
	d.Submit(nil) // does nothing
}

// testZeroes checks the ways to zero at every kind of border: a read brings bytes that were
// written there, or zeroes (B8).
func testZeroes(t *testing.T, d blk.Device) {
	info := d.Info()
	block := uint64(info.LogicalBlock)
	if info.MaxWriteZeroes == 0 {
		t.Skip("elsewhere: the device has no write zeroes")
	}
	const span = 512 << 10
	fill := bytes.Repeat([]byte{0xff}, span)
	got := make([]byte, span)
	for _, c := range []struct{ off, n uint64 }{
		{0, block}, {block, block}, {0, span}, {64<<10 - block, 2 * block}, {64 << 10, 64 << 10}, {block, 200 << 10}, {span - block, block},
	} {
		for _, flags := range []blk.Flags{0, blk.NoUnmap, blk.FUA, blk.FastZero} {
			if flags == blk.FUA && !info.FUA || flags == blk.FastZero && !info.FastZero {
				continue
			}
			if err := write(d, fill, 0); err != nil {
				t.Fatal(err)
			}
			err := blk.WriteZeroes(d, c.off, c.n, flags)
			want := bytes.Clone(fill)
			if flags != blk.FastZero || !errors.Is(err, blk.ErrNotSupported) {
				clear(want[c.off : c.off+c.n])
			} else {
				err = nil
			}
			if err != nil {
				t.Fatalf("write zeroes at %d, length %d, flags %v: %v", c.off, c.n, flags, err)
			}
			if err := read(d, got, 0); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("write zeroes at %d, length %d, flags %v: the content is not as it should be (%v)", c.off, c.n, flags, err)
			}
		}
	}
}

// write and read cut what is larger than the device takes.
func write(d blk.Device, b []byte, off uint64) error {
	for len(b) > 0 {
		n := min(len(b), int(d.Info().MaxBytes))
		if err := blk.WriteAt(d, b[:n], off, 0); err != nil {
			return err
		}
		b, off = b[n:], off+uint64(n)
	}
	return nil
}

func read(d blk.Device, b []byte, off uint64) error {
	for len(b) > 0 {
		n := min(len(b), int(d.Info().MaxBytes))
		if err := blk.ReadAt(d, b[:n], off); err != nil {
			return err
		}
		b, off = b[n:], off+uint64(n)
	}
	return nil
}

// testConcurrent runs several submitters, each with a part of the device of its own and
// several requests in flight, and flushes in between.
func testConcurrent(t *testing.T, d blk.Device) {
	const users, depth, rounds = 4, 8, 20
	const each = 16 << 10
	info := d.Info()
	var wg sync.WaitGroup
	var failed atomic.Bool
	for u := range users {
		wg.Go(func() {
			c := &collector{t: t, seen: map[*blk.Request]int{}}
			at := func(i int) uint64 { return uint64(u*depth+i) * each }
			for round := range rounds {
				var batch []*blk.Request
				for i := range depth {
					b := bytes.Repeat([]byte{byte(u*depth + i + round)}, each)
					batch = append(batch, &blk.Request{Op: blk.OpWrite, Off: at(i), Len: each, Buf: b, Queue: c, Ctx: c})
				}
				batch = append(batch, &blk.Request{Op: blk.OpFlush, Queue: c, Ctx: c})
				c.left.Add(len(batch))
				mine := append([]*blk.Request(nil), batch...)
				d.Submit(batch)
				c.wait()
				for i, r := range mine {
					if r.Err != nil && !failed.Swap(true) {
						t.Errorf("user %d, request %d: %v", u, i, r.Err)
					}
				}
				got := make([]byte, each)
				i := round % depth
				if err := read(d, got, at(i)); (err != nil || got[0] != byte(u*depth+i+round) || got[each-1] != got[0]) && !failed.Swap(true) {
					t.Errorf("user %d round %d: read %d, err %v", u, round, got[0], err)
				}
			}
		})
	}
	if uint64(users*depth*each) > info.Size || each > info.MaxBytes {
		t.Fatal("the device is too small for this test")
	}
	wg.Wait()
}

func testMap(t *testing.T, d blk.Device) {
	m, ok := blk.As[blk.Mapper](d)
	if !ok {
		t.Skip("elsewhere: the device has no map")
	}
	info := d.Info()
	data := bytes.Repeat([]byte{1}, 128<<10)
	if err := write(d, data, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := blk.Flush(d); err != nil {
		t.Fatal(err)
	}
	scratch := make([]blk.Extent, 0, 4)
	block := uint64(info.LogicalBlock)
	for _, c := range []struct{ off, n uint64 }{{0, info.Size}, {1<<20 + block, 2 * block}, {info.Size - block, block}, {block, 2 << 20}} {
		for off, end := c.off, c.off+c.n; off < end; {
			out, err := m.Map(off, end-off, scratch[:0])
			if err != nil || len(out) == 0 {
				t.Fatalf("map at %d of %d to %d: %d extents, %v", off, c.off, end, len(out), err)
			}
			for _, e := range out {
				if e.Len == 0 || e.Len > end-off || e.Len%block != 0 {
					t.Fatalf("an extent of %d bytes at %d, range %d to %d", e.Len, off, c.off, end)
				}
				if e.Zero && off < 1<<20+uint64(len(data)) && off+e.Len > 1<<20 {
					t.Fatalf("at %d, length %d: called zero, and there is data", off, e.Len)
				}
				off += e.Len
			}
		}
	}
	for _, c := range []struct{ off, n uint64 }{{info.Size, block}, {0, info.Size + block}, {block, -block}} {
		if _, err := m.Map(c.off, c.n, scratch[:0]); err == nil {
			t.Errorf("map at %d, length %d is beyond the end and was answered", c.off, c.n)
		}
	}
}

// testClose checks that requests in flight complete and that later ones fail.
func testClose(t *testing.T, d blk.Device) {
	block := uint64(d.Info().LogicalBlock)
	c := &collector{t: t, seen: map[*blk.Request]int{}}
	var batch []*blk.Request
	for i := range uint64(32) {
		batch = append(batch, &blk.Request{Op: blk.OpWrite, Off: i * block, Len: block, Buf: make([]byte, block), Queue: c, Ctx: c})
	}
	c.left.Add(len(batch))
	d.Submit(batch)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if len(c.seen) != 32 {
		t.Errorf("Close returned with %d of 32 requests completed", len(c.seen))
	}
	if err := blk.ReadAt(d, make([]byte, block), 0); !errors.Is(err, blk.ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
	if err := blk.Flush(d); !errors.Is(err, blk.ErrClosed) {
		t.Errorf("flush after close: %v", err)
	}
}
