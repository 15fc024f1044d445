package kernelnbd

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
)

var rdsdBinary = flag.String("rdsd", "", "the program, for the guest")

// daemon is an rdsd in the guest.
type daemon struct {
	t    *testing.T
	addr string
	dir  string
	cmd  *exec.Cmd
	log  bytes.Buffer
}

// start starts it, again after a kill, and waits until it serves.
func (d *daemon) start() {
	d.t.Helper()
	d.cmd = exec.Command(*rdsdBinary, "serve", "--address", d.addr, "--socket", d.socket(), "--http", "",
		"--volume-state-dir", filepath.Join(d.dir, "state"), "--log-level", "warn")
	d.cmd.Env = append(os.Environ(), "RDSD_VOLUMES_NBD_TIMEOUT=1s") // what was under way when it dies is sent again then
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	var out []byte
	var err error
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if out, err = exec.Command(*rdsdBinary, "--socket", d.socket(), "status").CombinedOutput(); err == nil {
			return
		}
		if time.Since(begun) > 20*time.Second {
			d.t.Fatalf("rdsd does not serve: %v: %s\n%s", err, out, d.log.String())
		}
	}
}

func (d *daemon) socket() string { return filepath.Join(d.dir, "socket") }

func (d *daemon) kill() {
	d.cmd.Process.Kill()
	d.cmd.Wait()
}

// volume runs rdsd volume.
func (d *daemon) volume(args ...string) string {
	d.t.Helper()
	cmd := exec.Command(*rdsdBinary, append([]string{"--socket", d.socket(), "--timeout", "20s", "volume"}, args...)...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		d.t.Fatalf("rdsd volume %s: %v: %s\n%s", strings.Join(args, " "), err, said.String(), d.log.String())
	}
	return strings.TrimSpace(string(out))
}

func newDaemon(t *testing.T, addr string) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "rdsd")
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, addr: addr, dir: dir}
	d.start()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("rdsd %s:\n%s", addr, d.log.String())
		}
		d.kill()
	})
	return d
}

// TestDaemons: rdsd maps a volume of another rdsd as a kernel device; each of
// them is killed under traffic and started again. The device stays, and the
// traffic sees nothing of it but time.
func TestDaemons(t *testing.T) {
	guest(t, func(t *testing.T) {
		run(t, "ip", "link", "set", "lo", "up")
		store, app := newDaemon(t, "127.0.0.2"), newDaemon(t, "127.0.0.1")
		store.volume("export", "disk", emptyFile(t, 32<<20), "--persist")
		device := app.volume("map", "127.0.0.2:disk", "--as", "nbd", "--persist")
		index, err := strconv.Atoi(strings.TrimPrefix(device, "/dev/nbd"))
		if err != nil {
			t.Fatalf("mapped as %q", device)
		}
		d := &disk{t: t, index: index, path: device}
		d.mkfs("-b", "4096")
		dir, unmount := d.mount("discard")
		p := startTraffic(t, dir, 3, 0)
		kills := 0
		d.interrupt(p, func() {
			victim := app
			if kills++; kills%3 == 0 {
				victim = store
			}
			victim.kill()
			victim.start()
		})
		r := p.wait()
		unmount()
		d.fsck()
		dir, unmount = d.mount("")
		r.verify(t, dir)
		unmount()
		app.volume("unmap", device)
		if got, err := nbd.Status(index); err != nil || got[index] {
			t.Errorf("the device is attached still: %v, %v", got, err)
		}
		t.Logf("REPORT daemons killed %d times below a mounted kernel device: nothing lost, the longest operation took %v", kills, r.Longest.Round(time.Millisecond))
	})
}
