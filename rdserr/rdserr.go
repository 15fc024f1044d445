package rdserr

import (
	"errors"
	"fmt"
	"syscall"
)

// Error is a sentinel: an RDS errno and what it means to the caller.
type Error struct {
	Errno syscall.Errno
	Name  string // short symbolic name, "would-block"
	Text  string // what happened and what would be right
}

func (e *Error) Error() string { return e.Text }

// Is makes errors.Is(err, syscall.ENOBUFS) true for ErrCongested and so on.
func (e *Error) Is(target error) bool {
	n, ok := target.(syscall.Errno)
	return ok && n == e.Errno
}

// The errors a socket call can meet. The errno is the one net/rds returns for
// the same cause (net/rds/send.c, recv.c, bind.c), except where a comment says so.
var (
	ErrWouldBlock   = &Error{syscall.EAGAIN, "would-block", "the send buffer is full"}
	ErrCongested    = &Error{syscall.ENOBUFS, "congested", "the destination port is congested"}
	ErrTooLarge     = &Error{syscall.EMSGSIZE, "too-large", "the datagram is larger than the send buffer or 1 MiB"}
	ErrTimeout      = &Error{syscall.ETIMEDOUT, "timeout", "the deadline passed"}
	ErrCanceled     = &Error{syscall.ECANCELED, "cancelled", "cancelled before it left"}
	ErrIO           = &Error{syscall.EIO, "io", "the transport failed"}
	ErrNotBound     = &Error{syscall.ENOTCONN, "not-bound", "the socket is not bound"}
	ErrInvalid      = &Error{syscall.EINVAL, "invalid", "invalid argument"}
	ErrAddrInUse    = &Error{syscall.EADDRINUSE, "address-in-use", "another socket owns this address and port"}
	ErrAddrNotAvail = &Error{syscall.EADDRNOTAVAIL, "address-not-available", "not an address of this daemon"}
	ErrPerm         = &Error{syscall.EACCES, "permission", "this user may not do that"}
	ErrNoMemory     = &Error{syscall.ENOMEM, "no-memory", "a configured budget is spent"}
	ErrFamily       = &Error{syscall.EOPNOTSUPP, "family", "IPv4 and IPv6 do not mix"}
	ErrDestination  = &Error{syscall.EDESTADDRREQ, "destination", "a destination address and port are needed"}
	ErrHostDown     = &Error{syscall.EHOSTUNREACH, "unreachable", "the peer is not reachable or not allowed"}
	ErrRefused      = &Error{syscall.ECONNREFUSED, "refused", "the peer has no such port"}
	ErrReset        = &Error{syscall.ECONNRESET, "reset", "the connection was reset"}
	ErrShutdown     = &Error{syscall.ESHUTDOWN, "shutdown", "the daemon is shutting down or restarted"}
	ErrClosed       = &Error{syscall.EBADF, "closed", "the socket is closed"}
	ErrProtocol     = &Error{syscall.EPROTO, "protocol", "the peer broke the protocol"}
	ErrTooMany      = &Error{syscall.EMFILE, "too-many", "a configured number is reached"}
	ErrNotFound     = &Error{syscall.ENOENT, "not-found", "no such object"}
	ErrRateLimited  = &Error{syscall.EUSERS, "rate-limited", "too many calls from this user"}
	ErrNotSupported = &Error{syscall.ENOSYS, "not-supported", "not supported"}

	// Of volumes.
	ErrExists   = &Error{syscall.EEXIST, "exists", "it is there already"}
	ErrBusy     = &Error{syscall.EBUSY, "busy", "it is in use"}
	ErrOwned    = &Error{syscall.EPERM, "owned", "another session writes this volume, or bears this name"}
	ErrReadOnly = &Error{syscall.EROFS, "read-only", "it may only be read"}
	ErrNoSpace  = &Error{syscall.ENOSPC, "no-space", "the store is full"}
	ErrAlready  = &Error{syscall.EALREADY, "already", "it is in that state already"}
	ErrGone     = &Error{syscall.ENODEV, "gone", "it is not there any more"}
	ErrStale    = &Error{syscall.ESTALE, "stale", "it is not what it was: others changed it, or took its place"}
)

// All lists every sentinel, in the order of the documentation.
var All = []*Error{
	ErrWouldBlock, ErrCongested, ErrTooLarge, ErrTimeout, ErrCanceled, ErrIO, ErrNotBound, ErrInvalid,
	ErrAddrInUse, ErrAddrNotAvail, ErrPerm, ErrNoMemory, ErrFamily, ErrDestination, ErrHostDown, ErrRefused,
	ErrReset, ErrShutdown, ErrClosed, ErrProtocol, ErrTooMany, ErrNotFound, ErrRateLimited, ErrNotSupported,
	ErrExists, ErrBusy, ErrOwned, ErrReadOnly, ErrNoSpace, ErrAlready, ErrGone, ErrStale,
}

// With adds the particulars to a sentinel: what was wrong and what would be
// right. errors.Is still finds the sentinel and its errno.
func With(e *Error, format string, args ...any) error {
	return &detail{e, fmt.Sprintf(format, args...)}
}

type detail struct {
	sentinel *Error
	text     string
}

func (d *detail) Error() string { return d.text }
func (d *detail) Unwrap() error { return d.sentinel }

// Errno returns the errno of err, EIO when it has none, 0 when err is nil.
func Errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Errno
	}
	if n, ok := errors.AsType[syscall.Errno](err); ok {
		return n
	}
	return syscall.EIO
}

// FromErrno returns the sentinel with this errno, nil for 0, and the bare
// errno when there is none.
func FromErrno(n syscall.Errno) error {
	if n == 0 {
		return nil
	}
	for _, e := range All {
		if e.Errno == n {
			return e
		}
	}
	return n
}
