package rdstools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/rdsd/internal/dial"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// stress is one run of rds-stress, active (-s given) or passive.
type stress struct {
	options
	socket        string
	reportCPU     bool
	showHistogram bool
	outliers      time.Duration // 0: off
	reset         bool
	active        bool

	out, err io.Writer
	// second is the unit of the protocol's pauses and of the display. A second,
	// except in tests.
	second time.Duration

	client *rdsd.Client
}

// errUsage asks for the usage text and exit status 2.
var errUsage = errors.New("usage")

func runStress(ctx context.Context, args []string, out, errw io.Writer) int {
	s := &stress{out: out, err: errw, second: time.Second}
	err := s.parse(ctx, args)
	if err == nil {
		err = s.run(ctx)
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUsage):
		if err != errUsage {
			fmt.Fprintf(errw, "rds-stress: %v\n", err)
		}
		fmt.Fprint(errw, s.usage())
		return 2
	}
	fmt.Fprintf(errw, "rds-stress: %v\n", err)
	return 1
}

// parse reads the command line. What follows the first non-option is ignored,
// as by the old tool.
func (s *stress) parse(ctx context.Context, args []string) error {
	v := struct {
		ack, req, depth, tasks, port, time, tos, rdma, vector, mode   uint64
		useOnce, useGetMR, useFence, useNotify, cacheMRs, align       uint64
		retries, congMonitor, outliers                                uint64
		recv, send                                                    string
		oneWay, cpu, rt, summary, verify, trace, meter, params, async bool
		perf, histogram, reset, help                                  bool
	}{ack: headerBytes, req: 1024, depth: 1, tasks: 1, port: 4000, vector: 1, useFence: 1, congMonitor: 1}
	const u32 = 1<<32 - 1
	f := newFlags("rds-stress", &s.socket)
	for _, n := range []struct {
		long, short string
		into        *uint64
		max         uint64
		help        string
	}{
		{"ack-bytes", "a", &v.ack, u32, "ack message length"},
		{"req-bytes", "q", &v.req, u32, "request message length"},
		{"depth", "d", &v.depth, u32, "request pipeline depth, nr outstanding"},
		{"tasks", "t", &v.tasks, 65535, "number of tasks"},
		{"port", "p", &v.port, 65535, "starting port number"},
		{"time", "T", &v.time, u32, "runtime in seconds, 0 means for ever"},
		{"tos", "Q", &v.tos, 255, "type of service"},
		{"rdma-bytes", "D", &v.rdma, u32, "RDMA size (not possible over TCP)"},
		{"rdma-buffers", "I", &v.vector, 512, "RDMA buffers"},
		{"rdma-mode", "M", &v.mode, 2, "RDMA mode"},
		{"rdma-use-once", "", &v.useOnce, 1, "RDMA option, passed on"},
		{"rdma-use-get-mr", "", &v.useGetMR, 1, "RDMA option, passed on"},
		{"rdma-use-fence", "", &v.useFence, 1, "RDMA option, passed on"},
		{"rdma-use-notify", "", &v.useNotify, 1, "accepted, without effect"},
		{"rdma-cache-mrs", "", &v.cacheMRs, 1, "RDMA option, passed on"},
		{"rdma-alignment", "", &v.align, 65536, "RDMA option, passed on"},
		{"connect-retries", "", &v.retries, u32, "how often to retry the control connection"},
		{"use-cong-monitor", "", &v.congMonitor, 1, "accepted; rdsd always wakes senders"},
		{"show-outliers", "", &v.outliers, u32, "report round trips longer than so many microseconds"},
	} {
		f.VarP(number{n.into, n.max}, n.long, n.short, n.help)
	}
	for _, b := range []struct {
		long, short string
		into        *bool
		help        string
	}{
		{"one-way", "o", &v.oneWay, "only the active side sends requests"},
		{"report-cpu", "c", &v.cpu, "show cpu use"},
		{"rtprio", "R", &v.rt, "accepted, without effect here"},
		{"report-summary", "z", &v.summary, "print a summary at the end only"},
		{"verify", "v", &v.verify, "fill datagrams with a pattern and check it"},
		{"trace", "V", &v.trace, "accepted, without effect here"},
		{"rdma-key-o-meter", "", &v.meter, "RDMA option, passed on"},
		{"show-params", "", &v.params, "print the parameters"},
		{"show-perfdata", "", &v.perf, "print comma separated data after ::"},
		{"show-histogram", "", &v.histogram, "print a histogram of round trips at the end"},
		{"reset", "", &v.reset, "reset the connection and exit"},
		{"async", "", &v.async, "tell the other side to use async sends"},
		{"help", "h", &v.help, "print the usage"},
	} {
		f.BoolVarP(b.into, b.long, b.short, false, b.help)
	}
	f.StringVarP(&v.recv, "recv-addr", "r", "", "use this local address")
	f.StringVarP(&v.send, "send-addr", "s", "", "send to this address; makes this the active side")
	if err := f.Parse(args); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if v.help {
		return errUsage
	}
	s.options = options{
		depth: uint32(v.depth), reqSize: uint32(v.req), ackSize: uint32(v.ack), rdmaSize: uint32(v.rdma),
		port: uint16(v.port), tasks: uint16(v.tasks), runTime: uint32(v.time),
		summaryOnly: bit(v.summary), rtprio: bit(v.rt), tracing: bit(v.trace), verify: bit(v.verify),
		showParams: bit(v.params), showPerfdata: bit(v.perf), congMonitor: uint8(v.congMonitor),
		useOnce: uint8(v.useOnce), useGetMR: uint8(v.useGetMR), useFence: uint8(v.useFence), cacheMRs: uint8(v.cacheMRs),
		keyOMeter: bit(v.meter), suppressWarnings: 0xff, oneWay: bit(v.oneWay), rwMode: uint8(v.mode),
		rdmaVector: uint32(v.vector), rdmaAlignment: uint32(v.align), connectRetry: uint32(v.retries),
		tos: uint8(v.tos), async: bit(v.async),
	}
	s.reportCPU, s.showHistogram, s.reset = v.cpu, v.histogram, v.reset
	s.outliers = time.Duration(v.outliers) * time.Microsecond
	var err error
	if s.recvAddr, err = stressAddr(ctx, v.recv); err != nil {
		return err
	}
	if s.sendAddr, err = stressAddr(ctx, v.send); err != nil {
		return err
	}
	s.active = v.send != ""
	if !s.active {
		return nil
	}
	return s.validate()
}

// stressAddr reads an address; the control block has room for IPv4 only.
func stressAddr(ctx context.Context, s string) (netip.Addr, error) {
	if s == "" {
		return netip.IPv4Unspecified(), nil
	}
	a, err := resolve(ctx, s)
	if err == nil && !a.Is4() {
		err = fmt.Errorf("%s is an IPv6 address: the protocol of rds-stress carries IPv4 only; rdsd stress does both", a)
	}
	return a, err
}

func bit(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

func (s *stress) usage() string {
	return fmt.Sprintf(`rds-stress of rdsd, like version %s

Both sides:
 -r [addr]         use this local address
 -p [port, 4000]   starting port number
 -c                show cpu use
 --show-histogram  print a histogram of round trips
 --show-outliers [us]  report longer round trips

Active side:
 -s [addr]         send to this address (without it: wait for an active side)
 -a [bytes, %d]    ack message length
 -q [bytes, 1024]  request message length
 -o                only this side sends requests
 -d [depth, 1]     requests outstanding to each task of the other side
 -t [nr, 1]        number of tasks
 -T [seconds, 0]   runtime, 0 means for ever
 -v                check the contents
 -z                print a summary at the end only
 -Q [tos, 0]       type of service (RDS over TCP has one)
 --connect-retries [nr, 0]  --show-params  --show-perfdata  --reset  --async

Example:
  recv$ rds-stress
  send$ rds-stress -s recv -q 4096 -t 2 -d 2
`, Version, headerBytes)
}

// run plays one side from the first connection to the summary.
func (s *stress) run(ctx context.Context) error {
	var err error
	if s.client, err = dial.Dial(ctx, dial.Target(s.socket)); err != nil {
		return err
	}
	defer s.client.Close()
	if s.reset {
		return s.resetPeer(ctx)
	}
	if s.active {
		return s.runActive(ctx)
	}
	return s.runPassive(ctx)
}

func (s *stress) resetPeer(ctx context.Context) error {
	if !s.active {
		return errors.New("--reset needs -s, the address of the peer")
	}
	peer := rdsd.PeerFilter{Remote: s.sendAddr}
	if !s.recvAddr.IsUnspecified() {
		peer.Local = s.recvAddr
	}
	_, err := s.client.Admin().DropPaths(ctx, peer)
	if err != nil {
		return fmt.Errorf("cannot reset the connection to %s: %s", s.sendAddr, reason(err))
	}
	return nil
}
