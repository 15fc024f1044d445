package shm

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Error is an error of this package with the errno it stands for. errors.Is
// finds the errno, and rdserr.Errno too.
type Error struct {
	Errno unix.Errno
	Text  string
}

func (e *Error) Error() string { return "shm: " + e.Text }

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

// badMsg returns the error for unusable bytes of the other side: EBADMSG.
func badMsg(format string, args ...any) error {
	return &Error{unix.EBADMSG, fmt.Sprintf(format, args...)}
}
