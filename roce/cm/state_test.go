package cm

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/rdsd/rdsd/internal/doctable"
)

// cells is the life of a connection as it is meant to be, one row for each state, one column
// for each event: the state that follows, "." where nothing changes legally, "-" where the
// state has no place for the event.
const cells = `
             REQagain  REP          RTU          MRA     REJ       DREQ      DREP      stale     packet       Accept   Reject    Wait     Forget  Disconnect  repeat   expire
ReqSent      -         Established  -            ReqMRA  TimeWait  TimeWait  -         -         .            -        -         -        -       TimeWait    .        TimeWait
ReqMRA       -         Established  -            .       TimeWait  TimeWait  -         -         .            -        -         -        -       TimeWait    ReqSent  TimeWait
ReqRcvd      MRASent   -            -            -       TimeWait  -         -         TimeWait  .            RepSent  TimeWait  MRASent  Closed  TimeWait    -        TimeWait
MRASent      .         -            -            -       TimeWait  -         -         TimeWait  .            RepSent  TimeWait  .        -       TimeWait    -        TimeWait
RepSent      .         -            Established  RepMRA  TimeWait  TimeWait  -         DreqSent  Established  -        -         -        -       DreqSent    .        TimeWait
RepMRA       .         -            Established  .       TimeWait  TimeWait  -         DreqSent  Established  -        -         -        -       DreqSent    RepSent  TimeWait
Established  .         .            .            .       TimeWait  TimeWait  -         DreqSent  .            -        -         -        -       DreqSent    -        -
DreqSent     .         .            .            .       TimeWait  TimeWait  TimeWait  -         .            -        -         -        -       .           .        TimeWait
TimeWait     .         .            .            .       .         .         .         -         .            -        -         -        -       .           -        Closed
Closed       -         -            -            -       -         -         -         -         .            -        -         -        -       .           -        -
`

// inState makes a Manager with a connection in state s.
func inState(t *testing.T, s State) (*world, *Conn) {
	w := newWorld(t, Config{Local: netip.MustParseAddr("10.0.0.1")})
	steps := map[State]string{
		ReqSent:     "dial 1 10.0.0.2:1234",
		ReqMRA:      "dial 1 10.0.0.2:1234; recv 10.0.0.2 MRA remote=0x11 about=REQ",
		ReqRcvd:     "recv 10.0.0.2 REQ local=0x51 qpn=30",
		MRASent:     "recv 10.0.0.2 REQ local=0x51 qpn=30; wait c1",
		RepSent:     "recv 10.0.0.2 REQ local=0x51 qpn=30; accept c1",
		RepMRA:      "recv 10.0.0.2 REQ local=0x51 qpn=30; accept c1; recv 10.0.0.2 MRA local=0x51 remote=0x11 about=REP",
		Established: "recv 10.0.0.2 REQ local=0x51 qpn=30; accept c1; packet c1",
		DreqSent:    "recv 10.0.0.2 REQ local=0x51 qpn=30; accept c1; packet c1; disconnect c1",
		TimeWait:    "recv 10.0.0.2 REQ local=0x51 qpn=30; reject c1",
		Closed:      "recv 10.0.0.2 REQ local=0x51 qpn=30; reject c1; pass 5s",
	}
	for _, line := range strings.Split("listen 1234; draw id=0x11; "+steps[s], "; ") {
		w.step(strings.Fields(line))
	}
	c := w.conns["c1"]
	if c == nil || c.State() != s {
		t.Fatalf("no way to %v:\n%s", s, w.take())
	}
	w.take()
	return w, c
}

// TestEveryCell walks the whole table.
func TestEveryCell(t *testing.T) {
	rows := strings.Split(strings.TrimSpace(cells), "\n")
	names := strings.Fields(rows[0])
	if len(rows) != int(numStates)+1 || len(names) != int(numEvents) {
		t.Fatalf("%d states and %d events, the test knows other ones", numStates, numEvents)
	}
	legal := 0
	for s := range numStates {
		row := strings.Fields(rows[s+1])
		if row[0] != s.String() {
			t.Fatalf("row of %s, want %v", row[0], s)
		}
		for e := range numEvents {
			name := fmt.Sprintf("%v in %v", e, s)
			if names[e] != strings.ReplaceAll(e.String(), " ", "") {
				t.Fatalf("%s: the test calls it %s", name, names[e])
			}
			w, c := inState(t, s)
			w.m.in = message{local: 0x51, rep: rep{local: 0x51, qpn: 30}, rej: rej{reason: ReasonConsumer}, mra: mra{service: 20}}
			if e == evAccept && s <= MRASent {
				c.setParam(Param{QPN: 17})
			}
			want, ok, illegal := row[e+1], c.event(w.now, e), w.m.stats.Illegal
			if ok != (want != "-") {
				t.Errorf("%s: legal %v", name, ok)
				continue
			}
			if !ok {
				if c.state != s || w.take() != "" || illegal != 1 {
					t.Errorf("%s: it has no place there, is counted (%d) and does nothing; now %v", name, illegal, c.state)
				}
				continue
			}
			legal++
			next := s.String()
			if want != "." {
				next = want
			}
			if c.state.String() != next {
				t.Errorf("%s: %v, want %s", name, c.state, next)
			}
			// One answer at the most, and whoever has to know of the end does.
			notes := w.take()
			if n := strings.Count(notes, "send "); n > 1 {
				t.Errorf("%s: %d messages:\n%s", name, n, notes)
			}
			if c.state >= TimeWait && s < TimeWait && !c.told {
				t.Errorf("%s: nobody is told of the end", name)
			}
			w.checkTimers()
		}
	}
	if n := len(Table()); n != legal {
		t.Errorf("Table has %d rows of %d legal cells", n, legal)
	}
}

// TestEveryStateEnds: a silent peer and a silent application hold no connection that is not
// established, from whatever state.
func TestEveryStateEnds(t *testing.T) {
	for s := range numStates {
		w, c := inState(t, s)
		w.pass(MaxDial + respPatience + time.Minute)
		if want := map[bool]State{true: Established, false: Closed}[s == Established]; c.State() != want {
			t.Errorf("%v became %v", s, c.State())
		}
		if s != Established {
			w.checkEmpty()
		}
	}
}

// TestDisconnectInEveryState: the application can end a connection in every state, and it is
// gone in a bounded time.
func TestDisconnectInEveryState(t *testing.T) {
	for s := range numStates {
		w, c := inState(t, s)
		c.Disconnect(w.now)
		w.pass(respPatience + w.m.cfg.TimeWait)
		notes := w.take()
		// Who has hung up is told when the peer has heard it; of what was never there, nothing.
		told := s == Established || s == DreqSent
		if c.State() != Closed || told != strings.Contains(notes, "disconnected") || strings.Contains(notes, "refused") {
			t.Errorf("%v: %v after\n%s", s, c.State(), notes)
		}
		w.checkEmpty()
	}
}

// TestTableInDocs: docs/protocol.md shows the table as it is (-update writes it).
func TestTableInDocs(t *testing.T) {
	var b strings.Builder
	b.WriteString("| state | event | next state | what is done |\n|---|---|---|---|\n")
	for _, r := range Table() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r[0], r[1], r[2], r[3])
	}
	doctable.Check(t, "../../docs/protocol.md", "./roce/cm -update", *update, doctable.Table{Name: "connection table", Text: b.String()})
}

// TestConnBytes: a connection is charged with what it takes: itself, a place in each of four tables, of
// which Go's maps may have twice as many as are in use, and its source, if it has no other of it.
func TestConnBytes(t *testing.T) {
	places := unsafe.Sizeof(uint32(0))*2 + unsafe.Sizeof(askKey{}) + unsafe.Sizeof(peerKey{}) + unsafe.Sizeof(source{}) + 6*unsafe.Sizeof((*Conn)(nil))
	if n := unsafe.Sizeof(Conn{}) + unsafe.Sizeof(asker{}) + 2*places; n > ConnBytes {
		t.Errorf("a connection takes %d bytes and is charged with %d", n, ConnBytes)
	} else {
		t.Logf("%d of %d bytes", n, ConnBytes)
	}
}

// TestConfig: what a Manager cannot have is refused, and the rest has defaults.
func TestConfig(t *testing.T) {
	local := netip.MustParseAddr("10.0.0.1")
	for name, cfg := range map[string]Config{
		"no address":   {},
		"any address":  {Local: netip.IPv4Unspecified()},
		"multicast":    {Local: netip.MustParseAddr("224.0.0.1")},
		"MTU":          {Local: local, MTU: 1500},
		"conns":        {Local: local, MaxConns: -1},
		"asked":        {Local: local, MaxAsked: -1},
		"asked by one": {Local: local, MaxAskedOne: -1},
		"strangers":    {Local: local, Strangers: -1},
		"answer":       {Local: local, Answer: -1},
		"repeat":       {Local: local, Repeat: time.Microsecond},
		"slow repeat":  {Local: local, Repeat: time.Minute},
		"time-wait":    {Local: local, TimeWait: -1},
	} {
		if _, err := New(cfg, nil, nil); err == nil {
			t.Errorf("%s: it is taken", name)
		}
	}
	for _, cfg := range []Config{
		{Local: local, Repeat: time.Millisecond}, {Local: local, Repeat: response}, {Local: local, MaxConns: 1, MaxAsked: 1, MaxAskedOne: 1, MTU: 256},
	} {
		m, err := New(cfg, quiet{}, nil)
		if err != nil {
			t.Errorf("%+v: %v", cfg, err)
		} else if cfg.Repeat != 0 && m.cfg.Repeat != cfg.Repeat {
			t.Errorf("Repeat %v became %v", cfg.Repeat, m.cfg.Repeat)
		}
	}
	a, err := Config{Local: netip.MustParseAddr("::ffff:10.0.0.1")}.withDefaults()
	b, _ := Config{Local: netip.MustParseAddr("10.0.0.2")}.withDefaults()
	if err != nil || a.Local != local || a.GUID == b.GUID || a.GUID>>56&3 != 2 || a.MTU != 4096 || a.Answer != time.Minute {
		t.Errorf("%+v, %v", a, err)
	}
}
