package rnbd

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

func writeFile(t testing.TB, path string, size int) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(len(path)) // tells files of paths of different lengths apart
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// root offers what is below a directory.
func (w *world) root(r *Root) {
	w.t.Helper()
	if err := r.Open(); err != nil {
		w.t.Fatal(err)
	}
	w.srv.AddRoot(r)
}

// TestNames: which names lead where, and which nowhere.
func TestNames(t *testing.T) {
	dir := t.TempDir()
	top := filepath.Join(dir, "top")
	writeFile(t, filepath.Join(dir, "outside"), 4096)
	writeFile(t, filepath.Join(top, "a"), 4096)
	writeFile(t, filepath.Join(top, "sub/bb"), 4096)
	writeFile(t, filepath.Join(top, "..hidden"), 4096)
	for link, to := range map[string]string{"abs": filepath.Join(dir, "outside"), "rel": "../outside", "inside": "a", "subdir": "sub"} {
		if err := os.Symlink(to, filepath.Join(top, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(top, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, ServerConfig{})
	w.root(&Root{Path: top})
	e := w.client("c")
	invalid := rdserr.ErrInvalid
	for _, c := range []struct {
		name string
		want error
	}{
		{"a", nil},
		{"/a", nil}, // as a kernel's clients name things
		{"//a/", nil},
		{"sub//bb", nil},
		{"..hidden", nil},
		{"nothing", rdserr.ErrNotFound},
		{"sub/nothing", rdserr.ErrNotFound},
		{"..", invalid},
		{"../outside", invalid},
		{"/../outside", invalid},
		{"sub/../a", invalid},
		{"./a", invalid},
		{"/", invalid},
		{"abs", invalid},
		{"rel", invalid},
		{"inside", invalid}, // not even one that stays inside
		{"subdir/bb", invalid},
		{"sub", invalid}, // a directory
		{"fifo", invalid},
		{strings.Repeat("n", 254), rdserr.ErrNotFound},
		{filepath.Join(top, "a"), rdserr.ErrNotFound}, // no path leads from the top of the file system
	} {
		rsp, err := e.rawOpen(c.name, ro)
		wantErr(t, c.name, err, c.want)
		if err == nil {
			if err := e.rawClose(rsp.DeviceID); err != nil {
				t.Fatal(err)
			}
		}
	}
	long := must(open1(strings.Repeat("n", 254), ro))
	long[6+254] = 'n'
	_, err := e.raw(rawRead, long, 56)
	wantErr(t, "a name without its NUL", err, invalid)
}

// TestRootOfTheSession: the session's name is a part of the path, and nothing
// else.
func TestRootOfTheSession(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []string{"one/a", "two/bb", "pre-one/ccc/x", "other"} {
		writeFile(t, filepath.Join(dir, p), 4096)
	}
	for _, c := range []struct {
		path, session, name string
		want                error
	}{
		{"/%SESSNAME%", "one", "a", nil},
		{"/{session}", "one", "a", nil},
		{"/{session}", "two", "bb", nil},
		{"/{session}", "two", "a", rdserr.ErrNotFound},
		{"/{session}", "three", "a", rdserr.ErrNotFound},
		{"/{session}", "one", "../two/bb", rdserr.ErrInvalid},
		{"/pre-{session}/ccc", "one", "x", nil},
		{"/{session}", "..", "other", rdserr.ErrInvalid},
		{"/{session}", ".", "other", rdserr.ErrInvalid},
		{"/{session}", "one/../two", "bb", rdserr.ErrInvalid},
		{"/{session}", "", "other", rdserr.ErrInvalid},
		{"", "..", "one/a", nil}, // the name does not matter where it is no part of the path
	} {
		w := newWorld(t, ServerConfig{})
		w.root(&Root{Path: dir + c.path})
		_, err := w.client(c.session).rawOpen(c.name, ro)
		wantErr(t, c.path+" "+c.session+" "+c.name, err, c.want)
	}
}

func TestRootErrors(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		root Root
		want error
	}{
		{Root{Path: "relative"}, rdserr.ErrInvalid},
		{Root{Path: dir + "/nothing"}, rdserr.ErrNotFound},
		{Root{Path: dir + "/nothing/{session}"}, rdserr.ErrNotFound},
		{Root{Path: dir + "/{session}/../x"}, rdserr.ErrInvalid},
		{Root{Path: dir, Rules: Rules{Allow: []netip.Prefix{{}}}}, rdserr.ErrInvalid},
		{Root{Path: dir + "/{session}"}, nil},
	} {
		err := c.root.Open()
		wantErr(t, c.root.Path, err, c.want)
		if err == nil {
			if err := c.root.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestExportErrors(t *testing.T) {
	m, err := blk.NewMem(blk.MemOptions{Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, ServerConfig{})
	for _, c := range []struct {
		e    Export
		want error
	}{
		{Export{Name: "", Device: m}, rdserr.ErrInvalid},
		{Export{Name: "../x", Device: m}, rdserr.ErrInvalid},
		{Export{Name: strings.Repeat("n", 255), Device: m}, rdserr.ErrInvalid},
		{Export{Name: "neither"}, rdserr.ErrInvalid},
		{Export{Name: "both", Device: m, Path: "/x"}, rdserr.ErrInvalid},
		{Export{Name: "prefix", Device: m, Rules: Rules{Allow: []netip.Prefix{{}}}}, rdserr.ErrInvalid},
		{Export{Name: "d", Device: m}, nil},
		{Export{Name: "d", Path: "/x"}, ErrExists},
		{Export{Name: "other", Device: m}, ErrExists},
	} {
		wantErr(t, c.e.Name, w.srv.Export(&c.e), c.want)
	}
	wantErr(t, "no such export", w.srv.ForceUnexport(w.now, w.named("x")), rdserr.ErrNotFound)
}

// named is the export of a name, or one that the server does not have.
func (w *world) named(name string) *Export {
	if e := w.srv.exports[name]; e != nil {
		return e
	}
	return &Export{Name: name}
}

// TestUnexport: not while it is in use, but by force; the device is closed when
// the last request has ended.
func TestUnexport(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	f, exp := w.fault("d", 1<<20)
	w.mem("idle", 1<<20)
	e := w.client("c")
	v := e.mustMap("d", rw)
	wantErr(t, "in use", w.srv.Unexport(w.now, w.named("d")), ErrBusy)
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Stall: true})
	done := e.submit(v, &blk.Request{Op: blk.OpWrite, Len: 512, Buf: make([]byte, 512)})
	w.run()
	if err := w.srv.ForceUnexport(w.now, w.named("d")); err != nil {
		t.Fatal(err)
	}
	w.run()
	if len(w.closed) != 0 || *done {
		t.Fatal("closed while a write is at the store")
	}
	f.Release()
	w.run()
	if len(w.closed) != 1 || w.closed[0] != Closer(exp.Device) || !*done {
		t.Fatalf("%d devices closed", len(w.closed))
	}
	_, err := e.rawOpen("d", ro)
	wantErr(t, "afterwards", err, rdserr.ErrNotFound)
	idle := w.named("idle")
	if err := w.srv.Unexport(w.now, idle); err != nil || len(w.closed) != 2 {
		t.Errorf("one nobody uses: %v", err)
	}
	// Another one of its name is not meant.
	w.mem("idle", 1<<20)
	wantErr(t, "one that has gone", w.srv.Unexport(w.now, idle), rdserr.ErrNotFound)
	wantErr(t, "the same, by force", w.srv.ForceUnexport(w.now, idle), rdserr.ErrNotFound)
	if w.srv.exports["idle"] == nil {
		t.Error("the next of that name has gone with it")
	}
}

// TestUnexportWaitsForTheStore: nor while a request of a session that has gone, or that lost it, is at the store: whoever is told that it is
// not exported any more may have it written elsewhere, and the request would go over that.
func TestUnexportWaitsForTheStore(t *testing.T) {
	for what, end := range map[string]func(w *world, e *end){
		"the session has gone": func(w *world, e *end) { e.cut() },
		"it was taken from it": func(w *world, e *end) { w.srv.ForceClose(w.now, e.sess, "d") },
	} {
		w := newWorld(t, ServerConfig{})
		f, _ := w.fault("d", 1<<20)
		e := w.client("c")
		v := e.mustMap("d", rw)
		f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Stall: true, Count: 1})
		e.submit(v, &blk.Request{Op: blk.OpWrite, Len: 512, Buf: make([]byte, 512)})
		w.run()
		end(w, e)
		w.run()
		wantErr(t, what, w.srv.Unexport(w.now, w.named("d")), ErrBusy)
		f.Release()
		w.run()
		if err := w.srv.Unexport(w.now, w.named("d")); err != nil {
			t.Errorf("%s, and nothing is at the store: %v", what, err)
		}
	}
}

// TestRemoveRoot: the directory is held as long as somebody may look below it.
func TestRemoveRoot(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), 4096)
	w := newWorld(t, ServerConfig{})
	r := &Root{Path: dir}
	w.root(r)
	e := w.client("c")
	e.mustMap("a", ro)
	wantErr(t, "in use", w.srv.RemoveRoot(w.now, r), ErrBusy)
	w.holdOpen = true
	e2 := w.client("c2")
	open := e2.rawStart(rawRead, must(open1("a", ro)), 56)
	w.run()
	if err := w.srv.ForceRemoveRoot(w.now, r); err != nil {
		t.Fatal(err)
	}
	for _, c := range w.closed {
		if c == Closer(r) {
			t.Fatal("let go while a file is being opened below it")
		}
	}
	w.holdOpen = false
	w.run()
	wantErr(t, "what was being opened", open.Err, rdserr.ErrNotFound)
	found := false
	for _, c := range w.closed {
		found = found || c == Closer(r)
	}
	if !found || len(w.srv.Devices()) != 0 || len(w.srv.Roots()) != 0 {
		t.Error("the root was not let go")
	}
	wantErr(t, "once more", w.srv.ForceRemoveRoot(w.now, r), rdserr.ErrNotFound)
}

// TestRules: addresses and names of sessions.
func TestRules(t *testing.T) {
	pfx := func(s ...string) (list []netip.Prefix) {
		for _, p := range s {
			list = append(list, netip.MustParsePrefix(p))
		}
		return list
	}
	for _, c := range []struct {
		rules         Rules
		session, from string
		access        rnbdwire.Access
		want          error
	}{
		{Rules{}, "s", "10.0.0.1", rw, nil},
		{Rules{Allow: pfx("10.0.0.0/24")}, "s", "10.0.0.7", rw, nil},
		{Rules{Allow: pfx("10.0.0.0/24")}, "s", "::ffff:10.0.0.7", rw, nil},
		{Rules{Allow: pfx("10.0.0.0/24")}, "s", "10.0.1.7", ro, rdserr.ErrPerm},
		{Rules{Allow: pfx("10.0.0.0/24", "fe80::/16")}, "s", "fe80::1", rw, nil},
		{Rules{Sessions: []string{"web-*"}}, "web-7", "10.0.0.1", rw, nil},
		{Rules{Sessions: []string{"web-*"}}, "db-7", "10.0.0.1", rw, rdserr.ErrPerm},
		{Rules{Sessions: []string{"x", "db-?"}}, "db-7", "10.0.0.1", rw, nil},
		{Rules{ReadOnly: true}, "s", "10.0.0.1", ro, nil},
		{Rules{ReadOnly: true}, "s", "10.0.0.1", rw, blk.ErrReadOnly},
		{Rules{ReadOnly: true}, "s", "10.0.0.1", migration, blk.ErrReadOnly},
	} {
		err := c.rules.check("d", c.session, netip.MustParseAddr(c.from), c.access)
		wantErr(t, c.session+" "+c.from, err, c.want)
	}
	for _, c := range []struct {
		pattern, s string
		want       bool
	}{
		{"*", "", true}, {"*", "abc", true}, {"a*c", "abbc", true}, {"a*c", "abcd", false}, {"?", "", false}, {"a?c", "abc", true},
		{"*b*b", "abab", true}, {"*b?b", "abab", true}, {"*x", "abab", false}, {"", "", true}, {"", "a", false}, {"a**", "a", true}, {"[a]", "a", false},
	} {
		if got := glob(c.pattern, c.s); got != c.want {
			t.Errorf("glob %q %q: %v", c.pattern, c.s, got)
		}
	}
}

// TestEveryPathIsLookedAt: a path of the session from an address that may not
// open does not carry requests either.
func TestEveryPathIsLookedAt(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	m, _ := blk.NewMem(blk.MemOptions{Size: 1 << 20})
	w.export(&Export{Name: "d", Device: m, Rules: Rules{Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}})
	e := w.client("c")
	rsp, err := e.rawOpen("d", rw)
	if err != nil {
		t.Fatal(err)
	}
	read := rawIO(rsp.DeviceID, rnbdwire.Read, 0, 0, 512)
	for _, c := range []struct {
		from string
		want error
	}{{"10.0.0.1", nil}, {"10.0.0.2", nil}, {"10.0.0.3", nil}, {"10.0.1.1", rdserr.ErrPerm}} {
		e.path.Remote = netip.AddrPortFrom(netip.MustParseAddr(c.from), 99)
		_, err := e.raw(rawRead, read, 512)
		wantErr(t, c.from, err, c.want)
		_, err = e.raw(rawRead, must(open1("d", ro)), 56)
		wantErr(t, "opened again from "+c.from, err, c.want)
	}
}

// TestExportsBeforeRoots, and the first root that has the name.
func TestExportsBeforeRoots(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "1/x"), 4096)
	writeFile(t, filepath.Join(dir, "22/x"), 4096)
	writeFile(t, filepath.Join(dir, "22/y"), 4096)
	writeFile(t, filepath.Join(dir, "333/x"), 4096)
	w := newWorld(t, ServerConfig{})
	w.root(&Root{Path: filepath.Join(dir, "1"), Rules: Rules{ReadOnly: true}})
	w.root(&Root{Path: filepath.Join(dir, "22")})
	e := w.client("c")
	sees := func(name string, access rnbdwire.Access, path string) {
		t.Helper()
		v := e.mustMap(name, access)
		if b, err := e.read(v, 0, 512); err != nil || b != byte(len(filepath.Join(dir, path))) {
			t.Errorf("%s, %v: %d, %v; want that of %s", name, access, b, err, path)
		}
		if err := v.Unmap(w.now); err != nil {
			t.Fatal(err)
		}
		w.run()
	}
	sees("x", ro, "1/x")
	sees("x", rw, "22/x") // of the first nothing may be written
	sees("y", ro, "22/y")
	_, err := e.tryMap("z", rw)
	wantErr(t, "in none that may be written", err, blk.ErrReadOnly)
	w.export(&Export{Name: "x", Path: filepath.Join(dir, "333/x")})
	sees("x", ro, "333/x")
}

// TestFileThatMayNotBeWritten is served read-only to who asks for no more.
func TestFileThatMayNotBeWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	writeFile(t, path, 4096)
	w := newWorld(t, ServerConfig{})
	w.export(&Export{Name: "d", Path: path, File: blk.FileOptions{ReadOnly: true}})
	e := w.client("c")
	_, err := e.tryMap("d", rw)
	wantErr(t, "rw", err, blk.ErrReadOnly)
	if v := e.mustMap("d", ro); !v.Info().ReadOnly {
		t.Error("it says that it can be written")
	}
}
