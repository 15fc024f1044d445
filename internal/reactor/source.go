package reactor

import (
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Handler is called on the reactor's thread when its descriptor is ready.
type Handler interface {
	// Ready does a bounded piece of work. Events are level-triggered: unfinished work
	// brings it back in the next turn.
	Ready(events uint32)
}

// Eager is a Handler whose descriptor can be looked at by itself. The one of them
// that was ready last is asked in place of epoll most times while the reactor
// spins: that saves a system call where an answer is waited for.
type Eager interface {
	Handler
	// Try does what Ready does when there is something to be read, and reports whether
	// there was. It is called for any events that are asked for, but not after Remove.
	Try() (worked bool)
}

// eagerTries is how often in a row an Eager is asked before epoll is.
const eagerTries = 3

// source is a registered descriptor. It is not changed after it is published, but for gone.
type source struct {
	h     Handler
	eager Eager // h, if it is one
	fd    int
	gen   uint32
	gone  atomic.Bool // it was removed
}

// Add watches fd for events (unix.EPOLLIN, ...; EPOLLERR and EPOLLHUP always
// come). The descriptor must be non-blocking and stay open until Remove.
func (r *Reactor) Add(fd int, events uint32, h Handler) error {
	if fd < 0 {
		return fmt.Errorf("reactor: Add: %d is not a descriptor", fd)
	}
	r.regMu.Lock()
	defer r.regMu.Unlock()
	table, err := r.tableFor(fd)
	if err != nil {
		return err
	}
	if table[fd].Load() != nil {
		return fmt.Errorf("reactor: Add: descriptor %d is there already", fd)
	}
	r.gen++
	eager, _ := h.(Eager)
	table[fd].Store(&source{h: h, fd: fd, eager: eager, gen: r.gen})
	ev := unix.EpollEvent{Events: events, Fd: int32(fd), Pad: int32(r.gen)}
	if err := unix.EpollCtl(r.epfd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		table[fd].Store(nil)
		return os.NewSyscallError("epoll_ctl(ADD)", err)
	}
	return nil
}

// tableFor returns the table with a place for fd. regMu is held.
func (r *Reactor) tableFor(fd int) ([]atomic.Pointer[source], error) {
	p := r.sources.Load()
	if p == nil {
		return nil, ErrClosed
	}
	if fd < len(*p) {
		return *p, nil
	}
	// The thread goes on reading the old table meanwhile, which is still right, because
	// changes wait for regMu.
	grown := make([]atomic.Pointer[source], max(64, 2*len(*p), fd+1))
	for i := range *p {
		grown[i].Store((*p)[i].Load())
	}
	r.sources.Store(&grown)
	return grown, nil
}

// Modify changes the events fd is watched for.
func (r *Reactor) Modify(fd int, events uint32) error {
	r.regMu.Lock()
	defer r.regMu.Unlock()
	s := r.source(fd)
	if s == nil {
		return fmt.Errorf("reactor: Modify: descriptor %d is not there", fd)
	}
	ev := unix.EpollEvent{Events: events, Fd: int32(fd), Pad: int32(s.gen)}
	return os.NewSyscallError("epoll_ctl(MOD)", unix.EpollCtl(r.epfd, unix.EPOLL_CTL_MOD, fd, &ev))
}

// Remove ends the watching of fd; it is done before fd is closed. After it returned on the
// reactor's thread Ready is not called any more. From another thread a call may be under
// way: Sync waits for its end. Removing a descriptor that is not there is no error.
func (r *Reactor) Remove(fd int) error {
	r.regMu.Lock()
	defer r.regMu.Unlock()
	s := r.source(fd)
	if s == nil {
		return nil
	}
	s.gone.Store(true)
	(*r.sources.Load())[fd].Store(nil)
	return os.NewSyscallError("epoll_ctl(DEL)", unix.EpollCtl(r.epfd, unix.EPOLL_CTL_DEL, fd, nil))
}

// source finds a registered descriptor.
func (r *Reactor) source(fd int) *source {
	if p := r.sources.Load(); p != nil && fd >= 0 && fd < len(*p) {
		return (*p)[fd].Load()
	}
	return nil
}

// dispatch calls the handlers of the first n events. An event that was fetched before its
// descriptor was removed, and perhaps given to another owner, has another generation and is
// dropped.
func (r *Reactor) dispatch(n int) {
	r.doing.what, r.doing.of = inSource, n
	for i := range n {
		ev := &r.events[i]
		r.doing.at = i
		if ev.Fd < 0 {
			continue // a ring: its purpose was to end the sleep
		}
		if s := r.source(int(ev.Fd)); s != nil && s.gen == uint32(ev.Pad) {
			if s.eager != nil && ev.Events&unix.EPOLLIN != 0 {
				r.eager = s
			}
			s.h.Ready(ev.Events)
		}
	}
}
