package bench

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// What sending to many peers in turn costs a program that does nothing else: one
// thread that writes so many bytes to each of its connections in turn, and one
// that reads them all. No rings, no frames, no acknowledgements.

var (
	roleSpreadTCP = register("TCP sender to many", runSpreadTCP)
	roleGatherTCP = register("TCP receiver from many", runGatherTCP)
)

// spreadTCP measures payloads of 64 B that go in writes of chunk bytes to each of
// so many connections in turn.
func spreadTCP(conns, chunk int) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		port, err := freePort()
		if err != nil {
			return sample{}, err
		}
		a := args{Bytes: 64, Chunk: chunk, Sockets: conns, Target: fmt.Sprint("127.0.0.1:", port)}
		in, err := w.role(roleGatherTCP, a)
		if err != nil {
			return sample{}, err
		}
		if err := w.ready(in); err != nil {
			return sample{}, err
		}
		if _, err := w.role(roleSpreadTCP, a); err != nil {
			return sample{}, err
		}
		if err := w.until("every connection is made", func() bool { return in.board.load(wordOthers) == uint64(conns) }); err != nil {
			return sample{}, err
		}
		return w.window(in, wordCount, d)
	}
}

func runSpreadTCP(r *role) error {
	if err := r.lockThread(); err != nil {
		return err
	}
	moreFiles()
	addr := netip.MustParseAddrPort(r.Target)
	fds, left := make([]int, r.Sockets), make([]int, r.Sockets)
	for i := range fds {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		congestion(fd)
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())}); err != nil {
			return os.NewSyscallError("connect", err)
		}
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		fds[i] = fd
	}
	out := make([]byte, r.Chunk)
	idle := idler{budget: spinFor}
	for {
		worked := false
		for i, fd := range fds {
			if left[i] == 0 {
				left[i] = len(out)
			}
			n, err := send(fd, out[:left[i]])
			if err != nil {
				return err
			}
			if n > 0 {
				left[i] -= n
				worked = true
			}
		}
		if worked {
			idle.busy()
		} else if idle.idle() {
			poll([]unix.PollFd{{Fd: int32(fds[0]), Events: unix.POLLOUT}})
		}
	}
}

func runGatherTCP(r *role) error {
	if err := r.lockThread(); err != nil {
		return err
	}
	moreFiles()
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create", err)
	}
	l, err := net.Listen("tcp4", r.Target)
	if err != nil {
		return err
	}
	r.board.set(wordReady, 1)
	for range r.Sockets {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		f, err := blockingFile(c, 0)
		c.Close() // or the net poller would be woken by every segment
		if err != nil {
			return err
		}
		files = append(files, f)
		ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(f.Fd())}
		if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, int(f.Fd()), &ev); err != nil {
			return os.NewSyscallError("epoll_ctl", err)
		}
		r.board.add(wordOthers, 1)
	}
	evs, buf := make([]unix.EpollEvent, 256), make([]byte, 256<<10)
	idle := idler{budget: spinFor}
	for bytes, wait := uint64(0), 0; ; {
		n, err := unix.EpollWait(epoll, evs, wait)
		if err != nil && err != unix.EINTR {
			return os.NewSyscallError("epoll_wait", err)
		}
		wait = 0
		for _, ev := range evs[:max(n, 0)] {
			m, err := recv(int(ev.Fd), buf)
			if err != nil {
				return err
			}
			bytes += uint64(max(m, 0))
		}
		r.board.set(wordCount, bytes/uint64(r.Bytes))
		if n > 0 {
			idle.busy()
		} else if idle.idle() {
			wait = 2
			idle.busy()
		}
	}
}

// files keeps connections open.
var files []*os.File

// moreFiles lifts the limit of open files as far as it goes.
func moreFiles() {
	lim := unix.Rlimit{Cur: 1 << 16, Max: 1 << 16}
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &lim) != nil {
		unix.Getrlimit(unix.RLIMIT_NOFILE, &lim)
		lim.Cur = lim.Max
		unix.Setrlimit(unix.RLIMIT_NOFILE, &lim)
	}
}
