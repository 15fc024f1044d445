package volume

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/eintr"
	"github.com/rdsd/rdsd/rdserr"
)

// directory is a Disk: one file, and a lock beside it.
type directory struct {
	name    string   // of the file
	lock    *os.File // held until Close
	replace func(name string, b []byte) error
}

// lockPatience is for how long the lock of a daemon that is about to be gone is waited for: one that
// was killed keeps its files until the kernel has taken its memory apart.
const lockPatience = 2 * time.Second

// openDisk takes a directory, which is made if it is not there.
func openDisk(dir string) (Disk, error) {
	d, err := openDirectory(dir, os.OpenFile)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// openDirectory is openDisk; the lock is opened by open.
func openDirectory(dir string, open func(name string, flag int, mode os.FileMode) (*os.File, error)) (*directory, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := OwnDirectory(dir); err != nil {
		return nil, err
	}
	lock := filepath.Join(dir, "volumes.lock")
	f, err := openOwn(lock, os.O_RDWR|os.O_CREATE, 0o600, open)
	if errors.Is(err, unix.EROFS) { // what is there can be read
		if r, e := openOwn(lock, os.O_RDONLY, 0, open); e == nil {
			f, err = r, nil
		}
	}
	if err != nil {
		return nil, err
	}
	take := func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
	err = eintr.Again(take)
	for until := time.Now().Add(lockPatience); err == unix.EWOULDBLOCK && time.Now().Before(until); err = eintr.Again(take) {
		time.Sleep(5 * time.Millisecond)
	}
	if err != nil {
		f.Close()
		if err == unix.EWOULDBLOCK {
			return nil, rdserr.With(rdserr.ErrBusy, "another daemon uses %s", dir)
		}
		return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
	}
	return &directory{name: filepath.Join(dir, stateFile), lock: f, replace: replaceFile}, nil
}

func (d *directory) Read() ([]byte, error) {
	f, err := openOwn(d.name, os.O_RDONLY, 0, os.OpenFile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

func (d *directory) Write(b []byte) error { return d.replace(d.name, b) }

func (d *directory) SetAside() (string, error) {
	aside := d.name + ".unusable"
	for i := 2; ; i++ {
		if _, err := os.Lstat(aside); errors.Is(err, fs.ErrNotExist) {
			break
		}
		aside = fmt.Sprintf("%s.unusable.%d", d.name, i)
	}
	return aside, os.Rename(d.name, aside)
}

func (d *directory) Close() { d.lock.Close() }

// replaceFile writes a file so that a reader, at whatever moment the machine
// dies, finds the old content or the new one.
func replaceFile(name string, b []byte) error {
	os.Remove(name + ".new") // of a write that did not come to its end
	f, err := os.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		os.Remove(name + ".new")
		return err
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	// One that cannot synchronise directories at all (those that a virtual machine shares with its host) has done what it can.
	if err := syncDirectory(dir); !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	return nil
}

// syncDirectory stands for File.Sync in tests of file systems that have none for directories.
var syncDirectory = (*os.File).Sync

// bootID is other after each start of the machine; "" where the kernel does not say.
func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}
