package top

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rdsd/rdsd/internal/plain"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// Shot is what a daemon said at one moment.
type Shot struct {
	At         time.Time
	Status     *rdsd.Status
	Peers      []rdsd.Peer
	Sockets    []rdsd.SocketInfo
	Congestion []rdsd.CongestedPort
	Exports    []*rdsd.Export
	Mappings   []*rdsd.Mapping
}

// Source brings shots.
type Source func(context.Context) (*Shot, error)

// View is one of the tables.
type View int

// The views, by their keys from 1 on.
const (
	Peers View = iota
	Sockets
	Congestion
	Volumes
	Problems
	numViews
)

// ViewNames are their names, as -view takes them.
var ViewNames = []string{"peers", "sockets", "congestion", "volumes", "problems"}

// cell is a text and what it is sorted by.
type cell struct {
	text  string
	order float64 // of a number; a text has words instead
	words string
}

// row is a line of a table.
type row struct {
	key    string // of the same thing in the next shot
	cells  []cell
	detail func() []string // lines of the screen for it alone
}

// as is the detail of a row that has it at hand; of thousands of rows one is shown.
func as(detail []string) func() []string { return func() []string { return detail } }

// table is a view of a shot.
type table struct {
	heads []string
	right []bool // columns of numbers
	rows  []row
	empty string
}

func text(s string) cell { s = plain.Text(s); return cell{text: s, words: s} }

func number[T int | uint32 | uint64](n T) cell { return cell{text: fmt.Sprint(n), order: float64(n)} }

func bytes(n uint64) cell { return cell{text: plain.Bytes(float64(n)), order: float64(n)} }

func rate(n float64) cell { return cell{text: plain.Bytes(n) + "/s", order: n} }

func perSecond(n float64) cell { return cell{text: fmt.Sprintf("%.0f/s", n), order: n} }

func lasted(d time.Duration) cell { return cell{text: plain.Duration(d), order: float64(d)} }

// tableOf makes the table of a view. before may be nil: then there are no rates.
func tableOf(v View, now, before *Shot) table {
	switch v {
	case Peers:
		return peerTable(now, before)
	case Sockets:
		return socketTable(now, before)
	case Congestion:
		return congestionTable(now)
	case Volumes:
		return volumeTable(now)
	}
	return problemTable(now)
}

// growth is how much a counter grew in a second; 0 if there is nothing to compare with,
// or if it counts anew.
func growth(now, before *Shot, new, old uint64, known bool) float64 {
	if !known || before == nil || new < old {
		return 0
	}
	d := now.At.Sub(before.At).Seconds()
	if d <= 0 {
		return 0
	}
	return float64(new-old) / d
}

func index[T any](list []T, key func(*T) string) map[string]*T {
	m := make(map[string]*T, len(list))
	for i := range list {
		m[key(&list[i])] = &list[i]
	}
	return m
}

func peerKey(p *rdsd.Peer) string { return p.Local.String() + " > " + p.Remote.String() }

func carried(p *rdsd.Peer) (sent, received uint64, up int) {
	for _, q := range p.Paths {
		sent, received = sent+q.SentBytes, received+q.ReceivedBytes
		if q.State == rdsd.StateUp {
			up++
		}
	}
	return sent, received, up
}

func peerTable(now, before *Shot) table {
	t := table{heads: []string{"peer", "state", "kind", "paths", "rtt", "sent", "received", "queued", "unacked", "held", "congested", "last error"},
		right: []bool{false, false, false, true, true, true, true, true, true, true, true, false}, empty: "no peers: nothing was sent to or received from another node yet"}
	var old map[string]*rdsd.Peer
	if before != nil {
		old = index(before.Peers, peerKey)
	}
	for i := range now.Peers {
		p := &now.Peers[i]
		sent, received, up := carried(p)
		o, known := old[peerKey(p)]
		var oldSent, oldReceived uint64
		if known {
			oldSent, oldReceived, _ = carried(o)
		}
		t.rows = append(t.rows, row{key: peerKey(p), cells: []cell{
			text(p.Remote.String()), text(string(p.State)), text(string(p.Kind)), {text: fmt.Sprintf("%d/%d", up, len(p.Paths)), order: float64(up)},
			lasted(p.RTT), rate(growth(now, before, sent, oldSent, known)), rate(growth(now, before, received, oldReceived, known)),
			number(p.Queued), number(p.Unacked), number(p.Held), number(p.CongestedPorts), text(p.LastError),
		}, detail: func() []string { return peerDetail(p) }})
	}
	return t
}

func peerDetail(p *rdsd.Peer) []string {
	lines := []string{
		fmt.Sprintf("peer %s from %s: %s, %s, %d lanes, round trip %s", p.Remote, p.Local, p.Kind, p.State, p.Lanes, plain.Duration(p.RTT)),
		fmt.Sprintf("waiting: %d to be sent (%s), %d to be acknowledged (%s), %d held; %d ports congested", p.Queued, plain.Bytes(float64(p.QueuedBytes)), p.Unacked,
			plain.Bytes(float64(p.UnackedBytes)), p.Held, p.CongestedPorts), "",
	}
	for _, q := range p.Paths {
		l := fmt.Sprintf("lane %d  %-13s up %s, %d reconnects, sent %s, received %s  %s > %s", q.Index, q.State, plain.Duration(q.UpFor), q.Reconnects,
			plain.Bytes(float64(q.SentBytes)), plain.Bytes(float64(q.ReceivedBytes)), q.LocalEndpoint, q.RemoteEndpoint)
		lines = append(lines, plain.Text(l))
		if q.LastError != "" {
			lines = append(lines, plain.Text(fmt.Sprintf("        %s, %s ago; %d attempts, next in %s", q.LastError, plain.Duration(q.ErrorAge), q.Attempts, plain.Duration(q.RetryIn))))
		}
	}
	return lines
}

func socketKey(s *rdsd.SocketInfo) string { return fmt.Sprintf("%s %d", s.Local, s.Inode) }

func socketTable(now, before *Shot) table {
	t := table{heads: []string{"socket", "pid", "program", "uid", "label", "sent", "read", "unread", "rcvbuf", "in flight", "waiting", "congested"},
		right: []bool{false, true, false, true, false, true, true, true, true, true, true, false}, empty: "no sockets: no application is connected"}
	var old map[string]*rdsd.SocketInfo
	if before != nil {
		old = index(before.Sockets, socketKey)
	}
	for i := range now.Sockets {
		s := &now.Sockets[i]
		o, known := old[socketKey(s)]
		if !known {
			o = &rdsd.SocketInfo{}
		}
		congested := ""
		if s.Congested {
			congested = "CONGESTED"
		}
		t.rows = append(t.rows, row{key: socketKey(s), cells: []cell{
			text(s.Local.String()), number(s.PID), text(s.Program), number(s.UID), text(s.Label),
			perSecond(growth(now, before, s.Accepted, o.Accepted, known)), perSecond(growth(now, before, s.Received, o.Received, known)),
			number(s.RecvQueued), bytes(s.RecvQueuedBytes), number(s.InFlight), number(s.WaitingSends), text(congested),
		}, detail: func() []string { return socketDetail(s) }})
	}
	return t
}

func socketDetail(s *rdsd.SocketInfo) []string {
	return []string{
		plain.Text(fmt.Sprintf("socket %s %q: pid %d (%s), uid %d", s.Local, s.Label, s.PID, s.Program, s.UID)),
		fmt.Sprintf("sent: %d accepted = %d delivered + %d cancelled + %d failed + %d unknown + %d in flight; %d calls wait", s.Accepted, s.Delivered, s.Cancelled,
			s.Failed, s.Unknown, s.InFlight, s.WaitingSends),
		fmt.Sprintf("send buffer: %s of %s", plain.Bytes(float64(s.SendQueuedBytes)), plain.Bytes(float64(s.SendBufferBytes))),
		fmt.Sprintf("receive buffer: %s of %s (at most %s), %d datagrams unread, %d read", plain.Bytes(float64(s.RecvQueuedBytes)), plain.Bytes(float64(s.RecvBufferBytes)),
			plain.Bytes(float64(s.RecvHardLimitBytes)), s.RecvQueued, s.Received),
		fmt.Sprintf("rings: %s of %s", plain.Bytes(float64(s.RingBytes)), plain.Bytes(float64(s.RingMaxBytes))),
	}
}

func congestionTable(now *Shot) table {
	t := table{heads: []string{"port", "where", "since", "queued", "reader", "waiting", "blocked", "filled by"},
		right: []bool{false, false, true, true, false, true, true, false}, empty: "no port is congested"}
	for i := range now.Congestion {
		p := &now.Congestion[i]
		where, reader, by := "remote", "-", "-"
		if p.Local {
			where = "here"
		}
		if p.Local || p.ReaderPID != 0 {
			reader = fmt.Sprintf("pid %d (uid %d)", p.ReaderPID, p.ReaderUID)
		}
		detail := []string{fmt.Sprintf("port %s (%s) is congested for %s: %s has %s unread", p.Endpoint, where, plain.Duration(p.CongestedFor), reader, plain.Bytes(float64(p.QueuedBytes))),
			fmt.Sprintf("%d sockets here wait for it; %d sends were refused or had to wait", p.WaitingSenders, p.Blocked), "", "filled by:"}
		for k, c := range p.Culprits {
			if k == 0 {
				by = c.Source.String()
			}
			detail = append(detail, fmt.Sprintf("  %-30s %8d datagrams %10s", c.Source, c.QueuedDatagrams, plain.Bytes(float64(c.QueuedBytes))))
		}
		t.rows = append(t.rows, row{key: p.Endpoint.String(), cells: []cell{
			text(p.Endpoint.String()), text(where), lasted(p.CongestedFor), bytes(p.QueuedBytes), text(reader), number(p.WaitingSenders), number(p.Blocked), text(by),
		}, detail: as(detail)})
	}
	return t
}

func operations(ops []rdsd.VolumeOp) (detail []string, inFlight, failed uint64) {
	for _, o := range ops {
		inFlight, failed = inFlight+o.InFlight(), failed+o.Errors
		detail = append(detail, plain.Text(fmt.Sprintf("  %-14s %10d done, %d in flight, %d failed, %s; mean %s, p50 %s, p99 %s, p99.9 %s", o.Op, o.Completed, o.InFlight(), o.Errors,
			plain.Bytes(float64(o.Bytes)), plain.Duration(o.Mean()), plain.Duration(o.P50), plain.Duration(o.P99), plain.Duration(o.P999))))
	}
	return detail, inFlight, failed
}

func volumeTable(now *Shot) table {
	t := table{heads: []string{"volume", "sort", "state", "for", "size", "paths", "users", "in flight", "failed", "device", "last error"},
		right: []bool{false, false, false, true, true, true, true, true, true, false, false}, empty: "no volumes: nothing is exported and nothing is mapped"}
	size := func(i *rdsd.VolumeInfo) cell {
		if i == nil {
			return text("-")
		}
		return bytes(i.Size)
	}
	for _, m := range now.Mappings {
		detail, inFlight, failed := operations(m.Ops)
		t.rows = append(t.rows, row{key: "mapping " + m.ID, cells: []cell{
			text(m.Node + ":" + m.Name), text("mapping"), text(string(m.State)), lasted(m.StateFor), size(m.Info), {text: fmt.Sprintf("%d/%d", m.PathsUp, m.PathCount), order: float64(m.PathsUp)},
			number(m.Users), number(inFlight), number(failed), text(m.Device), text(m.LastError),
		}, detail: as(append([]string{
			plain.Text(fmt.Sprintf("mapping %s of %s:%s is %s for %s: %s", m.ID, m.Node, m.Name, m.State, plain.Duration(m.StateFor), cmp.Or(m.Device, "no device yet"))),
			plain.Text(fmt.Sprintf("session %s, policy %s, %d of %d paths up, %d requests wait; %s", m.Session, m.Policy, m.PathsUp, m.PathCount, m.Waiting, m.LastError)), "",
		}, detail...))})
	}
	for _, x := range now.Exports {
		detail, inFlight, failed := operations(x.Ops)
		t.rows = append(t.rows, row{key: "export " + x.Name, cells: []cell{
			text(x.Name), text("export"), text(string(x.State)), lasted(x.StateFor), size(x.Info), text("-"), number(len(x.Users)), number(inFlight), number(failed), text(x.Path), text(x.Error),
		}, detail: as(append([]string{plain.Text(fmt.Sprintf("export %s is %s for %s: %s %s", x.Name, x.State, plain.Duration(x.StateFor), x.Path, x.Error)), ""}, detail...))})
	}
	return t
}

func problemTable(now *Shot) table {
	t := table{heads: []string{"severity", "code", "subject", "since", "problem"}, right: []bool{false, false, false, true, false}, empty: "no problems"}
	rank := map[rdsd.Severity]float64{rdsd.SeverityError: 3, rdsd.SeverityWarning: 2, rdsd.SeverityNote: 1}
	for i, p := range now.Status.Problems {
		severity := text(string(p.Severity))
		severity.words, severity.order = "", rank[p.Severity]
		t.rows = append(t.rows, row{key: fmt.Sprint(p.Code, p.Subject, i), cells: []cell{severity, text(p.Code), text(p.Subject), lasted(p.Since), text(p.Text)},
			detail: as([]string{plain.Text(fmt.Sprintf("%s: %s: %s", p.Severity, p.Code, p.Subject)), "", plain.Text(p.Text), "", "to do: " + plain.Text(p.Remedy)})})
	}
	return t
}

// keep leaves the rows that have filter in some cell, in any case.
func (t *table) keep(filter string) {
	if filter == "" {
		return
	}
	filter = strings.ToLower(filter)
	t.rows = slices.DeleteFunc(t.rows, func(r row) bool {
		return !slices.ContainsFunc(r.cells, func(c cell) bool { return strings.Contains(strings.ToLower(c.text), filter) })
	})
}

// sort orders the rows by a column, numbers with the largest first; ties stay as the
// daemon has them. A column below 0 changes nothing.
func (t *table) sort(column int, reversed bool) {
	if column < 0 || column >= len(t.heads) {
		return
	}
	slices.SortStableFunc(t.rows, func(a, b row) int {
		x, y := a.cells[column], b.cells[column]
		c := cmp.Or(cmp.Compare(y.order, x.order), cmp.Compare(x.words, y.words))
		if reversed {
			return -c
		}
		return c
	})
}
