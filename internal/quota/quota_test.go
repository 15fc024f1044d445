package quota

import (
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
)

const mib = 1 << 20

func TestOneAloneHasThreeQuarters(t *testing.T) {
	n := New(64*mib, nil)
	a := n.Account(User(7))
	got := int64(0)
	for a.Take(Regions, mib) == nil {
		got += mib
	}
	if got != 48*mib || n.Used() != got || a.Used() != got {
		t.Fatalf("one user alone got %d MiB of 64, the account says %d and the node %d; want three quarters", got/mib, a.Used(), n.Used())
	}
	if err := a.Take(Regions, mib); !errors.Is(err, rdserr.ErrNoMemory) || !strings.Contains(err.Error(), "uid 7 holds its share") {
		t.Errorf("refused with %v", err)
	}
	a.Give(Regions, got)
	if n.Used() != 0 || a.Used() != 0 || n.Kinds()[Regions].Used != 0 {
		t.Errorf("%d bytes are left on the node and %d with the user", n.Used(), a.Used())
	}
}

// TestOneMoreFindsRoom: each of some greedy holders leaves a quarter of what it
// found to the next.
func TestOneMoreFindsRoom(t *testing.T) {
	n := New(256*mib, nil)
	for i, want := range []int64{192 * mib, 48 * mib, 12 * mib, 3 * mib} {
		a := n.Account(User(uint32(i)))
		got := int64(0)
		for a.Take(Regions, 64<<10) == nil {
			got += 64 << 10
		}
		if got != want {
			t.Fatalf("greedy user %d got %d KiB, want %d", i, got>>10, want>>10)
		}
	}
	if l := n.Holders(); len(l) != 4 || l[0].Used < l[3].Used || l[0].Holder != User(0) || l[3].Kinds[Regions] != 3*mib {
		t.Errorf("the holders are %v", l)
	}
}

func TestKindHasItsPart(t *testing.T) {
	n := New(64*mib, nil)
	a, b := n.Account(User(1)), n.Account(Peer(netip.MustParseAddr("10.0.0.1")))
	for a.Take(Handshakes, 64<<10) == nil {
	}
	if u := n.Kinds()[Handshakes]; u.Used != 4*mib || u.Limit != 4*mib || u.Refused != 1 {
		t.Errorf("handshakes took %+v", u)
	}
	if err := b.Take(Handshakes, 1); err == nil || !strings.Contains(err.Error(), "handshakes hold") {
		t.Errorf("another holder got what the kind has not: %v", err)
	}
	if !b.Tight(Handshakes, 1) || b.Tight(Partial, mib) {
		t.Error("Tight says something else than Take")
	}
	if !b.Full(Handshakes, 1) || b.Full(Handshakes, 0) || b.Full(Partial, 16*mib) || !b.Full(Partial, 16*mib+1) {
		t.Error("Full says something else than Take")
	}
	if err := b.Take(Partial, mib); err != nil {
		t.Error(err)
	}
}

// TestSpare: what a node has for a kind is bounded by the kind's part, and by the whole but for a
// 64th, whoever asks; asking takes nothing.
func TestSpare(t *testing.T) {
	other := int64(0)
	n := New(64*mib, func() int64 { return other })
	a := n.Account(User(1))
	if !n.Spare(Partial, 16*mib) || n.Spare(Partial, 16*mib+1) {
		t.Error("a kind's part is not its bound")
	}
	a.Grow(Partial, 15*mib)
	if !n.Spare(Partial, mib) || n.Spare(Partial, mib+1) {
		t.Error("what the kind holds does not count")
	}
	a.Give(Partial, 15*mib)
	other = 62 * mib
	if !n.Spare(Partial, mib) || n.Spare(Partial, mib+1) || n.Used() != other {
		t.Error("what is held elsewhere does not count")
	}
}

func TestCountedElsewhere(t *testing.T) {
	other := int64(60 * mib)
	n := New(64*mib, func() int64 { return other })
	a := n.Account(User(1))
	if err := a.Take(Regions, 5*mib); err == nil || !strings.Contains(err.Error(), "is spent") {
		t.Errorf("what others count was not seen: %v", err)
	}
	if err := a.Take(Regions, 3*mib); err != nil {
		t.Error(err)
	}
	if got := n.Rest().Load(); got != 3*mib || n.Used() != 63*mib {
		t.Errorf("rest %d, used %d", got, n.Used())
	}
}

// Pages of regions are bounded by a holder's share, and count in it for nothing else: what
// nobody needs of them is given back before it is missed.
func TestPagesAreNotInTheWay(t *testing.T) {
	n := New(64*mib, nil)
	a, b := n.Account(User(1)), n.Account(User(2))
	taken := int64(0)
	for ; a.Take(Regions, mib) == nil; taken += mib {
	}
	if taken != 48*mib {
		t.Errorf("one alone has %d MiB of pages of 64", taken/mib)
	}
	for _, x := range []*Account{a, b} {
		if err := x.Take(Clients, 4*mib); err != nil || x.Tight(Clients, mib) || !x.Fits(4*mib, 0, n.Limit()-n.Used()) {
			t.Errorf("%v with its share of pages: %v", x.Holder(), err)
		}
	}
	if !a.Tight(Regions, mib) || b.Tight(Regions, mib) {
		t.Error("pages: one has its share, the other has none")
	}
	if err := b.Take(Sockets, 9*mib); err == nil || !a.Tight(Clients, 9*mib) {
		t.Error("more than there is")
	}
}

func TestHeldElsewhere(t *testing.T) {
	other := int64(0)
	n := New(64*mib, func() int64 { return other })
	a, b := n.Account(User(1)), n.Account(User(2))
	for a.Fits(mib, 0, n.Limit()-n.Used()) {
		a.Hold(mib)
		other += mib
	}
	if other != 42*mib || a.Used() != other || n.Used() != other {
		t.Errorf("one alone holds %d MiB of 64 elsewhere, its account says %d", other/mib, a.Used()/mib)
	}
	if !b.Fits(mib, 0, n.Limit()-n.Used()) || b.Fits(16*mib, 0, n.Limit()-n.Used()) {
		t.Error("another one has not its share of the rest")
	}
	if err := a.Take(Clients, 4*mib); err != nil {
		t.Errorf("who fills its share with datagrams cannot connect: %v", err)
	}
	a.Give(Clients, 4*mib)
	a.Hold(-other)
	if other = 0; a.Used() != 0 || !a.Fits(mib, 0, n.Limit()-n.Used()) {
		t.Error("what was given back is still held")
	}
	if (*Account)(nil).Hold(mib); !(*Account)(nil).Fits(1<<60, 0, 0) {
		t.Error("a nil account has a share")
	}
}

func TestClosedAccount(t *testing.T) {
	n := New(64*mib, nil)
	a, same := n.Account(User(1)), n.Account(User(1))
	if a != same {
		t.Fatal("two accounts of one user")
	}
	if err := a.Take(Calls, mib); err != nil {
		t.Fatal(err)
	}
	a.Close()
	if len(n.Holders()) != 1 {
		t.Error("the account went with its first user")
	}
	same.Close()
	if len(n.Holders()) != 0 || n.Used() != mib {
		t.Error("the account stayed, or its memory went")
	}
	a.Give(Calls, mib)
	if n.Used() != 0 {
		t.Error("a closed account cannot give back")
	}
}

func TestManyAtOnce(t *testing.T) {
	n := New(64*mib, nil)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			a := n.Account(User(uint32(i % 3)))
			defer a.Close()
			for range 2000 {
				if a.Take(Kind(i)%NumKinds, mib) == nil {
					a.Give(Kind(i)%NumKinds, mib)
				}
			}
		})
	}
	wg.Wait()
	if n.Used() != 0 || len(n.Holders()) != 0 {
		t.Errorf("%d bytes and %d holders are left", n.Used(), len(n.Holders()))
	}
}

func TestNobodysAccount(t *testing.T) {
	var a *Account
	if a.Take(Calls, mib) != nil || a.Tight(Calls, mib) {
		t.Error("a nil account has limits")
	}
	a.Give(Calls, mib)
}

func TestTakesNothing(t *testing.T) {
	a := New(64*mib, nil).Account(User(1))
	if got := testing.AllocsPerRun(100, func() {
		if a.Take(Calls, 100) == nil {
			a.Give(Calls, 100)
		}
	}); got != 0 {
		t.Errorf("%v allocations for a Take and a Give", got)
	}
}

func TestRation(t *testing.T) {
	n := New(256*mib, nil)
	a := n.Account(Peer(netip.MustParseAddr("10.0.0.1")))
	n.Ration(Chunks, 8*mib, 16*mib)
	for range 8 {
		if err := a.Take(Chunks, mib); err != nil {
			t.Fatal(err)
		}
	}
	if n.Asked(Chunks) {
		t.Error("more is asked for below half of the ration")
	}
	if err := a.Take(Chunks, 8*mib); err != nil || !n.Asked(Chunks) {
		t.Errorf("the rest of the ration: %v, asked for more %v", err, n.Asked(Chunks))
	}
	select {
	case <-n.Wanted():
	default:
		t.Error("nobody is told that more is wanted")
	}
	if err := a.Take(Chunks, 1); !errors.Is(err, ErrRationed) || !errors.Is(err, rdserr.ErrNoMemory) {
		t.Errorf("beyond the ration: %v", err)
	}
	if n.Used() != 16*mib || a.Used() != 16*mib {
		t.Errorf("%d bytes are taken, %d by the peer", n.Used(), a.Used())
	}
	if err := a.Take(Regions, 1); err != nil {
		t.Errorf("another kind: %v", err)
	}
	n.Ration(Chunks, 24*mib, 32*mib)
	if n.Asked(Chunks) {
		t.Error("asked for more after the answer")
	}
	if err := a.Take(Chunks, 16*mib); err != nil {
		t.Errorf("the next ration: %v", err)
	}
	n.Ration(Chunks, 200*mib, 256*mib)
	if err := a.Take(Chunks, 120*mib); err == nil || errors.Is(err, ErrRationed) {
		t.Errorf("beyond the kind's part: %v", err)
	}
}

// TestOverShare: whose share is spent is told from whom others leave nothing, and nothing
// is taken or counted by asking.
func TestOverShare(t *testing.T) {
	const mib = 1 << 20
	n := New(64*mib, nil)
	a, b := n.Account(User(1)), n.Account(User(2))
	defer a.Close()
	defer b.Close()
	a.Grow(Sockets, 48*mib-1) // alpha times what is free then, but for a byte
	if a.OverShare(Calls, 0) || !a.OverShare(Calls, 4) {
		t.Error("the share ends somewhere else")
	}
	if b.OverShare(Calls, mib) || !b.Tight(Calls, 25*mib) || b.OverShare(Calls, 3*mib) {
		t.Error("who holds nothing is over its share")
	}
	var none *Account
	if none.OverShare(Calls, 1<<40) {
		t.Error("no account has a share")
	}
	if n.Used() != 48*mib-1 || a.Used() != 48*mib-1 || n.Kinds()[Calls].Refused != 0 {
		t.Errorf("%d are used, %+v", n.Used(), n.Kinds()[Calls])
	}
	a.Give(Sockets, 48*mib-1)
}

// TestTheLastOfTheMemory: many small holders that together take all they may leave some
// for who connects or opens a socket, and those some for datagrams and their pages.
func TestTheLastOfTheMemory(t *testing.T) {
	const mib = 1 << 20
	n := New(64*mib, nil)
	var all []*Account
	fill := func(kinds ...Kind) {
		for i := range 1000 {
			a := n.Account(Peer(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})))
			all = append(all, a)
			for _, k := range kinds {
				for range 100 {
					if a.Take(k, 16<<10) != nil {
						break
					}
				}
			}
		}
	}
	for _, x := range []struct {
		kinds []Kind
		free  int64
		tells string
	}{
		{[]Kind{Control, Calls, Waiting, Partial, Chunks, Requests}, 6 * mib, "leave to others"},
		{[]Kind{Peers}, 3 * mib, "leave to others"},
		{[]Kind{Handshakes, Clients, Sockets}, 2 * mib, "leave to others"},
		{[]Kind{Regions}, 0, "limits.memory_bytes"},
	} {
		fill(x.kinds...)
		if free := n.Limit() - n.Used(); free < x.free || free > x.free+16<<10 {
			t.Errorf("%v leave %d bytes, want %d", x.kinds, free, x.free)
		}
		a := n.Account(Peer(netip.MustParseAddr("10.9.9.9")))
		for _, k := range x.kinds {
			if n.kinds[k].used.Load() > n.partOf(k)-32<<10 {
				continue // it has its part, which it says first
			}
			if err := a.Take(k, 16<<10); err == nil || !strings.Contains(err.Error(), x.tells) || !a.Tight(k, 16<<10) {
				t.Errorf("%v: %v", k, err)
			}
		}
		a.Close()
	}
	for _, a := range all {
		for k := range NumKinds {
			a.Give(k, a.kinds[k].Load())
		}
		a.Close()
	}
	if n.Used() != 0 || len(n.Holders()) != 0 {
		t.Errorf("%d bytes and %d holders are left", n.Used(), len(n.Holders()))
	}
}

// TestNeededPagesAreNotFree: who has its share of pages, all of which are needed, leaves a
// seventh of what it has in all to others, whatever else it takes.
func TestNeededPagesAreNotFree(t *testing.T) {
	const mib = 1 << 20
	other := int64(0)
	n := New(64*mib, func() int64 { return other })
	a, b := n.Account(User(1)), n.Account(User(2))
	defer a.Close()
	defer b.Close()
	for a.Take(Regions, 64<<10) == nil {
	}
	for a.Take(Clients, 16<<10) == nil {
	}
	for a.Fits(16<<10, 0, n.Limit()-n.Used()) {
		a.Hold(16 << 10)
		other += 16 << 10
	}
	if free := n.Limit() - n.Used(); free < a.Used()/alphaWhole || free > a.Used()/alphaWhole+64<<10 {
		t.Errorf("%d bytes are held and %d free, want a seventh", a.Used(), free)
	}
	if err := b.Take(Clients, mib); err != nil || !b.Fits(mib, 0, n.Limit()-n.Used()) {
		t.Errorf("nothing is left for another: %v", err)
	}
	if !a.OverShare(Clients, 16<<10) || b.OverShare(Clients, mib) {
		t.Error("whose share is spent is not told")
	}
	b.Give(Clients, mib)
	a.Hold(-other)
	other = 0
	for k := range NumKinds {
		a.Give(k, a.kinds[k].Load())
	}
	if n.Used() != 0 {
		t.Errorf("%d bytes are left", n.Used())
	}
}

// TestWhoHoldsLittle: a user who holds little gets what kinds leave to others, up to a 32nd
// of the limit; one who holds more leaves as much as it holds beyond that, and one who holds much all of it.
func TestWhoHoldsLittle(t *testing.T) {
	const mib = 1 << 20
	n := New(64*mib, nil)
	big, small := n.Account(User(1)), n.Account(User(2))
	defer big.Close()
	defer small.Close()
	rest := n.Account(Holder{})
	defer rest.Close()
	big.Grow(Sockets, 9*mib)
	rest.Grow(Peers, 51*mib) // 4 MiB are free, less than calls leave
	if err := big.Take(Calls, 1); err == nil || !strings.Contains(err.Error(), "leave to others") || !big.Tight(Calls, 1) {
		t.Errorf("who holds much: %v", err)
	}
	if err := small.Take(Calls, 2*mib); err != nil || small.Tight(Calls, 0) {
		t.Errorf("who holds little: %v", err)
	}
	// It has 2 MiB now, as much as is left.
	if err := small.Take(Calls, mib); err != nil {
		t.Errorf("who holds a MiB more than little, with a MiB left: %v", err)
	}
	if err := small.Take(Calls, 1); err == nil || !small.Tight(Calls, 1) {
		t.Error("who held little holds more beyond it than it leaves")
	}
	small.Give(Calls, 3*mib)
	big.Give(Sockets, 9*mib)
	rest.Give(Peers, 51*mib)
}

// TestPagesAreNotMuch: a user that has much in pages of regions, and little besides, leaves nothing of
// what is there: its calls do not wait for others. One that has more of something else does.
func TestPagesAreNotMuch(t *testing.T) {
	n := New(256*mib, nil)
	rings, waiting, other := n.Account(User(1)), n.Account(User(2)), n.Account(User(3))
	for _, err := range []error{rings.Take(Regions, 20*mib), waiting.Take(Waiting, 25*mib)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	other.Grow(Regions, 240*mib-n.Used())
	if err := rings.Take(Calls, 32<<10); err != nil {
		t.Errorf("with 16 MiB of 256 free, a call of who has 20 MiB of pages: %v", err)
	}
	if err := waiting.Take(Calls, 32<<10); !errors.Is(err, rdserr.ErrNoMemory) {
		t.Errorf("a call of who has 25 MiB of sends: %v", err)
	}
	if err := rings.Take(Waiting, 13*mib); !errors.Is(err, rdserr.ErrNoMemory) {
		t.Errorf("more than a little beside the pages: %v", err)
	}
}

// TestSure: what is sure is there beyond the limit, by a 32nd of it or 8 MiB at most, within the kind's
// part, and is counted for its holder; what is refused is not.
func TestSure(t *testing.T) {
	for _, c := range []struct{ limit, over int64 }{{64 * mib, 2 * mib}, {256 * mib, 8 * mib}, {4096 * mib, 8 * mib}} {
		n := New(c.limit, nil)
		n.Account(User(1)).Grow(Regions, c.limit)
		a := n.Account(Peer(netip.MustParseAddr("10.0.0.1")))
		if a.Take(Handshakes, 1) == nil || a.Replace(Handshakes, 1) == nil {
			t.Fatal("there is room")
		}
		if err := a.Sure(Handshakes, c.over); err != nil {
			t.Fatalf("limit %d: %v", c.limit, err)
		}
		if err := a.Sure(Handshakes, 1); !errors.Is(err, rdserr.ErrNoMemory) || a.Used() != c.over || n.Used() != c.limit+c.over {
			t.Fatalf("limit %d: a byte more: %v; %d bytes are held, %d in all", c.limit, err, a.Used(), n.Used())
		}
		a.Give(Handshakes, c.over)
	}
	n := New(64*mib, nil)
	a := n.Account(Peer(netip.MustParseAddr("10.0.0.1")))
	if err := a.Sure(Handshakes, 4*mib+1); !errors.Is(err, rdserr.ErrNoMemory) {
		t.Errorf("beyond the part of the kind: %v", err)
	}
	if err := a.Sure(Handshakes, 4*mib); err != nil {
		t.Error(err)
	}
}

// TestHoldersInOrder: those with the most come first, and of those with as much the node, peers by address and users.
// Nothing is made of each for that: thousands of peers hold as much as each other, and each scrape asks.
func TestHoldersInOrder(t *testing.T) {
	n := New(256*mib, nil)
	peer := func(s string) Holder { return Peer(netip.MustParseAddr(s)) }
	want := []Holder{User(3), {}, peer("10.0.0.2"), peer("10.0.0.10"), peer("fd00::1"), User(1), User(2)}
	for _, i := range []int{4, 1, 6, 0, 3, 5, 2} {
		n.Account(want[i]).Grow(Sockets, mib)
	}
	n.Account(want[0]).Grow(Sockets, 1)
	l := n.Holders()
	for i := range want {
		if l[i].Holder != want[i] {
			t.Errorf("place %d has %v, want %v", i, l[i].Holder, want[i])
		}
	}
	if a := testing.AllocsPerRun(10, func() { n.Holders() }); a > 2 {
		t.Errorf("%v allocations for %d holders", a, len(want))
	}
}
