package rdsd

import (
	"net/netip"
	"testing"

	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/api/rdsd/v1/fastwire"
)

// The short way to an endpoint leaves to package proto whatever is not an endpoint of two
// known fields, and never makes another address of it.
func TestParseEndpoint(t *testing.T) {
	const a, p = fastwire.EndpointAddress, fastwire.EndpointPort
	for _, c := range []struct {
		name string
		in   []byte
		want netip.AddrPort // none: left to package proto
	}{
		{"address and port", []byte{a, 4, 127, 0, 0, 2, p, 0xa0, 0x1f}, localAddr},
		{"no port", []byte{a, 4, 127, 0, 0, 2}, netip.AddrPortFrom(localAddr.Addr(), 0)},
		{"highest port", []byte{a, 4, 127, 0, 0, 2, p, 0xff, 0xff, 3}, netip.AddrPortFrom(localAddr.Addr(), 0xffff)},
		{"port first", []byte{p, 1, a, 4, 127, 0, 0, 2}, netip.AddrPortFrom(localAddr.Addr(), 1)},
		{"port twice", []byte{a, 4, 127, 0, 0, 2, p, 1, p, 2}, netip.AddrPortFrom(localAddr.Addr(), 2)},
		{"nothing", nil, netip.AddrPort{}},
		{"a tag alone", []byte{a}, netip.AddrPort{}},
		{"address cut off", []byte{a, 4, 127, 0}, netip.AddrPort{}},
		{"five bytes of address", []byte{a, 5, 127, 0, 0, 2, 9, p, 1}, netip.AddrPort{}},
		{"a second field that is no port", []byte{a, 4, 127, 0, 0, 2, p + 8, 1}, netip.AddrPort{}},
		{"a port's tag alone", []byte{a, 4, 127, 0, 0, 2, p}, netip.AddrPort{}},
		{"port cut off", []byte{a, 4, 127, 0, 0, 2, p, 0xa0}, netip.AddrPort{}},
		{"port beyond 16 bits", []byte{a, 4, 127, 0, 0, 2, p, 0x80, 0x80, 4}, netip.AddrPort{}},
	} {
		got, ok := parseEndpoint(c.in)
		if got != c.want || ok != c.want.IsValid() {
			t.Errorf("%s: %v %v, want %v", c.name, got, ok, c.want)
		}
		e := &rdsdv1.Endpoint{}
		if ok && (proto.Unmarshal(c.in, e) != nil || endpointFromProto(e) != got) {
			t.Errorf("%s: %v, and package proto reads %v", c.name, got, e)
		}
	}
}

// A batch whose lengths, sources and index do not agree with its payload, or end in
// the middle of a number, is refused before anything is read from it.
func TestBatchCheck(t *testing.T) {
	two := []netip.AddrPort{peerAddr, otherAddr}
	overflow := []byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1}
	for _, c := range []struct {
		name    string
		lengths []byte
		index   []byte
		sources []netip.AddrPort
		want    bool
	}{
		{"two datagrams of one source", []byte{1, 2}, nil, two[:1], true},
		{"two datagrams of two sources", []byte{1, 2}, []byte{1, 0}, two, true},
		{"one of them empty", []byte{0, 3}, []byte{1, 1}, two, true},
		{"no lengths", nil, nil, two, false},
		{"no sources", []byte{1, 2}, nil, nil, false},
		{"less than the payload", []byte{1, 1}, nil, two, false},
		{"more than the payload", []byte{3, 1}, nil, two, false},
		{"one longer than the payload", []byte{4}, nil, two, false},
		{"a length cut off", []byte{3, 0x80}, nil, two, false},
		{"a length of too many bits", append([]byte{3}, overflow...), nil, two, false},
		{"an index for one of two", []byte{1, 2}, []byte{0}, two, false},
		{"three for two", []byte{1, 2}, []byte{0, 1, 0}, two, false},
		{"a source there is not", []byte{1, 2}, []byte{0, 2}, two, false},
		{"an index cut off", []byte{1, 2}, []byte{0, 0x80}, two, false},
		{"an index of too many bits", []byte{1, 2}, append([]byte{0}, overflow...), two, false},
	} {
		b := &inBatch{payload: []byte("abb"), lengths: c.lengths, index: c.index, sources: c.sources}
		if got := b.check(); got != c.want || got && b.left != 2 {
			t.Errorf("%s: %v, %d datagrams", c.name, got, b.left)
		}
	}
}

// What a daemon may legally say in another layout is read the slow way, and is the same: packed
// fields in pieces, fields of a later day.
func TestBatchesOfAnotherLayout(t *testing.T) {
	endpoint := func(a netip.AddrPort) *rdsdv1.Endpoint {
		e := &rdsdv1.Endpoint{}
		e.SetAddress(a.Addr().AsSlice())
		e.SetPort(uint32(a.Port()))
		return e
	}
	first, second := &rdsdv1.RecvBatch{}, &rdsdv1.RecvBatch{}
	first.SetPayload([]byte("abb"))
	first.SetLength([]uint32{1})
	first.SetSourceIndex([]uint32{1})
	first.SetSource([]*rdsdv1.Endpoint{endpoint(peerAddr)})
	second.SetLength([]uint32{2})
	second.SetSourceIndex([]uint32{0})
	second.SetSource([]*rdsdv1.Endpoint{endpoint(otherAddr)})
	marshal := func(m proto.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	pieces := append(marshal(first), marshal(second)...)
	whole := &rdsdv1.RecvBatch{}
	if err := proto.Unmarshal(pieces, whole); err != nil {
		t.Fatal(err)
	}
	usual := marshal(whole)
	for _, c := range []struct {
		name  string
		in    []byte
		short bool
	}{
		{"the usual layout", usual, true},
		{"in pieces", pieces, false},
		{"with a number of a later day", append(usual[:len(usual):len(usual)], 15<<3, 1), false},
		{"with bytes of a later day", append(usual[:len(usual):len(usual)], 15<<3|2, 1, 9), false},
		{"with a source of another layout", append(usual[:len(usual):len(usual)], fastwire.RecvSource, 2, 15<<3, 1), false},
	} {
		b := &inBatch{}
		if got := b.parse(c.in); got != c.short {
			t.Errorf("%s: taken the short way %v", c.name, got)
		}
		if !c.short {
			m := &rdsdv1.RecvBatch{}
			if err := proto.Unmarshal(c.in, m); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			var err error
			if b, err = batchFromProto(m); err != nil {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
		}
		for _, want := range []Datagram{{Addr: otherAddr, Payload: []byte("a")}, {Addr: peerAddr, Payload: []byte("bb")}} {
			if n := b.nextSize(); n != len(want.Payload) {
				t.Errorf("%s: %d bytes come, want %d", c.name, n, len(want.Payload))
			}
			if d := b.next(); d.Addr != want.Addr || string(d.Payload) != string(want.Payload) {
				t.Errorf("%s: %v %q, want %v %q", c.name, d.Addr, d.Payload, want.Addr, want.Payload)
			}
		}
		if b.left != 0 {
			t.Errorf("%s: %d are left", c.name, b.left)
		}
	}
	bad := &rdsdv1.RecvBatch{}
	bad.SetPayload([]byte("abb"))
	bad.SetLength([]uint32{1})
	if _, err := batchFromProto(bad); err == nil {
		t.Error("a batch that contradicts itself was taken the slow way")
	}
}
