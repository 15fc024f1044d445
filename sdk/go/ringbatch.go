//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// span is the datagrams from index from up to to.
type span struct{ from, to int }

// sendBatch posts trains: a run of datagrams to one destination is one descriptor. A
// datagram that is held up is left behind, and with it later ones to the same destination;
// the others go on. Those left behind are tried again, in order, whenever something has
// changed.
func (r *rings) sendBatch(ctx context.Context, op string, ds []Datagram, wait bool) (int, error) {
	if len(ds) == 0 {
		return 0, nil
	}
	b := ringBatch{r: r, ds: ds, h: holdup{r: r, ctx: ctx, wait: wait}, errs: batchErrors{op: op, ds: ds}}
	if ctx.Err() != nil {
		b.refuse(0, len(ds), ctxError(ctx, nil))
		return b.errs.result()
	}
	r.txMu.Lock()
	b.firstTag = r.nextTag + 1
	r.pass++
	r.nextTag += uint64(len(ds))
	for i := range ds {
		ds[i].Tag = b.firstTag + uint64(i)
	}
	if left := b.spanLocked(span{0, len(ds)}, nil); len(left) > 0 {
		b.waitLocked(left)
	}
	r.txMu.Unlock()
	b.explain()
	return b.errs.result()
}

// explain has refusals in the daemon's words, once for each destination.
func (b *ringBatch) explain() {
	if b.errs.err == nil {
		return
	}
	ctx, cancel := context.WithTimeout(b.h.ctx, explainTime)
	defer cancel()
	said := make(map[netip.AddrPort]error)
	for _, e := range b.errs.err.Errors {
		o, ok := e.Err.(*OpError)
		if !ok {
			continue
		}
		if _, ok := o.Err.(flowRefusal); !ok { // also where neighbours share it: it is explained already
			continue
		}
		if said[o.Remote] == nil {
			said[o.Remote] = b.r.explain(ctx, o.Remote, o.Err)
		}
		o.Err = said[o.Remote]
	}
}

// ringBatch is one SendBatch call.
type ringBatch struct {
	r        *rings
	ds       []Datagram
	firstTag uint64
	h        holdup
	errs     batchErrors
	prepared bool
	passErr  error                    // why nothing more of this pass can go
	refused  map[netip.AddrPort]error // in this pass, by the daemon
	again    bool                     // the lock was let go of in this pass: marks of flows may be another call's
	looked   bool                     // since the last that went
}

func (b *ringBatch) refuse(from, to int, err error) {
	if b.errs.err == nil {
		b.errs.local = b.r.local // fixed after the first bind
	}
	b.errs.fail(from, to-from, err, false)
}

// waitLocked goes on with the spans that a first pass has left, until all are decided. The
// lock is released while waiting.
func (b *ringBatch) waitLocked(left []span) {
	r := b.r
	defer b.h.end()
	var again []span
	for {
		if !b.again {
			r.txMu.Unlock()
			err := b.h.sleep()
			r.txMu.Lock()
			if err != nil {
				for _, sp := range left {
					b.refuse(sp.from, sp.to, err)
				}
				return
			}
		}
		b.prepared, b.passErr, b.refused, b.again, again = false, nil, nil, false, again[:0]
		r.pass++
		for _, sp := range left {
			again = b.spanLocked(sp, again)
		}
		if len(again) == 0 {
			return
		}
		left, again = again, left
	}
}

// spanLocked sends as much as it can of a span and appends the parts to be tried again to
// left.
func (b *ringBatch) spanLocked(sp span, left []span) []span {
	r := b.r
	for i := sp.from; i < sp.to; {
		if b.again {
			return extend(left, i, sp.to)
		}
		n, err := 0, b.passErr
		if err == nil && b.refused != nil {
			err = b.refused[unmap(b.ds[i].Addr)]
		}
		if err == nil {
			n, err = r.postRunLocked(b.ds[i:sp.to], b.firstTag+uint64(i), b.h.wait && !b.looked)
		}
		switch err {
		case nil:
			i += n
			b.looked = false
			continue
		case errAgain:
			b.again, b.looked = true, true
			continue
		}
		to := i + 1
		if !heldUp(err) {
			b.noteRefusal(b.ds[i].Addr, err)
			b.refuse(i, to, err)
		} else {
			// Nothing at all can go, so the rest of the span need not be tried.
			if b.holdLocked(&b.ds[i], err) {
				to = sp.to
			}
			// A flow that is being opened is decided soon: also a try waits for that.
			if b.h.wait || err == errOpening {
				left = extend(left, i, to)
			} else {
				r.triedLocked(unmap(b.ds[i].Addr), err)
				b.refuse(i, to, err)
			}
		}
		i = to
	}
	return left
}

// holdLocked notes that err holds a destination up: the wait is to be for its end, and
// nothing may overtake. all says that no other datagram can go either.
func (b *ringBatch) holdLocked(d *Datagram, err error) (all bool) {
	r := b.r
	if b.passErr != nil {
		return true
	}
	if !b.prepared {
		b.h.prepareLocked()
		b.prepared = true
	}
	if err != errOpening && err != rdserr.ErrCongested {
		b.passErr = err
	} else if f := r.tx.send.Known(unmap(d.Addr)); f != nil {
		mark := heldMark(r.pass, err == errOpening)
		if f.Held == mark { // the wait is for it already
			return false
		}
		f.Held = mark
	}
	b.h.onLocked(r.tx, unmap(d.Addr), err)
	return b.passErr != nil
}

// noteRefusal keeps a refusal for the rest of the pass: the daemon is asked once, and not for each
// datagram there.
func (b *ringBatch) noteRefusal(dst netip.AddrPort, err error) {
	if _, ok := err.(flowRefusal); !ok {
		return
	}
	if b.refused == nil {
		b.refused = make(map[netip.AddrPort]error)
	}
	b.refused[unmap(dst)] = err
}

// extend adds indices to spans that end before them.
func extend(left []span, from, to int) []span {
	if n := len(left); n > 0 && left[n-1].to == from {
		left[n-1].to = to
		return left
	}
	return append(left, span{from, to})
}

// seenMark is in shm.Flow.Held of a flow that a send has found and no batch has held up.
const seenMark = 1

// Marks in shm.Flow.Held of a flow that is held up in a pass, and why. Passes count from 1.
func heldMark(pass uint64, opening bool) uint64 {
	if opening {
		return 2*pass + 1
	}
	return 2 * pass
}

// fewEqual is how many datagrams of one length make a train of their own where
// others follow.
const fewEqual = 32

// errAgain ends a pass: txMu was let go of while room in a pair was looked for.
var errAgain = errors.New("a new pass has to begin")

// postRunLocked posts a train of the first datagrams, which have one destination, and
// returns how many they were. With wait it may look for room in a pair for a moment, with the
// lock let go of; then it returns errAgain.
func (r *rings) postRunLocked(ds []Datagram, tag uint64, wait bool) (int, error) {
	l := r.tx
	first := &ds[0]
	each := len(first.Payload)
	dst := unmap(first.Addr)
	f, err := r.flowLocked(l, dst, each)
	switch {
	case err != nil:
		return 0, err
	// A datagram of this pass to the same destination was held back, and nothing may
	// overtake it.
	case f.Held == heldMark(r.pass, true): // clear by now, but nothing overtakes
		return 0, errOpening
	case f.Held == heldMark(r.pass, false):
		return 0, rdserr.ErrCongested
	}
	if s := r.pairedLocked(l, f, each); s != nil {
		if n := r.putRunLocked(l, s, ds, tag); n > 0 {
			return n, nil
		}
		if r.fullLocked(l, f, s, wait) {
			return 0, errAgain
		}
	}
	// The longest run that fits; one length for all needs no table in front of the payloads.
	n, same, sum := measureTrain(ds[:min(len(ds), max(1, l.send.Most()))], l.send.Room())
	// Behind the train before, if the daemon has not come yet: what a train costs it does not
	// depend on how many calls made it.
	if body, fit := l.send.Behind(f, each, same, tag); fit > 0 {
		fillTrain(body, ds[:fit], shm.KindEach)
		if l.send.Appended(fit) {
			r.postedLocked(tag, fit)
			return fit, nil
		}
	}
	// A long run of one length is worth a train without a table.
	if same < fewEqual && l.send.Mix(f, each, tag) {
		for i := 0; i < n && l.send.Add(ds[i].Payload); i++ {
		}
		if fit := l.send.Added(); fit > 0 {
			r.postedLocked(tag, fit)
			return fit, nil
		}
	}
	for {
		kind, least := shm.KindEach, shm.Want{Body: sum}
		want := l.send.Plan(least)
		switch {
		case same == n:
		case l.send.TakesMixed():
			kind, least.Table = shm.KindMixed, shm.LengthBytes*n
			want = l.send.Plan(least)
		default:
			kind, least.Body = shm.KindTable, sum+4*n
			want = least // nothing is appended to it
		}
		sl, err := r.grabLocked(l, f, want, least)
		if err == shm.ErrArena && n > 1 { // a shorter one may find room
			n = (n + 1) / 2
			same, sum = min(same, n), 0
			for i := range ds[:n] {
				sum += len(ds[i].Payload)
			}
			continue
		}
		if err != nil {
			return 0, err
		}
		if kind == shm.KindMixed {
			for i := range ds[:n] {
				sl.SetLength(i, len(ds[i].Payload))
			}
		}
		fillTrain(sl.Body[:least.Body], ds[:n], kind)
		l.send.Post(&sl, kind, least.Body, n, sum, tag, r.cfg.outcomes)
		r.postedLocked(tag, n)
		return n, nil
	}
}

// postedLocked notes n datagrams that were posted just now: events are taken in under the same
// lock, so that none of these can have come yet.
func (r *rings) postedLocked(tag uint64, n int) {
	if r.cfg.outcomes {
		r.undecid.add(tag, uint64(n))
	}
}

// measureTrain says how many datagrams fit into one train: the first of them have
// same length and are same many, all have sum bytes. The last may pass room.
func measureTrain(ds []Datagram, room int) (n, same, sum int) {
	addr, each := ds[0].Addr, len(ds[0].Payload)
	n, same, sum = 1, 1, each
	for n < len(ds) && sum < room {
		d := &ds[n]
		size := len(d.Payload)
		if d.Addr != addr {
			break
		}
		if size == each && same == n {
			if sum+size > shm.MaxTrainBytes {
				break
			}
			same++
		} else if same >= fewEqual || sum+size+4*(n+1) > shm.MaxTrainBytes {
			break
		}
		sum += size
		n++
	}
	return n, same, sum
}

// fillTrain lays out a body.
func fillTrain(body []byte, ds []Datagram, kind int) {
	if kind == shm.KindTable {
		table := body[:4*len(ds)]
		body = body[len(table):]
		for i := range ds {
			binary.BigEndian.PutUint32(table[4*i:], uint32(len(ds[i].Payload)))
		}
	}
	if len(ds) == 1 {
		copyBytes(body, ds[0].Payload)
		return
	}
	for i := range ds {
		p := ds[i].Payload
		copy(body, p)
		body = body[len(p):]
	}
}
