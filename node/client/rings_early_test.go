package client

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/node/client/clienttest"
)

// TestRingsBeforeTheyAreServed: between the moment when a socket with rings is bound and that
// when a reactor serves it, datagrams may come, the client may have posted, and waking it may
// cost too much. Nothing of it is looked at by then; what ends the socket ends it as soon as it
// is served, and the client is told.
func TestRingsBeforeTheyAreServed(t *testing.T) {
	for what, c := range map[string]struct {
		happens func(r *ringSock)
		errno   syscall.Errno // it is told; 0: it is served
		panics  uint64
	}{
		"nothing": {func(*ringSock) {}, 0, 0},
		"posts come in sight": {func(r *ringSock) {
			r.host.Lock()
			r.End.PaidOff() // what was out of sight is to be looked at
			r.host.Touch(&r.Ring)
			r.host.Unlock()
		}, syscall.EBADMSG, 0}, // it is nonsense
		"a cancel by somebody else": {func(r *ringSock) {
			if _, _, err := Cancel(t.Context(), r.host, r.sock, clienttest.Nobody); err != nil {
				t.Error(err)
			}
		}, syscall.EBADMSG, 0},
		"waking it is too dear": {func(r *ringSock) { r.alarm.Costly(errors.New("this costs too much")) }, syscall.EIO, 0},
		"a panic":               {func(r *ringSock) { r.react.DoFor(r, func() { panic("in a test") }) }, syscall.EIO, 1},
	} {
		t.Run(what, func(t *testing.T) {
			w, cfg := startClients(t)
			w.deps.Guard.Exit = func(int) { t.Error("the daemon would have ended") }
			addr := cfg.RDS.Addresses[0]
			fails := func(step string) error {
				if step == "bound" {
					e, _ := w.hosts.Locals()[0].Lock()
					r := e.Sockets()[0].Options().Data.(*ringSock)
					w.hosts.Locals()[0].Unlock()
					c.happens(r)
					r.react.Sync()
				}
				return nil
			}
			w.clients.fails.Store(&fails)
			p := clienttest.DialPackets(t, cfg)
			m, fds := p.Ask(clienttest.RingBind(addr, 4711))
			if !m.HasRegion() {
				t.Fatalf("bind was answered by %v", m)
			}
			defer clienttest.CloseFDs(fds)
			mem, err := unix.Mmap(fds[0], 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Munmap(mem)
			if c.errno == syscall.EBADMSG {
				for off := 4096; off < 4096+12*128; off += 128 { // the client's words: something is posted everywhere
					binary.NativeEndian.PutUint64(mem[off:], 1)
				}
			}
			if m := p.Mapped(); !m.HasBound() {
				t.Fatalf("a mapped region was answered by %v", m)
			}
			if c.errno != 0 {
				if m := p.Read(); !m.HasClosing() || m.GetClosing().GetErrno() != int32(c.errno) {
					t.Errorf("the client is told %v, want %v", m, c.errno)
				}
				await.Until(t, 5*time.Second, "the socket is gone", func() bool { return w.clients.Budget().Used == 0 })
			} else if w.clients.Budget().Used != 1 {
				t.Error("the socket is gone")
			}
			if n := w.deps.Guard.Count(guard.Socket); n != c.panics {
				t.Errorf("%d panics, want %d", n, c.panics)
			}
		})
	}
}

// TestPlacedBeforeItFails: what was placed in the region of a socket that is refused after all is gone, so that its
// client, which has mapped it, keeps no memory that nobody pays for.
func TestPlacedBeforeItFails(t *testing.T) {
	for what, bind := range map[string]func(netip.Addr, uint16) *rdsdv1.Bind{"two doorbells": clienttest.RingBind, "one doorbell": clienttest.OneDoorbell} {
		t.Run(what, func(t *testing.T) {
			w, cfg := startClients(t)
			to := netip.AddrPortFrom(cfg.RDS.Addresses[0], 4711)
			from, err := dialRings(t, cfg).Bind(clienttest.Context(t), netip.AddrPortFrom(to.Addr(), 0))
			if err != nil {
				t.Fatal(err)
			}
			local := w.hosts.Locals()[0]
			fails := func(step string) error {
				if step != "bound" {
					return nil
				}
				if err := from.Send(clienttest.Context(t), to, make([]byte, 1<<20)); err != nil {
					t.Error(err)
				}
				await.Until(t, 5*time.Second, "it is placed", func() bool {
					local.Lock()
					defer local.Unlock()
					return local.Socket(to.Port()).Options().Data.(*ringSock).End.Placed() == 1
				})
				return syscall.EIO
			}
			w.clients.fails.Store(&fails)
			p := clienttest.DialPackets(t, cfg)
			m, fds := p.Ask(bind(to.Addr(), to.Port()))
			if !m.HasRegion() {
				t.Fatalf("bind was answered by %v", m)
			}
			defer clienttest.CloseFDs(fds)
			if m := p.Mapped(); m.GetClosing().GetErrno() != int32(syscall.EIO) {
				t.Fatalf("a mapped region was answered by %v", m)
			}
			await.Until(t, 5*time.Second, "its place is free", func() bool { return w.users.Len() == 1 })
			var st unix.Stat_t
			if err := unix.Fstat(fds[1], &st); err != nil || st.Blocks != 0 {
				t.Errorf("%d KiB are left of the daemon's part, which nobody pays for; %v", st.Blocks/2, err)
			}
		})
	}
}
