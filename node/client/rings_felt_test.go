package client

import (
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/shm"
)

// What a client says of itself is counted once, and nonsense not at all.
func TestFelt(t *testing.T) {
	reg, err := shm.Create(shm.Spec{Local: netip.MustParseAddrPort("10.0.0.1:4000"), SndBuf: 4096, RcvBuf: 4096, MaxDatagram: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer reg.Close()
	m := shm.NewSender(reg, -1)
	f := felt{at: reactor.Clock() - time.Second}
	if d := f.hear(reg); d != (Felt{}) {
		t.Errorf("%+v of a client that has said nothing", d)
	}
	f.at -= time.Second
	for range 3 {
		m.CountFull()
	}
	if d := f.hear(reg); d != (Felt{Full: 3}) {
		t.Errorf("%+v, want 3 sends without room", d)
	}
	if d := f.hear(reg); d != (Felt{}) {
		t.Errorf("%+v was counted twice", d)
	}
}
