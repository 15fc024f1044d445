package volume

import (
	"syscall"

	"github.com/rdsd/rdsd/rdserr"
)

// Errors beside those of rdserr, blk, rtrs and rnbd.
var (
	ErrExists = &rdserr.Error{Errno: syscall.EEXIST, Name: "exists", Text: "it is there already"}
	ErrBusy   = &rdserr.Error{Errno: syscall.EBUSY, Name: "busy", Text: "it is in use"}
)
