package volume

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/eintr"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rnbd"
)

// Whether the store of an export can be opened is known from the last attempt: the one at the
// start, those of sessions, and, as long as they fail, one of the Host's own from time to time.
// Somebody looks at what is told of a store that failed, and it may be long until a session
// wants it. A store that nobody wants is not looked at, unless somebody asks (Check).

// lookEvery is the time between attempts of the Host's own.
const lookEvery = 30 * time.Second

// tried notes how an attempt at the store of exp has ended.
func (h *Host) tried(exp *rnbd.Export, d blk.Device, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x := h.exports[exp.Name]
	if x == nil || x.exp != exp {
		return // it is not exported any more
	}
	if err != nil {
		h.storeLost(x, err)
		return
	}
	x.err, x.info = nil, *d.Info()
}

// storeLost notes why the store of x cannot be opened, and has it looked at again. mu is held.
func (h *Host) storeLost(x *export, err error) {
	if x.err == nil {
		x.lost = h.machine.Wall()
	}
	x.err = err
	if x.looking || h.closing {
		return
	}
	x.looking = true
	h.work.Go(func() { // ends when it can be opened, is not exported any more, or the Host ends
		defer h.guard.Recover(guard.Volume, nil)
		h.lookAgain(x)
	})
}

// lookAgain tries to open the store of x until somebody could.
func (h *Host) lookAgain(x *export) {
	for h.machine.Wait(lookEvery, h.ctx.Done()) == -1 {
		h.mu.Lock()
		s := x.spec
		wanted := x.err != nil && h.exports[s.Name] == x
		x.looking = wanted
		h.mu.Unlock()
		if !wanted {
			return
		}
		ctx, cancel := h.machine.Timeout(h.ctx, lookEvery)
		var info blk.Info
		err := h.do(ctx, s.Path, func() (err error) {
			_, info, err = h.openExport(&s)
			return err
		})
		cancel()
		h.mu.Lock()
		switch {
		case err == nil:
			x.err, x.info, x.spec.Kind = nil, info, s.Kind
			x.looking = false
		case x.err != nil: // no session has had it meanwhile
			x.err = err
		}
		h.mu.Unlock()
		if err == nil {
			h.log.Info("volume: the store of an export can be opened again", "export", s.Name)
			return
		}
	}
}

// lookNow tries to open the store of an export for somebody who asks whether it can be, and notes how that
// has ended as of any other attempt: what status says is not to contradict the answer. It makes no file. is tells
// what is at its path; the zero value: nothing, or that is not known.
func (h *Host) lookNow(ctx context.Context, i *ExportInfo) (is blk.FileID, err error) {
	h.mu.Lock()
	x := h.exports[i.Name]
	h.mu.Unlock()
	s := i.ExportSpec
	s.Create = false
	var info blk.Info
	var at blk.FileID
	err = h.do(ctx, s.Path, func() (err error) {
		_, info, err = h.openExport(&s)
		at = fileAt(s.Path)
		return err
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		is = at // with an error it may be about to be set
	}
	switch {
	case x == nil || h.exports[i.Name] != x || x.spec.Path != i.Path: // it was not taken up, or is another now
	case err == nil:
		x.err, x.info, x.spec.Kind = nil, info, s.Kind
	case rdserr.Errno(err) != rdserr.ErrTimeout.Errno: // that may be for want of a turn
		h.storeLost(x, err)
	}
	return is, err
}

// fileAt is the file or block device at path, as blk.File.ID.
func fileAt(path string) blk.FileID {
	var st unix.Stat_t
	if err := eintr.Again(func() error { return unix.Stat(path, &st) }); err != nil {
		return blk.FileID{}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		return blk.FileID{Dev: st.Rdev, Block: true}
	}
	return blk.FileID{Dev: st.Dev, Ino: st.Ino}
}
