package nbd

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk"
)

// looked is a device that knows its extents and can be told what will be read, or fails at it.
type looked struct {
	blk.Device
	err      error
	off, len atomic.Uint64
}

func (l *looked) Map(off, n uint64, out []blk.Extent) ([]blk.Extent, error) {
	return append(out, blk.Extent{Len: n, Hole: true}), l.err
}

func (l *looked) Prefetch(off, n uint64) error {
	l.off.Store(off)
	l.len.Store(n)
	return l.err
}

// withoutFUA is a device that makes nothing durable at once.
type withoutFUA struct{ blk.Device }

func (d withoutFUA) Info() *blk.Info {
	i := *d.Device.Info()
	i.FUA = false
	return &i
}

// TestLooksAtDevices: what a device says of its extents and does about what will be read comes to
// the client, its errors too; one that knows no extents has data everywhere.
func TestLooksAtDevices(t *testing.T) {
	const size = 1 << 20
	failed := &looked{Device: memory(t, size), err: blk.ErrMedium}
	good := &looked{Device: memory(t, size)}
	for _, c := range []struct {
		what    string
		d       blk.Device
		extents []blk.Extent
		errno   uint32
	}{
		{"a device without extents", &counting{Device: memory(t, size)}, []blk.Extent{{Len: 8192}}, 0},
		{"a device of holes", good, []blk.Extent{{Len: 8192, Hole: true}}, 0},
		{"a device that fails", failed, nil, uint32(unix.EIO)},
	} {
		_, socket := serve(t, Options{}, Export{Device: c.d})
		n, err := Dial(t.Context(), socket, "")
		if err != nil {
			t.Fatal(err)
		}
		es, err := n.BlockStatus(4096, 8192)
		if (err != nil) != (c.errno != 0) || c.errno != 0 && !errors.Is(err, unix.Errno(c.errno)) {
			t.Errorf("%s: %v", c.what, err)
		}
		if c.errno == 0 && (len(es) != 1 || es[0] != c.extents[0]) {
			t.Errorf("%s: %+v, want %+v", c.what, es, c.extents)
		}
		n.Close()
		raw := enter(t, socket, "", false)
		raw.send(command(cmdCache, 0, 1, 4096, 12288, nil))
		if r := raw.reply(0); r.value != c.errno {
			t.Errorf("%s: what will be read: error %d, want %d", c.what, r.value, c.errno)
		}
		raw.send(command(cmdRead, 0, 2, 0, 512, nil)) // the connection goes on
		if r := raw.reply(512); r.value != 0 || r.cookie != 2 {
			t.Errorf("%s: a read afterwards: %+v", c.what, r)
		}
	}
	if good.off.Load() != 4096 || good.len.Load() != 12288 {
		t.Errorf("told of %d bytes at %d, want 12288 at 4096", good.len.Load(), good.off.Load())
	}
}

// TestNoFUA: a write that has to be durable at once is refused where the device has no such writes,
// and nothing is written.
func TestNoFUA(t *testing.T) {
	for _, has := range []bool{true, false} {
		m := memory(t, 1<<20)
		var d blk.Device = m
		if !has {
			d = withoutFUA{m}
		}
		_, socket := serve(t, Options{}, Export{Device: d})
		c := enter(t, socket, "", false)
		payload := make([]byte, 512)
		payload[0] = 0xaa
		c.send(command(cmdWrite, cmdFlagFUA, 1, 0, 512, payload))
		if r := c.reply(0); (r.value == 0) != has || !has && r.value != uint32(unix.EINVAL) {
			t.Errorf("FUA %v: error %d", has, r.value)
		}
		got := make([]byte, 512)
		if err := blk.ReadAt(m, got, 0); err != nil || (got[0] == 0xaa) != has {
			t.Errorf("FUA %v: %#x is there, %v", has, got[0], err)
		}
	}
}

// TestOneLooksAtATime: one goroutine looks, however many commands wait for it, and another
// begins when it has ended and a command comes again.
func TestOneLooksAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := 0
		c := &conn{srv: &Server{}}
		c.lookFn = func() { begun++ } // and never ends, as far as c knows
		c.later(&op{})
		c.later(&op{})
		synctest.Wait()
		if begun != 1 {
			t.Errorf("%d goroutines look, want 1", begun)
		}
		for range 2 {
			if c.lookups.pop() == nil {
				t.Error("a command that was to wait is lost")
			}
		}
		c.lookUp() // finds nothing, and ends
		c.later(&op{})
		synctest.Wait()
		if begun != 2 {
			t.Errorf("%d goroutines began to look, want 2", begun)
		}
	})
}
