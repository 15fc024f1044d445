package blk

import (
	"syscall"

	"github.com/rdsd/rdsd/rdserr"
)

// The errors of a request. The errno is the one the block layer of Linux would return.
// errors.Is finds the sentinel under the details.
var (
	ErrRange        = &rdserr.Error{Errno: syscall.EINVAL, Name: "out-of-range", Text: "the request reaches beyond the end of the volume"}
	ErrAlign        = &rdserr.Error{Errno: syscall.EINVAL, Name: "misaligned", Text: "offset and length are multiples of the logical block size"}
	ErrRequest      = &rdserr.Error{Errno: syscall.EINVAL, Name: "bad-request", Text: "the request contradicts itself"}
	ErrTooBig       = &rdserr.Error{Errno: syscall.EINVAL, Name: "too-big", Text: "the request is larger than the volume takes at once"}
	ErrReadOnly     = &rdserr.Error{Errno: syscall.EROFS, Name: "read-only", Text: "the volume is read-only"}
	ErrNotSupported = &rdserr.Error{Errno: syscall.EOPNOTSUPP, Name: "operation-not-supported", Text: "the volume cannot do this"}
	ErrNoSpace      = &rdserr.Error{Errno: syscall.ENOSPC, Name: "no-space", Text: "the store behind the volume is full"}
	ErrMedium       = &rdserr.Error{Errno: syscall.EIO, Name: "medium", Text: "the store behind the volume failed"}
	ErrSyncFailed   = &rdserr.Error{Errno: syscall.EIO, Name: "sync-failed", Text: "an earlier sync of this volume failed; what was written before it may be lost; open the volume again"}
	ErrClosed       = &rdserr.Error{Errno: syscall.ESHUTDOWN, Name: "volume-closed", Text: "the volume is closed"}
)
