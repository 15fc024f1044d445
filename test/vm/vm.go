package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/test/vm/agent"
)

// bootLimit is for a machine that others use too; alone it takes about 4 s.
const bootLimit = 90 * time.Second

// VM is a running guest.
type VM struct {
	*agent.Client

	dir   string // console.log, qemu.log, the agent's socket, the initial RAM disk
	cmd   *exec.Cmd
	conn  net.Conn
	lock  *os.File      // held while the guest runs
	ended chan struct{} // closed when QEMU has ended
}

// Options say what guest is started.
type Options struct {
	Dir    string // takes what the guest leaves: logs, and under out what it writes to /run/out
	Memory string // of the guest; "" is 1G
	CPUs   int    // 0 is 2
	// Counted has one processor whose instructions are the guest's clock: each counts as 2 ns. What is measured then is how much has to be done, whatever else
	// the machine does.
	Counted bool
}

// countedShift is what an instruction takes by the clock of a guest that is counted: a
// nanosecond shifted so far, 2 ns.
const countedShift = 1

// Boot starts a guest and waits until it runs commands. No more than one guest runs at a
// time from one tree: emulated processors are slow enough alone. Who calls Boot calls Kill;
// if the caller's process dies the guest dies with it.
func Boot(ctx context.Context, o Options) (*VM, error) {
	k, err := findKernel()
	if err != nil {
		return nil, err
	}
	vm := &VM{dir: o.Dir, ended: make(chan struct{})}
	if vm.lock, err = lockGuests(ctx); err != nil {
		return nil, err
	}
	if err := vm.start(ctx, k, o); err != nil {
		return nil, errors.Join(fmt.Errorf("boot: %w", err), vm.lock.Close())
	}
	limited, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	if err := vm.Ready(limited); err != nil {
		vm.Kill()
		return nil, fmt.Errorf("boot: %w\n%s", err, vm.Console())
	}
	return vm, nil
}

// lockGuests waits until no other guest of this tree runs.
func lockGuests(ctx context.Context) (*os.File, error) {
	dir, err := cache()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock of guests: %w", err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(errors.New("another guest runs"), context.Cause(ctx), f.Close())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (vm *VM) start(ctx context.Context, k kernel, o Options) error {
	out := filepath.Join(o.Dir, "out")
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	initrd, err := k.makeInitrd(ctx, o.Dir)
	if err != nil {
		return err
	}
	if o.Memory == "" {
		o.Memory = "1G"
	}
	if o.CPUs == 0 {
		o.CPUs = 2
	}
	// Every emulated processor is a thread.
	clock := []string{"-accel", "tcg,thread=multi"}
	if o.Counted {
		o.CPUs = 1
		clock = []string{"-accel", "tcg,thread=single", "-icount", fmt.Sprintf("shift=%d,sleep=on", countedShift)}
	}
	// The port's socket is ours to listen on, so that it is there before QEMU is.
	path := filepath.Join(o.Dir, "agent")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	defer l.Close()
	log, err := os.Create(filepath.Join(o.Dir, "qemu.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	vm.cmd = exec.Command(emulator, append(clock,
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		// erms and fsrm would have the kernel copy by "rep movsb", which is interpreted byte by
		// byte; five levels of page tables cost too.
		"-machine", "q35", "-cpu", "max,-erms,-fsrm,la57=off",
		"-smp", fmt.Sprint(o.CPUs), "-m", o.Memory,
		// An ELF is entered by its PVH note, without decompression.
		"-kernel", k.image, "-initrd", initrd,
		"-append", "console=ttyS0 loglevel=4 panic=-1 oops=panic mitigations=off nokaslr no_timer_check "+
			"random.trust_cpu=on printk.time=1 log_buf_len=4M vm.modules="+k.modules,
		"-chardev", "file,id=console,path="+filepath.Join(o.Dir, "console.log"), "-serial", "chardev:console",
		"-device", "virtio-serial-pci",
		"-chardev", "socket,id=agent,path="+path, "-device", "virtserialport,chardev=agent,name=agent",
		"-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=root,mount_tag=root",
		"-fsdev", "local,id=out,path="+out+",security_model=none",
		"-device", "virtio-9p-pci,fsdev=out,mount_tag=out",
	)...)
	vm.cmd.Stderr = log
	vm.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() { // ends with QEMU
		// The signal comes when the thread that started QEMU ends: this one ends with it.
		runtime.LockOSThread()
		defer close(vm.ended)
		err := vm.cmd.Start()
		started <- err
		if err == nil {
			_ = vm.cmd.Wait() // what came of it is in the logs
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	if err := l.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	go func() { // a QEMU that ends at once need not be waited for
		<-vm.ended
		_ = l.Close()
	}()
	if vm.conn, err = l.Accept(); err != nil {
		vm.Kill()
		return fmt.Errorf("QEMU: %w\n%s", err, tail(log.Name(), 10))
	}
	vm.Client = agent.NewClient(vm.conn)
	return nil
}

// Kill ends the guest as a power failure would, if it has not ended, and waits for that.
func (vm *VM) Kill() {
	if vm.cmd.Process != nil {
		_ = vm.cmd.Process.Kill()
	}
	<-vm.ended
	if vm.conn != nil {
		_ = vm.conn.Close()
		<-vm.Gone()
	}
	_ = vm.lock.Close()
}

// Console returns the end of what the guest's kernel wrote by itself: warnings and worse.
func (vm *VM) Console() string {
	return strings.TrimSpace(tail(filepath.Join(vm.dir, "qemu.log"), 10) + "\n" + tail(filepath.Join(vm.dir, "console.log"), 60))
}

// Messages returns the end of the kernel's messages, all of them, or what the console has
// when the guest does not answer.
func (vm *VM) Messages(lines int) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := vm.Run(ctx, nil, "dmesg")
	if err != nil {
		return vm.Console()
	}
	return lastLines([]byte(out), lines)
}

// tail is the end of a file.
func tail(path string, lines int) string {
	raw, _ := os.ReadFile(path)
	return lastLines(raw, lines)
}

func lastLines(raw []byte, lines int) string {
	list := bytes.Split(bytes.TrimSpace(raw), []byte("\n"))
	return string(bytes.Join(list[max(0, len(list)-lines):], []byte("\n")))
}
