package rnbd

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/rdsd/rdsd/blk"
)

// migrating is a world with a file that session s has open for writing, and t beside it.
func migrating(tb testing.TB) (w *world, exp *Export, s, t *end, vs, vt *Volume) {
	exp = &Export{Name: "d", Path: filepath.Join(tb.TempDir(), "f")}
	writeFile(tb, exp.Path, 1<<20)
	w = newWorld(tb, ServerConfig{Boot: 7, Notes: true})
	w.export(exp)
	s, t = w.client("s"), w.client("t")
	vs = s.mustMap("d", rw)
	if err := s.write(vs, 0, 1, 512, 0); err != nil {
		tb.Fatal(err)
	}
	return w, exp, s, t, vs, t.mustMap("d", migration)
}

// waits is a write that waits for the session of e to be back.
func (e *end) waits(v *Volume, b byte) *blk.Request {
	r := &blk.Request{Op: blk.OpWrite, Len: 512, Buf: bytes.Repeat([]byte{b}, 512)}
	e.submit(v, r)
	e.w.run()
	return r
}

// TestMigrationCancelled: who stays when the other has closed the volume is its writer as before:
// also when its session is lost then, and over a start of the daemon.
func TestMigrationCancelled(tt *testing.T) {
	for _, first := range []bool{false, true} { // the source closes it: the migration is done
		for _, start := range []bool{false, true} {
			w, exp, s, t, vs, vt := migrating(tt)
			if first {
				s, vs, t, vt = t, vt, s, vs
			}
			w.kept = 0
			if err := vt.Unmap(w.now); err != nil {
				tt.Fatal(err)
			}
			w.run()
			if p := w.srv.Past()[0]; p.Writer.Name != s.name || len(p.Behind)+len(p.Beside) > 0 || w.kept == 0 {
				tt.Errorf("%v has it: %+v, kept %d", s.name, p, w.kept)
			}
			s.cut()
			late := s.waits(vs, 2)
			if start {
				w.restart(ServerConfig{Boot: 7, Past: w.srv.Past(), Notes: true}, exp)
			}
			s.connect()
			wantErr(tt, "the write that waited", late.Err, nil)
			wantState(tt, "the one that stays", vs, Open)
			s.cut()
			late = s.waits(vs, 2)
			y := w.client("y")
			if err := y.write(y.mustMap("d", rw), 0, 3, 512, 0); err != nil {
				tt.Fatal(err)
			}
			y.cut()
			w.run()
			s.connect()
			wantErr(tt, "the write that waited while another wrote", late.Err, ErrStale)
		}
	}
}

// TestMigrationLosesOne: of two that have a volume for writing one is lost and comes back. Its waiting
// write goes on unless the other has written meanwhile.
func TestMigrationLosesOne(tt *testing.T) {
	for _, source := range []bool{true, false} {
		for _, wrote := range []bool{false, true} {
			for _, start := range []bool{false, true} { // of the daemon, before it is back
				what := fmt.Sprintf("source %v, wrote %v, start %v", source, wrote, start)
				w, exp, a, b, va, vb := migrating(tt)
				if !source {
					a, va, b, vb = b, vb, a, va
				}
				a.cut()
				late := a.waits(va, 2)
				if wrote {
					if err := b.write(vb, 0, 3, 512, 0); err != nil {
						tt.Fatal(err)
					}
				}
				if start {
					b.cut()
					w.run()
					w.restart(ServerConfig{Boot: 7, Past: w.srv.Past(), Notes: true}, exp)
					b.connect()
					wantState(tt, what+": the other", vb, Open)
				}
				a.connect()
				switch {
				case !wrote:
					wantErr(tt, what, late.Err, nil)
					wantState(tt, what, va, Open)
				case source: // it is not let in beside another one as what it was
					wantErr(tt, what, late.Err, ErrWriter)
				default:
					wantErr(tt, what, late.Err, ErrStale)
				}
				want := byte(2)
				if wrote {
					want = 3
				}
				if got, err := b.read(vb, 0, 512); got != want || err != nil {
					tt.Errorf("%s: the volume holds %d, %v; want %d", what, got, err, want)
				}
			}
		}
	}
}

// TestMigrationWroteLast: of two that have a volume for writing one is lost when the other was the last to
// write, although nobody writes meanwhile: its waiting write is the older one.
func TestMigrationWroteLast(tt *testing.T) {
	for _, source := range []bool{true, false} {
		for _, both := range []bool{false, true} { // are lost
			what := fmt.Sprintf("source %v, both %v", source, both)
			w, exp, a, b, va, vb := migrating(tt)
			if !source {
				a, va, b, vb = b, vb, a, va
			}
			for _, x := range []struct {
				e *end
				v *Volume
			}{{a, va}, {b, vb}} {
				if err := x.e.write(x.v, 0, 3, 512, 0); err != nil {
					tt.Fatal(err)
				}
			}
			w.kept = 0
			a.cut()
			late := a.waits(va, 2)
			if p := w.srv.Past()[0]; p.Writer.Name != b.name || names(p.Behind) != a.name || len(p.Beside) > 0 {
				tt.Errorf("%s: written down is %+v", what, p)
			}
			if both {
				b.cut()
				w.run()
				w.restart(ServerConfig{Boot: 7, Past: w.srv.Past(), Notes: true}, exp)
				b.connect()
			}
			a.connect()
			wantState(tt, what, vb, Open)
			if late.Err == nil || w.kept == 0 {
				tt.Errorf("%s: the older write: %v, kept %d", what, late.Err, w.kept)
			}
			if got, err := b.read(vb, 0, 512); got != 3 || err != nil {
				tt.Errorf("%s: the volume holds %d, %v; want 3", what, got, err)
			}
		}
	}
}

// TestMigrationOverAStart: both that have a volume for writing go and come back, in any order. The one
// whose write waits goes on; another session that comes first puts both behind.
func TestMigrationOverAStart(tt *testing.T) {
	for _, c := range []struct {
		order string
		want  error
	}{{"st", nil}, {"ts", nil}, {"yst", ErrStale}, {"yts", ErrStale}} {
		w, exp, s, t, vs, vt := migrating(tt)
		w.kept = 0
		t.cut()
		s.cut()
		late := s.waits(vs, 2)
		if p := w.srv.Past()[0]; names(p.Beside) != "s" || p.Writer.Name != "t" || w.kept == 0 {
			tt.Errorf("both went: %+v, kept %d", p, w.kept)
		}
		w.restart(ServerConfig{Boot: 7, Past: w.srv.Past(), Notes: true}, exp)
		for _, who := range c.order {
			switch who {
			case 's':
				s.connect()
				if c.want == nil { // one may go without a trace now, and the other write
					if p := w.srv.Past()[0]; names(p.Behind) != "t" || len(p.Beside) > 0 {
						tt.Errorf("%s: written down is %+v", c.order, p)
					}
				}
			case 't':
				t.connect()
			case 'y':
				y := w.client("y")
				v := y.mustMap("d", rw)
				if err := y.write(v, 0, 3, 512, 0); err != nil {
					tt.Fatal(err)
				}
				y.cut()
				w.run()
			}
		}
		wantErr(tt, c.order+": the write that waited", late.Err, c.want)
		if c.want != nil {
			continue
		}
		wantState(tt, c.order+": the source", vs, Open)
		if c.order == "ts" {
			wantState(tt, c.order+": the destination", vt, Open)
			if err := t.write(vt, 0, 4, 512, 0); err != nil {
				tt.Error(err)
			}
		} else { // the source has written before it was back
			wantState(tt, c.order+": the destination", vt, Closed)
		}
	}
}

// TestMigrationAndACrash: of a daemon that ends at once it is not known who wrote last of two: those
// that came before the last are told.
func TestMigrationAndACrash(tt *testing.T) {
	w, exp, s, t, vs, vt := migrating(tt)
	past := w.srv.Past()
	if len(past[0].Beside) > 0 || names(past[0].Behind) != "s" {
		tt.Fatalf("%+v", past[0])
	}
	s.cut()
	t.cut()
	late := s.waits(vs, 2)
	w.restart(ServerConfig{Boot: 7, Past: past, Notes: true}, exp)
	t.connect()
	if err := t.write(vt, 0, 4, 512, 0); err != nil {
		tt.Fatal(err)
	}
	t.cut()
	w.run()
	s.connect()
	wantErr(tt, "the write that waited", late.Err, ErrStale)
}

// TestMigrationNotNoted: one that comes back is let in beside the other when it is written down that it
// is the last, and nothing has changed where it cannot be.
func TestMigrationNotNoted(tt *testing.T) {
	w, _, s, _, vs, _ := migrating(tt)
	s.cut()
	late := s.waits(vs, 2)
	w.noteErr = errPending
	s.connect()
	if p := w.srv.Past()[0]; p.Writer.Name != "t" || names(p.Behind) != "s" || late.Err != nil {
		tt.Errorf("%+v; the write ended with %v", p, late.Err)
	}
	wantState(tt, "the source", vs, Closed)
	w.noteErr = nil
	w.tick(2 * s.c.cfg.RetryEvery)
	wantState(tt, "the source", vs, Open)
	wantErr(tt, "the write that waited", late.Err, nil)
}
