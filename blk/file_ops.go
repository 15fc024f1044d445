package blk

import (
	"errors"
	"io"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/rdserr"
)

// do carries out one checked request, syncing aside.
func (f *File) do(r *Request) error {
	if r.Op == OpRead {
		return f.read(r.Buf, r.Off)
	}
	if r.Op.Writes() {
		f.shortening.RLock()
		defer f.shortening.RUnlock()
		// It may have waited while the volume was made shorter.
		if err := f.Info().CheckRange(r.Op, r.Flags, r.Off, r.Len); err != nil {
			return err
		}
	}
	switch r.Op {
	case OpWrite:
		return f.write(r.Buf, r.Off)
	case OpDiscard:
		return f.discard(r.Off, r.Len)
	case OpWriteZeroes:
		return f.writeZeroes(r.Off, r.Len, r.Flags)
	}
	return nil
}

// read fills b. The end of the file in the middle of it means that the file was made
// shorter: an error, not zeroes.
func (f *File) read(b []byte, off uint64) error {
	for len(b) > 0 {
		n, err := unix.Pread(f.fd, b, int64(off))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return f.failed("read", off, err)
		case n == 0:
			return f.failed("read", off, io.ErrUnexpectedEOF)
		}
		b, off = b[max(n, 0):], off+uint64(max(n, 0))
	}
	return nil
}

// write writes all of b. After a short write the rest is tried again, which returns the
// reason. On NFS that may be the server's answer to earlier writes, ENOSPC first of all, which have completed
// here; it is not told again by a sync.
func (f *File) write(b []byte, off uint64) error {
	for len(b) > 0 {
		n, err := pwrite(f.fd, b, int64(off))
		switch {
		case err == unix.EINTR:
		case err != nil && f.nfs:
			f.sync.fail()
			return SyncLost{rdserr.With(ErrMedium, "%s: write at %d: %v", f.name, off, err)}
		case err != nil:
			return f.failed("write", off, err)
		case n == 0:
			return f.failed("write", off, io.ErrShortWrite)
		}
		b, off = b[max(n, 0):], off+uint64(max(n, 0))
	}
	return nil
}

// datasync makes all writes durable, unless an earlier attempt failed. If there is no room for what was
// written before, that is no refusal but a loss (LosesSync).
func (f *File) datasync() error {
	if err := f.sync.err(); err != nil {
		return err
	}
	for {
		switch err := fdatasync(f.fd); err {
		case nil:
			if f.nfs { // A write that is under way may have been told instead.
				f.shortening.Lock()
				defer f.shortening.Unlock()
			}
			return f.sync.err()
		case unix.EINTR:
		default:
			f.sync.fail()
			return rdserr.With(ErrMedium, "%s: sync: %v", f.name, err)
		}
	}
}

// The system calls that wait for a store as long as it likes; tests put others in
// their place, which fail or stand still.
var (
	pwrite    = unix.Pwrite
	fallocate = unix.Fallocate
	fdatasync = unix.Fdatasync
	ftruncate = unix.Ftruncate
	fstat     = unix.Fstat
)

// failed says which volume it was. Whatever the errno is, the store has failed: EROFS of a file
// system that gave up, or ENOTCONN of one in user space that died, would be taken for a refusal
// of the request, after which nothing is lost.
func (f *File) failed(what string, off uint64, err error) error {
	why := ErrMedium
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		why = ErrNoSpace
	}
	return rdserr.With(why, "%s: %s at %d: %v", f.name, what, off, err)
}

// fallocate keeps the size and tries again when it is interrupted.
func (f *File) fallocate(mode uint32, off, n uint64) error {
	for {
		err := fallocate(f.fd, mode|unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(n))
		if err != unix.EINTR {
			return err
		}
	}
}

func unsupported(err error) bool {
	return err == unix.EOPNOTSUPP || err == unix.ENOSYS || err == unix.EINVAL
}

func (f *File) discard(off, n uint64) error {
	var err error
	if f.block {
		err = blkDiscard(f.fd, off, n)
	} else {
		err = f.fallocate(unix.FALLOC_FL_PUNCH_HOLE, off, n)
	}
	if err != nil && !unsupported(err) { // a discard is advice; not being able to is no failure
		return f.failed("discard", off, err)
	}
	return nil
}

func blkDiscard(fd int, off, n uint64) error {
	span := [2]uint64{off, n}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKDISCARD, uintptr(unsafe.Pointer(&span))); e != 0 {
		return e
	}
	return nil
}

// writeZeroes takes the cheapest way that the flags allow: a hole, extents marked as
// unwritten, or zeroes. On a block device the kernel turns a hole into the device's own
// command or reports that it cannot, and falls back to writing for the second way, which
// therefore is not fast.
func (f *File) writeZeroes(off, n uint64, flags Flags) error {
	if flags&NoUnmap == 0 && !f.refused.punch.Load() {
		err := f.fallocate(unix.FALLOC_FL_PUNCH_HOLE, off, n)
		if err == nil {
			return nil
		}
		if !unsupported(err) {
			return f.failed("write zeroes", off, err)
		}
		// Remembered, so that a file system without holes is asked once and not with every
		// request.
		f.refused.punch.Store(true)
	}
	// On a block device the kernel may write zeroes for this, which is what FastZero
	// forbids.
	if !f.refused.zeroRange.Load() && !(f.block && flags&FastZero != 0) {
		err := f.fallocate(unix.FALLOC_FL_ZERO_RANGE, off, n)
		if err == nil {
			return nil
		}
		if !unsupported(err) {
			return f.failed("write zeroes", off, err)
		}
		f.refused.zeroRange.Store(true)
	}
	if flags&FastZero != 0 {
		return rdserr.With(ErrNotSupported, "%s: zeroes would have to be written", f.name)
	}
	// The last way costs the whole range in writes, and works everywhere.
	for n > 0 {
		k := min(n, uint64(len(zeroes)))
		if err := f.write(zeroes[:k], off); err != nil {
			return err
		}
		off, n = off+k, n-k
	}
	return nil
}

// Map asks the file system which ranges hold data. A block device does not say.
func (f *File) Map(off, n uint64, out []Extent) (_ []Extent, err error) {
	done, err := f.hold()
	if err != nil {
		return out, err
	}
	defer done()
	defer f.broken.catch(&err)
	if err := f.Info().Bounds(off, n); err != nil {
		return out, err
	}
	for n > 0 && len(out) < cap(out) {
		k, hole := n, false
		if !f.block {
			if k, hole, err = f.extent(off); err != nil {
				return out, err
			}
		}
		k = min(k, n)
		out = append(out, Extent{Len: k, Hole: hole, Zero: hole})
		off, n = off+k, n-k
	}
	return out, nil
}

// extent is the run of data or hole that off lies in, in whole logical blocks.
func (f *File) extent(off uint64) (n uint64, hole bool, err error) {
	block := uint64(f.Info().LogicalBlock)
	next, err := unix.Seek(f.fd, int64(off), unix.SEEK_DATA)
	switch {
	case err == unix.ENXIO: // no data from here to the end
		return MaxSize, true, nil
	case err == unix.EINVAL || err == unix.EOPNOTSUPP: // the file system cannot tell
		return MaxSize, false, nil
	case err != nil:
		return 0, false, f.failed("map", off, err)
	}
	if n = (uint64(next) - off) &^ (block - 1); n > 0 {
		return n, true, nil
	}
	// Data begins in this block.
	next, err = unix.Seek(f.fd, next, unix.SEEK_HOLE)
	switch {
	case err == unix.ENXIO: // made shorter meanwhile
		return block, false, nil
	case err != nil:
		return 0, false, f.failed("map", off, err)
	}
	return (uint64(next) - off + block - 1) &^ (block - 1), false, nil
}

// Prefetch asks the kernel to read ahead.
func (f *File) Prefetch(off, n uint64) (err error) {
	done, err := f.hold()
	if err != nil {
		return err
	}
	defer done()
	defer f.broken.catch(&err)
	if err := unix.Fadvise(f.fd, int64(off), int64(n), unix.FADV_WILLNEED); err != nil && !unsupported(err) {
		return f.failed("prefetch", off, err)
	}
	return nil
}

// hold keeps the descriptor open for a call that is no request.
func (f *File) hold() (done func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, ErrClosed
	}
	f.inFlight++
	return func() { f.finished(1) }, nil
}

// preadv2 is the system call for one buffer, without allocation.
func preadv2(fd int, b []byte, off uint64, flags int) (int, error) {
	iov := unix.Iovec{Base: unsafe.SliceData(b)}
	iov.SetLen(len(b))
	// The kernel takes the offset in two halves; on 64 bits the first holds all.
	n, _, e := unix.Syscall6(unix.SYS_PREADV2, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1, uintptr(off), 0, uintptr(flags))
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}
