package rdserr

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"
)

// TestSentinels: each has a name, a text, and an errno of its own, so that
// FromErrno can find it again.
func TestSentinels(t *testing.T) {
	byErrno := map[syscall.Errno]*Error{}
	byName := map[string]*Error{}
	for _, e := range All {
		if e.Errno == 0 || e.Name == "" || e.Text == "" {
			t.Errorf("incomplete: %+v", e)
		}
		if o := byErrno[e.Errno]; o != nil {
			t.Errorf("%s and %s share errno %d", o.Name, e.Name, e.Errno)
		}
		if byName[e.Name] != nil {
			t.Errorf("two are called %s", e.Name)
		}
		byErrno[e.Errno], byName[e.Name] = e, e
		if FromErrno(e.Errno) != e {
			t.Errorf("FromErrno(%v) is another", e.Errno)
		}
	}
}

// TestKernelErrnos: what net/rds returns for the same cause.
func TestKernelErrnos(t *testing.T) {
	for _, c := range []struct {
		err  *Error
		want syscall.Errno
	}{
		{ErrWouldBlock, syscall.EAGAIN}, {ErrCongested, syscall.ENOBUFS}, {ErrTooLarge, syscall.EMSGSIZE},
		{ErrTimeout, syscall.ETIMEDOUT}, {ErrNotBound, syscall.ENOTCONN}, {ErrInvalid, syscall.EINVAL},
		{ErrAddrInUse, syscall.EADDRINUSE}, {ErrAddrNotAvail, syscall.EADDRNOTAVAIL}, {ErrFamily, syscall.EOPNOTSUPP},
		{ErrDestination, syscall.EDESTADDRREQ}, {ErrNoMemory, syscall.ENOMEM},
	} {
		if c.err.Errno != c.want {
			t.Errorf("%s: errno %d, want %d", c.err.Name, c.err.Errno, c.want)
		}
	}
}

// TestIs: every sentinel, plain, with particulars, and wrapped twice.
func TestIs(t *testing.T) {
	for _, e := range All {
		with := With(e, "port %d", 7)
		for _, err := range []error{e, with, fmt.Errorf("send: %w", with)} {
			if !errors.Is(err, e) {
				t.Errorf("%v is not %s", err, e.Name)
			}
			if !errors.Is(err, e.Errno) {
				t.Errorf("%v is not errno %v", err, e.Errno)
			}
			if Errno(err) != e.Errno {
				t.Errorf("Errno(%v) = %v", err, Errno(err))
			}
			for _, o := range All {
				if o != e && (errors.Is(err, o) || errors.Is(err, o.Errno)) {
					t.Errorf("%v is %s too", err, o.Name)
				}
			}
		}
		if with.Error() != "port 7" {
			t.Errorf("particulars read %q", with)
		}
	}
}

func TestErrno(t *testing.T) {
	for _, c := range []struct {
		err  error
		want syscall.Errno
	}{
		{nil, 0},
		{syscall.EPIPE, syscall.EPIPE},
		{fmt.Errorf("write: %w", syscall.EPIPE), syscall.EPIPE},
		{io.EOF, syscall.EIO},
	} {
		if got := Errno(c.err); got != c.want {
			t.Errorf("Errno(%v) = %v, want %v", c.err, got, c.want)
		}
	}
	if FromErrno(0) != nil {
		t.Error("errno 0 is no error")
	}
	if err := FromErrno(syscall.EXDEV); err != syscall.EXDEV {
		t.Errorf("an errno without a sentinel stays itself, got %v", err)
	}
}
