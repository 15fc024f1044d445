package peers

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
)

// TestRefusalErrno: who was judged is denied; who could not be, for want of something,
// is told that.
func TestRefusalErrno(t *testing.T) {
	for _, c := range []struct {
		why  error
		want syscall.Errno
	}{
		{errNoVolumePeer, syscall.EACCES},
		{errors.New("whatever"), syscall.EACCES},
		{rdserr.With(rdserr.ErrPerm, "uid 7 may not"), syscall.EACCES},
		{fmt.Errorf("asking: %w", syscall.ENOMEM), syscall.ENOMEM},
		{fmt.Errorf("asking: %w", os.NewSyscallError("socket", syscall.EMFILE)), syscall.EMFILE},
		{syscall.ENFILE, syscall.ENFILE},
		{syscall.ENOBUFS, syscall.ENOBUFS},
	} {
		if got := refusalErrno(c.why); got != c.want {
			t.Errorf("%v: %v, want %v", c.why, got, c.want)
		}
	}
}

// TestCongestionControl: links have the congestion control that was asked for, and one that
// the kernel does not have is left out with a word in the log.
func TestCongestionControl(t *testing.T) {
	for name, want := range map[string]string{"": "", "reno": "reno", "no-such-thing": ""} {
		r := newRegistry(t, func(c *config.Config) { c.RDS.TCPCongestion = name })
		if got := r.links.Congestion; got != want {
			t.Errorf("asked for %q: links have %q, want %q", name, got, want)
		}
	}
}
