package adversary

import (
	"bufio"
	"context"
	"fmt"
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
	Relay row
	Late  []span // the canary itself was late
	Waits []span // threads of the watched waited for a processor, the sum of the processes
	At    []look // at the daemons' reactors
	Greet row    // a peer that nobody knew is greeted
	Wrong []string
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
	go c.greet(o.Greet)
	for in.Scan() {
		if err := answerJSON(c.take()); err != nil {
			return err
		}
	}
	return nil
}

type canary struct {
	mu  sync.Mutex
	rtt []float64    // guarded by mu
	met []float64    // guarded by mu
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
		c.rtt = append(c.rtt, float64(end-begun)/1e3)
		if late := slept - begun - int64(time.Millisecond); late > int64(lateFrom) {
			c.now.Late = append(c.now.Late, span{begun, slept, late})
		}
		c.mu.Unlock()
	}
}

// greet is a peer that the daemon has not seen, again and again: root's, which
// may come from any address of this machine. It is to be answered whoever else
// holds connections.
func (c *canary) greet(t Target) {
	for n := 0; ; n++ {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		s := NewStage(ctx, t, uint64(n))
		begun := monotonic()
		p, err := s.DialPeer(netip.AddrFrom4([4]byte{127, 70, byte(n >> 8), byte(n)}), 0)
		if err == nil {
			err = p.Greet(s.hello())
		}
		took := float64(monotonic()-begun) / 1e3
		cancel()
		s.Clear()
		c.mu.Lock()
		if c.met = append(c.met, took); err != nil {
			c.now.Wrong = append(c.now.Wrong, fmt.Sprintf("peer %d is not greeted: %v", n, err))
		}
		c.mu.Unlock()
		time.Sleep(100 * time.Millisecond)
	}
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
	r := c.now
	r.Relay = distribution(c.rtt)
	r.Greet = distribution(c.met)
	c.rtt, c.met, c.now = nil, nil, canaryReport{}
	return r
}

func distribution(v []float64) row {
	if len(v) == 0 {
		return row{}
	}
	slices.Sort(v)
	return row{N: len(v), P50: v[len(v)/2], P99: v[min(len(v)*99/100, len(v)-1)], Max: v[len(v)-1]}
}
