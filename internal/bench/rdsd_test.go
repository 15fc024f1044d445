package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// rdsdBinary is the program that is measured; the test sets it.
var rdsdBinary string

// daemon is one bin/rdsd of a world.
type daemon struct {
	*proc
	addr   netip.Addr
	target string // of the SDK
	http   string
	port   int // of RDS over TCP
}

// daemons starts one rdsd for each address; they can reach each other.
func (w *world) daemons(addrs ...string) ([]*daemon, error) {
	if rdsdBinary == "" {
		return nil, skip("no rdsd program")
	}
	dir, err := w.tempDir()
	if err != nil {
		return nil, err
	}
	rds, err := freePort()
	if err != nil {
		return nil, err
	}
	var list []*daemon
	for i, a := range addrs {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		d := &daemon{addr: netip.MustParseAddr(a), target: filepath.Join(dir, strconv.Itoa(i)),
			http: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), port: rds}
		cmd := exec.Command(rdsdBinary, "serve", "--address", a, "--port", strconv.Itoa(rds), "--socket", d.target,
			"--http", d.http, "--log-level", "warn")
		if d.proc, err = w.start("rdsd "+a, cmd, nil); err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	for _, d := range list {
		if err := w.serving(d); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func (w *world) serving(d *daemon) error {
	c, err := rdsd.Dial(d.target)
	if err != nil {
		return err
	}
	defer c.Close()
	return w.until(d.name+" serves", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		st, err := c.Admin().GetStatus(ctx, &rdsdv1.GetStatusRequest{})
		return err == nil && st.GetState() == "serving"
	})
}

// freePort finds a TCP port that is free on every address and is nobody's
// source port: those are taken from 32768 up.
func freePort() (int, error) {
	for range 100 {
		port := 10000 + rand.IntN(22000)
		if l, err := net.Listen("tcp4", fmt.Sprint("0.0.0.0:", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no free TCP port")
}

// mallocs is how many objects the daemon has allocated.
func (d *daemon) mallocs() (float64, error) {
	r, err := http.Get("http://" + d.http + "/metrics")
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	for s := bufio.NewScanner(r.Body); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), "go_memstats_mallocs_total "); ok {
			return strconv.ParseFloat(v, 64)
		}
	}
	return 0, errors.New("go_memstats_mallocs_total is not among the metrics")
}

// --- programs ---------------------------------------------------------------------

// rdsdWay measures datagrams one way, from application to application.
func rdsdWay(bytes int, front string, addrs ...string) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		ds, err := w.daemons(addrs...)
		if err != nil {
			return sample{}, err
		}
		sink, err := w.flow(ds, bytes, front, 4000)
		if err != nil {
			return sample{}, err
		}
		var allocs []float64
		s, err := w.windowOf(sink, wordCount, d, func() error {
			var sum float64
			for _, d := range ds {
				n, err := d.mallocs()
				if err != nil {
					return err
				}
				sum += n
			}
			allocs = append(allocs, sum)
			return nil
		})
		if err == nil {
			s.allocs = (allocs[1] - allocs[0]) / (s.rate * d.Seconds())
		}
		return s, err
	}
}

// flow starts a receiver at the last daemon and a sender at the first one.
func (w *world) flow(ds []*daemon, bytes int, front string, port int) (*proc, error) {
	from, to := ds[0], ds[len(ds)-1]
	a := args{Bytes: bytes, FrontEnd: front, Collector: true, Batch: max(1, min(256, (64<<10)/bytes)), Senders: 1}
	if front == "grpc" { // a call there waits for its answer
		a.Batch = min(a.Batch, 64)
		a.Senders = max(4, a.Batch)
	}
	sinkArgs := a
	sinkArgs.Target, sinkArgs.Local, sinkArgs.Sockets = to.target, netip.AddrPortFrom(to.addr, uint16(port)).String(), 1
	sink, err := w.role(roleRecv, sinkArgs)
	if err != nil {
		return nil, err
	}
	if err := w.ready(sink); err != nil {
		return nil, err
	}
	a.Target, a.Local, a.Dst = from.target, netip.AddrPortFrom(from.addr, 0).String(), []string{sinkArgs.Local}
	_, err = w.role(roleSend, a)
	return sink, err
}

func (w *world) ready(p *proc) error {
	return w.until(p.name+" is bound", func() bool { return p.board.load(wordReady) == 1 })
}

// rdsdTrip measures round trips between applications; with load, while
// datagrams of that size saturate the way of the pings.
func rdsdTrip(bytes, load int, front string, addrs ...string) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		ds, err := w.daemons(addrs...)
		if err != nil {
			return sample{}, err
		}
		from, to := ds[0], ds[len(ds)-1]
		a := args{Bytes: bytes, FrontEnd: front, Collector: true, Target: to.target, Local: netip.AddrPortFrom(to.addr, 4001).String()}
		echo, err := w.role(roleRDSDEcho, a)
		if err != nil {
			return sample{}, err
		}
		if err := w.ready(echo); err != nil {
			return sample{}, err
		}
		if load > 0 {
			sink, err := w.flow(ds, load, front, 4000)
			if err != nil {
				return sample{}, err
			}
			if err := w.until("the load flows", func() bool { return sink.board.load(wordCount) > 0 }); err != nil {
				return sample{}, err
			}
		}
		a.Target, a.Local, a.Dst = from.target, netip.AddrPortFrom(from.addr, 0).String(), []string{a.Local}
		ping, err := w.role(roleRDSDPing, a)
		if err != nil {
			return sample{}, err
		}
		return w.window(ping, wordCount, d)
	}
}

// rdsdMany measures one sender to many sockets of one node, of which the first
// is read or not, and is not counted.
func rdsdMany(sockets int, stopped bool, front string) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		ds, err := w.daemons(nodeA, nodeB)
		if err != nil {
			return sample{}, err
		}
		a := args{Bytes: 64, FrontEnd: front, Collector: true, Target: ds[1].target, Local: nodeB + ":5000", Sockets: sockets,
			Stopped: stopped, Batch: 64}
		sink, err := w.role(roleRecv, a)
		if err != nil {
			return sample{}, err
		}
		if err := w.ready(sink); err != nil {
			return sample{}, err
		}
		a.Target, a.Local, a.Stopped = ds[0].target, nodeA+":0", false
		for i := range sockets {
			a.Dst = append(a.Dst, fmt.Sprint(nodeB, ":", 5000+i))
		}
		if _, err := w.role(roleSpread, a); err != nil {
			return sample{}, err
		}
		return w.window(sink, wordOthers, d)
	}
}

// --- applications -----------------------------------------------------------------

var (
	roleSend     = register("application that sends", runSend)
	roleRecv     = register("application that receives", runRecv)
	roleSpread   = register("application that sends to many", runSpread)
	roleRDSDPing = register("application that pings", runRDSDPing)
	roleRDSDEcho = register("application that answers", runRDSDEcho)
)

// socketBytes is a send or receive buffer for datagrams of n bytes.
func socketBytes(n int) int { return max(4<<20, 8*n) }

// bind opens a socket at local, over the front end the harness asked for.
func (r *role) bind(local netip.AddrPort) (*rdsd.Socket, error) {
	front := rdsd.Rings
	switch r.FrontEnd {
	case "grpc":
		front = rdsd.GRPC
	case "auto":
		front = rdsd.Auto
	}
	c, err := rdsd.Dial(r.Target, rdsd.WithFrontEnd(front))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	n := r.Buffer
	if n == 0 {
		n = socketBytes(r.Bytes)
	}
	return c.Bind(ctx, local, rdsd.WithSendBuffer(n), rdsd.WithRecvBuffer(n))
}

func (r *role) bindLocal() (*rdsd.Socket, error) { return r.bind(netip.MustParseAddrPort(r.Local)) }

func (r *role) dst(i int) netip.AddrPort { return netip.MustParseAddrPort(r.Dst[i]) }

// numbers of datagrams: the sender in the upper 16 bits.
const senderShift = 48

func runSend(r *role) error {
	s, err := r.bindLocal()
	if err != nil {
		return err
	}
	failed := make(chan error, r.Senders)
	for i := range r.Senders {
		go func() { // ends with the process, or with an error
			runtime.LockOSThread()
			if r.FrontEnd != "grpc" && r.Bytes >= 16<<10 {
				failed <- r.sendInPlace(s, uint64(i)<<senderShift)
				return
			}
			if r.FrontEnd == "grpc" {
				runtime.UnlockOSThread()
			}
			failed <- r.sendBatches(s, uint64(i)<<senderShift)
		}()
	}
	return <-failed
}

func (r *role) sendBatches(s *rdsd.Socket, seq uint64) error {
	ctx := context.Background()
	ds := r.datagrams(r.dst(0))
	for {
		for i := range ds {
			stamp(ds[i].Payload, seq)
			seq++
		}
		if _, err := s.SendBatch(ctx, ds); err != nil {
			return err
		}
	}
}

// datagrams is a batch whose payloads lie together.
func (r *role) datagrams(dst netip.AddrPort) []rdsd.Datagram {
	ds := make([]rdsd.Datagram, r.Batch)
	mem := make([]byte, r.Batch*r.Bytes)
	for i := range ds {
		ds[i] = rdsd.Datagram{Addr: dst, Payload: mem[i*r.Bytes : (i+1)*r.Bytes : (i+1)*r.Bytes]}
	}
	return ds
}

// sendInPlace copies each payload into the send buffer itself, as the relay's
// source does with its ring.
func (r *role) sendInPlace(s *rdsd.Socket, seq uint64) error {
	ctx, dst := context.Background(), r.dst(0)
	payload := make([]byte, r.Bytes)
	for {
		slot, err := s.Reserve(ctx, dst, r.Bytes)
		if err != nil {
			return err
		}
		b := slot.Bytes()
		copy(b, payload)
		stamp(b, seq)
		seq++
		if _, err := slot.Commit(r.Bytes); err != nil {
			return err
		}
	}
}

// runSpread sends batches to all destinations in turn. One that is congested is
// left out for a while; only for room in the send buffer it waits.
func runSpread(r *role) error {
	s, err := r.bindLocal()
	if err != nil {
		return err
	}
	ctx := context.Background()
	b := r.datagrams(r.dst(0))
	for _, d := range b {
		stamp(d.Payload, 0)
	}
	dst := make([]netip.AddrPort, len(r.Dst))
	until := make([]int, len(r.Dst)) // round from which on it is tried again
	for i := range dst {
		dst[i] = r.dst(i)
	}
	for round := 0; ; round++ {
		if r.Stopped && round > 0 {
			select {} // until the harness ends this process
		}
		for i := range dst {
			if round < until[i] {
				continue
			}
			for k := range b {
				b[k].Addr = dst[i]
			}
			n, err := s.TrySendBatch(ctx, b)
			switch {
			case err == nil:
			case errors.Is(err, rdserr.ErrCongested):
				until[i] = round + 64
			case !errors.Is(err, rdserr.ErrWouldBlock):
				return err
			case i > 0 || len(dst) == 1: // the first one may never be read again
				if _, err := s.SendBatch(ctx, b[n:]); err != nil {
					return err
				}
			}
		}
	}
}

func runRecv(r *role) error {
	first := netip.MustParseAddrPort(r.Local)
	failed := make(chan error, r.Sockets)
	counts := make([]uint64, r.Sockets*lineBytes/8)
	var socks []*rdsd.Socket
	for i := range r.Sockets {
		s, err := r.bind(netip.AddrPortFrom(first.Addr(), first.Port()+uint16(i)))
		if err != nil {
			return err
		}
		socks = append(socks, s)
	}
	r.board.set(wordReady, 1)
	for i, s := range socks {
		if i == 0 && r.Stopped {
			continue
		}
		go func() { failed <- r.receive(s, i, &counts[i*lineBytes/8]) }() // ends with the process, or with an error
	}
	return <-failed
}

// receive reads one socket for ever. Of one sender, datagrams come in order.
func (r *role) receive(s *rdsd.Socket, i int, count *uint64) error {
	if r.Sockets == 1 && r.FrontEnd != "grpc" {
		runtime.LockOSThread()
	}
	ctx := context.Background()
	into := make([]rdsd.Datagram, 1024)
	var next [1 << 10]uint64
	for {
		n, lease, err := s.Borrow(ctx, into)
		if err != nil {
			return err
		}
		for _, d := range into[:n] {
			if r.Sockets > 1 || r.Unsigned {
				continue
			}
			seq, err := readStamp(d.Payload, r.Bytes)
			if err != nil {
				return err
			}
			sender := seq >> senderShift & (1<<10 - 1)
			if got := seq & (1<<senderShift - 1); got != next[sender] {
				return fmt.Errorf("datagram %d of sender %d after %d", got, sender, next[sender])
			}
			next[sender]++
		}
		lease.Release()
		*count += uint64(n)
		switch {
		case r.Sockets == 1:
			r.board.set(wordCount, *count)
		case i > 0:
			r.board.add(wordOthers, uint64(n))
		}
	}
}

func runRDSDPing(r *role) error {
	s, err := r.bindLocal()
	if err != nil {
		return err
	}
	if err := r.lockThread(); err != nil {
		return err
	}
	ctx, dst := context.Background(), r.dst(0)
	p := make([]byte, r.Bytes)
	var into [1]rdsd.Datagram
	for seq := uint64(0); ; seq++ {
		begun := time.Now()
		stamp(p, seq)
		if err := s.Send(ctx, dst, p); err != nil {
			return err
		}
		_, lease, err := s.Borrow(ctx, into[:])
		if err != nil {
			return err
		}
		if err := checkStamp(into[0].Payload, r.Bytes, seq); err != nil {
			return err
		}
		lease.Release()
		r.board.record(time.Since(begun))
		r.board.set(wordCount, seq+1)
	}
}

func runRDSDEcho(r *role) error {
	s, err := r.bindLocal()
	if err != nil {
		return err
	}
	if err := r.lockThread(); err != nil {
		return err
	}
	r.board.set(wordReady, 1)
	ctx := context.Background()
	var into [1]rdsd.Datagram
	for {
		_, lease, err := s.Borrow(ctx, into[:])
		if err != nil {
			return err
		}
		if err := s.Send(ctx, into[0].Addr, into[0].Payload); err != nil {
			return err
		}
		lease.Release()
	}
}
