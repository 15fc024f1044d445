package kernelnbd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// guestMain is the first process of the guest's kernel.
func guestMain(m *testing.M) {
	if err := setUp(); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
	} else {
		m.Run() // its result is read from what it says
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {} // the first process may not end
}

func setUp() error {
	for _, m := range []struct{ kind, where string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/mnt"},
	} {
		// The kernel may have mounted /dev itself.
		if err := unix.Mount(m.kind, m.where, m.kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.where, err)
		}
	}
	line, err := openLine("/dev/ttyS0")
	if err != nil {
		return err
	}
	os.Stdout = line
	for k, v := range map[string]string{
		"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": "/mnt",
	} {
		if err := os.Setenv(k, v); err != nil {
			return err
		}
	}
	return loadModule("nbd")
}

// openLine opens a serial line so that bytes pass as they are.
func openLine(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
	return f, unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t)
}

// loadModule loads a module of the kernel that runs.
func loadModule(name string) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	root := filepath.Join("/usr/lib/uml/modules", unix.ByteSliceToString(u.Release[:]), "kernel")
	var path string
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if base, _, ok := strings.Cut(filepath.Base(p), ".ko"); ok && base == name {
			path = p
			return filepath.SkipAll
		}
		return err
	})
	if err != nil {
		return err
	}
	if path == "" {
		return fmt.Errorf("no module %s under %s: %w", name, root, os.ErrNotExist)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if !strings.HasSuffix(path, ".ko") {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	if err := unix.FinitModule(int(f.Fd()), "", flags); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load %s: %w", path, err)
	}
	return nil
}
