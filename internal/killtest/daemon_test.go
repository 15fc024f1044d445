package killtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/crash"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
	"github.com/rdsd/rdsd/shm"
)

// end is one socket with an application that sends numbers and reads them.
type end struct {
	s     *rdsd.Socket
	flow  uint32
	tag0  uint64 // tag of number 0
	sent  uint64 // numbers that were posted: all sends that returned nil
	maybe uint64 // and those of the send that did not return

	mu        sync.Mutex
	delivered uint64 // outcomes
	cancelled uint64
	failed    uint64
	got       oracle
}

func bind(t *testing.T, at *rdsdtest.Daemon, flow uint32, reconnect bool) (*end, func()) {
	t.Helper()
	c, err := rdsd.Dial(at.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Bind(context.Background(), netip.AddrPortFrom(at.Addr, 0), rdsd.WithOutcomes(), rdsd.WithReconnect(reconnect))
	if err != nil {
		t.Fatal(err)
	}
	return &end{s: s, flow: flow, got: *newOracle()}, func() { c.Close() }
}

// run sends until an error, and reads datagrams and outcomes until one.
func (e *end) run(ctx context.Context, to netip.AddrPort, wg *sync.WaitGroup) {
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(uint64(e.flow), 7))
		for {
			if rng.IntN(2) == 0 {
				batch := make([]rdsd.Datagram, 1+rng.IntN(40))
				for i := range batch {
					batch[i] = rdsd.Datagram{Addr: to, Payload: sign(e.flow, e.sent+uint64(i), []int{16, 16, 100, 3000}[rng.IntN(4)])}
				}
				n, err := e.s.SendBatch(ctx, batch)
				if e.sent == 0 && n > 0 {
					e.tag0 = batch[0].Tag
				}
				e.sent += uint64(n)
				if err != nil {
					e.maybe = uint64(len(batch) - n)
					return
				}
				continue
			}
			tag, err := e.s.SendTag(ctx, to, sign(e.flow, e.sent, []int{16, 300, 30_000}[rng.IntN(3)]))
			if err != nil {
				e.maybe = 1
				return
			}
			if e.sent == 0 {
				e.tag0 = tag
			}
			e.sent++
		}
	})
	wg.Go(func() {
		for {
			d, err := e.s.Recv(ctx)
			if err != nil {
				return
			}
			e.got.take(d)
		}
	})
	wg.Go(func() {
		for o, err := range e.s.Outcomes(ctx) {
			if err != nil {
				return
			}
			e.mu.Lock()
			switch o.Kind {
			case rdsd.Delivered:
				e.delivered++
			case rdsd.Cancelled:
				e.cancelled++
			case rdsd.Failed:
				e.failed++
			}
			e.mu.Unlock()
		}
	})
}

// ownRegions opens the regions this process has mapped, by inode, so that they
// stay when the SDK lets go of them.
func ownRegions(t *testing.T) map[uint64]*shm.Region {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	all := map[uint64]*shm.Region{}
	open := func(line string, flags int) int {
		span, _, _ := strings.Cut(line, " ")
		fd, err := unix.Open("/proc/self/map_files/"+span, flags|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Skipf("elsewhere: map_files needs root: %v", err)
		}
		return fd
	}
	lines := strings.Split(string(b), "\n")
	for i, line := range lines {
		if !strings.Contains(line, "rdsd-ring-daemon") {
			continue
		}
		client, daemon := open(lines[i-1], unix.O_RDWR), open(line, unix.O_RDONLY) // one behind the other
		r, err := shm.View(client, daemon)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(client)
		unix.Close(daemon)
		if all[r.Inode] != nil {
			r.Close()
			continue
		}
		all[r.Inode] = r
		t.Cleanup(func() { r.Close() })
	}
	return all
}

// TestDaemonKilled kills a daemon under traffic in both directions, at every
// crash point and at random moments, and accounts for every datagram from what
// it left in memory: each is received, or on its way, or still in the ring,
// exactly once; and nothing was acknowledged that the dead one's clients
// cannot read (D3, D5).
func TestDaemonKilled(t *testing.T) {
	a, b := rdsdtest.Pair(t)
	points := append([]string(nil), crash.Names...)
	for range 6 {
		points = append(points, "") // SIGKILL from outside
	}
	accounted := uint64(0)
	for i, point := range points {
		rng := rand.New(rand.NewPCG(uint64(i), uint64(time.Now().UnixNano())))
		nth := 1 + rng.IntN(300)
		a.Kill()
		a.Env = nil
		name := fmt.Sprintf("outside/%d", i)
		if point != "" {
			a.Env, name = []string{fmt.Sprintf("RDSD_CRASH_POINT=%s:%d", point, nth)}, fmt.Sprintf("%s:%d", point, nth)
		}
		a.Run()
		if !t.Run(name, func(t *testing.T) { accounted += killOnce(t, a, b, point == "", rng) }) {
			return
		}
	}
	t.Logf("REPORT the daemon killed %d times, at each of %d points; %d datagrams accounted for", len(points), len(crash.Names), accounted)
}

func killOnce(t *testing.T, a, b *rdsdtest.Daemon, outside bool, rng *rand.Rand) uint64 {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	x, closeX := bind(t, a, 1, false) // at the daemon that dies
	defer closeX()
	y, closeY := bind(t, b, 2, true)
	defer closeY()
	regions := ownRegions(t)
	x.run(ctx, y.s.LocalAddr(), &wg)
	yctx, stopY := context.WithCancel(ctx)
	y.run(yctx, x.s.LocalAddr(), &wg)
	if outside {
		time.Sleep(time.Duration(rng.IntN(100_000)) * time.Microsecond)
		a.Kill()
	}
	select {
	case <-a.Ended():
	case <-time.After(20 * time.Second):
		t.Error("the crash point was not passed in 20 s of traffic")
		a.Kill()
	}
	// x gives out what had arrived and ends; y goes on for a moment, so that
	// everything that came from a is read.
	time.Sleep(50 * time.Millisecond)
	stopY()
	wg.Wait()

	rep, err := shm.RecoverFile(a.Socket+".ledger", func(r *shm.RegionRecord) *shm.Region { return regions[r.Inode] })
	if err != nil {
		t.Fatal(err)
	}
	var g *shm.RegionReport
	for _, k := range rep.Regions {
		if k.Local == x.s.LocalAddr() {
			g = k
		}
	}
	if g == nil || g.Region == nil || g.Err != nil {
		t.Fatalf("the region of %v: %+v", x.s.LocalAddr(), g)
	}
	account(t, x, y, g)
	for _, s := range g.Open {
		if s.IsSent && !s.Split && !slices.ContainsFunc(laneList(rep), func(l *shm.LaneRecord) bool {
			return l.Lane == uint32(s.Lane) && l.Remote == b.Addr && s.Seq < l.NextSeq
		}) {
			t.Errorf("lane %d sent sequence %d; its entry does not say so: %+v", s.Lane, s.Seq, laneList(rep))
			break
		}
	}
	// What was about to become visible, a valid commit record, now is.
	accountLanes(t, x.got.next[y.flow]+uint64(g.UnreadDatagrams()), y, x.s.LocalAddr(), rep, b)
	return x.sent + y.sent
}

func laneList(rep *shm.Report) (l []*shm.LaneRecord) {
	for _, k := range rep.Lanes {
		l = append(l, k)
	}
	return l
}

// accountLanes checks the datagrams that b has sent and keeps because they were not
// acknowledged. By the dead daemon's lanes each was either placed, and then x could read
// it, or not, and then x could not: sent again after a restart it would come once (D1).
func accountLanes(t *testing.T, placed uint64, y *end, x netip.AddrPort, rep *shm.Report, b *rdsdtest.Daemon) {
	t.Helper()
	live, err := shm.RecoverFile(b.Socket+".ledger", func(*shm.RegionRecord) *shm.Region { return nil })
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range live.Regions {
		if k.Local != y.s.LocalAddr() {
			continue
		}
		for _, s := range k.Open {
			if !s.IsSent || s.Split || s.Dst.AddrPort() != x {
				continue
			}
			var lane *shm.LaneRecord
			for _, l := range rep.Lanes {
				if l.Lane == uint32(s.Lane) && l.Remote == b.Addr {
					lane = l
				}
			}
			number := s.Tag - y.tag0 + uint64(s.Word.Count()-s.Left)
			here := lane != nil && s.Seq <= lane.Received && !slices.Contains(lane.Refusals, s.Seq)
			if here != (number < placed) {
				t.Errorf("number %d (lane %d, sequence %d) is placed by the lane %+v: %v; x could read those below %d", number, s.Lane, s.Seq, lane, here, placed)
				return
			}
		}
	}
}

// account holds what the dead daemon left against what both applications know.
func account(t *testing.T, x, y *end, g *shm.RegionReport) {
	t.Helper()
	for _, e := range []*end{x, y} {
		for _, err := range e.got.errs {
			t.Error(err)
		}
	}
	// Out of x: posted = finished + on the way + in the ring.
	sum := g.Done + uint64(g.OpenDatagrams()) + uint64(g.PostedDatagrams())
	if sum < x.sent || sum > x.sent+x.maybe {
		t.Errorf("x posted %d (and perhaps %d more); the ledger has %d: %d finished, %d on the way, %d in the ring",
			x.sent, x.maybe, sum, g.Done, g.OpenDatagrams(), g.PostedDatagrams())
	}
	received := y.got.next[x.flow] // numbers below it, without a gap, as the oracle has checked
	if x.delivered > received {
		t.Errorf("x was told of %d delivered; y has %d", x.delivered, received)
	}
	if x.failed+x.cancelled > 0 {
		t.Errorf("%d failed, %d cancelled", x.failed, x.cancelled)
	}
	// Each number that y does not have stands in the dead daemon's memory once.
	there := map[uint64]int{}
	note := func(tag uint64, n int) {
		for k := range uint64(n) {
			there[tag-x.tag0+k]++
		}
	}
	for _, s := range g.Open {
		note(s.Tag+uint64(s.Word.Count()-s.Left), s.Left)
	}
	for _, p := range g.Posted {
		note(p.Tag, p.Count)
	}
	for n := received; n < x.sent; n++ {
		if there[n] != 1 {
			t.Errorf("number %d of %d: y has those below %d, and it stands %d times in the ledger and the ring", n, x.sent, received, there[n])
			break
		}
	}
	for n, k := range there {
		if k != 1 {
			t.Errorf("number %d stands %d times in the ledger and the ring", n, k)
			break
		}
	}
	// Into x: nothing that y was told of as delivered is missing.
	if placed := x.got.next[y.flow]; y.delivered > placed {
		t.Errorf("y was told of %d delivered; x could read %d, %d more stand unread", y.delivered, placed, g.UnreadDatagrams())
	}
}
