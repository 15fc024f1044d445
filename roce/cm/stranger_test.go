package cm

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// acceptBurst is what there may be at once with acceptances.
const acceptBurst = 128

// listens is the address of a Manager that is flooded.
var listens = netip.MustParseAddr("10.0.0.1")

// floodFrom is one of many addresses.
func floodFrom(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 1 + byte(i>>8), byte(i)}) }

// asks is a request from an address, by its only queue pair and an ID.
func asks(w *world, from netip.Addr, id int) {
	mad := fields{"local": fmt.Sprint(id), "src": from.String()}.message(w.t, "REQ", from, listens)
	w.m.Receive(w.now, netip.AddrPortFrom(from, 50000), mad)
}

// TestStrangersArePaced: of many messages of nobody who is known few are answered, whatever they are
// and whatever their addresses, and one that is alone is at once. Connections are made meanwhile.
func TestStrangersArePaced(t *testing.T) {
	local := listens
	accept := Param{QPN: 5, MTU: 4096}
	for name, message := range map[string]func(i int, from netip.Addr) []byte{
		"a port that nobody listens to": func(_ int, from netip.Addr) []byte {
			return fields{"service": "0x01060001", "src": from.String()}.message(t, "REQ", from, local)
		},
		"an end": func(_ int, from netip.Addr) []byte {
			return fields{"local": "1", "remote": "2"}.message(t, "DREQ", from, local)
		},
		"an answer": func(_ int, from netip.Addr) []byte {
			return fields{"local": "1", "remote": "2"}.message(t, "REP", from, local)
		},
		"a request that is repeated": nil,
	} {
		w := newWorld(t, Config{Local: local, MaxAsked: 8})
		if err := w.m.Listen(1234); err != nil {
			t.Fatal(err)
		}
		ask := func(from netip.Addr) []byte {
			return fields{"local": fmt.Sprint(from.As4()[3]), "src": from.String()}.message(t, "REQ", from, local)
		}
		send := func(i int, from netip.Addr) {
			mad := ask(from)
			if message != nil {
				mad = message(i, from)
			}
			w.m.Receive(w.now, netip.AddrPortFrom(from, 50000), mad)
		}
		if message == nil {
			w.m.Receive(w.now, netip.AddrPortFrom(floodFrom(0), 50000), ask(floodFrom(0)))
			if err := w.conns["c1"].Accept(w.now, accept); err != nil {
				t.Fatal(err)
			}
			w.now += strangerEvery // so that it does not count any more
		}
		was := w.sent
		if send(0, floodFrom(0)); w.sent != was+1 {
			t.Errorf("%s: one that is alone had %d answers", name, w.sent-was)
		}
		for i := range 1000 {
			if message == nil {
				i = 0
			}
			send(i, floodFrom(i))
		}
		if n := w.sent - was; n != strangerBurst {
			t.Errorf("%s: %d answers to a thousand, want %d", name, n, strangerBurst)
		}
		if n := w.m.Stats().Unanswered; n != 1001-strangerBurst {
			t.Errorf("%s: %d are counted that had none", name, n)
		}
		// Who listens is asked all the same.
		honest := netip.MustParseAddr("10.0.0.9")
		asked := len(w.names)
		if w.m.Receive(w.now, netip.AddrPortFrom(honest, 50000), ask(honest)); len(w.names) != asked+1 {
			t.Errorf("%s: a request is not taken meanwhile", name)
		}
		w.now += 10 * strangerEvery
		was = w.sent
		for range 100 {
			send(0, floodFrom(0))
		}
		if n := w.sent - was; n != 10 {
			t.Errorf("%s: %d answers in ten times %v", name, n, strangerEvery)
		}
	}
}

// TestWhoNeverConfirms: to many addresses that ask a listener and then say nothing few messages are sent,
// whatever the application does, at once and later, and nothing is left of them in the end.
func TestWhoNeverConfirms(t *testing.T) {
	const many = 1000
	accept := func(w *world, c *Conn) {
		if err := c.Accept(w.now, Param{QPN: 2 + uint32(len(w.names))}); err != nil {
			t.Fatal(err)
		}
	}
	for name, f := range map[string]struct {
		cfg     Config
		answer  func(w *world, c *Conn)
		renamed bool // each asks once more for the same queue pair
		sent    int  // at once
	}{
		"refused":                    {answer: func(w *world, c *Conn) { _ = c.Reject(w.now, []byte("no")) }, sent: strangerBurst},
		"refused when they waited":   {answer: func(w *world, c *Conn) { _ = c.Wait(w.now); _ = c.Reject(w.now, nil) }, sent: strangerBurst},
		"hung up on":                 {answer: func(w *world, c *Conn) { c.Disconnect(w.now) }, sent: strangerBurst},
		"not answered in time":       {cfg: Config{Answer: time.Second}, answer: func(*world, *Conn) {}},
		"accepted":                   {answer: accept, sent: acceptBurst},
		"accepted, without room":     {cfg: Config{MaxAsked: 8}, answer: accept, sent: acceptBurst},
		"accepted and hung up on":    {answer: func(w *world, c *Conn) { accept(w, c); c.Disconnect(w.now) }, sent: acceptBurst},
		"not answered and forgotten": {answer: func(*world, *Conn) {}, renamed: true, sent: strangerBurst},
		"accepted and forgotten":     {answer: accept, renamed: true, sent: acceptBurst},
	} {
		t.Run(name, func(t *testing.T) {
			f.cfg.Local = listens
			w := newWorld(t, f.cfg)
			if err := w.m.Listen(1234); err != nil {
				t.Fatal(err)
			}
			for i := range many {
				asks(w, floodFrom(i), 1)
				if c := w.conns[fmt.Sprintf("c%d", i+1)]; c == nil {
					t.Fatalf("request %d is not taken", i)
				} else if f.answer(w, c); f.renamed {
					asks(w, floodFrom(i), 2)
				}
			}
			if w.sent != f.sent {
				t.Errorf("%d messages at once, want %d", w.sent, f.sent)
			}
			if n := w.m.Stats().Unanswered; f.sent > 0 && n < many-acceptBurst {
				t.Errorf("%d are counted that were not sent", n)
			}
			const later = 3 * time.Second
			if w.pass(later); w.sent > acceptBurst+int(later/strangerEvery) {
				t.Errorf("%d messages within %v", w.sent, later)
			}
			w.pass(MaxDial)
			w.checkEmpty()
		})
	}
}

// TestRefusedLater: a peer that had no refusal because of others has it when it asks again.
func TestRefusedLater(t *testing.T) {
	w := newWorld(t, Config{Local: listens})
	if err := w.m.Listen(1234); err != nil {
		t.Fatal(err)
	}
	for i := range strangerBurst + 1 {
		asks(w, floodFrom(i), 1)
		if err := w.conns[fmt.Sprintf("c%d", i+1)].Reject(w.now, []byte("no")); err != nil {
			t.Fatal(err)
		}
	}
	w.now += time.Second
	w.take()
	asks(w, floodFrom(strangerBurst), 1)
	if notes := w.take(); !strings.Contains(notes, "REJ") || !strings.Contains(notes, "private=no") {
		t.Errorf("it is told %q", notes)
	}
}

// TestAcceptedBesideStrangers: refusals keep no acceptance back, and peers that confirm theirs, however
// many they are, keep back nobody. One that is late with it gets back nothing.
func TestAcceptedBesideStrangers(t *testing.T) {
	w := newWorld(t, Config{Local: listens})
	if err := w.m.Listen(1234); err != nil {
		t.Fatal(err)
	}
	asked := 0
	ask := func() *Conn {
		asked++
		asks(w, floodFrom(asked), 1)
		return w.conns[fmt.Sprintf("c%d", asked)]
	}
	accept := func() *Conn {
		c := ask()
		if err := c.Accept(w.now, Param{QPN: 2 + uint32(asked)}); err != nil {
			t.Fatal(err)
		}
		return c
	}
	for range 2 * strangerBurst {
		_ = ask().Reject(w.now, nil)
	}
	was := w.sent
	for range 500 {
		accept().Established(w.now)
	}
	if n := w.sent - was; n != 500 {
		t.Errorf("%d of 500 were accepted beside a flood", n)
	}
	was = w.sent
	var late []*Conn
	for range 100 {
		late = append(late, accept())
	}
	if n := w.sent - was; n != acceptBurst-strangerBurst {
		t.Errorf("%d were accepted that do not confirm, want %d", n, acceptBurst-strangerBurst)
	}
	w.pass(500 * time.Millisecond)
	for _, c := range late {
		c.Established(w.now)
	}
	was = w.sent
	for range strangerBurst {
		_ = ask().Reject(w.now, nil)
	}
	if n := w.sent - was; n > 0 {
		t.Errorf("%d were refused, as what was late has come back twice", n)
	}
}
