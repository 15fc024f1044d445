package kernelnbd

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
)

const (
	serverEnv = "RDSD_NBD_SERVER" // names the file to serve
	serverFd  = 3                 // a Unix socket: a byte from us when we have started, a connection of the kernel's for us
)

// serverMain runs a process that serves one connection of the kernel, if this is one.
func serverMain() {
	path := os.Getenv(serverEnv)
	if path == "" {
		return
	}
	if err := serveFile(path); err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serveFile(path string) error {
	srv, err := nbd.NewServer(nbd.Options{})
	if err != nil {
		return err
	}
	nc, err := handedOver()
	if err != nil {
		return err
	}
	dev, err := blk.OpenFile(path, blk.FileOptions{})
	if err != nil {
		return err
	}
	if err := srv.Add(nbd.Export{Device: dev}); err != nil {
		return err
	}
	return srv.ServeKernel(nc, "")
}

// handedOver says that this process has started and waits for its connection.
func handedOver() (net.Conn, error) {
	if _, err := unix.Write(serverFd, []byte{1}); err != nil {
		return nil, err
	}
	b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(serverFd, b, oob, 0)
	if err != nil || n == 0 {
		return nil, fmt.Errorf("no connection: %d bytes, %w", n, err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(msgs) == 0 {
		return nil, fmt.Errorf("no connection: %d messages, %w", len(msgs), err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return nil, err
	}
	return net.FileConn(os.NewFile(uintptr(fds[0]), "kernel"))
}

// server is a process that has started and touches nothing until it is handed a
// connection: what the kernel sends on that has a second or two to be answered,
// a process may take as long to start.
type server struct {
	t   *testing.T
	cmd *exec.Cmd
	us  *os.File
}

func startServer(t *testing.T, path string) *server {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, us: os.NewFile(uintptr(pair[0]), "server"), cmd: exec.Command("/proc/self/exe")}
	theirs := os.NewFile(uintptr(pair[1]), "test")
	defer theirs.Close()
	s.cmd.Env = append(os.Environ(), serverEnv+"="+path)
	s.cmd.ExtraFiles = []*os.File{theirs} // serverFd
	s.cmd.Stderr = os.Stdout
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s.us, make([]byte, 1)); err != nil {
		t.Fatalf("the server did not start: %v", err)
	}
	return s
}

// hand gives it a connection of the kernel's.
func (s *server) hand(ours net.Conn) {
	s.t.Helper()
	defer ours.Close()
	f, err := ours.(*net.UnixConn).File()
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Sendmsg(int(s.us.Fd()), []byte{1}, unix.UnixRights(int(f.Fd())), nil, 0); err != nil {
		s.t.Fatal(err)
	}
}

// kill returns when nothing of the process can reach the file any more.
func (s *server) kill() {
	s.cmd.Process.Kill()
	s.cmd.Wait()
	s.us.Close()
}

// TestKilled: the process that serves the disk is killed under traffic, and
// another one goes on with the same file.
func TestKilled(t *testing.T) {
	guest(t, func(t *testing.T) {
		path := emptyFile(t, 32<<20)
		dev, err := blk.OpenFile(path, blk.FileOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		d := attach(t, dev, 1, func(a *nbd.Attach) { a.Timeout = 2 * time.Second })
		d.cut()
		now := startServer(t, path)
		now.hand(d.renewed())
		defer func() { now.kill() }()
		d.mkfs("-b", "4096")
		dir, unmount := d.mount("")
		p := startTraffic(t, dir, 3, 0)
		d.interrupt(p, func() {
			next := startServer(t, path)
			now.kill()
			now = next
			now.hand(d.renewed())
		})
		r := p.wait()
		unmount()
		d.fsck()
		dir, unmount = d.mount("")
		r.verify(t, dir)
		unmount()
	})
}
