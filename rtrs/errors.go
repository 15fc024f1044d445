package rtrs

import (
	"syscall"

	"github.com/rdsd/rdsd/rdserr"
)

// Errors of this side. What the server answered is a bare syscall.Errno.
var (
	ErrTimeout   = &rdserr.Error{Errno: syscall.ETIMEDOUT, Name: "timeout", Text: "rtrs: the request had no answer within its limit"}
	ErrNoPath    = &rdserr.Error{Errno: syscall.ECONNABORTED, Name: "no-path", Text: "rtrs: no path to the server for longer than the loss timeout"}
	ErrClosed    = &rdserr.Error{Errno: syscall.ESHUTDOWN, Name: "closed", Text: "rtrs: the session is closed"}
	ErrReplaced  = &rdserr.Error{Errno: syscall.ESTALE, Name: "replaced", Text: "rtrs: another session of this name from this node took its place"}
	ErrTooLarge  = &rdserr.Error{Errno: syscall.EMSGSIZE, Name: "too-large", Text: "rtrs: the request is larger than the session's largest I/O"}
	ErrTooMany   = &rdserr.Error{Errno: syscall.EMFILE, Name: "too-many", Text: "rtrs: a session has at most 128 paths"}
	ErrExists    = &rdserr.Error{Errno: syscall.EEXIST, Name: "exists", Text: "rtrs: the session has a path between these addresses"}
	ErrState     = &rdserr.Error{Errno: syscall.EALREADY, Name: "state", Text: "rtrs: the path is in that state already, or removed"}
	ErrProtocol  = &rdserr.Error{Errno: syscall.EPROTO, Name: "protocol", Text: "rtrs: the peer broke the protocol"}
	ErrHeartbeat = &rdserr.Error{Errno: syscall.ETIMEDOUT, Name: "heartbeat", Text: "rtrs: the peer was silent beyond the limit of missed heartbeats"}
)
