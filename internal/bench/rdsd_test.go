package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rdsd/rdsd/internal/freeport"
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
func (w *world) daemons(addrs ...string) ([]*daemon, error) { return w.daemonsWith(nil, nil, addrs...) }

// daemonsWith starts them with more flags, and with more in their environment.
func (w *world) daemonsWith(flags, env []string, addrs ...string) ([]*daemon, error) {
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
		cmd := exec.Command(rdsdBinary, append([]string{"serve", "--address", a, "--port", strconv.Itoa(rds), "--socket", d.target,
			"--http", d.http, "--log-level", "warn"}, flags...)...)
		cmd.Env = append(append(os.Environ(), "RDSD_HTTP_PPROF=true"), env...) // the first for mallocs
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
		st, err := c.Admin().Status(ctx)
		return err == nil && st.State == "serving"
	})
}

func freePort() (int, error) {
	port, err := freeport.On()
	return int(port), err
}

// mallocs is how many objects the daemons have allocated.
func mallocs(ds []*daemon) (sum float64, err error) {
	for _, d := range ds {
		n, err := d.mallocs()
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// mallocs looks at the heap profile's summary: that allocates a thousand objects,
// always the same, where a look at all the metrics takes five to twelve thousand.
func (d *daemon) mallocs() (float64, error) {
	r, err := http.Get("http://" + d.http + "/debug/pprof/heap?debug=1")
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	for s := bufio.NewScanner(r.Body); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), "# Mallocs = "); ok {
			return strconv.ParseFloat(v, 64)
		}
	}
	return 0, errors.New("the heap profile of " + d.name + " does not say how many objects there were")
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
		// Looking allocates: how much, two looks in a row say.
		var looks []float64
		s, err := w.windowOf(sink, wordCount, d, func() error {
			for range 2 {
				n, err := mallocs(ds)
				if err != nil {
					return err
				}
				looks = append(looks, n)
			}
			return nil
		})
		if err == nil {
			s.allocs = max(0, looks[2]-looks[1]-(looks[1]-looks[0])) / (s.rate * d.Seconds())
		}
		return s, err
	}
}

// Source ports of the sender and of the pings, which share a lane however many
// there are, whichever sends first (conn.Conn.firstLane): small datagrams behind large ones are the hard
// case, and random ports would show either at random.
const (
	flowPort = 6006
	pingPort = 7104
)

// flow starts a receiver at the last daemon and a sender at the first one.
func (w *world) flow(ds []*daemon, bytes int, front string, port int) (*proc, error) {
	return w.flowBy("", 0, ds, bytes, front, port)
}

// flowBy is flow by certain calls (args.Calls), with batches of so many; 0: the usual.
func (w *world) flowBy(calls string, batch int, ds []*daemon, bytes int, front string, port int) (*proc, error) {
	return w.flowAs(args{Calls: calls, Bytes: bytes, FrontEnd: front}, batch, ds, port)
}

// flowAs is flowBy of what a says of calls, payloads and front end.
func (w *world) flowAs(a args, batch int, ds []*daemon, port int) (*proc, error) {
	from, to := ds[0], ds[len(ds)-1]
	a.Collector, a.Batch, a.Senders = true, max(1, min(256, (64<<10)/a.Bytes)), 1
	if a.FrontEnd == "grpc" { // a call there waits for its answer
		a.Batch = min(a.Batch, 64)
		a.Senders = max(4, a.Batch)
	}
	if batch > 0 {
		a.Batch, a.Senders = batch, 1
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
	a.Target, a.Local, a.Dst = from.target, netip.AddrPortFrom(from.addr, flowPort).String(), []string{sinkArgs.Local}
	_, err = w.role(roleSend, a)
	return sink, err
}

func (w *world) ready(p *proc) error {
	return w.until(p.name+" is bound", func() bool { return p.board.load(wordReady) == 1 })
}

// begun starts a role and waits until it is ready.
func (w *world) begun(role string, a args) (*proc, error) {
	p, err := w.role(role, a)
	if err == nil {
		err = w.ready(p)
	}
	return p, err
}

// oneNode runs a program of one node, whose daemon makes pairs or not.
func oneNode(pairs string, run func(w *world, ds []*daemon) (*proc, error)) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		ds, err := w.daemonsWith([]string{"--pairs", pairs}, nil, nodeA)
		if err != nil {
			return sample{}, err
		}
		p, err := run(w, ds)
		if err != nil {
			return sample{}, err
		}
		return w.window(p, wordCount, d)
	}
}

// rdsdCalls measures datagrams one way by calls of the SDK that are not its fastest, one
// caller on either side.
func rdsdCalls(calls string, batch, bytes int, front string) func(time.Duration) (sample, error) {
	return rdsdFlow(args{Calls: calls, Bytes: bytes, FrontEnd: front}, batch)
}

// rdsdMixed is rdsdCalls of Send and Recv with payloads of bytes/16 to bytes.
func rdsdMixed(bytes int, front string) func(time.Duration) (sample, error) {
	return rdsdFlow(args{Calls: "one", Bytes: bytes, FrontEnd: front, Mixed: true}, 1)
}

func rdsdFlow(a args, batch int) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		ds, err := w.daemons(nodeA, nodeB)
		if err != nil {
			return sample{}, err
		}
		sink, err := w.flowAs(a, batch, ds, 4000)
		if err != nil {
			return sample{}, err
		}
		return w.window(sink, wordCount, d)
	}
}

// rdsdTrip measures round trips between applications; with load, while
// datagrams of that size saturate the way of the pings.
func rdsdTrip(bytes, load int, front string, addrs ...string) func(time.Duration) (sample, error) {
	return rdsdTripPaused(bytes, load, 0, front, addrs...)
}

// rdsdTripPaused is rdsdTrip with a pause between two round trips.
func rdsdTripPaused(bytes, load int, pause time.Duration, front string, addrs ...string) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		ds, err := w.daemons(addrs...)
		if err != nil {
			return sample{}, err
		}
		ping, err := w.pings(ds, bytes, load, pause, front)
		if err != nil {
			return sample{}, err
		}
		return w.window(ping, wordCount, d)
	}
}

// pings starts an echo at the last daemon and who pings it at the first one, and
// the load first, if there is one.
func (w *world) pings(ds []*daemon, bytes, load int, pause time.Duration, front string) (*proc, error) {
	from, to := ds[0], ds[len(ds)-1]
	a := args{Bytes: bytes, FrontEnd: front, Collector: true, Target: to.target, Local: netip.AddrPortFrom(to.addr, 4001).String(), Pause: pause}
	echo, err := w.role(roleRDSDEcho, a)
	if err != nil {
		return nil, err
	}
	if err := w.ready(echo); err != nil {
		return nil, err
	}
	if load > 0 {
		sink, err := w.flow(ds, load, front, 4000)
		if err != nil {
			return nil, err
		}
		if err := w.until("the load flows", func() bool { return sink.board.load(wordCount) > 0 }); err != nil {
			return nil, err
		}
	}
	a.Target, a.Local, a.Dst = from.target, netip.AddrPortFrom(from.addr, pingPort).String(), []string{a.Local}
	return w.role(roleRDSDPing, a)
}

// rdsdFanIn measures what comes to one socket from so many processes of the other node, each with
// one socket and one caller, or from one process that uses so many sockets in turn.
func rdsdFanIn(procs, sockets, bytes int) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		ds, err := w.daemons(nodeA, nodeB)
		if err != nil {
			return sample{}, err
		}
		a := args{Bytes: bytes, FrontEnd: rings, Collector: true, Batch: 256, Senders: 1, Sockets: sockets}
		in := a
		in.Target, in.Local, in.Sockets = ds[1].target, netip.AddrPortFrom(ds[1].addr, 4000).String(), 1
		sink, err := w.role(roleRecv, in)
		if err != nil {
			return sample{}, err
		}
		if err := w.ready(sink); err != nil {
			return sample{}, err
		}
		a.Target, a.Local, a.Dst = ds[0].target, netip.AddrPortFrom(ds[0].addr, 0).String(), []string{in.Local}
		role := roleSend
		if sockets > 1 {
			role = roleSendFrom
		}
		for i := range procs {
			a.Sender = i
			if _, err := w.role(role, a); err != nil {
				return sample{}, err
			}
		}
		return w.window(sink, wordCount, d)
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
