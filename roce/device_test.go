package roce

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"
)

func TestDeviceRefusesValues(t *testing.T) {
	good := Config{Local: netip.MustParseAddr("10.0.0.1"), MTU: 1024}
	for _, change := range []func(*Config){
		func(c *Config) { c.Local = netip.Addr{} },
		func(c *Config) { c.MTU = 1500 },
		func(c *Config) { c.MTU = 0 },
		func(c *Config) { c.MaxQPs = -1 },
		func(c *Config) { c.MaxQPs = 1 << 23 },
		func(c *Config) { c.MaxMADs = -1 },
		func(c *Config) { c.Patience = -1 },
	} {
		c := good
		change(&c)
		if _, err := NewDevice(c, nil, rand.New(rand.NewSource(1))); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	h := newHost(t, "10.0.0.1", Config{MaxQPs: 2})
	h.newQP(1, 1)
	q := h.newQP(1, 1)
	if _, err := h.dev.NewQP(q.cfg); !errors.Is(err, ErrFull) {
		t.Errorf("a third queue pair of two: %v", err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	h.newQP(1, 1)
}

// TestDrops has a packet for each reason not to take one. None is answered.
func TestDrops(t *testing.T) {
	p := newPair(t, 256, 2, 2)
	p.recv(p.b, 0, 8)
	good := Packet{Op: SendOnly, PKey: DefaultPKey, Dest: p.b.number, PSN: firstA, AckReq: true}
	mad := Packet{Op: DatagramSendOnly, PKey: DefaultPKey, Dest: 1, Source: 1, QKey: madKey, Payload: make([]byte, MADLen)}
	reset := p.B.newQP(1, 1)
	stranger := netip.MustParseAddrPort("10.0.0.3:4791")
	for _, c := range []struct {
		name   string
		base   Packet
		change func(*Packet)
		from   netip.AddrPort
		want   DropReason
	}{
		{"another queue pair", good, func(p *Packet) { p.Dest++ }, p.A.addr, DropQueuePair},
		{"queue pair 0", good, func(p *Packet) { p.Dest = 0 }, p.A.addr, DropQueuePair},
		{"in RESET", good, func(p *Packet) { p.Dest = reset.number }, p.A.addr, DropState},
		{"a stranger", good, nil, stranger, DropSource},
		{"another partition", good, func(p *Packet) { p.PKey = 0x8001 }, p.A.addr, DropPartition},
		{"an answer to nothing", good, func(p *Packet) { p.Op, p.PSN = ReadOnly, firstB }, p.A.addr, DropWindow},
		{"an acknowledgement of nothing", good, func(p *Packet) { p.Op, p.PSN = Acknowledge, firstB }, p.A.addr, DropWindow},
		{"a datagram", good, func(p *Packet) { p.Op = DatagramSendOnly }, p.A.addr, DropOpcode},
		{"far ahead", good, func(p *Packet) { p.PSN = p.PSN.Add(1 << 22) }, p.A.addr, DropWindow},
		{"no management datagram", good, func(p *Packet) { p.Dest = 1 }, p.A.addr, DropMAD},
		{"a short one", mad, func(p *Packet) { p.Payload = p.Payload[4:] }, stranger, DropMAD},
		{"another key", mad, func(p *Packet) { p.QKey++ }, stranger, DropMAD},
		{"another source", mad, func(p *Packet) { p.Source++ }, stranger, DropMAD},
		{"another partition", mad, func(p *Packet) { p.PKey = 0x8001 }, stranger, DropPartition},
	} {
		pkt := c.base
		if c.change != nil {
			c.change(&pkt)
		}
		p.B.drops = nil
		p.B.give(0, c.from, &pkt)
		if !slices.Equal(p.B.drops, []DropReason{c.want}) || p.B.fill(0) {
			t.Errorf("%s: %v, want %v, or answered", c.name, p.B.drops, c.want)
		}
	}
	b := good.Append(nil)
	for name, pkt := range map[string][]byte{
		"nothing": nil, "short": b[:8], "another version": append([]byte{0, 1}, make([]byte, 20)...),
	} {
		p.B.drops = nil
		p.B.dev.Receive(0, p.A.addr, pkt)
		if !slices.Equal(p.B.drops, []DropReason{DropMalformed}) {
			t.Errorf("%s: %v", name, p.B.drops)
		}
	}
	// Any one bit makes a CRC wrong. Bits of the destination, and those that are not looked at,
	// are found elsewhere.
	for _, base := range []Packet{good, mad} {
		b := base.Append(nil)
		f, _ := NewFlow(p.A.addr, p.B.addr)
		b = AppendICRC(b, f.ICRC(0, b))
		for bit := range 8 * len(b) {
			p.B.drops = nil
			bad := bytes.Clone(b)
			bad[bit/8] ^= 1 << (bit % 8)
			p.B.dev.Receive(0, p.A.addr, bad)
			if len(p.B.drops) != 1 && bit/8 != variantByte {
				t.Errorf("bit %d: %v", bit, p.B.drops)
			}
		}
	}
	p.B.out, p.B.mads = nil, nil
	p.B.lose(0)
	p.b.Poll()
	if total := p.B.dev.Drops(); total[DropICRC] < 100 {
		t.Errorf("counted %v", total)
	}
	p.B.give(0, stranger, &mad)
	if len(p.B.mads) != 1 {
		t.Error("a management datagram is not taken from a stranger, who must be heard")
	}
}

// TestFlood: packets for nobody are answered by nothing, and nothing is kept of them.
func TestFlood(t *testing.T) {
	h := newHost(t, "10.0.0.1", Config{})
	rnd := rand.New(rand.NewSource(1))
	pkt := make([]byte, 300)
	from := netip.MustParseAddrPort("10.0.0.9:4791")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	h.drops = make([]DropReason, 0, 1<<16)
	for range 1 << 16 {
		rnd.Read(pkt)
		pkt[0] &= 0x1f
		pkt[1] &= 0xf0
		h.dev.Receive(0, from, pkt[:20+4*rnd.Intn(60)])
	}
	runtime.ReadMemStats(&after)
	if h.fill(0) || h.dev.Next() != never {
		t.Error("a flood is answered")
	}
	if n := after.Mallocs - before.Mallocs; n > 1000 {
		t.Errorf("%d allocations", n)
	}
}

// TestMAD carries management datagrams, of which so many wait and no more.
func TestMAD(t *testing.T) {
	for _, addrs := range [][2]string{{"10.0.0.1", "10.0.0.2"}, {"fd00::1", "fd00::2"}} {
		a, b := newHost(t, addrs[0], Config{MaxMADs: 3, GSO: true}), newHost(t, addrs[1], Config{})
		var sent [][]byte
		for i := range 3 {
			m := random(MADLen)
			m[0] = byte(i)
			sent = append(sent, m)
			if err := a.dev.SendMAD(b.addr, m); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.dev.SendMAD(b.addr, sent[0]); err != ErrFull {
			t.Errorf("a fourth of three: %v", err)
		}
		for a.fill(0) {
		}
		for _, d := range a.out {
			b.dev.Receive(0, a.addr, d.pkt)
		}
		if fmt.Sprint(b.mads) != fmt.Sprint(sent) {
			t.Errorf("%d came, or others", len(b.mads))
		}
		for _, to := range []netip.AddrPort{{}, netip.MustParseAddrPort("[::1]:4791"), netip.MustParseAddrPort("1.2.3.4:4791")} {
			if err := a.dev.SendMAD(to, sent[0]); (to.Addr().IsValid() && to.Addr().Is4() == a.addr.Addr().Is4()) == errors.Is(err, ErrWork) {
				t.Errorf("from %v to %v: %v", a.addr, to, err)
			}
			a.lose(0)
		}
		if err := a.dev.SendMAD(b.addr, sent[0][1:]); !errors.Is(err, ErrWork) {
			t.Errorf("255 bytes: %v", err)
		}
	}
}

// TestIPv6 is a connection over IPv6.
func TestIPv6(t *testing.T) {
	p := &pair{t: t, A: newHost(t, "fd00::1", Config{GSO: true}), B: newHost(t, "fd00::2", Config{GSO: true})}
	p.a, p.b = p.A.newQP(2, 2), p.B.newQP(2, 2)
	p.connect(setting{mtu: 256})
	got, sent := p.recv(p.b, 0, 5000), random(5000)
	p.post(p.a, Work{Op: OpSend, Piece: piece(sent)})
	p.run()
	p.want(p.a, Completion{Op: OpSend})
	if !bytes.Equal(got, sent) {
		t.Error("other bytes")
	}
}

// TestArrived is told with the first packet of the peer, once.
func TestArrived(t *testing.T) {
	p := newPair(t, 256, 4, 4)
	p.recv(p.b, 0, 8)
	p.B.give(0, netip.MustParseAddrPort("10.0.0.3:4791"), &Packet{Op: SendOnly, PKey: DefaultPKey, Dest: p.b.number, PSN: firstA})
	if len(p.B.arrived) != 0 {
		t.Error("a stranger has arrived")
	}
	for range 2 {
		p.post(p.a, Work{Op: OpSend})
		p.run()
	}
	if !slices.Equal(p.B.arrived, []*QP{p.b}) {
		t.Errorf("told %d times", len(p.B.arrived))
	}
}

// TestTold: what is to be polled is said once, until all was.
func TestTold(t *testing.T) {
	p := newPair(t, 256, 4, 4)
	for range 3 {
		p.recv(p.b, 0, 8)
		p.post(p.a, Work{Op: OpSend})
		p.run()
	}
	if len(p.A.told) != 1 || len(p.B.told) != 1 {
		t.Errorf("told %d and %d times", len(p.A.told), len(p.B.told))
	}
	p.a.Poll()
	p.a.Fail()
	if len(p.A.told) != 1 {
		t.Error("told again before all was polled")
	}
	for range 3 {
		p.a.Poll()
	}
	p.recv(p.a, 0, 8)
	if len(p.A.told) != 2 {
		t.Error("not told again")
	}
}

// many is a device with n connected queue pairs, to as many addresses.
func many(t testing.TB, n, queue int) (*host, []*QP) {
	h := newHost(t, "10.0.0.1", Config{})
	var list []*QP
	for i := range n {
		q := h.newQP(queue, queue)
		addr := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		for _, err := range []error{q.Init(), q.Connect(Peer{Number: 99, Addr: addr, MTU: 1024, Timeout: 19, Retry: 7}), q.Start(0)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		list = append(list, q)
	}
	return h, list
}

// TestFair: of queue pairs with much to send each has its turn, and one with little does not
// wait for them.
func TestFair(t *testing.T) {
	h, list := many(t, 4, 4)
	for _, q := range list[:3] {
		if err := q.Post(Work{Op: OpSend, Piece: piece(make([]byte, 1<<20))}); err != nil {
			t.Fatal(err)
		}
		q.req.retry.window = window
	}
	turns := map[netip.AddrPort]int{}
	var order []netip.AddrPort
	for i := 0; h.dev.Fill(0, &h.burst); i++ {
		turns[h.burst.To]++
		order = append(order, h.burst.To)
		h.dev.Sent(&h.burst)
		if i == 0 {
			if err := list[3].Post(Work{Op: OpSend}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(turns) != 4 || turns[list[0].to] != 2 || turns[list[1].to] != 2 || turns[list[2].to] != 2 || order[4] != list[3].to {
		t.Errorf("bursts: %v, in the order %v", turns, order)
	}
}

// TestManyIdle: idle queue pairs cost memory of a fixed size, and no time.
func TestManyIdle(t *testing.T) {
	const n = 1000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	h, list := many(t, n, 1)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := (after.HeapAlloc - before.HeapAlloc) / n; each > 4096 {
		t.Errorf("a queue pair takes %d bytes, want 4096 at most", each)
	} else {
		t.Logf("%d bytes each", each)
	}
	// Timers fire in order, and only those that are armed are looked at.
	var now time.Duration
	for i, q := range list[:100] {
		now = time.Duration(i) * time.Microsecond
		if err := q.Post(Work{Op: OpSend}); err != nil {
			t.Fatal(err)
		}
		h.lose(now)
	}
	if len(h.dev.timers.heap) != 100 {
		t.Errorf("%d queue pairs have a timer, want 100", len(h.dev.timers.heap))
	}
	last := time.Duration(0)
	for range 1000 {
		now = h.dev.Next()
		if now < last {
			t.Fatalf("a timer of %v after one of %v", now, last)
		}
		last = now
		h.dev.Tick(now)
		h.lose(now)
	}
	for _, q := range list {
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if h.dev.Next() != never || len(h.dev.qps) != 0 {
		t.Error("something is left of closed queue pairs")
	}
	runtime.KeepAlive(h)
}

// TestNumbers: a number comes again only after all others, and is none of the reserved ones.
func TestNumbers(t *testing.T) {
	n := newNumbers(rand.New(rand.NewSource(1)))
	seen := make([]bool, 1<<24)
	taken := func(uint32) bool { return false }
	for range 1<<24 - 2 {
		v := n.draw(taken)
		if v < 2 || v > maxNumber || seen[v] {
			t.Fatalf("number %d is reserved, too large or came before", v)
		}
		seen[v] = true
	}
	a, b := newNumbers(rand.New(rand.NewSource(1))), newNumbers(rand.New(rand.NewSource(2)))
	if a.draw(taken) == b.draw(taken) {
		t.Error("two devices draw the same")
	}
	first := a.draw(taken)
	a = newNumbers(rand.New(rand.NewSource(1)))
	a.draw(taken)
	if v := a.draw(func(v uint32) bool { return v == first }); v == first {
		t.Error("a number that is taken is drawn")
	}
}

// TestUnsent: what the system does not take is lost, and counted.
func TestUnsent(t *testing.T) {
	p := newPair(t, 256, 4, 4)
	p.recv(p.b, 0, 600)
	p.post(p.a, Work{Op: OpSend, Piece: piece(make([]byte, 600))})
	p.A.dev.Fill(0, &p.A.burst)
	p.A.dev.Unsent(&p.A.burst)
	p.wait(100 * time.Millisecond)
	p.want(p.a, Completion{Op: OpSend})
	if c := p.A.dev.Counters(); c.SendErr != 3 || c.AckTimeouts != 1 {
		t.Errorf("counted %+v", c)
	}
}

// TestCounters: each is added up, has a name and a text.
func TestCounters(t *testing.T) {
	var a, b Counters
	va, vb := reflect.ValueOf(&a).Elem(), reflect.ValueOf(&b).Elem()
	names := map[string]bool{}
	for i := range va.NumField() {
		va.Field(i).SetUint(uint64(i + 1))
		f := va.Type().Field(i).Tag
		if f.Get("name") == "" || f.Get("help") == "" || names[f.Get("name")] {
			t.Errorf("%s has no name or help, or that of another", va.Type().Field(i).Name)
		}
		names[f.Get("name")] = true
	}
	b.add(&a)
	b.add(&a)
	for i := range vb.NumField() {
		if vb.Field(i).Uint() != 2*uint64(i+1) {
			t.Errorf("%s is not added up", vb.Type().Field(i).Name)
		}
	}
}
