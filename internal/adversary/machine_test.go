package adversary

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// usage is how long processors were used, by all and by processes of the run.
type usage struct {
	at   time.Time
	all  time.Duration
	ours time.Duration
}

// tick is the unit of /proc/stat and /proc/PID/stat (sysconf(3), _SC_CLK_TCK).
const tick = 10 * time.Millisecond

// usageOf reads what was used until now by the machine and by the processes.
func usageOf(pids ...int) (u usage) {
	u.at = time.Now()
	b, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(line) {
		// Without idle and iowait, and without interrupts: a loopback connection's work is
		// done in them, and nobody is charged with it.
		if n, _ := strconv.Atoi(f); i > 0 && i < 9 && (i < 4 || i == 8) {
			u.all += time.Duration(n) * tick
		}
	}
	for _, pid := range pids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, rest, _ := strings.Cut(string(b), ") ")
		f := strings.Fields(rest)
		for i := 11; i < 15 && i < len(f); i++ { // user, system, and both of children that have ended
			n, _ := strconv.Atoi(f[i])
			u.ours += time.Duration(n) * tick
		}
	}
	return u
}

// others is how many processors others have used since before.
func (u usage) others(before usage) float64 {
	return max(0, (u.all-before.all-u.ours+before.ours).Seconds()/u.at.Sub(before.at).Seconds())
}

// niceness of the daemons, the victims and the canary: whatever else runs on
// this machine, the adversary among it, has a small part of their weight. What
// is measured is then what daemons do for and to each other's clients.
const niceness = -15

// startNice starts a process with niceness, which belongs to threads: the one
// that forks has it meanwhile.
func startNice(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, niceness); err != nil {
		return err
	}
	defer unix.Setpriority(unix.PRIO_PROCESS, 0, 0)
	return cmd.Start()
}
