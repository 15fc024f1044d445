package conn

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/wire"
)

var update = flag.Bool("update", false, "write the expected lines of testdata/*.txt and the table of docs/protocol.md anew")

// TestScripts runs testdata/*.txt. A script is a conversation: lines that begin
// with ">" are what happens to the Conn under test, the lines below what it
// does. Others begin with "#". text_test.go has the notation of frames.
//
//	conn LOCAL REMOTE [lanes=N credit=LOG2 ping=off ackframes=N ackbytes=N ackstep=N laneload=N trains=on]
//	send SPORT>DPORT LEN [want]        a socket sends
//	train SPORT>DPORT LEN N|L,L,... [want]  LEN bytes as N datagrams, or with a table of lengths
//	chain SPORT>DPORT LEN N            N datagrams given to the lane at once
//	cell TAG                           what stands in the cell of the message with this first tag
//	refusals LANE                      those the peer has not acknowledged
//	accept SPORT                       a connection comes in
//	connected|wrote|lost|drop|dialfail LANE [acked=N]
//	recv LANE FRAME [; FRAME]...       one read of the link; TCP acknowledges a ping with its answer, see told
//	acked LANE BYTES|all               TCP acknowledged
//	wait DURATION                      timers run
//	asleep DURATION                    the process stands still: timers are late
//	lasterr LANE                       what the administrator sees
//	hold on|off                        written batches stay in the shell's hands until "wrote"
//	port PORT placed|no-port|no-room   what becomes of datagrams to our port
//	local PORT on|off                  our port becomes congested or clear
//	room                               receivers have room again
//	shut LANE on|off                   its link is not read for want of memory
//	grant on|off                       the memory budget allows credits or not
//	blocked on|off                     somebody waits for a congested port of the peer
//	kernels yes|no                     whether the peer may be a kernel
//	cancel PORT                        cancel what our sockets sent to PORT
//	close PORT                         the socket that sent to PORT is closed
//	tell                               a control message of the owner's
//	alive LANE                         the peer's TCP took a part of a batch
//	trim                               what is kept for messages to come is let go
//	connect                            to a peer that may wait for it
//	address                            ours has left the machine
//	queued                             datagrams on their way, up to one of 7 bytes
//	show                               counts, kind, lanes
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d scripts, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var w *world
	var anew strings.Builder
	defer func() {
		if t.Failed() {
			t.Logf("so far:\n%s", &anew)
		}
	}()
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	for i := 0; i < len(lines); {
		line := lines[i]
		i++
		anew.WriteString(line + "\n")
		cmd, ok := strings.CutPrefix(line, "> ")
		if !ok {
			if line != "" && !strings.HasPrefix(line, "#") {
				t.Fatalf("%s:%d: %q stands under no command", file, i, line)
			}
			continue
		}
		var want []string
		for at := i; i < len(lines) && lines[i] != "" && lines[i][0] != '>' && lines[i][0] != '#'; i++ {
			want = lines[at : i+1]
		}
		words := strings.Fields(cmd)
		if words[0] == "conn" {
			w = newWorld(t, words[1], words[2], func(c *Config) { tune(t, c, words[3:]) })
		} else {
			w.step(words)
		}
		w.settle()
		w.check()
		got := w.take()
		if got != "" {
			anew.WriteString(got + "\n")
		}
		if wants := strings.Join(want, "\n"); got != wants && !*update {
			t.Fatalf("%s:%d: > %s\ngot:\n%s\nwant:\n%s", file, i, cmd, got, wants)
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(anew.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if w == nil {
		t.Fatalf("%s tests nothing", file)
	}
	// Every datagram is decided in the end, exactly once (D3).
	w.c.Abandon(WhyShutdown)
	for _, p := range w.c.lanes {
		if p != nil && w.batch[p] != nil {
			w.wrote(p)
		}
	}
	w.checkEnd()
	for port, s := range w.senders {
		if s.Messages() != 0 || s.head != nil || s.tail != nil {
			t.Errorf("the flow to port %d has %d messages left", port, s.Messages())
		}
	}
	for tag := range w.undone {
		t.Errorf("datagram %d has no outcome", tag)
	}
}

func tune(t testing.TB, c *Config, words []string) {
	for _, word := range words {
		k, v, _ := strings.Cut(word, "=")
		n, _ := strconv.Atoi(v)
		switch k {
		case "lanes":
			c.Lanes = n
		case "credit":
			c.CreditLog2 = uint8(n)
		case "ping":
			c.Ping = v == "on"
		case "trains":
			c.Trains = v == "on"
		case "ackframes":
			c.AckFrames = n
		case "ackbytes":
			c.AckBytes = n
		case "ackstep":
			c.AckStep = n
		case "laneload":
			c.LaneLoad = n
		default:
			t.Fatalf("no such setting: %s", word)
		}
	}
}

func (w *world) step(words []string) {
	arg := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		w.t.Fatalf("%v: a word is missing", words)
		return ""
	}
	num := func(i int) uint64 {
		n, err := strconv.ParseUint(arg(i), 0, 64)
		if err != nil {
			w.t.Fatalf("%v: %v", words, err)
		}
		return n
	}
	lane := func() *Lane { return w.c.lane(int(num(1))) }
	switch words[0] {
	case "send":
		a, b, _ := strings.Cut(arg(1), ">")
		s, _ := strconv.Atoi(a)
		d, _ := strconv.Atoi(b)
		w.send(uint16(s), uint16(d), int(num(2)), len(words) > 3)
	case "train":
		a, b, _ := strings.Cut(arg(1), ">")
		s, _ := strconv.Atoi(a)
		d, _ := strconv.Atoi(b)
		var table []uint32
		count, err := strconv.Atoi(arg(3))
		if err != nil {
			for _, l := range strings.Split(arg(3), ",") {
				n, _ := strconv.ParseUint(l, 0, 32)
				table = append(table, uint32(n))
			}
		}
		w.sendTrain(uint16(s), uint16(d), int(num(2)), count, table, len(words) > 4)
	case "cell":
		switch c := *w.cells[num(1)]; {
		case c == CellSplit:
			w.note("split")
		case c == 0:
			w.note("no sequence")
		default:
			w.note("lane %d, sequence %d", c>>CellLane, c&(1<<CellLane-1))
		}
	case "refusals":
		var l [3]wire.Refusal
		n := lane().Refusals(l[:])
		w.note("not acknowledged: %v", l[:n])
	case "accept":
		w.accepted(w.c.Accept(w.now, uint16(num(1))))
	case "connected":
		p := lane()
		w.fresh(p)
		if !p.Connected(w.now, p.attempt) {
			w.note("too late")
		}
	case "dialfail":
		p := lane()
		p.DialFailed(w.now, p.attempt, errors.New("connection refused"))
	case "lost":
		acked := uint64(0)
		if len(words) > 2 {
			v, _ := strings.CutPrefix(arg(2), "acked=")
			if acked, _ = strconv.ParseUint(v, 10, 64); v == "all" {
				acked = w.txB[lane()]
			}
		}
		p := lane()
		w.acked(p, acked)
		p.Lost(w.now, p.attempt, acked, errors.New("reset by peer"))
		w.fresh(p)
	case "drop":
		if !lane().Drop(w.now, errors.New("asked to")) {
			w.note("nothing to drop")
		}
	case "wrote":
		w.wrote(lane())
	case "recv":
		for _, f := range strings.Split(strings.Join(words[2:], " "), "; ") {
			if err := w.recvOne(lane(), f); err != nil {
				break
			}
		}
		p := lane()
		p.ReceivedAll(w.now, p.attempt)
	case "acked":
		p := lane()
		n := w.txB[p]
		if arg(2) != "all" {
			n = num(2)
		}
		w.acked(p, n)
		p.Acked(w.now, p.attempt, n)
	case "wait":
		d, err := time.ParseDuration(arg(1))
		if err != nil {
			w.t.Fatal(err)
		}
		w.advance(d)
	case "asleep":
		d, err := time.ParseDuration(arg(1))
		if err != nil {
			w.t.Fatal(err)
		}
		w.now += d
	case "lasterr":
		w.note("%v", lane().Info().LastErr)
	case "hold":
		w.hold = arg(1) == "on"
	case "port":
		w.verdict[uint16(num(1))] = map[string]Verdict{"placed": Placed, "no-port": NoPort, "no-room": NoRoom}[arg(2)]
	case "local":
		on := arg(2) == "on"
		if w.ourMap.Set(uint16(num(1)), on) {
			w.ourVer++
			w.ourLog = append(w.ourLog, wire.PortState{Port: uint16(num(1)), Congested: on})
			w.c.CongestionChanged(w.now)
		}
	case "shut":
		p := lane()
		p.Shut(w.now, p.attempt, arg(2) == "on")
	case "room":
		w.c.EachLane((*Lane).Resume)
	case "grant":
		w.grant = arg(1) == "on"
	case "blocked":
		on := arg(1) == "on"
		if w.c.SetBlocked(on); on {
			w.c.Blocked(w.now)
		}
	case "kernels":
		w.noKernel = arg(1) == "no"
	case "cancel":
		n, begun := 0, 0
		for _, port := range w.ports {
			if p := uint16(num(1)); p == 0 || p == port {
				k, b := w.c.Cancel(w.now, w.senders[port], WhyApp)
				n, begun = n+k, begun+b
			}
		}
		w.note("%d cancelled, %d had begun", n, begun)
	case "chain":
		a, b, _ := strings.Cut(arg(1), ">")
		s, _ := strconv.Atoi(a)
		d, _ := strconv.Atoi(b)
		w.sendChain(uint16(s), uint16(d), int(num(2)), int(num(3)))
	case "close":
		n, begun := w.c.Cancel(w.now, w.senders[uint16(num(1))], WhyClosed)
		w.note("%d cancelled, %d had begun", n, begun)
	case "tell":
		w.note("taken: %v", w.c.Tell(wire.CtlAskPorts, nil))
	case "alive":
		p := lane()
		p.Alive(w.now, p.attempt)
	case "trim":
		w.c.Trim()
	case "connect":
		w.c.Connect(w.now)
	case "address":
		w.c.AddressLost(w.now)
	case "queued":
		show := func(m *Msg, bytes, lane int, sent bool) bool {
			w.note("lane %d sent %v: %d>%d of %d, %d bytes", lane, sent, m.SPort, m.DPort, m.Datagrams(), bytes)
			return bytes != 7
		}
		var at Cursor
		for w.c.PageQueued(&at, NotSent|Sent, 1, show) && !strings.HasSuffix(w.out[len(w.out)-1], " 7 bytes") {
		}
	case "show":
		w.show()
	default:
		w.t.Fatalf("no such command: %v", words)
	}
}

func (w *world) recvOne(p *Lane, f string) error {
	words := strings.Fields(f)
	late := slices.Index(words, "late")
	if late > 0 {
		words = slices.Delete(words, late, late+1)
	} else if words[0] == "answer" {
		w.answered(p)
	}
	fr := w.frame(words)
	err := p.Receive(w.now, p.attempt, &fr)
	if err != nil {
		w.note("error: %v", err)
	}
	return err
}

func (w *world) accepted(a Accepted) {
	if a.Link {
		w.attempt(a.Lane, a.Attempt)
	}
	switch {
	case a.Lane == nil:
		w.note("refused")
	case !a.Link:
		w.note("a poke for lane %d", a.Lane.idx)
	case a.Parked:
		w.note("parked for lane %d as link %d", a.Lane.idx, a.Attempt)
	default:
		w.fresh(a.Lane)
		w.note("link %d of lane %d", a.Attempt, a.Lane.idx)
	}
}

func (w *world) show() {
	q := w.c.Queued()
	w.note("%v, %d lanes; queued %d, held %d, unacknowledged %d", w.c.kind, w.c.nlanes, q.Queued, q.Held, q.Unacked)
	w.c.EachLane(func(p *Lane) {
		i := p.Info()
		w.note("lane %d %v ready=%v next tx %d rx %d credits %d%s", p.idx, i.State, p.ready, i.NextTx, i.NextRx, i.Credits, map[bool]string{true: " paused"}[i.Paused])
	})
	if w.ctr.IllegalEvent > 0 {
		w.note("illegal events: %d", w.ctr.IllegalEvent)
	}
}
