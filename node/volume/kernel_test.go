package volume

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk/nbd"
)

// fakeKernel is what the tests know of the kernel's driver: devices that keep
// their state while there is no connection, and send again what has no answer.
type fakeKernel struct {
	mu      sync.Mutex
	changed sync.Cond
	between func() // called once, when connect is done and before it returns
	devices map[int]*fakeDevice
	busy    bool         // every device is mounted
	hidden  error        // nobody can tell whether one is; nil: the driver does
	missing bool         // there is no driver
	old     bool         // it does not tell what it knows devices by
	fail    func() error // of reconfigure, before it does anything; nil: it does not
	lost    error        // of connect, after it has attached the device
	strayed int          // how often a device that it knows by nothing was reconfigured
}

type fakeDevice struct {
	attach nbd.Attach
	conn   net.Conn // nil: it is dead
	size   uint64
}

func newFakeKernel() *fakeKernel {
	k := &fakeKernel{devices: map[int]*fakeDevice{}}
	k.changed.L = &k.mu
	return k
}

func (k *fakeKernel) driver() driver {
	return driver{connect: k.connect, reconfigure: k.reconfigure, disconnect: k.disconnect, status: k.status, backend: k.backend,
		maxRequest: func(int, int) error { return nil },
		held:       func(int) (bool, error) { k.mu.Lock(); defer k.mu.Unlock(); return k.busy, k.hidden },
		present: func() error {
			if k.missing {
				return haveKernel()
			}
			return nil
		}}
}

// take makes connections of sockets the way the kernel does: references of its
// own, but only in place of a dead one; what else there is it drops.
func (d *fakeDevice) take(fds []int) error {
	for _, fd := range fds {
		fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "kernel")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			return err
		}
		if d.conn == nil {
			d.conn = c
		} else {
			c.Close()
		}
	}
	return nil
}

func (d *fakeDevice) close() {
	if d.conn != nil {
		d.conn.Close()
	}
}

func (k *fakeKernel) connect(index int, a nbd.Attach) (int, error) {
	index, err := k.attach(index, a)
	if f := k.between; f != nil {
		k.between = nil
		f()
	}
	return index, err
}

func (k *fakeKernel) attach(index int, a nbd.Attach) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if a.Timeout <= 0 || a.DeadTimeout <= 0 || a.Size == 0 || a.BlockSize == 0 {
		return 0, syscall.EINVAL
	}
	if index == nbd.AnyDevice {
		for index = 0; k.devices[index] != nil; index++ {
		}
	} else if k.devices[index] != nil {
		return 0, syscall.EBUSY
	}
	d := &fakeDevice{attach: a, size: a.Size}
	k.devices[index] = d
	if k.lost != nil {
		return 0, errors.Join(k.lost, d.take(a.Sockets))
	}
	return index, d.take(a.Sockets)
}

func (k *fakeKernel) reconfigure(index int, a nbd.Attach) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fail != nil {
		if err := k.fail(); err != nil {
			return err
		}
	}
	d := k.devices[index]
	if d == nil || d.attach.Backend != "" && d.attach.Backend != a.Backend {
		return syscall.EINVAL
	}
	if d.attach.Backend == "" {
		k.strayed++
	}
	if a.Size != 0 {
		d.size = a.Size
	}
	k.changed.Broadcast()
	return d.take(a.Sockets)
}

// disconnect says so to the server, as the kernel does whoever asks for it.
func (k *fakeKernel) disconnect(index int) error {
	if c := k.device(index).conn; c != nil {
		c.Write(append([]byte{0x25, 0x60, 0x95, 0x13, 0, 0, 0, 2}, make([]byte, 20)...))
	}
	k.giveUp(index)
	return nil
}

// giveUp ends a device without a word.
func (k *fakeKernel) giveUp(index int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if d := k.devices[index]; d != nil {
		d.close()
	}
	delete(k.devices, index)
	k.changed.Broadcast()
}

func (k *fakeKernel) backend(index int) (string, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.old {
		return "", false
	}
	if d := k.devices[index]; d != nil {
		return d.attach.Backend, true
	}
	return "", true
}

func (k *fakeKernel) status(int) (map[int]bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m := map[int]bool{}
	for i := range k.devices {
		m[i] = true
	}
	return m, nil
}

func (k *fakeKernel) device(index int) fakeDevice {
	k.mu.Lock()
	defer k.mu.Unlock()
	if d := k.devices[index]; d != nil {
		return *d
	}
	return fakeDevice{}
}

// dead notes that the connection has ended; the device waits for a new one.
func (k *fakeKernel) dead(index int, c net.Conn) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	d := k.devices[index]
	if d != nil && d.conn == c {
		c.Close()
		d.conn = nil
	}
	for d != nil && d.conn == nil {
		k.changed.Wait()
		d = k.devices[index]
	}
	if d == nil {
		return syscall.ENODEV
	}
	return nil
}

// io does one request, again on a new connection if there was no answer.
func (k *fakeKernel) io(index int, cmd uint16, off uint64, p []byte) error {
	for {
		c := k.device(index).conn
		if c == nil {
			if err := k.dead(index, nil); err != nil {
				return err
			}
			continue
		}
		b := binary.BigEndian.AppendUint32(nil, 0x25609513)
		b = binary.BigEndian.AppendUint16(b, 0)
		b = binary.BigEndian.AppendUint16(b, cmd)
		b = binary.BigEndian.AppendUint64(b, 77)
		b = binary.BigEndian.AppendUint64(b, off)
		b = binary.BigEndian.AppendUint32(b, uint32(len(p)))
		if cmd == 1 {
			b = append(b, p...)
		}
		_, err := c.Write(b)
		reply := make([]byte, 16)
		if err == nil {
			_, err = io.ReadFull(c, reply)
		}
		errno := syscall.Errno(binary.BigEndian.Uint32(reply[4:]))
		if err == nil && errno == 0 && cmd == 0 {
			_, err = io.ReadFull(c, p)
		}
		if err == nil {
			if errno != 0 {
				return errno
			}
			return nil
		}
		if err := k.dead(index, c); err != nil {
			return err
		}
	}
}

// disk is a device of the kernel as traffic wants it.
type disk struct {
	k     *fakeKernel
	index int
	mu    sync.Mutex
}

func (d *disk) ReadAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(p), d.k.io(d.index, 0, uint64(off), p)
}

func (d *disk) WriteAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(p), d.k.io(d.index, 1, uint64(off), p)
}

func (d *disk) Flush() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.k.io(d.index, 3, 0, nil)
}

func withKernel(t *testing.T) (server, client *testNode, k *fakeKernel) {
	port := freePort(t)
	server, client = newServerNode(t, port), newClientNode(t, port)
	k = newFakeKernel()
	client.drv = k.driver()
	server.start()
	client.start()
	return server, client, k
}

func TestKernelDevice(t *testing.T) {
	server, client, k := withKernel(t)
	s := file(t, "disk", 8<<20)
	mustExport(t, server.h, s)
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", As: AsNBD})
	if m.Device != "/dev/nbd0" || m.URI != "" {
		t.Fatalf("mapped as %+v", m)
	}
	if a := k.device(0).attach; a.Size != 8<<20 || a.Timeout <= 0 || a.DeadTimeout != time.Minute || a.Backend == "" {
		t.Fatalf("attached with %+v", a)
	}
	if _, err := client.h.Map(testCtx(t), MapSpec{Node: server.node(), Name: "other", As: AsNBD, Device: "/dev/nbd0"}); !errors.Is(err, syscall.EEXIST) {
		t.Fatalf("a device that is taken: %v", err)
	}
	d := &disk{k: k}
	if err := writePattern(d, 0, 1<<20, 1, 64<<10); err != nil {
		t.Fatal(err)
	}
	if _, err := server.h.ResizeExport(testCtx(t), "disk", 16<<20); err != nil {
		t.Fatal(err)
	}
	if n, err := client.h.ResizeMapping(testCtx(t), "/dev/nbd0", 0); err != nil || n != 16<<20 {
		t.Fatalf("the mapping has %d bytes, %v", n, err)
	}
	eventually(t, "the kernel knows the new size", func() bool { return k.device(0).size == 16<<20 })
	if err := writePattern(d, 12<<20, 4096, 1, 4096); err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	k.busy = true
	k.mu.Unlock()
	if err := client.h.Unmap(testCtx(t), "/dev/nbd0", false); !errors.Is(err, syscall.EBUSY) {
		t.Fatalf("unmap while mounted: %v", err)
	}
	if err := client.h.Unmap(testCtx(t), "/dev/nbd0", true); err != nil || k.device(0).conn != nil {
		t.Fatalf("unmap by force: %v, %+v", err, k.device(0))
	}
}

// A kernel device outlives its daemon: requests wait, and go on with the next
// one, which gives it a new socket.
func TestKernelDeviceOutlivesTheDaemon(t *testing.T) {
	server, client, k := withKernel(t)
	mustExport(t, server.h, file(t, "disk", 8<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", As: AsNBD})
	x := startTraffic(t, &disk{k: k})
	for i := range 4 {
		x.progress(t, 30)
		if i%2 == 0 {
			client.stop()
		} else {
			client.crash()
		}
		time.Sleep(20 * time.Millisecond) // requests meet no connection
		client.start()
	}
	x.progress(t, 30)
	x.end(t)
	i, err := client.h.Mapping(m.ID)
	if err != nil || i.Device != m.Device {
		t.Fatalf("back as %+v, %v", i, err)
	}
	if len(k.devices) != 1 {
		t.Fatalf("%d devices", len(k.devices))
	}
	if err := client.h.Unmap(testCtx(t), m.ID, true); err != nil {
		t.Fatal(err)
	}
	client.stop()
	client.start()
	if l := client.h.Mappings(); len(l) != 0 || len(k.devices) != 0 {
		t.Fatalf("left: %+v, %d devices", l, len(k.devices))
	}
}

// A device that is taken up again has the size that its volume has now.
func TestKernelDeviceThatWasResizedMeanwhile(t *testing.T) {
	server, client, k := withKernel(t)
	mustExport(t, server.h, file(t, "disk", 8<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", As: AsNBD})
	for i, size := range []uint64{16 << 20, 16 << 20, 24 << 20} {
		end := []func(){client.stop, client.crash}[i%2]
		end()
		if _, err := server.h.ResizeExport(testCtx(t), "disk", size); err != nil {
			t.Fatal(err)
		}
		k.mu.Lock()
		d := k.devices[0]
		d.close()
		d.conn = nil // it has noticed
		k.mu.Unlock()
		client.start()
		eventually(t, "the kernel knows the new size", func() bool { return k.device(0).size == size })
		if i := back(t, client, m.ID); i.Device != m.Device || i.Info.Size != size {
			t.Fatalf("back as %+v", i)
		}
		if err := writePattern(&disk{k: k}, int64(size)-4096, 4096, 1, 4096); err != nil {
			t.Fatal(err)
		}
	}
}

// A resize that comes while the device is made is told to the kernel.
func TestKernelDeviceThatIsResizedAsItIsMade(t *testing.T) {
	server, client, k := withKernel(t)
	mustExport(t, server.h, file(t, "disk", 8<<20))
	k.between = func() {
		if _, err := server.h.ResizeExport(testCtx(t), "disk", 16<<20); err != nil {
			t.Error(err)
		}
		if _, err := client.h.ResizeMapping(testCtx(t), "v1", 16<<20); err != nil {
			t.Error(err)
		}
		time.Sleep(20 * time.Millisecond) // the mapping is told, and has no front yet
	}
	mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", As: AsNBD})
	if n := k.device(0).size; n != 16<<20 {
		t.Errorf("the kernel knows of %d bytes", n)
	}
}

// The kernel gives a connection up when a request has passed its timeout.
func TestKernelGetsANewConnection(t *testing.T) {
	server, client, k := withKernel(t)
	mustExport(t, server.h, memory("mem", 8<<20))
	mustMap(t, client.h, MapSpec{Node: server.node(), Name: "mem", As: AsNBD, OnLoss: OnLossError, IOTimeout: time.Second, LossTimeout: time.Second})
	if a := k.device(0).attach; a.Timeout != 12*time.Second {
		t.Fatalf("timeout %v", a.Timeout)
	}
	d := &disk{k: k}
	x := startTraffic(t, d)
	for range 3 {
		x.progress(t, 30)
		k.device(0).conn.Close()
	}
	x.progress(t, 30)
	x.end(t)
}

// TestKernelDeviceStaysOurs: what is lacking for a moment when a device needs another connection does not cost
// it, and one that gets none, while the kernel has it, is not another's: the next Host takes it up.
func TestKernelDeviceStaysOurs(t *testing.T) {
	server, client, k := withKernel(t)
	mustExport(t, server.h, memory("mem", 8<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "mem", As: AsNBD, Persist: true})
	cut := func(fail func() error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.fail = fail
		k.devices[0].close()
		k.devices[0].conn = nil
	}
	lacking := []error{syscall.ENOMEM, syscall.ENOBUFS, nil}
	cut(func() error {
		err := lacking[0]
		lacking = lacking[min(1, len(lacking)-1):]
		return err
	})
	eventually(t, "connected again", func() bool { return k.device(0).conn != nil })
	if i, err := client.h.Mapping(m.ID); err != nil || i.Device != "/dev/nbd0" || i.LastError != "" {
		t.Fatalf("%+v, %v", i, err)
	}
	cut(func() error { return syscall.EPERM })
	eventually(t, "it is seen", func() bool {
		i, err := client.h.Mapping(m.ID)
		return err == nil && i.Device == "/dev/nbd0" && i.LastError == noConnection && i.Users == 1
	})
	if st := client.h.snapshot(true); st.Mappings[0].Unused || st.Mappings[0].Device != "/dev/nbd0" {
		t.Errorf("%+v", st.Mappings[0])
	}
	client.stop()
	cut(nil)
	client.start()
	eventually(t, "taken up", func() bool { return k.device(0).conn != nil })
	if err := writePattern(&disk{k: k}, 0, 4096, 1, 4096); err != nil || len(k.devices) != 1 {
		t.Errorf("%d devices: %v", len(k.devices), err)
	}
}

// TestCutDeviceThatIsDetached: one that nobody serves any more is not ours when somebody has detached it. Who
// has the number then keeps what he has, and is not taken for users of ours.
func TestCutDeviceThatIsDetached(t *testing.T) {
	server, client, k := withKernel(t)
	mustExport(t, server.h, file(t, "disk", 8<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", As: AsNBD})
	k.mu.Lock()
	k.fail = func() error { return syscall.EPERM }
	k.devices[0].close()
	k.devices[0].conn = nil
	k.mu.Unlock()
	eventually(t, "it is cut", func() bool {
		i, err := client.h.Mapping(m.ID)
		return err == nil && i.LastError == noConnection
	})
	k.giveUp(0)
	k.foreign(t, 0, "")
	k.mu.Lock()
	k.fail, k.busy = nil, true
	k.mu.Unlock()
	client.h.mu.Lock()
	f := client.h.mappings[0].front
	client.h.mu.Unlock()
	if _, err := server.h.ResizeExport(testCtx(t), "disk", 16<<20); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the size has come", func() bool { return f.(*kernelFront).dev.Info().Size == 16<<20 })
	f.Resized(nil)
	k.mu.Lock()
	strayed := k.strayed
	k.mu.Unlock()
	if strayed > 0 {
		t.Error("the foreign device was reconfigured")
	}
	if i, err := client.h.Mapping(m.ID); err != nil || i.Device != "" || i.LastError != noDevice || i.Users != 0 {
		t.Errorf("%+v, %v", i, err)
	}
	if err := client.h.Unmap(testCtx(t), m.ID, false); err != nil || k.device(0).size != 1<<20 {
		t.Errorf("unmapped: %v", err)
	}
}

// A device that was detached in the meantime is attached anew.
func TestKernelDeviceThatIsGoneIsAttachedAnew(t *testing.T) {
	server, client, k := withKernel(t)
	mustExport(t, server.h, memory("mem", 8<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "mem", As: AsNBD, Persist: true})
	client.stop()
	k.disconnect(0)
	client.start()
	eventually(t, "attached", func() bool { return k.device(0).conn != nil })
	eventually(t, "open", func() bool {
		i, err := client.h.Mapping(m.ID)
		return err == nil && i.State == StateOpen && i.Device == "/dev/nbd0"
	})
	if err := writePattern(&disk{k: k}, 0, 4096, 1, 4096); err != nil {
		t.Fatal(err)
	}
	k.missing = true
	if _, err := client.h.Map(testCtx(t), MapSpec{Node: server.node(), Name: "mem", As: AsNBD, Session: "x"}); !errors.Is(err, syscall.ENOSYS) {
		t.Logf("here the driver is loaded: %v", err)
	}
}

// TestDeviceThatSomebodyDetached: somebody detaches the device of a mapping, and the kernel gives
// its number to the next. Ending the one takes nothing from the other.
func TestDeviceThatSomebodyDetached(t *testing.T) {
	for _, c := range []struct {
		what   string
		detach func(*fakeKernel)
		old    bool
	}{
		{"nbd-client -d", func(k *fakeKernel) { k.disconnect(0) }, false},
		{"given up", func(k *fakeKernel) { k.giveUp(0) }, false},
		{"nbd-client -d, before Linux 5.14", func(k *fakeKernel) { k.disconnect(0) }, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			server, client, k := withKernel(t)
			k.old = c.old
			mustExport(t, server.h, memory("one", 8<<20))
			mustExport(t, server.h, memory("two", 8<<20))
			first := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "one", As: AsNBD, Persist: true})
			c.detach(k)
			eventually(t, "it is seen", func() bool {
				i, err := client.h.Mapping(first.ID)
				return err == nil && i.State == StateOpen && i.Device == "" && i.LastError == noDevice && i.Users == 0
			})
			second := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "two", As: AsNBD, Persist: true})
			if second.Device != first.Device {
				t.Fatalf("the next has %s", second.Device)
			}
			if l, err := client.h.Check(testCtx(t), first.ID); err != nil || !slices.ContainsFunc(l, func(f Finding) bool { return f.Severity == SeverityError && f.Text == noDevice }) {
				t.Errorf("check says %+v, %v", l, err)
			}
			if i, err := client.h.Mapping(second.Device); err != nil || i.ID != second.ID {
				t.Errorf("%s is that of %+v, %v", second.Device, i, err)
			}
			if _, err := server.h.ResizeExport(testCtx(t), "one", 16<<20); err != nil {
				t.Fatal(err)
			}
			if _, err := client.h.ResizeMapping(testCtx(t), first.ID, 0); err != nil {
				t.Fatal(err)
			}
			k.mu.Lock()
			k.busy = true // that is the other's
			k.mu.Unlock()
			if err := client.h.Unmap(testCtx(t), first.ID, false); err != nil {
				t.Fatal(err)
			}
			if d := k.device(0); d.conn == nil || d.size != 8<<20 {
				t.Fatalf("the other's device is %+v", d)
			}
			if err := writePattern(&disk{k: k}, 0, 4096, 1, 4096); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestEndOfAMappingSparesAnothersDevice: that a device was detached is not always known yet.
func TestEndOfAMappingSparesAnothersDevice(t *testing.T) {
	server, client, k := withKernel(t)
	mustExport(t, server.h, memory("mem", 8<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "mem", As: AsNBD})
	k.mu.Lock()
	k.devices[0].attach.Backend = "another's"
	k.mu.Unlock()
	if err := client.h.Unmap(testCtx(t), m.ID, true); err != nil {
		t.Fatal(err)
	}
	if k.device(0).conn == nil {
		t.Error("another's device was detached")
	}
}
