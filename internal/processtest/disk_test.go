package processtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// disk is a small file system that can be filled.
type disk struct {
	t    *testing.T
	path string
}

func newDisk(t *testing.T, size string) *disk {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can mount a file system to fill")
	}
	k := &disk{t, dir(t)}
	if err := syscall.Mount("tmpfs", k.path, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("elsewhere: nothing may be mounted here: %v", err)
	}
	// Lazily: the daemon is killed after this, should the test fail.
	t.Cleanup(func() { syscall.Unmount(k.path, syscall.MNT_DETACH) })
	return k
}

// fill leaves no room.
func (k *disk) fill() {
	k.t.Helper()
	f, err := os.OpenFile(filepath.Join(k.path, "fill"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		k.t.Fatal(err)
	}
	defer f.Close()
	for b := make([]byte, 4096); err == nil; {
		_, err = f.Write(b)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		k.t.Fatal(err)
	}
}

// empty takes back what fill took.
func (k *disk) empty() {
	k.t.Helper()
	if err := os.Remove(filepath.Join(k.path, "fill")); err != nil {
		k.t.Fatal(err)
	}
}

// eventually waits until what is asked is so.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// TestFullLedger: who wants rings is told what is full, all others are served, and with
// room again so are they.
func TestFullLedger(t *testing.T) {
	t.Parallel()
	k := newDisk(t, "4m")
	d, name := dir(t), filepath.Join(k.path, "ledger")
	p := run(t, []string{"env", "RDSD_API_LEDGER=" + name}, serveArgs(t, d)...)
	p.says("serving")
	socket := filepath.Join(d, "s")
	warm(t, socket)
	before := p.open()
	// One is there before.
	c, err := rdsd.Dial(socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	s, err := c.Bind(ctx, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	k.fill()
	held := p.open()
	// What was allocated before can be used again, so the first may find a place.
	var bound []*rdsd.Client
	for err = nil; err == nil && len(bound) < 300; {
		var x *rdsd.Client
		if x, err = rdsd.Dial(socket, rdsd.WithFrontEnd(rdsd.Rings)); err != nil {
			break
		}
		bound = append(bound, x)
		_, err = x.Bind(ctx, netip.MustParseAddrPort("127.0.0.1:0"))
	}
	if !errors.Is(err, syscall.ENOMEM) || !strings.Contains(err.Error(), "no space left") || !strings.Contains(err.Error(), "ledger") {
		t.Errorf("after %d binds: %v", len(bound), err)
	}
	for range 20 {
		if err := useFront(socket, rdsd.GRPC); err != nil {
			t.Fatalf("over gRPC: %v", err)
		}
	}
	for range 100 {
		if err := roundTrip(s); err != nil {
			t.Fatalf("the socket from before: %v", err)
		}
	}
	for _, x := range bound {
		x.Close()
	}
	p.goesBackTo(held)
	k.empty()
	warm(t, socket)
	s.Close()
	c.Close()
	p.goesBackTo(before)
	// What one that was killed leaves is room for the next.
	k.fill()
	p.signal(syscall.SIGKILL)
	p.exit()
	p = run(t, []string{"env", "RDSD_API_LEDGER=" + name}, serveArgs(t, d)...)
	p.says("serving")
	k.empty()
	ends(t, p)

	// And a daemon that cannot make one does not start.
	k.fill()
	p = run(t, []string{"env", "RDSD_API_LEDGER=" + name}, serveArgs(t, d)...)
	if code := p.exit(); code != failed {
		t.Errorf("exit code %d, want %d", code, failed)
	}
	p.says("no space left", name)
}

// others checks that those who have to do with none of it are served, over what stays
// on this node: connections to another one stay open for a while.
func (p *pair) others() {
	p.t.Helper()
	for _, f := range []rdsd.FrontEnd{rdsd.Rings, rdsd.GRPC} {
		if err := useFrontAt(filepath.Join(p.dirA, "s"), addrA, f); err != nil {
			p.t.Errorf("somebody else's datagram, %v: %v", f, err)
		}
	}
}

// ends ends a daemon in order.
func ends(t *testing.T, p *process) {
	t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if strings.Contains(p.out.String(), "panic") {
		t.Error("something panicked")
	}
}

// TestFullState: what was to persist and cannot be written down is refused as a whole,
// with the reason; what need not persist works, and is written once there is room.
func TestFullState(t *testing.T) {
	t.Parallel()
	k := newDisk(t, "256k")
	p := startPair(t, "RDSD_VOLUMES_STATE_DIR="+k.path)
	p.a.says("serving")
	must := func(d string, args ...string) string {
		t.Helper()
		out, err := p.cli(d, args...)
		if err != nil {
			t.Fatalf("%v: %v %s", args, err, out)
		}
		return out
	}
	image := func(name string) string {
		at := filepath.Join(p.dirA, name)
		if err := os.WriteFile(at, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		return at
	}
	must(p.dirB, "volume", "export", "disk", "--memory", "--size", "1M", "--allow", "127.0.0.0/8")
	must(p.dirA, "volume", "export", "kept", image("kept"), "--persist")
	must(p.dirA, "volume", "map", addrB+":disk", "--access", "ro") // what opens descriptors for good is open
	must(p.dirA, "volume", "unmap", addrB+":disk")
	before := p.a.open()
	state := func() string {
		b, err := os.ReadFile(filepath.Join(k.path, "volumes.json"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	k.fill()
	file := image("more")
	for _, args := range [][]string{
		{"volume", "export", "more", file, "--persist"},
		{"volume", "map", addrB + ":disk", "--access", "ro", "--persist"},
	} {
		out, err := p.cli(p.dirA, args...)
		if err == nil || !strings.Contains(out, "no space left") || !strings.Contains(out, "volumes.state_dir") {
			t.Errorf("%v: %v %s", args, err, out)
		}
	}
	if out := must(p.dirA, "volume", "ls"); strings.Contains(out, "more") || strings.Contains(out, "disk") {
		t.Errorf("what was refused is there:\n%s", out)
	}
	p.a.goesBackTo(before)
	// What need not persist works.
	must(p.dirA, "volume", "export", "more", file, "--allow", "127.0.0.0/8")
	must(p.dirA, "volume", "map", addrB+":disk", "--access", "ro")
	must(p.dirA, "volume", "copy", addrB+":disk", filepath.Join(p.dirA, "copy"))
	must(p.dirB, "volume", "copy", addrA+":more", filepath.Join(p.dirB, "copy"))
	p.a.says("the state cannot be kept", "no space left", "volumes.state_dir")
	if out, err := p.cli(p.dirA, "volume", "check"); err == nil || !strings.Contains(out, "no space left") {
		t.Errorf("check: %v\n%s", err, out)
	}
	p.others()
	if s := state(); !strings.Contains(s, `"kept"`) || strings.Contains(s, `"disk"`) {
		t.Errorf("the state from before is not whole: %s", s)
	}
	k.empty()
	p.a.says("the state is kept again")
	if s := state(); !strings.Contains(s, `"kept"`) || !strings.Contains(s, `"disk"`) || strings.Contains(s, `"more"`) {
		t.Errorf("written afterwards: %s", s)
	}
	must(p.dirA, "volume", "unmap", addrB+":disk")
	must(p.dirA, "volume", "unexport", "more")
	must(p.dirA, "volume", "export", "more", file, "--persist")
	if s := state(); !strings.Contains(s, `"more"`) {
		t.Errorf("not kept: %s", s)
	}
	must(p.dirA, "volume", "unexport", "more")
	p.a.goesBackTo(before)
	ends(t, p.a)
}

// TestFullExport: writes to it get ENOSPC, what is there can be read and written, other
// exports know nothing of it, and with room again it is written.
func TestFullExport(t *testing.T) {
	t.Parallel()
	k := newDisk(t, "2m")
	p := startPair(t)
	p.a.says("serving")
	image := filepath.Join(p.dirB, "image")
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	if err := os.WriteFile(image, data, 0o600); err != nil {
		t.Fatal(err)
	}
	must := func(d string, args ...string) {
		t.Helper()
		if out, err := p.cli(d, args...); err != nil {
			t.Fatalf("%v: %v %s", args, err, out)
		}
	}
	must(p.dirA, "volume", "export", "full", filepath.Join(k.path, "full"), "--create", "--size", "1M", "--allow", "127.0.0.0/8")
	must(p.dirA, "volume", "export", "other", filepath.Join(p.dirA, "other"), "--create", "--size", "1M", "--allow", "127.0.0.0/8")
	must(p.dirB, "volume", "copy", image, addrA+":other", "--verify")
	before := p.a.open()
	k.fill()
	for i := range 5 {
		out, err := p.cli(p.dirB, "volume", "copy", image, addrA+":full")
		if err == nil || !strings.Contains(out, "the store behind the volume is full") {
			t.Fatalf("copy %d: %v %s", i, err, out)
		}
		must(p.dirB, "volume", "copy", image, addrA+":other", "--verify")
	}
	must(p.dirB, "volume", "copy", addrA+":full", filepath.Join(p.dirB, "hole"))
	p.others()
	k.empty()
	must(p.dirB, "volume", "copy", image, addrA+":full", "--verify")
	if b, err := os.ReadFile(filepath.Join(k.path, "full")); err != nil || !bytes.Equal(b, data) {
		t.Errorf("the file is another: %v", err)
	}
	eventually(t, "nobody has it open", func() error {
		if n := p.a.open(); n > before {
			return fmt.Errorf("%d descriptors, %d before", n, before)
		}
		return nil
	})
	ends(t, p.a)
}
