package soft

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/transport/ib"
)

// far makes two devices on a net that the test carries.
func far(t testing.TB, v6 bool, mtu int) (a, b *Device, n *network) {
	x, y := "10.9.0.1", "10.9.0.2"
	bits := "/24"
	if v6 {
		x, y, bits = "fd00:9::1", "fd00:9::2", "/64"
	}
	ha, hb := newHost(t, x+bits, mtu), newHost(t, y+bits, mtu)
	n = newNetwork(t, 7, ha, hb)
	return open(t, x, ha, nil), open(t, y, hb, nil), n
}

// exchange has x write messages of many sizes to y, each of which y answers, several at a
// time, and checks all of it.
func exchange(t testing.TB, x, y *end, seed int64, messages, most int) {
	const depth = 8
	mem := make([]byte, depth*most)
	key, err := y.dom.Expose(mem, 0, ib.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	x.slots(depth, 8)
	y.slots(depth, 0)
	sent := make([][]byte, depth)
	rnd := rand.New(rand.NewSource(seed))
	post := func(i int) {
		s := i % depth
		sent[s] = make([]byte, rnd.Intn(most))
		rnd.Read(sent[s])
		x.post(ib.WR{ID: uint64(i), Op: ib.WriteImm, Key: key, Addr: uint64(s * most), Imm: uint32(i), Piece: [3][]byte{sent[s]}})
	}
	for i := range min(depth, messages) {
		post(i)
	}
	for i := range messages {
		c := y.next()
		s := i % depth
		if c.Status != ib.OK || c.Imm != uint32(i) || c.N != len(sent[s]) || !bytes.Equal(mem[s*most:][:c.N], sent[s]) {
			t.Fatalf("message %d of %d bytes came as %+v, or with other bytes", i, len(sent[s]), c)
		}
		y.slots(1, 0)
		y.post(ib.WR{ID: uint64(i), Op: ib.SendImm, Imm: uint32(i), Piece: [3][]byte{pattern(8, i)}})
		if c = x.next(); c.Status != ib.OK || c.Op != ib.Recv || c.Imm != uint32(i) || c.N != 8 {
			t.Fatalf("the answer to message %d came as %+v", i, c)
		}
		x.slots(1, 8)
		if i+depth < messages {
			post(i + depth)
		}
	}
}

// TestLossyNet: nothing is lost, doubled, or out of order for whoever posts, whatever the net
// does to packets.
func TestLossyNet(t *testing.T) {
	for _, c := range []struct {
		v6  bool
		mtu int
		f   faults
	}{
		{false, 4200, faults{loss: 0.02, double: 0.02, reorder: 0.02, flip: 0.01}},
		{true, 1500, faults{loss: 0.02, double: 0.02, reorder: 0.02, flip: 0.01}},
		{false, 1500, faults{loss: 0.1}},
	} {
		t.Run(fmt.Sprintf("v6=%v/mtu=%d/loss=%v", c.v6, c.mtu, c.f.loss), func(t *testing.T) {
			a, b, n := far(t, c.v6, c.mtu)
			n.set(c.f)
			x, y := newEnd(t, a, depths), newEnd(t, b, depths)
			connect(t, x, y)
			exchange(t, x, y, 3, 150, 40_000)
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.lost == 0 || c.f.double > 0 && (n.doubled == 0 || n.overtaken == 0) {
				t.Error("the net did nothing of what it should")
			}
			if c.f.flip > 0 && counter(a, "drop_icrc")+counter(b, "drop_icrc") == 0 {
				t.Error("no packet was dropped for its CRC")
			}
		})
	}
}

// TestCut: a net that is cut for a while is survived; one that stays cut ends the connection
// with an error that says so, and the other end as well.
func TestCut(t *testing.T) {
	a, b, n := far(t, false, 1500)
	x, y := newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, x, y)
	y.slots(2, 5000)
	n.sever(true)
	x.post(ib.WR{ID: 1, Op: ib.Send, Flags: ib.Signal, Piece: [3][]byte{pattern(5000, 0)}})
	time.Sleep(300 * time.Millisecond)
	n.sever(false)
	if c := x.next(); c.Status != ib.OK {
		t.Errorf("after the cut: %+v", c)
	}
	if !a.State().Bursts {
		t.Error("bursts were given up because of a cut")
	}
	if testing.Short() {
		t.Skip("a peer is given up after tens of seconds")
	}
	n.sever(true)
	x.post(ib.WR{ID: 2, Op: ib.Send, Flags: ib.Signal})
	select {
	case err := <-x.ended:
		if e, ok := errors.AsType[*ib.StatusError](err); !ok || e.Status != ib.RetryExceeded {
			t.Errorf("the end that had something to send: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("a peer that is gone is not given up")
	}
}

// TestSilenceOfSome: queue pairs whose peers are silent for good, as those are behind a network that
// is cut, say nothing about bursts beside others that go on.
func TestSilenceOfSome(t *testing.T) {
	a, b, n := far(t, false, 1500)
	x, y := newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, x, y)
	silent := map[uint32]bool{}
	n.lose(func(p []byte) bool { return silent[binary.BigEndian.Uint32(p[28+4:])&0xffffff] })
	var ends []*end
	for range 7 {
		u, v := newEnd(t, a, depths), newEnd(t, b, depths)
		connect(t, u, v)
		ends = append(ends, u)
		n.mu.Lock()
		silent[v.q.Number()] = true
		n.mu.Unlock()
	}
	for _, u := range ends {
		u.post(ib.WR{Op: ib.Send, Piece: [3][]byte{pattern(20_000, 0)}})
	}
	key, err := y.dom.Expose(make([]byte, 100), 0, ib.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	sent := counter(a, "ack_timeouts")
	await.Until(t, patience, "They have not answered often.", func() bool {
		for range 10 {
			x.post(ib.WR{Op: ib.Write, Key: key, Piece: [3][]byte{pattern(100, 0)}, Flags: ib.Signal})
			if c := x.next(); c.Status != ib.OK {
				t.Fatalf("beside silence: %+v", c)
			}
		}
		return counter(a, "ack_timeouts")-sent > 48
	})
	if s := a.State(); !s.Bursts {
		t.Error("bursts were given up because of the silence of some")
	}
}

// TestBurstsOfOthers: a peer that says of each burst that its second packet did not arrive has none
// any more, and others have them as before.
func TestBurstsOfOthers(t *testing.T) {
	ha, hb := newHost(t, "10.9.0.1/24", 1500), newHost(t, "10.9.0.2/24", 1500)
	var err error
	if hb.do(func() { err = hb.ip("addr add 10.9.0.3/24 dev net0") }); err != nil {
		t.Fatal(err)
	}
	n := newNetwork(t, 7, ha, hb)
	a, b, c := open(t, "10.9.0.1", ha, nil), open(t, "10.9.0.2", hb, nil), open(t, "10.9.0.3", hb, nil)
	x, y := newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, x, y)
	u, v := newEnd(t, a, depths), newEnd(t, c, depths)
	connect(t, u, v)
	n.lose(func(p []byte) bool { return p[19] == 2 && binary.BigEndian.Uint16(p[4:]) == 1 })
	bursts := func(from, to *end) uint64 {
		t.Helper()
		key, err := to.dom.Expose(make([]byte, 40_000), 0, ib.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		before := counter(a, "sent_bursts")
		for range 10 {
			from.post(ib.WR{Op: ib.Write, Key: key, Piece: [3][]byte{pattern(40_000, 0)}, Flags: ib.Signal})
			if c := from.next(); c.Status != ib.OK {
				t.Fatalf("a write: %+v", c)
			}
		}
		return counter(a, "sent_bursts") - before
	}
	bursts(x, y)
	if n := counter(a, "gso_ended"); n != 1 || !a.State().Bursts {
		t.Errorf("bursts were given up %d times, want once and for one peer", n)
	}
	if n := bursts(x, y); n > 0 {
		t.Errorf("the peer that takes no bursts had %d more", n)
	}
	if bursts(u, v) == 0 {
		t.Error("the other peer has no bursts")
	}
}

// TestInterface: a device follows its interface. What no packet passes for any more ends, with
// the reason, and new connections fit.
func TestInterface(t *testing.T) {
	ha, hb := newHost(t, "10.9.0.1/24", 4200), newHost(t, "10.9.0.2/24", 4200)
	newNetwork(t, 7, ha, hb)
	a, b := open(t, "10.9.0.1", ha, nil), open(t, "10.9.0.2", hb, nil)
	if m := a.Info().MTU; m != 4096 {
		t.Fatalf("MTU %d at an interface of 4200", m)
	}
	x, y := newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, x, y)
	change := func(h *host, command string) {
		t.Helper()
		var err error
		h.do(func() { err = h.ip(command) })
		if err != nil {
			t.Fatal(err)
		}
	}
	change(ha, "link set net0 mtu 1500")
	if err := x.end(); !errors.Is(err, ErrMTU) {
		t.Errorf("the end whose interface shrank: %v", err)
	}
	y.end()
	if m := a.Info().MTU; m != 1024 {
		t.Errorf("MTU %d at an interface of 1500", m)
	}
	u, v := newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, u, v)
	v.slots(1, 10000)
	u.post(ib.WR{ID: 1, Op: ib.Send, Piece: [3][]byte{pattern(10000, 1)}, Flags: ib.Signal})
	if c := u.next(); c.Status != ib.OK {
		t.Errorf("over the new MTU: %+v", c)
	}
	change(ha, "addr del 10.9.0.1/24 dev net0")
	if err := u.end(); !errors.Is(err, ErrGone) {
		t.Errorf("the end whose address has gone: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := a.Dial(ctx, netip.AddrPort{}, netip.MustParseAddrPort("10.9.0.2:1234"), newEnd(t, a, depths).q, ib.Param{}); !errors.Is(err, ErrGone) {
		t.Errorf("dialling from an address that has gone: %v", err)
	}
	change(ha, "addr add 10.9.0.1/24 dev net0")
	await.Until(t, patience, "The device works again when its address has come back.", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return !a.gone
	})
	p, q := newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, p, q)
	if n := counter(a, "link_downed"); n != 1 {
		t.Errorf("link_downed is %d, want 1", n)
	}
}

// TestForeignIdentifications: where a card numbers the packets of a burst in another way than
// the kernel, of which a peer then takes the first one alone, packets are soon sent one by
// one.
func TestForeignIdentifications(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes ten seconds, because each burst costs a timeout")
	}
	a, b, n := far(t, false, 1500)
	n.set(faults{renumber: true})
	x, y := newEnd(t, a, depths), newEnd(t, b, depths)
	connect(t, x, y)
	exchange(t, x, y, 3, 60, 20_000)
	sent := counter(a, "sent_bursts")
	exchange(t, x, y, 4, 60, 20_000)
	if n := counter(a, "gso_ended"); n != 1 || counter(a, "sent_bursts") != sent {
		t.Errorf("bursts were given up %d times, want once, and %d were sent since", n, counter(a, "sent_bursts")-sent)
	}
	// The peer had no bursts to send, and so none that failed.
	if n := counter(b, "gso_ended"); n != 0 {
		t.Errorf("the other end gave up bursts %d times", n)
	}
}
