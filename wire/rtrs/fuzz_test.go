package rtrs_test

import (
	"bytes"
	"math/rand"
	"testing"

	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
	"github.com/rdsd/rdsd/wire/wiretest"
)

// As in wire/fuzz_test.go: each target states one property, and TestRandomBytes
// runs the same ones. What a parser accepts is encoded to bytes that it reads
// as the same, and whose bytes with a meaning are those that came.

func connProperty(t testing.TB, b []byte) {
	if r, err := rtrswire.ParseConnReq(b); err == nil {
		out := r.Append(nil)
		if again, err := rtrswire.ParseConnReq(out); again != r || err != nil || r.Conn >= r.Conns || r.Conns > rtrswire.MaxConns {
			t.Fatalf("%+v came back as %+v, %v", r, again, err)
		}
		wiretest.SameBut(t, b, out, 0, 2, 44, 56)
		if out[44] != b[44]&1 {
			t.Fatalf("%x: first_conn encoded as %x", b, out[44])
		}
	}
	if r, err := rtrswire.ParseConnRsp(b); err == nil {
		out := r.Append(nil)
		if again, err := rtrswire.ParseConnRsp(out); again != r || err != nil {
			t.Fatalf("%+v came back as %+v, %v", r, again, err)
		}
		wiretest.SameBut(t, b, out, 20, 56)
		if c, err := r.Chunks(); err == nil && (c.Size() < c.MaxIO || uint64(c.Depth-1)<<c.MemBits()|uint64(c.Size()-1) >= 1<<28) {
			t.Fatalf("%+v announces %+v", r, c)
		}
		_ = r.Errno()
	}
}

// infoProperty takes b for an answer about a session of 32 chunks, and of as many as the
// last byte says.
func infoProperty(t testing.TB, b []byte) {
	if name, err := rtrswire.ParseInfoReq(b); err == nil {
		out, err := rtrswire.AppendInfoReq(nil, name)
		if again, err2 := rtrswire.ParseInfoReq(out); again != name || err != nil || err2 != nil {
			t.Fatalf("%q came back as %q, %v, %v", name, again, err, err2)
		}
		wiretest.SameBut(t, b, out, 2+len(name), len(out))
	}
	if len(b) == 0 {
		return
	}
	for _, c := range []rtrswire.Chunks{newChunks(t, 1+uint32(b[len(b)-1]), 126976, 4096), newChunks(t, 32, 126976, 4096)} {
		ds, err := rtrswire.ParseInfoRsp(b, c)
		if err != nil {
			continue
		}
		wiretest.SameBut(t, b, rtrswire.AppendInfoRsp(nil, ds), 4, 8)
		all := c.Spread(nil, ds)
		if len(all) != int(c.Depth) {
			t.Fatalf("%x: %d chunks, want %d", b, len(all), c.Depth)
		}
		for i, d := range all {
			if d.Len != c.Size() || d.Addr+uint64(d.Len-1) < d.Addr {
				t.Fatalf("%x: chunk %d is %+v", b, i, d)
			}
		}
	}
}

// requestProperty takes the first two bytes for the offset and the rest for the chunk as
// far as it was written.
func requestProperty(t testing.TB, b []byte) {
	if len(b) < 2 {
		return
	}
	off, chunk := uint32(b[0])|uint32(b[1])<<8, b[2:]
	c := newChunks(t, 8, 400, 400)
	if uint32(len(chunk)) > c.Size() {
		chunk = chunk[:c.Size():c.Size()]
	}
	r, l, err := c.ParseRequest(chunk, off)
	if err != nil {
		if r != (rtrswire.Req{}) || l != (rtrswire.Layout{}) {
			t.Fatalf("%x: %v with %+v", b, err, r)
		}
		return
	}
	if l.Usr > l.Msg || l.Msg != off || l.Msg > l.End || l.End > uint32(len(chunk)) || l.DataLen() > c.MaxIO || r.SGCnt == 1 && (r.Desc.Len == 0 || r.Desc.Len > l.DataLen()) {
		t.Fatalf("%x: %+v laid out as %+v", b, r, l)
	}
	out := r.Append(nil)
	if len(out) != r.Len() || !bytes.Equal(out, chunk[l.Msg:l.End]) {
		t.Fatalf("%x encoded as %x", chunk[l.Msg:l.End], out)
	}
	if again, err := c.Layout(&r, l.DataLen()); err == nil && again != l {
		t.Fatalf("%+v laid out as %+v, was %+v", r, again, l)
	}
	if i := c.Req(7, off); i.Type() != rtrswire.IOReq {
		t.Fatalf("immediate %v", i)
	}
}

func immProperty(t testing.TB, b []byte) {
	i, err := rtrswire.ParseImm(b)
	if err != nil {
		return
	}
	_ = i.String()
	if !bytes.Equal(i.Append(nil), b[:4]) {
		t.Fatalf("%x encoded as %x", b[:4], i.Append(nil))
	}
	depth := uint32(1)
	if len(b) >= 6 {
		depth += uint32(b[4]) | uint32(b[5])<<8&0x7f00
	}
	c := newChunks(t, depth, 4096, 4096)
	if mem, off, err := c.ParseReq(i); err == nil && (mem >= depth || off >= c.Size() || c.Req(mem, off) != i) {
		t.Fatalf("%v, depth %d: chunk %d byte %d", i, depth, mem, off)
	}
	if t2 := i.Type(); t2 == rtrswire.IORsp || t2 == rtrswire.IORspInv {
		if rtrswire.Done(i.Done()) != i {
			t.Fatalf("%v came back as %v", i, rtrswire.Done(i.Done()))
		}
	}
	if r, err := rtrswire.ParseRKeyRsp(b); err == nil {
		wiretest.SameBut(t, b, r.Append(nil))
	}
}

func addVectors(f *testing.F, kinds ...string) {
	for _, v := range vectors(f) {
		for _, k := range kinds {
			if v.Kind == k {
				f.Add(v.Hex)
			}
		}
	}
}

func FuzzConn(f *testing.F) {
	addVectors(f, "connreq", "connrsp")
	f.Fuzz(func(t *testing.T, b []byte) { connProperty(t, b) })
}

func FuzzInfo(f *testing.F) {
	addVectors(f, "inforeq", "inforsp")
	f.Fuzz(func(t *testing.T, b []byte) { infoProperty(t, b) })
}

func FuzzRequest(f *testing.F) {
	for _, v := range vectors(f) {
		if v.Kind == "request" {
			at := int(v.Number(f, "usrlen", 16))
			f.Add(append([]byte{byte(at), byte(at >> 8)}, v.Hex...)) // without the data
			if at += 56; at < 400 {
				b := append([]byte{byte(at), byte(at >> 8)}, make([]byte, 56)...)
				f.Add(append(b, v.Hex...))
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) { requestProperty(t, b) })
}

func FuzzImm(f *testing.F) {
	addVectors(f, "imm", "rkeyrsp")
	f.Fuzz(func(t *testing.T, b []byte) { immProperty(t, b) })
}

// TestRandomBytes: random changes to every vector, which get further than
// bytes without any form do.
func TestRandomBytes(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	vs := vectors(t)
	for round := range 60 {
		for _, v := range vs {
			b := wiretest.Changed(rng, v.Hex, rng.Intn(4)*min(round, 1))
			connProperty(t, b)
			infoProperty(t, b)
			immProperty(t, b)
			if v.Kind == "request" {
				at := int(v.Number(t, "usrlen", 16)) + rng.Intn(2)*56
				front := append([]byte{byte(at), byte(at >> 8)}, make([]byte, max(0, at-int(v.Number(t, "usrlen", 16))))...)
				requestProperty(t, append(front, b...))
			}
		}
	}
}
