//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import "slices"

// Former links: what a socket keeps of the lives of the daemon that have ended.
//
// What was placed in their receive rings was delivered, and is read before anything of the next life, however late.
// It is copied to memory of this process when its life ends, so that a program that does not read one of its
// sockets keeps neither a mapping nor a descriptor for each restart of the daemon. So the
// memory is no more than the receive buffers of these lives. That is bounded too: the next ones get a small one.

const (
	manyLeft  = 4        // receive buffers; with more unread of former links a socket is bound with
	leastLeft = 64 << 10 // such a buffer, in bytes
	eachLeft  = 256      // bytes that a train counts for beside its payloads
)

// recvBuffer is the receive buffer to bind with, 0: the daemon's default.
func (r *rings) recvBuffer() (bytes uint64, least bool) {
	r.rxMu.Lock()
	defer r.rxMu.Unlock()
	if r.soft > 0 && uint64(r.left)/manyLeft >= r.soft && r.soft > leastLeft {
		return leastLeft, true
	}
	return uint64(r.cfg.recvBuffer), false
}

// leaveLocked copies what is left of l's trains, which lie in its region, or in its pairs. rxMu is held.
func (r *rings) leaveLocked(l *ringLink) {
	trains := r.halfRead.all()
	for i, t := range trains {
		if t.l != l {
			continue
		}
		r.keepLocked(t)
		if !t.paired {
			// Another train: this one may be borrowed in part.
			kept := r.spare.newTrain()
			kept.src, kept.refs, kept.paired = t.src, 1, true
			kept.lens, kept.rest = t.lens.Clone(), r.own.clone(t.rest)
			if t.refs--; t.refs == 0 {
				l.recv.Release(t.slot)
				r.spare.putTrain(t)
			}
			t = kept
			trains[i] = t
		}
		t.l, t.left = nil, eachLeft+len(t.rest)
		r.left += t.left
	}
}

// forgetLocked keeps l and those before it that have a descriptor: their daemons lived when nobody used them
// any more. Socket.mu is held.
func (r *rings) forgetLocked(l *ringLink) {
	r.former = slices.DeleteFunc(r.former, func(o *ringLink) bool {
		return o.uses.Load() == 0 && o.bell.quiet()
	})
	r.former = append(r.former, l)
}
