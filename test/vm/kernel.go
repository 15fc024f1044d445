package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

const (
	emulator = "qemu-system-x86_64"
	initPkg  = "github.com/rdsd/rdsd/test/vm/init"
)

// rootModules reach the host's file system and the agent's port.
var rootModules = []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"}

// guestTools are what scenarios run in the guest, with the package each is of.
var guestTools = map[string]string{
	"ip": "iproute2", "tc": "iproute2", "rdma": "iproute2", "modprobe": "kmod", "dmesg": "util-linux",
	"ibv_rc_pingpong": "ibverbs-utils", "rping": "rdmacm-utils", "tcpdump": "tcpdump",
	"fio": "fio", "mkfs.ext4": "e2fsprogs", "nbd-client": "nbd-client", "nbdcopy": "libnbd-bin",
}

// Missing returns what this machine lacks for a guest, nil when nothing.
func Missing() error {
	var lacks []string
	if runtime.GOARCH != "amd64" {
		lacks = append(lacks, "an amd64 machine")
	}
	if os.Geteuid() != 0 {
		lacks = append(lacks, "root, whose files the guest's programs may be")
	}
	if _, err := exec.LookPath(emulator); err != nil {
		lacks = append(lacks, "qemu-system-x86")
	}
	for tool, pkg := range guestTools {
		if _, err := exec.LookPath(tool); err != nil && !slices.Contains(lacks, pkg) {
			lacks = append(lacks, pkg)
		}
	}
	if _, err := findKernel(); err != nil {
		lacks = append(lacks, err.Error())
	}
	if len(lacks) == 0 {
		return nil
	}
	slices.Sort(lacks)
	return fmt.Errorf("missing: %s (scripts/setup.sh installs it, as root on Debian)", strings.Join(lacks, ", "))
}

// kernel is what prepare.sh has made.
type kernel struct {
	image   string // an ELF
	modules string // …/lib/modules/<release>
}

// cache is the directory that prepare.sh works in.
func cache() (string, error) {
	_, here, _, _ := runtime.Caller(0)
	root := filepath.Dir(filepath.Dir(filepath.Dir(here)))
	if !filepath.IsAbs(root) { // built with -trimpath: tests run in their package's directory
		var err error
		if root, err = filepath.Abs("../.."); err != nil {
			return "", err
		}
	}
	return filepath.Join(root, ".cache", "vm"), nil
}

func findKernel() (kernel, error) {
	dir, err := cache()
	if err != nil {
		return kernel{}, err
	}
	if dir, err = filepath.EvalSymlinks(filepath.Join(dir, "current")); err != nil {
		return kernel{}, errors.New("a kernel made by test/vm/prepare.sh")
	}
	release, err := os.ReadFile(filepath.Join(dir, "ready"))
	if err != nil {
		return kernel{}, errors.New("a kernel made by test/vm/prepare.sh")
	}
	return kernel{
		image:   filepath.Join(dir, "vmlinux"),
		modules: filepath.Join(dir, "lib/modules", strings.TrimSpace(string(release))),
	}, nil
}

// withDependencies lists the files of modules, each behind those it needs.
func (k kernel) withDependencies(names []string) (files []string, err error) {
	dep, err := os.ReadFile(filepath.Join(k.modules, "modules.dep"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		found := false
		for line := range strings.Lines(string(dep)) {
			file, needs, _ := strings.Cut(strings.TrimSpace(line), ":")
			if filepath.Base(file) != name+".ko" {
				continue
			}
			found = true
			// What a module needs stands behind it, the most basic one last.
			order := append([]string{file}, strings.Fields(needs)...)
			for _, f := range slices.Backward(order) {
				if f = filepath.Join(k.modules, f); !slices.Contains(files, f) {
					files = append(files, f)
				}
			}
		}
		if !found {
			return nil, fmt.Errorf("no module %s in %s", name, k.modules)
		}
	}
	return files, nil
}

// makeInitrd writes the initial RAM disk: the guest's first process, built from init, and the
// modules it begins with.
func (k kernel) makeInitrd(ctx context.Context, dir string) (string, error) {
	program := filepath.Join(dir, "init")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, initPkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s: %w\n%s", initPkg, err, out)
	}
	modules, err := k.withDependencies(rootModules)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	archive := cpio{w: &b}
	for _, d := range []string{"load", "dev", "proc", "sys", "lower", "layer", "new"} {
		archive.add(d, modeDir|0o755, nil)
	}
	for i, name := range append([]string{program}, modules...) {
		content, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		if i == 0 {
			archive.add("init", modeFile|0o755, content)
		} else {
			archive.add(fmt.Sprintf("load/%02d-%s", i, filepath.Base(name)), modeFile|0o644, content)
		}
	}
	archive.add("TRAILER!!!", 0, nil)
	file := filepath.Join(dir, "initrd")
	return file, errors.Join(archive.err, os.WriteFile(file, b.Bytes(), 0o600))
}

const (
	modeDir  = 0o040000
	modeFile = 0o100000
)

// cpio writes an archive of the form that kernels unpack (newc): 110 bytes of header in
// hexadecimal digits, the name and the content, each filled up to 4 bytes.
type cpio struct {
	w   io.Writer
	at  int // bytes written
	ino int
	err error // the first
}

func (c *cpio) add(name string, mode int, content []byte) {
	c.ino++
	c.put(fmt.Appendf(nil, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		c.ino, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0, name))
	c.put(content)
}

func (c *cpio) put(b []byte) {
	if c.err != nil {
		return
	}
	n, err := c.w.Write(append(slices.Clip(b), make([]byte, -len(b)&3)...))
	c.at, c.err = c.at+n, err
}
