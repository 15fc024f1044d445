package roce

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestPacketLayout has each extension header, by the bytes that the specification and the
// captures give. The connection manager's is in TestCapturedPackets.
func TestPacketLayout(t *testing.T) {
	for _, c := range []struct {
		p    Packet
		want string
	}{
		{Packet{Op: SendOnly, PKey: DefaultPKey, Dest: 0x123456, PSN: 0xabcdef, Payload: []byte{}}, "04 00 ffff 00 123456 00 abcdef"},
		{Packet{Op: SendOnly, Solicited: true, Migrated: true, PKey: 0x8001, FECN: true, BECN: true, AckReq: true, Payload: []byte{1}}, "04 f0 8001 c0 000000 80 000000 01 000000"},
		{Packet{Op: SendMiddle, FECN: true, Payload: []byte{1, 2}}, "01 20 0000 80 000000 00 000000 0102 0000"},
		{Packet{Op: SendLastInval, BECN: true, Inval: 0x11223344, Payload: []byte{1, 2, 3}}, "16 10 0000 40 000000 00 000000 11223344 010203 00"},
		{Packet{Op: WriteOnlyImm, Addr: 0x0102030405060708, Key: 0x0a0b0c0d, Len: 4, Imm: 0x50607080, Payload: []byte{1, 2, 3, 4}}, "0b 00 0000 00 000000 00 000000 0102030405060708 0a0b0c0d 00000004 50607080 01020304"},
		{Packet{Op: ReadRequest, Addr: 1, Key: 2, Len: 0x80000000, Payload: []byte{}}, "0c 00 0000 00 000000 00 000000 0000000000000001 00000002 80000000"},
		{Packet{Op: ReadOnly, Syndrome: AckUnlimited, MSN: 0x010203, Payload: []byte{9, 9, 9, 9}}, "10 00 0000 00 000000 00 000000 1f 010203 09090909"},
		{Packet{Op: Acknowledge, Syndrome: NAKSequence, MSN: 0xffffff, Payload: []byte{}}, "11 00 0000 00 000000 00 000000 60 ffffff"},
		{Packet{Op: AtomicAcknowledge, Syndrome: 1, MSN: 2, Prior: 3, Payload: []byte{}}, "12 00 0000 00 000000 00 000000 01 000002 0000000000000003"},
		{Packet{Op: CompareSwap, Addr: 1, Key: 2, Swap: 3, Compare: 4, Payload: []byte{}}, "13 00 0000 00 000000 00 000000 0000000000000001 00000002 0000000000000003 0000000000000004"},
		{Packet{Op: DatagramSendOnly, QKey: 0x80010000, Source: 0x654321, Payload: []byte{}}, "64 00 0000 00 000000 00 000000 80010000 00 654321"},
	} {
		want, err := hex.DecodeString(strings.ReplaceAll(c.want, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		b := c.p.Append(nil)
		if !bytes.Equal(b, want) {
			t.Errorf("%v: %x, want %x", c.p.Op, b, want)
		}
		var got Packet
		if err := got.Parse(append(b, 0, 0, 0, 0)); err != nil || !reflect.DeepEqual(got, c.p) {
			t.Errorf("%v: parsed %+v, %v, want %+v", c.p.Op, got, err, c.p)
		}
	}
}

// TestCapturedPackets takes what kernels sent apart and puts it together again.
func TestCapturedPackets(t *testing.T) {
	want := map[string]Packet{
		"invalidate-on c 0":   {Op: DatagramSendOnly, AckReq: true, Dest: 1, QKey: 0x80010000, Source: 1},
		"invalidate-on s 7":   {Op: Acknowledge, Dest: 17, PSN: 15479147, Syndrome: AckUnlimited, MSN: 1},
		"invalidate-on c 10":  {Op: WriteOnlyImm, AckReq: true, Dest: 17, PSN: 15479148, Addr: 0xffff888006f00024, Key: 0x3b4, Len: 60, Imm: 0x48},
		"invalidate-on s 13":  {Op: SendOnlyInval, AckReq: true, Dest: 17, PSN: 15984841, Inval: 0x36c},
		"invalidate-on s 14":  {Op: SendOnlyImm, AckReq: true, Dest: 17, PSN: 15984842, Imm: 0x20000000},
		"invalidate-on s 28":  {Op: WriteFirst, Dest: 18, PSN: 7489758, Addr: 0xffff8880079a9000, Key: 0x413, Len: 4096},
		"invalidate-on s 31":  {Op: WriteLast, AckReq: true, Dest: 18, PSN: 7489761},
		"invalidate-on c 142": {Op: WriteLastImm, AckReq: true, Dest: 18, PSN: 1158132, Imm: 0x10020},
	}
	length := map[string]int{"invalidate-on c 0": 256, "invalidate-on c 10": 60, "invalidate-on s 14": 8, "invalidate-on s 28": 1024, "invalidate-on s 31": 1024, "invalidate-on c 142": 36}
	for _, v := range vectors(t) {
		var p Packet
		if err := p.Parse(v.pkt); err != nil {
			t.Errorf("%s: %v", v.name, err)
			continue
		}
		if b := p.Append(nil); !bytes.Equal(b, v.pkt[:len(v.pkt)-icrcLen]) {
			t.Errorf("%s: written again as %x, want %x", v.name, b, v.pkt)
		}
		w, ok := want[v.name]
		if !ok {
			continue
		}
		if len(p.Payload) != length[v.name] {
			t.Errorf("%s: %d bytes of payload, want %d", v.name, len(p.Payload), length[v.name])
		}
		w.PKey = DefaultPKey
		if p.Payload = nil; !reflect.DeepEqual(p, w) {
			t.Errorf("%s: %+v, want %+v", v.name, p, w)
		}
		delete(want, v.name)
	}
	for name := range want {
		t.Errorf("%s is not there", name)
	}
}

func TestPacketRefused(t *testing.T) {
	ok := (&Packet{Op: WriteOnly, Payload: []byte{1, 2, 3}}).Append(nil)
	ok = append(ok, 0, 0, 0, 0)
	with := func(i int, v byte) []byte {
		b := bytes.Clone(ok)
		b[i] = v
		return b
	}
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"whole", ok, nil},
		{"no payload", append(bytes.Clone(with(1, 0)[:28]), 0, 0, 0, 0), nil},
		{"nothing", nil, ErrShort},
		{"a header without its CRC", ok[:15], ErrShort},
		{"an extension header without its CRC", with(1, 0)[:31], ErrShort},
		{"cut by a byte", ok[:len(ok)-1], ErrLength},
		{"cut to its header", ok[:16], ErrShort},
		{"version 1", with(1, 1), ErrVersion},
		{"version 8", with(1, 8), ErrVersion},
		{"a reserved opcode", with(0, 0x15), ErrOpcode},
		{"an unreliable connection", with(0, 0x24), ErrOpcode},
		{"more padding than payload", append(bytes.Clone(with(1, 0x10)[:28]), 0, 0, 0, 0), ErrPad},
		{"an acknowledgement with payload", with(0, byte(Acknowledge)), ErrPayload},
		{"a READ with payload", with(0, byte(ReadRequest)), ErrPayload},
	} {
		if err := new(Packet).Parse(c.b); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

// TestOpcodes walks every pair: what is there is in order, and everything else is not.
func TestOpcodes(t *testing.T) {
	names := map[string]bool{}
	for i := range 256 {
		o := Opcode(i)
		if !o.Valid() {
			if o.Header() != bthLen || !strings.HasPrefix(o.String(), "opcode 0x") {
				t.Errorf("%v: an opcode that is not there has something", o)
			}
			continue
		}
		if names[o.String()] {
			t.Errorf("%v: two have this name", o)
		}
		names[o.String()] = true
		if o.Header() > MaxHeader || o.Header() > 44 {
			t.Errorf("%v: %d bytes of headers", o, o.Header())
		}
		if (opcodes[i].part == middle) == (o.Starts() || o.Ends()) {
			t.Errorf("%v: starts %v, ends %v", o, o.Starts(), o.Ends())
		}
	}
	if len(names) != 24 {
		t.Errorf("%d opcodes", len(names))
	}
	sends := []Opcode{SendMiddle, SendLast, SendLastImm, SendLastInval}
	writes := []Opcode{WriteMiddle, WriteLast, WriteLastImm}
	reads := []Opcode{ReadMiddle, ReadLast}
	inside := map[Opcode][]Opcode{
		SendFirst: sends, SendMiddle: sends, WriteFirst: writes, WriteMiddle: writes, ReadFirst: reads, ReadMiddle: reads,
	}
	starts := []Opcode{SendFirst, SendOnly, SendOnlyImm, SendOnlyInval, WriteFirst, WriteOnly, WriteOnlyImm,
		ReadRequest, ReadFirst, ReadOnly, Acknowledge, AtomicAcknowledge, CompareSwap, FetchAdd, DatagramSendOnly}
	for i := range 256 {
		for j := range 256 {
			prev, o := Opcode(i), Opcode(j)
			if !prev.Valid() || !o.Valid() {
				continue
			}
			may := inside[prev]
			if may == nil {
				may = starts
			}
			if want := bytes.IndexByte(asBytes(may), byte(o)) >= 0; o.Follows(prev) != want {
				t.Errorf("%v after %v: %v", o, prev, !want)
			}
		}
	}
}

func asBytes(list []Opcode) (b []byte) {
	for _, o := range list {
		b = append(b, byte(o))
	}
	return b
}

func TestSyndrome(t *testing.T) {
	for _, c := range []struct {
		s             Syndrome
		ack, rnr, nak bool
		text          string
	}{
		{0, true, false, false, "ack, credits 0"},
		{AckUnlimited, true, false, false, "ack, credits 31"},
		{0x20, false, true, false, "receiver not ready for 655.36ms"},
		{0x21, false, true, false, "receiver not ready for 10µs"},
		{0x3f, false, true, false, "receiver not ready for 491.52ms"},
		{0x40, false, false, false, "syndrome 0x40"},
		{NAKSequence, false, false, true, "nak, sequence"},
		{NAKInvalidRequest, false, false, true, "nak, invalid request"},
		{NAKRemoteAccess, false, false, true, "nak, remote access"},
		{NAKRemoteOperation, false, false, true, "nak, remote operation"},
		{0x80, false, false, false, "syndrome 0x80"},
		{0xa1, false, false, false, "syndrome 0xa1"},
	} {
		if c.s.IsAck() != c.ack || c.s.IsRNR() != c.rnr || c.s.IsNAK() != c.nak || c.s.String() != c.text {
			t.Errorf("%#x: %v %v %v %q", uint8(c.s), c.s.IsAck(), c.s.IsRNR(), c.s.IsNAK(), c.s)
		}
	}
	for _, c := range []struct {
		d    time.Duration
		want Syndrome
	}{
		{0, 0x21}, {10 * time.Microsecond, 0x21}, {11 * time.Microsecond, 0x22}, {641 * time.Microsecond, 0x2d},
		{491520 * time.Microsecond, 0x3f}, {491521 * time.Microsecond, 0x20}, {time.Hour, 0x20},
	} {
		if got := RNR(c.d); got != c.want {
			t.Errorf("RNR(%v) = %#x, want %#x", c.d, uint8(got), uint8(c.want))
		}
	}
	// What kernels announce, and the edges.
	for code, want := range map[uint8]time.Duration{
		0: 0, 1: 8192 * time.Nanosecond, 19: 2147483648 * time.Nanosecond, 31: 8796093022208 * time.Nanosecond, 32: 0,
	} {
		if got := AckTimeout(code); got != want {
			t.Errorf("AckTimeout(%d) = %v, want %v", code, got, want)
		}
	}
}

// FuzzPacket: nothing makes Parse panic, and what it takes is written again as it came, but
// for reserved bits and padding.
func FuzzPacket(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(v.pkt)
	}
	for o := range opcodes {
		f.Add(append((&Packet{Op: Opcode(o), Payload: []byte{1}}).Append(nil), 0, 0, 0, 0))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p, again Packet
		if p.Parse(b) != nil {
			return
		}
		out := p.Append(nil)
		if len(out) != len(b)-icrcLen {
			t.Fatalf("%d bytes of %d", len(out), len(b)-icrcLen)
		}
		reserved := bytes.Clone(b[:len(out)])
		reserved[4] &= 0xc0
		reserved[8] &= 0x80
		if opcodes[p.Op].has&hasDETH != 0 {
			reserved[16] = 0
		}
		clear(reserved[len(reserved)-pad(len(p.Payload)):])
		if !bytes.Equal(out, reserved) {
			t.Fatalf("%x, want %x", out, reserved)
		}
		if err := again.Parse(append(out, 0, 0, 0, 0)); err != nil || !reflect.DeepEqual(p, again) {
			t.Fatalf("%+v, %v, want %+v", again, err, p)
		}
	})
}
