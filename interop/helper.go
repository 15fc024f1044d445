package interop

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// helperEnv marks a process that shall run a user-mode Linux.
const helperEnv = "RDSD_INTEROP_HELPER"

// noVectors is the setting, given on the kernel's command line and passed on
// by it to the environment of the first process, that keeps glibc to SSE.
const noVectors = "GLIBC_TUNABLES=glibc.cpu.hwcaps=" +
	"-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW,-AVX_Fast_Unaligned_Load"

// HelperMain runs a user-mode Linux when this process was started for that,
// and returns otherwise.
//
// The kernel (6.1) keeps a guest's floating-point state in a buffer of 2696
// bytes; a host with wider registers (AMX) refuses it with EFAULT and the
// guest's first process dies. When the probe for that interface fails it falls
// back to the legacy one, of fixed size, which always works; so a seccomp
// filter makes the probe fail. The price: of the vector registers only the SSE
// part survives a page fault, so nothing in the guest may use AVX. The only
// user there is glibc's string functions, which noVectors turns off.
func HelperMain() {
	if os.Getenv(helperEnv) == "" {
		return
	}
	err := runUML(os.Args[1:])
	fmt.Fprintln(os.Stderr, "interop helper:", err)
	os.Exit(127)
}

// runUML is the first process of a PID namespace, and stays: a kernel that
// panics kills its own process group and then itself, which the first process
// of a namespace cannot do. When it is killed, all of the namespace goes.
func runUML(argv []string) error {
	runtime.LockOSThread() // the filter belongs to this thread, which forks
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("parent-death signal: %w", err)
	}
	if err := refuseXstate(); err != nil {
		return err
	}
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, helperEnv+"=") {
			env = append(env, e)
		}
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd.Run()
}

// refuseXstate makes ptrace(PTRACE_GETREGSET or SETREGSET, pid, NT_X86_XSTATE)
// fail with EINVAL in this thread and whatever it becomes.
func refuseXstate() error {
	const (
		ldWord   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		jumpEq   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ret      = unix.BPF_RET | unix.BPF_K
		nrAt     = 0  // seccomp_data.nr
		arg2At   = 32 // seccomp_data.args[2], low word
		xstate   = 0x202
		allow    = 0x7fff0000
		errnoRet = 0x00050000
	)
	prog := []unix.SockFilter{
		{Code: ldWord, K: nrAt},
		{Code: jumpEq, K: unix.SYS_PTRACE, Jf: 3},
		// No other request of the kernel has this number as its address.
		{Code: ldWord, K: arg2At},
		{Code: jumpEq, K: xstate, Jf: 1},
		{Code: ret, K: errnoRet | uint32(unix.EINVAL)},
		{Code: ret, K: allow},
	}
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(prog)
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return nil
}
