package rtrs_test

import (
	"bytes"
	"strconv"
	"strings"
	"testing"

	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
	"github.com/rdsd/rdsd/wire/wiretest"
)

// vectors reads the file; the descriptors of a message are its list.
func vectors(t testing.TB) []wiretest.Vector { return wiretest.Read(t, "testdata/rtrs.txt", "desc") }

// reasons are the names that "invalid" has in the vectors.
var reasons = map[string]error{
	"short": rtrswire.ErrShort, "type": rtrswire.ErrType, "magic": rtrswire.ErrMagic, "version": rtrswire.ErrVersion,
	"conn": rtrswire.ErrConn, "name": rtrswire.ErrName, "descs": rtrswire.ErrDescs, "memid": rtrswire.ErrMemID,
	"off": rtrswire.ErrOff, "usrlen": rtrswire.ErrUsrLen, "datalen": rtrswire.ErrDataLen, "sgcount": rtrswire.ErrSGCount,
	"desclen": rtrswire.ErrDescLen,
}

// connReqPadding is what a CON_REQ keeps of a reserved range: one bit of the
// byte at 44 has a meaning.
var connReqPadding = map[int]byte{44: 1}

// chunks is the geometry of the vector's session.
func chunks(t testing.TB, v *wiretest.Vector) rtrswire.Chunks {
	io, hdr := v.U32(t, "maxio"), v.U32(t, "maxhdr")
	if io == 0 {
		io, hdr = rtrswire.ChunkSize-rtrswire.HdrSize, rtrswire.HdrSize
	}
	return newChunks(t, v.U32(t, "depth"), io, hdr)
}

func TestVectors(t *testing.T) {
	run := map[string]func(*testing.T, *wiretest.Vector){
		"connreq": connReqVector, "connrsp": connRspVector, "inforeq": infoReqVector, "inforsp": infoRspVector,
		"request": requestVector, "imm": immVector, "rkeyrsp": rkeyRspVector,
	}
	captured := map[string]int{}
	for _, v := range vectors(t) {
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
	for k := range run {
		if captured[k] == 0 {
			t.Errorf("no captured vector of kind %s: the file is not whole", k)
		}
	}
	if captured["request"] < 15 || captured["imm"] < 20 {
		t.Errorf("only %v captured", captured)
	}
}

func connReqVector(t *testing.T, v *wiretest.Vector) {
	r, err := rtrswire.ParseConnReq(v.Hex)
	if v.Invalid(t, err, reasons) {
		return
	}
	want := rtrswire.ConnReq{Minor: uint8(v.U16(t, "minor")), Conn: v.U16(t, "conn"), Conns: v.U16(t, "conns"), Attempt: v.U16(t, "attempt"),
		Path: [16]byte(wiretest.Unhex(t, v.Fields["path"])), Session: [16]byte(wiretest.Unhex(t, v.Fields["session"])), FirstConn: v.Fields["first"] == "1"}
	if r != want {
		t.Errorf("parsed %+v\nwant   %+v", r, want)
	}
	wiretest.Encoded(t, v.Canonical(t, connReqPadding), r.Append)
}

func connRspVector(t *testing.T, v *wiretest.Vector) {
	r, err := rtrswire.ParseConnRsp(v.Hex)
	if v.Invalid(t, err, reasons) {
		return
	}
	status, err := strconv.ParseInt(v.Fields["status"], 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	want := rtrswire.ConnRsp{Minor: uint8(v.U16(t, "minor")), Status: int16(status), QueueDepth: v.U16(t, "depth"),
		MaxIOSize: v.U32(t, "maxio"), MaxHdrSize: v.U32(t, "maxhdr"), Flags: v.U32(t, "flags")}
	if r != want {
		t.Errorf("parsed %+v\nwant   %+v", r, want)
	}
	if status != 0 {
		if r = rtrswire.Reject(uint16(-status)); r.Errno() != uint16(-status) {
			t.Errorf("errno %d", r.Errno())
		}
	} else if _, err := r.Chunks(); err != nil {
		t.Error(err)
	}
	wiretest.Encoded(t, v.Canonical(t, nil), r.Append)
}

func infoReqVector(t *testing.T, v *wiretest.Vector) {
	name, err := rtrswire.ParseInfoReq(v.Hex)
	if v.Invalid(t, err, reasons) {
		return
	}
	if name != v.Fields["name"] {
		t.Errorf("name %q", name)
	}
	wiretest.Encoded(t, v.Canonical(t, nil), func(b []byte) []byte { b, _ = rtrswire.AppendInfoReq(b, name); return b })
}

// desc reads "ADDR KEY LEN".
func desc(t *testing.T, s string) rtrswire.Desc {
	f := strings.Fields(s)
	if len(f) != 3 {
		t.Fatalf("descriptor %q", s)
	}
	var n [3]uint64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseUint(f[i], 0, 64); err != nil {
			t.Fatal(err)
		}
	}
	return rtrswire.Desc{Addr: n[0], Key: uint32(n[1]), Len: uint32(n[2])}
}

func infoRspVector(t *testing.T, v *wiretest.Vector) {
	c := chunks(t, v)
	ds, err := rtrswire.ParseInfoRsp(v.Hex, c)
	if v.Invalid(t, err, reasons) {
		return
	}
	if len(ds) != len(v.List) {
		t.Fatalf("%d descriptors, want %d", len(ds), len(v.List))
	}
	for i, d := range ds {
		if want := desc(t, v.List[i]); d != want {
			t.Errorf("descriptor %d: %+v, want %+v", i, d, want)
		}
	}
	wiretest.Encoded(t, v.Canonical(t, nil), func(b []byte) []byte { return rtrswire.AppendInfoRsp(b, ds) })
	if all := c.Spread(nil, ds); len(all) != int(c.Depth) || all[0].Addr != ds[0].Addr {
		t.Errorf("spread to %d chunks from %#x", len(all), all[0].Addr)
	}
}

func immVector(t *testing.T, v *wiretest.Vector) {
	i, err := rtrswire.ParseImm(v.Hex)
	if err != nil {
		t.Fatal(err)
	}
	if i.Type() == rtrswire.IOReq {
		c := chunks(t, v)
		mem, off, err := c.ParseReq(i)
		if v.Invalid(t, err, reasons) {
			return
		}
		if mem != v.U32(t, "mem") || off != v.U32(t, "off") {
			t.Errorf("chunk %d byte %d", mem, off)
		}
		wiretest.Encoded(t, v.Canonical(t, nil), c.Req(mem, off).Append)
		return
	}
	if uint64(i.Type()) != v.Number(t, "type", 8) {
		t.Errorf("type %d", i.Type())
	}
	switch i.Type() {
	case rtrswire.Heartbeat:
		wiretest.Encoded(t, v.Canonical(t, nil), rtrswire.ImmHeartbeat.Append)
	case rtrswire.HeartbeatAck:
		wiretest.Encoded(t, v.Canonical(t, nil), rtrswire.ImmHeartbeatAck.Append)
	default:
		msg, errno, inv := i.Done()
		if msg != v.U32(t, "msg") || errno != v.U16(t, "errno") || inv != (v.Fields["type"] == "2") {
			t.Errorf("message %d errno %d revoked %v", msg, errno, inv)
		}
		wiretest.Encoded(t, v.Canonical(t, nil), rtrswire.Done(msg, errno, inv).Append)
	}
}

func rkeyRspVector(t *testing.T, v *wiretest.Vector) {
	r, err := rtrswire.ParseRKeyRsp(v.Hex)
	if v.Invalid(t, err, reasons) {
		return
	}
	if r != (rtrswire.RKeyRsp{BufID: v.U16(t, "buf"), Key: v.U32(t, "key")}) {
		t.Errorf("parsed %+v", r)
	}
	wiretest.Encoded(t, v.Canonical(t, nil), r.Append)
}

func requestVector(t *testing.T, v *wiretest.Vector) {
	c, off := chunks(t, v), v.U32(t, "off")
	chunk := bytes.Repeat([]byte{0x5a}, int(c.Size()))
	if why := v.Fields["invalid"]; why != "" {
		copy(chunk[off:], v.Hex)
		_, _, err := c.ParseRequest(chunk, off)
		v.Invalid(t, err, reasons)
		return
	}
	start := off - v.U32(t, "usrlen")
	copy(chunk[start:], v.Hex)
	r, l, err := c.ParseRequest(chunk, off)
	if err != nil {
		t.Fatal(err)
	}
	want := rtrswire.Req{Type: map[string]rtrswire.Type{"write": rtrswire.Write, "read": rtrswire.Read}[v.Fields["type"]],
		UsrLen: v.U16(t, "usrlen"), Flags: v.U16(t, "flags"), SGCnt: v.U16(t, "sgcnt")}
	if len(v.List) == 1 {
		want.Desc = desc(t, v.List[0])
	}
	if r != want {
		t.Errorf("parsed %+v\nwant   %+v", r, want)
	}
	if w := (rtrswire.Layout{Usr: v.U32(t, "datalen"), Msg: off, End: start + uint32(len(v.Hex))}); l != w {
		t.Errorf("layout %+v, want %+v", l, w)
	}
	if again, err := c.Layout(&r, l.DataLen()); again != l || err != nil {
		t.Errorf("a client lays it out as %+v, %v", again, err)
	}
	if r.NeedInval() != (v.Fields["flags"] == "1") {
		t.Error("NeedInval", r.NeedInval())
	}
	// The user header is wire/rnbd's to read.
	all := v.Canonical(t, nil)
	usr := all[:l.Msg-l.Usr]
	wiretest.Encoded(t, all, func(b []byte) []byte { return r.Append(append(b, usr...)) })
}
