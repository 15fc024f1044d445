package simtest

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"

	"github.com/rdsd/rdsd/conn"
)

// signLen is the signature at the start of every payload that is not empty:
// flow, number, length, checksum of the rest.
const signLen = 24

const signMagic = 0x51

// rec is the model's knowledge of one datagram.
type rec struct {
	flow      *flow
	post      *post // of a client with a memory of its own
	num       uint64
	size      int
	node      int // the sender, and its incarnation
	epoch     int
	payload   []byte // the sender's memory, until the outcome
	accepted  bool
	refused   bool // never accepted
	left      bool // seen on the wire
	resent    bool // a kernel sent it again, flagged
	path      int  // a kernel's path that sent it
	arrived   bool // taken from the wire, placed or not
	cancelled bool // a cancel or close concerned it
	leftFirst bool // it had left when it was cancelled
	placed    int  // times placed, in all incarnations of the receiver
	placedIn  int  // receiver's incarnation that placed it last, from 1
	outcome   conn.Outcome
	why       conn.Why
	gone      bool // its sender crashed: nobody will be told
	rcvEpoch  int  // receiver's incarnation when it was accepted
	portEpoch int  // count of binds and closes of the destination port then
}

// flow is everything from one source (address, port) to one destination
// (address, port), whichever sockets have these ports.
type flow struct {
	id       uint32
	src, dst netip.AddrPort
	recs     []*rec
	placedIn int    // receiver's incarnation of lastNum
	lastNum  uint64 // last number placed, plus 1
	lastPath int
	anon     int // empty datagrams placed
	anonSent int // empty datagrams accepted
}

type model struct {
	w     *World
	flows map[[2]netip.AddrPort]*flow
	byID  []*flow
	ports map[netip.AddrPort]int // binds and closes
	total struct{ accepted, placed, delivered, cancelled, failed, unknown int }
}

func newModel(w *World) *model {
	return &model{w: w, flows: map[[2]netip.AddrPort]*flow{}, ports: map[netip.AddrPort]int{}}
}

func (m *model) flow(src, dst netip.AddrPort) *flow {
	k := [2]netip.AddrPort{src, dst}
	f := m.flows[k]
	if f == nil {
		f = &flow{id: uint32(len(m.byID)), src: src, dst: dst}
		m.flows[k] = f
		m.byID = append(m.byID, f)
	}
	return f
}

// make draws up the next datagram of a flow, signed.
func (m *model) make(src, dst netip.AddrPort, size int) *rec {
	f := m.flow(src, dst)
	if size > 0 {
		size = max(size, signLen)
	}
	r := &rec{flow: f, num: uint64(len(f.recs)), size: size, rcvEpoch: m.w.epochOf(dst.Addr()), portEpoch: m.ports[dst]}
	f.recs = append(f.recs, r)
	r.payload = make([]byte, size)
	if size > 0 {
		sign(r.payload, f.id, r.num)
	}
	return r
}

func sign(p []byte, id uint32, num uint64) {
	p[0] = signMagic
	binary.BigEndian.PutUint32(p[4:], id)
	binary.BigEndian.PutUint64(p[8:], num)
	binary.BigEndian.PutUint32(p[16:], uint32(len(p)))
	x := uint64(id)<<32 ^ num*0x9e3779b97f4a7c15 | 1
	b := p[signLen:]
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, x)
		x = x*6364136223846793005 + 1442695040888963407
	}
	for i := range b {
		b[i] = byte(x >> (8 * i))
	}
	binary.BigEndian.PutUint32(p[20:], crc32.ChecksumIEEE(p[:20])^sum(p[signLen:]))
}

// sum is quick and good enough to notice any change.
func sum(b []byte) uint32 {
	var s uint64
	for ; len(b) >= 8; b = b[8:] {
		s = s*31 + binary.LittleEndian.Uint64(b)
	}
	for _, c := range b {
		s = s*31 + uint64(c)
	}
	return uint32(s ^ s>>32)
}

// read finds the record a payload is signed for, nil when it is not intact.
func (m *model) read(p []byte) *rec {
	if len(p) < signLen || p[0] != signMagic || binary.BigEndian.Uint32(p[16:]) != uint32(len(p)) {
		return nil
	}
	if binary.BigEndian.Uint32(p[20:]) != crc32.ChecksumIEEE(p[:20])^sum(p[signLen:]) {
		return nil
	}
	return m.peek(p)
}

// peek is read without the checksum, for frames that were checked elsewhere.
func (m *model) peek(p []byte) *rec {
	if len(p) < signLen || p[0] != signMagic {
		return nil
	}
	id, num := binary.BigEndian.Uint32(p[4:]), binary.BigEndian.Uint64(p[8:])
	if id >= uint32(len(m.byID)) || num >= uint64(len(m.byID[id].recs)) {
		return nil
	}
	return m.byID[id].recs[num]
}

// placedAt records that the receiver at dst, in its incarnation epoch, put a datagram into
// a socket's queue. It returns the record, nil for an empty datagram.
func (m *model) placedAt(epoch int, src, dst netip.AddrPort, p []byte) *rec {
	w := m.w
	m.total.placed++
	if len(p) == 0 {
		f := m.flow(src, dst)
		if f.anon++; f.anon > f.anonSent && !w.mayDouble(src.Addr(), dst.Addr()) {
			w.fail("D1: %v>%v: %d empty datagrams placed, %d accepted", src, dst, f.anon, f.anonSent)
		}
		return nil
	}
	r := m.read(p)
	if r == nil {
		w.fail("D4: %v>%v: a payload of %d bytes is not what anybody sent", src, dst, len(p))
		return nil
	}
	f := r.flow
	if f.src != src || f.dst != dst {
		w.fail("D4: datagram %v of %v>%v placed as %v>%v", r.num, f.src, f.dst, src, dst)
	}
	switch {
	case !r.accepted:
		w.fail("D3: %v was placed but never accepted", r)
	case w.rebooted(r):
		return r
	case r.placed > 0 && (r.placedIn == epoch || !w.mayDouble(src.Addr(), dst.Addr())):
		w.fail("D1: %v placed twice", r)
	case r.outcome == conn.Cancelled || r.outcome == conn.Failed:
		w.fail("D3: %v placed after its outcome %v (%v)", r, r.outcome, r.why)
	}
	if f.placedIn == epoch || !w.mayDouble(src.Addr(), dst.Addr()) {
		// A kernel that takes up more paths may let a flow overtake itself.
		if r.num+1 <= f.lastNum && r.path == f.lastPath {
			w.fail("D2: %v placed after number %d", r, f.lastNum-1)
		}
	}
	r.placed++
	r.placedIn, f.placedIn, f.lastNum, f.lastPath = epoch, epoch, r.num+1, r.path
	return r
}

// rebooted reports whether a kernel that just rebooted may have mixed up its paths about r.
// A later kernel may then take any connection that comes first for its path 0, and send on
// it again what it had sent on another, or take again there what it had taken elsewhere:
// until its handshake arrives nobody can tell that from something new.
func (w *World) rebooted(r *rec) bool {
	if k := w.kernel[r.flow.dst.Addr()]; k != nil {
		return k.newer && k.epoch > 1 && r.placed > 0
	}
	k := w.kernel[r.flow.src.Addr()]
	return k != nil && k.newer && k.epoch > 1 && r.resent
}

// decided records that the sender of r was told its outcome.
func (m *model) decided(r *rec, o conn.Outcome, why conn.Why) {
	w := m.w
	switch {
	case r.outcome != 0:
		w.fail("D3: %v has a second outcome %v (%v) after %v", r, o, why, r.outcome)
	case !r.accepted:
		w.fail("D3: %v has an outcome and was not accepted", r)
	}
	r.outcome, r.why = o, why
	for i := range r.payload { // D7: nobody may read it any more
		r.payload[i] ^= 0xff
	}
	rdsd := !w.isKernel(r.flow.dst.Addr())
	switch o {
	case conn.Delivered:
		m.total.delivered++
		if rdsd && r.size > 0 && r.placed == 0 && r.flow.dst.Port() != 0 && !r.loop() {
			w.fail("D5: %v is reported delivered and was not placed", r)
		}
	case conn.Cancelled:
		m.total.cancelled++
		if !r.cancelled {
			w.fail("D3: %v cancelled by nobody (%v)", r, why)
		}
	case conn.Failed:
		m.total.failed++
	case conn.Unknown:
		m.total.unknown++
		if r.size > 0 && !r.left && !r.loop() {
			w.fail("D11: %v never left and is unknown (%v)", r, why)
		}
	}
	if (o == conn.Cancelled || o == conn.Failed) && r.placed > 0 {
		w.fail("D3: %v was placed and is reported %v (%v)", r, o, why)
	}
	r.payload = nil
}

// loop reports whether an address sent r to itself: such a datagram is placed at once and
// seen when read.
func (r *rec) loop() bool { return r.flow.src.Addr() == r.flow.dst.Addr() }

func (r *rec) String() string {
	return fmt.Sprintf("datagram %d of %v>%v (%d bytes)", r.num, r.flow.src, r.flow.dst, r.size)
}
