package health

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

// said are facts at their edges, one side and the other. testdata/said.txt has what is
// said of each, word by word, and whether it is said at all; -update writes it.
var said = []struct {
	name string
	tell func(*Exam)
}{
	{"0 descriptors known", func(x *Exam) { x.Node(&Node{State: "serving", Need: 10}) }},
	{"1 descriptor of 2", func(x *Exam) { x.Node(&Node{State: "serving", Need: 2, Have: 1}) }},
	{"9 descriptors of 10", func(x *Exam) { x.Node(&Node{State: "serving", Need: 10, Have: 9}) }},
	{"10 descriptors of 10", func(x *Exam) { x.Node(&Node{State: "serving", Need: 10, Have: 10}) }},
	{"1 panic", func(x *Exam) { x.Node(&Node{State: "serving", Panics: 1}) }},
	{"2 panics, and it drains", func(x *Exam) { x.Node(&Node{State: "draining", Panics: 2}) }},
	{"all that a configuration may lack", func(x *Exam) {
		x.Node(&Node{State: "serving", StateLost: []Lost{{"what is persistent cannot be written down: no space", "make room"}}, Lonely: true, Loopback: true, Notes: []string{"RDSD_X names no key", "one"}, Insecure: "10.0.0.1:1", NoLedger: true, NoVolumes: true, Volumes: 1})
	}},
	{"no volumes, of which nothing persists", func(x *Exam) { x.Node(&Node{State: "serving", NoVolumes: true}) }},
	{"volumes that persist", func(x *Exam) { x.Node(&Node{State: "serving", Volumes: 1}) }},

	{"a table that is full", func(x *Exam) { x.Budget("peers", 100, 100, 0) }},
	{"a peer was refused", func(x *Exam) { x.Budget("peers", 100, 100, time.Minute) }},
	{"89 of 100", func(x *Exam) { x.Budget("sockets", 89, 100, 0) }},
	{"90 of 100", func(x *Exam) { x.Budget("sockets", 90, 100, 0) }},
	{"99 of 100", func(x *Exam) { x.Budget("sockets", 99, 100, 0) }},
	{"100 of 100", func(x *Exam) { x.Budget("clients", 100, 100, 0) }},
	{"101 of 100", func(x *Exam) { x.Budget("handshakes", 101, 100, 0) }},
	{"84 descriptors of 84", func(x *Exam) { x.Budget("descriptors", 84, 84, 0) }},
	{"8 of 9", func(x *Exam) { x.Budget("exports", 8, 9, 0) }},
	{"9 of 9", func(x *Exam) { x.Budget("mappings", 9, 9, 0) }},
	{"0 of 0", func(x *Exam) { x.Budget("sockets", 0, 0, 0) }},
	{"1 of 1", func(x *Exam) { x.Budget("sockets", 1, 1, 0) }},
	{"0 of 1", func(x *Exam) { x.Budget("sockets", 0, 1, 0) }},
	{"memory", func(x *Exam) { x.Budget("memory", 245<<20, 256<<20, 0) }},
	{"a part of another", func(x *Exam) { x.Budget("memory_received", 100, 100, 0) }},

	{"a peer that is not allowed", func(x *Exam) { x.Peer(&Peer{Remote: there, Up: 8}) }},
	{"a kernel", func(x *Exam) {
		x.Peer(&Peer{Remote: there, Allowed: true, Failing: 1, LastError: "kernel peers are not allowed here"})
	}},
	{"a kernel that was one", func(x *Exam) {
		x.Peer(&Peer{Remote: there, Allowed: true, Up: 1, LastError: "kernel peers are not allowed here"})
	}},
	{"down for a moment less", func(x *Exam) {
		x.Peer(&Peer{Remote: there, Allowed: true, Failing: 8, FailingFor: Grace - 1, Attempts: 2})
	}},
	{"down for a moment", func(x *Exam) {
		x.Peer(&Peer{Remote: there, Allowed: true, Failing: 8, FailingFor: Grace, Attempts: 1})
	}},
	{"down, and one waits", func(x *Exam) {
		x.Peer(&Peer{Remote: there, Allowed: true, Failing: 8, FailingFor: time.Minute, Attempts: 9, LastError: "connection refused", Waiting: 1})
	}},
	{"down, and two wait", func(x *Exam) {
		x.Peer(&Peer{Remote: there, Allowed: true, Failing: 1, FailingFor: time.Minute + 400*time.Millisecond, Attempts: 9, LastError: "read: connection reset by peer", Waiting: 2})
	}},
	{"partly up", func(x *Exam) {
		x.Peer(&Peer{Remote: there, Allowed: true, Up: 1, Failing: 7, FailingFor: time.Minute - 1, Attempts: 2, LastError: "something", Waiting: 5})
	}},
	{"nothing fails, for long", func(x *Exam) { x.Peer(&Peer{Remote: there, Allowed: true, FailingFor: time.Hour}) }},
	{"1 link paused", func(x *Exam) { x.Peer(&Peer{Remote: there, Allowed: true, Up: 1, Paused: 1}) }},
	{"2 links paused, others fail", func(x *Exam) {
		x.Peer(&Peer{Remote: there, Allowed: true, Up: 2, Paused: 2, Failing: 1, FailingFor: Grace, Attempts: 3, LastError: "i/o timeout"})
	}},

	{"a port for a moment less", func(x *Exam) { x.Port(&Port{Endpoint: port, Local: true, For: Grace - 1}) }},
	{"a port for a moment", func(x *Exam) { x.Port(&Port{Endpoint: port, Local: true, For: Grace}) }},
	{"a port for long, a moment less", func(x *Exam) {
		x.Port(&Port{Endpoint: port, Local: true, For: LongCongested - 1, PID: 7, UID: 8, Queued: 1})
	}},
	{"a port for long", func(x *Exam) {
		x.Port(&Port{Endpoint: port, Local: true, For: LongCongested, PID: 7, UID: 8, Label: "app", Queued: 1023, Culprit: far, Waiting: 3})
	}},
	{"a port there", func(x *Exam) {
		x.Port(&Port{Endpoint: far, For: LongCongested, Waiting: 1, PID: 0, UID: 8, Label: "app", Queued: 1024})
	}},
	{"a port there, two wait", func(x *Exam) { x.Port(&Port{Endpoint: far, For: Grace, Waiting: 2, Culprit: port}) }},
	{"a port that is held", func(x *Exam) { x.Port(&Port{Endpoint: port, Local: true, Held: true, For: Grace}) }},
	{"a port of a node that is down", func(x *Exam) {
		x.Port(&Port{Endpoint: far, Away: true, For: time.Hour, Waiting: 2, PID: 7, UID: 8, Label: "app", Queued: 1024, Culprit: port})
	}},
	{"a port there, nobody waits", func(x *Exam) { x.Port(&Port{Endpoint: far, For: time.Hour}) }},

	{"a mapping that is not open for a moment less", func(x *Exam) { x.Mapping(&Mapping{ID: "v1", Node: "n", Name: "d", For: Grace - 1, Paths: 2}) }},
	{"a mapping that is not open", func(x *Exam) {
		x.Mapping(&Mapping{ID: "v1", Node: "n", Name: "d", Why: "no path: refused", Mend: "rdsd ping n", For: Grace, Paths: 2})
	}},
	{"a mapping that is open, of one path", func(x *Exam) {
		x.Mapping(&Mapping{ID: "v1", Node: "n", Name: "d", Open: true, For: time.Hour, Paths: 1})
	}},
	{"a mapping of no path yet", func(x *Exam) { x.Mapping(&Mapping{ID: "v1", Node: "n", Name: "d", Open: true}) }},
	{"a request has failed", func(x *Exam) {
		x.Mapping(&Mapping{ID: "v1", Node: "n", Name: "d", Open: true, Paths: 2, Failed: 1, Done: 1})
	}},
	{"a request waits for less than the I/O timeout", func(x *Exam) {
		x.Mapping(&Mapping{ID: "v1", Node: "n", Name: "d", Open: true, Paths: 2, Stalled: 30*time.Second - 1, Limit: 30 * time.Second})
	}},
	{"a request waits for the I/O timeout", func(x *Exam) {
		x.Mapping(&Mapping{ID: "v1", Node: "n", Name: "d", Open: true, Paths: 2, Stalled: 30 * time.Second, Limit: 30 * time.Second})
	}},
	{"a session without failovers", func(x *Exam) { x.Session(&Session{Name: "s"}) }},
	{"a session with one that had no fence", func(x *Exam) { x.Session(&Session{Name: "s", Unfenced: 1, At: "after 40s"}) }},
	{"a path for a moment less", func(x *Exam) {
		x.VolumePath(&VolumePath{Session: "s", Src: "a", Dst: "b", State: "reconnecting", For: Grace - 1})
	}},
	{"a path", func(x *Exam) {
		x.VolumePath(&VolumePath{Session: "s", Src: "a", Dst: "b", State: "reconnecting", For: Grace, LastError: "refused", Mend: "see to the network"})
	}},
	{"a path that was disconnected", func(x *Exam) {
		x.VolumePath(&VolumePath{Session: "s", Src: "a", Dst: "b", State: "disconnected", For: time.Hour, Mend: "connect it"})
	}},
	{"a path that is connected", func(x *Exam) {
		x.VolumePath(&VolumePath{Session: "s", Src: "a", Dst: "b", State: "connected", Connected: true, For: time.Hour})
	}},
	{"an export", func(x *Exam) {
		x.Export(&Export{Name: "d", Path: "/d", Failed: true, Error: "gone", For: time.Minute, Errors: 2, Done: 3})
	}},
	{"an export whose store is slow", func(x *Exam) { x.Export(&Export{Name: "d", Path: "/d", Stalled: time.Minute, Limit: time.Hour}) }},
	{"an export of memory that stands still", func(x *Exam) { x.Export(&Export{Name: "d", Stalled: time.Hour, Limit: time.Hour}) }},
	{"an export that is well", func(x *Exam) { x.Export(&Export{Name: "d", Path: "/d", Done: 3}) }},

	{"a line that is news", func(x *Exam) { x.Logged(&Logged{Message: "m", Error: "why", Age: Recent, Count: 1}) }},
	{"a line that is no news", func(x *Exam) { x.Logged(&Logged{Message: "m", Error: "why", Age: Recent + 1, Count: 1}) }},
	{"two lines, the younger first", func(x *Exam) {
		x.Logged(&Logged{Message: "young", Age: time.Second})
		x.Logged(&Logged{Message: "old", Age: time.Minute})
	}},
	{"two lines, the older first", func(x *Exam) {
		x.Logged(&Logged{Message: "old", Age: time.Minute})
		x.Logged(&Logged{Message: "young", Age: time.Second})
	}},
	{"two lines of one age", func(x *Exam) {
		x.Logged(&Logged{Message: "first", Age: time.Minute})
		x.Logged(&Logged{Message: "second", Age: time.Minute})
	}},
	{"refusals", func(x *Exam) {
		x.Logged(&Logged{Message: "connection refused", Error: "no rule", Peer: "10.0.0.9", Age: time.Minute})
		x.Logged(&Logged{Message: "connection for volumes refused", Error: "no rule", Peer: "10.0.0.8", Age: time.Minute})
		x.Logged(&Logged{Message: "connection refused", Error: "of nobody"})
		x.Logged(&Logged{Message: "another", Error: "of a peer", Peer: "10.0.0.9", Age: time.Hour})
	}},
	{"another line of a peer", func(x *Exam) { x.Logged(&Logged{Message: "another", Error: "of a peer", Peer: "10.0.0.9"}) }},
}

func TestSaid(t *testing.T) {
	var b strings.Builder
	for _, c := range said {
		var x Exam
		c.tell(&x)
		fmt.Fprintf(&b, "# %s\n", c.name)
		for _, p := range x.Problems() {
			fmt.Fprintf(&b, "%v %v, %s, %v\n\t%s\n\t%s\n", p.Severity, p.Code, p.Subject, p.Since, p.Text, p.Remedy)
		}
	}
	const name = "testdata/said.txt"
	if *update {
		if err := os.WriteFile(name, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	got, old := strings.Split(b.String(), "\n# "), strings.Split(string(want), "\n# ")
	if len(got) != len(old) {
		t.Fatalf("%d facts, %s has %d; look at what go test ./node/health -run TestSaid -update changes", len(got), name, len(old))
	}
	for i := range got {
		if got[i] != old[i] {
			t.Errorf("%s\nwant\n%s", got[i], old[i])
		}
	}
}

// TestLists: exactly as many are listed as there is place for; behind them one is listed
// if it lasts longer than the last of them, on its own side.
func TestLists(t *testing.T) {
	for _, local := range []bool{true, false} {
		var x Exam
		at := here
		if !local {
			at = there
		}
		for i := range PerCode {
			if !x.Lists(local, Grace) {
				t.Fatalf("local %v: %d are listed, and no more would be", local, i)
			}
			x.Port(&Port{Endpoint: netip.AddrPortFrom(at, uint16(i)), Local: local, Waiting: 1, For: 10*time.Second + time.Duration(i)})
		}
		if !x.Lists(!local, Grace) {
			t.Errorf("local %v: the other side's places are taken too", local)
		}
		if x.Lists(local, 10*time.Second) || !x.Lists(local, 10*time.Second+1) {
			t.Errorf("local %v: not exactly what lasts longer than the last one is listed", local)
		}
		for range 3 { // one that is not listed is counted, with its severity
			x.Port(&Port{Endpoint: netip.AddrPortFrom(at, 100), Local: local, Waiting: 1, For: 9 * time.Second})
		}
		list := x.Problems()
		if len(list) != PerCode+1 || !strings.HasPrefix(list[PerCode].Text, "3 more") || list[PerCode].Severity != Warning {
			t.Errorf("local %v: %+v", local, list)
		}
	}
}

// TestRestKeepsItsWorst: what is counted and not listed has the severity of the worst of
// it, in whatever order they come.
func TestRestKeepsItsWorst(t *testing.T) {
	for name, severities := range map[string][]Severity{
		"errors, then a warning": {Error, Error, Error, Error, Error, Error, Error, Error, Error, Warning, Error, Warning},
		"warnings, then errors":  {Warning, Error, Error, Error, Error, Error, Error, Error, Error, Error, Warning, Warning},
	} {
		var x Exam
		for i, s := range severities {
			x.add(Problem{Code: PeerDown, Severity: s, Subject: fmt.Sprint(i), Since: time.Duration(i)})
		}
		list := x.Problems()
		rest := list[len(list)-1]
		for _, p := range list {
			if strings.Contains(p.Text, "more like these") {
				rest = p
			}
		}
		if len(list) != PerCode+1 || rest.Severity != Error || !strings.HasPrefix(rest.Text, "4 more") {
			t.Errorf("%s: %d problems, the rest %+v", name, len(list), rest)
		}
	}
}

// TestWords: times as people say them, at each change of the unit.
func TestWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Second: "1s", 1249 * time.Millisecond: "1.2s", time.Minute - 60*time.Millisecond: "59.9s", time.Minute - 1: "1m0s",
		time.Minute: "1m0s", time.Minute + 600*time.Millisecond: "1m1s", 90 * time.Minute: "1h30m0s",
	} {
		if got := lasted(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}
