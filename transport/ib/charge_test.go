package ib

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/rdsd/rdsd/transport"
)

// TestQueuePairIsCharged: what a queue pair takes of this process's memory is charged before it is
// made, to the link's peer, and given back with it.
func TestQueuePairIsCharged(t *testing.T) {
	const bytes = 100 << 10
	var charged int
	var asked []QPConfig
	w := newWorld(t, func(v *fakeVerbs) {
		v.info.QPBytes = func(cfg QPConfig) int {
			asked = append(asked, cfg)
			return bytes
		}
	})
	w.pa.Charge = func(_ netip.Addr, n int) error {
		charged += n // under the link's lock
		return nil
	}
	x, y := w.started()
	if len(asked) != 2 || charged < bytes {
		t.Errorf("%d bytes are charged for a link, and %v asked for", charged, asked)
	}
	x.l.Close()
	w.wantClosed(y)
	if w.wantClosed(x); charged != 0 {
		t.Errorf("%d bytes are charged for a link that is closed", charged)
	}
	full := errors.New("full")
	w.pa.Charge = func(_ netip.Addr, n int) error {
		if n == bytes {
			return full
		}
		charged += n
		return nil
	}
	ln := w.listen(func(transport.ConnRequest) { t.Error("it was asked") })
	if _, _, err := w.dial(ln, w.pa.NewDomain(), nil); !errors.Is(err, full) || charged != 0 {
		t.Errorf("a link without memory for its queue pair: %v, and %d bytes are charged", err, charged)
	}
	w.clean()
}
