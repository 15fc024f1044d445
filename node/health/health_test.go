package health

import (
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/doctable"
)

var update = flag.Bool("update", false, "write the table of docs/operations.md anew")

var (
	here  = netip.MustParseAddr("10.0.0.1")
	there = netip.MustParseAddr("10.0.0.2")
	port  = netip.MustParseAddrPort("10.0.0.1:4000")
	far   = netip.MustParseAddrPort("10.0.0.2:4000")
)

func serving() *Node { return &Node{State: "serving"} }

func goodPeer() *Peer { return &Peer{Local: here, Remote: there, Allowed: true, Up: 8} }

func goodMapping() *Mapping {
	return &Mapping{ID: "v1", Node: "store", Name: "disk", Open: true, For: time.Hour, Paths: 2, Done: 9}
}

// with changes a good fact.
func with[T any](x *T, change func(*T)) *T { change(x); return x }

// a case of facts, and the problems there are because of them.
type examCase struct {
	name string
	tell func(*Exam)
	want []string // "severity code subject"
	text string   // in the first one's text
	mend string   // and remedy
}

var examCases = []examCase{
	{"all is well", func(x *Exam) {
		x.Node(&Node{State: "serving", Need: 10, Have: 10})
		x.Budget("sockets", 89, 100, 0)
		x.Budget("peers", 100, 100, 0)
		x.Budget("peers", 100, 100, Recent+1)
		x.Budget("memory_received", 100, 100, 0) // a part of memory
		x.Budget("exports", 0, 0, 0)
		x.Peer(goodPeer())
		x.Peer(&Peer{Local: here, Remote: there, Allowed: true}) // idle: nobody wants it
		x.Peer(&Peer{Local: here, Remote: there})                // taken away, and idle
		x.Peer(&Peer{Local: here, Remote: there, Failing: 8, FailingFor: time.Hour, Attempts: 9})
		x.Peer(with(goodPeer(), func(p *Peer) { p.Up, p.Failing, p.FailingFor, p.Attempts = 0, 8, Grace-1, 3 }))
		x.Port(&Port{Endpoint: port, Local: true, For: Grace - 1})
		x.Port(&Port{Endpoint: far, For: time.Hour}) // nobody here waits for it
		x.Mapping(goodMapping())
		x.Mapping(with(goodMapping(), func(m *Mapping) { m.Open, m.For = false, Grace-1 }))
		x.VolumePath(&VolumePath{Connected: true, For: time.Hour})
		x.VolumePath(&VolumePath{State: "reconnecting", For: Grace - 1})
		x.Export(&Export{Name: "disk", Done: 9})
		x.Export(&Export{Name: "disk", Done: 9, Errors: 1, FailedAgo: Recent + 1})
		x.Mapping(with(goodMapping(), func(m *Mapping) { m.Failed, m.FailedAgo = 1, Recent+1 }))
		x.Logged(&Logged{Message: "old", Age: Recent + 1, Count: 1})
	}, nil, "", ""},
	{"panicked", func(x *Exam) { x.Node(with(serving(), func(n *Node) { n.Panics = 2 })) }, []string{"error panicked "}, "2 panics", "bugreport"},
	{"draining", func(x *Exam) { x.Node(&Node{State: "draining"}) }, []string{"warning not-serving "}, "draining", "start rdsd"},
	{"state lost", func(x *Exam) {
		x.Node(with(serving(), func(n *Node) { n.StateLost = []Lost{{"no space left", "make room"}} }))
	}, []string{"error state-lost volumes.state_dir"}, "no space left", "make room"},
	{"lonely", func(x *Exam) { x.Node(with(serving(), func(n *Node) { n.Lonely = true })) }, []string{"warning no-peers-allowed [[peers]]"}, "no peer", "a line [[peers]]"},
	{"loopback", func(x *Exam) { x.Node(with(serving(), func(n *Node) { n.Loopback = true })) }, []string{"note loopback-only rds.addresses"}, "loopback", "rds.addresses = "},
	{"a variable that is none", func(x *Exam) {
		x.Node(with(serving(), func(n *Node) { n.Notes = []string{"RDSD_PROT names no configuration key and is ignored"} }))
	},
		[]string{"note unknown-setting RDSD_PROT"}, "names no configuration key", "config show"},
	{"insecure", func(x *Exam) { x.Node(with(serving(), func(n *Node) { n.Insecure = "10.0.0.1:9" })) }, []string{"note remote-insecure api.remote_listen"}, "10.0.0.1:9", `= ""`},
	{"no ledger", func(x *Exam) { x.Node(with(serving(), func(n *Node) { n.NoLedger = true })) }, []string{"note no-ledger api.ledger"}, "no ledger", "api.ledger"},
	{"no state and nothing to keep", func(x *Exam) { x.Node(with(serving(), func(n *Node) { n.NoVolumes = true })) }, nil, "", ""},
	{"no state", func(x *Exam) { x.Node(with(serving(), func(n *Node) { n.NoVolumes, n.Volumes = true, 1 })) }, []string{"note no-volume-state volumes.state_dir"}, "nothing persists", "volumes.state_dir ="},
	{"descriptors that the configuration bounds", func(x *Exam) { x.Node(with(serving(), func(n *Node) { n.Need, n.Have, n.Capped = 101, 100, true })) },
		[]string{"note descriptors-short limits.max_descriptors"}, "101", "limits.max_descriptors = 0 in the configuration, and LimitNOFILE=101"},
	{"descriptors", func(x *Exam) { x.Node(with(serving(), func(n *Node) { n.Need, n.Have = 101, 100 })) }, []string{"note descriptors-short limits.max_descriptors"}, "101", "LimitNOFILE=101"},
	{"nearly full", func(x *Exam) { x.Budget("sockets", 90, 100, 0) }, []string{"warning limit-near limits.max_sockets"}, "90 of 100", "rdsd sockets"},
	{"a share of the memory", func(x *Exam) {
		x.Holder("uid 7", 170<<20)
		x.Budget("memory", 172<<20, 256<<20, 0)
		x.Budget("memory_sending", 170<<20, 192<<20, 3*time.Second)
		x.Budget("memory_stores", 10, 100, Recent+1)
	}, []string{"warning limit-reached limits.memory_bytes"}, "refused 3s ago (memory_sending, of which 170.0 MiB of 192.0 MiB are used): it is spent, or one user or peer has its share of what is free, and uid 7 holds most of all, 170.0 MiB", "limits.memory_bytes"},
	{"a peer was refused", func(x *Exam) { x.Budget("peers", 150, 200, time.Minute) }, []string{"error limit-reached limits.max_peers"}, "150 of 200", "rdsd peers"},
	{"full", func(x *Exam) { x.Budget("memory", 3<<30, 3<<30, 0) }, []string{"error limit-reached limits.memory_bytes"}, "3.0 GiB of 3.0 GiB", "limits.memory_bytes"},
	{"a peer that nobody waits for", func(x *Exam) {
		x.Peer(&Peer{Local: here, Remote: there, Allowed: true, Failing: 1, FailingFor: Grace, Attempts: 3, LastError: "dial: connection refused"})
	}, []string{"warning peer-down peer 10.0.0.2"}, "3 attempts for 1s, the last error: dial: connection refused", "start rdsd on 10.0.0.2"},
	{"a peer that somebody waits for", func(x *Exam) {
		x.Peer(&Peer{Local: here, Remote: there, Allowed: true, Failing: 8, FailingFor: 2 * time.Minute, Attempts: 1, Waiting: 1})
	}, []string{"error peer-down peer 10.0.0.2"}, "1 attempt for 2m0s, the last error: no answer; 1 datagram waiting", "rdsd ping 10.0.0.2"},
	{"a lane", func(x *Exam) {
		x.Peer(with(goodPeer(), func(p *Peer) {
			p.Up, p.Failing, p.FailingFor, p.Attempts, p.LastError = 5, 3, time.Minute, 9, "i/o timeout"
		}))
	}, []string{"warning peer-partly-up peer 10.0.0.2"}, "5 of 8 lanes", "rds.port"},
	{"a peer that a reload took away", func(x *Exam) { x.Peer(with(goodPeer(), func(p *Peer) { p.Allowed = false })) },
		[]string{"error peer-not-allowed peer 10.0.0.2"}, "not allow", `address = "10.0.0.2"`},
	{"a kernel", func(x *Exam) {
		x.Peer(&Peer{Local: here, Remote: there, Allowed: true, Failing: 1, LastError: "the peer is a kernel, and kernel peers are not allowed at this address"})
	}, []string{"error kernel-not-allowed peer 10.0.0.2"}, "is a kernel", "kernel = true"},
	{"a paused link", func(x *Exam) { x.Peer(with(goodPeer(), func(p *Peer) { p.Paused = 1 })) }, []string{"warning link-paused peer 10.0.0.2"}, "1 link of 10.0.0.2 is", "sockets close"},
	{"refused", func(x *Exam) {
		x.Logged(&Logged{Message: "connection refused", Peer: "10.0.0.9", Error: "no rule", Age: Recent, Count: 3})
	},
		[]string{"warning peer-refused peer 10.0.0.9"}, "10m0s ago: no rule", `address = "10.0.0.9"`},
	{"a port here", func(x *Exam) {
		x.Port(&Port{Endpoint: port, Local: true, For: Grace, Queued: 70000, PID: 77, UID: 1000, Label: "db", Culprit: far})
	}, []string{"warning port-congested port 10.0.0.1:4000"}, `for 1s: "db", pid 77 (uid 1000) does not read fast enough, 68.4 KiB wait, most from 10.0.0.2:4000`, "sockets close 10.0.0.1:4000"},
	{"a port here, for long", func(x *Exam) { x.Port(&Port{Endpoint: port, Local: true, For: LongCongested}) }, []string{"error port-congested port 10.0.0.1:4000"}, "its reader", "have the program read"},
	{"a port there", func(x *Exam) { x.Port(&Port{Endpoint: far, For: time.Hour, Waiting: 2, PID: 5}) },
		[]string{"warning remote-port-congested port 10.0.0.2:4000"}, "pid 5 (uid 0) does not read fast enough; 2 sockets here waiting", "on 10.0.0.2"},
	{"a mapping that is not open", func(x *Exam) {
		x.Mapping(with(goodMapping(), func(m *Mapping) { m.Open, m.Why, m.Mend = false, "store does not have it", "export it there" }))
	}, []string{"error mapping-down mapping v1"}, "store does not have it", "export it there"},
	{"one path", func(x *Exam) { x.Mapping(with(goodMapping(), func(m *Mapping) { m.Paths = 1 })) }, []string{"note one-path mapping v1"}, "one path", "paths add"},
	{"a mapping whose store is slow", func(x *Exam) {
		x.Mapping(with(goodMapping(), func(m *Mapping) { m.Stalled, m.Limit = 29*time.Second, 30*time.Second }))
	}, []string{"warning volume-stalled mapping v1"}, "a request to store:disk has not been answered for 29s", "on store"},
	{"an export whose store stands still", func(x *Exam) {
		x.Export(&Export{Name: "disk", Path: "/dev/sdz", Stalled: 30 * time.Second, Limit: 30 * time.Second})
	}, []string{"error volume-stalled export disk"}, "not completed for 30s", "/dev/sdz"},
	{"failed requests", func(x *Exam) {
		x.Mapping(with(goodMapping(), func(m *Mapping) { m.Failed, m.FailedAgo, m.RequestError = 1, Recent, "it is full" }))
	}, []string{"warning volume-errors mapping v1"}, "1 of 9 requests failed since it was mapped, the last 10m0s ago; the last error: it is full", "volume events --kept"},
	{"a lost sync", func(x *Exam) {
		x.Mapping(with(goodMapping(), func(m *Mapping) { m.Failed, m.FailedAgo, m.SyncLost = 1, Recent+1, true }))
	}, []string{"warning volume-errors mapping v1"}, "no flush succeeds", "unmap v1 and map it anew"},
	{"an export without a place", func(x *Exam) {
		x.Export(&Export{Name: "disk", Path: "/d", Failed: true, Error: "there are 1 exports", Why: "it was not taken up", Mend: "raise volumes.max_exports"})
	}, []string{"error export-failed export disk"}, "it was not taken up", "raise volumes.max_exports"},
	{"failed requests of an export", func(x *Exam) { x.Export(&Export{Name: "disk", Errors: 2, Done: 2}) }, []string{"warning volume-errors export disk"}, "2 of 2 requests failed since its store was opened", "volume events"},
	{"a path", func(x *Exam) {
		x.VolumePath(&VolumePath{Session: "s", Src: "a", Dst: "b", State: "reconnecting", For: Grace, LastError: "refused", Mend: "see to port 16388"})
	}, []string{"warning volume-path-down session s"}, "from a to b is reconnecting for 1s: refused", "16388"},
	{"a failover without a fence", func(x *Exam) { x.Session(&Session{Name: "s", Unfenced: 2, At: "after 40s"}) },
		[]string{"note unfenced-failovers session s"}, "2 times it went to another path, after 40s", "sessions set s --unfenced wait"},
	{"an export", func(x *Exam) {
		x.Export(&Export{Name: "disk", Path: "/dev/sdz", Failed: true, Error: "no such device"})
	},
		[]string{"error export-failed export disk"}, "no such device", "/dev/sdz"},
	{"the log", func(x *Exam) {
		x.Logged(&Logged{Message: "sd_notify failed", Error: "broken", Age: 3 * time.Second, Count: 9})
		x.Logged(&Logged{Message: "older", Age: time.Minute, Count: 1})
	}, []string{"note log-errors log"}, "2 distinct warnings or errors were logged in the last ten minutes, the last 3s ago: sd_notify failed: broken", "rdsd errors"},
	{"the worst first", func(x *Exam) {
		x.Node(with(serving(), func(n *Node) { n.Loopback, n.Lonely, n.Panics = true, true, 1 }))
		x.Port(&Port{Endpoint: port, Local: true, For: LongCongested})
	}, []string{"error panicked ", "error port-congested port 10.0.0.1:4000", "warning no-peers-allowed [[peers]]", "note loopback-only rds.addresses"}, "", ""},
}

// TestProblems: each fact and what it makes, and each code by some fact.
func TestProblems(t *testing.T) {
	made := map[Code]bool{}
	for _, c := range examCases {
		var x Exam
		c.tell(&x)
		list := x.Problems()
		var got []string
		for _, p := range list {
			made[p.Code] = true
			got = append(got, fmt.Sprintf("%v %v %s", p.Severity, p.Code, p.Subject))
			if p.Text == "" || p.Remedy == "" {
				t.Errorf("%s: %+v has no text or no remedy", c.name, p)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
			continue
		}
		if len(list) > 0 && (!strings.Contains(list[0].Text, c.text) || !strings.Contains(list[0].Remedy, c.mend)) {
			t.Errorf("%s: %+v; want %q and %q in it", c.name, list[0], c.text, c.mend)
		}
		if again := x.Problems(); len(again) != len(list) {
			t.Errorf("%s: asked again, there are %d problems and not %d", c.name, len(again), len(list))
		}
		worst := OK
		for _, p := range list {
			worst = max(worst, p.Severity)
		}
		if Worst(list) != worst || Healthy(list) != (worst < Warning) {
			t.Errorf("%s: the worst is %v, healthy %v", c.name, Worst(list), Healthy(list))
		}
	}
	for _, c := range Codes() {
		if !made[c] {
			t.Errorf("no fact here makes %v", c)
		}
	}
}

// TestBounded: of many problems of a code the worst are listed, whatever order they come
// in, and the others counted.
func TestBounded(t *testing.T) {
	for _, rising := range []bool{true, false} {
		var x Exam
		const n = 1000
		for i := range n {
			k := i
			if !rising {
				k = n - 1 - i
			}
			d := Grace + time.Duration(k)*time.Second
			if !rising && i >= PerCode && x.Lists(true, d) {
				t.Fatalf("one of %v would be listed behind %d that last longer", d, i)
			}
			x.Port(&Port{Endpoint: netip.AddrPortFrom(here, uint16(k)), Local: true, For: d})
		}
		list := x.Problems()
		if len(list) != PerCode+1 {
			t.Fatalf("rising %v: %d problems", rising, len(list))
		}
		for i, p := range list[:PerCode] {
			if p.Since != Grace+time.Duration(n-1-i)*time.Second {
				t.Errorf("rising %v: number %d has lasted %v", rising, i, p.Since)
			}
		}
		if last := list[PerCode]; !strings.HasPrefix(last.Text, "992 more like these") || last.Severity != Error || last.Code != PortCongested {
			t.Errorf("rising %v: the rest are %+v", rising, last)
		}
	}
	var x Exam // an error behind warnings takes the place of one
	for i := range 2 * PerCode {
		x.Peer(&Peer{Remote: there, Allowed: true, Failing: 1, FailingFor: time.Hour, Waiting: uint64(i / (2*PerCode - 1))})
	}
	if list := x.Problems(); list[0].Severity != Error || list[PerCode].Severity != Warning {
		t.Errorf("%+v", list)
	}
}

// TestCodes: the names are of one form and different, and the remedies of errors are
// found by what the kernel and package conn say.
func TestCodes(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Codes() {
		d := c.Describe()
		if seen[d.Name] || d.Name == "" || strings.Trim(d.Name, "abcdefghijklmnopqrstuvwxyz-") != "" || d.Severity == "" || d.Means == "" || d.Mend == "" {
			t.Errorf("%+v", d)
		}
		seen[d.Name] = true
	}
	for reason, want := range map[string]string{
		"dial tcp 10.0.0.2:16385: connect: connection refused": "start rdsd on P",
		"connect: no route to host":                            "ip route get",
		"connect: network is unreachable":                      "ip route get",
		"connect: connection timed out":                        "firewall",
		"poked, but the peer did not connect":                  "P has to connect",
		"the configuration does not allow this peer any more":  "[[peers]] rule for this node in the configuration of P",
		"read: connection reset by peer":                       "P closes the connection",
		"our address was taken from this node":                 "ip addr add",
		"bind: cannot assign requested address":                "rds.addresses",
		"something else":                                       "rdsd ping P",
	} {
		if got := remedy(reason, "P"); !strings.Contains(got, want) || strings.Contains(got, "%") {
			t.Errorf("%s: %s", reason, got)
		}
	}
}

// TestTable: docs/operations.md has the codes as they are; -update writes them.
func TestTable(t *testing.T) {
	var b strings.Builder
	b.WriteString("| code | severity | what is so | what mends it |\n| --- | --- | --- | --- |\n")
	for _, c := range Codes() {
		d := c.Describe()
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Severity, d.Means, d.Mend)
	}
	doctable.Check(t, "../../docs/operations.md", "./node/health -run TestTable -update", *update, doctable.Table{Name: "problems", Text: b.String()})
}
