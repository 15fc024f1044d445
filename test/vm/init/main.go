// Command init is the first process of the guest of test/vm: it loads the modules that the
// host's file system needs (they lie beside it in the initial RAM disk), makes the host's /
// its own, read-only under a layer in memory, and then serves as the agent. It ends, and with
// it the guest, when the host lets go of the agent's port.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/test/vm/agent"
)

const (
	loadDir  = "/load" // modules, in the order of their names
	portName = "agent" // of the virtio serial port
	newRoot  = "/new"
	path     = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

func main() {
	err := setUp()
	port, e := openPort()
	if e != nil {
		// Nobody can be told but whoever reads the console.
		fmt.Fprintln(os.Stderr, "init:", errors.Join(err, e))
	} else {
		_ = agent.Serve(port, err)
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {} // the first process may not end
}

// setUp makes the guest a machine that programs of the host run on.
func setUp() error {
	os.Clearenv()
	for _, e := range []string{path, "HOME=/root", "TERM=dumb", "LANG=C.UTF-8"} {
		name, value, _ := strings.Cut(e, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	if err := errors.Join(mount("proc", "/proc", "proc", 0, ""), mount("sysfs", "/sys", "sysfs", 0, ""), loadAll()); err != nil {
		return err
	}
	if err := enterRoot(); err != nil {
		return err
	}
	for _, m := range [][3]string{
		{"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"devtmpfs", "/dev", ""},
		{"tmpfs", "/dev/shm", ""}, {"devpts", "/dev/pts", ""}, {"tmpfs", "/run", "mode=755"},
		{"debugfs", "/sys/kernel/debug", ""}, {"tmpfs", "/var/tmp", ""},
	} {
		if err := mount(m[0], m[1], m[0], 0, m[2]); err != nil {
			return err
		}
	}
	if err := mount("out", "/run/out", "9p", 0, "trans=virtio,version=9p2000.L,msize=262144,access=any"); err != nil {
		return err
	}
	return modules()
}

// loadAll loads what reaches the host's file system and the agent's port.
func loadAll() error {
	list, err := os.ReadDir(loadDir)
	if err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range list {
		f, err := os.Open(filepath.Join(loadDir, e.Name()))
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load %s: %w", e.Name(), err)
		}
	}
	return nil
}

// enterRoot makes the host's file system, with a layer in memory over it, the root.
func enterRoot() error {
	const lower, layer = "/lower", "/layer"
	for _, step := range []func() error{
		func() error {
			return mount("root", lower, "9p", unix.MS_RDONLY, "trans=virtio,version=9p2000.L,msize=524288,cache=loose,access=any")
		},
		func() error { return mount("tmpfs", layer, "tmpfs", 0, "size=60%") },
		func() error { return os.MkdirAll(layer+"/upper", 0o755) },
		func() error { return os.MkdirAll(layer+"/scratch", 0o755) },
		func() error {
			return mount("overlay", newRoot, "overlay", 0, "lowerdir="+lower+",upperdir="+layer+"/upper,workdir="+layer+"/scratch")
		},
		func() error { return unix.Chdir(newRoot) },
		func() error { return unix.Mount(".", "/", "", unix.MS_MOVE, "") },
		func() error { return unix.Chroot(".") },
		func() error { return unix.Chdir("/") },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("the host's file system as root: %w", err)
		}
	}
	return nil
}

// modules puts the kernel's modules where modprobe, and so the kernel itself, looks for
// them. Their place on the host stands on the kernel's command line.
func modules() error {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	for word := range strings.FieldsSeq(string(line)) {
		dir, ok := strings.CutPrefix(word, "vm.modules=")
		if !ok {
			continue
		}
		if err := os.MkdirAll("/lib/modules", 0o755); err != nil {
			return err
		}
		at := filepath.Join("/lib/modules", filepath.Base(dir))
		if err := os.RemoveAll(at); err != nil { // a host that runs the same kernel has its own
			return err
		}
		return os.Symlink(dir, at)
	}
	return errors.New("no vm.modules= on the command line")
}

// openPort finds the agent's port. There is no udev that would give it its name, and the
// device comes some time after its driver.
func openPort() (*os.File, error) {
	for range 500 {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			if b, _ := os.ReadFile(n); strings.TrimSpace(string(b)) == portName {
				return os.OpenFile("/dev/"+filepath.Base(filepath.Dir(n)), os.O_RDWR, 0)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, fmt.Errorf("no virtio port %q", portName)
}

func mount(what, where, kind string, flags uintptr, data string) error {
	if err := os.MkdirAll(where, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(what, where, kind, flags, data); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("mount %s: %w", where, err)
	}
	return nil
}
