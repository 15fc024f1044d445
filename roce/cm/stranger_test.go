package cm

import (
	"fmt"
	"net/netip"
	"testing"
)

// TestStrangersArePaced: of many messages of nobody who is known few are answered, whatever they are
// and whatever their addresses, and one that is alone is at once. Connections are made meanwhile.
func TestStrangersArePaced(t *testing.T) {
	local := netip.MustParseAddr("10.0.0.1")
	source := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 1 + byte(i>>8), byte(i)}) }
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
			w.m.Receive(w.now, netip.AddrPortFrom(source(0), 50000), ask(source(0)))
			if err := w.conns["c1"].Accept(w.now, accept); err != nil {
				t.Fatal(err)
			}
		}
		was := w.sent
		if send(0, source(0)); w.sent != was+1 {
			t.Errorf("%s: one that is alone had %d answers", name, w.sent-was)
		}
		for i := range 1000 {
			if message == nil {
				i = 0
			}
			send(i, source(i))
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
			send(0, source(0))
		}
		if n := w.sent - was; n != 10 {
			t.Errorf("%s: %d answers in ten times %v", name, n, strangerEvery)
		}
	}
}
