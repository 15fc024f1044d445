package nbd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk"
)

// TestInsist: what is lacking for a moment costs another try, a refusal is final, and ctx ends the tries.
func TestInsist(t *testing.T) {
	for _, c := range []struct {
		answers []error
		want    error
		calls   int
	}{
		{[]error{nil}, nil, 1},
		{[]error{unix.EMFILE, fmt.Errorf("netlink: %w", unix.ENOBUFS), unix.ENOMEM, nil}, nil, 4},
		{[]error{unix.EMFILE, unix.EPERM}, unix.EPERM, 2},
	} {
		calls := 0
		err := Insist(t.Context(), func() error { calls++; return c.answers[calls-1] })
		if err != c.want || calls != c.calls {
			t.Errorf("%v: after %d calls %v", c.answers, calls, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := Insist(ctx, func() error { cancel(); return unix.EMFILE }); !errors.Is(err, unix.EMFILE) || !errors.Is(err, context.Canceled) {
		t.Errorf("given up with %v", err)
	}
}

// TestReconnect: the kernel takes sockets only for dead ones and says nothing
// when it takes none.
func TestReconnect(t *testing.T) {
	calls, alive, kept := 0, 3, -1
	lacking := []error{unix.EMFILE, fmt.Errorf("netlink: %w", unix.ENOBUFS), unix.ENOMEM}
	refuse := error(nil)
	reconfigure := func(a Attach) (err error) {
		if len(lacking) > 0 {
			err, lacking = lacking[0], lacking[1:]
			return err
		}
		if calls++; refuse == nil && calls > alive {
			kept, err = unix.Dup(a.Sockets[0]) // the kernel's reference
			return err
		}
		return refuse
	}
	c, err := Reconnect(t.Context(), Attach{}, reconfigure)
	if err != nil || calls != alive+1 {
		t.Fatalf("after %d calls: %v", calls, err)
	}
	if _, err := unix.Write(kept, []byte{7}); err != nil {
		t.Error(err)
	}
	if !taken(c) || hungUp(c) {
		t.Error("the connection is not the kernel's")
	}
	unix.Close(kept)
	if !hungUp(c) {
		t.Error("the kernel let its end go, with something to read before")
	}
	b := make([]byte, 2)
	if n, err := c.Read(b); n != 1 || b[0] != 7 || err != nil {
		t.Errorf("read %d bytes, %d; %v", n, b[0], err)
	}
	if taken(c) {
		t.Error("the connection is the kernel's still")
	}
	c.Close()
	if !hungUp(c) {
		t.Error("without a descriptor nobody has hung up")
	}

	alive = 1 << 30
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Reconnect(ctx, Attach{}, reconfigure); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nothing is dead: %v", err)
	}
	refuse = unix.EINVAL
	if _, err := Reconnect(t.Context(), Attach{}, reconfigure); !errors.Is(err, unix.EINVAL) {
		t.Errorf("refused: %v", err)
	}
}

// device is what the kernel has of one that ServeDevice serves.
type device struct {
	t      *testing.T
	kernel chan *os.File // each connection there was
	served chan error
	srv    *Server
	refuse atomic.Bool // the driver does, from now on
}

func serveDevice(t *testing.T, d blk.Device) *device {
	t.Helper()
	s, _ := serve(t, Options{}, Export{Device: d})
	v := &device{t: t, kernel: make(chan *os.File, 16), served: make(chan error, 1), srv: s}
	nc, err := v.renew(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	go func() { v.served <- s.ServeDevice(nc, "", v.renew) }()
	return v
}

func (v *device) renew(context.Context) (net.Conn, error) {
	if v.refuse.Load() {
		return nil, unix.EINVAL
	}
	kernel, ours, err := KernelPair()
	if err == nil {
		v.kernel <- kernel
	}
	return ours, err
}

// next is the connection the driver has now.
func (v *device) next() *os.File {
	v.t.Helper()
	select {
	case f := <-v.kernel:
		return f
	case <-time.After(5 * time.Second):
		v.t.Fatal("no new connection")
		return nil
	}
}

// send asks for a write of one sector, full of b.
func (v *device) send(f *os.File, cookie uint64, off uint64, b byte) {
	v.t.Helper()
	if _, err := f.Write(command(cmdWrite, 0, cookie, off, 512, fill512(b))); err != nil {
		v.t.Fatal(err)
	}
}

func fill512(b byte) []byte {
	p := make([]byte, 512)
	for i := range p {
		p[i] = b
	}
	return p
}

func (v *device) answered(f *os.File, cookie uint64) {
	v.t.Helper()
	b := make([]byte, simpleSize)
	if _, err := io.ReadFull(f, b); err != nil || binary.BigEndian.Uint32(b[4:]) != 0 || binary.BigEndian.Uint64(b[8:]) != cookie {
		v.t.Fatalf("% x, %v", b, err)
	}
}

// TestServeDevice: a write is held by the store past the kernel's timeout, again
// and again. The device has a connection all the time, the write is repeated
// only when the first one has ended, and what is written later stays.
func TestServeDevice(t *testing.T) {
	f := blk.NewFault(memory(t, 1<<20), 1)
	defer f.Release()
	v := serveDevice(t, f)
	hits := f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Count: 1, Stall: true})

	k := v.next()
	v.send(k, 1, 0, 'a')
	for f.Held() == 0 {
		time.Sleep(time.Millisecond)
	}
	for cookie := uint64(2); cookie < 5; cookie++ {
		k.Close() // the kernel's timeout
		k = v.next()
		v.send(k, cookie, 0, 'a') // again
		v.send(k, cookie+100, 0, 'b')
	}
	if n := v.srv.Stats().Requests; n != 1 || hits() != 1 {
		t.Errorf("%d requests went to the device while the first one was there", n)
	}
	f.Release()
	v.answered(k, 4)
	v.answered(k, 104)
	b := make([]byte, 512)
	if err := blk.ReadAt(f, b, 0); err != nil || b[0] != 'b' {
		t.Errorf("%q, %v", b[0], err)
	}
	if _, err := k.Write(command(cmdDisc, 0, 9, 0, 0, nil)); err != nil {
		t.Fatal(err)
	}
	if err := <-v.served; err != nil {
		t.Errorf("disconnected: %v", err)
	}
	k.Close()
	if len(v.kernel) != 0 {
		t.Error("a device that was disconnected got another connection")
	}
}

// TestServeDeviceEnds: the driver takes no more; the server stops, while the
// device is served or waits.
func TestServeDeviceEnds(t *testing.T) {
	v := serveDevice(t, memory(t, 1<<20))
	v.refuse.Store(true)
	v.next().Close()
	if err := <-v.served; !errors.Is(err, unix.EINVAL) {
		t.Errorf("refused: %v", err)
	}

	v = serveDevice(t, memory(t, 1<<20))
	v.srv.Close()
	v.next().Close()
	if err := <-v.served; err != nil {
		t.Errorf("stopped: %v", err)
	}

	f := blk.NewFault(memory(t, 1<<20), 1)
	v = serveDevice(t, f)
	f.Add(blk.Rule{Stall: true})
	k := v.next()
	v.send(k, 1, 0, 'a')
	for f.Held() == 0 {
		time.Sleep(time.Millisecond)
	}
	k.Close()
	k = v.next()
	defer k.Close()
	v.srv.Close()
	b := make([]byte, 1)
	if n, err := k.Read(b); n != 0 || err != io.EOF {
		t.Errorf("the connection in waiting: %d, %v", n, err)
	}
	f.Release()
	if err := <-v.served; err != nil {
		t.Errorf("stopped while it waited: %v", err)
	}
}
