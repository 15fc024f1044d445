package reactor

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setThread names and binds the calling thread.
func setThread(o Options) error {
	if o.Name != "" {
		setName(o.Name)
	}
	if o.CPU < 0 {
		return nil
	}
	var set unix.CPUSet
	set.Set(o.CPU)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("reactor: cannot run on CPU %d: %w (this process may use %s)", o.CPU, err, allowed())
	}
	return nil
}

// setName names the calling thread, for whoever looks at it: where a filter of system calls refuses that it has
// the process's name, and works.
func setName(s string) {
	name := append([]byte(s), 0)
	_ = prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0)
}

// prctl stands for unix.Prctl in tests of filters that refuse it.
var prctl = unix.Prctl

// processName is the name of threads without one of their own.
var processName = func() string {
	b, _ := os.ReadFile("/proc/self/comm")
	return strings.TrimSpace(string(b))
}()

// allowed lists the processors this process may use.
func allowed() string {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(os.Getpid(), &set); err != nil {
		return "unknown ones"
	}
	var l []int
	for i := range 8 * int(unsafe.Sizeof(set)) {
		if set.IsSet(i) {
			l = append(l, i)
		}
	}
	return fmt.Sprint(l)
}
