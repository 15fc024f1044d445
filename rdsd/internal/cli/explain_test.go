package cli

import (
	"context"
	"fmt"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
)

// TestExplain: what a person reads says what to do, and nothing that only programs say.
func TestExplain(t *testing.T) {
	for _, x := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("status: %w", context.DeadlineExceeded), "status: the deadline passed (see --timeout)"},
		{context.DeadlineExceeded, "the deadline passed (see --timeout)"},
		{rdserr.With(rdserr.ErrTimeout, "no answer"), "no answer (see --timeout)"},
		{rdserr.With(rdserr.ErrShutdown, "it ended"), "it ended; is the daemon still running? (rdsd status)"},
		{withCode(exitTimeout, fmt.Errorf("after 5s: %w", context.DeadlineExceeded)), "after 5s: context deadline exceeded"},
		{rdserr.ErrAddrInUse, rdserr.ErrAddrInUse.Error()},
	} {
		if got := explain(x.err); got != x.want {
			t.Errorf("%v is explained as %q, not %q", x.err, got, x.want)
		}
	}
}
