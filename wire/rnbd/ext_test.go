package rnbd_test

import (
	"bytes"
	"errors"
	"testing"

	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// TestFeatures: the mark of an rdsd, in bytes a kernel does not look at.
func TestFeatures(t *testing.T) {
	for _, typ := range []rnbdwire.Type{rnbdwire.SessInfo, rnbdwire.SessInfoRsp} {
		b := rnbdwire.AppendSessInfoExt([]byte{9}, typ, 2, rnbdwire.FeatInfo|0x80)[1:]
		want := []byte{byte(typ), 0, 0, 0, 2, 'r', 'd', 's', 'd', 0x81}
		if len(b) != rnbdwire.SessInfoLen || !bytes.Equal(b[:10], want) || !bytes.Equal(b[10:], make([]byte, 26)) {
			t.Errorf("%x", b)
		}
		if ver, err := rnbdwire.ParseSessInfo(b, typ); ver != 2 || err != nil {
			t.Errorf("a kernel reads %d, %v", ver, err)
		}
		if f := rnbdwire.ParseFeatures(b); f != rnbdwire.FeatInfo|0x80 {
			t.Errorf("%#x", f)
		}
		if f := rnbdwire.ParseFeatures(b[:35]); f != 0 {
			t.Errorf("of a message cut off: %#x", f)
		}
		if f := rnbdwire.ParseFeatures(rnbdwire.AppendSessInfo(nil, typ, 2)); f != 0 {
			t.Errorf("of a kernel: %#x", f)
		}
	}
}

// TestStore: what stands in the reserved bytes of OPEN_RSP does not touch
// the others.
func TestStore(t *testing.T) {
	r := rnbdwire.OpenRsp{DeviceID: 1, Sectors: 2, LogicalBlock: 512, Cache: 3}
	for _, s := range []rnbdwire.Store{{}, {Verifier: 0x0102030405060708}, {Verifier: 1<<64 - 1, Volatile: true}, {Foreign: true}, {5, true, true}} {
		b := r.Append(nil)
		copy(b[46:], "dirty bytes"[:10])
		s.Put(b)
		if got := rnbdwire.ParseStore(b); got != s {
			t.Errorf("%+v, want %+v", got, s)
		}
		if got, err := rnbdwire.ParseOpenRsp(b); got != r || err != nil {
			t.Errorf("%+v, %v", got, err)
		}
	}
	b := r.Append(nil)
	rnbdwire.Store{Verifier: 0x0102030405060708, Foreign: true}.Put(b)
	if want := []byte{2, 0, 8, 7, 6, 5, 4, 3, 2, 1}; !bytes.Equal(b[46:], want) {
		t.Errorf("%x, want %x", b[46:], want)
	}
}

func TestInfo(t *testing.T) {
	b := rnbdwire.AppendInfo(nil, 0x01020304)
	if want := []byte{1, 0x80, 0, 0, 4, 3, 2, 1}; !bytes.Equal(b, want) {
		t.Errorf("%x", b)
	}
	if id, err := rnbdwire.ParseInfo(b); id != 0x01020304 || err != nil {
		t.Errorf("%#x, %v", id, err)
	}
	if _, err := rnbdwire.ParseInfo(b[:7]); !errors.Is(err, rnbdwire.ErrShort) {
		t.Error(err)
	}
	if _, err := rnbdwire.ParseInfo(rnbdwire.AppendClose(nil, 1)); !errors.Is(err, rnbdwire.ErrType) {
		t.Error(err)
	}
}
