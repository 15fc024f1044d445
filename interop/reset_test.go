package interop

import (
	"context"
	"net/netip"
	"syscall"
	"testing"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// 50 resets in the middle of traffic, in turn by the kernel, by our
// administrator, and by a RST of our own TCP.
//
// A kernel that resets loses to itself: rds_tcp_conn_path_shutdown takes its
// hands off the socket before it closes it (the shutdown in front of that
// fails, it passes 3 where 0 to 2 is expected), and what its TCP takes and
// acknowledges in between nobody reads. The close then finds unread data, which
// its counter TCPAbortOnClose shows: that excuses a gap.
//
// One loss is not explained. Seen once in some hundred runs: the kernel's TCP had
// acknowledged our stream to the last byte of a datagram, then sent its own FIN,
// which says that nothing was unread, and its receiver never got that one
// datagram. What TCP has acknowledged no RDS sends again, so at most two such are
// excused, and logged. Gaps are excused towards the kernel and nowhere else;
// nothing excuses doubles or disorder.
func TestKernelResets(t *testing.T) {
	const (
		resets      = 50
		count       = 30_000
		unexplained = 2
	)
	eachPair(t, 90*time.Second, true, func(ctx context.Context, t *testing.T, l *lab, d *daemon, pr pair) {
		before, aborted := linksLost(ctx, t, d), abortsOnClose(ctx, t, l)
		s := startStreams(ctx, t, l, d, pr, count, mixed)
		s.excused = func(r Report) bool {
			return r.Back+r.Bad+r.Strange == 0 &&
				(r.Missing <= unexplained || r.Missing < count/10 && abortsOnClose(ctx, t, l) > aborted)
		}
		for i := range resets {
			// Spread over the first nine tenths, by what has come through, and
			// never into the void: each reset shall find a connection.
			mark := int64(i+1) * (2 * count * 9 / 10) / resets
			began := time.Now()
			for s.received.Load()+s.sent.Load() < mark || !pathUp(ctx, t, d, pr) {
				if ctx.Err() != nil {
					t.Fatalf("stuck after %d resets: sent %d, received %d", i, s.sent.Load(), s.received.Load())
				}
				time.Sleep(time.Millisecond)
			}
			if waited := time.Since(began); waited > 2*time.Second {
				t.Logf("%.1f s until reset %d", waited.Seconds(), i)
			}
			var err error
			switch i % 3 {
			case 0:
				err = l.vm.ResetAll(ctx)
			case 1:
				_, err = d.Admin().DropPaths(ctx, rdsd.PeerFilter{Local: pr.ours, Remote: pr.kernel})
			case 2: // where our kernel cannot, ss does nothing and says so nowhere
				_, err = l.ns.Run("ss", "-K", "-tn", "dst", "["+pr.kernel.String()+"]")
			}
			if err != nil {
				t.Fatalf("reset %d: %v", i, err)
			}
		}
		s.finish(ctx, t)
		// ss may be powerless here, and two resets in a row may meet.
		if n := linksLost(ctx, t, d) - before; n < resets/2 {
			t.Errorf("%d resets took down %d links", resets, n)
		}
	})
}

// linksLost is rdsd's count of links that ended.
func linksLost(ctx context.Context, t *testing.T, d *daemon) uint64 {
	t.Helper()
	counters, err := d.Admin().Counters(ctx, netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range counters {
		if c.Name == "conn_reset" {
			return c.Value
		}
	}
	t.Fatal("no counter conn_reset")
	return 0
}

// abortsOnClose is how often the kernel closed a connection with unread data.
func abortsOnClose(ctx context.Context, t *testing.T, l *lab) uint64 {
	t.Helper()
	raw, err := l.vm.Run(ctx, "cat", "/proc/net/netstat")
	if err != nil {
		t.Fatal(err)
	}
	n, err := snmpCounter(raw, "TcpExt:", "TCPAbortOnClose")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func pathUp(ctx context.Context, t *testing.T, d *daemon, pr pair) bool {
	t.Helper()
	peers, err := d.Admin().Peers(ctx, rdsd.PeerFilter{Local: pr.ours, Remote: pr.kernel})
	if err != nil {
		t.Fatal(err)
	}
	return len(peers) > 0 && len(peers[0].Paths) > 0 && peers[0].Paths[0].State == rdsd.StateUp
}

// rdsd goes away, killed or in order, with the kernel's datagrams under way:
// they come when it is back. The link is cut until its sockets are bound again,
// because what reaches a port nobody has is dropped, as by any RDS.
func TestOurRestart(t *testing.T) {
	const count = 300
	l := needLab(t)
	ctx := limited(t, 2*time.Minute)
	d := startDaemon(t, l)
	watch(t, l, d)
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		for _, pr := range pairs {
			startStreams(ctx, t, l, d, pr, count, mixed).finish(ctx, t)
		}
		if err := l.vm.Netem(ctx, "loss", "100%"); err != nil {
			t.Fatal(err)
		}
		d.stop(t, sig)
		held := map[pair]*Job{}
		ports := map[pair]uint16{}
		for _, pr := range pairs {
			ports[pr] = newPort()
			held[pr] = kernelSend(ctx, t, l, map[string]any{
				"local": at(pr.kernel, newPort()), "dst": at(pr.ours, ports[pr]),
				"flow": 7, "count": count, "size": mixed, "sndbuf": 4 << 20,
			})
		}
		d = startDaemon(t, l)
		socks := map[pair]*rdsd.Socket{}
		for _, pr := range pairs {
			socks[pr] = d.bind(ctx, t, pr.ours, ports[pr])
		}
		if err := l.vm.Netem(ctx); err != nil {
			t.Fatal(err)
		}
		for _, pr := range pairs {
			c := NewChecker(map[uint32]int{7: count})
			if err := recvSigned(ctx, socks[pr], c, nil); err != nil {
				t.Errorf("%s, after %v: %v", pr.name, sig, err)
			}
			if err := c.Report().Err(); err != nil {
				t.Errorf("%s, after %v: %v", pr.name, sig, err)
			}
			release(ctx, t, held[pr])
		}
		for _, pr := range pairs { // and both ways from then on
			startStreams(ctx, t, l, d, pr, count, mixed).finish(ctx, t)
		}
	}
}

// The kernel's machine loses power with our datagrams under way, and comes
// back knowing nothing: they arrive once. Then its modules are reloaded.
func TestKernelRestart(t *testing.T) {
	const count = 300
	l := needLab(t)
	ctx := limited(t, 3*time.Minute)
	d := startDaemon(t, l)
	watch(t, l, d)
	for _, pr := range pairs {
		startStreams(ctx, t, l, d, pr, count, mixed).finish(ctx, t)
	}
	if err := l.vm.Kill(); err != nil {
		t.Fatal(err)
	}
	ports := map[pair]uint16{}
	for _, pr := range pairs {
		ports[pr] = newPort()
		s := d.bind(ctx, t, pr.ours, 0, rdsd.WithSendBuffer(4<<20))
		dst := netip.AddrPortFrom(pr.kernel, ports[pr])
		if err := sendSigned(ctx, s, dst, 7, count, mixed, nil); err != nil {
			t.Fatalf("%s, to a dead kernel: %v", pr.name, err)
		}
	}
	if err := l.boot("cut=1"); err != nil {
		t.Fatal(err)
	}
	jobs := map[pair]*Job{}
	for _, pr := range pairs {
		jobs[pr] = kernelRecv(ctx, t, l, map[string]any{
			"local": at(pr.kernel, ports[pr]), "want": map[int]int{7: count},
			"rcvbuf": 4 << 20, "timeout": 60, "linger": 0.2,
		})
	}
	if err := l.vm.Netem(ctx); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for _, pr := range pairs {
		var r Report
		if err := jobs[pr].Wait(ctx, &r); err != nil {
			t.Errorf("%s: %v", pr.name, err)
		} else if err := r.Err(); err != nil {
			t.Errorf("%s: %v", pr.name, err)
		}
	}
	t.Logf("all of it %.1f s after the kernel was back", time.Since(began).Seconds())
	for _, pr := range pairs {
		startStreams(ctx, t, l, d, pr, count, mixed).finish(ctx, t)
	}
	if err := l.vm.ReloadRDS(ctx); err != nil {
		t.Fatal(err)
	}
	for _, pr := range pairs {
		startStreams(ctx, t, l, d, pr, count, mixed).finish(ctx, t)
	}
}
