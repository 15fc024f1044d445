package rnbd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// away is a world with session a cut off, which has d, the file at path, open. All its writes
// are flushed. Of one that has it for writing late, a write, waits, else a read; it ends by
// itself.
func away(t *testing.T, below bool, access rnbdwire.Access) (w *world, a *end, va *Volume, path string, late *blk.Request) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, "d")
	writeFile(t, path, 1<<20)
	w = newWorld(t, ServerConfig{Boot: 7, Notes: true})
	if below {
		w.root(&Root{Path: dir})
	} else {
		w.export(&Export{Name: "d", Path: path})
	}
	a = w.client("a")
	va = a.mustMap("d", access)
	late = &blk.Request{Op: blk.OpRead, Len: 512, Buf: make([]byte, 512)}
	if access != ro {
		if err := a.write(va, 0, 1, 512, 0); err != nil {
			t.Fatal(err)
		}
		if err := a.flush(va); err != nil {
			t.Fatal(err)
		}
		late = &blk.Request{Op: blk.OpWrite, Len: 512, Buf: bytes.Repeat([]byte{2}, 512)}
	}
	a.cut()
	a.submit(va, late)
	w.run()
	return w, a, va, path, late
}

// begins is the first byte of a file.
func begins(t *testing.T, path string) byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b[0]
}

// born is blk.File.Born of a file; the test is of no use where that is not known.
func born(t testing.TB, path string) int64 {
	t.Helper()
	f, err := blk.OpenFile(path, blk.FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Born() == 0 {
		t.Skip("the file system does not tell when a file was made")
	}
	return f.Born()
}

// TestAnotherStore: what waited for a store goes to no other that its name leads to when the
// session is back, whether or not all writes before were flushed, and a read is answered from
// no other.
func TestAnotherStore(t *testing.T) {
	unexport := func(w *world) {
		if err := w.srv.Unexport(w.now, w.named("d")); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what   string
		below  bool
		change func(w *world, path, other string)
	}{
		{"another file takes its place below a root", true, func(w *world, path, other string) {
			if err := os.Rename(other, path); err != nil {
				t.Fatal(err)
			}
		}},
		{"another file takes its place as an export", false, func(w *world, path, other string) {
			if err := os.Rename(other, path); err != nil {
				t.Fatal(err)
			}
		}},
		{"another file is made in its place, perhaps with its inode", false, func(w *world, path, other string) {
			born(w.t, path)
			for _, c := range w.closed { // else it keeps its inode
				c.Close()
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			writeFile(t, path, 1<<20)
		}},
		{"another file is exported", false, func(w *world, path, other string) {
			unexport(w)
			w.export(&Export{Name: "d", Path: other})
		}},
		{"another file is exported, before one below a root", true, func(w *world, path, other string) {
			w.export(&Export{Name: "d", Path: other})
		}},
		{"memory is exported", false, func(w *world, path, other string) {
			unexport(w)
			m, err := blk.NewMem(blk.MemOptions{Size: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			w.export(&Export{Name: "d", Device: m, Volatile: true})
		}},
		{"the daemon is started with another file", false, func(w *world, path, other string) {
			w.restart(ServerConfig{Boot: 7, Past: w.srv.Past(), Held: w.srv.Held(), Notes: true}, &Export{Name: "d", Path: other})
		}},
		{"the daemon is, and another file has its inode", false, func(w *world, path, other string) {
			held := w.srv.Held()
			if held[0].Born != born(w.t, path) {
				t.Errorf("held is %+v", held[0])
			}
			held[0].Born--
			w.restart(ServerConfig{Boot: 7, Past: w.srv.Past(), Held: held, Notes: true}, &Export{Name: "d", Path: path})
		}},
		{"the machine is, and the numbers of devices have changed", false, func(w *world, path, other string) {
			past, held := w.srv.Past(), w.srv.Held()
			for i := range past { // of a reader there is none
				past[i].Earlier = true
			}
			held[0].Earlier = true
			held[0].ID.Dev += 5
			if err := os.Rename(other, path); err != nil {
				t.Fatal(err)
			}
			w.restart(ServerConfig{Boot: 8, Past: past, Held: held, Notes: true}, &Export{Name: "d", Path: path})
		}},
	} {
		for _, access := range []rnbdwire.Access{rw, ro} {
			t.Run(c.what+", "+access.String(), func(t *testing.T) { anotherStore(t, c.below, access, c.change) })
		}
	}
}

// anotherStore has the name of a volume lead to another store while its session is away.
func anotherStore(t *testing.T, below bool, access rnbdwire.Access, change func(w *world, path, other string)) {
	w, a, va, path, late := away(t, below, access)
	other := path + "other"
	writeFile(t, other, 1<<20)
	was := begins(t, other)
	change(w, path, other)
	if _, err := os.Stat(other); err != nil {
		other = path
	}
	a.connectFor(2)
	for _, o := range w.openings {
		d, _, err := o.Do()
		w.srv.Opened(w.now, o, d, err)
	}
	for _, o := range w.notes {
		w.srv.Noted(w.now, o, nil)
	}
	w.openings, w.notes = nil, nil
	if len(w.srv.Open()) != 1 {
		t.Fatal("the server has not opened it")
	}
	a.cut() // with the answer
	w.run()
	a.connect()
	wantState(t, "it leads to another store", va, Closed)
	if rdserr.Errno(late.Err) != rdserr.Errno(ErrStale) || begins(t, other) != was {
		t.Errorf("the %v that waited: %v; the other file begins with %d, and did with %d", late.Op, late.Err, begins(t, other), was)
	}
	// That is told and known: the volume is taken as it is, and goes on like any other.
	for _, v := range a.noting {
		v.Noted(w.now)
	}
	w.run()
	if err := va.Remap(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	wantState(t, "taken as it is", va, Open)
	a.cut()
	again := &blk.Request{Op: late.Op, Len: 512, Buf: bytes.Repeat([]byte{3}, 512)}
	a.submit(va, again)
	w.run()
	a.connect()
	if wantState(t, "the same as before", va, Open); again.Err != nil {
		t.Errorf("a %v that waited for it: %v", again.Op, again.Err)
	}
}

// TestMemoryThatBecameAFile: what waited for memory, which has ended with the daemon, goes to no file that has its name now, nor to one
// of a kernel that serves in its place.
func TestMemoryThatBecameAFile(t *testing.T) {
	for _, c := range []struct {
		op     blk.Op
		kernel bool
	}{{blk.OpWrite, false}, {blk.OpRead, false}, {blk.OpWrite, true}, {blk.OpRead, true}} {
		path := filepath.Join(t.TempDir(), "d")
		writeFile(t, path, 1<<20)
		was := begins(t, path)
		m, err := blk.NewMem(blk.MemOptions{Size: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, ServerConfig{Boot: 7, Notes: true})
		w.export(&Export{Name: "d", Device: m, Volatile: true})
		a := w.client("a")
		access := rw
		if c.op == blk.OpRead {
			access = ro
		}
		va := a.mustMap("d", access)
		a.cut()
		late := &blk.Request{Op: c.op, Len: 512, Buf: make([]byte, 512)}
		a.submit(va, late)
		w.run()
		w.restart(ServerConfig{Boot: 7, Past: w.srv.Past(), Held: w.srv.Held(), Notes: true}, &Export{Name: "d", Path: path})
		a.asKernel = c.kernel
		a.connect()
		wantState(t, "a file has its name", va, Closed)
		if rdserr.Errno(late.Err) != rdserr.Errno(ErrStale) || begins(t, path) != was {
			t.Errorf("kernel %v, the %v that waited: %v; the file begins with %d, and did with %d", c.kernel, c.op, late.Err, begins(t, path), was)
		}
	}
}

// disk is a block device, whose number and name of itself are those that are said.
type disk struct {
	*blk.File
	id   blk.FileID
	born int64
}

func (d *disk) ID() blk.FileID { return d.id }
func (d *disk) Born() int64    { return d.born }

// TestAnotherDisk: a block device that has got the number of another, or its path after a start of the machine, is not that one.
func TestAnotherDisk(t *testing.T) {
	for _, c := range []struct {
		what        string
		boot        uint64
		number, own int64
		same        bool
	}{
		{"nothing has changed", 7, 0, 0, true},
		{"another has its number", 7, 0, 1, false},
		{"the machine was started, and it has another number", 8, 1, 0, true},
		{"the machine was started, and another has its path", 8, 1, 1, false},
		{"the machine was started, and another has its path and number", 8, 0, 1, false},
	} {
		path := filepath.Join(t.TempDir(), "d")
		writeFile(t, path, 1<<20)
		is := disk{id: blk.FileID{Dev: 5, Block: true}, born: 9}
		exp := &Export{Name: "d", Path: path, Open: func(path string, o blk.FileOptions) (blk.Device, error) {
			f, err := blk.OpenFile(path, o)
			d := is
			d.File = f
			return &d, err
		}}
		w := newWorld(t, ServerConfig{Boot: 7, Notes: true})
		w.export(exp)
		a := w.client("a")
		va := a.mustMap("d", rw)
		a.cut()
		late := &blk.Request{Op: blk.OpWrite, Len: 512, Buf: make([]byte, 512)}
		a.submit(va, late)
		w.run()
		past, held := w.srv.Past(), w.srv.Held()
		past[0].Earlier, held[0].Earlier = c.boot != 7, c.boot != 7
		is.id.Dev, is.born = is.id.Dev+uint64(c.number), is.born+c.own
		w.restart(ServerConfig{Boot: c.boot, Past: past, Held: held, Notes: true}, exp)
		a.connect()
		if errors.Is(late.Err, ErrStale) == c.same || (begins(t, path) == 0) != c.same {
			t.Errorf("%s: the write that waited: %v; the device begins with %d", c.what, late.Err, begins(t, path))
		}
	}
}

// TestTheSameStore: a session goes on where its name leads to the store that it had, however
// that is found now, and a name that it has closed may lead anywhere.
func TestTheSameStore(t *testing.T) {
	for _, c := range []struct {
		what   string
		below  bool
		change func(w *world, path string)
	}{
		{"nothing has happened", true, func(*world, string) {}},
		{"it is exported anew", false, func(w *world, path string) {
			if err := w.srv.Unexport(w.now, w.named("d")); err != nil {
				w.t.Fatal(err)
			}
			w.export(&Export{Name: "d", Path: path})
		}},
		{"it lies elsewhere", false, func(w *world, path string) {
			if err := os.Rename(path, path+"x"); err != nil {
				w.t.Fatal(err)
			}
			if err := w.srv.Unexport(w.now, w.named("d")); err != nil {
				w.t.Fatal(err)
			}
			w.export(&Export{Name: "d", Path: path + "x"})
		}},
		{"the daemon was started", false, func(w *world, path string) {
			w.restart(ServerConfig{Boot: 7, Past: w.srv.Past(), Held: w.srv.Held(), Notes: true}, &Export{Name: "d", Path: path})
		}},
		{"the machine was, and the numbers of devices have changed", false, func(w *world, path string) {
			past, held := w.srv.Past(), w.srv.Held()
			for i := range past { // of a reader there is none
				past[i].Earlier = true
				past[i].ID.Dev += 5
			}
			held[0].Earlier = true
			held[0].ID.Dev += 5
			w.restart(ServerConfig{Boot: 8, Past: past, Held: held, Notes: true}, &Export{Name: "d", Path: path})
		}},
		{"its file system was mounted anew", false, func(w *world, path string) {
			held := w.srv.Held()
			held[0].ID.Dev += 5
			w.restart(ServerConfig{Boot: 7, Past: w.srv.Past(), Held: held, Notes: true}, &Export{Name: "d", Path: path})
		}},
	} {
		for _, access := range []rnbdwire.Access{rw, ro} {
			t.Run(c.what+", "+access.String(), func(t *testing.T) {
				w, a, va, path, late := away(t, c.below, access)
				c.change(w, path)
				a.connect()
				if wantState(t, "the same", va, Open); late.Err != nil {
					t.Errorf("the %v that waited: %v", late.Op, late.Err)
				}
			})
		}
	}

	for _, access := range []rnbdwire.Access{rw, ro} {
		w, a, va, path, _ := away(t, true, access)
		a.connect()
		if err := va.Unmap(w.now); err != nil {
			t.Fatal(err)
		}
		w.run()
		writeFile(t, path+"other", 1<<20)
		if err := os.Rename(path+"other", path); err != nil {
			t.Fatal(err)
		}
		va = a.mustMap("d", access)
		if va.store.Foreign || len(w.srv.Held()) != 1 {
			t.Errorf("%v, closed before: foreign %v, held %v", access, va.store.Foreign, w.srv.Held())
		}
	}
}

// TestHoldingIsKept: what is known of a store now is written down when its session is back, and not what an earlier version or an earlier
// start of the machine knew.
func TestHoldingIsKept(t *testing.T) {
	for what, change := range map[string]func(g *Held){
		"nothing has changed":              nil,
		"when it was made was not known":   func(g *Held) { g.Born = 0 },
		"the machine was started":          func(g *Held) { g.Earlier = true },
		"its file system was mounted anew": func(g *Held) { g.ID.Dev += 5 },
		"it was known by another path":     func(g *Held) { g.Where += "x" },
	} {
		for _, access := range []rnbdwire.Access{rw, ro} {
			w, a, va, path, _ := away(t, false, access)
			born(t, path)
			held, is := w.srv.Held(), w.srv.Held()[0]
			if change != nil {
				change(&held[0])
			}
			w.restart(ServerConfig{Boot: 7, Past: w.srv.Past(), Held: held, Notes: true}, &Export{Name: "d", Path: path})
			kept := w.kept
			a.connect()
			wantState(t, what, va, Open)
			if got := w.srv.Held(); (w.kept > kept) != (change != nil) || len(got) != 1 || got[0] != is {
				t.Errorf("%s, %v: kept %d times; held %+v, want %+v", what, access, w.kept-kept, got, is)
			}
		}
	}
}

// TestHolding: which stores are taken for the same.
func TestHolding(t *testing.T) {
	file, disk := blk.FileID{Dev: 1, Ino: 2}, blk.FileID{Dev: 1, Block: true}
	for i, c := range []struct {
		was, is holding
		want    bool
	}{
		{holding{store: file, where: "/a"}, holding{store: file, where: "/b"}, true},
		{holding{store: file, where: "/a"}, holding{store: blk.FileID{Dev: 1, Ino: 3}, where: "/a"}, false},
		{holding{store: file, where: "/a"}, holding{store: blk.FileID{Dev: 9, Ino: 2}, where: "/a"}, true},
		{holding{store: file, where: "/a"}, holding{store: blk.FileID{Dev: 9, Ino: 2}, where: "/b"}, false},
		{holding{store: file, where: "/a"}, holding{store: disk, where: "/a"}, false},
		{holding{store: disk, where: "/a"}, holding{store: disk, where: "/b"}, true},
		{holding{store: disk, where: "/a"}, holding{store: blk.FileID{Dev: 9, Block: true}, where: "/a"}, false},
		{holding{store: disk, where: "/a", earlier: true}, holding{store: blk.FileID{Dev: 9, Block: true}, where: "/a"}, true},
		{holding{store: disk, where: "/a", earlier: true}, holding{store: blk.FileID{Dev: 9, Block: true}, where: "/b"}, false},
		{holding{store: "export a"}, holding{store: "export a"}, true},
		{holding{store: "export a"}, holding{store: uint64(3)}, false},
		{holding{store: uint64(4)}, holding{store: uint64(3)}, false},
	} {
		if got := c.was.same(&c.is); got != c.want {
			t.Errorf("%d: %v", i, got)
		}
	}
}

// TestHeldIsBounded: of names that sessions have not closed the last are remembered.
func TestHeldIsBounded(t *testing.T) {
	w, a, _, _, _ := away(t, true, rw)
	var held []Held
	for i := range maxHeld {
		held = append(held, Held{Session: "x", Name: fmt.Sprint(i)})
	}
	w.srv = NewServer(ServerConfig{Held: append(held, Held{Name: "beyond"})}, w, w, w.rnd)
	if n := len(w.srv.Held()); n != maxHeld || w.srv.Forgot() != 1 {
		t.Fatalf("%d are taken up, and forgotten is %d", n, w.srv.Forgot())
	}
	w.srv = NewServer(ServerConfig{Held: held}, w, w, w.rnd)
	w.mem("d", 1<<20)
	a.connect()
	if _, first := w.srv.held[holder{"x", "0", false}]; first || len(w.srv.held) != maxHeld {
		t.Errorf("%d are remembered, the first %v", len(w.srv.held), first)
	}
	if _, last := w.srv.held[holder{"a", "d", false}]; !last {
		t.Error("the last is forgotten")
	}

	// As many of those that read, which push out none of these, and of which nothing is said.
	w.srv.forgot = 0
	h := w.srv.sessions[0].handles[0]
	for i := range maxHeld + 5 {
		w.srv.hold(&handle{sess: h.sess, name: fmt.Sprint(i), access: ro, store: h.store})
		held = append(held, Held{Session: "x", Name: fmt.Sprint(i), Reads: true})
	}
	_, first := w.srv.held[holder{"a", "4", true}]
	_, last := w.srv.held[holder{"a", "5", true}]
	_, writes := w.srv.held[h.holder()]
	if first || !last || !writes || len(w.srv.held) != 2*maxHeld || w.srv.Forgot() != 0 {
		t.Errorf("of readers the first %v, the last %v, the writer %v; %d are remembered, and forgotten is %d", first, last, writes, len(w.srv.held), w.srv.Forgot())
	}
	if s := NewServer(ServerConfig{Held: held}, w, w, w.rnd); len(s.held) != 2*maxHeld || s.Forgot() != 0 {
		t.Errorf("%d are taken up, and forgotten is %d", len(s.held), s.Forgot())
	}
}

// TestHeldIsNotForgotten: a name that is open is not forgotten for others, and where one that is not may have
// been, a session that is back at a store which nobody is known to have written is told, as of one that others
// have written.
func TestHeldIsNotForgotten(t *testing.T) {
	for _, open := range []bool{true, false} {
		w, a, va, path, late := away(t, true, rw)
		a.connect()
		if late.Err != nil {
			t.Fatal(late.Err)
		}
		h := *w.srv.sessions[0].handles[0]
		if !open {
			a.cut()
			w.run()
		}
		for i := range maxHeld {
			w.srv.hold(&handle{sess: h.sess, name: fmt.Sprint(i), access: rw, store: h.store})
		}
		if _, known := w.srv.held[h.holder()]; known != open || len(w.srv.held) != maxHeld {
			t.Errorf("open %v: it is remembered %v, and %d are", open, known, len(w.srv.held))
		}
		if open {
			a.cut()
			w.run()
		}
		writeFile(t, path+"other", 1<<20)
		if err := os.Rename(path+"other", path); err != nil {
			t.Fatal(err)
		}
		was := begins(t, path)
		again := &blk.Request{Op: blk.OpWrite, Len: 512, Buf: bytes.Repeat([]byte{2}, 512)}
		a.submit(va, again)
		w.run()
		a.connect()
		wantState(t, fmt.Sprintf("another file, open meanwhile %v", open), va, Closed)
		if rdserr.Errno(again.Err) != rdserr.Errno(ErrStale) || begins(t, path) != was {
			t.Errorf("open meanwhile %v: the write that waited: %v; the other file begins with %d, and did with %d", open, again.Err, begins(t, path), was)
		}
	}
}
