package kernelnbd

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
)

// disk is a volume attached to the kernel, served by this process.
type disk struct {
	t      *testing.T
	srv    *nbd.Server
	attach nbd.Attach // without sockets
	links  []*link
	index  int
	path   string // /dev/nbdN
}

// link is one connection of the kernel's driver, from our side.
type link struct {
	nc    net.Conn
	ended chan struct{}
	err   error // after ended
}

// attach makes a volume a disk of the kernel with so many connections; 0: with
// one that is renewed by itself (ServeDevice). change may set what Attach has
// besides. At the test's end it is disconnected.
func attach(t *testing.T, dev blk.Device, conns int, change func(*nbd.Attach)) *disk {
	t.Helper()
	srv, err := nbd.NewServer(nbd.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.Add(nbd.Export{Device: dev}); err != nil {
		t.Fatal(err)
	}
	info := dev.Info()
	d := &disk{t: t, srv: srv, index: -1, attach: nbd.Attach{
		Size: info.Size, BlockSize: info.LogicalBlock, Flags: nbd.KernelFlags(info),
		Timeout: 10 * time.Second, DeadTimeout: 20 * time.Second, Backend: t.Name(),
	}}
	if change != nil {
		change(&d.attach)
	}
	t.Cleanup(d.close)
	for range max(conns, 1) {
		k, ours, err := nbd.KernelPair()
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		d.attach.Sockets = append(d.attach.Sockets, int(k.Fd()))
		if conns == 0 {
			d.serveDevice(ours)
		} else {
			d.serve(ours)
		}
	}
	if d.index, err = nbd.Connect(nbd.AnyDevice, d.attach); err != nil {
		t.Fatal(err)
	}
	d.attach.Sockets = nil
	d.path = "/dev/nbd" + strconv.Itoa(d.index)
	if err := nbd.SetMaxRequest(d.index, 1<<20); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *disk) serve(ours net.Conn) {
	l := &link{nc: ours, ended: make(chan struct{})}
	d.links = append(d.links, l)
	go func() { // ends with the connection
		l.err = d.srv.ServeKernel(l.nc, "")
		close(l.ended)
	}()
}

func (d *disk) serveDevice(ours net.Conn) {
	l := &link{nc: ours, ended: make(chan struct{})}
	d.links = append(d.links, l)
	go func() { // ends with the device
		l.err = d.srv.ServeDevice(l.nc, "", d.renew)
		close(l.ended)
	}()
}

// cut breaks a connection and waits until nothing of its requests is with the
// device any more.
func (d *disk) cut() {
	l := d.links[0]
	d.links = d.links[1:]
	l.nc.Close()
	<-l.ended
}

// reconnect gives the kernel a new connection in place of one that was cut.
func (d *disk) reconnect() { d.serve(d.renewed()) }

// renewed is reconnect whose caller serves.
func (d *disk) renewed() net.Conn {
	d.t.Helper()
	nc, err := d.renew(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	return nc
}

func (d *disk) renew(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	a := d.attach
	a.Size, a.BlockSize = 0, 0
	return nbd.Reconnect(ctx, a, func(a nbd.Attach) error { return nbd.Reconfigure(d.index, a) })
}

func (d *disk) close() {
	if index := d.index; index >= 0 {
		d.index = -1
		if err := nbd.Disconnect(index); err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: it is disconnected
			d.t.Errorf("disconnect: %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := d.srv.Shutdown(ctx); err != nil {
		d.t.Errorf("shutdown: %v", err)
	}
}

// queue reads one of the kernel's words about the disk.
func (d *disk) queue(name string) string {
	d.t.Helper()
	b, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(d.path), name))
	if err != nil {
		d.t.Error(err)
	}
	return strings.TrimSpace(string(b))
}

// interrupt has the disk's connections broken and renewed again and again while
// there is traffic, each time when much was read and written since the last one.
func (d *disk) interrupt(p *trafficProc, breakAndRenew func()) {
	d.t.Helper()
	for i := range max(1, int(6**traffic)) {
		d.goesOn(p)
		breakAndRenew()
		d.t.Logf("interrupted, %d", i+1) // a sign of life
	}
	d.goesOn(p)
	p.stop()
}

// goesOn waits until the disk has completed many requests more.
func (d *disk) goesOn(p *trafficProc) {
	d.t.Helper()
	from := d.done()
	until(d.t, "the traffic goes on", 15*time.Second, func() bool { return d.done() > from+150 || p.overWithin(0) })
}

// done is how many requests the disk has completed.
func (d *disk) done() (n int) {
	d.t.Helper()
	f := strings.Fields(d.queue("stat"))
	for _, i := range []int{0, 4} { // reads, writes
		v, err := strconv.Atoi(f[i])
		if err != nil {
			d.t.Fatal(err)
		}
		n += v
	}
	return n
}

// mkfs makes an ext4, at once and whole.
func (d *disk) mkfs(options ...string) {
	d.t.Helper()
	run(d.t, "mkfs.ext4", append(append([]string{"-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"}, options...), d.path)...)
}

// fsck fails the test if the file system has any fault.
func (d *disk) fsck() {
	d.t.Helper()
	run(d.t, "e2fsck", "-f", "-n", d.path)
}

// mount returns where, and what unmounts; it is unmounted at the test's end in
// any case.
func (d *disk) mount(options string) (dir string, unmount func()) {
	d.t.Helper()
	dir, err := os.MkdirTemp("", "ext4-")
	if err != nil {
		d.t.Fatal(err)
	}
	if err := unix.Mount(d.path, dir, "ext4", 0, options); err != nil {
		d.t.Fatalf("mount %s: %v", d.path, err)
	}
	mounted := true
	unmount = func() {
		d.t.Helper()
		if !mounted {
			return
		}
		mounted = false
		if err := unix.Unmount(dir, 0); err != nil {
			d.t.Errorf("unmount: %v", err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	}
	d.t.Cleanup(unmount)
	return dir, unmount
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func memory(t *testing.T, o blk.MemOptions) *blk.Mem {
	t.Helper()
	m, err := blk.NewMem(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// file is a volume in a file of the guest's memory file system.
func file(t *testing.T, size int64, o blk.FileOptions) *blk.File {
	t.Helper()
	f, err := blk.OpenFile(emptyFile(t, size), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func emptyFile(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "volume")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	return path
}

// until waits for cond.
func until(t *testing.T, what string, limit time.Duration, cond func() bool) {
	t.Helper()
	for begun := time.Now(); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begun) > limit {
			t.Fatalf("%s: not after %v", what, limit)
		}
	}
}

// raw opens the disk itself, past the kernel's cache.
func (d *disk) raw() *os.File {
	d.t.Helper()
	f, err := os.OpenFile(d.path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { f.Close() })
	return f
}

// sector is a block of content for raw.
func sector(fill byte) []byte {
	b := aligned(directUnit)
	for i := range b {
		b[i] = fill
	}
	return b
}
