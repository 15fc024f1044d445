package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Environment of a process in a role.
const (
	envRole = "RDSD_BENCH_ROLE"
	envArgs = "RDSD_BENCH_ARGS"
)

// args is what a role may be told. Each uses a few of them.
type args struct {
	Bytes     int           // payload of a datagram
	Batch     int           // datagrams published at once
	Core      int           // 1 + processor to be pinned to; 0: none
	Spin      time.Duration // yield so long before parking
	Blocking  bool          // sleep in the system call, never spin
	First     bool          // of two ends: the one that begins
	Chunk     int           // bytes of one write
	Target    string        // daemon, or peer
	Program   string        // path of rdsd
	Local     string        // address and port of a socket
	Dst       []string      // destinations
	FrontEnd  string        // grpc or rings
	Calls     string        // of the SDK: "" the fastest, "one" Send and Recv, "batch" SendBatch and RecvBatch
	Senders   int           // goroutines that send
	Sender    int           // number of the first of them, where several processes send
	Pause     time.Duration // between two round trips
	Sockets   int           // sockets to read
	Stopped   bool          // the first socket is not read; a sender stops after one round
	Unsigned  bool          // payloads bear no number
	Mixed     bool          // payloads have from Bytes/16 to Bytes, drawn
	Buffer    int           // send and receive buffer of a socket, bytes; 0: a default
	Port      int           // of RDS over TCP
	MTU       int           // of RoCEv2, bytes of a packet; 0: what the interface allows
	NoGSO     bool          // packets are not cut by the kernel
	Loss      float64       // share of what arrives by RoCEv2 that is lost
	LossOf    string        // lossMessage or lossPacket
	For       time.Duration // after which the process ends by itself
	Collector bool          // leave the garbage collector on
}

// role is a process of the benchmark from its own side.
type role struct {
	args
	board *board
}

// file is the i-th file that the harness passed; its descriptor.
func (r *role) fd(i int) int { return firstFile + i }

const (
	boardFile = 3
	firstFile = 4
)

var roles = map[string]func(*role) error{}

// register is for package variables: it makes a role known before TestMain.
func register(name string, f func(*role) error) string {
	roles[name] = f
	return name
}

func TestMain(m *testing.M) {
	if name := os.Getenv(envRole); name != "" {
		os.Exit(runRole(name))
	}
	os.Exit(m.Run())
}

func runRole(name string) int {
	r := &role{}
	if err := json.Unmarshal([]byte(os.Getenv(envArgs)), &r.args); err != nil {
		fmt.Fprintf(os.Stderr, "%s: arguments: %v\n", name, err)
		return 2
	}
	time.AfterFunc(r.For, func() {
		fmt.Fprintf(os.Stderr, "%s: still running after %v\n", name, r.For)
		os.Exit(3)
	})
	var err error
	if r.board, err = mapBoard(os.NewFile(boardFile, "board")); err != nil {
		fmt.Fprintf(os.Stderr, "%s: board: %v\n", name, err)
		return 2
	}
	if !r.Collector {
		debug.SetGCPercent(-1)
	}
	// A locked thread that comes back from a blocking call must find a P free,
	// however few processors there are.
	runtime.GOMAXPROCS(max(4, runtime.NumCPU()))
	f := roles[name]
	if f == nil {
		fmt.Fprintf(os.Stderr, "no role %q\n", name)
		return 2
	}
	if err := f(r); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 1
	}
	return 0
}

// lockThread gives the calling goroutine a thread of its own, pinned where the
// harness said so.
func (r *role) lockThread() error {
	runtime.LockOSThread()
	if r.Core == 0 {
		return nil
	}
	var set unix.CPUSet
	set.Set((r.Core - 1) % runtime.NumCPU())
	return os.NewSyscallError("sched_setaffinity", unix.SchedSetaffinity(0, &set))
}

// --- waiting ---------------------------------------------------------------------

// idler says when a loop that finds nothing to do shall sleep. It yields the
// processor meanwhile: whoever could give it work may be waiting for it.
type idler struct {
	budget time.Duration
	since  time.Time
}

// busy is called when there was something to do.
func (i *idler) busy() { i.since = time.Time{} }

// idle is called when there was nothing. It returns true when it is time to sleep.
func (i *idler) idle() bool {
	now := time.Now()
	if i.since.IsZero() {
		i.since = now
	} else if now.Sub(i.since) >= i.budget {
		return true
	}
	yield()
	return false
}

// yield does not block, so it keeps its P.
func yield() { syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) }
