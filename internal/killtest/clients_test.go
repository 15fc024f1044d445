package killtest

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// client is a process that is to be killed.
type client struct {
	cmd *exec.Cmd
	out *bufio.Reader
}

func start(t *testing.T, role string, at *rdsdtest.Daemon, flow int, to netip.AddrPort) *client {
	t.Helper()
	return startProgram(t, exec.Command(os.Args[0]), role, at, flow, to)
}

// startAs starts program, a copy of this one, as another user's sender.
func startAs(t *testing.T, program string, uid uint32, at *rdsdtest.Daemon, flow int, to netip.AddrPort) *client {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return startProgram(t, cmd, "hurrier", at, flow, to)
}

func startProgram(t *testing.T, cmd *exec.Cmd, role string, at *rdsdtest.Daemon, flow int, to netip.AddrPort) *client {
	t.Helper()
	c := &client{cmd: cmd}
	c.cmd.Env = append(os.Environ(), "RDSD_KILLTEST_ROLE="+role, "RDSD_SOCKET="+at.Socket, "RDSD_KILLTEST_ADDR="+at.Addr.String(),
		fmt.Sprint("RDSD_KILLTEST_FLOW=", flow), "RDSD_KILLTEST_TO="+to.String())
	if c.cmd.SysProcAttr == nil {
		c.cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	c.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	return c
}

func (c *client) kill() {
	c.cmd.Process.Kill()
	c.cmd.Wait()
}

// oracle checks what arrives at a socket: signed, each flow from 0 on without a
// gap or a repetition, from one source.
type oracle struct {
	mu    sync.Mutex
	next  map[uint32]uint64
	from  map[uint32]netip.AddrPort
	bytes int
	errs  []error
	seen  map[uint32]chan struct{} // closed at a flow's first datagram
}

func newOracle() *oracle {
	return &oracle{next: map[uint32]uint64{}, from: map[uint32]netip.AddrPort{}, seen: map[uint32]chan struct{}{}}
}

func (o *oracle) first(flow int) chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := make(chan struct{})
	o.seen[uint32(flow)] = c
	return c
}

func (o *oracle) take(d rdsd.Datagram) {
	flow, n, err := read(d.Payload)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.bytes += len(d.Payload)
	switch {
	case err != nil:
	case n != o.next[flow]:
		err = fmt.Errorf("flow %d: number %d where %d was to come", flow, n, o.next[flow])
	case n > 0 && o.from[flow] != d.Addr:
		err = fmt.Errorf("flow %d: number %d from %v, the others from %v", flow, n, d.Addr, o.from[flow])
	}
	if err != nil && len(o.errs) < 10 {
		o.errs = append(o.errs, err)
	}
	if n == 0 {
		o.from[flow] = d.Addr
		if c := o.seen[flow]; c != nil {
			close(c)
			delete(o.seen, flow)
		}
	}
	o.next[flow] = n + 1
}

// listen runs an oracle over a socket of its own until ctx ends.
func (o *oracle) listen(t *testing.T, ctx context.Context, at *rdsdtest.Daemon, wg *sync.WaitGroup) *rdsd.Socket {
	t.Helper()
	c, err := rdsd.Dial(at.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Bind(ctx, netip.AddrPortFrom(at.Addr, 0), rdsd.WithRecvBuffer(4<<20))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	wg.Go(func() {
		into := make([]rdsd.Datagram, 256)
		for {
			n, lease, err := s.Borrow(ctx, into)
			if err != nil {
				return
			}
			for _, d := range into[:n] {
				o.take(d)
			}
			lease.Release()
		}
	})
	return s
}

// regions counts the regions a daemon has mapped.
func regions(t *testing.T, d *rdsdtest.Daemon) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", d.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), "rdsd-ring")
}

// within fails the test when f does not become true within limit of the time that the test had.
func within(t *testing.T, limit time.Duration, what string, f func() bool) {
	t.Helper()
	for clock := await.NewClock(t); !f(); time.Sleep(time.Millisecond) {
		if clock.Now() > limit {
			t.Errorf("not within %v: %s", limit, what)
			return
		}
	}
}

const victims = 100

// TestKilledClients kills a hundred clients at random moments: senders of all
// sizes to both nodes, and readers that give nothing back. What arrives of them
// is whole, in order and without a repetition; others' traffic does not notice;
// their regions are gone within a second (D1, D2, D4).
func TestKilledClients(t *testing.T) {
	a, b := rdsdtest.Pair(t)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	o := newOracle()
	here, there := o.listen(t, ctx, a, &wg), o.listen(t, ctx, b, &wg)
	steady := start(t, "sender", b, 1_000_000, here.LocalAddr()) // nobody kills this one before the end
	defer steady.kill()
	select {
	case <-o.first(1_000_000):
	case <-time.After(10 * time.Second):
		t.Fatal("the steady sender does not get on")
	}
	baseA, baseB := regions(t, a), regions(t, b)

	slots := make(chan struct{}, 8)
	var all sync.WaitGroup
	for i := range victims {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			rng := rand.New(rand.NewPCG(uint64(i), uint64(time.Now().UnixNano())))
			if i%5 == 4 {
				c := start(t, "hoarder", a, i, netip.AddrPort{})
				defer c.kill()
				addr, err := c.out.ReadString('\n')
				if err != nil {
					t.Errorf("hoarder %d: %v", i, err)
					return
				}
				to, _ := netip.ParseAddrPort(strings.TrimSpace(addr))
				feeder := start(t, "sender", b, 2_000_000+i, to)
				defer feeder.kill()
				time.Sleep(time.Duration(rng.IntN(80)) * time.Millisecond)
				return
			}
			to, at := there, a
			if i%5 == 3 {
				to = here
			}
			seen := o.first(i)
			c := start(t, "sender", at, i, to.LocalAddr())
			defer c.kill()
			select {
			case <-seen:
			case <-time.After(20 * time.Second):
				t.Errorf("nothing came of client %d in 20 s", i)
				return
			}
			time.Sleep(time.Duration(rng.IntN(60_000)) * time.Microsecond)
		})
	}
	all.Wait()
	within(t, time.Second, "the dead clients' regions are gone", func() bool { return regions(t, a) == baseA && regions(t, b) == baseB })

	o.mu.Lock()
	before := o.next[1_000_000]
	o.mu.Unlock()
	within(t, 10*time.Second, "the steady sender goes on", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.next[1_000_000] > before+1000
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	total := uint64(0)
	for _, n := range o.next {
		total += n
	}
	t.Logf("REPORT %d clients killed; %d datagrams of %d flows, %d MiB, came whole and in order", victims, total, len(o.next), o.bytes>>20)
	for _, err := range o.errs {
		t.Error(err)
	}
}
