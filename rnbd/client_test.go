package rnbd

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	"github.com/rdsd/rdsd/wire"
)

func stateOf(v *Volume) State { s, _ := v.State(); return s }

func wantState(t testing.TB, what string, v *Volume, want State) {
	t.Helper()
	if got := stateOf(v); got != want {
		t.Errorf("%s: %v (%v), want %v", what, got, v.Err(), want)
	}
}

func TestMapErrors(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	w.mem("d", 1<<20)
	e := w.client("c")
	for _, c := range []struct {
		name   string
		access wire.RNBDAccess
		want   error
	}{
		{"", rw, rdserr.ErrInvalid},
		{"a\x00b", rw, rdserr.ErrInvalid},
		{"d", 3, rdserr.ErrInvalid},
		{"nothing", rw, rdserr.ErrNotFound},
		{"../d", rw, rdserr.ErrInvalid},
		{"d", rw, nil},
		{"d", ro, ErrExists},
	} {
		v, err := e.tryMap(c.name, c.access)
		wantErr(t, c.name, err, c.want)
		if err != nil && v != nil {
			wantState(t, c.name, v, Unmapped)
		}
	}
	if n := len(e.c.Volumes()); n != 1 {
		t.Errorf("%d volumes", n)
	}
}

// TestMapBeforeThePath: a mapping waits for the session, and may be given up.
func TestMapBeforeThePath(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	w.mem("d", 1<<20)
	e := w.newEnd("c", "10.0.0.1", ClientConfig{})
	v, err := e.c.Map(w.now, "d", rw)
	if err != nil {
		t.Fatal(err)
	}
	gone, err := e.c.Map(w.now, "nothing", rw)
	if err != nil {
		t.Fatal(err)
	}
	w.run()
	wantState(t, "without a path", v, Init)
	wantErr(t, "a request", e.flush(v), ErrNotOpen)
	if err := gone.Unmap(w.now, false); err != nil || !e.unmapped[gone] {
		t.Errorf("given up: %v", err)
	}
	e.connect()
	wantState(t, "with a path", v, Open)
	if err, told := e.mapped[v]; !told || err != nil {
		t.Errorf("told %v, %v", told, err)
	}
	if _, told := e.mapped[gone]; told {
		t.Error("what was given up was told of")
	}
}

// TestUnmapWhileOpening: the server is not left with a volume nobody closes,
// nor is one of the same name closed that is mapped next.
func TestUnmapWhileOpening(t *testing.T) {
	for _, cut := range []bool{false, true} {
		w := newWorld(t, ServerConfig{})
		dir := t.TempDir()
		writeFile(t, dir+"/d", 1<<20)
		w.root(&Root{Path: dir})
		e := w.client("c")
		w.holdOpen = true
		v, err := e.c.Map(w.now, "d", rw)
		if err != nil {
			t.Fatal(err)
		}
		w.run()
		if err := v.Unmap(w.now, false); err != nil {
			t.Fatal(err)
		}
		w.run()
		if e.unmapped[v] {
			t.Fatal("unmapped while the server opens it")
		}
		_, err = e.c.Map(w.now, "d", rw)
		wantErr(t, "mapped again meanwhile", err, ErrBusy)
		if cut {
			e.cut()
			if !e.unmapped[v] {
				t.Error("the session is lost, and the volume is still waited for")
			}
			w.holdOpen = false
			w.run()
			e.connect()
		}
		w.holdOpen = false
		w.run()
		if !e.unmapped[v] || len(w.srv.Open()) != 0 {
			t.Errorf("cut %v: unmapped %v, %d open at the server", cut, e.unmapped[v], len(w.srv.Open()))
		}
		if e.mapped[v] != nil || len(e.mapped) != 0 {
			t.Error("told as mapped")
		}
		e.mustMap("d", rw)
	}
}

// TestPathLostWhileMapping: it goes on when there is a path again.
func TestPathLostWhileMapping(t *testing.T) {
	for _, late := range []bool{false, true} {
		dir := t.TempDir()
		writeFile(t, dir+"/d", 1<<20)
		w := newWorld(t, ServerConfig{})
		w.root(&Root{Path: dir})
		e := w.client("c")
		e.lateGone = late
		w.holdOpen = true
		v, err := e.c.Map(w.now, "d", rw)
		if err != nil {
			t.Fatal(err)
		}
		w.run()
		e.cut()
		wantState(t, "without a path", v, Init)
		w.holdOpen = false
		w.run()
		e.connect()
		wantState(t, "with one again", v, Open)
		if n := len(w.srv.Open()); n != 1 {
			t.Errorf("%d are open at the server", n)
		}
	}
}

// TestReopened: after the server returns every volume is opened by itself, what
// waited runs, and the numbers may be others.
func TestReopened(t *testing.T) {
	w := newWorld(t, ServerConfig{Boot: 1, FirstID: 100})
	fa, expA := w.fault("a", 1<<20)
	_, expB := w.fault("b", 1<<20)
	e := w.client("c")
	va, vb := e.mustMap("a", rw), e.mustMap("b", rw)
	fa.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Stall: true, Count: 1})
	sent := e.submit(va, &blk.Request{Op: blk.OpWrite, Len: 4096, Buf: bytes.Repeat([]byte{0xaa}, 4096)})
	w.run()
	e.cut()
	wantState(t, "without a path", va, Closed)
	waits := e.submit(vb, &blk.Request{Op: blk.OpWrite, Len: 4096, Buf: bytes.Repeat([]byte{0xbb}, 4096)})
	fa.Release()
	w.run()
	if *sent || *waits {
		t.Fatal("answered without a path")
	}
	// The numbers of before are now the other volumes': nothing may go there.
	w.restart(ServerConfig{Boot: 1, FirstID: 98}, expB, expA)
	w.mem("filler", 4096)
	slices.Reverse(e.c.volumes) // opened in another order
	filler := w.client("f")
	filler.mustMap("filler", ro)
	e.connect()
	if !*sent || !*waits {
		t.Fatalf("not carried out: %v, %v; %v, %v", *sent, *waits, stateOf(va), stateOf(vb))
	}
	for b, v := range map[byte]*Volume{0xaa: va, 0xbb: vb} {
		wantState(t, v.Name(), v, Open)
		if got, err := e.read(v, 0, 4096); got != b || err != nil {
			t.Errorf("%s: %#x, %v; want %#x", v.Name(), got, err, b)
		}
	}
	if va.id == 100 && vb.id == 101 {
		t.Error("the numbers are the same: the test shows nothing")
	}
}

// TestResizedMeanwhile: the size is seen when the volume is opened anew, and by
// asking.
func TestResizedMeanwhile(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	m := w.mem("d", 1<<20)
	e := w.client("c")
	v := e.mustMap("d", rw)
	e.cut()
	if err := m.Resize(2 << 20); err != nil {
		t.Fatal(err)
	}
	e.connect()
	if v.Info().Size != 2<<20 || e.changed != 1 || e.countEvents(VolumeResized) != 1 {
		t.Errorf("size %d, told %d times", v.Info().Size, e.changed)
	}
	if err := e.write(v, 2<<20-512, 1, 512, 0); err != nil {
		t.Error(err)
	}
	if err := m.Resize(3 << 20); err != nil {
		t.Fatal(err)
	}
	w.tick(6 * time.Second)
	if v.Info().Size != 3<<20 || e.changed != 2 {
		t.Errorf("size %d after it was due to ask", v.Info().Size)
	}
	if err := m.Resize(1 << 20); err != nil {
		t.Fatal(err)
	}
	v.Ask(w.now)
	w.run()
	if v.Info().Size != 1<<20 {
		t.Errorf("size %d after asking", v.Info().Size)
	}
	wantErr(t, "behind the new end", e.write(v, 2<<20, 1, 512, 0), blk.ErrRange)
	w.tick(time.Minute)
	if e.changed != 3 {
		t.Errorf("told %d times", e.changed)
	}
}

// TestResizeHere: the kernel's attribute, which changes this side alone.
func TestResizeHere(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	m := w.mem("d", 1<<20)
	e := w.client("c")
	v := e.mustMap("d", rw)
	wantErr(t, "half a block", v.Resize(1<<20+100), rdserr.ErrInvalid)
	if err := v.Resize(512 << 10); err != nil || v.Info().Size != 512<<10 || e.changed != 1 {
		t.Fatalf("%v, %d", err, v.Info().Size)
	}
	w.tick(20 * time.Second)
	if v.Info().Size != 512<<10 {
		t.Error("what the server says, and has said before, undid it")
	}
	if err := m.Resize(4 << 20); err != nil {
		t.Fatal(err)
	}
	w.tick(20 * time.Second)
	if v.Info().Size != 4<<20 {
		t.Errorf("size %d after the server's changed", v.Info().Size)
	}
	if err := v.Unmap(w.now, true); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "afterwards", v.Resize(4096), ErrGone)
}

// TestKernelServerIsNotAsked: a server that does not know the additions sees
// none of them.
func TestKernelServerIsNotAsked(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	m := w.mem("d", 1<<20)
	e := w.newEnd("c", "10.0.0.1", ClientConfig{})
	e.asKernel = true
	e.connect()
	v := e.mustMap("d", rw)
	e.log = nil
	w.tick(time.Minute)
	v.Ask(w.now)
	w.run()
	if len(e.log) != 0 {
		t.Errorf("a kernel was sent %x", e.log)
	}
	if err := e.write(v, 0, 1, 512, 0); err != nil {
		t.Fatal(err)
	}
	if err := m.Resize(2 << 20); err != nil {
		t.Fatal(err)
	}
	e.cut()
	e.connect()
	if v.Info().Size != 2<<20 {
		t.Errorf("size %d", v.Info().Size)
	}
	if err := e.flush(v); err != nil {
		t.Errorf("flush: %v", err)
	}
}

// TestServerComesBackWithoutIt: requests wait while the volume may still come,
// and only so long.
func TestServerComesBackWithoutIt(t *testing.T) {
	for _, policy := range []rtrs.OnLoss{rtrs.Wait, rtrs.Error} {
		w := newWorld(t, ServerConfig{Boot: 1})
		_, exp := w.fault("d", 1<<20)
		e := w.newEnd("c", "10.0.0.1", ClientConfig{OnLoss: policy, LossTimeout: 10 * time.Second})
		e.connect()
		v := e.mustMap("d", rw)
		e.cut()
		w.restart(ServerConfig{Boot: 1})
		before := e.submit(v, &blk.Request{Op: blk.OpWrite, Len: 512, Buf: make([]byte, 512)})
		e.connect()
		after := e.submit(v, &blk.Request{Op: blk.OpWrite, Len: 512, Buf: make([]byte, 512)})
		w.run()
		wantState(t, "without the export", v, Closed)
		wantErr(t, "why", v.Err(), rdserr.ErrNotFound)
		if sent, held := v.Inflight(); sent != 0 || held != 2 || *before || *after {
			t.Errorf("%d sent, %d held", sent, held)
		}
		w.tick(9 * time.Second)
		if *before || *after {
			t.Errorf("%v: failed before its time", policy)
		}
		if policy == rtrs.Error {
			w.tick(2 * time.Second)
			if !*before || !*after {
				t.Error("they wait for longer than they may")
			}
			wantErr(t, "a later one", e.flush(v), rtrs.ErrNoPath)
		}
		w.export(exp)
		w.tick(time.Second)
		wantState(t, "with the export", v, Open)
		if !*before || !*after {
			t.Error("not carried out")
		}
		if err := e.write(v, 0, 1, 512, 0); err != nil {
			t.Error(err)
		}
	}
}

// TestAnotherWriterTookOver: B6. What waited is not written over what another
// session has written meanwhile.
func TestAnotherWriterTookOver(t *testing.T) {
	for _, gone := range []bool{false, true} {
		w := newWorld(t, ServerConfig{})
		w.mem("d", 1<<20)
		a, b := w.client("a"), w.client("b")
		va := a.mustMap("d", rw)
		reader := a.w.client("r")
		vr := reader.mustMap("d", ro)
		a.cut()
		reader.cut()
		late := &blk.Request{Op: blk.OpWrite, Len: 512, Buf: bytes.Repeat([]byte{1}, 512)}
		done := a.submit(va, late)
		vb := b.mustMap("d", rw)
		if err := b.write(vb, 0, 2, 512, 0); err != nil {
			t.Fatal(err)
		}
		want := error(ErrWriter)
		if gone {
			if err := vb.Unmap(w.now, false); err != nil {
				t.Fatal(err)
			}
			w.run()
			want = ErrStale
		}
		reader.connect()
		wantState(t, "a reader", vr, Open)
		a.connect()
		wantState(t, "the writer that was away", va, Closed)
		if !*done || rdserr.Errno(late.Err) != rdserr.Errno(want) {
			t.Errorf("its write: %v, %v; want %v", *done, late.Err, want)
		}
		if got, err := reader.read(vr, 0, 512); got != 2 || err != nil {
			t.Errorf("the volume holds %d, %v", got, err)
		}
		wantErr(t, "a later write", a.write(va, 0, 1, 512, 0), want)
		if !gone {
			if err := vb.Unmap(w.now, false); err != nil {
				t.Fatal(err)
			}
			w.run()
		}
		if n := len(w.srv.Open()); n != 1 {
			t.Errorf("%d handles at the server; want the reader's", n)
		}
		w.tick(10 * time.Second)
		wantState(t, "it does not open by itself", va, Closed)
		if err := va.Remap(w.now); err != nil {
			t.Fatal(err)
		}
		w.run()
		wantState(t, "mapped anew", va, Open)
		if err := a.write(va, 0, 3, 512, 0); err != nil {
			t.Error(err)
		}
		wantErr(t, "again while it is open", va.Remap(w.now), ErrAlready)
	}
}

// TestSharedIsNotTakenOver: where several may write, others having written is
// no surprise.
func TestSharedIsNotTakenOver(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	m, _ := blk.NewMem(blk.MemOptions{Size: 1 << 20})
	w.export(&Export{Name: "d", Device: m, Rules: Rules{Shared: true}})
	a, b := w.client("a"), w.client("b")
	va := a.mustMap("d", rw)
	b.mustMap("d", rw)
	a.cut()
	a.connect()
	wantState(t, "opened anew", va, Open)
}

// TestServerWasStartedAgain: unflushed writes may be lost, so the flush that
// would have covered them fails; memory is lost as a whole.
func TestServerWasStartedAgain(t *testing.T) {
	for _, c := range []struct {
		what     string
		volatile bool
		boot     uint64 // afterwards; 1 before
		dirty    bool
		state    State
		flush    error
	}{
		{"the daemon alone", false, 1, true, Open, nil},
		{"the machine, nothing unflushed", false, 2, false, Open, nil},
		{"the machine", false, 2, true, Open, blk.ErrSyncFailed},
		{"memory", true, 1, false, Closed, ErrStale},
	} {
		w := newWorld(t, ServerConfig{Boot: 1})
		info := cached
		exp := &Export{Name: "d", Device: newRecorder(info), Volatile: c.volatile}
		w.export(exp)
		e := w.client("c")
		v := e.mustMap("d", rw)
		if err := e.write(v, 0, 1, 512, 0); err != nil {
			t.Fatal(err)
		}
		if !c.dirty {
			if err := e.flush(v); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.write(v, 0, 1, 512, blk.FUA); err != nil {
			t.Fatal(err)
		}
		e.cut()
		flush := &blk.Request{Op: blk.OpFlush} // one that waited is no better than one that comes
		done := e.submit(v, flush)
		w.run()
		w.restart(ServerConfig{Boot: c.boot}, &Export{Name: "d", Device: exp.Device, Volatile: c.volatile})
		e.connect()
		wantState(t, c.what, v, c.state)
		if !*done {
			t.Fatalf("%s: the flush waits", c.what)
		}
		wantErr(t, c.what+": the flush that waited", flush.Err, c.flush)
		wantErr(t, c.what+": another", e.flush(v), c.flush)
	}
}

// TestTakenAway: the server took the volume; it stays closed until it is
// mapped anew.
func TestTakenAway(t *testing.T) {
	for _, ask := range []bool{false, true} {
		w := newWorld(t, ServerConfig{})
		w.mem("d", 1<<20)
		e := w.client("c")
		v := e.mustMap("d", rw)
		if err := w.srv.ForceClose(w.now, e.sess, "d"); err != nil {
			t.Fatal(err)
		}
		if ask {
			v.Ask(w.now)
			w.run()
		} else {
			wantErr(t, "a write", e.write(v, 0, 1, 512, 0), ErrNotOpen)
		}
		wantState(t, "afterwards", v, Closed)
		w.tick(time.Minute)
		wantState(t, "a minute later", v, Closed)
		wantErr(t, "another write", e.write(v, 0, 1, 512, 0), ErrNotOpen)
		if err := v.Remap(w.now); err != nil {
			t.Fatal(err)
		}
		w.run()
		if err := e.write(v, 0, 1, 512, 0); err != nil {
			t.Error(err)
		}
		if err := v.Unmap(w.now, false); err != nil {
			t.Fatal(err)
		}
		w.run()
		wantErr(t, "remap of what is not mapped", v.Remap(w.now), ErrGone)
	}
}

// TestUnmapBusy: normal refuses while requests are under way, force ends them.
func TestUnmapBusy(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	f, _ := w.fault("d", 1<<20)
	e := w.client("c")
	v := e.mustMap("d", rw)
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Stall: true, Count: 1})
	atStore := e.submit(v, &blk.Request{Op: blk.OpWrite, Len: 512, Buf: make([]byte, 512)})
	w.run()
	wantErr(t, "normal", v.Unmap(w.now, false), ErrBusy)
	waiting := &blk.Request{Op: blk.OpWrite, Len: 512, Buf: make([]byte, 512)}
	wd := e.submit(v, waiting) // the session has it, and has not sent it
	if err := v.Unmap(w.now, true); err != nil {
		t.Fatal(err)
	}
	w.run()
	if !*wd || !errors.Is(waiting.Err, blk.ErrClosed) {
		t.Errorf("what was not sent: %v, %v", *wd, waiting.Err)
	}
	if e.unmapped[v] || *atStore {
		t.Error("unmapped while its memory is in use")
	}
	wantErr(t, "a request", e.flush(v), blk.ErrClosed)
	wantErr(t, "again", v.Unmap(w.now, true), ErrGone)
	f.Release()
	w.run()
	if !e.unmapped[v] || !*atStore || len(w.srv.Open()) != 0 {
		t.Error("not unmapped")
	}
}

// TestUnmapWithoutPath ends at once, with what the session keeps for a path
// that may never come.
func TestUnmapWithoutPath(t *testing.T) {
	for _, force := range []bool{false, true} {
		w := newWorld(t, ServerConfig{})
		f, _ := w.fault("d", 1<<20)
		e := w.client("c")
		v := e.mustMap("d", rw)
		var sent *bool
		if force {
			f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Stall: true, Count: 1})
			sent = e.submit(v, &blk.Request{Op: blk.OpWrite, Len: 512, Buf: make([]byte, 512)})
			w.run()
		}
		e.cut()
		if err := v.Unmap(w.now, force); err != nil {
			t.Fatal(err)
		}
		w.run()
		if !e.unmapped[v] || sent != nil && !*sent {
			t.Error("it waits for a path")
		}
	}
}

// TestForceAfterNormal: an Unmap that waits for the server's answer is not
// waited for any more.
func TestForceAfterNormal(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	w.mem("d", 1<<20)
	e := w.client("c")
	v := e.mustMap("d", rw)
	if err := v.Unmap(w.now, false); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "normal again", v.Unmap(w.now, false), ErrGone)
	if e.unmapped[v] {
		t.Fatal("the server has not answered")
	}
	if err := v.Unmap(w.now, true); err != nil || !e.unmapped[v] {
		t.Errorf("%v", err)
	}
	w.run()
	if len(w.srv.Open()) != 0 {
		t.Error("the server was not told")
	}
}

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

// TestInfo: what the client makes of what a server says.
func TestInfo(t *testing.T) {
	good := describe(&cached, 7)
	same := cached
	same.MaxSegments, same.MultiConn = 128, true
	for _, c := range []struct {
		what   string
		change func(r *wire.RNBDOpenRsp)
		want   func(i *blk.Info) // nil: refused
	}{
		{"as it is", func(r *wire.RNBDOpenRsp) {}, func(i *blk.Info) {}},
		{"no cache", func(r *wire.RNBDOpenRsp) { r.Cache = 0 }, func(i *blk.Info) { i.WriteCache = false }},
		{"cache without FUA", func(r *wire.RNBDOpenRsp) { r.Cache = wire.RNBDCacheWriteBack }, func(i *blk.Info) { i.FUA = false }},
		{"no discard", func(r *wire.RNBDOpenRsp) { r.MaxDiscard, r.DiscardGranularity = 0, 4096 }, func(i *blk.Info) { i.MaxDiscard = 0 }},
		{"small discard", func(r *wire.RNBDOpenRsp) { r.MaxDiscard, r.DiscardGranularity = 1, 4096 }, func(i *blk.Info) { i.DiscardGranularity = 4096 }},
		{"no zeroes", func(r *wire.RNBDOpenRsp) { r.MaxWriteZeroes = 0 }, func(i *blk.Info) { i.MaxWriteZeroes = 0 }},
		{"discards of less than a block", func(r *wire.RNBDOpenRsp) { r.LogicalBlock, r.MaxDiscard = 4096, 7 }, func(i *blk.Info) { i.LogicalBlock, i.MaxDiscard = 4096, 0 }},
		{"rotational", func(r *wire.RNBDOpenRsp) { r.Rotational = 1 }, func(i *blk.Info) { i.Rotational = true }},
		{"physical below logical", func(r *wire.RNBDOpenRsp) { r.LogicalBlock, r.PhysicalBlock = 4096, 512 }, func(i *blk.Info) { i.LogicalBlock = 4096 }},
		{"size in half a block", func(r *wire.RNBDOpenRsp) { r.LogicalBlock, r.Sectors = 4096, 2047 }, func(i *blk.Info) { i.LogicalBlock, i.Size = 4096, 1<<20-4096 }},
		{"most sectors not told", func(r *wire.RNBDOpenRsp) { r.MaxHWSectors = 0 }, func(i *blk.Info) {}},
		{"block of 0", func(r *wire.RNBDOpenRsp) { r.LogicalBlock = 0 }, nil},
		{"block of 513", func(r *wire.RNBDOpenRsp) { r.LogicalBlock = 513 }, nil},
		{"block of 256", func(r *wire.RNBDOpenRsp) { r.LogicalBlock = 256 }, nil},
		{"physical block of 3000", func(r *wire.RNBDOpenRsp) { r.PhysicalBlock = 3000 }, nil},
		{"size that wraps", func(r *wire.RNBDOpenRsp) { r.Sectors = 1 << 55 }, nil},
		{"size beyond an int64", func(r *wire.RNBDOpenRsp) { r.Sectors = 1<<64 - 1 }, nil},
		{"requests of less than a block", func(r *wire.RNBDOpenRsp) { r.LogicalBlock, r.MaxHWSectors = 4096, 7 }, nil},
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

// TestOtherBlocks: a volume that comes back with other blocks is another one.
func TestOtherBlocks(t *testing.T) {
	w := newWorld(t, ServerConfig{Boot: 1})
	d := newRecorder(cached)
	w.export(&Export{Name: "d", Device: d})
	e := w.client("c")
	v := e.mustMap("d", rw)
	e.cut()
	i := cached
	i.LogicalBlock = 4096
	d.SetInfo(&i)
	e.connect()
	wantState(t, "with other blocks", v, Closed)
	wantErr(t, "why", v.Err(), ErrStale)
	if len(w.srv.Open()) != 0 {
		t.Error("it is still open at the server")
	}
}

// TestCutWhileOpening: sessions come and go at any moment of the opening.
func TestCutWhileOpening(t *testing.T) {
	for i := range 24 {
		steps := i / 2
		w := newWorld(t, ServerConfig{})
		f, _ := w.fault("d", 1<<20)
		f.Clear()
		w.mem("e", 1<<20)
		e := w.client("c")
		e.lateGone = i%2 == 1
		v, v2 := e.mustMap("d", rw), e.mustMap("e", rw)
		e.cut()
		done := e.submit(v, &blk.Request{Op: blk.OpWrite, Len: 4096, Buf: bytes.Repeat([]byte{9}, 4096)})
		e.connectFor(steps)
		e.cut()
		e.connectFor(12 - steps)
		e.cut()
		e.connect()
		if b, err := e.read(v, 0, 4096); !*done || b != 9 || err != nil {
			t.Errorf("after %d steps: %v, %d, %v", steps, *done, b, err)
		}
		wantState(t, "the other", v2, Open)
		if n := len(w.srv.Open()); n != 2 {
			t.Errorf("after %d steps: %d are open at the server", steps, n)
		}
	}
}
