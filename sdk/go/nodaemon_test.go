package rdsd

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
)

// Where no daemon is, a bind and a call of an administrator say so in the same words:
// where, what is wrong, and what would be right.
func TestNoDaemonSaysWhatWouldBeRight(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, "left.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "missing"): "there is no such socket; start the daemon (rdsd serve)",
		left:                          "its daemon has ended; start it again",
		file:                          "it is not a socket",
	} {
		c, err := Dial(path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Bind(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
		_, called := c.Admin().Status(t.Context())
		c.Close()
		for _, err := range []error{err, called} {
			if want := "no daemon at unix://" + path + ": " + want; !errors.Is(err, rdserr.ErrShutdown) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v; want %q", err, want)
			}
		}
	}
	for _, other := range []string{"dns:///n:1", "unix-abstract:x"} {
		if why := whyNoDaemon(other); why != "" {
			t.Errorf("%s: %s", other, why)
		}
	}
}

// TestStillDaemon: a call of a daemon that was stopped ends with its context, and in the words of that, whether it had a
// connection or not; and one that the daemon ends instead of answering it is not told of in gRPC's words.
func TestStillDaemon(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	calls := func(ctx context.Context) []error {
		errs := make([]error, 2)
		var wg sync.WaitGroup
		wg.Go(func() { _, errs[0] = c.Admin().Status(ctx) })
		wg.Go(func() {
			for _, err := range c.Admin().WatchCongestion(ctx) {
				errs[1] = err
			}
		})
		wg.Wait()
		return errs
	}
	// Longer than gRPC's own patience was.
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	for _, err := range calls(ctx) {
		if !errors.Is(err, rdserr.ErrTimeout) || !strings.HasSuffix(err.Error(), "the deadline passed") {
			t.Errorf("while it stands still: %v", err)
		}
	}
	go func() { // ends with l
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	// A call may meet the end of the connection that it begins to use.
	for _, err := range calls(t.Context()) {
		if !errors.Is(err, rdserr.ErrShutdown) || !strings.Contains(err.Error(), "does not answer, or has ended the connection") {
			t.Errorf("when it ends the connection: %v", err)
		}
	}
}
