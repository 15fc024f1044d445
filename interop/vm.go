package interop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	umlBinary  = "/usr/bin/linux.uml"
	umlModules = "/usr/lib/uml/modules"
	bootLimit  = 20 * time.Second
	guestCard  = "vec0"
)

// VM is one running kernel.
type VM struct {
	*agent

	ns      *Netns
	dir     string
	ingress bool // the intermediate device is set up
	cmd     *exec.Cmd
	log     *os.File
}

// Missing says what this machine lacks for running a kernel, nil when nothing.
func Missing() error {
	lacks := lacksKernel()
	if _, err := guestPython(); err != nil {
		lacks = append(lacks, err.Error())
	}
	return missing([]string{"ip", "tc", "ethtool"}, lacks)
}

// guestPython finds an interpreter that the guest can run by its path alone:
// not a wrapper script, which would need the host's environment.
func guestPython() (string, error) {
	for _, name := range []string{"/usr/bin/python3", "python3"} {
		out, err := exec.Command(name, "-c", "import sys; print(sys.executable)").Output()
		if path := strings.TrimSpace(string(out)); err == nil && path != "" {
			return path, nil
		}
	}
	return "", errors.New("python3")
}

// BootOptions say how a kernel is started.
type BootOptions struct {
	GuestDir string         // absolute path of guest/
	Dir      string         // takes the console's log and the kernel's own files
	Addrs    []netip.Prefix // of the guest's card
	Agent    []string       // further arguments for the agent, key=value
}

// Boot starts a kernel with rds and rds_tcp on the namespace's guest end and
// waits until its agent answers.
func Boot(ctx context.Context, ns *Netns, opt BootOptions) (*VM, error) {
	python, err := guestPython()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(opt.Dir, "uml-")
	if err != nil {
		return nil, err
	}
	var list []string
	for _, a := range opt.Addrs {
		list = append(list, a.String())
	}
	vm := &VM{ns: ns, dir: dir}
	if vm.log, err = os.Create(filepath.Join(dir, "console.log")); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	vm.cmd = ns.Command(self, umlBinary,
		"mem=256M", "rootfstype=hostfs", "rootflags=/", "ro",
		"uml_dir="+dir, "umid=vm",
		// The address stays over a restart: neighbours do not wonder.
		guestCard+":transport=raw,mac=02:52:44:53:00:01,ifname="+ns.Guest,
		// The agent has a serial line of its own: what the kernel prints would
		// break its lines. con0 goes to the log.
		"con=null", "ssl=null", "ssl0=fd:0,fd:1", "con0=null,fd:2", "panic=1",
		noVectors,
		"init="+python, "--",
		"-I", "-S", "-B", filepath.Join(opt.GuestDir, "agent.py"),
		"dev="+guestCard, "addr="+strings.Join(list, ","))
	vm.cmd.Args = append(vm.cmd.Args, opt.Agent...)
	vm.cmd.Env = append(os.Environ(), helperEnv+"=1", "HOME="+dir)
	// A PID namespace: killing its first process ends every guest process,
	// and nothing of the kernel can outlive the test.
	vm.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
	}
	in, err := vm.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// Not StdoutPipe: Wait would close it under the reader.
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	vm.cmd.Stdout = outW
	vm.cmd.Stderr = vm.log
	err = vm.cmd.Start()
	_ = outW.Close()
	if err != nil {
		return nil, errors.Join(err, outR.Close(), vm.log.Close())
	}
	vm.agent = newAgent(in, outR)

	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	select {
	case err = <-vm.boot:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("boot: %w\n%s", errors.Join(err, vm.Kill()), vm.Console())
	}
	return vm, nil
}

// Kill ends the kernel as a power failure would: no FIN, no word to its peers.
func (vm *VM) Kill() error {
	err := vm.cmd.Process.Kill()
	_ = vm.cmd.Wait() // always "signal: killed"
	<-vm.ended
	return errors.Join(err, vm.log.Close())
}

// Start begins a job in the guest.
func (vm *VM) Start(op string, args map[string]any) (*Job, error) { return vm.start(op, args) }

// Call runs a short command in the guest and decodes its result into out.
func (vm *VM) Call(ctx context.Context, op string, args map[string]any, out any) error {
	return vm.call(ctx, op, args, out)
}

// Run runs a program of the host's file system in the guest.
func (vm *VM) Run(ctx context.Context, argv ...string) (string, error) {
	var r struct{ Out string }
	err := vm.call(ctx, "run", map[string]any{"argv": argv}, &r)
	return r.Out, err
}

// Counters reads the kernel's RDS counters.
func (vm *VM) Counters(ctx context.Context) (map[string]uint64, error) {
	var c map[string]uint64
	err := vm.call(ctx, "counters", nil, &c)
	return c, err
}

// Netem shapes what the kernel sends, e.g. "loss", "1%"; nothing ends it.
func (vm *VM) Netem(ctx context.Context, args ...string) error {
	return vm.netem(ctx, guestCard, args)
}

func (vm *VM) netem(ctx context.Context, dev string, args []string) error {
	argv := []string{"tc", "qdisc", "replace", "dev", dev, "root"}
	if len(args) == 0 {
		argv = append(argv, "pfifo_fast")
	} else {
		argv = append(append(argv, "netem"), args...)
	}
	_, err := vm.Run(ctx, argv...)
	return err
}

// NetemIn shapes what the kernel receives: an ingress queue is led through an
// intermediate device. Corruption does not belong here, the card has verified
// the checksums by then.
func (vm *VM) NetemIn(ctx context.Context, args ...string) error {
	const ifb = "ifb0"
	if !vm.ingress {
		for _, m := range []string{"ifb", "sch_ingress", "cls_matchall", "act_mirred"} {
			if err := vm.call(ctx, "load", map[string]any{"name": m}, nil); err != nil {
				return err
			}
		}
		for _, step := range [][]string{
			{"ip", "link", "set", ifb, "up"},
			{"tc", "qdisc", "add", "dev", guestCard, "handle", "ffff:", "ingress"},
			{"tc", "filter", "add", "dev", guestCard, "parent", "ffff:", "protocol", "all",
				"matchall", "action", "mirred", "egress", "redirect", "dev", ifb},
		} {
			if _, err := vm.Run(ctx, step...); err != nil {
				return err
			}
		}
		vm.ingress = true
	}
	return vm.netem(ctx, ifb, args)
}

// ResetAll makes the kernel drop all its RDS connections at once. Its kernel
// is built without INET_DIAG_DESTROY, so `ss -K` cannot; a write to this knob
// does the same to every connection of the namespace.
func (vm *VM) ResetAll(ctx context.Context) error {
	return vm.call(ctx, "write", map[string]any{
		"path": "/proc/sys/net/rds/tcp/rds_tcp_sndbuf", "data": "262144",
	}, nil)
}

// ReloadRDS takes the modules out and puts them in again: the kernel's sockets
// must be closed. Connections end in order, the state is new.
func (vm *VM) ReloadRDS(ctx context.Context) error {
	for _, step := range [][2]string{
		{"unload", "rds_tcp"}, {"unload", "rds"}, {"load", "rds"}, {"load", "rds_tcp"},
	} {
		if err := vm.call(ctx, step[0], map[string]any{"name": step[1]}, nil); err != nil {
			return err
		}
	}
	return nil
}

// Console returns the end of what the kernel wrote.
func (vm *VM) Console() string { return tail(filepath.Join(vm.dir, "console.log")) }

// tail is the end of a log.
func tail(path string) string {
	raw, _ := os.ReadFile(path)
	lines := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-25):], []byte("\n")))
}
