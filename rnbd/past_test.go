package rnbd

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// twoWriters is a world with a file of which session a has a write that waits, for a is cut
// off, and session b has written since. a's request ends by itself.
func twoWriters(t *testing.T, cfg ServerConfig) (w *world, exp *Export, a *end, va *Volume, late *blk.Request) {
	path := filepath.Join(t.TempDir(), "f")
	writeFile(t, path, 1<<20)
	exp = &Export{Name: "d", Path: path}
	w = newWorld(t, cfg)
	w.export(exp)
	a = w.client("a")
	b := w.client("b")
	va = a.mustMap("d", rw)
	a.cut()
	late = &blk.Request{Op: blk.OpWrite, Len: 512, Buf: bytes.Repeat([]byte{1}, 512)}
	a.submit(va, late)
	w.run()
	vb := b.mustMap("d", rw)
	if err := b.write(vb, 0, 2, 512, 0); err != nil {
		t.Fatal(err)
	}
	b.cut()
	w.run()
	return w, exp, a, va, late
}

// names are those of a list, in order.
func names(list []Writer) string {
	var b strings.Builder
	for _, w := range list {
		b.WriteString(w.Name)
	}
	return b.String()
}

// TestBehindOverStarts: B6 holds although the daemon or the machine that let another session
// write is not the one that the first finds when it is back; a device number may have
// changed, and another file at that place is another file.
func TestBehindOverStarts(t *testing.T) {
	for _, c := range []struct {
		what   string
		boot   uint64
		change func(p *Past)
		want   error
	}{
		{"the daemon", 7, func(*Past) {}, ErrStale},
		{"the machine", 8, func(p *Past) { p.Earlier = true }, ErrStale},
		{"the machine, with another device number", 8, func(p *Past) { p.Earlier = true; p.ID.Dev += 5 }, ErrStale},
		{"the machine, another file is there", 8, func(p *Past) { p.Earlier = true; p.ID.Ino++ }, nil},
		{"the machine, a block device is there", 8, func(p *Past) { p.Earlier = true; p.ID.Block = true }, nil},
		{"the machine, it was elsewhere", 8, func(p *Past) { p.Earlier = true; p.Where += "x" }, nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			w, exp, a, va, late := twoWriters(t, ServerConfig{Boot: 7, Notes: true})
			past := w.srv.Past()
			if len(past) != 1 || past[0].Writer.Name != "b" || names(past[0].Behind) != "a" || past[0].Where != exp.Path {
				t.Fatalf("what is remembered: %+v", past)
			}
			c.change(&past[0])
			w.restart(ServerConfig{Boot: c.boot, Past: past, Notes: true}, exp)
			if got := w.srv.Past(); len(got) != 1 || got[0].Writer.Name != "b" || got[0].Earlier != past[0].Earlier {
				t.Errorf("before anybody opens it: %+v", got)
			}
			a.connect()
			if rdserr.Errno(late.Err) != rdserr.Errno(c.want) {
				t.Errorf("the write that waited: %v, want %v", late.Err, c.want)
			}
			if c.want != nil {
				wantState(t, "the writer that was away", va, Closed)
			}
		})
	}
}

// TestOpenedAgainBeforeItWasNoted: a session is lost while the note of its OPEN is being written, and
// opens the volume again for a migration before that ends. That it writes stays known, and it is not
// let in before that is written for it, too: another that was away is told.
func TestOpenedAgainBeforeItWasNoted(t *testing.T) {
	exp := &Export{Name: "d", Path: filepath.Join(t.TempDir(), "f")}
	writeFile(t, exp.Path, 1<<20)
	w := newWorld(t, ServerConfig{Notes: true})
	w.export(exp)
	y := w.client("y")
	vy := y.mustMap("d", rw)
	y.cut()
	late := &blk.Request{Op: blk.OpWrite, Len: 512, Buf: bytes.Repeat([]byte{1}, 512)}
	y.submit(vy, late)
	x := w.client("x")
	w.holdNote = true
	vx, err := x.c.Map(w.now, "d", rnbdwire.Migration)
	if err != nil {
		t.Fatal(err)
	}
	w.run()
	x.cut()
	x.connect()
	if len(w.notes) != 2 || stateOf(vx) != Init {
		t.Fatalf("%d notes, and the volume is %v; want one for each OPEN", len(w.notes), stateOf(vx))
	}
	w.srv.Noted(w.now, w.notes[0], nil)
	w.notes, w.holdNote = w.notes[1:], false
	w.run()
	if past, held := w.srv.Past()[0], w.srv.Held(); past.Writer.Name != "x" || len(held) != 2 {
		t.Errorf("known are the writer %q and %+v, want x and two names", past.Writer, held)
	}
	if err := errors.Join(x.write(vx, 0, 2, 512, 0), vx.Unmap(w.now)); err != nil {
		t.Fatal(err)
	}
	w.run()
	y.connect()
	wantErr(t, "the write that waited", late.Err, ErrStale)
}

// TestTakenAsItWas: who takes a volume as it is with Remap does so as it is then. What is written here
// after that does not go over what another session writes before the volume is open: where the
// session was lost meanwhile, or the server had it only later.
func TestTakenAsItWas(t *testing.T) {
	for _, lost := range []bool{true, false} {
		w, exp, a, va, _ := twoWriters(t, ServerConfig{})
		a.connect()
		wantState(t, "the writer that was away", va, Closed)
		if !lost {
			if err := w.srv.Unexport(w.now, w.named(exp.Name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := va.Remap(w.now); err != nil {
			t.Fatal(err)
		}
		if lost {
			a.cut()
		}
		w.run()
		late := &blk.Request{Op: blk.OpWrite, Len: 512, Buf: bytes.Repeat([]byte{3}, 512)}
		a.submit(va, late)
		w.run()
		if !lost {
			w.export(exp)
		}
		y := w.client("y")
		vy := y.mustMap("d", rw)
		if err := errors.Join(y.write(vy, 0, 4, 512, 0), vy.Unmap(w.now)); err != nil {
			t.Fatal(err)
		}
		w.run()
		if lost {
			a.connect()
		}
		w.tick(time.Second)
		wantErr(t, "the write that waited", late.Err, ErrStale)
		wantState(t, "the writer that was away again", va, Closed)
		if err := va.Remap(w.now); err != nil {
			t.Fatal(err)
		}
		w.run()
		if got, err := a.read(va, 0, 512); got != 4 || err != nil {
			t.Errorf("lost %v: the volume holds %d, %v; want 4", lost, got, err)
		}
	}
}

// TestBehindUntilSeen: a session is told that others have written until it has asked
// something of what was opened with that answer. Once it has, it is not told again.
func TestBehindUntilSeen(t *testing.T) {
	w, exp, a, va, late := twoWriters(t, ServerConfig{Boot: 7, Notes: true})
	w.holdNote = true
	a.connect()
	if wantState(t, "before the answer", va, Closed); len(w.notes) != 1 || late.Err != nil {
		t.Fatalf("%d notes, the write ended with %v", len(w.notes), late.Err)
	}
	w.srv.Noted(w.now, w.notes[0], nil)
	w.notes, w.holdNote = nil, false
	past := w.srv.Past()
	a.cut() // with the answer
	w.restart(ServerConfig{Boot: 7, Past: past, Notes: true}, exp)
	a.connect()
	wantState(t, "the writer that was away", va, Closed)
	if rdserr.Errno(late.Err) != rdserr.Errno(ErrStale) {
		t.Errorf("the write that waited: %v, want %v", late.Err, ErrStale)
	}
	if p := w.srv.Past(); names(p[0].Behind) != "b" || w.kept == 0 {
		t.Errorf("after it has closed the volume: %+v; Keep was called %d times", p[0], w.kept)
	}
	// It goes on with the volume as it is.
	if err := va.Remap(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	wantState(t, "taken as it is", va, Open)
	if err := a.write(va, 0, 3, 512, 0); err != nil {
		t.Fatal(err)
	}
	again := &blk.Request{Op: blk.OpWrite, Len: 512, Buf: bytes.Repeat([]byte{4}, 512)}
	a.cut()
	a.submit(va, again)
	w.run()
	w.restart(ServerConfig{Boot: 7, Past: w.srv.Past(), Notes: true}, exp)
	a.connect()
	if wantState(t, "nobody else has written", va, Open); again.Err != nil {
		t.Errorf("a write that waited while nobody else wrote: %v", again.Err)
	}
}

// TestClosedIsNotBehind: a session that closed the volume has nothing that waits. When it
// maps it anew and is cut off, nobody has written since.
func TestClosedIsNotBehind(t *testing.T) {
	w := newWorld(t, ServerConfig{Boot: 7})
	path := filepath.Join(t.TempDir(), "f")
	writeFile(t, path, 1<<20)
	w.export(&Export{Name: "d", Path: path})
	for range 3 {
		for _, name := range []string{"a", "b"} {
			e := w.client(name)
			v := e.mustMap("d", rw)
			if err := e.write(v, 0, 1, 512, 0); err != nil {
				t.Fatal(err)
			}
			if err := v.Unmap(w.now); err != nil {
				t.Fatal(err)
			}
			w.run()
			e.cut()
			w.run()
		}
	}
	if p := w.srv.Past(); len(p) != 1 || len(p[0].Behind) != 0 {
		t.Errorf("%+v", p)
	}
}

// TestNotesFirst: a session that was not the last to write is let in when that is written
// down. Where it cannot be, it is refused and nothing has changed; the same session, and
// readers, wait for nothing.
func TestNotesFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	writeFile(t, path, 1<<20)
	w := newWorld(t, ServerConfig{Boot: 7, Notes: true})
	w.export(&Export{Name: "d", Path: path})
	a, b, r := w.client("a"), w.client("b"), w.client("r")
	a.mustMap("d", rw)
	a.cut()
	w.run()
	before := w.srv.Past()

	w.noteErr = syscall.ENOSPC
	_, err := b.tryMap("d", rw)
	if rdserr.Errno(err) != syscall.EIO {
		t.Errorf("a writer that cannot be written down: %v, want EIO", err)
	}
	if e := w.events[len(w.events)-1]; e.Kind != ServerRefused || !strings.Contains(e.Err.Error(), "written down") || !strings.Contains(e.Err.Error(), "no space") {
		t.Errorf("the event: %v %v", e.Kind, e.Err)
	}
	if got := w.srv.Past(); !got[0].Writer.equal(&before[0].Writer) || len(got[0].Behind) != 0 {
		t.Errorf("refused, and remembered all the same: %+v", got)
	}
	if n := len(w.srv.volumes); n != 0 {
		t.Errorf("%d volumes are open", n)
	}
	notes := 0
	w.noteErr, w.holdNote = nil, true
	if _, err := r.tryMap("d", ro); err != nil {
		t.Errorf("a reader: %v", err)
	}
	a.connect()
	if notes = len(w.notes); notes != 0 {
		t.Errorf("%d notes for a reader and the last writer", notes)
	}
	a.cut()
	w.run()

	// The session goes while its note is under way.
	if _, err := b.c.Map(w.now, "d", rw); err != nil {
		t.Fatal(err)
	}
	w.run()
	if len(w.notes) != 1 {
		t.Fatalf("%d notes", len(w.notes))
	}
	if n := w.srv.volumes[w.notes[0].h.store.vol.id].writers; n != 1 {
		t.Errorf("%d writers while it is noted", n)
	}
	w.srv.syncLost(w.notes[0].h.store.vol.id)
	b.cut()
	w.run()
	w.holdNote = false
	w.run()
	for _, v := range w.srv.volumes {
		if v.writers != 0 {
			t.Errorf("%d writers are left", v.writers)
		}
	}
	if got := w.srv.Past(); got[0].Writer.Name != "a" || len(got[0].Behind) != 0 {
		t.Errorf("a session that went before it was let in is remembered: %+v", got)
	} else if got[0].Syncs != 1 {
		t.Errorf("a sync failed while it was noted, and is forgotten: %+v", got)
	}
}

// TestNotLetInIsNotKept: what was written down of a session that is not let in after all is taken
// back there, too. The one that wrote before it goes on, also after a start.
func TestNotLetInIsNotKept(t *testing.T) {
	exp := &Export{Name: "d", Path: filepath.Join(t.TempDir(), "f")}
	writeFile(t, exp.Path, 1<<20)
	w := newWorld(t, ServerConfig{Boot: 7, Notes: true})
	w.export(exp)
	a, b := w.client("a"), w.client("b")
	va := a.mustMap("d", rw)
	a.cut()
	w.run()
	w.holdNote = true
	if _, err := b.c.Map(w.now, "d", rw); err != nil {
		t.Fatal(err)
	}
	w.run()
	past, held, kept := w.srv.Past(), w.srv.Held(), w.kept // as Note has it written down
	if len(w.notes) != 1 || past[0].Writer.Name != "b" {
		t.Fatalf("%d notes, of %+v", len(w.notes), past)
	}
	b.cut()
	w.holdNote = false
	w.run()
	if w.kept > kept {
		past, held = w.srv.Past(), w.srv.Held()
	}
	w.restart(ServerConfig{Boot: 7, Past: past, Held: held, Notes: true}, exp)
	a.connect()
	wantState(t, "nobody else has written", va, Open)
}

// TestBehindIsBounded: of many sessions that went the last are remembered.
func TestBehindIsBounded(t *testing.T) {
	w := newWorld(t, ServerConfig{Boot: 7})
	path := filepath.Join(t.TempDir(), "f")
	writeFile(t, path, 1<<20)
	w.export(&Export{Name: "d", Path: path})
	for i := range maxBehind + 5 {
		e := w.client(string(rune('A'+i/26)) + string(rune('a'+i%26)))
		e.mustMap("d", rw)
		e.cut()
		w.run()
	}
	p := w.srv.Past()[0]
	if len(p.Behind) != maxBehind || p.Behind[maxBehind-1].Name != "Bj" || p.Writer.Name != "Bk" || p.Behind[0].Name != "Ae" {
		t.Errorf("%d are remembered, from %q to %q, and %q", len(p.Behind), p.Behind[0], p.Behind[len(p.Behind)-1], p.Writer)
	}
}

// flood has the server remember so many other files that there is no room for more.
func (w *world) flood(p past) {
	for i := range maxPast {
		w.srv.remember(blk.FileID{Ino: uint64(i), Dev: 1 << 40}, p)
	}
	if n := len(w.srv.past) + len(w.srv.earlier); n > maxPast {
		w.t.Errorf("%d are remembered", n)
	}
}

// TestForgottenAreTold: what the server had to forget it does not take for nothing: not after a
// start of its own either.
func TestForgottenAreTold(t *testing.T) {
	for _, c := range []struct {
		what           string
		start, earlier bool
	}{{"", false, false}, {"a start of the daemon", true, false}, {"a start of the machine, before the others", true, true}} {
		w, exp, a, va, late := twoWriters(t, ServerConfig{Boot: 7, Notes: true})
		if c.earlier {
			past := w.srv.Past()
			past[0].Earlier = true
			w.restart(ServerConfig{Boot: 8, Past: past, Notes: true}, exp)
		}
		w.flood(past{writer: Writer{Name: "z"}})
		if c.start {
			w.restart(ServerConfig{Boot: 8, Past: w.srv.Past(), Forgot: w.srv.Forgot(), Notes: true}, exp)
		}
		// Also if the first answer is lost, and after one that failed.
		w.noteErr = syscall.ENOSPC
		a.connect()
		a.cut()
		w.run()
		w.noteErr, w.holdNote = nil, true
		a.connect()
		w.srv.Noted(w.now, w.notes[0], nil)
		a.cut()
		w.notes, w.holdNote = nil, false
		w.run()
		a.connect()
		if rdserr.Errno(late.Err) != rdserr.Errno(ErrStale) {
			t.Errorf("%s: the write that waited: %v, want %v", c.what, late.Err, ErrStale)
		}
		wantState(t, "the writer that was away", va, Closed)
	}
}

// TestForgottenFirst: a volume that is open, and one whose session went, are not forgotten for
// others that nobody needs.
func TestForgottenFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	writeFile(t, path, 1<<20)
	w := newWorld(t, ServerConfig{Boot: 7})
	w.export(&Export{Name: "d", Path: path})
	a := w.client("a")
	va := a.mustMap("d", rw)
	w.flood(past{writer: Writer{Name: "z"}}) // while it is open
	if w.srv.Forgot() != 1 {
		t.Errorf("%d is forgotten; want 1", w.srv.Forgot())
	}
	a.cut()
	w.run()
	w.flood(past{writer: Writer{Name: "z"}, closed: true})
	w.srv.remember(blk.FileID{Ino: 1 << 20, Dev: 1 << 40}, past{writer: Writer{Name: "z"}})
	late := &blk.Request{Op: blk.OpWrite, Len: 512, Buf: make([]byte, 512)}
	a.submit(va, late)
	a.connect()
	if wantState(t, "nobody else has written", va, Open); late.Err != nil {
		t.Errorf("a write that waited: %v", late.Err)
	}
}

// TestPastEndsWithDevice: what is remembered of a memory volume ends with its export, whoever has it last. It would keep the
// device for good, and in the end push out what has to be told of files.
func TestPastEndsWithDevice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	writeFile(t, path, 1<<20)
	w := newWorld(t, ServerConfig{Boot: 7})
	w.export(&Export{Name: "d", Path: path})
	b := w.client("b")
	unmap := func(v *Volume) {
		if err := v.Unmap(w.now); err != nil {
			t.Fatal(err)
		}
		w.run()
	}
	unmap(b.mustMap("d", rw))
	a := w.client("a")
	ends := []func(e *Export){
		func(e *Export) { // the session has closed it
			v := a.mustMap(e.Name, rw)
			unmap(v)
			if err := w.srv.Unexport(w.now, e); err != nil {
				t.Fatal(err)
			}
		},
		func(e *Export) { // it is taken from the session
			v := a.mustMap(e.Name, rw)
			if err := w.srv.ForceUnexport(w.now, e); err != nil {
				t.Fatal(err)
			}
			w.run()
			unmap(v)
		},
		func(e *Export) { // nobody had it
			if err := w.srv.Unexport(w.now, e); err != nil {
				t.Fatal(err)
			}
		},
	}
	for i := range 3 * 100 {
		m, err := blk.NewMem(blk.MemOptions{Size: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		e := &Export{Name: "m", Device: m, Volatile: true}
		w.export(e)
		ends[i%len(ends)](e)
	}
	if n := len(w.srv.past); n != 1 {
		t.Errorf("%d volumes are remembered; want the file alone", n)
	}
	if n := len(w.closed); n < 300 {
		t.Errorf("%d devices were closed", n)
	}
}

// TestForgottenInTurn: of those that are needed all the same the first goes first, also after a start.
func TestForgottenInTurn(t *testing.T) {
	ids := []blk.FileID{{Ino: 9}, {Ino: 2}, {Ino: 5}, {Ino: 1}}
	w := newWorld(t, ServerConfig{Boot: 7})
	for _, id := range ids {
		w.srv.remember(id, past{writer: Writer{Name: "z"}})
	}
	w.srv.closed(ids[1])
	list := w.srv.Past()
	list[0].Earlier, list[0].Where = true, "/f"
	w.restart(ServerConfig{Boot: 7, Past: list})
	order := []blk.FileID{ids[0], ids[2], ids[3], ids[1]}
	for i := range maxPast {
		w.srv.remember(blk.FileID{Ino: uint64(i), Dev: 1}, past{writer: Writer{Name: "z"}})
		if i < maxPast-len(order) {
			continue
		}
		order = order[1:]
		for n, p := range w.srv.Past()[:len(order)] {
			if p.ID != order[n] {
				t.Fatalf("number %d is %+v; want %v", n, p, order)
			}
		}
	}
}

// TestForgottenSyncs: a sync that failed is told although it was forgotten, and another one after it.
func TestForgottenSyncs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	writeFile(t, path, 1<<20)
	exp := &Export{Name: "d", Path: path, Rules: Rules{Shared: true}} // of which nobody is told who wrote
	w := newWorld(t, ServerConfig{Boot: 7})
	w.export(exp)
	a := w.client("a")
	va := a.mustMap("d", rw)
	if err := a.write(va, 0, 1, 512, 0); err != nil {
		t.Fatal(err)
	}
	id := w.srv.sessions[0].handles[0].store.vol.id
	a.cut()
	w.run()
	w.srv.syncLost(id)
	w.srv.syncLost(id)
	w.flood(past{writer: Writer{Name: "z"}})
	if w.srv.Forgot() != 2 {
		t.Errorf("%d is forgotten; want 2", w.srv.Forgot())
	}
	w.restart(ServerConfig{Boot: 7, Past: w.srv.Past(), Forgot: w.srv.Forgot()}, exp)
	a.connect()
	wantErr(t, "a flush", a.flush(va), blk.ErrSyncFailed)
	before := w.srv.verify(id, nil)
	if w.srv.syncLost(id); w.srv.verify(id, nil) == before {
		t.Error("one more that failed does not show")
	}
}
