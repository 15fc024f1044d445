package rnbd

import (
	"testing"

	"github.com/rdsd/rdsd/blk"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

func TestMapReadWrite(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	m := w.mem("disk", 1<<20)
	e := w.client("c")
	v := e.mustMap("disk", rnbdwire.ReadWrite)
	if s, _ := v.State(); s != Open || v.Info().Size != 1<<20 || v.Name() != "disk" || v.Access() != rnbdwire.ReadWrite {
		t.Fatalf("%v, %+v", s, v.Info())
	}
	for _, n := range []int{512, 4096, 64 << 10, 300 << 10} { // the last in five pieces
		if err := e.write(v, 512, byte(n>>9), n, 0); err != nil {
			t.Fatal(err)
		}
		if b, err := e.read(v, 512, n); b != byte(n>>9) || err != nil {
			t.Fatalf("%d bytes: %#x, %v", n, b, err)
		}
	}
	buf := make([]byte, 512)
	if err := blk.ReadAt(m, buf, 512); err != nil || buf[0] != byte(300<<10>>9&0xff) {
		t.Fatalf("%x, %v", buf[0], err)
	}
	if err := e.do(v, &blk.Request{Op: blk.OpDiscard, Off: 0, Len: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if b, err := e.read(v, 0, 1<<20); b != 0 || err != nil {
		t.Fatalf("%#x, %v", b, err)
	}
	if err := v.Unmap(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	if !e.unmapped[v] || len(w.srv.Open()) != 0 || len(e.c.Volumes()) != 0 {
		t.Fatal("not unmapped")
	}
}
