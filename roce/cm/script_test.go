package cm

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the expected lines of testdata/*.script and the table of docs/protocol.md anew")

// TestScripts runs testdata/*.script. Lines that begin with ">" are what happens to a Manager,
// the lines below what it does. Others begin with "#". text_test.go has the notation of
// messages. Connections are c1, c2 and so on in the order in which they began.
//
//	manager ADDRESS [guid= mtu= conns= asked= askedone=]
//	draw ID|TID=NUMBER ...       the next identifiers
//	listen|unlisten PORT
//	dial LOCALPORT REMOTE [qpn= psn= mtu= private=]
//	recv FROM KIND [field=...]   a message by its fields; FROM is an address, or one with the port that it was sent from
//	recv CAPTURE PACKET          one that a kernel sent
//	accept C [qpn= psn= private=]; reject C [private=]; wait C; packet C; disconnect C
//	pass DURATION                timers run
//	poor on|off                  no memory is granted
//	show                         states, and what was counted
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.script")
	if err != nil || len(files) < 6 {
		t.Fatalf("%d scripts, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".script"), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var w *world
	var anew strings.Builder
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
		at := i
		for i < len(lines) && lines[i] != "" && lines[i][0] != '>' && lines[i][0] != '#' {
			i++
		}
		words := strings.Fields(cmd)
		if words[0] == "manager" {
			f := fieldsOf(t, words[2:])
			w = newWorld(t, Config{
				Local: netip.MustParseAddr(words[1]), GUID: f.num(t, "guid", 0), MTU: int(f.num(t, "mtu", 0)),
				MaxConns: int(f.num(t, "conns", 0)), MaxAsked: int(f.num(t, "asked", 0)), MaxAskedOne: int(f.num(t, "askedone", 0)),
			})
		} else {
			w.step(words)
		}
		w.checkTimers()
		got := w.take()
		if got != "" {
			anew.WriteString(got + "\n")
		}
		if want := strings.Join(lines[at:i], "\n"); got != want && !*update {
			t.Fatalf("%s:%d: %s\ngot:\n%s\nwant:\n%s", file, at, line, got, want)
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
	// Whatever a script has left ends by itself, but what is established.
	for _, c := range w.conns {
		if c.State() == Established {
			c.Disconnect(w.now)
		}
	}
	w.pass(MaxDial + respPatience + time.Minute)
	w.checkEmpty()
}

// step does one command.
func (w *world) step(words []string) {
	t, f := w.t, fields{}
	conn := func() *Conn {
		c := w.conns[words[1]]
		if c == nil {
			t.Fatalf("%v: no such connection", words)
		}
		f = fieldsOf(t, words[2:])
		return c
	}
	port := func() uint16 {
		n, err := strconv.Atoi(words[1])
		if err != nil {
			t.Fatal(err)
		}
		return uint16(n)
	}
	var err error
	switch words[0] {
	case "draw":
		f = fieldsOf(t, words[1:])
		if f["id"] != "" {
			w.draw.ids = append(w.draw.ids, f.num(t, "id", 0))
		}
		if f["tid"] != "" {
			w.draw.tids = append(w.draw.tids, f.num(t, "tid", 0))
		}
	case "listen":
		err = w.m.Listen(port())
	case "unlisten":
		w.m.Unlisten(port())
	case "dial":
		var c *Conn
		local, to := netip.AddrPortFrom(w.m.cfg.Local, port()), netip.MustParseAddrPort(words[2])
		p := fieldsOf(t, words[3:]).param(t)
		for _, v := range w.known {
			// What the kernel's application said, if the script asks for it.
			if name := v.capture + ":" + v.packet; string(p.Private) == name {
				p.Private = v.mad[MADLen-MaxDialPrivate:]
			}
		}
		if c, err = w.m.Dial(w.now, local, to, p); err == nil {
			w.name(c)
		}
	case "recv":
		mad, from := w.received(words)
		was := w.sent
		w.m.Receive(w.now, from, mad)
		if n := w.sent - was; n > 2 {
			t.Errorf("%v: %d messages for one", words, n)
		}
		if w.m.in.rep.private != nil || w.m.in.rej.private != nil || w.m.in.rej.info != nil {
			t.Errorf("%v: the datagram is kept", words)
		}
	case "accept":
		c := conn()
		p := f.param(t)
		for _, v := range w.known {
			if name := v.capture + ":" + v.packet; string(p.Private) == name {
				p.Private = v.mad[MADLen-MaxAcceptPrivate:]
			}
		}
		err = c.Accept(w.now, p)
	case "reject":
		c := conn()
		err = c.Reject(w.now, []byte(f["private"]))
	case "forget":
		err = conn().Forget(w.now)
	case "wait":
		err = conn().Wait(w.now)
	case "packet":
		conn().Established(w.now)
	case "disconnect":
		conn().Disconnect(w.now)
	case "pass":
		d, e := time.ParseDuration(words[1])
		if e != nil {
			t.Fatal(e)
		}
		w.pass(d)
	case "poor":
		w.poor = words[1] == "on"
	case "show":
		w.show()
	default:
		t.Fatalf("no such command: %v", words)
	}
	if err != nil {
		w.note("error: %s", w.errorOf(err))
	}
}

// received is the datagram that a script names, and its sender.
func (w *world) received(words []string) ([]byte, netip.AddrPort) {
	const kernelsPort = 50000
	for _, v := range w.known {
		if v.capture == words[1] && v.packet == words[2] {
			return v.mad, netip.AddrPortFrom(v.addr(), kernelsPort)
		}
	}
	from, err := netip.ParseAddrPort(words[1])
	if err != nil {
		from = netip.AddrPortFrom(netip.MustParseAddr(words[1]), kernelsPort)
	}
	if words[2] == "garbage" {
		return []byte("not a message"), from
	}
	return fieldsOf(w.t, words[3:]).message(w.t, words[2], from.Addr(), w.m.cfg.Local), from
}

func (w *world) show() {
	for i := range len(w.names) {
		n := "c" + strconv.Itoa(i+1)
		w.note("%s %v", n, w.conns[n].State())
	}
	s := w.m.Stats()
	w.note("received %d, sent %d, repeated %d, garbage %d, unknown %d, forged %d, illegal %d, full %d, stale %d, no service %d",
		s.Received, s.Sent, s.Repeated, s.Garbage, s.Unknown, s.Forged, s.Illegal, s.Full, s.Stale, s.NoService)
}

// checkTimers states that every connection that is not established ends by itself, within the
// time that its state may last, and that what is established waits for nothing.
func (w *world) checkTimers() {
	m := w.m
	for i, c := range m.timers {
		if c.slot != i || i > 0 && m.timers[(i-1)/2].at > c.at || c.at != min(c.again, c.deadline) {
			w.t.Errorf("%s is in the wrong place of the timers", w.name(c))
		}
	}
	for _, c := range m.byID {
		limit := map[State]time.Duration{
			ReqSent: MaxDial, ReqMRA: MaxDial, ReqRcvd: m.cfg.Answer, MRASent: m.cfg.Answer, RepSent: MaxDial, RepMRA: MaxDial,
			DreqSent: respPatience, TimeWait: m.cfg.TimeWait,
		}[c.state]
		switch {
		case c.state == Established:
			if c.slot != noSlot {
				w.t.Errorf("%s is established and waits for something", w.name(c))
			}
		case c.slot == noSlot:
			w.t.Errorf("%s waits in %v for ever", w.name(c), c.state)
		case c.deadline > w.now+limit:
			w.t.Errorf("%s ends in %v, %v is too long in %v", w.name(c), c.deadline-w.now, limit, c.state)
		}
	}
}
