package processtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
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

// TestOneLedgerForTwo: a second daemon with the ledger of one that runs does not start, says why, and takes nothing
// from the first; when that is gone, in order or by a signal, another starts at once.
func TestOneLedgerForTwo(t *testing.T) {
	at := dir(t)
	ledger := filepath.Join(at, "ledger")
	start := func() *process {
		return run(t, []string{"env", "RDSD_API_LEDGER=" + ledger}, serveArgs(t, dir(t))...)
	}
	first := start()
	first.says("msg=serving")
	was := map[string]os.FileInfo{}
	for _, name := range []string{ledger, ledger + ".ports"} {
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		was[name] = st
	}
	second := start()
	if code := second.exit(); code != 1 {
		t.Errorf("the second ended with %d", code)
	}
	second.says("api.ledger "+ledger, "another daemon uses it", "a file of its own")
	for name, st := range was {
		if now, err := os.Stat(name); err != nil || !os.SameFile(st, now) {
			t.Errorf("%s is another file now: %v", name, err)
		}
	}
	first.signal(syscall.SIGKILL)
	first.exit()
	third := start()
	third.says("msg=serving")
	// One that stops is waited for a while, and no longer than that: who starts daemons tries again.
	third.signal(syscall.SIGTERM)
	var fourth *process
	eventually(t, "the next one serves", func() error {
		fourth = start()
		for {
			select {
			case <-fourth.done:
				return fmt.Errorf("it ended with %d", fourth.cmd.ProcessState.ExitCode())
			case <-time.After(5 * time.Millisecond):
				if strings.Contains(fourth.out.String(), "msg=serving") {
					return nil
				}
			}
		}
	})
	if code := third.exit(); code != 0 {
		t.Errorf("the third ended with %d", code)
	}
	if _, err := os.Stat(ledger); err != nil {
		t.Errorf("the third has taken the ledger of the fourth along: %v", err)
	}
	ends(t, fourth)
	if left, _ := filepath.Glob(ledger + "*"); len(left) != 1 || left[0] != ledger+".ports" {
		t.Errorf("%v are left", left)
	}
}
