package rdsd

import (
	"net/netip"
	"testing"

	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// The short way to an endpoint leaves to package proto whatever is not laid out
// in just the usual way, and never makes another address of it.
func TestParseEndpoint(t *testing.T) {
	const a, p = tagEndpointAddress, tagEndpointPort
	for _, c := range []struct {
		name string
		in   []byte
		want netip.AddrPort // none: left to package proto
	}{
		{"address and port", []byte{a, 4, 127, 0, 0, 2, p, 0xa0, 0x1f}, localAddr},
		{"no port", []byte{a, 4, 127, 0, 0, 2}, netip.AddrPortFrom(localAddr.Addr(), 0)},
		{"highest port", []byte{a, 4, 127, 0, 0, 2, p, 0xff, 0xff, 3}, netip.AddrPortFrom(localAddr.Addr(), 0xffff)},
		{"nothing", nil, netip.AddrPort{}},
		{"a tag alone", []byte{a}, netip.AddrPort{}},
		{"port first", []byte{p, 1, a, 4, 127, 0, 0, 2}, netip.AddrPort{}},
		{"address cut off", []byte{a, 4, 127, 0}, netip.AddrPort{}},
		{"five bytes of address", []byte{a, 5, 127, 0, 0, 2, 9, p, 1}, netip.AddrPort{}},
		{"a second field that is no port", []byte{a, 4, 127, 0, 0, 2, p + 8, 1}, netip.AddrPort{}},
		{"a port's tag alone", []byte{a, 4, 127, 0, 0, 2, p}, netip.AddrPort{}},
		{"port cut off", []byte{a, 4, 127, 0, 0, 2, p, 0xa0}, netip.AddrPort{}},
		{"port twice", []byte{a, 4, 127, 0, 0, 2, p, 1, p, 2}, netip.AddrPort{}},
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
