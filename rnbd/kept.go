package rnbd

import (
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// Kept is what has to be known of a volume where its users go on with it although it is
// mapped by another process than before: a device of the kernel outlives the daemon, and
// the clients of a socket connect again.
type Kept struct {
	// Verifier is the server's number for the content of the store, 0 if it has none.
	Verifier uint64
	// Volatile says that the content is memory of the server, and ends with that.
	Volatile bool
	// LogicalBlock is the size of its blocks, by which its users have laid out everything; 0: not known.
	LogicalBlock uint16
	// SyncLost says that completed writes may be lost: no flush succeeds any more.
	SyncLost bool
	// Stale says that the volume was not found as it had been left: it is closed until Remap.
	Stale bool
	// Flushed says that nothing was under way and that all completed writes were flushed. It
	// says something of a volume that has ended; one in use may be written the next moment.
	Flushed bool
}

// Kept returns what there is to keep of v now. ClientEnv.Keep and Note say that it is new.
func (v *Volume) Kept() Kept {
	return Kept{Verifier: v.store.Verifier, Volatile: v.store.Volatile, LogicalBlock: v.rsp.LogicalBlock, SyncLost: v.syncErr != nil, Stale: v.stale,
		Flushed: v.syncErr == nil && v.wrote <= v.synced && v.inflight == 0 && v.held == nil}
}

// MapAgain is Map for users that go on with the volume as if it had been mapped all the
// time. If completed writes may have been lost since, no flush succeeds. If all was lost, or
// another session had it for writing, requests fail with ErrStale until Remap: Mapped tells
// no error then, so that the device is there to answer them.
func (c *Client) MapAgain(now time.Duration, name string, access rnbdwire.Access, k Kept) (*Volume, error) {
	return c.newVolume(now, name, access, &k)
}

// resume makes v, which the server has opened, what it was to its users before. An error says
// that it is another one now.
func (v *Volume) resume(rsp *rnbdwire.OpenRsp, store rnbdwire.Store) error {
	k := v.former
	v.former = nil
	v.rsp, v.store.Verifier, v.store.Volatile = *rsp, k.Verifier, k.Volatile
	if k.LogicalBlock != 0 {
		v.rsp.LogicalBlock = k.LogicalBlock
	}
	// What the former process had not flushed is not known, unless it ended in order. Taken for
	// something, a changed verifier makes flushes fail, instead of succeeding wrongly.
	if !k.Flushed && v.access != rnbdwire.ReadOnly && v.info.WriteCache {
		v.wrote = 1
	}
	if k.SyncLost {
		v.syncLost(rdserr.With(blk.ErrSyncFailed, "volume %q: completed writes may have been lost before this daemon was started; map it anew", v.name))
	}
	if k.Stale {
		return rdserr.With(ErrStale, "volume %q was not as it had been left, before this daemon was started; map it anew", v.name)
	}
	return v.sameAs(rsp, store)
}

// stales notes that v is not what it was. The server knows it too, and forgets it as soon as
// it is asked for something: so nothing is (duties) until that is written down here.
func (v *Volume) stales() {
	v.stale = true
	if v.noting = v.c.cfg.Notes; v.noting {
		v.c.env.Note(v)
	}
}

// Noted reports that what Kept told when ClientEnv.Note was called is written down.
func (v *Volume) Noted(now time.Duration) {
	v.noting = false
	v.pump(now)
}

// Leave is ForceUnmap for a process that ends while the users of the volume stay. The server
// is told nothing: a session that goes without closing a volume is told if another writes
// there before it is back (past).
func (v *Volume) Leave(now time.Duration) error {
	v.leaving, v.openAtServer = true, false
	return v.ForceUnmap(now)
}
