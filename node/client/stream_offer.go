package client

import (
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/access"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// A batch can have 65536 datagrams that the engine decides one by one. Reactors and the
// user's other streams, hundreds of them, wait for the same lock. So a batch is offered in
// stretches, and the lock is let go after each. The first is short. Those behind it take
// turns with the user's other streams, so that who waits for the lock has one of them
// before it.

const (
	// firstStretch and nextStretch are what is decided with the lock held, in datagrams
	// that are decided one by one.
	firstStretch = 32
	nextStretch  = 256
	// runsAsOne is how many datagrams of a run cost as much as one by itself.
	runsAsOne = 16
	// maxRun bounds a run: to about one stretch.
	maxRun = nextStretch * runsAsOne
	// runBytes is the most bytes that a run of several has: about what the engine copies at once.
	runBytes = 32 << 10
)

// offering is a batch on its way to the engine.
type offering struct {
	s        *sockStream
	b        *inBatch
	call     sendCall
	waiting  *sendCall // call, on the heap, once something of it waits
	rejected int
	stretch  uint32 // the stretch that is offered, from 1 on
	deadline time.Duration
	i, off   int // the next datagram, and where its payload begins
	noRun    int // the first datagram that a run may begin with
	missed   int // datagrams passed over since the last run that went

	// refused has those of a batch's destinations that refused something, by what they are: a list
	// may have one several times.
	refused map[netip.AddrPort]*rawEndpoint
}

// offer offers all of it. It reports false when the stream has ended before.
func (o *offering) offer() bool {
	o.b.judge()
	var turn *access.Turn
	for o.refuseKnown() {
		work := firstStretch
		if o.stretch > 0 {
			if turn == nil {
				turn = o.s.front.sends.Of(o.s.id.UID)
				defer turn.Leave()
			}
			o.s.memory.Grow(quota.Waiting, o.b.message) // the rest stands in it
			mine := turn.Take(o.s.stream.Context().Done())
			o.s.memory.Give(quota.Waiting, o.b.message)
			if !mine {
				return false
			}
			work = nextStretch
		}
		o.locked(work)
		if turn != nil {
			turn.Give()
		}
	}
	return true
}

// refuseKnown refuses what the engine need not be asked about, and reports whether anything
// is left. While something of the batch waits the pusher has the call too, and it is
// left to the next stretch.
func (o *offering) refuseKnown() (more bool) {
	for ; o.waiting == nil && o.i < len(o.b.lengths); o.i++ {
		d := &o.b.dests[o.b.dest(o.i)]
		if d.refused == nil {
			break
		}
		o.refuse(d.refused)
		o.off += int(o.b.lengths[o.i])
	}
	return o.i < len(o.b.lengths)
}

func (o *offering) refuse(err error) {
	o.call.refuse(o.i, err)
	o.rejected++
}

// locked offers a stretch with the engine's lock held.
func (o *offering) locked(work int) {
	s, b := o.s, o.b
	_, now := s.eng.Lock()
	if o.stretch++; o.stretch == 1 && b.timeout > 0 {
		// A client may say as long as there are numbers for.
		o.deadline = now + min(b.timeout, conn.Never-now)
	}
	if o.waiting != nil { // some of it may be decided by now
		o.call = *o.waiting
	}
	most := min(s.sock.Options().SndBufBytes, wire.MaxDatagram)
	for work > 0 && o.i < len(b.lengths) {
		if d := o.known(&b.dests[b.dest(o.i)]); d.refused != nil && d.since < o.stretch {
			o.refuse(d.refused)
			o.off += int(b.lengths[o.i])
			o.i++
			work--
			continue
		}
		k, cost := o.offerRun(now, most)
		if work -= cost; k == 0 {
			o.offerOne(now, most)
			work--
		}
	}
	if o.waiting != nil { // it counts what is not offered yet as not decided, so nobody answers it
		*o.waiting = o.call
	}
	s.eng.Unlock()
}

// note keeps that d, which is dst, has refused something. With one destination nobody looks for it.
func (o *offering) note(d *rawEndpoint, dst netip.AddrPort) {
	if len(o.b.dests) < 2 {
		return
	}
	if o.refused == nil {
		o.refused = map[netip.AddrPort]*rawEndpoint{}
	}
	if o.refused[dst] == nil {
		o.refused[dst] = d
	}
}

// known is d, with what another entry for the same destination knows of it.
func (o *offering) known(d *rawEndpoint) *rawEndpoint {
	if d.refused == nil && o.refused != nil {
		if first := o.refused[netip.AddrPortFrom(d.addr, uint16(d.port))]; first != nil {
			d.refused, d.since = first.refused, first.since
		}
	}
	return d
}

// offerOne offers the next datagram by itself. Its payload is copied into memory of its own: the core
// keeps that until the outcome, and charges for its length, so there is to be nothing beside it.
func (o *offering) offerOne(now time.Duration, most int) {
	s, b, i := o.s, o.b, o.i
	n, k := int(b.lengths[i]), b.dest(i)
	p := b.payload[o.off : o.off+n]
	if n <= most { // else the engine refuses it, and it is not worth a copy
		p = append(make([]byte, 0, n), p...)
	}
	d := &b.dests[k]
	dst := netip.AddrPortFrom(d.addr, uint16(d.port))
	tag := b.firstTag + uint64(i)
	var err error
	queued := false
	if b.wait {
		if o.waiting == nil {
			o.waiting = &sendCall{}
		}
		queued, err = s.sock.SendWait(now, dst, p, tag, rds.Report(b.want), o.deadline, o.waiting)
	} else {
		err = s.sock.Send(now, dst, p, tag, rds.Report(b.want))
	}
	switch {
	case err != nil:
		if n <= most {
			// There may be room again in the next stretch. Who sends again what was refused
			// would have it arrive behind what was not.
			if d.refused == nil {
				d.refused, d.since = err, o.stretch
				o.note(d, dst)
			}
		}
		o.refuse(err)
	case !queued:
		o.call.accepted++
		o.call.left--
	}
	o.i++
	o.off += n
}

// offerRun offers the next datagrams together, if they go the same way. It returns how many
// were accepted, and what that has cost in datagrams by themselves. While some do not go that
// way, to look for a run at each of them would cost the square of their number: it is looked
// for at fewer and fewer of them.
func (o *offering) offerRun(now time.Duration, most int) (k, cost int) {
	if o.i < o.noRun {
		return 0, 0
	}
	k, looked := o.s.sendRun(now, o.b, o.i, o.off, most)
	switch {
	case k > 0:
		for _, l := range o.b.lengths[o.i : o.i+k] {
			o.off += int(l)
		}
		o.i += k
		o.call.accepted += uint32(k)
		o.call.left -= k
		o.missed, o.noRun = 0, o.i+1 // the next one knows why it did not go along
		return k, 1 + looked/runsAsOne
	case looked > 1:
		o.missed = 2*o.missed + 1
		o.noRun = o.i + min(o.missed, looked)
	}
	return 0, looked / runsAsOne
}

// sendRun accepts what it can, at once, of the datagrams from i on that go the
// same way, and says how many, and at how many it has looked. Their payload begins at off.
func (s *sockStream) sendRun(now time.Duration, b *inBatch, i, off, most int) (n, looked int) {
	d := b.dest(i)
	dst := &b.dests[d]
	j, bytes := i, 0
	for ; j < len(b.lengths) && j-i < maxRun && b.dest(j) == d; j++ {
		n := int(b.lengths[j])
		if n > most || bytes+n > runBytes && j > i {
			break
		}
		bytes += n
	}
	if j-i < 2 {
		return 0, j - i
	}
	to := netip.AddrPortFrom(dst.addr, uint16(dst.port))
	return s.sock.SendRun(now, to, b.payload[off:off+bytes], b.lengths[i:j], b.firstTag+uint64(i), rds.Report(b.want)), j - i
}

// dest is which destination datagram i has.
func (b *inBatch) dest(i int) int {
	if len(b.index) == 0 {
		return 0
	}
	return int(b.index[i])
}

// errNoEndpoint is why a datagram is refused when as many are told why as may be.
var errNoEndpoint = rdserr.With(rdserr.ErrInvalid, "a destination that has no address of 4 or 16 bytes, or a port above 65535")

// judge refuses destinations that nobody can have, each with words of its own while there are
// few.
func (b *inBatch) judge() {
	told := 0
	for k := range b.dests {
		d := &b.dests[k]
		if (d.addrLen == 4 || d.addrLen == 16) && d.port <= math.MaxUint16 {
			continue
		}
		if told++; told > maxBatchErrors {
			d.refused = errNoEndpoint
			continue
		}
		d.refused = rdserr.With(rdserr.ErrInvalid, "%s", d.problem(fmt.Sprintf("send.destination[%d]", k)))
	}
}
