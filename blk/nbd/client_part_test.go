package nbd

import (
	"errors"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
)

// TestPartEdges: what a server says lies at an offset goes exactly there, to the last
// byte of what was asked for; what is outside, or too much in all, is refused.
func TestPartEdges(t *testing.T) {
	const off, n = 512, 16
	type at struct{ off, n uint64 }
	for _, c := range []struct {
		what  string
		parts []at
		ok    bool // the last of them; those before are
	}{
		{"all of it", []at{{off, n}}, true},
		{"the last byte", []at{{off + n - 1, 1}}, true},
		{"nothing at the start", []at{{off, 0}}, true},
		{"nothing at the end", []at{{off + n, 0}}, true},
		{"nothing behind the end", []at{{off + n + 1, 0}}, false},
		{"nothing in front", []at{{off - 1, 0}}, false},
		{"one in front", []at{{off - 1, 1}}, false},
		{"one behind", []at{{off + n, 1}}, false},
		{"one over the end", []at{{off + 1, n}}, false},
		{"one too many", []at{{off, n + 1}}, false},
		{"two halves", []at{{off + 8, 8}, {off, 8}}, true},
		{"nothing behind all", []at{{off, n}, {off + n, 0}}, true},
		{"a byte twice", []at{{off, 8}, {off + 7, 2}}, false},
		{"a byte between twice", []at{{off, 8}, {off + 9, 7}, {off + 8, 2}}, false},
		{"the gap", []at{{off, 8}, {off + 9, 7}, {off + 8, 1}}, true},
		{"off the end of 64 bits", []at{{1<<64 - 8, 8}}, false},
		{"a length of 64 bits", []at{{off + 1, 1<<64 - 1}}, false},
	} {
		k := &call{cmd: cmdRead, off: off, n: n, buf: make([]byte, n)}
		placed := uint64(0)
		for i, p := range c.parts {
			b, err := k.part(p.off, p.n)
			if ok := c.ok || i < len(c.parts)-1; ok != (err == nil) || err != nil && !errors.Is(err, rdserr.ErrProtocol) {
				t.Errorf("%s: %d at %d: %v", c.what, p.n, p.off, err)
			}
			if err != nil {
				continue
			}
			placed += p.n
			if uint64(len(b)) != p.n || p.n > 0 && &b[0] != &k.buf[p.off-off] || k.placed != placed {
				t.Errorf("%s: %d bytes for %d at %d; %d placed in all, want %d", c.what, len(b), p.n, p.off, k.placed, placed)
			}
		}
		k = &call{cmd: cmdWrite, off: off, n: n, buf: make([]byte, n)}
		if _, err := k.part(off, n); !errors.Is(err, rdserr.ErrProtocol) {
			t.Errorf("data in reply to a write: %v", err)
		}
	}
}
