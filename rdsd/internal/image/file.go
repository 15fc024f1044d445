package image

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// File is a regular file or block device as a source or a target.
type File struct {
	f      *os.File
	size   int64
	device bool
	blank  bool
	made   bool // by Create; nothing was there
}

// Open opens a file or block device as a source.
func Open(path string) (*File, error) {
	fi, err := os.Stat(path) // before it is opened: a pipe waits for its writer
	if err == nil {
		err = usable(path, fi)
	}
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return adopt(f)
}

// usable refuses what is neither a regular file nor a block device.
func usable(path string, fi os.FileInfo) error {
	if !fi.Mode().IsRegular() && fi.Mode().Type() != os.ModeDevice {
		return rdserr.With(rdserr.ErrInvalid, "%s is neither a regular file nor a block device", path)
	}
	return nil
}

func adopt(f *os.File) (*File, error) {
	fi, err := f.Stat()
	if err == nil {
		err = usable(f.Name(), fi)
	}
	out := &File{f: f}
	if err == nil {
		out.device = !fi.Mode().IsRegular()
		out.size, err = f.Seek(0, io.SeekEnd) // of a device too
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return out, nil
}

// Create opens a target of size bytes. A file is made, or emptied if overwrite
// allows it; a block device has to be large enough, and unused.
func Create(path string, size int64, overwrite bool) (*File, error) {
	fi, err := os.Stat(path)
	switch {
	case err == nil && fi.Mode().Type() == os.ModeDevice:
		// The kernel refuses O_EXCL for a device that is mounted or otherwise in use.
		f, err := os.OpenFile(path, os.O_RDWR|os.O_EXCL, 0)
		if errors.Is(err, unix.EBUSY) {
			return nil, rdserr.With(rdserr.ErrBusy, "%s is in use (mounted, or part of another device)", path)
		}
		if err != nil {
			return nil, err
		}
		return adopt(f)
	case err == nil && !fi.Mode().IsRegular():
		return nil, usable(path, fi)
	case err == nil && !overwrite:
		return nil, rdserr.With(rdserr.ErrExists, "%s exists; --force overwrites it", path)
	case err == nil:
		f, err := os.OpenFile(path, os.O_RDWR|os.O_TRUNC, 0)
		return blank(f, size, err)
	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	out, err := blank(f, size, err)
	if out != nil {
		out.made = true
	} else if f != nil {
		os.Remove(path)
	}
	return out, err
}

func blank(f *os.File, size int64, err error) (*File, error) {
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(size); err != nil {
		f.Close()
		return nil, fmt.Errorf("a file of %d bytes: %w", size, err)
	}
	return &File{f: f, size: size, blank: true}, nil
}

// Same tells whether both are the same file.
func (f *File) Same(path string) bool {
	a, err := f.f.Stat()
	b, err2 := os.Stat(path)
	return err == nil && err2 == nil && os.SameFile(a, b)
}

// Discard closes a target that did not get everything; one that Create made is
// removed. It tells whether it is gone.
func (f *File) Discard() (gone bool) {
	f.f.Close()
	return f.made && os.Remove(f.f.Name()) == nil
}

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }

// ReadAt reads.
func (f *File) ReadAt(p []byte, off int64) (int, error) { return f.f.ReadAt(p, off) }

// WriteAt writes.
func (f *File) WriteAt(p []byte, off int64) (int, error) { return f.f.WriteAt(p, off) }

// Size is the size when it was opened, bytes.
func (f *File) Size() int64 { return f.size }

// Block is 1: the page cache takes anything.
func (f *File) Block() int64 { return 1 }

// Blank is true of a file that was made or emptied.
func (f *File) Blank() bool { return f.blank }

// Flush syncs.
func (f *File) Flush() error { return f.f.Sync() }

// Zero makes a hole, or writes zeroes where there are none.
func (f *File) Zero(off, n int64) error {
	err := unix.Fallocate(int(f.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENODEV) {
		return &os.PathError{Op: "make a hole", Path: f.f.Name(), Err: err}
	}
	zeroes := make([]byte, min(n, pieceBytes))
	for n > 0 {
		k, err := f.f.WriteAt(zeroes[:min(n, pieceBytes)], off)
		if err != nil {
			return err
		}
		off, n = off+int64(k), n-int64(k)
	}
	return nil
}

// Extents is SEEK_DATA and SEEK_HOLE; everything is data where there is no such
// thing.
func (f *File) Extents(off, n int64) ([]blk.Extent, error) {
	data, err := unix.Seek(int(f.f.Fd()), off, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO): // nothing but a hole
		return []blk.Extent{{Len: uint64(n), Hole: true, Zero: true}}, nil
	case err != nil:
		return []blk.Extent{{Len: uint64(n)}}, nil
	case data > off:
		return []blk.Extent{{Len: uint64(min(n, data-off)), Hole: true, Zero: true}}, nil
	}
	hole, err := unix.Seek(int(f.f.Fd()), off, unix.SEEK_HOLE)
	if err != nil || hole <= off {
		hole = off + n
	}
	return []blk.Extent{{Len: uint64(min(n, hole-off))}}, nil
}
