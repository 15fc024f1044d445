package rds

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/wire"
)

// congest sends from s until the port of r is congested, as far as the sender's node
// knows.
func congest(t *testing.T, w *pair, s *Socket, r netip.AddrPort) {
	t.Helper()
	for range 100 {
		if on, err := s.Congested(r); err != nil {
			t.Fatal(err)
		} else if on {
			return
		}
		if err := s.Send(w.now, r, make([]byte, 1000), 0, Quiet); err != nil {
			t.Fatal(err)
		}
		w.run()
	}
	t.Fatal("the port did not become congested")
}

func portOf(t *testing.T, e *Engine, ep netip.AddrPort) CongestedPort {
	t.Helper()
	for _, c := range e.CongestedPorts() {
		if c.Endpoint == ep {
			return c
		}
	}
	t.Fatalf("%v is not congested", ep)
	return CongestedPort{}
}

// askAll asks all peers.
func askAll(e *Engine) (due int) {
	for l := e.Peers(); len(l) > 0; {
		d, n := e.AskReaders(l)
		due, l = due+d, l[n:]
	}
	return due
}

// The sender's node learns from the reader's who does not read and who fills the
// port, when it asks.
func TestReaderIsTold(t *testing.T) {
	w := newPair(t)
	s, _ := w.a.Bind(5000, SocketOptions{})
	other, _ := w.b.Bind(6000, SocketOptions{})
	r, _ := w.b.Bind(4000, SocketOptions{RcvBufBytes: 4096, UID: 7, PID: 8, Label: "slow"})
	if err := other.Send(w.now, r.Addr(), make([]byte, 10), 0, Quiet); err != nil {
		t.Fatal(err)
	}
	congest(t, w, s, r.Addr())
	if c := portOf(t, w.a, r.Addr()); c.Reader != nil {
		t.Errorf("%+v though nobody asked", c.Reader)
	}
	if err := s.Send(w.now, r.Addr(), nil, 0, Quiet); err == nil { // now it concerns somebody
		t.Fatal("a congested port took a datagram")
	}
	r.SetPaired(PairedUnread{Datagrams: 3, Bytes: 30})
	if due := askAll(w.a); due != 1 {
		t.Fatalf("%d answers due, want 1", due)
	}
	w.run()
	if due := w.a.ReadersDue(); due != 0 {
		t.Errorf("%d answers still due", due)
	}
	c := portOf(t, w.a, r.Addr())
	if c.Reader == nil || c.Reader.UID != 7 || c.Reader.PID != 8 || c.Reader.Label != "slow" || c.Reader.Queued != uint64(r.Info().RecvQueued) {
		t.Fatalf("%+v", c.Reader)
	}
	var fillers []netip.AddrPort
	for _, f := range c.Reader.Fillers {
		fillers = append(fillers, f.Source)
	}
	if want := []netip.AddrPort{s.Addr(), other.Addr()}; !slices.Equal(fillers, want) || c.Reader.Fillers[1].Datagrams != 1 || c.Reader.Fillers[1].Bytes != 10 {
		t.Errorf("filled by %+v, want %v", c.Reader.Fillers, want)
	}

	// Questions in a hurry have no answer; later ones do.
	askAll(w.a)
	w.run()
	if due := w.a.ReadersDue(); due != 1 {
		t.Errorf("%d answers due after a question in a hurry, want 1", due)
	}
	w.advance(answerEvery)
	askAll(w.a)
	w.run()
	if due := w.a.ReadersDue(); due != 0 {
		t.Errorf("%d answers due, want 0", due)
	}

	// What was said long ago is not shown.
	for _, d := range []time.Duration{readerFor, 1} {
		w.advance(d)
		w.a.Begin(w.now)
		if c := portOf(t, w.a, r.Addr()); (c.Reader != nil) != (d == readerFor) {
			t.Errorf("%v later: %+v", d, c.Reader)
		}
	}
	askAll(w.a)
	w.run()
	if c := portOf(t, w.a, r.Addr()); c.Reader == nil {
		t.Error("no answer")
	}

	// What is said of one congestion is not shown of the next.
	for {
		d, ok := r.Queue().Recv()
		if !ok {
			break
		}
		d.Release()
	}
	r.ReadAll(w.now)
	w.run()
	w.advance(time.Second)
	congest(t, w, s, r.Addr())
	if c := portOf(t, w.a, r.Addr()); c.Reader != nil {
		t.Errorf("%+v is of the congestion before", c.Reader)
	}
}

// A question has few ports, and each goes on where the last one ended: the readers of all ports are told,
// however many they are and however many others concern sockets here.
func TestReadersOfManyPorts(t *testing.T) {
	for _, others := range []int{0, 2 * askLook} {
		w := newPair(t)
		b := bindBox(t, w.a, 5000, 1<<20, SocketOptions{SndBufBytes: 1 << 20})
		if err := b.s.Send(w.now, netip.AddrPortFrom(w.b.local, 0), nil, 0, Quiet); err != nil {
			t.Fatal(err)
		}
		w.run()
		const ports = wire.MaxAskedPorts + 4
		first := 100
		for i := range ports {
			bind(t, w.b, uint16(4000+i), SocketOptions{UID: uint32(i)}).congested = true
			w.b.setCongested(w.now, uint16(4000+i), true)
		}
		// Some are congested and of no concern here, some concern a socket and are clear.
		for i := range others {
			w.b.setCongested(w.now, uint16(first+i), true)
			mustOpen(t, b.s, netip.AddrPortFrom(w.b.local, uint16(10000+i)), nil)
		}
		for i := range ports {
			mustOpen(t, b.s, netip.AddrPortFrom(w.b.local, uint16(4000+i)), nil)
		}
		w.run()
		w.advance(time.Second)
		// With very many there are questions without a port in between.
		named := 0
		for range 2 + 2*others/askLook {
			askAll(w.a)
			w.run()
			w.advance(answerEvery)
		}
		for _, c := range w.a.CongestedPorts() {
			if r := c.Reader; r != nil {
				named++
				if r.UID != uint32(c.Endpoint.Port()-4000) {
					t.Errorf("%v is read by %+v", c.Endpoint, r)
				}
			}
		}
		if named != ports {
			t.Errorf("beside %d others, of %d congested ports the readers of %d are told", others, ports, named)
		}
		if due := w.a.ReadersDue(); due != 0 {
			t.Errorf("%d answers still due", due)
		}
	}
}

// The peers are asked in parts.
func TestReadersAreAskedInParts(t *testing.T) {
	e, _ := lone(t, func(c *Config) { c.MaxPeers = 3 * askLook })
	addr := netip.MustParseAddr("10.1.0.0")
	for range 2*askLook + 1 {
		addr = addr.Next()
		if _, err := e.Peer(addr); err != nil {
			t.Fatal(err)
		}
	}
	l := e.Peers()
	for _, want := range []int{askLook, askLook, 1} {
		_, n := e.AskReaders(l)
		if n != want {
			t.Errorf("%d peers are asked at once, want %d", n, want)
		}
		l = l[n:]
	}
	// One with a table of many ports is the last of its part.
	pe := e.Peers()[0]
	for port := range uint16(askLook) {
		pe.block(0, port)
		pe.CongestionDelta(0, wire.PortState{Port: port, Congested: true})
	}
	if _, looks := pe.portsToAsk(); looks != askLook {
		t.Errorf("%d ports are looked at, want %d", looks, askLook)
	}
}

// Answers to all peers together take a small part of the time: while one that cost much is not
// long ago, others have none.
func TestReadersOfManyPeers(t *testing.T) {
	w := newPair(t)
	s, _ := w.a.Bind(5000, SocketOptions{})
	r, _ := w.b.Bind(4000, SocketOptions{RcvBufBytes: 4096})
	for range 200 {
		if err := s.Send(w.now, r.Addr(), nil, 0, Quiet); err != nil {
			t.Fatal(err)
		}
	}
	w.run()
	congest(t, w, s, r.Addr())
	ask := func(from string) time.Duration {
		pe, err := w.b.Peer(netip.MustParseAddr(from))
		if err != nil {
			t.Fatal(err)
		}
		if err := pe.tellReaders(w.now, wire.AppendPorts(nil, []uint16{4000, 4001})); err != nil {
			t.Fatal(err)
		}
		return w.b.answerAt
	}
	first := ask("10.7.0.1")
	if pause := first - w.now; pause < 200*answerTime {
		t.Fatalf("a pause of %v after an answer for which 200 datagrams were looked at", pause)
	}
	for _, from := range []string{"10.7.0.2", "10.7.0.3"} {
		if at := ask(from); at != first {
			t.Errorf("%s has an answer in the pause", from)
		}
	}
	w.now = first
	if ask("10.7.0.4") == first {
		t.Error("no answer behind the pause")
	}
}

// eachSink counts the datagrams that somebody looks at.
type eachSink struct {
	Sink
	n int
}

func (s *eachSink) Each(f func(src netip.AddrPort, bytes int) bool) {
	s.Sink.Each(func(src netip.AddrPort, bytes int) bool {
		s.n++
		return f(src, bytes)
	})
}

// TestReadersLookOnce: one question costs one look, however often it names a port and however many; each
// of its ports has a part of that.
func TestReadersLookOnce(t *testing.T) {
	e, now := lone(t, nil)
	from := bind(t, e, 3000, SocketOptions{})
	var sinks []*eachSink
	for i := range 2 {
		s := bind(t, e, uint16(4000+i), SocketOptions{RcvBufBytes: 1 << 20})
		for !s.congested {
			if err := from.Send(now, s.Addr(), make([]byte, 200), 0, Quiet); err != nil {
				t.Fatal(err)
			}
		}
		if s.unread < answerLook {
			t.Fatalf("%d datagrams", s.unread)
		}
		sinks = append(sinks, &eachSink{Sink: s.sink})
		s.sink = sinks[i]
	}
	ask := func(from string, ports ...uint16) (first, second int) {
		pe, err := e.Peer(netip.MustParseAddr(from))
		if err != nil {
			t.Fatal(err)
		}
		sinks[0].n, sinks[1].n, e.answerAt = 0, 0, 0
		if err := pe.Told(now, conn.ToldAsk, wire.AppendPorts(nil, ports)); err != nil {
			t.Fatal(err)
		}
		if pause := e.answerAt - now; pause != time.Duration(sinks[0].n+sinks[1].n)*answerTime {
			t.Errorf("%v: a pause of %v after %d and %d were looked at", ports, pause, sinks[0].n, sinks[1].n)
		}
		return sinks[0].n, sinks[1].n
	}
	if n, none := ask("10.7.0.1", slices.Repeat([]uint16{4000}, wire.MaxAskedPorts)...); n != answerLook || none != 0 {
		t.Errorf("one port, named often: %d and %d were looked at", n, none)
	}
	if n, m := ask("10.7.0.2", 4001, 2, 4000, 4001); n != answerLook/2 || m != answerLook/2 {
		t.Errorf("two ports: %d and %d were looked at", n, m)
	}
	// What one does not need another has.
	for range sinks[1].Sink.(*Queue).n - 10 {
		e.socks[4001].Queue().Recv()
	}
	if n, m := ask("10.7.0.3", 4001, 4000); n != answerLook-10 || m != 10 {
		t.Errorf("a short queue and a long one: %d and %d were looked at", n, m)
	}
}

// A peer that tells of ports nobody asked about has no place for it here.
func TestReaderOfNoConcern(t *testing.T) {
	w := newPair(t)
	s, _ := w.a.Bind(5000, SocketOptions{})
	r, _ := w.b.Bind(4000, SocketOptions{})
	if err := s.Send(w.now, r.Addr(), []byte("x"), 0, Quiet); err != nil {
		t.Fatal(err)
	}
	w.run()
	pe, _ := w.b.Peer(w.a.local)
	if pe.c.Kind() != conn.KindRdsd {
		t.Fatal("no link")
	}
	for port := range uint16(20) {
		if !pe.c.Tell(wire.CtlTellPort, wire.AppendReader(nil, &wire.Reader{Port: port})) {
			t.Fatal("not sent")
		}
	}
	w.run()
	if to, _ := w.a.Peer(w.b.local); len(to.ports) != 0 {
		t.Errorf("%d ports are kept", len(to.ports))
	}
	for _, topic := range []conn.Topic{conn.ToldPorts, conn.ToldAsk, conn.ToldReader} {
		if err := pe.Told(w.now, topic, []byte{1}); err == nil {
			t.Errorf("one byte was taken as topic %d", topic)
		}
	}
}
