package wire_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/wire"
)

// rnbdUser checks the user header of a request vector and returns its encoder.
func rnbdUser(t *testing.T, v *vector, usr []byte, typ wire.RTRSType, dataLen uint32) func([]byte) []byte {
	kind, err := wire.RNBDKind(usr)
	if err != nil || kind.String() != v.fields["rnbd"] {
		t.Fatalf("%v, %v", kind, err)
	}
	switch kind {
	case wire.RNBDSessInfo:
		ver, err := wire.ParseRNBDSessInfo(usr, kind)
		if err != nil || uint64(ver) != v.number(t, "ver", 8) || dataLen != wire.RNBDSessInfoLen {
			t.Errorf("version %d, %v", ver, err)
		}
		return func(b []byte) []byte { return wire.AppendRNBDSessInfo(b, kind, ver) }
	case wire.RNBDOpenType:
		o, err := wire.ParseRNBDOpen(usr)
		if err != nil || o.Access.String() != v.fields["access"] || o.Name != v.fields["name"] || dataLen != wire.RNBDOpenRspLen {
			t.Errorf("%+v, %v", o, err)
		}
		return func(b []byte) []byte { b, _ = o.Append(b); return b }
	case wire.RNBDCloseType:
		id, err := wire.ParseRNBDClose(usr)
		if err != nil || id != v.u32(t, "device") || dataLen != 0 {
			t.Errorf("device %d, %v", id, err)
		}
		return func(b []byte) []byte { return wire.AppendRNBDClose(b, id) }
	}
	o, err := wire.ParseRNBDIO(usr)
	if err != nil {
		t.Fatal(err)
	}
	want := wire.RNBDIO{DeviceID: v.u32(t, "device"), Sector: v.number(t, "sector", 64), RW: v.u32(t, "rw"), Size: v.u32(t, "size"), Prio: v.u16(t, "prio")}
	if o != want || o.Op().String() != v.fields["op"] || wire.RNBDRW(o.Op(), o.Flags()) != o.RW {
		t.Errorf("parsed %+v: %v\nwant   %+v", o, &o, want)
	}
	if err := o.Check(typ, dataLen); err != nil {
		t.Error(err)
	}
	return o.Append
}

func sessInfoRspVector(t *testing.T, v *vector) {
	ver, err := wire.ParseRNBDSessInfo(v.hex, wire.RNBDSessInfoRsp)
	if v.invalid(t, err) {
		return
	}
	if uint64(ver) != v.number(t, "ver", 8) {
		t.Errorf("version %d", ver)
	}
	v.encoded(t, func(b []byte) []byte { return wire.AppendRNBDSessInfo(b, wire.RNBDSessInfoRsp, ver) })
}

func openRspVector(t *testing.T, v *vector) {
	r, err := wire.ParseRNBDOpenRsp(v.hex)
	if v.invalid(t, err) {
		return
	}
	want := wire.RNBDOpenRsp{DeviceID: v.u32(t, "device"), Sectors: v.number(t, "sectors", 64), MaxHWSectors: v.u32(t, "maxhw"),
		MaxWriteZeroes: v.u32(t, "maxzeroes"), MaxDiscard: v.u32(t, "maxdiscard"), DiscardGranularity: v.u32(t, "granularity"),
		DiscardAlignment: v.u32(t, "alignment"), PhysicalBlock: v.u16(t, "physical"), LogicalBlock: v.u16(t, "logical"),
		MaxSegments: v.u16(t, "segments"), SecureDiscard: v.u16(t, "secure"),
		Rotational: uint8(v.u16(t, "rotational")), Cache: wire.RNBDCache(v.u16(t, "cache"))}
	if r != want {
		t.Errorf("parsed %+v\nwant   %+v", r, want)
	}
	v.encoded(t, r.Append)
}

// TestRNBDOpenRefused: names and modes that cannot be, both ways.
func TestRNBDOpenRefused(t *testing.T) {
	for _, c := range []struct {
		what string
		o    wire.RNBDOpen
		err  error
	}{
		{"no name", wire.RNBDOpen{}, wire.ErrRNBDName},
		{"a name without room for its NUL", wire.RNBDOpen{Name: strings.Repeat("n", 255)}, wire.ErrRNBDName},
		{"a NUL in the name", wire.RNBDOpen{Name: "a\x00b"}, wire.ErrRNBDName},
		{"access mode 3", wire.RNBDOpen{Access: 3, Name: "a"}, wire.ErrRNBDAccess},
	} {
		if b, err := c.o.Append([]byte{1}); !errors.Is(err, c.err) || len(b) != 1 {
			t.Errorf("%s: %d bytes, %v", c.what, len(b), err)
		}
	}
	long := wire.RNBDOpen{Access: wire.RNBDReadOnly, Name: strings.Repeat("n", 254)}
	b, err := long.Append(nil)
	if err != nil || len(b) != wire.RNBDOpenLen {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	if o, err := wire.ParseRNBDOpen(b); o != long || err != nil {
		t.Errorf("%+v, %v", o, err)
	}
	for _, c := range []struct {
		what string
		at   int
		to   byte
		err  error
	}{
		{"no NUL", 6 + 254, 'n', wire.ErrRNBDName},
		{"empty name", 6, 0, wire.ErrRNBDName},
		{"access mode 3", 4, 3, wire.ErrRNBDAccess},
		{"another type", 0, 4, wire.ErrRNBDType},
	} {
		bad := append([]byte(nil), b...)
		bad[c.at] = c.to
		if _, err := wire.ParseRNBDOpen(bad); !errors.Is(err, c.err) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	if _, err := wire.ParseRNBDOpen(b[:263]); !errors.Is(err, wire.ErrRNBDShort) {
		t.Error(err)
	}
}

// TestRNBDCheck: each operation with the request that bears it, and without.
func TestRNBDCheck(t *testing.T) {
	const size = 4096
	for op := range wire.RNBDOp(16) {
		for _, typ := range []wire.RTRSType{wire.RTRSWrite, wire.RTRSRead} {
			for _, dataLen := range []uint32{0, size - 1, size} {
				o := wire.RNBDIO{RW: wire.RNBDRW(op, wire.RNBDSync|wire.RNBDFUA|1<<31), Size: size}
				var want error
				switch {
				case op > 5:
					want = wire.ErrRNBDOp
				case (op == wire.RNBDRead || op == wire.RNBDFlush) != (typ == wire.RTRSRead):
					want = wire.ErrRNBDDir
				case op <= wire.RNBDWrite && dataLen != size, op > wire.RNBDWrite && dataLen != 0:
					want = wire.ErrRNBDSize
				}
				if err := o.Check(typ, dataLen); err != want {
					t.Errorf("%v by %v with %d bytes: %v, want %v", op, typ, dataLen, err, want)
				}
			}
		}
	}
	if err := (&wire.RNBDIO{}).Check(wire.RTRSRead, 0); err != wire.ErrRNBDSize {
		t.Error("a read of nothing:", err)
	}
}

func TestRNBDNames(t *testing.T) {
	for _, c := range [][2]string{
		{wire.RNBDType(6).String(), "unknown"},
		{wire.RNBDOp(6).String(), "unknown"},
		{wire.RNBDAccess(3).String(), "unknown"},
		{wire.RTRSType(5).String(), "unknown"},
		{wire.RTRSRKeyRspType.String(), "rkey-rsp"},
		{(&wire.RNBDIO{RW: 0x302, Sector: 8}).String(), "flush dev=0 sector=8 bytes=0 flags=0x300 prio=0x0"},
		{wire.RTRSImmHeartbeat.String(), "heartbeat"},
		{wire.RTRSImmHeartbeatAck.String(), "heartbeat-ack"},
		{wire.RTRSDone(3, 2, false).String(), "io-rsp msg=3 errno=2"},
		{wire.RTRSDone(3, 0, true).String(), "io-rsp-inv msg=3 errno=0"},
		{wire.RTRSImm(0x801020).String(), "io-req 0x0801020"},
		{wire.RTRSImm(0x70000001).String(), "unknown 7 0x0000001"},
	} {
		if c[0] != c[1] {
			t.Errorf("%q, want %q", c[0], c[1])
		}
	}
}
