package wire_test

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/wire"
)

// rtrsVectors reads testdata/rtrs.txt; list holds the descriptors of an INFO_RSP.
func rtrsVectors(t testing.TB) (vs []vector) {
	b, err := os.ReadFile("testdata/rtrs.txt")
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(string(b), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, _ := strings.Cut(line, " ")
		if name == "vector" {
			kind, n, _ := strings.Cut(value, " ")
			vs = append(vs, vector{kind: kind, name: n, fields: map[string]string{}})
			continue
		}
		v := &vs[len(vs)-1]
		switch _, twice := v.fields[name]; {
		case name == "hex":
			v.hex = unhex(t, value)
		case v.kind == "inforsp" && name == "desc":
			v.list = append(v.list, value)
		case twice:
			t.Fatalf("line %d: %s given twice", i+1, name)
		default:
			v.fields[name] = value
		}
	}
	return vs
}

// rtrsErrors are the names that "invalid" has in the vectors.
var rtrsErrors = map[string]error{
	"short": wire.ErrRTRSShort, "type": wire.ErrRTRSType, "magic": wire.ErrRTRSMagic, "version": wire.ErrRTRSVersion,
	"conn": wire.ErrRTRSConn, "name": wire.ErrRTRSName, "descs": wire.ErrRTRSDescs, "memid": wire.ErrRTRSMemID,
	"off": wire.ErrRTRSOff, "usrlen": wire.ErrRTRSUsrLen, "datalen": wire.ErrRTRSDataLen, "sgcount": wire.ErrRTRSSGCount,
	"desclen": wire.ErrRTRSDescLen, "rnbdshort": wire.ErrRNBDShort, "rnbdtype": wire.ErrRNBDType,
}

// invalid reports whether v is to be rejected, and fails when err says otherwise.
func (v *vector) invalid(t *testing.T, err error) bool {
	t.Helper()
	why, is := v.fields["invalid"]
	if want := rtrsErrors[why]; is != (want != nil) || !errors.Is(err, want) {
		t.Fatalf("parsed with %v, want %v (%q)", err, want, why)
	}
	return is
}

// canonical is the vector's bytes with what has no meaning set to zero.
func (v *vector) canonical(t *testing.T) []byte {
	b := bytes.Clone(v.hex)
	for _, r := range strings.Fields(v.fields["padding"]) {
		at, n, _ := strings.Cut(r, "+")
		from, err1 := strconv.Atoi(at)
		size, err2 := strconv.Atoi(n)
		if err1 != nil || err2 != nil {
			t.Fatalf("padding %q", r)
		}
		for i := range size {
			b[from+i] &^= 0xff
		}
		if v.kind == "connreq" && from <= 44 && from+size > 44 {
			b[44] = v.hex[44] & 1 // one bit of that byte has a meaning
		}
	}
	return b
}

func (v *vector) u16(t *testing.T, name string) uint16 { return uint16(v.number(t, name, 16)) }
func (v *vector) u32(t *testing.T, name string) uint32 { return uint32(v.number(t, name, 32)) }

// chunks is the geometry of the vector's session.
func (v *vector) chunks(t testing.TB) wire.RTRSChunks {
	io, hdr := uint32(v.number(t, "maxio", 32)), uint32(v.number(t, "maxhdr", 32))
	if io == 0 {
		io, hdr = wire.RTRSChunkSize-wire.RTRSHdrSize, wire.RTRSHdrSize
	}
	c, err := wire.NewRTRSChunks(uint32(v.number(t, "depth", 32)), io, hdr)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// encoded compares what was encoded with the vector; it goes behind bytes that
// were there, into memory that was used before.
func (v *vector) encoded(t *testing.T, enc func([]byte) []byte) {
	t.Helper()
	dirty := bytes.Repeat([]byte{0xa5}, 2048)
	out := enc(dirty[:3])
	if want := v.canonical(t); !bytes.Equal(out[:3], dirty[:3]) || !bytes.Equal(out[3:], want) {
		t.Errorf("encoded %x\nwant    %x", out[3:], want)
	}
}

func TestRTRSVectors(t *testing.T) {
	run := map[string]func(*testing.T, *vector){
		"connreq": connReqVector, "connrsp": connRspVector, "inforeq": infoReqVector, "inforsp": infoRspVector,
		"request": requestVector, "imm": immVector, "rkeyrsp": rkeyRspVector, "sessinforsp": sessInfoRspVector, "openrsp": openRspVector,
	}
	captured := map[string]int{}
	for _, v := range rtrsVectors(t) {
		t.Run(v.kind+"/"+v.name, func(t *testing.T) {
			if run[v.kind] == nil {
				t.Fatalf("unknown kind %q", v.kind)
			}
			if v.fields["capture"] != "" {
				captured[v.kind]++
			}
			run[v.kind](t, &v)
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

func connReqVector(t *testing.T, v *vector) {
	r, err := wire.ParseRTRSConnReq(v.hex)
	if v.invalid(t, err) {
		return
	}
	want := wire.RTRSConnReq{Minor: uint8(v.u16(t, "minor")), Conn: v.u16(t, "conn"), Conns: v.u16(t, "conns"), Attempt: v.u16(t, "attempt"),
		Path: [16]byte(unhex(t, v.fields["path"])), Session: [16]byte(unhex(t, v.fields["session"])), FirstConn: v.fields["first"] == "1"}
	if r != want {
		t.Errorf("parsed %+v\nwant   %+v", r, want)
	}
	v.encoded(t, r.Append)
}

func connRspVector(t *testing.T, v *vector) {
	r, err := wire.ParseRTRSConnRsp(v.hex)
	if v.invalid(t, err) {
		return
	}
	status, err := strconv.ParseInt(v.fields["status"], 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	want := wire.RTRSConnRsp{Minor: uint8(v.u16(t, "minor")), Status: int16(status), QueueDepth: v.u16(t, "depth"),
		MaxIOSize: v.u32(t, "maxio"), MaxHdrSize: v.u32(t, "maxhdr"), Flags: v.u32(t, "flags")}
	if r != want {
		t.Errorf("parsed %+v\nwant   %+v", r, want)
	}
	if status != 0 {
		if r = wire.RTRSReject(uint16(-status)); r.Errno() != uint16(-status) {
			t.Errorf("errno %d", r.Errno())
		}
	} else if _, err := r.Chunks(); err != nil {
		t.Error(err)
	}
	v.encoded(t, r.Append)
}

func infoReqVector(t *testing.T, v *vector) {
	name, err := wire.ParseRTRSInfoReq(v.hex)
	if v.invalid(t, err) {
		return
	}
	if name != v.fields["name"] {
		t.Errorf("name %q", name)
	}
	v.encoded(t, func(b []byte) []byte { b, _ = wire.AppendRTRSInfoReq(b, name); return b })
}

// desc reads "ADDR KEY LEN".
func desc(t *testing.T, s string) wire.RTRSDesc {
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
	return wire.RTRSDesc{Addr: n[0], Key: uint32(n[1]), Len: uint32(n[2])}
}

func infoRspVector(t *testing.T, v *vector) {
	c := v.chunks(t)
	ds, err := wire.ParseRTRSInfoRsp(v.hex, c)
	if v.invalid(t, err) {
		return
	}
	if len(ds) != len(v.list) {
		t.Fatalf("%d descriptors, want %d", len(ds), len(v.list))
	}
	for i, d := range ds {
		if want := desc(t, v.list[i]); d != want {
			t.Errorf("descriptor %d: %+v, want %+v", i, d, want)
		}
	}
	v.encoded(t, func(b []byte) []byte { return wire.AppendRTRSInfoRsp(b, ds) })
	if all := c.Spread(nil, ds); len(all) != int(c.Depth) || all[0].Addr != ds[0].Addr {
		t.Errorf("spread to %d chunks from %#x", len(all), all[0].Addr)
	}
}

func immVector(t *testing.T, v *vector) {
	i, err := wire.ParseRTRSImm(v.hex)
	if err != nil {
		t.Fatal(err)
	}
	if i.Type() == wire.RTRSIOReq {
		c := v.chunks(t)
		mem, off, err := c.ParseReq(i)
		if v.invalid(t, err) {
			return
		}
		if mem != v.u32(t, "mem") || off != v.u32(t, "off") {
			t.Errorf("chunk %d byte %d", mem, off)
		}
		v.encoded(t, c.Req(mem, off).Append)
		return
	}
	if uint64(i.Type()) != v.number(t, "type", 8) {
		t.Errorf("type %d", i.Type())
	}
	switch i.Type() {
	case wire.RTRSHeartbeat:
		v.encoded(t, wire.RTRSImmHeartbeat.Append)
	case wire.RTRSHeartbeatAck:
		v.encoded(t, wire.RTRSImmHeartbeatAck.Append)
	default:
		msg, errno, inv := i.Done()
		if msg != v.u32(t, "msg") || errno != v.u16(t, "errno") || inv != (v.fields["type"] == "2") {
			t.Errorf("message %d errno %d revoked %v", msg, errno, inv)
		}
		v.encoded(t, wire.RTRSDone(msg, errno, inv).Append)
	}
}

func rkeyRspVector(t *testing.T, v *vector) {
	r, err := wire.ParseRTRSRKeyRsp(v.hex)
	if v.invalid(t, err) {
		return
	}
	if r != (wire.RTRSRKeyRsp{BufID: v.u16(t, "buf"), Key: v.u32(t, "key")}) {
		t.Errorf("parsed %+v", r)
	}
	v.encoded(t, r.Append)
}

func requestVector(t *testing.T, v *vector) {
	c, off := v.chunks(t), v.u32(t, "off")
	chunk := bytes.Repeat([]byte{0x5a}, int(c.Size()))
	if why := v.fields["invalid"]; why != "" {
		copy(chunk[off:], v.hex)
		_, _, err := c.ParseRequest(chunk, off)
		v.invalid(t, err)
		return
	}
	start := off - v.u32(t, "usrlen")
	copy(chunk[start:], v.hex)
	r, l, err := c.ParseRequest(chunk, off)
	if err != nil {
		t.Fatal(err)
	}
	want := wire.RTRSReq{Type: map[string]wire.RTRSType{"write": wire.RTRSWrite, "read": wire.RTRSRead}[v.fields["type"]],
		UsrLen: v.u16(t, "usrlen"), Flags: v.u16(t, "flags"), SGCnt: v.u16(t, "sgcnt")}
	if s := v.fields["desc"]; s != "" {
		want.Desc = desc(t, s)
	}
	if r != want {
		t.Errorf("parsed %+v\nwant   %+v", r, want)
	}
	if w := (wire.RTRSLayout{Usr: v.u32(t, "datalen"), Msg: off, End: start + uint32(len(v.hex))}); l != w {
		t.Errorf("layout %+v, want %+v", l, w)
	}
	if again, err := c.Layout(&r, l.DataLen()); again != l || err != nil {
		t.Errorf("a client lays it out as %+v, %v", again, err)
	}
	if r.NeedInval() != (v.fields["flags"] == "1") {
		t.Error("NeedInval", r.NeedInval())
	}
	usr, old := chunk[l.Usr:l.Msg], v.fields["usrlen"] == "24"
	enc := rnbdUser(t, v, usr, r.Type, l.DataLen())
	v.encoded(t, func(b []byte) []byte {
		at := len(b)
		if b = enc(b); old {
			b = b[:at+24] // older clients' messages end before the priority
		}
		return r.Append(b)
	})
}
