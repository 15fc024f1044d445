package netlocal

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

func attr(kind uint16, a string) []byte {
	raw := netip.MustParseAddr(a).AsSlice()
	b := make([]byte, rtattrLen, rtattrLen+len(raw))
	native.PutUint16(b, uint16(rtattrLen+len(raw)))
	native.PutUint16(b[2:], kind)
	return append(b, raw...)
}

func TestIfAddr(t *testing.T) {
	head := make([]byte, ifaddrLen)
	join := func(parts ...[]byte) (b []byte) {
		for _, p := range append([][]byte{head}, parts...) {
			b = append(b, p...)
		}
		return b
	}
	for name, tc := range map[string]struct {
		b    []byte
		want string
	}{
		"IPv4":                  {join(attr(unix.IFA_ADDRESS, "10.0.0.1"), attr(unix.IFA_LOCAL, "10.0.0.1")), "10.0.0.1"},
		"one other machine":     {join(attr(unix.IFA_ADDRESS, "10.0.0.2"), attr(unix.IFA_LOCAL, "10.0.0.1")), "10.0.0.1"},
		"the other way round":   {join(attr(unix.IFA_LOCAL, "10.0.0.1"), attr(unix.IFA_ADDRESS, "10.0.0.2")), "10.0.0.1"},
		"IPv6":                  {join(attr(unix.IFA_ADDRESS, "fd00::1")), "fd00::1"},
		"behind something else": {join([]byte{5, 0, 3, 0, 'x', 0, 0, 0}, attr(unix.IFA_ADDRESS, "fd00::1")), "fd00::1"},
		"none":                  {join(), ""},
		"short":                 {head[:3], ""},
		"a length of nothing":   {join([]byte{0, 0, 1, 0}), ""},
		"a length beyond":       {join([]byte{200, 0, 1, 0, 10, 0}), ""},
	} {
		a, ok := ifAddr(tc.b)
		if ok != (tc.want != "") || ok && a.String() != tc.want {
			t.Errorf("%s: %v %v", name, a, ok)
		}
	}
}
