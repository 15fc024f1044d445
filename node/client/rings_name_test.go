package client

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/client/clienttest"
)

// TestKeptByName: a client that keeps a descriptor of the daemon's part which has it neither open nor mapped
// (O_PATH) keeps no pages that nobody is charged for any more.
func TestKeptByName(t *testing.T) {
	for what, bind := range map[string]func(netip.Addr, uint16) *rdsdv1.Bind{"two doorbells": clienttest.RingBind, "one doorbell": clienttest.OneDoorbell} {
		t.Run(what, func(t *testing.T) {
			w, cfg := startClients(t)
			to := netip.AddrPortFrom(cfg.RDS.Addresses[0], 4711)
			p := clienttest.DialPackets(t, cfg)
			m, fds := p.Ask(bind(to.Addr(), to.Port()))
			if !m.HasRegion() {
				t.Fatalf("bind was answered by %v", m)
			}
			name, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fds[1]), unix.O_PATH|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(name)
			if m := p.Mapped(); !m.HasBound() {
				t.Fatalf("a mapped region was answered by %v", m)
			}
			from, err := dialRings(t, cfg).Bind(clienttest.Context(t), netip.AddrPortFrom(to.Addr(), 0))
			if err != nil {
				t.Fatal(err)
			}
			if err := from.Send(clienttest.Context(t), to, make([]byte, 1<<20)); err != nil {
				t.Fatal(err)
			}
			left := func() int64 {
				var st unix.Stat_t
				if err := unix.Fstat(name, &st); err != nil {
					t.Fatal(err)
				}
				return st.Blocks * 512
			}
			await.Until(t, time.Minute, "it is placed", func() bool { return left() >= 1<<20 })
			p.C.Close()
			clienttest.CloseFDs(fds)
			await.Until(t, time.Minute, "its place is free", func() bool { return w.users.Len() == 1 })
			if n := left(); n != 0 {
				t.Errorf("%d bytes are left of the daemon's part, which nobody pays for", n)
			}
		})
	}
}
