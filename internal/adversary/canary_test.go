package adversary

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The canary is a process that asks nothing of a daemon: it tells what the
// machine itself does to a process that wakes up each millisecond, and how long
// threads of others waited for a processor.

// canaryOrder says whose threads are watched.
type canaryOrder struct {
	Daemons []int // processes; their reactors' threads
	Victims []int // processes; all threads
	Greet   Target
}

// canaryReport is what happened in a phase.
type canaryReport struct {
	Relay   row
	Late    []span // the canary itself was late
	Waits   []span // threads of the watched waited for a processor, the sum of the processes
	At      []look // at the daemons' reactors
	Greet   row    // a peer that nobody knew is greeted
	Session row    // a session of volumes is let in
	Health  row    // /healthz answers
	Wrong   []string
}

// look is what a reactor's thread was at: its state and where in the kernel it
// slept (proc(5), stat and wchan).
type look struct {
	When int64
	What string
}

const (
	lateFrom   = 4 * time.Millisecond // below it nobody is late
	waitsEvery = 10 * time.Millisecond
)

func canaryMain(in *bufio.Scanner) error {
	var o canaryOrder
	if err := order(&o); err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	c := &canary{}
	go relayBack(pair[1])
	go c.relay(pair[0])
	go c.watch(o)
	go c.again(o.Greet, &c.met[0], 100*time.Millisecond, "a peer is not greeted", greeted)
	go c.again(o.Greet, &c.met[1], 200*time.Millisecond, "a session is not let in", letIn)
	go c.again(o.Greet, &c.met[2], 300*time.Millisecond, "/healthz", healthy)
	for in.Scan() {
		if err := answerJSON(c.take()); err != nil {
			return err
		}
	}
	return nil
}

type canary struct {
	mu sync.Mutex
	// When relay and watch last told something: who is asked while they are
	// late says that they are.
	relayed, watched int64 // guarded by mu

	rtt []float64    // guarded by mu
	met [3][]float64 // guarded by mu
	now canaryReport // guarded by mu
}

func relayBack(fd int) {
	runtime.LockOSThread()
	var b [8]byte
	for {
		if n, err := unix.Read(fd, b[:]); err != nil || n == 0 {
			return
		}
		unix.Write(fd, b[:])
	}
}

// relay makes a round trip each millisecond.
func (c *canary) relay(fd int) {
	runtime.LockOSThread()
	var b [8]byte
	for {
		begun := monotonic()
		unix.Write(fd, b[:])
		unix.Read(fd, b[:])
		end := monotonic()
		time.Sleep(time.Millisecond)
		slept := monotonic()
		c.mu.Lock()
		c.relayed = slept
		c.rtt = append(c.rtt, float64(end-begun)/1e3)
		if late := slept - begun - int64(time.Millisecond); late > int64(lateFrom) {
			c.now.Late = append(c.now.Late, span{begun, slept, late})
		}
		c.mu.Unlock()
	}
}

// again does something each pace, of which each time is another, and keeps how
// long it took.
func (c *canary) again(t Target, into *[]float64, pace time.Duration, what string, f func(*Stage, netip.Addr) error) {
	for n := 0; ; n++ {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		s := NewStage(ctx, t, uint64(n))
		b := good.Addr().As4()
		b[2], b[3] = byte(n>>8), byte(n)|1
		begun := monotonic()
		err := f(s, netip.AddrFrom4(b))
		took := float64(monotonic()-begun) / 1e3
		cancel()
		s.Clear()
		c.mu.Lock()
		if *into = append(*into, took); err != nil && len(c.now.Wrong) < 10 {
			c.now.Wrong = append(c.now.Wrong, fmt.Sprintf("%s, number %d, at %s after %.0f us: %v", what, n, time.Now().UTC().Format("15:04:05.000000"), took, err))
		}
		c.mu.Unlock()
		time.Sleep(pace)
	}
}

// greeted is a peer that the daemon has not seen: root's, of a network that is
// allowed. It is to be answered whoever else holds connections.
func greeted(s *Stage, from netip.Addr) error {
	p, err := s.DialPeer(from, 0)
	if err != nil {
		return err
	}
	return p.Greet(s.hello())
}

// letIn is a session of volumes, of a node that the daemon has not seen. Its name is its own: a
// name is its node's until the daemon has seen the end of the last path, and how soon after
// the one before this one comes is the machine's.
func letIn(s *Stage, from netip.Addr) error {
	_, err := s.Raid(from, "good-"+strings.ReplaceAll(from.String(), ".", "-"), 2)
	return err
}

func healthy(s *Stage, _ netip.Addr) error {
	r, err := http.NewRequestWithContext(s.Ctx, "GET", "http://"+s.HTTP+"/healthz", nil)
	if err != nil {
		return err
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", resp.Status)
	}
	return nil
}

// watch reads how long threads waited for a processor (proc(5), schedstat: the
// second number).
func (c *canary) watch(o canaryOrder) {
	waits := map[string]int64{}
	last := monotonic()
	for {
		time.Sleep(waitsEvery)
		now, sum := monotonic(), int64(0) // of the last look until this one
		var at []look
		for _, pid := range o.Daemons {
			sum += worst(pid, "rdsd/", waits)
			at = append(at, look{now, looked(pid)})
		}
		for _, pid := range o.Victims {
			sum += worst(pid, "", waits)
		}
		c.mu.Lock()
		c.now.At = append(c.now.At, at...)
		c.watched = now
		// Who uses more of a processor than the relay waits longer for it.
		if late := now - last - int64(waitsEvery); late > int64(lateFrom) {
			c.now.Late = append(c.now.Late, span{last, now, late})
		}
		if sum > int64(lateFrom) {
			c.now.Waits = append(c.now.Waits, span{last, now, sum})
		}
		c.mu.Unlock()
		last = now
	}
}

func looked(pid int) (what string) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, task := range tasks {
		if name, err := os.ReadFile(task + "/comm"); err != nil || !strings.HasPrefix(string(name), "rdsd/") {
			continue
		}
		stat, _ := os.ReadFile(task + "/stat")
		_, state, _ := strings.Cut(string(stat), ") ")
		where, _ := os.ReadFile(task + "/wchan")
		what += fmt.Sprintf("%d:%.1s %s ", pid, state, where)
	}
	return what
}

// worst is by how much the wait of that thread of pid has grown which waited
// most; its name begins with prefix.
func worst(pid int, prefix string, before map[string]int64) (most int64) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, task := range tasks {
		if prefix != "" {
			if name, err := os.ReadFile(task + "/comm"); err != nil || !strings.HasPrefix(string(name), prefix) {
				continue
			}
		}
		b, err := os.ReadFile(task + "/schedstat")
		f := strings.Fields(string(b))
		if err != nil || len(f) < 2 {
			continue
		}
		n, _ := strconv.ParseInt(f[1], 10, 64)
		if old, ok := before[task]; ok {
			most = max(most, n-old)
		}
		before[task] = n
	}
	return most
}

func (c *canary) take() canaryReport {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, now := c.now, monotonic()
	for _, last := range []int64{c.relayed, c.watched} {
		if late := now - last - int64(waitsEvery); last > 0 && late > int64(lateFrom) {
			r.Late = append(r.Late, span{last, now, late})
		}
	}
	r.Relay = distribution(c.rtt)
	r.Greet, r.Session, r.Health = distribution(c.met[0]), distribution(c.met[1]), distribution(c.met[2])
	c.rtt, c.met, c.now = nil, [3][]float64{}, canaryReport{}
	return r
}

func distribution(v []float64) row {
	if len(v) == 0 {
		return row{}
	}
	slices.Sort(v)
	return row{N: len(v), P50: v[len(v)/2], P99: v[min(len(v)*99/100, len(v)-1)], Max: v[len(v)-1]}
}
