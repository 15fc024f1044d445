package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// resizeTries is how often a resize begins anew because a device was closed under it.
const resizeTries = 3

// ResizeExport sets the size of a file or memory, in bytes, and tells who has it
// open; 0: it looks which size the store has. It returns the size afterwards.
func (h *Host) ResizeExport(ctx context.Context, name string, size uint64) (uint64, error) {
	return h.resizeExport(ctx, name, size, false)
}

// GrowExport is ResizeExport, but refuses to make the store smaller than it is now.
func (h *Host) GrowExport(ctx context.Context, name string, size uint64) (uint64, error) {
	return h.resizeExport(ctx, name, size, true)
}

func (h *Host) resizeExport(ctx context.Context, name string, size uint64, grow bool) (uint64, error) {
	h.mu.Lock()
	x := h.exports[name]
	h.mu.Unlock()
	if x == nil {
		return 0, rdserr.With(rdserr.ErrNotFound, "there is no export %q", name)
	}
	if size != 0 && x.spec.ReadOnly {
		return 0, rdserr.With(rdserr.ErrReadOnly, "export %q is read-only", name)
	}
	var is blk.Info
	err := h.do(ctx, x.spec.Path, func() (err error) {
		// One whose caller has given up may be under way. Done after this one it would cut off what this one adds.
		defer h.waits.alone(x.spec.Path)()
		var was blk.Info
		// The last that had it open has closed it meanwhile: those count that have it now, or nobody.
		for try := 0; try == 0 || errors.Is(err, blk.ErrClosed) && try <= resizeTries; try++ {
			var ended func()
			if ended, err = h.mayResize(ctx, x, size != 0); err != nil {
				break
			}
			var before blk.Info
			if before, is, err = h.resize(x, size, grow); try == 0 {
				was = before
			}
			ended()
		}
		if err == nil {
			h.resized(x, was.Size, &is) // here, because the caller may have given up
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("export %q: %w", name, err)
	}
	return is.Size, nil
}

// mayResize is an error if nobody expects any more that the store of x gets another size, which it is about to get: the caller has given
// up, or x has ended and its file may be another's. Where it is written to x does not end before ended is called, but by force.
func (h *Host) mayResize(ctx context.Context, x *export, write bool) (ended func(), err error) {
	if ctx.Err() != nil {
		return nil, rdserr.With(rdserr.ErrTimeout, "the file system was not asked in time")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.exports[x.spec.Name] != x || x.ending {
		return nil, rdserr.With(rdserr.ErrNotFound, "it is not exported any more")
	}
	if !write {
		return func() {}, nil
	}
	x.resizing++
	return func() {
		h.mu.Lock()
		x.resizing--
		h.mu.Unlock()
	}, nil
}

// resized notes which size the store of x has now, and tells if it had another.
func (h *Host) resized(x *export, was uint64, is *blk.Info) {
	h.mu.Lock()
	x.info = *is
	there := h.exports[x.spec.Name] == x
	h.mu.Unlock()
	if there && was != is.Size {
		h.ev.add(Event{Kind: EventResize, Export: x.spec.Name, Size: is.Size, Text: fmt.Sprintf("volume %s has %d bytes, it had %d", x.spec.Name, is.Size, was)})
	}
}

// resize sets the size of the store of x, 0: leaves it, and has all look that have it open, under whatever
// name, those included that have opened it meanwhile. The size is set by one of those that may write: where
// they are, it keeps writes that it has from making the store long again. grow: not to less than it has.
func (h *Host) resize(x *export, size uint64, grow bool) (was, is blk.Info, err error) {
	its := x.exp.Device
	if open := h.srv.having(x, nil); len(open) > 0 {
		its = open[0]
	}
	own := func() (blk.Device, error) { return blk.OpenFile(x.spec.Path, x.exp.File) }
	if its == nil {
		if its, err = own(); err != nil {
			return was, is, err
		}
		defer its.Close()
	}
	was = *its.Info()
	if size != 0 {
		by := append(h.srv.having(x, its), its)
		i := slices.IndexFunc(by, func(d blk.Device) bool { return !d.Info().ReadOnly })
		if i < 0 {
			d, err := own()
			if err != nil {
				return was, is, err
			}
			defer d.Close()
			i, by = len(by), append(by, d)
		}
		r, ok := blk.As[blk.Resizer](by[i])
		if !ok {
			return was, is, blk.ErrNotSupported
		}
		if grow {
			if err := lacks(by[i], size); err != nil {
				return was, is, err
			}
		}
		if err := r.Resize(size); err != nil {
			return was, is, err
		}
	}
	for _, d := range append(h.srv.having(x, its), its) {
		if f, ok := blk.As[*blk.File](d); ok {
			if err := f.Refresh(); err != nil {
				return was, is, err
			}
		}
	}
	return was, *its.Info(), nil
}

// lacks is an error if d would lose something with a size. What a file had when it was opened
// is not asked: others may have made it longer.
func lacks(d blk.Device, size uint64) error {
	if f, ok := blk.As[*blk.File](d); ok {
		if err := f.Refresh(); err != nil {
			return err
		}
	}
	if has := d.Info().Size; size < has {
		return rdserr.With(rdserr.ErrInvalid, "it has %d bytes, and with %d what is behind would be lost", has, size)
	}
	return nil
}

// having are the devices that sessions have open of the store of x, by that name or, if d is its file or
// block device, by others.
func (s *server) having(x *export, d blk.Device) (list []blk.Device) {
	for _, o := range s.openVolumes() {
		if o.Device == nil || slices.Contains(list, o.Device) {
			continue
		}
		same := o.Export == x.exp
		if d != nil && !same {
			f, ok := blk.As[*blk.File](d)
			of, too := blk.As[*blk.File](o.Device)
			same = ok && too && f.ID() == of.ID()
		}
		if same {
			list = append(list, o.Device)
		}
	}
	return list
}
