package rdstools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/pflag"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdsd/internal/dial"
)

// source is one thing rds-info prints. The order of the table is the order of
// printing (that of the letters in ASCII, as in the old tool).
type source struct {
	letter, long, what string
	print              func(context.Context, rdsdv1.AdminClient, io.Writer) error
}

var sources = []source{
	{"I", "ib", "IB transport connections", nil},
	{"T", "tcp", "TCP transport sockets", printTCP},
	{"c", "counters", "statistic counters", printCounters},
	{"k", "sockets", "sockets", printSockets},
	{"n", "connections", "connections", printConns},
	{"p", "paths", "connection paths", printPaths},
	{"r", "recv", "recv queue messages", queuePrinter("Receive", rdsdv1.QueueKind_QUEUE_KIND_RECV)},
	{"s", "send", "send queue messages", queuePrinter("Send", rdsdv1.QueueKind_QUEUE_KIND_SEND)},
	{"t", "retrans", "retransmit queue messages", queuePrinter("Retransmit", rdsdv1.QueueKind_QUEUE_KIND_RETRANS)},
}

func runInfo(ctx context.Context, args []string, out, errw io.Writer) int {
	var socket string
	f := newFlags("rds-info", &socket)
	verbose := f.CountP("verbose", "v", "verbose output")
	given := make([]*bool, len(sources))
	for i, s := range sources {
		given[i] = f.BoolP(s.long, s.letter, false, s.what)
	}
	if err := f.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			infoUsage(out, out)
			return 0
		}
		fmt.Fprintf(errw, "rds-info: %v\n", err)
		infoUsage(out, errw)
		return 1
	}
	if f.NArg() > 0 {
		fmt.Fprintf(errw, "rds-info: unexpected argument '%s'\n", f.Arg(0))
		infoUsage(out, errw)
		return 1
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := dial.Dial(ctx, dial.Target(socket))
	if err != nil {
		fmt.Fprintf(errw, "rds-info: %v\n", err)
		return 1
	}
	defer c.Close()
	any, failed := false, false
	for _, g := range given {
		any = any || *g
	}
	for i, s := range sources {
		if any && !*given[i] || !any && (s.print == nil || s.letter == "p") {
			continue
		}
		if s.print == nil {
			fmt.Fprintf(errw, "rds-info: Unable get statistics: no %s in this daemon\n", s.what)
			continue
		}
		if err := s.print(ctx, c.Admin(), out); err != nil {
			fmt.Fprintf(errw, "rds-info: Unable get statistics: %s\n", reason(err))
			failed = true
		}
	}
	if *verbose > 0 {
		if err := printVerbose(ctx, c.Admin(), out); err != nil {
			fmt.Fprintf(errw, "rds-info: Unable get statistics: %s\n", reason(err))
			failed = true
		}
	}
	if failed {
		return 1
	}
	return 0
}

func infoUsage(out, errw io.Writer) {
	fmt.Fprintf(errw, "rds-info of rdsd, like version %s\n", Version)
	fmt.Fprintln(errw, "These options choose what is shown; without any, everything is:")
	for _, s := range sources {
		fmt.Fprintf(out, "    -%s %s\n", s.letter, s.what)
	}
	fmt.Fprintln(errw, "    -v more detail")
}

func printCounters(ctx context.Context, c rdsdv1.AdminClient, w io.Writer) error {
	resp, err := c.GetCounters(ctx, &rdsdv1.GetCountersRequest{})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nCounters:\n%25s %16s\n", "CounterName", "Value")
	for _, n := range resp.GetCounter() {
		fmt.Fprintf(w, "%25s %16d\n", n.GetName(), n.GetValue())
	}
	return nil
}

func printSockets(ctx context.Context, c rdsdv1.AdminClient, w io.Writer) error {
	resp, err := c.ListSockets(ctx, &rdsdv1.ListSocketsRequest{})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nRDS Sockets:\n%15s %5s %15s %5s %10s %10s %8s\n",
		"BoundAddr", "BPort", "ConnAddr", "CPort", "SndBuf", "RcvBuf", "Inode")
	for _, s := range resp.GetSocket() {
		// rdsd's sockets have no connected address.
		bound := addrOf(s.GetLocal().GetAddress())
		fmt.Fprintf(w, "%15s %5d %15s %5d %10d %10d %8d\n", bound, s.GetLocal().GetPort(),
			anyOf(bound), 0, s.GetSendBufferBytes(), s.GetRecvBufferBytes(), s.GetInode())
	}
	return nil
}

// printConns prints one line a connection: its sequence numbers are path 0's,
// its flags those of any path.
func printConns(ctx context.Context, c rdsdv1.AdminClient, w io.Writer) error {
	resp, err := c.ListPeers(ctx, &rdsdv1.ListPeersRequest{})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nRDS Connections:\n%15s %15s %4s %16s %16s %4s\n",
		"LocalAddr", "RemoteAddr", "Tos", "NextTX", "NextRX", "Flgs")
	for _, p := range resp.GetPeer() {
		var tx, rx uint64
		if len(p.GetPath()) > 0 {
			tx, rx = p.GetPath()[0].GetNextTxSeq(), p.GetPath()[0].GetNextRxSeq()
		}
		fmt.Fprintf(w, "%15s %15s %4d %16d %16d %s\n", addrOf(p.GetLocal()), addrOf(p.GetRemote()), 0, tx, rx,
			connFlags(p.GetQueued() > 0, p.GetPath()...))
	}
	return nil
}

// connFlags are the four letters of the Flgs column: sending, connecting,
// connected, error.
func connFlags(sending bool, paths ...*rdsdv1.Path) string {
	flags := []byte("----")
	if sending {
		flags[0] = 's'
	}
	for _, p := range paths {
		switch p.GetState() {
		case rdsdv1.PathState_PATH_STATE_CONNECTING:
			flags[1] = 'c'
		case rdsdv1.PathState_PATH_STATE_UP:
			flags[2] = 'C'
		case rdsdv1.PathState_PATH_STATE_ERROR:
			flags[3] = 'E'
		}
	}
	return string(flags)
}

func printPaths(ctx context.Context, c rdsdv1.AdminClient, w io.Writer) error {
	resp, err := c.ListPeers(ctx, &rdsdv1.ListPeersRequest{})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nRDS Paths:\n%15s %15s %4s %4s %16s %16s %4s %10s\n",
		"LocalAddr", "RemoteAddr", "Tos", "Path", "NextTX", "NextRX", "Flgs", "Reconnects")
	for _, p := range resp.GetPeer() {
		for _, q := range p.GetPath() {
			fmt.Fprintf(w, "%15s %15s %4d %4d %16d %16d %s %10d\n", addrOf(p.GetLocal()), addrOf(p.GetRemote()), 0, q.GetIndex(),
				q.GetNextTxSeq(), q.GetNextRxSeq(), connFlags(false, q), q.GetReconnects())
		}
	}
	return nil
}

// maxListed is the most the daemon lists of a queue in one answer.
const maxListed = 20000

func queuePrinter(title string, kind rdsdv1.QueueKind) func(context.Context, rdsdv1.AdminClient, io.Writer) error {
	return func(ctx context.Context, c rdsdv1.AdminClient, w io.Writer) error {
		resp, err := c.ListQueue(ctx, rdsdv1.ListQueueRequest_builder{Kind: kind, Limit: maxListed}.Build())
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "\n%s Message Queue:\n%15s %5s %15s %5s %4s %16s %10s\n", title,
			"LocalAddr", "LPort", "RemoteAddr", "RPort", "Tos", "Seq", "Bytes")
		for _, d := range resp.GetDatagram() {
			fmt.Fprintf(w, "%15s %5d %15s %5d %4d %16d %10d\n", addrOf(d.GetLocal().GetAddress()), d.GetLocal().GetPort(),
				addrOf(d.GetRemote().GetAddress()), d.GetRemote().GetPort(), 0, d.GetSeq(), d.GetBytes())
		}
		return nil
	}
}

// printTCP prints the links. A user-space daemon does not see TCP's own
// sequence numbers: SentNxt is the low 32 bits of the bytes it has written,
// the other four columns are 0.
func printTCP(ctx context.Context, c rdsdv1.AdminClient, w io.Writer) error {
	resp, err := c.ListPeers(ctx, &rdsdv1.ListPeersRequest{})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nTCP Connections:\n%15s %5s %15s %5s %10s %10s %10s %10s %10s\n",
		"LocalAddr", "LPort", "RemoteAddr", "RPort", "HdrRemain", "DataRemain", "SentNxt", "ExpectUna", "SeenUna")
	for _, p := range resp.GetPeer() {
		for _, q := range p.GetPath() {
			local, lerr := netip.ParseAddrPort(q.GetLocalEndpoint())
			remote, rerr := netip.ParseAddrPort(q.GetRemoteEndpoint())
			if lerr != nil || rerr != nil {
				continue // not connected
			}
			fmt.Fprintf(w, "%15s %5d %15s %5d %10d %10d %10d %10d %10d\n", local.Addr(), local.Port(), remote.Addr(), remote.Port(),
				0, 0, uint32(q.GetSentBytes()), 0, 0)
		}
	}
	return nil
}

// printVerbose adds what the kernel has no word for.
func printVerbose(ctx context.Context, c rdsdv1.AdminClient, w io.Writer) error {
	st, err := c.GetStatus(ctx, &rdsdv1.GetStatusRequest{})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nDaemon:\n  version=%s, state=%s, uptime=%s, peers=%d, up=%d, sockets=%d, memory=%d, memory_budget=%d\n",
		st.GetVersion(), st.GetState(), time.Duration(st.GetUptimeNs()).Round(time.Second), st.GetPeers(), st.GetPeersUp(), st.GetSockets(),
		st.GetMemoryUsedBytes(), st.GetMemoryBudgetBytes())
	return nil
}

func addrOf(b []byte) netip.Addr {
	a, ok := netip.AddrFromSlice(b)
	if !ok {
		return netip.IPv4Unspecified()
	}
	return a
}

// anyOf is the unspecified address of a's family.
func anyOf(a netip.Addr) netip.Addr {
	if a.Is6() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}
