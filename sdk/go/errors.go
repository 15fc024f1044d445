package rdsd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// OpError is every error of this package but those of SendBatch: which call,
// between which addresses, and why. errors.Is finds the rdserr sentinel, its
// syscall.Errno and, after the end of a context, the context's error.
type OpError struct {
	Op     string // "bind", "send", "recv", ...
	Local  netip.AddrPort
	Remote netip.AddrPort // not valid when the call has none
	Err    error
	// Undecided is set when a send ended without the daemon's answer (the
	// context ended, the daemon went away): the datagram may have been
	// accepted, and must not be taken for refused.
	Undecided bool
}

func (e *OpError) Error() string {
	var b strings.Builder
	b.WriteString("rdsd: ")
	b.WriteString(e.Op)
	if e.Local.IsValid() {
		b.WriteString(" " + e.Local.String())
	}
	if e.Remote.IsValid() {
		b.WriteString(" to " + e.Remote.String())
	}
	b.WriteString(": ")
	b.WriteString(e.Err.Error())
	if e.Undecided {
		b.WriteString(" (it may have been accepted)")
	}
	return b.String()
}

func (e *OpError) Unwrap() error { return e.Err }

// Timeout says whether a deadline passed, as in net.Error.
func (e *OpError) Timeout() bool { return errors.Is(e.Err, rdserr.ErrTimeout) }

// Temporary says whether the same call may succeed later.
func (e *OpError) Temporary() bool {
	for _, s := range []error{rdserr.ErrWouldBlock, rdserr.ErrCongested, rdserr.ErrTimeout,
		rdserr.ErrNoMemory, rdserr.ErrRateLimited, rdserr.ErrShutdown} {
		if errors.Is(e.Err, s) {
			return true
		}
	}
	return false
}

// DatagramError is why one datagram of a batch was not accepted. Its Err is an
// *OpError.
type DatagramError struct {
	Index int // in the slice given to SendBatch
	Err   error
}

// BatchError lists the datagrams of a batch that were not accepted, by rising
// index. errors.Is is true of each of their errors.
type BatchError struct {
	Total  int // datagrams in the batch
	Errors []DatagramError
}

func (e *BatchError) Error() string {
	if len(e.Errors) == 0 {
		return "rdsd: send batch"
	}
	first := e.Errors[0]
	return fmt.Sprintf("rdsd: %d of %d datagrams not accepted, first the one at index %d: %v",
		len(e.Errors), e.Total, first.Index, first.Err)
}

// Unwrap returns the different errors, each once.
func (e *BatchError) Unwrap() []error {
	var errs []error
	for _, d := range e.Errors {
		if len(errs) == 0 || errs[len(errs)-1] != d.Err {
			errs = append(errs, d.Err)
		}
	}
	return errs
}

func opError(op string, local, remote netip.AddrPort, err error) error {
	if err == nil {
		return nil
	}
	return &OpError{Op: op, Local: local, Remote: remote, Err: err}
}

func undecided(op string, local, remote netip.AddrPort, err error) error {
	return &OpError{Op: op, Local: local, Remote: remote, Err: err, Undecided: true}
}

// contextEnd is the error of a call whose context ends: a sentinel that also is the
// context's error.
type contextEnd struct {
	sentinel *rdserr.Error
	cause    error
	text     string
}

func (e *contextEnd) Error() string   { return e.text }
func (e *contextEnd) Unwrap() []error { return []error{e.sentinel, e.cause} }

// Timeout is for net.Error.
func (e *contextEnd) Timeout() bool { return e.sentinel == rdserr.ErrTimeout }

var (
	errDeadline = &contextEnd{rdserr.ErrTimeout, context.DeadlineExceeded, "the deadline passed"}
	errCanceled = &contextEnd{rdserr.ErrCanceled, context.Canceled, "the call was cancelled"}
)

// ctxError translates the end of ctx. while is the error it was waiting over, if any.
func ctxError(ctx context.Context, while error) error {
	e := errDeadline
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		e = errCanceled
	}
	if while == nil {
		return e
	}
	return &contextEnd{e.sentinel, e.cause, e.text + ": " + while.Error()}
}

// errnoError is the sentinel of an errno the daemon sent, with its words.
func errnoError(n int32, message string) error {
	errno := syscall.Errno(n)
	switch errno {
	case 0:
		return nil
	case syscall.ETIMEDOUT:
		return errDeadline
	}
	if s, ok := rdserr.FromErrno(errno).(*rdserr.Error); ok {
		if message == "" || message == s.Text {
			return s
		}
		return rdserr.With(s, "%s", message)
	}
	if message == "" {
		return errno
	}
	return fmt.Errorf("%s: %w", message, errno)
}

// statusError turns the end of a stream into a sentinel.
func statusError(err error) error {
	if err == nil {
		return nil
	}
	mapped := rdsdv1.ErrorFromStatus(err)
	if errors.Is(mapped, rdserr.ErrTimeout) {
		return errDeadline
	}
	return mapped
}

var errClientClosed = rdserr.With(rdserr.ErrClosed, "the client is closed")

// callError returns the error of a call of a service other than that of sockets.
func callError(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	if ctx != nil && ctx.Err() != nil {
		return &OpError{Op: op, Err: ctxError(ctx, nil)}
	}
	if status.Code(err) == codes.Canceled { // the context has not ended: Close has
		return &OpError{Op: op, Err: errClientClosed}
	}
	if err = rdsdv1.ErrorFromStatus(err); errors.Is(err, rdserr.ErrTimeout) { // with the daemon's words
		err = &contextEnd{rdserr.ErrTimeout, context.DeadlineExceeded, err.Error()}
	}
	return &OpError{Op: op, Err: err}
}

var errLost = rdserr.With(rdserr.ErrShutdown, "the connection to the daemon was lost before it answered")
