package datagram

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

// Figures of this package's own that `make bench` (internal/bench) puts into its
// report: it runs this test binary once for each and reads what it prints.
var (
	benchFigure = flag.String("bench.figure", "", "measure this and print it (make bench): core64, core64k, idle; lone: a turn of one datagram, both ways")
	benchFor    = flag.Duration("bench.for", 50*time.Millisecond, "length of one measurement")
	benchIdle   = flag.Int("bench.idle", 5000, "idle peers to measure")
)

// TestBenchFigure prints one figure. Without one it sees that what it would
// measure works, in a short time.
func TestBenchFigure(t *testing.T) {
	if os.Getenv("RDSD_BENCH_CHILD") != "" {
		idleChild(t)
		return
	}
	if *benchFigure != "" {
		debug.SetGCPercent(400) // as node.TuneMemory does in a daemon
	}
	figure := func(v float64) { fmt.Printf("figure %g\n", v) }
	switch *benchFigure {
	case "core64":
		figure(coreStream(t, 64))
	case "core64k":
		figure(coreStream(t, 65536))
	case "idle":
		figure(idlePeers(t))
	case "lone":
		lone, ordinary := turnTime(t)
		fmt.Printf("a turn that sends one datagram: %d ns the short way, %d ns the ordinary way\n", lone, ordinary)
	case "":
		if rate := coreStream(t, 64); rate <= 0 {
			t.Errorf("%v datagrams a second", rate)
		}
	default:
		t.Fatalf("no figure %q", *benchFigure)
	}
}

// coreStream sends datagrams of n bytes from one node's core to another's,
// over TCP, without a front end, and returns datagrams per second.
func coreStream(t testing.TB, n int) float64 {
	port := freeTCPPort(t)
	a, b := benchNode(t, port, "127.0.0.71"), benchNode(t, port, "127.0.0.72")
	defer a.Close()
	defer b.Close()
	ha, hb := a.list[0], b.list[0]
	sw, rw := make(wakeup, 1), make(wakeup, 1)
	ea, _ := ha.Lock()
	s, err := ea.Bind(0, rds.SocketOptions{Data: sw, SndBufBytes: 4 << 20})
	ha.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	eb, _ := hb.Lock()
	r, err := eb.Bind(4000, rds.SocketOptions{Data: rw, RcvBufBytes: 4 << 20})
	hb.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	payload := make([]byte, n)
	dst := r.Addr()
	var got atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Add(2)
	go func() { // receiver
		defer wg.Done()
		ds := make([]rds.Datagram, 0, 1024)
		for {
			ds = ds[:0]
			_, now := hb.Lock()
			for len(ds) < cap(ds) {
				d, ok := r.Queue().Recv()
				if !ok {
					break
				}
				ds = append(ds, d)
			}
			if len(ds) == 0 {
				r.Events()
			}
			r.ReadAll(now)
			hb.Unlock()
			for i := range ds {
				ds[i].Release()
			}
			got.Add(int64(len(ds)))
			if len(ds) == 0 {
				select {
				case <-rw:
				case <-stop:
					return
				}
			}
		}
	}()
	go func() { // sender
		defer wg.Done()
		batch := max(1, min(512, (256<<10)/n))
		for {
			_, now := ha.Lock()
			var err error
			for i := 0; i < batch && err == nil; i++ {
				err = s.Send(now, dst, payload, 0, rds.Quiet)
			}
			ha.Unlock()
			select {
			case <-stop:
				return
			default:
			}
			if err == nil {
				continue
			}
			if !errors.Is(err, rdserr.ErrWouldBlock) && !errors.Is(err, rdserr.ErrCongested) {
				t.Error(err)
				return
			}
			select {
			case <-sw:
			case <-time.After(time.Millisecond):
			case <-stop:
				return
			}
		}
	}()
	for limit := time.Now().Add(10 * time.Second); got.Load() == 0 && time.Now().Before(limit); {
		time.Sleep(time.Millisecond) // until the connection is made
	}
	time.Sleep(*benchFor / 5) // buffers grow
	from, begun := got.Load(), time.Now()
	time.Sleep(*benchFor)
	// Beside a load the whole stretch may pass without a turn for one of the
	// threads: the stream stands only if nothing comes however long it is.
	for got.Load() == from && time.Since(begun) < 10*time.Second {
		time.Sleep(time.Millisecond)
	}
	rate := float64(got.Load()-from) / time.Since(begun).Seconds()
	close(stop)
	wg.Wait()
	return rate
}

func benchNode(t testing.TB, port uint16, addrs ...string) *Host {
	c := config.Default()
	c.RDS.Addresses = nil
	for _, a := range addrs {
		c.RDS.Addresses = append(c.RDS.Addresses, netip.MustParseAddr(a))
	}
	c.RDS.Port = port
	c.Limits.MaxPeers, c.Limits.MaxHandshakes = 65536, 65536
	c.HTTP.Listen, c.API.Ledger = "", "none"
	k := newTestHost(t, c)
	if err := k.Start(); err != nil {
		t.Fatal(err)
	}
	return k
}

// freeTCPPort finds a port that is free on every address and is nobody's
// source port: those are taken from 32768 up.
func freeTCPPort(t testing.TB) uint16 {
	for range 100 {
		port := 10000 + rand.IntN(22000)
		l, err := net.Listen("tcp4", fmt.Sprint("0.0.0.0:", port))
		if err == nil {
			l.Close()
			return uint16(port)
		}
	}
	t.Fatal("no free TCP port")
	return 0
}

// --- idle peers ---------------------------------------------------------------------

// idlePeers connects one node to many others, which live in a child process, and
// says what an idle connection costs.
func idlePeers(t *testing.T) (kibPerPeer float64) {
	n := *benchIdle
	raise()
	port := freeTCPPort(t)
	child := exec.Command(os.Args[0], "-test.run", "TestBenchFigure$")
	child.Env = append(os.Environ(), "RDSD_BENCH_CHILD="+strconv.Itoa(n), "RDSD_BENCH_PORT="+strconv.Itoa(int(port)))
	child.Stderr = os.Stderr
	in, _ := child.StdinPipe()
	out, _ := child.StdoutPipe()
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); child.Wait() }()
	buf := make([]byte, 16)
	if _, err := out.Read(buf); err != nil {
		t.Fatal("the child did not start:", err)
	}
	go io.Copy(io.Discard, out)
	a := benchNode(t, port, "127.0.0.75")
	defer a.Close()
	h := a.list[0]
	mem := func() (heap, rss int64) {
		var m runtime.MemStats
		for range 3 { // garbage, and what pools still hold of a burst, is not what a peer costs
			time.Sleep(500 * time.Millisecond)
			debug.FreeOSMemory()
		}
		runtime.ReadMemStats(&m)
		b, _ := os.ReadFile("/proc/self/statm")
		pages, _ := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
		return int64(m.HeapInuse + m.StackInuse), pages * int64(os.Getpagesize())
	}
	e, _ := h.Lock()
	s, err := e.Bind(0, rds.SocketOptions{})
	h.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	h0, r0 := mem()
	begun := time.Now()
	for i := range n {
		_, now := h.Lock()
		err := s.Send(now, netip.AddrPortFrom(idleAddr(i), 0), nil, 0, rds.Quiet) // a ping makes the connection
		h.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		if i%200 == 199 {
			time.Sleep(20 * time.Millisecond)
		}
	}
	up := 0
	for up < n && time.Since(begun) < 2*time.Minute {
		time.Sleep(100 * time.Millisecond)
		up = 0
		e, _ := h.Lock()
		for _, pe := range e.Peers() {
			if pe.Conn().Up() && pe.Conn().LaneAt(0).Ready() {
				up++
			}
		}
		h.Unlock()
	}
	_, now := h.Lock()
	for {
		d, ok := s.Queue().Recv()
		if !ok {
			break
		}
		d.Release()
	}
	s.ReadAll(now)
	h.Unlock()
	h1, r1 := mem()
	var u0, u1 unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &u0)
	idleFor := 10 * time.Second
	time.Sleep(idleFor)
	unix.Getrusage(unix.RUSAGE_SELF, &u1)
	cpu := time.Duration(u1.Utime.Nano() + u1.Stime.Nano() - u0.Utime.Nano() - u0.Stime.Nano())
	per := float64(h1-h0) / float64(n) / 1024
	perRSS := float64(r1-r0) / float64(n) / 1024
	if up < n {
		t.Fatalf("%d of %d peers are up after %v", up, n, time.Since(begun).Round(time.Millisecond))
	}
	fmt.Printf("%d peers up in %v, two lanes each; one costs %.1f KiB of heap and stacks, %.1f KiB of resident memory; CPU while idle %.2f %% of a core\n",
		up, time.Since(begun).Round(time.Millisecond), per, perRSS, 100*cpu.Seconds()/idleFor.Seconds())
	return max(per, perRSS)
}

func idleAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 100, byte(i / 250), byte(i%250 + 1)})
}

func raise() {
	var l unix.Rlimit
	unix.Getrlimit(unix.RLIMIT_NOFILE, &l)
	l.Cur = l.Max
	unix.Setrlimit(unix.RLIMIT_NOFILE, &l)
}

// idleChild is the other end of the idle connections.
func idleChild(t *testing.T) {
	raise()
	n, _ := strconv.Atoi(os.Getenv("RDSD_BENCH_CHILD"))
	port, _ := strconv.Atoi(os.Getenv("RDSD_BENCH_PORT"))
	addrs := make([]string, n)
	for i := range addrs {
		addrs[i] = idleAddr(i).String()
	}
	for chunk := range slices.Chunk(addrs, 50) {
		benchNode(t, uint16(port), chunk...)
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}
