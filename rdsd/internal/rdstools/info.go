package rdstools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/pflag"

	"github.com/rdsd/rdsd/rdsd/internal/dial"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// source is one thing rds-info prints. The order of the table is the order of
// printing (that of the letters in ASCII, as in the old tool).
type source struct {
	letter, long, what string
	print              func(context.Context, *rdsd.Admin, io.Writer) error
}

var sources = []source{
	{"I", "ib", "IB transport connections", nil},
	{"T", "tcp", "TCP transport sockets", printTCP},
	{"c", "counters", "statistic counters", printCounters},
	{"k", "sockets", "sockets", printSockets},
	{"n", "connections", "connections", printConns},
	{"p", "paths", "connection paths", printPaths},
	{"r", "recv", "recv queue messages", queuePrinter("Receive", rdsd.QueueRecv)},
	{"s", "send", "send queue messages", queuePrinter("Send", rdsd.QueueSend)},
	{"t", "retrans", "retransmit queue messages", queuePrinter("Retransmit", rdsd.QueueRetrans)},
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

func printCounters(ctx context.Context, c *rdsd.Admin, w io.Writer) error {
	counters, err := c.Counters(ctx, netip.Addr{})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nCounters:\n%25s %16s\n", "CounterName", "Value")
	for _, n := range counters {
		fmt.Fprintf(w, "%25s %16d\n", n.Name, n.Value)
	}
	return nil
}

func printSockets(ctx context.Context, c *rdsd.Admin, w io.Writer) error {
	sockets, err := c.Sockets(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nRDS Sockets:\n%15s %5s %15s %5s %10s %10s %8s\n",
		"BoundAddr", "BPort", "ConnAddr", "CPort", "SndBuf", "RcvBuf", "Inode")
	for _, s := range sockets {
		// rdsd's sockets have no connected address.
		bound := shown(s.Local.Addr())
		fmt.Fprintf(w, "%15s %5d %15s %5d %10d %10d %8d\n", bound, s.Local.Port(),
			anyOf(bound), 0, s.SendBufferBytes, s.RecvBufferBytes, s.Inode)
	}
	return nil
}

// printConns prints one line a connection: its sequence numbers are path 0's,
// its flags those of any path.
func printConns(ctx context.Context, c *rdsd.Admin, w io.Writer) error {
	peers, err := c.Peers(ctx, rdsd.PeerFilter{})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nRDS Connections:\n%15s %15s %4s %16s %16s %4s\n",
		"LocalAddr", "RemoteAddr", "Tos", "NextTX", "NextRX", "Flgs")
	for _, p := range peers {
		var tx, rx uint64
		if len(p.Paths) > 0 {
			tx, rx = p.Paths[0].NextTxSeq, p.Paths[0].NextRxSeq
		}
		fmt.Fprintf(w, "%15s %15s %4d %16d %16d %s\n", shown(p.Local), shown(p.Remote), 0, tx, rx,
			connFlags(p.Queued > 0, p.Paths...))
	}
	return nil
}

// connFlags are the four letters of the Flgs column: sending, connecting,
// connected, error.
func connFlags(sending bool, paths ...rdsd.PeerPath) string {
	flags := []byte("----")
	if sending {
		flags[0] = 's'
	}
	for _, p := range paths {
		switch p.State {
		case rdsd.StateConnecting:
			flags[1] = 'c'
		case rdsd.StateUp:
			flags[2] = 'C'
		case rdsd.StateError:
			flags[3] = 'E'
		}
	}
	return string(flags)
}

func printPaths(ctx context.Context, c *rdsd.Admin, w io.Writer) error {
	peers, err := c.Peers(ctx, rdsd.PeerFilter{})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nRDS Paths:\n%15s %15s %4s %4s %16s %16s %4s %10s\n",
		"LocalAddr", "RemoteAddr", "Tos", "Path", "NextTX", "NextRX", "Flgs", "Reconnects")
	for _, p := range peers {
		for _, q := range p.Paths {
			fmt.Fprintf(w, "%15s %15s %4d %4d %16d %16d %s %10d\n", shown(p.Local), shown(p.Remote), 0, q.Index,
				q.NextTxSeq, q.NextRxSeq, connFlags(false, q), q.Reconnects)
		}
	}
	return nil
}

// maxListed is the most the daemon lists of a queue in one answer.
const maxListed = 20000

func queuePrinter(title string, kind rdsd.QueueKind) func(context.Context, *rdsd.Admin, io.Writer) error {
	return func(ctx context.Context, c *rdsd.Admin, w io.Writer) error {
		list, _, err := c.Queue(ctx, kind, maxListed)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "\n%s Message Queue:\n%15s %5s %15s %5s %4s %16s %10s\n", title,
			"LocalAddr", "LPort", "RemoteAddr", "RPort", "Tos", "Seq", "Bytes")
		for _, d := range list {
			fmt.Fprintf(w, "%15s %5d %15s %5d %4d %16d %10d\n", shown(d.Local.Addr()), d.Local.Port(),
				shown(d.Remote.Addr()), d.Remote.Port(), 0, d.Seq, d.Bytes)
		}
		return nil
	}
}

// printTCP prints the links. A user-space daemon does not see TCP's own
// sequence numbers: SentNxt is the low 32 bits of the bytes it has written,
// the other four columns are 0.
func printTCP(ctx context.Context, c *rdsd.Admin, w io.Writer) error {
	peers, err := c.Peers(ctx, rdsd.PeerFilter{})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nTCP Connections:\n%15s %5s %15s %5s %10s %10s %10s %10s %10s\n",
		"LocalAddr", "LPort", "RemoteAddr", "RPort", "HdrRemain", "DataRemain", "SentNxt", "ExpectUna", "SeenUna")
	for _, p := range peers {
		for _, q := range p.Paths {
			local, lerr := netip.ParseAddrPort(q.LocalEndpoint)
			remote, rerr := netip.ParseAddrPort(q.RemoteEndpoint)
			if lerr != nil || rerr != nil {
				continue // not connected
			}
			fmt.Fprintf(w, "%15s %5d %15s %5d %10d %10d %10d %10d %10d\n", local.Addr(), local.Port(), remote.Addr(), remote.Port(),
				0, 0, uint32(q.SentBytes), 0, 0)
		}
	}
	return nil
}

// printVerbose adds what the kernel has no word for.
func printVerbose(ctx context.Context, c *rdsd.Admin, w io.Writer) error {
	st, err := c.Status(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\nDaemon:\n  version=%s, state=%s, uptime=%s, peers=%d, up=%d, sockets=%d, memory=%d, memory_budget=%d\n",
		st.Version, st.State, st.Uptime.Round(time.Second), st.Peers, st.PeersUp, st.Sockets, st.MemoryUsedBytes, st.MemoryBudgetBytes)
	return nil
}

// shown is a, or 0.0.0.0 in place of none.
func shown(a netip.Addr) netip.Addr {
	if !a.IsValid() {
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
