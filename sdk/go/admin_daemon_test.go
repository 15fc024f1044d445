package rdsd_test

import (
	"context"
	"errors"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// TestAdminOfRealDaemons: a reader that does not read, a sender that goes on, and what
// an administrator of either daemon sees of it and does about it.
func TestAdminOfRealDaemons(t *testing.T) { overBoth(t, adminOfRealDaemons) }

func adminOfRealDaemons(t *testing.T, bind binder) {
	near, far := rdsdtest.Pair(t)
	ctx := within(t, 30*time.Second)
	nearAdmin, farAdmin := near.Dial().Admin(), far.Dial().Admin()

	st, err := nearAdmin.Status(ctx)
	if err != nil || st.State != "serving" || int(st.RDSPort) != near.Port || !slices.Equal(st.LocalAddresses, []netip.Addr{near.Addr}) ||
		st.Uptime <= 0 || st.Version == "" || len(st.Budgets) == 0 {
		t.Errorf("status %+v, %v", st, err)
	}
	pong, err := nearAdmin.Ping(ctx, rdsd.PingSpec{Remote: far.Addr})
	if err != nil || pong.Local != near.Addr || pong.RTT <= 0 {
		t.Errorf("pong %+v, %v", pong, err)
	}
	if _, err := nearAdmin.Ping(ctx, rdsd.PingSpec{}); !errors.Is(err, rdserr.ErrInvalid) {
		t.Errorf("a ping to nobody: %v", err)
	}

	to := bind(far, 4850, rdsd.WithRecvBuffer(4096), rdsd.WithRecvWindow(1, 1), rdsd.WithLabel("sleeper"))
	from := bind(near, 4851)
	before := farAdmin.WatchCongestion(ctx) // from now on
	fillPort(ctx, t, from, to.LocalAddr())
	for _, watch := range []iter.Seq2[rdsd.CongestionNotice, error]{before, farAdmin.WatchCongestion(ctx, rdsd.WatchCurrent())} {
		for n, err := range watch {
			if err != nil {
				t.Fatal(err)
			}
			if n.Endpoint == to.LocalAddr() && n.Local && n.Congested {
				break
			}
		}
	}
	ports, _, err := farAdmin.Congestion(ctx)
	if err != nil || len(ports) != 1 || ports[0].Endpoint != to.LocalAddr() || int(ports[0].ReaderPID) != os.Getpid() ||
		len(ports[0].Culprits) != 1 || ports[0].Culprits[0].Source != from.LocalAddr() {
		t.Errorf("congested %+v, %v", ports, err)
	}
	socks, err := farAdmin.Sockets(ctx)
	if err != nil || len(socks) != 1 || socks[0].Label != "sleeper" || !socks[0].Congested || socks[0].RecvQueued == 0 || int(socks[0].PID) != os.Getpid() {
		t.Errorf("sockets %+v, %v", socks, err)
	}
	queued, truncated, err := farAdmin.Queue(ctx, rdsd.QueueRecv, 1)
	if err != nil || len(queued) != 1 || !truncated || queued[0].Queue != rdsd.QueueRecv || queued[0].Remote != from.LocalAddr() {
		t.Errorf("queued %+v, %v, %v", queued, truncated, err)
	}
	lookAtPeers(ctx, t, nearAdmin, far.Addr)

	if n, err := nearAdmin.DropPaths(ctx, rdsd.PeerFilter{Remote: far.Addr}); err != nil || n == 0 {
		t.Errorf("dropped %d, %v", n, err)
	}
	if _, err := nearAdmin.CancelSent(ctx, from.LocalAddr(), to.LocalAddr()); err != nil {
		t.Errorf("cancel: %v", err)
	}
	if err := farAdmin.CloseSocket(ctx, to.LocalAddr()); err != nil {
		t.Errorf("close: %v", err)
	}
	for what, err := range map[string]error{
		"drop":   second(nearAdmin.DropPath(ctx, rdsd.PeerFilter{Remote: netip.MustParseAddr("127.9.9.9")}, 0)),
		"cancel": second(nearAdmin.CancelSent(ctx, near.AddrPort(9), to.LocalAddr())),
		"close":  farAdmin.CloseSocket(ctx, far.AddrPort(9)),
	} {
		if !errors.Is(err, rdserr.ErrNotFound) {
			t.Errorf("%s of what there is not: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// fillPort sends until the destination is congested.
func fillPort(ctx context.Context, t *testing.T, from *rdsd.Socket, to netip.AddrPort) {
	t.Helper()
	for {
		switch err := from.TrySend(to, make([]byte, 1024)); {
		case errors.Is(err, rdserr.ErrCongested):
			return
		case err != nil && !errors.Is(err, rdserr.ErrWouldBlock), ctx.Err() != nil:
			t.Fatalf("%s does not become congested: %v, %v", to, err, ctx.Err())
		}
	}
}

func lookAtPeers(ctx context.Context, t *testing.T, admin *rdsd.Admin, remote netip.Addr) {
	t.Helper()
	peers, err := admin.Peers(ctx, rdsd.PeerFilter{Remote: remote})
	if err != nil || len(peers) != 1 || peers[0].Kind != rdsd.PeerRDSD || peers[0].State != rdsd.StateUp || peers[0].CongestedPorts != 1 ||
		len(peers[0].Paths) == 0 || len(peers[0].Paths) > int(peers[0].Lanes) || peers[0].Paths[0].State != rdsd.StateUp {
		t.Errorf("peers %+v, %v", peers, err)
	}
	if peers, err := admin.Peers(ctx, rdsd.PeerFilter{Local: remote}); err != nil || len(peers) != 0 {
		t.Errorf("peers of an address of another node: %+v, %v", peers, err)
	}
	for _, of := range []netip.Addr{{}, remote} {
		counters, err := admin.Counters(ctx, of)
		if err != nil || len(counters) == 0 || counters[0].Name != "conn_reset" || counters[0].Help == "" {
			t.Errorf("counters of %q: %+v, %v", of, counters, err)
		}
	}
	if _, err := admin.Counters(ctx, netip.MustParseAddr("127.9.9.9")); !errors.Is(err, rdserr.ErrNotFound) {
		t.Errorf("counters of nobody: %v", err)
	}
}

// TestOddPaths: a daemon is found by any path that its socket may have, whatever a URL
// would make of it, over both front ends.
func TestOddPaths(t *testing.T) {
	d, _ := rdsdtest.Pair(t)
	ctx := within(t, 20*time.Second)
	dir := t.TempDir()
	for _, name := range []string{"a#b", "what?", "100%", "%41", "with space", "ü", "a:b"} {
		path := filepath.Join(dir, name)
		for _, suffix := range []string{"", ".rings"} {
			if err := os.Symlink(d.Socket+suffix, path+suffix); err != nil {
				t.Fatal(err)
			}
		}
		c, err := rdsd.Dial(path, rdsd.WithFrontEnd(rdsd.Rings))
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		if _, err := c.Admin().Status(ctx); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if s, err := c.Bind(ctx, d.AddrPort(0)); err != nil {
			t.Errorf("%q: rings: %v", name, err)
		} else {
			s.Close()
		}
		c.Close()
	}
}
