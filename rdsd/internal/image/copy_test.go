package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/rdserr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// volume exports a device and connects to it.
func volume(t *testing.T, d blk.Device) Volume {
	t.Helper()
	s, err := nbd.NewServer(nbd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Add(nbd.Export{Name: "v", Device: d}); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "rdsd")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	c, err := nbd.Dial(t.Context(), l.Addr().String(), "v")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		s.Close()
		<-served
		os.RemoveAll(dir)
	})
	return Volume{c}
}

func memory(t *testing.T, size uint64, block uint32) *blk.Mem {
	t.Helper()
	m, err := blk.NewMem(blk.MemOptions{Size: size, LogicalBlock: block})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// sparse makes a file of size bytes with data at some places, zeroes among it
// that are not holes.
func sparse(t *testing.T, size int) (path string, content []byte) {
	t.Helper()
	content = make([]byte, size)
	rng := rand.New(rand.NewSource(5))
	path = filepath.Join(t.TempDir(), "image")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, r := range [][2]int{{0, 70_000}, {1 << 20, 2<<20 + 300_000}, {size - 5000, size}} {
		part := content[r[0]:r[1]]
		rng.Read(part)
		if len(part) > 1<<20 {
			clear(part[100_000:300_000]) // zeroes that are not a hole
			clear(part[400_000:404_000])
		}
		if _, err := f.WriteAt(part, int64(r[0])); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	return path, content
}

func allocated(t *testing.T, path string) int64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// TestCopy: from a file to a volume full of other things, from there to a
// volume, and back to a file; sizes that are no multiple of a block.
func TestCopy(t *testing.T) {
	for _, c := range []struct {
		size  int
		block uint32
	}{{8 << 20, 512}, {8<<20 + 777, 512}, {8<<20 + 777, 4096}, {5000, 4096}} {
		t.Run(fmt.Sprintf("%d bytes, blocks of %d", c.size, c.block), func(t *testing.T) {
			var path string
			var content []byte
			if c.size > 1<<20 {
				path, content = sparse(t, c.size)
			} else {
				content = bytes.Repeat([]byte("x"), c.size)
				path = filepath.Join(t.TempDir(), "small")
				if err := os.WriteFile(path, content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			file, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			block := int(c.block)
			padded := (c.size + block - 1) / block * block
			first := memory(t, 16<<20, c.block)
			junk := bytes.Repeat([]byte{0xee}, 16<<20)
			if err := blk.WriteAt(first, junk, 0, 0); err != nil {
				t.Fatal(err)
			}
			v1, v2 := volume(t, first), volume(t, memory(t, 16<<20, c.block))
			var m Meter
			if err := Copy(t.Context(), v1, file, &m); err != nil {
				t.Fatal(err)
			}
			if m.Done.Load() != int64(c.size) {
				t.Errorf("%d bytes are through of %d", m.Done.Load(), c.size)
			}
			if err := Compare(t.Context(), v1, file, &m); err != nil || m.Phase() != Verifying || m.Done.Load() != int64(c.size) {
				t.Errorf("%v, %s %d", err, m.Phase(), m.Done.Load())
			}
			want := append(append(bytes.Clone(content), make([]byte, padded-c.size)...), junk[padded:]...)
			got := make([]byte, 16<<20)
			if err := blk.ReadAt(first, got, 0); err != nil || !bytes.Equal(got, want) {
				t.Errorf("the volume differs: %v", err)
			}
			if err := Copy(t.Context(), v2, v1, new(Meter)); err != nil {
				t.Fatal(err)
			}
			back := filepath.Join(t.TempDir(), "back")
			out, err := Create(back, v2.Size(), false)
			if err != nil {
				t.Fatal(err)
			}
			if err := Copy(t.Context(), out, v2, new(Meter)); err != nil {
				t.Fatal(err)
			}
			out.Close()
			if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, want) {
				t.Errorf("what came back differs: %v", err)
			}
		})
	}
}

// TestCopyStaysSparse: holes and long zeroes take no space at the other end.
func TestCopyStaysSparse(t *testing.T) {
	path, content := sparse(t, 64<<20)
	m := memory(t, 64<<20, 512)
	v := volume(t, m)
	src, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	var meter Meter
	if err := Copy(t.Context(), v, src, &meter); err != nil {
		t.Fatal(err)
	}
	if n := m.Allocated(); n > 2<<20 {
		t.Errorf("%d bytes of memory for 1.4 MiB of data", n)
	}
	if d, z := meter.Data.Load(), meter.Zero.Load(); d > 2<<20 || d+z != 64<<20 {
		t.Errorf("%d bytes of data, %d of zeroes", d, z)
	}
	back := filepath.Join(t.TempDir(), "back")
	dst, err := Create(back, v.Size(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	if err := Copy(t.Context(), dst, v, new(Meter)); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(back); !bytes.Equal(got, content) {
		t.Error("what came back differs")
	}
	if n := allocated(t, back); n > 2<<20 {
		t.Errorf("the file takes %d bytes", n)
	}
	if !dst.Same(back) || dst.Same(path) {
		t.Error("Same is wrong")
	}
}

// TestCompare finds the first byte that differs, in data and in zeroes.
func TestCompare(t *testing.T) {
	path, content := sparse(t, 4<<20)
	src, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	for _, at := range []int64{3, 1<<20 + 150_000, 3<<20 + 1, int64(len(content)) - 1} {
		m := memory(t, 4<<20, 512)
		v := volume(t, m)
		if err := Copy(t.Context(), v, src, new(Meter)); err != nil {
			t.Fatal(err)
		}
		sector := make([]byte, 512)
		base := uint64(at) / 512 * 512
		if err := blk.ReadAt(m, sector, base); err != nil {
			t.Fatal(err)
		}
		sector[uint64(at)-base] ^= 1
		if err := blk.WriteAt(m, sector, base, 0); err != nil {
			t.Fatal(err)
		}
		err := Compare(t.Context(), v, src, new(Meter))
		if d, ok := errors.AsType[*Different](err); !ok || d.Off != at {
			t.Errorf("a difference at %d: %v", at, err)
		}
	}
}

// TestCopyFails: an error of either side ends the copy and is told; so does ctx.
func TestCopyFails(t *testing.T) {
	path, _ := sparse(t, 8<<20)
	src, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	f := blk.NewFault(memory(t, 8<<20, 512), 1)
	v := volume(t, f)
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Off: 1<<20 + 4096, Len: 512, Err: blk.ErrNoSpace, Count: 1})
	if err := Copy(t.Context(), v, src, new(Meter)); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full store: %v", err)
	}
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpFlush), Err: blk.ErrMedium, Count: 1})
	if err := Copy(t.Context(), v, src, new(Meter)); !errors.Is(err, syscall.EIO) {
		t.Errorf("a flush that fails: %v", err)
	}
	if err := Copy(t.Context(), volume(t, memory(t, 4096, 512)), src, new(Meter)); !errors.Is(err, rdserr.ErrNoSpace) {
		t.Errorf("a target that is too small: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Stall: true})
	defer f.Release()
	got := make(chan error, 1)
	go func() { got <- Copy(ctx, v, src, new(Meter)) }()
	for end := time.Now().Add(10 * time.Second); f.Held() == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	cancel()
	v.Close()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	short := &shrunk{File: src}
	if err := Copy(t.Context(), volume(t, memory(t, 16<<20, 512)), short, new(Meter)); !errors.Is(err, syscall.EIO) {
		t.Errorf("a source that became shorter: %v", err)
	}
}

// shrunk says that it is longer than it is.
type shrunk struct{ *File }

func (s *shrunk) Size() int64 { return s.File.Size() + 4096 }
func (s *shrunk) Extents(_, n int64) ([]blk.Extent, error) {
	return []blk.Extent{{Len: uint64(n)}}, nil
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if _, err := Open(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("open: %v", err)
	}
	if _, err := Open(dir); !errors.Is(err, rdserr.ErrInvalid) {
		t.Errorf("open a directory: %v", err)
	}
	if _, err := Create(dir, 1, true); !errors.Is(err, rdserr.ErrInvalid) {
		t.Errorf("write to a directory: %v", err)
	}
	f, err := Create(path, 10_000, false)
	if err != nil || f.Size() != 10_000 || !f.Blank() {
		t.Fatal(f, err)
	}
	if _, err := f.WriteAt(bytes.Repeat([]byte{1}, 10_000), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Zero(4096, 4096); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(path); len(bytes.Trim(b[4096:8192], "\x00")) > 0 || b[4095] != 1 || b[8192] != 1 || len(b) != 10_000 {
		t.Error("the wrong part is zeroes")
	}
	f.Close()
	if _, err := Create(path, 1, false); !errors.Is(err, rdserr.ErrExists) {
		t.Errorf("a file that exists: %v", err)
	}
	f, err = Create(path, 5, true)
	if err != nil || f.Size() != 5 {
		t.Fatal(err)
	}
	if f.Discard() {
		t.Error("a file that was there was removed")
	}
	f, err = Create(path+"2", 5, false)
	if err != nil {
		t.Fatal(err)
	}
	if !f.Discard() {
		t.Error("a file that was made stays")
	}
	if _, err := Create(filepath.Join(dir, "no", "f"), 1, false); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// fixed is a source with given extents.
type fixed struct {
	size, block int64
	extents     []blk.Extent
}

func (f fixed) Size() int64                       { return f.size }
func (f fixed) Block() int64                      { return f.block }
func (f fixed) ReadAt([]byte, int64) (int, error) { return 0, nil }
func (f fixed) Extents(off, n int64) ([]blk.Extent, error) {
	at := int64(0)
	for i, e := range f.extents {
		if at == off {
			return f.extents[i:min(i+2, len(f.extents))], nil
		}
		at += int64(e.Len)
	}
	return nil, nil
}

func TestPieces(t *testing.T) {
	z := func(n uint64) blk.Extent { return blk.Extent{Len: n, Hole: true, Zero: true} }
	d := func(n uint64) blk.Extent { return blk.Extent{Len: n} }
	for _, c := range []struct {
		what  string
		src   fixed
		align int64
		want  []piece
	}{
		{"nothing", fixed{size: 0}, 1, nil},
		{"data", fixed{5000, 1, []blk.Extent{d(5000)}}, 1, []piece{{0, 5000, false}}},
		{"zeroes", fixed{5000, 1, []blk.Extent{z(5000)}}, 1, []piece{{0, 5000, true}}},
		{"aligned", fixed{16384, 512, []blk.Extent{d(4096), z(8192), d(4096)}}, 512, []piece{{0, 4096, false}, {4096, 8192, true}, {12288, 4096, false}}},
		{"blocks that are data in part", fixed{20480, 512, []blk.Extent{z(512), d(512), z(8192), d(512), z(20480 - 9728)}}, 512,
			[]piece{{0, 4096, false}, {4096, 4096, true}, {8192, 4096, false}, {12288, 8192, true}}},
		{"zeroes too short for a block", fixed{8192, 512, []blk.Extent{d(512), z(4096), d(3584)}}, 4096, []piece{{0, 4096, false}, {4096, 4096, false}}},
		{"an end inside of a block", fixed{9000, 1, []blk.Extent{d(4096), z(4904)}}, 4096, []piece{{0, 4096, false}, {4096, 4904, true}}},
		{"an extent beyond the end", fixed{8192, 512, []blk.Extent{z(1 << 40)}}, 512, []piece{{0, 8192, true}}},
		{"a long one", fixed{pieceBytes*2 + 4096, 512, []blk.Extent{d(pieceBytes*2 + 4096)}}, 512,
			[]piece{{0, pieceBytes, false}, {pieceBytes, pieceBytes, false}, {2 * pieceBytes, 4096, false}}},
	} {
		var got []piece
		err := pieces(c.src, c.align, func(p piece) error { got = append(got, p); return nil })
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", c.what, got, err, c.want)
		}
	}
	if err := pieces(fixed{size: 512}, 1, nil); !errors.Is(err, rdserr.ErrProtocol) {
		t.Errorf("no extents: %v", err)
	}
}

func TestRuns(t *testing.T) {
	const page = pageBytes
	for _, c := range []struct {
		pages string // x is data
		least int
		want  string
	}{
		{"xxxx", page, "d4"}, {"....", 8 * page, "z4"}, {"x..x", page, "d1 z2 d1"}, {"x..x", 3 * page, "d4"},
		{"..x.", page, "z2 d1 z1"}, {"..x..", 2 * page, "z2 d1 z2"}, {"x.x..x", 2 * page, "d3 z2 d1"}, {"", page, ""},
	} {
		b := make([]byte, len(c.pages)*page)
		for i, p := range c.pages {
			if p == 'x' {
				b[i*page+i] = 1
			}
		}
		got, at := "", 0
		runs(b, page, c.least, func(from, to int, zero bool) error {
			if from != at || to <= from {
				t.Errorf("%s: a run from %d to %d after %d", c.pages, from, to, at)
			}
			kind := "d"
			if zero {
				kind = "z"
			}
			if got != "" {
				got += " "
			}
			got += fmt.Sprintf("%s%d", kind, (to-from)/page)
			at = to
			return nil
		})
		if got != c.want || at != len(b) {
			t.Errorf("%s, at least %d: %s, want %s", c.pages, c.least, got, c.want)
		}
	}
}

// TestOpenWaitsForNobody: a pipe is refused, and not opened, which would wait for its writer.
func TestOpenWaitsForNobody(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	opened := make(chan error, 1)
	go func() { _, err := Open(pipe); opened <- err }()
	select {
	case err := <-opened:
		if !errors.Is(err, rdserr.ErrInvalid) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits")
		w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // for it
		if err == nil {
			w.Close()
		}
		<-opened
	}
}
