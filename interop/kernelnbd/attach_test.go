package kernelnbd

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
)

// TestAttach: the kernel sees the disk as the volume is, and says what it has.
func TestAttach(t *testing.T) {
	guest(t, func(t *testing.T) {
		d := attach(t, memory(t, blk.MemOptions{Size: 8 << 20, LogicalBlock: 4096}), 2, nil)
		for name, want := range map[string]string{
			"size": "16384", "ro": "0", "backend": t.Name(),
			"queue/logical_block_size": "4096", "queue/write_cache": "write back", "queue/fua": "1",
			"queue/max_sectors_kb": "1024", "queue/rotational": "0",
		} {
			if got := d.queue(name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		if n, err := strconv.ParseUint(d.queue("queue/discard_max_bytes"), 10, 64); err != nil || n == 0 {
			t.Errorf("discards are not offered: %d, %v", n, err)
		}
		if got, err := nbd.Status(nbd.AnyDevice); err != nil || !got[d.index] || len(got) < 2 {
			t.Errorf("status: %v, %v", got, err)
		}
		a := d.attach
		a.Backend = "another"
		if err := nbd.Reconfigure(d.index, a); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("reconfigured for another backend: %v", err)
		}
		kernel, ours, err := nbd.KernelPair()
		if err != nil {
			t.Fatal(err)
		}
		defer kernel.Close()
		defer ours.Close()
		a.Sockets = []int{int(kernel.Fd())}
		if _, err := nbd.Connect(d.index, a); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("connected twice: %v", err)
		}

		if err := nbd.Disconnect(d.index); err != nil {
			t.Fatal(err)
		}
		for _, l := range d.links {
			if <-l.ended; l.err != nil {
				t.Errorf("the kernel's connection ended with %v", l.err)
			}
		}
		until(t, "the disk is disconnected", 5*time.Second, func() bool {
			got, err := nbd.Status(d.index)
			return err == nil && !got[d.index]
		})

		// What was set once, as packaging/60-rdsd-nbd.rules does, stays.
		again, ours, err := nbd.KernelPair()
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		d.serve(ours)
		a = d.attach
		a.Sockets = []int{int(again.Fd())}
		if _, err := nbd.Connect(d.index, a); err != nil {
			t.Fatal(err)
		}
		if got := d.queue("queue/max_sectors_kb"); got != "1024" {
			t.Errorf("attached again it makes requests of %s KiB", got)
		}
	})
}

// TestReadOnly: the kernel lets nobody write to a volume that is read-only.
func TestReadOnly(t *testing.T) {
	guest(t, func(t *testing.T) {
		m := memory(t, blk.MemOptions{Size: 8 << 20})
		attach(t, m, 1, nil).mkfs()
		d := attach(t, blk.ReadOnly(m), 1, nil)
		if got := d.queue("ro"); got != "1" {
			t.Errorf("ro: %q", got)
		}
		dir := t.TempDir()
		if err := unix.Mount(d.path, dir, "ext4", 0, ""); !errors.Is(err, syscall.EACCES) {
			t.Errorf("mounted for writing: %v", err)
		}
		if err := unix.Mount(d.path, dir, "ext4", unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(dir, 0)
		if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
			t.Errorf("written: %v", err)
		}
	})
}

// TestOnClose: a disk that its last user closes goes, if it was asked to.
func TestOnClose(t *testing.T) {
	guest(t, func(t *testing.T) {
		d := attach(t, memory(t, blk.MemOptions{Size: 8 << 20}), 1, func(a *nbd.Attach) {
			a.DisconnectOnClose, a.DestroyOnDisconnect = true, true
		})
		sys := filepath.Join("/sys/block", filepath.Base(d.path))
		f, err := os.Open(d.path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(sys); err != nil {
			t.Fatal(err)
		}
		f.Close()
		until(t, "the disk is gone", 5*time.Second, func() bool {
			_, err := os.Stat(sys)
			return errors.Is(err, os.ErrNotExist)
		})
		<-d.links[0].ended
		d.index = -1
	})
}

// TestResize: a volume grows under a mounted file system, which follows.
func TestResize(t *testing.T) {
	guest(t, func(t *testing.T) {
		f := file(t, 16<<20, blk.FileOptions{})
		d := attach(t, f, 1, nil)
		d.mkfs()
		dir, unmount := d.mount("")
		var before, after unix.Statfs_t
		if err := unix.Statfs(dir, &before); err != nil {
			t.Fatal(err)
		}
		p := startTraffic(t, dir, 2, 200)
		if err := f.Resize(40 << 20); err != nil {
			t.Fatal(err)
		}
		a := d.attach
		a.Size, a.BlockSize = f.Info().Size, f.Info().LogicalBlock
		if err := nbd.Reconfigure(d.index, a); err != nil {
			t.Fatal(err)
		}
		if got := d.queue("size"); got != strconv.Itoa(40<<20/512) {
			t.Errorf("size: %s sectors", got)
		}
		run(t, "resize2fs", d.path)
		p.wait()
		if err := unix.Statfs(dir, &after); err != nil || after.Blocks < before.Blocks*2 {
			t.Errorf("%d blocks, before %d; %v", after.Blocks, before.Blocks, err)
		}
		unmount()
		d.fsck()
	})
}

// TestTrim: what a file system has trimmed takes no room in the volume.
func TestTrim(t *testing.T) {
	guest(t, func(t *testing.T) {
		m := memory(t, blk.MemOptions{Size: 48 << 20})
		d := attach(t, m, 1, nil)
		d.mkfs()
		dir, _ := d.mount("")
		path := filepath.Join(dir, "f")
		empty := m.Allocated()
		if err := writeFile(path, make([]byte, 24<<20)); err != nil {
			t.Fatal(err)
		}
		full := m.Allocated()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		unix.Sync()
		run(t, "fstrim", dir)
		if trimmed := m.Allocated(); full < empty+20<<20 || trimmed > empty+4<<20 {
			t.Errorf("the volume holds %d bytes, with the file %d, without it %d", empty, full, trimmed)
		}
	})
}

// TestBackend: what the kernel knows devices by, however they were attached.
func TestBackend(t *testing.T) {
	guest(t, func(t *testing.T) {
		m := memory(t, blk.MemOptions{Size: 8 << 20})
		ours := attach(t, m, 1, nil)
		nameless := attach(t, m, 1, func(a *nbd.Attach) { a.Backend = "" })
		none := max(ours.index, nameless.index) + 1
		old := none + 1
		byIoctl(t, old)
		for _, c := range []struct {
			what  string
			index int
			want  string
		}{
			{"with an identifier", ours.index, t.Name()},
			{"without one", nameless.index, ""},
			{"not attached", none, ""},
			{"attached by ioctl", old, ""},
		} {
			if got, told := nbd.Backend(c.index); got != c.want || !told {
				t.Errorf("%s: %q, %v", c.what, got, told)
			}
		}
		if got, told := nbd.Backend(1 << 15); told {
			t.Errorf("no device: %q", got)
		}
		if got, err := nbd.Status(nbd.AnyDevice); err != nil || !got[old] || got[none] {
			t.Errorf("status: %v, %v", got, err)
		}
		// It takes anybody's sockets where it knows a device by nothing, but none for an ioctl's.
		a := ours.attach
		if err := nbd.Reconfigure(nameless.index, a); err != nil {
			t.Errorf("the device without an identifier: %v", err)
		}
		if err := nbd.Reconfigure(old, a); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("the device of the ioctl: %v", err)
		}
	})
}

// byIoctl attaches a device as qemu-nbd does, until the end of the test.
func byIoctl(t *testing.T, index int) {
	t.Helper()
	const setSock, doIt, clearSock, disconnect = 0xab00, 0xab03, 0xab04, 0xab08
	kernel, ours, err := nbd.KernelPair()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := os.OpenFile("/dev/nbd"+strconv.Itoa(index), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetInt(int(dev.Fd()), setSock, int(kernel.Fd())); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { // until it is disconnected
		defer close(ended)
		unix.IoctlSetInt(int(dev.Fd()), doIt, 0)
	}()
	t.Cleanup(func() {
		unix.IoctlSetInt(int(dev.Fd()), disconnect, 0)
		ours.Close()
		<-ended
		unix.IoctlSetInt(int(dev.Fd()), clearSock, 0)
		dev.Close()
		kernel.Close()
	})
	until(t, "the device is attached", 5*time.Second, func() bool {
		_, err := os.Stat("/sys/block/nbd" + strconv.Itoa(index) + "/pid")
		return err == nil
	})
}
