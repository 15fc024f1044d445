package blk

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/eintr"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rdserr"
)

// FileOptions says how a file or block device is served.
type FileOptions struct {
	ReadOnly     bool
	LogicalBlock uint32       // of a regular file: 512 or 4096, 0: 512; a block device has its own
	Workers      int          // most requests that wait for the medium at a time; 0: 32
	Guard        *guard.Guard // makes a panic in the work of the store the end of the store alone; nil: none is
}

// inlineRead is how many bytes of reads one Submit takes from the page cache
// itself. It never waits for the medium.
const inlineRead = 1 << 20

// File is a regular file or a block device, read and written through the page
// cache. A flush is fdatasync; so is FUA, shared by all that wait for one.
type File struct {
	State
	name    string
	fd      int
	block   bool // a block device
	nfs     bool // a file on NFS, where a write brings errors of earlier ones
	id      FileID
	born    int64 // see Born
	opts    FileOptions
	run     func() // work, made once so that starting a worker allocates nothing
	sync    syncGuard
	broken  broken
	refused struct {
		nowaitRead, punch, zeroRange atomic.Bool // the file system said it cannot
	}

	// sizing is taken before mu and held while the file system is asked for the size or
	// told another one. That may take as long as the file system likes, and mu is taken by
	// Submit, which must not wait.
	sizing sync.Mutex
	// shortening is taken after sizing, and held while a file is made shorter, by workers for
	// reading while they write to it. A write that was checked before would make it long again.
	// On NFS the end of a sync waits with it for writes (datasync).
	shortening sync.RWMutex

	mu       sync.Mutex // held for a few instructions, never over a system call
	idle     sync.Cond  // inFlight became 0
	queue    List       // guarded by mu; waits for a worker, and is certain to wait for the medium then
	writes   List       // guarded by mu; buffered writes that wait for a worker
	syncWait List       // guarded by mu; carried out, waits for a sync
	syncing  bool       // guarded by mu; a worker is calling fdatasync
	workers  int        // guarded by mu
	slow     int        // guarded by mu; workers at a request of queue
	writing  int        // guarded by mu; workers at a request of writes
	inFlight int        // guarded by mu
	closed   bool       // guarded by mu
	scratch  []*[workerBatch]*Request
	linger   linger
	resident resident
}

// OpenFile opens the file or block device at path, which is the
// administrator's word: symbolic links are followed.
func OpenFile(path string, o FileOptions) (*File, error) {
	fd, err := eintr.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open volume", Path: path, Err: err}
	}
	return newFile(fd, path, o)
}

// Open opens a file or block device below the root. The name may have several
// components; none may be a symbolic link.
func (r *Root) Open(name string, o FileOptions) (*File, error) {
	fd, err := r.lookup(name)
	if err != nil {
		return nil, err
	}
	return newFile(fd, name, o)
}

// newFile makes a volume of the file that an O_PATH descriptor names.
func newFile(pathFd int, name string, o FileOptions) (*File, error) {
	if o.Workers == 0 {
		o.Workers = 32
	}
	if o.LogicalBlock == 0 {
		o.LogicalBlock = 512
	}
	if o.LogicalBlock != 512 && o.LogicalBlock != 4096 || o.Workers < 0 {
		unix.Close(pathFd)
		return nil, rdserr.With(rdserr.ErrInvalid, "%s: logical block size %d, %d workers; want 512 or 4096, 1 or more", name, o.LogicalBlock, o.Workers)
	}
	flags := unix.O_RDWR
	if o.ReadOnly {
		flags = unix.O_RDONLY
	}
	// Through /proc/self/fd: the file that was looked up and judged is the one that is
	// opened, whatever its name leads to by now.
	fd, st, quiet, err := reopen(pathFd, name, flags)
	if err != nil {
		return nil, err
	}
	f := &File{name: name, fd: fd, opts: o, block: st.Mode&unix.S_IFMT == unix.S_IFBLK}
	f.idle.L = &f.mu
	f.run = f.work
	f.broken.guard = o.Guard
	// A read that sets the time of access waits for the journal, so such a file is read by
	// workers alone.
	f.refused.nowaitRead.Store(!quiet)
	f.linger.init()
	f.id = FileID{Dev: st.Dev, Ino: st.Ino}
	if f.block {
		// A block device is its device number: its inode is one of many names.
		f.id = FileID{Dev: st.Rdev, Block: true}
	}
	f.born = born(fd, f.block, st.Rdev)
	info, err := f.describe(st)
	if err == nil {
		err = info.Validate()
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f.SetInfo(info)
	f.mapResident(info.Size)
	return f, nil
}

// describe asks the kernel for the volume's properties.
func (f *File) describe(st *unix.Stat_t) (*Info, error) {
	size, err := f.size()
	if err != nil {
		return nil, err
	}
	i := &Info{
		LogicalBlock:  f.opts.LogicalBlock,
		PhysicalBlock: 4096,
		MaxBytes:      MaxIO,
		MaxSegments:   1024, // IOV_MAX
		FastZero:      true,
		ReadOnly:      f.opts.ReadOnly,
		WriteCache:    true,
		FUA:           true,
		MultiConn:     true, // all users share this descriptor and the page cache
	}
	if f.block {
		err = f.describeBlock(i, st.Rdev)
	} else {
		f.describeRegular(i, st)
		f.nfs = onNFS(f.fd)
	}
	i.Size = min(size, MaxSize) &^ uint64(i.LogicalBlock-1)
	return i, err
}

func (f *File) describeRegular(i *Info, st *unix.Stat_t) {
	i.Rotational = queueValue(st.Dev, "rotational") == 1
	i.MaxWriteZeroes = MaxSize // if need be by writing them
	if f.opts.ReadOnly {
		return
	}
	// Beyond the end there is nothing to punch: only a file system that cannot says so.
	err := unix.Fallocate(f.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, MaxSize-4096, 4096)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		f.refused.punch.Store(true)
		return
	}
	i.MaxDiscard = MaxSize
	i.DiscardGranularity = uint32(max(st.Blksize, int64(i.LogicalBlock)))
}

func (f *File) describeBlock(i *Info, rdev uint64) error {
	n, err := unix.IoctlGetInt(f.fd, unix.BLKSSZGET)
	if err != nil {
		return fmt.Errorf("logical block size: %w", err)
	}
	i.LogicalBlock = uint32(n)
	if n, err = unix.IoctlGetInt(f.fd, unix.BLKPBSZGET); err != nil || n < int(i.LogicalBlock) {
		n = int(i.LogicalBlock)
	}
	i.PhysicalBlock = uint32(n)
	i.MaxBytes = MaxIO &^ (i.LogicalBlock - 1)
	i.MaxWriteZeroes = MaxSize
	describeQueue(i, func(name string) uint64 { return queueValue(rdev, name) })
	return nil
}

// describeQueue notes what a block device says of its queue; value reads it, by name.
func describeQueue(i *Info, value func(name string) uint64) {
	i.Rotational = value("rotational") == 1
	if value("discard_max_bytes") > 0 {
		i.MaxDiscard = MaxSize // the kernel splits
		i.DiscardGranularity = uint32(value("discard_granularity"))
	}
}

// size returns the current size of the file or device behind the volume.
func (f *File) size() (uint64, error) {
	if f.block {
		n, err := unix.Seek(f.fd, 0, unix.SEEK_END)
		return uint64(n), err
	}
	var st unix.Stat_t
	err := fstat(f.fd, &st)
	return uint64(st.Size), err
}

// devDir is the directory of a block device in sysfs.
func devDir(dev uint64) string {
	return fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(dev), unix.Minor(dev))
}

// queueValue reads a number from the queue directory of a block device, 0 when
// there is none. A partition has its disk's.
func queueValue(dev uint64, name string) uint64 {
	base := devDir(dev)
	for _, dir := range []string{base, base + "/.."} {
		if b, err := os.ReadFile(dir + "/queue/" + name); err == nil {
			n, _ := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
			return n
		}
	}
	return 0
}

// Name returns the name by which the file was opened.
func (f *File) Name() string { return f.name }

// FileID identifies a file or block device, under any name.
type FileID struct {
	Dev, Ino uint64
	Block    bool // a block device, Dev its number
}

// ID is the same for all that opened the same file or block device.
func (f *File) ID() FileID { return f.id }

// Born tells apart what has the same ID, one after the other: a file system gives the number of a file that was removed to the next,
// often at once, and the kernel that of a block device. It is when the file was made, in nanoseconds of Unix time, and of a block device
// a number for the name that it has of itself; 0: that is not told.
func (f *File) Born() int64 { return f.born }

func born(fd int, block bool, rdev uint64) int64 {
	if block {
		return selfName(devDir(rdev))
	}
	var st unix.Statx_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &st) != nil || st.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
}

// selfName is a number for the name that a block device has of itself, the same after a start of the machine: the UUID of a logical
// volume, say, or the WWID of a disk. dir is its directory in sysfs. A partition has its number beside the name of its disk.
func selfName(dir string) int64 {
	h := fnv.New64a()
	if part, err := os.ReadFile(dir + "/partition"); err == nil {
		h.Write(part)
		dir += "/.."
	}
	for _, of := range []string{"dm/uuid", "wwid", "device/wwid", "serial"} { // the device mapper's, NVMe, SCSI, virtio
		if b, err := os.ReadFile(dir + "/" + of); err == nil && strings.TrimSpace(string(b)) != "" {
			h.Write(b)
			return int64(h.Sum64() | 1)
		}
	}
	return 0
}

// Refresh looks whether the size of the file or block device has changed.
func (f *File) Refresh() error {
	done, err := f.hold()
	if err != nil {
		return err
	}
	defer done()
	f.sizing.Lock()
	changed, err := f.refresh()
	f.sizing.Unlock()
	if changed {
		f.notify()
	}
	return err
}

// refresh is called with sizing held.
func (f *File) refresh() (changed bool, err error) {
	size, err := f.size()
	if err != nil {
		return false, fmt.Errorf("%s: %w", f.name, err)
	}
	info := *f.Info()
	size = min(size, MaxSize) &^ uint64(info.LogicalBlock-1)
	if size == info.Size {
		return false, nil
	}
	info.Size = size
	f.info.Store(&info)
	if f.resident.mapping.Load() != nil {
		f.mapResident(size)
	}
	return true, nil
}

// Resize sets the size of a regular file.
func (f *File) Resize(size uint64) error {
	done, err := f.hold()
	if err != nil {
		return err
	}
	defer done()
	f.sizing.Lock()
	changed, err := f.resize(size)
	f.sizing.Unlock()
	if changed {
		f.notify()
	}
	return err
}

// resize is called with sizing held.
func (f *File) resize(size uint64) (bool, error) {
	info := f.Info()
	switch {
	case f.block:
		return false, rdserr.With(ErrNotSupported, "%s is a block device, whose size is its own", f.name)
	case info.ReadOnly:
		return false, rdserr.With(ErrReadOnly, "%s is opened read-only", f.name)
	case size > MaxSize || size%uint64(info.LogicalBlock) != 0:
		return false, rdserr.With(rdserr.ErrInvalid, "size %d; want a multiple of %d, at most %d", size, info.LogicalBlock, uint64(MaxSize))
	}
	if size < info.Size {
		f.shortening.Lock()
		defer f.shortening.Unlock()
	}
	if err := eintr.Again(func() error { return ftruncate(f.fd, int64(size)) }); err != nil {
		return false, fmt.Errorf("%s: %w", f.name, err)
	}
	return f.refresh()
}

// Close waits for requests in flight and closes the descriptor.
func (f *File) Close() error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil
	}
	f.closed = true
	for f.inFlight > 0 {
		f.idle.Wait()
	}
	f.linger.posted.Store(true) // a worker that lingers finds the queue empty and ends
	f.mu.Unlock()
	f.unmap(f.resident.mapping.Swap(nil))
	return unix.Close(f.fd) // without mu, for a file system may write back what it has first
}
