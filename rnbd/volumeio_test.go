package rnbd

import (
	"testing"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// TestPieces: a large request is cut to what the session carries, and cut anew
// when it carries less after a reconnect.
func TestPieces(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	d := newRecorder(cached)
	w.export(&Export{Name: "d", Device: d})
	e := w.client("c")
	v := e.mustMap("d", rw)
	if v.Piece() != 64<<10 {
		t.Errorf("pieces of %d bytes", v.Piece())
	}
	if err := e.write(v, 512, 1, 130<<10, blk.FUA); err != nil {
		t.Fatal(err)
	}
	if got, want := d.asked(), "write 512+65536 fua, write 66048+65536 fua, write 131584+2048 fua"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	e.cut()
	done := e.submit(v, &blk.Request{Op: blk.OpWrite, Len: 100 << 10, Buf: make([]byte, 100<<10)})
	e.maxIO = 33<<10 + 100
	e.connect()
	if got, want := d.asked(), "write 0+33792, write 33792+31744, write 65536+33792, write 99328+3072"; got != want || !*done {
		t.Errorf("%q, done %v; want %q", got, *done, want)
	}
	// The first error is the outcome, and only when all pieces are back.
	if err := d.shrink(64 << 10); err != nil {
		t.Fatal(err)
	}
	bad := &blk.Request{Op: blk.OpWrite, Len: 128 << 10, Buf: make([]byte, 128<<10)}
	wantErr(t, "over the end of a volume that has shrunk", e.do(v, bad), blk.ErrRange)
	if sent, held := v.Inflight(); sent+held != 0 {
		t.Errorf("%d sent, %d held", sent, held)
	}
}

func (d *recorder) shrink(size uint64) error {
	i := *d.Info()
	i.Size = size
	d.SetInfo(&i)
	return nil
}

// TestLargeDiscard: lengths beyond 32 bits go in pieces too.
func TestLargeDiscard(t *testing.T) {
	info := cached
	info.Size = 9 << 30
	d := newRecorder(info)
	w := newWorld(t, ServerConfig{})
	w.export(&Export{Name: "d", Device: d})
	e := w.client("c")
	v := e.mustMap("d", rw)
	if err := e.do(v, &blk.Request{Op: blk.OpDiscard, Len: 9 << 30}); err != nil {
		t.Fatal(err)
	}
	if got, want := d.asked(), "discard 0+4294966784, discard 4294966784+4294966784, discard 8589933568+1073742848"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestTinyPieces: of a server that takes little at once few messages are made at a time, however
// long the request is, and none after an error.
func TestTinyPieces(t *testing.T) {
	const pieces = 5 * maxPieces
	info := cached
	info.Size, info.MaxDiscard = 64<<20, 4096
	d := newRecorder(info)
	w := newWorld(t, ServerConfig{})
	w.noLog = true
	w.export(&Export{Name: "d", Device: d})
	e := w.client("c")
	v := e.mustMap("d", rw)
	ops := func() int {
		n := len(d.log)
		d.log = nil
		return n
	}
	most := 0
	w.sent = func(*end, *rtrs.Req) {
		sent, held := v.Inflight()
		most = max(most, sent+held)
	}
	if err := e.do(v, &blk.Request{Op: blk.OpDiscard, Off: 4096, Len: pieces * 4096}); err != nil {
		t.Fatal(err)
	}
	if n := ops(); most != maxPieces || n != pieces {
		t.Errorf("%d pieces of %d under way, and %d carried out", most, pieces, n)
	}
	// Cut anew when the session was lost.
	e.cut()
	done := e.submit(v, &blk.Request{Op: blk.OpDiscard, Len: pieces * 4096})
	e.connect()
	if n := ops(); n != pieces || !*done {
		t.Errorf("%d pieces of %d after a cut, done: %v", n, pieces, *done)
	}
	if err := d.shrink(8192); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "over the end of a volume that has shrunk", e.do(v, &blk.Request{Op: blk.OpDiscard, Len: pieces * 4096}), blk.ErrRange)
	if n := ops(); n > 2*maxPieces {
		t.Errorf("%d pieces carried out after an error", n)
	}
	if sent, held := v.Inflight(); sent+held != 0 {
		t.Errorf("%d sent, %d held", sent, held)
	}
	// The pieces are used again for others.
	if err := e.do(v, &blk.Request{Op: blk.OpDiscard, Len: 8192}); err != nil || ops() != 2 {
		t.Errorf("after all that: %v", err)
	}
}

// TestTinyPiecesOfMany: the bound is that of all requests of a volume, of which each goes on.
func TestTinyPiecesOfMany(t *testing.T) {
	const requests, blocks = 256, 4 * maxPieces / 256
	info := cached
	info.MaxDiscard = 4096
	d := newRecorder(info)
	w := newWorld(t, ServerConfig{})
	w.noLog = true
	w.export(&Export{Name: "d", Device: d})
	e := w.client("c")
	v := e.mustMap("d", rw)
	most := 0
	w.sent = func(*end, *rtrs.Req) {
		sent, held := v.Inflight()
		most = max(most, sent+held)
	}
	for _, cut := range []bool{false, true} {
		if d.log = nil; cut {
			e.cut()
		}
		var done [requests]*bool
		for i := range done {
			done[i] = e.submit(v, &blk.Request{Op: blk.OpDiscard, Len: blocks * 4096})
		}
		if cut {
			e.refuse = rtrs.ErrClosed
			wantErr(t, "one that the session does not take", e.do(v, &blk.Request{Op: blk.OpDiscard, Len: blocks * 4096}), rtrs.ErrClosed)
			e.refuse = nil
			e.connect()
		}
		w.run()
		for i, ok := range done {
			if !*ok {
				t.Fatalf("request %d of %d waits for ever", i, requests)
			}
		}
		if most > maxPieces+requests || len(d.log) != requests*blocks || v.out != 0 {
			t.Errorf("%d pieces under way, %d carried out, %d counted at the end; want at most %d, %d, 0", most, len(d.log), v.out, maxPieces+requests, requests*blocks)
		}
	}
}

// TestOfferedNoMore: a request that waits for a server which then comes back without the operation
// fails, and is not cut into pieces of nothing without end.
func TestOfferedNoMore(t *testing.T) {
	for _, op := range []blk.Op{blk.OpDiscard, blk.OpWriteZeroes} {
		t.Run(op.String(), func(t *testing.T) {
			w := newWorld(t, ServerConfig{})
			d := newRecorder(cached)
			w.export(&Export{Name: "d", Device: d})
			e := w.client("c")
			v := e.mustMap("d", rw)
			e.cut()
			r := &blk.Request{Op: op, Len: 1 << 20}
			done := e.submit(v, r)
			info := *d.Info()
			info.MaxDiscard, info.MaxWriteZeroes = 0, 0
			d.SetInfo(&info)
			pieces := 0
			w.sent = func(_ *end, r *rtrs.Req) {
				if _, ok := r.Ctx.(*piece); !ok {
					return
				}
				if pieces++; pieces > 10 {
					t.Fatal("it is sent without end")
				}
			}
			e.connect()
			if !*done {
				t.Fatal("it is not done")
			}
			wantErr(t, "of a server that cannot any more", r.Err, blk.ErrNotSupported)
			if sent, held := v.Inflight(); sent+held+pieces != 0 {
				t.Errorf("%d sent, %d held, %d were sent", sent, held, pieces)
			}
			if err := e.write(v, 0, 1, 4096, 0); err != nil {
				t.Errorf("a write after that: %v", err)
			}
		})
	}
}

// TestInfo: what the client makes of what a server says.
func TestInfo(t *testing.T) {
	good := describe(&cached, 7)
	same := cached
	same.MaxSegments, same.MultiConn = 128, true
	for _, c := range []struct {
		what   string
		change func(r *rnbdwire.OpenRsp)
		want   func(i *blk.Info) // nil: refused
	}{
		{"as it is", func(r *rnbdwire.OpenRsp) {}, func(i *blk.Info) {}},
		{"no cache", func(r *rnbdwire.OpenRsp) { r.Cache = 0 }, func(i *blk.Info) { i.WriteCache = false }},
		{"cache without FUA", func(r *rnbdwire.OpenRsp) { r.Cache = rnbdwire.CacheWriteBack }, func(i *blk.Info) { i.FUA = false }},
		{"no discard", func(r *rnbdwire.OpenRsp) { r.MaxDiscard, r.DiscardGranularity = 0, 4096 }, func(i *blk.Info) { i.MaxDiscard = 0 }},
		{"small discard", func(r *rnbdwire.OpenRsp) { r.MaxDiscard, r.DiscardGranularity = 1, 4096 }, func(i *blk.Info) { i.DiscardGranularity = 4096 }},
		{"no zeroes", func(r *rnbdwire.OpenRsp) { r.MaxWriteZeroes = 0 }, func(i *blk.Info) { i.MaxWriteZeroes = 0 }},
		{"discards of less than a block", func(r *rnbdwire.OpenRsp) { r.LogicalBlock, r.MaxDiscard = 4096, 7 }, func(i *blk.Info) { i.LogicalBlock, i.MaxDiscard = 4096, 0 }},
		{"rotational", func(r *rnbdwire.OpenRsp) { r.Rotational = 1 }, func(i *blk.Info) { i.Rotational = true }},
		{"physical below logical", func(r *rnbdwire.OpenRsp) { r.LogicalBlock, r.PhysicalBlock = 4096, 512 }, func(i *blk.Info) { i.LogicalBlock = 4096 }},
		{"size in half a block", func(r *rnbdwire.OpenRsp) { r.LogicalBlock, r.Sectors = 4096, 2047 }, func(i *blk.Info) { i.LogicalBlock, i.Size = 4096, 1<<20-4096 }},
		{"most sectors not told", func(r *rnbdwire.OpenRsp) { r.MaxHWSectors = 0 }, func(i *blk.Info) {}},
		{"block of 0", func(r *rnbdwire.OpenRsp) { r.LogicalBlock = 0 }, nil},
		{"block of 513", func(r *rnbdwire.OpenRsp) { r.LogicalBlock = 513 }, nil},
		{"block of 256", func(r *rnbdwire.OpenRsp) { r.LogicalBlock = 256 }, nil},
		{"physical block of 3000", func(r *rnbdwire.OpenRsp) { r.PhysicalBlock = 3000 }, nil},
		{"size that wraps", func(r *rnbdwire.OpenRsp) { r.Sectors = 1 << 55 }, nil},
		{"size beyond an int64", func(r *rnbdwire.OpenRsp) { r.Sectors = 1<<64 - 1 }, nil},
		{"as large as can be", func(r *rnbdwire.OpenRsp) { r.Sectors = blk.MaxSize / 512 }, func(i *blk.Info) { i.Size = blk.MaxSize / 512 * 512 }},
		{"a sector larger", func(r *rnbdwire.OpenRsp) { r.Sectors = blk.MaxSize/512 + 1 }, nil},
		{"requests of a block", func(r *rnbdwire.OpenRsp) { r.LogicalBlock, r.MaxHWSectors = 4096, 8 }, func(i *blk.Info) { i.LogicalBlock = 4096 }},
		{"discards of a block", func(r *rnbdwire.OpenRsp) { r.LogicalBlock, r.MaxDiscard = 4096, 8 }, func(i *blk.Info) { i.LogicalBlock = 4096 }},
		{"requests of less than a block", func(r *rnbdwire.OpenRsp) { r.LogicalBlock, r.MaxHWSectors = 4096, 7 }, nil},
	} {
		r := good
		c.change(&r)
		v := &Volume{c: &Client{rt: &end{maxIO: 64 << 10}}, name: "d", access: rw}
		err := v.describe(&r)
		if (err == nil) != (c.want != nil) {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		if err != nil {
			wantErr(t, c.what, err, rdserr.ErrProtocol)
			continue
		}
		want := same
		c.want(&want)
		if *v.Info() != want {
			t.Errorf("%s: %+v\nwant %+v", c.what, *v.Info(), want)
		}
	}
}

// kernelStore fails FUA on anything but a write if it is a kernel's, and what is to fail.
type kernelStore struct {
	*recorder
	kernel bool
	fails  blk.Op // with err
	err    error
}

func (d *kernelStore) Submit(batch []*blk.Request) {
	for _, r := range batch {
		switch {
		case d.kernel && r.Flags&blk.FUA != 0 && r.Op != blk.OpWrite:
			r.Err = blk.ErrMedium
		case r.Op == d.fails && d.err != nil:
			r.Err = d.err
		default:
			d.recorder.Submit([]*blk.Request{r})
			continue
		}
		blk.Complete([]*blk.Request{r})
	}
}

// TestDurableAtAKernel: a discard or write of zeroes that is to be durable goes to a kernel
// without FUA, and is complete with a flush after all its pieces. The server that has the volume
// when it is sent decides.
func TestDurableAtAKernel(t *testing.T) {
	info := cached
	info.MaxDiscard, info.MaxWriteZeroes = 4096, 4096
	d := &kernelStore{recorder: newRecorder(info), kernel: true}
	w := newWorld(t, ServerConfig{})
	w.export(&Export{Name: "d", Device: d})
	e := w.newEnd("c", "10.0.0.1", ClientConfig{})
	e.asKernel = true
	e.connect()
	v := e.mustMap("d", rw)
	for _, c := range []struct {
		r    blk.Request
		want string
	}{
		{blk.Request{Op: blk.OpDiscard, Flags: blk.FUA, Len: 4096}, "discard 0+4096, flush"},
		{blk.Request{Op: blk.OpDiscard, Len: 4096}, "discard 0+4096"},
		{blk.Request{Op: blk.OpWriteZeroes, Flags: blk.FUA | blk.NoUnmap, Len: 8192 + 512},
			"write zeroes 0+4096 no-unmap, write zeroes 4096+4096 no-unmap, write zeroes 8192+512 no-unmap, flush"},
		{blk.Request{Op: blk.OpWrite, Flags: blk.FUA, Len: 512, Buf: make([]byte, 512)}, "flush, write 0+512 fua"},
	} {
		r := c.r
		if err := e.do(v, &r); err != nil {
			t.Errorf("%v: %v", c.want, err)
		}
		if got := d.asked(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	// It waits for a path, and another kind of server comes.
	for _, kernel := range []bool{false, true} {
		want := "discard 0+4096, discard 4096+4096, flush"
		if e.cut(); !kernel {
			want = "discard 0+4096 fua, discard 4096+4096 fua"
		}
		r := &blk.Request{Op: blk.OpDiscard, Flags: blk.FUA, Len: 8192}
		e.submit(v, r)
		w.run()
		e.asKernel, d.kernel = kernel, kernel
		e.connect()
		if got := d.asked(); got != want || r.Err != nil {
			t.Errorf("kernel %v: %q, %v; want %q", kernel, got, r.Err, want)
		}
	}
	// A discard that fails was no sync, the flush after one is.
	for _, c := range []struct {
		fails blk.Op
		then  error
	}{{blk.OpDiscard, nil}, {blk.OpFlush, blk.ErrSyncFailed}} {
		d.fails, d.err = c.fails, blk.ErrMedium
		wantErr(t, c.fails.String()+" fails", e.do(v, &blk.Request{Op: blk.OpDiscard, Flags: blk.FUA, Len: 8192}), blk.ErrMedium)
		d.err = nil
		wantErr(t, "a flush after that", e.flush(v), c.then)
	}
}
