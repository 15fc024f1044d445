package rdsd

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
