package datagram

import (
	"github.com/rdsd/rdsd/shm"
)

// Ring is a socket whose datagrams go through memory shared with its client
// (docs/shm.md), as the shell of its address and the reactor that serves it know it.
// Its owner embeds it.
type Ring struct {
	Owner RingOwner
	End   *shm.Host // the daemon's end of the region; guarded by Local.mu, but see its methods

	placed bool // on localRings.placed; guarded by Local.mu
	dirty  bool // on localRings.dirty; guarded by Local.mu
	at     int  // position in worker.rings, from 1; 0: the reactor does not serve it; the reactor's thread alone
}

// RingOwner is who serves a socket with rings.
type RingOwner interface {
	// Show makes what a step brought visible to the client, and says which doorbell
	// to ring once the lock is let go; nil: the client is awake. Local.mu is held.
	Show() *shm.Alarm
	// Collect takes what the client has released. On the reactor's thread.
	Collect()
}

// Touch puts r on the list of those with news for their clients, which the end of
// the step makes visible. The lock is held.
func (h *Local) Touch(r *Ring) {
	if !r.dirty {
		r.dirty = true
		h.rings.dirty = append(h.rings.dirty, r)
	}
}

// Place puts r on the list of those with datagrams that nobody sees yet. The lock is
// held.
func (h *Local) Place(r *Ring) {
	if !r.placed {
		r.placed = true
		h.rings.placed = append(h.rings.placed, r)
	}
}
