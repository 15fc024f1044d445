package wire_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rdsd/rdsd/wire"
)

// TestRNBDFeatures: the mark of an rdsd, in bytes a kernel does not look at.
func TestRNBDFeatures(t *testing.T) {
	for _, typ := range []wire.RNBDType{wire.RNBDSessInfo, wire.RNBDSessInfoRsp} {
		b := wire.AppendRNBDSessInfoExt([]byte{9}, typ, 2, wire.RNBDFeatInfo|0x80)[1:]
		want := []byte{byte(typ), 0, 0, 0, 2, 'r', 'd', 's', 'd', 0x81}
		if len(b) != wire.RNBDSessInfoLen || !bytes.Equal(b[:10], want) || !bytes.Equal(b[10:], make([]byte, 26)) {
			t.Errorf("%x", b)
		}
		if ver, err := wire.ParseRNBDSessInfo(b, typ); ver != 2 || err != nil {
			t.Errorf("a kernel reads %d, %v", ver, err)
		}
		if f := wire.ParseRNBDFeatures(b); f != wire.RNBDFeatInfo|0x80 {
			t.Errorf("%#x", f)
		}
		if f := wire.ParseRNBDFeatures(b[:35]); f != 0 {
			t.Errorf("of a message cut off: %#x", f)
		}
		if f := wire.ParseRNBDFeatures(wire.AppendRNBDSessInfo(nil, typ, 2)); f != 0 {
			t.Errorf("of a kernel: %#x", f)
		}
	}
}

// TestRNBDStore: what stands in the reserved bytes of OPEN_RSP does not touch
// the others.
func TestRNBDStore(t *testing.T) {
	r := wire.RNBDOpenRsp{DeviceID: 1, Sectors: 2, LogicalBlock: 512, Cache: 3}
	for _, s := range []wire.RNBDStore{{}, {Verifier: 0x0102030405060708}, {Verifier: 1<<64 - 1, Volatile: true}, {Foreign: true}, {5, true, true}} {
		b := r.Append(nil)
		copy(b[46:], "dirty bytes"[:10])
		s.Put(b)
		if got := wire.ParseRNBDStore(b); got != s {
			t.Errorf("%+v, want %+v", got, s)
		}
		if got, err := wire.ParseRNBDOpenRsp(b); got != r || err != nil {
			t.Errorf("%+v, %v", got, err)
		}
	}
	b := r.Append(nil)
	wire.RNBDStore{Verifier: 0x0102030405060708, Foreign: true}.Put(b)
	if want := []byte{2, 0, 8, 7, 6, 5, 4, 3, 2, 1}; !bytes.Equal(b[46:], want) {
		t.Errorf("%x, want %x", b[46:], want)
	}
}

func TestRNBDInfo(t *testing.T) {
	b := wire.AppendRNBDInfo(nil, 0x01020304)
	if want := []byte{1, 0x80, 0, 0, 4, 3, 2, 1}; !bytes.Equal(b, want) {
		t.Errorf("%x", b)
	}
	if id, err := wire.ParseRNBDInfo(b); id != 0x01020304 || err != nil {
		t.Errorf("%#x, %v", id, err)
	}
	if _, err := wire.ParseRNBDInfo(b[:7]); !errors.Is(err, wire.ErrRNBDShort) {
		t.Error(err)
	}
	if _, err := wire.ParseRNBDInfo(wire.AppendRNBDClose(nil, 1)); !errors.Is(err, wire.ErrRNBDType) {
		t.Error(err)
	}
}
