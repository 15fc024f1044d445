package wire_test

import (
	"bytes"
	"math/rand"
	"testing"

	"github.com/rdsd/rdsd/wire"
)

// As in fuzz_test.go: each target states one property, and TestRTRSRandomBytes
// runs the same ones. What a parser accepts is encoded to bytes that it reads
// as the same, and whose bytes with a meaning are those that came.

// sameBut compares two messages but for the bytes [from,to) of each pair.
func sameBut(t testing.TB, in, out []byte, pairs ...int) {
	t.Helper()
	if len(out) > len(in) {
		t.Fatalf("%x encoded as %x", in, out)
	}
	a, b := bytes.Clone(in[:len(out)]), bytes.Clone(out)
	for i := 0; i < len(pairs); i += 2 {
		clear(a[min(pairs[i], len(a)):min(pairs[i+1], len(a))])
		clear(b[min(pairs[i], len(b)):min(pairs[i+1], len(b))])
	}
	if !bytes.Equal(a, b) {
		t.Fatalf("%x encoded as %x", in, out)
	}
}

func rtrsConnProperty(t testing.TB, b []byte) {
	if r, err := wire.ParseRTRSConnReq(b); err == nil {
		out := r.Append(nil)
		if again, err := wire.ParseRTRSConnReq(out); again != r || err != nil || r.Conn >= r.Conns || r.Conns > wire.RTRSMaxConns {
			t.Fatalf("%+v came back as %+v, %v", r, again, err)
		}
		sameBut(t, b, out, 0, 2, 44, 56)
		if out[44] != b[44]&1 {
			t.Fatalf("%x: first_conn encoded as %x", b, out[44])
		}
	}
	if r, err := wire.ParseRTRSConnRsp(b); err == nil {
		out := r.Append(nil)
		if again, err := wire.ParseRTRSConnRsp(out); again != r || err != nil {
			t.Fatalf("%+v came back as %+v, %v", r, again, err)
		}
		sameBut(t, b, out, 20, 56)
		if c, err := r.Chunks(); err == nil && (c.Size() < c.MaxIO || uint64(c.Depth-1)<<c.MemBits()|uint64(c.Size()-1) >= 1<<28) {
			t.Fatalf("%+v announces %+v", r, c)
		}
		_ = r.Errno()
	}
}

// rtrsInfoProperty: an answer is about a session of 32 chunks, or of as many as
// the last byte says.
func rtrsInfoProperty(t testing.TB, b []byte) {
	if name, err := wire.ParseRTRSInfoReq(b); err == nil {
		out, err := wire.AppendRTRSInfoReq(nil, name)
		if again, err2 := wire.ParseRTRSInfoReq(out); again != name || err != nil || err2 != nil {
			t.Fatalf("%q came back as %q, %v, %v", name, again, err, err2)
		}
		sameBut(t, b, out, 2+len(name), len(out))
	}
	if len(b) == 0 {
		return
	}
	for _, c := range []wire.RTRSChunks{newChunks(t, 1+uint32(b[len(b)-1]), 126976, 4096), newChunks(t, 32, 126976, 4096)} {
		ds, err := wire.ParseRTRSInfoRsp(b, c)
		if err != nil {
			continue
		}
		sameBut(t, b, wire.AppendRTRSInfoRsp(nil, ds), 4, 8)
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

// rtrsRequestProperty: the first two bytes are the offset, the rest is the chunk
// as far as it was written; its user header is taken for RNBD's.
func rtrsRequestProperty(t testing.TB, b []byte) {
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
		if r != (wire.RTRSReq{}) || l != (wire.RTRSLayout{}) {
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
	if i := c.Req(7, off); i.Type() != wire.RTRSIOReq {
		t.Fatalf("immediate %v", i)
	}
	rnbdProperty(t, chunk[l.Usr:l.Msg])
}

func rtrsImmProperty(t testing.TB, b []byte) {
	i, err := wire.ParseRTRSImm(b)
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
	if t2 := i.Type(); t2 == wire.RTRSIORsp || t2 == wire.RTRSIORspInv {
		if wire.RTRSDone(i.Done()) != i {
			t.Fatalf("%v came back as %v", i, wire.RTRSDone(i.Done()))
		}
	}
	if r, err := wire.ParseRTRSRKeyRsp(b); err == nil {
		sameBut(t, b, r.Append(nil))
	}
}

func rnbdProperty(t testing.TB, b []byte) {
	k, err := wire.RNBDKind(b)
	if err != nil {
		return
	}
	_ = k.String()
	for _, typ := range []wire.RNBDType{wire.RNBDSessInfo, wire.RNBDSessInfoRsp} {
		if ver, err := wire.ParseRNBDSessInfo(b, typ); err == nil {
			sameBut(t, b, wire.AppendRNBDSessInfo(nil, typ, ver), 2, 4, 5, 36)
		}
	}
	if o, err := wire.ParseRNBDOpen(b); err == nil {
		out, err := o.Append(nil)
		if again, err2 := wire.ParseRNBDOpen(out); again != o || err != nil || err2 != nil {
			t.Fatalf("%+v came back as %+v, %v, %v", o, again, err, err2)
		}
		sameBut(t, b, out, 2, 4, 5, 6, 6+len(o.Name), 264)
	}
	if r, err := wire.ParseRNBDOpenRsp(b); err == nil {
		sameBut(t, b, r.Append(nil), 2, 4, 46, 56)
	}
	if id, err := wire.ParseRNBDClose(b); err == nil {
		sameBut(t, b, wire.AppendRNBDClose(nil, id), 2, 4)
	}
	if o, err := wire.ParseRNBDIO(b); err == nil {
		_ = o.String()
		out := o.Append(nil)
		if again, err := wire.ParseRNBDIO(out); again != o || err != nil {
			t.Fatalf("%+v came back as %+v, %v", o, again, err)
		}
		if len(b) < len(out) {
			out = out[:24]
		}
		sameBut(t, b, out, 2, 4, 26, 32)
		if err := o.Check(wire.RTRSRead, o.Size); err == nil && o.Op() != wire.RNBDRead && o.Op() != wire.RNBDFlush {
			t.Fatalf("%v passes as a read", &o)
		}
	}
}

func addRTRSVectors(f *testing.F, kinds ...string) {
	for _, v := range rtrsVectors(f) {
		for _, k := range kinds {
			if v.kind == k {
				f.Add(v.hex)
			}
		}
	}
}

func FuzzRTRSConn(f *testing.F) {
	addRTRSVectors(f, "connreq", "connrsp")
	f.Fuzz(func(t *testing.T, b []byte) { rtrsConnProperty(t, b) })
}

func FuzzRTRSInfo(f *testing.F) {
	addRTRSVectors(f, "inforeq", "inforsp")
	f.Fuzz(func(t *testing.T, b []byte) { rtrsInfoProperty(t, b) })
}

func FuzzRTRSRequest(f *testing.F) {
	for _, v := range rtrsVectors(f) {
		if v.kind == "request" {
			at := int(v.number(f, "usrlen", 16))
			f.Add(append([]byte{byte(at), byte(at >> 8)}, v.hex...)) // without the data
			if at += 56; at < 400 {
				b := append([]byte{byte(at), byte(at >> 8)}, make([]byte, 56)...)
				f.Add(append(b, v.hex...))
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) { rtrsRequestProperty(t, b) })
}

func FuzzRTRSImm(f *testing.F) {
	addRTRSVectors(f, "imm", "rkeyrsp")
	f.Fuzz(func(t *testing.T, b []byte) { rtrsImmProperty(t, b) })
}

func FuzzRNBD(f *testing.F) {
	addRTRSVectors(f, "request", "sessinforsp", "openrsp") // a request begins with the RNBD message
	f.Fuzz(func(t *testing.T, b []byte) { rnbdProperty(t, b) })
}

// TestRTRSRandomBytes: random changes to every vector, which get further than
// bytes without any form do.
func TestRTRSRandomBytes(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	vs := rtrsVectors(t)
	for round := range 60 {
		for _, v := range vs {
			b := bytes.Clone(v.hex)
			for range rng.Intn(4) * min(round, 1) {
				switch i := rng.Intn(len(b)); rng.Intn(3) {
				case 0:
					b[i] = byte(rng.Int())
				case 1:
					b[i] ^= 1 << rng.Intn(8)
				case 2:
					b = b[:max(i, 1)]
				}
			}
			rtrsConnProperty(t, b)
			rtrsInfoProperty(t, b)
			rtrsImmProperty(t, b)
			rnbdProperty(t, b)
			if v.kind == "request" {
				at := int(v.number(t, "usrlen", 16)) + rng.Intn(2)*56
				front := append([]byte{byte(at), byte(at >> 8)}, make([]byte, max(0, at-int(v.number(t, "usrlen", 16))))...)
				rtrsRequestProperty(t, append(front, b...))
			}
		}
	}
}
