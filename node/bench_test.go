package node

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// The report of `make bench`: rdsd's paths beside small programs of our own,
// interleaved in one run. What counts is the ratio, never the absolute figure.
var (
	benchReport = flag.Bool("bench.report", false, "measure and print the report (make bench)")
	benchRounds = flag.Int("bench.rounds", 7, "rounds of the report")
	benchFor    = flag.Duration("bench.for", time.Second, "length of one measurement")
	benchIdle   = flag.Int("bench.idle", 5000, "idle peers to measure")
	benchOnly   = flag.String("bench.only", "", "only the measurements whose name contains this")
)

func TestBenchReport(t *testing.T) {
	if os.Getenv("RDSD_BENCH_CHILD") != "" {
		idleChild(t)
		return
	}
	if !*benchReport {
		return // a report, not a test
	}
	TuneMemory(DefaultConfig()) // as rdsd serve does; the baselines have it too
	fmt.Printf("%s, %d cores, %s\n\n", runtime.Version(), runtime.NumCPU(), time.Now().Format("2006-01-02"))
	want := func(name string) bool { return strings.Contains(name, *benchOnly) }
	if want("core64") {
		compare(t, "core, 64 B, one stream (M datagrams/s)", "packed raw TCP frames", 1.0/6, 1e6,
			func() float64 { return rawFrames(t, 64, 128<<10) }, func() float64 { return coreStream(t, 64) })
	}
	if want("core64k") {
		compare(t, "core, 64 KiB, one stream (GB/s)", "raw TCP stream", 0.85, 1e9/65536,
			func() float64 { return rawFrames(t, 65536-48, 256<<10) }, func() float64 { return coreStream(t, 65536) })
	}
	if want("grpc") {
		compare(t, "application to application by gRPC, batches of 64 x 64 B (M datagrams/s)", "bare one-hop grpc-go stream", 0.35, 1e6,
			func() float64 { return bareGRPC(t) }, func() float64 { return appStream(t) })
	}
	if want("idle") {
		idlePeers(t)
	}
}

// compare interleaves rounds of a baseline and of rdsd and prints medians.
func compare(t *testing.T, name, base string, bar, unit float64, baseline, ours func() float64) {
	var b, o, r []float64
	for range *benchRounds {
		x, y := baseline(), ours()
		b, o, r = append(b, x/unit), append(o, y/unit), append(r, y/x)
	}
	med := func(v []float64) float64 { s := slices.Clone(v); sort.Float64s(s); return s[len(s)/2] }
	verdict := "meets"
	if med(r) < bar {
		verdict = "MISSES"
	}
	fmt.Printf("%s\n  rdsd %.3g, %s %.3g; ratio median %.3f (%.3f to %.3f), bar %.3f: %s\n\n",
		name, med(o), base, med(b), med(r), slices.Min(r), slices.Max(r), bar, verdict)
}

// rawFrames is the floor: frames of 48+n bytes packed into writes of about
// chunk bytes, walked by the reader. It returns frames per second.
func rawFrames(t testing.TB, n, chunk int) float64 {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var got atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		buf := make([]byte, 256<<10)
		skip, have := 0, 0
		for {
			m, err := c.Read(buf[have:])
			if err != nil {
				return
			}
			p := buf[:have+m]
			frames := 0
			for {
				if skip > 0 {
					k := min(skip, len(p))
					p, skip = p[k:], skip-k
				}
				if skip > 0 || len(p) < 48 {
					break
				}
				skip = 48 + int(binary.BigEndian.Uint32(p[16:]))
				frames++
			}
			have = copy(buf, p)
			got.Add(int64(frames))
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, 48+n)
	binary.BigEndian.PutUint32(frame[16:], uint32(n))
	var out []byte
	for len(out)+len(frame) <= max(chunk, len(frame)) {
		out = append(out, frame...)
	}
	begun := time.Now()
	for time.Since(begun) < *benchFor {
		for range 16 {
			if _, err := c.Write(out); err != nil {
				t.Fatal(err)
			}
		}
	}
	rate := float64(got.Load()) / time.Since(begun).Seconds()
	c.Close()
	<-done
	return rate
}

// coreStream sends datagrams of n bytes from one node's core to another's,
// over TCP, without a front end, and returns datagrams per second.
func coreStream(t testing.TB, n int) float64 {
	port := freeTCPPort(t)
	a, b := benchNode(t, port, "127.0.0.71"), benchNode(t, port, "127.0.0.72")
	defer a.close()
	defer b.close()
	ha, hb := a.list[0], b.list[0]
	sw, rw := make(wakeup, 1), make(wakeup, 1)
	ea, _ := ha.lock()
	s, err := ea.Bind(0, rds.SocketOptions{Data: sw, SndBufBytes: 4 << 20})
	ha.unlock()
	if err != nil {
		t.Fatal(err)
	}
	eb, _ := hb.lock()
	r, err := eb.Bind(4000, rds.SocketOptions{Data: rw, RcvBufBytes: 4 << 20})
	hb.unlock()
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
			_, now := hb.lock()
			for len(ds) < cap(ds) {
				d, ok := r.Recv()
				if !ok {
					break
				}
				ds = append(ds, d)
			}
			if len(ds) == 0 {
				r.Events()
			}
			r.ReadAll(now)
			hb.unlock()
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
			_, now := ha.lock()
			var err error
			for i := 0; i < batch && err == nil; i++ {
				err = s.Send(now, dst, payload, 0, false)
			}
			ha.unlock()
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
	time.Sleep(*benchFor / 5) // the connection is made, buffers have grown
	from, begun := got.Load(), time.Now()
	time.Sleep(*benchFor)
	rate := float64(got.Load()-from) / time.Since(begun).Seconds()
	close(stop)
	wg.Wait()
	return rate
}

func benchNode(t testing.TB, port uint16, addrs ...string) *hosts {
	c := DefaultConfig()
	c.RDS.Addresses = nil
	for _, a := range addrs {
		c.RDS.Addresses = append(c.RDS.Addresses, netip.MustParseAddr(a))
	}
	c.RDS.Port = port
	c.Limits.MaxPeers, c.Limits.MaxHandshakes = 65536, 65536
	c.HTTP.Listen = ""
	n, err := newNode(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	k, err := newCore(n)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.start(); err != nil {
		t.Fatal(err)
	}
	return k.(*hosts)
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

// --- gRPC -------------------------------------------------------------------------

type sinkServer struct {
	rdsdv1.UnimplementedDatagramsServer
	got atomic.Int64
}

// Open counts the datagrams of the batches it is sent.
func (s *sinkServer) Open(stream grpc.BidiStreamingServer[rdsdv1.ClientMessage, rdsdv1.ServerMessage]) error {
	for {
		m, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		s.got.Add(int64(len(m.GetSend().GetLength())))
	}
}

// bareGRPC streams the same batches over one grpc-go hop on a Unix socket.
func bareGRPC(t testing.TB) float64 {
	path := filepath.Join(t.TempDir(), "bare.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	sink := &sinkServer{}
	rdsdv1.RegisterDatagramsServer(srv, sink)
	go srv.Serve(l)
	defer srv.Stop()
	c, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	stream, err := rdsdv1.NewDatagramsClient(c).Open(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	send := &rdsdv1.SendBatch{}
	lengths := make([]uint32, 64)
	for i := range lengths {
		lengths[i] = 64
	}
	dst := &rdsdv1.Endpoint{}
	dst.SetAddress([]byte{127, 0, 0, 1})
	dst.SetPort(4000)
	send.SetPayload(make([]byte, 64*64))
	send.SetLength(lengths)
	send.SetDestination([]*rdsdv1.Endpoint{dst})
	m := &rdsdv1.ClientMessage{}
	m.SetSend(send)
	begun := time.Now()
	for id := uint64(1); time.Since(begun) < *benchFor; id++ {
		send.SetId(id)
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	return float64(sink.got.Load()) / time.Since(begun).Seconds()
}

// appStream sends from application to application: SDK, daemon, TCP, daemon, SDK.
func appStream(t testing.TB) float64 {
	port := freeTCPPort(t)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	start := func(addr string) string {
		c := DefaultConfig()
		c.RDS.Addresses = []netip.Addr{netip.MustParseAddr(addr)}
		c.RDS.Port = port
		c.HTTP.Listen = ""
		c.API.Socket = filepath.Join(dir, addr)
		c.API.DrainTimeout.Duration = 100 * time.Millisecond
		n, err := New(c, nil)
		if err != nil {
			t.Fatal(err)
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := n.Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		<-n.Ready()
		return c.API.Socket
	}
	sa, sb := start("127.0.0.73"), start("127.0.0.74")
	defer wg.Wait()
	defer cancel()
	open := func(path, addr string) (*rdsd.Client, *rdsd.Socket) {
		c, err := rdsd.Dial(path)
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.Bind(ctx, netip.MustParseAddrPort(addr), rdsd.WithSendBuffer(4<<20), rdsd.WithRecvBuffer(4<<20))
		if err != nil {
			t.Fatal(err)
		}
		return c, s
	}
	ca, s := open(sa, "127.0.0.73:0")
	defer ca.Close()
	cb, r := open(sb, "127.0.0.74:4000")
	defer cb.Close()
	dst := r.LocalAddr()
	var got atomic.Int64
	run, stop := context.WithCancel(ctx)
	var apps sync.WaitGroup
	apps.Add(2)
	go func() {
		defer apps.Done()
		into := make([]rdsd.Datagram, 512)
		for {
			n, err := r.RecvBatch(run, into)
			if err != nil {
				return
			}
			got.Add(int64(n))
		}
	}()
	go func() {
		defer apps.Done()
		// Many senders keep the stream busy, as the baseline's window does.
		var w sync.WaitGroup
		for range 64 {
			w.Go(func() {
				ds := make([]rdsd.Datagram, 64)
				for i := range ds {
					ds[i] = rdsd.Datagram{Addr: dst, Payload: make([]byte, 64)}
				}
				for run.Err() == nil {
					if _, err := s.SendBatch(run, ds); err != nil && run.Err() == nil {
						t.Error(err)
						return
					}
				}
			})
		}
		w.Wait()
	}()
	time.Sleep(*benchFor / 5)
	from, begun := got.Load(), time.Now()
	time.Sleep(*benchFor)
	rate := float64(got.Load()-from) / time.Since(begun).Seconds()
	stop()
	apps.Wait()
	return rate
}

// --- idle peers ---------------------------------------------------------------------

// idlePeers connects one node to many others, which live in a child process, and
// looks at what the idle connections cost.
func idlePeers(t *testing.T) {
	n := *benchIdle
	raise()
	port := freeTCPPort(t)
	child := exec.Command(os.Args[0], "-test.run", "TestBenchReport$")
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
	defer a.close()
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
	e, _ := h.lock()
	s, err := e.Bind(0, rds.SocketOptions{})
	h.unlock()
	if err != nil {
		t.Fatal(err)
	}
	h0, r0 := mem()
	begun := time.Now()
	for i := range n {
		_, now := h.lock()
		err := s.Send(now, netip.AddrPortFrom(idleAddr(i), 0), nil, 0, false) // a ping makes the connection
		h.unlock()
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
		e, _ := h.lock()
		for _, pe := range e.Peers() {
			if pe.Conn().Up() && pe.Conn().PathAt(0).Ready() {
				up++
			}
		}
		h.unlock()
	}
	_, now := h.lock()
	for {
		d, ok := s.Recv()
		if !ok {
			break
		}
		d.Release()
	}
	s.ReadAll(now)
	h.unlock()
	h1, r1 := mem()
	var u0, u1 unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &u0)
	idleFor := 10 * time.Second
	time.Sleep(idleFor)
	unix.Getrusage(unix.RUSAGE_SELF, &u1)
	cpu := time.Duration(u1.Utime.Nano() + u1.Stime.Nano() - u0.Utime.Nano() - u0.Stime.Nano())
	per := float64(h1-h0) / float64(n) / 1024
	perRSS := float64(r1-r0) / float64(n) / 1024
	verdict := "meets"
	if max(per, perRSS) > 32 || up < n {
		verdict = "MISSES"
	}
	fmt.Printf("idle peers: %d of %d up after %v, two lanes each\n  each costs %.1f KiB of heap and stacks, %.1f KiB of resident memory, bar 32 KiB: %s; CPU while idle %.2f %% of a core\n\n",
		up, n, time.Since(begun).Round(time.Millisecond), per, perRSS, verdict, 100*cpu.Seconds()/idleFor.Seconds())
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
