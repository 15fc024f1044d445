package rnbd

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// failing is a device that fails its n-th request and says nothing of the others:
// Err stays what it was when they came.
type failing struct {
	blk.State
	n   int
	log []string
}

func (d *failing) Submit(batch []*blk.Request) {
	for _, r := range batch {
		d.log = append(d.log, r.Op.String())
		if len(d.log) == d.n {
			r.Err = blk.ErrMedium
		}
	}
	blk.Complete(batch)
}

func (d *failing) Close() error { return nil }

// TestFailuresWithinAPlan: whichever request of the device's fails, it is the
// outcome, and what would have come after it is not asked for. The next is not told
// of an old error.
func TestFailuresWithinAPlan(t *testing.T) {
	for _, c := range []struct {
		what  string
		fua   bool // of the device
		flags rnbdwire.Flags
		steps string
	}{
		{"PREFLUSH, device without FUA", false, rnbdwire.Preflush, "flush write flush"},
		{"FUA, device without FUA", false, rnbdwire.FUA, "write flush"},
		{"PREFLUSH", true, rnbdwire.Preflush, "flush write"},
		{"plain", true, 0, "write"},
	} {
		steps := strings.Fields(c.steps)
		for n := range steps {
			info := cached
			info.FUA = c.fua
			d := &failing{n: n + 1}
			d.SetInfo(&info)
			w := newWorld(t, ServerConfig{})
			w.export(&Export{Name: "d", Device: d})
			e := w.client("c")
			rsp, err := e.rawOpen("d", rw)
			if err != nil {
				t.Fatal(err)
			}
			what := fmt.Sprintf("%s, request %d fails", c.what, n+1)
			_, err = e.raw(rawWrite, rawIO(rsp.DeviceID, rnbdwire.Write, c.flags, 0, 512), 512)
			wantErr(t, what, err, blk.ErrMedium)
			if got, want := strings.Join(d.log, " "), strings.Join(steps[:n+1], " "); got != want {
				t.Errorf("%s: asked %q, want %q", what, got, want)
			}
			sync := steps[n] == "flush" || steps[n] == "write" && c.fua && c.flags != 0
			if io, lost := w.told(ServerIOError), w.told(ServerSyncLost); io != 1 || (lost == 1) != sync {
				t.Errorf("%s: told of %d errors and %d lost syncs", what, io, lost)
			}
			d.log, d.n = nil, 0
			if _, err := e.raw(rawWrite, rawIO(rsp.DeviceID, rnbdwire.Write, c.flags, 0, 512), 512); err != nil {
				t.Errorf("%s, then one that does not: %v", what, err)
			}
			if got := strings.Join(d.log, " "); got != c.steps {
				t.Errorf("%s, then asked %q, want %q", what, got, c.steps)
			}
		}
	}
}

// told counts events of the server.
func (w *world) told(k ServerEventKind) (n int) {
	for _, ev := range w.events {
		if ev.Kind == k {
			n++
		}
	}
	return n
}

// TestToldOnce: a store that goes on failing is told of once, until it has carried
// something out; a lost sync once for ever, and remembered once.
func TestToldOnce(t *testing.T) {
	info := cached
	d := &failing{}
	d.SetInfo(&info)
	w := newWorld(t, ServerConfig{})
	w.export(&Export{Name: "d", Device: d})
	e := w.client("c")
	rsp, err := e.rawOpen("d", rw)
	if err != nil {
		t.Fatal(err)
	}
	flush := func() { e.raw(rawRead, rawIO(rsp.DeviceID, rnbdwire.Flush, 0, 0, 0), 0) }
	for round := 1; round <= 2; round++ {
		for range 3 {
			d.n = len(d.log) + 1
			flush()
		}
		if io, lost := w.told(ServerIOError), w.told(ServerSyncLost); io != round || lost != 1 {
			t.Errorf("after %d times three failed flushes: told of %d errors and %d lost syncs", round, io, lost)
		}
		flush()
	}
	for _, p := range w.srv.past {
		if p.syncs != 1 {
			t.Errorf("%d failed syncs are remembered of one store", p.syncs)
		}
	}
}

// TestPiecesOfAnotherLife: a request whose first pieces were carried out by a store
// that has lost what was not flushed begins again; one of a single piece does not,
// nor one that has failed.
func TestPiecesOfAnotherLife(t *testing.T) {
	const piece = 64 << 10
	for _, op := range []blk.Op{blk.OpWrite, blk.OpDiscard, blk.OpWriteZeroes} {
		for what, c := range map[string]struct {
			pieces uint64
			fails  bool
			want   string
		}{
			"two pieces": {2, false, "op 65536+65536, op 0+65536, op 65536+65536"},
			"one piece":  {1, false, "op 0+65536"},
			"it fails":   {2, true, ""},
		} {
			info := cached
			info.MaxDiscard, info.MaxWriteZeroes = piece, piece
			d := newRecorder(info)
			f := blk.NewFault(d, 1)
			w := newWorld(t, ServerConfig{Boot: 1})
			w.faults = append(w.faults, f)
			exp := &Export{Name: "d", Device: f}
			w.export(exp)
			e := w.client("c")
			v := e.mustMap("d", rw)
			last := (c.pieces - 1) * piece
			f.Add(blk.Rule{Ops: blk.Ops(op), Off: last, Len: piece, Stall: true, Count: 1})
			r := &blk.Request{Op: op, Len: c.pieces * piece}
			if op == blk.OpWrite {
				r.Buf = make([]byte, r.Len)
			}
			done := e.submit(v, r)
			w.run()
			e.cut()
			f.Release()
			w.run()
			d.asked()
			w.restart(ServerConfig{Boot: 2}, &Export{Name: "d", Device: f})
			if c.fails {
				f.Add(blk.Rule{Ops: blk.Ops(op), Off: last, Len: piece, Err: blk.ErrMedium, Count: 1})
			}
			e.connect()
			var wantE error
			if c.fails {
				wantE = blk.ErrMedium
			}
			if !*done {
				t.Fatalf("%v, %s: still under way", op, what)
			}
			wantErr(t, op.String()+", "+what, r.Err, wantE)
			if got, want := d.asked(), strings.ReplaceAll(c.want, "op", op.String()); got != want {
				t.Errorf("%v, %s: asked %q, want %q", op, what, got, want)
			}
		}
	}
}

// TestWhatAFlushCovers: the writes that were done when it came, of all kinds,
// whatever was done meanwhile and in whatever order flushes end.
func TestWhatAFlushCovers(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	w.export(&Export{Name: "d", Device: newRecorder(cached)})
	e := w.client("c")
	v := e.mustMap("d", rw)
	for i, c := range []struct {
		op    blk.Op
		flags blk.Flags
		wrote uint64
	}{
		{blk.OpWrite, 0, 1}, {blk.OpDiscard, 0, 2}, {blk.OpWriteZeroes, 0, 3}, {blk.OpWriteZeroes, blk.NoUnmap, 4},
		{blk.OpWrite, blk.FUA, 4}, {blk.OpRead, 0, 4},
	} {
		r := &blk.Request{Op: c.op, Flags: c.flags, Off: 4096, Len: 4096}
		if c.op == blk.OpWrite || c.op == blk.OpRead {
			r.Buf = make([]byte, 4096)
		}
		if err := e.do(v, r); err != nil || v.wrote != c.wrote {
			t.Errorf("%d: %v %v: %v; %d writes to flush, want %d", i, c.op, c.flags, err, v.wrote, c.wrote)
		}
	}
	// A flush that came before a write does not cover it.
	first := e.submit(v, &blk.Request{Op: blk.OpFlush})
	v.outcome(&call{r: &blk.Request{Op: blk.OpWrite}, v: v})
	if w.run(); !*first || v.synced != 4 || v.wrote != 5 {
		t.Errorf("%d of %d are flushed; want 4 of 5", v.synced, v.wrote)
	}
	// A later one ends first.
	flush := &blk.Request{Op: blk.OpFlush}
	v.outcome(&call{r: flush, v: v, wrote: 5})
	v.outcome(&call{r: flush, v: v, wrote: 4})
	if v.synced != 5 {
		t.Errorf("%d are flushed; want 5", v.synced)
	}
	// After a lost sync the server is not even asked.
	v.syncLost(blk.ErrSyncFailed)
	n := len(e.log)
	wantErr(t, "flush", e.flush(v), blk.ErrSyncFailed)
	wantErr(t, "FUA", e.write(v, 0, 1, 512, blk.FUA), blk.ErrSyncFailed)
	if len(e.log) != n {
		t.Errorf("%d messages were sent", len(e.log)-n)
	}
}

// TestServerForgetsVolumes: what nobody has open is in no table, and what is
// remembered is bounded. Files of one file system are told apart by their numbers.
func TestServerForgetsVolumes(t *testing.T) {
	w := newWorld(t, ServerConfig{Boot: 3})
	info := cached
	info.LogicalBlock, info.PhysicalBlock = 1<<15, 1<<15
	d := newRecorder(info)
	w.export(&Export{Name: "d", Device: d})
	info.LogicalBlock, info.PhysicalBlock = 1<<16, 1<<16
	w.export(&Export{Name: "larger", Device: newRecorder(info)})
	e := w.client("c")
	if _, err := e.tryMap("larger", rw); err == nil {
		t.Error("blocks of 65536 bytes")
	}
	v := e.mustMap("d", rw) // the largest blocks there can be
	if len(w.srv.volumes) != 1 {
		t.Errorf("%d volumes are open", len(w.srv.volumes))
	}
	if err := v.Unmap(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	if len(w.srv.volumes) != 0 {
		t.Errorf("%d volumes are open", len(w.srv.volumes))
	}
	a, b := blk.FileID{Ino: 1}, blk.FileID{Ino: 2}
	if w.srv.verify(a, nil) == w.srv.verify(b, nil) {
		t.Error("two files have one verifier")
	}
	before := w.srv.verify(a, nil)
	for i := range maxPast + 1 {
		w.srv.syncLost(blk.FileID{Ino: uint64(1000 + i)})
		if len(w.srv.past) > maxPast {
			t.Fatalf("%d are remembered", len(w.srv.past))
		}
	}
	if w.srv.verify(a, nil) == before {
		t.Error("all was forgotten, and nobody is told")
	}
}

// TestHeldNoLongerThanItsLimit: what was at the store when the session was lost and
// then waits for a server without the volume fails when its own time is over, to the
// tick, however short it has been held.
func TestHeldNoLongerThanItsLimit(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	f, _ := w.fault("d", 1<<20)
	e := w.newEnd("c", "10.0.0.1", ClientConfig{OnLoss: rtrs.Error, IOTimeout: time.Second, LossTimeout: 2 * time.Second, RetryEvery: time.Hour})
	e.connect()
	v := e.mustMap("d", rw)
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Stall: true})
	begun := w.now
	var rs []*blk.Request
	var done []*bool
	for i := range 2 {
		r := &blk.Request{Op: blk.OpWrite, Off: uint64(i) * 512, Len: 512, Buf: make([]byte, 512)}
		rs, done = append(rs, r), append(done, e.submit(v, r))
		w.run()
		w.tick(200 * time.Millisecond)
	}
	w.tick(begun + 2500*time.Millisecond - w.now)
	e.cut()
	f.Release()
	w.run()
	w.restart(ServerConfig{})
	e.connect()
	w.run()
	if sent, held := v.Inflight(); sent != 0 || held != 2 {
		t.Fatalf("%d are with the session, %d are held", sent, held)
	}
	for i, at := range []time.Duration{3 * time.Second, 3200 * time.Millisecond} {
		w.tick(begun + at - time.Millisecond - w.now)
		if *done[i] {
			t.Fatalf("%d failed too early: %v", i, rs[i].Err)
		}
		w.tick(time.Millisecond)
		if !*done[i] {
			t.Fatalf("%d is held beyond its limit", i)
		}
		wantErr(t, "held", rs[i].Err, rtrs.ErrTimeout)
	}
}

// TestRemapTakesWhatThereIsNow, also memory that was lost.
func TestRemapTakesWhatThereIsNow(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	d := newRecorder(cached)
	w.export(&Export{Name: "d", Device: d, Volatile: true})
	e := w.client("c")
	v := e.mustMap("d", rw)
	for range 2 { // what was accepted once is not accepted the next time
		e.cut()
		w.restart(ServerConfig{}, &Export{Name: "d", Device: d, Volatile: true})
		e.connect()
		if s, _ := v.State(); s != Closed {
			t.Fatalf("%v after the memory was lost", s)
		}
		wantErr(t, "lost memory", v.Err(), ErrStale)
		if err := v.Remap(w.now); err != nil {
			t.Fatal(err)
		}
		w.run()
		if s, _ := v.State(); s != Open || v.Err() != nil {
			t.Fatalf("%v after Remap: %v", s, v.Err())
		}
	}
}

// A request that the session has lost, or that waited too long for it, has not failed at
// the store: nobody is told that it did, and a flush that is lost so loses no write.
func TestLostIsNotTheStoresFault(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	w.fault("d", 1<<20)
	e := w.client("c")
	v := e.mustMap("d", rw)
	for _, lost := range []error{rtrs.ErrNoPath, rdserr.ErrTimeout, rdserr.ErrCanceled} {
		for _, r := range []*blk.Request{{Op: blk.OpFlush}, {Op: blk.OpWrite, Flags: blk.FUA, Len: 512, Buf: make([]byte, 512)}, {Op: blk.OpRead, Len: 512, Buf: make([]byte, 512)}} {
			done := e.submit(v, r)
			if len(e.queue) != 1 {
				t.Fatalf("%v: %d messages", r.Op, len(e.queue))
			}
			q := e.queue[0]
			e.queue, q.Err = nil, lost
			e.done(w.now, q)
			w.run()
			if !*done {
				t.Fatalf("%v has no outcome", r.Op)
			}
			wantErr(t, r.Op.String(), r.Err, lost)
			if io, sync := e.countEvents(VolumeIOError), e.countEvents(VolumeSyncLost); io+sync != 0 || v.Err() != nil {
				t.Fatalf("%v, %v: told of %d errors and %d lost syncs, %v", r.Op, lost, io, sync, v.Err())
			}
		}
	}
	if err := e.write(v, 0, 1, 512, blk.FUA); err != nil {
		t.Errorf("a write with FUA afterwards: %v", err)
	}
	if err := e.flush(v); err != nil {
		t.Errorf("a flush afterwards: %v", err)
	}
}

// TestClientDefaults: what a client takes that was given nothing, as the documents say.
func TestClientDefaults(t *testing.T) {
	c := NewClient(ClientConfig{}, nil, nil).cfg
	if want := (ClientConfig{LossTimeout: 30 * time.Second, IOTimeout: 30 * time.Second, RetryEvery: 500 * time.Millisecond, AskEvery: 5 * time.Second}); c != want {
		t.Errorf("%+v, want %+v", c, want)
	}
	given := ClientConfig{LossTimeout: 1, IOTimeout: 2, RetryEvery: 3, AskEvery: -1}
	if c := NewClient(given, nil, nil).cfg; c != given {
		t.Errorf("%+v, want what was given: %+v", c, given)
	}
}

// keeping remembers what it was asked.
type keeping struct {
	blk.State
	seen []*blk.Request
}

func (d *keeping) Submit(batch []*blk.Request) {
	d.seen = append(d.seen, batch...)
	blk.Complete(batch)
}

func (d *keeping) Close() error { return nil }

// What a server has answered holds neither the session's memory nor the session: both
// may go while the request's own memory stays for another use.
func TestAnsweredHoldsNothing(t *testing.T) {
	info := cached
	d := &keeping{}
	d.SetInfo(&info)
	w := newWorld(t, ServerConfig{})
	w.export(&Export{Name: "d", Device: d})
	e := w.client("c")
	v := e.mustMap("d", rw)
	if err := e.write(v, 0, 1, 512, blk.FUA); err != nil {
		t.Fatal(err)
	}
	if _, err := e.read(v, 0, 512); err != nil {
		t.Fatal(err)
	}
	if err := e.flush(v); err != nil {
		t.Fatal(err)
	}
	if len(d.seen) < 3 {
		t.Fatalf("the device was asked %d times", len(d.seen))
	}
	for _, r := range d.seen {
		if q := r.Ctx.(*ioReq); q.rt != nil || q.h != nil || q.next != nil || r.Buf != nil || r.Queue != nil {
			t.Errorf("%v is answered, and holds %+v", r.Op, q)
		}
	}
}
