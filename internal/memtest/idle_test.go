package memtest

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// What an idle socket with rings may cost its daemon.
const (
	idleSocketBytes = 16 << 10 // resident, with what the collector has not collected yet
	idleSocketFDs   = 2
)

// cost is what a daemon takes.
type cost struct {
	fds   int
	bytes map[string]int64 // of /proc/PID/status
}

func costOf(t *testing.T, d *rdsdtest.Daemon) cost {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	c := cost{len(fds), map[string]int64{}}
	for line := range strings.SplitSeq(string(status), "\n") {
		key, rest, _ := strings.Cut(line, ":")
		if kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64); err == nil {
			c.bytes[key] = kb << 10
		}
	}
	return c
}

// each is what n more of something cost apiece.
func (c cost) each(before cost, n int) (fds float64, bytes int64, parts string) {
	per := func(key string) int64 { return (c.bytes[key] - before.bytes[key]) / int64(n) }
	return float64(c.fds-before.fds) / float64(n), per("VmRSS"),
		fmt.Sprintf("RssAnon %d, RssShmem %d, RssFile %d, page tables %d", per("RssAnon"), per("RssShmem"), per("RssFile"), per("VmPTE"))
}

// TestIdleSockets: a thousand sockets with rings on which nothing happens take descriptors
// and memory of the daemon within their bars, without a collection that somebody asks for.
func TestIdleSockets(t *testing.T) {
	const first, sockets = 100, 1000
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		t.Fatal(err)
	}
	if r.Cur < 6*(first+sockets) {
		t.Skipf("RLIMIT_NOFILE is %d; the clients of this test need %d", r.Cur, 6*(first+sockets))
	}
	for _, key := range []string{"MAX_SOCKETS", "MAX_SOCKETS_PER_UID", "MAX_CLIENTS", "MAX_CLIENTS_PER_UID"} {
		t.Setenv("RDSD_LIMITS_"+key, strconv.Itoa(2*(first+sockets)))
	}
	t.Setenv("RDSD_API_CALLS_BURST", "1000000")
	d := rdsdtest.Start(t, rdsdtest.AddrA, rdsdtest.FreePort(t, rdsdtest.AddrA))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := d.Dial(rdsd.WithFrontEnd(rdsd.Rings))
	bind := func(n int) {
		t.Helper()
		for i := range n {
			if _, err := client.Bind(ctx, d.AddrPort(0)); err != nil {
				t.Fatalf("socket %d: %v", i, err)
			}
		}
	}
	bind(first) // what a daemon takes once is not counted
	before := costOf(t, d)
	bind(sockets)
	time.Sleep(time.Second) // what is done aside of a bind
	fds, bytes, parts := costOf(t, d).each(before, sockets)
	t.Logf("REPORT an idle socket with rings takes %.2f descriptors and %d bytes (%s)", fds, bytes, parts)
	if fds > idleSocketFDs {
		t.Errorf("an idle socket takes %.2f descriptors of the daemon, at most %d may be", fds, idleSocketFDs)
	}
	if bytes > idleSocketBytes {
		t.Errorf("an idle socket takes %d bytes of the daemon, at most %d may be", bytes, idleSocketBytes)
	}
}

// What an idle peer may cost its daemon: resident, and nobody asks for a collection. The bar
// is 8 KiB, and it is 6.6 to 8.4 (docs/performance-log.md, 37): what is above the bar is for
// stacks of goroutines that dialled, of which Go keeps more or fewer.
const (
	idlePeerBar   = 8 << 10
	idlePeerBytes = 9 << 10
)

// TestIdlePeers: a thousand peers that were sent a datagram each, and then nothing, take
// memory within a bound.
func TestIdlePeers(t *testing.T) {
	const from, to = 17, 64
	t.Setenv("RDSD_LIMITS_MAX_PEERS", strconv.Itoa(2*from*to))
	port := rdsdtest.FreePort(t, rdsdtest.AddrA, rdsdtest.AddrB)
	local, localArgs := addresses(rdsdtest.AddrA, 78, from)
	remote, remoteArgs := addresses(rdsdtest.AddrB, 79, to)
	a := rdsdtest.Start(t, rdsdtest.AddrA, port, localArgs...)
	b := rdsdtest.Start(t, rdsdtest.AddrB, port, remoteArgs...)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	there := b.Dial(rdsd.WithFrontEnd(rdsd.GRPC))
	var ports []netip.AddrPort
	for _, addr := range remote {
		s, err := there.Bind(ctx, netip.AddrPortFrom(addr, 0))
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, s.LocalAddr())
	}
	here := a.Dial(rdsd.WithFrontEnd(rdsd.Rings))
	reach := func(addr netip.Addr) {
		t.Helper()
		s, err := here.Bind(ctx, netip.AddrPortFrom(addr, 0))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range ports {
			if err := s.Send(ctx, p, []byte("anybody there?")); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	reach(local[0]) // what a daemon takes once is not counted
	time.Sleep(idleSettles)
	before := costOf(t, a)
	for _, addr := range local[1:] {
		reach(addr)
	}
	time.Sleep(idleSettles)
	fds, bytes, parts := costOf(t, a).each(before, (from-1)*to)
	t.Logf("REPORT an idle peer takes %.2f descriptors and %d bytes, bar %d (%s)", fds, bytes, idlePeerBar, parts)
	if fds < 1 {
		t.Errorf("an idle peer takes %.2f descriptors: not all are connected", fds)
	}
	if fds > 1.1 { // the one socket that sent to it has no use for a second lane
		t.Errorf("an idle peer takes %.2f descriptors, one each is enough", fds)
	}
	if bytes > idlePeerBytes {
		t.Errorf("an idle peer takes %d bytes of the daemon, at most %d may be", bytes, idlePeerBytes)
	}
}

// idleSettles is how long a daemon is left alone before it is looked at.
const idleSettles = 10 * time.Second
