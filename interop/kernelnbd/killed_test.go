package kernelnbd

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
)

const (
	serverEnv = "RDSD_NBD_SERVER" // names the file to serve
	serverFd  = 3
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
	nc, err := net.FileConn(os.NewFile(serverFd, "kernel"))
	if err != nil {
		return err
	}
	dev, err := blk.OpenFile(path, blk.FileOptions{})
	if err != nil {
		return err
	}
	srv, err := nbd.NewServer(nbd.Options{})
	if err != nil {
		return err
	}
	if err := srv.Add(nbd.Export{Device: dev}); err != nil {
		return err
	}
	return srv.ServeKernel(nc, "")
}

// startServer hands a connection of the kernel's to a process that serves path.
func startServer(t *testing.T, path string, ours net.Conn) *exec.Cmd {
	t.Helper()
	f, err := ours.(*net.UnixConn).File()
	ours.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), serverEnv+"="+path)
	cmd.ExtraFiles = []*os.File{f} // serverFd
	cmd.Stderr = os.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
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
		d := attach(t, dev, 1, quick)
		d.cut()
		server := startServer(t, path, d.renewed())
		defer func() {
			server.Process.Kill()
			server.Wait()
		}()
		d.mkfs("-b", "4096")
		dir, unmount := d.mount("")
		p := startTraffic(t, dir, 3, 0)
		d.interrupt(p, func() {
			server.Process.Kill()
			server.Wait() // nothing of its can reach the file any more
			server = startServer(t, path, d.renewed())
		})
		r := p.wait()
		unmount()
		d.fsck()
		dir, unmount = d.mount("")
		r.verify(t, dir)
		unmount()
	})
}
