package rnbd

import (
	"bytes"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// sentKinds are the kinds of the messages that e has sent.
func (e *end) sentKinds() (list []rnbdwire.Type) {
	for _, b := range e.log {
		k, _ := rnbdwire.Kind(b)
		list = append(list, k)
	}
	return list
}

func count[T comparable](list []T, x T) (n int) {
	for _, y := range list {
		if x == y {
			n++
		}
	}
	return n
}

// TestClosedIsTold: whoever watches a server hears of each volume that a session opens and
// gives up, with its access.
func TestClosedIsTold(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	w.mem("d", 1<<20)
	e := w.client("c")
	v := e.mustMap("d", ro)
	if err := v.Unmap(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	var closed []ServerEvent
	for _, ev := range w.events {
		if ev.Kind == ServerClosed {
			closed = append(closed, ev)
		}
	}
	if want := (ServerEvent{Kind: ServerClosed, Name: "d", Session: "c", Access: ro}); len(closed) != 1 || closed[0] != want {
		t.Errorf("told %+v; want %+v", closed, want)
	}
}

// TestFinishedInParts: Finished hands out what there is room for, and the rest the next time.
func TestFinishedInParts(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	w.mem("d", 1<<20)
	e := w.client("c")
	v := e.mustMap("d", rw)
	e.cut()
	for range 3 {
		e.submit(v, &blk.Request{Op: blk.OpFlush})
	}
	if err := v.ForceUnmap(w.now); err != nil {
		t.Fatal(err)
	}
	buf := make([]*blk.Request, 0, 2)
	for _, want := range []int{2, 1, 0} {
		if got := e.c.Finished(buf); len(got) != want || cap(got) != 2 {
			t.Errorf("%d requests in memory for %d; want %d in memory for 2", len(got), cap(got), want)
		}
	}
}

// TestCloseOfATakenVolume: a CLOSE is answered when nothing of the volume is at the store,
// also when the volume was taken from the session before.
func TestCloseOfATakenVolume(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	f, _ := w.fault("d", 1<<20)
	e := w.client("c")
	d, err := e.rawOpen("d", rw)
	if err != nil {
		t.Fatal(err)
	}
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Stall: true, Count: 1})
	write := e.rawStart(rawWrite, rawIO(d.DeviceID, rnbdwire.Write, 0, 0, 512), 512)
	w.run()
	if err := w.takeAway(e, "d"); err != nil {
		t.Fatal(err)
	}
	taken := e.rawStart(rawWrite, rnbdwire.AppendClose(nil, d.DeviceID), 0)
	w.run()
	if taken.Ctx.(*rawWait).done {
		t.Fatal("closed while a write is at the store")
	}
	f.Release()
	w.run()
	if !taken.Ctx.(*rawWait).done || taken.Err != nil || !write.Ctx.(*rawWait).done {
		t.Errorf("closed: %v, %v; written: %v", taken.Ctx, taken.Err, write.Ctx)
	}
	if err := e.rawClose(d.DeviceID); err != nil {
		t.Errorf("closed twice: %v", err)
	}
}

// TestAskedFromTheLastOpening: an rdsd is asked for a volume's properties AskEvery after it
// has opened the volume, and not while it has not answered the last question.
func TestAskedFromTheLastOpening(t *testing.T) {
	w := newWorld(t, ServerConfig{Boot: 1})
	w.mem("d", 1<<20)
	e := w.client("c")
	e.mustMap("d", rw)
	every := e.c.cfg.AskEvery
	w.tick(every - time.Second)
	e.cut()
	e.connect()
	opened := w.now
	if next := e.c.Next(); next != opened+every {
		t.Errorf("asked next after %v; want %v", next-opened, every)
	}
	w.tick(every - time.Millisecond)
	if n := count(e.sentKinds(), rnbdwire.InfoType); n != 0 {
		t.Errorf("asked %d times within %v of the opening", n, every)
	}
	w.now = opened + every
	e.c.Tick(w.now) // it asks; nobody has answered yet
	if next := e.c.Next(); next != Never {
		t.Errorf("to be called in %v, while a question is not answered", next-w.now)
	}
	w.run()
	if n := count(e.sentKinds(), rnbdwire.InfoType); n != 1 || e.c.Next() != opened+2*every {
		t.Errorf("asked %d times; next in %v", n, e.c.Next()-w.now)
	}
}

// TestForceDoesNotWait: a forced unmap tells the server and is over at once.
func TestForceDoesNotWait(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	w.mem("d", 1<<20)
	e := w.client("c")
	v := e.mustMap("d", rw)
	if err := v.ForceUnmap(w.now); err != nil || !e.unmapped[v] {
		t.Errorf("%v, unmapped %v before the server has answered", err, e.unmapped[v])
	}
	w.run()
	if n := len(w.srv.Open()); n != 0 {
		t.Errorf("the server was not told: %d open", n)
	}
}

// TestForceTakesItsOwnAlone: of the requests that a session keeps, a forced unmap ends those of
// its volume; those that are with the server are asked for again until they are given back.
func TestForceTakesItsOwnAlone(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	f, _ := w.fault("a", 1<<20)
	w.mem("b", 1<<20)
	e := w.client("c")
	a, b := e.mustMap("a", rw), e.mustMap("b", rw)
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Stall: true, Count: 1})
	sent := e.submit(a, &blk.Request{Op: blk.OpWrite, Len: 512, Buf: make([]byte, 512)})
	w.run()
	other := e.submit(b, &blk.Request{Op: blk.OpWrite, Len: 512, Buf: make([]byte, 512)}) // not sent yet
	if err := a.ForceUnmap(w.now); err != nil {
		t.Fatal(err)
	}
	e.finished()
	if *other {
		t.Fatal("the request of another volume has ended")
	}
	if next := e.c.Next(); next != w.now+giveUpEvery {
		t.Errorf("to be called in %v; want %v", next-w.now, giveUpEvery)
	}
	e.cut() // from here on the session has it, and can give it back
	f.Release()
	w.tick(giveUpEvery)
	if !*sent || !e.unmapped[a] || *other {
		t.Errorf("after %v: its own ended %v, unmapped %v; the other's ended %v", giveUpEvery, *sent, e.unmapped[a], *other)
	}
	e.connect()
	if !*other {
		t.Error("the other's request was not carried out")
	}
}

// TestVerifierFromNothing: a server that has no verifiers, and one that has them, say nothing
// about each other: no write is called lost when one follows the other.
func TestVerifierFromNothing(t *testing.T) {
	for _, first := range []bool{true, false} {
		w := newWorld(t, ServerConfig{Boot: 1})
		w.export(&Export{Name: "d", Device: newRecorder(cached)}) // with a cache: writes wait for a flush
		e := w.newEnd("c", "10.0.0.1", ClientConfig{})
		e.asKernel = first
		e.connect()
		v := e.mustMap("d", rw)
		if err := e.write(v, 0, 1, 512, 0); err != nil || v.wrote <= v.synced {
			t.Fatal(err, v.wrote, v.synced)
		}
		e.cut()
		e.asKernel = !first
		e.connect()
		if err := e.flush(v); err != nil || v.Err() != nil {
			t.Errorf("kernel first %v: a flush: %v; the volume: %v", first, err, v.Err())
		}
	}
}

// TestRootsGo: a root that nobody uses is removed and closed, once; one in use is not.
func TestRootsGo(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	dir := t.TempDir()
	writeFile(t, dir+"/d", 1<<20)
	r := &Root{Path: dir}
	w.root(r)
	e := w.client("c")
	v := e.mustMap("d", rw)
	wantErr(t, "in use", w.srv.RemoveRoot(w.now, r), ErrBusy)
	if err := v.Unmap(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	w.closed = nil
	if err := w.srv.RemoveRoot(w.now, r); err != nil || len(w.closed) != 1 || w.closed[0] != Closer(r) {
		t.Errorf("%v; closed %v", err, w.closed)
	}
	wantErr(t, "again", w.srv.RemoveRoot(w.now, r), noRoot(r))
	wantErr(t, "again, by force", w.srv.ForceRemoveRoot(w.now, r), noRoot(r))
	_, err := e.tryMap("d", rw)
	wantErr(t, "its file", err, noExport("d"))
	wantErr(t, "an export that is not there", w.srv.Unexport(w.now, w.named("x")), noExport("x"))
}

// TestBootOfItsOwn: servers that were not told when the machine was started do not agree about
// what a store has kept.
func TestBootOfItsOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	writeFile(t, path, 1<<20)
	exp := &Export{Name: "d", Path: path}
	w := newWorld(t, ServerConfig{})
	w.export(exp)
	e := w.client("c")
	v := e.mustMap("d", rw)
	before := v.Kept().Verifier
	e.cut()
	w.run()
	w.restart(ServerConfig{}, exp)
	e.connect()
	if v.Kept().Verifier == before || before == 0 {
		t.Errorf("the verifier is %#x, and was %#x", v.Kept().Verifier, before)
	}
}

// TestOpenedTooLate: an OPEN that is answered after the session has begun anew, for a volume
// that was unmapped meanwhile, is undone.
func TestOpenedTooLate(t *testing.T) {
	for _, refused := range []bool{false, true} {
		w := newWorld(t, ServerConfig{})
		e := w.client("c")
		v, err := e.c.Map(w.now, "d", rw)
		if err != nil || len(e.queue) != 1 {
			t.Fatal(err, len(e.queue))
		}
		open := e.queue[0]
		e.queue = nil
		e.lateGone = true
		e.cut()
		e.connect()
		if err := v.Unmap(w.now); err != nil {
			t.Fatal(err)
		}
		w.run()
		if e.unmapped[v] {
			t.Fatal("unmapped while the server may open it")
		}
		e.log = nil
		if open.Err = rtrs.ErrNoPath; !refused {
			open.Err = nil
			copy(open.Data, must((&rnbdwire.OpenRsp{DeviceID: 7, Sectors: 8, LogicalBlock: 512, PhysicalBlock: 512, MaxHWSectors: 8, MaxSegments: 1}).Append(nil), nil))
		}
		e.c.Done(w.now, open)
		w.run()
		want := [][]byte{rnbdwire.AppendClose(nil, 7)}
		if refused {
			want = nil
		}
		if !e.unmapped[v] || len(e.log) != len(want) || len(want) > 0 && !bytes.Equal(e.log[0], want[0]) {
			t.Errorf("refused %v: unmapped %v, sent %x; want %x", refused, e.unmapped[v], e.log, want)
		}
	}
}

// TestReadOnlyInstead: a store that may not be written is opened to be read; any other error,
// and that of the second attempt, is told.
func TestReadOnlyInstead(t *testing.T) {
	for _, c := range []struct {
		write, read error
		want        error
		times       int
	}{
		{blk.ErrReadOnly, nil, nil, 2},
		{blk.ErrReadOnly, blk.ErrNotSupported, blk.ErrReadOnly, 2},
		{blk.ErrNotSupported, nil, blk.ErrNotSupported, 1},
	} {
		m, err := blk.NewMem(blk.MemOptions{Size: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		times := 0
		w := newWorld(t, ServerConfig{})
		w.export(&Export{Name: "d", Path: "/anything", Open: func(_ string, o blk.FileOptions) (blk.Device, error) {
			times++
			if o.ReadOnly {
				return m, c.read
			}
			return nil, c.write
		}})
		e := w.client("c")
		_, err = e.tryMap("d", ro)
		wantErr(t, "mapped", err, c.want)
		if times != c.times {
			t.Errorf("%v, then %v: asked %d times; want %d", c.write, c.read, times, c.times)
		}
	}
}

// TestNothingForADevice: when all requests that waited for a device have lost their volume,
// Next does not name the device with none of them.
func TestNothingForADevice(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	w.mem("d", 1<<20)
	e := w.client("c")
	d, err := e.rawOpen("d", rw)
	if err != nil {
		t.Fatal(err)
	}
	r := e.rawStart(rawWrite, rawIO(d.DeviceID, rnbdwire.Write, 0, 0, 512), 512)
	if err := w.takeAway(e, "d"); err != nil {
		t.Fatal(err)
	}
	if dev, batch := w.srv.Next(w.now, w.buf[:0]); dev != nil || len(batch) != 0 {
		t.Errorf("%d requests for %v", len(batch), dev)
	}
	w.run()
	wantErr(t, "the write", r.Err, ErrNotOpen)
}

// TestPlacesOfAnOpening: an opening says where it looks next, so that one does not wait behind
// another whose file system stands still.
func TestPlacesOfAnOpening(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	a, b := &Root{Path: t.TempDir()}, &Root{Path: t.TempDir()}
	w.root(a)
	w.root(b)
	path := filepath.Join(t.TempDir(), "f")
	writeFile(t, path, 1<<20)
	exp := &Export{Name: "f", Path: path}
	w.export(exp)
	w.holdOpen = true
	e := w.client("c")
	for _, name := range []string{"f", "d"} {
		if _, err := e.c.Map(w.now, name, ro); err != nil {
			t.Fatal(err)
		}
	}
	w.run()
	if len(w.openings) != 2 || w.openings[0].Place() != any(exp) || w.openings[1].Place() != any(a) {
		t.Fatalf("%d openings", len(w.openings))
	}
	if _, more, err := w.openings[1].Do(); !more || err != nil || w.openings[1].Place() != any(b) {
		t.Errorf("behind the first root: %v, %v, %v", more, err, w.openings[1].Place())
	}
	if l := w.srv.Open(); len(l) != 0 {
		t.Errorf("listed as open while being opened: %+v", l)
	}
	if l := w.srv.Exports(); len(l) != 1 || l[0] != exp {
		t.Errorf("exports: %v", l)
	}
}
