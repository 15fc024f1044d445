package health

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/rdsd/rdsd/internal/plain"
)

// Peer is a peer of a local address, summed up over its paths.
type Peer struct {
	Local, Remote netip.Addr
	Allowed       bool // by the configuration as it is now
	Up            int  // paths that are up
	Failing       int  // paths of which attempts fail
	FailingFor    time.Duration
	LastError     string // of a path that is failing
	Attempts      int    // of that path, in a row
	Paused        int    // paths whose link is not read because of a full receiver
	Waiting       uint64 // datagrams not sent, or not acknowledged, before a congested port too
}

// cause is a sort of failure that the text of an error tells, and what mends it. The
// texts are those of Linux and of package conn.
type cause struct{ part, mend string }

var causes = []cause{
	{"kernel peers are not allowed", ""}, // of KernelNotAllowed
	{"connection refused", "nobody listens there: start rdsd on %s (systemctl start rdsd), or modprobe rds_tcp for a kernel; and see that rds.port is the same on both nodes"},
	{"no route to host", "there is no way to %s: ip route get, the cable, a firewall that rejects"},
	{"network is unreachable", "there is no way to %s: ip route get, and an address of that family on this machine"},
	{"timed out", "%s does not answer: ping it; if it does, a firewall drops the TCP port of rds.port"},
	{"timeout", "%s does not answer: ping it; if it does, a firewall drops the TCP port of rds.port"},
	{"poked", "%s has to connect to this node and does not: rdsd peers there; a firewall that drops the TCP port of rds.port here; a [[peers]] rule there for this node"},
	{"not allow", "a [[peers]] rule for this node in the configuration of %s"},
	{"reset by peer", "%s closes the connection: a [[peers]] rule there for this node; rdsd errors there"},
	{"address was taken", "give the address back to this machine (ip addr add), or take it out of rds.addresses"},
	{"cannot assign requested address", "the local address is not on this machine: ip addr, then rds.addresses"},
}

// remedy is what mends a path that failed for a reason.
func remedy(reason, peer string) string {
	for _, c := range causes {
		if strings.Contains(reason, c.part) {
			if strings.Contains(c.mend, "%s") {
				return fmt.Sprintf(c.mend, peer)
			}
			return c.mend
		}
	}
	return fmt.Sprintf("see that rdsd runs on %s, that the TCP port of rds.port is open both ways, and that each node has a [[peers]] rule for the other; rdsd ping %s", peer, peer)
}

// rule is how an address is allowed. A second rule for the very same one is refused, and so is a
// table's name with a key on its line: what is said here has to load as it is said.
func rule(address string) string {
	return fmt.Sprintf("in the configuration a line [[peers]] and below it a line address = %q (or without its deny, if a rule has just that), then systemctl reload rdsd", address)
}

// Peer tells of one.
func (x *Exam) Peer(p *Peer) {
	peer := p.Remote.String()
	out := Problem{Subject: "peer " + peer, Since: p.FailingFor}
	if !p.Allowed {
		if p.Up == 0 && p.Waiting == 0 {
			return // it is remembered, and nobody wants anything of it
		}
		out.Code, out.Severity = PeerNotAllowed, Error
		out.Text = "the configuration does not allow " + peer + " as a peer, and "
		if p.Waiting > 0 {
			out.Text += was(int(p.Waiting), "datagram", "datagrams") + " waiting for it"
		} else {
			out.Text += "there is a link to it"
		}
		out.Remedy = rule(peer)
		x.add(out)
		return
	}
	if p.Failing > 0 && strings.Contains(p.LastError, causes[0].part) {
		out.Code, out.Severity = KernelNotAllowed, Error
		out.Text = peer + " is a kernel: " + p.LastError
		out.Remedy = fmt.Sprintf("kernel = true in the [[peers]] rule that has %s (rdsd config show --running has them all), then systemctl reload rdsd", peer)
		x.add(out)
		return
	}
	if p.Failing > 0 && p.FailingFor >= Grace {
		x.failing(p, out)
	}
	if p.Paused > 0 {
		x.add(Problem{Code: LinkPaused, Severity: Warning, Subject: "peer " + peer, Text: was(p.Paused, "link of "+peer, "links of "+peer) + " not read: a port here is full, and all that comes on the link waits for it",
			Remedy: "rdsd congestion names the port and its program, which has to read; or rdsd sockets close"})
	}
}

// failing tells of a peer with paths that cannot be made.
func (x *Exam) failing(p *Peer, out Problem) {
	why := p.LastError
	if why == "" {
		why = "no answer"
	}
	tried := fmt.Sprintf("%s for %s, %s: %s", count(uint64(p.Attempts), "attempt"), lasted(p.FailingFor), "the last error", why)
	out.Remedy = remedy(p.LastError, p.Remote.String())
	if p.Up > 0 {
		out.Code, out.Severity = PeerPartlyUp, Warning
		out.Text = fmt.Sprintf("%d of %d lanes to %s are up; of the others, %s", p.Up, p.Up+p.Failing, p.Remote, tried)
		x.add(out)
		return
	}
	out.Code, out.Severity = PeerDown, Warning
	out.Text = fmt.Sprintf("%s cannot be reached: %s", p.Remote, tried)
	if p.Waiting > 0 {
		out.Severity = Error
		out.Text += "; " + count(p.Waiting, "datagram") + " waiting"
	}
	x.add(out)
}

func was(n int, one, more string) string {
	if n == 1 {
		return "1 " + one + " is"
	}
	return fmt.Sprintf("%d %s are", n, more)
}

// LongCongested is from when on a congested port of this node is an error.
const LongCongested = time.Minute

// Port is a congested port.
type Port struct {
	Endpoint netip.AddrPort
	Local    bool // of this node
	Held     bool // of this node, and of nobody since a restart
	Away     bool // of a node that cannot be reached: it was congested when that was last heard of
	For      time.Duration
	Queued   uint64 // bytes; 0: not known
	PID, UID uint32 // who ought to read; PID 0: not known
	Label    string
	Culprit  netip.AddrPort // who fills it most; not valid: not known
	Waiting  int            // sockets of this node that wait for it
}

// Lists reports whether a port that has been congested for so long would be listed,
// and not only counted: of the others nobody need know who fills them.
func (x *Exam) Lists(local bool, d time.Duration) bool {
	f := &x.found[RemoteCongested]
	if local {
		f = &x.found[PortCongested]
	}
	return len(f.worst) < PerCode || d > f.worst[PerCode-1].Since
}

// Port tells of one.
func (x *Exam) Port(p *Port) {
	if p.For < Grace {
		return
	}
	if !p.Local && p.Waiting == 0 {
		return // nobody here minds; it is a problem of the node it is on
	}
	out := Problem{Code: RemoteCongested, Severity: Warning, Since: p.For}
	if p.Local {
		out.Code = PortCongested
		if p.For >= LongCongested {
			out.Severity = Error
		}
	}
	// There may be thousands of them: texts are made of those that are listed.
	if !x.Lists(p.Local, p.For) {
		f := &x.found[out.Code]
		f.more++
		f.least = max(f.least, out.Severity)
		return
	}
	out.Subject = "port " + p.Endpoint.String()
	x.add(p.congested(out))
}

// congested says of a port that is listed who holds it up. That need not be its reader.
func (p *Port) congested(out Problem) Problem {
	reader := "its reader"
	if p.PID != 0 {
		reader = fmt.Sprintf("pid %d (uid %d)", p.PID, p.UID)
		if p.Label != "" {
			reader = fmt.Sprintf("%q, pid %d (uid %d)", p.Label, p.PID, p.UID)
		}
	}
	waiting := fmt.Sprintf("; %s here waiting", count(uint64(p.Waiting), "socket"))
	switch {
	case p.Held:
		out.Text = fmt.Sprintf("%s counts as congested for %s: it is held for the user who had it before the restart, and nobody has bound it again", p.Endpoint, lasted(p.For))
		out.Remedy = "start its program again; after rds.restart_hold it is given up by itself"
		return out
	case p.Away:
		out.Text = fmt.Sprintf("%s was congested when %s was last heard of, and there is no link to it now: nobody here knows whether its program reads%s", p.Endpoint, p.Endpoint.Addr(), waiting)
		out.Remedy = fmt.Sprintf("see to %s first: rdsd peers --paths --remote %s; here, to give up what waits: rdsd cancel --from ADDR:PORT --to %s", p.Endpoint.Addr(), p.Endpoint.Addr(), p.Endpoint)
		return out
	}
	out.Text = fmt.Sprintf("%s is congested for %s: %s does not read fast enough", p.Endpoint, lasted(p.For), reader)
	if p.Queued > 0 {
		out.Text += fmt.Sprintf(", %s wait", plain.Bytes(float64(p.Queued)))
	}
	if p.Culprit.IsValid() {
		out.Text += fmt.Sprintf(", most from %s", p.Culprit)
	}
	if p.Local {
		out.Remedy = fmt.Sprintf("have the program read; or rdsd sockets close %s; rdsd congestion shows who fills it", p.Endpoint)
		return out
	}
	out.Text += waiting
	out.Remedy = fmt.Sprintf("on %s: rdsd congestion, and have the program read; here, to give up what waits: rdsd cancel --from ADDR:PORT --to %s", p.Endpoint.Addr(), p.Endpoint)
	return out
}
