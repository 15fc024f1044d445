package rds

import "testing"

// A port that was closed is not given to whoever asks for any, until so many
// others were closed after it; whoever names it gets it.
func TestClosedPortsRest(t *testing.T) {
	w := newPair(t)
	bind := func(port uint16) *Socket {
		t.Helper()
		s, err := w.a.Bind(port, SocketOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	last := make(map[uint16]int)
	for i := range 40_000 {
		s := bind(0)
		if at, ok := last[s.port]; ok && i-at <= maxRecentPorts {
			t.Fatalf("socket %d has port %d of socket %d", i, s.port, at)
		}
		last[s.port] = i
		s.Close(w.now)
	}
	named := bind(4000)
	named.Close(w.now)
	bind(4000).Close(w.now) // twice in the list, and bound by name while it rests
	for range maxRecentPorts - 1 {
		bind(0).Close(w.now)
	}
	if !w.a.rest.has(4000) || len(w.a.rest.count) > maxRecentPorts {
		t.Errorf("resting %v, %d ports", w.a.rest.has(4000), len(w.a.rest.count))
	}
	bind(0).Close(w.now)
	if w.a.rest.has(4000) {
		t.Error("it rests for ever")
	}
}

// When all other ports are bound, one that rests is better than none.
func TestRestingPortsAreTheLastResort(t *testing.T) {
	var e Engine
	e.conns.Rng = newPair(t).a.conns.Rng
	e.socks = make(map[uint16]*Socket)
	taken := &Socket{}
	for p := 2; p < 65536; p++ {
		e.socks[uint16(p)] = taken
	}
	if p := e.freePort(); p != 0 {
		t.Fatalf("port %d, and all are bound", p)
	}
	delete(e.socks, 7)
	e.rest.add(7)
	if p := e.freePort(); p != 7 {
		t.Errorf("port %d, want the one that rests", p)
	}
	delete(e.socks, 9)
	for range 20 {
		if p := e.freePort(); p != 9 {
			t.Errorf("port %d, want the one that does not rest", p)
		}
	}
}
