package rds

import (
	"errors"
	"math/rand"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rdserr"
)

// Sends never take what a node needs to receive with.
func TestBudgetLeavesRoomToReceive(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Budget = &Budget{Limit: 1000}
	e, b := NewEngine(&cfg, netip.MustParseAddr("10.0.0.1"), rand.New(rand.NewSource(1))), cfg.Budget
	for _, c := range []struct{ sending, held, room int64 }{
		{0, 0, 750}, {700, 0, 50}, {750, 0, 0}, {750, 250, 0}, {0, 250, 750}, {0, 600, 400}, {300, 600, 100}, {0, 1000, 0},
	} {
		for _, told := range []int64{0, 1, 2} { // none, half and all of it is told already
			b.sending.Store(c.sending * told / 2)
			b.held.Store(c.held * told / 2)
			e.tally.sending, e.tally.held = c.sending-b.Sending(), c.held-b.Held()
			if got := sendRoom(e); got != int(c.room) {
				t.Errorf("%d sending, %d held: room to send %d, want %d", c.sending, c.held, got, c.room)
			}
			if got, _, _ := e.room(nil, 0); got != 1000-c.sending-c.held {
				t.Errorf("%d sending, %d held: room to receive %d, want %d", c.sending, c.held, got, 1000-c.sending-c.held)
			}
			if e.End(); b.Sending() != c.sending || b.Held() != c.held {
				t.Errorf("%d sending, %d held: others are told %d and %d", c.sending, c.held, b.Sending(), b.Held())
			}
		}
	}
}

// TestTally: a step's own engine counts in what it has taken, of every user, before
// others are told; the end of the step tells them.
func TestTally(t *testing.T) {
	cfg := DefaultConfig()
	b := &Budget{Limit: 1 << 20}
	cfg.Budget = b
	node := quota.New(b.Limit, b.Datagrams)
	x, y := node.Account(quota.User(1)), node.Account(quota.User(2))
	e := NewEngine(&cfg, netip.MustParseAddr("10.0.0.1"), rand.New(rand.NewSource(1)))
	sx, _ := e.Bind(4000, SocketOptions{Account: x})
	sy, _ := e.Bind(4001, SocketOptions{Account: y})
	share := int(b.Limit) * 2 / 3 // of one user alone: twice what is free
	if e.End(); !fits(e, x, share) || fits(e, x, share+2) {
		t.Fatalf("one user's share is not %d", share)
	}
	sx.spend(share / 2)
	sx.hold(share / 2)
	if fits(e, x, 2) {
		t.Error("what a step takes is not counted in it")
	}
	if rest := (int(b.Limit) - share) * 2 / 3; !fits(e, y, rest) || fits(e, y, rest+2) {
		t.Error("what a step took for one user is not missing to another")
	}
	if b.Used() != 0 || x.Used() != 0 {
		t.Errorf("others were told of %d bytes, %d of the user, before the step has ended", b.Used(), x.Used())
	}
	sy.hold(100) // another user's: the first one's account is told
	if x.Used() != int64(share/2*2) {
		t.Errorf("%d bytes in the first user's account, want %d", x.Used(), share/2*2)
	}
	if fits(e, x, 2) {
		t.Error("the first user has room again because another took some")
	}
	if e.End(); y.Used() != 100 || b.Sending() != int64(share/2) || b.Held() != int64(share/2+100) {
		t.Errorf("at the end %d bytes in the second account, %d sending, %d held", y.Used(), b.Sending(), b.Held())
	}
	sx.spend(-share / 2)
	sx.hold(-share / 2)
	sy.hold(-100)
	if e.End(); x.Used() != 0 || y.Used() != 0 || b.Used() != 0 {
		t.Errorf("%d, %d and %d bytes stay", x.Used(), y.Used(), b.Used())
	}
}

// TestNobodyPassesAShareOfHalf: while half of the memory stays free, a user's share is not asked
// for, since whoever holds all of the other half is within it.
func TestNobodyPassesAShareOfHalf(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	cfg := DefaultConfig()
	for range 200 {
		b := &Budget{Limit: 1 << 20}
		cfg.Budget = b
		node := quota.New(b.Limit, b.Datagrams)
		b.Rest = node.Rest()
		x := node.Account(quota.User(1))
		e := NewEngine(&cfg, netip.MustParseAddr("10.0.0.1"), rand.New(rand.NewSource(1)))
		s, _ := e.Bind(4000, SocketOptions{Account: x})
		x.Grow([]quota.Kind{quota.Clients, quota.Regions}[rng.Intn(2)], rng.Int63n(b.Limit/2))
		s.spend(rng.Intn(int(b.Limit) / 2))
		if rng.Intn(2) == 0 {
			e.End()
		}
		free, _, _ := e.room(nil, 0)
		most := int(free - b.Limit/2) // so many more, and half is free still
		if noted := e.tally.noted; most >= 0 && !x.Fits(int64(most), noted, free) {
			t.Fatalf("with %d bytes of %d held, %d of them noted, the user has no share in %d", b.Used(), b.Limit, noted, most)
		}
		if beyond := int(free); fits(e, x, beyond) != x.Fits(int64(beyond), e.tally.noted, free) {
			t.Fatalf("%d bytes held: the share in the last of the memory is not asked for", b.Used())
		}
	}
}

// memory is what the engine's node has taken, the step under way included.
func (e *Engine) memory() int64 {
	e.End()
	return e.cfg.Budget.Used()
}

// What was accepted for a socket of this very node, and finds no memory, fails: it counts
// against the budget too, and could wait for itself for ever.
func TestNoMemoryHere(t *testing.T) {
	e, now := lone(t, func(c *Config) { c.Budget = &Budget{Limit: 100_000} })
	from, err := e.Bind(5000, SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	to, err := e.Bind(4000, SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []OutcomeRun{{0, 1, conn.Delivered, conn.WhyNone}, {1, 1, conn.Delivered, conn.WhyNone}, {2, 1, conn.Failed, conn.WhyNoMemory}} {
		if err := from.Send(now, to.Addr(), make([]byte, 30_000), uint64(i), Reported); err != nil {
			t.Fatalf("send %d: %v", i, err)
		}
		if l := from.Queue().Outcomes(nil); !slices.Equal(l, []OutcomeRun{want}) {
			t.Errorf("send %d: %+v, want %+v", i, l, want)
		}
	}
	if i := from.Info(); i.Undecided != 0 || i.Waiting+i.Held != 0 || !to.Info().Congested {
		t.Errorf("%+v is left, the receiver %+v", i, to.Info())
	}
	for n := range 3 {
		if d, ok := to.Queue().Recv(); ok != (n < 2) || ok && len(d.Payload) != 30_000 {
			t.Errorf("received %d: %v", n, ok)
		} else if ok {
			d.Release()
		}
	}
	to.ReadAll(now)
	now = ticks(e, now, soon)
	if err := from.Send(now, to.Addr(), make([]byte, 30_000), 3, Reported); err != nil {
		t.Errorf("with memory again: %v", err)
	}
	from.Close(now)
	to.Close(now)
	if n := e.memory(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}

func sendRoom(e *Engine) int {
	_, n, _ := e.room(nil, 0)
	return n
}

func fits(e *Engine, a *quota.Account, n int) bool {
	_, _, shared := e.room(a, n)
	return shared
}

// TestOthersHoldTheMemory: others hold nineteen twentieths of the node's memory and never give it back. A
// lane goes on all the same, and waits for no timer.
func TestOthersHoldTheMemory(t *testing.T) {
	w := newPair(t)
	rest := new(atomic.Int64)
	w.b.cfg.Budget = &Budget{Limit: 1 << 20, Rest: rest}
	rest.Store(1 << 20 * 95 / 100)
	from, err := w.a.Bind(0, SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	to, err := w.b.Bind(4000, SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 << w.b.cfg.Conn.CreditLog2 {
		if err := from.Send(w.now, to.Addr(), make([]byte, 64), uint64(i), Quiet); err != nil {
			t.Fatalf("send %d: %v", i, err)
		}
		w.run()
		d, ok := to.Queue().Recv()
		if !ok {
			t.Fatalf("%d datagrams were read one by one, and the next does not come", i)
		}
		d.Release()
		to.ReadAll(w.now)
	}
	if w.b.Counters().CreditWithheld == 0 {
		t.Error("no credits were withheld")
	}
}

// TestBudgetRefusesApart: what a node has no memory to receive is no refusal to accept something for sending,
// nor the other way round.
func TestBudgetRefusesApart(t *testing.T) {
	w := newPair(t)
	w.b.cfg.Budget = &Budget{Limit: 2000}
	a, b := bind(t, w.a, 5000, SocketOptions{}), bind(t, w.b, 4000, SocketOptions{})
	for range 3 {
		if err := a.Send(w.now, b.Addr(), make([]byte, 900), 0, Quiet); err != nil {
			t.Fatal(err)
		}
	}
	w.run()
	m := w.b.cfg.Budget
	received := m.RefusedHeld()
	if received == 0 || m.RefusedSending() != 0 || m.Refused() != received {
		t.Errorf("of what came %d are counted as refused, %d for sending, %d in all", received, m.RefusedSending(), m.Refused())
	}
	if err := b.Send(w.now, a.Addr(), make([]byte, 1900), 0, Quiet); err == nil {
		t.Fatal("1,900 bytes were accepted")
	}
	if m.RefusedHeld() != received || m.RefusedSending() != 1 || m.Refused() != received+1 {
		t.Errorf("a send was refused: %d for sending, %d of what came, %d in all", m.RefusedSending(), m.RefusedHeld()-received, m.Refused())
	}
	if s := w.a.cfg.Budget; s.Refused() != 0 {
		t.Errorf("%d are counted as refused where there is memory", s.Refused())
	}
}

// TestShareIsNamed: who is refused for want of memory is told whether all of it is spent, or its own share.
func TestShareIsNamed(t *testing.T) {
	e, _ := lone(t, func(c *Config) { c.Budget = &Budget{Limit: 8000} })
	b := e.cfg.Budget
	account := quota.New(b.Limit, b.Datagrams).Account(quota.User(7))
	s, other := bind(t, e, 4000, SocketOptions{Account: account}), bind(t, e, 4001, SocketOptions{})
	s.hold(5000)
	if err := s.checkSendBudget(&flow{s: s}, 1000); !errors.Is(err, rdserr.ErrNoMemory) || !strings.Contains(err.Error(), "uid 7 holds its share of limits.memory_bytes (8000)") {
		t.Errorf("a user that has its share: %v", err)
	}
	if err := other.checkSendBudget(&flow{s: other}, 4000); !errors.Is(err, rdserr.ErrNoMemory) || !strings.Contains(err.Error(), "limits.memory_bytes (8000) is spent") {
		t.Errorf("more than there is: %v", err)
	}
}
