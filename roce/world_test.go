package roce

import (
	"fmt"
	"hash/fnv"
	"math/rand"
	"net/netip"
	"strings"
	"time"

	"github.com/rdsd/rdsd/transport/sim"
)

// world is hosts with connections between them over a net drawn from a seed.
type world struct {
	sim.Clock
	rnd     *rand.Rand
	net     *sim.Datagrams
	hosts   []*simHost
	flows   []*flow
	bad     string
	trace   *strings.Builder
	digest  uint64
	hostile float64 // how likely an operation is one that must not be done
	benign  bool    // no fault lasts as long as a queue pair's patience

	whole, cutUntil time.Duration // when the net has lost little since, and when the last cut ended

	counts struct {
		ok, died, restarts, cuts, revoked, spoofed, polls, trespasses uint64
		sum                                                           Counters
		drops                                                         [NumDropReasons]uint64
	}
}

func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.rnd.Int63n(int64(d) + 1)) }
func (w *world) chance(p float64) bool              { return w.rnd.Float64() < p }

func choose[T any](w *world, of ...T) T { return of[w.rnd.Intn(len(of))] }

// violation is how a world ends that has found something.
type violation struct{}

func (w *world) fail(format string, a ...any) {
	w.bad = fmt.Sprintf("at %v: ", w.Now()) + fmt.Sprintf(format, a...)
	w.note("VIOLATION %s", w.bad)
	panic(violation{})
}

// note adds to what the world is remembered by, and to its story.
func (w *world) note(format string, a ...any) {
	h := fnv.New64a()
	line := fmt.Sprintf(format, a...)
	fmt.Fprint(h, w.digest, w.Now(), line)
	w.digest = h.Sum64()
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%12v %s\n", w.Now(), line)
	}
}

// simHost is a device at an address, with its shell; or, if it has none, a host of kernels.
type simHost struct {
	w       *world
	addr    netip.AddrPort
	dev     *Device
	kernels []*kernel
	ends    []*end
	burst   Burst
	turning bool // a turn is planned
	armed   time.Duration
	turn    time.Duration // how long it takes until the shell is done with what arrived
	alive   int           // how often it began
}

func (h *simHost) Completed(q *QP) { h.plan() }
func (h *simHost) Arrived(q *QP)   {}
func (h *simHost) Failed(q *QP, why error) {
	h.w.note("%v: queue pair %d failed: %v", h.addr.Addr(), q.number, why)
	for _, e := range h.ends {
		if e.q == q && e.in.area != nil {
			e.in.freeze()
		}
	}
}
func (h *simHost) MAD(netip.AddrPort, []byte) {}
func (h *simHost) Drop(why DropReason)        { h.w.note("%v drops: %v", h.addr.Addr(), why) }

// plan has the turn end soon, in which all is polled and sent.
func (h *simHost) plan() {
	if h.turning {
		return
	}
	h.turning = true
	h.w.After(h.w.upTo(h.turn), func() {
		h.turning = false
		h.endTurn()
	})
}

func (h *simHost) endTurn() {
	for _, e := range h.ends {
		e.drain()
	}
	if h.dev == nil {
		return
	}
	for i := 0; h.dev.Fill(h.w.Now(), &h.burst); i++ {
		if i > 1<<16 {
			h.w.fail("%v sends for ever", h.addr)
		}
		b := &h.burst
		list, err := checkBurst(h.addr, b)
		if err != nil {
			h.w.fail("%v sends %v", h.addr, err)
		}
		for _, d := range list {
			h.w.send(h.addr, b.To, d.pkt)
		}
		h.dev.Sent(b)
	}
	h.arm()
}

// arm has the device's timers fire.
func (h *simHost) arm() {
	at := h.dev.Next()
	if at == never || h.armed > h.w.Now() && h.armed <= at {
		return
	}
	h.armed = at
	alive := h.alive
	h.w.At(at, func() {
		if alive != h.alive || h.armed != at {
			return
		}
		h.armed = 0
		h.dev.Tick(h.w.Now())
		h.endTurn()
	})
}

func (h *simHost) receive(from netip.AddrPort, pkt []byte) {
	for _, k := range h.kernels {
		k.receive(from, pkt)
	}
	if h.dev != nil {
		h.dev.Receive(h.w.Now(), from, pkt)
		h.plan()
	}
}

// send gives a packet to the net, where strangers see it.
func (w *world) send(from, to netip.AddrPort, pkt []byte) {
	if w.trace != nil {
		var p Packet
		p.Parse(pkt)
		fmt.Fprintf(w.trace, "%12v %v > %v %v %06x ask=%v %v\n", w.Now(), from.Addr(), to.Addr(), p.Op, p.PSN, p.AckReq, p.Syndrome)
	}
	w.net.Send(from, to, pkt)
	if len(w.hosts) > 2 && w.chance(0.05) {
		w.spoof(to, pkt)
	}
}

// spoof sends from a third host what somebody else has sent, with other bytes, or with a
// refusal in the place of an acknowledgement.
func (w *world) spoof(to netip.AddrPort, pkt []byte) {
	w.counts.spoofed++
	from := w.hosts[len(w.hosts)-1].addr
	b := append([]byte(nil), pkt[:len(pkt)-icrcLen]...)
	if Opcode(b[0]) == Acknowledge {
		b[bthLen] = byte(NAKInvalidRequest)
	} else if h := Opcode(b[0]).Header(); len(b) > h {
		b[h+w.rnd.Intn(len(b)-h)] ^= 0x55
	}
	f, _ := NewFlow(from, to)
	w.net.Send(from, to, AppendICRC(b, f.ICRC(0, b)))
}

// start makes the host's device, or anew.
func (h *simHost) start(cfg Config) {
	cfg.Local = h.addr.Addr()
	h.alive++
	d, err := NewDevice(cfg, h, rand.New(rand.NewSource(h.w.rnd.Int63())))
	if err != nil {
		panic(err)
	}
	if h.dev != nil {
		h.collect()
	}
	h.dev, h.armed = d, 0
}

// collect adds up what the device has counted.
func (h *simHost) collect() {
	c := h.dev.Counters()
	h.w.counts.sum.add(&c)
	for i, n := range h.dev.Drops() {
		h.w.counts.drops[i] += n
	}
}

// end is one end of a connection: a queue pair, or a kernel's, and what its application knows.
type end struct {
	h     *simHost
	q     *QP
	k     *kernel
	name  string
	in    *flow // of which it is the target
	out   *flow // which it drives
	lost  bool  // its host has forgotten it
	ghost bool  // it is one of an end that began anew, of which the peer knows nothing
	depth int
	bufs  [][]byte // of receives, by number, with bytes around them
	size  int      // of each

	stalled bool // a receive is to be posted
}

const fence = 16 // bytes around all memory, which stay as they are

func (e *end) number() uint32 {
	if e.k != nil {
		return e.k.num
	}
	return e.q.number
}

func (e *end) memory() *Memory {
	if e.k != nil {
		return e.k.mem
	}
	return e.h.dev.Memory()
}

func (e *end) dead() bool {
	if e.k != nil {
		return e.k.dead
	}
	return e.q.State() == Error
}

func (e *end) post(w Work) {
	if e.k != nil {
		e.k.post(w)
		return
	}
	if err := e.q.Post(w); err != nil {
		e.h.w.fail("%s: posting %d: %v", e.name, w.ID, err)
	}
	e.h.plan()
}

// recv posts a receive.
func (e *end) recv() {
	b := make([]byte, e.size+2*fence)
	for i := range b {
		b[i] = 0xee
	}
	r := Recv{ID: uint64(len(e.bufs)), Data: b[fence : fence+e.size : fence+e.size]}
	e.bufs = append(e.bufs, b)
	if e.k != nil {
		e.k.postRecv(r)
		return
	}
	if err := e.q.PostRecv(r); err != nil {
		e.h.w.fail("%s: posting a receive: %v", e.name, err)
	}
}

func (e *end) poll() (c Completion, ok bool) {
	if e.k == nil {
		return e.q.Poll()
	}
	if len(e.k.done) == 0 {
		return c, false
	}
	c = e.k.done[0]
	e.k.done = e.k.done[1:]
	return c, true
}

// drain takes all completions.
func (e *end) drain() {
	w := e.h.w
	for c, ok := e.poll(); ok; c, ok = e.poll() {
		w.counts.polls++
		w.note("%s: %v %d: %v, %d bytes", e.name, c.Op, c.ID, c.Status, c.N)
		switch {
		case !c.Received():
			e.out.completed(c)
		case c.Status == OK:
			e.in.received(c)
			if !e.stalled {
				e.stalled = w.chance(0.1)
				w.After(w.upTo(choose(w, 0, 50*time.Microsecond, 5*time.Millisecond)), func() {
					e.stalled = false
					e.recv()
				})
			} else {
				e.recv()
			}
		case c.Status != Flushed:
			w.fail("%s: a receive ends with %v", e.name, c.Status)
		}
	}
}
