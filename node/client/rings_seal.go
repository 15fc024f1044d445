package client

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// To seal memory takes the lock of its file, and a client that can write to it holds that lock
// for as long as it likes: in a write(2) of what a file system of its own is to bring. No signal ends
// a thread that waits for it. So seals are made by Front.seals, one of a user's at a time, and nobody
// waits for one without an end.

// sealPatience is how long the seal of a region may take: some hundred times as long as a client
// that punches all of its region out holds it up.
const sealPatience = 5 * time.Second

// seal seals the client's part of the region, which the client says it has mapped. If that takes too
// long the bind fails, and the client's place is taken until it is over.
func (r *ringSock) seal(p *packetStream) error {
	f, fd := r.front, r.reg.TakeFD()
	sealed := make(chan error, 1)
	p.parting.Add(1)
	f.seals.Do(r.s.id.UID, func() {
		defer p.parting.Done()
		err := f.step("seal")
		if err == nil {
			if err = shm.Seal(fd); err != nil {
				err = rdserr.With(rdserr.ErrInvalid, "%v", err)
			}
		}
		unix.Close(fd)
		sealed <- err
	})
	select {
	case err := <-sealed:
		if err != nil {
			return err
		}
	case <-time.After(sealPatience):
		return rdserr.With(rdserr.ErrTimeout, "the region, or one before it of uid %d, could not be sealed within %v: somebody holds the lock of its file", r.s.id.UID, sealPatience)
	case <-f.deps.Stopping:
		return base.ErrDraining
	}
	if err := r.reg.Touched(); err != nil {
		return rdserr.With(rdserr.ErrInvalid, "%v", err)
	}
	return nil
}
