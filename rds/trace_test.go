package rds

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// tracerTo writes down what an engine tells of messages, as text.
type tracerTo struct {
	node string
	to   *[]string
}

func (r tracerTo) Trace(t Traced) bool {
	s := r.node + " "
	switch t.Stage {
	case StageWaits:
		s += fmt.Sprintf("waits, accepted %v", t.Accepted)
	case StageNotAccepted:
		s += fmt.Sprintf("not accepted %d→%d: %v", t.Src.Port(), t.Dst.Port(), t.Err)
	case StageRead:
		s += fmt.Sprintf("read before %d", t.Nth)
	case StageDropped:
		s += "dropped"
	default:
		s += fmt.Sprintf("%s %d→%d lane %d seq %d of %d, %d bytes", map[Stage]string{StageLeft: "left", StageRefused: "refused", StageDone: "done",
			StagePlaced: "placed", StageNotPlaced: "not placed"}[t.Stage], t.Src.Port(), t.Dst.Port(), t.Lane, t.Seq, t.Count, t.Bytes)
	}
	if sender := t.Stage == StageLeft || t.Stage == StageRefused || t.Stage == StageDone; sender && !t.Accepted {
		s += ", not accepted"
	}
	switch t.Stage {
	case StageDone:
		s += ": " + t.Outcome.String() + " " + t.Why.String()
	case StagePlaced:
		s += fmt.Sprintf(" as %d", t.Nth)
	case StageNotPlaced:
		s += fmt.Sprintf(": verdict %d", t.Verdict)
	}
	*r.to = append(*r.to, s)
	return true
}

// traceBoth traces the engines of w.
func traceBoth(w *pair) *[]string {
	l := &[]string{}
	w.a.SetTracer(tracerTo{"a", l})
	w.b.SetTracer(tracerTo{"b", l})
	return l
}

func wantTraced(t *testing.T, l *[]string, want ...string) {
	t.Helper()
	if !slices.Equal(*l, want) {
		t.Errorf("traced\n%q\nwant\n%q", *l, want)
	}
	*l = nil
}

func drain(s *Socket, now time.Duration) {
	for {
		d, ok := s.Queue().Recv()
		if !ok {
			break
		}
		d.Release()
	}
	s.ReadAll(now)
}

// TestTraceStages: what a tracer is told of a datagram, of a train, of one for a port that
// nobody has, and of one whose reader goes away.
func TestTraceStages(t *testing.T) {
	w := newPair(t)
	s, _ := w.a.Bind(5000, SocketOptions{})
	r, _ := w.b.Bind(4000, SocketOptions{})
	send := func(to uint16, n int) {
		t.Helper()
		if err := s.Send(w.now, netip.AddrPortFrom(w.b.local, to), make([]byte, n), 0, Reported); err != nil {
			t.Fatal(err)
		}
		w.run()
	}
	send(4000, 1) // the handshake, untraced
	drain(r, w.now)
	l := traceBoth(w)
	send(4000, 100)
	wantTraced(t, l, "a left 5000→4000 lane 0 seq 2 of 1, 100 bytes", "b placed 5000→4000 lane 0 seq 2 of 1, 100 bytes as 1", "a done 5000→4000 lane 0 seq 2 of 1, 100 bytes: delivered ")
	drain(r, w.now)
	wantTraced(t, l, "b read before 2")

	if n := s.SendRun(w.now, r.Addr(), []byte("aabbcc"), []uint32{2, 2, 2}, 1, Reported); n != 3 {
		t.Fatal(n)
	}
	w.run()
	wantTraced(t, l, "a left 5000→4000 lane 0 seq 3 of 3, 6 bytes", "b placed 5000→4000 lane 0 seq 3 of 3, 6 bytes as 2", "a done 5000→4000 lane 0 seq 3 of 3, 6 bytes: delivered ")
	r.Queue().Recv() // the first of the three
	wantTraced(t, l, "b read before 3")

	send(4001, 7)
	wantTraced(t, l, "a left 5000→4001 lane 0 seq 4 of 1, 7 bytes", "b not placed 5000→4001 lane 0 seq 4 of 1, 7 bytes: verdict 1", "a done 5000→4001 lane 0 seq 4 of 1, 7 bytes: failed no such port")

	r.Close(w.now)
	w.run()
	wantTraced(t, l, "b dropped")

	w.a.SetTracer(nil)
	w.b.SetTracer(nil)
	send(4001, 1)
	wantTraced(t, l)
}

// TestTraceLane: sender and receiver tell the same lane of a datagram, whichever it took.
func TestTraceLane(t *testing.T) {
	w := newPair(t)
	r, _ := w.b.Bind(4000, SocketOptions{})
	lanes := map[string]bool{}
	for port := range uint16(16) {
		s, _ := w.a.Bind(5000+port, SocketOptions{})
		l := &[]string{}
		for range 2 { // the first makes the link
			*l = nil
			w.a.SetTracer(tracerTo{"", l})
			w.b.SetTracer(tracerTo{"", l})
			if err := s.Send(w.now, r.Addr(), make([]byte, 9), 0, Reported); err != nil {
				t.Fatal(err)
			}
			w.run()
		}
		var of [3]string
		for i, line := range *l {
			_, line, _ = strings.Cut(line, "lane ")
			of[min(i, 2)], _, _ = strings.Cut(line, " ")
		}
		if len(*l) != 3 || of[0] != of[1] || of[0] != of[2] {
			t.Errorf("traced %q", *l)
		}
		lanes[of[1]] = true
	}
	if len(lanes) < 2 {
		t.Errorf("16 flows took lanes %v alone", lanes)
	}
}

// TestTraceRefused: a datagram that its receiver has no room for is told as refused, and
// again when it is sent with another sequence.
func TestTraceRefused(t *testing.T) {
	w := newPair(t)
	s, _ := w.a.Bind(5000, SocketOptions{})
	b := bindBox(t, w.b, 4000, 100+slot, SocketOptions{})
	if err := s.Send(w.now, b.s.Addr(), make([]byte, 100), 0, Reported); err != nil {
		t.Fatal(err)
	}
	w.run()
	l := traceBoth(w)
	if err := s.Send(w.now, b.s.Addr(), make([]byte, 50), 0, Reported); err != nil {
		t.Fatal(err)
	}
	w.run()
	wantTraced(t, l, "a left 5000→4000 lane 0 seq 2 of 1, 50 bytes", "b not placed 5000→4000 lane 0 seq 2 of 1, 50 bytes: verdict 2", "a refused 5000→4000 lane 0 seq 2 of 1, 50 bytes")
	b.read(w.now, 1)
	w.run()
	wantTraced(t, l, "b read before 1", "a left 5000→4000 lane 0 seq 3 of 1, 50 bytes", "b placed 5000→4000 lane 0 seq 3 of 1, 50 bytes as 1", "a done 5000→4000 lane 0 seq 3 of 1, 50 bytes: delivered ")
}

// TestTraceWaiting: sends that wait for a congested port, accepted and not, and how they end.
func TestTraceWaiting(t *testing.T) {
	w := newPair(t)
	s, _ := w.a.Bind(5000, SocketOptions{})
	box := bindBox(t, w.a, 5001, 1<<20, SocketOptions{})
	r, _ := w.b.Bind(4000, SocketOptions{RcvBufBytes: 4096})
	congest(t, w, s, r.Addr())
	l := traceBoth(w)
	for _, deadline := range []time.Duration{0, w.now + time.Second} {
		if queued, err := s.SendWait(w.now, r.Addr(), make([]byte, 10), 0, Reported, deadline, nil); !queued || err != nil {
			t.Fatal(queued, err)
		}
	}
	if err := box.s.Post(w.now, mustOpen(t, box.s, r.Addr(), nil), wire.Train{Body: make([]byte, 20), Count: 1}, 1, 1, Reported, nil); err != nil {
		t.Fatal(err)
	}
	wantTraced(t, l, "a waits, accepted false", "a waits, accepted false", "a waits, accepted true")
	w.advance(2 * time.Second)
	wantTraced(t, l, "a not accepted 5000→4000: "+rdserr.ErrTimeout.Error())
	if n, _, err := box.s.Cancel(w.now, r.Addr()); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	wantTraced(t, l, "a done 5001→4000 lane 0 seq 0 of 1, 20 bytes: cancelled cancelled by the application")
	n := r.unread
	drain(r, w.now)
	w.run()
	*l = slices.DeleteFunc(*l, func(x string) bool { return x[:6] == "b read" })
	wantTraced(t, l, fmt.Sprintf("a left 5000→4000 lane 0 seq %d of 1, 10 bytes", n+1), fmt.Sprintf("b placed 5000→4000 lane 0 seq %d of 1, 10 bytes as %d", n+1, n),
		fmt.Sprintf("a done 5000→4000 lane 0 seq %d of 1, 10 bytes: delivered ", n+1))
}

// TestTraceHere: datagrams that stay at their address have a number of their own and never
// leave.
func TestTraceHere(t *testing.T) {
	w := newPair(t)
	s, _ := w.a.Bind(5000, SocketOptions{})
	r, _ := w.a.Bind(4000, SocketOptions{})
	l := traceBoth(w)
	for range 2 {
		if err := s.Send(w.now, r.Addr(), make([]byte, 9), 0, Reported); err != nil {
			t.Fatal(err)
		}
	}
	drain(r, w.now)
	if err := s.Send(w.now, netip.AddrPortFrom(w.a.local, 4001), nil, 0, Reported); err != nil {
		t.Fatal(err)
	}
	wantTraced(t, l,
		"a placed 5000→4000 lane 127 seq 1 of 1, 9 bytes as 0", "a done 5000→4000 lane 127 seq 1 of 1, 9 bytes: delivered ",
		"a placed 5000→4000 lane 127 seq 2 of 1, 9 bytes as 1", "a done 5000→4000 lane 127 seq 2 of 1, 9 bytes: delivered ",
		"a read before 1", "a read before 2",
		"a done 5000→4001 lane 0 seq 0 of 1, 0 bytes: failed no such port")
}

// TestTraceNoPings: a ping is no datagram of an application.
func TestTraceNoPings(t *testing.T) {
	w := newPair(t)
	s, _ := w.a.Bind(5000, SocketOptions{})
	l := traceBoth(w)
	if err := s.Send(w.now, netip.AddrPortFrom(w.b.local, 0), nil, 0, Reported); err != nil {
		t.Fatal(err)
	}
	w.run()
	if _, n := s.Queue().Peek(); n != 1 {
		t.Fatal("no answer")
	}
	wantTraced(t, l)
}

// TestTraceAsksForWhatIsRead: a client with rings is asked to say what it gives back while a
// datagram is followed that it has not read, and not before or afterwards.
func TestTraceAsksForWhatIsRead(t *testing.T) {
	w := newPair(t)
	s, _ := w.a.Bind(5000, SocketOptions{})
	b := bindBox(t, w.b, 4000, 1<<20, SocketOptions{})
	send := func() {
		t.Helper()
		if err := s.Send(w.now, b.s.Addr(), make([]byte, 50), 0, Reported); err != nil {
			t.Fatal(err)
		}
		w.run()
	}
	want := func(what string, wanted ...bool) {
		t.Helper()
		if !slices.Equal(b.wanted, wanted) {
			t.Errorf("%s: the client was told %v, want %v", what, b.wanted, wanted)
		}
		b.wanted = nil
	}
	send()
	want("untraced")
	traceBoth(w)
	send()
	want("traced", true)
	b.read(w.now, 1)
	want("the one before is read")
	b.read(w.now, 1)
	want("all are read", false)
	send()
	want("traced again", true)
	w.b.SetTracer(nil)
	want("the trace has ended", false)
}
