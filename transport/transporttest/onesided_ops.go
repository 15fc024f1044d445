package transporttest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand"
	"reflect"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/rdsd/rdsd/transport"
)

func testWrites(t *testing.T, p OneSided) {
	x, y := p.started(t)
	const room, off = 1<<20 + 64, 32
	mem := make([]byte, room)
	sizes := []int{0, 1, 31, 32, 33, 255, 256, 257, 4096, 16 << 10, 60000, 64 << 10, 1 << 20}
	for i, n := range sizes {
		for _, tail := range []int{0, 1, 100} {
			if n+tail > 1<<20 {
				continue
			}
			whole := pattern(n+tail, byte(i+tail))
			clear(mem)
			key, addr := y.d.Register(mem[16 : room-16])
			before := y.count()
			x.post(
				&transport.Op{Kind: transport.OpWrite, Key: key, Addr: addr + off - 16, Data: whole[:n], Tail: whole[n:]},
				&transport.Op{Kind: transport.OpWriteImm, Key: key, Addr: addr + off - 16, Imm: uint32(n), Data: whole[:n], Tail: whole[n:]})
			p.until(t, "a write", func() bool { return y.count() > before })
			y.mu.Lock()
			if e := y.events[before]; len(y.events) != before+1 || !reflect.DeepEqual(e, p.written(key, addr+off-16, n+tail, uint32(n))) {
				t.Errorf("%d+%d bytes written: %+v", n, tail, e)
			}
			y.mu.Unlock()
			if !bytes.Equal(mem[off:off+n+tail], whole) || bytes.Count(mem[:off], []byte{0}) != off || bytes.Count(mem[off+n+tail:], []byte{0}) != room-off-n-tail {
				t.Fatalf("%d+%d bytes lie otherwise", n, tail)
			}
			p.revoke(t, y, key)
		}
	}
	before := y.count()
	x.post(&transport.Op{Kind: transport.OpWriteImm, Key: 77, Addr: 99, Imm: 0xffffffff}) // without bytes nothing is checked
	p.until(t, "a write", func() bool { return y.count() > before })
	if e := y.events[before]; !reflect.DeepEqual(e, p.written(77, 99, 0, 0xffffffff)) {
		t.Errorf("a write of nothing: %+v", e)
	}
}

func testSends(t *testing.T, p OneSided) {
	x, y := p.started(t)
	for i, n := range []int{0, 1, 272, 4096, 20000, transport.MaxSend - 10} {
		data, tail := pattern(n, byte(i)), pattern(10, 9)
		before := y.count()
		x.post(&transport.Op{Kind: transport.OpSend, Imm: 5, Data: data, Tail: tail},
			&transport.Op{Kind: transport.OpSendImm, Imm: 0x80000000, Data: data})
		p.until(t, "two sends", func() bool { return y.count() == before+2 })
		y.mu.Lock()
		a, b := y.events[before], y.events[before+1]
		y.mu.Unlock()
		if a.what != "Received" || a.has || a.imm != 0 || !bytes.Equal(a.data, append(bytes.Clone(data), tail...)) {
			t.Errorf("a send of %d bytes: %q, %d bytes, immediate %v %#x", n, a.what, a.n, a.has, a.imm)
		}
		if b.what != "Received" || !b.has || b.imm != 0x80000000 || !bytes.Equal(b.data, data) {
			t.Errorf("a send of %d bytes with immediate: %q, %d bytes, immediate %v %#x", n, b.what, b.n, b.has, b.imm)
		}
	}
}

// unfilled is what is told about memory that was not written.
func (p *OneSided) unfilled() int {
	if p.caps().Fills {
		return 0
	}
	return transport.Unfilled
}

// testOpsOrder posts some thousand operations of all kinds, in batches.
func testOpsOrder(t *testing.T, p OneSided) {
	x, y := p.started(t)
	rng := rand.New(rand.NewSource(1))
	mem := make([]byte, 4<<20)
	key, addr := y.d.Register(mem)
	var want []event
	var wantMem []byte
	for len(want) < 3000 {
		for range 1 + rng.Intn(40) {
			n := rng.Intn(200)
			switch rng.Intn(20) {
			case 0:
				n = rng.Intn(40000)
			case 1, 2, 3:
				n = 4096
			}
			data := make([]byte, n)
			rng.Read(data)
			op := &transport.Op{Data: data, Imm: rng.Uint32()}
			switch kind := rng.Intn(5); {
			case kind == 0:
				op.Kind = transport.OpSend
				want = append(want, event{what: "Received", n: n, data: data})
			case kind == 1:
				op.Kind = transport.OpSendImm
				want = append(want, event{what: "Received", n: n, data: data, imm: op.Imm, has: true})
			case kind == 2 && p.caps().PeerRevokes:
				k, _ := y.d.Register(mem[:1])
				op.Kind, op.Key = transport.OpSendInval, k
				want = append(want, event{what: "Invalidated", key: k, filled: p.unfilled()})
				if n > 0 {
					want = append(want, event{what: "Received", n: n, data: data})
				}
			default:
				if len(wantMem)+n > len(mem) {
					continue
				}
				op.Kind, op.Key, op.Addr = transport.OpWrite, key, addr+uint64(len(wantMem))
				if rng.Intn(3) > 0 {
					op.Kind = transport.OpWriteImm
					want = append(want, p.written(key, op.Addr, n, op.Imm))
				}
				wantMem = append(wantMem, data...)
			}
			x.l.Post(op)
		}
		x.l.Flush()
		if rng.Intn(4) == 0 {
			p.step()
		}
	}
	p.until(t, "all operations", func() bool { return y.count() == len(want) })
	y.mu.Lock()
	defer y.mu.Unlock()
	for i, w := range want {
		g := y.events[i]
		same := bytes.Equal(g.data, w.data)
		if g.data, w.data = nil, nil; !same || !reflect.DeepEqual(g, w) {
			t.Fatalf("event %d: %+v, not %+v, the same bytes: %v", i, g, w, same)
		}
	}
	if !bytes.Equal(mem[:len(wantMem)], wantMem) {
		t.Error("the memory written differs")
	}
}

// testPingPong lets both sides answer in their handlers and flush in End.
func testPingPong(t *testing.T, p OneSided) {
	x, y := p.link(t)
	const rounds = 300
	for _, s := range []*side{x, y} {
		s.on = func(e event) error {
			if e.imm < rounds {
				s.l.Post(&transport.Op{Kind: transport.OpWriteImm, Imm: e.imm + 1})
			}
			return nil
		}
		s.onEnd = s.l.Flush
		s.l.Start(s, transport.MaxSend)
	}
	x.post(&transport.Op{Kind: transport.OpWriteImm, Imm: 1})
	p.until(t, "the last round", func() bool { return x.count()+y.count() == rounds })
}

// testNobodyReads checks that Post and Flush never block, and that what was posted arrives
// when the peer reads.
func testNobodyReads(t *testing.T, p OneSided) {
	x, y := p.link(t)
	x.l.Start(x, transport.MaxSend)
	mem := make([]byte, 256<<10)
	key, addr := y.d.Register(mem)
	data := pattern(len(mem), 5)
	const n = 100
	for i := range uint32(n) {
		x.post(&transport.Op{Kind: transport.OpWriteImm, Key: key, Addr: addr, Data: data, Imm: i})
	}
	x.post(&transport.Op{Kind: transport.OpSend, Data: []byte("last")})
	y.l.Start(y, transport.MaxSend)
	p.until(t, "all", func() bool { return y.count() == n+1 })
	if !bytes.Equal(mem, data) || string(y.events[n].data) != "last" {
		t.Error("other bytes have come")
	}
	for i := range uint32(n) {
		if y.events[i].imm != i {
			t.Fatalf("write %d has the immediate %d", i, y.events[i].imm)
		}
	}
	// A peer that never reads does not keep the link from ending.
	x, y = p.link(t)
	x.l.Start(x, transport.MaxSend)
	for range n {
		x.post(&transport.Op{Kind: transport.OpWriteImm, Key: key, Addr: addr, Data: data})
	}
	x.l.Close()
	p.wantClosed(t, x)
	y.l.Close()
}

// testAccess checks that an access beyond a key's memory ends the link before a byte of it
// is placed.
func testAccess(t *testing.T, p OneSided) {
	other := p.B.NewDomain()
	mem := make([]byte, 8192)
	for _, c := range []struct {
		name string
		op   func(key uint32, addr uint64) transport.Op
	}{
		{"guessed key", func(key uint32, addr uint64) transport.Op { return transport.Op{Key: key ^ 1, Addr: addr} }},
		{"key 0", func(key uint32, addr uint64) transport.Op { return transport.Op{Addr: addr} }},
		{"before", func(key uint32, addr uint64) transport.Op { return transport.Op{Key: key, Addr: addr - 1} }},
		{"behind", func(key uint32, addr uint64) transport.Op { return transport.Op{Key: key, Addr: addr + 4097} }},
		{"far behind", func(key uint32, addr uint64) transport.Op { return transport.Op{Key: key, Addr: addr + 8193} }},
		{"around", func(key uint32, addr uint64) transport.Op { return transport.Op{Key: key, Addr: ^uint64(0) - 100} }},
		{"address 0", func(key uint32, addr uint64) transport.Op { return transport.Op{Key: key} }},
		{"revoked", func(key uint32, addr uint64) transport.Op { return transport.Op{Key: key, Addr: addr} }},
		{"domain closed", func(key uint32, addr uint64) transport.Op { return transport.Op{Key: key, Addr: addr} }},
		{"other domain", func(uint32, uint64) transport.Op {
			key, addr := other.Register(mem)
			return transport.Op{Key: key, Addr: addr}
		}},
		{"too long", func(key uint32, addr uint64) transport.Op {
			return transport.Op{Key: key, Addr: addr, Data: pattern(8193, 1)}
		}},
		{"revokes nothing", func(key uint32, addr uint64) transport.Op {
			return transport.Op{Kind: transport.OpSendInval, Key: key + 1}
		}},
	} {
		x, y := p.started(t)
		clear(mem)
		key, addr := y.d.Register(mem)
		op := c.op(key, addr)
		if op.Kind == 0 {
			op.Kind = transport.OpWriteImm
		}
		if op.Data == nil {
			op.Data = pattern(4096, 1)
		}
		switch c.name {
		case "revoked":
			p.revoke(t, y, key)
		case "domain closed":
			y.d.Close()
		}
		x.post(&transport.Op{Kind: transport.OpSend, Data: []byte("before")}, &op,
			&transport.Op{Kind: transport.OpSend, Data: []byte("behind")})
		err := p.wantClosed(t, y)
		if !p.denied(err, &op) {
			t.Errorf("%s: the link ended with %v", c.name, err)
		}
		p.wantClosed(t, x)
		if y.count() != 1 || bytes.Count(mem, []byte{0}) != len(mem) {
			t.Errorf("%s: %d events, or bytes were placed", c.name, y.count())
		}
	}
}

// testGuard checks that a domain's owner is asked before a byte of a peer is placed, with the
// place, and that its error ends the link.
func testGuard(t *testing.T, p OneSided) {
	p.need(t, p.caps().Guards, "Guards")
	x, y := p.link(t)
	mem := make([]byte, 200<<10)
	full := errors.New("there is no memory")
	var asked, most int
	y.d.(transport.Guarded).Guard(func(b []byte) error { // on the thread that reads
		off := int(uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
		if off < 0 || off+len(b) > len(mem) {
			t.Errorf("asked about %d bytes at %d, which are not registered", len(b), off)
			return full
		}
		if asked++; off+len(b) > 100<<10 {
			return full
		}
		if bytes.Count(b, []byte{0}) != len(b) {
			t.Error("asked after bytes were placed")
		}
		most = max(most, off+len(b))
		return nil
	})
	x.l.Start(x, transport.MaxSend)
	y.l.Start(y, transport.MaxSend)
	key, addr := y.d.Register(mem)
	x.post(&transport.Op{Kind: transport.OpWriteImm, Key: key, Addr: addr, Data: bytes.Repeat([]byte{1}, 100<<10)})
	p.until(t, "a write", func() bool { return y.count() == 1 })
	x.post(&transport.Op{Kind: transport.OpWriteImm, Key: key, Addr: addr + 150<<10, Data: bytes.Repeat([]byte{1}, 10)})
	if err := p.wantClosed(t, y); !strings.Contains(err.Error(), full.Error()) {
		t.Errorf("the link ended with %v", err)
	}
	if asked < 2 || most != 100<<10 || bytes.Count(mem[100<<10:], []byte{0}) != 100<<10 {
		t.Errorf("asked %d times, for %d bytes", asked, most)
	}
}

func testInvalidate(t *testing.T, p OneSided) {
	p.need(t, p.caps().PeerRevokes, "PeerRevokes")
	peerRevokes(t, p, func(x, y *side, mem []byte) (uint32, uint64) { return y.d.Register(mem) })
}

func testInvalidateGrant(t *testing.T, p OneSided) {
	p.need(t, p.caps().PeerRevokes, "PeerRevokes")
	peerRevokes(t, p, func(x, y *side, mem []byte) (uint32, uint64) { return p.grant(t, y, x, mem, 0) })
}

// peerRevokes has the peer end a key that give has made.
func peerRevokes(t *testing.T, p OneSided, give func(x, y *side, mem []byte) (uint32, uint64)) {
	x, y := p.started(t)
	mem := make([]byte, 100)
	key, addr := give(x, y, mem)
	other, otherAddr := y.d.Register(mem)
	x.post(
		&transport.Op{Kind: transport.OpWrite, Key: key, Addr: addr, Data: pattern(100, 1)},
		&transport.Op{Kind: transport.OpSendInval, Key: key},
		&transport.Op{Kind: transport.OpWriteImm, Key: other, Addr: otherAddr, Data: pattern(100, 2)})
	p.until(t, "both", func() bool { return y.count() == 2 })
	if e := y.events[0]; e.what != "Invalidated" || e.key != key {
		t.Errorf("revoked: %+v", e)
	}
	if y.d.Revoke(key) != transport.Idle {
		t.Error("a key that the peer revoked is busy")
	}
	late := transport.Op{Kind: transport.OpWrite, Key: key, Addr: addr, Data: pattern(100, 3)}
	x.post(&late)
	if err := p.wantClosed(t, y); !p.denied(err, &late) {
		t.Errorf("a write with a revoked key: %v", err)
	}
	if !bytes.Equal(mem, pattern(100, 2)) {
		t.Error("it was placed")
	}
}

// testFilled checks that the owner of memory that a peer was asked to fill learns how much
// of it was filled, whichever side ends its key.
func testFilled(t *testing.T, p OneSided) {
	p.need(t, p.caps().Fills, "Fills")
	type part struct{ off, n int }
	for _, c := range []struct {
		name   string
		parts  []part
		filled int
	}{
		{"nothing", nil, 0},
		{"all at once", []part{{0, 100}}, 100},
		{"all but a byte", []part{{0, 99}}, 99},
		{"all but the first byte", []part{{1, 99}}, 0},
		{"in pieces", []part{{0, 40}, {40, 1}, {41, 59}}, 100},
		{"the first half twice", []part{{0, 50}, {0, 50}}, 50},
		{"with a gap", []part{{0, 50}, {51, 49}}, 50},
		{"overlapping", []part{{0, 60}, {50, 30}}, 80},
		{"a part of what is there", []part{{0, 60}, {10, 20}}, 60},
		{"no bytes at the end", []part{{0, 60}, {100, 0}}, 60},
	} {
		for _, who := range []string{"owner", "peer"} {
			if who == "peer" && !p.caps().PeerRevokes {
				continue
			}
			x, y := p.started(t)
			key, addr := y.d.Register(make([]byte, 100))
			var ops []*transport.Op
			for _, w := range c.parts {
				ops = append(ops, &transport.Op{Kind: transport.OpWrite, Key: key, Addr: addr + uint64(w.off), Data: pattern(w.n, 1)})
			}
			last := &transport.Op{Kind: transport.OpSend}
			if who == "peer" {
				last = &transport.Op{Kind: transport.OpSendInval, Key: key}
			}
			x.post(append(ops, last)...)
			p.until(t, c.name, func() bool { return y.count() == 1 })
			got := y.events[0].filled
			if who == "owner" {
				got = p.revoke(t, y, key)
			}
			if got != c.filled {
				t.Errorf("%s, ended by the %s: %d bytes are filled; want %d", c.name, who, got, c.filled)
			}
			if n, how := y.d.Take(key); n != 0 || how != transport.Idle {
				t.Errorf("%s: %d bytes and %v of a key that is not there", c.name, n, how)
			}
			// The next key in its place begins at nothing.
			for range 100 {
				k, _ := y.d.Register(make([]byte, 100))
				if n, _ := y.d.Take(k); n > 0 {
					t.Fatalf("%s: %d bytes of new memory are filled", c.name, n)
				}
			}
			x.l.Close()
			y.l.Close()
			p.wantClosed(t, x)
			p.wantClosed(t, y)
		}
	}
}

func testKeys(t *testing.T, p OneSided) {
	p.need(t, p.caps().SecretKeys, "SecretKeys")
	d := p.B.NewDomain()
	mem := make([]byte, 64)
	seen := map[uint32]bool{}
	var live []uint32
	sequels := 0
	for i := range 20000 {
		key, addr := d.Register(mem)
		if seen[key] || key == 0 {
			t.Fatalf("key %#x was given twice, or is 0", key)
		}
		if addr+uint64(len(mem)) < addr || addr == 0 {
			t.Fatalf("address %#x", addr)
		}
		if n := len(live); n > 0 && key-live[n-1] == 1 {
			sequels++
		}
		seen[key] = true
		if live = append(live, key); len(live) > 100 {
			k := (i * 7919) % len(live)
			if d.Revoke(live[k]) == transport.Busy {
				t.Fatal("busy, though nobody writes")
			}
			live[k] = live[len(live)-1]
			live = live[:len(live)-1]
		}
	}
	if sequels > 5 {
		t.Errorf("%d keys follow upon the one before", sequels)
	}
	if d.Revoke(12345) != transport.Idle {
		t.Error("a key that never was is busy")
	}
	d.Close()
	d.Close()
	if key, _ := d.Register(mem); d.Revoke(key) != transport.Idle {
		t.Error("a key of a closed domain is busy")
	}
}

// testGrantAt checks that Grant keeps the address and gives a new key.
func testGrantAt(t *testing.T, p OneSided) {
	x, y := p.started(t)
	mem := make([]byte, 100)
	old, addr := p.grant(t, y, x, mem, 0)
	p.revoke(t, y, old)
	key, at := p.grant(t, y, x, mem, addr)
	if key == old || at != addr {
		t.Errorf("the same key again, or address %#x for %#x", at, addr)
	}
	x.post(&transport.Op{Kind: transport.OpWriteImm, Key: key, Addr: addr + 10, Data: pattern(90, 1)})
	p.until(t, "a write", func() bool { return y.count() == 1 })
	if !bytes.Equal(mem[10:], pattern(90, 1)) {
		t.Error("it lies elsewhere")
	}
	late := transport.Op{Kind: transport.OpWriteImm, Key: old, Addr: addr, Data: pattern(90, 2)}
	x.post(&late)
	if err := p.wantClosed(t, y); !p.denied(err, &late) || y.count() != 1 {
		t.Errorf("a write with the old key: %v", err)
	}
}

func testLimits(t *testing.T, p OneSided) {
	for _, op := range []transport.Op{
		{},
		{Kind: transport.OpSendInval + 1},
		{Kind: transport.OpSend, Tail: make([]byte, transport.MaxTail+1)},
		{Kind: transport.OpSend, Data: make([]byte, transport.MaxSend+1)},
		{Kind: transport.OpSendImm, Data: make([]byte, transport.MaxSend-1), Tail: make([]byte, 2)},
	} {
		x, y := p.started(t)
		x.post(&op, &transport.Op{Kind: transport.OpSend})
		if err := p.wantClosed(t, x); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%v with %d+%d bytes: %v", op.Kind, len(op.Data), len(op.Tail), err)
		}
		p.wantClosed(t, y)
		if y.count() > 0 {
			t.Error("what was posted behind it has come")
		}
	}
}

func testHandlerFails(t *testing.T, p OneSided) {
	boom := errors.New("boom")
	x, y := p.link(t)
	key, _ := y.d.Register(make([]byte, 1))
	for _, op := range []*transport.Op{
		{Kind: transport.OpSend}, {Kind: transport.OpSendImm, Data: make([]byte, 30000)},
		{Kind: transport.OpWriteImm}, {Kind: transport.OpSendInval, Key: key, Data: []byte{1}},
	} {
		if op.Kind == transport.OpSendInval && !p.caps().PeerRevokes {
			continue
		}
		if x == nil {
			x, y = p.link(t)
			op.Key, _ = y.d.Register(make([]byte, 1))
		}
		if op.Kind == transport.OpWriteImm {
			op.Key, op.Addr = y.d.Register(make([]byte, 30000))
			op.Data = make([]byte, 30000)
		}
		y.on = func(event) error { return boom }
		x.l.Start(x, transport.MaxSend)
		y.l.Start(y, transport.MaxSend)
		x.post(op, op)
		if err := p.wantClosed(t, y); err != boom {
			t.Errorf("kind %d: closed with %v", op.Kind, err)
		}
		if y.count() != 1 {
			t.Errorf("kind %d: %d events", op.Kind, y.count())
		}
		x = nil
	}
}

func testClose(t *testing.T, p OneSided) {
	x, y := p.started(t)
	x.post(&transport.Op{Kind: transport.OpSend, Data: []byte("last words")})
	p.until(t, "them", func() bool { return y.count() == 1 })
	x.l.Close()
	x.l.Close()
	p.wantClosed(t, x)
	if err := p.wantClosed(t, y); err != io.EOF {
		t.Errorf("the peer closed: %v", err)
	}
	x.post(&transport.Op{Kind: transport.OpSend}, &transport.Op{})
	x.l.Start(x, transport.MaxSend)
	y.l.Close()
	p.wantClosed(t, y)

	// From within the handler: nothing is called from within Close.
	x, y = p.link(t)
	y.on = func(event) error { y.l.Close(); return nil }
	x.l.Start(x, transport.MaxSend)
	y.l.Start(y, transport.MaxSend)
	x.post(&transport.Op{Kind: transport.OpSend})
	p.wantClosed(t, y)
	p.wantClosed(t, x)
}

func testCloseUnstarted(t *testing.T, p OneSided) {
	x, y := p.link(t)
	x.post(&transport.Op{Kind: transport.OpSend, Data: []byte{1}})
	x.l.Close()
	x.l.Close()
	x.l.Start(x, transport.MaxSend)
	p.wantClosed(t, x)
	y.l.Start(y, transport.MaxSend)
	p.wantClosed(t, y)

	x, y = p.link(t) // that fails before it is started
	x.post(&transport.Op{})
	x.l.Start(x, transport.MaxSend)
	p.wantClosed(t, x)
	y.l.Start(y, transport.MaxSend)
	p.wantClosed(t, y)
}

// testManyPost lets several threads post and flush; the order of each one is kept.
func testManyPost(t *testing.T, p OneSided) {
	if p.Step != nil {
		return // all of the provider is on this thread
	}
	x, y := p.started(t)
	const threads, each = 4, 2000
	mem := make([]byte, 4096)
	key, addr := y.d.Register(mem)
	data := make([]byte, 4096)
	var wg sync.WaitGroup
	for k := range threads {
		wg.Go(func() {
			for i := range each {
				var tail [8]byte
				binary.LittleEndian.PutUint32(tail[:], uint32(k))
				binary.LittleEndian.PutUint32(tail[4:], uint32(i))
				x.post(&transport.Op{Kind: transport.OpWrite, Key: key, Addr: addr, Data: data},
					&transport.Op{Kind: transport.OpSend, Tail: tail[:]})
			}
		})
	}
	wg.Wait()
	p.until(t, "all", func() bool { return y.count() == threads*each })
	var next [threads]uint32
	for _, e := range y.events {
		k, i := binary.LittleEndian.Uint32(e.data), binary.LittleEndian.Uint32(e.data[4:])
		if next[k] != i {
			t.Fatalf("thread %d: %d came when %d was due", k, i, next[k])
		}
		next[k]++
	}
}
