package rnbd

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// TestWriterIsKnownAgain says who is taken for the session that was there.
func TestWriterIsKnownAgain(t *testing.T) {
	a, b, c := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::1")
	was := Writer{"n", [16]byte{1}, []netip.Addr{a, c}}
	for _, x := range []struct {
		what string
		is   Writer
		want bool
	}{
		{"itself", was, true},
		{"another name", Writer{"m", was.UUID, was.From}, false},
		{"from elsewhere", Writer{"n", was.UUID, []netip.Addr{b}}, true},
		{"started again", Writer{"n", [16]byte{2}, []netip.Addr{b, c}}, true},
		{"another node", Writer{"n", [16]byte{2}, []netip.Addr{b}}, false},
		{"another node, and no numbers", Writer{"n", [16]byte{}, []netip.Addr{b}}, false},
		{"its name alone is known", Writer{Name: "n"}, true},
	} {
		if was.same(&x.is) != x.want || x.is.same(&was) != x.want {
			t.Errorf("%s: want %v", x.what, x.want)
		}
	}
	none := Writer{"n", [16]byte{}, []netip.Addr{b}}
	if w := (Writer{"n", [16]byte{}, []netip.Addr{a}}); w.same(&none) {
		t.Error("two without numbers are one")
	}
}

// TestWriterIsDocumented: the document says of how many addresses a session is known again.
func TestWriterIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("(of the last %d that its paths came from)", maxFrom); !strings.Contains(string(text), want) {
		t.Errorf("docs/protocol.md, Foreign, does not say %q", want)
	}
}

// TestWriterOfOneName: a node that has the name of another, and is let in when that has gone,
// is another writer: writes of the first that waited do not go over its own. The first, which
// comes over any of its paths, is not taken for it.
func TestWriterOfOneName(t *testing.T) {
	for _, c := range []struct {
		what    string
		other   string // address of the second node; "": there is none
		start   bool   // of the server
		earlier bool   // which wrote down names alone
		want    error
	}{
		{"another node", "10.0.0.3", false, false, ErrStale},
		{"another node, and a start of the server", "10.0.0.3", true, false, ErrStale},
		{"the next process of the first", "10.0.0.2", false, false, nil},
		{"nobody", "", false, false, nil},
		{"nobody, and a start of the server", "", true, false, nil},
		{"nobody, and a start of an earlier version", "", true, true, nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "f")
			writeFile(t, path, 1<<20)
			exp := &Export{Name: "d", Path: path}
			w := newWorld(t, ServerConfig{Boot: 7, Notes: true})
			w.export(exp)
			a := w.client("n")
			va := a.mustMap("d", rw)
			second := netip.MustParseAddr("10.0.0.2")
			a.path.Remote = netip.AddrPortFrom(second, 1024) // of two paths
			if err := a.write(va, 0, 1, 512, 0); err != nil {
				t.Fatal(err)
			}
			w.srv.Stale(w.now, a.sess)
			kept := w.kept
			if a.cut(); kept == 0 {
				t.Error("that it has another path is not kept")
			}
			late := &blk.Request{Op: blk.OpWrite, Len: 512, Buf: make([]byte, 512)}
			a.submit(va, late)
			w.run()
			if c.other != "" {
				b := w.newEnd("n", c.other, ClientConfig{})
				b.connect()
				vb := b.mustMap("d", rw)
				if err := b.write(vb, 0, 2, 512, 0); err != nil {
					t.Fatal(err)
				}
				b.cut()
				w.run()
			}
			if c.start {
				past := w.srv.Past()
				if c.earlier {
					past[0].Writer = Writer{Name: "n"}
				}
				w.restart(ServerConfig{Boot: 7, Past: past, Notes: true}, exp)
			}
			a.addr = second
			a.connect()
			if rdserr.Errno(late.Err) != rdserr.Errno(c.want) {
				t.Errorf("the write that waited: %v, want %v", late.Err, c.want)
			}
			state := Open
			if c.want != nil {
				state = Closed
			}
			wantState(t, "the first node", va, state)
		})
	}
}

// TestWriterLearns: where a client came from before is remembered beside where it comes from now, the last of it.
func TestWriterLearns(t *testing.T) {
	at := func(n ...byte) (list []netip.Addr) {
		for _, n := range n {
			list = append(list, netip.AddrFrom4([4]byte{10, 0, 0, n}))
		}
		return list
	}
	to := func(last byte) (list []netip.Addr) {
		for n := range last {
			list = append(list, at(n+1)...)
		}
		return list
	}
	for _, x := range []struct{ was, now, want []netip.Addr }{
		{at(1, 2), at(3), at(1, 2, 3)},
		{at(1, 2), at(1), at(2, 1)},
		{at(2, 1), at(1), at(2, 1)},
		{nil, at(1), at(1)},
		{to(32), at(33, 34), to(34)[2:]},
	} {
		w := Writer{From: x.now}
		if w.learn(&Writer{From: x.was}); !slices.Equal(w.From, x.want) {
			t.Errorf("from %v, and before from %v: %v, want %v", x.now, x.was, w.From, x.want)
		}
	}
}

// TestWriterOfManyPaths: a client with many paths, from as many addresses, that is started again may come
// over any of them first. Those that it had before and has no more make room.
func TestWriterOfManyPaths(t *testing.T) {
	o, _ := newOver(t, newRecorder(cached))
	at := func(id byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 1, id}) }
	first, chunks := o.path(1, 1)
	o.hello(first, chunks)
	o.open(first, chunks)
	h := o.srv.sessions[0].handles[0]
	has := func(want int, paths ...byte) {
		t.Helper()
		w := h.writer()
		for _, id := range paths {
			if next := (Writer{w.Name, [16]byte{9}, []netip.Addr{at(id)}}); !next.same(&w) {
				t.Errorf("started again it is not known by %v", at(id))
			}
		}
		if len(w.From) != want {
			t.Errorf("%d addresses are remembered, want %d", len(w.From), want)
		}
	}
	var paths []byte
	for id := byte(2); id <= 9; id++ {
		o.path(id, 1)
		paths = append(paths, id)
	}
	has(9, append(paths, 1)...)
	for id := byte(10); id <= 60; id++ {
		p, _ := o.path(id, 1)
		o.lose(p)
	}
	has(maxFrom, append(paths, 1, 60)...)
}
