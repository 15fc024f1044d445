package interop

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// noGoVectors keeps a Go program in the guest to SSE, as noVectors does glibc.
const noGoVectors = "GODEBUG=cpu.all=off"

// MissingKernel says what this machine lacks for running a kernel without a
// network, nil when nothing.
func MissingKernel() error { return missing(nil, lacksKernel()) }

// lacksKernel lists what no kernel here can do without.
func lacksKernel() (lacks []string) {
	if runtime.GOARCH != "amd64" {
		lacks = append(lacks, "an amd64 machine")
	}
	if os.Geteuid() != 0 {
		lacks = append(lacks, "root")
	}
	for path, pkg := range map[string]string{
		umlBinary: "user-mode-linux", umlModules: "user-mode-linux's modules",
	} {
		if _, err := os.Stat(path); err != nil {
			lacks = append(lacks, pkg)
		}
	}
	return lacks
}

// missing puts into words what lacks, and which of the tools.
func missing(tools, lacks []string) error {
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			lacks = append(lacks, tool)
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("missing: %s (scripts/setup.sh installs it, as root on Debian)", strings.Join(lacks, ", "))
}

// InitOptions say what a kernel without a network runs.
type InitOptions struct {
	Dir    string   // takes the console's log and the kernel's own files
	Memory string   // of the guest, e.g. 512M
	Argv   []string // its first process: an absolute path, and arguments without blanks
	Env    []string // of that process, NAME=value without blanks
}

// InitVM is a kernel whose first process is a program of ours. Its root is the
// host's file system, read-only.
type InitVM struct {
	// Line is what the first process writes to /dev/ttyS0; it ends with the
	// kernel and must be read until then.
	Line io.ReadCloser

	cmd   *exec.Cmd
	log   *os.File
	stdin io.Closer
}

// BootInit starts a kernel. Kill must be called, and HelperMain first thing in
// main or TestMain.
func BootInit(o InitOptions) (*InitVM, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	vm := &InitVM{}
	if vm.log, err = os.Create(filepath.Join(o.Dir, "console.log")); err != nil {
		return nil, err
	}
	argv := append([]string{umlBinary,
		"mem=" + o.Memory, "rootfstype=hostfs", "rootflags=/", "ro",
		"uml_dir=" + o.Dir, "umid=init",
		"con=null", "ssl=null", "ssl0=fd:0,fd:1", "con0=null,fd:2", "panic=1",
		noVectors, noGoVectors}, o.Env...)
	argv = append(append(argv, "init="+o.Argv[0], "--"), o.Argv[1:]...)
	vm.cmd = exec.Command(self, argv...)
	if err := vm.start(o.Dir); err != nil {
		return nil, errors.Join(err, vm.log.Close())
	}
	return vm, nil
}

func (vm *InitVM) start(dir string) (err error) {
	vm.cmd.Env = append(os.Environ(), helperEnv+"=1", "HOME="+dir)
	vm.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	// Nothing is written to it, but at its end the line would hang up.
	if vm.stdin, err = vm.cmd.StdinPipe(); err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	vm.Line, vm.cmd.Stdout, vm.cmd.Stderr = r, w, vm.log
	err = vm.cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
	}
	return err
}

// Kill ends the kernel if it has not ended by itself.
func (vm *InitVM) Kill() error {
	_ = vm.cmd.Process.Kill()
	_ = vm.cmd.Wait()
	return errors.Join(vm.Line.Close(), vm.log.Close())
}

// Console is the end of what the kernel wrote.
func (vm *InitVM) Console() string { return tail(vm.log.Name()) }
