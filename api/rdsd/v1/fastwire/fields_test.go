package fastwire

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// TestAsGenerated: what is laid out by hand is byte for byte what the generated code lays
// out, for numbers and endpoints of every length.
func TestAsGenerated(t *testing.T) {
	numbers := []uint32{0, 1, 127, 128, 16383, 16384, 1<<21 - 1, 1 << 21, 1<<28 - 1, 1 << 28, 1<<32 - 1}
	var ends []netip.AddrPort
	for _, a := range []string{"10.0.0.1", "2001:db8::1", "::ffff:10.0.0.1"} {
		for _, p := range []uint16{0, 1, 127, 128, 16383, 16384, 65535} {
			ends = append(ends, netip.AddrPortFrom(netip.MustParseAddr(a), p))
		}
	}
	m := &rdsdv1.RecvBatch{}
	m.SetLength(numbers)
	m.SetSourceIndex(slices.Clone(numbers))
	var list []*rdsdv1.Endpoint
	for _, a := range ends {
		e := &rdsdv1.Endpoint{}
		e.SetAddress(a.Addr().AsSlice())
		e.SetPort(uint32(a.Port()))
		list = append(list, e)
	}
	m.SetSource(list)
	want, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	size := SizeUint32s(numbers)
	got := AppendUint32s(nil, RecvLength, numbers, size)
	before := len(got)
	got = AppendEndpoints(got, RecvSource, ends)
	if n := len(got) - before; n != SizeEndpoints(ends) {
		t.Errorf("endpoints take %d bytes, and %d were foreseen", n, SizeEndpoints(ends))
	}
	got = AppendUint32s(got, RecvIndex, numbers, size)
	if !bytes.Equal(got, want) {
		t.Errorf("by hand\n% x, generated\n% x", got, want)
	}
}

// TestReadsBack: what is laid out is read back; cut off anywhere, nothing is read from it.
func TestReadsBack(t *testing.T) {
	numbers := []uint32{0, 127, 128, 1<<32 - 1}
	field := AppendUint32s(nil, SendLength, numbers, SizeUint32s(numbers))
	for n := 1; n <= len(field); n++ {
		body, rest, ok := Cut(field[1:n])
		if ok != (n == len(field)) || len(rest) != 0 {
			t.Errorf("%d bytes: %v, %x is left", n, ok, rest)
		}
		if !ok {
			continue
		}
		if got, ok := Uint32s(nil, body); !ok || !slices.Equal(got, numbers) {
			t.Errorf("%v, %v", got, ok)
		}
	}
	for _, bad := range [][]byte{{0x80}, {0x80, 0x80, 0x80, 0x80, 0x10}} {
		if got, ok := Uint32s(nil, bad); ok {
			t.Errorf("% x is read as %v", bad, got)
		}
	}
	end := appendEndpoint(nil, netip.MustParseAddrPort("10.0.0.1:300"))
	for n := range len(end) + 1 {
		whole := n == len(end) || n == 0 || n == 6 // both fields, none, the address alone
		address, port, ok := ParseEndpoint(end[:n])
		if ok != whole || ok && n > 0 && !bytes.Equal(address, []byte{10, 0, 0, 1}) || n == len(end) && port != 300 {
			t.Errorf("%d bytes of an endpoint: %v port %d, %v", n, address, port, ok)
		}
	}
	if _, _, ok := ParseEndpoint([]byte{EndpointPort + 8, 1}); ok {
		t.Error("a field that is not known is read")
	}
}
