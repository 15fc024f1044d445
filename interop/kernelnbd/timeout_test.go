package kernelnbd

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
)

// short are the shortest timeouts the kernel has.
func short(a *nbd.Attach) { a.Timeout, a.DeadTimeout = time.Second, time.Second }

// hungUp tells whether the kernel has given the connection up.
func (l *link) hungUp() bool {
	raw, err := l.nc.(*net.UnixConn).SyscallConn()
	if err != nil {
		return true
	}
	fds := []unix.PollFd{{Events: unix.POLLRDHUP}}
	if raw.Control(func(fd uintptr) {
		fds[0].Fd = int32(fd)
		_, err = unix.Poll(fds, 0)
	}) != nil {
		return true
	}
	return err == nil && fds[0].Revents != 0
}

// TestStalled: the store holds a write for several timeouts of the kernel, and
// longer than a device lives without a connection. The write is sent again each
// time; nothing fails, and what is written afterwards is not overwritten by it.
func TestStalled(t *testing.T) {
	guest(t, func(t *testing.T) {
		f := blk.NewFault(memory(t, blk.MemOptions{Size: 8 << 20}), 1)
		d := attach(t, f, 0, short)
		raw := d.raw()
		f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Count: 1, Stall: true})
		before := d.srv.Stats().Requests
		begun := time.Now()
		wrote := make(chan error, 1)
		go func() {
			_, err := raw.WriteAt(sector('a'), 0)
			wrote <- err
		}()
		until(t, "the write stalls", 5*time.Second, func() bool { return f.Held() == 1 })
		until(t, "the kernel gives the connection up", 10*time.Second, d.links[0].hungUp)
		if took := time.Since(begun); took < 900*time.Millisecond {
			t.Errorf("a request had %v, want a second", took)
		}
		select {
		case <-d.links[0].ended:
			t.Errorf("the device is served no more: %v", d.links[0].err)
		case err := <-wrote:
			t.Errorf("the write returned: %v", err)
		case <-time.After(4 * time.Second):
		}
		if n := d.srv.Stats().Requests - before; n != 1 {
			t.Errorf("%d requests went to the store, want the one that it holds", n)
		}
		f.Release()
		if err := <-wrote; err != nil {
			t.Error("the write, in the end:", err)
		}
		t.Logf("the write took %.1f s", time.Since(begun).Seconds())
		if _, err := raw.WriteAt(sector('b'), 0); err != nil {
			t.Error(err)
		}
		got := sector(0)
		if _, err := raw.ReadAt(got, 0); err != nil || got[0] != 'b' || got[directUnit-1] != 'b' {
			t.Errorf("%q, %v", got[:8], err)
		}
	})
}

// TestDead: nobody comes back. All I/O ends with an error in bounded time, the
// disk can be disconnected, and connected anew.
func TestDead(t *testing.T) {
	guest(t, func(t *testing.T) {
		m := memory(t, blk.MemOptions{Size: 32 << 20})
		d := attach(t, m, 1, short)
		d.mkfs()
		dir, unmount := d.mount("")
		raw := d.raw()
		p := startTraffic(t, dir, 2, 0)
		from := d.done()
		until(t, "there is traffic", 10*time.Second, func() bool { return d.done() > from+50 })
		d.cut()
		begun := time.Now()
		const limit = 12 * time.Second
		done := make(chan error, 1)
		go func() {
			_, err := raw.ReadAt(sector(0), 0)
			done <- err
		}()
		select {
		case err := <-done:
			if !errors.Is(err, syscall.EIO) {
				t.Errorf("read: %v, want EIO", err)
			}
		case <-time.After(limit):
			t.Fatalf("a read has not ended after %v", limit)
		}
		if !p.overWithin(limit) {
			t.Fatalf("the traffic has not ended after %v", limit)
		}
		if said := p.err.String(); !slices.ContainsFunc([]string{syscall.EIO.Error(), syscall.EROFS.Error(), "SIGBUS"}, // the last: in mapped memory
			func(s string) bool { return strings.Contains(said, s) }) {
			t.Errorf("the traffic ended with %v: %s", p.status, said)
		}
		t.Logf("all ended after %.1f s", time.Since(begun).Seconds())
		raw.Close()
		unmount()
		d.close()

		d = attach(t, m, 1, short)
		if out, err := exec.Command("e2fsck", "-f", "-p", d.path).CombinedOutput(); err != nil && err.(*exec.ExitError).ExitCode() != 1 { // 1: it replayed the journal
			t.Errorf("e2fsck: %v\n%s", err, out)
		}
		d.fsck()
	})
}

// writeFile writes a file and has it made durable.
func writeFile(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}
