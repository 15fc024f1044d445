package rtrs

import (
	"syscall"

	"github.com/rdsd/rdsd/rdserr"
)

// Errors of this side. An answer of the server is a bare syscall.Errno.
var (
	ErrTimeout   = &rdserr.Error{Errno: syscall.ETIMEDOUT, Name: "timeout", Text: "the request had no answer within its limit"}
	ErrNoPath    = &rdserr.Error{Errno: syscall.ECONNABORTED, Name: "no-path", Text: "no path to the server for longer than the loss timeout"}
	ErrClosed    = &rdserr.Error{Errno: syscall.ESHUTDOWN, Name: "closed", Text: "the session is closed"}
	ErrReplaced  = &rdserr.Error{Errno: syscall.ESTALE, Name: "replaced", Text: "another session of this name from this node took its place"}
	ErrTooLarge  = &rdserr.Error{Errno: syscall.EMSGSIZE, Name: "too-large", Text: "the request is larger than the session's largest I/O"}
	ErrShortRead = &rdserr.Error{Errno: syscall.EIO, Name: "short-read", Text: "the server answered a read without having written all of it"}
	ErrTooMany   = &rdserr.Error{Errno: syscall.EMFILE, Name: "too-many", Text: "a session has at most 128 paths"}
	ErrExists    = &rdserr.Error{Errno: syscall.EEXIST, Name: "exists", Text: "the session has a path between these addresses"}
	ErrState     = &rdserr.Error{Errno: syscall.EALREADY, Name: "state", Text: "the path is in that state already, or removed"}
	ErrProtocol  = &rdserr.Error{Errno: syscall.EPROTO, Name: "protocol", Text: "the peer broke the protocol"}
	ErrHeartbeat = &rdserr.Error{Errno: syscall.ETIMEDOUT, Name: "heartbeat", Text: "the peer was silent beyond the limit of missed heartbeats"}
)

// Errors told to the peer, as positive errnos.
const (
	errnoReset    = uint16(syscall.ECONNRESET) // another version, or a connection that fits nothing there is
	errnoShutdown = uint16(syscall.ESHUTDOWN)
	errnoReplaced = uint16(syscall.ESTALE) // the session's name is another session's now
	errnoTooMany  = uint16(syscall.EMFILE)
	errnoUnknown  = uint16(syscall.ENXIO)  // no such session
	errnoExists   = uint16(syscall.EEXIST) // a path between these addresses
	errnoOther    = uint16(syscall.EPERM)  // the name is another node's
	errnoInvalid  = uint16(syscall.EINVAL)
	errnoNoMemory = uint16(syscall.ENOMEM)
	errnoTooLarge = uint16(syscall.EMSGSIZE)
	errnoBusy     = uint16(syscall.EBUSY)
)

// answered is the outcome of a request that the server answered with errno.
func answered(errno uint16) error { return syscall.Errno(errno) }

// refusal is the error of a path that the server refused with errno.
func refusal(errno uint16) error {
	n := syscall.Errno(errno)
	why := "the server refused the path"
	switch n {
	case syscall.EPERM:
		why = "the server has a session of this name from another node"
	case syscall.ESTALE:
		return ErrReplaced
	case syscall.ENXIO:
		why = "the server does not know the session yet"
	case syscall.EEXIST:
		why = "the server has a path between these addresses"
	case syscall.EMFILE:
		why = "the server has as many sessions, paths or connections as it allows"
	case syscall.ENOMEM:
		why = "the server has no memory for the session"
	case syscall.EAGAIN:
		why = "the server is starting, and has not looked at all of its volumes yet"
	case syscall.ESHUTDOWN:
		why = "the server is shutting down"
	case syscall.ECONNRESET:
		why = "the server refused the path: another version, too many connections, or the path's older life has not ended there"
	}
	return rdserr.With(&rdserr.Error{Errno: n, Name: "refused", Text: why}, "%s (%v)", why, n)
}
