package health

import (
	"fmt"
	"strings"
	"time"

	"github.com/rdsd/rdsd/internal/plain"
)

// Lost says why what is persistent is lost, or is not kept, and what mends that.
type Lost struct{ Why, Mend string }

// Node is the daemon as a whole and what its configuration says.
type Node struct {
	State     string // "serving" is as it should be
	Panics    uint64 // that were contained
	StateLost []Lost // of what is persistent of volumes

	Lonely     bool     // addresses beyond loopback, and nobody beyond it is allowed
	Loopback   bool     // loopback addresses alone
	Notes      []string // of the loader of the configuration
	Insecure   string   // where remote clients connect without identity; "": nowhere
	NoLedger   bool
	NoVolumes  bool   // no directory for what is persistent of volumes
	Volumes    uint64 // exports and mappings there are
	Need, Have uint64 // file descriptors; Have 0: not known
	Capped     bool   // limits.max_descriptors says how many there are, and not the system
}

// Node tells of the daemon as a whole.
func (x *Exam) Node(n *Node) {
	if n.State != "serving" {
		x.add(Problem{Code: NotServing, Severity: Warning, Text: "the daemon is " + n.State, Remedy: "wait until it has started; once it has stopped: systemctl start rdsd"})
	}
	if n.Panics > 0 {
		x.add(Problem{Code: Panicked, Severity: Error, Text: count(n.Panics, "panic") + " contained since the daemon started: a bug",
			Remedy: "rdsd bugreport, and report it with the stack from the log; it is told until the daemon starts anew"})
	}
	for _, l := range n.StateLost {
		x.add(Problem{Code: StateLost, Severity: Error, Subject: "volumes.state_dir", Text: l.Why, Remedy: l.Mend})
	}
	if n.Have > 0 && n.Need > n.Have {
		raise := fmt.Sprintf("LimitNOFILE=%d in the unit file (systemctl edit rdsd)", n.Need)
		if n.Capped { // which the system's alone would not change, and which must not be above that
			raise = "limits.max_descriptors = 0 in the configuration, and " + raise
		}
		x.add(Problem{Code: DescriptorsShort, Severity: Note, Subject: "limits.max_descriptors",
			Text:   fmt.Sprintf("the limits allow what needs %d file descriptors, and there are %d", n.Need, n.Have),
			Remedy: raise + ", or lower limits.max_clients and limits.max_peers"})
	}
	x.configuration(n)
}

// configuration tells what the configuration lacks.
func (x *Exam) configuration(n *Node) {
	if n.Lonely {
		x.add(Problem{Code: NoPeers, Severity: Warning, Subject: "[[peers]]", Text: "no peer beyond loopback is allowed",
			Remedy: `in the configuration a line [[peers]] and below it a line address = "10.0.0.0/24" (the network of the other nodes), then systemctl reload rdsd`})
	}
	if n.Loopback {
		x.add(Problem{Code: LoopbackOnly, Severity: Note, Subject: "rds.addresses", Text: "the daemon serves loopback addresses alone: other nodes cannot reach it",
			Remedy: `in the configuration: rds.addresses = ["10.0.0.1"] (an address of this machine), and a [[peers]] rule for the others`})
	}
	for _, note := range n.Notes {
		name, _, _ := strings.Cut(note, " ")
		x.add(Problem{Code: UnknownSetting, Severity: Note, Subject: name, Text: note, Remedy: "rdsd config show names the keys there are, docs/operations.md their variables"})
	}
	if n.Insecure != "" {
		x.add(Problem{Code: RemoteInsecure, Severity: Note, Subject: "api.remote_listen", Text: "remote clients at " + n.Insecure + " are neither encrypted nor identified",
			Remedy: `api.remote_listen = "" in the configuration, unless the network is trusted`})
	}
	if n.NoLedger {
		x.add(Problem{Code: NoLedger, Severity: Note, Subject: "api.ledger", Text: "there is no ledger: after a restart no port is held for its owner, and kernels are not connected to again",
			Remedy: `api.ledger = "" in the configuration: a file beside the socket`})
	}
	if n.NoVolumes && n.Volumes > 0 {
		x.add(Problem{Code: NoVolumeState, Severity: Note, Subject: "volumes.state_dir", Text: "nothing persists: exports and mappings made by commands are gone when the daemon ends",
			Remedy: `volumes.state_dir = "/var/lib/rdsd" in the configuration`})
	}
}

// limits are the keys of the configuration that set the budgets, and who shows what
// uses one.
var limits = map[string]struct {
	key, look string
	reload    bool // it takes effect while the daemon runs
}{
	"memory":      {"limits.memory_bytes", "rdsd status shows what holds it", false},
	peersBudget:   {"limits.max_peers", "rdsd peers", false},
	"sockets":     {"limits.max_sockets", "rdsd sockets", false},
	"clients":     {"limits.max_clients", "rdsd sockets", true},
	"handshakes":  {"limits.max_handshakes", "ss -tn shows who connects to rds.port and says nothing", true},
	"descriptors": {"limits.max_descriptors", "rdsd sockets; where the key is 0, LimitNOFILE= in the unit file is the limit", false},
	"exports":     {"volumes.max_exports", "rdsd volume ls", false},
	"mappings":    {"volumes.max_mappings", "rdsd volume ls", false},
}

// Limits tells of each key that Budget names whether a change of it takes effect while the daemon
// runs.
func Limits() map[string]bool {
	m := map[string]bool{}
	for _, l := range limits {
		m[l.key] = l.reload
	}
	return m
}

// raise is what mends a limit that is spent.
func raise(name string) string {
	l, how := limits[name], "restart"
	if l.reload {
		how = "reload"
	}
	return fmt.Sprintf("raise %s and systemctl %s rdsd, or find who uses it: %s", l.key, how, l.look)
}

// peersBudget is the one whose places are given up only when others want them: that it is
// full says nothing, before nobody rests and one is refused.
const peersBudget = "peers"

// Budget tells how much of a limit is used, and how long ago it refused something; 0: it
// did not, or that is not known. Those of memory are parts of it, of which one user or
// peer has a share: that they are full says nothing, before they refuse. Others of no key of the configuration say nothing.
func (x *Exam) Budget(name string, used, limit uint64, refused time.Duration) {
	l, ok := limits[name]
	if strings.HasPrefix(name, "memory_") {
		x.memoryRefused(name, used, limit, refused)
		return
	}
	if name == peersBudget {
		if refused > 0 && refused <= Recent {
			x.add(Problem{Code: LimitReached, Severity: Error, Subject: l.key,
				Text:   fmt.Sprintf("a peer was refused %s ago, because there were as many as may be of a local address and none rested; %d of %d are known (%s)", lasted(refused), used, limit, name),
				Remedy: raise(name)})
		}
		return
	}
	if !ok || limit == 0 || used < limit-limit/10 {
		return
	}
	p := Problem{Code: LimitNear, Severity: Warning, Subject: l.key, Remedy: raise(name)}
	shown := [2]string{fmt.Sprint(used), fmt.Sprint(limit)}
	if name == "memory" {
		shown = [2]string{plain.Bytes(float64(used)), plain.Bytes(float64(limit))}
	}
	p.Text = fmt.Sprintf("%s of %s are used (%s)", shown[0], shown[1], name)
	if used >= limit {
		p.Code, p.Severity = LimitReached, Error
		p.Text += ": more is refused"
	}
	x.add(p)
}

// Holder tells who holds most of the memory, before Budget is told of it.
func (x *Exam) Holder(who string, bytes uint64) {
	x.holder = fmt.Sprintf(", and %s holds most of all, %s", who, plain.Bytes(float64(bytes)))
}

// memoryRefused tells of a part of the memory that refused something. That may be long before all of the memory is
// used: a user's datagrams may take no more than twice what is free.
func (x *Exam) memoryRefused(name string, used, limit uint64, ago time.Duration) {
	if ago == 0 || ago > Recent {
		return
	}
	x.add(Problem{Code: LimitReached, Severity: Warning, Subject: limits["memory"].key,
		Text: fmt.Sprintf("memory was refused %s ago (%s, of which %s of %s are used): it is spent, or one user or peer has its share of what is free%s",
			lasted(ago), name, plain.Bytes(float64(used)), plain.Bytes(float64(limit)), x.holder),
		Remedy: raise("memory")})
}

// Recent is how long a line of the log is news, a refusal, and a request that failed.
const Recent = 10 * time.Minute

// Logged is a distinct warning or error of the log.
type Logged struct {
	Message string
	Error   string        // why; may be ""
	Peer    string        // the address it is about; may be ""
	Age     time.Duration // of the last line
	Count   uint64
}

// logged sums up what was logged.
type logged struct {
	distinct uint64
	last     Logged
}

// refusals are the messages of connections that were refused.
var refusals = map[string]string{"connection refused": "RDS", "connection for volumes refused": "volumes"}

// Logged tells of one.
func (x *Exam) Logged(l *Logged) {
	if l.Age > Recent {
		return
	}
	if what := refusals[l.Message]; what != "" && l.Peer != "" {
		x.add(Problem{Code: PeerRefused, Severity: Warning, Subject: "peer " + l.Peer, Text: fmt.Sprintf("a connection for %s from %s was refused %s ago: %s", what, l.Peer, lasted(l.Age), l.Error),
			Remedy: "if it is to be a peer, " + rule(l.Peer)})
		return
	}
	if x.log.distinct == 0 || l.Age < x.log.last.Age {
		x.log.last = *l
	}
	x.log.distinct++
}

func (x *Exam) logProblem() {
	if x.log.distinct == 0 {
		return
	}
	text := x.log.last.Message
	if x.log.last.Error != "" {
		text += ": " + x.log.last.Error
	}
	x.found[LogErrors] = found{}
	x.add(Problem{Code: LogErrors, Severity: Note, Subject: "log", Text: fmt.Sprintf("%d distinct warnings or errors were logged in the last ten minutes, the last %s ago: %s",
		x.log.distinct, lasted(x.log.last.Age), text), Remedy: "rdsd errors"})
}
