package rnbd_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
	"github.com/rdsd/rdsd/wire/wiretest"
)

// vectors are the answers.
func vectors(t testing.TB) []wiretest.Vector { return wiretest.Read(t, "testdata/rnbd.txt") }

// requests are RTRS requests, whose user headers are messages of this package.
func requests(t testing.TB) (vs []wiretest.Vector) {
	for _, v := range wiretest.Read(t, "../rtrs/testdata/rtrs.txt", "desc") {
		if v.Kind == "request" && v.Fields["rnbd"] != "" {
			vs = append(vs, v)
		}
	}
	return vs
}

// reasons are the names that "invalid" has in the vectors.
var reasons = map[string]error{"short": rnbdwire.ErrShort, "type": rnbdwire.ErrType}

func TestVectors(t *testing.T) {
	run := map[string]func(*testing.T, *wiretest.Vector){
		"request": requestVector, "sessinforsp": sessInfoRspVector, "openrsp": openRspVector,
	}
	captured := map[string]int{}
	for _, v := range append(requests(t), vectors(t)...) {
		t.Run(v.Kind+"/"+v.Name, func(t *testing.T) {
			if run[v.Kind] == nil {
				t.Fatalf("unknown kind %q", v.Kind)
			}
			if v.Captured() {
				captured[v.Kind]++
			}
			run[v.Kind](t, &v)
		})
	}
	if captured["request"] < 15 || captured["sessinforsp"] < 1 || captured["openrsp"] < 2 {
		t.Errorf("only %v captured: a file is not whole", captured)
	}
}

// requestVector reads the user header of a request where the request says that
// it lies, and encodes both again.
func requestVector(t *testing.T, v *wiretest.Vector) {
	c, err := rtrswire.NewChunks(v.U32(t, "depth"), rtrswire.ChunkSize-rtrswire.HdrSize, rtrswire.HdrSize)
	if v.Fields["maxio"] != "" {
		c, err = rtrswire.NewChunks(v.U32(t, "depth"), v.U32(t, "maxio"), v.U32(t, "maxhdr"))
	}
	if err != nil {
		t.Fatal(err)
	}
	off := v.U32(t, "off")
	chunk := bytes.Repeat([]byte{0x5a}, int(c.Size()))
	copy(chunk[off-v.U32(t, "usrlen"):], v.Hex)
	r, l, err := c.ParseRequest(chunk, off)
	if err != nil {
		t.Fatal(err)
	}
	enc := user(t, v, chunk[l.Usr:l.Msg], r.Type, l.DataLen())
	wiretest.Encoded(t, v.Canonical(t, nil), func(b []byte) []byte {
		at := len(b)
		if b = enc(b); v.Fields["usrlen"] == "24" {
			b = b[:at+24] // older clients' messages end before the priority
		}
		return r.Append(b)
	})
}

// user checks the user header of a request vector and returns its encoder.
func user(t *testing.T, v *wiretest.Vector, usr []byte, typ rtrswire.Type, dataLen uint32) func([]byte) []byte {
	kind, err := rnbdwire.Kind(usr)
	if err != nil || kind.String() != v.Fields["rnbd"] {
		t.Fatalf("%v, %v", kind, err)
	}
	switch kind {
	case rnbdwire.SessInfo:
		ver, err := rnbdwire.ParseSessInfo(usr, kind)
		if err != nil || uint64(ver) != v.Number(t, "ver", 8) || dataLen != rnbdwire.SessInfoLen {
			t.Errorf("version %d, %v", ver, err)
		}
		return func(b []byte) []byte { return rnbdwire.AppendSessInfo(b, kind, ver) }
	case rnbdwire.OpenType:
		o, err := rnbdwire.ParseOpen(usr)
		if err != nil || o.Access.String() != v.Fields["access"] || o.Name != v.Fields["name"] || dataLen != rnbdwire.OpenRspLen {
			t.Errorf("%+v, %v", o, err)
		}
		return func(b []byte) []byte { b, _ = o.Append(b); return b }
	case rnbdwire.CloseType:
		id, err := rnbdwire.ParseClose(usr)
		if err != nil || id != v.U32(t, "device") || dataLen != 0 {
			t.Errorf("device %d, %v", id, err)
		}
		return func(b []byte) []byte { return rnbdwire.AppendClose(b, id) }
	}
	o, err := rnbdwire.ParseIO(usr)
	if err != nil {
		t.Fatal(err)
	}
	want := rnbdwire.IO{DeviceID: v.U32(t, "device"), Sector: v.Number(t, "sector", 64), RW: v.U32(t, "rw"), Size: v.U32(t, "size"), Prio: v.U16(t, "prio")}
	if o != want || o.Op().String() != v.Fields["op"] || rnbdwire.RW(o.Op(), o.Flags()) != o.RW {
		t.Errorf("parsed %+v: %v\nwant   %+v", o, &o, want)
	}
	if err := o.Check(typ, dataLen); err != nil {
		t.Error(err)
	}
	return o.Append
}

func sessInfoRspVector(t *testing.T, v *wiretest.Vector) {
	ver, err := rnbdwire.ParseSessInfo(v.Hex, rnbdwire.SessInfoRsp)
	if v.Invalid(t, err, reasons) {
		return
	}
	if uint64(ver) != v.Number(t, "ver", 8) {
		t.Errorf("version %d", ver)
	}
	wiretest.Encoded(t, v.Canonical(t, nil), func(b []byte) []byte { return rnbdwire.AppendSessInfo(b, rnbdwire.SessInfoRsp, ver) })
}

func openRspVector(t *testing.T, v *wiretest.Vector) {
	r, err := rnbdwire.ParseOpenRsp(v.Hex)
	if v.Invalid(t, err, reasons) {
		return
	}
	want := rnbdwire.OpenRsp{DeviceID: v.U32(t, "device"), Sectors: v.Number(t, "sectors", 64), MaxHWSectors: v.U32(t, "maxhw"),
		MaxWriteZeroes: v.U32(t, "maxzeroes"), MaxDiscard: v.U32(t, "maxdiscard"), DiscardGranularity: v.U32(t, "granularity"),
		DiscardAlignment: v.U32(t, "alignment"), PhysicalBlock: v.U16(t, "physical"), LogicalBlock: v.U16(t, "logical"),
		MaxSegments: v.U16(t, "segments"), SecureDiscard: v.U16(t, "secure"),
		Rotational: uint8(v.U16(t, "rotational")), Cache: rnbdwire.Cache(v.U16(t, "cache"))}
	if r != want {
		t.Errorf("parsed %+v\nwant   %+v", r, want)
	}
	wiretest.Encoded(t, v.Canonical(t, nil), r.Append)
}

// TestOpenRefused: names and modes that cannot be, both ways.
func TestOpenRefused(t *testing.T) {
	for _, c := range []struct {
		what string
		o    rnbdwire.Open
		err  error
	}{
		{"no name", rnbdwire.Open{}, rnbdwire.ErrName},
		{"a name without room for its NUL", rnbdwire.Open{Name: strings.Repeat("n", 255)}, rnbdwire.ErrName},
		{"a NUL in the name", rnbdwire.Open{Name: "a\x00b"}, rnbdwire.ErrName},
		{"access mode 3", rnbdwire.Open{Access: 3, Name: "a"}, rnbdwire.ErrAccess},
	} {
		if b, err := c.o.Append([]byte{1}); !errors.Is(err, c.err) || len(b) != 1 {
			t.Errorf("%s: %d bytes, %v", c.what, len(b), err)
		}
	}
	long := rnbdwire.Open{Access: rnbdwire.ReadOnly, Name: strings.Repeat("n", 254)}
	b, err := long.Append(nil)
	if err != nil || len(b) != rnbdwire.OpenLen {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	if o, err := rnbdwire.ParseOpen(b); o != long || err != nil {
		t.Errorf("%+v, %v", o, err)
	}
	for _, c := range []struct {
		what string
		at   int
		to   byte
		err  error
	}{
		{"no NUL", 6 + 254, 'n', rnbdwire.ErrName},
		{"empty name", 6, 0, rnbdwire.ErrName},
		{"access mode 3", 4, 3, rnbdwire.ErrAccess},
		{"another type", 0, 4, rnbdwire.ErrType},
	} {
		bad := append([]byte(nil), b...)
		bad[c.at] = c.to
		if _, err := rnbdwire.ParseOpen(bad); !errors.Is(err, c.err) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	if _, err := rnbdwire.ParseOpen(b[:263]); !errors.Is(err, rnbdwire.ErrShort) {
		t.Error(err)
	}
}

// TestCheck: each operation with the request that bears it, and without.
func TestCheck(t *testing.T) {
	const size = 4096
	for op := range rnbdwire.Op(16) {
		for _, typ := range []rtrswire.Type{rtrswire.Write, rtrswire.Read} {
			for _, dataLen := range []uint32{0, size - 1, size} {
				o := rnbdwire.IO{RW: rnbdwire.RW(op, rnbdwire.Sync|rnbdwire.FUA|1<<31), Size: size}
				var want error
				switch {
				case op > 5:
					want = rnbdwire.ErrOp
				case (op == rnbdwire.Read || op == rnbdwire.Flush) != (typ == rtrswire.Read):
					want = rnbdwire.ErrDir
				case op <= rnbdwire.Write && dataLen != size, op > rnbdwire.Write && dataLen != 0:
					want = rnbdwire.ErrSize
				}
				if err := o.Check(typ, dataLen); err != want {
					t.Errorf("%v by %v with %d bytes: %v, want %v", op, typ, dataLen, err, want)
				}
			}
		}
	}
	if err := (&rnbdwire.IO{}).Check(rtrswire.Read, 0); err != rnbdwire.ErrSize {
		t.Error("a read of nothing:", err)
	}
}

func TestNames(t *testing.T) {
	for _, c := range [][2]string{
		{rnbdwire.Type(6).String(), "unknown"},
		{rnbdwire.Op(6).String(), "unknown"},
		{rnbdwire.Access(3).String(), "unknown"},
		{(&rnbdwire.IO{RW: 0x302, Sector: 8}).String(), "flush dev=0 sector=8 bytes=0 flags=0x300 prio=0x0"},
	} {
		if c[0] != c[1] {
			t.Errorf("%q, want %q", c[0], c[1])
		}
	}
}

func TestSessInfoHasTwoTypes(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a session info of the type of an IO did not panic")
		}
	}()
	rnbdwire.AppendSessInfo(nil, rnbdwire.IOType, 2)
}
