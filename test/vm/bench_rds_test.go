package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// RDS over TCP: a datagram there and a short answer back, a pair, between two kernels, between
// a kernel and rdsd, and between two rdsd. Each end is a plain program, this one in a process
// of its own: over the kernel's sockets one system call for a datagram, over rdsd's the
// ordinary calls.

// pairsEnv is set in a process that is an end, to its pairsSpec.
const pairsEnv = "RDSD_VM_PAIRS"

const (
	pairsPort   = 5000
	answerBytes = 64
	socketBytes = 4 << 20 // of either buffer
)

// pairsSpec says what an end does.
type pairsSpec struct {
	Socket        string // of the daemon; "": the kernel's sockets
	Local, Remote netip.AddrPort
	Size          int           // bytes of a datagram that is answered
	Depth         int           // so many are under way; 0: it answers
	For           time.Duration // how long is measured
}

// pairsMain is an end if this process is to be one.
func pairsMain() {
	raw := os.Getenv(pairsEnv)
	if raw == "" {
		return
	}
	var s pairsSpec
	err := json.Unmarshal([]byte(raw), &s)
	if err == nil {
		err = s.run()
	}
	if err != nil {
		fmt.Println("pairs:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// dgrams is one end's socket.
type dgrams interface {
	send(b []byte) error
	recv(b []byte) (int, error)
}

func (s *pairsSpec) run() error {
	sock, err := s.open()
	if err != nil {
		return err
	}
	fmt.Println("pairs: ready")
	buf := make([]byte, max(s.Size, answerBytes))
	if s.Depth == 0 {
		answer := make([]byte, answerBytes)
		for {
			if n, err := sock.recv(buf); err != nil || n != s.Size {
				return errors.Join(err, fmt.Errorf("%d bytes instead of %d", n, s.Size))
			}
			if err := sock.send(answer); err != nil {
				return err
			}
		}
	}
	question := make([]byte, s.Size)
	for range s.Depth {
		if err := sock.send(question); err != nil {
			return err
		}
	}
	// The first fifth is not measured: connections are made, and buffers are new.
	for n, begun, measured := 0, time.Now(), false; ; n++ {
		if got, err := sock.recv(buf); err != nil || got != answerBytes {
			return errors.Join(err, fmt.Errorf("an answer of %d bytes", got))
		}
		// A look at the clock is cheap beside a pair.
		switch took := time.Since(begun); {
		case !measured && took > s.For/5 && n >= s.Depth:
			n, begun, measured = 0, time.Now(), true
		case measured && took >= s.For && n > 0:
			fmt.Printf("pairs: %g a second\n", float64(n)/took.Seconds())
			return nil
		}
		if err := sock.send(question); err != nil {
			return err
		}
	}
}

func (s *pairsSpec) open() (dgrams, error) {
	if s.Socket == "" {
		return openKernel(s.Local, s.Remote)
	}
	ctx := context.Background()
	c, err := rdsd.Dial(s.Socket)
	if err != nil {
		return nil, err
	}
	sock, err := c.Bind(ctx, s.Local, rdsd.WithSendBuffer(socketBytes), rdsd.WithRecvBuffer(socketBytes))
	return daemonSocket{ctx, sock, s.Remote}, err
}

type daemonSocket struct {
	ctx context.Context
	*rdsd.Socket
	to netip.AddrPort
}

func (s daemonSocket) send(b []byte) error { return s.Send(s.ctx, s.to, b) }

func (s daemonSocket) recv(b []byte) (int, error) {
	n, _, err := s.RecvInto(s.ctx, b)
	return n, err
}

// kernelSocket is a socket of the kernel's, and where it sends.
type kernelSocket struct {
	fd int
	to unix.Sockaddr
}

func openKernel(local, remote netip.AddrPort) (s kernelSocket, err error) {
	fd, err := unix.Socket(unix.AF_RDS, unix.SOCK_SEQPACKET, 0)
	if err != nil {
		return s, os.NewSyscallError("socket", err)
	}
	for _, o := range []int{unix.SO_SNDBUFFORCE, unix.SO_RCVBUFFORCE} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o, socketBytes); err != nil {
			return s, os.NewSyscallError("setsockopt", err)
		}
	}
	at := func(a netip.AddrPort) unix.Sockaddr {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return kernelSocket{fd, at(remote)}, os.NewSyscallError("bind", unix.Bind(fd, at(local)))
}

func (s kernelSocket) send(b []byte) error {
	for {
		err := unix.Sendto(s.fd, b, 0, s.to)
		switch err {
		case unix.EINTR:
		case unix.ENOBUFS: // the other's port is congested
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}, 10); err != nil && err != unix.EINTR {
				return err
			}
		default:
			return os.NewSyscallError("sendto", err)
		}
	}
}

func (s kernelSocket) recv(b []byte) (int, error) {
	for {
		n, err := unix.Read(s.fd, b)
		if err != unix.EINTR {
			return n, os.NewSyscallError("read", err)
		}
	}
}

// side is where an end of a pair can be: a namespace with the kernel's RDS or with a daemon.
type side struct {
	ns     string
	addr   netip.Addr
	socket string // of the daemon
}

// pairsRate is how many pairs a second two sides do, the first of which asks.
func pairsRate(t *testing.T, asks, answers side, size, depth int) float64 {
	t.Helper()
	// Both programs are of this test alone: their sockets are gone before the next.
	a, b := netip.AddrPortFrom(asks.addr, pairsPort), netip.AddrPortFrom(answers.addr, pairsPort)
	answer := startPairs(t, answers.ns, pairsSpec{Socket: answers.socket, Local: b, Remote: a, Size: size})
	until(t, "an end is ready", time.Minute, func() bool { return strings.Contains(answer.said(), "ready") })
	ask := startPairs(t, asks.ns, pairsSpec{Socket: asks.socket, Local: a, Remote: b, Size: size, Depth: depth, For: *benchFor})
	select {
	case <-ask.done:
	case <-time.After(time.Minute):
	}
	_, rest, ok := strings.Cut(ask.said(), "ready\npairs: ")
	number, _, _ := strings.Cut(rest, " ")
	v, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil {
		t.Fatalf("%d bytes × %d from %v to %v: %s%s", size, depth, asks, answers, ask.said(), answer.said())
	}
	answer.kill()
	return v
}

func startPairs(t *testing.T, ns string, s pairsSpec) *process {
	t.Helper()
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return start(t, "ip", "netns", "exec", ns, "env", pairsEnv+"="+string(raw), os.Args[0])
}

// TestBenchRDS: pairs a second with a kernel at one end, and with rdsd at both, against a
// kernel at both.
func TestBenchRDS(t *testing.T) {
	needBench(t)
	InCounted(t, benchLimit, func(t *testing.T) {
		kernels, ours := [2]side{}, [2]side{}
		list := map[string]*side{"k1": &kernels[0], "k2": &kernels[1], "o1": &ours[0], "o2": &ours[1]}
		// All are on one bridge.
		ip(t, "link set lo up\nlink add bridge type bridge\nlink set bridge up")
		undo(t, "ip", "link", "delete", "bridge")
		for i, ns := range []string{"k1", "k2", "o1", "o2"} {
			addr := netip.AddrFrom4([4]byte{10, 6, 0, byte(i + 1)})
			*list[ns] = side{ns: ns, addr: addr}
			ip(t, fmt.Sprintf(`
				netns add %[1]s
				-n %[1]s link set lo up
				link add %[1]s type veth peer name eth0 netns %[1]s
				link set %[1]s master bridge up
				-n %[1]s addr add %[2]v/24 dev eth0
				-n %[1]s link set eth0 up`, ns, addr))
			undo(t, "ip", "netns", "delete", ns)
		}
		load(t, "rds_tcp")
		for i := range ours {
			// The kernel listens in every namespace; here rdsd is to.
			run(t, "ip", "netns", "exec", ours[i].ns, "ss", "-K", "-l", "-t", "sport = :16385")
			ours[i].socket = startDaemonIn(t, ours[i].ns, ours[i].addr).socket
		}

		m := &measured{t: t}
		type rowOf struct {
			what       string
			asks, says side
			bar        func(size, depth int) float64
		}
		large := func(size, _ int) float64 {
			if size >= 16<<10 {
				return 0.9
			}
			return 0
		}
		rows := []rowOf{
			{"from a kernel to rdsd", kernels[0], ours[1], large},
			{"from rdsd to a kernel", ours[0], kernels[1], func(int, int) float64 { return 0 }},
			{"from rdsd to rdsd", ours[0], ours[1], func(int, int) float64 { return 1 }},
		}
		shapes := []struct{ size, depth int }{{64, 1}, {64, 16}, {4096, 1}, {4096, 16}, {64 << 10, 1}, {64 << 10, 8}}
		name := func(what string, size, depth int) string { return fmt.Sprintf("%s, %d B × %d", what, size, depth) }
		for _, s := range shapes {
			m.program(name("kernels", s.size, s.depth), func() float64 { return pairsRate(t, kernels[0], kernels[1], s.size, s.depth) })
			for _, r := range rows {
				m.program(name(r.what, s.size, s.depth), func() float64 { return pairsRate(t, r.asks, r.says, s.size, s.depth) })
			}
		}
		m.passes()
		m.heading()
		for _, r := range rows {
			for _, s := range shapes {
				row := fmt.Sprintf("vm-rds-%s-%d-%d", strings.NewReplacer("from ", "", "a ", "", " to ", "-").Replace(r.what), s.size, s.depth)
				m.row(row, fmt.Sprintf("pairs of %d B and %d B back, %d at once, one caller at either end, %s, against kernel to kernel", s.size, answerBytes, s.depth, r.what),
					name(r.what, s.size, s.depth), name("kernels", s.size, s.depth), r.bar(s.size, s.depth))
			}
		}
		m.idleness()
	})
}
