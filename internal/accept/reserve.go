package accept

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Reserve is a descriptor that is kept so that there is one when there is none.
type Reserve struct {
	mu sync.Mutex
	fd int // guarded by mu; -1: it could not be had again yet, or the Reserve is closed
	// closed is set when the descriptor is not to be had again.
	closed bool // guarded by mu
}

// NewReserve takes one.
func NewReserve() (*Reserve, error) {
	r := &Reserve{fd: -1}
	return r, r.take()
}

func (r *Reserve) take() (err error) {
	if r.fd >= 0 || r.closed {
		return nil
	}
	// An event counter: opening a file could fail for reasons of its own.
	if r.fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		r.fd = -1
		return fmt.Errorf("a descriptor in reserve: %w", err)
	}
	return nil
}

// use runs f while the descriptor is free, and takes it again. f may find that
// another thread took it first.
func (r *Reserve) use(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fd < 0 && r.take() != nil || r.closed {
		return
	}
	unix.Close(r.fd)
	r.fd = -1
	f()
	r.take() // else the next use tries
}

// Close gives it up.
func (r *Reserve) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.fd >= 0 {
		unix.Close(r.fd)
		r.fd = -1
	}
}

// inUse is how many descriptors are open. Since Linux 6.2 the size of their directory is
// their number. Before that the kernel's giving the lowest number that is free tells, but
// one alone may find a hole: who opens one by way of another, or moves one to a number of
// its own, leaves one that the next to do so fills and makes again. So as many are opened
// as there has to be room for.
func inUse(room int) (int, error) {
	n := counted()
	if n > 0 {
		room = 1 // one tells what else the kernel may lack
	}
	fds := make([]int, 0, 32)
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	for range max(room, 1) {
		fd, err := eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			return 0, err
		}
		fds = append(fds, fd)
	}
	if n == 0 { // below the last one nothing is free
		n = fds[len(fds)-1] + 1 - len(fds)
	}
	return n, nil
}

// counted is the number of descriptors as the kernel tells it; 0: it does not. A variable
// for tests.
var counted = func() int {
	var st unix.Stat_t
	if unix.Stat("/proc/self/fd", &st) != nil {
		return 0
	}
	return int(st.Size)
}

// eventfd stands for unix.Eventfd, which fails in tests.
var eventfd = unix.Eventfd

// Room tells whether so many descriptors can be opened with keep of limit left for
// others, and how many are in use. An error is one of the kernel that is not about
// descriptors, such as ENOMEM: there is no room then either.
func Room(limit uint64, need, keep int) (used int, ok bool, err error) {
	used, err = inUse(need + keep)
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return int(limit), false, nil
	case err != nil:
		return 0, false, fmt.Errorf("eventfd: %w", err)
	}
	return used, uint64(used+need+keep) <= limit, nil
}
