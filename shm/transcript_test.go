package shm

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/transcript"
	"github.com/rdsd/rdsd/wire"
)

const (
	programs     = 60
	programSteps = 300
)

// TestPrograms: both ends of a region do what they did. After each step of a drawn program
// all that either end, or whoever reads the region or the ledger, can see is compared: what
// calls returned, every byte of the region and of its record in the ledger, accounts, doorbells.
func TestPrograms(t *testing.T) {
	transcript.Check(t, "testdata/programs.hash", *update, programs, func(t *testing.T, seed int) (steps []string) {
		p := newProgram(t, int64(seed))
		for range programSteps {
			steps = append(steps, p.step(p.act))
		}
		return append(steps, p.step(p.end))
	})
}

// program is both ends of a region, and what each has in hand.
type program struct {
	t   *testing.T
	rnd *rand.Rand
	out *strings.Builder

	s    *Sender
	x    *Receiver
	h    *Host
	bell int
	crc  *crc32.Table
	lane uint64 // sequence of the last datagram from outside

	tag      uint64
	lastFlow *Flow
	lastLen  int
	borrowed []uint64 // slots the client has taken

	taken    []took     // descriptors with datagrams without an outcome
	reserved []reserved // slots of the daemon's
	spared   []Spared
	sparedAt uint64

	left int // bytes that the payer has
}

type took struct {
	id   uint32
	tag  uint64
	left int
}

type reserved struct {
	off uint64
	b   []byte
}

func (p *program) Take(n int) bool {
	if n > p.left {
		return false
	}
	p.left -= n
	return true
}

func (p *program) Give(n int) { p.left += n }

func (p *program) Keep(int) bool { return true }

func newProgram(t *testing.T, seed int64) *program {
	p := &program{t: t, rnd: rand.New(rand.NewSource(seed)), out: &strings.Builder{}, crc: crc32.MakeTable(crc32.Castagnoli), left: 1 << 40}
	s := testSpec()
	s.Flows, s.Sends, s.Events, s.Receives, s.Releases = 8, 8, 8, 8, 16
	if seed%3 == 0 {
		s.Sends, s.Events, s.Receives, s.Releases = 64, 128, 64, 128 // rings of more than a page
	}
	s.SendArena, s.RecvArena = 1<<17, 1<<17
	s.SndBuf, s.RcvBuf = 1<<16, 1<<16
	r := heapRegion(t, s)
	clear(r.ID[:]) // it is drawn anew each time
	r.Header.Put(r.mem)
	r.SetLocal(r.Local)
	bell, err := NewBell()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(bell) })
	var g *LedgerRegion
	if seed%2 == 0 {
		if g, err = newLedger(t, LedgerSpec{Instance: 1, Lanes: 4, Regions: 2, Commits: 1}).Region(r); err != nil {
			t.Fatal(err)
		}
	}
	p.s, p.x, p.h, p.bell = NewSender(r, bell), NewReceiver(r, bell), NewHost(r, g), bell
	if seed%4 > 1 {
		p.left = 24 << 10
		p.h.Pay(p)
	}
	return p
}

func (p *program) note(format string, args ...any) { fmt.Fprintf(p.out, format+"; ", args...) }

// step does something and returns what there was to be seen of it.
func (p *program) step(do func()) string {
	p.out.Reset()
	do()
	r := p.h.Region()
	var rung [8]byte
	unix.Read(p.bell, rung[:]) // nothing when it did not ring
	p.note("rung %d, %s", binary.NativeEndian.Uint64(rung[:]), words(r))
	p.note("region %08x", crc32.Checksum(r.mem, p.crc))
	if g := p.h.led; g != nil {
		p.note("ledger %08x %08x", crc32.Checksum(g.mem, p.crc), crc32.Checksum(g.l.mem[g.sendOff():][:4096], p.crc))
	}
	p.note("client: room %d, most %d, out %d, borrowed %d, starved %v, events %v, block %d", p.s.Room(), p.s.Most(), p.s.Out(), p.x.Out(), p.x.Starved(), p.s.EventsWait(), p.s.Block(100))
	h := p.h
	p.note("daemon: %d descriptors, %d datagrams, %d bytes, posts %v, releases %v, room %v, asleep %v, paid %d, lacks %v, posted %d of %d, error %v",
		h.Outstanding(), h.OutstandingDatagrams(), h.OutstandingBytes(), h.HasPosts(), h.HasReleases(), h.HasRoom(), h.Asleep(), h.Paid(), h.Lacked(), h.Taking(), h.Posted(), h.Err())
	return p.out.String()
}

func (p *program) dst() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 9}), uint16(5000+p.rnd.Intn(12)))
}

func (p *program) length() int {
	return []int{0, 1, 8, 100, 100, 1000, 4096, 9000, 40000}[p.rnd.Intn(9)]
}

func (p *program) body(n int) []byte {
	b := make([]byte, n)
	p.rnd.Read(b)
	return b
}

func (p *program) act() {
	acts := []struct {
		weight int
		do     func()
	}{
		{20, p.send}, {14, p.appendOne}, {12, p.events}, {12, p.receive}, {10, p.release}, {4, p.clientSleeps}, {3, p.dropFlow}, {2, p.single},
		{18, p.take}, {14, p.outcome}, {16, p.place}, {5, p.reserve}, {6, p.placeReserved}, {8, p.releases}, {14, p.publish},
		{5, p.daemonSleeps}, {3, p.congestion}, {2, p.wantRoom}, {3, p.grow}, {3, p.spare}, {2, p.memory}, {2, p.unread},
	}
	sum := 0
	for _, a := range acts {
		sum += a.weight
	}
	n := p.rnd.Intn(sum)
	for _, a := range acts {
		if n -= a.weight; n < 0 {
			a.do()
			return
		}
	}
}

// The client.

func (p *program) send() {
	f, err := p.s.Flow(p.dst())
	if err != nil {
		p.note("send: %v", err)
		return
	}
	n, each := 1+p.rnd.Intn(3), p.length()
	kind := []int{KindTable, KindMixed, KindEach, KindEach, KindEach, KindEach}[p.rnd.Intn(6)]
	var body []byte
	var lengths []int
	payload := 0
	if kind != KindEach {
		var bodies []byte
		for range n {
			k := p.rnd.Intn(200)
			lengths = append(lengths, k)
			if kind == KindTable {
				body = binary.BigEndian.AppendUint32(body, uint32(k))
			}
			bodies = append(bodies, p.body(k)...)
			payload += k
		}
		body = append(body, bodies...)
	} else {
		body = p.body(n * each)
		payload = len(body)
	}
	size := Want{Body: len(body)}
	if kind == KindMixed {
		size.Table = LengthBytes * n
	}
	if n == 1 {
		size = p.s.Plan(size)
	}
	sl, err := p.s.GrabFor(f, size)
	if err != nil {
		p.note("send %d: %v", size, err)
		return
	}
	p.s.Count(&sl, payload)
	if p.rnd.Intn(10) == 0 {
		p.s.Drop(&sl)
		p.note("dropped")
		return
	}
	copy(sl.Body, body)
	if kind == KindMixed {
		for i, k := range lengths {
			sl.SetLength(i, k)
		}
	}
	p.s.Post(&sl, kind, len(body), n, payload, p.tag, p.rnd.Intn(3) == 0)
	p.note("sent %d to %v, flow %d gen %d", n, f.Dst, f.Index(), f.Gen())
	p.tag += uint64(n)
	p.lastFlow, p.lastLen = f, each
}

func (p *program) appendOne() {
	if p.lastFlow == nil {
		return
	}
	n := p.lastLen
	if p.rnd.Intn(8) == 0 {
		n = p.length()
	}
	tag := p.tag
	if p.rnd.Intn(12) == 0 {
		tag++
	}
	ok := p.s.Append(p.lastFlow, p.body(n), tag)
	if p.note("append %d: %v", n, ok); ok {
		p.tag = tag + 1
	}
}

func (p *program) events() {
	for range 1 + p.rnd.Intn(6) {
		var v Event
		ok, err := p.s.NextEvent(&v)
		p.note("event %v %v %+v", ok, err, v)
		if !ok {
			break
		}
	}
	if p.rnd.Intn(3) > 0 {
		p.s.EventsTaken()
	}
}

func (p *program) receive() {
	for range 1 + p.rnd.Intn(4) {
		var d RecvDesc
		ok, err := p.x.Peek(&d)
		if p.note("peek %v %v", ok, err); !ok {
			break
		}
		l, body := Walk(d.Word, p.x.Body(&d))
		p.note("%+v, each %d, %08x", d, l.Each(), crc32.Checksum(body, p.crc))
		for l.Left() > 0 {
			n := l.Next(len(body))
			body = body[n:]
			p.note("%d", n)
		}
		p.x.Take()
		p.borrowed = append(p.borrowed, d.Slot)
	}
	if p.rnd.Intn(4) > 0 {
		p.note("taken %d", p.x.Taken())
	}
}

func (p *program) release() {
	for range p.rnd.Intn(6) {
		if len(p.borrowed) == 0 {
			break
		}
		i := p.rnd.Intn(len(p.borrowed))
		p.x.Release(p.borrowed[i])
		p.borrowed = slices.Delete(p.borrowed, i, i+1)
	}
	p.x.Released()
}

func (p *program) clientSleeps() {
	p.h.Region().ClientSleeps().Store(uint32(p.rnd.Intn(64)))
}

func (p *program) dropFlow() {
	if f := p.s.Known(p.dst()); f != nil {
		p.note("state %+v", p.s.State(f))
		if p.s.State(f).State() == FlowRefused {
			p.s.Refused(f)
		}
		p.note("away %v", f.Away())
	}
}

func (p *program) single() { p.x.Single(p.rnd.Intn(2) == 0) }

// The daemon.

func (p *program) take() {
	for range 1 + p.rnd.Intn(3) {
		var q Post
		ok, err := p.h.Next(&q)
		p.note("next %v %v", ok, err)
		if !ok {
			return
		}
		dst, gen, known := p.h.FlowEntry(q.Flow)
		p.note("tag %d, cookie %d, %v %d %v, %d of %d bytes %08x, open %v, want %v, %v", q.Tag, q.Cookie, dst, gen, known, q.Count, len(q.Body), crc32.Checksum(q.Body, p.crc), q.Open, q.Want, q.Bad)
		if q.Open {
			p.h.Taken(&q, MakeTarget(dst), false)
			state := []uint16{FlowClear, FlowClear, FlowCongested, FlowRefused}[p.rnd.Intn(4)]
			p.h.SetFlow(q.Flow, q.Gen, state, uint16(p.rnd.Intn(3)))
			continue
		}
		refused := q.Bad != nil || p.rnd.Intn(8) == 0
		id, cell := p.h.Taken(&q, MakeTarget(dst), !refused)
		p.note("id %d", id)
		if refused {
			p.h.Refused(&q, 111)
			continue
		}
		if cell != nil {
			*cell = 1<<56 | q.Tag
		}
		p.taken = append(p.taken, took{id, q.Tag, q.Count})
	}
}

func (p *program) outcome() {
	for range 1 + p.rnd.Intn(3) {
		if len(p.taken) == 0 {
			return
		}
		i := p.rnd.Intn(len(p.taken))
		x := &p.taken[i]
		n := 1 + p.rnd.Intn(x.left)
		p.h.Outcome(x.id, x.tag, n, uint8(Delivered+p.rnd.Intn(2)), uint8(p.rnd.Intn(2)), n == x.left)
		x.tag += uint64(n)
		if x.left -= n; x.left == 0 {
			p.taken = slices.Delete(p.taken, i, i+1)
		}
	}
}

// train is one that came from outside.
func (p *program) train() (netip.AddrPort, wire.Train, uint64) {
	n, each := 1+p.rnd.Intn(3), p.length()
	p.lane += uint64(n)
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 2}), uint16(6000+p.rnd.Intn(2))), wire.Train{Body: p.body(n * each), Count: n}, p.lane
}

func (p *program) place() {
	for range 1 + p.rnd.Intn(4) {
		src, in, seq := p.train()
		cost, ok := p.h.PlaceCopy(src, in, uint32(p.rnd.Intn(2)), seq)
		if p.note("placed %d: %d %v", in.Count, cost, ok); !ok {
			return
		}
	}
}

func (p *program) reserve() {
	n := p.length()
	off, b, ok := p.h.Reserve(n)
	if p.note("reserved %d: %d %v", n, off, ok); ok {
		p.reserved = append(p.reserved, reserved{off, b})
	}
}

func (p *program) placeReserved() {
	if len(p.reserved) == 0 {
		return
	}
	i := p.rnd.Intn(len(p.reserved))
	x := p.reserved[i]
	p.reserved = slices.Delete(p.reserved, i, i+1)
	if p.rnd.Intn(3) == 0 {
		p.h.Unreserve(x.off)
		return
	}
	n := p.rnd.Intn(len(x.b) + 1)
	copy(x.b, p.body(n))
	p.lane++
	cost, ok := p.h.Place(netip.MustParseAddrPort("10.0.0.2:6000"), x.off, wire.One(x.b[:n]), 0, p.lane)
	if p.note("placed %d: %d %v", n, cost, ok); !ok {
		p.h.Unreserve(x.off)
	}
}

func (p *program) releases() {
	bytes, cost, n, err := p.h.Releases()
	p.note("released %d, cost %d, %d, %v", bytes, cost, n, err)
}

func (p *program) publish() {
	if g := p.h.led; g != nil && p.rnd.Intn(2) == 0 {
		g.l.PublishAll(0, nil, 0, nil, []*Host{p.h})
	}
	ring := p.h.Publish()
	p.note("ring %v, due %v", ring, p.h.Due())
}

func (p *program) daemonSleeps() {
	if p.h.Asleep() {
		p.h.Wake()
		return
	}
	p.note("sleep %v", p.h.Sleep())
}

func (p *program) congestion() {
	if p.rnd.Intn(3) == 0 {
		p.h.Freed(1 << p.rnd.Intn(64))
		return
	}
	for range 1 + p.rnd.Intn(4) {
		p.h.Changed(p.dst(), p.rnd.Intn(2) == 0)
	}
}

func (p *program) wantRoom() {
	p.h.WantRoom(p.rnd.Intn(2) == 0)
	p.note("due %v", p.h.Due())
}

func (p *program) grow() {
	from, pages, wanted := p.h.Growth()
	p.note("growth %d %d %v, growing %v", from, pages, wanted, p.h.Growing())
	if wanted {
		if p.rnd.Intn(2) == 0 || p.h.led.Grow(from, pages) != nil {
			pages = 0
		}
		p.h.Grown(pages)
	}
}

func (p *program) spare() {
	if len(p.spared) == 0 {
		s, ok := p.h.Spare(&p.sparedAt)
		if p.note("spare %+v %v, at %d", s, ok, p.sparedAt); !ok {
			p.sparedAt = 0
			return
		}
		clear(p.h.Region().mem[p.h.Region().DaemonOff+s.off:][:s.n])
		p.spared = append(p.spared, s)
		return
	}
	p.note("restored %d", p.h.Restore(p.spared[0]))
	p.spared = p.spared[:0]
}

func (p *program) memory() {
	p.note("lacks %v", p.h.Lacks())
	p.left += 8 << 10
	p.h.MemoryAgain()
}

func (p *program) unread() {
	p.h.EachUnread(func(src netip.AddrPort, n int) bool {
		p.note("unread %v %d", src, n)
		return p.rnd.Intn(10) > 0
	})
}

// end lets everything end, so that all accounts come back to where they began.
func (p *program) end() {
	p.left = 1 << 40
	for len(p.spared) > 0 {
		p.spare()
	}
	p.h.MemoryAgain()
	for _, x := range p.reserved {
		p.h.Unreserve(x.off)
	}
	for range 1000 {
		if from, pages, wanted := p.h.Growth(); wanted {
			if err := p.h.led.Grow(from, pages); err != nil {
				p.t.Fatal(err)
			}
			p.h.Grown(pages)
		}
		p.take()
		p.outcome()
		p.publish()
		p.events()
		p.receive()
		p.x.Taken()
		p.s.EventsTaken()
		for _, slot := range p.borrowed {
			p.x.Release(slot)
		}
		p.borrowed = nil
		p.x.Released()
		p.releases()
	}
	restored(p.t, p.s, p.h)
}
