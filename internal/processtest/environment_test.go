package processtest

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestUmask: whatever the mask of whoever starts it, the daemon can use what it makes, and nobody else can.
func TestUmask(t *testing.T) {
	for _, mask := range []string{"777", "0"} {
		d := dir(t)
		p := run(t, []string{"sh", "-c", `umask ` + mask + `; exec "$@"`, "x"}, serveArgs(t, d)...)
		p.says("msg=serving")
		for name, want := range map[string]os.FileMode{"s.volumes": os.ModeDir | 0o700, "s.volumes/volumes.json": 0o600,
			"s.volumes/volumes.lock": 0o600, "s.ledger": 0o600, "s.ledger.ports": 0o600} {
			if st, err := os.Stat(filepath.Join(d, name)); err != nil || st.Mode() != want {
				t.Errorf("umask %s: %s has %v, %v; want %v", mask, name, st.Mode(), err, want)
			}
		}
		p.signal(syscall.SIGTERM)
		if code := p.exit(); code != 0 {
			t.Errorf("umask %s: it ended with %d", mask, code)
		}
	}
}

// TestLimitsOfTheProcess: a limit that leaves no room for the ledger is named, and no signal ends the start.
func TestLimitsOfTheProcess(t *testing.T) {
	for limit, want := range map[string]string{"-f 10000": "ulimit -f", "-v 4000000": "ulimit -v"} {
		p := run(t, []string{"bash", "-c", `ulimit ` + limit + `; exec "$@"`, "x"}, serveArgs(t, dir(t))...)
		p.says("the daemon ends", "api.ledger", want)
		if code := p.exit(); code != 1 {
			t.Errorf("ulimit %s: it ended with %d", limit, code)
		}
	}
}
