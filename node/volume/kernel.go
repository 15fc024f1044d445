package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/internal/eintr"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/rdserr"
)

// driver is the kernel's NBD driver; tests have another.
type driver struct {
	connect     func(index int, a nbd.Attach) (int, error)
	reconfigure func(index int, a nbd.Attach) error
	disconnect  func(index int) error
	status      func(index int) (map[int]bool, error)
	backend     func(index int) (string, bool) // what it knows a device by, "": nothing; false: it does not tell
	maxRequest  func(index, n int) error
	held        func(index int) (bool, error) // somebody has it mounted, or in exclusive use; an error: that cannot be told
	present     func() error                  // nil: there is such a driver
}

var kernelDriver = driver{nbd.Connect, nbd.Reconfigure, nbd.Disconnect, nbd.Status, nbd.Backend, nbd.SetMaxRequest, heldDevice, haveKernel}

// heldDevice tells whether a device is mounted or in use by another device.
func heldDevice(index int) (bool, error) {
	fd, err := eintr.Open(nbdPath(index), unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil {
		unix.Close(fd)
	}
	return heldAfter(nbdPath(index), err)
}

// heldAfter is what err, of opening a device for oneself, says of whether others hold it. One that is
// not in the daemon's /dev, or that the daemon may not open, can be mounted all the same.
func heldAfter(path string, err error) (bool, error) {
	switch {
	case err == nil, errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV): // there is no device behind the name
		return false, nil
	case errors.Is(err, unix.EBUSY):
		return true, nil
	}
	return false, fmt.Errorf("open %s: %w", path, err)
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
	dev     blk.Device
	log     *slog.Logger
	guard   *guard.Guard
	done    sync.WaitGroup

	once  sync.Once
	ended chan struct{} // closed by stop and close

	sizing sync.Mutex
	size   uint64 // guarded by sizing; what the kernel was told; 0: an earlier Host told it
	block  uint32 // the same

	lost atomic.Bool               // somebody else has detached the device, or the kernel has given it up
	cut  atomic.Bool               // the kernel has it, and nobody serves it any more
	told atomic.Bool               // the kernel has told what it knows the device by, so that it does
	gone func(*kernelFront, error) // called after either, with the error that serving it ended with
}

type kernelOptions struct {
	index   int // nbd.AnyDevice: any but those of avoid
	avoid   map[int]bool
	backend string        // what the kernel is to know it by
	timeout time.Duration // of a request
	dead    time.Duration // without a connection
	resume  bool          // the device is attached already: give it new sockets
	gone    func(f *kernelFront, err error)
}

// openKernel attaches a device. ctx ends the wait for one that is attached already.
func openKernel(ctx context.Context, drv driver, o kernelOptions, d blk.Device, home *reactor.Reactor, log *slog.Logger, h *Host) (*kernelFront, error) {
	srv, err := nbd.NewServer(nbd.Options{Reactor: home, Log: log, Guard: h.guard, Charge: h.chargeNode(), MaxBytes: nbd.KernelInFlight * requestSize})
	if err == nil {
		err = srv.Add(nbd.Export{Device: d})
	}
	if err != nil {
		return nil, err
	}
	f := &kernelFront{drv: drv, index: o.index, backend: o.backend, timeout: o.timeout, dead: o.dead, srv: srv, dev: d, log: log, guard: h.guard, ended: make(chan struct{}), gone: o.gone}
	ours, err := f.connect(ctx, &o)
	if err != nil {
		f.stop()
		if errors.Is(err, unix.EBUSY) && o.index != nbd.AnyDevice {
			return nil, rdserr.With(rdserr.ErrBusy, "%s is in use; choose another, or none in particular", nbdPath(o.index))
		}
		return nil, fmt.Errorf("attach: %w", err)
	}
	f.ours() // which notes that the kernel tells
	f.serve(ours)
	if err := drv.maxRequest(f.index, requestSize); err != nil {
		log.Warn("volume: the size of requests of a kernel device stays small, which costs throughput; packaging/60-rdsd-nbd.rules lets it be 1 MiB", "device", nbdPath(f.index), "err", err)
	}
	return f, nil
}

// connect gives the device its connection; there is one at a time, for the sake
// of the order of writes.
func (f *kernelFront) connect(ctx context.Context, o *kernelOptions) (ours net.Conn, err error) {
	if o.resume {
		return f.renew(ctx)
	}
	kernel, ours, err := nbd.KernelPair()
	if err != nil {
		return nil, err
	}
	defer kernel.Close()
	a, i := f.attach(), f.dev.Info()
	a.Size, a.BlockSize, a.Flags = i.Size, i.LogicalBlock, nbd.KernelFlags(i)
	f.size, f.block = a.Size, a.BlockSize
	a.Sockets = []int{int(kernel.Fd())}
	// Of one that was attached already and may have users, or of which that cannot be told, nothing is undone.
	free := o.index == nbd.AnyDevice
	if free {
		f.index, err = f.drv.connectAny(o.avoid, a)
	} else {
		b, known := f.drv.backend(o.index)
		free = known && b != f.backend
		_, err = f.drv.connect(o.index, a)
	}
	if err == nil {
		return ours, nil
	}
	ours.Close()
	if b, known := f.drv.backend(f.index); free && known && b == f.backend {
		// The kernel has attached it and its answer was lost: nobody else would ever detach it.
		ctx, cancel := context.WithTimeout(context.Background(), frontEnd)
		defer cancel()
		f.detach(ctx)
	}
	return nil, err
}

// detach has the kernel detach the device while it is this one.
func (f *kernelFront) detach(ctx context.Context) error {
	err := nbd.Insist(ctx, func() error {
		switch is, sure := f.ours(); {
		case !sure:
			return unix.EAGAIN
		case !is:
			return nil
		}
		return f.drv.disconnect(f.index)
	})
	if err != nil {
		f.log.Warn("volume: a kernel device could not be detached and stays, without anybody behind it; nbd-client -d detaches it", "device", nbdPath(f.index), "err", err)
	}
	return err
}

// connectAny attaches the first device that is free, and returns which it was or, with an error, would
// have been. The kernel's own choice could be one of avoid.
func (d *driver) connectAny(avoid map[int]bool, a nbd.Attach) (index int, err error) {
	attached, err := d.status(nbd.AnyDevice)
	if err != nil && len(avoid) == 0 {
		return d.connect(nbd.AnyDevice, a)
	}
	for refused := 0; refused < maxRefused; index++ {
		if attached[index] || avoid[index] {
			continue
		}
		if _, err := d.connect(index, a); !errors.Is(err, unix.EBUSY) {
			return index, err
		}
		refused++ // others attach devices, too
	}
	return 0, rdserr.With(rdserr.ErrBusy, "%d devices in a row that seemed free were in use", maxRefused)
}

// maxRefused bounds the search for a free device where the kernel does not tell, or others
// are faster again and again.
const maxRefused = 64

// attach is what connecting and reconfiguring have in common.
func (f *kernelFront) attach() nbd.Attach {
	return nbd.Attach{Timeout: f.timeout, DeadTimeout: f.dead, Backend: f.backend}
}

// renew gives the device a connection in place of one that has ended.
func (f *kernelFront) renew(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, f.dead) // then the kernel gives the device up
	defer cancel()
	return nbd.Reconnect(ctx, f.attach(), func(a nbd.Attach) error { return f.drv.reconfigure(f.index, a) })
}

// serve serves the device. When the kernel lets a connection go, which it does
// when a request has passed its timeout, it gets another one.
func (f *kernelFront) serve(nc net.Conn) {
	f.done.Add(1)
	go func() { // ends with stop, or when the device is not ours any more
		defer f.done.Done()
		defer f.guard.Recover(guard.Volume, nil)
		if err := f.srv.ServeDevice(nc, "", f.renew); !f.stopped() {
			if f.keeps(err) {
				f.cut.Store(true)
			} else {
				f.lost.Store(true)
			}
			f.gone(f, err)
		}
	}()
}

// keeps reports whether the kernel keeps the device though serving it ended with err: it has neither detached
// it, which is no error, nor refused it another connection, and knows it by our name.
func (f *kernelFront) keeps(err error) bool {
	if err == nil || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) {
		return false
	}
	is, sure := f.ours()
	return is && (f.told.Load() || !sure)
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

// has tells whether the device is this one still. Nobody hears of it when one that is cut is detached, so the
// kernel is asked then: the number may be another's.
func (f *kernelFront) has() bool {
	if f.cut.Load() {
		if is, sure := f.ours(); sure && !is && f.lost.CompareAndSwap(false, true) {
			f.gone(f, nil)
		}
	}
	return !f.lost.Load()
}

// Users returns 1 while there is the device: the kernel does not tell.
func (f *kernelFront) Users() int {
	if f.lost.Load() {
		return 0
	}
	return 1
}

// Busy opens the device, which may make the kernel read from it. A device that was detached
// may be another's by now.
func (f *kernelFront) Busy() (bool, error) {
	if !f.has() {
		return false, nil
	}
	return f.drv.held(f.index)
}

// Resized tells the kernel the present size: of two that are under way the last to tell must
// not be the one that has looked first.
func (f *kernelFront) Resized(*blk.Info) {
	f.sizing.Lock()
	defer f.sizing.Unlock()
	a, i := f.attach(), f.dev.Info()
	if !f.has() || i.Size == f.size && i.LogicalBlock == f.block {
		return
	}
	a.Size, a.BlockSize = i.Size, i.LogicalBlock
	ctx, cancel := context.WithTimeout(context.Background(), frontEnd)
	defer cancel()
	if err := nbd.Insist(ctx, func() error { return f.drv.reconfigure(f.index, a) }); err != nil {
		f.log.Warn("volume: a kernel device was not told its new size", "device", nbdPath(f.index), "size", i.Size, "err", err)
		return
	}
	f.size, f.block = i.Size, i.LogicalBlock
}

// Close detaches the device, or leaves it without a connection for its
// dead-connection timeout, in which requests wait for the next Host.
func (f *kernelFront) Close(ctx context.Context, leave bool) error {
	f.once.Do(func() { close(f.ended) })
	if leave {
		// At once: what has no answer is the next Host's, and a refusal in the
		// meantime would be an error of the disk.
		return f.srv.Close()
	}
	err := f.detach(ctx)
	if e := f.srv.Shutdown(ctx); err == nil {
		err = e
	}
	return err
}

// ours tells whether the kernel's device of that number is this one. Others may have got the
// number since it was detached. It is not sure where that cannot be read for the moment. Where the kernel does
// not tell, ours is what was not detached.
func (f *kernelFront) ours() (is, sure bool) {
	if b, known := f.drv.backend(f.index); known {
		f.told.Store(true)
		return b == f.backend, true
	}
	return !f.lost.Load(), !f.told.Load()
}

// haveKernel tells why there can be no kernel device; nil: there can.
func haveKernel() error {
	if _, err := os.Stat("/sys/module/nbd"); err != nil {
		return rdserr.With(rdserr.ErrNotSupported, "the kernel has no nbd driver loaded (modprobe nbd); use a socket")
	}
	return nil
}
