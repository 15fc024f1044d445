package killtest

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// paired starts a daemon that makes pairs (docs/pairs.md).
func paired(t *testing.T) *rdsdtest.Daemon {
	t.Helper()
	return rdsdtest.Start(t, rdsdtest.AddrA, rdsdtest.FreePort(t, rdsdtest.AddrA), "--pairs", "auto")
}

// pairFiles counts what a daemon has of pairs: mappings, and descriptors that it keeps until
// no client has the memory.
func pairFiles(t *testing.T, d *rdsdtest.Daemon) (n int) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", d.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	dir := fmt.Sprintf("/proc/%d/fd", d.Pid())
	fds, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fds {
		if to, err := os.Readlink(dir + "/" + f.Name()); err == nil && strings.Contains(to, "rdsd-pair") {
			n++
		}
	}
	return n + strings.Count(string(maps), "rdsd-pair")
}

// askCounters returns a way to read a daemon's counters.
func askCounters(t *testing.T, d *rdsdtest.Daemon) func(name string) uint64 {
	t.Helper()
	c, err := rdsd.Dial(d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return func(name string) uint64 {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		l, err := c.Admin().Counters(ctx, netip.Addr{})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range l {
			if x.Name == name {
				return x.Value
			}
		}
		t.Fatalf("no counter %s", name)
		return 0
	}
}

func init() {
	roles["hurrier"] = hurrier
	roles["reader"] = reader
}

// hurrier sends small signed datagrams one by one and in batches, until it is killed.
func hurrier() error {
	s, err := bindHere()
	if err != nil {
		return err
	}
	dst, err := netip.ParseAddrPort(os.Getenv("RDSD_KILLTEST_TO"))
	if err != nil {
		return err
	}
	flow, err := strconv.ParseUint(os.Getenv("RDSD_KILLTEST_FLOW"), 10, 32)
	if err != nil {
		return err
	}
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(flow, 2))
	for n := uint64(0); ; {
		if rng.IntN(2) == 0 {
			if err := s.Send(ctx, dst, sign(uint32(flow), n, 16+rng.IntN(200))); err != nil {
				return err
			}
			n++
			continue
		}
		batch := make([]rdsd.Datagram, 1+rng.IntN(64))
		for i := range batch {
			batch[i] = rdsd.Datagram{Addr: dst, Payload: sign(uint32(flow), n, 64)}
			n++
		}
		if _, err := s.SendBatch(ctx, batch); err != nil {
			return err
		}
	}
}

// reader reads, says its address and, now and then, how many datagrams there were, until it
// is killed.
func reader() error {
	s, err := bindHere()
	if err != nil {
		return err
	}
	fmt.Println(s.LocalAddr())
	for n := uint64(0); ; n++ {
		d, err := s.Recv(context.Background())
		if err != nil {
			return err
		}
		if got := binary.BigEndian.Uint64(d.Payload[8:]); got != n {
			return fmt.Errorf("number %d where %d was to come", got, n)
		}
	}
}

// TestPairedSendersKilled kills senders at random moments while their flows go by pairs: what
// comes of each is whole, in order and without a gap, others do not notice, and the memory of
// the pairs is gone within a second (D1, D2, D4).
func TestPairedSendersKilled(t *testing.T) {
	d := paired(t)
	count := askCounters(t, d)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	o := newOracle()
	steadyTo := o.listen(t, ctx, d, &wg)
	steady := start(t, "hurrier", d, 1_000_000, steadyTo.LocalAddr())
	defer steady.kill()
	for i := range 30 {
		to := o.listen(t, ctx, d, &wg)
		seen := o.first(i)
		opened := count("pairs_opened")
		c := start(t, "hurrier", d, i, to.LocalAddr())
		select {
		case <-seen:
		case <-time.After(20 * time.Second):
			t.Fatalf("nothing came of client %d in 20 s", i)
		}
		within(t, 20*time.Second, "a pair is opened", func() bool { return count("pairs_opened") > opened })
		time.Sleep(time.Duration(rand.IntN(60_000)) * time.Microsecond)
		c.kill()
		to.Close()
	}
	steady.kill()
	within(t, 2*time.Second, "the dead clients' pairs are gone", func() bool { return pairFiles(t, d) == 0 })
	o.mu.Lock()
	defer o.mu.Unlock()
	total := uint64(0)
	for _, n := range o.next {
		total += n
	}
	t.Logf("REPORT 30 paired senders killed; %d datagrams came whole and in order, %d of them by %d pairs", total, count("pair_datagrams"), count("pairs_opened"))
	for _, err := range o.errs {
		t.Error(err)
	}
}

// TestPairedReadersKilled kills readers whose flow goes by a pair: each datagram that was
// accepted has exactly one outcome, delivered or failed, and none more (D3).
func TestPairedReadersKilled(t *testing.T) {
	d := paired(t)
	count := askCounters(t, d)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for i := range 15 {
		c := start(t, "reader", d, i, netip.AddrPort{})
		line, err := c.out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		to, err := netip.ParseAddrPort(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		s := bindOutcomes(t, d)
		decided := map[uint64]bool{}
		var mu sync.Mutex
		var failed uint64
		var wg sync.WaitGroup
		octx, stop := context.WithCancel(ctx)
		wg.Go(func() {
			for o, err := range s.Outcomes(octx) {
				if err != nil {
					return
				}
				mu.Lock()
				if decided[o.Tag] {
					t.Errorf("datagram %d has a second outcome, %v", o.Tag, o.Kind)
				}
				decided[o.Tag] = true
				switch o.Kind {
				case rdsd.Failed:
					failed++
				case rdsd.Delivered:
				default:
					t.Errorf("datagram %d: %v", o.Tag, o.Kind)
				}
				mu.Unlock()
			}
		})
		sent := map[uint64]bool{}
		n := uint64(0)
		opened, killed := count("pairs_opened"), false
		failures := func() uint64 {
			mu.Lock()
			defer mu.Unlock()
			return failed
		}
		for begun := time.Now(); !killed || failures() == 0 && time.Since(begun) < 30*time.Second; {
			for range 100 {
				tag, err := s.SendTag(ctx, to, sign(uint32(i), n, 16))
				if err != nil {
					t.Fatal(err)
				}
				sent[tag] = true
				n++
			}
			switch {
			case killed:
			case count("pairs_opened") > opened || time.Since(begun) > 20*time.Second:
				killed = true
				go func() { // while the sends below go on; ends at once
					time.Sleep(time.Duration(rand.IntN(20_000)) * time.Microsecond)
					c.cmd.Process.Kill()
				}()
			}
		}
		c.kill()
		if count("pairs_opened") == opened {
			t.Error("the flow had no pair")
		}
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		within(t, 10*time.Second, "each datagram has its outcome", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(decided) == len(sent)
		})
		stop()
		wg.Wait()
		if failed == 0 {
			t.Error("nothing failed that was sent to a reader that is dead")
		}
		s.Close()
	}
	within(t, 2*time.Second, "the pairs are gone", func() bool { return pairFiles(t, d) == 0 })
}

func bindOutcomes(t *testing.T, d *rdsdtest.Daemon) *rdsd.Socket {
	t.Helper()
	c, err := rdsd.Dial(d.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	s, err := c.Bind(context.Background(), netip.AddrPortFrom(d.Addr, 0), rdsd.WithOutcomes())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestDaemonKilledBesidePairs kills the daemon, and starts it again, while a flow goes by a
// pair: its reader gets each datagram once, in order, those that lay in the pair included
// (D1, D2).
func TestDaemonKilledBesidePairs(t *testing.T) {
	d := paired(t)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	var ends [2]*rdsd.Socket
	for i := range ends {
		c, err := rdsd.Dial(d.Socket, rdsd.WithFrontEnd(rdsd.Rings))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if ends[i], err = c.Bind(ctx, netip.AddrPortFrom(d.Addr, 0), rdsd.WithReconnect(true)); err != nil {
			t.Fatal(err)
		}
	}
	from, to := ends[0], ends[1]
	var sent, got uint64
	send := func() {
		if err := from.Send(ctx, to.LocalAddr(), sign(1, sent, 16)); err != nil {
			t.Fatalf("datagram %d: %v", sent, err)
		}
		sent++
	}
	recv := func() {
		b, err := to.Recv(ctx)
		if err != nil {
			t.Fatalf("datagram %d: %v", got, err)
		}
		if _, n, err := read(b.Payload); err != nil || n != got {
			t.Fatalf("%v, number %d where %d was to come", err, n, got)
		}
		got++
	}
	for range 10 {
		count := askCounters(t, d)
		for paired := count("pair_datagrams"); count("pair_datagrams") == paired; {
			for range 500 {
				send()
				recv()
			}
		}
		// Now by the pair, some unread: nothing of the flow is at the daemon when it dies.
		for range 1 + rand.IntN(2000) {
			send()
			if rand.IntN(3) > 0 {
				recv()
			}
		}
		// A machine that is busy may have made the flow too slow for a pair meanwhile.
		if err := from.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		d.Kill()
		for range rand.IntN(3) {
			recv() // what lies in the pair is there without a daemon
		}
		d.Run()
		for range 100 {
			send() // waits for the new daemon
		}
		for got < sent {
			recv()
		}
	}
	t.Logf("REPORT the daemon killed 10 times beside a pair; %d datagrams came once and in order", got)
}

// TestNoPairBetweenUsers has a busy flow between sockets of two users, and one within the
// first: only the latter gets a pair.
func TestNoPairBetweenUsers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("elsewhere: to run a client as another user takes root")
	}
	d := paired(t)
	count := askCounters(t, d)
	// Both sockets are the daemon's group's; here anybody may connect.
	for _, path := range []string{d.Socket, d.Socket + ".rings"} {
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Dir(d.Socket), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	o := newOracle()
	to := o.listen(t, ctx, d, &wg)
	program := t.TempDir() + "/hurrier"
	if err := os.Link("/proc/self/exe", program); err != nil {
		b, err := os.ReadFile("/proc/self/exe")
		if err == nil {
			err = os.WriteFile(program, b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for dir := filepath.Dir(program); dir != "/"; dir = filepath.Dir(dir) { // the other user is to find it
		if st, err := os.Stat(dir); err == nil && st.Mode()&0o001 == 0 {
			if err := os.Chmod(dir, st.Mode()|0o011); err != nil {
				t.Skipf("elsewhere: %v", err)
			}
		}
	}
	c := startAs(t, program, 65534, d, 7, to.LocalAddr())
	defer c.kill()
	within(t, 20*time.Second, "the other user's flow is busy", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.next[7] > 100_000
	})
	if n := count("pairs_offered"); n != 0 {
		t.Errorf("%d pairs were offered to sockets of two users", n)
	}
	own := start(t, "hurrier", d, 8, to.LocalAddr())
	defer own.kill()
	within(t, 20*time.Second, "the user's own flow has a pair", func() bool { return count("pairs_opened") == 1 })
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, err := range o.errs {
		t.Error(err)
	}
}
