package cm

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// vector is a captured message.
type vector struct {
	capture, from, packet, kind string
	mad                         []byte
}

// addr is that of its sender in the capture.
func (v *vector) addr() netip.Addr {
	return netip.MustParseAddr(map[string]string{"client": "10.9.0.1", "server": "10.9.0.2"}[v.from])
}

// vectors reads testdata/mads.txt.
func vectors(t testing.TB) (list []vector) {
	text, err := os.ReadFile("testdata/mads.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		v := vector{capture: f[0], from: f[1], packet: f[2], kind: f[3]}
		for _, tok := range f[4:] {
			h, times, _ := strings.Cut(tok, "*")
			b, err := hex.DecodeString(h)
			if err != nil {
				t.Fatal(err)
			}
			v.mad = append(v.mad, b...)
			if n, _ := strconv.Atoi(times); n > 0 {
				v.mad = append(v.mad, bytes.Repeat(b[len(b)-1:], n-1)...)
			}
		}
		list = append(list, v)
	}
	if len(list) != 63 {
		t.Fatalf("testdata/mads.txt has %d messages", len(list))
	}
	return list
}

var allCaptured []vector

// captured are the vectors, read once.
func captured(t testing.TB) []vector {
	if allCaptured == nil {
		allCaptured = vectors(t)
	}
	return allCaptured
}

// recode parses a message and writes what was parsed.
func recode(mad []byte) (text string, again []byte, ok bool) {
	a, tid, body, ok := open(mad)
	if !ok {
		return "", nil, false
	}
	var out [MADLen]byte
	switch a {
	case attrREQ:
		var p req
		if !p.parse(body) {
			return "", nil, false
		}
		p.put(&out, tid)
		text = fmt.Sprintf("%+v", p)
	case attrREP:
		var p rep
		p.parse(body)
		p.put(&out, tid)
		text = fmt.Sprintf("%+v", p)
	case attrREJ:
		var p rej
		p.parse(body)
		p.put(&out, tid)
		text = fmt.Sprintf("%+v", p)
	case attrMRA:
		var p mra
		p.parse(body)
		p.put(&out, tid)
		text = fmt.Sprintf("%+v", p)
	case attrRTU:
		var p rtu
		p.parse(body)
		p.put(&out, tid)
		text = fmt.Sprintf("%+v", p)
	case attrDREQ:
		var p dreq
		p.parse(body)
		p.put(&out, tid)
		text = fmt.Sprintf("%+v", p)
	case attrDREP:
		var p drep
		p.parse(body)
		p.put(&out, tid)
		text = fmt.Sprintf("%+v", p)
	default:
		return "", nil, false
	}
	return text, out[:], true
}

// TestCaptured: what kernels sent is read and written again byte for byte.
func TestCaptured(t *testing.T) {
	seen := map[string]int{}
	for _, v := range vectors(t) {
		seen[v.kind]++
		a, _, _, ok := open(v.mad)
		if !ok || a.String() != v.kind {
			t.Errorf("%s %s: %v, %v", v.capture, v.packet, a, ok)
			continue
		}
		_, again, ok := recode(v.mad)
		if !ok || !bytes.Equal(again, v.mad) {
			t.Errorf("%s %s %s is written as\n%x, not as\n%x", v.capture, v.packet, v.kind, again, v.mad)
		}
	}
	if want := map[string]int{"REQ": 12, "REP": 12, "RTU": 12, "DREQ": 15, "DREP": 12}; !reflect.DeepEqual(seen, want) {
		t.Errorf("of each kind there are %v, want %v", seen, want)
	}
}

// TestCapturedFields: the fields of the first REQ and REP are what the kernels meant.
func TestCapturedFields(t *testing.T) {
	list := vectors(t)
	client, server := list[0].addr(), list[1].addr()
	_, _, body, _ := open(list[0].mad)
	var q req
	if !q.parse(body) {
		t.Fatal("no header")
	}
	private := q.private
	q.private = nil
	want := req{
		local: 0x7c32436a, service: serviceID(1234), guid: 0x505400fffe090001, qpn: 17,
		remoteTimeout: 20, localTimeout: 20, retry: 7, rnrRetry: 7, maxRetries: 15, recvPSN: 0xadbe37,
		pkey: 0xffff, mtu: 3, localLID: 0xffff, remoteLID: 0xffff, localGID: client, remoteGID: server,
		flowLabel: 0x239b8, hopLimit: 64, ackTimeout: 19, header: ipHeader{port: 38490, src: client, dst: server},
	}
	if !reflect.DeepEqual(q, want) {
		t.Errorf("REQ %+v\nwant %+v", q, want)
	}
	if len(private) != MaxDialPrivate || !bytes.HasPrefix(private, []byte{0, 0, 0xbd, 0x1b, 0, 2}) {
		t.Errorf("private data %x", private)
	}
	if l := flowLabel(38490, 1234); l != want.flowLabel {
		t.Errorf("flow label %#x", l)
	}

	_, _, body, _ = open(list[1].mad)
	var p rep
	p.parse(body)
	private, p.private = p.private, nil
	if want := (rep{local: 0xe8988b37, remote: q.local, qpn: 17, recvPSN: 0x5799cc, ackDelay: 15, rnrRetry: 7, guid: 0x505400fffe090002}); !reflect.DeepEqual(p, want) {
		t.Errorf("REP %+v\nwant %+v", p, want)
	}
	if len(private) != MaxAcceptPrivate || !bytes.HasPrefix(private, []byte{0xbd, 0x1b, 0, 2}) {
		t.Errorf("private data %x", private)
	}
}

// TestUncaptured: fields of messages that no capture has are where InfiniBand has them.
func TestUncaptured(t *testing.T) {
	var mad [MADLen]byte
	at := func(i int) byte { return mad[headerLen+i] }
	(&rej{local: 1, remote: 2, about: aboutREP, reason: ReasonConsumer, info: []byte{7, 8}, private: []byte("why")}).put(&mad, 9)
	if mad[17] != 0x12 || at(3) != 1 || at(7) != 2 || at(8) != 0x40 || at(9) != 4 || at(10) != 0 || at(11) != 28 || at(12) != 7 || at(13) != 8 || at(84) != 'w' {
		t.Errorf("REJ %x", mad)
	}
	(&mra{local: 1, remote: 2, about: aboutREP, service: 24}).put(&mad, 9)
	if mad[17] != 0x11 || at(8) != 0x40 || at(9) != 24<<3 {
		t.Errorf("MRA %x", mad)
	}
	// A REJ whose information is longer than its room says so and has no more than that.
	(&rej{info: make([]byte, 200)}).put(&mad, 9)
	if at(9) != 72<<1 {
		t.Errorf("a REJ of %d bytes of information", at(9)>>1)
	}
	mad[headerLen+9] = 0xff
	var r rej
	if r.parse(mad[headerLen:]); len(r.info) != 72 || len(r.private) != MaxRejectPrivate {
		t.Errorf("%d bytes of information, %d of private data", len(r.info), len(r.private))
	}
	// IPv6 has its addresses whole, in the header as in the GIDs.
	src, dst := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	(&req{localGID: src, remoteGID: dst, header: ipHeader{port: 5, src: src, dst: dst}}).put(&mad, 9)
	if at(140) != 0 || at(141) != 0x60 || at(143) != 5 || at(144) != 0xfd || at(159) != 1 || at(175) != 2 || at(71) != 1 || at(87) != 2 {
		t.Errorf("REQ %x", mad)
	}
	var q req
	if !q.parse(mad[headerLen:]) || q.header.src != src || q.header.dst != dst || q.localGID != src {
		t.Errorf("REQ %+v", q)
	}
}

// TestNotOurs: what is no message is none, and a REQ without RDMA-CM's header nobody's.
func TestNotOurs(t *testing.T) {
	good := vectors(t)[0].mad
	for name, change := range map[string]func([]byte) []byte{
		"short":         func(b []byte) []byte { return b[:255] },
		"long":          func(b []byte) []byte { return append(b, 0) },
		"empty":         func(b []byte) []byte { return nil },
		"version":       func(b []byte) []byte { b[0] = 2; return b },
		"class":         func(b []byte) []byte { b[1] = 3; return b },
		"class version": func(b []byte) []byte { b[2] = 1; return b },
		"method":        func(b []byte) []byte { b[3] = 1; return b },
		"cma version":   func(b []byte) []byte { b[headerLen+140] = 1; return b },
		"no IP":         func(b []byte) []byte { b[headerLen+141] = 0x50; return b },
	} {
		if _, _, ok := recode(change(bytes.Clone(good))); ok {
			t.Errorf("%s: it is a message", name)
		}
	}
}

// FuzzMAD: nothing panics, and what was read is what is written: again and again.
func FuzzMAD(f *testing.F) {
	for _, v := range vectors(f)[:8] {
		f.Add(v.mad)
	}
	f.Fuzz(func(t *testing.T, mad []byte) {
		text, again, ok := recode(mad)
		if !ok {
			return
		}
		text2, again2, ok := recode(again)
		if !ok || text2 != text || !bytes.Equal(again2, again) {
			t.Errorf("%s is read as %s", text, text2)
		}
	})
}

// TestCodes: MTUs and services have the codes of InfiniBand and of the kernel.
func TestCodes(t *testing.T) {
	for mtu, want := range map[int]uint8{256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5, 0: 0, 8192: 0, 1500: 0} {
		if c := mtuCode(mtu); c != want || want != 0 && mtuBytes(c) != mtu {
			t.Errorf("MTU %d has the code %d, which is %d", mtu, c, mtuBytes(c))
		}
	}
	if mtuBytes(0) != 0 || mtuBytes(6) != 0 || mtuBytes(15) != 0 {
		t.Error("codes that are none")
	}
	if id := serviceID(1234); id != 0x010604d2 {
		t.Errorf("service %#x", id)
	}
	for id, ok := range map[uint64]bool{0x010604d2: true, 0x011104d2: false, 1<<48 | 0x010604d2: false} {
		if port, is := servicePort(id); is != ok || port != 1234 {
			t.Errorf("service %#x: port %d, %v", id, port, is)
		}
	}
}
