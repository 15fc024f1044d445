package node

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/slowclose"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/shm"
)

// reactorCalls are the system calls that a reactor's thread may make
// (docs/architecture.md, "What a reactor may ask of the kernel"), each with
// what its arguments must have where the name alone does not say that it returns
// at once. The arguments are as strace -yy writes them, with what a descriptor is.
var reactorCalls = map[string]*regexp.Regexp{
	// The loop itself. epoll_pwait2 is where a reactor sleeps.
	"epoll_pwait":     regexp.MustCompile(`, 0, NULL, \d+$`),
	"epoll_pwait2":    nil,
	"epoll_ctl":       nil,
	"sched_yield":     nil,
	"timerfd_settime": nil,

	// Links: each call is told not to block, or its socket is ours alone and
	// non-blocking from its first moment.
	"sendto":     regexp.MustCompile(`^\d+<(TCP|TCPv6|UNIX|UNIX-STREAM):.*MSG_DONTWAIT`),
	"recvfrom":   regexp.MustCompile(`^\d+<(TCP|TCPv6|UNIX-STREAM):.*MSG_DONTWAIT`),
	"writev":     regexp.MustCompile(`^\d+<(TCP|TCPv6|UNIX-STREAM):`), // of a volume's client as well
	"readv":      regexp.MustCompile(`^\d+<(TCP|TCPv6|UNIX-STREAM):`), // likewise, where the kernel refuses descriptors or a look has found none
	"shutdown":   regexp.MustCompile(`^\d+<(TCP|TCPv6|UNIX|UNIX-SEQPACKET):`),
	"getsockopt": regexp.MustCompile(`^\d+<(TCP|TCPv6):`),
	"setsockopt": regexp.MustCompile(`^\d+<(TCP|TCPv6):`),
	"ioctl":      regexp.MustCompile(`^\d+<(TCP|TCPv6):.*(FIONREAD|SIOCINQ|SIOCOUTQ|TIOCOUTQ)`), // the last two are one number
	// RoCE devices: their sockets are ours alone, and what a call does is bounded by what it
	// carries.
	"sendmmsg": regexp.MustCompile(`^\d+<(UDP|UDPv6):.*MSG_DONTWAIT`),
	"recvmmsg": regexp.MustCompile(`^\d+<(UDP|UDPv6):.*MSG_DONTWAIT`),
	// Their numbers and keys, of crypto/rand: it waits for nothing once the machine has started.
	"getrandom": nil,
	// How long the thread itself worked for a call that took long by the clock: internal/toll.
	"clock_gettime": regexp.MustCompile(`^CLOCK_THREAD_CPUTIME_ID`),
	// A link's socket has no SO_LINGER but the one of 0 seconds, which resets, and
	// its description is Nobody else's.
	"close": regexp.MustCompile(`^\d+<(TCP|TCPv6):`),

	// Control connections and doorbells. Descriptors are never received: no control buffer, and
	// what brings some is only looked at; of a doorbell as much is taken as was looked at. Of a call that
	// received nothing strace does not write more than msg_namelen.
	"recvmsg": regexp.MustCompile(`^\d+<(UNIX(-SEQPACKET)?:.*(msg_controllen=0|\{msg_namelen=\d+\}).*MSG_DONTWAIT|UNIX-STREAM:.*(msg_controllen=0|\{msg_namelen=\d+\}).*MSG_PEEK\|MSG_DONTWAIT)`),
	"sendmsg": regexp.MustCompile(`^\d+<UNIX(-SEQPACKET)?:.*MSG_DONTWAIT`),

	// Wake-ups of other threads of ours: eventfds that no client has.
	"write": regexp.MustCompile(`^\d+<anon_inode:\[eventfd(:\d+)?\]>, .*, 8$`),

	// Whether a client's page is in memory; it waits for no file (mm/mincore.c).
	"mincore": nil,

	// Stores of volumes: only what answers EAGAIN instead of waiting, and pages of a file
	// system in memory that mincore has seen there. No call that writes: blk/linger.go.
	"preadv2": regexp.MustCompile(`RWF_NOWAIT|^\d+</dev/shm/`),

	// The Go runtime: locks, other threads, memory without a file behind it.
	"futex":           nil,
	"nanosleep":       nil,
	"tgkill":          nil,
	"getpid":          nil,
	"gettid":          nil,
	"clone":           nil,
	"clone3":          nil,
	"rt_sigprocmask":  nil,
	"rt_sigreturn":    nil,
	"sigaltstack":     nil,
	"restart_syscall": nil,
	"madvise":         nil,
	"mmap":            regexp.MustCompile(`MAP_ANONYMOUS`),
	"prctl":           regexp.MustCompile(`PR_SET_(NAME|VMA)`),
}

// TestReactorCalls: while hostile clients and strangers come and go, a reactor's thread
// makes no system call that is not on the list.
func TestReactorCalls(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("strace and root are needed")
	}
	volumes := freePort(t)
	n, cfg := startWith(t, func(c *config.Config) {
		c.Reactor.CPUs = []int{0} // so that it keeps its thread
		c.RDS.Addresses = []netip.Addr{loopbackAddr()}
		c.Volumes.Port, c.Volumes.Name, c.Volumes.RDMA = volumes, "traced", config.RDMASoft
	})
	tid := threadOf(n.hosts.NextWorker())
	other := testConfig(t)
	other.RDS.Addresses, other.RDS.Port = []netip.Addr{loopbackAddr()}, cfg.RDS.Port
	other.Volumes.Port, other.Volumes.Name, other.Volumes.RDMA = volumes, "other", config.RDMASoft
	second, err := New(other, nil)
	if err != nil {
		t.Fatal(err)
	}
	stopSecond := startNode(t, second)

	out := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command(strace, "-yy", "-s", "0", "-o", out, "-p", tid)
	errs, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(errs).ReadString('\n')
	if err != nil || !strings.Contains(line, "attached") {
		cmd.Process.Kill()
		cmd.Wait()
		t.Skipf("strace cannot attach: %s %v", line, err)
	}
	hostileThings(t, n, cfg, other)
	for _, transport := range []string{rdsd.TransportTCP, rdsd.TransportIB} {
		volumeThings(t, cfg, other, t.TempDir(), transport)
		volumeThings(t, other, cfg, t.TempDir(), transport)
	}
	memory, err := os.MkdirTemp("/dev/shm", "rdsd")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(memory)
	volumeThings(t, other, cfg, memory, rdsd.TransportTCP)
	stopSecond()
	time.Sleep(100 * time.Millisecond) // its links are closed
	cmd.Process.Signal(unix.SIGINT)
	cmd.Wait()

	trace, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	seen, bad := map[string]int{}, map[string]int{}
	for l := range strings.Lines(string(trace)) {
		name, ok := judge(l)
		seen[name]++
		if ok {
			continue
		}
		if bad[name]++; bad[name] < 5 && !raceDetector {
			t.Errorf("not on the list: %s", strings.TrimSpace(l))
		}
	}
	for _, name := range []string{"epoll_ctl", "recvmsg", "sendmsg", "sendto", "shutdown", "preadv2", "readv", "writev", "sendmmsg", "recvmmsg"} {
		if seen[name] == 0 {
			t.Errorf("no %s was seen: the trace shows too little (%v)", name, seen)
		}
	}
	t.Log(seen)
}

var tracedCall = regexp.MustCompile(`^([a-z0-9_]+)\((.*)\)\s+= `)

// judge tells which call a line of a trace is about, and whether it is on the list. It
// may be about none: a signal, the end, a call that the end has cut.
func judge(line string) (name string, ok bool) {
	m := tracedCall.FindStringSubmatch(line)
	if m == nil {
		return "", true
	}
	rule, ok := reactorCalls[m[1]]
	return m[1], ok && (rule == nil || rule.MatchString(m[2]))
}

// TestReactorCallsJudged: the list tells what may block from what may not.
func TestReactorCallsJudged(t *testing.T) {
	for line, want := range map[string]bool{
		`sched_yield() = 0`: true,
		`epoll_pwait(5<anon_inode:[eventpoll]>, [], 64, 0, NULL, 0) = 0`:                                                                                             true,
		`epoll_pwait(5<anon_inode:[eventpoll]>, [], 64, -1, NULL, 0) = 0`:                                                                                            false,
		`sendto(9<TCP:[127.0.0.1:7->127.0.0.1:8]>, ""..., 10, MSG_DONTWAIT|MSG_NOSIGNAL, NULL, 0) = 10`:                                                              true,
		`sendto(9<UNIX-STREAM:[1->2]>, ""..., 1, MSG_NOSIGNAL, NULL, 0) = 1`:                                                                                         false,
		`recvmsg(9<UNIX:[1->2]>, {msg_name=NULL, msg_namelen=0, msg_iov=[...], msg_iovlen=1, msg_controllen=0, msg_flags=0}, MSG_PEEK|MSG_DONTWAIT) = 0`:             true,
		`recvmsg(9<UNIX:[1->2]>, {msg_name=NULL, msg_namelen=0, msg_iov=[...], msg_iovlen=1, msg_control=[...], msg_controllen=24, msg_flags=0}, MSG_DONTWAIT) = 10`: false,
		`recvmsg(9<UNIX:[1->2]>, {msg_name=NULL, msg_namelen=0, msg_iov=[...], msg_iovlen=1, msg_controllen=0, msg_flags=0}, 0) = 0`:                                 false,
		`recvmsg(9<UNIX:[1->2]>, {msg_namelen=112}, MSG_PEEK|MSG_DONTWAIT) = -1 EAGAIN (Resource temporarily unavailable)`:                                           true,
		`sendmmsg(9<UDP:[127.0.0.2:4791]>, [{msg_hdr={msg_name={...}, msg_flags=0}, msg_len=20}], 1, MSG_DONTWAIT|MSG_NOSIGNAL) = 1`:                                 true,
		`recvmmsg(9<UDP:[127.0.0.2:4791]>, 0xc0001, 16, MSG_DONTWAIT, NULL) = -1 EAGAIN (Resource temporarily unavailable)`:                                          true,
		`recvmmsg(9<UDP:[127.0.0.2:4791]>, 0xc0001, 16, 0, NULL) = 1`:                                                                                                false,
		`recvmmsg(9<UNIX:[1->2]>, 0xc0001, 16, MSG_DONTWAIT, NULL) = 1`:                                                                                              false,
		`munmap(0x7f0000000000, 16777216) = 0`:                                                                                                                       false,
		`close(9</memfd:rdsd-ring (deleted)>) = 0`:                                                                                                                   false,
		`close(9<UNIX:[1->2]>) = 0`:                                                                   false,
		`close(9<TCP:[127.0.0.1:7->127.0.0.1:8]>) = 0`:                                                true,
		`readv(9<UNIX-STREAM:[1->2]>, [...], 1) = 28`:                                                 true,
		`readv(9</disk>, [...], 1) = 512`:                                                             false,
		`read(9<anon_inode:[eventfd]>, "", 8) = 8`:                                                    false,
		`write(2</var/log/rdsd>, "", 80) = 80`:                                                        false,
		`write(9<anon_inode:[eventfd]>, "", 8) = 8`:                                                   true,
		`fallocate(9</run/rdsd/rdsd.sock.ledger>, FALLOC_FL_KEEP_SIZE, 4096, 4096) = 0`:               false,
		`pwritev2(9</disk>, [], 1, 0, RWF_NOWAIT) = 512`:                                              false,
		`pwritev2(9</disk>, [], 1, 0, 0) = 512`:                                                       false,
		`preadv2(9</disk>, [], 1, 0, 0) = 512`:                                                        false,
		`preadv2(9</dev/shm/disk>, [], 1, 0, 0) = 512`:                                                true,
		`pwrite64(9</disk>, "", 512, 0) = 512`:                                                        false,
		`mmap(NULL, 4096, PROT_READ, MAP_SHARED, 9</memfd:rdsd-ring (deleted)>, 0) = 0x7f0000000000`:  false,
		`mmap(NULL, 262144, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000000000`: true,
		`--- SIGURG {si_signo=SIGURG, si_code=SI_TKILL, si_pid=1, si_uid=0} ---`:                      true,
	} {
		if _, ok := judge(line); ok != want {
			t.Errorf("%s: on the list: %v", line, ok)
		}
	}
}

// threadOf is the thread of a reactor, asked on it: those of nodes before may still
// be there under the same name, and numbers of threads begin anew after pid_max.
func threadOf(w *datagram.Worker) string {
	tid := make(chan int, 1)
	w.Do(func() { tid <- unix.Gettid() })
	return strconv.Itoa(<-tid)
}

// hostileThings is what should hold up Nobody.
func hostileThings(t *testing.T, n *Node, cfg, other *config.Config) {
	addr := cfg.RDS.Addresses[0]
	client, err := rdsd.Dial(cfg.API.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	far, err := rdsd.Dial(other.API.Socket, rdsd.WithFrontEnd(rdsd.Rings))
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	a, err := client.Bind(ctx, netip.AddrPortFrom(addr, 0))
	if err != nil {
		t.Fatal(err)
	}
	b, err := far.Bind(ctx, netip.AddrPortFrom(other.RDS.Addresses[0], 0))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 { // to a peer and back, small and large
		p := make([]byte, (i%5)*50_000+10)
		if err := a.Send(ctx, b.LocalAddr(), p); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Recv(ctx); err != nil {
			t.Fatal(err)
		}
		if err := b.Send(ctx, a.LocalAddr(), p); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Recv(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10 {
		r := clienttest.AttachRing(t, cfg, bindTo(addr, 0))
		var tag uint64
		r.Post(t, clienttest.Nobody, 900, 1, &tag) // the ledger grows for these
		r.Post(t, b.LocalAddr(), 20, 1000, &tag)
		r.Ask(t, clienttest.CancelOf(1, clienttest.Nobody))
		r.Ask(t, clienttest.FlushOf(2, time.Millisecond))
		_ = unix.SetNonblock(r.Bell, false)
		_ = unix.SetNonblock(r.Ear, false)
		*r.Word(5248) = uint64(shm.ClientWaitsRecv | shm.ClientWaitsEvent)
		if i%2 == 0 {
			*r.Word(4096) = 1 << 40 // hostile
			shm.Ring(r.Bell)
		} else {
			r.Answer(t)
		}
		r.Close()
	}
	c := clienttest.ConnectAs(t, n.clients.Accept, config.Identity{UID: 777})
	c.SetDeadline(time.Now().Add(10 * time.Second))
	r := clienttest.AttachOver(t, c, bindTo(addr, 0))
	fd, gate := slowclose.Socket(t)
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(sock uintptr) {
		err = unix.Sendmsg(int(sock), []byte{1, 0, 0, 0, 0x1a, 0}, unix.UnixRights(fd), nil, 0)
	})
	if err != nil {
		t.Fatal(err)
	}
	go unix.Close(fd)
	await.Until(t, 5*time.Second, "the client is thrown out", func() bool { return n.clients.Budget().Used <= 1 })
	gate.Close()
	r.Close()
	for i := range 10 { // strangers
		s, err := net.Dial("tcp", fmt.Sprintf("%v:%d", addr, cfg.RDS.Port))
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			s.Write(bytes.Repeat([]byte{0x55}, 5000))
		}
		s.Close()
	}
	if err := a.Send(ctx, b.LocalAddr(), []byte("still there")); err != nil {
		t.Error(err)
	}
	if _, err := b.Recv(ctx); err != nil {
		t.Error(err)
	}
}

// volumeThings has one node use a volume of the other, which lies in a file: reads and
// writes of all sizes side by side, flushes, trims, a reader that leaves in the middle,
// another size, and the mapping's end under way.
func volumeThings(t *testing.T, at, from *config.Config, dir, transport string) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	client, err := rdsd.Dial(at.API.Socket)
	must("dial", err)
	defer client.Close()
	server, err := rdsd.Dial(from.API.Socket)
	must("dial", err)
	defer server.Close()
	const size = 4 << 20
	_, err = server.Volumes().Export(ctx, rdsd.ExportSpec{Name: "disk", Path: filepath.Join(dir, "disk"), Create: true, Size: size})
	must("export", err)
	to := from.RDS.Addresses[0].String()
	m, err := client.Volumes().Map(ctx, rdsd.MapSpec{Node: to, Name: "disk", Attach: rdsd.AttachSocket, Paths: []rdsd.PathSpec{{Dst: to, Transport: transport}}})
	must("map", err)
	dev, err := nbd.DialURI(ctx, m.URI)
	must("attach", err)
	var work sync.WaitGroup
	for w := range 4 {
		work.Go(func() {
			p := make([]byte, 256<<10)
			for i := range 50 {
				b := p[:[]int{512, 4096, 100 << 10, 256 << 10}[(i+w)%4]]
				off := int64(w) << 20
				if _, err := dev.WriteAt(b, off); err != nil {
					t.Errorf("write: %v", err)
				}
				if _, err := dev.ReadAt(b, off); err != nil {
					t.Errorf("read: %v", err)
				}
				if i%10 == 0 {
					if err := dev.Flush(); err != nil {
						t.Errorf("flush: %v", err)
					}
				}
			}
		})
	}
	work.Wait()
	leaver, err := nbd.DialURI(ctx, m.URI)
	must("attach again", err)
	go leaver.ReadAt(make([]byte, 1<<20), 0)
	leaver.Close()
	_, err = server.Volumes().ResizeExport(ctx, "disk", 2*size)
	must("resize", err)
	dev.Close()
	must("unmap", client.Volumes().Unmap(ctx, m.ID, true))
	must("unexport", server.Volumes().Unexport(ctx, "disk", true))
}
