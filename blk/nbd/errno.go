package nbd

import (
	"errors"
	"syscall"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// The error values NBD has; there are no others.
const (
	errPerm     = 1
	errIO       = 5
	errNoMem    = 12
	errInval    = 22
	errNoSpc    = 28
	errOverflow = 75
	errNotSup   = 95
	errShutdown = 108
)

// errorValue returns the NBD error value for a device's answer to a command.
func errorValue(err error, cmd uint16) uint32 {
	if errors.Is(err, blk.ErrRange) && (cmd == cmdWrite || cmd == cmdWriteZeroes) {
		return errNoSpc // the protocol wants it so
	}
	switch rdserr.Errno(err) {
	case 0:
		return 0
	case syscall.EPERM, syscall.EACCES, syscall.EROFS:
		return errPerm
	case syscall.ENOMEM:
		return errNoMem
	case syscall.EINVAL, syscall.EMSGSIZE:
		return errInval
	case syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG:
		return errNoSpc
	case syscall.EOPNOTSUPP, syscall.ENOSYS:
		if cmd == cmdWriteZeroes {
			return errNotSup
		}
		return errInval // ENOTSUP is for fast zeroes alone
	case syscall.ESHUTDOWN:
		return errShutdown
	}
	return errIO
}
