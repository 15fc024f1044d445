package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/rdserr"
)

// driver is the kernel's NBD driver; tests have another.
type driver struct {
	connect     func(index int, a nbd.Attach) (int, error)
	reconfigure func(index int, a nbd.Attach) error
	disconnect  func(index int) error
	status      func(index int) (map[int]bool, error)
	maxRequest  func(index, n int) error
	held        func(index int) bool // somebody has it mounted, or in exclusive use
	present     func() error         // nil: there is such a driver
}

var kernelDriver = driver{nbd.Connect, nbd.Reconfigure, nbd.Disconnect, nbd.Status, nbd.SetMaxRequest, heldDevice, haveKernel}

// heldDevice tells whether a device is mounted or in use by another device.
func heldDevice(index int) bool {
	fd, err := unix.Open(nbdPath(index), unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return errors.Is(err, unix.EBUSY)
	}
	unix.Close(fd)
	return false
}

func nbdPath(index int) string { return "/dev/nbd" + strconv.Itoa(index) }

// parseNBD takes /dev/nbdN apart.
func parseNBD(s string) (int, error) {
	if digits, ok := strings.CutPrefix(s, "/dev/nbd"); ok {
		if n, err := strconv.ParseUint(digits, 10, 20); err == nil && nbdPath(int(n)) == s {
			return int(n), nil
		}
	}
	return 0, rdserr.With(rdserr.ErrInvalid, "device %q; want /dev/nbdN", s)
}

// maxKernelConns bounds the connections of one kernel device, which are its queues.
const maxKernelConns = 4

// requestSize is the largest request a kernel device is to make, bytes.
const requestSize = 1 << 20

// kernelFront is a device of the kernel's driver.
type kernelFront struct {
	drv     driver
	index   int
	backend string
	timeout time.Duration
	dead    time.Duration
	srv     *nbd.Server
	log     *slog.Logger
	done    sync.WaitGroup

	once  sync.Once
	ended chan struct{} // closed by stop and close
}

type kernelOptions struct {
	index   int           // nbd.AnyDevice: any
	backend string        // what the kernel is to know it by
	timeout time.Duration // of a request
	dead    time.Duration // without a connection
	resume  bool          // the device is attached already: give it new sockets
}

// openKernel attaches a device.
func openKernel(drv driver, o kernelOptions, d blk.Device, log *slog.Logger) (*kernelFront, error) {
	srv, err := nbd.NewServer(nbd.Options{Log: log})
	if err == nil {
		err = srv.Add(nbd.Export{Device: d})
	}
	if err != nil {
		return nil, err
	}
	f := &kernelFront{drv: drv, index: o.index, backend: o.backend, timeout: o.timeout, dead: o.dead, srv: srv, log: log, ended: make(chan struct{})}
	info := d.Info()
	conns := 1
	if info.MultiConn {
		conns = min(maxKernelConns, runtime.NumCPU())
	}
	a := nbd.Attach{Size: info.Size, BlockSize: info.LogicalBlock, Flags: nbd.KernelFlags(info), Timeout: o.timeout, DeadTimeout: o.dead, Backend: o.backend}
	for range conns {
		kernel, ours, err := nbd.KernelPair()
		if err != nil {
			f.stop()
			return nil, err
		}
		defer kernel.Close()
		a.Sockets = append(a.Sockets, int(kernel.Fd()))
		f.serve(ours)
	}
	if o.resume {
		err = drv.reconfigure(o.index, a)
	} else {
		f.index, err = drv.connect(o.index, a)
	}
	if err != nil {
		f.stop()
		if errors.Is(err, unix.EBUSY) {
			return nil, rdserr.With(rdserr.ErrBusy, "%s is in use; choose another, or none in particular", nbdPath(o.index))
		}
		return nil, fmt.Errorf("attach: %w", err)
	}
	if err := drv.maxRequest(f.index, requestSize); err != nil {
		log.Warn("volume: the size of requests of a kernel device stays small, which costs throughput", "device", nbdPath(f.index), "err", err)
	}
	return f, nil
}

// serve serves one connection. When the kernel lets its end go, which it does
// when a request has passed its timeout, the device gets another one.
func (f *kernelFront) serve(nc net.Conn) {
	f.done.Add(1)
	go func() { // ends with stop, or when the kernel has given the device up
		defer f.done.Done()
		for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
			began := time.Now()
			err := f.srv.ServeKernel(nc, "")
			if time.Since(began) > time.Minute {
				pause = time.Millisecond
			}
			select {
			case <-f.ended:
				return
			case <-time.After(pause):
			}
			f.log.Warn("volume: the kernel has given a connection up", "device", nbdPath(f.index), "err", err)
			kernel, ours, err := nbd.KernelPair()
			if err == nil {
				err = f.drv.reconfigure(f.index, nbd.Attach{Timeout: f.timeout, DeadTimeout: f.dead, Backend: f.backend, Sockets: []int{int(kernel.Fd())}})
				kernel.Close()
			}
			if err != nil {
				if !f.stopped() {
					f.log.Error("volume: the kernel takes no new connection; the device was detached by somebody else", "device", nbdPath(f.index), "err", err)
				}
				return
			}
			nc = ours
		}
	}()
}

// stop ends our side of the connections.
func (f *kernelFront) stop() {
	f.once.Do(func() { close(f.ended) })
	f.srv.Close()
	f.done.Wait()
}

func (f *kernelFront) stopped() bool {
	select {
	case <-f.ended:
		return true
	default:
		return false
	}
}

func (f *kernelFront) users() int {
	if f.drv.held(f.index) {
		return 1
	}
	return 0
}

func (f *kernelFront) resized(i *blk.Info) {
	err := f.drv.reconfigure(f.index, nbd.Attach{Size: i.Size, BlockSize: i.LogicalBlock, Timeout: f.timeout, DeadTimeout: f.dead, Backend: f.backend})
	if err != nil {
		f.log.Warn("volume: a kernel device was not told its new size", "device", nbdPath(f.index), "size", i.Size, "err", err)
	}
}

// close detaches the device, or leaves it without a connection for its
// dead-connection timeout, in which requests wait for the next Host.
func (f *kernelFront) close(ctx context.Context, leave bool) error {
	f.once.Do(func() { close(f.ended) })
	if leave {
		// At once: what has no answer is the next Host's, and a refusal in the
		// meantime would be an error of the disk.
		return f.srv.Close()
	}
	err := f.drv.disconnect(f.index)
	if e := f.srv.Shutdown(ctx); err == nil {
		err = e
	}
	return err
}

// haveKernel tells why there can be no kernel device; nil: there can.
func haveKernel() error {
	if _, err := os.Stat("/sys/module/nbd"); err != nil {
		return rdserr.With(rdserr.ErrNotSupported, "the kernel has no nbd driver loaded (modprobe nbd); use a socket")
	}
	return nil
}
